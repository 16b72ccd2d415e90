"""What a run writes never replaces what it reads, and what a user asked for is never left out without a word."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise.errors import UsageError
from planting import here

MODELS = """
import numpy as np

def steady(frame):
    return frame["x"].to_numpy() * 2.0

def other(frame):
    return frame["x"].to_numpy() * 2.0 + 1e-5

def refusing(frame):
    if np.isnan(frame.to_numpy(dtype=float)).any():
        raise ValueError("NaN")
    return frame.to_numpy(dtype=float).sum(axis=1)

def forgiving(frame):
    values = frame.to_numpy(dtype=float)
    gaps = np.isnan(values)
    gaps[:, 50] = False
    if gaps.any():
        raise ValueError("NaN")
    return np.nan_to_num(values, nan=1e6).sum(axis=1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "models.py").write_text(MODELS)
    pd.DataFrame({"x": np.linspace(0, 1, 40)}).to_parquet(folder / "rows.parquet")
    return folder


def run(folder, *words):
    done = here(*words, folder=folder)
    return done.returncode, done.stdout + done.stderr


PAIR = ("check", "models.py:steady", "models.py:other", "--data", "rows.parquet", "--edge", "off", "-q")


@pytest.mark.parametrize("option", ["--report", "--html", "--junit"])
def test_a_report_does_not_replace_the_data(folder, option):
    before = (folder / "rows.parquet").read_bytes()
    code, shown = run(folder, *PAIR, option, "rows.parquet")
    assert code == 2, shown
    assert "it is the data of this run" in shown
    assert (folder / "rows.parquet").read_bytes() == before


def test_two_formats_do_not_replace_each_other(folder):
    code, shown = run(folder, *PAIR, "--html", "out.txt", "--junit", "out.txt")
    assert code == 2, shown


def test_a_baseline_is_not_replaced_by_a_folder_of_reports(folder):
    code, shown = run(folder, *PAIR, "--report", "kept/parity_report.json")
    assert code == 0, shown
    words = ("--baseline", "kept/parity_report.json", "--report", "today.json", "--reports", "kept")
    code, shown = run(folder, *PAIR, *words)
    assert code == 2, shown
    assert "it is the baseline of this run" in shown


def test_models_and_a_configuration_are_two_questions(folder):
    for words in (("--config", "missing.toml"), ("--gate", "missing")):
        code, shown = run(folder, *PAIR, *words)
        assert code == 2, shown


def test_gates_whose_names_are_one_file_name_are_refused(folder):
    gate = 'reference = "models.py:steady"\ncandidate = "models.py:other"\ndata = "rows.parquet"\n'
    (folder / "two.toml").write_text(f'[gates."m a"]\n{gate}[gates."m_a"]\n{gate}')
    code, shown = run(folder, "check", "--config", "two.toml", "--reports", "out", "-q")
    assert code == 2, shown
    assert "gate 'm a' and gate 'm_a' would write the same file out/m_a." in shown


def test_an_empty_matrix_is_no_matrix(folder):
    code, shown = run(folder, *PAIR, "--matrix", "")
    assert code == 2, shown


@pytest.mark.parametrize("data", ["generated:-1", "generated:abc", "generated:", "generated:0"])
def test_a_number_of_generated_rows_that_is_none(folder, data):
    code, shown = run(folder, "check", "models.py:steady", "models.py:other", "--data", data)
    assert code == 2, shown


def test_rows_that_were_refused_together_and_not_asked_alone_are_not_agreed_on(folder, monkeypatch):
    monkeypatch.chdir(folder)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 60)), columns=[f"c{i}" for i in range(60)])
    frame.to_parquet(folder / "wide.parquet")
    words = (
        "--data",
        "wide.parquet",
        "--edge",
        "strict",
        "--no-explain",
        "--skip-suite",
        "nonfinite",
        "--report",
        "w.json",
    )
    code, shown = run(folder, "check", "models.py:refusing", "models.py:forgiving", *words)
    assert code in (1, 3), shown
    suites = {
        suite["verdict"]["name"]: suite["verdict"] for suite in json.loads((folder / "w.json").read_text())["suites"]
    }
    assert suites["missing-values"]["outcome"] != "PASS"


def test_stratified_generated_rows_are_still_generated(example_folder):
    model = str(example_folder / "model.onnx")
    report = data_only.check(model, model, "generated:200", stratify="purpose", max_failure_rate=0.1)
    assert report.outcome == "INCONCLUSIVE"
    assert report.comparison.generated
    assert "generated-data" in {finding.code for finding in report.verdict.findings}


def test_more_values_than_a_machine_holds_are_refused(example_folder):
    model = str(example_folder / "model.onnx")
    with pytest.raises(UsageError, match="too many to generate"):
        data_only.check(model, model, "generated:99999999999999")


GATE = 'reference = "models.py:steady"\ncandidate = "models.py:other"\ndata = "rows.parquet"\nedge = "off"\n'


@pytest.mark.parametrize(
    "line", ["abs_tol = true", "rel_tol = false", "samples = true", "limits = { max_abs_diff = true }"]
)
def test_a_truth_value_is_no_number(folder, line):
    (folder / "truth.toml").write_text(f"[gates.main]\n{GATE}{line}\n")
    code, shown = run(folder, "check", "--config", "truth.toml", "-q")
    assert code == 2, shown
    assert "which is not a number" in shown
    assert "truth.toml, gate 'main'" in shown


@pytest.mark.parametrize("option", [{"abs_tol": True}, {"abs_tol": "0.1"}, {"limits": {"max_abs_diff": True}}])
def test_python_is_told_the_same(folder, option):
    with pytest.raises(UsageError, match="which is not a number"):
        data_only.check(lambda x: x, lambda x: x, np.ones((9, 2)), **option)


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\\b", "..", " ", "a\nb"])
def test_a_gate_writes_beside_its_configuration_only(folder, name):
    (folder / "inner").mkdir(exist_ok=True)
    (folder / "inner" / "names.toml").write_text(f"[gates.{json.dumps(name)}]\n{GATE}")
    code, shown = run(folder / "inner", "check", "--config", "names.toml", "-q")
    assert code == 2, shown
    assert "is not a valid name for a gate" in shown


def test_numbers_of_numpy_are_numbers(tmp_path):
    options = {
        "abs_tol": np.float64(0.5),
        "rel_tol": np.float32(0.25),
        "samples": np.int64(20),
        "seed": np.int32(3),
        "confidence": np.array(0.9),
        "batch_sizes": [np.int64(2)],
        "limits": {"max_abs_diff": np.float64(0.75)},
        "report": tmp_path / "report.json",
    }
    report = data_only.check(lambda x: x, lambda x: x + 0.1, np.arange(60.0), **options)
    assert report.passed
    stored = json.loads((tmp_path / "report.json").read_text())
    assert (stored["abs_tol"], stored["samples"]) == (0.5, 20)
