"""What a reader sees without scrolling sideways: on a laptop every column, on a phone what matters most."""

from __future__ import annotations

from dataclasses import replace

import pytest
from browsing import every, one, size
from making_reports import with_everything

import data_only
from likewise.report import render

LAPTOP, PHONE = 1280, 390


@pytest.fixture(scope="module")
def pages(example_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    reference, candidate = str(example_folder / "model.joblib"), str(example_folder / "model.int8.onnx")
    failed = data_only.check(reference, candidate, str(example_folder / "test.parquet"))
    generated = data_only.check(reference, candidate, "generated", samples=200)
    # Paths of this machine would be part of the layout.
    short = replace(failed.origin.reference, name="model.joblib", sha256="5d39" * 16)
    failed = replace(failed, origin=replace(failed.origin, reference=short))
    for name, report in {"fail": with_everything(failed), "generated": generated}.items():
        (folder / f"{name}.html").write_text(render(report, "html"), encoding="utf-8")
    return folder


@pytest.fixture
def visit(browser, pages):
    def visiting(name, width):
        size(browser, width)
        browser.get((pages / f"{name}.html").as_uri())
        return browser

    return visiting


def texts(browser, selector):
    return [element.text for element in every(browser, selector)]


def edges(browser, selector):
    """Where elements begin and end, from the left of the window."""
    measured = "const r = e.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]"
    return browser.execute_script(
        f"return [...document.querySelectorAll(arguments[0])].map((e) => {{ {measured} }})", selector
    )


def inside(browser, selector, width):
    found = edges(browser, selector)
    return bool(found) and all(left >= 0 and right <= width and wide for left, right, wide, _ in found)


@pytest.mark.parametrize("name", ["fail", "generated"])
def test_a_laptop_shows_every_column_of_every_table(visit, name):
    browser = visit(name, LAPTOP)
    cut = browser.execute_script(
        "for (const e of document.querySelectorAll('details')) e.open = true;"
        "return [...document.querySelectorAll('.scrolls')].filter((e) => e.scrollWidth > e.clientWidth)"
        ".map((e) => e.getAttribute('aria-label'))"
    )
    assert cut == []
    assert len(every(browser, "#worst thead th")) >= 15


def test_a_large_window_gives_its_width_to_wide_tables_and_not_to_words(browser, tmp_path):
    import numpy as np
    import pandas as pd

    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 16)), columns=[f"column {n}" for n in range(16)])
    report = data_only.check(
        lambda rows: {"value": rows["column 0"].to_numpy()},
        lambda rows: {"value": rows["column 0"].to_numpy() + 1},
        wide,
        batch_sizes=(),
    )
    (tmp_path / "wide.html").write_text(render(report, "html"), encoding="utf-8")
    size(browser, 1920)
    browser.get((tmp_path / "wide.html").as_uri())
    ((_, _, worst, _),), ((_, _, limits, _),) = edges(browser, "#worst"), edges(browser, "#limits")
    assert worst > limits
    assert inside(browser, "#worst thead th", 1920)


def test_a_phone_shows_measured_limit_and_verdict_of_every_limit(visit):
    browser = visit("fail", PHONE)
    assert inside(browser, "#limits-table tbody th, #limits-table tbody td", PHONE)
    card = one(browser, "#limits-table tbody tr").text.split("\n")
    assert card[0] == "probabilities"
    assert "✗ FAIL" in card
    labels = browser.execute_script(
        "return [...document.querySelector('#limits-table tbody tr').querySelectorAll('td')]"
        ".map((e) => getComputedStyle(e, '::before').content)"
    )
    assert labels == ['"Measure"', '"Measured"', '"Limit"', '"Verdict"']


def test_a_phone_shows_both_answers_and_the_difference_before_the_inputs(visit):
    browser = visit("fail", PHONE)
    for table, named in ((1, "Margin of the reference"), (2, "Difference")):
        part = f"#worst .scrolls:nth-of-type({table})"
        assert texts(browser, f"{part} thead th:nth-child(-n+4)") == ["Row", "Reference", "Candidate", named]
        assert inside(browser, f"{part} :is(th, td):nth-child(-n+4)", PHONE)
    # The inputs come when the table is moved, and the number of the row stays.
    browser.execute_script("document.querySelector('#worst .scrolls').scrollLeft = 400")
    assert inside(browser, "#worst .scrolls:nth-of-type(1) tbody th", PHONE)


def test_a_phone_shows_the_whole_menu_and_the_whole_hash(visit):
    browser = visit("fail", PHONE)
    assert len(every(browser, ".bar nav a")) == 11
    assert inside(browser, ".bar nav a", PHONE)
    assert inside(browser, "#origin > .scrolls td.code", PHONE)
    assert "5d39" * 16 in one(browser, "#origin > .scrolls").get_attribute("textContent")
    assert max(height for *_, height in edges(browser, "#origin > .scrolls tr")) < 250


def test_a_node_that_only_rounds_has_no_colour_and_the_legend_says_so(visit):
    browser = visit("fail", LAPTOP)
    classes = {
        node.get_dom_attribute("aria-label").split(":")[0]: node.get_dom_attribute("class").split()
        for node in every(browser, "[data-graph] .canvas .node")
    }
    assert "heat-0" in classes["Add /net/layer.1/bias, candidate"]
    assert "heat-5" in classes["Culprit. MatMulInteger /net/layer.1/dense, candidate"]
    legend = texts(browser, "[data-graph] .legend li")
    assert "introduces at most 1e-06, as rounding of float32 does" in legend
    assert not any("3.7e-8" in entry for entry in legend)
    fill = "return getComputedStyle(arguments[0].querySelector('.box')).fill"
    plain, coloured = (
        browser.execute_script(fill, one(browser, f"[data-graph] .canvas .node.{name}"))
        for name in ("heat-0", "heat-5")
    )
    assert plain != coloured


def test_that_rows_are_generated_stands_in_the_verdict_and_leads_to_what_they_are(visit):
    browser = visit("generated", PHONE)
    banner = one(browser, ".verdict .made")
    assert "No row of this run is real" in banner.text
    assert banner.find_element("css selector", "a").get_dom_attribute("href") == "#generated"
    assert "normal" in one(browser, "#generated tbody").text
    assert inside(browser, "#generated tbody td", PHONE)
