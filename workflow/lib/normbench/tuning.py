"""Worker side of ``measure``: every variant of one kernel at every point, by successive halving.

All variants are checked and get a few samples; those within FINAL_MARGIN of the fastest, at most FINALISTS, get more
samples and a second check after them.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import ops, timing
from normbench.check import Expected, expect
from normbench.contenders import CompileError, Contender, load
from normbench.gpu import DeviceLost, Gpu, buffer_sets
from normbench.journal import PASSING
from normbench.kernelfile import Variant
from normbench.observe import Observer
from normbench.points import Point, canonical_json
from normbench.spent import spending
from normbench.streams import SmClock, Streams
from normbench.supervise import utc_now
from normbench.tensors import Tensors, make_sets, set_bytes
from normbench.trial import (
    CHECK_COLUMNS,
    Failure,
    Trial,
    attempt,
    failure_of,
    identity,
    memory_refusal,
    with_stream,
)
from normbench.worker import Session

FINALISTS = 3
FINAL_MARGIN = 1.03  # a first look of five samples is good to about 1 %; three times that is kept
FINAL_SAMPLES = 15
MOST_HANGS = 3  # of one kernel in one run; each takes the time limit, and a kernel that hangs seldom hangs once


@dataclass
class Bench:
    """The tensors of one point, made when the first variant needs them.

    Raises (``open``):
        Failure: they do not fit this device.
    """

    point: Point
    gpu: Gpu
    sets: list[Tensors]
    expected: list[Expected]

    @classmethod
    def open(cls, point: Point, gpu: Gpu, seed: int, with_torch: bool = False, places: int = 1) -> Bench:
        """places: how many times as many sets, where L2 holds them."""
        count = buffer_sets(set_bytes(point), gpu.l2_bytes, point.regime) * (1 if point.streams else places)
        reason = memory_refusal(point, count, gpu)
        if reason:
            raise Failure("skipped", reason, {}, PASSING)
        with_torch |= point.has_two_contracts
        try:
            with spending("inputs"):
                sets = make_sets(point, gpu.device, count, seed)
                gpu.synchronize()
            with spending("checking"):
                expected = [expect(point, sets[0].inputs, with_torch), _exchanged(sets[-1], with_torch)]
                gpu.synchronize()
        except Exception as error:  # too low an estimate, say: a row, not the end of the process
            raise failure_of(error, gpu) from error
        return cls(point, gpu, sets, expected)


def _exchanged(tensors: Tensors, with_torch: bool) -> Expected:
    """What the second check expects of its set."""
    with tensors.exchanged() if tensors.alone else contextlib.nullcontext():
        return expect(tensors.point, tensors.judged_inputs(), with_torch)


def run(session: Session) -> None:
    """Tune the task's kernel; units that are done already are not launched again."""
    task = session.task
    contender = load(task["spec"], Path(task["build"]) if task.get("build") else None)
    clock = SmClock(Streams(session.gpu))
    for number, identity_row in enumerate(task["points"]):
        point = Point.from_identity(identity_row)
        Tuner(session, clock, contender, point, number).run()
        session.gpu.trim()
        session.channel.tick(f"{contender.stem} {point.op} {point.dtype} {point.hidden}")


class Tuner:
    """One kernel at one point."""

    def __init__(self, session: Session, clock: SmClock, contender: Contender, point: Point, seed: int) -> None:
        self.task, self.gpu, self.nvml, self.channel = session.task, session.gpu, session.nvml, session.channel
        self.clock, self.contender, self.point, self.seed = clock, contender, point, seed + 1
        self.done: dict[str, dict[str, Any]] = session.task["done"]
        hangs = sum(known["row"].get("status") == "timeout" for known in self.done.values())
        self.given_up = hangs >= MOST_HANGS
        self.only: Variant | None = None
        self.rows: dict[str, dict[str, Any]] = {}
        self._bench: Bench | None = None

    def run(self) -> None:
        """Look at all variants (or ``only``), then again at the finalists; ``rows`` holds the last look at each."""
        variants = [self.only] if self.only is not None else self._variants()
        self.rows = {self._unit(variant): self._first_look(variant) for variant in variants}
        for variant in self._finalists(variants, self.rows):
            self._final(variant)

    def winner(self) -> Variant | None:
        """The fastest variant by its last look, or None."""
        timed = [row for row in self.rows.values() if row.get("time_us_p50")]
        most = max((row["n_samples"] for row in timed), default=0)
        best = min((row for row in timed if row["n_samples"] == most), key=lambda row: row["time_us_p50"], default=None)
        return json.loads(best["variant"]) if best else None

    def _unit(self, variant: Variant | None) -> str:
        return f"{self.point.key} {canonical_json(variant)}"

    def _row(self, variant: Variant | None) -> dict[str, Any]:
        block = (variant or {}).get("block") or 32 * (variant or {}).get("num_warps", 0)
        return identity(self.point, self.contender, variant, self.task) | {"block": block or None}

    def _variants(self) -> list[Variant]:
        """Variants to try; a refusal is a row of its own and leaves none."""
        try:
            reason = self.contender.refusal(self.point, self.gpu)
            status = "skipped"
            variants = [] if reason else self.contender.variants(self.point, self.gpu, self.task["study"]["block"])
            if not variants and not reason:
                reason = "no variant of the sweep suits this point"
        except CompileError as error:
            status, reason, variants = "compile_error", str(error), []
        unit = self._unit(None)
        if reason and unit not in self.done:
            self.channel.finish((unit, "final", self._row(None) | {"status": status, "reason": reason}))
        return variants

    def _bench_or_fail(self) -> Bench:
        if self._bench is None:
            self._bench = Bench.open(self.point, self.gpu, self.seed)
        return self._bench

    def _first_look(self, variant: Variant) -> dict[str, Any]:
        unit = self._unit(variant)
        if unit in self.done:
            row: dict[str, Any] = self.done[unit]["row"]
            return row
        return self._guarded(unit, variant, "tune", self.task["study"]["tune_samples"], after=False)

    def _final(self, variant: Variant) -> None:
        unit = self._unit(variant)
        if self.done.get(unit, {}).get("stage") != "final":
            # the longer look counts, so it must be the longer one whatever the config asks of the first
            samples = max(FINAL_SAMPLES, 2 * self.task["study"]["tune_samples"])
            self.rows[unit] = self._guarded(unit, variant, "final", samples, after=True)

    def _guarded(self, unit: str, variant: Variant, stage: str, samples: int, after: bool) -> dict[str, Any]:
        row = self._row(variant)
        self.channel.begin((unit, row))
        try:
            if self.given_up:
                raise Failure("skipped", f"given up: {MOST_HANGS} cases of this kernel took too long", {}, PASSING)
            row |= self._timed(variant, samples, after)
        except Failure as failure:
            row |= failure.row()
            stage = failure.stage
        except DeviceLost as error:
            self.channel.finish((unit, "final", row | {"status": "launch_error", "reason": str(error)}))
            raise
        row["measured_at"] = utc_now()
        self.channel.finish((unit, stage, row))
        return row

    def _timed(self, variant: Variant, samples: int, after: bool) -> dict[str, Any]:
        bench = self._bench_or_fail()
        trial = attempt(self.contender, variant, bench.sets, bench.expected, self.gpu)
        try:
            trial.verify(0)
            observer = Observer(self.nvml, self.clock)
            times = self._sample(trial, samples, observer)
            if after:
                trial.verify(1)
        except Failure:
            raise
        except Exception as error:
            raise failure_of(error, self.gpu) from error
        clocks = observer.summary()
        row = {name: trial.errors[name] for name in CHECK_COLUMNS}
        row |= self.contender.static(self.point, variant) | times | clocks
        self._roof(row, times)
        return row | {
            "status": "ok",
            "reason": trial.remark,
            "verdict": timing.verdict(times, clocks, observer.shared()),
            "launch_bound": timing.launch_bound(times["time_us_p50"], self.task.get("launch_floor_us")),
        }

    def _sample(self, trial: Trial, samples: int, observer: Observer) -> dict[str, Any]:
        with_stream(self.gpu, trial.replay)
        orders = [[0]] * samples
        found = self.gpu.time_rounds([trial.replay], orders, observer)[0]
        return timing.times(found)

    def _roof(self, row: dict[str, Any], times: dict[str, Any]) -> None:
        """A stream row faster than its measured ceiling is a measurement error, never a bar that ends at 100 %."""
        ceiling = self.task.get("ceilings", {}).get(self.point.key)
        moved = ops.moved_bytes(self.point, self.contender.copies)
        reason = timing.over_roof(moved, times["time_us_p50"], ceiling)
        if reason:
            facts = {name: row[name] for name in row if not name.startswith(("time_us", "samples", "n_samples"))}
            raise Failure("over_roof", reason, facts)

    def _finalists(self, variants: list[Variant], first: dict[str, dict[str, Any]]) -> list[Variant]:
        timed = [(first[self._unit(variant)].get("time_us_p50"), variant) for variant in variants]
        ranked = sorted(((time, index) for index, (time, _) in enumerate(timed) if time), key=lambda pair: pair[0])
        if not ranked:
            return []
        limit = ranked[0][0] * FINAL_MARGIN
        return [variants[index] for time, index in ranked[:FINALISTS] if time <= limit]
