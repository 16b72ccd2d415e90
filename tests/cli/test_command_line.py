"""The command line as people use it: what is printed, where, in how many columns."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from data_only import FLAGS
from planting import command, here

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def failed(example_folder, tmp_path_factory):
    """A failed check in processes of its own, its output and its report."""
    report = tmp_path_factory.mktemp("failed") / "artifacts" / "report.json"
    data = ["--data", "test.parquet", "--report", report, "--explain-budget", "30"]
    return command("check", "model.joblib", "model.int8.onnx", *data, folder=example_folder), report


def test_a_summary_fits_eighty_columns_and_a_pipe_gets_no_control_codes(failed):
    done, _ = failed
    assert done.returncode == 1
    assert ESCAPE not in done.stdout
    assert "\r" not in done.stdout
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_summary_says_outcome_limit_beside_measure_worst_rows_and_where_the_report_is(failed):
    done, report = failed
    found = json.loads(report.read_text())
    assert done.stdout.startswith(" FAIL   model.joblib → model.int8.onnx")
    assert "probabilities  mismatch_rate" in done.stdout
    worst = next(row for row in found["worst_rows"] if row["output"] == "probabilities")
    assert f"row {worst['row']}: " in done.stdout
    assert "--preset quantized" in done.stdout
    assert f"likewise report{report}" in done.stdout.replace("\n", "").replace("report ", "report")


def test_the_report_begins_with_the_fields_teams_already_read(failed):
    _, report = failed
    names = list(json.loads(report.read_text()))
    assert names[:7] == ["samples", "max_abs_diff", "mean_abs_diff", "abs_tol", "mean_tol", "passed", "outcome"]


@pytest.mark.parametrize("forged", [{}, {"closeness": {"magnitudes": [{"exponent": {}}] * 2}}, None, "deep"])
@pytest.mark.parametrize(
    "words", [("judge", "f.json", "--abs-tol", "9"), ("diff", "f.json", "f.json"), ("report", "f.json")]
)
def test_a_report_that_somebody_changed_is_told(failed, tmp_path, words, forged):
    report = json.loads(failed[1].read_text())
    for output in report["outputs"]:
        output["details"] = forged
    deep = '{"schema_version": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / "f.json").write_text(deep if forged == "deep" else json.dumps(report))
    ran = here(*words, folder=tmp_path)
    told = "a report holds what likewise did not write" in ran.stderr or "f.json is not" in ran.stderr
    assert told or ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_finished_run_is_judged_again_without_the_models(failed, tmp_path):
    _, report = failed
    before = report.read_bytes()
    again = here("judge", report, "--preset", "quantized", "-o", "again.json", folder=tmp_path)
    assert again.returncode == 0, again.stdout
    assert json.loads((tmp_path / "again.json").read_text())["passed"] is True
    tighter = here("judge", report, "--abs-tol", "0.0001", "-q", folder=tmp_path)
    assert tighter.returncode == 1
    assert "'probabilities' differs by up to 0.0206, and 0.0001 is allowed" in " ".join(tighter.stdout.split())
    assert report.read_bytes() == before


def test_json_on_standard_output_is_the_report(example_folder, tmp_path):
    report = tmp_path / "report.json"
    words = ["--data", "test.parquet", "--samples", "100", "--json", "--report", report, *FLAGS]
    done = here("check", "model.joblib", "model.onnx", *words, folder=example_folder)
    assert done.returncode == 0
    assert done.stdout == report.read_text()
    assert json.loads(done.stdout)["samples"] == 100


def on_a_terminal(words, cwd, **environment):
    """Run a command with standard output and error on a pseudo-terminal; returns what it printed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "likewise", *map(str, words)],
        cwd=cwd,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        printed += part
    process.wait()
    os.close(leader)
    return process.returncode, printed.decode()


def test_a_terminal_gets_colour_and_progress_unless_no_color_is_set(example_folder, tmp_path):
    words = [
        "check",
        "model.onnx",
        "model.onnx",
        "--allow-same",
        "--data",
        "test.parquet",
        "--report",
        tmp_path / "r.json",
        *FLAGS,
    ]
    code, printed = on_a_terminal([*words, "--edge", "report"], example_folder)
    assert code == 0
    assert f"{ESCAPE}[" in printed
    assert "loading the reference" in printed
    # The verdict is seen before what cannot change it is tried.
    assert "PASS · trying the edge suite" in printed
    code, plain = on_a_terminal([*words, "--quiet"], example_folder, NO_COLOR="1")
    assert code == 0
    assert ESCAPE not in plain


def test_init_writes_a_configuration_that_check_runs(example_folder, tmp_path):
    done = here("init", folder=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / ".github" / "workflows" / "likewise.yml").exists()
    assert here("init", folder=tmp_path).returncode == 2
    text = (tmp_path / "likewise.toml").read_text()
    text = text.replace("artifacts/model", f"{example_folder}/model").replace("data/test", f"{example_folder}/test")
    (tmp_path / "likewise.toml").write_text(text.replace("# samples = 1000 ", "samples = 1000 "))
    checked = here("check", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert json.loads((tmp_path / "artifacts" / "parity_report.json").read_text())["samples"] == 1000


def test_every_gate_is_run_and_the_worst_outcome_counts(example_folder, tmp_path):
    gate = "reference = '{0}/model.onnx'\ncandidate = '{0}/{1}'\ndata = '{0}/test.parquet'\nsamples = 50\n"
    gate += "explain = false\nallow_same = true\nedge = 'off'\n"
    gates = {"good": "model.onnx", "int8": "model.int8.onnx", "gone": "nowhere.onnx"}
    tables = [f"[tool.likewise.gates.{name}]\n" + gate.format(example_folder, file) for name, file in gates.items()]
    (tmp_path / "pyproject.toml").write_text("\n".join(tables))
    done = here("check", folder=tmp_path)
    assert done.returncode == 3
    outcomes = {name: json.loads((tmp_path / f"parity_report.{name}.json").read_text())["outcome"] for name in gates}
    assert outcomes == {"good": "PASS", "int8": "FAIL", "gone": "INCONCLUSIVE"}
    assert here("check", "--gate", "int8", "-q", folder=tmp_path).returncode == 1
    missing = here("check", "--gate", "in8", folder=tmp_path)
    assert missing.returncode == 2
    assert "did you mean 'int8'" in missing.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gates.a]\nreference='a'\ncandidate='b'\ndata='c'\nabs_toll=1\n", "did you mean 'abs_tol'"),
        ("[gates.a]\nreference='a'\ncandidate='b'\n", "'data' is missing"),
        ("[gates.a]\nreference='a'\ncandidate='b'\ndata='c'\nabs_tol='wide'\n", "abs_tol"),
        ("[gates.a]\nreference='a'\ncandidate='b'\ndata='c'\nabs_tol=-1\n", "--abs-tol is -1"),
        ("preset='strict'\n", "names no gate"),
        ("[gates", "cannot be read as TOML"),
    ],
)
def test_a_wrong_configuration_is_a_usage_error_that_names_the_place(main, tmp_path, text, message):
    (tmp_path / "likewise.toml").write_text(text)
    done = main("check").expect(2)
    assert message in done.stderr


def test_nothing_to_check_is_a_usage_error_that_says_what_to_do(tmp_path):
    done = here("check", folder=tmp_path)
    assert done.returncode == 2
    assert "likewise init" in done.stderr


def test_record_then_check_without_the_framework(example_folder, tmp_path):
    golden = tmp_path / "golden.parquet"
    done = here("record", "model.joblib", "--data", "test.parquet", "-o", golden, folder=example_folder)
    assert done.returncode == 0
    assert "3,000 rows" in done.stdout
    words = ["--data", "test.parquet", "--report", tmp_path / "r.json", "-q", *FLAGS]
    assert here("check", golden, "model.onnx", *words, folder=example_folder).returncode == 0


def test_inspect_shows_inputs_outputs_classes_and_operators(example_folder):
    done = here("inspect", "model.onnx", folder=example_folder)
    assert done.returncode == 0
    assert "income  float32 (n, 1)" in done.stdout
    assert "classes 'approved', 'declined'" in done.stdout
    assert "MatMul 2" in done.stdout
    joblib = here("inspect", "model.joblib", "--json", folder=example_folder)
    assert json.loads(joblib.stdout)["framework"] == "sklearn"
    assert here("inspect", "nowhere.onnx", folder=example_folder).returncode == 3
