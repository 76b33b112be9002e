"""Latency of few rows against the empty-launch floor."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "latency"
TITLE = "Latency of few rows (µs a launch)"
HELP = (
    "Lower is better. Launches in a CUDA graph, input and gamma warm in L2; the level line is an empty kernel timed "
    "the same way. Only launches that overlap (pdl) can be below it, since each begins while the one before it still "
    "runs; the floor of those is an empty kernel that overlaps too."
)
NOTHING = "Latency of few rows: the study has no latency points."


def prepare(measured: Measured) -> Drawable:
    """Rows of regime ``latency`` with the launch floor beside each."""
    raced = kit.raced(measured, "latency")
    chosen = drawable(raced, "time_us_p50", positive=True)
    drawn = kit.evident(chosen.frame, "time_us_p50", "launch_bound")
    plain, overlapping = (
        pl.lit(measured.ceiling(name), dtype=pl.Float64) for name in ("launch_floor", "launch_floor_pdl")
    )
    overlaps = pl.col("variant").str.contains('"pdl":1', literal=True).fill_null(False)
    floor = pl.when(overlaps).then(overlapping).otherwise(plain)
    return Drawable(drawn.with_columns(floor_us=floor), chosen.omitted)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "hidden")
    selection = kit.highlight()
    base = alt.Chart(frame).encode(
        x=kit.sizes("rows", frame, "rows"),
        y=alt.Y(
            "time_us_p50:Q", title="median (µs)", scale=alt.Scale(type="log", nice=False, padding=12), axis=_axis()
        ),
        color=kit.colour(kit.contenders(frame)),
        opacity=kit.faded(selection),
    )
    bound = alt.Tooltip("launch_bound:N", title="launch bound")
    tooltip = kit.tooltip(kit.TIME, alt.Tooltip("floor_us:Q", title="launch floor (µs)"), bound, frame=frame)
    lines = base.mark_line(strokeWidth=1.8).encode(strokeDash=kit.dash())
    points = base.mark_point(filled=True, size=kit.MARK_SIZE).encode(shape=kit.shape(), tooltip=tooltip)
    layers = [lines, points.add_params(selection)]
    if frame["floor_us"].is_not_null().any():
        floor = alt.Chart(frame).mark_rule(style="ceiling").encode(y=alt.Y("max(floor_us):Q", title="median (µs)"))
        layers.insert(0, floor)
    layered = alt.layer(*layers).properties(width=kit.WIDTH, height=kit.HEIGHT)
    return kit.picked(layered, selectors)


def _axis() -> alt.Axis:
    return alt.Axis(format="~r", tickCount=7)
