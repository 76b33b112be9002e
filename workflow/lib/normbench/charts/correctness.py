"""Correctness: contenders against adversarial inputs, or the contracts of the race when nothing was verified."""

from __future__ import annotations

import re

import altair as alt
import polars as pl

from normbench.charts import kit, theme
from normbench.measured import Measured
from normbench.metrics import Drawable

NAME = "correctness"
TITLE = "Correctness (input or contract × contender)"
HELP = (
    "✓ holds, ✗ does not, – was refused, an empty cell was not asked; = has torch’s bits, and with them an error "
    "outside the tolerance (wide rows only). 34/36 counts the inputs of a family that were "
    "right, or the points where a contract held. Choose a family under “inputs” to see each of its inputs. Accurate "
    "is against float64; allclose and bitwise are against torch eager, which on hard inputs is not the more "
    "accurate side; allclose_seed is the tighter one (atol 1e-5 in fp32, 1e-4 in 16-bit types). K1, K2, … are public "
    "faults, listed in kernels/README.md."
)
NOTHING = "Correctness: neither adversarial checks nor races have rows."
ROW, CELL, LABELS = 24, 44, 170  # of the drawing
# studies check dozens of inputs, so the page opens with a row a family; the first pattern that fits names it
FAMILIES = {
    r"K\d": "K: faults met in public",
    r"hidden_": "hidden: row lengths",
    r"rows_": "rows: row counts",
    r"ratio_": "ratio: mean over std",
    r"nan|inf|minus_inf|near|denormal|tiny": "values: NaN, inf, limits",
    r"stride": "stride: rows apart",
    r"eps_|no_|stats": "semantics: ε, affine",
    r"wide\.": "wide: distributions",
}
OTHER = "other"
VERIFY = pl.format("snakemake --cores 1 verify --config ops={} dtypes={}", "op", "dtype")  # repeats the inputs
CONTRACTS = ("accurate", "allclose_torch", "allclose_seed", "bitwise_torch")
COLOURS = {"holds": theme.GOOD, "fails": theme.BAD, "in part": theme.DOUBTFUL, "not judged": theme.NEUTRAL}
MARKS = {"fails": "✗", "in part": "=", "holds": "✓", "not judged": "–"}  # of an input, the worst state first


def prepare(measured: Measured) -> Drawable:
    """A cell a row: op, dtype, family, contender, column, state (a key of COLOURS), mark (its text) and detail."""
    if not measured.checks.is_empty():
        inputs = from_checks(measured.checks)
        return Drawable(pl.concat([by_family(inputs), inputs]).with_columns(command=VERIFY))
    raced = kit.raced(measured, None, "ours", "baseline")
    return Drawable(from_contracts(raced) if not raced.is_empty() else raced)


def family(case: str) -> str:
    """The family an input belongs to, by its name."""
    return next((name for pattern, name in FAMILIES.items() if re.match(pattern, case)), OTHER)


def by_family(inputs: pl.DataFrame) -> pl.DataFrame:
    """One cell a family: how many of the inputs that were judged are right, and the names of those that are not."""
    holds, judged = pl.col("state") == "holds", pl.col("state") != "not judged"
    counted = pl.format("{}/{}", holds.sum(), judged.sum())
    names = pl.col("column").filter(judged & ~holds).sort().str.join(", ")
    return (
        inputs.group_by("op", "dtype", "role", "contender", pl.col("family").alias("column"))
        .agg(
            _worst_state().alias("state"),
            pl.when(names != "").then(pl.format("fails on {}", names)).alias("detail"),
            pl.col("err_ulp_max").max(),
            pl.when(judged.any()).then(counted).otherwise(pl.lit("–")).alias("mark"),
        )
        .with_columns(family=pl.lit(kit.ALL))
        .select(inputs.columns)
        .sort("op", "dtype", "contender", "column")
    )


def _worst_state() -> pl.Expr:
    """The first of MARKS that a group has."""
    *states, last = MARKS
    return pl.coalesce(*(pl.col("state").filter(pl.col("state") == one).first() for one in states), pl.lit(last))


def from_checks(checks: pl.DataFrame) -> pl.DataFrame:
    """One cell a checked input; an input checked at several shapes is as good as its worst."""
    failed = pl.col("status").is_in(["wrong", "no_work", "launch_error", "timeout", "compile_error"])
    inaccurate = ~pl.col("accurate").fill_null(True)
    state = (
        pl.when(failed)
        .then(pl.lit("fails"))
        .when(pl.col("status") != "ok")
        .then(pl.lit("not judged"))
        .otherwise(pl.when(inaccurate).then(pl.lit("in part")).otherwise(pl.lit("holds")))
    )
    return (
        checks.with_columns(state=state)
        .group_by("op", "dtype", "role", "contender", pl.col("case").alias("column"))
        .agg(
            _worst_state().alias("state"),
            pl.col("reason").drop_nulls().sort().first().alias("detail"),
            pl.col("err_ulp_max").max(),
        )
        .with_columns(
            pl.col("state").replace_strict(MARKS).alias("mark"),
            pl.col("column").map_elements(family, return_dtype=pl.String).alias("family"),
        )
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
        .with_columns(
            family=pl.lit(kit.ALL), detail=pl.lit(None, dtype=pl.String), err_ulp_max=pl.lit(None, dtype=pl.Float64)
        )
        .sort("op", "dtype", "contender", "column")
    )


def chart(frame: pl.DataFrame) -> kit.Drawing:
    selectors = kit.picks(frame, "op", "dtype", "family")
    names = kit.contenders(frame)
    base = alt.Chart(frame).encode(
        x=alt.X(
            "contender:N",
            title=None,
            sort=names,
            axis=alt.Axis(orient="top", labelAngle=-45, domain=False, ticks=False),
        ),
        y=alt.Y("column:N", title=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=170)),
    )
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    cells = base.mark_rect(stroke="#ffffff30", cornerRadius=2).encode(
        color=alt.Color("state:N", scale=scale, legend=alt.Legend(title=None)),
        tooltip=[
            alt.Tooltip("contender:N"),
            alt.Tooltip("column:N", title="input, family or contract"),
            alt.Tooltip("state:N"),
            alt.Tooltip("mark:N", title="held"),
            alt.Tooltip("err_ulp_max:Q", title="largest error (ulp)", format=".3~g"),
            alt.Tooltip("detail:N", title="reason"),
            *([alt.Tooltip("command:N", title="reproduce")] if "command" in frame.columns else []),
        ],
    )
    marks = base.mark_text(fontSize=12, color="#ffffff", fontWeight="bold").encode(text="mark:N")
    layered = alt.layer(cells, marks).properties(width=kit.WIDTH, height=alt.Step(ROW))
    return kit.sized(kit.picked(layered, selectors), LABELS + CELL * len(names), broad=True)
