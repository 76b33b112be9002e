"""Bandwidth of working sets that stay in L2, which says nothing about memory and never meets its roof."""

from __future__ import annotations

import polars as pl

from normbench.charts import bandwidth, kit
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "l2"
TITLE = "Bandwidth inside L2 (GB/s)"
HELP = (
    "Working sets well inside the L2 cache: these rates are the cache's, not memory's, and are compared with "
    "nothing but the copy measured inside L2."
)
NOTHING = "Bandwidth inside L2: the study has no l2 points."


def prepare(measured: Measured) -> Drawable:
    """Rows of regime ``l2``; the only guide is the measured L2 copy."""
    chosen = bandwidth.prepare_regime(measured, "l2")
    drawn = chosen.frame.filter(pl.col("kind") == "contender")
    roof = measured.ceiling("l2_copy")
    if roof is None:
        return Drawable(drawn, chosen.omitted)
    guides = drawn.select("op", "dtype", "hidden").unique(maintain_order=True).sort("op", "dtype", "hidden")
    guides = guides.with_columns(kind=pl.lit(bandwidth.CEILING), gbps=pl.lit(roof))
    return Drawable(pl.concat([drawn, guides], how="diagonal"), chosen.omitted)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    return bandwidth.chart(frame)
