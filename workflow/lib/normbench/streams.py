"""Our own streaming kernels (streams.cu): the measured roofs, the launch floor, the fp32 rate and the SM clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from normbench import ops
from normbench.gpu import FakeGpu, Gpu, Launch, Replay, launches_a_sample
from normbench.kernelfile import cdiv
from normbench.points import Point
from normbench.tensors import Tensors

SOURCE = Path(__file__).with_name("streams.cu")
MIXES = {"copy": 2, "read": 1, "write": 1, "read2_write1": 3, "read2_write2": 4}  # tensors moved a launch
MIX_FLAGS = {"copy": "COPY", "read": "READ", "write": "WRITE", "read2_write1": "READ2_WRITE1"} | {
    "read2_write2": "READ2_WRITE2"
}
VECTORS = {16: "uint4", 8: "uint2"}
HINTS = ("PLAIN", "STREAMING", "KEEP")
ALWAYS = ("clock_probe", "empty", "empty_overlapping", "late")  # what no study does without
CLOCK_SLOTS = 1024  # multiprocessor numbers the probe can hold
MIN_CLOCK_WINDOW_NS = 2_000_000  # the global timer ticks in about a microsecond: 2 ms give 0.1 %
Variant = dict[str, Any]


def variants(mix: str, gpu: Gpu) -> list[Variant]:
    """What a roof is tuned over: vector width, unroll, block, grid (one shot, or blocks a multiprocessor) and hints;
    for copies on sm_90 on also bulk copies through shared memory."""
    found: list[Variant] = [
        {"kind": "stream", "vector": 16, "unroll": unroll, "block": block, "hint": hint, "grid": grid}
        for unroll in (1, 2, 4, 8)
        for block in (256, 512, 1024)
        for hint in HINTS[: 1 if mix == "write" else 3]
        for grid in (0, 2048 // block)
        if not (grid and unroll == 1) and not (unroll == 8 and block == 1024)
    ]
    found += [{"kind": "stream", "vector": 8, "unroll": 4, "block": 512, "hint": "PLAIN", "grid": 0}]
    if mix == "copy" and gpu.arch >= 90:
        found += [
            {"kind": "bulk", "stages": stages, "chunk": chunk, "grid": grid}
            for stages, chunk in ((4, 8192), (4, 16384), (8, 8192), (4, 32768), (6, 32768))
            for grid in (1, 2, 3)
            if grid * stages * chunk <= 220 << 10
        ]
    return found


def expression(mix: str, variant: Variant) -> str:
    """NVRTC name expression of a variant."""
    if variant["kind"] == "bulk":
        return f"bulk_copy<{variant['stages']}, {variant['chunk']}>"
    return f"stream<{MIX_FLAGS[mix]}, {VECTORS[variant['vector']]}, {variant['unroll']}, {variant['hint']}>"


@cache
def _loaded(expressions: tuple[str, ...], arch: int) -> Any:
    """streams.cu compiled for these expressions and loaded, once a process."""
    from normbench import nvrtc
    from normbench.contenders import load_binary

    built = nvrtc.build(SOURCE, expressions, arch)
    return load_binary(built.binary, built.format, built.lowered)


class Streams:
    """streams.cu on this device, compiled for the expressions named at the start (all in one program)."""

    def __init__(self, gpu: Gpu, expressions: Sequence[str] = ()) -> None:
        self.gpu = gpu
        self.expressions = tuple(dict.fromkeys((*ALWAYS, *expressions)))

    @property
    def _module(self) -> Any:
        return _loaded(self.expressions, self.gpu.arch)

    def kernel(self, name: str, grid: int, block: int, smem: int, *arguments: Any, pdl: bool = False) -> Launch:
        """A launch of one kernel on torch's current stream. pdl: it may begin before the launch before it has ended."""
        if self.gpu.fake:
            return FakeStream(0.5)
        import torch
        from cuda.core import LaunchConfig, Stream, launch

        from normbench.contenders import allow_smem

        handle = self._module.get_kernel(name)
        if smem > 48 << 10:
            allow_smem(handle, smem)
        config = LaunchConfig(grid=grid, block=block, shmem_size=smem, programmatic_stream_serialization=pdl)

        def run() -> dict[str, Any]:
            launch(Stream.from_handle(torch.cuda.current_stream().cuda_stream), config, handle, *arguments)
            return {}

        return run

    def bind(self, mix: str, variant: Variant, buffers: Sequence[Any], tensor_bytes: int) -> Launch:
        """One launch of ``mix`` over four buffers of at least ``tensor_bytes`` (a multiple of 16)."""
        import numpy

        if self.gpu.fake:
            return FakeStream(MIXES[mix] * tensor_bytes / 3e3)
        pointers = [int(buffer.data_ptr()) for buffer in buffers]
        name = expression(mix, variant)
        if variant["kind"] == "bulk":
            smem = variant["stages"] * variant["chunk"]
            grid = self.gpu.sm_count * variant["grid"]
            whole = tensor_bytes // variant["chunk"] * variant["chunk"]
            return self.kernel(name, grid, 32, smem, *pointers, numpy.int64(whole))
        count = tensor_bytes // variant["vector"]
        tiles = cdiv(count, variant["block"] * variant["unroll"])
        grid = min(tiles, self.gpu.sm_count * variant["grid"]) if variant["grid"] else tiles
        return self.kernel(name, grid, variant["block"], 0, *pointers, numpy.int64(count))

    def race_roof(self, point: Point, sets: Sequence[Tensors], variant: Variant | None) -> RaceRoof:
        """The winner of ``ceilings`` and the library copy, over the race's own buffers; nothing where there is none.

        What is read is copied to what is written, one tensor each or, for an add op, two; a backward op reads two and
        writes one.
        """
        mix = ops.OPS[point.op].mix
        if not point.streams or variant is None:
            return RaceRoof([], 0)
        tensor_bytes = point.rows * point.hidden * point.element_bytes // 16 * 16
        moved = MIXES[mix] * tensor_bytes
        own, library = [], []
        for tensors in sets:
            read = [tensor for name, tensor in tensors.inputs.items() if name in ops.LARGE]
            written = [item.view for name, item in tensors.guarded.items() if name in ops.LARGE]
            buffers = (read[0], read[-1], written[0], written[-1])
            own.append(self.bind(mix, variant, buffers, tensor_bytes))
            library.append(FakeStream(moved / 3e3) if self.gpu.fake else copy_of(read, written))
        count = launches_a_sample(moved / 4e6, len(sets), point.regime)
        return RaceRoof([self.gpu.capture(launches, count) for launches in (own, library)], moved)


def copy_of(sources: Sequence[Any], targets: Sequence[Any]) -> Launch:
    """torch's device copy, of each source to its target; of two sources to one target, their sum."""
    import torch

    def run() -> dict[str, Any]:
        if len(sources) > len(targets):
            torch.add(sources[0], sources[-1], out=targets[0])
            return {}
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        return {}

    return run


@dataclass
class RaceRoof:
    """Replays that set the ceiling inside one race, and the bytes of one of their launches."""

    replays: list[Replay]
    moved_bytes: int

    def gbps(self, samples: Sequence[Sequence[float]]) -> float | None:
        """The better median of those that ran, in GB/s."""
        medians = [statistics.median(found) for found in samples]
        return self.moved_bytes / min(medians) / 1e3 if medians else None


@dataclass
class FakeStream:
    """A stream on the faked GPU: moves nothing, takes its floor."""

    floor_us: float
    label: str = "stream"

    def __call__(self) -> dict[str, Any]:
        return {}


class SmClock:
    """The SM clock between two moments of a stream, from counters inside the GPU; no privileges needed."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.gpu = streams.gpu

    @cached_property
    def _probes(self) -> tuple[list[Any], list[Launch]]:
        import numpy

        torch = self.gpu.torch
        marks = [torch.zeros(2 * CLOCK_SLOTS, dtype=torch.int64, device=self.gpu.device) for _ in range(2)]
        grid, slots = 2 * self.gpu.sm_count, numpy.int32(CLOCK_SLOTS)
        return marks, [self.streams.kernel("clock_probe", grid, 32, 0, int(mark.data_ptr()), slots) for mark in marks]

    def mark(self, index: int) -> None:
        """Enqueue a reading: 0 before the window, 1 after it."""
        if not isinstance(self.gpu, FakeGpu):
            self._probes[1][index]()

    def mhz(self) -> float | None:
        """Median over multiprocessors, or None for a window too short for the timer's tick."""
        if isinstance(self.gpu, FakeGpu):
            return None
        before, after = (mark.view(-1, 2).cpu() for mark in self._probes[0])
        cycles, ns = (after - before).unbind(1)
        read = (before[:, 1] > 0) & (after[:, 1] > 0) & (ns > MIN_CLOCK_WINDOW_NS)
        return float((cycles[read] / ns[read]).median()) * 1e3 if bool(read.any()) else None
