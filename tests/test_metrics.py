"""Derived numbers, recomputed by hand from invented rows."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import report_fixture as fixture
from normbench import answers, bench, formats, measured, metrics, ops, schema
from normbench.points import Point, Semantics

MACHINES = [{"device": fixture.DEVICE, "run": fixture.RUN, "theoretical_gbps": 4814.0}]
POINT = Point("layernorm", "bf16", 32768, 4096)
BYTES = 2 * 32768 * 4096 * 2 + 2 * 4096 * 2


def race(*entries: dict[str, Any], point: Point = POINT, run: str = fixture.RUN) -> pl.DataFrame:
    """A showdown of one point; an entry needs a contender, the rest has defaults."""
    return fixture.frame("showdown", [_row(point, run, entry) for entry in entries])


def _row(point: Point, run: str, entry: dict[str, Any]) -> dict[str, Any]:
    ours = entry["contender"] in fixture.KERNELS
    usual = {"lang": "cuda" if ours else "torch", "status": "ok", "verdict": "quotable", "ceiling_gbps": 4000.0}
    return {"device": fixture.DEVICE, "run": run, **point.identity(), "bytes": BYTES, **usual, **entry}


def timed(contender: str, time_us: float, half: float = 0.1, **more: Any) -> dict[str, Any]:
    interval = {"time_us_lo": time_us - half, "time_us_hi": time_us + half}
    return {"contender": contender, "time_us_p50": time_us, **interval, **more}


def derived(*entries: dict[str, Any]) -> dict[str, dict[str, Any]]:
    frame = metrics.with_winners(metrics.derive(race(*entries), MACHINES))
    return {row["contender"]: row for row in frame.iter_rows(named=True)}


def test_bandwidth_is_compulsory_bytes_over_the_median_in_1e9_bytes_a_second() -> None:
    row = derived(timed("cta_row", 140.0))["cta_row"]
    assert row["gbps"] == pytest.approx(BYTES / 140e-6 / 1e9)
    assert row["ceiling_fraction"] == pytest.approx(BYTES / 140e-6 / 1e9 / 4000)
    assert row["theoretical_fraction"] == pytest.approx(BYTES / 140e-6 / 1e9 / 4814)
    assert row["intensity"] == pytest.approx(8 * 32768 * 4096 / BYTES)


def test_bytes_of_tuning_rows_are_those_of_the_op_definition_since_the_table_has_none() -> None:
    tables = fixture.Fixture(ops=("rmsnorm",), dtypes=("fp16",), hidden=(2049,), latency=False).tables()
    cases = metrics.derive(tables["cases"], MACHINES)
    rows = fixture.Fixture().elements // 2049
    assert cases["bytes"].unique().to_list() == [2 * rows * 2049 * 2 + 2049 * 2]
    assert "speedup_eager" in cases.columns
    assert "ceiling_fraction" not in cases.columns


def test_speed_up_is_against_the_same_point_and_run_only() -> None:
    other = Point("layernorm", "bf16", 16384, 8192)
    frame = pl.concat(
        [race(timed("cta_row", 100.0), timed("torch_eager", 250.0)), race(timed("cta_row", 50.0), point=other)]
    )
    found = metrics.derive(frame, MACHINES).filter(pl.col("contender") == "cta_row").sort("time_us_p50")
    assert found["speedup_eager"].to_list() == [None, 2.5]


def test_a_throttled_baseline_gives_no_speed_up() -> None:
    rows = derived(timed("cta_row", 100.0), timed("torch_eager", 250.0, verdict="throttled"), timed("liger", 110.0))
    assert rows["cta_row"]["speedup_eager"] is None
    assert rows["cta_row"]["speedup_best"] == pytest.approx(1.1)


def test_best_baseline_is_neither_the_copy_nor_a_twin_nor_ours() -> None:
    rows = derived(timed("cta_row", 100.0), timed("copy", 80.0), timed("liger__twin", 90.0), timed("liger", 130.0))
    assert rows["cta_row"]["speedup_best"] == pytest.approx(1.3)


def test_winner_set_is_every_contender_whose_interval_overlaps_the_fastests() -> None:
    rows = derived(timed("cta_row", 100.0, 0.5), timed("liger", 100.8, 0.5), timed("quack", 101.2, 0.5))
    assert [name for name in sorted(rows) if rows[name]["in_winner_set"]] == ["cta_row", "liger"]
    assert [name for name in rows if rows[name]["fastest"]] == ["cta_row"]
    assert rows["quack"]["cost"] == pytest.approx(0.012)


def test_copy_twin_and_unquotable_rows_never_win() -> None:
    rows = derived(
        timed("copy", 90.0),
        timed("naive__twin", 91.0),
        timed("liger", 92.0, verdict="clock_drift"),
        timed("naive", 95.0),
    )
    assert [name for name in rows if rows[name]["in_winner_set"]] == ["naive"]


def test_equal_medians_have_one_fastest_and_the_same_one_in_any_row_order() -> None:
    one = derived(timed("naive", 95.0), timed("cta_row", 95.0))
    two = derived(timed("cta_row", 95.0), timed("naive", 95.0))
    assert (
        [name for name in one if one[name]["fastest"]] == [name for name in two if two[name]["fastest"]] == ["cta_row"]
    )


def test_a_race_without_a_quotable_row_has_no_winner() -> None:
    failed = {"contender": "quack", "status": "launch_error", "reason": "invented", "bytes": None, "verdict": None}
    rows = derived(timed("cta_row", 100.0, verdict="throttled"), failed)
    assert not any(row["in_winner_set"] or row["fastest"] for row in rows.values())


def test_cycles_prefer_the_clock_read_inside_the_gpu() -> None:
    inside = derived(timed("cta_row", 100.0, sm_clock_gpu_mhz=1900.0, sm_clock_mhz_p50=1980.0))
    outside = derived(timed("cta_row", 100.0, sm_clock_mhz_p50=1980.0))
    assert inside["cta_row"]["cycles"] == pytest.approx(190_000)
    assert outside["cta_row"]["cycles"] == pytest.approx(198_000)


def test_a_launch_bound_row_has_no_share_of_a_ceiling() -> None:
    row = derived(timed("cta_row", 2.0, launch_bound=True))["cta_row"]
    assert row["gbps"] is not None
    assert row["ceiling_fraction"] is row["theoretical_fraction"] is None


def test_outside_the_stream_regime_nothing_is_a_share_of_the_memorys_peak() -> None:
    frame = metrics.derive(race(timed("cta_row", 2.0), point=Point("layernorm", "bf16", 1024, 4096, "l2")), MACHINES)
    assert frame["theoretical_fraction"].to_list() == [None]


def test_points_come_from_the_newest_run_that_has_them() -> None:
    other = Point("layernorm", "bf16", 16384, 8192)
    old, new = "20200101T000000-aaaaaaa", "20200301T000000-0000000"
    frame = pl.concat(
        [
            race(timed("cta_row", 100.0), timed("liger", 120.0), run=old),
            race(timed("cta_row", 90.0), run=new),
            race(timed("cta_row", 55.0), point=other, run=old),
        ]
    )
    kept = metrics.newest(frame)
    assert sorted(kept.select("hidden", "run", "time_us_p50").rows()) == [(4096, new, 90.0), (8192, old, 55.0)]


def test_a_noise_floor_that_mixes_regimes_or_lets_one_race_set_it() -> None:
    calm = [
        race(timed("cta_row", 100.0), timed("cta_row__twin", 99.0), point=Point("layernorm", "bf16", rows, 4096))
        for rows in range(1, 40)
    ]
    disturbed = race(timed("cta_row", 100.0), timed("cta_row__twin", 120.0), point=Point("layernorm", "bf16", 40, 4096))
    l2 = race(timed("cta_row", 5.0), timed("cta_row__twin", 5.2), point=Point("layernorm", "bf16", 64, 4096, "l2"))
    floors = metrics.noise_floors(pl.concat([*calm, disturbed, l2]))
    assert floors == {"stream": pytest.approx(0.01), "l2": pytest.approx(0.04)}
    assert metrics.noise_floors(race(timed("liger", 50.0))) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_r3_what_is_not_a_number_is_dropped_and_counted(bad: float | None) -> None:
    chosen = metrics.drawable(pl.DataFrame({"gbps": [bad, 812.5], "status": ["ok", "ok"]}), "gbps")
    assert chosen.frame["gbps"].to_list() == [812.5]
    assert chosen.omitted == "1 of 2 rows is not shown: 1 without a finite value."


def test_r3_failed_rows_are_counted_by_status() -> None:
    frame = pl.DataFrame({"gbps": [None, None, None, 1.0], "status": ["wrong", "skipped", "skipped", "ok"]})
    assert metrics.drawable(frame, "gbps").omitted == "3 of 4 rows are not shown: 2 skipped, 1 wrong."


def test_r3_a_log_axis_gets_no_zero() -> None:
    chosen = metrics.drawable(pl.DataFrame({"gbps": [0.0, -1.0, 3.0]}), "gbps", positive=True)
    assert chosen.frame["gbps"].to_list() == [3.0]


def answered(*races: pl.DataFrame) -> list[answers.Answer]:
    return answers.answers(metrics.with_winners(metrics.derive(pl.concat(races), MACHINES)))


def at(hidden: int) -> Point:
    return Point("rmsnorm", "bf16", 2**27 // hidden, hidden)


def test_one_answer_spans_sizes_where_one_contender_stays_within_two_per_cent() -> None:
    found = answered(
        race(timed("cta_row", 100.0), timed("liger", 140.0), point=at(1024)),
        race(timed("cta_row", 101.0), timed("liger", 100.0), point=at(2048)),
        race(timed("cta_row", 130.0), timed("liger", 100.0), point=at(4096)),
    )
    assert [(one.use, one.hidden) for one in found] == [("cta_row", (1024, 2048)), ("liger", (4096,))]
    assert found[0].cost == pytest.approx(0.01)


def test_unaligned_sizes_do_not_cut_the_range_of_aligned_ones() -> None:
    found = answered(
        race(timed("cta_row", 100.0), timed("liger", 140.0), point=at(2048)),
        race(timed("cta_row", 150.0), timed("liger", 100.0), point=at(2049)),
        race(timed("cta_row", 100.0), timed("liger", 140.0), point=at(4096)),
    )
    assert [(one.use, one.hidden, one.aligned) for one in found] == [
        ("cta_row", (2048, 4096), True),
        ("liger", (2049,), False),
    ]


def test_ties_are_those_in_the_winner_set_at_every_size_of_the_range() -> None:
    found = answered(
        race(timed("cta_row", 100.0, 1), timed("liger", 100.5, 1), timed("quack", 100.4, 1), point=at(1024)),
        race(timed("cta_row", 100.0, 1), timed("liger", 100.5, 1), timed("quack", 120.0, 1), point=at(2048)),
    )
    assert [(one.use, one.ties) for one in found] == [("cta_row", ("liger",))]


def test_a_faster_row_that_may_not_be_quoted_is_named_beside_the_verdict() -> None:
    (one,) = answered(race(timed("cta_row", 90.0, verdict="throttled"), timed("liger", 100.0)))
    assert (one.use, one.verdict) == ("liger", "quotable; 1 faster row not")


def test_a_point_with_nothing_quotable_is_counted_and_not_recommended() -> None:
    frame = metrics.with_winners(metrics.derive(race(timed("cta_row", 90.0, verdict="throttled")), MACHINES))
    assert answers.answers(frame) == []
    assert answers.unanswered(frame) == 1


def test_a_loss_never_rounds_to_even() -> None:
    assert formats.times((0.994, 4.81)) == "0.99–4.81×"
    assert formats.times((12.4, 12.4)) == "12×"
    assert formats.times(None) == "–"


def test_a_variant_reads_as_words() -> None:
    assert formats.variant('{"block":256,"vec":4}') == "block 256, vec 4"
    assert formats.variant(None) == formats.variant("{}") == "–"


def test_the_command_repeats_the_row_and_survives_a_shell() -> None:
    point = Point("rmsnorm", "bf16", 16, 4096, "latency", Semantics(eps=1e-6))
    row = {**point.identity(), "contender": "norm<half,8>", "variant": "{}"}
    text = measured.command(row, {"norm<half,8>": "my kernels/norm<half,8>.cu"})
    path, *options = shlex.split(text)[2:]
    assert path == "my kernels/norm<half,8>.cu"
    assert " ".join(options[:8]) == "--op rmsnorm --dtype bf16 --rows 16 --hidden 4096"
    assert options[8:] == ["--regime", "latency", "--semantics", '{"eps":1e-06}']


@pytest.mark.parametrize("shape", [(8, 256), (2, 64, 4, 4)])
def test_the_command_as_printed_means_the_point_and_the_variant(shape: tuple[int, ...]) -> None:
    point = ops.point_of("rmsnorm_channels" if len(shape) > 2 else "rmsnorm", "fp32", shape)
    row = {**point.identity(), "contender": "gone", "variant": '{"block":96,"vec":4}'}
    text = measured.command(row, {"other": "other.cu"})
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(shlex.split(text, comments=True)[2:])
    assert bench.point_of(args, 1) == point
    assert args.variant == {"block": 96, "vec": 4}
    assert bench.blocks_of(args) == [96]
    assert text.endswith(measured.ELSEWHERE)
    here = measured.command(row, {"gone": "gone.cu"})
    assert not here.endswith(measured.ELSEWHERE)
    assert measured.command(row | {"contender": f"gone{schema.TWIN}"}, {"gone": "gone.cu"}) == here


def test_unlike_work_is_named_apart() -> None:
    point = Point("layernorm", "bf16", 32768, 4096, semantics=Semantics(eps=1e-6))
    frame = pl.concat([race(timed("cta_row", 100.0)), race(timed("cta_row", 50.0), point=point)])
    nothing = {name: fixture.frame(name, []) for name in ("cases", "checks", "ceilings", "resources")}
    archive = measured.Archive(showdown=frame, **nothing, machines=(fixture.Fixture().machine(),))
    shown = measured.measured(archive, fixture.DEVICE).showdown
    assert sorted(shown["op"]) == ["layernorm", 'layernorm {"eps":1e-06}']
    assert all("--op layernorm --dtype" in text for text in shown["command"])


def test_paths_in_commands_do_not_depend_on_where_the_checkout_lies(tmp_path: Path) -> None:
    root = tmp_path / "my study" / "kernels"
    (root / "forward").mkdir(parents=True)
    (root / "forward" / "cta_row.cu").touch()
    nothing = {name: fixture.frame(name, []) for name in ("cases", "checks", "ceilings", "resources")}
    archive = measured.Archive(showdown=race(timed("cta_row", 1e2)), **nothing, machines=(fixture.Fixture().machine(),))
    shown = measured.measured(archive, fixture.DEVICE, root=root).showdown
    assert shown["command"][0].startswith("normbench bench kernels/forward/cta_row.cu --op layernorm")


def shortly(*races: pl.DataFrame) -> list[answers.Short]:
    return answers.in_short(metrics.with_winners(metrics.derive(pl.concat(races), MACHINES)))


def test_one_for_everything_is_the_cheapest_over_all_points_and_tells_its_worst() -> None:
    (found,) = shortly(
        race(timed("cta_row", 100.0), timed("liger", 150.0), timed("copy", 50.0), point=at(1024)),
        race(timed("cta_row", 101.0), timed("liger", 100.0), point=at(2048)),
        race(timed("cta_row", 130.0), timed("liger", 100.0), point=at(4096)),
    )
    assert (found.op, found.use, found.role) == ("rmsnorm", "cta_row", "ours")
    assert (found.near, found.points, found.absent) == (2, 3, 0)
    assert (found.worst, found.where) == (pytest.approx(0.3), ("bf16", 4096))


def test_one_for_everything_has_a_time_everywhere_where_somebody_has() -> None:
    (found,) = shortly(
        race(timed("cta_row", 100.0), timed("liger", 150.0), point=at(1024)),
        race(timed("liger", 100.0), timed("cta_row", 90.0, verdict="throttled"), point=at(2048)),
    )
    assert (found.use, found.near, found.points, found.absent) == ("liger", 1, 2, 0)
    (alone,) = shortly(
        race(timed("cta_row", 100.0), point=at(1024)),
        race(timed("cta_row", 100.0), point=at(4096)),
        race(timed("liger", 100.0), point=at(2048)),
    )
    assert (alone.use, alone.absent) == ("cta_row", 1)


def test_a_study_without_a_quotable_time_has_no_one_for_everything() -> None:
    assert shortly(race(timed("cta_row", 100.0, verdict="throttled"), point=at(1024))) == []
