"""The samples behind the medians, as deviations from each contender's median."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "samples"
TITLE = "Distribution of the samples (% from the median)"
HELP = (
    "Each tick is a sample, by its distance from the contender's median: a narrow strip is a number to trust. A "
    "second clump is a clock that moved. Long lists are thinned evenly, both extremes kept."
)
NOTHING = "Distribution of the samples: no row kept its samples."
ROW = 24  # of the drawing
MOST = 25  # ticks a row; the extremes are always among them


def prepare(measured: Measured) -> Drawable:
    """One row a contender and point, with ``deviations``: up to MOST distances from the median, sorted."""
    raced = kit.raced(measured, None).filter(
        (pl.col("samples_us").list.len() > 0) & pl.col("time_us_p50").is_not_null()
    )
    drawn = kit.evident(raced, "time_us_p50", "samples_us", "regime")
    few = pl.col("regime") == "latency"
    line = pl.when(few).then(pl.format("{}, {} rows", "contender", "rows")).otherwise("contender")
    drawn = drawn.with_columns(line=line)
    deviations = [
        thin([value / median - 1 for value in samples])
        for samples, median in drawn.select("samples_us", "time_us_p50").iter_rows()
    ]
    return Drawable(drawn.drop("samples_us").with_columns(pl.Series("deviations", deviations, pl.List(pl.Float64))))


def thin(values: Sequence[float], most: int = MOST) -> list[float]:
    """At most ``most`` of the sorted values, evenly spaced by rank, first and last included; rounded to 1e-5."""
    ordered = sorted(values)
    if len(ordered) > most:
        ordered = [ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most)]
    return [round(value, 5) for value in ordered]


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "regime", "hidden")
    names = kit.contenders(frame)
    order = {name: place for place, name in enumerate(names)}
    rank = pl.col("contender").replace_strict(order, return_dtype=pl.Int64)
    lines = frame.sort(rank, "rows")["line"].unique(maintain_order=True).to_list()
    ticks = (
        alt.Chart(frame)
        .transform_flatten(["deviations"])
        .mark_tick(thickness=1.5, opacity=0.7)
        .encode(
            x=alt.X(
                "deviations:Q",
                title="distance from the median",
                axis=alt.Axis(format="+.1%"),
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("line:N", title=None, sort=lines),
            color=kit.colour(names).legend(None),
            tooltip=kit.tooltip(
                alt.Tooltip("deviations:Q", title="from the median", format="+.2%"), kit.TIME, frame=frame
            ),
        )
        .properties(width=kit.WIDTH, height=alt.Step(ROW))
    )
    return kit.picked(ticks, selectors)
