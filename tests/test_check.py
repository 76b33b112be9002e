"""The checker's own test: mutants of a right norm, each a fault met in public, and what must get through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from normbench import check as check_module
from normbench import ops
from normbench.check import Verdict, check, check_copy, expect, torch_eager
from normbench.contenders import FakeLaunch, Unsupported
from normbench.gpu import FakeGpu
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, guarded, make_sets, poisoned
from normbench.trial import Failure, attempt, columns, worst

Inputs = dict[str, torch.Tensor | None]
Outputs = dict[str, torch.Tensor]


def point(dtype: str = "fp32", rows: int = 8, hidden: int = 100, op: str = "layernorm", **semantics: Any) -> Point:
    return Point(op, dtype, rows, hidden, "stream", Semantics(**semantics))


def tensors_of(work: Point, seed: int = 1) -> Tensors:
    return make_sets(work, torch.device("cpu"), 1, seed)[0]


def right(inputs: Inputs, eps: float = 1e-5) -> torch.Tensor:
    """An honest LayerNorm: fp32 statistics, one rounding at the end."""
    x, gamma, beta = (inputs[name].float() for name in ("x", "gamma", "beta"))  # type: ignore[union-attr]
    centred = x - x.mean(1, keepdim=True)
    rstd = torch.rsqrt((centred * centred).mean(1, keepdim=True) + eps)
    return (centred * rstd * gamma + beta).to(inputs["x"].dtype)  # type: ignore[union-attr]


def judged(work: Point, y: torch.Tensor | Callable[[Inputs], torch.Tensor], seed: int = 1) -> Verdict:
    tensors = tensors_of(work, seed)
    return check(expect(work, tensors.inputs), {"y": y(tensors.inputs) if callable(y) else y})


# what must get through


@pytest.mark.parametrize("hidden", [1, 3, 31, 100, 1023, 4096])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_an_honest_kernel_is_ok(dtype: str, hidden: int) -> None:
    verdict = judged(point(dtype, hidden=hidden), right)

    assert verdict.ok, verdict
    assert verdict.accurate
    assert verdict.failing_elements == 0
    assert verdict.tolerance_used is not None
    assert verdict.tolerance_used <= 1


def test_no_rows_are_right_whatever_is_there() -> None:
    """K13."""
    assert judged(point(rows=0), right).ok


def test_errors_larger_than_a_chunk_are_still_told_by_their_worst_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.check.CHUNK_ELEMENTS", 300)
    work = point(rows=8)
    y = right(tensors_of(work).inputs)
    y[7, 50] += 0.25

    verdict = judged(work, y)

    assert (verdict.status, verdict.failing_elements) == ("wrong", 1)
    assert verdict.err_max_abs == pytest.approx(0.25, rel=1e-3)
    assert verdict.tolerance_used == pytest.approx(verdict.err_max_abs / verdict.tolerance, rel=1e-6)


# mutants


def in_a_padded_block(inputs: Inputs) -> torch.Tensor:
    """Zeros behind the row, centred like the row, count in the variance (triton#9838)."""
    hidden = inputs["x"].shape[1]  # type: ignore[union-attr]
    block = 1 << (hidden - 1).bit_length()
    x = torch.nn.functional.pad(inputs["x"].float(), (0, block - hidden))  # type: ignore[union-attr]
    centred = x - x.sum(1, keepdim=True) / hidden
    rstd = torch.rsqrt((centred * centred).sum(1, keepdim=True) / hidden + 1e-5)
    return (centred * rstd)[:, :hidden] * inputs["gamma"] + inputs["beta"]


def statistics_in_half(inputs: Inputs) -> torch.Tensor:
    """Sums held in fp16, rounded after every column (DeepSpeed#581, llm.c#428)."""
    x = inputs["x"].half()  # type: ignore[union-attr]
    total, squares = torch.zeros(len(x)).half(), torch.zeros(len(x)).half()
    for column in x.T:
        total += column
        squares += column * column
    mean = total / x.shape[1]
    variance = squares / x.shape[1] - mean * mean
    y = (x.float() - mean.float()[:, None]) * torch.rsqrt(variance.float() + 1e-5)[:, None]
    return (y * inputs["gamma"].float() + inputs["beta"].float()).half()  # type: ignore[union-attr]


def eps_outside_the_root(inputs: Inputs) -> torch.Tensor:
    x = inputs["x"].float()  # type: ignore[union-attr]
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True, correction=0) + 1e-5) * inputs["gamma"] + inputs[
        "beta"
    ]


def gamma_by_row(inputs: Inputs) -> torch.Tensor:
    rows = len(inputs["x"])  # type: ignore[arg-type]
    return right(inputs | {"gamma": inputs["gamma"][:rows, None]})  # type: ignore[index]


def without_gamma(inputs: Inputs) -> torch.Tensor:
    return right(inputs | {"gamma": torch.ones_like(inputs["gamma"])})  # type: ignore[arg-type]


def without_beta(inputs: Inputs) -> torch.Tensor:
    return right(inputs | {"beta": torch.zeros_like(inputs["beta"])})  # type: ignore[arg-type]


def last_columns_as_they_were(inputs: Inputs) -> torch.Tensor:
    """Columns past the last whole vector of four are copied (xformers#785)."""
    y = right(inputs)
    y[:, -1:] = inputs["x"][:, -1:]  # type: ignore[index]
    return y


def without_the_mean(inputs: Inputs) -> torch.Tensor:
    x = inputs["x"]
    rstd = torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)  # type: ignore[operator]
    return x * rstd * inputs["gamma"] + inputs["beta"]


def one_less_in_the_variance(inputs: Inputs) -> torch.Tensor:
    """Bessel's correction, as a standard deviation has it."""
    x = inputs["x"]
    variance, mean = torch.var_mean(x, 1, keepdim=True)  # type: ignore[call-overload]
    return (x - mean) * torch.rsqrt(variance + 1e-5) * inputs["gamma"] + inputs["beta"]


def rows_of_the_neighbour(inputs: Inputs) -> torch.Tensor:
    return right(inputs).roll(1, 0)


MUTANTS = (
    in_a_padded_block,
    gamma_by_row,
    without_gamma,
    without_beta,
    last_columns_as_they_were,
    without_the_mean,
    one_less_in_the_variance,
    rows_of_the_neighbour,
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_wrong(mutant: Callable[[Inputs], torch.Tensor]) -> None:
    # 16 rows of 101 columns: no power of two, and gamma by row has enough of them
    verdict = judged(point(rows=16, hidden=101), mutant)

    assert verdict.status == "wrong"
    assert verdict.accurate is False
    assert verdict.failing_elements
    assert "outside the tolerance" in str(verdict.reason)


def test_eps_outside_the_root_is_wrong_for_a_quiet_row() -> None:
    """It shows where the variance is of the size of eps."""
    work = point()
    tensors = tensors_of(work)
    tensors.inputs["x"] = tensors.inputs["x"] * 1e-3  # type: ignore[operator]

    verdict = check(expect(work, tensors.inputs), {"y": eps_outside_the_root(tensors.inputs)})

    assert verdict.status == "wrong"


def test_statistics_in_half_precision_are_wrong_even_for_a_half_precision_output() -> None:
    assert judged(point("fp16", hidden=2048), statistics_in_half).status == "wrong"
    assert judged(point("fp16", hidden=2048), right).ok


def test_an_fp32_kernel_may_not_hide_behind_16_bits() -> None:
    """Statistics rounded to bf16 are within a few ulp of a bf16 output, and not within one."""

    def rounded(inputs: Inputs) -> torch.Tensor:
        x = inputs["x"].float()  # type: ignore[union-attr]
        mean = x.mean(1, keepdim=True).bfloat16().float()
        rstd = torch.rsqrt(((x - mean) ** 2).mean(1, keepdim=True) + 1e-5).bfloat16().float()
        return ((x - mean) * rstd * inputs["gamma"].float() + inputs["beta"].float()).bfloat16()  # type: ignore[union-attr]

    assert judged(point("bf16", rows=64, hidden=1024), rounded).status == "wrong"


# work that was not done


def test_an_output_that_was_not_written_is_no_work() -> None:
    tensors = tensors_of(point())

    verdict = check(expect(tensors.point, tensors.inputs), tensors.outputs())

    assert (verdict.status, verdict.reason) == ("no_work", "the output was not written")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_elements_that_were_not_written_are_counted(dtype: str) -> None:
    tensors = tensors_of(point(dtype))
    y = tensors.outputs()["y"]
    y[:, :-3] = right(tensors.inputs)[:, :-3]

    verdict = check(expect(tensors.point, tensors.inputs), {"y": y})

    assert (verdict.status, verdict.reason) == ("wrong", "24 elements were not written")


def test_an_output_kept_from_an_earlier_input_is_wrong() -> None:
    earlier = right(tensors_of(point(), seed=2).inputs)

    assert judged(point(), earlier).status == "wrong"


def test_a_statistic_that_was_not_written_is_wrong() -> None:
    tensors = tensors_of(point(stats=True))
    outputs = tensors.outputs()
    outputs["y"].copy_(right(tensors.inputs))
    outputs["mean"].copy_(tensors.inputs["x"].mean(1))  # type: ignore[union-attr]

    verdict = check(expect(tensors.point, tensors.inputs), outputs)

    assert (verdict.status, verdict.reason) == ("wrong", "rstd is off by more than its tolerance")


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_saved_statistics_in_fp32_are_accepted_and_a_variance_in_their_place_is_not(offset: float) -> None:
    tensors = tensors_of(point(stats=True))
    x = tensors.inputs["x"]
    assert x is not None
    x += offset
    expected = expect(tensors.point, tensors.inputs)
    mean = x.mean(1)
    variance = ((x - mean[:, None]) ** 2).mean(1)
    outputs = {"y": right(tensors.inputs), "mean": mean, "rstd": torch.rsqrt(variance + 1e-5)}

    assert check(expected, outputs).ok
    assert check(expected, outputs | {"rstd": variance}).status == "wrong"
    assert check(expected, outputs | {"mean": mean + 0.01 * (1 + offset)}).status == "wrong"


def test_a_statistic_that_was_asked_for_and_not_handed_out_is_wrong() -> None:
    tensors = tensors_of(point(stats=True))

    verdict = check(expect(tensors.point, tensors.inputs), {"y": right(tensors.inputs)})

    assert (verdict.status, verdict.reason) == ("wrong", "mean was asked for and not handed out")


# values that are no numbers


def with_values(work: Point, values: Sequence[tuple[int, int, float]]) -> Tensors:
    tensors = tensors_of(work)
    for row, column, value in values:
        tensors.inputs["x"][row, column] = value  # type: ignore[index]
    return tensors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_in_its_own_row_is_right(value: float) -> None:
    """K23."""
    tensors = with_values(point(rows=4, hidden=1023), [(1, 1022, value)])

    verdict = check(expect(tensors.point, tensors.inputs), {"y": right(tensors.inputs)})

    assert verdict.ok, verdict
    assert verdict.tolerance_used is not None
    assert verdict.err_ulp_max is not None


def test_nan_in_a_neighbours_row_is_wrong() -> None:
    """K23."""
    tensors = with_values(point(rows=4), [(1, 99, float("nan"))])
    y = right(tensors.inputs)
    y[2] = float("nan")

    verdict = check(expect(tensors.point, tensors.inputs), {"y": y})

    assert (verdict.status, verdict.failing_elements) == ("wrong", 100)


def test_a_row_that_swallows_its_nan_is_wrong() -> None:
    """K23: zeros where the reference is NaN."""
    tensors = with_values(point(rows=4), [(1, 99, float("nan"))])
    y = right(tensors.inputs)
    y[1] = 0.0

    verdict = check(expect(tensors.point, tensors.inputs), {"y": y})

    assert (verdict.status, verdict.failing_elements) == ("wrong", 100)


def too_large_for_fp16() -> tuple[Tensors, torch.Tensor]:
    """x = [1, 2, 3, 4] in fp16 with gamma 1e5 at both ends: exactly -134163 and 134163."""
    work = point("fp16", 1, 4, param_dtype="fp32")
    tensors = tensors_of(work)
    tensors.inputs = {
        "x": torch.tensor([[1.0, 2.0, 3.0, 4.0]]).half(),
        "gamma": torch.tensor([1e5, 1.0, 1.0, 1e5]),
        "beta": torch.zeros(4),
    }
    return tensors, right(tensors.inputs)


def test_an_infinity_is_right_where_the_exact_value_is_beyond_fp16() -> None:
    tensors, y = too_large_for_fp16()

    assert y[0].isinf().tolist() == [True, False, False, True]
    assert check(expect(tensors.point, tensors.inputs), {"y": y}).ok


def test_an_infinity_of_the_wrong_sign_is_wrong() -> None:
    tensors, y = too_large_for_fp16()
    y[0, 0] = float("inf")

    assert check(expect(tensors.point, tensors.inputs), {"y": y}).status == "wrong"


def test_an_infinity_where_fp16_has_room_is_wrong() -> None:
    """K15: gamma cast down to fp16."""
    tensors, _ = too_large_for_fp16()
    tensors.inputs["gamma"] = torch.tensor([1.0, 1e5, 1e5, 1.0])
    y = right(tensors.inputs)
    cast_down = y.clone()
    cast_down[0, 1:3] = torch.tensor([float("-inf"), float("inf")])
    expected = expect(tensors.point, tensors.inputs)

    assert check(expected, {"y": y}).ok
    assert check(expected, {"y": cast_down}).status == "wrong"


def test_squares_beyond_fp32_are_labelled_and_keep_their_error() -> None:
    """K4."""
    tensors = tensors_of(point(rows=1, hidden=4))
    tensors.inputs["x"] = torch.tensor([[1e30, -1e30, 1e30, -1e30]])

    verdict = check(expect(tensors.point, tensors.inputs), {"y": torch.zeros(1, 4)})

    assert verdict.status == "out_of_range"
    assert verdict.err_max_abs is not None
    assert not verdict.accurate


# contracts with torch eager


def contracts(work: Point, y: Callable[[torch.Tensor], torch.Tensor]) -> tuple[bool | None, bool | None, bool | None]:
    tensors = tensors_of(work)
    expected = expect(work, tensors.inputs, with_torch=True)
    assert expected.torch_y is not None
    verdict = check(expected, {"y": y(expected.torch_y)})
    return verdict.bitwise_torch, verdict.allclose_torch, verdict.allclose_seed


def test_the_same_bits_meet_every_contract() -> None:
    assert contracts(point(), lambda y: y.clone()) == (True, True, True)


@pytest.mark.parametrize(
    ("dtype", "shift", "kept"),
    [
        ("fp32", 1e-6, (False, True, True)),
        ("fp32", 5e-5, (False, True, False)),
        ("fp32", 1e-2, (False, False, False)),
    ],
)
def test_each_contract_has_its_own_width(dtype: str, shift: float, kept: tuple[bool, ...]) -> None:
    assert contracts(point(dtype), lambda y: y + shift) == kept


def test_one_ulp_of_bf16_is_close_to_torch_and_not_to_the_seed() -> None:
    def next_up(y: torch.Tensor) -> torch.Tensor:
        return (y.view(torch.int16) + 1).view(torch.bfloat16)

    assert contracts(point("bf16"), next_up) == (False, True, False)


def test_minus_zero_is_not_the_same_bits() -> None:
    work = point("fp32", 1, 2, gamma=False, beta=False)
    tensors = tensors_of(work)
    tensors.inputs["x"] = torch.zeros(1, 2)
    expected = replace(expect(work, tensors.inputs), torch_y=torch.zeros(1, 2))

    assert check(expected, {"y": -torch.zeros(1, 2)}).bitwise_torch is False


def test_without_torchs_answer_no_contract_is_claimed() -> None:
    verdict = judged(point(), right)

    assert (verdict.bitwise_torch, verdict.allclose_torch, verdict.allclose_seed) == (None, None, None)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_short_way_says_what_the_long_one_says(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Point("layernorm", dtype, 37, 1023)
    tensors = make_sets(work, torch.device("cpu"), 1, 5)[0]
    expected = expect(work, tensors.inputs, with_torch=True)
    y = ops.reference(work, tensors.inputs)["y"].to(ops.torch_dtype(dtype))
    monkeypatch.setattr(check_module, "CHUNK_ELEMENTS", 5000)

    short, long = check_module._all_right(expected, y), check_module._errors(expected, y)

    assert short is not None
    for name in ("err_max_abs", "err_ulp_max", "tolerance", "tolerance_used"):
        assert getattr(short, name) == pytest.approx(getattr(long, name), rel=1e-6)
    assert (
        replace(short, **{name: getattr(long, name) for name in vars(long) if "err" in name or "tol" in name}) == long
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("row", [0, 20, 36])
def test_the_short_way_ends_at_anything_that_is_not_right(
    value: float, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Point("rmsnorm", "fp32", 37, 1023)
    tensors = make_sets(work, torch.device("cpu"), 1, 5)[0]
    y = ops.reference(work, tensors.inputs)["y"].float()
    y[row, 1022] = value
    monkeypatch.setattr(check_module, "CHUNK_ELEMENTS", 5000)

    assert check_module._all_right(expect(work, tensors.inputs), y) is None


def test_the_copy_is_judged_by_its_source() -> None:
    x = torch.randn(4, 8)
    target = guarded((4, 8), torch.float32, torch.device("cpu"))
    target.poison()

    assert check_copy(x, x.clone()).ok
    assert check_copy(-x.sqrt(), -x.sqrt()).ok, "NaN is copied like any other value"
    assert check_copy(torch.zeros(1), -torch.zeros(1)).status == "wrong"
    assert check_copy(x, x + 1).status == "wrong"
    assert check_copy(x, target.view).status == "no_work"


# a captured contender: what it wrote, and where


@dataclass
class Planted:
    """A contender whose launch does ``deed`` after the right work."""

    deed: Callable[[Tensors], Any] | None = None
    work: bool = True
    stem: str = "planted"
    lang: str = "torch"
    sha: str = ""
    copies: bool = False
    private: bool = False

    def bind(self, tensors: Tensors, variant: dict[str, int], gpu: FakeGpu) -> Callable[[], Outputs]:
        own = torch.empty_like(tensors.outputs()["y"]) if self.private else None
        launches = 0

        def run() -> Outputs:
            nonlocal launches
            outputs = tensors.outputs() if own is None else {"y": own}
            launches += 1
            if self.work or launches == 1:
                outputs["y"].copy_(right(tensors.inputs))
            if self.deed:
                self.deed(tensors)
            return outputs

        return run


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu({})


def verified(contender: Planted, gpu: FakeGpu, index: int = 0) -> Verdict:
    work = point("fp32", 4, 64)
    sets = make_sets(work, gpu.device, 2, 1)
    expected = [expect(work, tensors.judged_inputs()) for tensors in sets]
    return attempt(contender, {}, sets, expected, gpu).verify(index)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, 1])
def test_right_work_in_its_place_is_verified_on_either_buffer_set(gpu: FakeGpu, index: int) -> None:
    assert verified(Planted(), gpu, index).ok


def test_a_contender_may_return_an_output_of_its_own(gpu: FakeGpu) -> None:
    assert verified(Planted(private=True), gpu).ok


@pytest.mark.parametrize("place", [0, 255, 256 + 4 * 64, -1])
def test_a_write_beside_the_output_is_wrong(gpu: FakeGpu, place: int) -> None:
    """The first and last element of either guard band of 1024 bytes."""

    def astray(tensors: Tensors) -> None:
        tensors.guarded["y"].buffer[place] = 0.0

    with pytest.raises(Failure, match="wrong") as failure:
        verified(Planted(astray), gpu)

    assert failure.value.reason == "wrote outside its output"


@pytest.mark.parametrize("name", ["x", "gamma", "beta"])
def test_a_write_to_an_input_is_wrong(gpu: FakeGpu, name: str) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors.inputs[name].view(-1)[3] += 1e-6  # type: ignore[union-attr]

    with pytest.raises(Failure) as failure:
        verified(Planted(spoil), gpu)

    assert failure.value.status == "wrong"


@pytest.mark.parametrize("private", [False, True])
def test_a_launch_that_works_only_the_first_time_is_no_work(gpu: FakeGpu, private: bool) -> None:
    """T6: flashinfer-bench#414; the output may be the contender's own."""
    with pytest.raises(Failure) as failure:
        verified(Planted(work=False, private=private), gpu)

    assert failure.value.status == "no_work"


def test_an_answer_kept_for_its_inputs_address_is_wrong(gpu: FakeGpu) -> None:
    """The inputs of a buffer set do not change while it is timed, so the second check brings values of its own."""
    work = point("fp32", 4, 64)
    sets = make_sets(work, gpu.device, 2, 1)
    expected = [expect(work, tensors.judged_inputs()) for tensors in sets]
    answers = {id(tensors): right(tensors.inputs).clone() for tensors in sets}

    def recall(tensors: Tensors) -> None:
        tensors.outputs()["y"].copy_(answers[id(tensors)])

    before = sets[1].fingerprint()
    trial = attempt(Planted(recall), {}, sets, expected, gpu)  # type: ignore[arg-type]

    assert trial.verify(0).ok
    with pytest.raises(Failure, match="wrong"):
        trial.verify(1)
    assert sets[1].fingerprint() == before


def test_a_failure_of_any_kind_is_a_status_and_a_reason(gpu: FakeGpu) -> None:
    def unsupported(_: Tensors) -> None:
        raise Unsupported("takes no Mondays")

    def silent(_: Tensors) -> None:
        raise RuntimeError

    class OutOfMemoryError(Exception):
        pass

    def hungry(_: Tensors) -> None:
        raise OutOfMemoryError("CUDA out of memory")

    found = []
    for deed in (unsupported, silent, hungry):
        with pytest.raises(Failure) as failure:
            verified(Planted(deed), gpu)
        found.append((failure.value.status, failure.value.reason))

    assert found == [
        ("skipped", "takes no Mondays"),
        ("launch_error", "RuntimeError: no text"),
        ("skipped", "too little memory (OutOfMemoryError: CUDA out of memory)"),
    ]


def test_two_checks_are_told_by_the_larger_error_and_the_weaker_contract() -> None:
    first = columns(Verdict("ok", err_ulp_max=0.5, tolerance_used=0.9, accurate=True, bitwise_torch=True))
    second = columns(Verdict("ok", err_ulp_max=0.7, tolerance_used=0.3, accurate=True, bitwise_torch=False))

    both = worst(first, second)

    assert (both["err_ulp_max"], both["tolerance_used"]) == (0.7, 0.9)
    assert (both["bitwise_torch"], both["allclose_torch"]) == (False, None)


# buffers


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_poison_is_a_nan_no_kernel_makes(dtype: str) -> None:
    y = tensors_of(point(dtype)).outputs()["y"]

    assert y.isnan().all()
    assert poisoned(y).all()
    assert not poisoned(torch.full_like(y, float("nan"))).any()
    assert not poisoned(torch.tensor([-1.0], dtype=y.dtype).sqrt()).any()


@pytest.mark.parametrize(("shift", "aligned"), [(0, 16), (1, 2), (2, 4), (4, 8), (8, 16)])
def test_alignment_is_the_weakest_of_all_tensors(shift: int, aligned: int) -> None:
    tensors = tensors_of(point("fp16", 4, 64))
    moved = guarded((64,), torch.float16, torch.device("cpu"), shift=shift)
    base = moved.buffer.data_ptr() % 16

    tensors.inputs["gamma"] = moved.view

    assert base == 0
    assert tensors.alignment() == aligned


def test_an_odd_pitch_is_a_misalignment() -> None:
    assert tensors_of(point("fp16", 4, 64, row_stride=65)).alignment() == 2


def test_buffer_sets_hold_different_inputs_and_the_same_seed_the_same() -> None:
    first, again = (make_sets(point(), torch.device("cpu"), 2, 7) for _ in range(2))

    assert first[0].fingerprint() != first[1].fingerprint()
    assert [one.fingerprint() for one in first] == [one.fingerprint() for one in again]


def test_the_faked_gpu_writes_statistics_only_where_they_are_asked_for(gpu: FakeGpu) -> None:
    for stats, names in ((None, {"y"}), (True, {"y", "mean", "rstd"})):
        tensors = tensors_of(point(stats=stats))
        outputs = FakeLaunch("naive", {}, tensors, gpu)()
        assert outputs.keys() == names
        assert check(expect(tensors.point, tensors.inputs), outputs).ok


def test_rmsnorm_saves_no_mean() -> None:
    assert tensors_of(point(op="rmsnorm", stats=True)).outputs().keys() == {"y", "rstd"}
    assert ops.saves_stats(point(op="rmsnorm", stats=True))


# the sum of an add op


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_sum_of_an_add_op_has_one_right_value(dtype: str) -> None:
    work = Point("add_rmsnorm", dtype, 8, 100)
    tensors = make_sets(work, torch.device("cpu"), 1, 3)[0]
    x, residual = tensors.inputs["x"], tensors.inputs["residual"]
    assert x is not None
    assert residual is not None
    expected = expect(work, tensors.inputs)
    y = ops.reference(work, tensors.inputs)["y"].to(x.dtype)

    assert check(expected, {"y": y, "sum": x + residual}).ok
    assert check(expected, {"y": y}).reason == "the sum was not handed out"
    off = x + residual
    off[3, 99] = torch.nextafter(off[3, 99].float(), torch.tensor(9.0)).to(x.dtype) if dtype == "fp32" else -off[3, 99]
    verdict = check(expected, {"y": y, "sum": off})
    assert (verdict.status, verdict.accurate) == ("wrong", False)
    assert verdict.reason == "1 elements of the sum differ from x + residual, rounded once"


def test_torch_rounds_the_sum_so_it_is_compared_in_that_mode_only() -> None:
    inputs = make_sets(Point("add_layernorm", "bf16", 4, 32), torch.device("cpu"), 1, 3)[0].inputs

    def eager(mode: str) -> torch.Tensor | None:
        return torch_eager(Point("add_layernorm", "bf16", 4, 32, semantics=Semantics(residual=mode)), inputs)

    assert eager("round") is not None
    assert eager("fp32") is None
