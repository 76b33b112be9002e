"""Verb ``index``: every archived device, grouped by model, with its best contender where people look first, and how far
chips of one model differ."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from normbench import answers, chips, document, history, measured, metrics, provenance, schema
from normbench.compare import MARKS
from normbench.history import Meeting
from normbench.measured import Archive, Machine

SIZES = (1024, 4096, 65536)
MOST_CARDS = 4  # devices of a model that get a card each; more are shown as one, with a line for each
MOST_RUNS = 24  # of an archive whose runs and devices are compared in pairs: 2 to 4 s of CPU a pair of devices
SHOWN = ("contender", "role", "gbps", "ceiling_fraction", "run")  # of a winner
Line = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", type=Path, required=True, help="folder of the collected tables")
    parser.add_argument("--out", type=Path, required=True, help="the page to write")
    parser.add_argument("--title", default="normbench", help="title of the page")


def main(args: argparse.Namespace) -> int:
    everything = measured.load(args.tables, tables=("showdown", "ceilings"))
    if len(everything.machines) <= MOST_RUNS:
        everything = measured.load(args.tables)
    document.write(build(everything, args.title), args.out)
    return 0


@dataclass(frozen=True)
class Entry:
    """One device: its newest machine facts, the runs its rows come from, and a line per op and dtype."""

    device: str
    machine: Machine
    runs: tuple[str, ...]
    link: str
    lines: list[Line]


@dataclass(frozen=True)
class Model:
    """The devices of one model. chips: how they differ, empty for a single one. lines: what holds on most of them,
    shown in place of a card each where there are more than MOST_CARDS."""

    name: str
    entries: list[Entry]
    chips: list[tuple[Entry, chips.Spread]]
    lines: list[Line]


def build(archive: Archive, title: str = "normbench") -> str:
    """The whole page; equal data give equal bytes."""
    newest = metrics.newest(archive.showdown.drop("samples_us"))
    stream = newest.filter(pl.col("regime") == "stream")
    raced = _by_device(measured.races(stream.filter(pl.col("hidden").is_in(SIZES)), archive))
    timed = _by_device(metrics.derive(stream, archive.machines, "gbps"))
    runs = {device: tuple(sorted(frame["run"].unique())) for device, frame in _by_device(newest).items()}
    machines = {str(machine["device"]): machine for machine in archive.machines}  # sorted by run: the newest stays
    entries = [
        Entry(
            device,
            dict.fromkeys(measured.MACHINE) | dict(machine),
            runs.get(device, ()),
            f"{quote(archive.page(device), safe='')}.html",
            list(_lines(measured.labelled(raced[device]))) if device in raced else [],
        )
        for device, machine in machines.items()
    ]
    models = [
        _model(name, list(group), timed) for name, group in groupby(sorted(entries, key=_by_model), key=_model_of)
    ]
    shown = [entry for model in models for entry in model.entries] if len(archive.machines) <= MOST_RUNS else []
    return document.render(
        "index.html.j2",
        title=title,
        models=models,
        sizes=SIZES,
        histories=history.histories(archive) if shown else [],
        marks=MARKS,
        devices=[entry.device for entry in shown],
        meetings=_grid(history.meetings(archive)) if shown else {},
        differences=provenance.differences([entry.machine for entry in shown]),
    )


def _grid(meetings: Iterable[Meeting]) -> dict[tuple[str, str], Meeting]:
    return {(one.left, one.right): one for one in meetings}


def _by_device(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(device): rows for (device,), rows in frame.partition_by("device", as_dict=True).items()}


def _model_of(entry: Entry) -> str:
    return str(entry.machine.get("model") or entry.device)


def _by_model(entry: Entry) -> tuple[str, str]:
    return _model_of(entry), entry.device


def _model(name: str, entries: list[Entry], timed: Mapping[str, pl.DataFrame]) -> Model:
    known = {entry.device: entry for entry in entries}
    frames = [timed[device] for device in known if device in timed]
    compared = [(known[one.device], one) for one in chips.spread(pl.concat(frames))] if len(frames) > 1 else []
    return Model(name, entries, compared, _consensus(entries) if len(entries) > MOST_CARDS else [])


def _consensus(entries: list[Entry]) -> list[Line]:
    """A line per op and dtype over all devices of a model, in the order of the devices' own lines."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in (line for entry in entries for line in entry.lines):
        found.setdefault((line["op"], line["dtype"]), []).append(line)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], schema.DTYPES.index(item[0][1])))
    return [
        {"op": op, "dtype": dtype, "cells": chips.consensus(line["cells"] for line in lines)}
        for (op, dtype), lines in ordered
    ]


def _lines(showdown: pl.DataFrame) -> Iterator[Line]:
    """Per op and dtype: the winner at each of SIZES (None where it was not measured) and the run each point is from."""
    winners = answers.stream(showdown).filter(pl.col("fastest") & pl.col("hidden").is_in(SIZES))
    order = pl.col("dtype").replace_strict({name: place for place, name in enumerate(schema.DTYPES)})
    for (op, dtype), group in winners.sort("op", order, "hidden").group_by("op", "dtype", maintain_order=True):
        rows = {row["hidden"]: {name: row[name] for name in SHOWN} for row in group.iter_rows(named=True)}
        yield {"op": op, "dtype": dtype, "cells": [rows.get(size) for size in SIZES], "runs": _runs(rows.values())}


def _runs(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["run"] for row in rows})
