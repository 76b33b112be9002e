"""The noise floor: how far a contender raced under two names is from itself."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench import metrics
from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "noise"
TITLE = "Noise floor (% between a contender and itself)"
HELP = (
    "In every race one contender runs twice, under a second name and on buffers of its own (A/A). Each point is how "
    "far the two medians are apart; 19 of 20 races lie between the lines, and no smaller difference between "
    "contenders means anything."
)
NOTHING = "Noise floor: no race has an A/A twin with a time."


def prepare(measured: Measured) -> Drawable:
    """One row a race: the contender that ran twice, the signed difference, and the floor of its regime."""
    chosen = drawable(metrics.twin_differences(measured.showdown), "difference")
    floors = metrics.noise_floors(measured.showdown)
    floor = pl.col("regime").replace_strict(floors, default=None, return_dtype=pl.Float64)
    drawn = chosen.frame.with_columns(floor.alias("floor")).with_columns((-pl.col("floor")).alias("floor_below"))
    return Drawable(
        kit.evident(drawn, "regime", "difference", "floor", "floor_below", "time_us_p50", "twin_us"), chosen.omitted
    )


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype")
    selection = kit.highlight()
    scale = alt.Scale(padding=10)
    y = alt.Y("difference:Q", title="twin over original, minus one", scale=scale, axis=alt.Axis(format="+.1%"))
    base = alt.Chart(frame).encode(x=kit.sizes("hidden", frame, "hidden size (elements)"))
    tooltip = kit.tooltip(
        alt.Tooltip("difference:Q", title="twin slower by", format="+.2%"),
        alt.Tooltip("floor:Q", title="floor of the regime", format=".2%"),
        alt.Tooltip("regime:N"),
        kit.TIME,
        alt.Tooltip("twin_us:Q", title="twin's median (µs)", format=".5~g"),
        frame=frame,
    )
    regimes = alt.Shape(
        "regime:N",
        scale=alt.Scale(
            domain=["stream", "l2", "latency", "wide"], range=["circle", "square", "triangle-up", "diamond"]
        ),
    )
    points = base.mark_point(filled=True, size=kit.MARK_SIZE).encode(
        y=y, color=kit.colour(kit.contenders(frame)), shape=regimes, opacity=kit.faded(selection), tooltip=tooltip
    )
    stream = alt.Chart(frame).transform_filter(alt.datum.regime == "stream")
    rules = [stream.mark_rule(style="target").encode(y=f"max({name}):Q") for name in ("floor", "floor_below")]
    layered = alt.layer(*rules, points.add_params(selection)).properties(width=kit.WIDTH, height=kit.HEIGHT)
    return kit.picked(layered, selectors)
