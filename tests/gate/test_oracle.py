"""The gate says what a page of plain Python says, of any answers and under any policy: a part of `make oracle`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import oracle

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy's, of casts that overflow on purpose


@pytest.mark.parametrize("seed", [0, 1])
def test_a_thousand_judgements_are_those_of_the_oracle(seed):
    counted, programs = oracle.campaign(1_000, seed)
    assert counted["disagreements"] == 0, programs[0]
    assert min(counted[outcome] for outcome in ("PASS", "FAIL", "INCONCLUSIVE")) > 5, "all three are there"


def test_a_gate_that_judges_otherwise_is_noticed(monkeypatch):
    monkeypatch.setitem(oracle.PRESETS["strict"], "max_abs_diff", 0.011)
    pair, asked = oracle.Pair(np.zeros(3), np.array([0.0, 0.0105, 0.0])), {"preset": "strict", "mean_tol": 1.0}
    report = oracle.compared({"value": pair}, asked)
    assert list(oracle.disagreements(report, {"value": pair}, asked)) == ["value"]
    program = oracle.small({"value": pair}, asked, None, "value")
    assert "array([0.0105], 'float64')" in program, "one row shows it"
    exec(program, {})
