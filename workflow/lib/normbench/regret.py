"""Regret: what it costs to ship one run's choices on another run's GPU.

A choice is a kernel's tuned variant, or the contender that won a race; its regret at a point is its time there over the
best time there, minus one.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from normbench import metrics

POINT = ("op", "dtype", "rows", "hidden", "regime", "semantics")


@dataclass(frozen=True)
class Regret:
    """Regret over the points two runs share. unusable: points at which the choice has no time on the other GPU.

    typical: the median, worst: the largest, both None where no choice has a time. where: the point of the worst, as
    (op, dtype, hidden). choice, best: what was shipped there and what would have been best. These three are None where
    no choice costs anything.
    """

    points: int
    unusable: int
    typical: float | None
    worst: float | None
    where: tuple[str, str, int] | None
    choice: str | None
    best: str | None


def of_variants(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Of each kernel's fastest variant on the left, by the ``cases`` tables of both: a row a kernel and common point.

    Columns: contender, those of POINT, choice, best and regret (null where the choice has no time on the right).
    """
    return _regret(_timed(left), _timed(right), ["contender", "point"], "variant")


def of_contenders(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Of the winner of each race on the left, by the ``showdown`` tables of both; the same columns as ``of_variants``.

    ``contender`` is what was chosen.
    """
    ours, theirs = (frame.filter(metrics.QUOTABLE & metrics.COMPETES & metrics.ACCURATE) for frame in (left, right))
    return _regret(ours, theirs, ["point"], "contender").with_columns(contender=pl.col("choice"))


def _timed(cases: pl.DataFrame) -> pl.DataFrame:
    return cases.filter(pl.col("time_us_p50").is_not_null() & pl.col("variant").is_not_null())


def _regret(left: pl.DataFrame, right: pl.DataFrame, by: list[str], name: str) -> pl.DataFrame:
    chosen = _best(left, by, name).select(*by, *POINT, pl.col(name).alias("choice"))
    best = _best(right, by, name).select(*by, pl.col(name).alias("best"), pl.col("time_us_p50").alias("best_us"))
    times = right.select(*by, pl.col(name).alias("choice"), pl.col("time_us_p50").alias("choice_us"))
    return (
        chosen.join(best, on=by, how="inner")
        .join(times, on=[*by, "choice"], how="left")
        .with_columns((pl.col("choice_us") / pl.col("best_us") - 1).alias("regret"))
        .select(*(column for column in by if column != "point"), *POINT, "choice", "best", "regret")
        .sort(*POINT, "choice")
    )


def _best(frame: pl.DataFrame, by: list[str], name: str) -> pl.DataFrame:
    return frame.sort("time_us_p50", name).unique(by, keep="first", maintain_order=True)


def summary(rows: pl.DataFrame) -> Regret:
    """The rows of ``of_variants`` or ``of_contenders`` in one line."""
    known = rows.filter(pl.col("regret").is_not_null()).sort("regret", descending=True, maintain_order=True)
    worst = known.filter(pl.col("regret") > 0).head(1).to_dicts()
    place = worst[0] if worst else None
    return Regret(
        points=rows.height,
        unusable=rows.height - known.height,
        typical=known["regret"].median(),  # type: ignore[arg-type]
        worst=known["regret"].max(),  # type: ignore[arg-type]
        where=(place["op"], place["dtype"], place["hidden"]) if place else None,
        choice=place["choice"] if place else None,
        best=place["best"] if place else None,
    )


def by_contender(rows: pl.DataFrame) -> list[tuple[str, Regret]]:
    """``summary`` for each kernel, the costliest first."""
    parts = [(str(part["contender"][0]), summary(part)) for part in rows.partition_by("contender")]
    return sorted(parts, key=lambda item: (-(item[1].worst or 0.0), item[0]))
