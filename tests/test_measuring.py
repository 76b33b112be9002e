"""Tuning, racing, roofs and verify on the faked GPU: who gets a row, what it says, and what is not done twice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from measuring_fixture import (
    COPY,
    EAGER,
    FACTS,
    LOOP,
    NAIVE,
    ROW,
    STUDY,
    Recorder,
    fake,
    point,
    race_task,
    task,
    variant,
    work_off,
)
from normbench import ceilings, harness, inputs, metrics, ops, racing, schema, showdown
from normbench.cli import UserError
from normbench.contenders import FakeLaunch, baseline
from normbench.gpu import DeviceLost, buffer_sets, launches_a_sample
from normbench.journal import Journal
from normbench.points import Point, Semantics, canonical_json
from normbench.roofs import tensor_sizes
from normbench.streams import MIXES, Streams, expression, variants
from normbench.supervise import Supervisor
from normbench.tensors import fill_poison

WORK = point()
ROOF_GBPS = 3  # what streams reach on the faked GPU


def table(rows: list[dict[str, Any]], of: schema.Table, folder: Path) -> pl.DataFrame:
    """Rows through the schema, as the verbs write them."""
    harness.write(rows, of, folder / "table.parquet")
    return schema.read(folder / "table.parquet", of)


# tuning


def tune(spec: str = ROW, work: Point = WORK, done: dict[str, Any] | None = None, **more: Any) -> Recorder:
    facts = {name: more.pop(name) for name in ("faults", "slow") if name in more}
    return work_off(task("measure", [work], spec=spec, done=done or {}, **more), fake(**facts))


def test_every_variant_has_a_row_and_the_finalists_have_more_samples(tmp_path: Path) -> None:
    tuned = tune()

    frame = table(tuned.rows, schema.CASES, tmp_path)
    # three variants suit 512 columns: no fewer than 128 a warp
    assert sorted(frame["variant"]) == [variant(num_warps=warps) for warps in (1, 2, 4)]
    assert sorted(frame["block"]) == [32, 64, 128]
    assert set(frame["status"]) == {"ok"}
    assert set(frame["n_samples"]) == {5, 15}
    best = frame.filter(pl.col("time_us_p50") == frame["time_us_p50"].min())
    assert best["n_samples"].to_list() == [15]
    verdicts = dict(frame.select("n_samples", "verdict").rows())
    assert verdicts == {5: "too_few", 15: "quotable"}
    assert frame["err_ulp_max"].max() <= 0.51
    assert len(tuned.ticks) == 1


def test_finalists_are_three_at_most_and_close_to_the_best() -> None:
    # every label's own factor is divided out: all variants alike
    tuned = tune(LOOP, point(hidden=4096, rows=32))
    times = {unit: entry["row"]["time_us_p50"] for unit, entry in tuned.done.items()}
    final = {unit for unit, entry in tuned.done.items() if entry["stage"] == "final"}

    assert 1 <= len(final) <= 3
    assert all(times[unit] < 1.05 * min(times.values()) for unit in final)


def test_what_is_finished_is_not_launched_again() -> None:
    first = tune()

    again = tune(done=first.done)

    assert again.begun == []
    assert again.lines == []
    assert len(again.ticks) == 1


def test_after_a_kill_between_the_looks_only_the_second_look_runs() -> None:
    first = tune()
    looked = {unit: line for [(unit, stage, row)] in first.lines if stage == "tune" for line in [stage_of(stage, row)]}

    again = tune(done=looked)

    assert {stage for [(_, stage, _)] in again.lines} == {"final"}
    assert set(again.begun) == {unit for unit, entry in first.done.items() if entry["stage"] == "final"}


def stage_of(stage: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"stage": stage, "row": row}


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("absent", "skipped", "not installed (planted)"),
        ("raise", "launch_error", "RuntimeError: planted failure"),
        ("wrong", "wrong", "elements outside the tolerance"),
        ("no_work", "no_work", "the output was not written"),
    ],
)
def test_a_failing_variant_is_a_row_without_a_time(fault: str, status: str, reason: str, tmp_path: Path) -> None:
    tuned = tune(faults={"triton_row": fault})

    frame = table(tuned.rows, schema.CASES, tmp_path)
    assert set(frame["status"]) == {status}
    assert all(reason in text for text in frame["reason"])
    assert frame["time_us_p50"].null_count() == frame.height == 3
    assert {entry["stage"] for entry in tuned.done.values()} == {"final"}
    assert (frame["err_ulp_max"].null_count() == 0) == (fault == "wrong")


def test_faster_than_the_ceiling_is_an_error_and_no_time(tmp_path: Path) -> None:
    tuned = tune(ceilings={WORK.key: 1.0})

    frame = table(tuned.rows, schema.CASES, tmp_path)
    assert set(frame["status"]) == {"over_roof"}
    assert "over the measured ceiling of 1 GB/s" in frame["reason"][0]
    assert frame["err_ulp_max"].null_count() == 0
    assert frame["n_samples"].null_count() == frame.height


@pytest.mark.parametrize(("hangs", "status"), [(2, "ok"), (3, "skipped")])
def test_a_kernel_that_hangs_again_and_again_is_given_up(hangs: int, status: str) -> None:
    """At the default time limit a sweep of a hundred variants would take the GPU for two hours."""
    hung = {f"case {index}": {"stage": "passing", "row": {"status": "timeout"}} for index in range(hangs)}

    found = tune(done=hung)

    assert {row["status"] for row in found.rows} == {status}
    stages = {entry["stage"] for entry in found.done.values()}
    assert stages == ({"passing"} if status == "skipped" else {"tune", "final"})


def test_a_refusal_is_one_row_that_names_the_reason() -> None:
    tuned = tune(work=point(rows=1, hidden=65537))

    [row] = tuned.rows
    assert (row["status"], row["variant"], row["block"]) == ("skipped", None, None)
    assert "65536 elements" in row["reason"]
    assert tune(work=point(rows=1, hidden=65537), done=tuned.done).lines == []


def test_a_point_no_variant_suits_is_one_row(tmp_path: Path) -> None:
    kernel = tmp_path / "picky.py"
    header = 'summary = "s"\nops = ["layernorm"]\ndtypes = ["fp32"]\nwhere = ["hidden == 7"]\n[axes]\nnum_warps = [1]'
    kernel.write_text("\n".join(["# /// kernel", *(f"# {line}" for line in header.splitlines()), "# ///", ""]))

    [row] = tune(str(kernel)).rows

    assert (row["status"], row["reason"]) == ("skipped", "no variant of the sweep suits this point")


def test_a_lost_context_leaves_a_row_and_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake(faults={"triton_row": "raise"})

    def broken() -> None:
        if launched:
            raise RuntimeError("an illegal memory access was encountered")

    launched: list[None] = []
    kept = gpu.capture
    monkeypatch.setattr(gpu, "capture", lambda *given: launched.append(None) or kept(*given))

    monkeypatch.setattr(gpu, "synchronize", broken)
    recorder = Recorder()
    told = task("measure", [WORK], spec=ROW)
    from normbench import tuning
    from normbench.worker import Session

    with pytest.raises(DeviceLost):
        tuning.run(Session(told, gpu, None, recorder))  # type: ignore[arg-type]

    [row] = recorder.rows
    assert (row["status"], row["reason"]) == ("launch_error", "RuntimeError: planted failure")


def test_a_launch_near_the_floor_is_launch_bound() -> None:
    """T3."""
    small = point(rows=1, hidden=128, regime="latency")

    near = tune(work=small, launch_floor_us=1.0).rows
    far = tune(launch_floor_us=1.0).rows

    assert {row["launch_bound"] for row in near} == {True}
    assert {row["launch_bound"] for row in far} == {False}


# buffers and graphs


@pytest.mark.parametrize(
    ("set_bytes", "l2_bytes", "regime", "sets"),
    [
        (1 << 30, 60 << 20, "stream", 4),
        (1 << 33, 60 << 20, "stream", 1),
        (1 << 33, 60 << 20, "wide", 1),
        ((1 << 33) - 1, 60 << 20, "stream", 4),
        (1 << 33, 126 << 20, "stream", 2),  # more than a hundredth of it would stay in such an L2
        (1 << 34, 126 << 20, "stream", 1),
        (1 << 33, 60 << 20, "l2", 2),
        (60 << 20, 60 << 20, "stream", 5),
        (1, 1 << 20, "l2", 2),
        (1, 1 << 20, "latency", 2),
    ],
)
def test_rotation_goes_beyond_l2_and_stays_on_one_set_only_where_that_is_a_hundred_times_as_large(
    set_bytes: int, l2_bytes: int, regime: str, sets: int
) -> None:
    """T1, T6: an output that stays right because nothing else was written is seen with two, or with other inputs."""
    assert buffer_sets(set_bytes, l2_bytes, regime) == sets


@pytest.mark.parametrize("estimate_us", [0.01, 2.0, 33.3, 499.0, 1e5])
@pytest.mark.parametrize("sets", [2, 3, 7])
def test_a_sample_is_long_and_ends_where_the_next_does_not_begin(estimate_us: float, sets: int) -> None:
    count = launches_a_sample(estimate_us, sets, "stream")

    assert count % sets == 0
    assert count * max(estimate_us, 0.1) >= 500
    assert launches_a_sample(estimate_us, sets, "latency") >= 256


# racing

FIELD = (ROW, LOOP, EAGER, COPY)


def race(
    work: Point = WORK, specs: tuple[str, ...] = FIELD, done: dict[str, Any] | None = None, **more: Any
) -> Recorder:
    facts = {name: more.pop(name) for name in ("faults", "slow") if name in more}
    return work_off(race_task(work, specs, **{"done": done or {}, **more}), fake(**facts))


def test_a_race_has_every_contender_and_a_twin_on_the_same_samples(tmp_path: Path) -> None:
    frame = table(race().rows, schema.SHOWDOWN, tmp_path)

    assert sorted(frame["contender"]) == ["copy", "torch_eager", "triton_loop", "triton_row", "triton_row__twin"]
    assert set(frame["status"]) == {"ok"}
    assert set(frame["verdict"]) == {"quotable"}
    assert frame["n_samples"].n_unique() == 1
    assert frame["n_samples"][0] >= 15
    norms = frame.filter(pl.col("contender") != "copy")
    assert set(norms["bytes"]) == {ops.compulsory_bytes(WORK)}
    assert frame["ceiling_gbps"].unique().to_list() == pytest.approx([ROOF_GBPS], rel=0.01)
    assert frame.filter(pl.col("time_us_lo") > pl.col("time_us_p50")).height == 0
    assert frame.filter(pl.col("time_us_hi") < pl.col("time_us_p50")).height == 0


def test_a_winners_variant_is_the_one_that_races() -> None:
    rows = race().by("contender")

    assert rows["triton_row"]["variant"] == rows["triton_row__twin"]["variant"] == variant(num_warps=4)
    assert rows["torch_eager"]["variant"] == "{}"


def test_contracts_are_judged_and_the_copy_has_none() -> None:
    rows = race().by("contender")

    assert rows["triton_row"]["accurate"] is True
    assert rows["triton_row"]["allclose_torch"] is True
    assert rows["triton_row"]["bitwise_torch"] in (True, False)
    assert rows["copy"]["accurate"] is None
    assert rows["copy"]["err_ulp_max"] is None


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("absent", "skipped", "not installed (planted)"),
        ("raise", "launch_error", "RuntimeError: planted failure"),
        ("wrong", "wrong", "elements outside the tolerance"),
        ("no_work", "no_work", "the output was not written"),
    ],
)
def test_a_failing_baseline_is_a_row_and_the_race_goes_on(fault: str, status: str, reason: str, tmp_path: Path) -> None:
    frame = table(race(faults={"torch_eager": fault}).rows, schema.SHOWDOWN, tmp_path)

    [failed] = frame.filter(pl.col("contender") == "torch_eager").rows(named=True)
    assert failed["status"] == status
    assert reason in failed["reason"]
    assert (failed["time_us_p50"], failed["verdict"]) == (None, None)
    assert frame.filter(pl.col("status") == "ok").height == 4


def test_the_twin_is_of_the_fastest_of_ours_that_runs() -> None:
    assert "triton_loop__twin" in race(faults={"triton_row": "wrong"}).by("contender")


def test_libraries_alone_race_without_a_twin() -> None:
    assert race(specs=(EAGER, COPY)).by("contender").keys() == {"torch_eager", "copy"}


def test_a_race_nobody_starts_is_rows_only() -> None:
    rows = race(specs=(EAGER,), faults={"torch_eager": "absent"}).rows

    assert [row["status"] for row in rows] == ["skipped"]


def test_faster_than_the_races_own_ceiling_is_an_error(tmp_path: Path) -> None:
    frame = table(race(slow={"triton_loop": 0.3}).rows, schema.SHOWDOWN, tmp_path)

    [over] = frame.filter(pl.col("contender") == "triton_loop").rows(named=True)
    assert over["status"] == "over_roof"
    assert "is over the measured ceiling of" in over["reason"]
    assert (over["time_us_p50"], over["samples_us"], over["verdict"]) == (None, None, None)
    assert over["ceiling_gbps"] == pytest.approx(ROOF_GBPS, rel=0.01)
    assert over["err_ulp_max"] is not None


@pytest.mark.parametrize("verb", ["showdown", "measure"])
def test_the_copy_of_one_long_row_is_faster_than_the_roof_by_gamma_and_beta(verb: str) -> None:
    """Half of the compulsory bytes at such a row: a copy that was counted as moving them had no time there."""
    work = point(rows=1, hidden=1 << 18, regime="wide")
    ceilings = {work.key: ROOF_GBPS}
    told = race_task(work, (EAGER, COPY), ceilings=ceilings)
    if verb == "measure":
        told = task("measure", [work], spec=COPY, ceilings=ceilings)

    copies = [row for row in work_off(told).rows if row["contender"] == "copy"]

    assert {row["status"] for row in copies} == {"ok"}
    if verb == "showdown":
        assert [row["bytes"] for row in copies] == [2 * 4 << 18]


@pytest.mark.parametrize(
    ("op", "semantics", "tensors"),
    [
        ("layernorm", {}, 2),
        ("rmsnorm", {"stats": True}, 2),
        ("add_layernorm", {}, 4),
        ("layernorm_bwd", {}, 3),
        ("layernorm_bwd", {"residual": "fp32"}, 3),  # its copy is torch.add(x, dy, out=dx)
        ("l2norm", {}, 2),
    ],
)
def test_the_copy_is_counted_in_tensors_it_does_not_move(op: str, semantics: dict[str, Any], tensors: int) -> None:
    work = point(op, "bf16", **semantics)

    assert ops.moved_bytes(work, copies=True) == tensors * 2 * work.rows * work.hidden
    assert ops.moved_bytes(work, copies=False) == ops.compulsory_bytes(work)


def test_a_slow_contender_is_slow() -> None:
    plain, slowed = (race(slow={"torch_eager": factor}).by("contender") for factor in (1.0, 2.0))

    ratio = slowed["torch_eager"]["time_us_p50"] / plain["torch_eager"]["time_us_p50"]
    assert ratio == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(("regime", "forgotten"), [("stream", 1), ("latency", racing.ROUNDS_A_BLOCK)])
def test_what_goes_ahead_of_a_race_is_in_no_sample_and_no_clock(
    regime: str, forgotten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = fake()
    kept, calls = gpu.time_rounds, []

    def rounds(replays: Any, orders: Any, observer: Any) -> list[list[float]]:
        calls.append((len(orders), observer))
        slow = 2.0 if len(calls) == 1 else 1.0
        return [[slow * value for value in samples] for samples in kept(replays, orders, observer)]

    monkeypatch.setattr(gpu, "time_rounds", rounds)
    found = work_off(race_task(point(regime=regime), (ROW, EAGER), study={**STUDY, "race_ms": 1.0}), gpu).by(
        "contender"
    )

    samples = found["triton_row"]["samples_us"]
    assert len(samples) == racing.MIN_ROUNDS
    assert max(samples) < 1.5 * min(samples)
    first, *later = calls
    assert first[0] == forgotten
    assert len({id(observer) for _, observer in later}) == 1
    assert first[1] is not later[0][1]


def test_only_who_is_not_known_well_enough_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noisy one gets the rest of the budget; the others stop once their medians are known."""
    gpu = fake()
    kept = gpu._sample
    noisy = random.Random(1)
    monkeypatch.setattr(
        gpu, "_sample", lambda replay: kept(replay) * (noisy.uniform(0.8, 1.2) if "loop" in replay.label else 1.0)
    )

    rows = work_off(race_task(WORK, (ROW, LOOP, EAGER), study={**STUDY, "race_ms": 1e5}), gpu).by("contender")

    samples = {name: row["n_samples"] for name, row in rows.items()}
    assert samples["triton_row"] == samples["torch_eager"] == racing.MIN_ROUNDS
    assert samples["triton_loop"] > 2 * racing.MIN_ROUNDS


def test_an_add_op_is_judged_by_the_roof_of_two_reads_and_two_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[str, int]] = []
    kept = Streams.bind
    monkeypatch.setattr(
        Streams,
        "bind",
        lambda self, *given: bound.append((given[0], len(set(map(id, given[2]))))) or kept(self, *given),
    )

    found = race(point("add_rmsnorm")).by("contender")

    assert set(bound) == {("read2_write2", 4)}
    assert found["triton_row"]["ceiling_gbps"] == pytest.approx(ROOF_GBPS, rel=0.1)
    assert found["triton_row"]["bytes"] > 3.9 * 256 * 512 * 4
    assert found["copy"]["status"] == "ok"


def test_outside_the_stream_regime_there_is_no_ceiling() -> None:
    """T1, T3."""
    rows = race(point(rows=1, hidden=128, regime="latency"), launch_floor_us=1.0).rows

    assert {row["ceiling_gbps"] for row in rows} == {None}
    assert {row["launch_bound"] for row in rows} == {True}


def test_a_finished_race_is_not_run_again() -> None:
    first = race()

    again = race(done=first.done)

    assert (again.begun, again.lines) == ([], [])


def test_those_a_crash_left_behind_race_without_the_one_that_crashed() -> None:
    crashed = f"{WORK.key} race {LOOP}"

    left = race(done={crashed: {"stage": "final", "row": {}}})

    assert left.by("contender").keys() == {"triton_row", "triton_row__twin", "torch_eager", "copy"}


def test_a_twin_that_broke_the_process_does_not_start_again() -> None:
    """Its row is the only one known; to bind it once more would break the process for ever."""
    twin = f"{WORK.key} race {ROW}__twin"

    left = race(done={twin: {"stage": "final", "row": {}}})

    assert twin not in left.begun
    assert left.by("contender").keys() == {"triton_row", "triton_loop", "torch_eager", "copy"}


def test_a_suspect_runs_alone_before_it_races_again() -> None:
    """It is announced alone then, so the row of whoever breaks the process now is its own."""
    loop = f"{WORK.key} race {LOOP}"
    replays = {True: 0, False: 0}

    for suspected in replays:
        gpu = fake()
        kept, counted = gpu.capture, []

        def capture(*given: Any, kept: Any = kept, counted: list[int] = counted) -> Any:
            made = kept(*given)
            if "triton_loop" in made.label:
                replay = made.replay
                made.replay = lambda: (counted.append(1), replay())
            return made

        gpu.capture = capture  # type: ignore[method-assign]
        work_off(race_task(WORK, (ROW, LOOP), suspects=[loop] if suspected else []), gpu)
        replays[suspected] = len(counted)

    assert replays[True] - replays[False] == racing.TURNS_OF_A_SUSPECT


def test_a_roof_that_cannot_be_launched_is_no_contenders_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was announced last would have to answer for it."""
    announced: list[list[str]] = []
    monkeypatch.setattr(Recorder, "begin", lambda self, *units: announced.append([unit for unit, _ in units]))
    monkeypatch.setattr("normbench.streams.Streams.race_roof", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        race()

    assert announced[-1] == []


def test_a_refusal_by_the_point_is_a_row() -> None:
    rows = race(point(rows=1, hidden=65537)).by("contender")

    assert rows["triton_row"]["status"] == "skipped"
    assert "triton_loop__twin" in rows


@pytest.mark.slow
def test_a_race_survives_a_crash_and_a_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In processes of their own, as on a GPU."""
    (tmp_path / "gpu.json").write_text(json.dumps(FACTS | {"faults": {"triton_loop": "crash", "copy": "hang"}}))
    monkeypatch.setenv("NORMBENCH_FAKE_GPU", str(tmp_path / "gpu.json"))

    done = Supervisor(race_task(WORK, (ROW, LOOP, COPY, EAGER)), Journal(None, ""), 6, lambda _: None).run()

    frame = table([entry["row"] for entry in done.values()], schema.SHOWDOWN, tmp_path)
    status = dict(frame.select("contender", "status").rows())
    assert status == {
        "triton_row": "ok",
        "triton_row__twin": "ok",
        "torch_eager": "ok",
        "triton_loop": "launch_error",
        "copy": "timeout",
    }
    reasons = dict(frame.select("contender", "reason").rows())
    assert reasons["triton_loop"].startswith("the process was ended by signal SIGSEGV")
    assert reasons["copy"] == "took longer than 6 s and was ended"


# who races


class Arguments:
    """What the command line of ``showdown`` says of the field."""

    op = "layernorm"
    kernels = [ROW, LOOP]
    builds: list[str] = []
    baselines = [EAGER]

    def __init__(self, *cases: Path) -> None:
        self.cases = list(cases)


def case(contender: str, warps: int, time_us: float, n_samples: int, status: str = "ok") -> dict[str, Any]:
    row = WORK.identity() | {"device": "faked", "run": "local", "contender": contender, "lang": "triton"}
    row |= {"variant": variant(num_warps=warps), "status": status, "sources": "abc"}
    return row | ({"time_us_p50": time_us, "n_samples": n_samples} if status == "ok" else {"reason": "planted"})


def field(tmp_path: Path, *rows: dict[str, Any]) -> showdown.Field:
    harness.write(rows, schema.CASES, tmp_path / "cases.parquet")
    return showdown.Field(Arguments(tmp_path / "cases.parquet"))  # type: ignore[arg-type]


def test_a_longer_look_counts_before_a_lucky_short_one(tmp_path: Path) -> None:
    found = field(tmp_path, case("triton_row", 1, 9.0, 5), case("triton_row", 2, 10.0, 15)).entries(WORK)

    assert [entry["variant"] for entry in found] == [{"num_warps": 2}, {}]


def test_the_fastest_of_ours_comes_first(tmp_path: Path) -> None:
    found = field(tmp_path, case("triton_row", 1, 9.0, 15), case("triton_loop", 2, 8.0, 15)).entries(WORK)

    assert [Path(entry["spec"]).stem for entry in found] == ["triton_loop", "triton_row", "torch_eager"]


def test_another_winner_is_another_race(tmp_path: Path) -> None:
    one, other = (field(tmp_path, case("triton_row", warps, 9.0, 15)).entries(WORK) for warps in (1, 2))

    assert one[1]["spec"] == other[1]["spec"] == EAGER
    assert one[1]["unit"] != other[1]["unit"]


def test_a_kernel_without_a_winner_is_told_in_the_words_of_its_tuning(tmp_path: Path) -> None:
    rows = (case("triton_row", 1, 9.0, 15), *(case("triton_loop", warps, 0, 0, "wrong") for warps in (1, 2)))
    found = field(tmp_path, *rows)

    [absent] = found.absentees([WORK], [tmp_path / "cases.parquet"])

    assert (absent["contender"], absent["status"], absent["reason"]) == ("triton_loop", "wrong", "planted")
    assert len(found.entries(WORK)) == 2


# roofs


@pytest.fixture(scope="module")
def measured_roofs() -> Recorder:
    return work_off(task("ceilings", [WORK, point(rows=1, hidden=128, regime="latency")]))


def test_baselines_that_know_no_cast_order_or_offset_refuse_it_but_the_copy() -> None:
    folder = Path(__file__).parents[1] / "kernels" / "baselines"
    gpu: Any = None
    asked = {"llama": {"cast": "llama"}, "offset": {"offset": 1.0}, "": {}}
    able = {
        name: {
            path.stem
            for path in folder.glob("*.py")
            if baseline(path).refusal(Point("rmsnorm", "bf16", 1, 64, semantics=Semantics(**changes)), gpu) is None
        }
        for name, changes in asked.items()
    }
    assert able["llama"] == {"copy", "liger"}
    assert able["offset"] == {"copy", "liger", "quack", "torch_compile"}
    assert able[""] == {path.stem for path in folder.glob("*.py")}


def test_every_mix_has_a_roof_at_every_size_and_the_library_copy_beside_it(
    measured_roofs: Recorder, tmp_path: Path
) -> None:
    frame = table(measured_roofs.rows, schema.CEILINGS, tmp_path)
    size = 1 << 19
    found = {(row["name"], row["size_bytes"]): row for row in frame.iter_rows(named=True)}

    streams = {(mix, count * size) for mix, count in MIXES.items()} | {("torch_copy", 2 * size)}
    assert streams < found.keys()
    assert {name for name, _ in found.keys() - streams} == {"l2_copy", "launch_floor", "launch_floor_pdl", "fma_fp32"}
    assert all(found[key]["value"] == pytest.approx(ROOF_GBPS, rel=0.01) for key in streams)
    assert all(found[key]["unit"] == "GB/s" for key in streams)
    assert (found["launch_floor", 0]["unit"], found["fma_fp32", 0]["unit"]) == ("us", "TFLOP/s")
    assert found["launch_floor", 0]["value"] == pytest.approx(0.5, rel=0.01)
    assert found["torch_copy", 2 * size]["variant"] is None


def test_a_roofs_winner_can_be_launched_again(measured_roofs: Recorder) -> None:
    for row in measured_roofs.rows:
        if row["name"] in MIXES:
            assert expression(row["name"], json.loads(row["variant"])).startswith(("stream<", "bulk_copy<"))
            assert json.loads(row["variant"]) in variants(row["name"], fake())


def test_known_roofs_are_not_measured_again(measured_roofs: Recorder) -> None:
    again = work_off(task("ceilings", [WORK], done=measured_roofs.done))

    assert again.begun == []


def test_sizes_are_those_of_the_stream_regime_once_each() -> None:
    points = [point(rows=1000, hidden=512), point(rows=1024, hidden=512), point(regime="l2"), point(dtype="bf16")]

    assert tensor_sizes(points) == [1 << 18, 1 << 21]
    assert tensor_sizes([point(regime="latency")]) == []


def test_tensors_of_four_gigabytes_and_more_are_tuned_for_one_by_one() -> None:
    rows = {power: point(rows=1 << power, hidden=1 << 10) for power in range(19, 24)}  # 2 GiB to 32 GiB

    assert tensor_sizes([*rows.values()]) == [1 << 31, 1 << 32]
    known = [{"name": "copy", "size_bytes": 2 << power, "value": power} for power in (31, 32)]
    found = [metrics.nearest_roof(known, one) for one in rows.values()]
    assert [one["value"] for one in found if one] == [31, 32, 32, 32, 32]


def test_bulk_copies_are_only_for_architectures_that_have_them() -> None:
    kinds = {arch: {v["kind"] for v in variants("copy", fake(arch=arch))} for arch in ("sm_80", "sm_90")}

    assert kinds == {"sm_80": {"stream"}, "sm_90": {"stream", "bulk"}}


def test_the_ceiling_of_a_point_is_that_of_the_nearest_size(tmp_path: Path) -> None:
    names = {"device": "faked", "run": "local", "sources": "abc", "unit": "GB/s"}
    sizes = {1 << 20: 3000.0, 1 << 28: 4000.0}
    rows = [names | {"name": "copy", "size_bytes": size, "value": value} for size, value in sizes.items()]
    rows += [names | {"name": "launch_floor", "size_bytes": 0, "value": 1.5, "unit": "us"}]
    harness.write(rows, schema.CEILINGS, tmp_path / "ceilings.parquet")

    found = harness.Ceilings(tmp_path / "ceilings.parquet")

    small, large, latency = point(), point(rows=1 << 15, hidden=1024), point(regime="latency")
    assert found.values([small, large, latency]) == {small.key: 3000.0, large.key: 4000.0}
    assert found.launch_floor_us() == 1.5


def test_a_ceiling_that_failed_is_tried_again_next_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything is judged by it: it is an error, not a row, and must not be remembered."""
    journal = tmp_path / "ceilings.jsonl"
    journal.write_text("{}\n")
    failed = {"name": "copy", "status": "timeout", "reason": "took longer than 30 s and was ended"}

    class Broken:
        points = [WORK]
        journal_path = journal

        def __init__(self, *_: object) -> None:
            pass

        def task(self, **_: object) -> dict[str, Any]:
            return {}

        def context(self, *_: object) -> str:
            return ""

        def run(self, *_: object) -> dict[str, Any]:
            return {"copy 1024": {"stage": "final", "row": failed}}

    monkeypatch.setattr(ceilings, "Measurement", Broken)

    with pytest.raises(UserError, match="ceiling copy: took longer than 30 s"):
        ceilings.main(None)  # type: ignore[arg-type]

    assert not journal.exists()


# verify


def verified(spec: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Recorder:
    """The short cases only."""
    short = [case for case in inputs.every("layernorm", "fp16") if case.point.rows * case.point.hidden < 20_000]
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter(short))
    told = task("verify", spec=spec, ops=["layernorm"], dtypes=["fp16"], **more)
    return work_off(told, fake(**{name: more[name] for name in ("faults",) if name in more}))


def test_verify_has_a_row_for_every_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    frame = table(verified(ROW, monkeypatch).rows, schema.CHECKS, tmp_path)

    assert {"K1.1", "K5.17", "K12.x", "K13", "K15", "K23.last", "stats", "stride_odd"} <= set(frame["case"])
    assert set(frame["status"]) == {"ok"}
    assert frame["deterministic"].all()


def test_verify_rejects_a_contender_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = verified(ROW, monkeypatch, faults={"triton_row": "wrong"}).by("case")

    right = {name for name, row in rows.items() if row["status"] == "ok"}
    # half as much again is right where the right value is 0: constant rows, some only once they are fp16, and none
    assert {name.split(".")[0] for name in right} == {"K1", "K2", "K13"}
    assert "K1.1" not in right
    assert rows["K5.17"]["failing_elements"] == 32


def test_verify_judges_the_copy_by_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = verified(COPY, monkeypatch).by("case")

    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["K1.1"]["accurate"] is None


def test_verify_does_not_run_a_known_input_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = verified(ROW, monkeypatch)

    assert verified(ROW, monkeypatch, done=first.done).begun == []


def test_a_large_case_is_judged_by_its_ends_and_where_elements_pass_2_to_the_31(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In miniature, on a GPU whose memory holds it."""
    monkeypatch.setattr("normbench.inputs.INT32_ELEMENTS", 1 << 12)
    large = inputs.Case("K8.small", point(op="rmsnorm", dtype="fp16", rows=300, hidden=16), inputs.normal(), large=True)
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter([large]))

    def row(**facts: Any) -> dict[str, Any]:
        told = task("verify", spec=ROW, ops=["rmsnorm"], dtypes=["fp16"])
        return work_off(told, fake(**facts)).rows[0]

    assert large.judged_rows() == [0, 1, 2, 254, 255, 256, 257, 258, 297, 298, 299]
    assert row()["status"] == "ok"
    assert row(faults={"triton_row": "wrong"})["status"] == "wrong"
    # outside the judged rows, where a 32-bit offset would have gone astray
    kept = FakeLaunch.__call__

    def forgets(self: FakeLaunch) -> dict[str, Any]:
        outputs = kept(self)
        fill_poison(outputs["y"][100])
        return outputs

    monkeypatch.setattr(FakeLaunch, "__call__", forgets)
    assert (row()["status"], row()["reason"]) == ("wrong", "did not write all of its output")


def test_a_case_larger_than_the_memory_says_how_much_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [case for case in inputs.every("rmsnorm", "fp16") if case.large]
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter(large))

    found = work_off(task("verify", spec=ROW, ops=["rmsnorm"], dtypes=["fp16"]))

    assert {case.point.rows * case.point.hidden >= 2**31 for case in large} == {True}
    assert len(found.rows) == 3
    assert all("GB of device memory" in row["reason"] for row in found.rows)
    assert {entry["stage"] for entry in found.done.values()} == {"passing"}


def test_odd_numbers_of_warps_are_tried_where_a_fault_was_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = next(case for case in inputs.every("rmsnorm", "fp16") if case.name == "K11.2560")
    monkeypatch.setattr("normbench.adversary.every", lambda op, dtype: iter([case]))
    tried: list[dict[str, int]] = []
    monkeypatch.setattr(FakeLaunch, "__post_init__", lambda self: tried.append(self.variant))
    monkeypatch.setattr(FakeLaunch, "__call__", lambda self: self.tensors.outputs())
    (tmp_path / "naive.json").write_text("{}")
    (tmp_path / "naive.cubin").write_bytes(b"")

    told = task("verify", spec=NAIVE, build=str(tmp_path / "naive.json"), ops=["rmsnorm"], dtypes=["fp16"])
    work_off(told)

    assert [variant["block"] for variant in tried] == [32, 64, 96, 160, 192, 224]


def test_compiled_baselines_get_the_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = EAGER.replace("torch_eager", "torch_compile")

    assert set(verified(compiled, monkeypatch).by("case")) <= inputs.JIT_CASES


def test_identities_are_canonical() -> None:
    """Two writings of one variant are one unit."""
    assert canonical_json({"b": 1, "a": 2}) == canonical_json({"a": 2, "b": 1}) == '{"a":2,"b":1}'
