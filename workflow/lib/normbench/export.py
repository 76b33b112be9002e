"""Verb ``export``: an archived run in the format of another tool."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from normbench import archive, nvbench, schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="archived run: device/run, or its folder")
    parser.add_argument("--format", choices=["nvbench"], required=True, help="nvbench: JSON for nvbench-compare")
    parser.add_argument("--archive", type=Path, default=Path("reports/data"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: standard output)")


def main(args: argparse.Namespace) -> int:
    run = archive.read_archived(archive.locate(args.run, args.archive))
    text = nvbench.text(run.tables["showdown"], run.machine)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    with schema.atomic(args.out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return 0
