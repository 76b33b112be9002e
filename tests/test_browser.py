"""R2: the pages in headless Chromium with the network off: all charts draw, all controls work, nothing is fetched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import report_fixture as fixture
from normbench import charts, compare, document, history, index, measured, page, versus
from normbench.charts import bandwidth, correctness

pytestmark = pytest.mark.browser

STUDY = fixture.Fixture(hidden=(256, 1024, 2049, 4096), rename={"cta_row": "norm<half,8>", "naive": "a & </script>"})
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
    return frame.filter((pl.col("kind") == "contender") & (pl.col("op") == op) & (pl.col("dtype") == dtype))


def choose(browser: Any, name: str, value: str) -> None:
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

    def drawn() -> list[float]:
        script = "return [...document.querySelectorAll(arguments[0])].map(mark => mark.__data__.datum.gbps)"
        return sorted(opened.execute_script(script, BANDWIDTH_MARKS))

    until(opened, lambda: drawn() == pytest.approx(bandwidths, rel=1e-5))


def test_a_choice_without_rows_says_so(opened: Any) -> None:
    from selenium.webdriver.support.select import Select

    Select(find(opened, '.picks select[name="hidden"]')).select_by_value("256")
    until(opened, lambda: find(opened, "#figure-latency .empty").is_displayed())
    assert not find(opened, "#figure-bandwidth .empty").is_displayed()


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


def test_the_data_behind_a_chart_are_those_it_draws(opened: Any, study: measured.Measured) -> None:
    details = find(opened, "#figure-error details.rows")
    opened.execute_script("arguments[0].open = true", details)
    until(opened, lambda: count(opened, "#figure-error details.rows tbody tr") > 0)
    expected = charts.error.prepare(study).frame.filter(op="layernorm", dtype="bf16").height
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
    for family in (correctness.family("K2.1"), correctness.ALL):
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
    other = replace(STUDY, device="other-gpu-000002", gpu_name="Other GPU (invented)", scale=0.5)
    tables = {name: pl.concat([frame, other.tables()[name]]) for name, frame in STUDY.tables().items()}
    archive = measured.Archive(**tables, machines=(STUDY.machine(), other.machine()))
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
