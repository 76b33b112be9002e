"""Verb ``publish``: a finished study as a new folder of the archive, which nothing ever writes into again."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from normbench import archive, integrity, schema, sources
from normbench.archive import Run
from normbench.cli import UserError

MOST_BYTES = 2 << 20
PICTURES = ("bandwidth", "speedup")  # charts the README shows, per op, in PICTURED
PICTURED = "bf16"
ARCHS = frozenset(f"sm_{number}" for number in (75, 80, 86, 89, 90, 100, 120))


class PublishError(UserError):
    """The study cannot be published as it is; the sentence says what to do."""


def publish(run: Run, published: Path, allow_fake: bool = False, commit: str | None = None) -> Path:
    """Copy ``run`` to ``<published>/<device>/<run>``; the folder is there whole or not at all.

    allow_fake: a faked GPU's study may go to an archive of its own, for tests. commit: see ``checkout_commit``.

    Raises:
        PublishError: a faked GPU, architectures missing from the resources, the run is there already, or it is too big.
    """
    folder = published / run.device / run.run
    _publishable(run, folder, allow_fake)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # a name with a dot is no run to anybody who reads the archive
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{run.run}."))
    try:
        _write(run, temporary, commit)
        _small(temporary)
        temporary.chmod(0o755)
        _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # succeeds only where this would have been the device's first run
    return folder


def _publishable(run: Run, folder: Path, allow_fake: bool) -> None:
    if run.machine.get("fake") and not allow_fake:
        raise PublishError(f"{run.device} is a faked GPU; only measured numbers are published")
    if folder.exists():
        raise PublishError(f"{folder} exists; a published run is never written again")
    for stem in sorted(run.tables["cases"].filter(pl.col("lang") == "cuda")["contender"].unique()):
        missing = sorted((arch for arch in ARCHS if (stem, arch) not in run.built), key=lambda arch: int(arch[3:]))
        if missing:
            archs = ", ".join(missing)
            raise PublishError(f"{stem} is not compiled for {archs}; run `snakemake --cores 2 cubins` first")


def checkout_commit(run: Run, root: Path) -> str | None:
    """The commit of the checkout at ``root``, if its committed sources are those that measured ``run``; else None."""
    measured_with = set(run.tables["showdown"]["sources"].drop_nulls())
    if measured_with != {sources.sources(root / "kernels")} or not sources.PACKAGE.is_relative_to(root):
        return None
    changed = _git(root, "status", "--porcelain", "--", "kernels", str(sources.PACKAGE))
    return _git(root, "rev-parse", "HEAD") if changed == "" else None


def _git(root: Path, *words: str) -> str | None:
    """What git prints, without the last line break; None where it fails or there is none."""
    try:
        ran = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def _write(run: Run, folder: Path, commit: str | None) -> None:
    study = run.study | ({"commit": commit} if commit else {})
    for name, values in (("machine", run.machine), ("study", study)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    for name, frame in run.tables.items():
        if not (schema.TABLES[name].asked and frame.is_empty()):
            schema.write(frame, schema.TABLES[name], folder / f"{name}.parquet")
    _draw(run, folder)
    integrity.write_sums(folder)


def _draw(run: Run, folder: Path) -> None:
    """The README's pictures beside the data they show: ``bandwidth-rmsnorm-bf16.svg`` and the like."""
    import vl_convert

    from normbench import measured, pictures

    own = measured.Archive(**run.tables, machines=(run.machine,))
    for name, spec in pictures.pictures(measured.measured(own, run.device)):
        if name.startswith(PICTURES) and name.endswith(PICTURED):
            (folder / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def _small(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise PublishError(
            f"the study takes {sum(sizes.values()) / 2**20:.1f} MiB, more than {MOST_BYTES >> 20} MiB, most of it in "
            f"{largest}; publish it in slices, such as `--config ops=layernorm`"
        )


def _rename(temporary: Path, folder: Path) -> None:
    """``rename`` replaces an empty folder only, so of two who publish at once one fails."""
    try:
        temporary.rename(folder)
    except OSError as error:
        raise PublishError(f"{folder} exists; a published run is never written again") from error


def overtaken(folder: Path) -> str | None:
    """A sentence where an archived run of the same device is later than the one in ``folder``, which a clock may have
    put there; None where this is the latest."""
    latest = max(path.name for path in archive.folders(folder.parents[1]) if path.parent == folder.parent)
    if latest <= folder.name:
        return None
    return (
        f"note: {folder.parent.name} has a later run, {latest}, from which pages take what both measured; if "
        f"{folder.name} was measured after it, the clock of a host was wrong, and this study is to be measured again"
    )


def finished(results: Path, target: str | None) -> Path:
    """Folder of the study to publish: that of ``target``, or the only one there is.

    Raises:
        PublishError: none, or several without a target.
    """
    found = {folder.name: folder for folder in archive.local_folders(results)}
    if target is None and len(found) == 1:
        return next(iter(found.values()))
    if target in found:
        return found[str(target)]
    if not found:
        raise PublishError(
            f"{results} holds no finished study; run `snakemake --cores 1 report` first, on a host with a GPU"
        )
    asked = f"{target} is not finished" if target else "which study? name it with --target"
    raise PublishError(f"{asked}; finished in {results}: {', '.join(found)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="DEVICE", help="device id (default: the only finished study)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--archive", type=Path, default=Path("reports/data"), metavar="FOLDER")
    parser.add_argument(
        "--allow-fake", action="store_true", help="take a faked GPU's study, into an --archive other than the default"
    )


def main(args: argparse.Namespace) -> int:
    if args.allow_fake and args.archive.resolve() == Path("reports/data").resolve():
        raise PublishError("--allow-fake needs an --archive of its own; reports/data holds measured numbers only")
    run = archive.read_local(finished(args.results, args.target), args.results / "build")
    folder = publish(run, args.archive, args.allow_fake, checkout_commit(run, Path.cwd()))
    for path in sorted(folder.iterdir()):
        print(f"{path} {path.stat().st_size / 1024:.0f} KiB")
    if later := overtaken(folder):
        print(f"normbench publish: {later}", file=sys.stderr)
    print(f"published {run.id}; `git add {folder}` puts it into the repository")
    return 0
