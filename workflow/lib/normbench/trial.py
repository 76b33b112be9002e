"""One contender at one point: bound to the buffer sets, captured, checked, ready to be timed.

``attempt`` turns everything a contender can do wrong into a status and a reason; only a lost CUDA context escapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from normbench import ops, overlap
from normbench.check import Expected, Verdict, check_copy, judge, kept_bytes, yardstick
from normbench.contenders import CompileError, Contender, Unsupported, rest
from normbench.formats import plain
from normbench.gpu import (
    MOST_SETS,
    RESIDENT_SETS,
    DeviceLost,
    Gpu,
    Replay,
    estimate_us,
    lacks_memory,
    launches_a_sample,
)
from normbench.journal import PASSING
from normbench.kernelfile import Variant
from normbench.points import Point, canonical_json
from normbench.spent import spending
from normbench.tensors import Tensors, fill_poison, set_bytes

CHECK_COLUMNS = ("err_max_abs", "err_ulp_max", "tolerance", "tolerance_used")
CONTRACT_COLUMNS = ("accurate", "allclose_torch", "allclose_seed", "bitwise_torch")


@dataclass
class Failure(Exception):
    """Why a contender has no time at this point, as the row's columns; ``stage`` is that of its unit in the journal."""

    status: str
    reason: str
    columns: dict[str, Any]
    stage: str = "final"

    def row(self) -> dict[str, Any]:
        return self.columns | {"status": self.status, "reason": self.reason}


@dataclass
class Trial:
    """A captured contender. ``expected`` are the answers of the two checks: of the first set, and of the last set, or
    of the first once more where it is alone, with its inputs exchanged.

    errors: of the checks it has passed, the larger errors and the weaker contracts; remark: the first thing that one of
    them had to say all the same.
    """

    contender: Contender
    variant: Variant
    replay: Replay
    sets: Sequence[Tensors]
    expected: Sequence[Expected]
    gpu: Gpu
    errors: dict[str, Any] = field(default_factory=dict)
    remark: str | None = None

    def rest(self) -> Replay | None:
        """The same, as many in turn and on the same buffers, without what only forms dgamma and dbeta; None where there
        is no such part.

        It leaves outputs that are not whole: nothing may be read before ``replay`` was replayed again.
        """
        found = [launch for bound in self.replay.bound if (launch := rest(bound)) is not None]
        if not found:
            return None
        replay = self.gpu.capture(found, self.replay.launches, self.replay.each)
        # both graphs take what they need here: a lack of memory between the samples of a race would be everybody's
        on_stream(self.gpu, replay.lead_in)
        with_stream(self.gpu, replay)
        return replay

    @spending("checking")
    def verify(self, index: int) -> Verdict:
        """Check 0 or 1: poison the outputs, replay once and judge what is there; inputs and guards included.

        Raises:
            Failure: the output is wrong, was not written, or something else was.
        """
        place = len(self.sets) - 1 if index else 0
        with self.sets[place].exchanged() if index else contextlib.nullcontext():
            verdict = self._judged(place, self.expected[index])
        found = columns(verdict)
        self.errors = worst(self.errors, found) if self.errors else found
        self.remark = self.remark or verdict.reason
        return verdict

    def _judged(self, place: int, expected: Expected) -> Verdict:
        tensors = self.sets[place]
        before = tensors.fingerprint()
        tensors.poison()
        own = {id(item.view) for item in tensors.guarded.values()}
        for outputs in self.replay.outputs:
            for tensor in outputs.values():
                if id(tensor) not in own:
                    fill_poison(tensor)
        with_stream(self.gpu, self.replay)
        outputs = self.replay.outputs[place]
        if self.contender.copies:
            verdict = check_copy(yardstick(tensors.inputs), outputs[ops.OPS[tensors.point.op].main])
        else:
            verdict = judge(expected, outputs)
        if not verdict.ok:
            raise Failure(verdict.status, str(verdict.reason), columns(verdict))
        if any(not item.guards_intact() for item in tensors.guarded.values()):
            raise Failure("wrong", "wrote outside its output", columns(verdict))
        if tensors.fingerprint() != before:
            raise Failure("wrong", "wrote to its inputs", columns(verdict))
        return verdict


def with_stream(gpu: Gpu, replay: Replay) -> None:
    """Replay once and wait, behind all that was asked for before: inputs and poison come on another stream."""
    on_stream(gpu, replay.replay)


def on_stream(gpu: Gpu, enqueue: Callable[[], None]) -> None:
    """The same of anything that enqueues launches."""
    if gpu.fake:
        enqueue()
        return
    gpu.synchronize()
    with gpu.torch.cuda.stream(gpu.stream):  # type: ignore[union-attr]
        enqueue()
    gpu.synchronize()


def columns(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in (*CHECK_COLUMNS, *CONTRACT_COLUMNS)}


def worst(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Errors of two checks as one: the larger error, the weaker contract."""
    both: dict[str, Any] = {}
    for name in first:
        values = [value for value in (first[name], second.get(name)) if value is not None]
        pick = min if name in CONTRACT_COLUMNS else max
        both[name] = pick(values) if values else None
    return both


def attempt(
    contender: Contender, variant: Variant, sets: Sequence[Tensors], expected: Sequence[Expected], gpu: Gpu
) -> Trial:
    """Bind and capture.

    Raises:
        Failure: the contender refuses, does not compile, does not launch or does not keep the order of launches.
        DeviceLost: the context broke on the way.
    """
    point = sets[0].point
    try:
        with spending("binding"):
            launches = [contender.bind(tensors, variant, gpu) for tensors in sets]
            estimate = estimate_us(point, ops.compulsory_bytes(point))
            each = len(sets) if point.streams else min(RESIDENT_SETS, len(sets))
            count = launches_a_sample(estimate, each, point.regime)
            trial = Trial(contender, variant, gpu.capture(launches, count, each), sets, expected, gpu)
        reason = None
        if overlap.concerns(point, gpu) and not contender.copies:
            with spending("checking"):
                reason = overlap.early(gpu, launches[0], sets[0], expected[0])
    except Unsupported as error:
        raise Failure("skipped", str(error), {}) from error
    except CompileError as error:
        raise Failure("compile_error", str(error), {}) from error
    except Exception as error:
        raise failure_of(error, gpu) from error
    if reason:
        raise Failure("wrong", reason, {})
    return trial


def failure_of(error: Exception, gpu: Gpu) -> Failure:
    """The row of an exception while launching.

    Raises:
        DeviceLost: the context does not answer any more; carries the same text.
    """
    lines = plain(str(error)).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:300] if lines else 'no text'}"
    if lacks_memory(error):
        gpu.empty_cache()
        return Failure("skipped", f"too little memory ({text})", {}, PASSING)
    try:
        gpu.synchronize()
    except Exception as broken:
        raise DeviceLost(text) from broken
    return Failure("launch_error", text, {})


def identity(point: Point, contender: Contender, variant: Variant | None, task: dict[str, Any]) -> dict[str, Any]:
    """Identity columns of a row of this task."""
    return point.identity() | {
        "device": task["device"],
        "run": "local",
        "contender": contender.stem,
        "lang": contender.lang,
        "variant": canonical_json(variant) if variant is not None else None,
        "sources": task["sources"],
    }


def memory_refusal(point: Point, sets: int, gpu: Gpu) -> str | None:
    """Why the point does not fit this device, or None: buffers, reference, tolerance and the temporaries of a check.

    Where the reference is not kept, or a channel form is judged as rows, a check copies x and y, and torch's answers
    count beside that.
    """
    if sets > MOST_SETS:
        return f"too small to stream: {sets} buffer sets would be needed to leave L2; measure it as l2 or latency"
    copies = 0 if kept_bytes(point) and ops.layout(point) == "rows" else 4
    tensor_bytes = point.rows * point.row_stride * point.element_bytes
    need = sets * set_bytes(point) + 2 * kept_bytes(point) + copies * tensor_bytes + (2 << 30)
    free = gpu.free_bytes()
    if need > free and not gpu.fake:
        return f"needs {need / 1e9:.1f} GB of device memory, {free / 1e9:.1f} GB are free"
    return None
