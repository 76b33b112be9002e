"""Sentences of the page, against the numbers they must hold; a study that has nothing to say says nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import report_fixture as fixture
from normbench import findings, measured, metrics, page, schema
from test_metrics import MACHINES, at, race, timed

FAILED = {"status": "launch_error", "reason": "invented: too many threads.", "verdict": None}
OVER = {"status": "over_roof", "reason": "invented", "verdict": None}


def raced(*races: pl.DataFrame) -> pl.DataFrame:
    return metrics.with_winners(metrics.derive(pl.concat(races), MACHINES))


def checks(*rows: tuple[str, str, str, str]) -> pl.DataFrame:
    """Rows of contender, dtype, case and status."""
    made = []
    for contender, dtype, case, status in rows:
        point = replace(at(1024), dtype=dtype)
        row = {"device": fixture.DEVICE, "run": fixture.RUN, **point.identity(), "contender": contender}
        reason = None if status == "ok" else "invented"
        made.append(row | {"lang": "torch", "case": case, "status": status, "reason": reason})
    return fixture.frame("checks", made)


def test_a_wrong_result_is_told_without_its_input_or_its_dtypes() -> None:
    found = findings.correctness(
        checks(
            ("liger", "bf16", "K2.1", "wrong"),
            ("liger", "fp32", "K2.1", "wrong"),
            ("liger", "fp16", "K2.1", "ok"),
            ("quack", "bf16", "K5.12", "no_work"),
        )
    )
    assert found == (
        "Wrong on an adversarial input: liger on K2.1 (rmsnorm fp32, bf16), quack on K5.12 (rmsnorm bf16)."
    )


def test_who_is_fast_and_wrong_is_known_by_op_and_dtype() -> None:
    rows = (("liger", "bf16", "K2.1", "wrong"), ("liger", "fp16", "K4", "skipped"), ("quack", "fp32", "K4", "no_work"))
    assert findings.flawed(checks(*rows)) == {("liger", "rmsnorm", "bf16"), ("quack", "rmsnorm", "fp32")}


def test_inputs_that_were_refused_count_as_right() -> None:
    rows = (
        ("liger", "bf16", "K2.1", "ok"),
        ("liger", "bf16", "K4", "out_of_range"),
        ("quack", "bf16", "K4", "skipped"),
    )
    assert findings.correctness(checks(*rows)) == (
        "Checked on adversarial inputs and never wrong: 1 contender on 1 input."
    )
    assert findings.correctness(checks(*rows[1:])) is None


def test_a_lead_is_another_than_the_times_say() -> None:
    frame = raced(
        race(timed("cta_row", 100.0), timed("liger", 150.0), timed("copy", 90.0), point=at(1024)),
        race(timed("cta_row", 120.0), timed("liger", 600.0), point=at(2048)),
        race(timed("cta_row", 120.0), timed("liger", 100.0), point=at(4096)),
    )
    lead = str(findings.lead(frame))
    assert "fastest or tied at 2 of 3 points" in lead
    assert "5.00× (cta_row, rmsnorm bf16 at hidden 2048" in lead
    assert findings.deficit(frame) == (
        "The kernels of this repository are furthest behind at rmsnorm bf16 at hidden 4096: the best of them, cta_row, "
        "is 0.83× as fast as the best baseline."
    )


def test_a_rejected_time_of_ours_is_taken_for_a_slow_kernel() -> None:
    frame = raced(race(timed("naive", 200.0), timed("liger", 100.0), {"contender": "cta_row", **OVER}))
    assert findings.lead(frame) is not None
    assert findings.deficit(frame) is None


def test_a_baseline_that_collapses_is_not_named_or_a_steady_one_is() -> None:
    frame = raced(
        race(timed("liger", 100.0), timed("quack", 100.0), timed("naive", 100.0), point=at(1024)),
        race(timed("liger", 500.0), timed("quack", 190.0), timed("naive", 900.0), point=at(4096)),
    )
    collapse = str(findings.collapse(frame))
    fast, slow = (f"{metrics.derive(frame, MACHINES)['bytes'][0] / time / 1e3:,.0f}" for time in (100.0, 500.0))
    assert collapse == (
        "1 of 2 baselines falls below half of its own best bandwidth at some hidden size: liger in rmsnorm bf16 "
        f"(from {fast} GB/s at 1024 to {slow} at 4096)."
    )


def test_the_points_below_the_ceiling_are_counted_wrong() -> None:
    frame = raced(
        race(timed("cta_row", 140.0), point=at(1024)),
        race(timed("cta_row", 268.5), point=at(2048)),
        race(timed("cta_row", 200.0), point=at(2049)),
    )
    shares = {row["hidden"]: row["ceiling_fraction"] for row in frame.iter_rows(named=True)}
    assert findings.below_ceiling(frame) == (
        "At 2 of 3 points nothing reaches 90 % of the measured ceiling, 1 of them with rows that are no multiple of 16 "
        f"bytes: rmsnorm bf16 at hidden 2048 (best cta_row, {shares[2048] * 100:.0f} %), rmsnorm bf16 at hidden 2049 "
        f"(best cta_row, {shares[2049] * 100:.0f} %)."
    )
    assert findings.below_ceiling(frame.filter(hidden=1024)) == (
        "At each of 1 point something reaches 90 % of the measured ceiling."
    )


def tuned(*times: tuple[int, float]) -> pl.DataFrame:
    base = {"device": fixture.DEVICE, "run": fixture.RUN, **at(1024).identity(), "contender": "cta_row", "lang": "cuda"}
    rows = [base | {"variant": f'{{"block":{block}}}', "status": "ok", "time_us_p50": time} for block, time in times]
    return fixture.frame("cases", rows)


def test_the_cost_of_a_wrong_block_is_another() -> None:
    assert findings.variants(tuned((64, 30.0), (128, 10.0), (256, 20.0))) == (
        "A wrong launch choice costs 10 % or more at 1 of 1 tuned points, and most in cta_row, rmsnorm bf16 at hidden "
        "1024: block 64 takes 3.00× the time of block 128."
    )
    assert findings.variants(tuned((64, 10.5), (128, 10.0))) is None


def test_a_refusal_is_called_a_failure() -> None:
    skipped: dict[str, Any] = {"status": "skipped", "reason": "not installed", "verdict": None}
    frame = raced(race(timed("naive", 9.0), {"contender": "liger", **FAILED}, {"contender": "quack", **skipped}))
    assert findings.failures(frame) == "liger fails at 1 point (launch_error: invented: too many threads)."
    assert findings.absent(frame) == "Named in the study but raced nowhere: quack."
    assert findings.rejected(frame) is None


def test_rejected_times_are_not_counted() -> None:
    frame = raced(race(timed("naive", 9.0), {"contender": "liger", **OVER}, {"contender": "naive__twin", **OVER}))
    assert findings.rejected(frame) == "1 time was faster than the measured ceiling allows and is not shown (liger)."


def test_more_examples_than_a_sentence_holds_are_counted() -> None:
    found = str(findings.correctness(checks(*((name, "bf16", "K4", "wrong") for name in "abcde"))))
    assert found.endswith("c on K4 (rmsnorm bf16) and 2 more.")


def test_findings_of_nothing_are_sentences() -> None:
    empty = {name: table.empty() for name, table in schema.TABLES.items()}
    one = measured.measured(measured.Archive(**empty, machines=tuple(MACHINES)), fixture.DEVICE)
    assert findings.findings(one) == []


@pytest.mark.parametrize("count", [2, 5])
def test_three_findings_stand_open_and_the_rest_is_offered(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(findings, "findings", lambda one: [f"Sentence {index}." for index in range(count)])
    made = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(4096,), latency=False)
    text = page.build(measured.measured(measured.Archive(**made.tables(), machines=(made.machine(),)), made.device))
    assert all(f"<li>Sentence {index}.</li>" in text for index in range(count))
    assert ("2 more findings" in text) == (count == 5)
