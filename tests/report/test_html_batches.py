"""What the page says about other batches, generated rows and the worst rows, against what was planted."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise.contracts.comparison import GeneratedColumn, Tolerance
from likewise.contracts.report import GraphNode, GraphView
from likewise.report import render
from likewise.report.formats.html.cells import telling_digits, value_cell
from likewise.report.formats.html.charts import graph_data
from likewise.report.formats.json import loads

SIZES = (1, 3, 4, 7)


def reference(rows):
    """Refuses a batch of three, and moves by 0.5 in one of four."""
    if len(rows) == 3:
        raise ValueError("three is a crowd")
    return {"value": rows["a"].to_numpy() + (0.5 if len(rows) == 4 else 0.0), "other": rows["a"].to_numpy()}


def candidate(rows):
    """Moves by 2 in a batch of seven, and the row in the first place by 3."""
    value = rows["a"].to_numpy() + (2.0 if len(rows) == 7 else 0.0)
    value[0] += 3.0 if len(rows) == 7 else 0.0
    return {"value": value, "other": rows["a"].to_numpy()}


@pytest.fixture(scope="module")
def data():
    gaps = {"word": ["x", None] * 40, "gap": [1.0, np.nan] * 40}
    return pd.DataFrame({"a": np.random.default_rng(0).normal(size=80), **gaps})


@pytest.fixture(scope="module")
def report(data):
    return data_only.check(reference, candidate, data, batch_size=80, batch_sizes=SIZES)


def section(page, name):
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def grid(text):
    """Headings and rows of the first table, as text."""
    plain = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", text, re.S)]
    cells = [unescape(" ".join(cell.split())) for cell in plain]
    width = len(re.findall("<th[ >]", text.split("</thead>")[0]))
    return cells[:width], [cells[start : start + width] for start in range(width, len(cells), width)]


def test_every_batch_size_and_order_is_a_row_with_the_measures_that_tell_something(report):
    headings, rows = grid(section(render(report, "html"), "batches"))
    assert headings[:3] == ["Batch", "Rows", "value: max_abs_diff"]
    assert not any(name.startswith("other") for name in headings)
    found = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    assert list(found)[:5] == ["all rows", "1", "3", "4", "7"]
    assert len([name for name in found if name.startswith("7, rows ")]) == 3
    assert "7, one row left over" in found
    assert found["1"]["value: max_abs_diff"] == "0"
    assert found["1"]["value: batch_drift"] == "0"
    assert found["7"]["value: max_abs_diff"] == "5"
    assert found["7"]["value: batch_drift"] == "5"
    assert found["7, rows reversed"]["value: position_drift"] == "5"
    assert found["7"]["value: mismatch_rate"].startswith("✗")


def test_a_reference_that_moves_or_refuses_a_batch_is_told_apart_from_the_candidate(report):
    text = section(render(report, "html"), "batches")
    headings, rows = grid(text)
    found = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    assert found["4"]["value: reference_drift"] == "0.5"
    assert found["7"]["value: reference_drift"] == "0"
    assert found["3"]["value: reference_drift"] == "–"
    assert found["3"]["Trouble"] == "! reference: see below"
    assert found["4"]["Trouble"] == "none"
    assert "The reference at batch 3: " in text
    assert "three is a crowd" in text


def test_what_is_zero_in_every_batch_is_named_instead_of_shown(report):
    text = section(render(report, "html"), "batches")
    (note,) = re.findall(r"0 everywhere: ([^.<]*)\.", text)
    assert {"other: max_abs_diff", "other: batch_drift", "other: reference_drift"} <= set(note.split(", "))


def test_the_reach_names_sizes_and_other_places(report):
    page = render(report, "html")
    assert "; batch sizes 1, 3, 4, 7 too, and rows in other places." in page


def test_worst_rows_say_by_what_they_are_sorted_and_what_is_missing(data):
    def off(rows):
        return {"value": rows["a"].to_numpy() + 1}

    def same(rows):
        return {"value": rows["a"].to_numpy()}

    loose = data_only.check(same, off, data, batch_sizes=())
    page = render(loose, "html")
    assert "sorted by how many times the allowed difference they are apart, not by the difference" in page
    headings, rows = grid(section(page, "worst"))
    assert headings[:5] == ["Row", "Reference", "Candidate", "Difference", "Times the tolerance"]
    odd = [dict(zip(headings, row, strict=True)) for row in rows if int(row[0]) % 2]
    assert odd
    assert {(row["word"], row["gap"]) for row in odd} == {("missing", "NaN")}
    assert grid(section(render(loads(render(loose, "json")), "html"), "worst"))[1] == rows
    exact = data_only.check(same, off, data, preset="exact", batch_sizes=())
    page = render(exact, "html")
    assert "Worst rows of value, sorted by difference<" in page
    assert "Times the tolerance" not in page


def test_answers_have_as_many_digits_as_tell_them_apart():
    assert telling_digits(0.25, 0.5) == 6
    assert telling_digits(123456.71, 123456.74) == 8
    assert telling_digits(1.0, 1.0 + 2**-52) == 17
    assert telling_digits(float("nan"), 1.0) == 6
    assert value_cell(1 / 3, digits=6).text == "0.333333"
    assert value_cell(1 / 3, digits=6).title == repr(1 / 3)
    assert value_cell(0.25, digits=6).title == ""


def test_generated_columns_have_a_banner_and_a_table(report):
    made = (
        GeneratedColumn("a", "normal, 0 ± 1", "nothing is known about it", known=False),
        GeneratedColumn("word", "one of 'x'", "the categories of OneHotEncoder", known=True),
    )
    page = render(replace(report, comparison=replace(report.comparison, generated=made)), "html")
    assert "No row of this run is real" in page.split('class="figures"')[0]
    assert "Neither model says anything about 1 of 2 columns." in page
    _, rows = grid(section(page, "generated"))
    assert rows == [
        ["a", "normal, 0 ± 1", "nothing is known about it", "no"],
        ["word", "one of 'x'", "the categories of OneHotEncoder", "yes"],
    ]
    assert "Generated rows" not in render(report, "html")


@pytest.mark.parametrize(
    ("tolerance", "noise", "told"),
    [
        (Tolerance(1e-4, 1e-3), 1e-6, "introduces at most 1e-06, as rounding of float32 does"),
        (Tolerance(0.04, 0.0), 1e-6, "introduces at most 1e-06, as rounding of float32 does"),
        (Tolerance(1e-9, 0.0), 1e-9, "introduces at most 1e-09, which the tolerance allows"),
        (Tolerance(0.0, 0.0), 0.0, "introduces nothing"),
    ],
)
def test_a_node_is_coloured_above_rounding_or_a_tighter_tolerance(tolerance, noise, told):
    drawn = graph_data(GraphView((GraphNode("n", "candidate", "n", "Add"),)), tolerance)
    assert drawn is not None
    assert (drawn["noise"], drawn["neutral"]) == (noise, told)
