"""The device a worker measures on: a CUDA GPU, or a faked one for tests of everything around it.

Both offer the same five things: allocate, capture launches into something that can be replayed, time replays, read
clocks, and say what they are. The fake runs on the CPU and makes times up; its studies can never be published.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from normbench.observe import Observer
from normbench.points import STREAMING, Point, short_hash
from normbench.spent import spending

Launch = Callable[[], dict[str, Any]]
MOST_SETS = 1 << 14  # of 15 KB each on an H200; a point below that cannot leave L2 in any sensible number of launches
STREAM_SETS = 4  # at least: where a buffer lies in memory is worth up to 1 % on an H200, and several average it
RESIDENT_SETS = 2  # that a sample rotates over where L2 holds them
MANY_TURNS = 16  # rotations in one graph: then they are of sets that L2 holds, and launches of a few microseconds
LARGE_SET_BYTES = 1 << 33  # from here on a buffer covers so much of the memory that its place averages itself
# A set this many times as large as L2 rotates alone: what a launch leaves there is at most a hundredth of what the next
# one moves, and it is the end of the set, where the next one, which goes the same way, comes last. At 32768 x 65535 in
# fp32 the contenders and the twin with two sets each take 69 GB, with one 34.
ALONE_IN_L2S = 100
REDUCTION_SHARE = 0.1  # of a call on the faked GPU
LOW_MEMORY = 0.4  # share of the card: graphs of dead contenders keep their memory until it is asked for


class Replay(Protocol):
    """Launches captured once; ``outputs[i]`` are the tensors of buffer set i, rewritten by every replay.

    bound: what was captured, one a buffer set; launches: how many of them in turn make a sample; each: over how many
    sets a sample rotates.
    """

    launches: int

    @property
    def outputs(self) -> list[dict[str, Any]]: ...

    @property
    def bound(self) -> Sequence[Launch]: ...

    @property
    def each(self) -> int: ...

    def replay(self) -> None: ...

    def turn(self) -> Replay:
        """What the next sample is of: itself, or where there are several graphs the next one of them."""

    def lead_in(self) -> None:
        """The end of a rotation, or all of a graph of many short launches, untimed: what the L2 cache holds, and has
        yet to write back, is then this contender's own and not its predecessor's."""


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error is, or was raised while handling, a lack of memory: the end of a capture may complain too."""
    return error is not None and ("OutOfMemory" in type(error).__name__ or lacks_memory(error.__context__))


class DeviceLost(RuntimeError):
    """The CUDA context can no longer be used; the process must be replaced."""


@dataclass
class CudaGraph:
    """A CUDA graph of ``launches`` launches rotating over the buffer sets.

    ``bound`` keeps what was captured alive: a graph remembers addresses, and a workspace freed too early is written to
    when it belongs to somebody else. ``record`` makes a graph of a number of launches in turn, in the pool of another.
    """

    graph: Any
    outputs: list[dict[str, Any]]
    launches: int
    bound: Sequence[Launch]
    record: Callable[[Sequence[Launch], int, Any], tuple[Any, list[dict[str, Any]]]]

    @property
    def each(self) -> int:
        return len(self.bound)

    def replay(self) -> None:
        self.graph.replay()

    def turn(self) -> CudaGraph:
        return self

    def lead_in(self) -> None:
        self._lead.replay()

    @cached_property
    def _lead(self) -> Any:
        # A graph's own commands lie in L2, too: where others have pushed them out, each launch takes 0.17 us longer on
        # an H200, so a graph of many short launches, which goes round its sets again and again, leads itself in.
        # The sets of a streaming rotation are together four times as large as L2, so the last quarter fills it.
        quarter = math.ceil(len(self.bound) / 4)
        if self.launches >= MANY_TURNS * len(self.bound) or quarter == self.launches:
            return self.graph
        # temporaries of the two graphs share one pool: they are never replayed at once, and outputs stay taken in it
        return self.record(self.bound[-quarter:], quarter, self.graph.pool())[0]


class Places:
    """Graphs of the same launches, each over buffers of its own: samples take turns, and a replay is one of all."""

    def __init__(self, graphs: Sequence[CudaGraph]) -> None:
        self.graphs = graphs
        self.launches, self.each = graphs[0].launches, graphs[0].each
        assert self.launches >= MANY_TURNS * self.each, "each leads itself in"
        self._turns = itertools.cycle(graphs)

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return [outputs for graph in self.graphs for outputs in graph.outputs]

    @property
    def bound(self) -> Sequence[Launch]:
        return [launch for graph in self.graphs for launch in graph.bound]

    def replay(self) -> None:
        for graph in self.graphs:
            graph.replay()

    def turn(self) -> CudaGraph:
        return next(self._turns)

    def lead_in(self) -> None:
        """Nothing: a sample is of one graph, and that one leads itself in."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: what it frees on the GPU, a dead contender's graph say, ends a capture."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class CudaGpu:
    """The one GPU this process sees (the supervisor sets CUDA_VISIBLE_DEVICES to its UUID)."""

    fake = False

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.set_grad_enabled(False)
        properties: Any = torch.cuda.get_device_properties(0)
        self.device = torch.device("cuda", 0)
        self.arch = properties.major * 10 + properties.minor
        self.sm_count = properties.multi_processor_count
        self.l2_bytes = properties.L2_cache_size
        self.smem_optin_bytes = properties.shared_memory_per_block_optin
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Memory a new tensor can have: what the driver has free and what torch has cached."""
        free, _ = self.torch.cuda.mem_get_info()
        cached = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
        return int(free + cached)

    def empty_cache(self) -> None:
        """Give back what nobody uses, the memory of graphs that only a dead cycle of references holds among it."""
        gc.collect()
        self.torch.cuda.empty_cache()

    def trim(self) -> None:
        """Give torch's unused memory back when the card runs low; to do so at every point costs 0.1 s each."""
        free, total = self.torch.cuda.mem_get_info()
        if free < LOW_MEMORY * total:
            self.empty_cache()

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """What is launched meanwhile goes to our stream, behind all that torch's current one was given before.

        Ours waits for no other by itself: a launch could begin before its scratch is zeroed, and be hit by poison late.
        """
        self.stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(self.stream):
            yield

    def capture(self, launches: Sequence[Launch], count: int, each: int | None = None) -> CudaGraph | Places:
        """Graph of ``count`` launches in turn, one of ``launches`` a buffer set; each is run once eagerly before.

        each: sets a graph rotates over, where there are to be several graphs; None: all.
        """
        with self.on_stream():
            for launch in launches:
                launch()
        each = each or len(launches)
        assert len(launches) % each == 0
        groups = [launches[first : first + each] for first in range(0, len(launches), each)]
        graphs = [self._graph(group, count) for group in groups]
        return graphs[0] if len(graphs) == 1 else Places(graphs)

    def _graph(self, launches: Sequence[Launch], count: int) -> CudaGraph:
        graph, outputs = self._record(launches, count)
        return CudaGraph(graph, outputs, count, tuple(launches), self._record)

    def _record(self, launches: Sequence[Launch], count: int, pool: Any = None) -> tuple[Any, list[dict[str, Any]]]:
        """A graph of ``count`` launches in turn, and what the last of each returned. pool: of a graph, to share.

        torch.cuda.graph would give all unused memory back at every capture, and the next check take it again. Here that
        is done where a capture lacks memory: while one is under way nothing can be given back.
        """
        try:
            return self._captured(launches, count, pool)
        except Exception as error:
            if not lacks_memory(error):
                raise
        self.empty_cache()
        return self._captured(launches, count, pool)

    def _captured(self, launches: Sequence[Launch], count: int, pool: Any) -> tuple[Any, list[dict[str, Any]]]:
        self.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        outputs: list[dict[str, Any]] = [{}] * len(launches)
        with self.torch.cuda.stream(self.stream), uncollected():
            graph.capture_begin(*(() if pool is None else (pool,)), capture_error_mode="thread_local")
            try:
                for index in range(count):
                    outputs[index % len(launches)] = launches[index % len(launches)]()
            finally:
                graph.capture_end()
        return graph, outputs

    @spending("timing")
    def time_rounds(
        self, replays: Sequence[Replay], orders: Sequence[Sequence[int]], observer: Observer
    ) -> list[list[float]]:
        """Microseconds a launch of every replay: result[i] holds one sample per round.

        All rounds are queued before the first is waited for, so the GPU never idles between samples; the observer
        looks again and again while it works. Several contenders each begin with a lead-in: on an H200 one whose
        stores stay in L2 leaves up to 3 % of a sample to be written back in its successor's time.
        """
        torch = self.torch
        marks: list[tuple[int, Any, Any]] = []
        several = len(replays) > 1
        with self.on_stream():
            for index in orders[0] if several else ():
                replays[index].lead_in()  # captured at its first call, so not between samples
            last = replays[orders[0][0]]
            last.replay()  # a GPU that was idle takes 5 % longer for the first
            observer.before()
            for order in orders:
                for index in order:
                    graph = replays[index].turn()
                    if several or graph is not last:
                        graph.lead_in()
                    last = graph
                    start = torch.cuda.Event(enable_timing=True)
                    end = torch.cuda.Event(enable_timing=True)
                    start.record()
                    graph.replay()
                    end.record()
                    marks.append((index, start, end))
            observer.after()
            done = torch.cuda.Event()
            done.record()
        while not done.query():
            observer.look()
            time.sleep(0.0005)
        observer.finished()
        samples: list[list[float]] = [[] for _ in replays]
        for index, start, end in marks:
            samples[index].append(start.elapsed_time(end) * 1e3 / replays[index].launches)
        return samples


@dataclass
class FakeReplay:
    """Launches run on the CPU when replayed; ``label`` and ``floor_us`` make its times up."""

    bound: Sequence[Launch]
    outputs: list[dict[str, Any]]
    launches: int
    label: str
    floor_us: float

    @property
    def each(self) -> int:
        return len(self.bound)

    def replay(self) -> None:
        self.outputs[:] = [launch() for launch in self.bound]

    def turn(self) -> FakeReplay:
        return self

    def lead_in(self) -> None:
        pass


@dataclass
class FakeGpu:
    """A CPU that pretends: outputs are the reference's, times are bytes over a bandwidth and a factor per label.

    ``faults`` (the machine file's key of that name) plants what must be survived: {"naive": "crash"} and so on;
    ``reduction`` the share of a call that its reduction takes, {"naive_bwd": 0.4}, where that is not REDUCTION_SHARE.
    """

    facts: dict[str, Any]
    arch: int = 90
    sm_count: int = 132
    l2_bytes: int = 1 << 20
    smem_optin_bytes: int = 232448
    fake: bool = True
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cpu")
        self.arch = int(str(self.facts.get("arch", "sm_90")).removeprefix("sm_"))
        self.faults = dict(self.facts.get("faults", {}))
        self.random = random.Random(0)

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 4 << 30

    def empty_cache(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def capture(self, launches: Sequence[Launch], count: int, each: int | None = None) -> FakeReplay:
        outputs = [launch() for launch in launches]
        label = getattr(launches[0], "label", "stream")
        return FakeReplay(launches, outputs, count, label, getattr(launches[0], "floor_us", 10.0))

    def time_rounds(
        self, replays: Sequence[Replay], orders: Sequence[Sequence[int]], observer: Observer
    ) -> list[list[float]]:
        observer.before()
        samples: list[list[float]] = [[] for _ in replays]
        for order in orders:
            for index in order:
                samples[index].append(self._sample(replays[index]))
        observer.after()
        observer.finished()
        return samples

    def _sample(self, replay: Any) -> float:
        factor = 1.0 if replay.label == "stream" else 1.05 + int(short_hash(replay.label, 4), 16) / 65536 * 0.5
        slow = float(self.facts.get("slow", {}).get(replay.label.split(" ")[0], 1.0))
        return float(replay.floor_us * factor * slow * self.random.gauss(1.0, 0.002))


Gpu = CudaGpu | FakeGpu


def fake_file() -> Path | None:
    """The machine file of the faked GPU, where the tests ask for one."""
    name = os.environ.get("NORMBENCH_FAKE_GPU")
    return Path(name) if name else None


def open_gpu() -> Gpu:
    """The device of this process."""
    fake = fake_file()
    return FakeGpu(json.loads(fake.read_text())) if fake else CudaGpu()


def buffer_sets(bytes_a_set: int, l2_bytes: int, regime: str) -> int:
    """How many buffer sets a point rotates over: beyond 4 x L2 where bytes are to come from memory; two at least, but
    where a set is large and ALONE_IN_L2S times as large as L2."""
    if regime not in STREAMING:
        return RESIDENT_SETS
    if bytes_a_set >= LARGE_SET_BYTES:
        return 1 if bytes_a_set >= ALONE_IN_L2S * l2_bytes else 2
    return max(STREAM_SETS, math.ceil(4 * l2_bytes / max(bytes_a_set, 1)) + 1)


def launches_a_sample(estimate_us: float, sets: int, regime: str) -> int:
    """Launches in one graph: enough that a sample lasts 500 us (event ticks of 0.5 us stay under 0.1 %), a multiple of
    the buffer sets so that every replay ends where the next one does not begin; 256 at least in the latency regime."""
    wanted = max(sets, math.ceil(500 / max(estimate_us, 0.1)))
    if regime == "latency":
        wanted = max(wanted, 256)
    return sets * math.ceil(wanted / sets)


def estimate_us(point: Point, bytes_moved: int) -> float:
    """A first guess at a launch: 4 TB/s and a launch floor of 2 us; only sizes graphs."""
    return 2.0 + bytes_moved / 4e6 if point.streams else 2.0
