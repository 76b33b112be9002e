"""R2: the pages in headless Chromium with the network off: all charts draw, all controls work, nothing is fetched."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import report_fixture as fixture
from normbench import charts, cli, compare, document, history, index, measured, page, versus
from normbench.charts import bandwidth, correctness, cost, error, kit, latency, roofline, samples, speedup

pytestmark = pytest.mark.browser

STUDY = fixture.Fixture(
    l2=True, hidden=(256, 1024, 2049, 4096), rename={"cta_row": "norm<half,8>", "naive": "a & </script>"}
)
SECONDS = 20
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1440,1000",
)
BANDWIDTH_MARKS = "#plot-bandwidth .mark-symbol.role-mark path"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium that can reach no host; skips where one of its parts is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no chromedriver on the PATH (Debian: apt-get install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    chromium.execute_cdp_cmd("Network.enable", {})
    chromium.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield chromium
    chromium.quit()


@pytest.fixture(scope="module")
def study() -> measured.Measured:
    archive = measured.Archive(**STUDY.tables(), machines=(STUDY.machine(),))
    return measured.measured(archive, STUDY.device)


@pytest.fixture(scope="module")
def path(study: measured.Measured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages") / f"{STUDY.device}.html"
    document.write(page.build(study), out)
    archive = measured.Archive(**STUDY.tables(), machines=(STUDY.machine(),))
    document.write(index.build(archive), out.parent / "index.html")
    return out


@pytest.fixture
def opened(browser: Any, path: Path) -> Any:
    """The device page, freshly loaded and completely drawn."""
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(path.as_uri())
    until(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn"))
    return browser


def until(browser: Any, condition: Callable[[], Any]) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, SECONDS, poll_frequency=0.05).until(lambda _: condition())


def count(browser: Any, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def rows(study: measured.Measured, op: str, dtype: str) -> pl.DataFrame:
    frame = bandwidth.prepare(study).frame
    return frame.filter(pl.col("kind") == "contender", op=op, dtype=dtype, regime="stream")


def choose(browser: Any, name: str, value: object) -> None:
    """As a reader does, by a click or by the menu."""
    from selenium.webdriver.support.select import Select

    control = find(browser, f'.picks [name="{name}"]')
    if control.tag_name == "select":
        Select(control).select_by_value(str(value))
    else:
        browser.execute_script("arguments[0].click()", find(browser, f'.picks input[name="{name}"][value="{value}"]'))


def test_r2_every_chart_draws_with_the_network_off(opened: Any, study: measured.Measured) -> None:
    drawable = [module.NAME for module in charts.CHARTS if not module.prepare(study).frame.is_empty()]
    cards = study.cases["contender"].unique().len()
    assert count(opened, "figure[data-chart]") == len(drawable) + cards
    figures = "return [...document.querySelectorAll('figure[data-chart]')].map(f => [f.dataset.chart, "
    marks = "f.querySelectorAll('.plot svg .role-mark path, .plot svg .role-mark text').length])"
    for name, found in opened.execute_script(figures + marks):
        assert found > 0, f"{name} has no mark"


def test_r2_nothing_leaves_the_page_and_the_console_is_silent(opened: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requests = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.endswith(f"{STUDY.device}.html") for url in requests)
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert opened.get_log("browser") == []


def test_a_page_that_fetches_or_fails_would_be_noticed(browser: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><img src='https://example.org/x.png'><script>throw new Error('no')</script>")
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(bad.as_uri())
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]
    assert "https://example.org/x.png" in requests
    assert browser.get_log("browser") != []


def test_r6_there_are_as_many_marks_as_rows(opened: Any, study: measured.Measured) -> None:
    assert count(opened, BANDWIDTH_MARKS) == rows(study, "layernorm", "bf16").height > 0


@pytest.mark.parametrize(("op", "dtype"), [("rmsnorm", "fp32"), ("layernorm", "fp16")])
def test_each_choice_shows_its_own_rows(opened: Any, study: measured.Measured, op: str, dtype: str) -> None:
    choose(opened, "op", op)
    choose(opened, "dtype", dtype)
    bandwidths = sorted(rows(study, op, dtype)["gbps"])

    until(opened, lambda: drawn_gbps(opened) == pytest.approx(bandwidths, rel=1e-5))


def drawn_gbps(browser: Any) -> list[float]:
    script = "return [...document.querySelectorAll(arguments[0])].map(mark => mark.__data__.datum.gbps)"
    return sorted(browser.execute_script(script, BANDWIDTH_MARKS))


STARTS = {
    "op": "layernorm",
    "dtype": "bf16",
    "regime": "stream",
    "hidden": 4096,
    "against": "torch eager",
    "family": kit.ALL,
}
SYMBOLS = ".mark-symbol.role-mark path"


@pytest.mark.parametrize(
    ("module", "column", "selector", "value"),
    [
        (bandwidth, "gbps", "regime", "l2"),
        (speedup, "speedup", "op", "rmsnorm"),
        (speedup, "speedup", "dtype", "fp32"),
        (speedup, "speedup", "regime", "latency"),
        (speedup, "speedup", "against", "best baseline"),
        (cost, "times", "hidden", 1024),
        (latency, "time_us_p50", "hidden", 8192),
        (error, "err_ulp_max", "family", error.RACE),
    ],
    ids=lambda value: getattr(value, "NAME", str(value)),
)
def test_every_selector_shows_the_rows_of_its_choice_and_no_others(
    opened: Any, study: measured.Measured, module: Any, column: str, selector: str, value: object
) -> None:
    frame = module.prepare(study).frame
    if "kind" in frame.columns:
        frame = frame.filter(pl.col("kind") == "contender")
    chosen = {name: wanted for name, wanted in (STARTS | {selector: value}).items() if name in picks(module, study)}
    expected, before = (
        sorted(frame.filter(**wanted)[column]) for wanted in (chosen, chosen | {selector: STARTS[selector]})
    )
    assert expected
    assert expected != before
    choose(opened, selector, value)
    script = "return [...document.querySelectorAll(arguments[0])].map(mark => mark.__data__.datum[arguments[1]])"
    marks = f"#plot-{module.NAME} {SYMBOLS}"
    until(opened, lambda: sorted(opened.execute_script(script, marks, column)) == pytest.approx(expected, rel=1e-5))


def picks(module: Any, study: measured.Measured) -> list[str]:
    return page.picks_of(document.to_spec(module.chart(module.prepare(study).frame), ""))


def test_every_selector_of_the_page_is_clicked_by_a_test(opened: Any) -> None:
    names = opened.execute_script("return [...document.querySelector('.picks').elements].map(one => one.name)")
    assert {name for name in names if name} == set(STARTS)


def test_a_choice_without_rows_says_so(opened: Any) -> None:
    opened.get_log("browser")
    choose(opened, "hidden", 256)
    until(opened, lambda: find(opened, "#figure-latency .empty").is_displayed())
    assert not find(opened, "#plot-latency").is_displayed()
    assert not find(opened, "#figure-bandwidth .empty").is_displayed()
    choose(opened, "hidden", 4096)
    until(opened, lambda: count(opened, f"#plot-latency {SYMBOLS}") > 0)
    assert not find(opened, "#figure-latency .empty").is_displayed()
    assert opened.get_log("browser") == []


def hovered(browser: Any, selector: str) -> tuple[dict[str, Any], str]:
    """The row and the tooltip of the mark that is uppermost where the first of ``selector`` lies."""
    script = """
        const first = document.querySelector(arguments[0]);
        first.scrollIntoView({block: 'center'});
        const { x, y, width, height } = first.getBoundingClientRect();
        const [left, top] = [x + width / 2, y + height / 2];
        const mark = document.elementFromPoint(left, top);
        for (const name of ['pointermove', 'mousemove'])
          mark.dispatchEvent(new PointerEvent(name, { bubbles: true, clientX: left, clientY: top }));
        return mark.__data__.datum;
    """
    datum = browser.execute_script(script, selector)
    until(browser, lambda: "reproduce" in find(browser, "#vg-tooltip-element").text)
    return datum, str(find(browser, "#vg-tooltip-element").text)


def test_hovering_shows_the_command_and_clicking_keeps_it(opened: Any) -> None:
    from selenium.webdriver import ActionChains

    mark = find(opened, BANDWIDTH_MARKS)
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(opened).move_to_element(mark).perform()
    until(opened, lambda: "normbench bench" in find(opened, "#vg-tooltip-element").text)
    shown = find(opened, "#vg-tooltip-element").text
    assert all(word in shown for word in ("GB/s", "samples", "verdict", "clocks", "variant", "--hidden"))
    ActionChains(opened).click().perform()
    until(opened, lambda: "normbench bench" in find(opened, "#figure-bandwidth .pinned").text)


@pytest.mark.parametrize("module", [speedup, roofline, latency, error, cost], ids=lambda module: module.NAME)
def test_a_tooltip_says_what_the_archive_says(opened: Any, study: measured.Measured, module: Any) -> None:
    datum, shown = hovered(opened, f"#plot-{module.NAME} {SYMBOLS}")
    assert datum["contender"] in shown
    assert datum["command"] in shown
    if "time_us_p50" in datum:
        table = study.cases if module is cost else study.showdown
        row = table.filter(command=datum["command"], contender=datum["contender"])
        if module is cost:
            row = row.filter(variant=datum["variant"])
        assert row.height == 1
        assert row["samples"][0] in shown
        assert datum["time_us_p50"] == pytest.approx(row["time_us_p50"][0], rel=1e-5)


def test_a_sample_can_be_traced_too(opened: Any, study: measured.Measured) -> None:
    ticks = "#plot-samples .mark-rect.role-mark path"
    drawn = samples.prepare(study).frame.filter(op="layernorm", dtype="bf16", regime="stream", hidden=4096)
    assert count(opened, ticks) == drawn["deviations"].list.len().sum()
    _, shown = hovered(opened, ticks)
    assert "normbench bench" in shown


def test_a_compressed_file_is_handed_out_unpacked(opened: Any, study: measured.Measured, tmp_path: Path) -> None:
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    link = find(opened, f'a[download="{STUDY.device}-showdown.csv.gz"]')
    packed = base64.b64decode(link.get_attribute("href").split(",")[1])
    assert link.text == f"{STUDY.device}-showdown.csv"
    opened.execute_script("arguments[0].click()", link)
    saved = tmp_path / f"{STUDY.device}-showdown.csv"
    until(opened, lambda: saved.exists() and saved.stat().st_size > 0)
    assert saved.read_bytes() == gzip.decompress(packed)


def test_a_keyboard_reaches_and_moves_the_selectors(opened: Any, study: measured.Measured) -> None:
    from selenium.webdriver import ActionChains, Keys

    find(opened, "nav a").send_keys("")
    reached = []
    for _ in range(40):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        reached.append(opened.execute_script("return document.activeElement.name || document.activeElement.localName"))
    assert set(STARTS) <= set(reached)
    assert "summary" in reached  # the menu of a chart and the table behind it
    find(opened, '.picks input[name="op"][value="layernorm"]').send_keys(Keys.ARROW_RIGHT)
    expected = sorted(rows(study, "rmsnorm", "bf16")["gbps"])
    until(opened, lambda: drawn_gbps(opened) == pytest.approx(expected, rel=1e-5))


def test_every_picture_has_a_text_and_a_table(opened: Any) -> None:
    script = (
        "return [...document.querySelectorAll('figure[data-chart]')].map(figure => ["
        "figure.dataset.chart, figure.querySelector('[role=graphics-document]')?.getAttribute('aria-label') ?? '',"
        "figure.querySelector('details.rows') !== null])"
    )
    for name, label, table in opened.execute_script(script):
        assert len(label) > 40, name
        assert table, name


def test_the_policy_refuses_a_script_that_is_not_the_pages(opened: Any) -> None:
    opened.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert opened.execute_script("return window.ran") is None
    assert "Content Security Policy" in opened.get_log("browser")[0]["message"]


def test_the_data_behind_a_chart_are_those_it_draws(opened: Any, study: measured.Measured) -> None:
    details = find(opened, "#figure-error details.rows")
    opened.execute_script("arguments[0].open = true", details)
    until(opened, lambda: count(opened, "#figure-error details.rows tbody tr") > 0)
    expected = error.prepare(study).frame.filter(op="layernorm", dtype="bf16", family=kit.ALL).height
    assert count(opened, "#figure-error details.rows tbody tr") == expected


def test_charts_are_offered_as_svg_and_png(opened: Any) -> None:
    links = opened.execute_script(
        "return [...document.querySelectorAll('#plot-bandwidth .vega-actions a')].map(link => link.download)"
    )
    assert links == ["bandwidth.svg", "bandwidth.png"]


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_sticks_out_sideways(browser: Any, path: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(path.as_uri())
        until(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_family_of_inputs_opens_and_closes(opened: Any, study: measured.Measured) -> None:
    from selenium.webdriver.support.select import Select

    frame = correctness.prepare(study).frame.filter(op="layernorm", dtype="bf16")
    cells, chosen = "#plot-correctness .mark-rect.role-mark path", Select(find(opened, '.picks select[name="family"]'))
    heights = []
    for family in (correctness.family("K2.1"), kit.ALL):
        chosen.select_by_value(family)
        until(opened, lambda family=family: count(opened, cells) == frame.filter(family=family).height)
        heights.append(find(opened, "#plot-correctness svg").size["height"])
    assert heights[0] != heights[1]


def test_without_scripts_there_are_tables_and_no_empty_charts(browser: Any, path: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path.as_uri())
        shown = {
            name: find(browser, name).is_displayed()
            for name in ("noscript p", ".answers", "#figure-bandwidth", ".picks")
        }
        find(browser, "details.sheet summary").click()
        opened_table = find(browser, "details.sheet table").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert shown == {"noscript p": True, ".answers": True, "#figure-bandwidth": False, ".picks": False}
    assert opened_table


def test_paper_shows_every_folded_table(browser: Any, path: Path) -> None:
    browser.get(path.as_uri())
    until(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn"))
    visible = "return document.querySelector('details.sheet table').checkVisibility()"
    assert not browser.execute_script(visible)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        until(browser, lambda: browser.execute_script(visible))
        assert not find(browser, ".picks").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The index of two devices and the page that compares them."""
    one = replace(STUDY, dtypes=("bf16",))
    other = replace(one, device="other-gpu-000002", gpu_name="Other GPU (invented)", scale=0.5)
    tables = {name: pl.concat([frame, other.tables()[name]]) for name, frame in one.tables().items()}
    archive = measured.Archive(**tables, machines=(one.machine(), other.machine()))
    left, right = history.runs(archive)
    folder = tmp_path_factory.mktemp("compared")
    document.write(index.build(archive), folder / "index.html")
    versus.write(left, right, compare.compare(left, right), folder / "compare.html")
    return [folder / "index.html", folder / "compare.html"]


@pytest.mark.parametrize("width", [390, 1440])
def test_comparisons_fit_and_the_console_is_silent(browser: Any, compared: list[Path], width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    try:
        for page_of_two in compared:
            browser.get(page_of_two.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_follow_light_and_dark(browser: Any, path: Path, scheme: str) -> None:
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    try:
        browser.get(path.as_uri())
        until(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn"))
        script = (
            "const of = (element, name) => getComputedStyle(element)[name].match(/[0-9]+/g).slice(0, 3).map(Number);"
            "const axis = document.querySelector('#plot-bandwidth .role-axis-label text');"
            "return [of(document.body, 'backgroundColor'), of(axis, 'fill')]"
        )
        ground, ink = browser.execute_script(script)
        assert (sum(ink) > sum(ground)) == (scheme == "dark")
        assert abs(sum(ink) - sum(ground)) > 450
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_index_leads_to_the_device(browser: Any, path: Path) -> None:
    browser.get((path.parent / "index.html").as_uri())
    find(browser, f'a[href="{STUDY.device}.html"]').click()
    until(browser, lambda: browser.current_url == path.as_uri())
    assert find(browser, "h1").text == STUDY.gpu_name


ROOT = Path(__file__).resolve().parents[1]
FIRST_MS = 2000


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, measured.Archive]:
    """The page of the archived device with the most rows, and the archive it was built from."""
    folder = tmp_path_factory.mktemp("published")
    arguments = ["--results", folder / "none", "--archive", ROOT / "reports" / "data", "--out", folder / "tables"]
    assert cli.main(["collect", *map(str, arguments)]) == 0
    archive = measured.load(folder / "tables")
    device = archive.checks["device"].value_counts(sort=True)["device"][0]
    out = folder / f"{device}.html"
    document.write(page.build(measured.measured(archive, device)), out)
    return out, archive.of(device)


def test_a_published_page_is_small_silent_and_soon_there(
    browser: Any, published: tuple[Path, measured.Archive]
) -> None:
    path, _ = published
    assert path.stat().st_size <= page.MOST_BYTES
    browser.get_log("browser")
    browser.get(path.as_uri())
    until(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn"))
    assert float(browser.execute_script("return document.documentElement.dataset.first")) < FIRST_MS
    script = """
        return [...document.querySelectorAll('.picks [name]')].flatMap(
          (one) => (one.options ? [...one.options] : [one]).map((choice) => [one.name, choice.value]))
    """
    for name, value in browser.execute_script(script):
        choose(browser, name, value)
    until(browser, lambda: browser.execute_script("return document.documentElement.dataset.settled === 'yes'"))
    assert browser.get_log("browser") == []


def test_headline_numbers_are_those_of_the_archive(browser: Any, published: tuple[Path, measured.Archive]) -> None:
    """Recomputed from the stored times alone: bytes by hand, medians as they are, no metric of the package."""
    path, archive = published
    browser.get(path.as_uri())
    script = """
        return [...document.querySelectorAll('#answer .answers tbody tr')].map(
          (line) => [...line.cells].map((cell) => cell.textContent))
    """
    lines = browser.execute_script(script)
    races: dict[str, dict[str, dict[str, Any]]] = {}
    for row in archive.showdown.filter(regime="stream").sort("run").iter_rows(named=True):
        race = races.setdefault(row["point"], {})
        if any(one["run"] != row["run"] for one in race.values()):
            race.clear()  # a point is taken whole, from the newest run that has it
        race[row["contender"]] = row
    assert lines
    bad = archive.checks.filter(pl.col("status").is_in(["wrong", "no_work"]), pl.col("regime") != "wide")
    for op, dtype, hidden, marked, gbps, _, eager, *_ in lines:
        use = marked.removesuffix(" †")
        assert (use != marked) == bool(bad.filter(contender=use, op=op, dtype=dtype).height)
        sizes = [int(size) for size in re.findall(r"[0-9]+", hidden)]
        low, high = sizes[0], sizes[-1]
        chosen = [race for race in races.values() if among(race, op, dtype, low, high, "unaligned" in hidden)]
        assert spanned([gbps_by_hand(race[use]) for race in chosen], "{:,.0f}") == gbps
        faster = [race["torch_eager"]["time_us_p50"] / race[use]["time_us_p50"] for race in chosen]
        assert spanned(faster, "{:.2f}") + "×" == eager


def among(race: dict[str, dict[str, Any]], op: str, dtype: str, low: int, high: int, unaligned: bool) -> bool:
    row = next(iter(race.values()))
    odd = row["hidden"] * (4 if dtype == "fp32" else 2) % 16 != 0
    return (row["op"], row["dtype"]) == (op, dtype) and low <= row["hidden"] <= high and odd == unaligned


def gbps_by_hand(row: dict[str, Any]) -> float:
    """x read and y written, gamma and, for LayerNorm, beta read, each once."""
    parameters = 2 if row["op"] == "layernorm" else 1
    elements = (2 * row["rows"] + parameters) * row["hidden"]
    return elements * (4 if row["dtype"] == "fp32" else 2) / row["time_us_p50"] / 1e3


def spanned(values: list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}–{high}"
