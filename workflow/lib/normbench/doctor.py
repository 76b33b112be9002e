"""Verb ``doctor``: what works on this host, and what to do about what does not.

It always answers: a probe that raises is a line of its own, so a broken driver never hides the rest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from normbench.host import Host, Line, first_line, look
from normbench.probes import PROBES


def examine(host: Host | None = None) -> list[Line]:
    """Every line of every probe; a probe that raises is a line itself."""
    host = host or look()
    return [line for probe in PROBES for line in _guarded(probe, host)]


def _guarded(probe: Callable[[Host], Iterator[Line]], host: Host) -> list[Line]:
    lines: list[Line] = []
    try:
        lines.extend(probe(host))
    except Exception as error:
        lines.append(
            Line(probe.__name__, host.grave, f"{type(error).__name__}: {first_line(error)}", "see the message")
        )
    return lines


def render(lines: list[Line]) -> None:
    """Print the table; as plain text where rich itself is missing."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        for line in lines:
            print(f"{line.state:<5} {line.what}: {line.found}{f' -> {line.todo}' if line.todo else ''}")
        return
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        cells = (Text(line.state, style=colours[line.state]), Text(line.what), Text(line.found), Text(line.todo))
        table.add_row(*cells)
    Console().print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """0 if a report can be built here, 1 if not."""
    lines = examine()
    bad = [line for line in lines if line.state == "fail"]
    if args.json:
        print(json.dumps({"ok": not bad, "lines": [asdict(line) for line in lines]}, indent=1))
        return 1 if bad else 0
    render(lines)
    missing = ", ".join(line.what for line in bad)
    print(f"\nA report cannot be built here yet: {missing}." if bad else "\nA report can be built here.")
    return 1 if bad else 0
