"""Largest error against float64, of the very output that was timed."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "error"
TITLE = "Largest error against float64 (ulp of the output type)"
HELP = (
    "Lower is better; 0.5 ulp is a correctly rounded result. Measured on the output that was timed. Matching torch and "
    "being accurate are two things: torch's own errors are here too."
)
NOTHING = "Error against float64: no timed row has an error."
LINEAR_BELOW = 0.5  # ulp; a symmetric log axis can show an exact 0
LEAST_RANGE = (0.25, 1.0)  # ulp; errors that are all 0.50004 are one line, not a landscape


def prepare(measured: Measured) -> Drawable:
    """Timed rows of the stream regime; a row that failed has no output to judge."""
    raced = kit.raced(measured, "stream", "ours", "baseline").filter(pl.col("status") == "ok")
    chosen = drawable(raced, "err_ulp_max")
    columns = ("err_ulp_max", "err_max_abs", "tolerance_used", "allclose_torch", "bitwise_torch")
    return Drawable(kit.evident(chosen.frame, *columns), chosen.omitted)


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype")
    selection = kit.highlight()
    numbers = (
        alt.Tooltip("err_ulp_max:Q", title="largest error (ulp)", format=".3~g"),
        alt.Tooltip("err_max_abs:Q", title="largest error", format=".3~g"),
        alt.Tooltip("tolerance_used:Q", title="of tolerance", format=".1%"),
        alt.Tooltip("allclose_torch:N", title="allclose to torch"),
        alt.Tooltip("bitwise_torch:N", title="bit for bit torch"),
    )
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=kit.MARK_SIZE)
        .encode(
            x=kit.sizes("hidden", frame, "hidden size (elements)"),
            y=alt.Y(
                "err_ulp_max:Q",
                title="largest error (ulp)",
                scale=_scale(frame),
                axis=alt.Axis(format="~r", tickCount=6),
            ),
            xOffset=alt.XOffset("contender:N", sort=kit.contenders(frame)),
            color=kit.colour(kit.contenders(frame)),
            opacity=kit.faded(selection),
            tooltip=kit.tooltip(*numbers, frame=frame),
        )
        .add_params(selection)
        .properties(width=kit.WIDTH, height=kit.HEIGHT)
    )
    return kit.picked(points, selectors)


def _scale(frame: pl.DataFrame) -> alt.Scale:
    """One for every choice of op and dtype, so that errors can be compared across them."""
    errors = frame["err_ulp_max"]
    low, high = (min(LEAST_RANGE[0], *errors), max(LEAST_RANGE[1], *errors))
    if low <= 0:
        return alt.Scale(type="symlog", constant=LINEAR_BELOW, domain=[0, high])
    return alt.Scale(type="log", nice=False, padding=12, domain=[low, high])
