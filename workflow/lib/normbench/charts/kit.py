"""What charts share: the page's selectors, contender colours, axes and the tooltip that lets a figure be traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import altair as alt
import polars as pl

from normbench import schema
from normbench.charts import theme
from normbench.measured import ABSENT, Measured
from normbench.metrics import BASELINES, Drawable

HEIGHT = 340
WIDTH = 720
PICKS = {
    "op": "op",
    "dtype": "dtype",
    "regime": "regime",
    "hidden": "hidden size",
    "against": "speed-up over",
    "family": "inputs",
}
EVIDENCE = (
    "contender",
    "op",
    "dtype",
    "rows",
    "hidden",
    "variant",
    "interval",
    "samples",
    "verdict",
    "clocks",
    "command",
    "role",
)
ALL = "all families"  # of inputs, a row or place each
ROLES = ("ours", "baseline", "reference")
ORDERS = {
    "dtype": schema.DTYPES,
    "regime": schema.REGIMES,
    "against": ("torch eager", "torch.compile", "best baseline"),
    "family": (ALL,),
}
MARK_SIZE = 55
Drawing = alt.Chart | alt.LayerChart | alt.VConcatChart


class Module(Protocol):
    """One chart file. ``prepare`` chooses and counts rows, ``chart`` only draws them."""

    NAME: str
    TITLE: str
    HELP: str
    NOTHING: str

    def prepare(self, measured: Measured) -> Drawable: ...

    def chart(self, frame: pl.DataFrame) -> Drawing: ...


@dataclass(frozen=True)
class Pick:
    """A selector of the page: a Vega parameter ``pick_<column>`` that filters the rows of a chart."""

    column: str
    default: Any

    @property
    def parameter(self) -> alt.Parameter:
        return alt.param(name=f"pick_{self.column}", value=self.default)

    @property
    def keeps(self) -> Any:
        return alt.datum[self.column] == self.parameter


def picks(frame: pl.DataFrame, *columns: str) -> list[Pick]:
    """Selectors for ``columns``, each starting at its most telling value that the frame has."""
    return [Pick(column, default(column, frame[column].drop_nulls().unique().to_list())) for column in columns]


def default(column: str, values: Sequence[Any]) -> Any:
    """bf16, hidden 4096, torch eager where they exist; else the first in order."""
    wanted = {"dtype": "bf16", "hidden": 4096, "against": "torch eager"}.get(column)
    ordered = sort_values(column, values)
    return wanted if wanted in ordered else (ordered[0] if ordered else None)


def sort_values(column: str, values: Sequence[Any]) -> list[Any]:
    order = {name: index for index, name in enumerate(ORDERS.get(column, ()))}
    return sorted(set(values), key=lambda value: (order.get(value, len(order)), value))


def picked(chart: Any, selectors: Sequence[Pick]) -> Drawing:
    """Attach the selectors as parameters and filter by them."""
    chart = chart.add_params(*(selector.parameter for selector in selectors))
    for selector in selectors:
        chart = chart.transform_filter(selector.keeps)
    drawing: Drawing = chart
    return drawing


def sized(drawing: Any, least: int = 0, *, broad: bool = False) -> Drawing:
    """On a narrow page a chart scrolls rather than get narrower than ``least``; a broad one has a line to itself."""
    chart: Drawing = drawing.properties(usermeta={"broad": broad, "least": least})
    return chart


def contenders(frame: pl.DataFrame) -> list[str]:
    """Ours first, then the baselines in the order people know them, then what only serves as reference."""

    def rank(name: str, role: str) -> tuple[int, int, str]:
        return ROLES.index(role), BASELINES.index(name) if name in BASELINES else len(BASELINES), name

    pairs = frame.select("contender", "role").unique().iter_rows()
    return [name for name, _ in sorted(pairs, key=lambda pair: rank(*pair))]


def raced(measured: Measured, regime: str | None, *roles: str) -> pl.DataFrame:
    """Rows of the race in one regime (None: all) whose contender plays one of ``roles``; left out: all but twins."""
    rows = measured.showdown.filter(pl.col("role").is_in(roles or ROLES))
    return rows if regime is None else rows.filter(pl.col("regime") == regime)


def colour(names: Sequence[str]) -> alt.Color:
    chosen = theme.colours(names)
    scale = alt.Scale(domain=list(names), range=[chosen[name] for name in names])
    return alt.Color("contender:N", scale=scale, sort=list(names), legend=alt.Legend(title=None, symbolLimit=60))


def highlight() -> alt.Parameter:
    """Clicking a legend entry fades the others; shift adds, a double click resets."""
    return alt.selection_point(name="highlight", fields=["contender"], bind="legend")


def faded(selection: alt.Parameter, shown: float = 1.0) -> Any:
    return alt.when(selection).then(alt.value(shown)).otherwise(alt.value(0.08))


def placed(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``place``, what tells the points of a regime apart: the hidden size, in the latency and wide regimes the rows
    too.

    The rows come in the order of the places.
    """
    few = pl.col("regime").is_in(["latency", "wide"])
    place = pl.when(few).then(pl.format("{} × {}", "rows", "hidden")).otherwise(pl.col("hidden").cast(pl.String))
    regime = pl.col("regime").replace_strict({name: index for index, name in enumerate(schema.REGIMES)})
    return frame.with_columns(place.alias("place")).sort(regime, "hidden", "rows", maintain_order=True)


def places(frame: pl.DataFrame) -> alt.X:
    """An axis of the places of ``placed``; those of the regime that is chosen are shown."""
    values = frame["place"].drop_nulls().unique(maintain_order=True).to_list()
    title = "hidden size, or rows × hidden" if any("×" in value for value in values) else "hidden size (elements)"
    return alt.X("place:O", sort=values, title=title, axis=alt.Axis(labelAngle=-45, labelOverlap=True))


def sizes(column: str, frame: pl.DataFrame, title: str) -> alt.X:
    """Studied sizes, evenly spaced: 2048 and 2049 are neighbours on a log axis, and the most different pair of all."""
    values = sorted(frame[column].drop_nulls().unique().to_list())
    angle = -45 if len(values) > 6 else 0
    return alt.X(f"{column}:O", sort=values, title=title, axis=alt.Axis(labelAngle=angle, labelOverlap=True))


def dash() -> alt.StrokeDash:
    """Ours solid, baselines dashed, the copy dotted."""
    scale = alt.Scale(domain=list(ROLES), range=[[1, 0], [5, 3], [1, 3]])
    return alt.StrokeDash("role:N", scale=scale, legend=None)


def shape() -> alt.Shape:
    """Filled circle: quotable; the rest by what is wrong with them."""
    names = list(schema.VERDICTS)
    shapes = ["circle", "triangle-down", "cross", "square", "diamond", "triangle-up"]
    return alt.Shape("verdict:N", scale=alt.Scale(domain=names, range=shapes), legend=None)


def tooltip(*numbers: alt.Tooltip, frame: pl.DataFrame) -> list[alt.Tooltip]:
    """The chart's own numbers, then the evidence columns the frame has."""
    titles = {"interval": "95 % interval", "command": "reproduce"}
    taken = {item.shorthand.split(":")[0] for item in numbers}
    evidence = [
        alt.Tooltip(f"{name}:{'Q' if name in ('rows', 'hidden') else 'N'}", title=titles.get(name, name))
        for name in EVIDENCE
        if name in frame.columns and name not in taken and name != "role"
    ]
    return [*evidence[:1], *numbers, *evidence[1:]]


GBPS = alt.Tooltip("gbps:Q", title="GB/s", format=".0f")
CEILING = alt.Tooltip("ceiling_fraction:Q", title="of measured ceiling", format=".1%")
TIME = alt.Tooltip("time_us_p50:Q", title="median (µs)", format=".5~g")


def evident(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Only what a chart draws and its tooltip shows, in a stable order."""
    names = [name for name in dict.fromkeys((*EVIDENCE, *columns)) if name in frame.columns]
    order = [name for name in names if name != "samples_us"]
    return frame.select(names).with_columns(pl.col("variant").fill_null(ABSENT)).sort(order, nulls_last=True)
