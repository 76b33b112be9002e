"""The reduction of dgamma and dbeta as a part of a gradient's time: who has one, how it is told apart, who pays."""

from __future__ import annotations

import json
import random
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch

from measuring_fixture import COPY, EAGER, FACTS, ROOT, ROW, STUDY, Recorder, fake, point, race_task, work_off
from normbench import kernelfile, racing, schema
from normbench.contenders import CudaKernel, CudaLaunch, FakeLaunch, TritonKernel, TritonLaunch, rest
from normbench.gpu import REDUCTION_SHARE, FakeGpu, FakeReplay
from normbench.tensors import Tensors, make_sets
from normbench.trial import Trial

TRITON = str(ROOT / "kernels" / "triton" / "triton_bwd.py")
WORK = point("layernorm_bwd")
FIELD = (TRITON, EAGER, COPY)


def race(specs: tuple[str, ...] = FIELD, gpu: FakeGpu | None = None, **study: Any) -> Recorder:
    return work_off(race_task(WORK, specs, study=STUDY | study), gpu)


def tensors(rows: int = 64, hidden: int = 512) -> Tensors:
    return make_sets(point("layernorm_bwd", rows=rows, hidden=hidden), torch.device("cpu"), 1, 1)[0]


class Riders:
    """Every graph without a reduction that the faked GPU captures, for as long as somebody keeps it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captured: list[weakref.ref[FakeReplay]] = []
        capture = FakeGpu.capture

        def remembered(gpu: FakeGpu, launches: Any, *given: Any) -> FakeReplay:
            replay = capture(gpu, launches, *given)
            if self.is_one(launches[0]):
                self.captured.append(weakref.ref(replay))
            return replay

        monkeypatch.setattr(FakeGpu, "capture", remembered)

    @staticmethod
    def owner(name: str) -> type:
        return FakeGpu if name == "capture" else FakeReplay

    @staticmethod
    def is_one(launch: Any) -> bool:
        return getattr(launch, "whole", True) is False

    def alive(self) -> int:
        return sum(one() is not None for one in self.captured)


# in a race


def test_the_reduction_is_a_part_of_its_contenders_time_and_of_nobody_elses() -> None:
    rows = race().by("contender")

    one = rows["triton_bwd"]
    assert one["reduce_us"] / one["time_us_p50"] == pytest.approx(REDUCTION_SHARE, abs=0.005)
    assert sorted(rows) == ["copy", "torch_eager", "triton_bwd", "triton_bwd__twin"]
    assert all(rows[name].get("reduce_us") is None for name in ("copy", "torch_eager", "triton_bwd__twin"))


def test_a_forward_kernel_has_no_reduction() -> None:
    rows = work_off(race_task(point(), (ROW, EAGER))).rows

    assert {row["status"] for row in rows} == {"ok"}
    assert all(row.get("reduce_us") is None for row in rows)


def test_a_slow_reduction_is_seen_in_its_part_and_not_in_the_rest() -> None:
    slow = race(gpu=fake(reduction={"triton_bwd": 0.6})).by("contender")["triton_bwd"]
    usual = race().by("contender")["triton_bwd"]

    assert slow["reduce_us"] / slow["time_us_p50"] == pytest.approx(0.6, abs=0.005)
    assert slow["time_us_p50"] == pytest.approx(usual["time_us_p50"], rel=0.003)
    assert (slow["status"], slow["verdict"]) == ("ok", "quotable")


def test_a_reduction_within_the_noise_of_the_race_is_not_known() -> None:
    """It takes nothing here, so that what is left is noise; never below 0."""
    for seed in range(5):
        gpu = fake(reduction={"triton_bwd": 0.0})
        gpu.random = random.Random(seed)
        row = race(gpu=gpu).by("contender")["triton_bwd"]
        assert (row["status"], row["reduce_us"]) == ("ok", None)


def test_the_noise_of_a_race_is_how_far_its_twin_is_from_its_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a tenth counts for nothing where a contender differs by a fifth from itself."""
    whole = {"triton_bwd": 100.0, "triton_bwd__twin": 120.0}
    starters: Any = [SimpleNamespace(row={"contender": name}) for name in (*whole, "torch_eager")]
    samples = [[time] * 15 for time in (*whole.values(), 300.0)]

    assert racing.noise(starters, samples) == pytest.approx(0.2)
    assert racing.noise(starters[:1], samples) == 0.0
    monkeypatch.setattr(racing, "noise", lambda *_: 0.2)
    assert race().by("contender")["triton_bwd"]["reduce_us"] is None


def test_the_launches_without_the_reduction_ride_at_nobodys_expense(monkeypatch: pytest.MonkeyPatch) -> None:
    """A noisy rival has as many rounds of the budget as in a race without them."""

    def noisy_rounds() -> dict[str, int]:
        gpu, noise = fake(), random.Random(1)
        kept = gpu._sample
        monkeypatch.setattr(
            gpu, "_sample", lambda replay: kept(replay) * (noise.uniform(0.8, 1.2) if "eager" in replay.label else 1)
        )
        return {name: row["n_samples"] for name, row in race(gpu=gpu, race_ms=50_000.0).by("contender").items()}

    with_riders = noisy_rounds()
    monkeypatch.setattr(Trial, "rest", lambda self: None)

    assert noisy_rounds() == with_riders
    assert with_riders["torch_eager"] > with_riders["triton_bwd"] == racing.MIN_ROUNDS


def test_a_reduction_is_told_apart_in_all_rounds_of_its_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, noise = fake(), random.Random(1)
    kept, timed = gpu._sample, []

    def sample(replay: Any) -> float:
        found = kept(replay) * (noise.uniform(0.8, 1.2) if "triton" in replay.label else 1)
        if getattr(replay.bound[0], "whole", True) is False:
            timed.append(found)
        return found

    monkeypatch.setattr(gpu, "_sample", sample)
    row = race(gpu=gpu, race_ms=50_000.0).by("contender")["triton_bwd"]

    assert len(timed) - 1 == row["n_samples"] > racing.MIN_ROUNDS  # one round goes ahead and is forgotten


def test_launches_that_cannot_be_captured_without_the_reduction_cost_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Trial) -> None:
        raise RuntimeError("planted failure")

    monkeypatch.setattr(Trial, "rest", broken)
    row = race().by("contender")["triton_bwd"]

    assert (row["status"], row.get("reduce_us")) == ("ok", None)
    assert row["time_us_p50"] > 0


@pytest.mark.parametrize("moment", ["capture", "lead_in", "replay"])
def test_riders_that_lack_memory_cost_no_row_and_leave_nothing_behind(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lead-in is captured with them, not between the samples of everybody's race."""
    riders, dead = Riders(monkeypatch), []
    usual, trim = getattr(riders.owner(moment), moment), FakeGpu.trim

    def lacking(self: Any, *given: Any) -> Any:
        found = usual(self, *given)
        if riders.is_one(given[0][0] if given else self.bound[0]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")
        return found

    def asked(self: FakeGpu) -> None:
        dead.append(riders.alive() == 0)
        trim(self)

    monkeypatch.setattr(riders.owner(moment), moment, lacking)
    monkeypatch.setattr(FakeGpu, "trim", asked)
    rows = race().by("contender")

    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["triton_bwd"].get("reduce_us") is None
    assert len(riders.captured) == 1
    assert dead == [True, True]  # once when they fail, once after the point


def test_a_rider_is_released_with_its_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks after a race may need the memory of those that were checked before."""
    riders, alive = Riders(monkeypatch), {}
    verify = Trial.verify

    def checked(self: Trial, index: int) -> Any:
        alive[self.contender.stem, index] = riders.alive()
        return verify(self, index)

    monkeypatch.setattr(Trial, "verify", checked)
    rows = race((TRITON, EAGER)).by("contender")

    assert rows["triton_bwd"]["reduce_us"] > 0
    assert alive["torch_eager", 0] == 1  # bound and checked after it
    assert alive["torch_eager", 1] == 0


def test_a_row_without_a_time_has_no_part_of_it() -> None:
    row = race(gpu=fake(slow={"triton_bwd": 0.3})).by("contender")["triton_bwd"]

    assert (row["status"], row.get("reduce_us")) == ("over_roof", None)


@pytest.mark.parametrize("part", [-1.0, 0.0, 100.0, 140.0])
def test_a_part_outside_the_whole_is_refused_by_the_table(part: float) -> None:
    rows = [row for row in race().rows if row["contender"] == "triton_bwd"]
    right = pl.DataFrame([row | {"time_us_p50": 100.0, "reduce_us": 3.0} for row in rows])
    assert schema.validate(right, schema.SHOWDOWN)["reduce_us"].to_list() == [3.0]

    with pytest.raises(schema.SchemaError, match="a part that is not between 0 and the whole time"):
        schema.validate(right.with_columns(reduce_us=pl.lit(part)), schema.SHOWDOWN)


def test_a_part_without_a_time_is_refused_by_the_table() -> None:
    rows = [row | {"reduce_us": 3.0} for row in race(gpu=fake(slow={"triton_bwd": 0.3})).rows]

    with pytest.raises(schema.SchemaError, match="a part that is not between 0 and the whole time"):
        schema.validate(pl.DataFrame([row for row in rows if row["status"] == "over_roof"]), schema.SHOWDOWN)


def test_an_older_table_has_no_reduction_and_is_read() -> None:
    older = pl.DataFrame([row | {"reduce_us": None} for row in race().rows]).drop("reduce_us")

    assert schema.validate(older, schema.SHOWDOWN)["reduce_us"].to_list() == [None] * older.height


# what is left out


def built(stem: str, folder: Path) -> CudaKernel:
    """A CUDA kernel as far as the faked GPU wants it: nothing of it is compiled."""
    (folder / f"{stem}.json").write_text(json.dumps({"format": "cubin", "lowered": {}}))
    (folder / f"{stem}.cubin").write_bytes(b"")
    return CudaKernel(kernelfile.load(ROOT / "kernels" / "backward" / f"{stem}.cu"), folder / f"{stem}.json")


@pytest.mark.parametrize(
    ("stem", "variant", "parted"),
    [
        ("naive_bwd", {"block": 64, "slices": 64}, True),
        ("split_bwd", {"block": 64, "vec": 4, "parts": 1, "slices": 32}, True),
        ("split_bwd", {"block": 64, "vec": 4, "parts": 1, "slices": 1}, False),  # forms them in the launch of dx
        ("persistent_bwd", {"block": 128, "lanes": 0, "vecs": 2, "odd": 0, "depth": 3, "slices": 0}, True),
    ],
)
def test_a_variant_has_a_reduction_where_a_launch_does_nothing_else(
    stem: str, variant: dict[str, int], parted: bool, tmp_path: Path
) -> None:
    bound = built(stem, tmp_path).bind(tensors(), variant, fake())

    assert (rest(bound) is not None) == parted
    assert rest(built(stem, tmp_path).bind(tensors(rows=0), variant, fake())) is None


def test_every_gradient_of_ours_has_a_part_that_can_be_left_out() -> None:
    kernels = kernelfile.find(ROOT / "kernels")

    assert {kernel.stem for kernel in kernels if kernel.parted} == {
        kernel.stem for kernel in kernels if any(op.endswith("_bwd") for op in kernel.ops)
    }


def test_the_last_launches_are_what_a_cuda_kernel_leaves_out() -> None:
    steps: Any = ["rows", "slices", "columns"]
    bound = CudaLaunch(steps, {}, {}, reducing=2)

    found = rest(bound)
    assert isinstance(found, CudaLaunch)
    assert (found.steps, bound.steps) == (["rows"], steps)
    assert found.scratch is bound.scratch
    assert rest(found) is None
    assert rest(CudaLaunch(steps, {}, {})) is None


def test_a_triton_kernel_is_asked_to_leave_it_out_on_the_same_memory() -> None:
    asked: list[tuple[bool, int]] = []
    contender = TritonKernel(kernelfile.load(TRITON))
    stub = SimpleNamespace(launch=lambda t, **axes: asked.append((t.reduces, id(t.scratch))))
    contender.__dict__["module"] = stub
    given = SimpleNamespace(reduces=True, scratch=object(), point=WORK)
    bound = TritonLaunch(contender, given, {"num_warps": 4}, {})

    found = rest(bound)
    assert found is not None
    bound(), found(), bound()

    assert asked == [(reduces, id(given.scratch)) for reduces in (True, False, True)]
    assert rest(found) is None
    assert rest(TritonLaunch(TritonKernel(kernelfile.load(ROW)), given, {}, {})) is None


def test_a_faked_gradient_without_its_reduction_writes_dx_alone() -> None:
    work = tensors()
    work.poison()
    bound = FakeLaunch("triton_bwd", {}, work, FakeGpu(FACTS), parted=True)

    found = rest(bound)
    assert found is not None
    outputs = found()

    assert outputs["dx"].isfinite().all()
    assert outputs["dgamma"].isnan().all()
    assert outputs["dbeta"].isnan().all()
