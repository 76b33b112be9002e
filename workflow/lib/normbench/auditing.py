"""Worker side of ``audit``: the same bound launches on the same buffers under our own timer, NVBench and do_bench.

NVBench runs its benchmarks in one call and once a process. So everything happens inside one benchmark of its own, a
state for each contender and point, and its samples are read from its JSON file when that call has returned.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from normbench import __version__, sources, timing
from normbench.contenders import CompileError, Contender, Unsupported, load
from normbench.gpu import DeviceLost, FakeGpu
from normbench.inspections import METHODS, OWN
from normbench.observe import Observer
from normbench.points import Point
from normbench.streams import SmClock, Streams
from normbench.supervise import utc_now
from normbench.trial import Failure, Trial, attempt, failure_of, identity, with_stream
from normbench.tuning import Bench
from normbench.worker import Session

ROUNDS = 15  # of our own before the other timers, and again after them; each sample is a graph of many launches
DO_BENCH_MS = 200  # of launches under do_bench: 1,000 samples and more of a study's point in 16 bits on an H200
NVBENCH_S = 5.0  # of one state at most; it stops at a noise of 0.5 %
AXIS = "entry"  # of our benchmark under NVBench
ABSENT = "not installed; pip install -e '.[audit]' brings NVBench"
ALL = tuple(METHODS)
NVBENCH = ("nvbench", "nvbench_batch")
VERSIONS = {"nvbench": "cuda-bench", "nvbench_batch": "cuda-bench", "do_bench": "triton"}


@dataclass
class Runner:
    """One contender at one point."""

    contender: Contender
    variant: dict[str, int]
    point: Point
    unit: str
    row: dict[str, Any]
    trial: Trial | None = None
    samples: list[float] = field(default_factory=list)
    clocks: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # MHz, by timer
    told: set[str] = field(default_factory=set)  # timers that have their row

    def unit_of(self, method: str) -> str:
        return f"{self.unit} {method}"


def run(session: Session) -> None:
    """Everything of the task that is not known yet."""
    audit = Audit(session)
    if audit.runners:
        audit.run()


class Audit:
    """The runners of a task, those of a point side by side."""

    def __init__(self, session: Session) -> None:
        self.task, self.gpu, self.channel = session.task, session.gpu, session.channel
        build = {entry["spec"]: entry["build"] for entry in self.task["contenders"]}
        loaded = {spec: load(spec, Path(path) if path else None) for spec, path in build.items()}
        runners = [self._runner(loaded[entry["spec"]], entry) for entry in self.task["entries"]]
        # NVBench's samples come last, so a point that lacks any of its rows lacks them: its timers belong together
        known = self.task["done"].keys()
        lacking = {one.point.key for one in runners if not {*map(one.unit_of, METHODS)} <= known}
        self.runners = [one for one in runners if one.point.key in lacking]
        self.lost: DeviceLost | None = None
        self.clock = SmClock(Streams(self.gpu))

    def _runner(self, contender: Contender, entry: dict[str, Any]) -> Runner:
        point = Point.from_identity(entry["point"])
        row = identity(point, contender, entry["variant"], self.task)
        return Runner(contender, entry["variant"], point, entry["unit"], row)

    def run(self) -> None:
        if self.gpu.fake:
            self._each(lambda runner: self._faked(runner, *NVBENCH))
            return
        try:
            from cuda import bench

            assert bench.State  # its compiled part is loaded only when it is asked for
        except ImportError:
            self._each(lambda runner: self._failed(runner, NVBENCH, Failure("skipped", ABSENT, {})))
            return
        self._under_nvbench(bench)

    def _each(self, nvbench: Callable[[Runner], Any]) -> None:
        for index in range(len(self.runners)):
            self._entry(index, nvbench)

    def _under_nvbench(self, bench: Any) -> None:
        """Hand our runners to NVBench, one state each, then give them the times it measured."""
        from cuda.bench.results import BenchmarkResult

        stream: Any = self.gpu.stream  # type: ignore[union-attr]

        def normbench(state: Any) -> None:
            if self.lost:
                state.skip("the CUDA context is lost")
                return
            state.set_stream(_Stream(stream.cuda_stream))
            try:
                self._entry(state.get_int64(AXIS), lambda runner: self._launched_by(state, runner))
            except DeviceLost as error:
                self.lost = error

        registered = bench.register(normbench)
        registered.add_int64_axis(AXIS, list(range(len(self.runners))))
        registered.set_timeout(NVBENCH_S)
        with tempfile.TemporaryDirectory(prefix="normbench-audit-") as folder:
            path = Path(folder, "audit.json")
            bench.run_all_benchmarks(["normbench", "--devices", "0", "--jsonbin", str(path)])
            if self.lost:
                raise self.lost
            for state in BenchmarkResult.from_json(path)["normbench"]:
                self._read(self.runners[int(state.axis_values[0]["value"])], state)

    def _launched_by(self, state: Any, runner: Runner) -> None:
        """NVBench measures: cold, then in a batch."""
        rotate = self._rotation(runner)

        def once(launch: Any) -> None:
            rotate()

        with self.gpu.torch.cuda.stream(self.gpu.stream), self._clocked(runner, NVBENCH):  # type: ignore[union-attr]
            state.exec(once)

    @contextlib.contextmanager
    def _clocked(self, runner: Runner, methods: Sequence[str]) -> Iterator[None]:
        """The SM clock while a timer works, on torch's current stream."""
        self.clock.mark(0)
        yield
        self.clock.mark(1)
        self.gpu.synchronize()
        mhz = self.clock.mhz()
        if mhz is not None:
            for method in methods:
                runner.clocks[method].append(mhz)

    def _read(self, runner: Runner, state: Any) -> None:
        """NVBench's times of one state, in seconds: samples of the cold ones, the mean of the batch."""
        if "nvbench" in runner.told:
            return  # the row says why there is no time
        cold = [value * 1e6 for value in state.samples or ()]
        mean = state.summaries.get("nv/batch/time/gpu/mean")
        batch = [float(mean.value) * 1e6] if mean is not None and mean.value is not None else []
        nothing = {"status": "skipped", "reason": f"NVBench has no time: {state.skip_reason or 'it gives no reason'}"}
        for method, samples in zip(NVBENCH, (cold, batch), strict=True):
            self._outcome(runner, method, _timed(samples) if samples else nothing)

    def _entry(self, index: int, nvbench: Callable[[Runner], Any]) -> None:
        """One runner under every timer; the first and the last of a point time all of the point our own way."""
        runner = self.runners[index]
        group = [one for one in self.runners if one.point.key == runner.point.key]
        if runner is group[0]:
            self._open(group)
        if runner.trial is not None:
            self._guarded(runner, NVBENCH, lambda: nvbench(runner))
            self._guarded(runner, ("do_bench",), lambda: self._do_bench(runner))
        if runner is group[-1]:
            self._own(group)
            for one in group:
                if one.trial is not None:
                    self._outcome(one, OWN, _timed(one.samples))
            self._close(group)
        self.channel.tick(f"{runner.point.op} {runner.point.dtype} {runner.point.hidden}")

    def _open(self, group: Sequence[Runner]) -> None:
        """Buffers of a point, its contenders captured and checked, and the first half of our own samples."""
        try:
            bench = Bench.open(group[0].point, self.gpu, 1)
        except Failure as failure:
            for one in group:
                self._failed(one, ALL, failure)
            return
        for one in group:
            self._guarded(one, ALL, partial(self._prepare, one, bench))
        self._own(group)

    def _prepare(self, runner: Runner, bench: Bench) -> None:
        reason = runner.contender.refusal(runner.point, self.gpu)
        if reason:
            raise Unsupported(reason)
        trial = attempt(runner.contender, runner.variant, bench.sets, bench.expected, self.gpu)
        trial.verify(0)
        runner.trial = trial

    def _own(self, group: Sequence[Runner]) -> None:
        """Half of our own samples of a point: graphs of many launches, interleaved."""
        timed = [one for one in group if one.trial is not None]
        replays = [one.trial.replay for one in timed if one.trial is not None]
        if not replays:
            return
        for replay in replays:
            with_stream(self.gpu, replay)
        observer = Observer(None, self.clock)
        orders = [[*range(len(replays))] if number % 2 else [*range(len(replays))][::-1] for number in range(ROUNDS)]
        for one, found in zip(timed, self.gpu.time_rounds(replays, orders, observer), strict=True):
            one.samples += found
            one.clocks[OWN] += observer.inside()

    def _do_bench(self, runner: Runner) -> None:
        if isinstance(self.gpu, FakeGpu):
            self._faked(runner, "do_bench")
            return
        try:
            from triton.testing import do_bench
        except ImportError as error:
            raise Unsupported("not installed; pip install triton brings it") from error
        with self.gpu.torch.cuda.stream(self.gpu.stream), self._clocked(runner, ("do_bench",)):
            times = do_bench(self._rotation(runner), rep=DO_BENCH_MS, return_mode="all")
        self._outcome(runner, "do_bench", _timed([1e3 * value for value in times]))

    def _rotation(self, runner: Runner) -> Callable[[], None]:
        """One launch a call, on one buffer set after the other, as the graph has them."""
        assert runner.trial is not None
        launches = itertools.cycle(runner.trial.replay.bound)

        def rotate() -> None:
            next(launches)()

        return rotate

    def _faked(self, runner: Runner, *methods: str) -> None:
        """Times of the faked GPU for timers that want a real one; the fault "absent" plants a missing package."""
        assert runner.trial is not None
        assert isinstance(self.gpu, FakeGpu)
        if self.gpu.faults.get(methods[0]) == "absent":
            raise Failure("skipped", ABSENT, {})
        for method in methods:
            samples = self.gpu.time_rounds([runner.trial.replay], [[0]] * ROUNDS, Observer(None))[0]
            self._outcome(runner, method, _timed(samples))

    def _guarded(self, runner: Runner, methods: Sequence[str], act: Callable[[], Any]) -> None:
        """What goes wrong in ``act``, or ended an earlier process in it, is the row of these methods."""
        unit = runner.unit_of(methods[0])
        known = self.task["done"].get(unit, {}).get("row", {})
        if known.get("status", "ok") != "ok":
            self._failed(runner, methods, Failure(known["status"], known["reason"], {}))
            return
        self.channel.begin((unit, runner.row | {"method": methods[0]}))
        try:
            act()
        except Failure as failure:
            self._failed(runner, methods, failure)
        except Unsupported as error:
            self._failed(runner, methods, Failure("skipped", str(error), {}))
        except CompileError as error:
            self._failed(runner, methods, Failure("compile_error", str(error), {}))
        except DeviceLost as error:
            self._failed(runner, methods, Failure("launch_error", str(error), {}))
            raise
        except Exception as error:
            self._failed(runner, methods, failure_of(error, self.gpu))
        self.channel.begin()

    def _failed(self, runner: Runner, methods: Sequence[str], failure: Failure) -> None:
        for method in methods:
            self._outcome(runner, method, failure.row(), failure.stage)

    def _outcome(self, runner: Runner, method: str, facts: dict[str, Any], stage: str = "final") -> None:
        version = sources.version(VERSIONS[method]) if method in VERSIONS else __version__
        clocks = runner.clocks[method] if facts["status"] == "ok" else []
        row = runner.row | {"method": method, "version": version, "measured_at": utc_now()} | facts
        row |= {"sm_clock_gpu_mhz": statistics.mean(clocks) if clocks else None}
        runner.told.add(method)
        self.channel.finish((runner.unit_of(method), stage, row))

    def _close(self, group: Sequence[Runner]) -> None:
        """Graphs and buffers go; that a runner had a trial is still known."""
        for one in group:
            if one.trial is not None:
                one.trial.replay, one.trial.sets, one.trial.expected = None, (), ()  # type: ignore[assignment]
        self.gpu.trim()


@dataclass(frozen=True)
class _Stream:
    """A stream as NVBench takes it."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _timed(samples: Sequence[float]) -> dict[str, Any]:
    """Columns of samples in microseconds."""
    return timing.times(samples) | {"status": "ok", "reason": None}
