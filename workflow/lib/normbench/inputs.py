"""Adversarial inputs of ``verify``: each the smallest that shows a fault met in public, or a corner of the contract.

A case is a point and a recipe for its tensors. The names K1, K2, ... are those of the list of public faults in
kernels/README.md; the others say what they do. Expected values come from ops.reference, never from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from normbench.ops import OPS, point_of
from normbench.points import Point, Semantics

Recipe = Callable[[Any, tuple[int, int], Any], Any]  # (torch, shape, generator) -> float64 values
Fill = Callable[[Any, Any], None]  # (tensor, generator of its device): writes values into a tensor of its own type

HIDDEN = (1, 2, 3, 31, 33, 64, 128, 512, 768, 1023, 1024, 1025, 1500, 2049, 16384, 32768, 50257)
INT32_ELEMENTS = 2**31  # beyond what a 32-bit offset can tell apart
JIT_CASES = frozenset(
    ("K1.1", "K1.offset_1e6", "K2.33333.3", "K5.12", "K12.x", "K17.1e-12", "K19", "K22", "K23.last", "hidden_1023")
)


@dataclass(frozen=True)
class Case:
    """One input. shift: elements by which a tensor's base is moved off its alignment. plain: random gamma and beta.

    dy: of a backward op, N(0.5, 1) where none is given, so that the mean of g is not zero. repeats: further launches
    into the same buffers, with the last answers still there.
    blocks: threads a block to try, instead of the study's. large: x ~ N(0, 1) is made on the device and judged by the
    rows at both ends and where its elements pass 2^31; all of y must have been written. fill: makes x on the device,
    in place of a recipe, and all of it is judged. replayed: the launch is captured with other values in its inputs and
    replayed with these.
    """

    name: str
    point: Point
    x: Recipe | None
    plain: bool = True
    gamma: Recipe | None = None
    shift: dict[str, int] = field(default_factory=dict)
    blocks: tuple[int, ...] = ()
    large: bool = False
    dy: Recipe | None = None
    repeats: int = 0
    fill: Fill | None = None
    replayed: bool = False

    def judged_rows(self) -> list[int]:
        """Rows of a large case that are compared with the reference."""
        rows, passing = self.point.rows, INT32_ELEMENTS // self.point.hidden
        near = [0, 1, 2, *range(passing - 2, passing + 3), *range(rows - 3, rows)]
        return sorted({row for row in near if 0 <= row < rows})


def every(op: str, dtype: str) -> Iterator[Case]:
    """All cases of one op and dtype."""
    make = _Maker(op, dtype)
    if OPS[op].scale:
        rows = itertools.chain(_public(make), _statistics(make), _shapes(make), _special_values(make))
        yield from (case for case in rows if _without_parameters(case))
        yield from _channels(make)
        return
    yield from _public(make)
    yield from _statistics(make)
    yield from _shapes(make)
    yield from _special_values(make)
    if make.backward:
        yield from _gradients(make)


def _without_parameters(case: Case) -> bool:
    """Whether a case asks nothing of gamma, beta and statistics, nor of eps where the op has none."""
    op, semantics = OPS[case.point.op], case.point.semantics
    eps = semantics.eps if op.has_eps else Semantics().eps
    return semantics == Semantics(eps=eps, row_stride=semantics.row_stride) and "gamma" not in case.shift


@dataclass(frozen=True)
class _Maker:
    op: str
    dtype: str

    @property
    def backward(self) -> bool:
        return OPS[self.op].backward

    def __call__(self, name: str, rows: int, hidden: int, x: Recipe, plain: bool = True, **more: Any) -> Case:
        semantics = Semantics(**more.pop("semantics", {}))
        return Case(name, Point(self.op, self.dtype, rows, hidden, "stream", semantics), x, plain, **more)

    def channels(self, name: str, dims: tuple[int, ...], x: Recipe, **more: Any) -> Case:
        """Of an x whose axis 1 is normalised; the recipe's rows are the pixels, image by image."""
        return Case(name, point_of(self.op, self.dtype, dims, semantics=Semantics(axis=1)), x, **more)


def _rows(*values: float) -> Recipe:
    """Every row holds exactly these values."""
    return lambda torch, shape, _: torch.tensor(values, dtype=torch.float64).expand(shape)


def _constant(value: float) -> Recipe:
    return lambda torch, shape, _: torch.full(shape, value, dtype=torch.float64)


def normal(offset: float = 0.0, scale: float = 1.0) -> Recipe:
    """N(offset, scale)."""
    return lambda torch, shape, generator: torch.randn(shape, dtype=torch.float64, generator=generator) * scale + offset


def _alternating(middle: float, swing: float) -> Recipe:
    def recipe(torch: Any, shape: tuple[int, int], _: Any) -> Any:
        sign = 1.0 - 2.0 * (torch.arange(shape[1], dtype=torch.float64) % 2)
        return (middle + swing * sign).expand(shape)

    return recipe


def _with(value: float, row: int | slice, column: int, others: Recipe | None = None) -> Recipe:
    """N(0, 1), or ``others``, with one element replaced, or one of every row."""

    def recipe(torch: Any, shape: tuple[int, int], generator: Any) -> Any:
        x = (others or normal())(torch, shape, generator)
        x[row, column] = value
        return x

    return recipe


def _public(make: _Maker) -> Iterator[Case]:
    swing = (-1.6, -0.3, 0.4, 1.5)
    yield make("K1.1", 3, 4, _rows(*(2000 + value for value in swing)), plain=False)
    yield make("K1.2", 3, 4, _rows(*(20000 + value for value in swing)), plain=False)
    yield make("K1.3", 3, 4, _rows(40000, 40001, 40002, 40003), plain=False)
    for exponent in (2, 4, 6):
        if not (make.dtype == "fp16" and exponent == 6):
            yield make(f"K1.offset_1e{exponent}", 16, 1023, normal(10.0**exponent))
    for value, hidden in ((1234.0, 256), (1234.5, 1023), (33333.3, 4096), (0.1, 1023)):
        yield make(f"K2.{value:g}", 4, hidden, _constant(value), plain=False)
    if make.dtype != "fp16":
        yield make("K4", 2, 4, _alternating(0.0, 1e30), plain=False)
    yield make("K5.12", 2, 3, _rows(10, 11, 12), plain=False)
    yield make("K5.17", 2, 17, _rows(*range(1, 18)), plain=False)
    yield make("K5.1536", 2, 1536, _alternating(3.0, 1.0), plain=False)
    if make.dtype == "fp16":
        for rows, hidden in ((131072, 16384), (4194305, 512), (175000, 12288)):
            yield make(f"K8.{rows}x{hidden}", rows, hidden, normal(), large=True)
        for hidden in (3584, 1536, 2560):
            yield make(f"K11.{hidden}", 16, hidden, normal(), blocks=tuple(32 * warps for warps in (1, 2, 3, 5, 6, 7)))
    for name in ("x", "dy", "gamma", "dx", "dgamma") if make.backward else ("x", "gamma", "y"):
        yield make(f"K12.{name}", 4, 1024, normal(), shift={name: 1})
    yield make("K13", 0, 64, normal())
    if make.dtype != "fp32":
        big = _rows(1, 1e5, 1e5, 1)
        small = _rows(0.1, 0.2, -0.1, 0.3)  # so that dx has room in fp16
        yield make("K15", 2, 4, _rows(1, 2, 3, 4), gamma=big, dy=small, semantics={"param_dtype": "fp32"})
        yield make("K15.mixed", 8, 1023, normal(), semantics={"param_dtype": "fp32"})
    for eps in (1e-12, 1e-8, 1e-5):
        first = _with(1.0, slice(None), 0, _constant(0.0))
        yield make(f"K17.{eps:g}", 4, 64, _constant(0.0), plain=not make.backward, dy=first, semantics={"eps": eps})
    yield make("K23.last", 4, 1023, _with(float("nan"), 1, 1022))


def _statistics(make: _Maker) -> Iterator[Case]:
    for exponent in range(7):
        if not (make.dtype == "fp16" and exponent > 4):
            yield make(f"ratio_1e{exponent}", 8, 2048, normal(10.0**exponent))
    yield make("tiny", 8, 1024, normal(scale=1e-4))
    yield make("near_constant", 8, 1024, normal(offset=1.0, scale=1e-3))
    yield make("eps_1e-3", 8, 768, normal(), semantics={"eps": 1e-3})
    # a forward op saves them, a backward op makes them anew
    yield make("stats", 8, 1000, normal(1.0), semantics={"stats": not make.backward})


def _shapes(make: _Maker) -> Iterator[Case]:
    for hidden in HIDDEN:
        yield make(f"hidden_{hidden}", 5 if hidden > 4096 else 37, hidden, normal())
    for rows in (1, 65535, 65536, 65537):
        yield make(f"rows_{rows}", rows, 64, normal())
    yield make("stride", 16, 1000, normal(), semantics={"row_stride": 1536})
    yield make("stride_odd", 16, 1000, normal(), semantics={"row_stride": 1001})
    yield make("no_gamma", 16, 1000, normal(), semantics={"gamma": False})
    yield make("no_beta", 16, 1000, normal(), semantics={"beta": False})
    yield make("no_affine", 16, 1024, normal(), semantics={"gamma": False, "beta": False})


def _special_values(make: _Maker) -> Iterator[Case]:
    yield make("nan_first", 4, 1024, _with(float("nan"), 0, 0))
    yield make("inf_middle", 4, 1024, _with(float("inf"), 2, 512))
    yield make("minus_inf_last", 4, 1023, _with(float("-inf"), 3, 1022))
    yield make("denormals", 4, 1024, normal(scale=1e-40 if make.dtype != "fp16" else 1e-6))
    if make.dtype == "fp16":
        yield make("near_65504", 4, 1024, _alternating(0.0, 65504.0), plain=False)


def _channels(make: _Maker) -> Iterator[Case]:
    """Images, channels, pixels: each beside what vectors, tiles and the parts of a block would like."""
    for channels in (1, 2, 3, 31, 32, 33, 64, 65, 128, 200, 512, 1030):
        image = (3, channels, 8, 8) if channels < 512 else (2, channels, 2, 4)
        yield make.channels(f"channels_{channels}", image, normal(1.0))
    yield make.channels("channels_300_pixels_7", (2, 300, 7), normal(1.0))
    for channels in (32, 256):  # last in memory; others are sizes of rows above
        yield make(f"channels_last_{channels}", 77, channels, normal(1.0))
    for pixels in (2, 3, 7, 33, 49, 255, 256, 1023):
        yield make.channels(f"pixels_{pixels}", (2, 64, pixels), normal())
    for images in (1, 257, 65537):
        yield make.channels(f"images_{images}", (images, 3, 2, 2), normal())
    for name in ("x", "y"):
        yield make.channels(f"K12.{name}_channels", (2, 64, 16, 16), normal(), shift={name: 1})
    yield make.channels("K13.channels", (0, 64, 16, 16), normal())
    # one pixel of many, in its last channel: its neighbours in memory are other rows
    yield make.channels("K23.pixel", (2, 64, 7, 9), _with(float("nan"), 70, 63))
    yield make.channels("inf_pixel", (2, 64, 8, 8), _with(float("inf"), 64, 0))
    yield make.channels("channels_constant", (2, 96, 8, 8), _constant(1234.5))
    yield make.channels("channels_alternating", (2, 64, 8, 8), _alternating(3.0, 1.0))
    yield make.channels("channels_tiny", (2, 64, 8, 8), normal(scale=1e-4))
    if make.dtype == "fp16":
        yield make.channels("K8.channels", (3, 64, 4096, 4096), normal(), large=True)


def _gradients(make: _Maker) -> Iterator[Case]:
    ones = _constant(1.0)
    yield make("K19", 8192, 64, _alternating(0.0, 1.0), plain=False, dy=ones, repeats=1)
    yield make("K20", 8192, 2048, normal(), repeats=98)
    yield make("K22", 2, 4, _rows(-1, 1, -1, 1), plain=False, dy=_rows(1, 2, 3, 4))
    yield make("K23.dy", 4, 1023, normal(), dy=_with(float("nan"), 1, 1022))
    yield make("rows_1048576", 1 << 20, 16, normal())
    yield make("residual", 16, 1000, normal(), semantics={"residual": "fp32"})
    yield make("dy_of_one_sign", 4096, 768, normal(), dy=normal(2.0))
