"""The reduction of dgamma and dbeta as a part of a gradient's time, of our fastest contender at each hidden size."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit, theme
from normbench.formats import quantity
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "reduction"
TITLE = "The reduction as a part of the time (µs a launch)"
HELP = (
    "The fastest of our kernels at each hidden size: below dx and partial column sums, above what only forms dγ, dβ. "
    "A number is the share of the latter. The whole is timed in the race, and in the same rounds without the reduction "
    "too; the difference is what the reduction costs."
)
NOTHING = "The reduction as a part of the time: none of our kernels was timed without it too."
HEIGHT = 220
REDUCTION = "reduction to dγ and dβ"
PARTS = {"dx and partial sums": theme.NEUTRAL, REDUCTION: theme.DOUBTFUL}  # from below


def prepare(measured: Measured, op: str) -> Drawable:
    """Two rows a point of regime ``stream`` with a known reduction: its parts, of the fastest quotable of ours.

    op: as it is labelled. It reaches from from_us to to_us.
    """
    ours = kit.raced(measured, "stream", "ours").filter(pl.col("competes") & (pl.col("op") == op))
    fastest = ours.sort("time_us_p50", "contender").unique(("dtype", "point"), keep="first", maintain_order=True)
    chosen = drawable(fastest, "reduce_us", positive=True)
    unknown = fastest.height - chosen.frame.height
    omitted = f"{unknown} of {quantity(fastest.height, 'point')} not shown: the reduction there is not known."
    rest = pl.col("time_us_p50") - pl.col("reduce_us")
    below, above = (
        chosen.frame.with_columns(part=pl.lit(part), from_us=start, to_us=end)
        for part, start, end in zip(PARTS, (pl.lit(0.0), rest), (rest, pl.col("time_us_p50")), strict=True)
    )
    columns = ("part", "from_us", "to_us", "time_us_p50", "reduce_us", "reduce_share")
    return Drawable(kit.evident(pl.concat([below, above]), *columns), omitted if unknown else "")


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "dtype")
    base = alt.Chart(frame).encode(x=kit.sizes("hidden", frame, "hidden size (elements)"))
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    tooltip = kit.tooltip(
        kit.TIME,
        alt.Tooltip("reduce_us:Q", title="reduction (µs)", format=".4~g"),
        alt.Tooltip("reduce_share:Q", title="reduction of the whole", format=".2%"),
        frame=frame,
    )
    bars = base.mark_bar().encode(
        y=alt.Y("from_us:Q", title="median (µs)"),
        y2="to_us",
        color=alt.Color("part:N", scale=scale, sort=list(PARTS), legend=alt.Legend(title=None, symbolLimit=2)),
        tooltip=tooltip,
    )
    shares = (
        base.transform_filter(alt.datum.part == REDUCTION)
        .mark_text(style="note", dy=-7)
        .encode(y="time_us_p50:Q", text=alt.Text("reduce_share:Q", format=".1%"))
    )
    layered = alt.layer(bars, shares).properties(width=kit.WIDTH, height=HEIGHT)
    return kit.picked(layered, selectors)
