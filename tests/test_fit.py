"""Points that do not fit the device, and looks that must be long enough: a row with a reason, and the study goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from measuring_fixture import COPY, EAGER, ROW, STUDY, fake, point, race_task, task, work_off
from normbench import roofs, tuning
from normbench.gpu import MOST_SETS

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
