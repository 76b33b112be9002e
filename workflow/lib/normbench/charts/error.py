"""Largest error against float64, by what the input was: the race's own, or an adversarial one."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from normbench.charts import correctness, kit
from normbench.measured import Measured
from normbench.metrics import Drawable, drawable

NAME = "error"
TITLE = "Largest error against float64, by input (ulp of the output type)"
HELP = (
    "Lower is better; 0.5 ulp is a correctly rounded result. “race” is the output that was timed, of random inputs; "
    "the others are the adversarial inputs of the matrix, and “inputs” opens a family. A missing mark is a result that "
    "is not finite where it should be, or a refusal. torch's own errors are here too: matching torch and being "
    "accurate are two things."
)
NOTHING = "Error against float64: no row has an error."
RACE = "race: random"
LINEAR_BELOW = 0.5  # ulp; a symmetric log axis can show an exact 0
LEAST_RANGE = (0.25, 1.0)  # ulp; errors that are all 0.50004 are one line, not a landscape
COLUMNS = ("op", "dtype", "role", "contender", "family", "shown", "worst", "err_ulp_max", "tolerance_used", "command")


def prepare(measured: Measured) -> Drawable:
    """A mark a row: the largest error of a contender on an input, or over a family of inputs and where that was."""
    raced = kit.raced(measured, None, "ours", "baseline").filter(pl.col("status") == "ok")
    place = pl.col("hidden") * 2**32 + pl.col("rows")  # in the order of the sizes, which text would not be
    timed = raced.with_columns(family=pl.lit(RACE), input=pl.format("{} × {}", "rows", "hidden"), place=place)
    checked = measured.checks.filter(pl.col("status").is_in(["ok", "wrong"]) & (pl.col("role") != "reference"))
    family = pl.col("case").map_elements(correctness.family, return_dtype=pl.String)
    checked = checked.with_columns(
        family=family, input="case", place=pl.lit(0, dtype=pl.Int64), command=correctness.VERIFY
    )
    names = ("op", "dtype", "role", "contender", "family", "input", "place", "err_ulp_max", "tolerance_used", "command")
    chosen = drawable(pl.concat([timed.select(names), checked.select(names)], how="vertical_relaxed"), "err_ulp_max")
    each = _worst(chosen.frame, "input", "place").with_columns(shown="input")
    if checked.is_empty():  # the sizes of the race say more than one mark for all of them
        return Drawable(each.with_columns(family=pl.lit(kit.ALL)).select(COLUMNS), chosen.omitted)
    families = _worst(chosen.frame).with_columns(shown="family", family=pl.lit(kit.ALL))
    return Drawable(pl.concat([frame.select(COLUMNS) for frame in (families, each)]), chosen.omitted)


def _worst(rows: pl.DataFrame, *within: str) -> pl.DataFrame:
    """The row with the largest error of each contender over a family, or what is ``within`` it; the race's first."""
    by = ("op", "dtype", "role", "contender", "family", *within)
    ordered = rows.sort("err_ulp_max", "place", "input", descending=[True, False, False])
    worst = ordered.with_columns(worst="input").group_by(by, maintain_order=True).first()
    return worst.sort(pl.col("family") != RACE, "op", "dtype", "family", *within[::-1], "contender")


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "family")
    selection = kit.highlight()
    names = kit.contenders(frame)
    shown = frame["shown"].unique(maintain_order=True).to_list()
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=kit.MARK_SIZE)
        .encode(
            x=alt.X("shown:N", sort=shown, title=None, axis=alt.Axis(labelAngle=-30, labelOverlap=False, grid=True)),
            y=alt.Y(
                "err_ulp_max:Q",
                title="largest error (ulp)",
                scale=_scale(frame),
                axis=alt.Axis(format=",~r", values=_ticks(frame)),
            ),
            xOffset=alt.XOffset("contender:N", sort=names),
            color=kit.colour(names),
            opacity=kit.faded(selection),
            tooltip=[
                alt.Tooltip("contender:N"),
                alt.Tooltip("err_ulp_max:Q", title="largest error (ulp)", format=".3~g"),
                alt.Tooltip("tolerance_used:Q", title="of tolerance", format=".1%"),
                alt.Tooltip("worst:N", title="on input"),
                alt.Tooltip("op:N"),
                alt.Tooltip("dtype:N"),
                alt.Tooltip("command:N", title="reproduce"),
            ],
        )
        .add_params(selection)
        .properties(width=kit.WIDTH, height=kit.HEIGHT)
    )
    return kit.sized(kit.picked(points, selectors), kit.WIDTH, broad=True)


def _ticks(frame: pl.DataFrame) -> list[float]:
    """0, half an ulp and the powers of ten up to the largest error; a symmetric log axis chooses poor ones."""
    decades = math.ceil(math.log10(max(LEAST_RANGE[1], *frame["err_ulp_max"])))
    return [0, LINEAR_BELOW, *(10.0**power for power in range(decades + 1))]


def _scale(frame: pl.DataFrame) -> alt.Scale:
    """One for every choice of op and dtype, so that errors can be compared across them."""
    errors = frame["err_ulp_max"]
    low, high = (min(LEAST_RANGE[0], *errors), max(LEAST_RANGE[1], *errors))
    if low <= 0:
        return alt.Scale(type="symlog", constant=LINEAR_BELOW, domain=[0, high])
    return alt.Scale(type="log", nice=False, padding=12, domain=[low, high])
