"""Small odd shapes for ``sanitize``: what steps past an end, off an alignment or into a gap shows on them.

Each (op, dtype) gets every shape; each shape one variant, chosen so that together every value of every axis is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

from normbench import kernelfile, ops
from normbench.kernelfile import Kernel, Variant
from normbench.points import ELEMENT_BYTES, Point, Semantics

ROWS = (3, 4, 5, 6, 7)
REGIME = "latency"  # of few rows: what launches may do only there is run too
# one less and one more than blocks, vectors and warps like; then widths that vectors do like; then rows of many passes
HIDDEN = (1, 33, 129, 1023, 1025, 2049, 64, 128, 256, 512, 768, 1024, 5120, 5003, 16383, 12288, 65540)
# more rows than a block writes at a time, rows that many blocks share, and more of these than there are at a time on a
# quarter of an H200: for kernels of the wide regime
WIDE = ((17, 20676), (9, 65536), (5, 786_432))
# of a scale-only norm, whose kernels mostly have met the others already; the last on 16 bytes are a warp's and less
SCALED = (33, 1023, 5003, 32, 64, 256, 65536)
# of its channel form: images, channels, pixels; as above, and pixels that vectors like where channels do not
CHANNELS = ((2, 3, 5), (3, 33, 49), (2, 64, 256), (1, 65, 1023), (2, 7, 32), (1, 128, 96), (1, 513, 8), (2, 1, 17))
# a Triton kernel is compiled for each type, block and alignment, 0.7 s each: it gets so many shapes a (op, dtype)
JIT_SHAPES = 5


@dataclass(frozen=True)
class Odd:
    """A piece of work and, by tensor, by how many elements its base is off a 256-byte boundary."""

    point: Point
    shift: dict[str, int] = field(default_factory=dict)

    @property
    def aligned(self) -> int:
        """What ``Tensors.alignment`` will find: the largest power of two, at most 16, in all bases and pitches."""
        value = 16
        for name, elements in self.shift.items():
            value |= elements * ELEMENT_BYTES[ops.extent(self.point, name)[1]]
        pixels = ops.inner(self.point)
        for pitch in (self.point.row_stride, self.point.hidden) if pixels == 1 else (pixels,):
            value |= pitch * self.point.element_bytes
        return value & -value


@dataclass(frozen=True)
class Launch:
    """One launch to make under the tool."""

    odd: Odd
    variant: Variant

    def task(self) -> dict[str, Any]:
        """As JSON."""
        return {"point": self.odd.point.identity(), "shift": self.odd.shift, "variant": self.variant}


def odds(op: str, dtype: str) -> Iterator[Odd]:
    """The shapes of one op and dtype."""
    rows = cycle(ROWS)
    for hidden in SCALED if ops.OPS[op].scale else HIDDEN:
        yield Odd(Point(op, dtype, next(rows), hidden, REGIME))
    wide = Point(op, dtype, 5, 1024, REGIME)
    for name in ops.inputs(wide) + ops.outputs(wide):
        if name not in ops.STATISTICS:
            yield Odd(wide, {name: 1})
    strided = [Semantics(row_stride=1027), Semantics(row_stride=1032)]
    if ops.OPS[op].scale:
        yield from (Odd(replace(wide, semantics=one)) for one in strided)
        yield from _channels(op, dtype)
        return
    if not ops.OPS[op].backward:
        gamma = Semantics(cast="llama" if ops.OPS[op].casts else "torch", offset=1.0)
        yield Odd(Point(op, dtype, 3, 1032, REGIME, gamma))
    for one in strided + _parametrised(op, dtype):
        yield Odd(replace(wide, semantics=one))
        yield Odd(Point(op, dtype, 3, 1023, REGIME, one))


def _channels(op: str, dtype: str) -> Iterator[Odd]:
    points = [ops.point_of(op, dtype, dims, semantics=Semantics(axis=1)) for dims in CHANNELS]
    yield from (Odd(point) for point in points)
    yield from (Odd(points[2], {name: 1}) for name in ("x", "y"))


def _parametrised(op: str, dtype: str) -> list[Semantics]:
    semantics = [Semantics(gamma=False, beta=False)]
    if ops.OPS[op].backward:
        semantics += [Semantics(stats=False), Semantics(residual="fp32")]
    else:
        semantics += [Semantics(stats=True)]
    if ops.OPS[op].has_beta:
        semantics += [Semantics(beta=False), Semantics(gamma=False)]
    if dtype != "fp32":
        semantics += [Semantics(param_dtype="fp32")]
    return semantics


def launches(kernel: Kernel, blocks: Sequence[int], arch: int, sm_count: int) -> list[Launch]:
    """What to run of one kernel, by op and dtype."""
    found: list[Launch] = []
    for index, (op, dtype) in enumerate((op, dtype) for op in kernel.ops for dtype in kernel.dtypes):
        shapes = [odd for odd in odds(op, dtype) if ops.layout(odd.point) in kernel.layouts]
        if "wide" in kernel.regimes:
            shapes = [Odd(Point(op, dtype, *shape, "wide")) for shape in WIDE] + shapes
        if kernel.lang == "triton":
            start = index * JIT_SHAPES % len(shapes)
            shapes = list(islice(cycle(shapes), start, start + JIT_SHAPES))
        found += _covering(kernel, shapes, list(blocks), arch, sm_count)
    return found


def _covering(kernel: Kernel, shapes: list[Odd], blocks: list[int], arch: int, sm_count: int) -> list[Launch]:
    """Each shape that the kernel serves with the variant that shows most that is new; then what is still unseen."""
    usable = [(odd, variants) for odd in shapes if (variants := _variants(kernel, odd, blocks, arch, sm_count))]
    seen: set[tuple[str, int]] = set()
    found = []
    for odd, variants in usable:
        found.append(Launch(odd, _newest(variants, seen)))
        seen |= found[-1].variant.items()
    for odd, variants in usable:
        while not (best := _newest(variants, seen)).items() <= seen:
            found.append(Launch(odd, best))
            seen |= best.items()
    return found


def _variants(kernel: Kernel, odd: Odd, blocks: list[int], arch: int, sm_count: int) -> list[Variant]:
    names = kernelfile.launch_names(odd.point, arch, sm_count, odd.aligned)
    return [] if kernel.refusal(names) else kernel.variants(blocks, names)


def _newest(variants: Sequence[Variant], seen: set[tuple[str, int]]) -> Variant:
    """The first of those with the most axis values that were not run yet."""
    return max(variants, key=lambda variant: len(variant.items() - seen))
