"""The answer a page opens with: which contender to use where, computed from the race."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats

SLACK = 0.02  # a contender may cost this much more than the fastest and still be the one answer for a range
Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What to use for one op, dtype and range of hidden sizes.

    ties: other contenders in the winner set at every point of the range. cost: the largest time over the fastest's,
    minus one. faster_unquotable: rows that were faster but may not be quoted.
    """

    op: str
    dtype: str
    aligned: bool
    hidden: tuple[int, ...]
    use: str
    role: str
    ties: tuple[str, ...]
    cost: float
    gbps: formats.Span | None
    ceiling: formats.Span | None
    eager: formats.Span | None
    compile: formats.Span | None
    faster_unquotable: int

    @property
    def verdict(self) -> str:
        if not self.faster_unquotable:
            return "quotable"
        return f"quotable; {formats.quantity(self.faster_unquotable, 'faster row')} not"


@dataclass(frozen=True)
class Short:
    """The one contender to use for an op if it is to be one for all dtypes and sizes.

    near: points at which it is tied with the fastest or within SLACK of it, of ``points``. absent: those at which it
    has no quotable time. worst: the largest time over the fastest's, minus one, at ``where``, (dtype, hidden).
    """

    op: str
    use: str
    role: str
    near: int
    points: int
    absent: int
    worst: float
    where: tuple[str, int]


def in_short(showdown: pl.DataFrame) -> list[Short]:
    """By op: the contender with the fewest missing points, then the lowest mean cost (of the logarithms) over them.

    Sizes whose rows are no multiple of 16 bytes count as any other.
    """
    timed = stream(showdown).filter("competes").sort("op", "contender", "dtype", "hidden", "rows")
    near = pl.col("in_winner_set") | (pl.col("cost") <= SLACK)
    each = timed.group_by("op", "contender", "role", maintain_order=True).agg(
        pl.len().alias("has"),
        near.sum().alias("near"),
        pl.col("cost").log1p().mean().alias("mean"),
        pl.col("cost").max().alias("worst"),
        pl.struct("dtype", "hidden").get(pl.col("cost").arg_max()).alias("where"),
    )
    points = timed.group_by("op").agg(pl.col("point").n_unique().alias("points"))
    ranked = each.join(points, on="op").sort("op", pl.col("points") - pl.col("has"), "mean", "contender")
    return [
        Short(
            row["op"], row["contender"], row["role"], row["near"], row["points"], row["points"] - row["has"],
            row["worst"], (row["where"]["dtype"], row["where"]["hidden"]),
        )
        for row in ranked.unique("op", keep="first", maintain_order=True).iter_rows(named=True)
    ]  # fmt: skip


def stream(showdown: pl.DataFrame) -> pl.DataFrame:
    return showdown.filter(pl.col("regime") == "stream")


def answers(showdown: pl.DataFrame) -> list[Answer]:
    """Ranges of hidden sizes for which one contender is the fastest, tied with it, or within SLACK of it.

    Sizes whose rows are no multiple of 16 bytes are ranged apart: kernels behave differently there, whatever the size.
    """
    found: list[Answer] = []
    for _, group in _groups(stream(showdown)):
        races = [list(race.iter_rows(named=True)) for _, race in _by_point(group) if race["competes"].any()]
        found += [_answer(chunk) for chunk in _ranges(races)]
    return found


def _groups(raced: pl.DataFrame) -> list[tuple[Any, pl.DataFrame]]:
    keys = ["op", "dtype", "aligned", "semantics"]
    groups = raced.sort("hidden", "rows", "point", "contender").group_by(keys, maintain_order=True)
    order = {"fp32": 0, "fp16": 1, "bf16": 2}
    return sorted(groups, key=lambda item: (item[0][0], order[str(item[0][1])], not item[0][2], item[0][3]))


def _by_point(group: pl.DataFrame) -> Any:
    return group.group_by("point", maintain_order=True)


def _acceptable(race: Sequence[Row]) -> set[str]:
    return {row["contender"] for row in race if row["competes"] and (row["in_winner_set"] or row["cost"] <= SLACK)}


def _ranges(races: Sequence[list[Row]]) -> list[list[list[Row]]]:
    """Cut a sequence of races, by hidden size, wherever no contender is acceptable on both sides."""
    chunks: list[list[list[Row]]] = []
    shared: set[str] = set()
    for race in races:
        shared &= _acceptable(race)
        if chunks and shared:
            chunks[-1].append(race)
        else:
            chunks.append([race])
            shared = _acceptable(race)
    return chunks


def _answer(races: list[list[Row]]) -> Answer:
    shared = set.intersection(*(_acceptable(race) for race in races))
    rows = {name: [row for race in races for row in race if row["contender"] == name] for name in shared}
    use = min(sorted(shared), key=lambda name: sum(math.log1p(row["cost"]) for row in rows[name]))
    chosen = rows[use]
    tied = (name for name in sorted(shared - {use}) if all(row["in_winner_set"] for row in rows[name]))
    return Answer(
        op=chosen[0]["op"],
        dtype=chosen[0]["dtype"],
        aligned=chosen[0]["aligned"],
        hidden=tuple(row["hidden"] for row in chosen),
        use=use,
        role=chosen[0]["role"],
        ties=tuple(tied),
        cost=max(row["cost"] for row in chosen),
        gbps=formats.span(row["gbps"] for row in chosen),
        ceiling=formats.span(row["ceiling_fraction"] for row in chosen),
        eager=formats.span(row["speedup_eager"] for row in chosen),
        compile=formats.span(row["speedup_compile"] for row in chosen),
        faster_unquotable=sum(_faster_unquotable(race) for race in races),
    )


def _faster_unquotable(race: Sequence[Row]) -> int:
    unquotable = (row for row in race if not row["competes"] and row["role"] in ("ours", "baseline"))
    return sum(row["cost"] is not None and row["cost"] < 0 for row in unquotable)


def unanswered(showdown: pl.DataFrame) -> int:
    """Stream points at which no row may be quoted, so none is recommended."""
    return stream(showdown).group_by("point").agg(pl.col("competes").any()).filter(~pl.col("competes")).height
