"""Worker side of ``ceilings``: tune our streams per access mix and size, then the launch floor and the fp32 rate."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from normbench.gpu import Launch, buffer_sets, launches_a_sample
from normbench.observe import Observer
from normbench.overlap import FIRST_ARCH
from normbench.points import Point, canonical_json
from normbench.streams import MIXES, FakeStream, SmClock, Streams, Variant, copy_of, expression, variants
from normbench.supervise import utc_now
from normbench.worker import Session

FIRST_SAMPLES = 3
FINAL_SAMPLES = 25
FINALISTS = 5
FLOOR_LAUNCHES = 512
FMA_TURNS = 50
SMALLEST_BYTES = 1 << 16  # smaller tensors would take thousands of buffer sets to leave L2
# Larger tensors share its roof, which races measure again at their own size: on an H200 the copy reached 4270 GB/s from
# 4 GB to 4 GB and 4294 from 8.6 to 8.6, and every doubling doubles the seconds and the memory that tuning takes.
LARGEST_BYTES = 1 << 32


def run(session: Session) -> None:
    """Every ceiling the task's points need that is not known yet."""
    points = [Point.from_identity(row) for row in session.task["points"]]
    streams = Streams(session.gpu, [*_expressions(session), "fma_fp32"])
    Roofs(session, streams).run(tensor_sizes(points))


def tensor_sizes(points: Sequence[Point]) -> list[int]:
    """Bytes of one x-sized tensor for each size that streams, to the nearest power of two, 64 KiB to 4 GiB."""
    sizes = {point.rows * point.hidden * point.element_bytes for point in points if point.streams}
    return sorted({min(max(SMALLEST_BYTES, 1 << round(math.log2(size))), LARGEST_BYTES) for size in sizes})


def _expressions(session: Session) -> list[str]:
    return [expression(mix, variant) for mix in MIXES for variant in variants(mix, session.gpu)]


Measure = Callable[[Observer], tuple[float, Variant | None]]


class Roofs:
    """The ceilings of one device."""

    def __init__(self, session: Session, streams: Streams) -> None:
        self.task, self.gpu, self.channel, self.streams = session.task, session.gpu, session.channel, streams
        self.nvml = session.nvml
        self.clock = SmClock(streams)

    def run(self, sizes: Sequence[int]) -> None:
        for size in sizes:
            for mix in MIXES:
                self._unit(mix, MIXES[mix] * size, "GB/s", partial(self._bandwidth, mix, size))
            self._unit("torch_copy", 2 * size, "GB/s", partial(self._library, size))
        l2_tensor = max(4096, self.gpu.l2_bytes // 16 // 4096 * 4096)
        self._unit("l2_copy", 2 * l2_tensor, "GB/s", partial(self._bandwidth, "copy", l2_tensor, regime="l2"))
        self._unit("launch_floor", 0, "us", self._floor)
        if self.gpu.arch >= FIRST_ARCH:
            self._unit("launch_floor_pdl", 0, "us", self._overlapping_floor)
        self._unit("fma_fp32", 0, "TFLOP/s", self._fma)

    def _unit(self, name: str, size_bytes: int, unit: str, measure: Measure) -> None:
        key = f"{name} {size_bytes}"
        if key in self.task["done"]:
            return
        row = {"device": self.task["device"], "run": "local", "name": name, "size_bytes": size_bytes, "unit": unit}
        self.channel.begin((key, row))
        observer = Observer(self.nvml, self.clock)
        try:
            value, variant = measure(observer)
        except self.gpu.torch.OutOfMemoryError:  # a small card: points of that size get the nearest roof there is
            print(f"{name} of {size_bytes} bytes does not fit this device", file=sys.stderr)
            self.gpu.empty_cache()
            self.channel.tick(key)
            return
        row |= {"value": value, "variant": canonical_json(variant) if variant else None, "measured_at": utc_now()}
        clock = observer.summary()["sm_clock_mhz_p50"]
        self.channel.finish((key, "final", row | {"sources": self.task["sources"], "sm_clock_mhz_p50": clock}))
        self.channel.tick(key)

    def _buffers(self, size: int, sets: int) -> list[list[Any]]:
        torch = self.gpu.torch
        made = [
            [torch.empty(size // 4, dtype=torch.int32, device=self.gpu.device) for _ in range(4)] for _ in range(sets)
        ]
        for buffers in made:
            for buffer in buffers[:2]:
                buffer.random_(1 << 30)
        return made

    def _bandwidth(self, mix: str, size: int, observer: Observer, regime: str = "stream") -> tuple[float, Variant]:
        """(GB/s, winner): all variants with a few samples, the best again with more."""
        sets = buffer_sets(MIXES[mix] * size, self.gpu.l2_bytes, regime)
        buffers = self._buffers(size, sets)
        moved = MIXES[mix] * size

        def gbps(variant: Variant, samples: int, observer: Observer) -> float:
            launches = [self.streams.bind(mix, variant, mine, size) for mine in buffers]
            return moved / self._median_us(launches, moved / 4e6, samples, observer) / 1e3

        every = variants(mix, self.gpu)
        looked = [(gbps(variant, FIRST_SAMPLES, Observer(None)), index) for index, variant in enumerate(every)]
        best = [every[index] for _, index in sorted(looked, reverse=True)[:FINALISTS]]
        value, index = max((gbps(variant, FINAL_SAMPLES, observer), index) for index, variant in enumerate(best))
        return value, best[index]

    def _library(self, size: int, observer: Observer) -> tuple[float, None]:
        """GB/s of torch's device copy."""
        buffers = self._buffers(size, buffer_sets(2 * size, self.gpu.l2_bytes, "stream"))
        launches: list[Launch] = [
            FakeStream(2 * size / 3e3) if self.gpu.fake else copy_of(mine[:1], mine[2:3]) for mine in buffers
        ]
        return 2 * size / self._median_us(launches, 2 * size / 4e6, FINAL_SAMPLES, observer) / 1e3, None

    def _median_us(self, launches: Sequence[Launch], estimate_us: float, samples: int, observer: Observer) -> float:
        count = launches_a_sample(estimate_us, len(launches), "stream")
        return self._replayed(launches, count, samples, observer)

    def _replayed(self, launches: Sequence[Launch], count: int, samples: int, observer: Observer) -> float:
        replay = self.gpu.capture(launches, count)
        found = self.gpu.time_rounds([replay], [[0]] * (samples + 1), observer)[0]
        return statistics.median(found[1:])

    def _floor(self, observer: Observer) -> tuple[float, None]:
        """Microseconds a launch of an empty kernel in a CUDA graph."""
        launch = self.streams.kernel("empty", 1, 32, 0)
        return self._replayed([launch], FLOOR_LAUNCHES, FINAL_SAMPLES, observer), None

    def _overlapping_floor(self, observer: Observer) -> tuple[float, None]:
        """The same of one that lets the next begin early: the floor of a chain of such launches, an end to an end."""
        launch = self.streams.kernel("empty_overlapping", 1, 32, 0, pdl=True)
        return self._replayed([launch], FLOOR_LAUNCHES, FINAL_SAMPLES, observer), None

    def _fma(self, observer: Observer) -> tuple[float, None]:
        """TFLOP/s of independent fp32 fma chains."""
        import numpy

        blocks, threads = 8 * self.gpu.sm_count, 256
        out = self.gpu.torch.empty(blocks * threads, device=self.gpu.device)
        launch = self.streams.kernel("fma_fp32", blocks, threads, 0, int(out.data_ptr()), numpy.int32(FMA_TURNS))
        time_us = self._replayed([launch], 1, FINAL_SAMPLES, observer)
        return 2.0 * 8 * 256 * FMA_TURNS * blocks * threads / time_us / 1e6, None
