"""The page in a real browser: it draws, sorts, pans, switches its theme, loads nothing, and shows names as text.

Without Chromium and its driver these tests are skipped, unless LIKEWISE_REQUIRE_BROWSER is set.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from browsing import every, one, size
from making_reports import HOSTILE, hostile, with_everything

import data_only
from likewise.report import render


@pytest.fixture(scope="module")
def reports(example_folder):
    reference, data = str(example_folder / "model.joblib"), str(example_folder / "test.parquet")
    passed = data_only.check(reference, str(example_folder / "model.onnx"), data)
    failed = data_only.check(reference, str(example_folder / "model.int8.onnx"), data)
    none = data_only.check(reference, str(example_folder / "nowhere.onnx"), data)
    return {"pass": passed, "fail": with_everything(failed), "inconclusive": none}


@pytest.fixture(scope="module")
def pages(reports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    reports = {**reports, "hostile": hostile(reports["fail"])}
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(render(report, "html"), encoding="utf-8")
    return folder


def prefer(browser, **features):
    features = {"prefers_reduced_motion": "reduce", **features}
    told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})


@pytest.fixture
def visit(browser, pages):
    def visiting(name, width=1280):
        size(browser, width)
        prefer(browser, prefers_color_scheme="light")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get((pages / f"{name}.html").as_uri())
        return browser

    yield visiting
    browser.execute_script("localStorage.clear()")


def into_view(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def requests(browser):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["pass", "fail", "inconclusive", "hostile"])
def test_a_page_renders_without_error_or_request_and_never_scrolls_sideways(visit, name, width):
    browser = visit(name, width)
    assert browser.execute_script("return document.documentElement.dataset.ready") == ""
    assert browser.get_log("browser") == []
    assert [url.rsplit("/", 1)[-1] for url in requests(browser)] == [f"{name}.html"]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def painted(browser, chart):
    """How many different colours a chart holds."""
    return browser.execute_script(
        "const canvas = arguments[0].querySelector('canvas');"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "return new Set(new Uint32Array(data.buffer)).size;",
        chart,
    )


def test_every_chart_draws(visit):
    browser = visit("fail")
    kinds = [chart.get_attribute("data-chart") for chart in every(browser, "[data-chart]")]
    assert kinds == ["scatter", "histogram", "deciles"]
    assert all(painted(browser, chart) > 10 for chart in every(browser, "[data-chart]"))


def test_the_arrow_keys_tell_every_point_of_the_scatter_plot(visit, reports):
    from selenium.webdriver.common.keys import Keys

    browser = visit("fail")
    chart = one(browser, "[data-chart=scatter]")
    chart.send_keys(Keys.ARROW_RIGHT)
    box = one(browser, "[data-chart=scatter] .tell")
    data = json.loads(one(browser, "#report-data").get_attribute("textContent"))
    first = min(data["outputs"][0]["points"], key=lambda point: (point["r"], point["c"]))
    assert box.get_attribute("role") == "status"
    assert f"row {first['row']}" in box.text
    chart.send_keys(Keys.ARROW_RIGHT)
    assert f"row {first['row']}," not in box.text
    chart.send_keys(Keys.ESCAPE)
    assert not box.is_displayed()


def test_pointing_at_a_worst_row_shows_its_inputs(visit, reports):
    from selenium.webdriver.common.action_chains import ActionChains

    browser = visit("fail")
    into_view(browser, one(browser, "[data-choices] button:last-child")).click()
    worst = reports["fail"].comparison.outputs[1].details["worst_rows"]["rows"][0]
    chart = one(browser, "[data-chart=scatter]")
    into_view(browser, chart)
    data = json.loads(one(browser, "#report-data").get_attribute("textContent"))
    output = data["outputs"][0]
    point = next(p for p in output["points"] if p.get("worst") and p["row"] == str(worst["row"]))
    over = one(browser, "[data-chart=scatter] .u-over")
    references = [p["r"] for p in output["points"]]
    low, high = min(references), max(references)
    more = (high - low) * 0.06
    left = (point["r"] - low + more) / (high - low + 2 * more) * over.size["width"]
    largest = max(abs(p["c"] - p["r"]) for p in output["points"])
    top = (0.5 - (point["c"] - point["r"]) / (2 * 1.15 * largest)) * over.size["height"]
    move = ActionChains(browser, duration=0)
    move.move_to_element_with_offset(over, left - over.size["width"] / 2, top - over.size["height"] / 2).perform()
    told = one(browser, "[data-chart=scatter] .tell").text
    assert f"row {worst['row']}" in told
    assert all(name in told for name in list(worst["inputs"])[:3])


def column(browser, table, place):
    return browser.execute_script(
        "return [...arguments[0].tBodies[0].rows].map((row) => row.cells[arguments[1]].dataset.order)", table, place
    )


def test_a_table_sorts_by_its_headings_and_back(visit):
    browser = visit("fail")
    table = next(t for t in every(browser, "#worst table[data-sortable]") if "Difference" in t.text)
    headings = table.find_elements("css selector", "thead th")
    place = next(index for index, heading in enumerate(headings) if heading.text.startswith("Difference"))
    before = column(browser, table, place)
    button = into_view(browser, headings[place].find_element("css selector", "button"))
    button.click()
    assert column(browser, table, place) == sorted(before, key=float)
    assert headings[place].get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(browser, table, place) == sorted(before, key=float, reverse=True)
    button.click()
    assert column(browser, table, place) == before
    assert headings[place].get_attribute("aria-sort") is None


def test_the_graph_pans_zooms_and_marks_the_culprit(visit):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = visit("fail")
    canvas = into_view(browser, one(browser, "[data-graph] .canvas"))

    def seen():
        return [float(part) for part in canvas.get_dom_attribute("viewBox").split()]

    start = seen()
    ActionChains(browser, duration=0).drag_and_drop_by_offset(canvas, 60, 40).perform()
    dragged = seen()
    assert dragged[0] < start[0]
    assert dragged[1] < start[1]
    canvas.send_keys("+")
    near = seen()
    assert near[2] < dragged[2]
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert seen()[0] > near[0]
    canvas.send_keys("0")
    assert seen()[2] == pytest.approx(start[2])
    turned = "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -9, clientX: 500, clientY: 400}))"
    browser.execute_script(turned, canvas)
    assert seen()[2] < start[2]
    nodes = every(browser, "[data-graph] .canvas .node")
    assert len(nodes) == 8
    (culprit,) = [node for node in nodes if "culprit" in node.get_dom_attribute("class")]
    assert "culprit: MatMul" in culprit.text
    assert culprit.get_dom_attribute("aria-label").startswith("Culprit. MatMulInteger")
    assert culprit.get_dom_attribute("tabindex") == "0"


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_the_theme_follows_the_system_until_it_is_chosen_and_is_remembered(visit, pages):
    browser = visit("fail")
    light = background(browser)
    prefer(browser, prefers_color_scheme="dark")
    dark = background(browser)
    assert dark != light
    button = one(browser, "#theme")
    button.click()
    assert (button.text, background(browser)) == ("Theme: light", light)
    prefer(browser, prefers_color_scheme="light")
    button.click()
    assert (button.text, background(browser)) == ("Theme: dark", dark)
    browser.get((pages / "pass.html").as_uri())
    assert background(browser) == dark
    button = one(browser, "#theme")
    button.click()
    assert (button.text, background(browser)) == ("Theme: auto", light)


def test_hostile_names_are_shown_as_text(visit):
    browser = visit("hostile")
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert
    assert every(browser, "img, iframe, object, embed, form") == []
    assert len(every(browser, "script")) == 3
    shown = one(browser, "body").get_attribute("textContent")
    assert shown.count('"><script>alert(1)</script>') > 50
    assert "{{ 7*7 }}" in shown
    assert "<script>alert(1)</script>" in browser.title
    names = [text.text for text in every(browser, "[data-graph] .node .name")]
    assert names
    assert all(name.startswith("/net/layer.1/") for name in names)


CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => { for (; e; e = e.parentElement) {
  const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] === 1) return c;
} return [255, 255, 255]; };
const low = [];
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  if (e.closest("svg, .unseen, .skip, .legend .key, .arrow")) continue;
  const style = getComputedStyle(e), [a, b] = [light(parse(style.color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) low.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio]);
}
return low;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["pass", "fail", "inconclusive"])
def test_all_text_can_be_read(visit, name, theme):
    browser = visit(name)
    prefer(browser, prefers_color_scheme=theme)
    assert browser.execute_script(CONTRAST) == []


UNREACHABLE = """
const wrong = [];
for (const e of document.querySelectorAll(".scrolls, .chart, .canvas"))
  if (e.getAttribute("tabindex") !== "0" || !e.getAttribute("aria-label")) wrong.push(e.outerHTML.slice(0, 80));
for (const table of document.querySelectorAll("table")) {
  if (!table.caption || !table.caption.textContent.trim()) wrong.push("no caption");
  for (const th of table.querySelectorAll("th")) if (!th.scope) wrong.push(`no scope: ${th.textContent}`);
  for (const row of table.tBodies[0].rows) if (row.cells[0].scope !== "row") wrong.push("a row without a name");
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size !== ids.length) wrong.push("an id is there twice");
for (const a of document.querySelectorAll("a[href^='#']"))
  if (!ids.includes(a.getAttribute("href").slice(1))) wrong.push(a.getAttribute("href"));
for (const e of document.querySelectorAll("button")) if (!e.textContent.trim()) wrong.push("a button without words");
return wrong;
"""


@pytest.mark.parametrize("name", ["pass", "fail", "inconclusive"])
def test_whoever_uses_no_mouse_reaches_everything(visit, name):
    browser = visit(name, 390)
    assert browser.execute_script(UNREACHABLE) == []
    skip = one(browser, ".skip")
    browser.execute_script("arguments[0].focus()", skip)
    assert skip.location["x"] >= 0


def test_the_page_is_useful_without_scripts(browser, pages):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((pages / "fail.html").as_uri())
        text = one(browser, "main").text
        for expected in (
            "FAIL",
            "Limits and what was measured",
            "Worst rows of probabilities",
            "The charts need JavaScript",
        ):
            assert expected in text
        assert not one(browser, "#theme").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_printing_opens_what_is_folded_and_closes_it_again(visit):
    browser = visit("fail")
    folded = "return document.querySelectorAll('details:not([open])').length"
    before = browser.execute_script(folded)
    assert before
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(folded) == 0
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(folded) == before


@pytest.fixture(scope="module")
def million():
    """A million rows of a fitted logistic regression against its arithmetic in float32."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1_000_000, 4))
    model = LogisticRegression().fit(rows[:5_000], rows[:5_000, 0] + rng.normal(size=5_000) > 0)

    def narrow(frame):
        scores = frame.to_numpy(np.float32) @ model.coef_[0].astype(np.float32) + np.float32(model.intercept_[0])
        positive = 1 / (1 + np.exp(-scores))
        return {"probabilities": np.stack([1 - positive, positive], axis=1)}

    def full(frame):
        return {"probabilities": model.predict_proba(frame.to_numpy())}

    frame = pd.DataFrame(rows, columns=["a", "b", "c", HOSTILE])
    return data_only.check(full, narrow, frame, batch_sizes=())


def test_a_report_over_a_million_rows_is_small_and_draws_a_bounded_sample(million, browser, tmp_path):
    page = render(million, "html")
    assert million.samples == 1_000_000
    assert len(page.encode()) < 2_000_000
    (tmp_path / "million.html").write_text(page, encoding="utf-8")
    size(browser, 1280)
    browser.get((tmp_path / "million.html").as_uri())
    assert "a sample of 1,000 of 1,000,000 rows" in one(browser, "#differences").text
    assert painted(browser, one(browser, "[data-chart=scatter]")) > 10
