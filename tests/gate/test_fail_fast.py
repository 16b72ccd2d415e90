"""`--fail-fast`: a gate that cannot pass any more stops, says after how many rows, and never passes for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import data_only
import likewise
from likewise.tasks.judge import judge

ROWS = 100_000
"""More than are ever kept or asked in one call."""


class Counting:
    """Answers a column, plus something on the rows from which it is wrong; counts what it is asked."""

    def __init__(self, wrong_from: int = ROWS, by: float = 1e6) -> None:
        self.wrong_from, self.by, self.asked = wrong_from, by, 0

    def __call__(self, frame):
        self.asked += len(frame)
        x = frame["x"].to_numpy()
        return np.where(x >= self.wrong_from, x + self.by, x)


@pytest.fixture(scope="module")
def data():
    return pd.DataFrame({"x": np.arange(float(ROWS))})


def test_it_stops_where_no_row_can_mend_a_limit(data):
    candidate = Counting(wrong_from=20_000)
    report = data_only.check(Counting(), candidate, data, fail_fast=True)
    assert report.outcome == "FAIL"
    assert report.samples < ROWS / 2
    assert candidate.asked < ROWS
    (note,) = [finding for finding in report.verdict.findings if finding.code == "stopped"]
    assert f"after {report.samples:,} of {ROWS:,} rows" in note.message


def test_without_it_all_rows_are_compared(data):
    report = data_only.check(Counting(), Counting(wrong_from=20_000), data)
    assert (report.outcome, report.samples) == ("FAIL", ROWS)


def test_what_passes_is_compared_in_full(data):
    report = data_only.check(Counting(), Counting(), data, fail_fast=True)
    assert (report.outcome, report.samples) == ("PASS", ROWS)


def test_a_mean_that_later_rows_may_lower_does_not_stop_it(data):
    # The first 1,000 rows are 1 apart, the others equal: a mean of 0.01 in the end, of 0.06 after the first chunk.
    early = lambda frame: np.where(frame["x"] < 1_000, frame["x"] + 1.0, frame["x"])  # noqa: E731
    report = data_only.check(Counting(), early, data, abs_tol=2.0, mean_tol=0.02, fail_fast=True)
    assert (report.outcome, report.samples) == ("PASS", ROWS)


def test_rows_that_were_left_out_count_under_other_limits(data, tmp_path):
    stopped = data_only.check(Counting(), Counting(wrong_from=20_000), data, fail_fast=True)
    stopped.save(tmp_path / "report.json")
    again = judge(likewise.load(tmp_path / "report.json"), abs_tol=2e6)
    assert again.outcome == "INCONCLUSIVE"
    assert any(finding.code == "stopped" for finding in again.verdict.findings)
