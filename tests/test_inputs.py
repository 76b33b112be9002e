"""The adversarial inputs are what they claim to be: an input that misses its fault proves nothing."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from measuring_fixture import fake
from normbench import ops, schema
from normbench.adversary import place
from normbench.check import check, expect
from normbench.inputs import JIT_CASES, Case, every
from normbench.tensors import Tensors

GPU = fake()
PAIRS = list(itertools.product(ops.OPS, schema.DTYPES))


def cases() -> Iterator[Case]:
    for op, dtype in PAIRS:
        yield from every(op, dtype)


SMALL = [case for case in cases() if case.point.rows * case.point.hidden < 200_000]


def named(name: str, op: str = "layernorm", dtype: str = "fp32") -> Tensors:
    return place(next(case for case in every(op, dtype) if case.name == name), GPU)


def label(case: Case) -> str:
    return f"{case.point.op}-{case.point.dtype}-{case.name}"


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_names_and_rows_are_unique(op: str, dtype: str) -> None:
    """``checks`` is keyed by point, contender and case."""
    found = list(every(op, dtype))

    assert len({case.name for case in found}) == len(found) >= 60


def test_public_faults_are_all_there() -> None:
    names = {case.name.split(".")[0] for case in cases()}

    assert {"K1", "K2", "K4", "K5", "K12", "K13", "K15", "K17", "K19", "K20", "K22", "K23"} <= names
    assert {case.name for case in cases()} >= JIT_CASES


def test_hidden_sizes_lie_on_and_beside_every_power_of_two_a_block_may_have() -> None:
    """K6: 1500 columns in a block of 1024."""
    sizes = {case.point.hidden for case in cases() if case.name.startswith("hidden_")}

    assert {1, 1023, 1024, 1025, 1500, 2049, 16384, 32768, 50257} <= sizes
    assert any(size % 2 and size > 32768 for size in sizes)


def beyond(case: Case) -> bool:
    """Squares that overflow fp32, or a gradient that overflows fp16; a scale that is a denormal in fp32."""
    if ops.OPS[case.point.op].backward:
        return case.name == "K17.1e-12" and case.point.dtype == "fp16"
    if case.name == "denormals" and case.point.dtype != "fp16":
        return case.point.op in ("l1norm", "l2norm")
    return case.name == "K4" and case.point.op != "l1norm"


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_a_right_answer_passes_every_input(case: Case) -> None:
    """float64 rounded once: if it fails, the input asks for what nobody can give."""
    tensors = place(case, GPU)
    exact = ops.reference(case.point, tensors.inputs)
    exact |= {name: ops.laid_out(case.point, exact[name]) for name in ops.LARGE if name in exact}
    outputs = {name: tensor.copy_(exact[name]) for name, tensor in tensors.outputs().items()}

    verdict = check(expect(case.point, tensors.inputs), outputs)

    assert verdict.status == ("out_of_range" if beyond(case) else "ok"), verdict
    assert not ops.OPS[case.point.op].backward or verdict.accurate
    assert verdict.failing_elements in (0, None)


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_an_input_is_finite_but_where_its_name_says_otherwise(case: Case) -> None:
    x = place(case, GPU).inputs["x"]
    assert x is not None

    special = case.name.startswith(("K23.last", "K23.pixel", "nan", "inf", "minus_inf"))
    assert ops.as_rows(case.point, x).shape == (case.point.rows, case.point.hidden)
    assert int((~x.isfinite()).sum()) == int(special)


def test_an_input_is_the_same_in_every_process() -> None:
    """A rerun continues the checks of another process: no hash of Python's own may enter a seed."""
    text = "from test_inputs import named; print(named('hidden_33').fingerprint())"
    command = [sys.executable, "-c", text]
    environment = os.environ | {"PYTHONHASHSEED": "7"}

    other = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=True
    )

    assert int(other.stdout) == named("hidden_33").fingerprint()


@pytest.mark.parametrize(("name", "tensor"), [("K12.x", "x"), ("K12.gamma", "gamma"), ("K12.y", "y")])
@pytest.mark.parametrize("dtype", schema.DTYPES)
def test_a_shifted_base_is_misaligned_and_the_others_are_not(name: str, tensor: str, dtype: str) -> None:
    """K12."""
    tensors = named(name, dtype=dtype)

    def off(which: str) -> int:
        return tensors.get(which).data_ptr() % 16  # type: ignore[union-attr]

    assert off(tensor) == ops.torch_dtype(dtype).itemsize
    assert {off(other) for other in {"x", "gamma", "beta", "y"} - {tensor}} == {0}


def test_strided_rows_are_strided() -> None:
    assert named("stride").inputs["x"].stride() == (1536, 1)  # type: ignore[union-attr]
    assert named("stride_odd").inputs["x"].stride() == (1001, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["K1.1", "K1.2", "K1.3", "K2.33333.3", "K5.12", "K5.17", "K5.1536", "K4"])
def test_the_listed_values_are_those_of_unit_gamma_and_no_beta(name: str) -> None:
    tensors = named(name)

    assert torch.equal(tensors.inputs["gamma"], torch.ones(tensors.point.hidden))  # type: ignore[arg-type]
    assert torch.equal(tensors.inputs["beta"], torch.zeros(tensors.point.hidden))  # type: ignore[arg-type]


def test_padding_in_the_variance_shows() -> None:
    """K5: with a fourth column of zeros in the block of three."""
    x = named("K5.12").inputs["x"].double()  # type: ignore[union-attr]
    centred = torch.nn.functional.pad(x, (0, 1)) - x.mean()
    padded = float(centred[0, 0] / (centred[0].square().sum() / 3 + 1e-5).sqrt())

    assert padded == pytest.approx(-0.15, abs=0.01)


def test_gamma_in_fp32_does_not_survive_a_cast_to_fp16() -> None:
    """K15: apex#1379. The result fits, the parameter does not."""
    tensors = named("K15", dtype="fp16")
    gamma = tensors.inputs["gamma"]
    assert gamma is not None

    assert gamma.dtype == torch.float32
    assert gamma.half().isinf().tolist() == [False, True, True, False]
    assert ops.reference(tensors.point, tensors.inputs)["y"].half().isfinite().all()


@pytest.mark.parametrize("op", [op for op in ops.OPS if "rstd" in ops.OPS[op].outputs])
def test_eps_is_seen_in_a_zero_row(op: str) -> None:
    """K17."""
    for eps in ("1e-12", "1e-08", "1e-05"):
        tensors = named(f"K17.{eps}", op, "fp16")
        exact = ops.reference(tensors.point, tensors.inputs)
        assert exact["y"].isfinite().all()
        assert float(exact["rstd"][0]) == pytest.approx(float(eps) ** -0.5)


def test_offsets_span_the_ratios_of_mean_and_deviation() -> None:
    """K1."""
    for exponent in range(7):
        x = named(f"ratio_1e{exponent}").inputs["x"].double()  # type: ignore[union-attr]
        assert float(x.mean() / x.std()) == pytest.approx(10.0**exponent, rel=0.05)


def test_one_row_of_four_has_the_nan_in_its_last_column() -> None:
    """K23."""
    x = named("K23.last").inputs["x"]
    assert x is not None

    assert x.isnan().nonzero().tolist() == [[1, 1022]]


# of the scale-only norms


@pytest.mark.parametrize("op", [op for op in ops.OPS if ops.OPS[op].scale])
def test_a_case_of_a_norm_without_parameters_asks_for_none(op: str) -> None:
    for case in every(op, "bf16"):
        asked = json.loads(str(case.point.semantics)) if str(case.point.semantics) != "default" else {}
        assert set(asked) <= {"axis", "row_stride", *(["eps"] if ops.OPS[op].has_eps else [])}, case.name


def test_a_nan_pixel_lies_between_pixels_that_are_numbers() -> None:
    """K23: its neighbours in memory are pixels of other rows."""
    x = named("K23.pixel", "rmsnorm_channels").inputs["x"]
    assert x is not None

    assert x.shape == (2, 64, 63)
    assert x.isnan().nonzero().tolist() == [[1, 63, 7]]


# of the gradients


@pytest.mark.parametrize("dtype", schema.DTYPES)
def test_column_sums_of_no_rows_are_zero(dtype: str) -> None:
    """K13."""
    tensors = named("K13", "layernorm_bwd", dtype)
    expected = expect(tensors.point, tensors.inputs)

    assert check(expected, tensors.outputs()).reason == "dgamma was not written"
    for name in ("dgamma", "dbeta"):
        tensors.outputs()[name].zero_()
    assert check(expected, tensors.outputs()).ok


@pytest.mark.parametrize(("op", "first", "others"), [("layernorm_bwd", 311.29, -4.941), ("rmsnorm_bwd", 316.2278, 0)])
def test_the_gradient_of_a_zero_row_keeps_eps(op: str, first: float, others: float) -> None:
    """K17: DeepSpeed#581."""
    tensors = named("K17.1e-05", op, "fp16")
    dx = ops.reference(tensors.point, tensors.inputs)["dx"]

    assert dx[:, 0].tolist() == pytest.approx([first] * 4, abs=5e-3)
    assert dx[:, 1:].flatten().tolist() == pytest.approx([others] * 4 * 63, abs=5e-4)


@pytest.mark.parametrize("op", ["layernorm_bwd", "rmsnorm_bwd"])
def test_a_gradient_beyond_fp16_is_an_infinity_and_labelled(op: str) -> None:
    """K17: at eps 1e-12 the first element is near 1e6."""
    tensors = named("K17.1e-12", op, "fp16")
    exact = ops.reference(tensors.point, tensors.inputs)
    outputs = {name: tensor.copy_(exact[name]) for name, tensor in tensors.outputs().items()}
    expected = expect(tensors.point, tensors.inputs)

    verdict = check(expected, outputs)

    assert outputs["dx"].isinf().sum() == 4
    assert (verdict.status, verdict.failing_elements, verdict.accurate) == ("out_of_range", 0, True)
    assert verdict.reason == "dx: 4 elements are beyond their type: infinities, rightly"
    outputs["dx"][0, 0] = 65504.0
    assert check(expected, outputs).status == "wrong"


@pytest.mark.parametrize("dtype", schema.DTYPES)
def test_column_sums_go_on_past_where_half_precision_stops(dtype: str) -> None:
    """K19: llm.c#428; 256 in bf16, 2048 in fp16."""
    tensors = named("K19", "layernorm_bwd", dtype)
    exact = ops.reference(tensors.point, tensors.inputs)

    assert exact["dbeta"].tolist() == [8192.0] * 64
    assert exact["dgamma"].tolist() == pytest.approx([8191.96, -8191.96] * 32, abs=5e-3)


def test_the_gradient_of_four_columns() -> None:
    """K22."""
    tensors = named("K22", "layernorm_bwd")

    dx = ops.reference(tensors.point, tensors.inputs)["dx"]

    assert dx.flatten().tolist() == pytest.approx([-1, -1, 1, 1] * 2, abs=2e-5)


@pytest.mark.parametrize("name", ["K23.last", "K23.dy"])
def test_a_nan_stays_in_the_gradient_of_its_row(name: str) -> None:
    """K23: in every column sum that has a term of it, and in no other row."""
    tensors = named(name, "layernorm_bwd")

    exact = ops.reference(tensors.point, tensors.inputs)

    assert exact["dx"].isnan().all(dim=1).tolist() == [False, True, False, False]
    assert not exact["dx"][[0, 2, 3]].isnan().any()
    assert int(exact["dgamma"].isnan().sum()) == (1023 if name == "K23.last" else 1)
    assert int(exact["dbeta"].isnan().sum()) == (0 if name == "K23.last" else 1)


def test_a_race_is_looked_for_a_hundred_times() -> None:
    """K20: tritonbench#1266, wrong in 99 of 100."""
    case = next(case for case in every("layernorm_bwd", "fp16") if case.name == "K20")

    assert (case.point.rows, case.point.hidden) == (8192, 2048)
    assert case.repeats + 2 == 100  # two with the outputs poisoned before
