"""``normbench archive check``: whether every run of an archive is what it says, whoever copied it there.

Beyond what ``collect`` refuses, it looks at what makes a run credible: checksums, hashes of points, the run's name
against its contents, the points of the study, clocks that cannot be, the same numbers under two names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from normbench import archive
from normbench.archive import Run
from normbench.formats import quantity
from normbench.points import Point

SUMS = "SHA256SUMS"
IDENTIFIED = ("cases", "showdown", "checks", "audit", "profile")  # tables whose rows carry the hash of their point
AHEAD = timedelta(minutes=10)  # what clocks that nobody sets may be apart
Problem = tuple[Path, str]


def check(folder: Path, now: datetime | None = None, allow_fake: bool = False) -> Iterator[Problem]:
    """(file or folder, what is wrong with it) for every run below an archive; one bad run hides no other.

    now: UTC time that no measurement can be later than (default: this host's).
    """
    yield from _strays(folder)
    known: dict[str, Path] = {}
    for path in archive.folders(folder):
        yield from ((path / name, sentence) for name, sentence in _sums(path))
        try:
            run = archive.read_archived(path)
        except ValueError as error:
            yield path, str(error).removeprefix(f"{path}").lstrip("/: ")
            continue
        yield from ((path, sentence) for sentence in _wrong(run, now or datetime.now(UTC), allow_fake))
        first = known.setdefault(_numbers(run), path)
        if first != path:
            yield path, f"holds the same measurements as {first}; remove one"


def _strays(folder: Path) -> Iterator[Problem]:
    """What lies where runs lie and is none."""
    for path in sorted(folder.glob("*/*")):
        if path.parent.name.startswith("."):
            continue
        if path.name.startswith("."):
            yield path, "was left by a publication or a copy that was interrupted; remove it"
        elif not (path / "machine.json").is_file():
            yield path, "is no run: it has no machine.json"


def _sums(folder: Path) -> Iterator[tuple[str, str]]:
    """Files that differ from what ``publish`` wrote; a run of before there were checksums has none to differ from."""
    path = folder / SUMS
    if not path.is_file():
        return
    listed = dict(line.split("  ", 1)[::-1] for line in path.read_text().splitlines() if "  " in line)
    for name, digest in sorted(listed.items()):
        if not (folder / name).is_file():
            yield name, "is missing"
        elif digest != checksum(folder / name):
            yield name, "is not what was published: its checksum differs"
    for found in sorted(folder.iterdir()):
        if found.name not in listed and found != path:
            yield found.name, f"was not published with the run: {SUMS} does not list it"


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_sums(folder: Path) -> None:
    """Checksums of the files of a run, as ``sha256sum --check`` reads them."""
    lines = [f"{checksum(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != SUMS]
    (folder / SUMS).write_text("".join(lines))


def _wrong(run: Run, now: datetime, allow_fake: bool) -> Iterator[str]:
    if run.machine.get("fake") and not allow_fake:
        yield "is of a faked GPU; only measured numbers belong into an archive"
    yield from _points(run)
    try:
        named = archive.run_id(run.tables["showdown"])
    except archive.ArchiveError as error:
        yield str(error)
    else:
        if named != run.run:
            yield f"should be called {named} after its newest race"
    late = run.tables["showdown"].filter(pl.col("measured_at") > (now + AHEAD).strftime("%Y-%m-%dT%H:%M:%SZ"))
    if late.height:
        newest = late.sort("measured_at").row(-1, named=True)["measured_at"]
        yield f"was measured at {newest}, which is to come: the clock of its host, or of this one, is wrong"


def _points(run: Run) -> Iterator[str]:
    for name in IDENTIFIED:
        for row in run.tables[name].unique("point", maintain_order=True).iter_rows(named=True):
            if (key := _key(row)) != row["point"]:
                yield f"{name}.parquet: point {row['point']} should be {key}, by op, dtype, shape and semantics"
                break
    raced = archive.work(run.tables["showdown"].unique("point").iter_rows(named=True))
    try:
        asked = archive.work(row for row in run.study["points"] if row["op"] in run.study["study"]["ops"])
    except (KeyError, TypeError):
        yield "study.json: does not list the points of the study"
        return
    if raced != asked:
        held = f"{len(raced & asked)} of the {len(asked)} points in study.json"
        yield f"showdown.parquet: holds {held}, and {len(raced - asked)} others"


def _key(row: Mapping[str, object]) -> str | None:
    try:
        return Point.from_identity(dict(row)).key
    except (KeyError, TypeError, ValueError):
        return None


def _numbers(run: Run) -> str:
    """Hash of what was timed when, whatever device and run it is filed under."""
    columns = ("point", "contender", "time_us_p50", "measured_at")
    rows = run.tables["showdown"].select(columns).sort(columns)
    return hashlib.sha256(json.dumps(rows.rows()).encode()).hexdigest()


def report(folder: Path, allow_fake: bool) -> int:
    """Print every problem, then a count; 1 where there is one."""
    if not folder.is_dir():
        raise archive.ArchiveError(f"{folder}: there is no such folder")
    problems = list(check(folder, allow_fake=allow_fake))
    for path, sentence in problems:
        print(f"{path}: {sentence}")
    runs = archive.folders(folder)
    devices = {path.parent.name for path in runs}
    counts = f"{quantity(len(runs), 'run')} of {quantity(len(devices), 'device')}"
    print(f"{counts}: {quantity(len(problems), 'problem') if problems else 'no problem'}")
    return 1 if problems else 0
