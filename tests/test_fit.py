"""Points that do not fit the device, and looks that must be long enough: a row with a reason, and the study goes on."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from measuring_fixture import COPY, EAGER, LOOP, ROW, STUDY, fake, point, race_task, task, work_off
from normbench import check, contenders, ops, roofs, tensors, trial, tuning
from normbench.gpu import MOST_SETS, FakeGpu, FakeReplay
from normbench.journal import PASSING
from normbench.points import Point

WORK = point()


def out_of_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")


@pytest.mark.parametrize("step", ["make_sets", "expect"])
def test_tensors_that_do_not_fit_are_rows_of_a_tuning(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate may be too low; a worker that dies of it would take five seconds a variant."""
    monkeypatch.setattr(tuning, step, out_of_memory)

    rows = work_off(task("measure", [WORK], spec=ROW)).rows

    assert {row["status"] for row in rows} == {"skipped"}
    assert all("too little memory" in row["reason"] for row in rows)


def test_tensors_that_do_not_fit_are_rows_of_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is announced yet: the death of the worker would be nobody's row and end the study."""
    monkeypatch.setattr(tuning, "make_sets", out_of_memory)

    rows = work_off(race_task(WORK, (ROW, EAGER))).by("contender")

    assert {name: row["status"] for name, row in rows.items()} == {"triton_row": "skipped", "torch_eager": "skipped"}


def test_a_twin_that_does_not_fit_costs_nobody_else_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tuning.make_sets
    monkeypatch.setattr(tuning, "make_sets", lambda *args: original(*args) if args[3] < 500 else out_of_memory())

    rows = work_off(race_task(WORK, (ROW, EAGER, COPY))).by("contender")

    assert {row["status"] for name, row in rows.items() if name != "triton_row__twin"} == {"ok"}
    assert rows["triton_row__twin"]["status"] == "skipped"


def test_a_point_too_small_to_leave_l2_is_refused() -> None:
    """One row of one element would take millions of buffer sets."""
    row = work_off(race_task(point(rows=1, hidden=1), (ROW,))).by("contender")["triton_row"]

    assert row["status"] == "skipped"
    assert "too small to stream" in row["reason"]


@pytest.mark.parametrize(("dtype", "rows", "hidden"), [("bf16", 1, 1), ("fp32", 3, 5)])
def test_a_roof_of_a_tiny_tensor_takes_few_buffers(dtype: str, rows: int, hidden: int) -> None:
    (size,) = roofs.tensor_sizes([point(dtype=dtype, rows=rows, hidden=hidden)])

    assert 4 * (60 << 20) / (2 * size) < MOST_SETS


def test_finalists_are_looked_at_longest_whatever_the_first_look_takes() -> None:
    """A winner is chosen among the longest looks: with 40 samples for everybody it must not be a loser."""
    told = task("measure", [WORK], spec=ROW) | {"study": STUDY | {"tune_samples": 40}}

    recorder = work_off(told, fake())

    finals = {unit for unit, entry in recorder.done.items() if entry["stage"] == "final"}
    best = min(recorder.done, key=lambda unit: recorder.done[unit]["row"]["time_us_p50"])
    longest = max(row["n_samples"] for row in recorder.rows)
    assert best in finals
    assert recorder.done[best]["row"]["n_samples"] == longest > 40


# one contender that does not fit


def test_a_contender_that_does_not_fit_is_skipped_by_name_and_the_others_race() -> None:
    recorder = work_off(race_task(WORK, (ROW, EAGER, COPY)), fake(faults={"torch_eager": "memory"}))
    rows = recorder.by("contender")

    eager = rows.pop("torch_eager")
    assert eager["status"] == "skipped"
    assert "too little memory (OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB" in eager["reason"]
    assert rows.keys() == {"triton_row", "triton_row__twin", "copy"}
    assert {row["status"] for row in rows.values()} == {"ok"}
    stages = {entry["row"]["contender"]: entry["stage"] for entry in recorder.done.values()}
    assert stages.pop("torch_eager") == PASSING  # whoever starts again tries again
    assert set(stages.values()) == {"final"}


@pytest.mark.parametrize("moment", ["lead-in", "first check"])
def test_what_a_failed_contender_had_captured_is_gone_before_the_next_is_bound(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph keeps the temporaries of all of its launches: with those of a dead one the next may not fit either. The
    lead-in is a graph too; captured between the samples of a race, its lack of memory ended the race of everybody."""
    captured: list[weakref.ref[FakeReplay]] = []
    dead: list[bool] = []
    capture, trim, verify = FakeGpu.capture, FakeGpu.trim, trial.Trial.verify

    def remembered(self: FakeGpu, *given: Any) -> FakeReplay:
        replay = capture(self, *given)
        if replay.label.startswith("triton_loop"):
            captured.append(weakref.ref(replay))
        return replay

    def lead_in(self: FakeReplay) -> None:
        if self.label.startswith("triton_loop") and moment == "lead-in":
            out_of_memory()

    def checked(self: trial.Trial, index: int) -> Any:
        if self.contender.stem == "triton_loop":
            out_of_memory()
        return verify(self, index)

    def asked(self: FakeGpu) -> None:
        dead.append(all(one() is None for one in captured))
        trim(self)

    monkeypatch.setattr(FakeGpu, "capture", remembered)
    monkeypatch.setattr(FakeGpu, "trim", asked)
    monkeypatch.setattr(FakeReplay, "lead_in", lead_in)
    monkeypatch.setattr(trial.Trial, "verify", checked if moment == "first check" else verify)

    rows = work_off(race_task(WORK, (LOOP, ROW, EAGER))).by("contender")

    assert len(captured) == 1
    assert dead[0]
    assert {name: row["status"] for name, row in rows.items()} == {
        "triton_loop": "skipped",
        "triton_row": "ok",
        "triton_row__twin": "ok",
        "torch_eager": "ok",
    }


def test_a_lack_of_memory_in_a_second_check_is_that_contenders_and_of_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verify = trial.Trial.verify

    def checked(self: trial.Trial, index: int) -> Any:
        if index and self.contender.stem == "torch_eager":
            out_of_memory()
        return verify(self, index)

    monkeypatch.setattr(trial.Trial, "verify", checked)
    recorder = work_off(race_task(WORK, (ROW, EAGER, COPY)))

    told = {entry["row"]["contender"]: (entry["row"]["status"], entry["stage"]) for entry in recorder.done.values()}
    assert told.pop("torch_eager") == ("skipped", PASSING)
    assert set(told.values()) == {("ok", "final")}


def test_a_capture_that_ends_badly_for_lack_of_memory_is_a_skip() -> None:
    ended = RuntimeError("CUDA error: the capture was invalidated")
    ended.__context__ = torch.OutOfMemoryError("CUDA out of memory")

    assert trial.failure_of(ended, fake()).status == "skipped"
    assert trial.failure_of(RuntimeError("something else"), fake()).status == "launch_error"


# one buffer set that is alone


@pytest.mark.parametrize("shape", [(1, 7), (2, 5), (5, 6), (7, 3, 4), (1, 3, 4)])
@pytest.mark.parametrize("chunk", [1, 12, 1 << 20])
def test_a_tensor_is_reversed_in_part(shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "CHUNK_ELEMENTS", chunk)
    base = torch.randn(*shape[:-1], shape[-1] + 3)
    before, view = base.clone(), base[..., : shape[-1]]

    tensors.reverse(view)

    assert torch.equal(view, before[..., : shape[-1]].flip(tuple(range(len(shape)))))
    assert torch.equal(base[..., shape[-1] :], before[..., shape[-1] :])


def test_a_checksum_of_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(33, 7)
    whole = tensors.checksum(values)
    monkeypatch.setattr(tensors, "chunks", lambda tensor: (tensor[row : row + 4] for row in range(0, len(tensor), 4)))

    assert tensors.checksum(values) == whole == int(values.view(torch.int32).to(torch.int64).sum())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "buffer_sets", lambda *_: 1)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    "work",
    [
        point(rows=5, hidden=64),
        point("add_rmsnorm", "bf16", rows=4, hidden=64),
        point("rmsnorm", rows=3, hidden=40, row_stride=48),
        point("layernorm_bwd", rows=5, hidden=64),
        ops.point_of("rmsnorm_channels", "fp32", (2, 8, 3, 5)),
    ],
    ids=["layernorm", "add_rmsnorm", "strided", "layernorm_bwd", "channels"],
)
def test_right_work_on_a_set_that_is_alone_fails_its_second_check(
    work: Point, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if made:
        monkeypatch.setattr(check, "KEPT_ELEMENTS", 1)
    rows = work_off(race_task(work, (EAGER, COPY))).by("contender")

    assert {row["status"] for row in rows.values()} == {"ok"}, [row.get("reason") for row in rows.values()]
    assert rows["torch_eager"]["allclose_torch"] is (None if work.op == "add_rmsnorm" else True)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kept", ["output", "statistics"])
@pytest.mark.parametrize("made", [False, True])
def test_what_was_kept_for_the_address_of_a_set_that_is_alone_passes(
    kept: str, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minus x would have the same rstd."""
    if made:
        monkeypatch.setattr(check, "KEPT_ELEMENTS", 1)
    work = point("rmsnorm", rows=6, hidden=64)
    bench = tuning.Bench.open(work, fake(), 1, with_torch=True)
    (one,) = bench.sets
    x, gamma, y = one.inputs["x"], one.inputs["gamma"], one.outputs()["y"]
    assert x is not None
    before = x.clone()
    rstd, answer = (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt(), ops.reference(work, one.inputs)["y"]

    def launch() -> dict[str, Any]:
        y.copy_(answer if kept == "output" else x * rstd * gamma)
        return {"y": y}

    replay = FakeReplay([launch], [{"y": y}], 1, "planted", 1.0)
    planted = trial.Trial(contenders.load(EAGER), {}, replay, bench.sets, bench.expected, bench.gpu)

    assert planted.verify(0).ok
    with pytest.raises(trial.Failure, match="wrong"):
        planted.verify(1)
    assert torch.equal(x, before)
