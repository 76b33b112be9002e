"""Bandwidth against hidden size in the stream regime, under the measured ceiling and the 80 % line."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import TARGET_FRACTION, Drawable, drawable

NAME = "bandwidth"
TITLE = "Bandwidth against hidden size (GB/s)"
HELP = (
    "Higher is better. The plain line is the ceiling measured in the same race, the dotted one 80 % of the "
    "theoretical peak. Ours are solid, baselines dashed; lines join sizes whose rows are multiples of 16 bytes, "
    "others stand alone. The dotted copy is no norm: the library's device copy of x, the same traffic without the "
    "arithmetic, as a yardstick."
)
NOTHING = "Bandwidth: no point of this device streams from memory."
CEILING, TARGET = "measured ceiling", "80 % of theoretical"


def prepare(measured: Measured) -> Drawable:
    """One row a contender and point, and the two guide lines as rows of their own kind."""
    return prepare_regime(measured, "stream")


def prepare_regime(measured: Measured, regime: str) -> Drawable:
    raced = kit.raced(measured, regime)
    chosen = drawable(raced, "gbps")
    columns = ("gbps", "ceiling_fraction", "theoretical_fraction", "time_us_p50", "aligned")
    drawn = kit.evident(chosen.frame, *columns).with_columns(kind=pl.lit("contender"))
    return Drawable(pl.concat([drawn, _guides(chosen.frame)], how="diagonal"), chosen.omitted)


def _guides(raced: pl.DataFrame) -> pl.DataFrame:
    by = ("op", "dtype", "hidden")
    lines = raced.group_by(by).agg(
        pl.col("ceiling_gbps").max().alias(CEILING), (pl.col("theoretical_gbps").max() * TARGET_FRACTION).alias(TARGET)
    )
    return lines.unpivot(index=by, variable_name="kind", value_name="gbps").drop_nulls("gbps").sort("kind", *by)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    contenders = frame.filter(pl.col("kind") == "contender")
    names = kit.contenders(contenders)
    selectors = kit.picks(contenders, "op", "dtype")
    selection = kit.highlight()
    x = kit.sizes("hidden", frame, "hidden size (elements)")
    y = alt.Y("gbps:Q", title="GB/s", scale=alt.Scale(zero=True))
    tooltip = kit.tooltip(
        kit.GBPS,
        kit.CEILING,
        alt.Tooltip("theoretical_fraction:Q", title="of theoretical", format=".1%"),
        kit.TIME,
        frame=contenders,
    )
    base = alt.Chart(frame).encode(x=x, y=y)
    of_contenders = base.transform_filter(alt.datum.kind == "contender").encode(
        color=kit.colour(names), opacity=kit.faded(selection)
    )
    lines = of_contenders.transform_filter(alt.datum.aligned).mark_line(strokeWidth=1.8).encode(strokeDash=kit.dash())
    points = of_contenders.mark_point(filled=True, size=kit.MARK_SIZE, opacity=1).encode(
        shape=kit.shape(), tooltip=tooltip
    )
    layers = [_guide(base, CEILING, "ceiling", [1, 0]), _guide(base, TARGET, "target", [2, 3]), lines]
    layered = alt.layer(*layers, points.add_params(selection)).properties(width=kit.WIDTH, height=kit.HEIGHT)
    return kit.picked(layered, selectors)


def _guide(base: Any, kind: str, style: str, dashes: list[int]) -> Any:
    line = base.transform_filter(alt.datum.kind == kind)
    label = line.transform_window(last="row_number()", sort=[alt.SortField("hidden", "descending")]).transform_filter(
        alt.datum.last == 1
    )
    return line.mark_line(style=style, strokeDash=dashes, strokeWidth=1.6) + label.mark_text(
        style="note", align="right", dy=-8, dx=8
    ).encode(text=alt.value(kind))
