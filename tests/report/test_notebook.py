"""A report in a notebook: run by a real kernel on a real export."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise.errors import MissingExtraError, UsageError

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def failing(example_folder):
    rows = pd.read_parquet(example_folder / "test.parquet")[:300]
    return data_only.check(
        str(example_folder / "model.joblib"),
        str(example_folder / "model.int8.onnx"),
        rows,
        stratify="purpose",
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    return tags


def test_the_view_of_a_cell_has_the_verdict_the_limits_and_the_worst_rows(failing):
    view = parsed(failing._repr_html_())
    assert "FAIL" in view.words
    assert failing.verdict.headline in view.words.replace("Probabilities", "probabilities")
    assert view.seen.count("table") >= 2
    assert f"{failing.samples:,} rows" in view.words


def test_names_are_text_and_never_markup():
    frame = pd.DataFrame({HOSTILE: np.arange(9.0)})
    report = data_only.check(lambda rows: {HOSTILE: rows[HOSTILE]}, lambda rows: {HOSTILE: rows[HOSTILE] + 1}, frame)
    view = parsed(report._repr_html_())
    assert not report
    assert "script" not in view.seen
    assert HOSTILE in view.words


def test_every_part_of_a_report_is_a_frame(failing):
    checks = failing.to_frame()
    assert list(checks["outcome"]) == [str(check.outcome) for check in failing.verdict.checks]
    worst = failing.to_frame("worst_rows")
    rows = failing.comparison.outputs
    assert len(worst) == sum(len(output.details["worst_rows"]["rows"]) for output in rows)
    assert "input.income" in worst.columns
    assert failing.to_frame("strata")["rows"].sum() == 300
    measures = failing.to_frame("measures")
    found = measures[(measures.output == "probabilities") & (measures.measure == "max_abs_diff")]["value"]
    assert found.item() == failing.max_abs_diff
    for part in ("batch_sizes", "findings"):
        assert len(failing.to_frame(part))
    for part in ("suites", "diagnoses", "timeline"):
        assert len(failing.to_frame(part)) == 0
    with pytest.raises(UsageError, match="did you mean 'worst_rows'"):
        failing.to_frame("worst_row")


def test_the_plot_shows_the_sample_and_the_worst_rows_within_the_band(failing):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    axes = failing.plot("probabilities")
    sampled, worst = (line.get_xydata() for line in axes.get_lines())
    points = next(o for o in failing.comparison.outputs if o.name == "probabilities").details["scatter"]
    assert np.array_equal(sampled, np.array([points["reference"], points["candidate"]]).T)
    assert len(sampled) == 300, "fewer rows than the sample may hold: all are drawn"
    assert np.abs(worst[:, 0] - worst[:, 1]).max() == failing.max_abs_diff
    pyplot.close("all")
    with pytest.raises(UsageError, match="no numbers of 'label'"):
        failing.plot("label")


def test_without_matplotlib_a_plot_says_what_to_install(failing, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'likewise\[notebook\]'"):
        failing.plot()


def test_a_notebook_shows_progress_and_the_report(example_folder):
    import nbformat
    from nbclient import NotebookClient

    code = f"""
import likewise
report = likewise.check({str(example_folder / "model.joblib")!r}, {str(example_folder / "model.onnx")!r},
                        {str(example_folder / "test.parquet")!r})
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (code, "report")])
    updates: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg, cell, cell_index):
            if msg["msg_type"] == "update_display_data":
                updates.append(msg["content"]["data"]["text/plain"])
            return super().process_message(msg, cell, cell_index)

    done = Client(notebook, timeout=120, kernel_name="python3").execute()
    assert any("comparing" in text for text in updates)
    assert updates[-1] == "", "the line goes when the run ends"
    shown = done.cells[1].outputs[0]["data"]["text/html"]
    assert "PASS" in parsed(shown).words
