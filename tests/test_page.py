"""The pages as files: strict JSON, escaped labels, a size limit, equal bytes for equal data, and what they say."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import report_fixture as fixture
from normbench import (
    answers,
    chips,
    cli,
    document,
    downloads,
    formats,
    index,
    kernelfile,
    measured,
    metrics,
    nvbench,
    page,
    schema,
    timing,
)

SMALL = fixture.Fixture(dtypes=("fp32", "bf16"), hidden=(1024, 2049, 4096, 65536))
EVIL = "norm<half,8>"
EVIL_LABELS = {"cta_row": EVIL, "naive": 'a & b </script><script>alert("1")</script>', "welford": "<!--<script>"}
EVIL_DEVICE = "A100 MIG 1g.10gb"


def tables(folder: Path, *made: fixture.Fixture) -> Path:
    return fixture.write(folder, *made)


def archive(*made: fixture.Fixture) -> measured.Archive:
    parts = [one.tables() for one in made]
    joined = {
        name: pl.concat([part[name] for part in parts] or [schema.TABLES[name].empty()]) for name in schema.TABLES
    }
    return measured.Archive(**joined, machines=tuple(one.machine() for one in made))


def kernel(stem: str, summary: str, card: str) -> kernelfile.Kernel:
    nothing: dict[str, Any] = {"axes": {}, "where": (), "skip": (), "scratch": {}, "launches": (), "sha": "0"}
    path = Path(f"kernels/forward/{stem}.cu")
    return kernelfile.Kernel(stem, path, "cuda", summary, ("layernorm",), ("fp32",), card=card, **nothing)


def built(made: fixture.Fixture = SMALL, *kernels: kernelfile.Kernel) -> str:
    return page.build(measured.measured(archive(made), made.device, kernels))


class Elements(HTMLParser):
    """Collects what a browser would see: elements with their attributes, and text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside and self.inside[-1] == "script" else self.text).append(data)


def report_data(html: str) -> dict[str, Any]:
    """The JSON of a page, read as strictly as a browser reads it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    match = re.search(r'<script type="application/gzip" id="report-data">([A-Za-z0-9+/=]*)</script>', html)
    assert match
    text = gzip.decompress(base64.b64decode(match[1])).decode()
    return json.loads(text, parse_constant=refuse)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def html() -> str:
    return built()


def test_the_page_asks_nothing_of_the_network(html: str) -> None:
    elements = Elements(html)
    for tag, attributes in elements.found:
        assert "src" not in attributes, (tag, attributes)
        target = attributes.get("href") or ""
        assert target.startswith("data:") or target == "index.html" or not target, (tag, target)
        assert tag not in ("link", "iframe", "img", "object", "base")
    policies = [given["content"] for _, given in elements.found if given.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in str(policies[0])


def test_the_bundle_is_inlined_once(html: str) -> None:
    assert html.count(document.vega_bundle()[:200]) == 1


def test_a_page_of_a_large_study_stays_under_five_megabytes_and_names_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = tuple(256 * factor for factor in range(1, 25))
    one = measured.measured(archive(made := fixture.Fixture(hidden=hidden, latency=False)), made.device)
    text = page.build(one)
    assert len(text.encode()) <= page.MOST_BYTES
    assert "Not inside this page" not in text
    bare = len(text.encode()) - sum(file.bytes for file in downloads.of(one))
    monkeypatch.setattr(page, "MOST_BYTES", bare + page.ENOUGH + 100_000)
    small = page.build(one)
    assert len(small.encode()) <= page.MOST_BYTES
    assert "Not inside this page, to keep it small:" in small
    assert "showdown.parquet" in small


def test_downloads_that_do_not_fit_are_left_out_and_the_rest_taken() -> None:
    large, small = downloads.Download("large", "x" * 100, 1), downloads.Download("small", "x" * 10, 1)
    assert downloads.fitting([large, small], 50) == ([small], [large])


def test_equal_data_give_equal_bytes_in_any_process(tmp_path: Path) -> None:
    folder = tables(tmp_path / "tables", replace(SMALL, ops=("rmsnorm",), hidden=(2049, 4096)))
    pages = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "normbench", "page", "--tables", folder, "--device", fixture.DEVICE]
        command += ["--kernels", tmp_path / "none", "--out", out]
        subprocess.run(
            list(map(str, command)), check=True, env=os.environ | {"PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}"}
        )
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


def test_a_second_build_in_one_process_gives_equal_bytes(html: str) -> None:
    assert built() == html


def test_r3_rows_without_a_time_are_counted_on_the_page(html: str) -> None:
    report_data(html)
    failed = SMALL.tables()["showdown"].filter((pl.col("status") != "ok") & (pl.col("regime") == "stream")).height
    assert failed > 0
    assert f"{failed} of " in html
    assert f"not shown: {failed} launch_error." in html


def test_r3_a_number_that_is_not_finite_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document.json_text({"gbps": float("nan")})


def test_r6_no_label_becomes_markup() -> None:
    made = replace(SMALL, rename=EVIL_LABELS, device=EVIL_DEVICE, gpu_name="<b>GPU</b> & co")
    text = built(made, kernel(EVIL, "a < b & c", "Numerics: x<y && </pre><script>alert(1)</script>"))
    elements = Elements(text)
    assert [tag for tag, _ in elements.found].count("script") == 3
    assert all("alert" not in script for script in elements.scripts[1:])
    assert "<b>GPU" not in text
    shown = " ".join(elements.text)
    for label in (*EVIL_LABELS.values(), EVIL_DEVICE, "<b>GPU</b> & co", "a < b & c"):
        assert label in shown
    assert set(EVIL_LABELS.values()) <= set(report_data(text)["words"])


def test_r6_the_index_links_a_device_whose_name_needs_quoting() -> None:
    text = index.build(archive(replace(SMALL, device=EVIL_DEVICE, rename=EVIL_LABELS)))
    assert 'href="A100%20MIG%201g.10gb.html"' in text
    assert "norm&lt;half,8&gt;" in text
    assert "<script" not in text


def test_the_answer_agrees_with_the_tables_recomputed() -> None:
    made = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(4096,), latency=False)
    raw = made.tables()["showdown"].filter((pl.col("status") == "ok") & ~pl.col("contender").str.contains("copy|twin"))
    best = raw.sort("time_us_p50").row(0, named=True)
    eager = raw.filter(contender="torch_eager").row(0, named=True)
    shown = " ".join(Elements(built(made)).text)
    answer = shown.split("What to use")[1].split("Each row is a range")[0]
    assert best["contender"] in answer
    assert f"{best['bytes'] / best['time_us_p50'] / 1e3:,.0f}" in answer
    assert f"{eager['time_us_p50'] / best['time_us_p50']:.2f}×" in answer


def test_a_page_without_a_quotable_time_recommends_nothing() -> None:
    made = SMALL.tables()
    throttled = made["showdown"].with_columns(verdict=pl.when(pl.col("status") == "ok").then(pl.lit("throttled")))
    one = measured.Archive(**{**made, "showdown": throttled}, machines=(SMALL.machine(),))
    text = page.build(measured.measured(one, SMALL.device))
    assert "nothing is recommended" in text
    assert "and are left out of the table" in text


def test_a_page_opens_at_an_op_that_was_raced_where_kernels_are_compiled_for_others() -> None:
    made = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(4096,), latency=False)
    own = made.tables()
    compiled = pl.concat([own["resources"].with_columns(op=pl.lit(op)) for op in ("layernorm", "rmsnorm")])
    one = measured.Archive(**{**own, "resources": compiled}, machines=(made.machine(),))
    inputs = [given for _, given in Elements(page.build(measured.measured(one, made.device))).found if "name" in given]
    offered = {given["value"]: "checked" in given for given in inputs if given["name"] == "op"}
    assert offered == {"layernorm": False, "rmsnorm": True}


def cells(html: str, caption: str) -> dict[tuple[str, str], str]:
    """Text of a static table by (hidden, contender), as a reader without scripts sees it."""
    table = html.split(f"<caption>{caption}")[1].split("</table>")[0]
    names = re.findall(r'<th scope="col" class="n">([^<]*)</th>', table)
    names = [name for name in names if name not in ("rows", "hidden")]
    found = {}
    for line in re.findall(r"<tr>(.*?)</tr>", table)[1:]:
        (hidden,) = re.findall(r'<th scope="row" class="n">(\d+)</th>', line)
        texts = re.findall(r'<td class="n">(.*?)</td>', line)
        found |= {(hidden, name): text for name, text in zip(names, texts[-len(names) :], strict=True)}
    return found


def test_every_time_stands_in_a_table_that_needs_no_script() -> None:
    made = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(2049, 4096, 32768))
    raw = made.tables()["showdown"].filter(~pl.col("contender").str.ends_with("__twin"))
    found = cells(built(made), "rmsnorm bf16, regime stream, GB/s")
    for row in raw.filter(regime="stream").iter_rows(named=True):
        shown = found[str(row["hidden"]), row["contender"]]
        time = row["time_us_p50"]
        if time is None:
            assert shown == "–"
        else:
            assert re.sub(r"</?b>|\*", "", shown) == f"{row['bytes'] / time / 1e3:,.0f}"
        assert shown.endswith("*") == (row["verdict"] not in ("quotable", None))
    best = raw.filter(regime="stream", hidden=4096, status="ok").filter(pl.col("contender") != "copy")
    assert found["4096", best.sort("time_us_p50")["contender"][0]].startswith("<b>")
    assert "<caption>rmsnorm bf16, regime latency, µs a launch</caption>" in built(made)


def test_what_scripts_draw_is_hidden_without_them(html: str) -> None:
    figures = [given for tag, given in Elements(html).found if tag == "figure"]
    assert figures
    for given in figures:
        assert "needs-script" in str(given["class"]).split()
        assert f'id="{given["aria-labelledby"]}"' in html
    assert "<noscript><style>.needs-script { display: none !important; }</style></noscript>" in html


def test_charts_without_data_are_left_out_with_a_sentence(html: str) -> None:
    assert "Occupancy against time: no tuned variant has both." not in html
    without = built(replace(SMALL, latency=False))
    assert "Latency of few rows: the study has no latency points." in without
    assert 'id="figure-latency"' not in without


def test_a_card_shows_the_text_of_the_file_beside_its_figures() -> None:
    text = built(SMALL, kernel("cta_row", "A block a row.", "Numerics: fp32,\nin chains.\n\nKnown limits: none."))
    card = text.split("<h3>cta_row</h3>")[1].split("</article>")[0]
    assert "A block a row." in card
    assert "<dt>Numerics</dt><dd>fp32, in chains.</dd>" in card
    assert 'data-chart="blockmap-0"' in card
    assert re.search(r"Fastest or tied at \d+ of 16 points", card)


def test_a_recommendation_that_was_wrong_on_an_adversarial_input_is_marked() -> None:
    one = measured.measured(archive(SMALL), SMALL.device)
    best = answers.answers(one.showdown)[0]
    here = (pl.col("contender") == best.use) & (pl.col("op") == best.op) & (pl.col("dtype") == best.dtype)
    checks = one.checks.with_columns(status=pl.when(here).then(pl.lit("wrong")).otherwise(pl.lit("ok")))
    assert checks.filter(here).height
    mark, footnote = '<span class="bad">†</span></td>', "wrong on an adversarial one"
    text = page.build(replace(one, checks=checks))
    assert f"{best.use} {mark}" in text
    assert footnote in text
    sound = page.build(replace(one, checks=checks.with_columns(status=pl.lit("ok"))))
    assert mark not in sound
    assert footnote not in sound
    untried = "Nobody here was tried on adversarial inputs"
    assert untried not in sound
    none = {**one.stored, "checks": one.stored["checks"].clear()}
    assert untried in page.build(replace(one, checks=one.checks.clear(), stored=none))


def test_what_was_raced_comes_before_files_without_a_time() -> None:
    text = built(SMALL, kernel("aaa", "Never raced.", ""), kernel("cta_row", "A block a row.", ""))
    names = re.findall(r"<h3>(\w+)</h3>", text.split('id="kernels"')[1].split('id="method"')[0])
    assert names[-1] == "aaa"
    assert "cta_row" in names


def test_a_figure_that_was_invented_says_so(html: str) -> None:
    assert "Not a measurement" in html
    assert "Not a measurement" in index.build(archive(SMALL))


def test_the_page_names_the_run_of_its_points() -> None:
    older = replace(SMALL, run="20190101T000000-0000000")
    newer = replace(SMALL, run="20200501T000000-1111111", hidden=(4096,), latency=False)
    text = page.build(measured.measured(archive(older, newer), SMALL.device))
    assert f"<code>{older.run}</code>, <code>{newer.run}</code>" in text
    lines = index.build(archive(older, newer))
    assert f"<code>{older.run}</code>, <code>{newer.run}</code>" in lines


def test_downloads_are_the_stored_tables(html: str) -> None:
    links = {given["download"]: given["href"] for tag, given in Elements(html).found if "download" in given}
    content = str(links[f"{fixture.DEVICE}-showdown.parquet"]).split("base64,")[1]
    frame = pl.read_parquet(io.BytesIO(base64.b64decode(content)))
    assert schema.validate(frame, schema.SHOWDOWN).equals(SMALL.tables()["showdown"])
    packed = base64.b64decode(str(links[f"{fixture.DEVICE}-showdown.csv.gz"]).split("base64,")[1])
    text = gzip.decompress(packed).decode()
    assert "gbps" in text.splitlines()[0].split(",")
    assert len(text.splitlines()) == frame.height + 1


def test_other_tools_files_come_before_the_text_of_the_tables(html: str) -> None:
    links = {given["download"]: given["href"] for tag, given in Elements(html).found if "download" in given}
    names = list(links)
    assert names.index("normbench-tables.schema.json") < names.index(f"{fixture.DEVICE}-showdown.csv.gz")
    packed = base64.b64decode(str(links[f"{fixture.DEVICE}-nvbench.json.gz"]).split("base64,")[1])
    assert gzip.decompress(packed).decode() == nvbench.text(SMALL.tables()["showdown"], SMALL.machine())


def test_the_method_gives_the_limits_of_the_verdicts_and_what_a_launch_moves(html: str) -> None:
    method = html.split('id="method"')[1].split("</section>")[0]
    assert "reads x (rows × hidden), gamma (hidden), beta (hidden); writes y (rows × hidden)" in method
    assert "reads x (rows × hidden), gamma (hidden); writes y (rows × hidden)" in method
    assert f"fewer than {timing.MIN_SAMPLES} samples" in method
    assert "is over 5% of its median" in method
    assert set(page.VERDICTS) == set(schema.VERDICTS)


def test_a_page_says_where_its_numbers_come_from() -> None:
    one = archive(SMALL)
    machine = SMALL.machine() | {"commit": "c0ffee", "files": {"showdown.parquet": "ab12"}}
    text = page.build(measured.measured(replace(one, machines=(machine,)), SMALL.device))
    section = text.split('id="provenance"')[1].split("</section>")[0]
    for shown in (SMALL.run, "c0ffee", "ab12  showdown.parquet", "driver 0.0.fixture", "liger 0.8.5"):
        assert shown in section


def test_rows_survive_the_pages_packing() -> None:
    rows: list[dict[str, Any]] = [{"a": 1.5, "b": "x", "c": None}, {"a": 2, "b": None, "c": "x"}]
    specs = document.Specs()
    specs.add("one", {"datasets": {"d": rows}})
    assert specs.rows("d") == rows
    assert list(specs.words) == ["x"]


def test_an_unknown_device_is_one_sentence_that_names_the_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tables(tmp_path / "tables", SMALL)
    arguments = ["--tables", folder, "--device", "no-such", "--kernels", tmp_path, "--out", tmp_path / "x.html"]
    assert cli.main(["page", *map(str, arguments)]) == 1
    error = capsys.readouterr().err
    assert error == f"normbench page: device 'no-such' is in no table; known: {fixture.DEVICE}\n"
    assert not (tmp_path / "x.html").exists()


def test_the_index_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    out = tmp_path / "index.html"
    assert cli.main(["index", "--tables", str(tmp_path / "absent"), "--out", str(out)]) == 0
    assert "snakemake --cores 1 report" in out.read_text()


def test_the_index_groups_devices_by_model_and_gives_the_best_of_each_size() -> None:
    one, two = SMALL, replace(SMALL, device="fixture-gpu-000002", scale=0.5)
    text = index.build(archive(one, two))
    assert text.count("<h2>fixture-gpu</h2>") == 1
    for made in (one, two):
        frame = metrics.with_winners(metrics.derive(made.tables()["showdown"], [made.machine()]))
        best = frame.filter(op="rmsnorm", dtype="bf16", hidden=4096, regime="stream", fastest=True).row(0, named=True)
        assert f"{formats.count(best['gbps'])} GB/s" in text
        assert f'href="{made.device}.html"' in text


def test_a_machine_of_which_nothing_is_known_still_has_a_page() -> None:
    one = measured.Archive(**SMALL.tables(), machines=({"device": SMALL.device, "run": SMALL.run},))
    assert f"<h1>{SMALL.device}</h1>" in page.build(measured.measured(one, SMALL.device))
    assert SMALL.device in index.build(one)


def test_a_device_of_which_nothing_was_measured_still_has_a_page() -> None:
    empty = {name: table.empty() for name, table in schema.TABLES.items()}
    one = measured.Archive(**empty, machines=(SMALL.machine(),))
    text = page.build(measured.measured(one, SMALL.device))
    assert "nothing is recommended" in text
    assert "<figure" not in text
    assert "No quotable time at hidden 1024, 4096, 65536 yet" in index.build(one)


def test_the_title_reaches_both_pages() -> None:
    assert "<title>my &lt;study&gt;: all devices</title>" in index.build(archive(SMALL), "my <study>")
    assert "my &lt;study&gt;" in page.build(measured.measured(archive(SMALL), SMALL.device), "my <study>")


def test_a_broken_machines_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "machines.json").write_text("{")
    with pytest.raises(ValueError, match=r"machines\.json: not JSON"):
        measured.load(tmp_path)


def test_chips_of_one_model_are_compared_and_the_slower_one_is_named() -> None:
    slow = replace(SMALL, device="fixture-gpu-000002", scale=0.5)
    raced = pl.concat([measured.measured(archive(made), made.device).showdown for made in (SMALL, slow)])

    first, second = chips.spread(raced)

    assert (first.device, second.device) == (SMALL.device, slow.device)
    assert first.shared == second.shared > 0
    assert first.cost is not None
    assert second.cost is not None
    assert first.cost < 0.05
    assert 0.9 < second.cost < 1.1  # half the speed takes twice the time
    assert "Same model, different chip" in index.build(archive(SMALL, slow))
    assert "Same model, different chip" not in index.build(archive(SMALL))


def test_rows_of_other_sources_say_nothing_about_the_chip() -> None:
    raced = pl.concat(
        [
            measured.measured(archive(made), made.device).showdown.with_columns(sources=pl.lit(sources))
            for made, sources in ((SMALL, "aaaaaaa"), (replace(SMALL, device="fixture-gpu-000002"), "bbbbbbb"))
        ]
    )

    assert [one.shared for one in chips.spread(raced)] == [0, 0]


def test_only_what_differs_between_devices_stands_open() -> None:
    other = replace(SMALL, device="fixture-gpu-000002")
    one = archive(SMALL, other)
    machines = (one.machines[0], {**one.machines[1], "driver": "0.0.other"})
    text = index.build(replace(one, machines=machines)).split("How the devices differ")[1]
    shown, folded = text.split("<details", 1)
    assert '<th scope="row">driver</th><td>0.0.fixture</td><td>0.0.other</td>' in shown
    assert '<th scope="row">torch</th>' not in shown
    assert '<th scope="row">torch</th>' in folded.split("</details>")[0]
    assert "In nothing that is recorded" in index.build(one)


def test_many_chips_of_a_model_share_one_table_and_keep_a_link_each() -> None:
    made = [replace(SMALL, device=f"fixture-gpu-{number:06x}") for number in range(index.MOST_CARDS + 2)]

    text = index.build(archive(*made))

    assert text.count("<article") == 0
    assert f"of {len(made)} chips" in text
    assert all(f'href="{one.device}.html"' in text for one in made)
