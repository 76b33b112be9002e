"""Derived numbers, and only here: GB/s, fractions of a ceiling, speed-ups, cycles, winner sets.

Tables hold what was measured (times, bytes, clocks); everything a page or a comparison shows is computed by the
expressions of ``METRICS`` on a frame that ``with_work`` has given bytes, flops and the theoretical bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import ops, schema
from normbench.formats import quantity
from normbench.points import ELEMENT_BYTES, Point

RACE = ("device", "run", "point")
REFERENCES = ("copy",)
BASELINES = ("torch_eager", "torch_compile", "liger", "quack", "flashinfer", "apex", "transformer_engine", "cudnn")
TARGET_FRACTION = 0.8  # of the theoretical bandwidth: the line every bandwidth chart draws
VECTOR_BYTES = 16  # widest load of a thread; a row pitch that is no multiple of it starts rows at every alignment


@dataclass(frozen=True)
class Metric:
    """One derived column: its polars expression, unit ("" for a ratio) and meaning."""

    expression: pl.Expr
    unit: str
    meaning: str


QUOTABLE = (pl.col("status") == "ok") & (pl.col("verdict") == "quotable").fill_null(False)
TWIN = pl.col("contender").str.ends_with(schema.TWIN)
OURS = pl.col("lang").is_in(["cuda", "triton"])
COMPETES = ~pl.col("contender").is_in(REFERENCES) & ~TWIN
# an output that is ok for having torch's bits may be outside the tolerance: it keeps one contract, and wins no race
ACCURATE = pl.col("accurate").fill_null(True)


def _fastest(which: pl.Expr) -> pl.Expr:
    """Lowest quotable median among the rows of the same race that ``which`` selects; null where there is none."""
    return pl.col("time_us_p50").filter(which & QUOTABLE).min().over(RACE)


def _unless(condition: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(~condition.fill_null(False)).then(value)


_BANDWIDTH = pl.col("bytes") / pl.col("time_us_p50") / 1e3
METRICS: dict[str, Metric] = {
    "gbps": Metric(
        _BANDWIDTH,
        "GB/s",
        "compulsory bytes (of the device copy: those it copies) over the median time; GB/s is 1e9 bytes a second",
    ),
    "ceiling_fraction": Metric(
        _unless(pl.col("launch_bound"), _BANDWIDTH / pl.col("ceiling_gbps")),
        "",
        "bandwidth over the measured ceiling of the same race and access mix; null where the launch is the limit",
    ),
    "theoretical_fraction": Metric(
        _unless(pl.col("launch_bound") | (pl.col("regime") != "stream"), _BANDWIDTH / pl.col("theoretical_gbps")),
        "",
        "bandwidth over 2 x memory clock x bus width; only in the stream regime",
    ),
    "speedup_eager": Metric(
        _fastest(pl.col("contender") == "torch_eager") / pl.col("time_us_p50"),
        "",
        "quotable median of torch eager over the median, same race",
    ),
    "speedup_compile": Metric(
        _fastest(pl.col("contender") == "torch_compile") / pl.col("time_us_p50"),
        "",
        "quotable median of torch.compile over the median, same race",
    ),
    "speedup_best": Metric(
        _fastest(~OURS & COMPETES & ACCURATE) / pl.col("time_us_p50"),
        "",
        "lowest quotable median of the accurate baselines over the median, same race",
    ),
    "cycles": Metric(
        pl.col("time_us_p50") * pl.coalesce("sm_clock_gpu_mhz", "sm_clock_mhz_p50"),
        "cycles",
        "median time in SM cycles; the clock read inside the GPU, else NVML's median",
    ),
    "intensity": Metric(pl.col("flops") / pl.col("bytes"), "flop/B", "floating-point operations a compulsory byte"),
    "gflops": Metric(pl.col("flops") / pl.col("time_us_p50") / 1e3, "GFLOP/s", "operations of the formula over time"),
    "reduce_share": Metric(
        pl.col("reduce_us") / pl.col("time_us_p50"), "", "part that only forms dgamma and dbeta over the median time"
    ),
    "role": Metric(
        pl.when(TWIN)
        .then(pl.lit("twin"))
        .when(pl.col("contender").is_in(REFERENCES))
        .then(pl.lit("reference"))
        .when(OURS)
        .then(pl.lit("ours"))
        .otherwise(pl.lit("baseline")),
        "",
        "ours, baseline, reference (the device copy) or twin (the same contender again, for the noise floor)",
    ),
    "aligned": Metric(
        pl.col("hidden") * pl.col("dtype").replace_strict(ELEMENT_BYTES, return_dtype=pl.Int64) % VECTOR_BYTES == 0,
        "",
        "the row pitch is a multiple of 16 bytes, so every row starts on a vector",
    ),
}


def derive(frame: pl.DataFrame, machines: Sequence[Mapping[str, Any]], *names: str) -> pl.DataFrame:
    """``frame`` (cases or showdown) with the columns of ``METRICS`` that are named, or all that it can have."""
    frame = with_work(frame, machines)
    wanted = names or tuple(name for name, metric in METRICS.items() if _has(frame, metric))
    return frame.with_columns(METRICS[name].expression.alias(name) for name in wanted)


def _has(frame: pl.DataFrame, metric: Metric) -> bool:
    return set(metric.expression.meta.root_names()) <= set(frame.columns)


def with_work(frame: pl.DataFrame, machines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Add ``bytes`` (where a table has none), ``flops`` and the run's ``theoretical_gbps``."""
    work = ("op", "dtype", "rows", "hidden", "regime", "shape", "semantics", "point")
    points = frame.select(work).unique("point", maintain_order=True)
    parsed = [Point.from_identity(row) for row in points.iter_rows(named=True)]
    counted = points.select(
        "point",
        pl.Series("compulsory", [ops.compulsory_bytes(point) for point in parsed], pl.Int64),
        pl.Series("flops", [ops.flops(point) for point in parsed], pl.Int64),
    )
    peaks = pl.DataFrame(
        [(one.get("device"), one.get("run"), one.get("theoretical_gbps")) for one in machines],
        schema={"device": pl.String, "run": pl.String, "theoretical_gbps": pl.Float64},
        orient="row",
    ).unique(["device", "run"], keep="first", maintain_order=True)
    known = pl.coalesce("bytes", "compulsory") if "bytes" in frame.columns else pl.col("compulsory")
    return (
        frame.join(counted, on="point", how="left", maintain_order="left")
        .join(peaks, on=["device", "run"], how="left", maintain_order="left")
        .with_columns(known.alias("bytes"))
        .drop("compulsory")
    )


def nearest_roof(ceilings: Iterable[dict[str, Any]], point: Point) -> dict[str, Any] | None:
    """Row of the ``ceilings`` table for the point's access mix at the nearest size; None where bytes stay in L2."""
    mix, moved = ops.OPS[point.op].mix, ops.compulsory_bytes(point)
    rows = [row for row in ceilings if row["name"] == mix]
    if not point.streams or not rows or not moved:
        return None
    return min(rows, key=lambda row: abs(math.log(row["size_bytes"] / moved)))


def with_roofs(frame: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Raise ``ceiling_gbps`` to the roof the same run tuned, where that is the higher one.

    A ceiling is the best that is known: timed between contenders, a stream pays for what they left in the cache.
    """
    points = frame.unique(RACE, maintain_order=True)
    by_run: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in ceilings.iter_rows(named=True):
        by_run.setdefault((row["device"], row["run"]), []).append(row)
    values = []
    for row in points.iter_rows(named=True):
        roof = nearest_roof(by_run.get((row["device"], row["run"]), ()), Point.from_identity(row))
        values.append(None if roof is None else float(roof["value"]))
    tuned = points.select(*RACE, pl.Series("tuned", values, pl.Float64))
    return (
        frame.join(tuned, on=RACE, how="left", maintain_order="left")
        .with_columns(pl.max_horizontal("ceiling_gbps", "tuned").alias("ceiling_gbps"))
        .drop("tuned")
    )


def newest(frame: pl.DataFrame, *within: str) -> pl.DataFrame:
    """Each point from the newest run that has it; ``run`` starts with a UTC time, so text order is time order.

    within: what, besides device and point, may come from different runs (contender for tuning, which is not a race).
    """
    keys = [name for name in ("device", "point", *within) if name in frame.columns]
    return frame.filter(pl.col("run") == pl.col("run").max().over(keys))


def with_winners(frame: pl.DataFrame) -> pl.DataFrame:
    """Add, per race: ``fastest`` and ``in_winner_set`` (booleans) and ``cost`` (time over the fastest's, minus one).

    Only quotable rows compete, and neither the device copy, nor an A/A twin, nor an inaccurate output does. The winner
    set is every contender whose 95 % interval of the median overlaps the fastest's; without an interval the median
    stands for it. ``cost`` is null where no row of the race is quotable.
    """
    candidates = COMPETES & ACCURATE
    competes = QUOTABLE & candidates & pl.col("time_us_p50").is_not_null()
    low, high = pl.coalesce("time_us_lo", "time_us_p50"), pl.coalesce("time_us_hi", "time_us_p50")
    raced = (pl.col(name).filter(pl.col("competes")) for name in ("contender", "time_us_p50", "contender"))
    first = next(raced).sort_by(*raced).first().over(RACE)
    return (
        frame.with_columns(competes.alias("competes"))
        .with_columns(
            (pl.col("competes") & (pl.col("contender") == first).fill_null(False)).alias("fastest"),
            (pl.col("time_us_p50") / _fastest(candidates) - 1).alias("cost"),
        )
        .with_columns(
            (pl.col("competes") & (low <= high.filter(pl.col("fastest")).first().over(RACE)))
            .fill_null(False)
            .alias("in_winner_set")
        )
    )


NOISE_SHARE = 0.95  # of the races; the largest of all would let one disturbed race blur every other


def twin_differences(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of originals that an A/A twin raced with, with the twin's median ``twin_us`` and ``difference``, the
    twin's median over their own, minus one."""
    twins = frame.filter(TWIN & pl.col("time_us_p50").is_not_null()).select(
        *RACE, pl.col("contender").str.strip_suffix(schema.TWIN), pl.col("time_us_p50").alias("twin_us")
    )
    pairs = frame.join(twins, on=[*RACE, "contender"], how="inner", maintain_order="left")
    return pairs.with_columns((pl.col("twin_us") / pl.col("time_us_p50") - 1).alias("difference"))


def noise_floors(frame: pl.DataFrame) -> dict[str, float]:
    """By regime: the relative difference of medians between an A/A twin and its original that NOISE_SHARE of the races
    do not exceed. A regime without a twin is absent."""
    found = (
        twin_differences(frame)
        .select("regime", pl.col("difference").abs())
        .drop_nulls()
        .group_by("regime", maintain_order=True)
        .agg(pl.col("difference").quantile(NOISE_SHARE, "linear"))
        .sort("regime", descending=True)
    )
    return dict(found.iter_rows())


@dataclass(frozen=True)
class Drawable:
    """Rows that can be drawn, and a sentence about those that cannot ("" when there are none)."""

    frame: pl.DataFrame
    omitted: str = ""


def drawable(frame: pl.DataFrame, *columns: str, positive: bool = False) -> Drawable:
    """Split off rows where a column is null, NaN or infinite (with ``positive`` also zero or less), counted by status.

    Nothing that is not a number reaches a chart: JSON has no NaN, and a log axis has no zero.
    """
    keep = pl.all_horizontal(
        pl.col(name).cast(pl.Float64).is_finite().fill_null(False) & ((pl.col(name) > 0) if positive else pl.lit(True))
        for name in columns
    )
    shown, hidden = frame.filter(keep), frame.filter(~keep)
    if hidden.is_empty():
        return Drawable(shown)
    verb = "is" if hidden.height == 1 else "are"
    return Drawable(shown, f"{hidden.height} of {quantity(frame.height, 'row')} {verb} not shown{_why(hidden)}.")


def _why(hidden: pl.DataFrame) -> str:
    if "status" not in hidden.columns:
        return ": no finite value"
    counts = hidden.group_by("status").len().sort("len", "status", descending=[True, False])
    order = {name: f"{n} {name}" if name != "ok" else f"{n} without a finite value" for name, n in counts.iter_rows()}
    return f": {', '.join(order.values())}"
