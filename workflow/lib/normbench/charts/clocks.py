"""Clock, power and temperature along the study, with the windows in which the GPU was throttled."""

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
    "red points have the verdict throttled, and the windows in which that happened are shaded."
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
    drawn = (
        kit.evident(shown, "at", "throttle_reasons", *QUANTITIES)
        .sort("at", "op", "dtype", "hidden", "contender")
        .with_columns(kind=pl.lit("row"))
    )
    return Drawable(pl.concat([drawn, windows(drawn)], how="diagonal"))


def windows(drawn: pl.DataFrame) -> pl.DataFrame:
    """Columns at, until and kind: from the last row before a throttled one, where it began at the earliest, to the last
    throttled row in a sequence of them. ``drawn`` is in the order of time."""
    moments = drawn.group_by("at", maintain_order=True).agg((pl.col("verdict") == "throttled").any().alias("throttled"))
    found: list[tuple[str, str]] = []
    before, open_since = None, None
    for at, throttled in moments.iter_rows():
        if throttled:
            open_since = open_since or before or at
            found = [*(window for window in found if window[0] != open_since), (open_since, at)]
        else:
            open_since = None
        before = at
    schema = {"at": pl.String, "until": pl.String}
    return pl.DataFrame(found, schema=schema, orient="row").with_columns(kind=pl.lit("throttled"))


def chart(frame: pl.DataFrame) -> kit.Drawing:
    present = [name for name in QUANTITIES if frame[name].is_not_null().any()]
    return alt.vconcat(*(_panel(frame, name, name == present[-1]) for name in present), spacing=14)


def _panel(frame: pl.DataFrame, quantity: str, last: bool) -> Any:
    axis = alt.Axis(format="%H:%M:%S", labelOverlap=True) if last else alt.Axis(labels=False, ticks=False)
    x = alt.X("at:T", title="time (UTC)" if last else None, scale=alt.Scale(type="utc"), axis=axis)
    layers = [_points(frame, quantity, x)]
    if (frame["kind"] == "throttled").any():
        layers.insert(0, _shade(frame, x))
    return alt.layer(*layers).properties(width=kit.WIDTH, height=PANEL)


def _shade(frame: pl.DataFrame, x: alt.X) -> Any:
    tooltip = [
        alt.Tooltip("at:T", title="throttled after (UTC)", format="%Y-%m-%d %H:%M:%S"),
        alt.Tooltip("until:T", title="until (UTC)", format="%Y-%m-%d %H:%M:%S"),
    ]
    windows = alt.Chart(frame).transform_filter(alt.datum.kind == "throttled")
    return windows.mark_rect(color=BAD, opacity=0.22).encode(x=x, x2="until:T", tooltip=tooltip)


def _points(frame: pl.DataFrame, quantity: str, x: alt.X) -> Any:
    throttled = alt.datum.verdict == "throttled"
    return (
        alt.Chart(frame)
        .transform_filter(alt.expr.isValid(alt.datum[quantity]))
        .mark_point(filled=True, size=22)
        .encode(
            x=x,
            y=alt.Y(
                f"{quantity}:Q", title=QUANTITIES[quantity], scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4)
            ),
            color=alt.when(throttled).then(alt.value(BAD)).otherwise(alt.value("#2f7de1")),
            tooltip=kit.tooltip(
                alt.Tooltip("at:T", title="finished (UTC)", format="%Y-%m-%d %H:%M:%S"),
                alt.Tooltip(f"{quantity}:Q", title=QUANTITIES[quantity], format=".0f"),
                alt.Tooltip("throttle_reasons:Q", title="throttle bits"),
                frame=frame,
            ),
        )
    )
