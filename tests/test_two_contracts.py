"""Torch's bits and the float64 tolerance: where each counts, and that nobody who keeps one of them passes for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from measuring_fixture import EAGER, FACTS, LOOP, ROW, fake, point, race_task, task, work_off
from normbench import bench, check, contracts, metrics, ops, schema, sheets, wide
from normbench.charts import correctness
from normbench.inputs import Case
from normbench.points import Point
from normbench.tensors import make_sets

REGIMES = ("wide", "stream")
OFF = 1.5  # times the right output: what torch eager is made to give, and a contender with the fault "wrong"


def answers(work: Point, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """An invented torch eager, far from accurate."""
    exact = ops.reference(work, inputs)
    dtypes = {name: ops.extent(work, name)[1] for name in ops.outputs(work)}
    return {name: (exact[name] * OFF).to(ops.torch_dtype(dtype)) for name, dtype in dtypes.items()}


@pytest.fixture
def inaccurate_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "torch_eager", answers)


# one output


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize(
    ("accurate", "bits", "wide_says", "others_say"),
    [
        (True, True, "ok", "ok"),
        (True, False, "ok", "ok"),
        (False, True, "ok", "wrong"),
        (False, False, "wrong", "wrong"),
    ],
)
def test_an_output_is_ok_without_a_contract_or_wrong_with_one(
    regime: str, stats: bool, accurate: bool, bits: bool, wide_says: str, others_say: str
) -> None:
    work = point(rows=4, hidden=64, regime=regime, stats=stats or None)
    (tensors,) = make_sets(work, torch.device("cpu"), 1, 1)
    expected = check.expect(work, tensors.inputs, with_torch=True)
    right = ops.reference(work, tensors.inputs)
    given = {name: (right[name] * (1 if accurate else OFF)).float() for name in ops.outputs(work)}
    theirs = {name: value if bits else value * 1.0625 for name, value in given.items()}
    expected.targets["y"].torch = theirs.pop("y")
    expected.torch_stats = theirs

    verdict = check.judge(expected, given)

    assert verdict.status == (wide_says if regime == "wide" else others_say)
    assert (verdict.accurate, verdict.bitwise_torch) == (accurate, bits)
    if not accurate:
        assert "elements outside the tolerance" in str(verdict.reason)
        assert str(verdict.reason).startswith("torch eager's bits, and so its error: ") is (verdict.status == "ok")
    assert check.check(expected, given).status == ("ok" if accurate else "wrong")


@pytest.mark.parametrize("fault", ["another bit", "not handed out", "unknown to torch", "not written"])
def test_the_bits_of_a_part_of_the_output_are_a_contract(fault: str) -> None:
    work = point(rows=4, hidden=64, regime="wide", stats=True)
    (tensors,) = make_sets(work, torch.device("cpu"), 1, 1)
    expected = check.expect(work, tensors.inputs, with_torch=True)
    theirs = answers(work, tensors.inputs)
    expected.targets["y"].torch = theirs["y"]
    expected.torch_stats = {name: theirs[name] for name in ops.STATISTICS}
    given = {name: tensor.clone() for name, tensor in theirs.items()}
    assert check.judge(expected, given).ok

    if fault == "another bit":
        given["rstd"].view(torch.int32)[2] += 1
    elif fault == "not handed out":
        del given["rstd"]
    elif fault == "unknown to torch":
        del expected.torch_stats["rstd"]
    else:
        given["y"][3, 5:] = tensors.outputs()["y"][3, 5:]

    assert check.judge(expected, given).status == "wrong"


# tuning, a race, an adversarial input


@pytest.mark.usefixtures("inaccurate_torch")
@pytest.mark.parametrize("regime", REGIMES)
def test_a_kernel_with_torchs_bits_is_not_raced_where_they_are_a_contract(regime: str) -> None:
    """Tuning has no contracts in its rows, but without a winner there a kernel never races."""
    rows = work_off(task("measure", [point(regime=regime)], spec=ROW), fake(faults={"triton_row": "wrong"})).rows

    assert {row["status"] for row in rows} == {"ok" if regime == "wide" else "wrong"}
    assert all(row["tolerance_used"] > 1 for row in rows)
    assert all("elements outside the tolerance" in row["reason"] for row in rows)
    assert all(("time_us_p50" in row) is (regime == "wide") for row in rows)


@pytest.mark.usefixtures("inaccurate_torch")
@pytest.mark.parametrize("regime", REGIMES)
def test_torchs_bits_win_a_race_or_have_no_time(regime: str, tmp_path: Path) -> None:
    faults = {"torch_eager": "wrong", "triton_row": "wrong"}
    slow = {"triton_loop": 3.0}  # the accurate one
    told = race_task(point(regime=regime), (ROW, LOOP, EAGER))
    rows = work_off(told, fake(faults=faults, slow=slow)).rows
    frame = pl.DataFrame([{**row, "run": "r"} for row in rows], schema=schema.SHOWDOWN.schema, strict=False)
    schema.validate(frame, schema.SHOWDOWN)
    found = {row["contender"]: row for row in metrics.with_winners(metrics.derive(frame, [FACTS])).to_dicts()}

    torchs = [found[name] for name in ("torch_eager", "triton_row")]
    if regime != "wide":
        assert {row["status"] for row in torchs} == {"wrong"}
        return
    assert {row["status"] for row in found.values()} == {"ok"}
    assert {(row["accurate"], row["bitwise_torch"], row["competes"], row["in_winner_set"]) for row in torchs} == {
        (False, True, False, False)
    }
    assert all(row["reason"].startswith("torch eager's bits") for row in torchs)
    assert (found["triton_loop"]["accurate"], found["triton_loop"]["fastest"]) == (True, True)
    assert found["triton_loop"]["cost"] == 0
    assert found["triton_loop"]["speedup_eager"] == pytest.approx(
        found["torch_eager"]["time_us_p50"] / found["triton_loop"]["time_us_p50"]
    )
    assert sheets._cell(found["triton_row"], "time_us_p50").accurate is False
    assert sheets._cell(found["triton_loop"], "time_us_p50").accurate is True


def test_a_quick_look_calls_torchs_bits_ok_and_no_more() -> None:
    row = {"contender": "ours", "status": "ok", "err_ulp_max": 9.0}
    assert bench._cells(row | {"accurate": True, "reason": None})[2] == "ok (9.00 ulp)"
    assert bench._cells(row | {"accurate": False, "reason": "torch's bits"})[2] == "ok: torch's bits (9.00 ulp)"
    assert bench._cells({"contender": "copy", "status": "ok"})[2] == "ok"


@pytest.mark.usefixtures("inaccurate_torch")
def test_verify_calls_torchs_bits_wrong_or_torch_itself_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who asks which library fails which input, and one who asks who has torch's bits, both find it."""

    def uniform(x: Any, generator: Any) -> None:
        x.uniform_(generator=generator)

    cases = [Case("offset", wide.point("layernorm", "fp32", "4x64", point().semantics), x=None, fill=uniform)]
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter(cases))
    asked = {"ops": ["layernorm"], "dtypes": ["fp32"]}

    def row(spec: str, **faults: str) -> dict[str, Any]:
        (found,) = work_off(task("verify", spec=spec, **asked), fake(faults=faults)).rows
        return found

    torchs, accurate = row(EAGER, torch_eager="wrong"), row(LOOP)
    same, neither = row(ROW, triton_row="wrong"), row(ROW, triton_row="no_work")
    told = [(one["status"], one.get("accurate"), one.get("bitwise_torch")) for one in (torchs, same, accurate)]
    assert told == [("wrong", False, True), ("ok", False, True), ("ok", True, False)]
    assert neither["status"] == "no_work"

    frame = pl.DataFrame([{**one, "run": "r"} for one in (torchs, same, accurate)], schema=schema.CHECKS.schema)
    schema.validate(frame, schema.CHECKS)
    marks = correctness.from_checks(frame.with_columns(role=pl.lit("ours")))
    assert dict(marks.select("contender", "mark").iter_rows()) == {
        "torch_eager": "✗",
        "triton_row": "=",
        "triton_loop": "✓",
    }
    families = {line["contender"]: line for line in correctness.by_family(marks).to_dicts()}
    assert (families["triton_row"]["mark"], families["triton_row"]["state"]) == ("0/1", "in part")
    assert families["triton_row"]["detail"] == "fails on offset"
    tallies = {name: frame.filter(pl.col("contender") == name) for name in ("triton_row", "triton_loop")}
    assert str(contracts.tally(tallies["triton_row"], "right")) == "0/1"
    assert str(contracts.tally(tallies["triton_row"], "bitwise_torch")) == "1/1"
    assert str(contracts.tally(tallies["triton_loop"], "right")) == "1/1"
