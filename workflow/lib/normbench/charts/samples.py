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
    "Each tick is a sample of the race at the chosen op, dtype and hidden size, by its distance from the contender's "
    "median: a narrow strip is a number to trust, a second clump a clock that moved. Long lists are thinned evenly."
)
NOTHING = "Distribution of the samples: no row kept its samples."
MOST = 25  # ticks a row; the extremes are always among them


def prepare(measured: Measured) -> Drawable:
    """One row a contender and stream point, with ``deviations``: up to MOST distances from the median, sorted."""
    raced = kit.raced(measured, "stream").filter(
        (pl.col("samples_us").list.len() > 0) & pl.col("time_us_p50").is_not_null()
    )
    drawn = kit.evident(raced, "time_us_p50", "samples_us")
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
    selectors = kit.picks(frame, "op", "dtype", "hidden")
    names = kit.contenders(frame)
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
            y=alt.Y("contender:N", title=None, sort=names),
            color=kit.colour(names).legend(None),
            tooltip=kit.tooltip(
                alt.Tooltip("deviations:Q", title="from the median", format="+.2%"), kit.TIME, frame=frame
            ),
        )
        .properties(width=kit.WIDTH, height=24 * len(names))
    )
    return kit.picked(ticks, selectors)
