"""Speed-up over torch eager, torch.compile and the best baseline of the same race."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.charts.theme import NEUTRAL
from normbench.formats import quantity
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable, noise_floors

NAME = "speedup"
TITLE = "Speed-up (times as fast)"
HELP = (
    "Above 1 is faster than the reference chosen under “speed-up over”, below 1 slower; both times are from one race. "
    "The axis is logarithmic, so twice and half as fast are equally far from 1. Inside the grey band a difference is "
    "no more than a contender has to itself, raced under a second name."
)
NOTHING = "Speed-up: no race of this device has a quotable time of torch eager, torch.compile or another baseline."
AGAINST = {"speedup_eager": "torch eager", "speedup_compile": "torch.compile", "speedup_best": "best baseline"}


def prepare(measured: Measured) -> Drawable:
    """Long form: one row a contender, point and reference; points whose reference has no quotable time are counted."""
    chosen = drawable(kit.raced(measured, None, "ours", "baseline"), "time_us_p50", positive=True)
    wide = kit.placed(kit.evident(chosen.frame, "gbps", "time_us_p50", "aligned", "regime", *AGAINST))
    index = [name for name in wide.columns if name not in AGAINST]
    long = wide.unpivot(on=list(AGAINST), index=index, variable_name="against", value_name="speedup").with_columns(
        pl.col("against").replace_strict(AGAINST)
    )
    present = long.filter(pl.col("speedup").is_not_null().any().over("against"))
    compared = drawable(present, "speedup", positive=True)
    floors = noise_floors(measured.showdown)
    floor = pl.col("regime").replace_strict(floors, default=None, return_dtype=pl.Float64)
    drawn = compared.frame.with_columns(band_low=1 / (1 + floor), band_high=1 + floor)
    return Drawable(drawn, " ".join(filter(None, [chosen.omitted, _without_reference(present)])))


def _without_reference(long: pl.DataFrame) -> str:
    """How many points each reference has no quotable time at."""
    missing = (
        long.filter(pl.col("speedup").is_null())
        .group_by("against")
        .agg(pl.struct("op", "dtype", "regime", "rows", "hidden").n_unique())
    )
    counts = ", ".join(f"{name} at {quantity(n, 'point')}" for name, n in missing.sort("against").iter_rows())
    return f"Without a quotable time, so not compared with: {counts}." if counts else ""


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "regime", "against")
    selection = kit.highlight()
    base = alt.Chart(frame).encode(
        x=kit.places(frame),
        y=alt.Y(
            "speedup:Q",
            title="times as fast as the reference",
            scale=alt.Scale(type="log", base=2, nice=False, padding=12),
            axis=alt.Axis(format="~r", tickCount=7),
        ),
        color=kit.colour(kit.contenders(frame)),
        opacity=kit.faded(selection),
    )
    times = alt.Tooltip("speedup:Q", title="times as fast", format=".3~f")
    tooltip = kit.tooltip(times, alt.Tooltip("against:N", title="as"), kit.GBPS, kit.TIME, frame=frame)
    one = alt.Chart(frame).mark_rule(style="ceiling").encode(y=alt.datum(1))
    lines = base.transform_filter(alt.datum.aligned).mark_line(strokeWidth=1.8).encode(strokeDash=kit.dash())
    points = base.mark_point(filled=True, size=kit.MARK_SIZE).encode(shape=kit.shape(), tooltip=tooltip)
    layers = [one, lines, points.add_params(selection)]
    if frame["band_low"].is_not_null().any():
        layers.insert(0, _band(frame))
    layered = alt.layer(*layers).properties(width=kit.WIDTH, height=kit.HEIGHT)
    return kit.picked(layered, selectors)


def _band(frame: pl.DataFrame) -> Any:
    """What an A/A twin differs from its original by, on both sides of 1."""
    band = alt.Chart(frame).mark_rect(color=NEUTRAL, opacity=0.3)
    return band.encode(y=alt.Y("min(band_low):Q"), y2=alt.Y2("max(band_high):Q"))
