"""Worker side of ``verify``: one contender on every adversarial input of every op and dtype it serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normbench import eager, ops, wide
from normbench.check import Expected, Verdict, check, check_copy, expect, expect_columns, judge, yardstick
from normbench.contenders import CompileError, Contender, Ours, Unsupported, load
from normbench.gpu import DeviceLost, Gpu, Launch
from normbench.inputs import JIT_CASES, Case, every, normal
from normbench.journal import PASSING
from normbench.kernelfile import Variant
from normbench.points import canonical_json, short_hash
from normbench.supervise import utc_now
from normbench.tensors import (
    Tensors,
    chunks,
    guarded,
    integers,
    make_outputs,
    poisoned,
    saved_statistics,
    set_bytes,
)
from normbench.trial import Failure, columns, failure_of, identity, with_stream
from normbench.worker import Session

EAGER = "torch_eager"  # has torch's bits as nobody else's work: its rows say which inputs torch is accurate on


def run(session: Session) -> None:
    """All cases of the task's contender that are not known yet."""
    task = session.task
    contender = load(task["spec"], Path(task["build"]) if task.get("build") else None)
    for case in _cases(task, contender):
        unit = f"{case.point.key} {case.name}"
        if unit not in task["done"]:
            Attempt(session, contender, case, unit).run()
            session.channel.tick(f"{case.point.op} {case.point.dtype} {case.name}")


def _cases(task: dict[str, Any], contender: Contender) -> Iterator[Case]:
    for op in task["ops"]:
        for dtype in task["dtypes"]:
            for case in every(op, dtype):
                if not contender.jit or case.name in JIT_CASES:
                    yield case
            if wide.REGIME in contender.regimes and task.get("wide"):
                saves = isinstance(contender, Ours)
                yield from (case for case in wide.cases(op, dtype, task["wide"]) if wide.given(case, saves))


class Attempt:
    """One contender on one input; up to three variants (first, middle, last of the sweep), the worst one told."""

    def __init__(self, session: Session, contender: Contender, case: Case, unit: str) -> None:
        self.task, self.gpu, self.channel = session.task, session.gpu, session.channel
        self.contender, self.case, self.unit = contender, case, unit
        self._known: Expected | None = None

    def run(self) -> None:
        row = identity(self.case.point, self.contender, None, self.task) | {"case": self.case.name}
        self.channel.begin((self.unit, row))
        stage = "final"
        try:
            row |= self._judged()
        except Failure as failure:
            row |= failure.row()
            stage = failure.stage
        except CompileError as error:
            row |= {"status": "compile_error", "reason": str(error)}
        except DeviceLost as error:
            self.channel.finish((self.unit, "final", row | {"status": "launch_error", "reason": str(error)}))
            raise
        self.channel.finish((self.unit, stage, row | {"measured_at": utc_now()}))

    def _judged(self) -> dict[str, Any]:
        point = self.case.point
        reason = self.contender.refusal(point, self.gpu)
        if reason:
            raise Failure("skipped", reason, {})
        # a reference, tolerance and ulp of all of it, and copies to compare; of a large case none of that
        need = 1.5 * set_bytes(point) + (0 if self.case.large else 32 * point.rows * point.hidden)
        if need > self.gpu.free_bytes():
            raise Failure("skipped", f"needs {need / 1e9:.1f} GB of device memory", {}, PASSING)
        tensors = place(self.case, self.gpu)
        found = [self._variant(tensors, variant) for variant in self._variants(tensors)]
        if not found:
            raise Failure("skipped", "no variant of the sweep suits this input", {})
        return max(found, key=lambda row: (row["status"] != "ok", row["tolerance_used"] or 0.0))

    def _variants(self, tensors: Tensors) -> list[Variant]:
        contender = self.contender
        if not isinstance(contender, Ours):
            return [{}]
        if not self.case.blocks:
            return _some(contender.variants_for(tensors, self.gpu, self.task["study"]["block"]))
        found = [contender.variants_for(tensors, self.gpu, [block])[:1] for block in self.case.blocks]
        return list({canonical_json(variant): variant for some in found for variant in some}.values())

    def _judged_part(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a case, of a large one only the rows that are compared."""
        if not self.case.large:
            return dict(tensors)
        rows = self.case.judged_rows()
        found = dict(tensors)
        for name, tensor in tensors.items():
            if tensor is not None and name in (*ops.LARGE, *ops.STATISTICS):
                found[name] = ops.some_rows(self.case.point, tensor, rows) if name in ops.LARGE else tensor[rows]
        return found

    def _expected(self, tensors: Tensors) -> Expected:
        """Of the rows that are compared; column sums of all rows. Made once, for all variants."""
        if self._known is not None:
            return self._known
        given = self._judged_part(tensors.inputs)
        if self.case.large:
            self._known = expect(self.case.point.with_rows(len(given["x"])), given)
            self._known.targets |= expect_columns(self.case.point, tensors.inputs)
        else:
            self._known = expect(self.case.point, given, with_torch=True)
        return self._known

    def _variant(self, tensors: Tensors, variant: Variant) -> dict[str, Any]:
        main = ops.OPS[self.case.point.op].main
        try:
            launch = self.contender.bind(tensors, variant, self.gpu)
            if self.case.replayed:
                launch = self._captured(tensors, launch)
            before = tensors.fingerprint()
            outputs, first = self._launched(tensors, launch)
            whole = not self.case.large or not any(bool(poisoned(part).any()) for part in chunks(outputs[main]))
            expected = None if self.contender.copies else self._expected(tensors)
            verdict = self._verdict(tensors, expected, first)
            _, again = self._launched(tensors, launch)
            same = _equal(first, again)
            later = Verdict("ok") if same else self._verdict(tensors, expected, again)
            for _ in range(self.case.repeats):
                _, again = self._launched(tensors, launch, poison=False)
                if not _equal(first, again):
                    same = False
                    later = later if not later.ok else self._verdict(tensors, expected, again)
        except Unsupported as error:
            raise Failure("skipped", str(error), {}) from error
        except Exception as error:
            raise failure_of(error, self.gpu) from error
        row = columns(verdict) | {"failing_elements": verdict.failing_elements, "deterministic": same}
        row |= {"status": verdict.status, "reason": verdict.reason, "variant": canonical_json(variant)}
        if verdict.bitwise_torch is not None:
            row |= eager.claim(self.case.point, tensors.inputs, self.gpu) | {"compiler": self.contender.compiler}
        if verdict.ok and not later.ok:
            row |= {"status": later.status, "reason": f"right once, then not: {later.reason}"}
        if not whole:
            row |= {"status": "wrong", "reason": "did not write all of its output"}
        if any(not item.guards_intact() for item in tensors.guarded.values()):
            row |= {"status": "wrong", "reason": "wrote outside its output"}
        if tensors.fingerprint() != before:
            row |= {"status": "wrong", "reason": "wrote to its inputs"}
        return row

    def _captured(self, tensors: Tensors, launch: Launch) -> Launch:
        """The launch as a graph that was captured, and replayed once, while all inputs had other values."""
        own = {name: tensor.clone() for name, tensor in tensors.inputs.items() if tensor is not None}
        for name in own:
            tensors.inputs[name].mul_(-0.5)  # type: ignore[union-attr]
        replay = self.gpu.capture([launch], 1)
        with_stream(self.gpu, replay)
        for name, values in own.items():
            tensors.inputs[name].copy_(values)  # type: ignore[union-attr]

        def again() -> dict[str, Any]:
            with_stream(self.gpu, replay)
            return replay.outputs[0]

        return again

    def _launched(self, tensors: Tensors, launch: Launch, poison: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs of one launch, and a copy of what is compared of them."""
        if poison:
            tensors.poison()
        outputs = launch()
        self.gpu.synchronize()
        return outputs, {name: tensor.clone() for name, tensor in self._judged_part(outputs).items()}

    def _verdict(self, tensors: Tensors, expected: Expected | None, found: dict[str, Any]) -> Verdict:
        if expected is not None:
            return check(expected, found) if self.contender.stem == EAGER else judge(expected, found)
        main = ops.OPS[self.case.point.op].main
        return check_copy(yardstick(self._judged_part(tensors.inputs)), found[main])


def _equal(first: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """Whether two launches gave the same bits."""
    return all(bool((integers(first[name]) == integers(again[name])).all()) for name in first)


def _some(variants: list[Variant]) -> list[Variant]:
    indices = sorted({0, len(variants) // 2, len(variants) - 1}) if variants else []
    return [variants[index] for index in indices]


def place(case: Case, gpu: Gpu) -> Tensors:
    """Tensors of a case: values rounded once to their dtype, bases shifted where the case says."""
    torch = gpu.torch
    point = case.point
    generator = torch.Generator().manual_seed(int(short_hash(case.name, 6), 16))
    shape = (point.rows, point.hidden)
    dtype = ops.torch_dtype(point.dtype)
    large = [name for name in ops.inputs(point) if name in ops.LARGE]
    inputs: dict[str, Any] = {"gamma": None, "beta": None}
    on_device = torch.Generator(gpu.device).manual_seed(generator.initial_seed())
    # halves, so that the sum of an add op has the value that its norm is to meet
    share = 2 if ops.OPS[point.op].adds else 1
    values = None if case.large or case.x is None else (case.x(torch, shape, generator) / share).to(dtype)
    for name in large:
        own = ops.extent(point, name)[0]
        inputs[name] = guarded(own, dtype, gpu.device, point.row_stride, case.shift.get(name, 0)).view
        if case.fill is not None:
            case.fill(inputs[name], on_device)
        elif values is None:
            for part in chunks(inputs[name]):
                part.normal_(generator=on_device)
        elif name == "x" or ops.OPS[point.op].adds:
            inputs[name].copy_(ops.laid_out(point, values))
        else:
            recipe = case.dy if name == "dy" and case.dy else normal(0.5)
            inputs[name].copy_(recipe(torch, shape, generator).to(dtype))
    param = ops.torch_dtype(point.param_dtype)
    for name, centre in (("gamma", 1.0), ("beta", 0.0)):
        if name not in ops.inputs(point):
            continue
        inputs[name] = guarded((point.hidden,), param, gpu.device, shift=case.shift.get(name, 0)).view
        if name == "gamma" and case.gamma:
            values = case.gamma(torch, (1, point.hidden), generator)[0]
        elif not case.plain:
            values = torch.full((point.hidden,), centre, dtype=torch.float64, device=gpu.device)
        elif case.fill is not None:  # a row may have millions of elements, too many for the processor to draw each time
            values = torch.empty(point.hidden, dtype=torch.float64, device=gpu.device)
            values.normal_(centre, 0.5, generator=on_device)
        else:
            values = torch.randn(point.hidden, dtype=torch.float64, generator=generator) * 0.5 + centre
        inputs[name].copy_(values.to(param))
    inputs |= saved_statistics(point, inputs["x"])
    return Tensors(point, inputs, make_outputs(point, gpu.device, case.shift))
