"""Scale-only norms, along rows and over the channels of images: their work, their checks, who is raced on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from measuring_fixture import EAGER, task, work_off
from normbench import check, config, contenders, gpu, kernelfile, ops, sweep, trial
from normbench.inputs import every
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, make_inputs, make_outputs, set_bytes

ROOT = Path(__file__).resolve().parents[1]
SCALES = [name for name, op in ops.OPS.items() if op.scale]
CHANNELS = Semantics(axis=1)
CPU = torch.device("cpu")
WIDE = ops.point_of("l1norm", "fp32", (4, 64, 512, 512), semantics=CHANNELS)
BASELINES = ("torch_eager", "torch_builtin", "torch_moved")


def image(op: str, dtype: str = "fp32", dims: tuple[int, ...] = (2, 5, 3, 7)) -> Point:
    return ops.point_of(op, dtype, dims, semantics=CHANNELS)


def tensors_of(point: Point) -> Tensors:
    return Tensors(point, make_inputs(point, CPU, 3), make_outputs(point, CPU))


def defined(op: str, x: torch.Tensor, axis: int, eps: float = 1e-5) -> torch.Tensor:
    """The definitions of KernelBench level 1, problems 36, 38 and 39."""
    if op == "l1norm":
        return x / x.abs().mean(dim=axis, keepdim=True)
    if op == "l2norm":
        return x / torch.norm(x, p=2, dim=axis, keepdim=True)
    return x / torch.sqrt(torch.mean(x**2, dim=axis, keepdim=True) + eps)


# the work


@pytest.mark.parametrize(
    ("op", "values", "right"),
    [
        ("l1norm", (1.0, -3.0), (0.5, -1.5)),
        ("l2norm", (3.0, -4.0), (0.6, -0.8)),
        ("rmsnorm_channels", (3.0, 3.0), (1.0, 1.0)),
    ],
)
def test_a_row_is_divided_by_its_scale(op: str, values: tuple[float, ...], right: tuple[float, ...]) -> None:
    exact = ops.reference(Point(op, "fp32", 1, 2), {"x": torch.tensor([values])})

    assert exact.keys() == {"y"}, "no statistics are handed out"
    assert exact["y"][0].tolist() == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("op", SCALES)
def test_the_channels_of_an_image_are_normalised_pixel_by_pixel(op: str) -> None:
    point = image(op)
    x = make_inputs(point, CPU, 1)["x"]
    assert x is not None

    y = ops.laid_out(point, ops.reference(point, {"x": x})["y"])

    assert x.shape == (2, 5, 21)
    assert (point.rows, point.hidden, ops.inner(point), ops.layout(point)) == (42, 5, 21, "channels")
    assert torch.allclose(y, defined(op, x.double().reshape(2, 5, 3, 7), 1).reshape(2, 5, 21), rtol=1e-12)


def test_the_channel_form_of_an_op_along_rows_is_another_point() -> None:
    assert image("l1norm").key != ops.point_of("l1norm", "fp32", (2, 5, 3, 7)).key
    assert str(image("l1norm").semantics) == '{"axis":1}'
    assert ops.layout(ops.point_of("l1norm", "fp32", (2, 5, 3, 7))) == "rows"


def test_channels_are_what_rmsnorm_channels_normalises_by_itself() -> None:
    point = ops.point_of("rmsnorm_channels", "fp32", (2, 5, 3, 7))

    assert (str(point.semantics), point.hidden) == ("default", 5)
    assert ops.point_of("rmsnorm_channels", "fp32", (2, 3, 7, 5), semantics=Semantics(axis=-1)).hidden == 5


def test_a_point_of_a_table_is_the_point_that_was_written() -> None:
    for point in (image("l2norm"), ops.point_of("rmsnorm_channels", "bf16", (4, 64, 16, 16))):
        again = Point.from_identity(point.identity())
        assert (again, ops.inner(again)) == (point, ops.inner(point))


@pytest.mark.parametrize("dims", [(8,), (2, 0, 4)])
def test_a_shape_without_anything_to_normalise_is_refused(dims: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="nothing to normalise along axis 1"):
        ops.point_of("rmsnorm_channels", "fp32", dims)


@pytest.mark.parametrize("op", SCALES)
def test_bytes_are_one_read_and_one_write(op: str) -> None:
    assert ops.compulsory_bytes(image(op, "bf16")) == 2 * 2 * (2 * 5 * 21)


def test_some_rows_are_those_of_all() -> None:
    point = image("l1norm")
    x = make_inputs(point, CPU, 1)["x"]
    assert x is not None
    rows = ops.as_rows(point, x)

    assert torch.equal(ops.laid_out(point, rows), x)
    assert torch.equal(ops.some_rows(point, x, slice(19, 25)), rows[19:25]), "across two images"
    assert torch.equal(ops.some_rows(point, x, [41, 0]), rows[[41, 0]])


@pytest.mark.parametrize(
    ("op", "value", "beyond"),
    [
        ("l1norm", 1e30, False),
        ("l1norm", 3e38, True),
        ("l1norm", 1e-39, True),
        ("l1norm", 0.0, False),
        ("l2norm", 1e30, True),
        ("l2norm", 1e-20, True),
        ("l2norm", 1e-18, False),
        ("rmsnorm_channels", 1e-20, False),
        ("rmsnorm_channels", 1e30, True),
    ],
)
def test_what_fp32_cannot_hold_is_labelled(op: str, value: float, beyond: bool) -> None:
    x = torch.ones(2, 4)
    x[1] = value

    assert ops.out_of_range(Point(op, "fp32", 2, 4), {"x": x}) == beyond


# the study


def test_shapes_are_those_of_the_configuration_whatever_the_card() -> None:
    study = config.load(
        {
            "ops": SCALES,
            "dtypes": ["fp32"],
            "eps": 1e-3,
            "scale": {"channels": ["112x64x512x512"], "channels_last": ["4x512x512x32"], "rows": ["32768x65535"]},
        }
    )
    found = sweep.points(study, memory_bytes=8 << 30)

    assert [(point.op, point.shape, point.hidden, str(point.semantics)) for point in found] == [
        ("rmsnorm_channels", "112x64x512x512", 64, '{"eps":0.001}'),
        ("rmsnorm_channels", "4x512x512x32", 32, '{"axis":-1,"eps":0.001}'),
        ("l1norm", "112x64x512x512", 64, '{"axis":1}'),
        ("l1norm", "4x512x512x32", 32, "default"),
        ("l1norm", "32768x65535", 65535, "default"),
        ("l2norm", "112x64x512x512", 64, '{"axis":1}'),
        ("l2norm", "4x512x512x32", 32, "default"),
        ("l2norm", "32768x65535", 65535, "default"),
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [("channels", "64x512"), ("rows", "4x5x6"), ("rows", "0x64"), ("rows", "8x16777217"), ("channels_last", "1x2x3x")],
)
def test_a_shape_that_is_none_is_named(key: str, value: str) -> None:
    with pytest.raises(config.ConfigError, match=rf"scale\.{key}: '{value}' is not"):
        config.load({"scale": {key: [value]}})


def card(free_gb: float) -> Any:
    return SimpleNamespace(fake=False, free_bytes=lambda: int(free_gb * 1e9))


@pytest.mark.parametrize(
    "point",
    [ops.point_of("rmsnorm_channels", "fp32", (112, 64, 512, 512)), ops.point_of("l2norm", "fp32", (32768, 65535))],
    ids=["problem 36", "problems 38 and 39"],
)
def test_the_official_inputs_fit_a_card_of_141_gb_and_are_skipped_on_one_of_24(point: Point) -> None:
    sets = gpu.buffer_sets(set_bytes(point), 60 << 20, "stream")

    assert sets == 1
    assert trial.memory_refusal(point, sets, card(139)) is None
    assert "GB of device memory" in str(trial.memory_refusal(point, sets, card(24)))


# checks


@pytest.mark.parametrize("op", SCALES)
def test_a_reference_that_is_made_anew_judges_as_one_that_is_kept(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = image(op, "bf16", (3, 65, 7, 5))
    tensors = tensors_of(point)
    y = tensors.outputs()["y"]
    y.copy_(ops.laid_out(point, ops.reference(point, tensors.inputs)["y"]))
    kept = check.expect(point, tensors.inputs, with_torch=True)
    monkeypatch.setattr(check, "KEPT_ELEMENTS", 1)
    monkeypatch.setattr(check, "CHUNK_ELEMENTS", 65 * 4)
    made = check.expect(point, tensors.inputs, with_torch=True)

    assert isinstance(made.targets["y"], check.MadeTarget)
    assert check.kept_bytes(point) == 0
    for wrong in (False, True):
        if wrong:
            y[2, 64, 34] += 1.0
        first, second = (check.check(expected, tensors.outputs()) for expected in (kept, made))
        assert first.status == second.status == ("wrong" if wrong else "ok")
        assert second.failing_elements == first.failing_elements == int(wrong)
        assert (second.err_max_abs, second.bitwise_torch) == (first.err_max_abs, first.bitwise_torch)
        assert second.tolerance_used == pytest.approx(first.tolerance_used, rel=1e-6)


@pytest.mark.parametrize("op", SCALES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_row_divided_by_the_scale_of_its_neighbour_is_wrong(op: str, dtype: str) -> None:
    """What a kernel that is off by one pixel hands out."""
    point = image(op, dtype)
    tensors = tensors_of(point)
    rows = ops.as_rows(point, tensors.inputs["x"]).double()  # type: ignore[arg-type]
    scale = ops.row_scale(point, rows).roll(1)
    tensors.outputs()["y"].copy_(ops.laid_out(point, rows / scale[:, None]))

    assert check.check(check.expect(point, tensors.inputs), tensors.outputs()).status == "wrong"


def test_verify_answers_inputs_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("channels_33", "pixels_7", "K23.pixel", "K12.y_channels", "K13.channels")
    short = [case for case in every("l2norm", "bf16") if case.name in names]
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter(short))

    rows = work_off(task("verify", spec=EAGER, ops=["l2norm"], dtypes=["bf16"])).rows

    assert sorted(row["case"] for row in rows) == sorted(names)
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]


# who is raced


@pytest.mark.parametrize("stem", BASELINES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", SCALES)
@pytest.mark.parametrize("form", ["rows", "channels"])
def test_a_baseline_is_right_or_says_why_it_is_not_raced(stem: str, dtype: str, op: str, form: str) -> None:
    point = image(op, dtype) if form == "channels" else Point(op, dtype, 6, 33)
    tensors = tensors_of(point)
    prepare = contenders.load_module(ROOT / "kernels" / "baselines" / f"{stem}.py").prepare_scale
    try:
        launch = prepare(contenders.namespace(tensors))
    except contenders.Unsupported:
        refuses = {("torch_moved", "rows"), ("torch_builtin", "channels")}
        assert (stem, form) in refuses, "it has a function for this"
        return

    verdict = check.check(check.expect(point, tensors.inputs, with_torch=True), launch())

    assert verdict.status == "ok", verdict
    assert stem != "torch_eager" or verdict.bitwise_torch


def test_a_library_of_norms_with_parameters_is_not_raced_under_a_wrong_name(tmp_path: Path) -> None:
    """Without a function of its own for them it would be asked for an rmsnorm."""
    path = tmp_path / "someone.py"
    path.write_text('LANG = "library"\n\n\ndef prepare(t):\n    return lambda: {"y": t.x}\n')

    with pytest.raises(contenders.Unsupported, match="someone is raced on norms with parameters only"):
        contenders._prepare_of(path, ops.OPS["l1norm"].prepared_by)


def test_a_kernel_of_channels_refuses_rows() -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / "channel_tile.cu")
    rows, pixels = (kernelfile.launch_names(point, 90, 132, 16) for point in (Point("l1norm", "fp32", 2, 64), WIDE))

    assert kernel.refusal(rows) == "channel_tile takes x as channels, not as rows"
    assert kernel.refusal(pixels) is None
    assert (kernel.serves(Point("l1norm", "fp32", 2, 64)), kernel.serves(WIDE)) == (False, True)


def test_a_tile_of_pixels_is_held_in_registers() -> None:
    """The channels of a thread, times the groups of a block, are all channels; never twice as many."""
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / "channel_tile.cu")
    found = kernel.variants(config.Study().block, kernelfile.launch_names(WIDE, 90, 132, 16))

    held = {variant["vecs"] * (variant["block"] // variant["lanes"]) for variant in found}
    assert held == {64}
    assert len(found) >= 6
