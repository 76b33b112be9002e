"""Worker side of ``showdown``: at every point the winners, the baselines, an A/A twin and the ceiling, interleaved.

All contenders of a point are captured and checked first; then rounds run each once in random order until every median
is known to WIDTH or the budget ends; then all are checked again on another buffer set.

Where the last part of one of ours only forms dgamma and dbeta, the same launches without that part ride along in its
rounds, at nobody's expense: what they take less is the time of that part.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import ops, timing
from normbench.contenders import CompileError, Contender, External, load
from normbench.gpu import DeviceLost, Replay
from normbench.kernelfile import Variant
from normbench.observe import Observer
from normbench.points import Point, short_hash
from normbench.schema import TWIN
from normbench.streams import SmClock, Streams, expression
from normbench.supervise import utc_now
from normbench.trial import Failure, Trial, attempt, failure_of, identity, on_stream, with_stream
from normbench.tuning import Bench
from normbench.worker import Session

ROUNDS_A_BLOCK = 5
# Pairs of buffer sets that samples take by turns where L2 holds them: where they lie is worth 2 % there. As many as
# rounds that a comparison resamples together, so that each block of these has seen all.
PLACES = ROUNDS_A_BLOCK
TURNS_OF_A_SUSPECT = 50  # alone, before it may race again: twice the rounds of most races
MIN_ROUNDS = 25  # five blocks for the bootstrap of a comparison, and for nearly everybody a narrow interval


@dataclass
class Runner:
    """A contender in the race; what is known of it so far is in ``row``.

    rest: its launches without what only forms dgamma and dbeta, where they have such a part.
    """

    contender: Contender
    variant: Variant
    row: dict[str, Any]
    unit: str
    trial: Trial | None = None
    rest: Replay | None = None

    def release(self) -> None:
        """Let go of what was captured: a graph keeps its temporaries, and others may need their memory."""
        self.trial = self.rest = None


@dataclass(frozen=True)
class Outcome:
    """What the whole race shares: the ceiling measured in it (GB/s), its clock state, other processes on the GPU, and
    its noise, the relative difference of the medians of the A/A twin and its original (0 without a twin)."""

    ceiling_gbps: float | None
    clocks: dict[str, Any]
    shared: bool | None
    noise: float


def run(session: Session) -> None:
    """Race at every point of the task."""
    task = session.task
    contenders = {entry["spec"]: load(entry["spec"], _path(entry.get("build"))) for entry in task["contenders"]}
    points = [Point.from_identity(row) for row in task["points"]]
    roofs = task.get("roofs", {})
    winners = [expression(ops.OPS[point.op].mix, roofs[point.key]) for point in points if point.key in roofs]
    stream = Streams(session.gpu, winners)
    for number, point in enumerate(points):
        Race(session, contenders, stream, point, number + 1).run()
        session.gpu.trim()
        session.channel.tick(f"{point.op} {point.dtype} {point.hidden}")


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


class Race:
    """One point."""

    def __init__(
        self, session: Session, contenders: dict[str, Contender], stream: Streams, point: Point, seed: int
    ) -> None:
        self.task, self.gpu, self.nvml, self.channel = session.task, session.gpu, session.nvml, session.channel
        self.stream, self.point, self.seed = stream, point, seed
        self.done: dict[str, dict[str, Any]] = session.task["done"]
        self.runners = [
            self._runner(contenders[entry["spec"]], entry["variant"], entry["unit"])
            for entry in session.task["entries"][point.key]
        ]

    def _runner(self, contender: Contender, variant: Variant, unit: str, suffix: str = "") -> Runner:
        row = identity(self.point, contender, variant, self.task)
        return Runner(contender, variant, row | {"contender": contender.stem + suffix}, unit)

    def run(self) -> None:
        """Race those whose row is not known yet: all of them, or those a crashed contender left behind."""
        wanted = [runner for runner in self.runners if runner.unit not in self.done]
        if not wanted:
            return
        try:
            bench = Bench.open(self.point, self.gpu, self.seed, with_torch=True, places=PLACES)
        except Failure as failure:
            for runner in wanted:
                self._fail(runner, failure)
            return
        starters = [runner for runner in wanted if self._prepare(runner, bench)]
        twin = self._twin(starters)
        if twin is not None:
            starters.append(twin)
        if starters:
            self._race(starters, bench)

    def _fail(self, runner: Runner, failure: Failure) -> None:
        self.channel.finish((runner.unit, failure.stage, runner.row | failure.row() | {"measured_at": utc_now()}))

    def _prepare(self, runner: Runner, bench: Bench) -> bool:
        """Bind, capture and check one contender; a failure is its row, and leaves nothing in memory."""
        self.channel.begin((runner.unit, runner.row))
        try:
            reason = runner.contender.refusal(self.point, self.gpu)
            if reason:
                raise Failure("skipped", reason, {})
            runner.trial = attempt(runner.contender, runner.variant, bench.sets, bench.expected, self.gpu)
            self._verify(runner.trial, 0)
            runner.rest = self._rest(runner)
            if runner.unit in self.task.get("suspects", ()):
                for _ in range(TURNS_OF_A_SUSPECT):
                    with_stream(self.gpu, runner.trial.replay)
        except CompileError as error:
            self._fail(runner, Failure("compile_error", str(error), {}))
        except Failure as failure:
            self._fail(runner, failure)
        except DeviceLost as error:
            self._fail(runner, Failure("launch_error", str(error), {}))
            raise
        if runner.trial and runner.trial.errors:
            return True
        runner.release()
        self.gpu.trim()
        return False

    def _rest(self, runner: Runner) -> Replay | None:
        """What its reduction is told apart by, not for a twin; where that cannot be captured, the row goes without, and
        nothing of it stays in memory."""
        if runner.trial is None or runner.row["contender"].endswith(TWIN):
            return None
        try:
            return runner.trial.rest()
        except Exception as error:
            failure_of(error, self.gpu)  # raises where the context is lost
        self.gpu.trim()
        return None

    def _verify(self, trial: Trial, index: int) -> None:
        try:
            if not index:  # captured now, where a lack of memory is its own and not the whole race's
                on_stream(self.gpu, trial.replay.lead_in)
            trial.verify(index)
        except Failure:
            raise
        except Exception as error:
            raise failure_of(error, self.gpu) from error

    def _twin(self, starters: list[Runner]) -> Runner | None:
        """The first of our contenders once more under another name, with buffers of its own: the day's noise floor."""
        first = next((runner for runner in starters if not isinstance(runner.contender, External)), None)
        if first is None:
            return None
        twin = self._runner(first.contender, first.variant, f"{first.unit}{TWIN}", TWIN)
        if twin.unit in self.done:  # it ended the process before; its row says so
            return None
        try:
            bench = Bench.open(self.point, self.gpu, self.seed + 500, with_torch=True, places=PLACES)
        except Failure as failure:
            self._fail(twin, failure)
            return None
        return twin if self._prepare(twin, bench) else None

    def _race(self, starters: list[Runner], bench: Bench) -> None:
        self.channel.begin()  # the roof is nobody's fault
        roof = self.stream.race_roof(self.point, bench.sets, self.task.get("roofs", {}).get(self.point.key))
        self.channel.begin(*((runner.unit, runner.row) for runner in starters))
        replays: list[Replay] = [runner.trial.replay for runner in starters if runner.trial]
        rests = {index: runner.rest for index, runner in enumerate(starters) if runner.rest}
        racers = len(replays) + len(roof.replays)
        riders = {racers + place: index for place, index in enumerate(rests)}
        observer = Observer(self.nvml, SmClock(self.stream), compared=MIN_ROUNDS // ROUNDS_A_BLOCK)
        samples = self._rounds([*replays, *roof.replays, *rests.values()], riders, observer)
        gbps = roof.gbps(samples[len(replays) : racers])
        race = Outcome(gbps, observer.summary(), observer.shared(), noise(starters, samples))
        without = {index: samples[place] for place, index in riders.items()}
        del replays, rests
        ended = [
            self._last(runner, found, without.get(index), race)
            for index, (runner, found) in enumerate(zip(starters, samples, strict=False))
        ]
        self.channel.finish(*ended)

    def _last(
        self, runner: Runner, samples: list[float], without: list[float] | None, race: Outcome
    ) -> tuple[str, str, dict[str, Any]]:
        """(unit, stage, row) of a contender that raced; what its graphs held is free for the checks of the others.

        without: the samples of its launches without what only forms dgamma and dbeta, if it has such a part.
        """
        stage = "final"
        try:
            found = self._conclude(runner, samples, race)
            if without is not None:
                found["reduce_us"] = timing.part(samples, without, race.noise)
        except Failure as failure:
            found, stage = failure.row(), failure.stage
        runner.release()
        return runner.unit, stage, runner.row | found | {"measured_at": utc_now()}

    def _rounds(self, replays: Sequence[Replay], riders: Mapping[int, int], observer: Observer) -> list[list[float]]:
        """Samples of every replay: MIN_ROUNDS of all, then more of those whose median is not known to WIDTH yet.

        riders: to whom one belongs. It has the rounds of that one, and their time is none of the budget.

        What goes ahead is forgotten: one round, and a whole block where launches are short. On an H200 launches of two
        microseconds that wait for the one before may take 0.18 us less in the first block than in all later ones.
        """
        order = random.Random(short_hash(self.point.key))
        samples: list[list[float]] = [[] for _ in replays]
        left_us = self.task["study"]["race_ms"] * 1e3
        running = [*range(len(replays))]

        def block(observer: Observer, rounds: int = ROUNDS_A_BLOCK) -> list[list[float]]:
            orders = [order.sample(running, len(running)) for _ in range(rounds)]
            return self.gpu.time_rounds(replays, orders, observer)

        block(Observer(self.nvml, observer.clock), 1 if self.point.streams else ROUNDS_A_BLOCK)
        while running:
            for mine, more in zip(samples, block(observer), strict=True):
                mine += more
            raced = [index for index in running if index not in riders]
            left_us -= sum(sum(samples[index][-ROUNDS_A_BLOCK:]) * replays[index].launches for index in raced)
            if len(samples[running[0]]) >= MIN_ROUNDS:
                raced = [index for index in raced if left_us > 0 and not timing.narrow(samples[index])]
                running = [index for index in running if riders.get(index, index) in raced]
        return samples

    def _conclude(self, runner: Runner, samples: list[float], race: Outcome) -> dict[str, Any]:
        """Check again, then let the time exist.

        Raises:
            Failure: the second check failed, or the time cannot be; its columns say of what race.
        """
        assert runner.trial is not None
        self.channel.begin((runner.unit, runner.row))
        moved = ops.moved_bytes(self.point, runner.contender.copies)
        # streaming stores leave nothing in L2 but pay for what the contender before them left: up to 3 % on an H200,
        # so a roof timed between others can lie below the same roof timed alone
        tuned = self.task.get("ceilings", {}).get(self.point.key)
        ceiling = max((value for value in (race.ceiling_gbps, tuned) if value), default=None)
        facts: dict[str, Any] = {"bytes": moved, "ceiling_gbps": ceiling}
        try:
            self._verify(runner.trial, 1)
        except Failure as failure:
            failure.columns = facts | failure.columns
            raise
        times = timing.summarise(samples)
        reason = timing.over_roof(moved, times["time_us_p50"], ceiling)
        if reason:
            raise Failure("over_roof", reason, facts | runner.trial.errors)
        facts |= runner.trial.errors
        facts |= runner.contender.static(self.point, runner.variant) | times | race.clocks
        return facts | {
            "verdict": timing.verdict(times, race.clocks, race.shared),
            "launch_bound": timing.launch_bound(times["time_us_p50"], self.task.get("launch_floor_us")),
            "status": "ok",
            "reason": runner.trial.remark,
        }


def noise(starters: Sequence[Runner], samples: Sequence[Sequence[float]]) -> float:
    """How far apart the medians of the A/A twin and its original are, as a share of the latter; 0 without a twin."""
    medians = {
        runner.row["contender"]: statistics.median(found) for runner, found in zip(starters, samples, strict=False)
    }
    pairs = ((name.removesuffix(TWIN), median) for name, median in medians.items() if name.endswith(TWIN))
    return max((abs(median / medians[name] - 1) for name, median in pairs), default=0.0)
