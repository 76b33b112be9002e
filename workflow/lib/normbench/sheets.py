"""The race as plain tables, for readers without scripts, on paper or with a screen reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats, schema
from normbench.charts import kit
from normbench.measured import Measured

QUANTITIES = {
    "stream": ("gbps", "GB/s"),
    "l2": ("gbps", "GB/s"),
    "latency": ("time_us_p50", "µs a launch"),
    "wide": ("time_us_p50", "µs a launch"),
}


@dataclass(frozen=True)
class Cell:
    """One time: its text, whether it may be quoted, is in the winner set, and is of an output within the tolerance."""

    text: str
    quotable: bool = True
    wins: bool = False
    accurate: bool = True


@dataclass(frozen=True)
class Sheet:
    """One op, dtype and regime: a column a contender, a line a point as (rows, hidden) with its cells."""

    op: str
    dtype: str
    regime: str
    unit: str
    contenders: tuple[str, ...]
    lines: tuple[tuple[int, int, tuple[Cell, ...]], ...]


def sheets(one: Measured) -> list[Sheet]:
    """Every race of the page, the stream regime first; contenders without a time in a sheet have no column there."""
    timed = kit.raced(one, None).filter(pl.col("time_us_p50").is_not_null())
    groups = timed.partition_by("regime", "op", "dtype", as_dict=True)
    return [_sheet(groups[key]) for key in sorted(groups, key=_place)]


def _place(key: tuple[Any, ...]) -> tuple[int, str, int]:
    regime, op, dtype = key
    return schema.REGIMES.index(regime), op, schema.DTYPES.index(dtype)


def _sheet(rows: pl.DataFrame) -> Sheet:
    regime, op, dtype = rows.select("regime", "op", "dtype").row(0)
    column, unit = QUANTITIES[regime]
    names = kit.contenders(rows)
    points = rows.select("rows", "hidden").unique().sort("hidden", "rows")
    cells = {(row["rows"], row["hidden"], row["contender"]): row for row in rows.iter_rows(named=True)}
    return Sheet(op, dtype, regime, unit, tuple(names), tuple(_lines(points, names, cells, column)))


def _lines(
    points: pl.DataFrame, names: list[str], cells: Mapping[tuple[int, int, str], Mapping[str, Any]], column: str
) -> Iterator[tuple[int, int, tuple[Cell, ...]]]:
    for rows, hidden in points.iter_rows():
        yield rows, hidden, tuple(_cell(cells.get((rows, hidden, name)), column) for name in names)


def _cell(row: Mapping[str, Any] | None, column: str) -> Cell:
    if row is None or row[column] is None:
        return Cell(formats.NONE)
    text = formats.count(row[column]) if column == "gbps" else f"{row[column]:.3g}"
    return Cell(text, row["verdict"] == "quotable", row["in_winner_set"], row["accurate"] is not False)
