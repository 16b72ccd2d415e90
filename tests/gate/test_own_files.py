"""What a run writes never replaces what it reads, and what a user asked for is never left out without a word."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise.data.files import another, atomically
from likewise.errors import UsageError
from likewise.tasks.isolation import rooms
from likewise.tasks.settings import load_gates
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


@pytest.fixture
def own(folder, tmp_path):
    """A folder of its own, with all that a run can be made from."""
    import shutil

    import onnx
    from onnx import TensorProto, helper, numpy_helper

    for name in ("models.py", "rows.parquet"):
        shutil.copy(folder / name, tmp_path / name)
    (tmp_path / "parts").mkdir()
    for number in range(2):
        shutil.copy(folder / "rows.parquet", tmp_path / "parts" / f"{number}.parquet")
    (tmp_path / "linked.parquet").hardlink_to(tmp_path / "rows.parquet")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "code.py").write_text(MODELS)
    (tmp_path / "likewise.toml").write_text("# nothing\n")
    weight = numpy_helper.from_array(np.full((1, 1), 2.0, np.float32), "w")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    (tmp_path / "weights.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    assert onnx.load(tmp_path / "model.onnx", load_external_data=False)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "victim"),
    [
        ("rows.parquet", "models.py"),
        ("parts/*.parquet", "parts/0.parquet"),
        ("parts", "parts/1.parquet"),
        ("rows.parquet", "linked.parquet"),
        ("rows.parquet", "inside/code.py"),
        ("rows.parquet", "likewise.toml"),
        ("rows.parquet", "weights.bin"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_nothing_that_a_run_reads_is_replaced_not_even_by_force(own, data, victim, force):
    models = ("model.onnx", "inside.code:steady") if victim in ("weights.bin", "inside/code.py") else PAIR[1:3]
    before = (own / victim).read_bytes()
    words = (
        "check",
        *models,
        "--data",
        data,
        "--edge",
        "off",
        "-q",
        "--report",
        victim,
        *(["--force"] if force else []),
    )
    code, shown = run(own, *words)
    assert code == 2, shown
    assert "of this run" in shown
    assert (own / victim).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "# 🚀 My project\n\nyears of work\n"),
        ("guide.md", "## (draft) chapter\n"),
        ("samples.json", '{"samples": [1, 2, 3]}'),
        ("settings.json", '{"schema_version": 2, "mine": true}'),
        ("package.json", '{"name": "likewise", "version": "1"}'),
        ("tests.json", '{"passed": 10, "failed": 0}'),
        ("columns.json", '{"features": ["a", "b"], "target": "y"}'),
        ("notes.txt", 'see "opsets" in the docs, and "found_worst"'),
        ("other.onnx", "\x08whatever this is"),
    ],
)
def test_what_only_looks_a_little_like_ours_is_not_replaced(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert another(tmp_path / name) == "what it holds was not written by likewise"


def test_only_folders_of_our_own_commands_are_swept(tmp_path):
    for name in ("likewise.2024.results", "likewise.31337", "likewise.99999999.a_friend"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("x")
    (tmp_path / "likewise.99999999.a_friend" / rooms.NOTE).write_text("another machine")
    (tmp_path / "likewise.99999998.ours").mkdir()
    (tmp_path / "likewise.99999998.ours" / rooms.NOTE).write_text(rooms._system())
    rooms._sweep(tmp_path, "likewise.")
    assert {path.name for path in tmp_path.iterdir()} == {
        "likewise.2024.results", "likewise.31337", "likewise.99999999.a_friend",
    }  # fmt: skip


def test_what_is_no_report_is_replaced_by_force_only(own):
    (own / "notes.json").write_text('{"mine": 1}')
    (own / "away").mkdir()
    (own / "sub").mkdir()
    (own / "sub" / "out").symlink_to(own / "away")
    (own / "link.json").symlink_to(own / "away" / "target.json")
    for option, name in (("--report", "notes.json"), ("--html", "notes.json"), ("--junit", "link.json")):
        code, shown = run(own, *PAIR, option, name)
        assert code == 2, shown
        assert "is not replaced" in shown
    code, shown = run(
        own / "sub",
        *(word.replace("models.py", "../models.py") for word in PAIR[:3]),
        "--data",
        "../rows.parquet",
        "--edge",
        "off",
        "-q",
        "--report",
        "out/x.json",
    )
    assert code == 2, shown
    assert "a link leads out of this folder" in shown
    assert not any((own / "away").iterdir())
    code, shown = run(own, *PAIR, "--report", "notes.json", "--force")
    assert code == 0, shown
    for option in ("--report", "--html", "--junit", "--markdown", "--sarif"):  # and its own again and again
        for _ in range(2):
            code, shown = run(own, *PAIR, option, f"again{option}")
            assert code == 0, shown


@pytest.mark.parametrize(
    "words",
    [
        ("record", "models.py:steady", "--data", "rows.parquet", "-o", "models.py"),
        ("bench", "models.py:steady", "models.py:other", "--data", "rows.parquet", "-o", "likewise.toml"),
        ("bench", "models.py:steady", "models.py:other", "--data", "rows.parquet", "--svg", "weights.bin"),
        ("stress", "models.py:steady", "models.py:other", "--data", "rows.parquet", "-o", "rows.parquet"),
        ("stress", "models.py:steady", "models.py:other", "--data", "rows.parquet", "--report", "models.py"),
        ("export", "models.py:steady", "--data", "rows.parquet", "-o", "models.py"),
        ("quantize", "model.onnx", "-o", "weights.bin"),
        ("quantize", "model.onnx", "-o", "models.py"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_other_commands_replace_nothing_either(own, words):
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    code, shown = run(own, *words)
    assert code == 2, shown
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_a_report_is_as_private_as_the_umask_says(own, mask, mode):
    import os

    before = os.umask(mask)
    try:
        atomically(own / "new.json", b"{}")
        assert (own / "new.json").stat().st_mode & 0o777 == mode
        (own / "new.json").chmod(0o600)
        atomically(own / "new.json", b"{}")
        assert (own / "new.json").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_full_disk_is_told_and_leaves_the_old_report(own):
    """The largest file is limited to less than a report takes, as a quota does."""
    code, shown = run(own, *PAIR)
    assert code == 0, shown
    before = (own / "parity_report.json").read_bytes()
    words = ", ".join(repr(word) for word in PAIR)
    code = (
        "import resource, sys; from likewise.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.argv = ['likewise', {words}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=own, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "parity_report.json is not written" in done.stderr
    assert "File too large" in done.stderr
    assert (own / "parity_report.json").read_bytes() == before
    assert not [path for path in own.iterdir() if path.suffix == ".tmp"]


def kept_as(own, *words):
    """What is said of the old report when another pair of models is checked in its place."""
    code, shown = run(own, "check", "models.py:other", "models.py:steady", *PAIR[3:], *words)
    assert code in (0, 1), shown
    assert "models.py:other is kept as " in shown
    return shown.partition("is kept as ")[2].split()[0]


def test_an_old_report_is_moved_over_nothing_of_yours(own):
    first, second = "parity_report.models.py_other.json", "parity_report.models.py_other.2.json"
    run(own, *PAIR)
    (own / first).write_text("notes of mine")
    assert kept_as(own) == second
    assert (own / first).read_text() == "notes of mine"
    assert json.loads((own / second).read_text())["provenance"]["candidate"]["name"] == "models.py:other"


@pytest.mark.parametrize("how", ["baseline", "page", "link", "folder"])
def test_an_old_report_is_moved_over_nothing_that_a_run_reads_or_writes(own, how):
    first, second = "parity_report.models.py_other.json", "parity_report.models.py_other.2.json"
    run(own, *PAIR, "--report", "accepted.json")
    accepted = (own / "accepted.json").read_bytes()
    run(own, *PAIR)
    if how == "link":
        (own / first).symlink_to("accepted.json")
    elif how == "folder":
        (own / first).mkdir()
    else:
        (own / first).write_bytes(accepted)
    words = {"baseline": ("--baseline", first), "page": ("--markdown", first)}.get(how, ())
    assert kept_as(own, *words) == second
    assert (own / "accepted.json").read_bytes() == accepted
    assert how != "baseline" or (own / first).read_bytes() == accepted


def test_an_old_report_takes_the_place_of_an_older_one(own):
    run(own, *PAIR)
    name = kept_as(own)
    run(own, *PAIR)
    assert kept_as(own) == name == "parity_report.models.py_other.json"


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


@pytest.mark.parametrize(
    ("words", "report"),
    [(("fix", "model.onnx", "model.onnx"), "out.onnx"), (("export", "model.onnx"), "out.features.json")],
)
def test_a_report_does_not_replace_what_the_same_command_writes(own, words, report):
    """A file that was repaired was one moment later its report, and told to pass."""
    code, shown = run(own, *words, "--data", "rows.parquet", "-o", "out.onnx", "--report", report)
    assert (code, f"{report} cannot take" in shown) == (2, True), shown
    assert not (own / report).exists()


PLAIN = 'reference = "model.onnx"\ncandidate = "model.onnx"\ndata = "rows.parquet"\nallow_same = true\nedge = "off"\n'


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('reference = "models.py:steady"', "names code to run (reference = 'models.py:steady')"),
        ('candidate = "models:steady"', "names code to run (candidate = 'models:steady')"),
        ('trusted = ["*"]', "names code to run (trusted = ['*'])"),
        (
            'reference_options = {factory = "models.py:build"}',
            "names code to run (reference_options.factory = 'models.py:build')",
        ),
        ('matrix = {factory = ["models.py:build"]}', "names code to run (matrix.factory = 'models.py:build')"),
        (
            'reference_options = {command = {"/bin/sh" = 1, "-c" = 2, "touch ran" = 3}}',
            "names code to run (reference_options.command = '/bin/sh')",
        ),
        ('candidate_options = {with = {"evil @ file:evil" = 1}}', "(candidate_options.with = 'evil @ file:evil')"),
        ('reference_options = {python = {"./python" = true}}', "(reference_options.python = './python')"),
        ("reference_options = {python = true}", "names code to run (reference_options.python = 'True')"),
        ('data = "../private.csv"', "reads outside its repository (../private.csv)"),
        ('data = "../priv*.csv"', "reads outside its repository (../priv*.csv)"),
        ('candidate_options = {x = "../private.csv"}', "reads outside its repository (../private.csv)"),
        ('report = "../outside.json"', "writes outside its folder (../outside.json)"),
        ('html = "out/page.html"', "writes outside its folder (out/page.html)"),
        ('engine = "ray"\naddress = "192.0.2.1:6379"', "sends rows to a cluster (192.0.2.1:6379)"),
    ],
)
def test_the_configuration_of_a_stranger_runs_no_code(own, monkeypatch, said, told):
    monkeypatch.delenv("LIKEWISE_TRUST_CONFIG")
    (own / "models.py").write_text(f"open({str(own / 'ran')!r}, 'w')\n{MODELS}")
    (own / "out").symlink_to(own.parent)
    (own.parent / "private.csv").write_text("x\n1\n")
    lines = [line for line in PLAIN.splitlines() if line.split()[0] != said.split()[0]]
    (own / "likewise.toml").write_text("\n".join([*lines[:0], "[gates.g]", *lines, said]))
    code, shown = run(own, "check", "-q")
    assert code == 2, shown
    assert told in shown
    assert "--trust-config" in shown
    assert not (own / "ran").exists()
    assert not (own.parent / "outside.json").exists()


def test_a_configuration_is_trusted_by_the_command_or_the_environment(own, monkeypatch):
    (own / "likewise.toml").write_text(f"[gates.g]\n{GATE}")
    assert run(own, "check", "-q")[0] == 0  # LIKEWISE_TRUST_CONFIG=1, as in CI
    monkeypatch.delenv("LIKEWISE_TRUST_CONFIG")
    assert run(own, "check", "-q")[0] == 2
    assert run(own, "check", "-q", "--trust-config")[0] == 0
    (own / "likewise.toml").write_text(f'[gates.g]\ntrusted = ["mypackage.*"]\n{PLAIN}')
    assert "names code to run (trusted" in run(own, "check", "-q")[1]
    _, shown = run(own, "check", "-q", "--trust", "mypackage.*")
    assert "names code" not in shown, shown


ODD = {
    "a number of 5,000 digits": "samples = " + "9" * 5000,
    "lists within lists": "drop = " + "[" * 3000 + "]" * 3000,
    "a name that no file has": 'baseline = "a\\u0000.json"',
    "more processes than there can be": "workers = 10000000",
    "a name that is too long": f'baseline = "{"a" * 5000}.json"',
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_an_odd_configuration_is_a_usage_error(tmp_path, line):
    path = tmp_path / "likewise.toml"
    path.write_text(f'[gates.one]\nreference = "a.onnx"\ncandidate = "b.onnx"\ndata = "rows.csv"\n{line}\n')
    with pytest.raises(UsageError):
        load_gates(path)["one"].policy()


def test_a_model_within_a_model_is_a_usage_error(tmp_path):
    """It would be opened where the one inside says, at which nobody looked."""
    nested = 'reference = {model = {model = "a.onnx", command = ["true"]}}'
    (tmp_path / "likewise.toml").write_text(f'[gates.one]\n{nested}\ncandidate = "b.onnx"\ndata = "rows.csv"\n')
    with pytest.raises(UsageError, match="the model of the reference is no path"):
        load_gates(tmp_path / "likewise.toml")


def test_a_gate_that_is_no_table_is_a_usage_error(tmp_path):
    (tmp_path / "likewise.toml").write_text('[gates]\none = "model.onnx"\n')
    with pytest.raises(UsageError, match="A gate is a table"):
        load_gates(tmp_path / "likewise.toml")
