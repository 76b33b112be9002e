"""Block-size map of one kernel: what each block size costs against the best variant of the same point."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "blockmap"
TITLE = "Block-size map (% slower than the kernel's best variant)"
HELP = (
    "Each cell is the best variant with that block size: ★ is the kernel's best at that hidden size, a number says how "
    "many per cent slower another choice is."
)
NOTHING = "Block-size map: this kernel was not tuned on this device."
WORST = 0.5  # end of the colour scale: half as long again or more looks the same


def prepare(measured: Measured, contender: str) -> Drawable:
    """Tuning rows of one contender, the best variant a block size and point."""
    tuned = measured.cases.filter((pl.col("regime") == "stream") & (pl.col("contender") == contender))
    chosen = drawable(tuned, "time_us_p50", positive=True)
    place = pl.coalesce(pl.col("block").cast(pl.String), "variant")
    point = ("device", "point", "contender")
    cells = (
        chosen.frame.with_columns(place.alias("place"))
        .sort("time_us_p50", "variant")
        .unique([*point, "place"], keep="first", maintain_order=True)
        .with_columns((pl.col("time_us_p50") / pl.col("time_us_p50").min().over(point) - 1).alias("slower"))
    )
    percent = pl.format("+{}", (pl.col("slower") * 100).round().cast(pl.Int64))
    label = pl.when(pl.col("slower") == 0).then(pl.lit("★")).otherwise(percent)
    cells = cells.with_columns(label.alias("label"))
    columns = ("place", "label", "block", "gbps", "time_us_p50", "slower", "registers", "blocks_per_sm", "spill_bytes")
    return Drawable(kit.evident(cells, *columns), chosen.omitted)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype")
    places = frame.sort("block", "place")["place"].unique(maintain_order=True).to_list()
    base = alt.Chart(frame).encode(
        x=kit.sizes("hidden", frame, "hidden size (elements)"),
        y=alt.Y("place:N", title="threads a block", sort=places[::-1]),
    )
    scale = alt.Scale(scheme="viridis", domain=[0, WORST], clamp=True, reverse=True)
    tooltip = kit.tooltip(
        alt.Tooltip("slower:Q", title="slower than the best", format="+.1%"),
        kit.GBPS,
        kit.TIME,
        alt.Tooltip("place:N", title="threads a block"),
        alt.Tooltip("registers:Q", title="registers a thread"),
        alt.Tooltip("blocks_per_sm:Q", title="blocks an SM"),
        frame=frame,
    )
    legend = alt.Legend(format="+.0%", gradientLength=160, title="slower than the best")
    cells = base.mark_rect().encode(color=alt.Color("slower:Q", scale=scale, legend=legend), tooltip=tooltip)
    ink = alt.when(alt.datum.slower > WORST / 2).then(alt.value("#ffffff")).otherwise(alt.value("#1b1f24"))
    costs = base.mark_text(fontSize=11).encode(text="label:N", color=ink)
    layered = alt.layer(cells, costs).properties(width=kit.WIDTH, height=26 * len(places))
    return kit.picked(layered, selectors)
