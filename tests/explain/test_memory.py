"""What the search for causes may hold: fewer rows of wide answers, and it is stopped where it holds too much."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import data_only
import likewise
from likewise.errors import UsageError
from likewise.explain import case as cases
from likewise.explain.driver import FAILING_ROWS
from likewise.tasks.amounts import bytes_of
from planting import command

WIDTH = 2**16
"""Answers to one row: half a megabyte on both sides together."""


@pytest.mark.parametrize(
    ("said", "meant"),
    [("2GB", 2**31), ("1.5 GiB", 3 * 2**29), ("64mb", 2**26), (2**26, 2**26), ("65536K", 2**26), ("1T", 2**40)],
)
def test_sizes_as_people_write_them(said, meant):
    assert bytes_of(said) == meant


@pytest.mark.parametrize("said", ["", "2 bananas", "-1GB", "63MB", 0, "1e9", "nan", "99999999999T"])
def test_sizes_that_make_no_sense(said):
    with pytest.raises(UsageError, match="--memory is"):
        likewise.check(np.negative, np.positive, np.ones((3, 2)), memory=said)


def wide(shift):
    def answer(x):
        return x[:, :1] * np.arange(WIDTH, dtype=np.float32) + shift

    return answer


@pytest.mark.parametrize(("memory", "rows"), [("2GB", 128), ("256MB", 16)])
def test_fewer_rows_of_wide_answers_are_looked_at(memory, rows):
    """A 32nd of the memory for the answers of both sides; half of the rows may fail."""
    x = np.linspace(1, 2, 200, dtype=np.float32)[:, None]
    report = data_only.explain(wide(0), wide(1), {"x": x}, memory=memory, explain_budget=30, causes=("row-order",))
    assert report.outcome == "FAIL"
    assert report.explanation.failing_rows <= max(rows // 2, len(report.comparison.outputs[0].worst_rows))
    assert report.explanation.failing_rows >= rows // 2


def test_narrow_answers_are_looked_at_as_before():
    x = np.linspace(1, 2, 3 * FAILING_ROWS)[:, None]
    report = data_only.explain(np.negative, np.positive, {"x": x}, explain_budget=30)
    assert report.explanation.failing_rows >= FAILING_ROWS


def test_a_search_that_holds_too_much_stops_and_says_so(monkeypatch):
    held = iter(range(0, 2**50, 2**31))
    monkeypatch.setattr(cases, "resident", lambda: next(held))
    module = nn.Linear(3, 2)
    other = nn.Linear(3, 2)
    rows = {"input": np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)}
    with torch.no_grad():
        report = data_only.explain(module.eval(), other.eval(), rows)
    assert report.outcome == "FAIL"
    assert any("the memory for explaining is used up (--memory)" in entry for entry in report.explanation.not_tested)


HOARDER = """
import inspect, time
import numpy as np
held = []

def predict(rows):
    if any("/explain/" in frame.filename for frame in inspect.stack(0)):
        held.append(np.ones(2**25))  # 256 MB
        time.sleep(60)
    return rows[:, 0] + 1

def reference(rows):
    return rows[:, 0]
"""


def test_a_search_that_does_not_see_what_it_holds_is_ended_from_outside(tmp_path):
    (tmp_path / "models.py").write_text(HOARDER)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(60, 3)))
    models = ("models.py:reference", "models.py:predict")
    ran = command("check", *models, "--data", "rows.npy", "--memory", "64MB", "--edge", "off", folder=tmp_path)
    ran.expect(1, "all 60 rows differ", "explaining was cut short: its memory (--memory) is used up")
