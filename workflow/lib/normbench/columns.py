"""Verb ``columns``: the schema as text."""

from __future__ import annotations

import argparse

from normbench import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", choices=sorted(schema.TABLES), help="only this table")


def main(args: argparse.Namespace) -> int:
    print(schema.describe(args.table))
    return 0
