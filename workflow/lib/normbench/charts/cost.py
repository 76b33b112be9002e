"""What registers, spills and occupancy cost: every tuned variant by its resident warps and its time."""

from __future__ import annotations

import re

import altair as alt
import polars as pl

from normbench import occupancy
from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "cost"
TITLE = "Occupancy, registers and spills against time"
HELP = (
    "Each mark is a tuned variant: how many of the warps that fit a multiprocessor are resident, and its time over "
    "the best. Of our CUDA kernels, at the chosen op, dtype and hidden size, on this GPU. Larger marks take more "
    "registers a thread; a cross spills to local memory. Memory is full long before the multiprocessors are, so low "
    "and far left is no contradiction."
)
NOTHING = "Occupancy against time: no tuned variant has both."


def prepare(measured: Measured) -> Drawable:
    """One row a tuned variant in the stream regime: its occupancy, and its time over the best of all at the point."""
    tuned = measured.cases.filter((pl.col("regime") == "stream") & (pl.col("status") == "ok"))
    warps = pl.col("blocks_per_sm") * (pl.col("block") / occupancy.WARP).ceil()
    drawn = tuned.with_columns(
        occupancy=warps / pl.lit(_most_warps(measured), dtype=pl.Float64),
        times=pl.col("time_us_p50") / pl.col("time_us_p50").min().over("point"),
        spills=pl.when(pl.col("spill_bytes") > 0).then(pl.lit("spills")).otherwise(pl.lit("no spills")),
    )
    chosen = drawable(drawn, "occupancy", "times", "registers", positive=True)
    columns = ("occupancy", "times", "time_us_p50", "registers", "spill_bytes", "spills", "blocks_per_sm")
    return Drawable(kit.evident(chosen.frame, *columns), chosen.omitted)


def _most_warps(measured: Measured) -> int | None:
    """Warps a multiprocessor of this GPU holds; None where its architecture is not in the table."""
    number = re.search(r"\d+", str(measured.machine["arch"]))
    limits = occupancy.LIMITS.get(int(number[0])) if number else None
    return limits.warps if limits else None


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "hidden")
    selection = kit.highlight()
    marks = (
        alt.Chart(frame)
        .mark_point(filled=True)
        .encode(
            x=alt.X(
                "occupancy:Q",
                title="occupancy (resident warps of the most)",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%"),
            ),
            y=alt.Y(
                "times:Q",
                title="time over the best variant",
                scale=alt.Scale(type="log", base=2, nice=False, padding=12),
                axis=alt.Axis(format="~r", tickCount=6),
            ),
            color=kit.colour(kit.contenders(frame)),
            size=alt.Size("registers:Q", scale=alt.Scale(domain=[16, 255], range=[25, 320], clamp=True), legend=None),
            shape=alt.Shape(
                "spills:N", scale=alt.Scale(domain=["no spills", "spills"], range=["circle", "cross"]), legend=None
            ),
            opacity=kit.faded(selection, 0.75),
            tooltip=kit.tooltip(
                alt.Tooltip("occupancy:Q", format=".0%"),
                alt.Tooltip("registers:Q", title="registers a thread"),
                alt.Tooltip("spill_bytes:Q", title="spilled (B a thread)"),
                alt.Tooltip("blocks_per_sm:Q", title="blocks an SM"),
                alt.Tooltip("times:Q", title="time over the best", format=".3~f"),
                kit.TIME,
                frame=frame,
            ),
        )
        .add_params(selection)
        .properties(width=kit.WIDTH, height=kit.HEIGHT)
    )
    return kit.picked(marks, selectors)
