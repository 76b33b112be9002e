"""Verb ``collect``: finished local studies and the archive, every file checked, as one table of each kind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from normbench import archive, schema
from normbench.archive import ArchiveError, Run


def gather(results: Path, published: Path, targets: Sequence[str] = ()) -> list[Run]:
    """Every run, sorted by device and run.

    A local study that is published counts once, as published. Studies of ``targets`` must be whole; another GPU's study
    that happens to lie in results/ unfinished is named on stderr and left out.

    Raises:
        ArchiveError, SchemaError: a file breaks a rule; the message names it.
    """
    runs = {run.id: run for run in map(archive.read_archived, archive.folders(published))}
    for folder in _local(results, targets):
        try:
            run = archive.read_local(folder, results / "build")
        except ValueError as error:
            if folder.name in targets:
                raise
            print(f"normbench collect: left out {folder}: {error}", file=sys.stderr)
            continue
        runs.setdefault(run.id, run)
    return [runs[name] for name in sorted(runs)]


def _local(results: Path, targets: Sequence[str]) -> list[Path]:
    return sorted({*archive.local_folders(results), *(results / target for target in targets)})


def join(runs: Sequence[Run]) -> dict[str, pl.DataFrame]:
    """One validated table of each kind; the order of ``runs`` makes no difference.

    Raises:
        ArchiveError: two folders hold the same run.
        SchemaError: two rows have the same key.
    """
    seen: set[str] = set()
    for run in runs:
        if run.id in seen:
            raise ArchiveError(f"{run.id}: found in two folders; remove one")
        seen.add(run.id)
    return {
        name: schema.validate(pl.concat([table.empty(), *(run.tables[name] for run in runs)]), table, f"all {name}")
        for name, table in schema.TABLES.items()
    }


def write(runs: Sequence[Run], folder: Path) -> None:
    """The tables and machines.json, each whole or absent."""
    for name, frame in join(runs).items():
        schema.write(frame, schema.TABLES[name], folder / f"{name}.parquet")
    machines = [
        run.machine | {"study": run.study["study"], "commit": run.study.get("commit"), "files": dict(run.hashes)}
        for run in sorted(runs, key=lambda run: run.id)
    ]
    with schema.atomic(folder / "machines.json") as temporary:
        temporary.write_text(json.dumps(machines, indent=1) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", nargs="*", default=[], metavar="DEVICE", help="studies that must be whole")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--archive", type=Path, default=Path("reports/data"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), metavar="FOLDER")


def main(args: argparse.Namespace) -> int:
    runs = gather(args.results, args.archive, args.target)
    write(runs, args.out)
    print(f"{len(runs)} runs of {len({run.device for run in runs})} devices")
    return 0
