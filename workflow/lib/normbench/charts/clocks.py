"""Clock, power and temperature along the study."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.charts.theme import BAD
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "clocks"
TITLE = "Clock state over the study (MHz, W, °C)"
HELP = (
    "Each point is a timed row of the race at the time it was finished (UTC). A level clock makes times comparable; "
    "red points have the verdict throttled."
)
NOTHING = "Clock state: the host reported no clocks."
QUANTITIES = {
    "sm_clock_mhz_p50": "SM clock (MHz)",
    "power_w_p50": "power (W)",
    "temp_c_max": "temperature (°C)",
}
PANEL = 110


def prepare(measured: Measured) -> Drawable:
    """Wide form, one row a timed row; ``at`` is UTC in ISO 8601 with a Z, so no reader's time zone shifts it."""
    naive = pl.col("measured_at").str.slice(0, 19).str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False)
    timed = measured.showdown.with_columns(naive.dt.strftime("%Y-%m-%dT%H:%M:%SZ").alias("at"))
    known = pl.any_horizontal(pl.col(name).is_not_null() for name in QUANTITIES)
    shown = timed.filter(pl.col("at").is_not_null() & known)
    drawn = shown.select(
        "at", "contender", "op", "dtype", "hidden", "verdict", "clocks", "throttle_reasons", *QUANTITIES
    ).sort("at", "op", "dtype", "hidden", "contender")
    return Drawable(drawn)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    present = [name for name in QUANTITIES if frame[name].is_not_null().any()]
    return alt.vconcat(*(_panel(frame, name, name == present[-1]) for name in present), spacing=14)


def _panel(frame: pl.DataFrame, quantity: str, last: bool) -> Any:
    throttled = alt.datum.verdict == "throttled"
    axis = alt.Axis(format="%H:%M:%S", labelOverlap=True) if last else alt.Axis(labels=False, ticks=False)
    return (
        alt.Chart(frame)
        .transform_filter(alt.expr.isValid(alt.datum[quantity]))
        .mark_point(filled=True, size=22)
        .encode(
            x=alt.X("at:T", title="time (UTC)" if last else None, scale=alt.Scale(type="utc"), axis=axis),
            y=alt.Y(
                f"{quantity}:Q", title=QUANTITIES[quantity], scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4)
            ),
            color=alt.when(throttled).then(alt.value(BAD)).otherwise(alt.value("#2f7de1")),
            tooltip=[
                alt.Tooltip("at:T", title="finished (UTC)", format="%Y-%m-%d %H:%M:%S"),
                alt.Tooltip("contender:N"),
                alt.Tooltip("op:N"),
                alt.Tooltip("dtype:N"),
                alt.Tooltip("hidden:Q"),
                alt.Tooltip(f"{quantity}:Q", title=QUANTITIES[quantity], format=".0f"),
                alt.Tooltip("verdict:N"),
                alt.Tooltip("clocks:N"),
                alt.Tooltip("throttle_reasons:Q", title="throttle bits"),
            ],
        )
        .properties(width=kit.WIDTH, height=PANEL)
    )
