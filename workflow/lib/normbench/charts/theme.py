"""Colours and Vega-Lite configurations: one colour a contender on every page, legible on light and on dark ground."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

# 22 colours that stay apart for a reader without red or green cones: found by a search over sRGB for the set whose
# nearest pair is farthest apart in CIELAB, as seen (at least 27) and under Machado's protanopia and deuteranopia (at
# least 14), each with a contrast of 2.1 or more on both grounds. Lines are told apart without colour too: ours are
# solid, baselines dashed, the copy dotted; the legend singles one out.
KNOWN = {
    "cta_row": "#0060fc",
    "span_row": "#00c0fc",
    "cluster_row": "#fc6c48",
    "ring_row": "#c0b400",
    "naive": "#d80060",
    "welford": "#b46000",
    "triton_row": "#3cc060",
    "triton_loop": "#780ccc",
    "torch_eager": "#486c90",
    "torch_compile": "#786030",
    "liger": "#a884cc",
    "quack": "#3c6048",
    "flashinfer": "#60c0c0",
    "apex": "#a80c00",
    "transformer_engine": "#90189c",
    "cudnn": "#c07890",
    "copy": "#a8b490",
    "wide_torch_order": "#4800fc",
    "wide_onepass": "#d8189c",
    "wide_split": "#009cfc",
    "torch_var_mean": "#9c246c",
    "torch_native_affine": "#6060cc",
}
# contenders that never meet in a race: of wide rows the one, of few rows, long ones or scale-only norms the other
ALIKE = {
    "few_rows": "wide_torch_order",
    "wide_ring": "ring_row",
    "channel_tile": "wide_onepass",
    "short_row": "wide_split",
    "torch_builtin": "torch_var_mean",
    "torch_moved": "torch_native_affine",
}
POOL = ("#4800fc", "#d8189c", "#009cfc", "#9c246c", "#6060cc")  # for names that are not known; of the wide regime
BACKWARD = "_bwd"  # ends the name of a kernel's backward, which takes the colour of the forward; they never race
GOOD, BAD, NEUTRAL, DOUBTFUL = "#1f8f7a", "#d0493f", "#8a919b", "#d08a1d"


def colours(contenders: Iterable[str]) -> dict[str, str]:
    """A colour for each contender: a fixed one, or one of POOL by a hash of the name.

    It does not depend on who else is there, but where two unknown ones meet in one colour: then the later takes the
    next.
    """
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(contenders):
        base = name.removesuffix(BACKWARD)
        start = int(hashlib.sha256(base.encode()).hexdigest(), 16) % len(POOL)
        turned = POOL[start:] + POOL[:start]
        free = (colour for colour in turned if colour not in taken)
        chosen[name] = KNOWN.get(ALIKE.get(base, base)) or next(free, turned[0])
        taken.add(chosen[name])
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
            "columns": 8,
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
