"""The CI examples are valid, and their commands gate the embedded example as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from planting import here

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"


def github():
    (job,) = yaml.safe_load((EXAMPLES / "github.yml").read_text())["jobs"].values()
    return job


def gitlab():
    return yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["parity"]


def commands(name):
    lines = [step["run"] for step in github()["steps"] if "run" in step] if name == "github" else gitlab()["script"]
    found = [line for line in lines if line.startswith("likewise ")]
    assert found
    return found


@pytest.fixture
def folder(example_folder, tmp_path):
    for name in ("model.joblib", "model.onnx", "test.parquet"):
        shutil.copy(example_folder / name, tmp_path)
    shutil.copy(EXAMPLES / "likewise.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_commands_pass_on_the_example_and_leave_both_reports(name, folder):
    for command in commands(name):
        here(*shlex.split(command)[1:], folder=folder).expect(0)
    reports = {
        gate: json.loads((folder / "reports" / f"parity_report.{gate}.json").read_text()) for gate in ("fp32", "int8")
    }
    assert all(report["passed"] for report in reports.values())
    assert reports["fp32"]["abs_tol"] < reports["int8"]["abs_tol"]
    assert reports["int8"]["samples"] == reports["fp32"]["samples"] == 3_000


def test_a_file_that_answers_otherwise_fails_the_gate(folder):
    shutil.copy(folder / "model.onnx", folder / "model.int8.onnx")
    here("quantize", "model.onnx", "-o", "model.onnx.new", "--no-check", folder=folder).expect(0)
    (folder / "model.onnx.new").rename(folder / "model.onnx")
    here("check", "--gate", "fp32", "-q", "--no-explain", folder=folder).expect(1)


def test_the_reports_are_kept_also_when_a_gate_fails():
    upload = github()["steps"][-1]
    assert upload["if"] == "always()"
    assert upload["with"]["path"] == "reports/"
    kept = {"when": "always", "paths": ["reports/"], "reports": {"junit": "reports/*.junit.xml"}}
    assert gitlab()["artifacts"] == kept
