"""The example project runs from a clean copy, and its commands mean what its README says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from likewise.models.python import load
from likewise.tasks.bisect import pins, upgrades
from planting import script

TABULAR = Path(__file__).parents[2] / "examples" / "tabular"
FIELDS = ["samples", "max_abs_diff", "mean_abs_diff", "abs_tol", "mean_tol", "passed"]


def started(folder, *words):
    """A command of the README in a process of its own."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        # Two test workers on two cores: threads that wait for each other would spend the time spinning.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run(folder, *words):
    return script(folder / words[0], *words[1:], folder=folder)


def parity(folder, *words):
    """The exit code of a parity check and what it printed."""
    done = run(folder, "deployment/parity_check.py", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def clean_copy(folder, **changes):
    shutil.copytree(TABULAR, folder, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
    config = folder / "config.yaml"
    for before, after in changes.items():
        assert before in config.read_text()
        config.write_text(config.read_text().replace(before, after))
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A clean copy, trained, exported and quantised as the README says, with one fold less."""
    folder = clean_copy(tmp_path_factory.mktemp("examples") / "tabular", **{"folds: 3": "folds: 2"})
    for words in (["-m", "src.train"], ["deployment/export_onnx.py"], ["deployment/quantize_onnx.py"]):
        done = started(folder, *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return folder


def test_training_leaves_model_threshold_and_lineage(project):
    lineage = json.loads((project / "artifacts" / "lineage.json").read_text())
    scores = lineage["average_precision"]
    assert lineage["model"] == max(("logistic", "network", "trees"), key=lambda name: scores[name])
    assert float((project / "artifacts" / "threshold.txt").read_text()) == pytest.approx(lineage["threshold"], abs=1e-6)
    assert lineage["test_rows"] >= 1000
    # Far better than calling one flight in four late at random, far from the certainty that a leak would give.
    assert 0.3 < scores["test"] < 0.6


def test_the_data_have_gaps_and_categories_that_training_lacks():
    table = pd.read_parquet(TABULAR / "data" / "flights.parquet")
    assert len(table) >= 10_000
    assert (TABULAR / "data" / "flights.parquet").stat().st_size < 1_000_000
    assert table["manufacturer"].isna().any()
    assert table["pressure"].isna().any()
    test = table["date"] >= "2013-10-01"
    assert set(table.loc[test, "dest"]) - set(table.loc[~test, "dest"])
    assert not {"dep_delay", "dep_time", "arr_time", "arr_delay", "air_time"} & set(table.columns)


def test_the_export_says_what_to_feed_and_where_it_came_from(project):
    features = json.loads((project / "artifacts" / "onnx_features.json").read_text())["features"]
    assert {"carrier": "string", "distance": "float32"}.items() <= {e["name"]: e["dtype"] for e in features}.items()
    metadata = json.loads((project / "artifacts" / "onnx_metadata.json").read_text())
    lineage = json.loads((project / "artifacts" / "lineage.json").read_text())
    assert metadata["reference_sha256"] == lineage["model_sha256"]
    assert metadata["threshold"] == pytest.approx(lineage["threshold"], abs=1e-6)


def test_parity_within_tolerance_is_exit_0_and_leaves_the_report(project):
    code, printed = parity(project)
    assert code == 0
    assert list(printed)[:6] == FIELDS
    assert printed["samples"] == 256
    assert (printed["abs_tol"], printed["mean_tol"], printed["passed"]) == (0.04, 0.01, True)
    report = json.loads((project / "artifacts" / "parity_report.json").read_text())
    assert {name: report[name] for name in FIELDS} == {name: printed[name] for name in FIELDS}


@pytest.mark.parametrize("tolerance", ["--abs-tol", "--mean-tol"])
def test_either_difference_beyond_its_tolerance_is_exit_1(project, tolerance):
    code, printed = parity(project, tolerance, "1e-12", "--batch-size", "1000")
    assert code == 1
    assert printed["samples"] == 1000
    assert printed["passed"] is False


def test_what_cannot_be_compared_is_exit_3(project):
    assert parity(project, "--model", "artifacts/nowhere.onnx")[0] == 3
    assert parity(project, "--batch-size", "1000000")[0] == 3


def test_the_quantised_file_is_compared_the_same_way(project):
    code, printed = parity(project, "--model", "artifacts/model.int8.onnx", "--abs-tol", "0.06", "--mean-tol", "0.02")
    assert (code, printed["passed"]) == (0, True)


def test_help_says_when_to_tighten_and_when_to_widen(project):
    told = " ".join(run(project, "deployment/parity_check.py", "--help").stdout.split())
    for advice in (
        "0.01 to 0.02",
        "0.005",
        "0.06 to 0.10",
        "0.02 if a few outliers",
        "256 to 512",
        "1000 or more in CI",
    ):
        assert advice in told


def test_both_backends_call_the_same_flights_late(project):
    found = {}
    for backend in ("sklearn", "onnx"):
        done = run(project, "deployment/cpu_inference.py", "--backend", backend)
        assert done.returncode == 0, done.stderr
        found[backend] = json.loads(done.stdout)
    assert found["onnx"]["rows"] == found["sklearn"]["rows"] >= 1000
    assert found["onnx"]["called_late"] == pytest.approx(found["sklearn"]["called_late"], abs=3)


def test_a_dictionary_a_row_is_compared_and_scored_too(project, tmp_path):
    folder = tmp_path / "tabular"
    shutil.copytree(project, folder)
    assert run(folder, "deployment/export_onnx.py", "--zipmap").returncode == 0
    assert parity(folder)[0] == 0
    assert run(folder, "deployment/cpu_inference.py", "--backend", "onnx").returncode == 0


def test_without_the_trees_something_is_quantised(tmp_path):
    folder = clean_copy(tmp_path / "tabular", **{"[logistic, network, trees]": "[network]", "folds: 3": "folds: 2"})
    assert started(folder, "-m", "src.train").returncode == 0
    run(folder, "deployment/export_onnx.py").expect(0)
    told = run(folder, "deployment/quantize_onnx.py").stdout
    assert "Nothing to quantise" not in told
    assert " 0 nodes changed" not in told
    assert parity(folder)[0] == 0
    assert parity(folder, "--model", "artifacts/model.int8.onnx", "--abs-tol", "0.06", "--mean-tol", "0.02")[0] == 0


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("fault", "code"), [("none", 0), ("columns", 1), ("mixed", 1)])
def test_the_service_of_the_example_is_verified_and_its_faults_are_found(tmp_path, monkeypatch, fault, code):
    folder = shutil.copytree(EXAMPLES / "serving", tmp_path / "serving")
    monkeypatch.syspath_prepend(folder)
    done = script(folder / "verify_service.py", "--fault", fault, folder=folder)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.startswith("✓" if code == 0 else "✗")


def test_the_upgrade_of_the_example_changes_answers_by_the_type_of_text():
    """Without installing anything: the two versions differ in the type that text has."""
    upgrade = EXAMPLES / "upgrade"
    changed = upgrades(pins(upgrade / "old.txt"), pins(upgrade / "new.txt"))
    assert ("pandas", "2.2.3", "3.0.1") in {(entry.name, entry.old, entry.new) for entry in changed}
    rows = pd.read_csv(upgrade / "customers.csv")
    predict = load(f"{upgrade / 'model.py'}:predict")
    as_before = rows.astype({"country": object, "plan": object})
    assert (predict(as_before) != predict(rows.astype({"country": "str", "plan": "str"}))).mean() > 0.5
