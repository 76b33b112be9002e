"""The sections that only some studies have: gradients, and wide rows with their two contracts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import vl_convert

import report_fixture as fixture
from normbench import backward, contracts, findings, formats, measured, page, wide
from normbench.charts import reduction, theme
from normbench.points import Point, Semantics

GRADIENTS = fixture.Fixture(
    ops=("layernorm", "layernorm_bwd", "rmsnorm_bwd"), dtypes=("bf16",), hidden=(1024, 4096), latency=False
)
SHAPE = "16x64x256x256"
TIMES = {"wide_torch_order": 290.0, "wide_onepass": 180.0, "torch_eager": 8350.0, "torch_compile": 320.0, "copy": 132.0}


def study(made: fixture.Fixture, **tables: pl.DataFrame) -> measured.Measured:
    archive = measured.Archive(**{**made.tables(), **tables}, machines=(made.machine(),))
    return measured.measured(archive, made.device)


def section(html: str, name: str) -> str:
    return html.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_a_gradient_is_shown_beside_the_fastest_forward_of_its_shape() -> None:
    one = study(GRADIENTS)
    found = backward.section(one)
    assert found is not None
    assert [(line.op, line.hidden) for line in found.lines] == [
        (op, hidden) for op in ("layernorm_bwd", "rmsnorm_bwd") for hidden in (1024, 4096)
    ]
    line = found.lines[1]
    raced = GRADIENTS.tables()["showdown"].filter(
        (pl.col("hidden") == 4096) & (pl.col("status") == "ok") & ~pl.col("contender").str.contains("copy|twin")
    )
    fastest = {op: raced.filter(op=op)["time_us_p50"].min() for op in ("layernorm", "layernorm_bwd")}
    assert line.time_us == fastest["layernorm_bwd"]
    assert line.ratio == pytest.approx(fastest["layernorm_bwd"] / fastest["layernorm"])
    assert found.mixes == ["read2_write1"]
    assert found.lines[3].forward is None  # rmsnorm was not raced


def test_the_section_of_gradients_is_on_the_page_and_the_charts_offer_their_ops() -> None:
    html = page.build(study(GRADIENTS))
    shown = section(html, "backward")
    assert "the ceiling is measured with the same mix (<code>read2_write1</code>)" in shown
    assert "not raced" in shown
    assert 'name="op" value="layernorm_bwd"' in html


def test_a_study_without_gradients_has_no_section_of_them() -> None:
    html = page.build(study(replace(GRADIENTS, ops=("layernorm",))))
    assert 'id="backward"' not in html
    assert 'id="wide"' not in html


def test_the_column_sums_are_described_by_what_was_recorded() -> None:
    tables = GRADIENTS.tables()
    launches = pl.concat([tables["resources"].with_columns(launch=pl.lit(number, pl.Int32)) for number in range(3)])
    differing = pl.when(pl.col("contender") == "naive").then(pl.col("case") != "K1.1").otherwise("deterministic")
    checks = tables["checks"].with_columns(deterministic=differing, reproducible=pl.lit(True))
    none = tables["profile"].clear()
    found = backward.section(study(GRADIENTS, resources=launches, checks=checks, profile=none))
    assert found is not None
    sums = {line.contender: line for line in found.sums}
    asked = 2 * len(fixture.CASES_OF_CHECKS)
    assert sums["naive"].launches == 3
    assert sums["naive"].same_bits == (asked - 2, asked)
    assert sums["naive"].any_gpu == (asked, asked)
    assert sums["liger"].launches is None  # nobody compiled or profiled it


def test_the_reduction_is_shown_as_a_part_of_the_time() -> None:
    one = study(GRADIENTS)
    shown = section(page.build(one), "backward")
    found = backward.section(one)
    assert found is not None

    (line,) = (line for line in found.lines if (line.op, line.hidden) == ("layernorm_bwd", 4096))
    assert (line.use, line.reduce_us) == ("cta_row", pytest.approx(0.02 * line.time_us))
    assert f'{line.time_us:.4g}</td><td class="n">{formats.few(line.reduce_us)} (2\u00a0%)</td>' in shown  # type: ignore[arg-type]
    assert {sums.contender: sums.share for sums in found.sums if sums.share} == {
        "cta_row": pytest.approx((0.02, 0.02)),
        "naive": pytest.approx((0.5, 0.5)),
    }
    assert found.contenders == ["cta_row", "naive"]
    assert [(part.op, part.hidden) for part in found.parts] == [(line.op, line.hidden) for line in found.lines]
    for part in found.parts:
        assert [cell and cell[0] / cell[1] for cell in part.cells] == pytest.approx([0.02, 0.5])
    assert re.findall('data-chart="(reduction-.)"', shown) == ["reduction-0", "reduction-1"]
    assert "layernorm_bwd: the reduction as a part of the time" in shown


def test_runs_that_did_not_time_a_reduction_say_so_with_dashes() -> None:
    older = GRADIENTS.tables()["showdown"].with_columns(reduce_us=pl.lit(None, pl.Float64))
    one = study(GRADIENTS, showdown=older)
    found = backward.section(one)
    assert found is not None
    shown = section(page.build(one), "backward")

    assert {line.reduce_us for line in found.lines} == {None}
    assert (found.contenders, found.parts) == ([], [])
    assert "data-chart" not in shown
    assert "The reduction of every kernel" not in shown
    assert reduction.prepare(one, "layernorm_bwd").frame.is_empty()


def test_the_bars_of_a_reduction_end_at_the_time_of_the_fastest_of_ours() -> None:
    one = study(GRADIENTS)
    chosen = reduction.prepare(one, "layernorm_bwd")
    ours = one.showdown.filter(pl.col("role") == "ours", op="layernorm_bwd", verdict="quotable")
    fastest = ours.sort("time_us_p50").unique("hidden", keep="first").filter(pl.col("reduce_us").is_not_null())

    parts = {part: chosen.frame.filter(part=part).sort("hidden") for part in reduction.PARTS}
    below, above = parts.values()
    assert above["hidden"].to_list() == sorted(fastest["hidden"]) == [4096]
    assert above["to_us"].to_list() == fastest["time_us_p50"].to_list()
    assert above["from_us"].to_list() == below["to_us"].to_list()
    assert (above["to_us"] - above["from_us"]).to_list() == pytest.approx(fastest["reduce_us"].to_list())
    assert below["from_us"].to_list() == [0.0]
    assert chosen.omitted == "1 of 2 points not shown: the reduction there is not known."  # triton_row does not tell
    assert reduction.prepare(one, "layernorm").frame.is_empty()


def test_the_chart_of_a_reduction_draws_a_bar_of_two_parts_and_its_share() -> None:
    spec = reduction.chart(reduction.prepare(study(GRADIENTS), "layernorm_bwd").frame).to_dict()
    svg = vl_convert.vegalite_to_svg(spec | {"config": theme.FILE})

    assert svg.split('class="mark-rect role-mark')[1].split("</g>")[0].count("<path") == 2
    assert ">2.0%</text>" in svg
    assert '"title": "reproduce"' in json.dumps(spec)


def wide_row(contender: str, **changes: Any) -> dict[str, Any]:
    time = TIMES.get(contender, 215.0)
    identity = wide.point("layernorm", "fp32", SHAPE, Semantics()).identity()
    return {
        "device": fixture.DEVICE, "run": fixture.RUN, **identity, "contender": contender,
        "lang": "cuda" if contender.startswith("wide") else "torch", "status": "ok", "verdict": "quotable",
        "time_us_p50": time, "time_us_lo": time * 0.999, "time_us_hi": time * 1.001, "n_samples": 30,
        "ceiling_gbps": 4200.0, "err_ulp_max": 180.0, "accurate": True, "allclose_torch": True, "bitwise_torch": False,
    } | changes  # fmt: skip


def check_row(contender: str, case: str, **changes: Any) -> dict[str, Any]:
    identity = wide.point("layernorm", "fp32", SHAPE, Semantics()).identity()
    return {
        "device": fixture.DEVICE, "run": fixture.RUN, **identity, "contender": contender, "lang": "cuda", "case": case,
        "status": "ok", "accurate": True, "bitwise_torch": False,
    } | changes  # fmt: skip


def wide_study() -> measured.Measured:
    """An invented race at problem 40, and what an invented verify said of it."""
    bits = {"bitwise_torch": True, "torch_kernel": "an_invented_kernel", "torch_version": "torch 0.fixture"}
    races = [
        wide_row("wide_torch_order", **bits),
        wide_row("wide_onepass", err_ulp_max=1.5),
        wide_row("wide_split", err_ulp_max=190.0),
        wide_row("torch_eager", **bits),
        wide_row("torch_compile", allclose_torch=False, accurate=False),
        wide_row("copy", bitwise_torch=None, accurate=None, allclose_torch=None, err_ulp_max=None),
        wide_row(
            "torch_var_mean", status="wrong", reason="invented: offset", accurate=False, time_us_p50=None, verdict=None
        ),
        wide_row("liger", status="skipped", reason="invented: too wide", time_us_p50=None, verdict=None),
    ]
    checks = [
        check_row("wide_torch_order", "offset_1000", bitwise_torch=True, accurate=False),
        check_row("wide_onepass", "offset_1000"),
        check_row("wide_split", "offset_1000", status="wrong", reason="invented", accurate=False),
        check_row("wide_split", "uniform"),
    ]
    none = {name: fixture.frame(name, []) for name in ("cases", "resources", "audit", "sanitize", "profile")}
    made = {"showdown": fixture.frame("showdown", races), "checks": fixture.frame("checks", checks)}
    return study(GRADIENTS, **none, **made)


def test_the_two_contracts_of_wide_rows_are_told_apart() -> None:
    (problem,) = contracts.problems(wide_study())
    kept = {name: [line.contender for line in lines] for name, lines in problem.groups}
    assert kept == {
        contracts.BITWISE: ["wide_torch_order", "torch_eager"],
        contracts.ACCURATE: ["wide_onepass"],
        contracts.FAILS: ["wide_split", "torch_compile", "torch_var_mean"],
        contracts.YARDSTICK: ["copy"],
    }
    lines = {line.contender: line for line in problem.lines}
    assert lines["wide_onepass"].against_torch == "smaller"
    assert lines["wide_split"].against_torch == "larger"
    assert lines["torch_compile"].against_torch == "the same"
    assert lines["torch_compile"].failing == "the race"
    assert lines["wide_split"].failing == "offset_1000"
    assert str(lines["wide_split"].right) == "1/2"
    assert lines["torch_var_mean"].failing == "wrong: invented: offset"
    assert lines["wide_torch_order"].eager == pytest.approx(8350 / 290)
    assert problem.skipped == [("liger", "invented: too wide")]


def test_the_finding_of_wide_rows_names_the_fastest_of_each_contract() -> None:
    found = findings.wide(contracts.problems(wide_study()))
    assert found == (
        "Wide rows, layernorm fp32 of 16x64x256x256: wide_torch_order is the fastest of our kernels that is bit for "
        "bit torch (290 µs, 29× as fast as torch eager); wide_onepass is the fastest of our kernels that is accurate, "
        "bits of its own (180 µs, 46× as fast as torch eager)."
    )
    assert findings.wide([]) is None
    # an input that torch's order fails is no fault of a kernel that has torch's bits
    assert not any(sentence.startswith("Wrong on an adversarial") for sentence in findings.findings(wide_study()))


def test_bits_that_differ_on_one_input_are_no_contract() -> None:
    row = wide_row("wide_torch_order", bitwise_torch=True) | {"role": "ours"}
    assert contracts.contract(row, contracts.Tally(1, 2, ("zero",)), contracts.Tally(2, 2)) == contracts.ACCURATE
    assert contracts.contract(row, contracts.Tally(2, 2), contracts.Tally(1, 2, ("zero",))) == contracts.BITWISE


def test_the_wide_section_gives_each_contender_its_time_and_what_made_torchs_bits() -> None:
    html = page.build(wide_study())
    shown = section(html, "wide")
    for contender, time in TIMES.items():
        row = shown.split(f">{contender}</th>")[1].split("</tr>")[0]
        assert f'<td class="n">{time:.4g}</td>' in row
    assert "those of an_invented_kernel of torch 0.fixture" in shown
    assert "liger was not raced: invented: too wide" in shown
    assert shown.index(contracts.BITWISE + "</th>") < shown.index(contracts.ACCURATE + "</th>")


def test_a_wide_point_is_none_of_the_regimes_whose_charts_have_hidden_sizes() -> None:
    one = wide_study()
    assert Point.from_identity(one.showdown.row(0, named=True)).regime == contracts.REGIME
    html = page.build(one)
    assert "Bandwidth: no point of this device streams from memory or stays in L2." in html
    assert "No point of this device streams from memory, so nothing is recommended." in html
    assert "may be quoted yet" not in html
