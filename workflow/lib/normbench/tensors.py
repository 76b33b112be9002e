"""Tensors of a point: fresh random inputs, guarded and poisoned outputs, one set per rotation.

Outputs are filled with a NaN pattern no kernel produces and lie between guard bands of the same pattern, so work that
was not done and writes that went astray are both seen.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from normbench import ops
from normbench.points import ELEMENT_BYTES, Point

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 1024
CHUNK_ELEMENTS = 1 << 25  # float64 temporaries stay under 300 MB each
POISON = {4: 0x7FC0DEAD, 2: 0x7FED}  # quiet NaNs in fp32, fp16 and bf16, with a payload of our own


@dataclass
class Guarded:
    """A tensor inside a larger poisoned buffer; ``view`` is what a kernel writes."""

    buffer: torch.Tensor
    view: torch.Tensor

    def poison(self) -> None:
        fill_poison(self.buffer)

    def guards_intact(self) -> bool:
        """True where nothing outside the view's span was written (gaps between strided rows are inside the span)."""
        first = self.view.storage_offset()
        bits = integers(self.buffer)
        last = first + span(self.view)
        pattern = POISON[self.buffer.element_size()]
        return bool((bits[:first] == pattern).all() and (bits[last:] == pattern).all())


@dataclass
class Tensors:
    """One buffer set of a point; what a contender reads and writes, under the names kernel files use.

    exchange: values that some inputs have while the set is checked, at the same addresses: an output that was kept
    from an earlier call is then another one. alone: of a set that rotates alone, the same inputs are reversed instead,
    in place, since others would take as much memory again.
    """

    point: Point
    inputs: dict[str, torch.Tensor | None]
    guarded: dict[str, Guarded] = field(default_factory=dict)
    exchange: dict[str, torch.Tensor] = field(default_factory=dict)
    alone: bool = False

    @contextlib.contextmanager
    def exchanged(self) -> Iterator[None]:
        """The values of ``exchange``, or those in reverse, in their places; what was there comes back."""
        if self.alone:
            self._reverse()
            try:
                yield
            finally:
                self._reverse()
            return
        kept = {name: self._input(name).clone() for name in self.exchange}
        for name, values in self.exchange.items():
            self._input(name).copy_(values)
        try:
            yield
        finally:
            for name, values in kept.items():
                self._input(name).copy_(values)

    def _reverse(self) -> None:
        """Rows from last to first, and each row's elements likewise: every row meets the statistics of another."""
        for name in EXCHANGED:
            if (tensor := self.inputs.get(name)) is not None:
                reverse(tensor)

    def _input(self, name: str) -> torch.Tensor:
        found = self.inputs[name]
        assert found is not None
        return found

    def judged_inputs(self) -> dict[str, torch.Tensor | None]:
        """The values that the outputs of a check follow from; where the set is alone, while it is ``exchanged``."""
        return {**self.inputs, **self.exchange}

    def outputs(self) -> dict[str, torch.Tensor]:
        return {name: item.view for name, item in self.guarded.items()}

    def get(self, name: str) -> torch.Tensor | None:
        if name in self.guarded:
            return self.guarded[name].view
        return self.inputs.get(name)

    def poison(self) -> None:
        for item in self.guarded.values():
            item.poison()

    def alignment(self) -> int:
        """Largest power of two, at most 16, that divides every base address and row pitch in bytes."""
        value = 16
        for tensor in (*self.inputs.values(), *self.outputs().values()):
            if tensor is None or not tensor.numel():
                continue
            value |= tensor.data_ptr()
            for axis in range(tensor.dim() - 1):
                value |= tensor.stride(axis) * tensor.element_size()
        return value & -value

    def fingerprint(self) -> int:
        """Changes when an input is written to."""
        return sum(checksum(tensor) for tensor in self.inputs.values() if tensor is not None)


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one of ``tensor`` in its storage."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def integers(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view({4: torch.int32, 2: torch.int16, 1: torch.uint8}[tensor.element_size()])


def fill_poison(tensor: torch.Tensor) -> None:
    integers(tensor).fill_(POISON[tensor.element_size()])


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that still hold the poison."""
    return integers(tensor) == POISON[tensor.element_size()]


def chunks(tensor: torch.Tensor, elements: int = 1 << 28) -> Iterator[torch.Tensor]:
    """``tensor`` along its first axis, about ``elements`` at a time: temporaries of the whole may not fit."""
    rows = max(1, elements // max(1, math.prod(tensor.shape[1:])))
    return (tensor[start : start + rows] for start in range(0, len(tensor), rows))


def reverse(tensor: torch.Tensor) -> None:
    """All elements in the opposite order along every axis, in place, a chunk from either end at a time."""
    size, rows = max(1, CHUNK_ELEMENTS // max(1, math.prod(tensor.shape[1:]))), len(tensor)
    axes = tuple(range(tensor.dim()))
    for start in range(0, rows // 2, size):
        stop = min(start + size, rows // 2)
        head, tail = tensor[start:stop], tensor[rows - stop : rows - start]
        kept = head.flip(axes)
        head.copy_(tail.flip(axes))
        tail.copy_(kept)
    if rows % 2:
        middle = tensor[rows // 2 : rows // 2 + 1]
        middle.copy_(middle.flip(axes))


def checksum(tensor: torch.Tensor) -> int:
    import torch

    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in chunks(integers(tensor)):  # a sum in another type converts all it sums first
        total += part.sum(dtype=torch.int64)
    return int(total)


def guarded(shape: tuple[int, ...], dtype: Any, device: Any, stride: int | None = None, shift: int = 0) -> Guarded:
    """An output of ``shape`` between guard bands; rows (of a matrix) ``stride`` elements apart, base ``shift`` elements
    off."""
    import torch

    element = torch.empty((), dtype=dtype).element_size()
    guard = GUARD_BYTES // element
    pitch = stride if stride and len(shape) == 2 else shape[-1]
    elements = math.prod(shape[:-1]) * pitch
    buffer = torch.empty(2 * guard + shift + elements, dtype=dtype, device=device)
    strides = (*(pitch * math.prod(shape[axis + 1 : -1]) for axis in range(len(shape) - 1)), 1)
    return Guarded(buffer, buffer.as_strided(shape, strides, guard + shift))


def make_inputs(point: Point, device: Any, seed: int) -> dict[str, torch.Tensor | None]:
    """Random inputs from ``seed``, strided as the semantics say: x and a residual ~ N(0, 1), gamma ~ N(1, 0.5),
    beta ~ N(0, 0.5). In the wide regime x is uniform in [0, 1), as the problem that it is about has it.

    dy = N(0, 1) + s (x + 1) / 2 with s = 1 in every other row and -1 between, so that in no row mean(g) or
    mean(g * xhat) is near zero, where leaving them out would not show, and in no column the sum outgrows fp16. The
    statistics of a backward op are those of its x.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    made: dict[str, torch.Tensor | None] = {"gamma": None, "beta": None}
    for name in ops.inputs(point):
        if name in ops.STATISTICS:
            continue
        shape, dtype = ops.extent(point, name)
        pitch = point.row_stride if name in ops.LARGE and ops.layout(point) == "rows" else shape[-1]
        tensor = torch.empty(*shape[:-1], pitch, dtype=ops.torch_dtype(dtype), device=device)
        if point.regime == "wide" and name in ops.LARGE:
            tensor.uniform_(generator=generator)
        else:
            tensor.normal_(*NORMAL.get(name, (0.0, 1.0)), generator=generator)
        made[name] = tensor[..., : shape[-1]]
    if (dy := made.get("dy")) is not None:
        leaning = made["x"].add(1.0).mul_(0.5)  # type: ignore[union-attr]
        leaning[1::2].neg_()
        dy += leaning
    return made | saved_statistics(point, made["x"])


NORMAL = {"gamma": (1.0, 0.5), "beta": (0.0, 0.5)}  # mean and deviation of the parameters


def saved_statistics(point: Point, x: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    """mean and rstd of x in fp32, as a forward pass of exact sums would save them; none where the work takes none."""
    import torch

    assert x is not None
    names = [name for name in ops.inputs(point) if name in ops.STATISTICS]
    if not names:
        return {}
    found: dict[str, list[torch.Tensor]] = {name: [x.new_empty(0, dtype=torch.float32)] for name in names}
    for part in chunks(x, CHUNK_ELEMENTS):
        exact = ops.statistics(point, part.to(torch.float64))[1]
        for name in names:
            found[name].append(exact[name].to(torch.float32))
    return {name: torch.cat(parts) for name, parts in found.items()}


def make_outputs(point: Point, device: Any, shift: dict[str, int] | None = None) -> dict[str, Guarded]:
    """Guarded, poisoned outputs of the work, contiguous.

    shift: elements by which the base of an output is moved off its alignment, by name.
    """
    made: dict[str, Guarded] = {}
    for name in ops.outputs(point):
        shape, dtype = ops.extent(point, name)
        made[name] = guarded(shape, ops.torch_dtype(dtype), device, shift=(shift or {}).get(name, 0))
        made[name].poison()
    return made


def make_sets(point: Point, device: Any, sets: int, seed: int) -> list[Tensors]:
    """``sets`` buffer sets with different inputs.

    The second is checked with the x of the first in the place of its own, and with the dy and the statistics that
    belong to it; gamma and beta stay, for a contender may prepare them when it is bound. A set that is alone is checked
    once more with its own, reversed.
    """
    made = [
        Tensors(point, make_inputs(point, device, seed * 1000 + index), make_outputs(point, device))
        for index in range(sets)
    ]
    if sets > 1:
        first = made[0].inputs
        made[1].exchange = {name: value for name in EXCHANGED if (value := first.get(name)) is not None}
    made[0].alone = sets == 1
    return made


EXCHANGED = ("x", "dy", *ops.STATISTICS)


def set_bytes(point: Point) -> int:
    """Bytes one buffer set takes."""
    return len(ops.large_tensors(point)) * point.rows * point.row_stride * ELEMENT_BYTES[point.dtype]
