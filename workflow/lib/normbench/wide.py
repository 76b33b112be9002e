"""Few and long rows: the points of the wide regime, and the inputs that ``verify`` gives whoever serves them.

The protocol is that of a public note on LayerNorm at the shape of KernelBench level 1 problem 40: the race on uniform
input, and beside it every distribution that tells statistics with torch's bits from others, and others that are more
accurate from such that are not.
"""

from __future__ import annotations

import math

from normbench.points import Point, Semantics

REGIME = "wide"
OPS = ("layernorm", "rmsnorm")  # that have a wide form
SHAPE = r"^[1-9][0-9]*(x[1-9][0-9]*)+$"
DISTRIBUTIONS = (
    "uniform",
    "normal",
    "scaled_100",
    "offset_1000",
    "constant_1e4",
    "zero",
    "tiny",
    "nan_inf",
)
AFFINES = ("default", "random")


def dimensions(shape: str) -> list[int]:
    """[16, 64, 256, 256] of ``16x64x256x256``."""
    return [int(size) for size in shape.split("x")]


def point(op: str, dtype: str, shape: str, semantics: Semantics) -> Point:
    """The work on x of a shape, normalised over everything but its first dimension."""
    rows, *normalised = dimensions(shape)
    return Point(op, dtype, rows, math.prod(normalised), REGIME, semantics, shape)
