"""Parity in a test suite: the fixture and the function, run by pytest itself on a real export."""

from __future__ import annotations

import json

import pytest

PLUGIN = ("-p", "no:cacheprovider")
SUITE = """
import pandas as pd
from pathlib import Path
from likewise.pytest_plugin import assert_parity

EXAMPLE = Path({folder!r})
ROWS = pd.read_parquet(EXAMPLE / "test.parquet")[:200]
QUICK = dict(explain=False, edge="off", allow_same=True)

def test_faithful(parity):
    report = parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / "model.onnx"), ROWS, **QUICK)
    assert report.samples == 200

def test_quantised(parity):
    parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / "model.int8.onnx"), ROWS, **QUICK)

def test_function():
    assert_parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / "model.int8.onnx"), ROWS, abs_tol=0.5, **QUICK)

def test_function_fails():
    assert_parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / "model.int8.onnx"), ROWS, **QUICK)

def test_both(parity):
    for name in ("model.onnx", "model.onnx"):
        parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / name), ROWS, **QUICK)

def test_no_rows(parity):
    parity(str(EXAMPLE / "model.onnx"), str(EXAMPLE / "model.onnx"), ROWS[:0], **QUICK)
"""


@pytest.fixture
def suite(pytester, example_folder, monkeypatch):
    # Each process would rewrite every module of ours anew.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    pytester.makepyfile(SUITE.format(folder=str(example_folder)))
    return pytester


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_failure_is_the_summary_and_the_report_is_kept(suite, more):
    done = suite.runpytest_subprocess(*PLUGIN, *more, "--likewise-reports", "reports")
    done.assert_outcomes(passed=3, failed=3)
    shown = done.stdout.str()
    assert "FAIL" in shown
    assert "mismatch_rate" in shown
    assert "INCONCLUSIVE" in shown
    assert "holds no rows" in shown
    assert "pytest_plugin.py" not in shown, "our frames stay out of the failure"
    found = {path.parent.name: json.loads(path.read_text()) for path in suite.path.glob("reports/*/parity_report.json")}
    outcomes = {name.split("__")[-1]: report["outcome"] for name, report in found.items()}
    assert outcomes == {
        "test_faithful": "PASS",
        "test_quantised": "FAIL",
        "test_function": "PASS",
        "test_function_fails": "FAIL",
        "test_both": "PASS",
        "test_no_rows": "INCONCLUSIVE",
    }
    (second,) = suite.path.glob("reports/*/parity_report.2.json")
    assert second.parent.name.endswith("test_both"), "two checks of a test keep two reports"


def test_without_a_folder_the_report_lies_beside_the_files_of_the_test_and_a_page_on_request(suite):
    chosen = ("-k", "quantised or function_fails")
    done = suite.runpytest_subprocess(*PLUGIN, *chosen, "--likewise-html", "--basetemp", "kept")
    done.assert_outcomes(failed=2, deselected=4)
    assert (suite.path / "kept" / "test_quantised0" / "parity_report.json").is_file()
    page = suite.path / "kept" / "test_function_fails0" / "parity_report.html"
    assert page.read_text().startswith("<!doctype html>")
    told = "".join(done.stdout.str().split())
    assert f"{page}, or likewise report {page.with_suffix('.json')}".replace(" ", "") in told


@pytest.mark.parametrize("name", ["parity_report.json", "parity_report.html"])
def test_what_lies_in_the_folder_of_reports_is_not_written_through_or_over(suite, name):
    """A page was written through a link, to whatever file it led to."""
    folder, own = suite.path / "reports", suite.path / "own.txt"
    own.write_text("mine")
    chosen = ("-k", "faithful", "--likewise-html", "--likewise-reports", "reports")
    suite.runpytest_subprocess(*PLUGIN, *chosen).assert_outcomes(passed=1, deselected=5)
    suite.runpytest_subprocess(*PLUGIN, *chosen).assert_outcomes(passed=1, deselected=5)
    (written,) = folder.glob(f"*/{name}")
    written.unlink()
    written.symlink_to(own)
    done = suite.runpytest_subprocess(*PLUGIN, *chosen)
    done.assert_outcomes(failed=1, deselected=5)
    assert own.read_text() == "mine"
    assert "is not replaced: it is a link" in done.stdout.str()
    assert "pytest_plugin.py" not in done.stdout.str()
