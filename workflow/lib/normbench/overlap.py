"""Whether a contender keeps the order of launches where it may begin before the launch before it has ended.

In a chain of equal launches nobody would notice: their inputs never change, so that one which reads too early reads the
right values, and is faster for it. So once, before it is timed, a contender is launched behind a kernel that lets its
successor begin at once and ends late: only then the input is there, and then it spoils what was written too early.
Contenders that are launched the plain way cannot begin early, and pass.
"""

from __future__ import annotations

from typing import Any

from normbench import ops
from normbench.check import Expected, check
from normbench.gpu import Gpu, Launch
from normbench.points import Point
from normbench.streams import Streams
from normbench.tensors import Tensors, fill_poison, span

FIRST_ARCH = 90  # with programmatic dependent launch
LATE_NS = 30_000  # that the launch before takes; in a graph the next one can begin within a few microseconds
THREADS = 256
REASON = "reads its input, or writes its output, before the launch before it has ended"


def concerns(point: Point, gpu: Gpu) -> bool:
    """Whether launches of this point may overlap: kernels ask for it where latency counts."""
    return point.regime == "latency" and not gpu.fake and gpu.arch >= FIRST_ARCH


def early(gpu: Gpu, launch: Launch, tensors: Tensors, expected: Expected) -> str | None:
    """What a bound launch does too early, or None, also where it is wrong in any case.

    expected: of the inputs of ``tensors``, which are left as they are.
    """
    names = [name for name in ops.inputs(tensors.point) if name in ops.LARGE]
    found = next((name for name in names if not _waits(gpu, launch, tensors, expected, name)), None)
    if found is None or not check(expected, launch()).ok:
        return None
    return f"{REASON} ({found})"


def _waits(gpu: Gpu, launch: Launch, tensors: Tensors, expected: Expected, name: str) -> bool:
    """Whether the answer is right where input ``name`` arrives late."""
    place = flat(tensors.inputs[name])
    values = place.clone()
    gpu.synchronize()  # a capture launches once on a stream of its own, and that writes to what is copied here
    replay = gpu.capture([late(gpu, values, place, flat(tensors.outputs()[ops.OPS[tensors.point.op].main])), launch], 2)
    tensors.poison()
    fill_poison(place)
    gpu.synchronize()
    replay.replay()
    gpu.synchronize()
    right = check(expected, replay.outputs[1]).ok
    place.copy_(values)
    gpu.synchronize()
    return right


def flat(tensor: Any) -> Any:
    """All elements from the first to the last one of a tensor, as its storage has them."""
    return tensor.as_strided((span(tensor),), (1,))


def late(gpu: Gpu, values: Any, place: Any, spoilt: Any) -> Launch:
    """A launch that writes ``values`` to ``place`` and NaN to ``spoilt``, as late as LATE_NS after its beginning."""
    import numpy

    parts = [int(values.data_ptr()), *_extent(place), *_extent(spoilt)]
    return Streams(gpu).kernel("late", max(1, gpu.sm_count // 2), THREADS, 0, *parts, numpy.uint32(LATE_NS))


def _extent(tensor: Any) -> tuple[Any, Any]:
    """Address and 16-bit words of a contiguous tensor."""
    import numpy

    return int(tensor.data_ptr()), numpy.int64(tensor.numel() * tensor.element_size() // 2)
