"""Verb ``index``: every archived device, grouped by model, with its best contender where people look first."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from normbench import answers, document, history, measured, provenance
from normbench.history import Meeting
from normbench.measured import Archive, Machine
from normbench.versus import MARKS

SIZES = (1024, 4096, 65536)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", type=Path, required=True, help="folder of the collected tables")
    parser.add_argument("--out", type=Path, required=True, help="the page to write")
    parser.add_argument("--title", default="normbench", help="title of the page")


def main(args: argparse.Namespace) -> int:
    document.write(build(measured.load(args.tables), args.title), args.out)
    return 0


@dataclass(frozen=True)
class Entry:
    """One device: its newest machine facts, the runs its rows come from, and a line per op and dtype."""

    device: str
    machine: Machine
    runs: tuple[str, ...]
    link: str
    lines: list[dict[str, Any]]


def build(archive: Archive, title: str = "normbench") -> str:
    """The whole page; equal data give equal bytes."""
    entries = sorted((_entry(archive, device) for device in archive.devices), key=_by_model)
    models = [(model, list(group)) for model, group in groupby(entries, key=lambda entry: _by_model(entry)[0])]
    newest = [entry.machine for _, group in models for entry in group]
    return document.render(
        "index.html.j2",
        title=title,
        models=models,
        sizes=SIZES,
        histories=history.histories(archive),
        marks=MARKS,
        devices=[str(machine["device"]) for machine in newest],
        meetings=_grid(history.meetings(archive)),
        differences=provenance.differences(newest),
    )


def _grid(meetings: Iterable[Meeting]) -> dict[tuple[str, str], Meeting]:
    return {(one.left, one.right): one for one in meetings}


def _by_model(entry: Entry) -> tuple[str, str]:
    return str(entry.machine.get("model") or entry.device), entry.device


def _entry(archive: Archive, device: str) -> Entry:
    one = measured.measured(archive, device)
    return Entry(device, one.machine, one.runs, f"{quote(device, safe='')}.html", list(_lines(one.showdown)))


def _lines(showdown: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Per op and dtype: the winner at each of SIZES (None where it was not measured) and the run each point is from."""
    winners = answers.stream(showdown).filter(pl.col("fastest") & pl.col("hidden").is_in(SIZES))
    order = pl.col("dtype").replace_strict({"fp32": 0, "fp16": 1, "bf16": 2})
    for (op, dtype), group in winners.sort("op", order, "hidden").group_by("op", "dtype", maintain_order=True):
        rows = {row["hidden"]: row for row in group.iter_rows(named=True)}
        yield {"op": op, "dtype": dtype, "cells": [rows.get(size) for size in SIZES], "runs": _runs(rows.values())}


def _runs(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["run"] for row in rows})
