"""The page, as a browser shows it: a real one, which is told to click, to type and to look."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
import toys
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from torch import nn

from fx_instrument import FileAccessError, Report, RowFacts, compare, instrument, merge
from fx_instrument.page_data import MOST_BINS, histogram_of, report_data
from fx_instrument.recording import NodeRow, Recording, VariantInfo, every_run

ROOT = Path(__file__).parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip


class Browser:
    """A browser, and what the tests ask of it."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.num_pages = 0

    def open(self, shown: Any) -> None:
        """Write the page of a report or of a comparison, and open it."""
        self.num_pages += 1
        path = self.folder / f"page{self.num_pages}.html"
        shown.to_html(path)
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the text of all elements, whether they are in sight or not."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map(e => e.textContent.toWellFormed())"
        )
        return self.run(script, selector)

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def names(self) -> list[str]:
        """Return the names of the rows that are in the table now."""
        return self.texts("tr[data-row] td.name")

    def boxes(self, chart: str = ".icicles .chart") -> list[str]:
        """Return the names of the boxes of a chart."""
        script = (
            "return [...document.querySelector(arguments[0]).querySelectorAll('.box')]"
            ".map(e => e.dataset.name)"
        )
        return self.run(script, chart)

    def box(self, name: str, chart: str = ".icicles") -> WebElement:
        return self.one(f'{chart} .box[data-name="{name}"]')

    def row(self, name: str) -> WebElement:
        found = self.run(
            "return [...document.querySelectorAll('tr[data-row]')]"
            ".find(e => e.querySelector('.name').textContent === arguments[0])",
            name,
        )
        assert found is not None, f"no row {name!r} among {self.names()}"
        return found

    def select(self, name: str) -> None:
        self.row(name).find_element(By.CSS_SELECTOR, ".name").click()

    def head(self, key: str) -> WebElement:
        return self.one(f'.grid th[data-key="{key}"]')

    def sort(self, key: str) -> None:
        self.head(key).find_element(By.TAG_NAME, "button").click()

    def counts(self) -> list[list[int]]:
        """Return what each bar of each histogram of the selected row says."""
        script = (
            "return [...document.querySelectorAll('.detail .histogram')].map(f =>"
            "[...f.querySelectorAll('.bar')].map(b => Number(b.dataset.count)))"
        )
        return self.run(script)

    def fact(self, key: str) -> str:
        return self.one(f'.detail dd[data-key="{key}"]').get_attribute("textContent") or ""

    def wait(self, script: str, *args: Any) -> None:
        WebDriverWait(self.driver, 10).until(lambda _: self.run(script, *args))

    def emulate(self, **features: str) -> None:
        """Set what media queries see, as in ``scheme="dark"`` and ``media="print"``."""
        scheme = {"name": "prefers-color-scheme", "value": features.get("scheme", "")}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"media": features.get("media", ""), "features": [scheme]},
        )

    def resize(self, width: int, height: int = 900) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def events(self, method: str) -> list[dict[str, Any]]:
        """Return what the browser told of its network, of one kind, since this was last asked."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [message["params"] for message in messages if message["method"] == method]

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver_path = shutil.which("chromedriver")
    if found is None or driver_path is None:
        lacks = "chromedriver" if found else f"any of {', '.join(BROWSERS)}"
        text = f"the page is tested in a browser, and PATH lacks {lacks}: " + (
            "apt-get install chromium chromium-driver"
        )
        if found is None and not os.environ.get("CI"):
            pytest.skip(text)
        pytest.fail(text)
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver, tmp_path_factory.mktemp("pages"))
    finally:
        driver.quit()


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.emulate(scheme="light")
    started.resize(1280)
    yield started
    assert started.errors() == []


def report_of(
    times_ns: Any,
    names: Any = None,
    *,
    module: str = "",
    facts: tuple[RowFacts, ...] = (),
    **fields: Any,
) -> Report:
    """Return a report of rows that took these times, shape ``(num_runs, num_rows)``."""
    times_ns = np.array(times_ns, np.int64)
    names = names or [f"row_{place}" for place in range(times_ns.shape[1])]
    rows = tuple(
        name if isinstance(name, NodeRow) else NodeRow(name, "call_function", "f", module, True)
        for name in names
    )
    readings_ns = 10**15 + np.pad(times_ns, ((0, 0), (1, 0))).cumsum(axis=1)
    return Report(
        Recording(
            rows,
            readings_ns,
            every_run(*times_ns.shape),
            facts=facts,
            **{"clock_ns": 1.0, **fields},
        )
    )


class Layers(nn.Module):
    """Two layers of two steps each, which take 10, 20, 30 and 40 us."""

    def __init__(self) -> None:
        super().__init__()
        self.first = toys.Spender(10_000, 20_000)
        self.second = toys.Spender(30_000, 40_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def timed(model: nn.Module, *, num_runs: int = 3, **options: Any) -> Report:
    m = instrument(model.eval(), clock=toys.still_clock, **options)
    for _ in range(num_runs):
        m(torch.ones(2))
    return m.report()


def framed() -> Report:
    double = closed_toys.Double(1_000)
    return timed(closed_toys.Frame(double, nn.Sequential(closed_toys.Double(500))))


def of_methods() -> Report:
    m = instrument(closed_toys.Encoder(), clock=toys.still_clock)
    for _ in range(2):
        m.encode(torch.ones(2))
    return m.report()


def test_the_page_shows_the_head_and_asks_the_network_for_nothing(browser: Browser) -> None:
    report = timed(Layers())
    browser.open(report)
    assert browser.one("h1").text == "Layers"
    assert browser.texts("header p") == report.head.split("\n")
    addresses = [e["request"]["url"] for e in browser.events("Network.requestWillBeSent")]
    assert any(address.startswith("file:") for address in addresses)
    assert [a for a in addresses if not a.startswith(("file:", "data:"))] == []


def test_the_policy_of_the_page_forbids_what_is_not_its_own(browser: Browser) -> None:
    browser.open(timed(Layers()))
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s);"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x.png';"
        "document.body.append(i)"
    )
    browser.wait("return document.images[0].complete")
    assert browser.run("return window.ran") is None
    (failed,) = browser.events("Network.loadingFailed")
    assert failed["blockedReason"] == "csp"
    messages = browser.errors()
    assert messages
    assert all("Content Security Policy" in message for message in messages)


def test_the_table_holds_what_the_report_holds(browser: Browser) -> None:
    report = timed(Layers())
    browser.open(report)
    assert browser.names() == [row.name for row in report.rows]
    cells = browser.texts("tr[data-row='3'] td")
    heads = browser.texts(".grid th")
    shown = dict(zip(heads, cells, strict=True))
    assert shown["Op"] == "spend_2"
    assert shown["Calls"] == "3"
    assert shown["Mean (us)"] == "30.000"
    assert shown["%"] == "30"
    assert shown["Class"] == "Spender"
    assert shown["Source"].startswith("toys.py:")


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_a_header_sorts_both_ways_and_then_not(browser: Browser, way: str) -> None:
    browser.open(report_of([[30, 10, 20]]))

    def press() -> None:
        if way == "click":
            browser.sort("mean")
        else:
            browser.head("mean").find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)

    press()
    assert browser.names() == ["row_0", "row_2", "row_1"]
    assert browser.head("mean").get_attribute("aria-sort") == "descending"
    # The focus stays on the header, for whoever presses it again.
    assert browser.run("return document.activeElement.closest('th').dataset.key") == "mean"
    press()
    assert browser.names() == ["row_1", "row_2", "row_0"]
    assert browser.head("mean").get_attribute("aria-sort") == "ascending"
    press()
    assert browser.names() == ["row_0", "row_1", "row_2"]
    assert browser.all("[aria-sort]") == []


def test_what_is_not_known_is_last_in_any_order_and_shown_as_unknown(browser: Browser) -> None:
    facts = (RowFacts(), RowFacts(flops=5), RowFacts(flops=7, has_all_flops=False))
    browser.open(report_of([[1, 2, 3]], facts=facts))
    browser.sort("flops")
    assert browser.names() == ["row_2", "row_1", "row_0"]
    place = browser.texts(".grid th").index("FLOP \N{BLACK DOWN-POINTING TRIANGLE}")
    cells = [browser.texts(f"tr[data-row='{row}'] td")[place] for row in range(3)]
    assert cells == ["unknown", "5", ">= 7"]
    browser.sort("flops")
    assert browser.names() == ["row_1", "row_2", "row_0"]


def test_rows_of_frames_are_sorted_within_them(browser: Browser) -> None:
    report = framed()
    browser.open(report)
    browser.sort("mean")
    values = [row.mean_ns for row in report.rows]
    assert browser.names() == [report.rows[place].name for place in report.ordered(values)]
    browser.one(".as-tree").click()
    flat = sorted(range(len(values)), key=lambda place: -values[place])
    assert browser.names() == [report.rows[place].name for place in flat]


def test_the_search_takes_all_words_from_all_texts(browser: Browser) -> None:
    browser.open(timed(Layers()))
    search = browser.one(".search")
    search.send_keys("SPEND second")
    assert browser.names() == ["spend_2", "spend_3"]
    assert browser.one(".count").text == "2 of 6 rows"
    search.clear()
    search.send_keys("nothing like it")
    assert browser.names() == []
    assert browser.one(".count").text == "0 of 6 rows"
    search.clear()
    search.send_keys(Keys.SPACE)
    assert len(browser.names()) == 6


def test_columns_are_chosen(browser: Browser) -> None:
    browser.open(timed(Layers()))
    browser.one(".columns summary").click()
    browser.one('.choices input[value="min"]').click()
    assert "Min (us)" in browser.texts(".grid th")
    browser.one('.choices input[value="mean"]').click()
    assert "Mean (us)" not in browser.texts(".grid th")
    assert "FLOP (unknown)" in [text.strip() for text in browser.texts(".choices label")]


def test_a_click_zooms_in_and_one_above_zooms_out(browser: Browser) -> None:
    browser.open(timed(Layers()))
    whole = ["Layers", "first", "second", "spend", "spend_1", "spend_2", "spend_3"]
    assert browser.boxes() == whole
    widths = [browser.box(name).size["width"] for name in ("first", "second")]
    assert widths[1] / widths[0] == pytest.approx(7 / 3, abs=0.05)
    browser.box("second").click()
    assert browser.boxes() == ["Layers", "second", "spend_2", "spend_3"]
    assert browser.box("second").size["width"] == browser.box("Layers").size["width"]
    browser.box("Layers").click()
    assert browser.boxes() == whole
    browser.box("first").click()
    browser.one(".icicles .zoom-out").click()
    assert browser.boxes() == whole
    assert not browser.one(".icicles .zoom-out").is_enabled()


def test_the_icicle_is_used_by_keyboard(browser: Browser) -> None:
    browser.open(timed(Layers()))
    chart = browser.one(".icicles .chart")

    def current() -> str:
        script = (
            "const c = document.querySelector('.icicles .chart');"
            "return document.getElementById(c.getAttribute('aria-activedescendant')).dataset.name"
        )
        return browser.run(script)

    chart.send_keys(Keys.ARROW_DOWN)
    assert current() == "first"
    chart.send_keys(Keys.ARROW_RIGHT)
    assert current() == "second"
    chart.send_keys(Keys.ENTER)
    assert browser.boxes() == ["Layers", "second", "spend_2", "spend_3"]
    chart.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ENTER)
    assert current() == "spend_3"
    assert browser.one(".detail h4").text == "spend_3"
    chart.send_keys(Keys.ARROW_UP)
    assert current() == "second"
    chart.send_keys(Keys.ESCAPE)
    assert len(browser.boxes()) == 7
    assert browser.run("return getComputedStyle(arguments[0]).outlineStyle", chart) != "none"


def test_charts_are_trees_to_a_screen_reader(browser: Browser) -> None:
    browser.open(timed(Layers()))
    assert browser.one(".icicles .chart").get_attribute("role") == "tree"
    box = browser.box("second")
    assert box.get_attribute("role") == "treeitem"
    assert box.get_attribute("aria-level") == "2"
    assert box.get_attribute("aria-expanded") == "true"
    label = box.get_attribute("aria-label") or ""
    assert "70.000 us a run, 70.00 % of a run" in label


def test_a_selected_row_shows_its_runs(browser: Browser) -> None:
    times_ns = np.full((100, 2), 1000)
    times_ns[:, 1] = np.arange(100) * 10 + 50
    times_ns[7, 1] = 10**6
    report = report_of(times_ns)
    browser.open(report)
    browser.select("row_1")
    (counts,) = browser.counts()
    assert sum(counts) == 100
    assert counts[-1] == 1  # far above the others
    histogram = histogram_of(report, report.rows[1])
    assert histogram is not None
    assert counts == [*histogram["counts"], 1]
    edges = histogram["low"] + histogram["width"] * np.arange(len(histogram["counts"]) + 1)
    found, _ = np.histogram(np.delete(times_ns[:, 1], 7), edges)
    assert histogram["counts"] == found.tolist()
    marks = browser.texts(".detail .marks li")
    assert [mark.split()[0] for mark in marks] == ["mean", "median", "p95"]
    assert marks[1] == "median 555.0 ns"
    assert "1 far above, up to 1.0000 ms" in browser.one(".detail figcaption").text


def test_a_row_is_selected_by_keyboard(browser: Browser) -> None:
    browser.open(report_of([[5] * 200]))
    table = browser.one(".grid")
    table.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.one(".detail h4").text == "row_1"
    table.send_keys(Keys.END)
    assert browser.one(".detail h4").text == "row_199"
    active = browser.run("return document.activeElement.getAttribute('aria-activedescendant')")
    row = browser.one(f"#{active}")
    assert row.get_attribute("aria-selected") == "true"
    assert row.get_attribute("aria-rowindex") == "201"
    inside = "const r = arguments[0].getBoundingClientRect();" + (
        "const s = arguments[0].closest('.scroller').getBoundingClientRect();"
        "return r.top >= s.top && r.bottom <= s.bottom + 1"
    )
    assert browser.run(inside, row)
    table.send_keys(Keys.HOME)
    assert browser.one(".detail h4").text == "row_0"


def test_a_row_that_takes_no_time_or_never_ran_says_so(browser: Browser) -> None:
    has_run = np.ones((2, 2), np.bool_)
    has_run[:, 1] = False
    base = report_of([[5, 0], [5, 0]]).recording
    rows = (NodeRow("x", "placeholder", "x", "", False), *base.rows)
    has_run = np.pad(has_run, ((0, 0), (1, 0)), constant_values=True)
    browser.open(Report(Recording(rows, base.readings_ns, has_run)))
    browser.select("x")
    assert browser.counts() == []
    assert "takes no time of its own" in browser.one(".detail").text
    browser.select("row_1")
    assert browser.counts() == []
    assert "part of no run" in browser.one(".detail").text
    assert browser.fact("mean") == "unknown"


def test_facts_of_a_row_are_shown_and_the_unknown_named(browser: Browser) -> None:
    facts = RowFacts(
        class_name="net.Block",
        file="/home/net.py",
        line=12,
        shapes=((2, 3),),
        devices=("cpu",),
        flops=1234567,
        has_all_flops=False,
    )
    browser.open(report_of([[5]], module="block", facts=(facts,)))
    browser.select("row_0")
    assert browser.fact("class") == "net.Block"
    assert browser.fact("place") == "/home/net.py:12"
    assert browser.fact("shape") == "2x3"
    assert browser.fact("device") == "cpu"
    assert browser.fact("flops") == ">= 1,234,567"
    unknown = browser.one(".detail p.unknown").text
    assert unknown.startswith("unknown: ")
    assert "Parameters" in unknown
    assert "FLOP," not in unknown


def test_a_selection_is_the_same_everywhere(browser: Browser) -> None:
    browser.open(timed(Layers()))
    browser.select("spend_1")
    for chart in (".icicles", ".timeline"):
        assert browser.box("spend_1", chart).get_attribute("aria-selected") == "true"
    browser.box("spend_2", ".timeline").click()
    assert browser.one(".detail h4").text == "spend_2"
    assert browser.row("spend_2").get_attribute("aria-selected") == "true"
    assert browser.row("spend_1").get_attribute("aria-selected") == "false"
    assert browser.box("spend_1").get_attribute("aria-selected") is None


def test_the_timeline_is_that_of_the_median_run(browser: Browser) -> None:
    browser.open(report_of([[10, 90], [10, 40], [10, 20]]))
    assert "Run 1 of 0 to 2, the median by its time: 50.0 ns" in browser.one(".timeline .hint").text
    assert browser.boxes(".timeline .chart") == ["run 1", "row_0", "row_1"]
    box = browser.box("row_1", ".timeline")
    webdriver.ActionChains(browser.driver).move_to_element(box).perform()
    assert browser.one("#tip").text == "row_1 (call_function)\nbegan at 10.0 ns\ntook 40.0 ns"


def test_calls_whose_start_is_not_known_say_so(browser: Browser) -> None:
    report = framed()
    recording = report.recording
    inner = tuple(row._replace(starts_ns=np.empty(0, np.int64)) for row in recording.inner)
    browser.open(Report(Recording(**{**vars(recording), "inner": inner})))
    assert "of frames began is not known" in browser.one(".timeline .hint").text
    box = browser.one(".timeline .box.unknown-start")
    assert "when it began is not known" in (box.get_attribute("aria-label") or "")


def test_a_sketch_shows_its_bins_and_no_timeline(browser: Browser) -> None:
    report = timed(toys.Spender(100, 5_000), num_runs=50, keep="sketch")
    browser.open(report)
    browser.select("spend_1")
    assert browser.counts() == [[50]]
    assert "Single runs were not kept" in browser.one(".detail .kept").text
    assert browser.fact("mean_interval") == "unknown"
    assert "Single runs were not kept" in browser.one(".timeline").text
    assert browser.all(".timeline .chart") == []


def test_bins_of_a_sketch_are_put_together_and_lose_no_run() -> None:
    m = instrument(toys.Spender(1), clock=toys.ticking_clock, keep="sketch")
    m(torch.ones(2))
    sketch = m.report().recording.sketch
    assert sketch is not None
    values_ns = np.concatenate(
        [np.zeros(3, np.int64), np.geomspace(1, 10**9, 500).astype(np.int64)]
    )
    sketch = type(sketch)(1)
    sketch.add_runs(values_ns[:, None])
    low, ratio, zeros, counts = sketch.bins_of(0, MOST_BINS)
    assert zeros == 3
    assert len(counts) <= MOST_BINS
    edges = low * ratio ** np.arange(len(counts) + 1)
    assert edges[0] <= 1 < edges[1]
    assert edges[-1] > 10**9
    found = [
        np.count_nonzero((values_ns >= first) & (values_ns < last))
        for first, last in itertools.pairwise(edges)
    ]
    # A value at an edge may be on either side of it.
    assert np.abs(np.cumsum(found) - np.cumsum(counts)).max() <= 2
    assert sum(counts) == 500


def test_of_the_newest_runs_it_says_so(browser: Browser) -> None:
    browser.open(timed(toys.Spender(10), num_runs=7, keep=3))
    browser.select("spend")
    assert browser.counts() == [[3]]
    assert browser.one(".detail .kept").text == "Only the newest 3 runs were kept."


def test_closed_frames_and_their_reasons(browser: Browser) -> None:
    report = framed()
    browser.open(report)
    cells = browser.texts(".closed tbody td")
    (closed,) = report.closed
    assert cells == [
        "the model (Frame)",
        closed.reason,
        f"{closed.file}:{closed.line}",
        closed.advice,
    ]
    frame = next(row for row in report.rows if row.rows)
    browser.select(frame.name)
    assert browser.fact("self") == f"{np.mean(frame.self_ns):.1f} ns"


def test_graphs_of_several_kinds_are_listed(browser: Browser) -> None:
    variants = (VariantInfo("", "training: True", 3, 2), VariantInfo("", "training: False", 3, 1))
    browser.open(report_of([[5]], variants=variants))
    assert browser.texts(".variants tbody td") == [
        "the model", "training: True", "3", "2", "the model", "training: False", "3", "1"
    ]  # fmt: skip


def test_code_has_its_time_beside_it(browser: Browser) -> None:
    browser.open(timed(Layers()))
    assert browser.all(".code") == []
    graph, source = browser.all(".code-part summary")
    graph.click()
    browser.wait("return document.querySelector('.code tbody .timed')")
    lines = [cells.split("\n") for cells in browser.texts(".code tbody .timed .text")]
    assert any("spend" in line[0] for line in lines)
    timed_cells = browser.texts(".code tbody .timed:nth-of-type(n) td:nth-child(2)")
    assert sum(map(float, timed_cells)) == 100
    source.click()
    browser.wait("return document.querySelectorAll('.code').length === 2")
    assert source.text == toys.__file__
    assert any("x = spend(x, duration_ns)" in text for text in browser.texts(".code .timed .text"))


def test_methods_have_a_part_each(browser: Browser) -> None:
    report = of_methods()
    browser.open(report)
    assert browser.texts(".part-name") == [f"{name}()" for name in report.methods]
    method = report.methods["encode"]
    assert browser.texts(".part-head p") == method.head.split("\n")
    assert browser.names() == [row.name for row in method.rows]
    browser.select(method.rows[0].name)
    assert sum(browser.counts()[0]) == 2


def test_chosen_rows_are_those_of_the_table(browser: Browser) -> None:
    browser.open(timed(Layers()).where(module="second"))
    assert browser.names() == ["spend_2", "spend_3"]
    assert "only where module='second'" in browser.one("header").text
    assert browser.boxes() == ["Layers", "second", "spend_2", "spend_3"]
    # The run is shown whole.
    assert "spend" in browser.boxes(".timeline .chart")
    browser.box("spend", ".timeline").click()
    assert browser.one(".detail").text == "Select a row to see its runs and its facts."


HOSTILE = (
    "</script><script>window.hurt = 1</script>",
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "<!--<script>",
    "]]>&lt;&amp;\"'`${window.hurt = 1}{{ 7 * 7 }}",
    "line\u2028break\x00\ud800 \N{PILE OF POO} \u202e",
    "constructor",
)


class Hostile(nn.Module):
    """A model whose modules are called like what would hurt."""

    def __init__(self) -> None:
        super().__init__()
        for name in HOSTILE:
            self.add_module(name.replace(".", "_"), nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self._modules.values():
            x = part(x) + 1
        return x


Hostile.__name__ = "<script>window.hurt = 1</script>"


def test_names_that_look_like_code_are_text(browser: Browser) -> None:
    m = instrument(Hostile(), clock=toys.ticking_clock)
    m(torch.ones(2))
    report = m.report()
    nodes = report.recording.rows
    named = [
        *HOSTILE,
        *(NodeRow(name, name, name, name.replace(".", "_"), True) for name in HOSTILE),
    ]
    facts = tuple(RowFacts(class_name=name, file=name, line=1) for name in (*HOSTILE, *HOSTILE))
    code = VariantInfo("", HOSTILE[0], 1, 1, "\n".join(HOSTILE), ((HOSTILE[0], "", 1),))
    made = report_of(
        [[9] * len(named)],
        named,
        facts=facts,
        variants=(code,),
        environment={"model": HOSTILE[0], "clock": HOSTILE[1]},
    )
    assert any("script" in row.target for row in nodes)
    for shown in (report, made, compare(report, report), compare(made, made)):
        browser.open(shown)
        browser.run(
            "for (const e of document.querySelectorAll('tr[data-row], summary')) e.click();"
            "for (const e of document.querySelectorAll('.box'))"
            "  e.dispatchEvent(new MouseEvent('mousemove', {bubbles: true}))"
        )
        browser.wait("return [...document.querySelectorAll('details')].every(e => e.open)")
        assert browser.run("return window.hurt") is None
        assert len(browser.all("script")) == 2
        assert browser.all("img") == []
    assert browser.one("h1").text == " and ".join([HOSTILE[0]])
    assert HOSTILE[0] in browser.names()


def pixels_of(png: bytes) -> tuple[int, int, bytes]:
    """Return the width, the height and the filtered bytes of the pixels of a PNG."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    place, size, packed = 8, (0, 0), b""
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        elif kind == b"IDAT":
            packed += body
        place += 12 + length
    return (*size, zlib.decompress(packed))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 400])
def test_a_screenshot_shows_something_and_nothing_is_too_wide(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    browser.emulate(scheme=scheme)
    browser.resize(width)
    browser.open(framed())
    browser.run("document.querySelector('tr[data-row]').click()")
    browser.wait("return document.querySelector('.detail .histogram')")
    path = tmp_path / "page.png"
    assert browser.driver.save_screenshot(str(path))
    shown_width, _, pixels = pixels_of(path.read_bytes())
    assert shown_width == width
    assert len({*pixels}) > 50
    assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.one(".columns summary").click()
    for choice in browser.run(
        "return [...document.querySelectorAll('.choices, .choices label')]"
        ".map((element) => [element.getBoundingClientRect().left,"
        " element.getBoundingClientRect().right])"
    ):
        assert 0 <= choice[0] < choice[1] <= width
    assert browser.run("return document.documentElement.scrollWidth") <= width
    hidden = (
        "const box = document.querySelector('.choices'); return box.scrollWidth > box.clientWidth"
    )
    assert not browser.run(hidden)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert light > 200 if scheme == "light" else light < 60


# WCAG 2.2, success criterion 1.4.3, with its relative luminance.
CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = (rgb) => {
  const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest(":disabled, svg, option")) continue;
  const [one, other] = [parse(getComputedStyle(element).color), behind(element)].map(luminance);
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) found.push(`${element.tagName}.${element.className}: ${ratio.toFixed(2)}`);
}
return [...new Set(found)];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser: Browser, scheme: str) -> None:
    browser.emulate(scheme=scheme)
    browser.open(framed())
    browser.select(browser.names()[0])
    browser.sort("mean")
    for summary in browser.all("summary"):
        summary.click()
    assert browser.run(CONTRASTS) == []
    before = report_of([[100, 100, 50], [101, 101, 51], [102, 99, 49]] * 10)
    after = report_of([[500, 20, 50], [501, 21, 51], [502, 19, 49]] * 10, environment={})
    browser.open(compare(before, after))
    browser.select("row_1")
    assert browser.run(CONTRASTS) == []


def test_a_print_is_light_and_holds_rows_that_were_not_in_sight(browser: Browser) -> None:
    browser.emulate(scheme="dark")
    browser.open(report_of([[5] * 400]))
    before = len(browser.names())
    browser.emulate(scheme="dark", media="print")
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert before < 100
    assert len(browser.names()) == 300
    assert "100 more rows are in the page, not on paper." in browser.texts(".grid tbody td")
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    browser.emulate(scheme="dark")
    browser.wait("return document.querySelectorAll('tr[data-row]').length === arguments[0]", before)
    pdf = base64.b64decode(browser.driver.print_page())
    assert pdf.startswith(b"%PDF")


def test_many_rows_are_not_all_in_the_document(browser: Browser) -> None:
    num_rows = 10_000
    times_ns = np.arange(1, num_rows + 1)[None] + np.array([[0], [5], [3]])
    browser.open(report_of(times_ns))
    assert browser.one(".count").text == "10,000 rows"
    assert 10 < len(browser.names()) < 100
    for chart in (".icicles .chart", ".timeline .chart"):
        assert 1 < len(browser.boxes(chart)) < 1000
    assert browser.run("return document.querySelectorAll('*').length") < 5000
    browser.sort("mean")
    assert browser.names()[0] == "row_9999"
    browser.run("document.querySelector('.scroller').scrollTop = 1e9")
    browser.wait("return [...document.querySelectorAll('td.name')].at(-1).textContent === 'row_0'")
    assert len(browser.names()) < 100
    browser.one(".search").send_keys("row_777")
    assert browser.one(".count").text == "11 of 10,000 rows"


def test_narrow_rows_are_put_together_and_a_click_takes_them_apart(browser: Browser) -> None:
    browser.open(report_of([[5] * 3000]))
    bundle = browser.one(".icicles .box.bundle")
    number = int(bundle.get_attribute("data-name") or "")
    assert number > 1
    bundle.click()
    browser.wait("return document.querySelectorAll('.icicles .box')[1].dataset.name", number)
    assert browser.boxes()[:3] == ["model", str(number), "row_0"]
    browser.one(".icicles .chart").send_keys(Keys.ESCAPE)
    assert browser.boxes()[1] == str(number)
    assert "row_0" not in browser.boxes()


def comparison() -> tuple[Report, Report]:
    before = report_of(
        [[100, 100, 50, 7], [101, 101, 51, 7], [102, 99, 49, 7]] * 10, ["a", "b", "c", "gone"]
    )
    after = report_of(
        [[150, 20, 50, 9], [151, 21, 51, 9], [152, 19, 49, 9]] * 10,
        ["a", "b", "c", NodeRow("new", "call_method", "g", "m", True)],
    )
    return before, after


def test_a_comparison_shows_rows_verdicts_and_both_trees(browser: Browser) -> None:
    before, after = comparison()
    compared = compare(before, after)
    browser.open(compared)
    assert browser.texts("header > p") == compared.head.split("\n")
    assert [*map(str.strip, browser.texts(".heads h2"))] == ["Before", "After"]
    verdicts = dict(
        zip(browser.names(), browser.texts("tr[data-row] td:nth-child(2)"), strict=True)
    )
    assert verdicts == {
        "a": "\N{BLACK UP-POINTING TRIANGLE} slower",
        "b": "\N{BLACK DOWN-POINTING TRIANGLE} faster",
        "c": "within noise",
        "gone": "only before",
        "new": "only after",
    }
    first, second = (
        {
            box.get_attribute("data-name"): box
            for box in chart.find_elements(By.CSS_SELECTOR, ".box")
        }
        for chart in browser.all(".icicles .chart")
    )
    # One scale: what takes as long is as wide.
    assert first["c"].size["width"] == second["c"].size["width"]
    assert first["model"].size["width"] / second["model"].size["width"] == pytest.approx(
        258 / 230, abs=0.02
    )
    assert [box.get_attribute("class") for box in (first["a"], first["c"], first["gone"])] == [
        "box k-slower", "box k-same", "box k-only"
    ]  # fmt: skip
    Select(browser.one(".verdict")).select_by_value("faster")
    assert browser.names() == ["b"]
    browser.select("b")
    assert [sum(counts) for counts in browser.counts()] == [30, 30]
    Select(browser.one(".verdict")).select_by_value("")
    browser.sort("difference")
    assert browser.names()[:3] == ["a", "c", "b"]
    browser.select("new")
    assert [sum(counts) for counts in browser.counts()] == [30]
    assert "Before: there is no such row." in browser.one(".detail").text


def test_a_zoom_into_one_tree_of_a_comparison_is_one_into_both(browser: Browser) -> None:
    report = timed(Layers())
    browser.open(compare(report, report))
    browser.box("second").click()
    for chart in browser.all(".icicles .chart"):
        names = [
            box.get_attribute("data-name") for box in chart.find_elements(By.CSS_SELECTOR, ".box")
        ]
        assert names == ["Layers", "second", "spend_2", "spend_3"]


def test_a_comparison_of_methods_and_of_frames(browser: Browser) -> None:
    browser.open(compare(of_methods(), of_methods()))
    assert browser.texts(".part-name") == ["encode()"]
    browser.open(compare(framed(), framed()))
    assert len(browser.names()) == len(framed().rows)


def test_what_differs_between_reports_is_shown(browser: Browser) -> None:
    browser.open(merge([timed(Layers()), timed(Layers())]))
    assert "Spread %" in browser.texts(".grid th")
    assert "merged from 2 reports" in browser.one("header").text


def test_a_page_of_corrected_times_of_a_sketch_marks_none(browser: Browser) -> None:
    m = instrument(toys.Spender(10), clock=toys.ticking_clock, keep="sketch")
    for _ in range(4):
        m(torch.ones(2))
    recording = Recording(**{**vars(m.report().recording), "clock_ns": 1.0})
    browser.open(Report(recording).corrected())
    browser.select("spend")
    assert sum(browser.counts()[0]) == 4
    assert browser.all(".detail .marks") == []
    assert "cost of readings is still in" in browser.one(".detail .kept").text


@pytest.mark.parametrize("num_runs", [1, 2, 9, 1000])
def test_histograms_hold_each_run_once_and_few_bins(num_runs: int) -> None:
    rng = np.random.default_rng(num_runs)
    times_ns = rng.lognormal(8, 2, (num_runs, 3)).astype(np.int64)
    times_ns[:, 1] = 5
    times_ns[:, 2] = rng.integers(-3, 3, num_runs)
    report = report_of(times_ns)
    for place, row in enumerate(report.rows):
        histogram = histogram_of(report, row)
        assert histogram is not None
        assert sum(histogram["counts"]) + histogram["above"] == num_runs
        assert len(histogram["counts"]) <= MOST_BINS
        assert histogram["low"] == times_ns[:, place].min()
        assert histogram["high"] == times_ns[:, place].max()


def test_a_payload_is_small_and_a_number_in_json() -> None:
    times_ns = np.random.default_rng(0).integers(10**5, 10**6, (50, 2000))
    text = json.dumps(report_data(report_of(times_ns)), allow_nan=False, separators=(",", ":"))
    assert len(text) < 400 * 2000


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    report = report_of([[5]])
    path = tmp_path / "no such folder" / "page.html"
    with pytest.raises(FileAccessError, match="cannot write"):
        report.to_html(path)
    with pytest.raises(TypeError, match="path or a file"):
        report.to_html(3)  # type: ignore[arg-type]
    file = io.StringIO()
    report.to_html(file)
    text = file.getvalue()
    assert text.startswith("<!DOCTYPE html>")
    assert text.endswith("</html>\n")
    # So that it does not matter with which encoding a file was opened.
    assert text.isascii()
    report.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_a_page_is_made_of_is_in_the_package() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["fx_instrument"].split()
    package = ROOT / "fx_instrument"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {*(package / "templates").iterdir()} <= packed
    manifest = (ROOT / "MANIFEST.in").read_text()
    assert "recursive-include fx_instrument/templates *.html *.css *.js\n" in manifest
