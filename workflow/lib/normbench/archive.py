"""Finished studies on disk: those published in the archive and those still in results/, read and checked alike.

Verb ``archive``: ``normbench archive check`` looks at a whole archive, see integrity.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from normbench import schema
from normbench.cli import UserError

Facts = dict[str, Any]
OURS = ("cuda", "triton")


class ArchiveError(UserError):
    """A study on disk is not what it should be; the message names the file."""


@dataclass(frozen=True)
class Run:
    """One study of one device. tables: every table of the schema by name, empty where it was not made.

    target: folder of results/ where the study lies, None for an archived one. hashes: SHA-256 of each file it was read
    from, by the file's name below the folder of the run. built: (stem, architecture) of every build of a local study,
    those included that hold no variant because the kernel needs a newer architecture.
    """

    device: str
    run: str
    machine: Facts
    study: Facts
    tables: Mapping[str, pl.DataFrame]
    hashes: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    built: frozenset[tuple[str, str]] = frozenset()

    @property
    def id(self) -> str:
        return f"{self.device}/{self.run}"


def folders(archive: Path | str) -> list[Path]:
    """``<device>/<run>`` folders of the archive, sorted; a half-copied one starts with a dot and is none."""
    found = Path(archive).glob("*/*/machine.json")
    return sorted(path.parent for path in found if not any(part.startswith(".") for part in path.parts[-3:-1]))


def local_folders(results: Path | str) -> list[Path]:
    """Targets of results/ that were measured to the end, sorted: rule ``record`` writes study.json last."""
    return sorted(path.parent for path in Path(results).glob("*/study.json"))


def files(folder: Path) -> Iterator[Path]:
    """The files of a study that ``collect`` reads, archived or local."""
    yield from (path for name in ("machine.json", "study.json") if (path := folder / name).is_file())
    yield from sorted(folder.glob("*.parquet"))
    for name in ("cases", "showdown", *schema.ASKED):
        yield from sorted((folder / name).glob("*.parquet"))


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a study in hex, by name below ``folder``, as ``sha256sum`` prints it."""
    names = sorted(path.relative_to(folder).as_posix() for path in files(folder))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def locate(text: str, archive: Path | str = "reports/data") -> Path:
    """The folder of an archived run, given as a path or as ``device/run``.

    Raises:
        ArchiveError: there is none; the sentence names those of the same device, or all devices.
    """
    for folder in (Path(text), Path(archive) / text):
        if (folder / "machine.json").is_file():
            return folder
    known = [f"{folder.parent.name}/{folder.name}" for folder in folders(archive)]
    raise ArchiveError(f"{text}: no archived run; there are {', '.join(known) or 'none'}")


def comparison(left: str, right: str) -> str:
    """Name of the comparison of two runs, given as ``device/run`` or as folders: ``compare-<left>-<right>``."""
    return "-".join(["compare", *("-".join(Path(text).parts[-2:]) for text in (left, right))])


def read_archived(folder: Path | str) -> Run:
    """One run of the archive, validated.

    Raises:
        SchemaError: a table breaks a rule of the schema.
        ArchiveError: a file is missing, or names another device or run than its folder.
    """
    folder = Path(folder)
    machine, study = read_json(folder / "machine.json"), read_json(folder / "study.json")
    device, run = folder.resolve().parent.name, folder.name
    for name, value in (("device", device), ("run", run)):
        if machine.get(name) != value:
            path = folder / "machine.json"
            raise ArchiveError(f"{path}: {name} is {machine.get(name)!r}, but the folder says {value!r}")
    tables = {name: _archived_table(folder, name) for name in schema.TABLES}
    for name, frame in tables.items():
        strange = frame.filter((pl.col("device") != device) | (pl.col("run") != run))
        if strange.height:
            row = strange.row(0, named=True)
            raise ArchiveError(f"{folder / name}.parquet: holds a row of {row['device']}/{row['run']}")
    return Run(device, run, machine, study, tables, hashes(folder))


def _archived_table(folder: Path, name: str) -> pl.DataFrame:
    path = folder / f"{name}.parquet"
    table = schema.TABLES[name]
    return table.empty() if table.asked and not path.exists() else schema.read(path, table)


def read_json(path: Path) -> Facts:
    """A JSON object.

    Raises:
        ArchiveError: the file is missing or holds something else.
    """
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ArchiveError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ArchiveError(f"{path}: not a JSON object")
    return values


def read_local(folder: Path | str, builds: Path | str) -> Run:
    """A finished study in results/<target>, validated, under the run id it would be published with.

    The study is what its own study.json says: the ops asked for, and the kernels their races name; tables of an
    earlier, wider study that still lie there are not read.

    Raises:
        SchemaError: a table breaks a rule of the schema.
        ArchiveError: a file is missing, or a table does not hold the points of the study.
    """
    folder = Path(folder)
    machine, study = read_json(folder / "machine.json"), read_json(folder / "study.json")
    device = str(machine.get("device"))
    showdown = _races(folder, study)
    contenders = {name.removesuffix(schema.TWIN) for name in showdown["contender"].unique()}
    stems = sorted(
        {name.removesuffix(schema.TWIN) for name in showdown.filter(pl.col("lang").is_in(OURS))["contender"]}
    )
    tables = {
        "showdown": showdown,
        "cases": _concat("cases", [_cases(folder / "cases" / f"{stem}.parquet", showdown) for stem in stems]),
        "ceilings": schema.read(folder / "ceilings.parquet", schema.CEILINGS),
        "resources": _resources(Path(builds), stems),
    }
    parts = contenders | set(study["study"]["ops"])
    tables |= {name: _asked(folder / name, schema.TABLES[name], parts) for name in schema.ASKED}
    for name, frame in tables.items():
        strange = frame.filter(pl.col("device") != device)
        if strange.height and name != "resources":
            raise ArchiveError(
                f"{folder}: table {name} holds a row of {strange['device'][0]}, but machine.json is of {device}"
            )
    run = run_id(showdown, folder)
    labelled = {
        name: schema.validate(
            frame.with_columns(device=pl.lit(device), run=pl.lit(run)), schema.TABLES[name], f"{folder}: {name}"
        )
        for name, frame in tables.items()
    }
    machine = {"device": device, "run": run} | machine
    built = frozenset((path.stem, path.parent.name) for path in Path(builds).glob("*/*.parquet"))
    return Run(device, run, machine, study, labelled, hashes(folder), folder.name, built)


def run_id(showdown: pl.DataFrame, where: Path | str = "showdown") -> str:
    """``20261129T171500-ab12cd3``: when the newest race ended, and the sources it was measured with.

    Raises:
        ArchiveError: no row says when it was measured.
    """
    dated = showdown.filter(pl.col("measured_at").is_not_null() & pl.col("sources").is_not_null())
    if dated.is_empty():
        raise ArchiveError(f"{where}: no race says when and with which sources it was measured")
    newest = dated.sort("measured_at", "sources").row(-1, named=True)
    return f"{newest['measured_at'].translate(str.maketrans('', '', '-:Z'))}-{newest['sources'][:7]}"


def _races(folder: Path, study: Facts) -> pl.DataFrame:
    frames = []
    for op in study["study"]["ops"]:
        path = folder / "showdown" / f"{op}.parquet"
        frame = schema.read(path, schema.SHOWDOWN)
        _whole(path, work(frame.iter_rows(named=True)), work(row for row in study["points"] if row["op"] == op))
        frames.append(frame)
    return _concat("showdown", frames)


def _cases(path: Path, showdown: pl.DataFrame) -> pl.DataFrame:
    """Tuning of one kernel; it must cover every point at which the race did not refuse it."""
    frame = schema.read(path, schema.CASES)
    raced = showdown.filter((pl.col("contender") == path.stem) & (pl.col("status") != "skipped"))
    wanted, found = work(raced.iter_rows(named=True)), work(frame.iter_rows(named=True))
    _whole(path, found & wanted, wanted)
    return frame.filter(pl.col("op").is_in(showdown["op"].unique().to_list()))


def work(rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """What identifies points across memory tiers: rows count only where the study fixes them."""
    return {
        (
            row["op"],
            row["dtype"],
            row["hidden"],
            row["regime"],
            row["semantics"],
            row["rows"] if row["regime"] in ("latency", "wide") else None,
        )
        for row in rows
    }


def _whole(path: Path, found: set[tuple[Any, ...]], wanted: set[tuple[Any, ...]]) -> None:
    missing, strange = wanted - found, found - wanted
    if missing:
        raise ArchiveError(
            f"{path}: holds {len(wanted) - len(missing)} of the {len(wanted)} points of the study; missing is "
            f"{_first(missing)}; run snakemake again to finish it"
        )
    if strange:
        raise ArchiveError(f"{path}: holds {_first(strange)}, which is no point of the study in study.json beside it")


def _first(points: set[tuple[Any, ...]]) -> str:
    """One point in words, the same one every time."""
    return " ".join(str(part) for part in min(points, key=str) if part is not None)


def _asked(folder: Path, table: schema.Table, parts: set[str]) -> pl.DataFrame:
    """A table that a target of its own made, from those of its parts (contenders, or ops) that are of the study."""
    paths = [path for path in sorted(folder.glob("*.parquet")) if path.stem in parts]
    return _concat(table.name, [schema.read(path, table) for path in paths])


def _resources(builds: Path, stems: list[str]) -> pl.DataFrame:
    paths = [path for path in sorted(builds.glob("*/*.parquet")) if path.stem in stems]
    return _concat("resources", [schema.read(path, schema.RESOURCES) for path in paths])


def _concat(name: str, frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([schema.TABLES[name].empty(), *frames])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    check = actions.add_parser("check", help="validate every run; name each bad file; exit 1 where there is one")
    check.add_argument("folder", nargs="?", type=Path, default=Path("reports/data"), help="default: reports/data")
    check.add_argument("--allow-fake", action="store_true", help="runs of faked GPUs are no problem, for tests")


def main(args: argparse.Namespace) -> int:
    from normbench import integrity

    return integrity.report(args.folder, args.allow_fake)
