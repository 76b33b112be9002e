"""Roofline: performance against arithmetic intensity, under roofs that were measured."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "roofline"
TITLE = "Roofline (GFLOP/s against flop per byte)"
HELP = (
    "The slope is the measured memory ceiling, the flat part the measured fp32 rate. Every norm sits far left of the "
    "ridge: the distance to the slope is what a better kernel can still gain. The shape of a mark is its dtype."
)
NOTHING = "Roofline: needs times in the stream regime and a measured ceiling."
REACH = (0.25, 64.0)  # flop per byte; covers fp32 norms without an affine to past the ridge of every present GPU


def prepare(measured: Measured) -> Drawable:
    """Stream rows, and the corners of the roof as rows of kind ``roof``."""
    raced = kit.raced(measured, "stream", "ours", "baseline")
    chosen = drawable(raced, "gflops", "intensity", positive=True)
    memory = raced["ceiling_gbps"].max()
    if memory is None or chosen.frame.is_empty():
        return Drawable(chosen.frame.clear(), chosen.omitted)
    columns = ("intensity", "gflops", "gbps", "ceiling_fraction", "time_us_p50")
    drawn = kit.evident(chosen.frame, *columns).with_columns(kind=pl.lit("contender"))
    roof = _roof(float(memory), measured.ceiling("fma_fp32"))  # type: ignore[arg-type]
    return Drawable(pl.concat([drawn, roof], how="diagonal"), chosen.omitted)


def _roof(memory_gbps: float, fp32_tflops: float | None) -> pl.DataFrame:
    left, right = REACH
    top = fp32_tflops * 1e3 if fp32_tflops else memory_gbps * right
    ridge = top / memory_gbps
    right = max(right, 2 * ridge)
    corners = [(left, memory_gbps * left), (ridge, top), *([(right, top)] if fp32_tflops else [])]
    return pl.DataFrame(corners, schema={"intensity": pl.Float64, "gflops": pl.Float64}, orient="row").with_columns(
        kind=pl.lit("roof")
    )


def chart(frame: pl.DataFrame) -> kit.Drawing:
    contenders = frame.filter(pl.col("kind") == "contender")
    (selector,) = kit.picks(contenders, "hidden")
    selection = kit.highlight()
    base = alt.Chart(frame).encode(
        x=alt.X(
            "intensity:Q",
            title="arithmetic intensity (flop per compulsory byte)",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format="~g", tickCount=6),
        ),
        y=alt.Y(
            "gflops:Q",
            title="GFLOP/s",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format="~s", tickCount=6),
        ),
    )
    gflops = alt.Tooltip("gflops:Q", title="GFLOP/s", format=".0f")
    intensity = alt.Tooltip("intensity:Q", title="flop per byte", format=".3~f")
    points = (
        base.transform_filter(alt.datum.kind == "contender")
        .transform_filter(selector.keeps)
        .mark_point(filled=True, size=kit.MARK_SIZE)
        .encode(
            color=kit.colour(kit.contenders(contenders)),
            shape=alt.Shape("dtype:N", scale=alt.Scale(range=["circle", "square", "triangle-up"]), legend=None),
            opacity=kit.faded(selection, 0.9),
            tooltip=kit.tooltip(gflops, intensity, kit.GBPS, kit.CEILING, frame=contenders),
        )
    )
    roof = base.transform_filter(alt.datum.kind == "roof").mark_line(style="ceiling", strokeWidth=1.6)
    drawing: Any = alt.layer(roof, points.add_params(selection)).add_params(selector.parameter)
    layered: kit.Drawing = drawing.properties(width=kit.WIDTH, height=kit.HEIGHT)
    return layered
