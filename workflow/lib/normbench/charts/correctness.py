"""Correctness: contenders against adversarial inputs, or the contracts of the race when nothing was verified."""

from __future__ import annotations

import altair as alt
import polars as pl

from normbench.charts import kit, theme
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "correctness"
TITLE = "Correctness (input or contract × contender)"
HELP = (
    "✓ holds, ✗ does not, – was refused or not asked; a number counts the points where a contract held. Accurate is "
    "against float64; allclose and bitwise are against torch eager, which on hard inputs is not the more accurate side."
    " K1, K2, … are public faults, listed in kernels/README.md."
)
NOTHING = "Correctness: neither adversarial checks nor races have rows."
ROW = 24  # of the drawing; studies check dozens of inputs, so they run down the page
CONTRACTS = ("accurate", "allclose_torch", "allclose_seed", "bitwise_torch")
COLOURS = {"holds": theme.GOOD, "fails": theme.BAD, "in part": theme.DOUBTFUL, "not judged": theme.NEUTRAL}


def prepare(measured: Measured) -> Drawable:
    """A cell a row: op, dtype, contender, column, state (a key of COLOURS), mark (its text) and detail."""
    if not measured.checks.is_empty():
        return Drawable(from_checks(measured.checks))
    raced = kit.raced(measured, None, "ours", "baseline")
    return Drawable(from_contracts(raced) if not raced.is_empty() else raced)


def from_checks(checks: pl.DataFrame) -> pl.DataFrame:
    """One cell a checked input; an input checked at several shapes is as good as its worst."""
    failed = pl.col("status").is_in(["wrong", "no_work", "launch_error", "timeout", "compile_error"])
    state = pl.when(failed.any()).then(pl.lit("fails")).when((pl.col("status") == "ok").any()).then(pl.lit("holds"))
    return (
        checks.group_by("op", "dtype", "role", "contender", pl.col("case").alias("column"))
        .agg(
            state.otherwise(pl.lit("not judged")).alias("state"),
            pl.col("reason").drop_nulls().sort().first().alias("detail"),
            pl.col("err_ulp_max").max(),
        )
        .with_columns(pl.col("state").replace_strict({"fails": "✗", "holds": "✓", "not judged": "–"}).alias("mark"))
        .sort("op", "dtype", "contender", "column")
    )


def from_contracts(raced: pl.DataFrame) -> pl.DataFrame:
    """One cell a contract: at how many points of the race it held."""
    long = raced.unpivot(
        on=CONTRACTS, index=["op", "dtype", "role", "contender"], variable_name="column", value_name="held"
    )
    held, asked = pl.col("held").sum(), pl.col("held").count()
    state = (
        pl.when(asked == 0)
        .then(pl.lit("not judged"))
        .when(held == asked)
        .then(pl.lit("holds"))
        .when(held == 0)
        .then(pl.lit("fails"))
        .otherwise(pl.lit("in part"))
    )
    counted = pl.when(asked == 0).then(pl.lit("–")).otherwise(pl.format("{}/{}", held, asked))
    return (
        long.group_by("op", "dtype", "role", "contender", "column")
        .agg(state.alias("state"), counted.alias("mark"))
        .with_columns(detail=pl.lit(None, dtype=pl.String), err_ulp_max=pl.lit(None, dtype=pl.Float64))
        .sort("op", "dtype", "contender", "column")
    )


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype")
    names = kit.contenders(frame)
    base = alt.Chart(frame).encode(
        x=alt.X(
            "contender:N",
            title=None,
            sort=names,
            axis=alt.Axis(orient="top", labelAngle=-45, domain=False, ticks=False),
        ),
        y=alt.Y("column:N", title=None, axis=alt.Axis(domain=False, ticks=False)),
    )
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    cells = base.mark_rect(stroke="#ffffff30", cornerRadius=2).encode(
        color=alt.Color("state:N", scale=scale, legend=alt.Legend(title=None)),
        tooltip=[
            alt.Tooltip("contender:N"),
            alt.Tooltip("column:N", title="input or contract"),
            alt.Tooltip("state:N"),
            alt.Tooltip("mark:N", title="held"),
            alt.Tooltip("err_ulp_max:Q", title="largest error (ulp)", format=".3~g"),
            alt.Tooltip("detail:N", title="reason"),
        ],
    )
    marks = base.mark_text(fontSize=12, color="#ffffff", fontWeight="bold").encode(text="mark:N")
    layered = alt.layer(cells, marks).properties(width=kit.WIDTH, height=ROW * frame["column"].n_unique())
    return kit.picked(layered, selectors)
