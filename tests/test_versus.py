"""Runs beside each other: the page of a comparison, the history on the index, and regret."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import report_fixture as fixture
from normbench import archive, compare, history, index, measured, regret, schema, versus
from normbench.archive import Run
from study_fixture import FAILED, RUN, Study
from test_page import archive as collected

Normbench = Callable[..., subprocess.CompletedProcess[str]]
LATER = "20210102T030405-abcdef1"
SMALL = fixture.Fixture(dtypes=("bf16",), hidden=(1024, 4096), latency=False)
SLOW = replace(SMALL, device="other-gpu-000002", gpu_name="Other GPU (invented)", scale=0.5)


def run(folder: Path, study: Study) -> Run:
    return archive.read_archived(study.write_archived(folder))


def page(left: Run, right: Run) -> str:
    return versus.build(left, right, compare.compare(left, right))


class Text(HTMLParser):
    """The text of a page, a space between elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.tags: list[str] = []
        self.feed(html.partition("</style>")[2])

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.parts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.parts))


def test_a_cell_of_the_matrix_shows_another_ratio_than_the_samples(tmp_path: Path) -> None:
    left, right = run(tmp_path, Study(seed=1)), run(tmp_path, Study(seed=2, run=LATER, slow={"naive": 1.25}))
    html = page(left, right)

    cells = re.findall(r'<td class="n v (\w+)" title="(\w+): [^"]*"><abbr title="\w+">(.)</abbr> ([\d.]+)×', html)
    assert len(cells) == 20
    slower = [cell for cell in cells if cell[0] == "slower"]
    assert slower == [("slower", "SLOWER", "▼", "0.80")] * 4
    assert {cell[:3] for cell in cells} - {slower[0][:3]} == {("same", "SAME", "=")}


def test_each_side_is_judged_by_its_own_ceiling(tmp_path: Path) -> None:
    ceiling = {"naive": {"ceiling_gbps": 2000.0}}
    html = page(run(tmp_path, Study()), run(tmp_path, Study(run=LATER, slow={"naive": 0.5}, changes=ceiling)))
    row = html.split('<th scope="row">naive</th>')[2].split("</tr>")[0]

    shares = re.findall(r"<small>(\d+) → (\d+)", row)
    assert len(shares) == 2
    assert all(left == right for left, right in shares)


def test_a_ceiling_the_run_tuned_counts_as_on_the_page_of_the_device() -> None:
    """A stream timed between contenders may be slower than the one tuned alone; the higher is the ceiling."""
    tables = SMALL.tables()
    tuned = tables["ceilings"].with_columns(value=pl.when(pl.col("name") == "copy").then(8400.0).otherwise("value"))
    one = Run(SMALL.device, SMALL.run, SMALL.machine(), {}, tables | {"ceilings": tuned})
    rows = compare.compare(one, one).rows
    shown = measured.measured(measured.Archive(**one.tables, machines=(one.machine,)), SMALL.device).showdown

    for row in rows:
        on_page = shown.filter(contender=row.contender, op=row.op, hidden=row.hidden)["ceiling_fraction"][0]
        assert row.left_pct == pytest.approx(100 * on_page)


def test_newly_wrong_rows_stand_on_the_page(tmp_path: Path) -> None:
    html = page(run(tmp_path, Study()), run(tmp_path, Study(run=LATER, changes={"naive": FAILED})))

    assert Text(html).text.count("wrong: an invented failure") == 4


def test_the_page_needs_no_script_and_no_label_becomes_markup(tmp_path: Path) -> None:
    left = run(tmp_path, Study())
    right = run(tmp_path, Study(run=LATER))
    right.machine["gpu_name"] = "<script>alert(1)</script>"
    html = page(left, right)

    assert "script" not in Text(html).tags
    assert "script-src &#39;none&#39;" in html
    assert "<script>alert(1)</script>" in Text(html).text


def test_the_machines_are_told_apart(tmp_path: Path) -> None:
    left, right = run(tmp_path, Study()), run(tmp_path, Study(run=LATER))
    left.machine.update(driver="580.1", baselines={"liger": "0.8.5"}, ecc=True)
    right.machine.update(driver="590.2", baselines={"quack": "0.6"}, ecc=True)
    section = page(left, right).split('id="machines"')[1].split("</section>")[0]

    differing = re.findall(
        r'<tr class="differs"><th scope="row">(\S+)[^\n]*?</th><td>([^<]*)</td><td>([^<]*)<', section
    )
    assert differing == [("driver", "580.1", "590.2"), ("liger", "0.8.5", "–"), ("quack", "–", "0.6")]
    assert '<tr><th scope="row">ECC</th><td>yes</td><td>yes</td></tr>' in section


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    left, right = run(tmp_path, Study()), run(tmp_path, Study(run=LATER))

    assert page(left, right) == page(left, right)


def test_the_verb_writes_the_page_and_still_fails(tmp_path: Path, normbench: Normbench) -> None:
    Study().write_archived(tmp_path)
    Study(run=LATER, seed=2, slow={"naive": 1.1}).write_archived(tmp_path)
    names = [f"{Study().device}/{RUN}", f"{Study().device}/{LATER}"]

    ran = normbench("compare", *names, "--archive", tmp_path, "--html", tmp_path / "x.html", "--title", "my <study>")

    assert ran.returncode == 1
    assert "my &lt;study&gt;" in (tmp_path / "x.html").read_text()


def test_two_pages_of_different_runs_share_a_name() -> None:
    assert archive.comparison("a/1", "b/2") == "compare-a-1-b-2"
    assert archive.comparison("reports/data/a/1", "b/2") == "compare-a-1-b-2"


def tuned(device: str, times: dict[int, float | None]) -> pl.DataFrame:
    """The tuning of one kernel at one point: a time for each block size."""
    row = SMALL.tables()["cases"].row(0, named=True)
    rows = [
        row
        | {"device": device, "variant": json.dumps({"block": block}), "block": block, "time_us_p50": time}
        | ({} if time else {"status": "launch_error", "reason": "invented"})
        for block, time in times.items()
    ]
    return fixture.frame("cases", rows)


def test_regret_is_the_time_of_the_lefts_choice_over_the_rights_best() -> None:
    left, right = tuned("a", {64: 10.0, 128: 11.0, 256: 12.0}), tuned("b", {64: 33.0, 128: 30.0, 256: 31.0})

    (row,) = regret.of_variants(left, right).to_dicts()
    assert (row["choice"], row["best"]) == ('{"block": 64}', '{"block": 128}')
    assert row["regret"] == pytest.approx(0.1)
    found = regret.summary(regret.of_variants(left, right))
    assert (found.worst, found.choice, found.best) == (row["regret"], row["choice"], row["best"])
    same = regret.summary(regret.of_variants(left, left))
    assert (same.typical, same.worst, same.where, same.choice) == (0.0, 0.0, None, None)


def test_a_choice_that_does_not_run_there_is_no_regret_of_zero() -> None:
    left, right = tuned("a", {64: 10.0, 128: 11.0}), tuned("b", {64: None, 128: 30.0})

    found = regret.summary(regret.of_variants(left, right))
    assert (found.points, found.unusable) == (1, 1)
    assert found.typical is found.worst is found.where is None


def test_only_what_may_be_quoted_is_a_choice() -> None:
    """The fastest of the left race is throttled, so the second is what one would ship."""
    rows = SMALL.tables()["showdown"].filter(op="rmsnorm", hidden=4096).sort("time_us_p50")
    rows = rows.filter(~pl.col("contender").str.contains("twin|copy"))
    first, second = rows["contender"][:2]
    left = rows.with_columns(
        verdict=pl.when(pl.col("contender") == first).then(pl.lit("throttled")).otherwise("verdict")
    )

    (row,) = regret.of_contenders(left, rows).to_dicts()
    assert (row["choice"], row["best"]) == (second, first)
    assert row["regret"] == pytest.approx(rows["time_us_p50"][1] / rows["time_us_p50"][0] - 1)


def test_a_comparison_read_backwards_disagrees_with_itself() -> None:
    left, right = (Run(made.device, made.run, made.machine(), {}, made.tables()) for made in (SMALL, SLOW))
    there, back = compare.compare(left, right), compare.compare(right, left)
    turned = compare.swapped(there)

    assert turned.counts == back.counts
    assert turned.speedup == pytest.approx(back.speedup)
    assert (turned.left, turned.right) == (back.left, back.right)
    assert {(row.contender, row.left_pct) for row in turned.rows} == {
        (row.contender, row.left_pct) for row in back.rows
    }


def test_changes_between_runs_are_named() -> None:
    before = SMALL
    after = replace(SMALL, run="20200301T000000-1111111", contenders=(*SMALL.contenders[:-3], "cta_row__twin"))
    tables = after.tables()
    other = pl.when(pl.col("contender") == "welford").then(pl.col("registers") + 1).otherwise("registers")
    tables["resources"] = tables["resources"].with_columns(registers=other)
    machine = after.machine() | {"driver": "590.1", "baselines": {"liger": "0.9"}}
    old = Run(before.device, before.run, before.machine(), {}, before.tables())
    new = Run(after.device, after.run, machine, {}, tables)

    assert list(history.changes(old, new)) == [
        "driver 0.0.fixture → 590.1",
        "liger 0.8.5 → 0.9",
        "quack 0.6.5 → –",
        "without: copy, quack",
        "compiles to other registers, spills or shared memory: welford",
    ]
    assert list(history.changes(old, old)) == []


def test_a_run_of_other_points_is_not_the_same_study() -> None:
    fewer = replace(SMALL, run="20200301T000000-1111111", hidden=SMALL.hidden[:1])
    old, new = (Run(one.device, one.run, one.machine(), {}, one.tables()) for one in (SMALL, fewer))
    points = [2 * len(one.hidden) for one in (SMALL, fewer)]
    assert f"stream points {points[0]} → {points[1]}, {points[1]} in both: means are over each run's own" in list(
        history.changes(old, new)
    )


def test_the_history_of_a_model_is_in_the_order_of_time() -> None:
    later = replace(SMALL, run="20200301T000000-1111111")
    (found,) = history.histories(collected(later, SMALL))

    assert [step.run.run for step in found.steps] == [SMALL.run, later.run]
    assert found.steps[0].since is None
    assert found.steps[1].since is not None
    assert found.columns == (("layernorm", "bf16"), ("rmsnorm", "bf16"))


def test_a_run_is_judged_against_one_of_other_points() -> None:
    other = replace(SMALL, run="20200201T000000-1111111", hidden=(33,))
    later = replace(SMALL, run="20200301T000000-1111111")
    (found,) = history.histories(collected(later, other, SMALL))

    assert [step.before and step.before.run for step in found.steps] == [None, None, SMALL.run]
    assert [step.since is None for step in found.steps] == [True, True, False]
    page = index.build(collected(later, other, SMALL)).split('id="history"')[1]
    assert page.count("first run of these points") == 1


def test_a_cell_of_the_history_is_another_mean_than_that_of_its_races() -> None:
    (found,) = history.histories(collected(SMALL))
    raw = SMALL.tables()["showdown"].filter(op="rmsnorm", regime="stream", status="ok")
    ratios = []
    for race in raw.partition_by("point"):
        best = race.filter(~pl.col("contender").str.contains("twin|copy"))["time_us_p50"].min()
        ratios.append(race.filter(contender="torch_eager")["time_us_p50"][0] / best)
    cell = found.steps[0].cells[1]

    assert cell is not None
    assert cell.points == 2
    assert cell.eager == pytest.approx(math.prod(ratios) ** 0.5)


def test_the_index_sets_devices_side_by_side() -> None:
    everything = collected(SMALL, SLOW)
    section = index.build(everything).split('id="devices"')[1].split("</section>")[0]
    there, back = history.meetings(everything)

    assert section.count(">itself<") == 4
    for meeting in (there, back):
        assert meeting.found is not None
        assert f"<b>{meeting.found.speedup:.2f}×</b>" in section
    assert (there.left, back.left) == (SMALL.device, SLOW.device)
    assert there.found.counts["SLOWER"] == back.found.counts["FASTER"] > 0  # type: ignore[union-attr]
    assert "Shipping the choices of the row on the column" in section


def test_devices_without_a_common_point_are_told_so() -> None:
    other = replace(SLOW, hidden=(2048,))
    html = index.build(collected(SMALL, other))

    assert html.split('id="devices"')[1].count("nothing in common") >= 2


def test_one_device_is_not_compared_with_itself() -> None:
    html = index.build(collected(SMALL))

    assert 'id="devices"' not in html
    assert "first run" in html


def test_a_run_that_measured_nothing_has_a_line() -> None:
    empty = {name: table.empty() for name, table in schema.TABLES.items()}
    html = index.build(measured.Archive(**empty, machines=(SMALL.machine(),)))

    assert SMALL.run in html.split('id="history"')[1]
