"""The reference, the bytes and the tolerance every contender is judged by: right values, and no flat tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from normbench import ops
from normbench.points import Point, Semantics

Inputs = dict[str, torch.Tensor | None]


def point(op: str = "layernorm", dtype: str = "fp32", rows: int = 1, hidden: int = 4, **semantics: object) -> Point:
    return Point(op, dtype, rows, hidden, "stream", Semantics(**semantics))  # type: ignore[arg-type]


def row(*values: float, dtype: torch.dtype = torch.float32) -> Inputs:
    return {"x": torch.tensor([values], dtype=torch.float64).to(dtype), "gamma": None, "beta": None}


def offset_rows(offset: float, rows: int = 16, hidden: int = 1023) -> torch.Tensor:
    """N(0, 1) + offset in fp32."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, hidden, dtype=torch.float64, generator=generator) + offset).float()


# the reference


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ((1998.4, 1999.7, 2000.4, 2001.5), (-1.422550, -0.266776, 0.355665, 1.333661)),
        ((19998.4, 19999.7, 20000.4, 20001.5), (-1.422286, -0.267438, 0.356006, 1.333719)),
        ((40000, 40001, 40002, 40003), (-1.341635, -0.447212, 0.447212, 1.341635)),
    ],
    ids=["K1.1", "K1.2", "K1.3"],
)
def test_the_reference_does_not_cancel(values: tuple[float, ...], right: tuple[float, ...]) -> None:
    """K1."""
    y = ops.reference(point(), row(*values))["y"]

    assert y[0].tolist() == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize(("value", "hidden"), [(1234.0, 256), (1234.5, 1023), (33333.3, 4096), (0.1, 1023)])
def test_the_reference_of_a_constant_row_is_exactly_zero(value: float, hidden: int) -> None:
    """K2."""
    y = ops.reference(point(hidden=hidden), row(*[value] * hidden))["y"]

    assert y.abs().max() == 0


@pytest.mark.parametrize(
    ("values", "first"),
    [((10, 11, 12), -1.224736), (range(1, 18), -1.632993), ((4, 2) * 768, 0.999995)],
    ids=["3 in a block of 4", "17 in 32", "1536 in 2048"],
)
def test_the_reference_counts_no_padding(values: tuple[float, ...], first: float) -> None:
    """K5."""
    y = ops.reference(point(hidden=len(values)), row(*values))["y"]

    assert float(y[0, 0]) == pytest.approx(first, abs=1e-6)


def test_gamma_in_fp32_is_not_cast_to_the_type_of_x() -> None:
    """K15: apex#1379."""
    inputs = row(1, 2, 3, 4, dtype=torch.float16) | {"gamma": torch.tensor([1, 1e5, 1e5, 1])}

    y = ops.reference(point(dtype="fp16", param_dtype="fp32"), inputs)["y"].half()

    assert y[0].tolist() == torch.tensor([-1.3418, -44736, 44736, 1.3418]).half().tolist()


@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-5])
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_a_zero_row_gives_beta_whatever_eps(op: str, eps: float) -> None:
    """K17: DeepSpeed#581, an eps that half precision loses."""
    beta = torch.linspace(-1, 1, 64).half() if op == "layernorm" else None
    inputs = {"x": torch.zeros(4, 64).half(), "gamma": torch.ones(64).half(), "beta": beta}

    y = ops.reference(point(op, "fp16", 4, 64, eps=eps), inputs)["y"]

    assert torch.equal(y, torch.zeros(4, 64).double() if beta is None else beta.double().expand(4, 64))


def test_eps_is_inside_the_root() -> None:
    statistics = ops.reference(point(eps=0.75), row(-0.5, 0.5, -0.5, 0.5))

    assert float(statistics["rstd"][0]) == 1.0


def test_rmsnorm_subtracts_no_mean() -> None:
    assert ops.reference(point("rmsnorm", eps=0.0), row(3, 3, 3, 3))["y"].tolist() == [[1, 1, 1, 1]]


def test_only_the_row_with_nan_is_nan() -> None:
    """K23."""
    x = offset_rows(0, 4)
    x[1, 1022] = float("nan")

    y = ops.reference(point(rows=4, hidden=1023), {"x": x, "gamma": None, "beta": None})["y"]

    assert y.isnan().all(dim=1).tolist() == [False, True, False, False]
    assert not y[[0, 2, 3]].isnan().any()


def test_a_strided_x_is_read_by_its_rows() -> None:
    wide = offset_rows(0, 3, 48)

    strided = ops.reference(point(rows=3, hidden=32, row_stride=48), {"x": wide[:, :32]})["y"]

    assert torch.equal(strided, ops.reference(point(rows=3, hidden=32), {"x": wide[:, :32].contiguous()})["y"])


def test_the_llama_cast_rounds_before_gamma_and_the_offset_is_added_to_gamma() -> None:
    x, gamma = offset_rows(0, 2, 64).bfloat16(), offset_rows(0, 1, 64)[0].bfloat16()
    inputs: Inputs = {"x": x, "gamma": gamma}

    llama = ops.reference(point("rmsnorm", "bf16", 2, 64, cast="llama", offset=1.0), inputs)["y"]

    xhat = ops.reference(point("rmsnorm", "bf16", 2, 64), {"x": x})["y"].bfloat16().double()
    assert torch.equal(llama, xhat * (gamma.double() + 1))


@pytest.mark.parametrize("distance", [0.9, 2.0])
def test_a_rounding_before_gamma_may_go_the_other_way_only_near_the_middle_of_two_values(distance: float) -> None:
    """distance: of xhat from the middle, in units of what fp32 may be off by."""
    work = point("rmsnorm", "bf16", 1, 2, eps=1e-30, cast="llama", gamma=False)
    middle = torch.tensor([[1 + 2.0**-8, 0.5]], dtype=torch.float64)
    error = 4 * ops.sum_depth(2) * ops.UNIT_ROUNDOFF["fp32"]

    flip = ops.rounding_flip(work, {"xhat": middle * (1 + distance * error)})

    assert flip.tolist() == [[2.0**-7 if distance < 1 else 0.0, 0.0]]


def test_the_offset_scales_what_an_error_may_be() -> None:
    x = offset_rows(1e4, 2, 64)
    inputs: Inputs = {"x": x, "gamma": torch.zeros(64), "beta": None}
    allowed = {}
    for offset in (0.0, 1.0):
        work = point("layernorm", "fp32", 2, 64, offset=offset)
        allowed[offset] = ops.tolerance(work, inputs, ops.reference(work, inputs)).max()

    assert allowed[1.0] > 1e-3 > 1e-9 > allowed[0.0]


def test_layernorm_has_one_cast_order() -> None:
    with pytest.raises(ValueError, match="llama"):
        ops.reference(point("layernorm", "bf16", 1, 4, cast="llama"), row(1, 2, 3, 4))


# bytes


@pytest.mark.parametrize(
    ("work", "moved"),
    [
        (point("layernorm", "fp16", 1, 4, param_dtype="fp32"), 8 + 8 + 2 * 16),
        (point("layernorm", "bf16", 10, 64), 2 * 10 * 64 * 2 + 2 * 64 * 2),
        (point("rmsnorm", "bf16", 10, 64), 2 * 10 * 64 * 2 + 64 * 2),
        (point("layernorm", "fp32", 10, 64, stats=True), 2 * 10 * 64 * 4 + 2 * 64 * 4 + 10 * 8),
        (point("rmsnorm", "fp32", 10, 64, stats=True), 2 * 10 * 64 * 4 + 64 * 4 + 10 * 4),
        (point("layernorm", "fp32", 10, 64, gamma=False, beta=False), 2 * 10 * 64 * 4),
        (point("layernorm", "fp32", 10, 64, row_stride=96), 2 * 10 * 64 * 4 + 2 * 64 * 4),
        (point("layernorm", "fp32", 0, 64), 2 * 64 * 4),
    ],
    ids=["K15", "bf16", "rmsnorm", "mean and rstd", "rstd", "no gamma, no beta", "gaps are not read", "no rows"],
)
def test_bytes_are_counted_by_each_tensors_own_size(work: Point, moved: int) -> None:
    assert ops.compulsory_bytes(work) == moved


# the tolerance

Norm = Callable[[torch.Tensor], torch.Tensor]
EPS = 1e-5


def moments(x: torch.Tensor) -> torch.Tensor:
    """E[x^2] - E[x]^2 in fp32."""
    mean = x.mean(1, keepdim=True)
    variance = (x * x).mean(1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp(min=0) + EPS)


def two_pass(x: torch.Tensor) -> torch.Tensor:
    """The mean by a running sum of each of 32 lanes, then the squares of what is left."""
    mean = lanes(x) / x.shape[1]
    centred = x - mean
    return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + EPS)


def corrected(x: torch.Tensor) -> torch.Tensor:
    """Two passes, with what the rounding of the mean left taken away again."""
    centred = x - lanes(x) / x.shape[1]
    centred = centred - centred.mean(1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + EPS)


def lanes(x: torch.Tensor) -> torch.Tensor:
    """Sums of the rows in fp32, each of 32 lanes adding up its columns one after the other."""
    columns = math.ceil(x.shape[1] / 32)
    padded = torch.nn.functional.pad(x, (0, 32 * columns - x.shape[1])).view(len(x), columns, 32)
    total = torch.zeros(len(x), 32)
    for index in range(columns):
        total = total + padded[:, index]
    return total.sum(1, keepdim=True)


def share_used(x: torch.Tensor, norm: Norm) -> float:
    """Largest error of ``norm`` in units of its tolerance."""
    inputs: Inputs = {"x": x, "gamma": None, "beta": None}
    work = point(rows=x.shape[0], hidden=x.shape[1])
    exact = ops.reference(work, inputs)
    return float(((norm(x).double() - exact["y"]).abs() / ops.tolerance(work, inputs, exact)).max())


@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_a_cancelling_variance_is_rejected_where_a_flat_tolerance_passes(offset: float) -> None:
    """K1: at 1e2 its error of 1e-3 is under the 1e-2 that the honest two-pass needs at 1e6."""
    assert share_used(offset_rows(offset), moments) > 1


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("norm", [two_pass, corrected])
def test_an_exact_two_pass_is_accepted_at_every_offset(norm: Norm, offset: float) -> None:
    assert share_used(offset_rows(offset), norm) < 1


def test_one_number_would_not_do() -> None:
    """The honest kernel's error at 1e6 is larger than the cancelling one's at 1e2."""
    near, far = offset_rows(1e2), offset_rows(1e6)

    def error(x: torch.Tensor, norm: Norm) -> float:
        exact = ops.reference(point(rows=16, hidden=1023), {"x": x})["y"]
        return float((norm(x).double() - exact).abs().max())

    assert error(far, two_pass) > error(near, moments)


def test_a_constant_row_tells_a_corrected_mean_from_a_rounded_one() -> None:
    """K2: a mean off by one rounding of 33333.3 is 0.0039, and rstd is 316."""
    x = torch.full((2, 4096), 33333.3)

    assert share_used(x, two_pass) > 100
    assert share_used(x, corrected) < 1


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_16_bit_output_may_be_off_by_one_ulp_and_no_more(dtype: str) -> None:
    x = offset_rows(0, 4, 256).to(ops.torch_dtype(dtype))
    inputs: Inputs = {"x": x}
    work = point("rmsnorm", dtype, 4, 256)
    exact = ops.reference(work, inputs)
    ulps = ops.tolerance(work, inputs, exact) / ops.ulp(exact["y"].abs(), dtype)

    assert float(ulps.min()) >= 1
    assert float(ulps.max()) < 1.1


def test_the_tolerance_grows_with_gamma_and_not_with_beta_alone() -> None:
    x = offset_rows(0, 2, 64)
    work = point(rows=2, hidden=64)

    def allowed(gamma: float, beta: float) -> float:
        inputs: Inputs = {"x": x, "gamma": torch.full((64,), gamma), "beta": torch.full((64,), beta)}
        return float(ops.tolerance(work, inputs, ops.reference(work, inputs)).max())

    assert allowed(1000, 0) > 900 * allowed(1, 0)
    assert allowed(1, 1000) < 1e-3


@pytest.mark.parametrize(
    ("dtype", "value", "step"),
    [
        ("fp32", 1.0, 2.0**-23),
        ("fp32", 0.99, 2.0**-24),
        ("fp16", 1.0, 2.0**-10),
        ("fp16", 0.0, 2.0**-24),
        ("fp16", 1e-7, 2.0**-24),
        ("bf16", 1.0, 2.0**-7),
        ("bf16", 3.0, 2.0**-6),
        ("bf16", 0.0, 2.0**-133),
    ],
)
def test_an_ulp_is_the_step_to_the_next_number(dtype: str, value: float, step: float) -> None:
    assert float(ops.ulp(torch.tensor(value, dtype=torch.float64), dtype)) == step


@pytest.mark.parametrize(("value", "beyond"), [(1e18, False), (1e19, True), (1e30, True), (float("inf"), False)])
def test_a_sum_of_squares_beyond_fp32_is_known_from_the_input(value: float, beyond: bool) -> None:
    """K4; an infinity in the input is another matter: its row is NaN for everybody."""
    assert ops.out_of_range(point(), row(value, -value, value, -value)) is beyond


# add ops


def added(op: str, dtype: str, mode: str | None) -> tuple[Point, Inputs]:
    """A row whose sum, 256.5, bf16 rounds to 256."""
    work = point(f"add_{op}", dtype, 1, 4, residual=mode)
    x, residual = torch.tensor([[256.0, 1, 2, 3]]), torch.tensor([[0.5, 1, 2, 3]])
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return work, {"x": x.to(dtypes[dtype]), "residual": residual.to(dtypes[dtype]), "gamma": None, "beta": None}


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize(("mode", "first"), [(None, 256.5), ("fp32", 256.5), ("round", 256.0)])
def test_the_residual_mode_decides_what_is_normalised_and_not_what_is_handed_out(
    op: str, mode: str | None, first: float
) -> None:
    work, inputs = added(op, "bf16", mode)

    found = ops.reference(work, inputs)

    plain = ops.reference(point(op), row(first, 2, 4, 6))
    assert torch.equal(found["y"], plain["y"])
    assert found["sum"].tolist() == [[256.5, 2, 4, 6]]
    assert torch.equal(found["rstd"], plain["rstd"])


def test_in_fp32_both_modes_are_one() -> None:
    assert torch.equal(*(ops.reference(*added("layernorm", "fp32", mode))["y"] for mode in ("fp32", "round")))


def test_an_add_op_moves_four_tensors() -> None:
    work = point("add_layernorm", "bf16", 8, 64)

    assert ops.compulsory_bytes(work) == 4 * 8 * 64 * 2 + 2 * 64 * 2
    assert ops.OPS[work.op].mix == "read2_write2"


def test_the_sum_in_fp32_is_granted_its_rounding() -> None:
    """A sum of two values of 1e4 that is normalised to size one is known to 1e-3 at best."""
    x = offset_rows(1e4)
    inputs = {"x": x, "residual": x.flip(1).contiguous(), "gamma": None, "beta": None}
    work = point("add_layernorm", "fp32", *x.shape)
    exact = ops.reference(work, inputs)

    formed = {"x": inputs["x"] + inputs["residual"], "gamma": None, "beta": None}
    right = ops.reference(point("layernorm", "fp32", *x.shape), formed)["y"]

    assert (right - exact["y"]).abs().max() > 1e-4
    assert bool(((right - exact["y"]).abs() <= ops.tolerance(work, inputs, exact)).all())
