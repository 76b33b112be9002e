"""Every chart: to_dict, JSON round trip, PNG; and the rows each may and may not draw."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest
import vl_convert

import report_fixture as fixture
from normbench import charts, contenders, document, kernelfile, measured, page, pictures
from normbench.charts import (
    bandwidth,
    blockmap,
    clocks,
    correctness,
    cost,
    error,
    kit,
    noise,
    resources,
    samples,
    speedup,
    theme,
)

SMALL = fixture.Fixture(dtypes=("fp32", "bf16"), hidden=(1024, 2049, 4096))
PNG = b"\x89PNG\r\n"


def study(made: fixture.Fixture = SMALL, **tables: pl.DataFrame) -> measured.Measured:
    archive = measured.Archive(**{**made.tables(), **tables}, machines=(made.machine(),))
    return measured.measured(archive, made.device)


@pytest.fixture(scope="module")
def one() -> measured.Measured:
    return study(l2())


def l2() -> fixture.Fixture:
    return replace(SMALL, l2=True)


def drawn(module: Any, one: measured.Measured) -> tuple[pl.DataFrame, Any]:
    chosen = module.prepare(one, "cta_row") if module is blockmap else module.prepare(one)
    return chosen.frame, module.chart(chosen.frame)


ALL = pytest.mark.parametrize("module", [*charts.CHARTS, blockmap], ids=lambda module: module.NAME)


@ALL
def test_chart_survives_a_json_round_trip(module: Any, one: measured.Measured) -> None:
    frame, chart = drawn(module, one)
    assert not frame.is_empty()
    text = json.dumps(chart.to_dict(), allow_nan=False)
    assert alt.Chart.from_json(text, validate=True).to_dict()["$schema"]


@ALL
def test_chart_draws_as_a_png(module: Any, one: measured.Measured) -> None:
    _, chart = drawn(module, one)
    image = vl_convert.vegalite_to_png(chart.to_dict() | {"config": theme.FILE})
    assert image.startswith(PNG)
    assert len(image) > 4000


@ALL
def test_chart_says_what_it_is_and_how_to_read_it(module: Any) -> None:
    assert module.TITLE[0].isupper()
    assert module.HELP.endswith(".")
    assert len(page.Figure("", "", module.HELP, "").reading[0]) <= 160  # a line
    assert module.NOTHING.endswith(".")


@ALL
def test_chart_of_nothing_is_left_out_rather_than_broken(module: Any) -> None:
    empty = {name: fixture.frame(name, []) for name in ("cases", "showdown", "checks", "ceilings", "resources")}
    bare = study(SMALL, **empty)
    chosen = module.prepare(bare, "cta_row") if module is blockmap else module.prepare(bare)
    assert chosen.frame.is_empty()


@ALL
def test_chart_is_the_same_in_any_row_order(module: Any) -> None:
    shuffled = {name: frame.sample(fraction=1, shuffle=True, seed=7) for name, frame in SMALL.tables().items()}
    first, second = (module_spec(module, study(SMALL, **tables)) for tables in ({}, shuffled))
    assert first == second


def module_spec(module: Any, one: measured.Measured) -> str:
    chosen = module.prepare(one, "cta_row") if module is blockmap else module.prepare(one)
    return "" if chosen.frame.is_empty() else str(document.json_text(document.to_spec(module.chart(chosen.frame), "")))


def test_r3_one_point_is_drawn_of_five_and_the_rest_are_counted(one: measured.Measured) -> None:
    values = [math.nan, math.inf, -math.inf, None, 812.5]
    row = one.showdown.filter((pl.col("contender") == "cta_row") & (pl.col("regime") == "stream")).head(1)
    five = pl.concat([row] * 5).with_columns(pl.Series("gbps", values))
    chosen = bandwidth.prepare(replace(one, showdown=five))
    contenders = chosen.frame.filter(pl.col("kind") == "contender")
    assert contenders["gbps"].to_list() == [812.5]
    assert chosen.omitted == "4 of 5 rows are not shown: 4 without a finite value."
    json.dumps(bandwidth.chart(chosen.frame).to_dict(), allow_nan=False)


@pytest.mark.parametrize("module", [bandwidth, charts.roofline], ids=lambda module: module.NAME)
def test_l2_and_latency_points_never_meet_the_memory_roof(module: Any, one: measured.Measured) -> None:
    frame = module.prepare(one).frame
    if "regime" in frame.columns:
        frame = frame.filter(pl.col("regime") == "stream")
    points = one.showdown.filter(pl.col("regime") != "stream")["rows"].unique()
    assert points.len() > 0
    shown = frame.filter(pl.col("kind") == "contender")
    assert shown.height > 0
    assert not set(shown["rows"]) & set(points)


def test_points_inside_l2_are_judged_by_the_l2_copy_alone(one: measured.Measured) -> None:
    frame = bandwidth.prepare(one).frame.filter(regime="l2")
    assert set(frame.filter(pl.col("kind") != "contender")["gbps"]) == {9800.0}
    assert frame.filter(pl.col("kind") == "contender").height > 0


@pytest.mark.parametrize(
    ("op", "dtype", "boundary"),
    # 60 MiB of L2 over 132 multiprocessors: 476625 bytes, of 2 tensors of 4 or 2 bytes an element
    [("layernorm", "fp32", 65536), ("layernorm", "bf16", 131072), ("add_layernorm", "bf16", 65536)],
)
def test_the_l2_boundary_is_where_a_row_on_every_multiprocessor_outgrows_l2(op: str, dtype: str, boundary: int) -> None:
    made = replace(SMALL, ops=(op,), dtypes=(dtype,), hidden=(4096, 32768, 65536, 131072), latency=False)
    found = bandwidth.prepare(study(made)).frame.filter(kind=bandwidth.BOUNDARY)
    assert found["hidden"].to_list() == [boundary]
    assert "L2 has 60 MiB" in found["note"][0]


def test_a_card_of_unknown_l2_has_no_boundary(one: measured.Measured) -> None:
    unknown = replace(one, machine={**one.machine, "l2_bytes": None})
    assert not (bandwidth.prepare(unknown).frame["kind"] == bandwidth.BOUNDARY).any()


def test_launches_that_overlap_have_a_floor_of_their_own(one: measured.Measured) -> None:
    rows = one.showdown.filter((pl.col("contender") == "cta_row") & (pl.col("regime") == "latency")).head(1)
    both = [rows.with_columns(variant=pl.lit(f'{{"block":256,"pdl":{pdl}}}')) for pdl in (0, 1)]
    plain = one.ceilings.filter(pl.col("name") == "launch_floor")
    own = plain.with_columns(name=pl.lit("launch_floor_pdl"), value=pl.lit(0.4))
    for ceilings, floors in ((pl.concat([plain, own]), [1.1, 0.4]), (plain, [1.1, None])):
        drawn = charts.latency.prepare(replace(one, showdown=pl.concat(both), ceilings=ceilings)).frame
        assert drawn.sort("variant")["floor_us"].to_list() == floors


def test_twins_are_the_noise_floor_and_not_a_line(one: measured.Measured) -> None:
    for module in charts.CHARTS:
        frame = module.prepare(one).frame
        if "contender" in frame.columns and module is not clocks:
            assert not any(name.endswith("__twin") for name in frame["contender"].drop_nulls())


def test_r6_labels_with_markup_reach_the_drawing_whole() -> None:
    names = {"cta_row": "norm<half,8>", "naive": "a & b </script>"}
    made = replace(SMALL, rename=names, contenders=("cta_row", "naive", "torch_eager"), device="A100 MIG 1g.10gb")
    frame, chart = drawn(bandwidth, study(made))
    assert set(names.values()) <= set(frame["contender"].drop_nulls())
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    assert "norm&lt;half,8&gt;" in svg
    assert "a &amp; b &lt;/script&gt;" in svg


def test_r6_there_are_as_many_marks_as_rows() -> None:
    made = replace(SMALL, rename={"cta_row": "norm<half,8>"}, ops=("rmsnorm",), dtypes=("bf16",))
    frame, chart = drawn(error, study(made))
    frame = frame.filter(family=kit.ALL)
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    marks = svg.split('class="mark-symbol role-mark marks"')[1].split("</g>")[0]
    assert marks.count("<path") == frame.height > 0


def test_colours_do_not_depend_on_who_else_is_there() -> None:
    for name in ("liger", "mine", "mine_bwd", "span_row_bwd"):
        alone = theme.colours([name])[name]
        assert theme.colours([name, "naive", "torch_eager", "a_kernel"])[name] in (alone, *theme.POOL)
        assert name == "mine" or theme.colours([name, "naive", "zzz"])[name] == alone
    assert theme.colours(["span_row_bwd"])["span_row_bwd"] == theme.KNOWN["span_row"]
    several = theme.colours([f"mine_{index}" for index in range(len(theme.POOL))])
    assert len(set(several.values())) == len(theme.POOL)


def linear(colour: str) -> list[float]:
    """sRGB as light."""
    values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def seen(colour: str, eye: str) -> list[float]:
    """CIELAB (D65) of a colour as an eye of EYES sees it."""
    light = [min(max(sum(a * b for a, b in zip(row, linear(colour), strict=True)), 0.0), 1.0) for row in EYES[eye]]
    white = (0.95047, 1.0, 1.08883)
    xyz = [sum(a * b for a, b in zip(row, light, strict=True)) for row in XYZ]
    x, y, z = (
        value ** (1 / 3) if value > 216 / 24389 else (24389 / 27 * value + 16) / 116
        for value in (part / full for part, full in zip(xyz, white, strict=True))
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
# Machado, Oliveira and Fernandes 2009, severity 1.0
EYES = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


@pytest.mark.parametrize(("eye", "least"), [("normal", 27), ("protanopia", 14), ("deuteranopia", 14)])
def test_no_two_contenders_look_alike_to_any_eye(eye: str, least: float) -> None:
    places = [seen(colour, eye) for colour in theme.KNOWN.values()]
    assert min(math.dist(one, two) for one, two in itertools.combinations(places, 2)) >= least


@pytest.mark.parametrize("ground", ["#ffffff", "#1a1e24"])
def test_every_colour_stands_out_from_the_ground(ground: str) -> None:
    def luminance(colour: str) -> float:
        return sum(a * b for a, b in zip(XYZ[1], linear(colour), strict=True))

    for colour in theme.KNOWN.values():
        high, low = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 2.1, colour


def test_every_kernel_of_the_repository_has_a_colour_of_its_own() -> None:
    root = Path(__file__).resolve().parents[1] / "kernels"
    stems = [path.stem for path in (*root.glob("forward/*.cu"), *root.glob("wide/*.cu"), *root.glob("baselines/*.py"))]
    assert stems
    assert set(stems) <= {*theme.KNOWN, *theme.ALIKE}


def test_contenders_of_one_colour_never_meet() -> None:
    root = Path(__file__).resolve().parents[1] / "kernels"
    paths = {path.stem: path for path in (*root.rglob("*.cu"), *root.glob("baselines/*.py"))}

    def races(stem: str) -> set[tuple[str, str]]:
        """(what is normalised, regime) of its races."""
        if paths[stem].suffix == ".cu":
            kernel = kernelfile.load(paths[stem])
            return set(itertools.product(kernel.ops, kernel.regimes))
        prepared = set(re.findall(r"^def (prepare\w*)", paths[stem].read_text(), re.MULTILINE))
        return set(itertools.product(prepared, contenders.baseline(paths[stem]).regimes))

    for one, other in theme.ALIKE.items():
        assert races(one)
        assert races(other)
        assert not races(one) & races(other)


def test_the_matrix_falls_back_to_the_contracts_of_the_race() -> None:
    frame = correctness.prepare(study(replace(SMALL, checks=False))).frame
    cell = frame.filter(contender="naive", op="rmsnorm", dtype="bf16", column="allclose_seed")
    assert cell.select("state", "mark").rows() == [("fails", f"0/{3 + 8}")]
    held = frame.filter(contender="torch_eager", op="rmsnorm", dtype="bf16", column="bitwise_torch")
    assert held["state"].to_list() == ["holds"]


def test_a_wrong_check_is_not_hidden_by_a_right_one_of_the_same_name(one: measured.Measured) -> None:
    cell = correctness.prepare(one).frame.filter(contender="liger", op="rmsnorm", dtype="bf16", column="K2.1")
    assert cell.select("state", "mark").rows() == [("fails", "✗")]
    refused = correctness.prepare(one).frame.filter(contender="quack", op="rmsnorm", dtype="bf16", column="K2.1")
    assert refused["mark"].to_list() == ["–"]


def test_a_family_hides_the_input_that_failed(one: measured.Measured) -> None:
    frame = correctness.prepare(one).frame.filter(contender="liger", op="rmsnorm", dtype="bf16")
    families = frame.filter(family=kit.ALL)
    wanted = {correctness.family(case) for case in fixture.CASES_OF_CHECKS}
    assert set(families["column"]) == wanted
    cell = families.filter(column=correctness.family("K2.1")).row(0, named=True)
    assert (cell["state"], cell["mark"], cell["detail"]) == ("fails", "3/4", "fails on K2.1")
    members = frame.filter(family=correctness.family("K2.1"))
    assert members["column"].to_list() == ["K1.1", "K1.2", "K2.1", "K5.1"]


def test_a_family_of_refused_inputs_is_not_judged(one: measured.Measured) -> None:
    frame = correctness.prepare(one).frame.filter(contender="quack", family=kit.ALL)
    assert set(frame["mark"]) == {"–"}
    assert set(frame["state"]) == {"not judged"}


@pytest.mark.parametrize(
    ("case", "start"),
    [
        ("K23.last", "K:"),
        ("hidden_1023", "hidden:"),
        ("rows_65536", "rows:"),
        ("ratio_1e4", "ratio:"),
        ("minus_inf_last", "values:"),
        ("near_65504", "values:"),
        ("stride_odd", "stride:"),
        ("no_gamma", "semantics:"),
        ("wide.offset_1000.random.0", "wide:"),
        ("misaligned", "other"),
    ],
)
def test_an_input_is_counted_in_another_family(case: str, start: str) -> None:
    assert correctness.family(case).startswith(start)


def moments(*throttled: bool) -> pl.DataFrame:
    """Two rows a moment, a second apart; of a throttled moment one row says so."""
    rows = [
        {"at": f"2020-01-01T00:00:{second:02d}Z", "verdict": verdict}
        for second, flag in enumerate(throttled)
        for verdict in ("quotable", "throttled" if flag else "quotable")
    ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("throttled", "expected"),
    [
        ((False, False), []),
        ((False, True, True, False, True), [("00", "02"), ("03", "04")]),
        ((True, False), [("00", "00")]),
        ((True, True), [("00", "01")]),
    ],
)
def test_a_throttled_window_ends_elsewhere(throttled: tuple[bool, ...], expected: list[tuple[str, str]]) -> None:
    found = clocks.windows(moments(*throttled)).select("at", "until").rows()
    assert [(start[17:19], end[17:19]) for start, end in found] == expected


def test_throttled_windows_are_shaded_and_a_level_study_has_none(one: measured.Measured) -> None:
    spec = json.dumps(clocks.chart(clocks.prepare(one).frame).to_dict())
    assert '"type": "rect"' not in spec
    hot = study(replace(SMALL, hidden=(32768,)))
    chosen = clocks.prepare(hot).frame
    assert chosen.filter(kind="throttled").height > 0
    svg = vl_convert.vegalite_to_svg(clocks.chart(chosen).to_dict())
    assert svg.count('class="mark-rect role-mark') == len(clocks.QUANTITIES)


def test_the_noise_chart_shows_each_twin_beside_the_floor(one: measured.Measured) -> None:
    frame = noise.prepare(one).frame
    races = one.showdown.filter(pl.col("contender") == "cta_row__twin").height
    assert frame.height == races > 0
    assert frame["difference"].to_list() == pytest.approx([0.002] * races)
    assert frame["floor"].to_list() == pytest.approx([0.002] * races)


def test_the_band_of_noise_is_the_floor_of_the_study(one: measured.Measured) -> None:
    frame = speedup.prepare(one).frame
    assert frame["band_high"].unique().to_list() == pytest.approx([1.002])
    assert frame["band_low"].unique().to_list() == pytest.approx([1 / 1.002])
    without = one.showdown.filter(~pl.col("contender").str.ends_with("__twin"))
    bare = speedup.prepare(replace(one, showdown=without)).frame
    assert bare["band_high"].null_count() == bare.height
    assert "band_high" not in json.dumps(speedup.chart(bare).to_dict()["layer"])


def test_equal_errors_are_spread_over_the_axis() -> None:
    rows = study(SMALL).showdown.with_columns(err_ulp_max=pl.lit(0.50004))
    bare = replace(study(replace(SMALL, checks=False)), showdown=rows)
    made = error.chart(error.prepare(bare).frame).to_dict()
    assert made["encoding"]["y"]["scale"]["domain"] == [0.25, 1.0]


def test_an_error_is_shown_by_the_input_it_came_from(one: measured.Measured) -> None:
    frame = error.prepare(one).frame.filter(contender="liger", op="rmsnorm", dtype="bf16")
    opened = frame.filter(family=kit.ALL)
    worst = opened.filter(shown=correctness.family("K2.1")).row(0, named=True)
    assert (worst["worst"], worst["err_ulp_max"]) == ("K2.1", 4e5)
    assert opened["shown"].to_list()[0] == error.RACE
    inside = frame.filter(family=correctness.family("K2.1"))
    assert inside["shown"].to_list() == ["K1.1", "K1.2", "K2.1", "K5.1"]
    assert inside["command"][0] == "snakemake --cores 1 verify --config ops=rmsnorm dtypes=bf16"


def test_a_study_that_was_not_verified_shows_the_errors_of_each_size() -> None:
    frame = error.prepare(study(replace(SMALL, checks=False, latency=False))).frame
    assert set(frame["family"]) == {kit.ALL}
    assert frame["shown"].n_unique() == len(SMALL.hidden)


def test_errors_of_the_race_are_in_the_order_of_the_sizes(one: measured.Measured) -> None:
    frame = error.prepare(one).frame.filter(contender="liger", op="rmsnorm", dtype="bf16", family=error.RACE)
    sizes = [int(text.split(" × ")[1]) for text in frame["shown"]]
    assert sizes == sorted(sizes)
    assert frame["command"].str.starts_with("normbench bench liger ").all()


def test_r3_an_error_of_zero_is_on_the_axis(one: measured.Measured) -> None:
    rows = one.showdown.with_columns(err_ulp_max=pl.lit(0.0))
    made = error.chart(error.prepare(replace(one, showdown=rows)).frame).to_dict()
    assert made["encoding"]["y"]["scale"] == {"type": "symlog", "constant": 0.5, "domain": [0, 4e5]}
    assert made["encoding"]["y"]["axis"]["values"][:3] == [0, 0.5, 1.0]


def test_occupancy_is_that_of_the_measured_architecture(one: measured.Measured) -> None:
    row = cost.prepare(one).frame.filter(contender="cta_row", op="rmsnorm", dtype="bf16", hidden=4096)
    # the fixture fits 2048 threads on a multiprocessor, which holds 64 warps
    assert row["occupancy"].to_list() == [1.0] * row.height
    assert row.height == len(fixture.BLOCKS)
    tuned = one.cases.filter(op="rmsnorm", dtype="bf16", hidden=4096, regime="stream")
    best = tuned["time_us_p50"].min()
    assert row["times"].to_list() == pytest.approx([time / best for time in row["time_us_p50"]])
    other = replace(one, machine={**one.machine, "arch": "sm_75"})
    assert cost.prepare(other).frame["occupancy"].max() == 2.0


def test_an_unknown_architecture_has_no_occupancy(one: measured.Measured) -> None:
    assert cost.prepare(replace(one, machine={**one.machine, "arch": "sm_999"})).frame.is_empty()


def test_thinned_samples_keep_both_extremes() -> None:
    thinned = samples.thin([value / 1000 for value in range(1000)])
    assert len(thinned) == samples.MOST
    assert (thinned[0], thinned[-1]) == (0.0, 0.999)
    assert samples.thin([0.2, 0.1]) == [0.1, 0.2]


def test_the_block_map_marks_the_fastest_of_each_size(one: measured.Measured) -> None:
    frame = blockmap.prepare(one, "cta_row").frame
    winners = frame.filter(pl.col("label") == "★")
    assert winners.height == frame.select("op", "dtype", "hidden").n_unique()
    best = one.cases.filter(pl.col("contender") == "cta_row").group_by("op", "dtype", "hidden")
    fastest = best.agg(pl.col("time_us_p50").min()).sort("op", "dtype", "hidden")["time_us_p50"]
    assert winners.sort("op", "dtype", "hidden")["time_us_p50"].to_list() == fastest.to_list()


def test_times_of_day_are_utc_whatever_their_suffix(one: measured.Measured) -> None:
    frame = one.showdown.with_columns(measured_at=pl.lit("2020-01-01T00:00:05+00:00"))
    assert set(clocks.prepare(replace(one, showdown=frame)).frame["at"]) == {"2020-01-01T00:00:05Z"}
    spec = json.dumps(clocks.chart(clocks.prepare(one).frame).to_dict())
    assert '"scale": {"type": "utc"}' in spec


def test_every_tooltip_can_be_traced_to_a_command(one: measured.Measured) -> None:
    for module in (*(module for module in charts.CHARTS if module not in (clocks, resources)), blockmap):
        frame, chart = drawn(module, one)
        assert frame["command"].drop_nulls().str.contains("^(normbench bench|snakemake --cores 1 verify) ").all()
        assert '"title": "reproduce"' in json.dumps(chart.to_dict())


def test_selectors_start_where_most_people_look() -> None:
    assert kit.default("dtype", ["fp32", "bf16"]) == "bf16"
    assert kit.default("hidden", [256, 4096]) == 4096
    assert kit.default("hidden", [256, 768]) == 256
    assert kit.sort_values("dtype", ["bf16", "fp16", "fp32"]) == ["fp32", "fp16", "bf16"]


def test_pictures_are_one_svg_and_png_a_chart_op_and_dtype(tmp_path: Any) -> None:
    made = replace(SMALL, ops=("rmsnorm",), dtypes=("bf16",), contenders=("cta_row", "torch_eager"))
    paths = pictures.write(study(made), tmp_path)
    names = {path.name for path in paths}
    assert {"bandwidth-rmsnorm-bf16.svg", "bandwidth-rmsnorm-bf16.png", "roofline.svg", "clocks.png"} <= names
    assert (tmp_path / "bandwidth-rmsnorm-bf16.svg").read_text().startswith("<svg")
    assert (tmp_path / "clocks.png").read_bytes().startswith(PNG)
