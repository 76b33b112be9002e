"""Verb ``collect``: finished local studies and the archive, every file checked, as one table of each kind.

Runs are read one after the other in the order of the tables' keys, which begin with device and run, so a table is
written as it is read: no more than ``PART_ROWS`` rows of it are in memory at a time, however large the archive is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from normbench import archive, schema
from normbench.archive import ArchiveError, Run

PART_ROWS = 1 << 17


def gather(results: Path, published: Path, targets: Sequence[str] = ()) -> Iterator[Run]:
    """Every run by device and run, read when its turn comes.

    A local study that is published counts once, as published. Studies of ``targets`` must be whole; another GPU's study
    that happens to lie in results/ unfinished is named on stderr and left out.

    Raises:
        ArchiveError, SchemaError: a file breaks a rule; the message names it.
    """
    found = {
        (folder.parent.name, folder.name): partial(archive.read_archived, folder)
        for folder in archive.folders(published)
    }
    for run in _local_runs(results, targets):
        found.setdefault((run.device, run.run), partial(_itself, run))
    for key in sorted(found):
        yield found[key]()


def _itself(run: Run) -> Run:
    return run


def _local_runs(results: Path, targets: Sequence[str]) -> Iterator[Run]:
    for folder in sorted({*archive.local_folders(results), *(results / target for target in targets)}):
        try:
            yield archive.read_local(folder, results / "build")
        except ValueError as error:
            if folder.name in targets:
                raise
            print(f"normbench collect: left out {folder}: {error}", file=sys.stderr)


class Growing:
    """One table file that grows run by run, in the order of its key, and appears when it is whole."""

    def __init__(self, table: schema.Table, scratch: Path) -> None:
        self.table, self.scratch = table, scratch
        self.waiting = [table.empty()]
        self.parts: list[Path] = []

    def add(self, frame: pl.DataFrame) -> None:
        self.waiting.append(frame)
        if sum(part.height for part in self.waiting) >= PART_ROWS:
            self.parts.append(self.scratch / f"{self.table.name}-{len(self.parts)}.parquet")
            pl.concat(self.waiting).write_parquet(self.parts[-1], compression="lz4", statistics=False)
            self.waiting = [self.table.empty()]

    def write(self, path: Path) -> None:
        rest = pl.concat(self.waiting).lazy()
        whole = pl.concat([*map(pl.scan_parquet, self.parts), rest])
        with schema.atomic(path) as temporary:
            # a page reads one device of it: by their statistics, row groups of others are not even read
            whole.sink_parquet(temporary, compression="zstd", compression_level=3, row_group_size=PART_ROWS // 4)


def write(runs: Iterable[Run], folder: Path) -> tuple[int, int]:
    """The tables and machines.json, each whole or absent; returns the number of runs and of devices.

    runs: by device and run.

    Raises:
        ArchiveError: two folders hold the same run.
    """
    machines: list[dict[str, Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
        tables = {name: Growing(table, Path(scratch)) for name, table in schema.TABLES.items()}
        for run in runs:
            if machines and (machines[-1]["device"], machines[-1]["run"]) >= (run.device, run.run):
                raise ArchiveError(f"{run.id}: found in two folders; remove one")
            facts = {"study": run.study["study"], "commit": run.study.get("commit"), "files": dict(run.hashes)}
            machines.append(run.machine | facts | {"target": run.target})
            for name, table in tables.items():
                table.add(run.tables[name])
        for name, table in tables.items():
            table.write(folder / f"{name}.parquet")
    with schema.atomic(folder / "machines.json") as temporary:
        temporary.write_text(json.dumps(machines, indent=1) + "\n")
    return len(machines), len({machine["device"] for machine in machines})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", nargs="*", default=[], metavar="DEVICE", help="studies that must be whole")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--archive", type=Path, default=Path("reports/data"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), metavar="FOLDER")


def main(args: argparse.Namespace) -> int:
    runs, devices = write(gather(args.results, args.archive, args.target), args.out)
    print(f"{runs} runs of {devices} devices")
    return 0
