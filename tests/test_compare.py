"""What a comparison must not call a regression, and what it must not miss."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from normbench import archive, compare
from normbench.archive import ArchiveError, Run
from normbench.compare import Comparison, verdict
from study_fixture import FAILED, RUN, Study

Normbench = Callable[..., subprocess.CompletedProcess[str]]
LATER = "20210102T030405-abcdef1"


def run(folder: Path, study: Study, checks: dict[str, str] | None = None) -> Run:
    return archive.read_archived(study.write_archived(folder, checks))


def compared(tmp_path: Path, left: Study, right: Study) -> Comparison:
    return compare.compare(run(tmp_path, left), run(tmp_path, right.with_(run=LATER)))


def verdicts(found: Comparison, contender: str) -> set[str]:
    return {row.verdict for row in found.rows if row.contender == contender}


def test_two_runs_of_the_same_thing_are_the_same(tmp_path: Path) -> None:
    """Fresh noise of 0.1 % on 40 samples is no news."""
    found = compared(tmp_path, Study(seed=1), Study(seed=2))

    assert found.counts == {"SLOWER": 0, "AMBIGUOUS": 0, "FASTER": 0, "SAME": 20}
    assert not found.regressed


def test_a_kernel_two_percent_slower_is_confirmed(tmp_path: Path) -> None:
    found = compared(tmp_path, Study(seed=1), Study(seed=2, slow={"naive": 1.02}))

    assert verdicts(found, "naive") == {"SLOWER"}
    assert verdicts(found, "cta_row") == {"SAME"}
    assert found.rows[0].contender == "naive"
    assert found.regressed


def test_a_kernel_two_percent_faster_is_no_regression(tmp_path: Path) -> None:
    found = compared(tmp_path, Study(seed=1), Study(seed=2, slow={"naive": 0.98}))

    assert verdicts(found, "naive") == {"FASTER"}
    assert not found.regressed


def test_a_lower_clock_is_no_slower_kernel(tmp_path: Path) -> None:
    """The same cycles at a clock 3 % lower: slower in time, not in cycles."""
    found = compared(tmp_path, Study(), Study(seed=2, slow={"naive": 1.03}, clock=1 / 1.03))

    assert verdicts(found, "naive") == {"AMBIGUOUS"}
    assert not found.regressed


def test_a_noisy_day_raises_the_margin(tmp_path: Path) -> None:
    """The twin was 3 % off its original, so 2 % means nothing."""
    twin = {"cta_row__twin": {"time_us_p50": 103.0}}
    found = compared(tmp_path, Study(seed=1), Study(seed=2, slow={"naive": 1.02}, changes=twin))

    assert found.margins["stream"] == pytest.approx(0.03, abs=2e-3)
    assert verdicts(found, "naive") == {"SAME"}


@pytest.mark.parametrize(("slowdown", "seen"), [(0.02, 20), (0.0, 0), (0.006, 20), (0.004, 0)])
def test_a_slowdown_within_the_margin_that_is_seen(tmp_path: Path, slowdown: float, seen: int) -> None:
    """As if the samples had been longer: what is beyond the margin of 0.5 % is seen, and what is within is not."""
    found = compared(tmp_path, Study(seed=1), Study(seed=2))

    assert found.seen(slowdown) == {"stream": (seen, 20)}


def test_a_planted_slowdown_that_a_noisy_day_hides(tmp_path: Path) -> None:
    twin = {"cta_row__twin": {"time_us_p50": 103.0}}
    found = compared(tmp_path, Study(seed=1), Study(seed=2, changes=twin))

    assert found.seen(0.02) == {"stream": (0, 20)}
    assert found.seen(0.04) == {"stream": (20, 20)}


def test_without_a_twin_nothing_is_decided(tmp_path: Path) -> None:
    twin = {"cta_row__twin": FAILED}
    found = compared(tmp_path, Study(), Study(seed=2, slow={"naive": 1.5}, changes=twin))

    assert found.margins == {}
    assert verdicts(found, "naive") == {"AMBIGUOUS"}


def test_times_that_may_not_be_quoted_are_not_judged(tmp_path: Path) -> None:
    throttled = {"naive": {"verdict": "throttled"}}
    found = compared(tmp_path, Study(), Study(seed=2, slow={"naive": 1.5}, changes=throttled))

    assert verdicts(found, "naive") == set()
    assert found.not_judged == 4
    assert not found.regressed


def test_a_newly_wrong_row_fails_the_comparison(tmp_path: Path) -> None:
    found = compared(tmp_path, Study(), Study(seed=2, changes={"naive": FAILED}))

    assert len(found.newly_wrong) == 4
    assert found.newly_wrong[0].endswith("wrong: an invented failure")
    assert found.regressed


def test_a_row_that_keeps_torchs_bits_and_lost_its_accuracy_is_newly_wrong(tmp_path: Path) -> None:
    """It is ok, and has a time, in a study that counts torch's bits as a contract."""
    accurate = Study(changes={"naive": {"accurate": True}})
    inaccurate = Study(seed=2, changes={"naive": {"accurate": False, "reason": "invented: torch's bits"}})

    found = compared(tmp_path, accurate, inaccurate)

    assert len(found.newly_wrong) == 4
    assert found.newly_wrong[0].endswith("not accurate: invented: torch's bits")
    assert compared(tmp_path, inaccurate, inaccurate.with_(seed=3)).newly_wrong == []


def test_a_row_that_was_wrong_before_is_not_newly_wrong(tmp_path: Path) -> None:
    failed = Study(changes={"naive": FAILED})
    found = compared(tmp_path, failed, failed.with_(seed=2))

    assert found.newly_wrong == []
    assert not found.regressed


def test_a_newly_wrong_adversarial_input_fails_the_comparison(tmp_path: Path) -> None:
    left = run(tmp_path, Study(), {"naive": "ok", "cta_row": "ok"})
    right = run(tmp_path, Study(run=LATER, seed=2), {"naive": "wrong", "cta_row": "ok"})

    found = compare.compare(left, right)

    assert min(found.newly_wrong).startswith("naive layernorm fp32 32 128 K1.1: wrong")
    assert len(found.newly_wrong) == 4
    assert found.regressed


def test_a_slower_model_of_gpu_is_a_finding_not_a_regression(tmp_path: Path) -> None:
    other = Study(device="small-gpu-c00003", model="small-gpu", seed=2, slow={"naive": 2.0})
    found = compared(tmp_path, Study(), other)

    assert verdicts(found, "naive") == {"SLOWER"}
    assert not found.same_model
    assert not found.regressed


def test_only_common_points_are_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, Study(hidden=(64,)), Study(hidden=(64, 128), seed=2))

    assert {row.hidden for row in found.rows} == {64}


def test_runs_without_a_common_point_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no point and contender in common"):
        compared(tmp_path, Study(hidden=(64,)), Study(hidden=(128,)))


def test_each_side_is_a_share_of_its_own_ceiling(tmp_path: Path) -> None:
    """A faster memory must not look like a better kernel."""
    ceiling = {name: {"ceiling_gbps": 2000.0} for name in ("naive", "cta_row")}
    found = compared(tmp_path, Study(), Study(seed=2, slow={"naive": 0.5}, changes=ceiling))

    (row, *_) = (row for row in found.rows if row.contender == "naive")
    assert row.ratio == pytest.approx(0.5, rel=0.01)
    assert row.left_pct == pytest.approx(row.right_pct, rel=0.01)


@pytest.mark.parametrize(
    ("low", "high", "stretch", "margin", "expected"),
    [
        (1.006, 1.010, None, 0.005, "SLOWER"),
        (1.004, 1.010, None, 0.005, "AMBIGUOUS"),
        (1.006, 1.010, None, 0.007, "AMBIGUOUS"),
        (1.020, 1.030, 0.98, 0.005, "AMBIGUOUS"),
        (1.020, 1.030, 1.00, 0.005, "SLOWER"),
        (0.980, 0.990, None, 0.005, "FASTER"),
        (0.980, 0.990, 1.02, 0.005, "AMBIGUOUS"),
        (0.996, 1.004, None, 0.005, "SAME"),
        (0.990, 1.004, None, 0.005, "AMBIGUOUS"),
        (1.500, 1.600, None, None, "AMBIGUOUS"),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    low: float, high: float, stretch: float | None, margin: float | None, expected: str
) -> None:
    assert verdict(low, high, stretch, margin) == expected


def test_the_interval_covers_a_known_ratio_about_as_often_as_it_says() -> None:
    """95 % intervals from correlated samples: a plain bootstrap would cover the truth far less often."""
    import numpy as np

    random = np.random.default_rng(7)
    covered = 0
    for trial in range(200):
        drift = [np.convolve(random.normal(size=124), np.ones(5) / 5, "valid") for _ in range(2)]
        left, right = (100.0 * scale * (1 + 0.01 * noise) for scale, noise in zip((1.0, 1.05), drift, strict=True))
        low, high = compare.ratio_interval(list(left), list(right), trial)
        covered += low <= 1.05 <= high

    assert 168 <= covered <= 198


def test_the_same_samples_give_the_same_interval() -> None:
    left, right = [100.0, 101.0, 102.0] * 9, [101.0, 99.0, 103.0] * 8

    assert compare.ratio_interval(left, right, 3) == compare.ratio_interval(left, right, 3)


def test_the_exit_code_is_that_of_the_worst_row(tmp_path: Path, normbench: Normbench) -> None:
    Study().write_archived(tmp_path)
    Study(run=LATER, seed=2, slow={"naive": 1.1}).write_archived(tmp_path)
    left, right = f"{Study().device}/{RUN}", f"{Study().device}/{LATER}"
    options = ("--archive", tmp_path, "--json", tmp_path / "found.json")

    worse, better = normbench("compare", left, right, *options), normbench("compare", right, left, *options)

    assert (worse.returncode, better.returncode) == (1, 0)
    assert "SLOWER" in worse.stdout
    assert worse.stdout.index("naive") < worse.stdout.index("4 SLOWER")
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["counts"]["FASTER"] == 4
    assert document["exit"] == 0


def test_an_unknown_run_is_answered_with_those_there_are(tmp_path: Path, normbench: Normbench) -> None:
    Study().write_archived(tmp_path)

    found = normbench("compare", "nowhere/20200101T000000-0000000", "b", "--archive", tmp_path)

    assert found.returncode == 1
    assert f"{Study().device}/{RUN}" in found.stderr
    assert "Traceback" not in found.stderr
