"""Every chart as SVG and PNG files: one pair a chart, op and dtype, drawn without a browser."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import vl_convert

from normbench import charts, document, schema
from normbench.charts import kit, theme
from normbench.measured import Measured

SCALE = 2.0  # PNG pixels a chart unit


def write(one: Measured, folder: Path) -> list[Path]:
    """Write ``<chart>[-<op>-<dtype>].svg`` and ``.png`` below ``folder``; returns the paths, sorted."""
    written = []
    for name, spec in pictures(one):
        written += [_svg(spec, folder / f"{name}.svg"), _png(spec, folder / f"{name}.png")]
    return sorted(written)


def pictures(one: Measured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of each picture; a chart with selectors is drawn once for every op and dtype."""
    for module in charts.CHARTS:
        frame = module.prepare(one).frame
        if frame.is_empty():
            continue
        yield from _by_choice(module, frame)


def _by_choice(module: kit.Module, frame: pl.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = document.to_spec(module.chart(frame), f"{module.TITLE}. {module.HELP}")
    picked = {
        param["name"].removeprefix("pick_") for param in spec.get("params", ()) if param["name"].startswith("pick_")
    }
    columns = [name for name in ("op", "dtype") if name in picked]
    values = [kit.sort_values(name, frame[name].drop_nulls().to_list()) for name in columns]
    for choice in itertools.product(*values):
        wanted = [pl.col(name).eq_missing(pl.lit(value)) for name, value in zip(columns, choice, strict=True)]
        part = frame.filter(*wanted)
        if part.is_empty():
            continue
        made = document.to_spec(module.chart(part), module.TITLE)
        title = (
            {"text": module.TITLE, "subtitle": [f"{' '.join(choice)}".strip()]} if choice else {"text": module.TITLE}
        )
        yield "-".join((module.NAME, *choice)), made | {"title": title, "config": theme.FILE | {"aria": False}}


def _svg(spec: dict[str, Any], path: Path) -> Path:
    with schema.atomic(path) as temporary:
        temporary.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
    return path


def _png(spec: dict[str, Any], path: Path) -> Path:
    with schema.atomic(path) as temporary:
        temporary.write_bytes(vl_convert.vegalite_to_png(spec, scale=SCALE))
    return path
