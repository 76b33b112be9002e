"""The charts of a device page, one file each: ``prepare(measured)`` chooses the rows, ``chart(frame)`` draws them."""

from __future__ import annotations

from normbench.charts import (
    bandwidth,
    blockmap,
    clocks,
    correctness,
    cost,
    error,
    latency,
    noise,
    reduction,
    resources,
    roofline,
    samples,
    speedup,
)
from normbench.charts.kit import Module

# in the order of the page; blockmap is drawn once a kernel and stands in its card, reduction once a backward op, in
# their section
CHARTS: tuple[Module, ...] = (
    bandwidth,
    speedup,
    roofline,
    latency,
    samples,
    correctness,
    error,
    noise,
    clocks,
    resources,
    cost,
)

__all__ = ["CHARTS", "Module", "blockmap", "reduction"]
