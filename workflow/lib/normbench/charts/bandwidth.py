"""Bandwidth against hidden size: under the measured ceiling of memory, or inside L2 under the copy measured there."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from normbench import formats, ops
from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import TARGET_FRACTION, Drawable, drawable
from normbench.points import Point

NAME = "bandwidth"
TITLE = "Bandwidth against hidden size (GB/s)"
HELP = (
    "Higher is better; the plain line is the ceiling measured in the same race, the dotted one 80 % of the "
    "theoretical peak. Ours are solid, baselines dashed; lines join sizes whose rows are multiples of 16 bytes, "
    "others stand alone. The dotted copy is no norm: the library's device copy of x, the same traffic without the "
    "arithmetic. From the L2 boundary on, drawn where a size beyond it was measured, one row for every "
    "multiprocessor, inputs and outputs together, no longer fits in L2, so whoever reads a row twice pays for memory "
    "twice. Working sets of the regime l2 stay in the cache and are compared with nothing but the copy measured there."
)
NOTHING = "Bandwidth: no point of this device streams from memory or stays in L2."
CEILING, TARGET, BOUNDARY = "measured ceiling", "80 % of theoretical", "L2 boundary"
BY = ("op", "dtype", "regime", "hidden")


def prepare(measured: Measured) -> Drawable:
    """One row a contender and point of the regimes stream and l2, and the guides as rows of kinds of their own."""
    raced = kit.raced(measured, None).filter(pl.col("regime").is_in(["stream", "l2"]))
    chosen = drawable(raced, "gbps")
    columns = ("gbps", "ceiling_fraction", "theoretical_fraction", "time_us_p50", "aligned", "regime")
    drawn = kit.evident(chosen.frame, *columns).with_columns(kind=pl.lit("contender"))
    guides = (_memory(chosen.frame), _cache(chosen.frame, measured.ceiling("l2_copy")), boundaries(measured))
    return Drawable(pl.concat([drawn, *guides], how="diagonal") if drawn.height else drawn, chosen.omitted)


def _memory(raced: pl.DataFrame) -> pl.DataFrame:
    """The two lines of the regime stream; l2 points never meet the roof of memory."""
    lines = (
        raced.filter(pl.col("regime") == "stream")
        .group_by(BY)
        .agg(
            pl.col("ceiling_gbps").max().alias(CEILING),
            (pl.col("theoretical_gbps").max() * TARGET_FRACTION).alias(TARGET),
        )
    )
    return lines.unpivot(index=BY, variable_name="kind", value_name="gbps").drop_nulls("gbps").sort("kind", *BY)


def _cache(raced: pl.DataFrame, roof: float | None) -> pl.DataFrame:
    """The copy inside L2 at each l2 point, where it was measured."""
    points = raced.filter((pl.col("regime") == "l2") & pl.lit(roof is not None)).select(BY).unique().sort(BY)
    return points.with_columns(kind=pl.lit(CEILING), gbps=pl.lit(roof, dtype=pl.Float64))


def boundaries(measured: Measured) -> pl.DataFrame:
    """By op and dtype: the first hidden size of the regime stream past the L2 boundary, and what makes it so."""
    cache, processors = measured.machine["l2_bytes"], measured.machine["sm_count"]
    if not cache or not processors:
        return pl.DataFrame()
    points = kit.raced(measured, "stream").unique("point").sort("hidden", "rows", "point")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in points.iter_rows(named=True):
        held = processors * row_bytes(row)
        if held > cache and (row["op"], row["dtype"]) not in found:
            note = (
                f"a row on each of {processors} multiprocessors, in and out, is {formats.binary_bytes(held)}; "
                f"L2 has {formats.binary_bytes(cache)}"
            )
            kept = {name: row[name] for name in BY}
            found[row["op"], row["dtype"]] = kept | {"kind": BOUNDARY, "note": note}
    return pl.DataFrame(list(found.values())).sort(BY) if found else pl.DataFrame()


def row_bytes(row: dict[str, Any]) -> int:
    """Bytes of one row of the tensors as large as x; ``op`` may carry its semantics, as the charts label it."""
    point = Point.from_identity(row | {"op": row["op"].split(" ")[0]})
    return len(ops.large_tensors(point)) * point.hidden * point.element_bytes


def chart(frame: pl.DataFrame) -> kit.Drawing:
    contenders = frame.filter(pl.col("kind") == "contender")
    names = kit.contenders(contenders)
    selectors = kit.picks(contenders, "op", "dtype", "regime")
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
    base = alt.Chart(frame).encode(x=x)
    of_contenders = base.transform_filter(alt.datum.kind == "contender").encode(
        y=y, color=kit.colour(names), opacity=kit.faded(selection)
    )
    lines = of_contenders.transform_filter(alt.datum.aligned).mark_line(strokeWidth=1.8).encode(strokeDash=kit.dash())
    points = of_contenders.mark_point(filled=True, size=kit.MARK_SIZE, opacity=1).encode(
        shape=kit.shape(), tooltip=tooltip
    )
    guided = base.encode(y=y)
    layers = [_guide(guided, CEILING, "ceiling", [1, 0], -8), _guide(guided, TARGET, "target", [2, 3], 13)]
    if (frame["kind"] == BOUNDARY).any():
        layers.insert(0, _boundary(base))
    layered = alt.layer(*layers, lines, points.add_params(selection)).properties(width=kit.WIDTH, height=kit.HEIGHT)
    return kit.sized(kit.picked(layered, selectors), broad=True)


def _guide(base: Any, kind: str, style: str, dashes: list[int], below: int) -> Any:
    line = base.transform_filter(alt.datum.kind == kind)
    label = line.transform_window(last="row_number()", sort=[alt.SortField("hidden", "descending")]).transform_filter(
        alt.datum.last == 1
    )
    return line.mark_line(style=style, strokeDash=dashes, strokeWidth=1.6) + label.mark_text(
        style="note", align="right", dy=below, dx=8
    ).encode(text=alt.value(kind))


def _boundary(base: Any) -> Any:
    line = base.transform_filter(alt.datum.kind == BOUNDARY)
    tooltip = [alt.Tooltip("note:N", title=BOUNDARY)]
    label = line.mark_text(style="note", align="right", baseline="bottom", dx=-5).encode(
        text=alt.value(BOUNDARY), y=alt.value(kit.HEIGHT - 4)
    )
    return line.mark_rule(style="target", strokeDash=[6, 4], strokeWidth=1.6).encode(tooltip=tooltip) + label
