"""The answer a page opens with: which contender to use where, and what stands out, all computed from the race."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats

SLACK = 0.02  # a contender may cost this much more than the fastest and still be the one answer for a range
NEAR_CEILING = 0.9
COLLAPSE = 1.5  # a baseline's best over its worst bandwidth from which a finding says so
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


def findings(showdown: pl.DataFrame, checks: pl.DataFrame, most: int = 3) -> list[str]:
    """Up to ``most`` sentences, the weightiest first, each left out where the data have nothing to say."""
    raced = stream(showdown).sort("op", "dtype", "hidden", "contender")
    sentences: list[Callable[[], str | None]] = [
        lambda: wrong(checks),
        lambda: lead(raced),
        lambda: collapse(raced),
        lambda: below_ceiling(raced),
        lambda: failures(raced),
    ]
    return [sentence for make in sentences if (sentence := make()) is not None][:most]


def where(row: Row) -> str:
    return f"{row['op']} {row['dtype']} at hidden {row['hidden']}"


def lead(raced: pl.DataFrame) -> str | None:
    """How often a kernel of ours is in the winner set, and its largest lead over the best baseline."""
    ours = raced.filter(pl.col("competes") & (pl.col("role") == "ours") & pl.col("speedup_best").is_not_null())
    if ours.is_empty():
        return None
    points = raced.filter("competes")["point"].n_unique()
    wins = ours.filter("in_winner_set")["point"].n_unique()
    best = ours.sort("speedup_best", descending=True, maintain_order=True).row(0, named=True)
    return (
        f"A kernel of this repository is fastest or tied at {wins} of {formats.quantity(points, 'point')}; "
        f"the largest lead over the best baseline is {formats.times((best['speedup_best'],) * 2)} "
        f"({best['contender']}, {where(best)}: "
        f"{formats.count(best['gbps'])} GB/s)."
    )


def collapse(raced: pl.DataFrame) -> str | None:
    """The baseline whose bandwidth falls furthest over the hidden sizes of one op and dtype."""
    baselines = raced.filter(pl.col("competes") & (pl.col("role") == "baseline") & pl.col("gbps").is_not_null())
    fall = pl.col("gbps").max() / pl.col("gbps").min()
    falls = baselines.with_columns(fall.over("contender", "op", "dtype").alias("fall")).filter(
        pl.col("fall") >= COLLAPSE
    )
    if falls.is_empty():
        return None
    worst = falls.sort("fall", "contender", "op", "dtype", descending=[True, False, False, False]).row(0, named=True)
    curve = falls.filter(*(pl.col(name) == worst[name] for name in ("contender", "op", "dtype"))).sort("gbps")
    low, high = curve.row(0, named=True), curve.row(-1, named=True)
    return (
        f"{worst['contender']} depends most on the hidden size: {worst['op']} {worst['dtype']} runs at "
        f"{formats.count(high['gbps'])} GB/s at hidden {high['hidden']} and at {formats.count(low['gbps'])} at "
        f"{low['hidden']}."
    )


def below_ceiling(raced: pl.DataFrame) -> str | None:
    """Where nothing reaches 90 % of the measured ceiling."""
    known = raced.filter(pl.col("competes") & pl.col("ceiling_fraction").is_not_null())
    if known.is_empty():
        return None
    best = known.sort("ceiling_fraction", descending=True, maintain_order=True).unique(
        "point", keep="first", maintain_order=True
    )
    short = best.filter(pl.col("ceiling_fraction") < NEAR_CEILING).sort("ceiling_fraction", "op", "dtype", "hidden")
    if short.is_empty():
        return f"At each of {formats.quantity(best.height, 'point')} something reaches 90 % of the measured ceiling."
    worst = short.row(0, named=True)
    return (
        f"At {short.height} of {formats.quantity(best.height, 'point')} nothing reaches 90 % of the measured ceiling; "
        f"furthest below is {where(worst)}, where the best ({worst['contender']}) has "
        f"{worst['ceiling_fraction'] * 100:.0f} %."
    )


def wrong(checks: pl.DataFrame) -> str | None:
    """Contenders that gave a wrong result on an adversarial input."""
    bad = checks.filter(pl.col("status") == "wrong").sort("contender", "op", "dtype", "case")
    if bad.is_empty():
        return None
    names = bad["contender"].unique(maintain_order=True).to_list()
    inputs = bad["case"].unique(maintain_order=True).to_list()
    more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
    return f"Wrong on an adversarial input: {', '.join(names)} (on {', '.join(inputs[:3])}{more})."


def failures(raced: pl.DataFrame) -> str | None:
    """The contender that most often has no time, with its commonest reason."""
    failed = raced.filter((pl.col("status") != "ok") & pl.col("role").is_in(["ours", "baseline"]))
    if failed.is_empty():
        return None
    counted = failed.group_by("contender", "status", "reason").agg(pl.len().alias("n"))
    row = counted.sort("n", "contender", "status", "reason", descending=[True, False, False, False]).row(0, named=True)
    return f"{row['contender']} has no time at {formats.quantity(row['n'], 'point')} ({row['status']}): {row['reason']}"
