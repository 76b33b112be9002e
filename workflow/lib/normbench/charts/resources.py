"""Registers and spills of each kernel on each architecture, as the compiler gave them."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "resources"
TITLE = "Registers a thread, occupancy and spills, by architecture"
HELP = (
    "The most registers a thread that any variant of the kernel takes, and the best occupancy of a variant. A red cell "
    "has a variant that spills to local memory; hover for the fewest, how many variants, and bytes."
)
CELL, LABELS = 66, 90  # of the drawing
NOTHING = "Registers and spills: nothing was compiled ahead of time."


def prepare(measured: Measured) -> Drawable:
    """One cell a kernel, architecture, op and dtype."""
    compiled = measured.resources.filter((pl.col("status") == "ok") & pl.col("registers").is_not_null())
    low, high = pl.col("registers").min(), pl.col("registers").max()
    cells = (
        compiled.group_by("op", "dtype", "role", "contender", "arch")
        .agg(
            pl.len().alias("variants"),
            (pl.col("spill_bytes") > 0).sum().alias("spilling"),
            pl.col("spill_bytes").max(),
            high.alias("registers"),
            pl.when(low == high).then(pl.format("{}", low)).otherwise(pl.format("{}–{}", low, high)).alias("span"),
            pl.col("occupancy").max().alias("occupancy"),
            pl.col("compiler").drop_nulls().sort().first(),
            pl.col("arch").first().str.extract(r"(\d+)").cast(pl.Int64).alias("order"),
        )
        .with_columns(text=pl.concat_str([pl.col("registers").cast(pl.String), _share("occupancy")], ignore_nulls=True))
        .sort("op", "dtype", "contender", "order")
    )
    return Drawable(cells)


def _share(column: str) -> pl.Expr:
    percent = (pl.col(column) * 100).round().cast(pl.Int64)
    return pl.format(" · {} %", percent)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype")
    names = kit.contenders(frame)
    archs = frame.sort("order")["arch"].unique(maintain_order=True).to_list()
    base = alt.Chart(frame).encode(
        x=alt.X(
            "arch:N", sort=archs, title=None, axis=alt.Axis(orient="top", labelAngle=-45, domain=False, ticks=False)
        ),
        y=alt.Y("contender:N", title=None, sort=names, axis=alt.Axis(domain=False, ticks=False)),
    )
    colour = alt.Color(
        "registers:Q", title="most registers", scale=alt.Scale(scheme="blues", domain=[0, 255]), legend=None
    )
    spills = alt.datum.spill_bytes > 0
    cells = base.mark_rect(cornerRadius=2).encode(
        color=alt.when(spills).then(alt.value("#d0493f")).otherwise(colour),
        tooltip=[
            alt.Tooltip("contender:N"),
            alt.Tooltip("arch:N"),
            alt.Tooltip("span:N", title="registers a thread"),
            alt.Tooltip("variants:Q"),
            alt.Tooltip("spilling:Q", title="variants that spill"),
            alt.Tooltip("spill_bytes:Q", title="largest spill (B a thread)"),
            alt.Tooltip("occupancy:Q", title="best occupancy", format=".0%"),
            alt.Tooltip("compiler:N"),
        ],
    )
    dark = spills | (alt.datum.registers > 128)
    text = base.mark_text(fontSize=12).encode(
        text="text:N", color=alt.when(dark).then(alt.value("#ffffff")).otherwise(alt.value("#1b1f24"))
    )
    layered = alt.layer(cells, text).properties(width=kit.WIDTH, height=28 * len(names))
    return kit.sized(kit.picked(layered, selectors), LABELS + CELL * len(archs))
