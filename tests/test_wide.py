"""The wide regime from the config to the rows of ``checks``, on the faked GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from measuring_fixture import COPY, EAGER, ROW, fake, point, task, work_off
from normbench import adversary, check, config, contenders, eager, inputs, kernelfile, ops, schema, sweep, wide
from normbench.points import Point, Semantics
from normbench.showdown import Claims

ROOT = Path(__file__).resolve().parents[1]
SPLIT = str(ROOT / "kernels" / "triton" / "triton_split.py")
VAR_MEAN = str(ROOT / "kernels" / "baselines" / "torch_var_mean.py")
NATIVE = str(ROOT / "kernels" / "baselines" / "torch_native_affine.py")
WIDE = config.Study().wide.model_dump()
SMALL = WIDE | {"shapes": ["3x4x5x8", "2x64"], "seeds": [0], "small_shapes": 6}
FINITE = ("uniform", "normal", "scaled_100", "offset_1000", "constant_1e4")


def test_a_wide_shape_is_normalised_over_one_dimension_or_over_all() -> None:
    study = config.load({"regimes": "wide", "ops": ["layernorm", "add_layernorm"], "dtypes": ["fp32", "bf16"]})
    first = sweep.points(study)[0]
    assert (first.shape, first.rows, first.hidden) == ("16x64x256x256", 16, 4194304)
    assert str(first.semantics) == "default"
    assert {(one.op, one.dtype, one.regime) for one in sweep.points(study)} == {("layernorm", "fp32", "wide")}
    assert len(sweep.points(study)) == len(study.wide.shapes)


@pytest.mark.parametrize(
    ("shape", "said"), [("16", "text such as"), ("16x0", "text such as"), ("2x8192x4096", "text such as"), ("ax2", "")]
)
def test_a_shape_that_is_none_is_measured(shape: str, said: str) -> None:
    with pytest.raises(config.ConfigError, match=rf"wide\.shapes: .*{said}"):
        config.load({"wide": {"shapes": shape}})


def test_the_default_study_takes_longer_by_the_wide_one() -> None:
    assert "wide" not in config.Study().regimes


def test_contenders_meet_points_of_regimes_they_do_not_name() -> None:
    wide_ones = {kernel.stem for kernel in kernelfile.find(ROOT / "kernels") if "wide" in kernel.regimes}
    assert wide_ones >= {"wide_torch_order", "wide_onepass", "wide_ring", "wide_split", "triton_split"}
    assert contenders.load(ROW).regimes == schema.USUAL_REGIMES
    assert contenders.load(VAR_MEAN).regimes == ("wide",)
    assert set(contenders.load(EAGER).regimes) == set(schema.REGIMES)


@pytest.mark.parametrize(
    ("arch", "sm_count"), [(75, 40), (80, 108), (86, 84), (87, 16), (90, 132), (100, 148), (120, 188)]
)
def test_work_that_no_variant_serves_is_refused_by_name(arch: int, sm_count: int) -> None:
    wide_ones = [kernel for kernel in kernelfile.find(ROOT / "kernels") if "wide" in kernel.regimes]
    shapes = itertools.product((1, 16, 1000), (8192, 65536, 1 << 20, 3 << 19, 1 << 21, 1 << 22, 1 << 24))
    for kernel, op, dtype, shape in itertools.product(wide_ones, wide.OPS, schema.DTYPES, shapes):
        names = kernelfile.launch_names(Point(op, dtype, *shape, "wide"), arch, sm_count, 16)
        served = kernel.refusal(names) is None
        assert served == bool(served and kernel.variants([256], names)), (kernel.stem, op, dtype, shape)


def test_the_thirty_full_size_cases_are_not_thirty() -> None:
    found = list(wide.cases("layernorm", "fp32", WIDE))
    full = [case for case in found if case.point.shape == "16x64x256x256" and not case.replayed]
    usual = {case.name for case in full if case.name.split(".")[1] in FINITE}
    assert usual == {
        f"wide.{name}.{affine}.{seed}"
        for name, affine, seed in itertools.product(FINITE, ("default", "random"), (0, 1, 2))
    }
    assert Counter(case.name for case in full) == dict.fromkeys(usual, 2), "the output alone, and with mean and rstd"
    assert {case.point.shape for case in found} >= set(WIDE["shapes"])
    assert {case.point.semantics.eps for case in found} == set(WIDE["eps"])
    assert sum(case.replayed for case in found) == 2


def test_two_cases_share_a_row() -> None:
    keys = [
        (case.point.key, case.name)
        for op in wide.OPS
        for dtype in schema.DTYPES
        for case in (*wide.cases(op, dtype, WIDE), *inputs.every(op, dtype))
    ]
    assert len(set(keys)) == len(keys)


def test_the_small_shapes_miss_a_type_or_an_affine_form_or_leave_the_vector_path() -> None:
    found = [
        case.point for dtype in schema.DTYPES for case in wide.cases("layernorm", dtype, WIDE) if "small" in case.name
    ]
    assert len(found) == WIDE["small_shapes"]
    assert all(one.hidden % 4 == 0 for one in found)
    forms = {(one.dtype, one.semantics.gamma, one.semantics.beta) for one in found}
    assert len(forms) == 12


def verified(spec: str, gpu: Any = None, **asked: Any) -> list[dict[str, Any]]:
    told = task("verify", spec=spec, ops=["layernorm"], dtypes=["fp32", "fp16"], wide=SMALL | asked)
    return [row for row in work_off(told, gpu).rows if row["case"].startswith("wide.")]


@pytest.fixture
def no_usual_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter(()))


@pytest.mark.usefixtures("no_usual_cases")
def test_a_wide_case_has_no_row_or_is_wrong_without_a_fault() -> None:
    rows = verified(SPLIT)
    expected = [case for dtype in ("fp32", "fp16") for case in wide.cases("layernorm", dtype, SMALL)]
    assert len(rows) == len(expected)
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["accurate"] for row in rows)


@pytest.mark.usefixtures("no_usual_cases")
def test_a_comparison_of_bits_does_not_say_with_what() -> None:
    rows = verified(SPLIT)
    compared = [row for row in rows if row["bitwise_torch"] is not None]
    assert len(compared) > len(rows) / 2
    assert {row["torch_version"] for row in compared} == {eager.torch_version()}
    assert all(row["compiler"].startswith("Triton ") for row in compared)


@pytest.mark.usefixtures("no_usual_cases")
def test_a_baseline_is_asked_for_statistics_that_it_does_not_hand_out() -> None:
    for spec in (VAR_MEAN, NATIVE, COPY):
        rows = verified(spec)
        assert rows
        assert not any('"stats":true' in row["semantics"] for row in rows)


@pytest.mark.usefixtures("no_usual_cases")
def test_a_graph_that_answers_for_the_captured_values_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what a replay hands out was computed when it was captured."""
    gpu = fake()
    captured = type(gpu).capture

    def stale(self: Any, launches: Any, count: int) -> Any:
        replay = captured(self, launches, count)
        kept = [{name: tensor.clone() for name, tensor in outputs.items()} for outputs in replay.outputs]

        def answer() -> None:
            for outputs, old in zip(replay.outputs, kept, strict=True):
                for name, tensor in old.items():
                    outputs[name].copy_(tensor)

        replay.replay = answer
        return replay

    monkeypatch.setattr(type(gpu), "capture", stale)
    rows = {row["case"]: row for row in verified(SPLIT, gpu)}
    assert rows["wide.replay.random"]["status"] == "wrong"
    assert rows["wide.uniform.random.0"]["status"] == "ok"


@pytest.mark.parametrize("spec", [VAR_MEAN, NATIVE])
@pytest.mark.parametrize("affine", [{}, {"beta": False}, {"gamma": False, "beta": False}])
def test_a_composition_of_torchs_is_no_layernorm(spec: str, affine: dict[str, bool]) -> None:
    import torch

    from normbench.tensors import make_sets

    work = Point("layernorm", "fp32", 5, 64, "wide", Semantics(**affine))
    (tensors,) = make_sets(work, torch.device("cpu"), 1, 0)
    launch = contenders.load(spec)._load("prepare")(contenders.namespace(tensors))  # type: ignore[attr-defined]
    assert check.check(check.expect(work, tensors.inputs), launch()).ok
    assert float(tensors.inputs["x"].min()) >= 0, "x of the wide regime is uniform"  # type: ignore[union-attr]


def test_saved_statistics_with_other_bits_pass_as_torchs() -> None:
    import torch

    from normbench.tensors import make_sets

    work = point(rows=4, hidden=64, stats=True)
    (tensors,) = make_sets(work, torch.device("cpu"), 1, 0)
    expected = check.expect(work, tensors.inputs, with_torch=True)
    theirs = check.torch_eager(work, tensors.inputs)
    assert theirs is not None
    given = {name: tensor.flatten() if name in ops.STATISTICS else tensor for name, tensor in theirs.items()}
    assert check.check(expected, given).bitwise_torch
    moved = torch.nextafter(given["rstd"], torch.full_like(given["rstd"], 9.0))
    verdict = check.check(expected, given | {"rstd": moved})
    assert verdict.ok
    assert verdict.bitwise_torch is False


def test_names_of_torchs_kernels_have_arguments_or_copies() -> None:
    events = [
        "cudaLaunchKernel",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float*)",
        "Memcpy DtoD (Device -> Device)",
        "cudaDeviceSynchronize",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float*)",
    ]
    said = eager.names(events)
    assert said == "at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>"
    assert eager.names(["cudaDeviceSynchronize"]) is None


def tensors_of(work: Point, shift: int = 0) -> dict[str, Any]:
    """Inputs of a work as ``verify`` places them, x moved off its alignment by some elements."""
    fill = partial(wide.FILLS["uniform"], work.dtype)
    case = inputs.Case("any", work, x=None, fill=fill, shift={"x": shift})
    return adversary.place(case, fake()).inputs


def test_the_profiler_is_asked_again_for_other_values_of_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Point] = []

    def kernels(work: Point, _: Any) -> str:
        asked.append(work)
        return f"kernel {len(asked)}"

    monkeypatch.setattr(eager, "kernels", kernels)
    monkeypatch.setattr(eager, "_KNOWN", {})
    same = [("3x64", Semantics()), ("9x128", Semantics()), ("2x64", Semantics(eps=1e-3)), ("1x4x5x8", Semantics())]
    others = [
        (wide.point("layernorm", "fp32", "3x66", Semantics()), 0),  # no whole vectors
        (wide.point("layernorm", "fp32", "3x64", Semantics()), 1),  # an x that is not aligned
        (wide.point("layernorm", "bf16", "3x64", Semantics()), 0),
        (wide.point("layernorm", "fp32", "3x64", Semantics(beta=False)), 0),
        (wide.point("layernorm", "fp32", "3x64", Semantics(stats=True)), 0),
        (wide.point("layernorm", "fp32", "3x64", Semantics(row_stride=72)), 0),
        (wide.point("rmsnorm", "fp32", "3x64", Semantics()), 0),
        (wide.point("rmsnorm", "fp32", "4x64", Semantics()), 0),  # somebody else's kernel, by whose rules nobody knows
    ]

    told = []
    for shape, semantics in same:
        work = wide.point("layernorm", "fp32", shape, semantics)
        told.append(eager.known(work, tensors_of(work)))
    assert told == ["kernel 1"] * len(same)
    for work, shift in others * 2:
        eager.known(work, tensors_of(work, shift))
    assert len(asked) == 1 + len(others)


def test_gamma_and_beta_made_on_the_device_are_constants_or_the_same() -> None:
    work = wide.point("layernorm", "fp32", "2x4096", Semantics())
    found = tensors_of(work)
    gamma, beta = found["gamma"], found["beta"]
    assert (float(gamma.mean()), float(beta.mean())) == pytest.approx((1.0, 0.0), abs=0.05)
    assert (float(gamma.std()), float(beta.std())) == pytest.approx((0.5, 0.5), abs=0.05)
    assert (gamma - 1 - beta).abs().max() > 0.5
    assert all(bool((tensors_of(work)[name] == found[name]).all()) for name in ("x", "gamma", "beta"))


def test_a_race_claims_bits_without_saying_of_what(tmp_path: Path) -> None:
    class Field:
        compilers = {"ours": "NVRTC 13.0"}

    told = tmp_path / "warm.json"
    told.write_text('{"eager": {"version": "2.11.0, CUDA 13.0", "kernels": {"p": "a_kernel"}}}')
    claims = Claims(Field(), told)  # type: ignore[arg-type]
    row = claims.of({"point": "p", "contender": "ours__twin", "bitwise_torch": False})
    assert (row["torch_kernel"], row["torch_version"], row["compiler"]) == (
        "a_kernel",
        "2.11.0, CUDA 13.0",
        "NVRTC 13.0",
    )
    assert "torch_kernel" not in claims.of({"point": "p", "contender": "ours", "bitwise_torch": None})
