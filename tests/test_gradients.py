"""The backward ops: their reference against autograd, their tolerances, and mutants that the check must reject."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from measuring_fixture import EAGER, ROOT, fake, task, work_off
from normbench import check as check_module
from normbench import gradients, inputs, ops
from normbench.adversary import place
from normbench.check import Verdict, check, check_copy, expect, expect_columns, yardstick
from normbench.contenders import FakeLaunch, Unsupported, baseline, empty, load_module, namespace
from normbench.points import Point, Semantics
from normbench.streams import copy_of
from normbench.tensors import Tensors, make_sets
from normbench.trial import Failure, attempt

Inputs = dict[str, torch.Tensor | None]
Outputs = dict[str, torch.Tensor]
BACKWARD = ("layernorm_bwd", "rmsnorm_bwd")
CPU = torch.device("cpu")


def point(dtype: str = "fp32", rows: int = 24, hidden: int = 101, op: str = "layernorm_bwd", **semantics: Any) -> Point:
    return Point(op, dtype, rows, hidden, "stream", Semantics(**semantics))


def tensors_of(work: Point, seed: int = 1) -> Tensors:
    return make_sets(work, CPU, 1, seed)[0]


def right(work: Point, given: Inputs, total: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Outputs:
    """Honest gradients: fp32 throughout, one rounding at the end. total: of the terms of a column sum."""
    found = {name: value.float() for name, value in given.items() if value is not None}
    x, dy, rstd = found["x"], found["dy"], found["rstd"][:, None]
    xhat = (x - found["mean"][:, None] if "mean" in found else x) * rstd
    g = dy * found["gamma"] if "gamma" in found else dy
    level = g.mean(1, keepdim=True) if "mean" in found else 0.0
    dx = rstd * (g - level - xhat * (g * xhat).mean(1, keepdim=True))
    if "residual" in found:
        dx = dx + found["residual"]
    add = total or (lambda terms: terms.sum(0))
    param = ops.torch_dtype(work.param_dtype)
    results = {"dx": dx.to(given["x"].dtype), "dgamma": add(dy * xhat).to(param), "dbeta": add(dy).to(param)}  # type: ignore[union-attr]
    return {name: tensor for name, tensor in results.items() if name in ops.outputs(work)}


def judged(work: Point, found: Callable[[Inputs], Outputs], seed: int = 1) -> Verdict:
    tensors = tensors_of(work, seed)
    return check(expect(work, tensors.inputs), found(tensors.inputs))


# the reference


def forward(op: str, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    if op == "layernorm_bwd":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, 1e-5)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-5)


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("hidden", [1, 2, 33, 768])
def test_the_reference_is_the_gradient_that_autograd_finds(op: str, hidden: int) -> None:
    work = point(rows=7, hidden=hidden, op=op, stats=False)
    given = {name: torch.randn(7, hidden, dtype=torch.float64) for name in ("x", "dy")}
    x, gamma, beta = given["x"].clone(), *torch.randn(2, hidden, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, gamma, beta)]

    forward(op, x, gamma, beta).backward(given["dy"])  # type: ignore[no-untyped-call]

    exact = gradients.reference(work, given | {"gamma": gamma.detach()})
    names = ("dx", "dgamma", "dbeta") if op == "layernorm_bwd" else ("dx", "dgamma")
    for name, leaf in zip(names, leaves, strict=False):
        torch.testing.assert_close(exact[name], leaf.grad, rtol=1e-9, atol=1e-9)
    assert ("dbeta" in exact) == (op == "layernorm_bwd")


@pytest.mark.parametrize("op", BACKWARD)
def test_the_reference_passes_gradcheck(op: str) -> None:
    """Against finite differences of the forward reference, in float64."""
    forward_op = op.removesuffix("_bwd")
    work, forward_work = point(rows=3, hidden=5, op=op, stats=False), Point(forward_op, "fp32", 3, 5)

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, gamma)
            shift = beta if forward_op == "layernorm" else None
            return ops.reference(forward_work, {"x": x, "gamma": gamma, "beta": shift})["y"]

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> Any:
            x, gamma = ctx.saved_tensors
            found = gradients.reference(work, {"x": x, "dy": dy, "gamma": gamma})
            return found["dx"], found["dgamma"], found.get("dbeta")

    torch.manual_seed(1)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,), (5,))]

    assert torch.autograd.gradcheck(
        Norm.apply, leaves[: 3 if forward_op == "layernorm" else 2] + leaves[2:3] * (forward_op == "rmsnorm")
    )


def test_torchs_own_gradients_are_accepted() -> None:
    """On the CPU torch has those of layernorm in fp32; in 16 bits it wants statistics of that type there."""
    tensors = tensors_of(point("fp32", 64, 256))
    theirs = check_module.torch_eager(tensors.point, tensors.inputs)
    assert theirs is not None

    verdict = check(expect(tensors.point, tensors.inputs, with_torch=True), theirs)

    assert verdict.ok
    assert (verdict.bitwise_torch, verdict.allclose_torch) == (True, True)


@pytest.mark.parametrize(
    "work", [point(op="rmsnorm_bwd"), point("bf16"), point(residual="fp32"), point("fp16", param_dtype="fp32")]
)
def test_where_torch_has_no_gradients_no_contract_is_claimed(work: Point) -> None:
    tensors = tensors_of(work)

    verdict = check(expect(work, tensors.inputs, with_torch=True), right(work, tensors.inputs))

    assert (verdict.status, verdict.bitwise_torch, verdict.allclose_torch) == ("ok", None, None)


def test_a_residual_gradient_is_added_before_dx_is_rounded() -> None:
    work = point("bf16", residual="fp32")
    tensors = tensors_of(work)
    dx = gradients.reference(point("bf16"), tensors.inputs)["dx"]

    found = gradients.reference(work, tensors.inputs)["dx"]

    assert torch.equal(found, dx + tensors.inputs["residual"].double())  # type: ignore[union-attr]
    assert judged(work, lambda given: right(work, given)).ok
    late = right(work, tensors.inputs) | {"dx": dx.bfloat16() + tensors.inputs["residual"]}
    assert check(expect(work, tensors.inputs), late).status == "wrong"


def test_a_residual_gradient_has_one_mode() -> None:
    with pytest.raises(ValueError, match="added to dx before it is rounded"):
        ops.compulsory_bytes(point(residual="round"))


def test_parts_of_the_rows_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    work = point(rows=50)
    given = tensors_of(work).inputs
    whole = expect(work, given)

    monkeypatch.setattr(check_module, "CHUNK_ELEMENTS", 700)
    parts = expect(work, given)

    for name in ("dx", "dgamma", "dbeta"):
        torch.testing.assert_close(parts.targets[name].exact, whole.targets[name].exact, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(parts.targets[name].allowed, whole.targets[name].allowed)
    for name, target in expect_columns(work, given).items():
        assert torch.equal(target.exact, parts.targets[name].exact)


# inputs, and what moving them costs


@pytest.mark.parametrize(
    ("work", "moved"),
    [
        (point("bf16", 10, 64), 3 * 10 * 64 * 2 + 3 * 64 * 2 + 10 * 8),
        (point("bf16", 10, 64, op="rmsnorm_bwd"), 3 * 10 * 64 * 2 + 2 * 64 * 2 + 10 * 4),
        (point("fp32", 10, 64, stats=False), 3 * 10 * 64 * 4 + 3 * 64 * 4),
        (point("fp32", 10, 64, residual="fp32"), 4 * 10 * 64 * 4 + 3 * 64 * 4 + 10 * 8),
        (point("fp16", 10, 64, param_dtype="fp32"), 3 * 10 * 64 * 2 + 3 * 64 * 4 + 10 * 8),
        (point("fp32", 10, 64, gamma=False, beta=False), 3 * 10 * 64 * 4 + 10 * 8),
        (point("fp32", 10, 64, beta=False), 3 * 10 * 64 * 4 + 2 * 64 * 4 + 10 * 8),
    ],
    ids=["layernorm", "rmsnorm", "recomputed", "residual", "fp32 parameters", "not affine", "no beta"],
)
def test_dgamma_dbeta_and_given_statistics_are_counted(work: Point, moved: int) -> None:
    assert ops.compulsory_bytes(work) == moved
    assert ops.OPS[work.op].mix == "read2_write1"


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("stats", [None, False])
def test_statistics_are_those_of_x_also_while_inputs_are_exchanged(op: str, stats: bool | None) -> None:
    """The second check brings x and dy of another set: with the statistics of the first they would be another work."""
    first, second = make_sets(point(op=op, stats=stats), CPU, 2, 1)

    for tensors in (first, second):
        with tensors.exchanged():
            given = tensors.inputs
            exact = ops.statistics(tensors.point, given["x"].double())[1]  # type: ignore[union-attr]
            for name in exact:
                assert (name in given) == (stats is None)
                if stats is None:
                    torch.testing.assert_close(given[name].double(), exact[name], rtol=1e-7, atol=1e-7)  # type: ignore[union-attr]
            for name in ("x", "dy"):
                assert torch.equal(given[name], first.inputs[name])  # type: ignore[arg-type]
    assert not torch.equal(first.inputs["dy"], second.inputs["dy"])  # type: ignore[arg-type]


@pytest.mark.parametrize("op", BACKWARD)
def test_no_part_of_a_gradient_is_so_small_that_leaving_it_out_would_not_show(op: str) -> None:
    tensors = tensors_of(point("bf16", 64, 4096, op))
    parts = gradients.Parts.of(tensors.point, tensors.inputs)

    assert float(parts.slope.abs().min()) > 0.3
    assert float(parts.g.mean(1).abs().min()) > 0.3
    columns = gradients.reference(tensors.point, tensors.inputs)
    assert float(columns["dgamma"].abs().max()) < 65504 / 8


# the tolerances


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("hidden", [1, 3, 100, 1023, 4096])
def test_honest_gradients_are_ok(op: str, dtype: str, hidden: int) -> None:
    work = point(dtype, 40, hidden, op)

    verdict = judged(work, lambda given: right(work, given))

    assert verdict.ok, verdict
    assert verdict.accurate
    assert verdict.tolerance_used is not None


@pytest.mark.parametrize("stats", [None, False])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
def test_a_large_mean_costs_nothing_where_it_is_given(stats: bool | None, offset: float) -> None:
    work = point(rows=16, hidden=1023, stats=stats)
    given = tensors_of(work).inputs
    given["x"] += offset  # type: ignore[operator]
    exact = ops.statistics(work, given["x"].double())[1]  # type: ignore[union-attr]
    given |= {name: value.float() for name, value in exact.items()}

    expected = expect(work, given)

    assert check(expected, right(work, given)).ok
    unit = float(expected.targets["dx"].allowed.max())
    assert unit < 6e-5 or (stats is False and offset >= 1e2)


def running(terms: torch.Tensor, blocks: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A running sum a block over every blocks-th row, then one over the blocks; partial sums held in ``dtype``."""
    partial = torch.zeros(blocks, terms.shape[1], dtype=dtype)
    for part in terms.split(blocks):
        partial[: len(part)] += part.to(dtype)
    total = torch.zeros(terms.shape[1])
    for one in partial:
        total += one.float()
    return total


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_column_sums_of_many_blocks_are_ok(dtype: str) -> None:
    work = point(dtype, 1 << 15, 8)

    assert judged(work, lambda given: right(work, given, lambda terms: running(terms, 128))).ok


# mutants


def without(what: str) -> Callable[[Point, Inputs], Outputs]:
    """dx with one of its parts left out."""

    def mutant(work: Point, given: Inputs) -> Outputs:
        parts = gradients.Parts.of(work, given)
        level, slope = parts.g.mean(1, keepdim=True), parts.slope
        dx = {"level": parts.g - parts.xhat * slope, "slope": parts.g - level}.get(what)
        if dx is None:
            dx = parts.g - level - parts.xhat * slope
        factor = 1.0 if what == "rstd" else parts.rstd
        return right(work, given) | {"dx": (dx * factor).to(given["x"].dtype)}  # type: ignore[union-attr]

    return mutant


def mean_twice(work: Point, given: Inputs) -> Outputs:
    """mean(g) subtracted once from g and once more from dx (tt-metal#53204)."""
    parts = gradients.Parts.of(work, given)
    level = parts.g.mean(1, keepdim=True)
    dx = parts.rstd * (parts.g - 2 * level - parts.xhat * parts.slope)
    return right(work, given) | {"dx": dx.to(given["x"].dtype)}  # type: ignore[union-attr]


def gamma_in_dgamma(work: Point, given: Inputs) -> Outputs:
    parts = gradients.Parts.of(work, given)
    return right(work, given) | {"dgamma": (parts.g * parts.xhat).sum(0).to(ops.torch_dtype(work.param_dtype))}


def last_row_left_out(work: Point, given: Inputs) -> Outputs:
    found = right(work, given, lambda terms: terms[:-1].sum(0))
    return right(work, given) | {name: found[name] for name in ("dgamma", "dbeta")}


def columns_of_the_neighbour(work: Point, given: Inputs) -> Outputs:
    found = right(work, given)
    return found | {"dgamma": found["dgamma"].roll(1)}


MUTANTS = {
    "no mean of g": without("level"),
    "no mean of g xhat": without("slope"),
    "no rstd": without("rstd"),
    "mean twice": mean_twice,
    "gamma in dgamma": gamma_in_dgamma,
    "last row left out": last_row_left_out,
    "dgamma one column off": columns_of_the_neighbour,
}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_wrong(mutant: Callable[[Point, Inputs], Outputs], dtype: str) -> None:
    work = point(dtype)

    verdict = judged(work, lambda given: mutant(work, given))

    assert (verdict.status, verdict.accurate) == ("wrong", False)
    assert "outside the tolerance" in str(verdict.reason)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_mean_subtracted_twice_is_wrong_on_four_columns(dtype: str) -> None:
    """K22."""
    (case,) = (case for case in inputs.every("layernorm_bwd", dtype) if case.name == "K22")
    given = place(case, fake()).inputs

    found = mean_twice(case.point, given)

    assert found["dx"].float().flatten().tolist() == pytest.approx([-3.5, -3.5, -1.5, -1.5] * 2, abs=2e-2)
    verdict = check(expect(case.point, given), found)
    assert (verdict.status, verdict.failing_elements) == ("wrong", 8)


@pytest.mark.parametrize(("dtype", "stops"), [("bf16", 256), ("fp16", 2048)])
def test_column_sums_in_half_precision_are_wrong(dtype: str, stops: int) -> None:
    """K19: llm.c#428."""
    (case,) = (case for case in inputs.every("layernorm_bwd", dtype) if case.name == "K19")
    given = place(case, fake()).inputs
    half = ops.torch_dtype(dtype)

    found = right(case.point, given, lambda terms: running(terms, 1, half))

    assert found["dbeta"].tolist() == [stops] * 64
    verdict = check(expect(case.point, given), found)
    assert verdict.status == "wrong"
    assert str(verdict.reason).startswith("dgamma: 64 elements")
    assert check(expect(case.point, given), right(case.point, given)).ok


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_partial_sums_in_half_precision_do_not_pass_for_fp32(half: torch.dtype) -> None:
    """However many blocks share the rows."""
    work = point("fp32", 1 << 15, 8)

    assert judged(work, lambda given: right(work, given, lambda terms: running(terms, 128, half))).status == "wrong"


# what was not done


@pytest.mark.parametrize("name", ["dx", "dgamma", "dbeta"])
def test_every_output_must_be_written_and_handed_out(name: str) -> None:
    tensors = tensors_of(point())
    expected, found = expect(tensors.point, tensors.inputs), right(tensors.point, tensors.inputs)

    unwritten = check(expected, found | {name: tensors.outputs()[name]})
    missing = check(expected, {other: found[other] for other in found if other != name})

    assert (unwritten.status, unwritten.reason, unwritten.accurate) == ("no_work", f"{name} was not written", False)
    assert (missing.status, missing.reason) == ("wrong", f"{name} was not handed out")


def test_several_outputs_are_told_by_the_one_that_is_worst() -> None:
    tensors = tensors_of(point())
    expected, found = expect(tensors.point, tensors.inputs, with_torch=True), right(tensors.point, tensors.inputs)
    found["dbeta"][7] += 1.0

    verdict = check(expected, found)

    assert (verdict.status, verdict.failing_elements, verdict.allclose_torch) == ("wrong", 1, False)
    assert verdict.err_max_abs == pytest.approx(1.0, rel=1e-3)
    assert verdict.tolerance_used == pytest.approx(1.0 / verdict.tolerance, rel=1e-3)  # type: ignore[operator]


# contenders


class Planted:
    """Right gradients, handed to ``deed`` before they are written."""

    stem, lang, sha, copies, jit = "planted", "torch", "", False, ""
    regimes, compiler = ("stream",), None

    def __init__(self, deed: Callable[[Tensors, Outputs, dict[str, Any]], None]) -> None:
        self.deed = deed

    def refusal(self, work: Point, gpu: Any) -> None:
        return None

    def bind(self, tensors: Tensors, variant: dict[str, int], gpu: Any) -> Callable[[], Outputs]:
        memory: dict[str, Any] = {"calls": 0}

        def run() -> Outputs:
            memory["calls"] += 1
            found = right(tensors.point, tensors.inputs)
            self.deed(tensors, found, memory)
            outputs = tensors.outputs()
            for name, tensor in found.items():
                outputs[name].copy_(tensor)
            return outputs

        return run


def nothing(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """A right contender."""


def atomics_without_zeroing(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """Sums that are added to what the output holds."""
    for name in ("dgamma", "dbeta"):
        found[name] += tensors.outputs()[name]


def scratch_zeroed_once(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """Sums in working memory that is zeroed when the launch is bound: the second call doubles them."""
    for name in ("dgamma", "dbeta"):
        memory[name] = memory.get(name, 0) + found[name]
        found[name] = memory[name].clone()


def released_early(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """One call in forty loses an update (tritonbench#1266)."""
    if memory["calls"] % 40 == 0:
        found["dgamma"][3] -= 1.0


def dy_overwritten(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """dx is formed in the place of dy (Liger#376), so that the next call finds another one there."""
    tensors.inputs["dy"].copy_(found["dx"])  # type: ignore[union-attr]


def x_rounded(tensors: Tensors, found: Outputs, memory: dict[str, Any]) -> None:
    """One bit of one input, after everything was read."""
    tensors.inputs["x"][5, 3] *= 1 + 2.0**-23  # type: ignore[index]


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        (nothing, None),
        (atomics_without_zeroing, "dgamma"),
        (scratch_zeroed_once, "dgamma: 64 elements outside the tolerance"),
        (dy_overwritten, "dx: 512 elements outside the tolerance"),
        (x_rounded, "wrote to its inputs"),
    ],
)
def test_a_trial_of_gradients_sees_what_only_later_calls_get_wrong(deed: Any, reason: str | None) -> None:
    work = point(rows=8, hidden=64)
    sets = make_sets(work, CPU, 2, 1)
    expected = [expect(work, tensors.judged_inputs()) for tensors in sets]
    trial = attempt(Planted(deed), {}, sets, expected, fake())

    if reason is None:
        assert all(trial.verify(index).ok for index in (0, 1))
        return
    with pytest.raises(Failure) as failure:
        trial.verify(0)
    assert str(failure.value.reason).startswith(reason)


@pytest.mark.parametrize(
    ("deed", "status", "reason", "deterministic"),
    [
        (nothing, ("ok",), None, True),
        (atomics_without_zeroing, ("wrong", "no_work"), "dgamma", None),
        (scratch_zeroed_once, ("wrong",), "right once, then not: dgamma: 64 elements outside the tolerance", False),
        (released_early, ("wrong",), "right once, then not: dgamma: 1 elements outside the tolerance", False),
    ],
)
def test_verify_calls_again_and_into_the_same_buffers(
    deed: Any, status: tuple[str, ...], reason: str | None, deterministic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K19 and K20, in small."""
    case = inputs.Case("K20", point(rows=8, hidden=64), inputs.normal(), repeats=98)
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter([case]))
    monkeypatch.setattr("normbench.adversary.load", lambda spec, build: Planted(deed))

    (row,) = work_off(task("verify", spec="planted.py", ops=["layernorm_bwd"], dtypes=["fp32"])).rows

    assert row["status"] in status
    assert row["deterministic"] is deterministic or deterministic is None  # NaN of poison added to poison
    assert (row["reason"] or "").startswith(reason or "")


@pytest.mark.parametrize("op", BACKWARD)
def test_column_sums_of_a_large_case_are_those_of_all_rows(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.inputs.INT32_ELEMENTS", 1 << 12)
    large = inputs.Case("K8.small", point("fp16", 300, 16, op), inputs.normal(), large=True)
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter([large]))

    def row(**facts: Any) -> dict[str, Any]:
        return work_off(task("verify", spec=EAGER, ops=[op], dtypes=["fp16"]), fake(**facts)).rows[0]

    assert row()["status"] == "ok"
    assert row(faults={"torch_eager": "wrong"})["status"] == "wrong"
    kept = FakeLaunch.__call__

    def forgets_a_row(self: FakeLaunch) -> Outputs:
        outputs = kept(self)
        outputs["dgamma"] -= (self.tensors.inputs["dy"] * self.tensors.inputs["x"])[100]  # type: ignore[operator, index]
        return outputs

    monkeypatch.setattr(FakeLaunch, "__call__", forgets_a_row)
    assert str(row()["reason"]).startswith("dgamma: ")


def test_the_work_on_no_rows_is_to_write_zeros() -> None:
    """K13."""
    tensors = tensors_of(point(rows=0))

    outputs = empty(tensors)()

    assert outputs["dgamma"].tolist() == outputs["dbeta"].tolist() == [0.0] * 101
    assert check(expect(tensors.point, tensors.inputs), outputs).ok


def test_the_copy_of_a_backward_op_reads_two_and_writes_one() -> None:
    tensors = tensors_of(point("bf16"))
    total = tensors.inputs["x"] + tensors.inputs["dy"]  # type: ignore[operator]

    assert check_copy(yardstick(tensors.inputs), total).ok
    assert check_copy(yardstick(tensors.inputs), tensors.inputs["x"]).status == "wrong"  # type: ignore[arg-type]


def test_the_copy_that_sets_a_races_roof_reads_two_and_writes_one() -> None:
    tensors = tensors_of(point("bf16"))
    sources, target = [tensors.inputs["x"], tensors.inputs["dy"]], torch.empty_like(tensors.inputs["x"])  # type: ignore[arg-type]

    copy_of(sources, [target])()

    assert torch.equal(target, sources[0] + sources[1])  # type: ignore[operator]


# baselines, as far as they go without a GPU


def prepared(stem: str, work: Point) -> tuple[Tensors, Callable[[], Outputs]]:
    tensors = tensors_of(work)
    module = load_module(ROOT / "kernels" / "baselines" / f"{stem}.py")
    return tensors, module.prepare_backward(namespace(tensors))


@pytest.mark.parametrize("semantics", [{}, {"beta": False}, {"gamma": False}, {"gamma": False, "beta": False}])
def test_torch_eager_hands_out_what_the_work_has(semantics: dict[str, Any]) -> None:
    tensors, launch = prepared("torch_eager", point(**semantics))

    found = launch()

    assert list(found) == ops.outputs(tensors.point)
    assert check(expect(tensors.point, tensors.inputs), found).ok


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("semantics", [{}, {"beta": False}, {"gamma": False}, {"residual": "fp32"}])
def test_the_function_that_torch_compiles_is_the_gradient(
    op: str, semantics: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(function: Any, **_: Any) -> Any:
        torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    tensors, launch = prepared("torch_compile", point("bf16", op=op, **semantics))

    found = launch()

    assert list(found) == ops.outputs(tensors.point)
    assert check(expect(tensors.point, tensors.inputs), found).ok


def stand_ins() -> dict[str, ModuleType]:
    """Modules with the signatures of quack 0.6.5 and liger-kernel 0.8.5, and honest gradients behind them."""

    def gradient(x: Any, gamma: Any, dy: Any, rstd: Any, mean: Any = None, residual: Any = None) -> Outputs:
        op = "rmsnorm_bwd" if mean is None else "layernorm_bwd"
        work = point(rows=len(x), hidden=x.shape[1], op=op, residual=None if residual is None else "fp32")
        given = {"x": x, "dy": dy, "gamma": gamma, "rstd": rstd, "mean": mean, "residual": residual}
        return right(work, given)

    def layernorm_bwd(x: Any, weight: Any, dout: Any, rstd: Any, mean: Any, has_bias: bool = True) -> Any:
        found = gradient(x, weight, dout, rstd, mean)
        return found["dx"], found["dgamma"], found["dbeta"] if has_bias else None

    def rmsnorm_bwd(
        x: Any, weight: Any, dout: Any, rstd: Any, dresidual_out: Any = None, weight_offset: float = 0.0
    ) -> Any:
        found = gradient(x, weight, dout, rstd, residual=dresidual_out)
        return found["dx"], found["dgamma"], None, None

    def layer_norm_backward(dY: Any, X: Any, W: Any, B: Any, Mean: Any, RSTD: Any) -> Any:
        return tuple(gradient(X, W, dY, RSTD, Mean).values())

    def rms_norm_backward(
        dY: Any, X: Any, W: Any, RSTD: Any, offset: float, casting_mode: int, block: int, warps: int, *rest: Any
    ) -> Any:
        assert (casting_mode, block, warps, rest) == (1, 128, 4, (False, None))
        return tuple(gradient(X, W, dY, RSTD).values())

    names: dict[str, dict[str, Any]] = {
        "quack": {},
        "quack.rmsnorm": {"layernorm_bwd": layernorm_bwd, "rmsnorm_bwd": rmsnorm_bwd}
        | dict.fromkeys(("layernorm_fwd", "rmsnorm_fwd")),
        "liger_kernel": {},
        "liger_kernel.ops": {},
        "liger_kernel.ops.layer_norm": {"LigerLayerNormFunction": None, "layer_norm_backward": layer_norm_backward},
        "liger_kernel.ops.rms_norm": {"LigerRMSNormFunction": None, "rms_norm_backward": rms_norm_backward},
        "liger_kernel.ops.fused_add_rms_norm": {"LigerFusedAddRMSNormFunction": None},
        "liger_kernel.ops.utils": {"calculate_settings": lambda hidden: (128, 4)},
    }
    made = {name: ModuleType(name) for name in names}
    for name, values in names.items():
        vars(made[name]).update(values)
    return made


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("stem", ["quack", "liger"])
def test_libraries_are_given_their_arguments_in_their_order(
    stem: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    tensors, launch = prepared(stem, point(op=op))

    found = launch()

    assert list(found) == ops.outputs(tensors.point)
    assert check(expect(tensors.point, tensors.inputs), found).ok


@pytest.mark.parametrize(
    ("stem", "work", "sentence"),
    [
        ("liger", point(residual="fp32"), "no residual gradient"),
        ("liger", point(rows=1, hidden=65537), "65536 columns at most"),
        ("liger", point(beta=False), "needs gamma, and beta"),
        ("quack", point(residual="fp32"), "takes no residual gradient"),
        ("quack", point(stats=False), "saved statistics"),
        ("torch_eager", point(stats=False), "saved statistics"),
        ("torch_eager", point("bf16", param_dtype="fp32"), "gamma of the input's type"),
        ("torch_compile", point(stats=False), "saved statistics"),
    ],
)
def test_a_baseline_says_which_gradients_it_lacks(
    stem: str, work: Point, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(Unsupported, match=sentence):
        prepared(stem, work)


@pytest.mark.parametrize("stem", ["apex", "cudnn", "flashinfer", "transformer_engine"])
def test_a_baseline_without_gradients_is_skipped_and_not_raced_forward(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normbench.contenders.load_module", lambda path: SimpleNamespace(prepare=None))
    contender = baseline(ROOT / "kernels" / "baselines" / f"{stem}.py")

    with pytest.raises(Unsupported, match=f"{stem} is raced forward only"):
        contender.bind(tensors_of(point()), {}, None)  # type: ignore[arg-type]


def test_the_device_copy_writes_one_tensor_of_two() -> None:
    tensors, launch = prepared("copy", point("fp16"))

    found = launch()

    assert check_copy(yardstick(tensors.inputs), found["dx"]).ok
