"""Verb ``show``: tables of ``audit``, ``sanitize`` or ``profile`` as text; exit 1 where a sanitizer found something.

A row that was skipped for want of a tool is no finding: it says so, here and on the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from normbench import formats, inspections, schema
from normbench.cli import UserError

SHOWN = ("audit", "sanitize", "profile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="+", type=Path, help="results/DEVICE/TABLE/NAME.parquet, or .../TABLE.parquet")


def main(args: argparse.Namespace) -> int:
    code = 0
    for name in SHOWN:
        paths = [path for path in args.tables if table_of(path) == name]
        if not paths:
            continue
        frame = pl.concat([schema.read(path, schema.TABLES[name]) for path in paths])
        for line in inspections.text(name, frame):
            print(line)
        bad = inspections.bad(name, frame)
        if bad.height:
            print(f"{name}: {formats.quantity(bad.height, 'check')} of {frame.height} not clean")
            code = 1
    return code


def table_of(path: Path) -> str:
    """The table a file holds, by its name or its folder's.

    Raises:
        UserError: neither is one of SHOWN.
    """
    for name in (path.stem, path.parent.name):
        if name in SHOWN:
            return name
    raise UserError(f"{path}: neither the file nor its folder is called {', '.join(SHOWN)}")
