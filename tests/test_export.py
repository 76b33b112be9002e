"""What leaves for other tools: NVBench's JSON and the JSON Schema of the tables."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

import report_fixture as fixture
from normbench import columns, nvbench, schema
from study_fixture import FAILED, RUN, Study

Normbench = Callable[..., subprocess.CompletedProcess[str]]
MADE = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(2049, 4096))
LATER = "20210102T030405-abcdef1"


@pytest.fixture(scope="module")
def exported() -> dict[str, Any]:
    return nvbench.document(MADE.tables()["showdown"], MADE.machine())


def test_nvbench_is_told_the_part_that_reduces() -> None:
    made = fixture.Fixture(ops=("rmsnorm_bwd",), dtypes=("bf16",), hidden=(4096,), latency=False)
    document = nvbench.document(made.tables()["showdown"], made.machine())
    row = made.tables()["showdown"].filter(contender="cta_row").row(0, named=True)

    assert value(of(document, contender="cta_row"), "normbench/reduction") == pytest.approx(row["reduce_us"] / 1e6)
    summaries = of(document, contender="torch_eager")["summaries"]
    assert "normbench/reduction" not in {summary["tag"] for summary in summaries}


def states(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [state for bench in document["benchmarks"] for state in bench["states"]]


def of(document: dict[str, Any], **wanted: object) -> dict[str, Any]:
    """The one state with these axis values."""
    texts = {name: str(value) for name, value in wanted.items()}
    found = [
        state
        for state in states(document)
        if texts.items() <= {axis["name"]: axis["value"] for axis in state["axis_values"]}.items()
    ]
    assert len(found) == 1
    return found[0]


def value(state: dict[str, Any], tag: str) -> float:
    """A summary as NVBench's scripts look it up: by tag, then by the name ``value``."""
    (summary,) = (summary for summary in state["summaries"] if summary["tag"] == tag)
    (data,) = (data for data in summary["data"] if data["name"] == "value")
    assert isinstance(data["value"], str)
    return float(data["value"])


def test_nvbench_would_compare_another_time_than_the_samples_have(exported: dict[str, Any]) -> None:
    row = MADE.tables()["showdown"].filter(contender="cta_row", hidden=4096, regime="stream").row(0, named=True)
    state = of(exported, contender="cta_row", hidden=4096, regime="stream")
    seconds = [sample / 1e6 for sample in row["samples_us"]]

    assert value(state, "nv/cold/time/gpu/mean") == pytest.approx(statistics.mean(seconds), rel=1e-7)
    assert value(state, "nv/cold/time/gpu/median") == pytest.approx(statistics.median(seconds), rel=1e-7)
    deviation = statistics.stdev(seconds) / statistics.mean(seconds)
    assert value(state, "nv/cold/time/gpu/stdev/relative") == pytest.approx(deviation, rel=1e-5)
    assert value(state, "nv/cold/sample_size") == len(seconds)
    assert value(state, "nv/cold/sm_clock_rate/mean") == row["sm_clock_gpu_mhz"] * 1e6
    rate = row["bytes"] / statistics.mean(seconds)
    assert value(state, "nv/cold/bw/global/utilization") == pytest.approx(rate / 4814e9, rel=1e-6)


def test_a_time_inside_l2_would_be_a_share_of_the_memory_bus(exported: dict[str, Any]) -> None:
    state = of(exported, contender="cta_row", hidden=4096, regime="latency", rows=16)
    tags = {summary["tag"] for summary in state["summaries"]}

    assert "nv/cold/bw/global/bytes_per_second" in tags
    assert "nv/cold/bw/global/utilization" not in tags


def test_a_row_without_a_time_would_be_lost_or_have_one(exported: dict[str, Any]) -> None:
    state = of(exported, contender="quack", hidden=2049, regime="stream")

    assert state["is_skipped"]
    assert state["skip_reason"].startswith("launch_error: invented: needs hidden")
    assert state["summaries"] == []


def test_two_rows_would_have_one_state_name(exported: dict[str, Any]) -> None:
    names = [(bench["name"], state["name"]) for bench in exported["benchmarks"] for state in bench["states"]]
    rows = MADE.tables()["showdown"].filter(~pl.col("contender").str.ends_with("__twin"))

    assert len(names) == len(set(names)) == rows.height


def test_every_axis_value_of_a_state_is_declared(exported: dict[str, Any]) -> None:
    for bench in exported["benchmarks"]:
        declared = {axis["name"]: {value["value"] for value in axis["values"]} for axis in bench["axes"]}
        for state in bench["states"]:
            for axis in state["axis_values"]:
                assert axis["value"] in declared[axis["name"]]


def test_a_machine_of_which_nothing_is_known_cannot_be_exported() -> None:
    document = nvbench.document(MADE.tables()["showdown"], {"device": "d", "run": "r"})

    assert document["devices"][0]["name"] == "d"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_export_writes_the_run_that_was_named(tmp_path: Path, normbench: Normbench) -> None:
    Study().write_archived(tmp_path)
    run = f"{Study().device}/{RUN}"

    printed = normbench("export", run, "--format", "nvbench", "--archive", tmp_path)
    normbench("export", run, "--format", "nvbench", "--archive", tmp_path, "--out", tmp_path / "run.json")

    assert printed.returncode == 0
    assert json.loads(printed.stdout)["meta"]["argv"][-1] == run
    assert (tmp_path / "run.json").read_text() == printed.stdout


def test_nvbenchs_own_script_finds_another_result_than_ours(tmp_path: Path, normbench: Normbench) -> None:
    """One kernel of three is 10 % slower: 4 points, and one row that has no time on one side is not matched."""
    pytest.importorskip("cuda.bench.scripts.nvbench_compare", reason="the package cuda-bench is not installed")
    made = [Study(), Study(run=LATER, seed=2, slow={"naive": 1.1}, changes={"triton_row": FAILED})]
    for index, study in enumerate(made):
        study.write_archived(tmp_path)
        run = f"{study.device}/{study.run}"
        normbench("export", run, "--format", "nvbench", "--archive", tmp_path, "--out", tmp_path / f"{index}.json")

    command = [sys.executable, "-m", "cuda.bench.scripts.nvbench_compare", "--no-color", "0.json", "1.json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    lines = [line for line in ran.stdout.splitlines() if "naive" in line]
    assert [re.search(r"(SLOW|SAME|FAST)", line)[0] for line in lines] == ["SLOW"] * 4  # type: ignore[index]
    assert not [line for line in ran.stdout.splitlines() if "triton_row" in line]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    return {name: frame.head(40).to_dicts() for name, frame in MADE.tables().items()}


def invalid(rows: dict[str, list[dict[str, Any]]]) -> bool:
    return not jsonschema.Draft202012Validator(columns.json_schema()).is_valid(rows)


def test_the_json_schema_refuses_the_tables_it_describes(rows: dict[str, list[dict[str, Any]]]) -> None:
    jsonschema.Draft202012Validator.check_schema(columns.json_schema())

    assert not invalid(rows)


@pytest.mark.parametrize(
    "changes",
    [{"status": "fine"}, {"rows": 1.5}, {"op": None}, {"time_us_p50": "3"}, {"samples_us": [None]}, {"extra": 1}],
    ids=str,
)
def test_the_json_schema_takes_what_the_tables_cannot_hold(
    rows: dict[str, list[dict[str, Any]]], changes: dict[str, Any]
) -> None:
    assert invalid(rows | {"showdown": [rows["showdown"][0] | changes]})


def test_the_json_schema_lacks_a_column_or_its_unit(normbench: Normbench) -> None:
    document = json.loads(normbench("columns", "--json").stdout)

    for name, table in schema.TABLES.items():
        described = document["$defs"][name]["properties"]
        assert list(described) == list(table.schema)
        for column in table.columns:
            assert described[column.name]["description"] == column.meaning
            assert described[column.name].get("x-unit", "") == column.unit


def test_columns_of_one_table_describe_no_other(normbench: Normbench) -> None:
    document = json.loads(normbench("columns", "--json", "--table", "checks").stdout)

    assert set(document["$defs"]) == {"checks", "derived"}
