"""The cross-check without a GPU: which points, every timer's row, what a missing or failing timer leaves, the words."""

from __future__ import annotations

import array
import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch

import report_fixture
from measuring_fixture import EAGER, ROW, Recorder, fake, point, task, work_off
from normbench import audit, auditing, harness, inspections, schema
from normbench.audit import Choice
from normbench.gpu import DeviceLost
from normbench.inspections import METHODS
from normbench.points import Point

WORK = point(rows=64)


def entries(*specs: str, work: Point = WORK) -> list[dict[str, Any]]:
    variants = {spec: {} if "baselines" in spec else {"num_warps": 4} for spec in specs}
    return [
        {"point": work.identity(), "spec": spec, "variant": variants[spec], "unit": f"{work.key} {Path(spec).stem}"}
        for spec in specs
    ]


def audited(told: list[dict[str, Any]], done: dict[str, Any] | None = None, **facts: Any) -> Recorder:
    specs = [{"spec": spec, "build": None} for spec in dict.fromkeys(entry["spec"] for entry in told)]
    return work_off(task("audit", contenders=specs, entries=told, done=done or {}), fake(**facts))


def frame(rows: list[dict[str, Any]], folder: Path) -> pl.DataFrame:
    harness.write(rows, schema.AUDIT, folder / "audit.parquet")
    return schema.read(folder / "audit.parquet", schema.AUDIT)


def test_every_contender_has_a_row_for_every_timer(tmp_path: Path) -> None:
    found = frame(audited(entries(ROW, EAGER)).rows, tmp_path)

    assert set(found.select("contender", "method").rows()) == {
        (contender, method) for contender in ("triton_row", "torch_eager") for method in METHODS
    }
    assert found["status"].unique().to_list() == ["ok"]
    assert found.filter(pl.col("method") == "normbench")["n_samples"].unique().to_list() == [2 * auditing.ROUNDS]


def test_a_timer_that_is_not_installed_is_a_row_with_the_reason(tmp_path: Path) -> None:
    found = frame(audited(entries(ROW, EAGER), faults={"nvbench": "absent"}).rows, tmp_path)

    skipped = found.filter(pl.col("status") != "ok")
    assert set(skipped["method"]) == {"nvbench", "nvbench_batch"}
    assert skipped["reason"].unique().to_list() == [auditing.ABSENT]


def test_a_wrong_contender_has_no_time_under_any_timer(tmp_path: Path) -> None:
    found = frame(audited(entries(ROW, EAGER), faults={"triton_row": "wrong"}).rows, tmp_path)

    wrong = found.filter(pl.col("contender") == "triton_row")
    assert wrong["status"].to_list() == ["wrong"] * len(METHODS)
    assert found.filter(pl.col("status") == "ok").height == len(METHODS)


def test_what_is_known_is_not_timed_again() -> None:
    first = audited(entries(ROW, EAGER))

    assert audited(entries(ROW, EAGER), first.done).lines == []


def test_a_timer_that_ended_the_process_keeps_its_row_and_the_others_get_theirs(tmp_path: Path) -> None:
    told = entries(ROW, EAGER)
    row = {"status": "launch_error", "reason": "the process was ended by signal SIGSEGV"}
    unit = f"{told[0]['unit']} do_bench"
    crashed = audited(told).done[unit]["row"] | row | {name: None for name in schema.AUDIT.schema if "_us" in name}
    crashed["n_samples"] = None

    found = frame(audited(told, {unit: {"stage": "final", "row": crashed}}).rows, tmp_path)

    statuses = {(name, method): status for name, method, status in found.select("contender", "method", "status").rows()}
    assert statuses["triton_row", "do_bench"] == "launch_error"
    assert sum(status == "ok" for status in statuses.values()) == 2 * len(METHODS) - 1


# under NVBench itself, as far as that goes without a GPU


class FakeState:
    """NVBench's state: calls what is to be timed, and says what was skipped."""

    def __init__(self, entry: int) -> None:
        self.entry, self.launches, self.skipped = entry, 0, ""

    def get_int64(self, name: str) -> int:
        assert name == auditing.AXIS
        return self.entry

    def set_stream(self, stream: Any) -> None:
        assert stream.__cuda_stream__() == (0, 7)

    def skip(self, reason: str) -> None:
        self.skipped = reason

    def exec(self, once: Any) -> None:
        for _ in range(7):
            once(None)
            self.launches += 1


class FakeNvbench(ModuleType):
    """``cuda.bench``: one registered benchmark, one run a process, and a result for every state with launches."""

    def __init__(self) -> None:
        super().__init__("cuda.bench")
        self.states: list[FakeState] = []
        self.runs = 0

    def register(self, function: Any) -> FakeNvbench:
        self.function = function
        return self

    def add_int64_axis(self, name: str, values: list[int]) -> None:
        self.states = [FakeState(value) for value in values]

    def set_timeout(self, seconds: float) -> None:
        pass

    def run_all_benchmarks(self, argv: list[str]) -> None:
        self.runs += 1
        assert self.runs == 1, "NVBench refuses a second run in one process"
        assert argv[1:4] == ["--devices", "0", "--jsonbin"]
        for state in self.states:
            self.function(state)

    def read(self, path: Path) -> dict[str, list[Any]]:
        return {"normbench": [self._result(state) for state in self.states]}

    @staticmethod
    def _result(state: FakeState) -> SimpleNamespace:
        timed = bool(state.launches)
        return SimpleNamespace(
            axis_values=[{"name": auditing.AXIS, "type": "int64", "value": str(state.entry)}],
            samples=array.array("f", [1e-4, 1.1e-4, 1.2e-4]) if timed else None,
            summaries={"nv/batch/time/gpu/mean": SimpleNamespace(value=1.05e-4)} if timed else {},
            skip_reason=state.skipped or None,
        )


@pytest.fixture
def nvbench(monkeypatch: pytest.MonkeyPatch) -> FakeNvbench:
    made = FakeNvbench()
    results = ModuleType("cuda.bench.results")
    results.BenchmarkResult = SimpleNamespace(from_json=made.read)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bench", made)
    monkeypatch.setitem(sys.modules, "cuda.bench.results", results)
    return made


def under_nvbench(made: FakeNvbench, told: list[dict[str, Any]], **facts: Any) -> Recorder:
    """The worker's way through NVBench on the faked GPU, which has neither streams nor contexts of torch's."""
    recorder, gpu = Recorder(), fake(**facts)
    gpu.stream = SimpleNamespace(cuda_stream=7)  # type: ignore[attr-defined]
    specs = [{"spec": spec, "build": None} for spec in dict.fromkeys(entry["spec"] for entry in told)]
    session = auditing.Session(task("audit", contenders=specs, entries=told), gpu, None, recorder)  # type: ignore[arg-type]
    auditing.Audit(session)._under_nvbench(made)
    return recorder


@pytest.fixture
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


@pytest.mark.usefixtures("no_streams")
def test_nvbench_runs_once_and_its_samples_become_rows(nvbench: FakeNvbench, tmp_path: Path) -> None:
    found = frame(under_nvbench(nvbench, entries(ROW, EAGER)).rows, tmp_path)

    assert nvbench.runs == 1
    assert [state.launches for state in nvbench.states] == [7, 7]
    cold = found.filter(pl.col("method") == "nvbench")
    assert cold["time_us_p50"].to_list() == pytest.approx([110.0, 110.0])
    assert cold["n_samples"].to_list() == [3, 3]
    assert found.filter(pl.col("method") == "nvbench_batch")["time_us_p50"].to_list() == pytest.approx([105.0, 105.0])
    assert found.height == 2 * len(METHODS)


@pytest.mark.usefixtures("no_streams")
def test_a_contender_that_fails_leaves_nvbench_the_other_one(nvbench: FakeNvbench, tmp_path: Path) -> None:
    found = frame(under_nvbench(nvbench, entries(ROW, EAGER), faults={"triton_row": "wrong"}).rows, tmp_path)

    assert [state.launches for state in nvbench.states] == [0, 7]
    assert found.filter(pl.col("contender") == "triton_row")["status"].to_list() == ["wrong"] * len(METHODS)
    assert found.filter(pl.col("contender") == "torch_eager")["status"].to_list() == ["ok"] * len(METHODS)


@pytest.mark.usefixtures("no_streams")
def test_a_lost_context_ends_the_run_with_the_worker(nvbench: FakeNvbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*arguments: Any) -> None:
        raise DeviceLost("an illegal memory access")

    monkeypatch.setattr(auditing.Audit, "_do_bench", lose)

    with pytest.raises(DeviceLost):
        under_nvbench(nvbench, entries(ROW, EAGER))
    assert nvbench.states[1].skipped == "the CUDA context is lost"


# which points


def test_points_are_spread_and_one_is_short() -> None:
    points = [
        Point("rmsnorm", dtype, 2**27 // hidden, hidden) for dtype in schema.DTYPES for hidden in (256, 1024, 4096)
    ]

    found = audit.chosen(points, 6)

    assert len(found) == len({choice.point for choice in found}) == 6
    assert {choice.point.dtype for choice in found} == set(schema.DTYPES)
    short = found[-1]
    assert short.point.rows * audit.SHORT == short.studied.rows
    assert all(choice.point == choice.studied for choice in found[:-1])


@pytest.mark.parametrize("count", [1, 2, 50])
def test_as_many_points_as_there_are(count: int) -> None:
    points = [Point("rmsnorm", "bf16", 4096, hidden) for hidden in (256, 512)]

    assert len(audit.chosen(points, count)) == min(count, 3)
    assert audit.chosen([], count) == []


def test_the_fastest_of_ours_is_timed_beside_the_baseline() -> None:
    kernels = {f"kernels/{stem}": SimpleNamespace(stem=stem) for stem in ("slow", "fast")}
    winners = {(WORK.key, "slow"): (9.0, '{"a":1}'), (WORK.key, "fast"): (7.0, '{"a":2}')}
    short = WORK.with_rows(4)

    found = audit.entries_of([Choice(WORK, WORK), Choice(short, WORK), Choice(short, short)], kernels, winners)  # type: ignore[arg-type]

    assert [(entry["point"]["rows"], Path(entry["spec"]).stem, entry["variant"]) for entry in found] == [
        (64, "fast", {"a": 2}),
        (64, "torch_eager", {}),
        (4, "fast", {"a": 2}),
        (4, "torch_eager", {}),
    ]


# what it says


def test_the_largest_deviation_is_found_and_judged() -> None:
    made = report_fixture.Fixture().tables()["audit"]

    sentence = inspections.conclusion(made)
    found = inspections.audit(made)

    assert "at most 3.1 %, not within 2 %" in sentence
    assert "torch_eager layernorm fp32 32768x4096 under nvbench" in sentence
    assert found is not None
    assert [off for line in found.lines for _, off in line.cells].count(True) == 1
    assert found.missing == ["nvbench_batch: invented: NVBench has no time (2 rows)"]


@pytest.mark.parametrize(
    ("time_us", "mhz", "deviation"),
    [
        (103.0, 1980.0, 0.03),
        (103.0, 1900.0, 0.0),  # between the same time and the same cycles
        (103.0, 1950.0, 103 * 1950 / 198000 - 1),
        (97.0, 1900.0, -0.03),
        (103.0, None, 0.03),
    ],
)
def test_what_another_clock_explains_is_no_deviation(time_us: float, mhz: float | None, deviation: float) -> None:
    made = report_fixture.Fixture().tables()["audit"].filter(pl.col("method").is_in(["normbench", "nvbench"])).head(2)
    other = pl.col("method") == "nvbench"
    made = made.with_columns(
        time_us_p50=pl.when(other).then(time_us).otherwise(100.0),
        sm_clock_gpu_mhz=pl.when(other).then(mhz).otherwise(1980.0),
    )

    assert inspections.deviations(made)["deviation"].to_list() == [pytest.approx(deviation)]


def test_short_launches_are_shown_and_not_judged() -> None:
    made = report_fixture.Fixture().tables()["audit"]
    short = made.with_columns(pl.col("time_us_p50") / 10)

    assert inspections.conclusion(short) == "No other timer has a time for a launch of more than 50 µs."
    assert inspections.audit(made.clear()) is None
