"""Colours and Vega-Lite configurations: one colour a contender on every page, legible on light and on dark ground."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

# Ours: saturated, solid, filled. Baselines: muted, dashed, hollow. So a line is told apart without its colour too.
KNOWN = {
    "cta_row": "#2f7de1",
    "naive": "#d9487d",
    "welford": "#e07b10",
    "triton_row": "#12996b",
    "triton_loop": "#8561e8",
    "torch_eager": "#808892",
    "torch_compile": "#b07f35",
    "liger": "#a46bb8",
    "quack": "#6d9440",
    "flashinfer": "#4b8fb8",
    "apex": "#bf6a60",
    "transformer_engine": "#4f9c92",
    "cudnn": "#94892f",
    "copy": "#a9b0b9",
}
POOL = ("#0aa2c0", "#c93a3a", "#5b74f0", "#b8860b", "#c2459f", "#3f9a3a", "#a2683a", "#7b7fbf", "#2c9c9c", "#d0643c")
GOOD, BAD, NEUTRAL, DOUBTFUL = "#1f8f7a", "#d0493f", "#8a919b", "#d08a1d"


def colours(contenders: Iterable[str]) -> dict[str, str]:
    """A colour for each contender; those without a fixed one take a free one by a hash of the name."""
    chosen: dict[str, str] = {}
    free = list(POOL)
    for name in sorted(contenders):
        if name in KNOWN:
            chosen[name] = KNOWN[name]
            continue
        free = free or list(POOL)
        start = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(free)
        chosen[name] = free.pop(start)
    return chosen


def config(ink: str, faint: str, grid: str, ground: str | None, font: str = "system-ui, sans-serif") -> dict[str, Any]:
    """A Vega-Lite configuration. Named mark styles (ceiling, target, note) let a chart follow light and dark."""
    guide = {"labelColor": ink, "titleColor": ink, "labelFont": font, "titleFont": font}
    return {
        "background": ground,
        "font": font,
        "view": {"stroke": None},
        "axis": guide
        | {
            "gridColor": grid,
            "domainColor": faint,
            "tickColor": faint,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelLimit": 150,
        },
        "legend": guide
        | {
            "orient": "bottom",
            "title": None,
            "labelFontSize": 12,
            "symbolSize": 90,
            "labelLimit": 150,
            "columnPadding": 14,
            "titleFontWeight": "normal",
            "symbolStrokeWidth": 2,
        },
        "header": guide | {"labelFontSize": 12},
        "title": {"color": ink, "font": font, "anchor": "start", "fontSize": 14},
        "style": {
            "ceiling": {"stroke": ink, "color": ink},
            "target": {"stroke": faint, "color": faint},
            "note": {"color": ink, "fill": ink, "font": font, "fontSize": 11},
        },
    }


LIGHT = config("#22262c", "#79818c", "#e6e8eb", None)
DARK = config("#e4e7eb", "#8d96a2", "#2c323a", None)
FILE = config("#22262c", "#79818c", "#e6e8eb", "#ffffff", font="sans-serif")
