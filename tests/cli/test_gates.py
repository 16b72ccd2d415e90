"""Many gates: one table, one document, one file of each format; options that hold for all, and files of their own."""

from __future__ import annotations

import html
import json
import os
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pandas as pd
import pytest
from referencing import Registry, Resource
from sklearn.preprocessing import StandardScaler

import data_only
import likewise
from data_only import FLAGS
from likewise.errors import UsageError
from likewise.report import render
from likewise.report.formats.json import schema
from likewise.report.words import remedy_told
from planting import DOUBLE, command, here, identity

MODELS = """
def right(frame):
    return {"value": frame["x"].to_numpy()}

def near(frame):
    return {"value": frame["x"].to_numpy() + 1e-7}

def wrong(frame):
    return {"value": frame["x"].to_numpy() + 1.0}

def breaks(frame):
    raise ValueError("no answer today")
"""
GATES = """
reference = "models.py:right"
data = "rows.parquet"
explain = false
edge = "off"
batch_sizes = []
[gates.good]
candidate = "models.py:near"
[gates.bad]
candidate = "models.py:wrong"
[gates.gone]
candidate = "models.py:breaks"
"""


@pytest.fixture
def folder(tmp_path):
    """A project with three gates, and a folder below."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "likewise.toml").write_text(GATES)
    (tmp_path / "deep" / "down").mkdir(parents=True)
    pd.DataFrame({"x": np.linspace(1, 2, 40), "other": 0.0}).to_parquet(tmp_path / "rows.parquet")
    return tmp_path


def gates_of(text):
    """The document of many gates, valid by its published schema."""
    found = json.loads(text)
    published = Registry().with_resource("urn:likewise", Resource.from_contents(schema()))
    jsonschema.Draft202012Validator({"$ref": "urn:likewise#/$defs/Gates"}, registry=published).validate(found)
    return found


def test_many_gates_end_in_one_table_and_exit_with_the_worst(folder):
    done = here("check", folder=folder)
    assert done.returncode == 3
    end = done.stdout.split("likewise report parity_report.gone.json [--html FILE]")[1].strip().splitlines()
    assert [line.split()[:3] for line in end[1:4]] == [
        ["good", "✓", "PASS"],
        ["bad", "✗", "FAIL"],
        ["gone", "?", "INCONCLUSIVE"],
    ]
    assert end[-1] == "1 of 3 gates passes: bad is FAIL, gone is INCONCLUSIVE."
    assert max(map(len, done.stdout.splitlines())) <= 80
    two = here("check", "--gate", "good", "--gate", "bad", "-q", folder=folder)
    assert two.returncode == 1
    assert two.stdout.splitlines()[0].split() == ["gate", "verdict"]
    assert "1 of 2 gates passes: bad is FAIL." in two.stdout
    short = here("check", "--gate", "good", "--gate", "bad", folder=folder).stdout.splitlines()
    assert [line.split()[0] for line in short[-4:] if line] == ["good", "bad", "1"]
    assert len(short[-3]) == 80
    alone = here("check", "--gate", "good", folder=folder)
    assert alone.returncode == 0
    assert "gates" not in alone.stdout


def test_many_gates_are_one_json_document(folder):
    done = here("check", "--json", folder=folder)
    found = gates_of(done.stdout)
    assert (found["passed"], found["outcome"]) == (False, "INCONCLUSIVE")
    assert list(found["gates"]) == ["good", "bad", "gone"]
    for name, document in found["gates"].items():
        assert document == json.loads((folder / f"parity_report.{name}.json").read_text())
        assert document["provenance"]["settings"]["gate"] == name
    assert here("check", "--json", "-", folder=folder).stdout.count('"schema_version"') == 4
    # One gate is the document that it always was.
    alone = json.loads(here("check", "--gate", "bad", "--json", folder=folder).stdout)
    assert list(alone)[:2] == ["samples", "max_abs_diff"]
    assert alone["outcome"] == "FAIL"


def test_many_gates_are_one_junit_file_with_their_names(folder):
    done = here("check", "--junit", "all.xml", "--report", "all.json", "--sarif", "all.sarif", folder=folder)
    assert done.returncode == 3
    assert "Report: all.json, all.xml, all.sarif" in done.stdout
    root = ET.parse(folder / "all.xml").getroot()
    assert [suite.get("name").partition(":")[0] for suite in root] == ["good", "bad", "gone"]
    assert (int(root.get("failures")) > 0, root.get("errors")) == (True, "1")
    assert len(json.loads((folder / "all.sarif").read_text())["runs"]) == 3
    assert gates_of((folder / "all.json").read_text())["outcome"] == "INCONCLUSIVE"
    assert not list(folder.glob("parity_report.*"))


@pytest.mark.parametrize("words", ["--junit -", "--markdown -", "--sarif -", "--json", "--json -", "--report -"])
@pytest.mark.parametrize("models", ["", "models.py:right models.py:wrong --data rows.parquet --edge off"])
def test_what_is_printed_for_a_machine_is_alone(folder, words, models):
    done = here("check", *models.split(), *words.split(), "--no-explain", folder=folder)
    assert done.returncode == (1 if models else 3)
    assert done.stderr == ""
    if "junit" in words:
        assert len(ET.fromstring(done.stdout.encode())) >= 1
    elif "markdown" in words:
        assert done.stdout.startswith("#")
        assert " FAIL   " not in done.stdout
    else:
        json.loads(done.stdout)


def test_standard_output_is_for_one_of_them(folder):
    (folder / "quiet.toml").write_text(GATES.replace("[gates.bad]", "[gates.bad]\njunit = '-'"))
    here("check", "--config", "quiet.toml", folder=folder).expect(2, "gate 'bad' would print among the others")
    here("check", "--junit", "-", "--sarif", "-", folder=folder).expect(2, "standard output is for the junit")
    here("check", "--junit", "-", "--json", folder=folder).expect(2, "Give --junit a file")


def test_what_is_written_is_told(folder):
    done = here("check", "--gate", "good", "--reports", "out", folder=folder).expect(0)
    assert done.stdout.endswith(f"Details: out{os.sep}, or likewise report parity_report.good.json\n")
    endings = {path.name.removeprefix("good.") for path in (folder / "out").iterdir()}
    assert endings == {"html", "intoto.json", "json", "junit.xml", "md", "sarif"}
    one = here("check", "--gate", "good", "--html", "out/page.html", folder=folder).expect(0)
    assert one.stdout.endswith("Details: out/page.html, or likewise report parity_report.good.json\n")
    again = here("report", "parity_report.good.json", "--gate", "bad", folder=folder)
    again.expect(3, "parity_report.good.json is the report of gate 'good'")


def test_a_page_is_about_one_gate(folder):
    here("check", "--html", "all.html", folder=folder).expect(2, "about one gate", "--reports FOLDER")
    bad = here("check", "--gate", "bad", "--html", "bad.html", folder=folder)
    bad.expect(1, "bad.html, or likewise report parity_report.bad.json")


def test_a_file_of_many_gates_is_shown_judged_and_compared_again(folder):
    here("check", "--report", "all.json", folder=folder)
    shown = here("report", "all.json", folder=folder).expect(0, "good:", "1 of 3 gates passes")
    assert shown.stdout.count("\n FAIL   ") == 1
    here("report", "all.json", "-q", folder=folder).expect(3, "1 of 3 gates passes")
    here("report", "all.json", "--gate", "bad", "-q", folder=folder).expect(1)
    here("report", "all.json", "--gate", "goof", folder=folder).expect(3, "no gate 'goof'; did you mean 'good'?")
    written = here("report", "all.json", "--junit", "again.xml", "--markdown", "again.md", folder=folder)
    assert written.expect(0).stdout == "Wrote again.xml, again.md\n"
    assert len(ET.parse(folder / "again.xml").getroot()) == 3
    here("judge", "all.json", folder=folder).expect(3, "3 gates", "good, bad, gone")
    here("judge", "all.json", "--gate", "bad", "--abs-tol", "2", folder=folder).expect(0)
    assert likewise.load(folder / "all.json", gate="bad").outcome == "FAIL"
    # A gate is held against its namesake.
    (folder / "all.json").rename(folder / "accepted.json")
    here("check", "--gate", "good", "--baseline", "accepted.json", folder=folder).expect(0)
    alone = here(*PAIR, "--abs-tol", "2", "--baseline", "accepted.json", folder=folder)
    alone.expect(3, "many gates, and this one has no name")


def test_options_hold_for_all_gates(folder):
    found = gates_of(here("check", "--json", "--abs-tol", "2", "--samples", "7", folder=folder).stdout)["gates"]
    assert [document["outcome"] for document in found.values()] == ["PASS", "PASS", "INCONCLUSIVE"]
    assert (found["good"]["samples"], found["good"]["abs_tol"]) == (7, 2.0)


def test_limits_that_are_said_again_change_and_the_others_stay(folder):
    text = GATES.replace("[gates.good]", "abs_tol = 0.5\nlimits = { max_abs_diff = 0.5, cosine = 0.1 }\n[gates.good]")
    (folder / "likewise.toml").write_text(text)
    words = ("check", "--json", "--gate", "good")
    policy = json.loads(here(*words, "--limit", "max_abs_diff=0.25", folder=folder).stdout)["policy"]
    assert {limit["measure"]: limit["bound"] for limit in policy["limits"] if limit["explicit"]} == {
        "max_abs_diff": 0.25,
        "cosine": 0.1,
    }
    # A preset brings its own tolerances: a gate that is wide by itself does not pass as exact.
    here(*words, "--preset", "exact", folder=folder).expect(1, '"preset": "exact"')


def test_the_configuration_is_found_above_and_speaks_from_its_folder(folder):
    (folder / "likewise.toml").write_text(GATES.replace("models.py:right", "models:right"))
    pd.DataFrame({"x": np.linspace(1, 2, 9)}).to_parquet(folder / "deep" / "down" / "few.parquet")
    words = ("check", "--gate", "good", "--data", "few.parquet", "--report", "here.json")
    done = command(*words, folder=folder / "deep" / "down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == f"Gates of {os.path.join('..', '..', 'likewise.toml')}; they run in its folder.\n"
    assert json.loads((folder / "deep" / "down" / "here.json").read_text())["samples"] == 9
    own = here("check", "--gate", "good", folder=folder / "deep")
    assert f"likewise report {os.path.join('..', 'parity_report.good.json')} [" in own.stdout
    assert (folder / "parity_report.good.json").exists()


def test_a_configuration_above_the_repository_is_somebody_elses(folder):
    (folder / "deep" / ".git").mkdir()
    here("check", folder=folder / "deep" / "down").expect(2, "neither arguments nor a likewise.toml here or above")


@pytest.mark.parametrize(
    "shared", ['report = "artifacts/report.json"', 'junit = "one.xml"', 'formats = { junit = "one.xml" }']
)
def test_two_gates_do_not_write_one_file(folder, shared):
    (folder / "likewise.toml").write_text(shared + GATES)
    before = sorted(folder.rglob("*"))
    here("check", folder=folder).expect(2, "gate 'good' and gate 'bad' would write the same file")
    assert sorted(folder.rglob("*")) == before
    here("check", "--gate", "good", folder=folder).expect(0)


def test_a_gate_does_not_replace_what_another_is_made_from(folder):
    last = 'report = "rows2.parquet"\n[gates.last]\ncandidate = "models.py:near"\ndata = "rows2.parquet"\n'
    (folder / "likewise.toml").write_text(GATES + last)
    here("check", folder=folder).expect(2, "gate 'gone' cannot be written to rows2.parquet", "the data of gate 'last'")


def test_a_gate_that_makes_no_sense_does_not_stop_the_others(folder):
    (folder / "likewise.toml").write_text(GATES.replace("[gates.bad]", "[gates.bad]\ndrop = ['nosuch']"))
    done = here("check", "--gate", "good", "--gate", "bad", "--json", folder=folder)
    assert done.returncode == 2
    found = gates_of(done.stdout)["gates"]
    assert [document["outcome"] for document in found.values()] == ["PASS", "INCONCLUSIVE"]
    assert "no column 'nosuch'" in found["bad"]["headline"]


def test_a_job_of_github_gets_one_summary_and_the_names_of_what_broke(folder, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    done = here("check", folder=folder)
    assert "::error title=likewise FAIL::bad: all 40 rows differ" in done.stderr
    assert (folder / "summary.md").read_text().count("1 of 3 gates passes") == 1


PAIR = ("check", "models.py:right", "models.py:wrong", "--data", "rows.parquet", *FLAGS, "--batch-sizes", "none")


def test_many_gates_are_compared_with_their_namesakes(folder):
    here("check", "--gate", "good", "--gate", "bad", "--report", "old.json", folder=folder)
    here("check", "--report", "new.json", folder=folder)
    same = here("diff", "old.json", "old.json", folder=folder).expect(0, "good:", "bad:")
    assert same.stdout.count("NOT WORSE") == 2
    here("diff", "old.json", "new.json", "-q", folder=folder).expect(0, "The gate 'gone' is new.")
    lost = here("diff", "new.json", "old.json", "--json", folder=folder).expect(1)
    assert json.loads(lost.stdout)["gates"]["gone"]["headline"] == "the gate 'gone' is gone"
    one = here("diff", "new.json", "old.json", "--gate", "bad", "-q", folder=folder).expect(0)
    assert one.stdout == " NOT WORSE   new.json → old.json\nNothing got worse.\n"


def test_a_report_of_other_models_is_kept_where_nobody_said_that_it_should_go(folder):
    here(*PAIR, folder=folder).expect(1)
    assert here(*PAIR, folder=folder).expect(1).stderr == ""
    other = here(*(word.replace("wrong", "near") for word in PAIR), folder=folder).expect(0)
    kept = "parity_report.models.py_wrong.json"
    assert other.stderr == f"The report of models.py:right → models.py:wrong is kept as {kept}\n"
    assert likewise.load(folder / kept).outcome == "FAIL"
    assert likewise.load(folder / "parity_report.json").passed


@pytest.mark.parametrize("option", ["--report", "--html", "--junit", "--reports"])
def test_what_cannot_be_written_is_told_before_the_run(folder, option, monkeypatch):
    monkeypatch.setattr("likewise.cli.gates.watched", None)
    here(*PAIR, option, "rows.parquet/out", folder=folder).expect(2, "rows.parquet/out", "Not a directory")
    here("check", option, "rows.parquet/out", "--gate", "good", folder=folder).expect(2, "Not a directory")
    here(*PAIR, "--junit", "deep", folder=folder).expect(2, "deep cannot be written: it is a folder")


def test_a_report_that_nobody_asked_for_is_left_out_of_a_folder_that_takes_none(folder):
    models = (f"{folder}/models.py:right", f"{folder}/models.py:near", "--data", f"{folder}/rows.parquet", *FLAGS)
    done = here("check", *models, folder="/proc/self")
    done.expect(0, "PASS", "the verdict is shown and not kept; --report FILE keeps it")
    assert "Report:" not in done.stdout


def test_a_verdict_is_shown_although_its_report_cannot_be_written(folder, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("likewise.data.files.atomically", full)
    here(*PAIR, folder=folder).expect(1, "FAIL", "Error: parity_report.json is not written: No space left")
    here(*(word.replace("wrong", "near") for word in PAIR), folder=folder).expect(3, "PASS", "No space left")
    done = here("check", "--gate", "good", "--json", folder=folder).expect(3, "No space left")
    assert json.loads(done.stdout)["passed"] is True
    with pytest.warns(UserWarning, match="the report was not written to .*No space left"):
        assert data_only.check(lambda x: x, lambda x: x, np.arange(9.0), report=folder / "a.json").passed


UNKNOWN = ("--drop=nosuch", "--id=nosuch", "--stratify=nosuch", "--feed=x=nosuch", "--feed=nosuch=x")


@pytest.mark.parametrize("option", UNKNOWN)
def test_a_column_that_is_not_there_makes_no_sense_wherever_it_is_named(folder, option):
    (folder / "model.onnx").write_bytes(identity(DOUBLE))
    models = ("model.onnx", "models.py:near", "--data", "rows.parquet")
    here("check", *models, *FLAGS, option, folder=folder).expect(2, "there is no ", "'nosuch'")
    if "stratify" not in option:
        here("noise", "model.onnx", "--data", "rows.parquet", option, folder=folder).expect(2, "'nosuch'")
        here("record", "model.onnx", *models[2:], option, "-o", "a.parquet", folder=folder).expect(2, "'nosuch'")
    assert not list(folder.glob("parity_report*"))


def test_a_column_that_is_not_there_makes_no_sense_in_a_configuration_either(folder):
    for line in ("drop = ['nosuch']", "id = 'nosuch'", "stratify = 'nosuch'"):
        (folder / "likewise.toml").write_text(GATES.replace("[gates.good]", f"[gates.good]\n{line}"))
        here("check", "--gate", "good", folder=folder).expect(2, "there is no column 'nosuch'")


def test_a_terminal_that_cannot_move_its_cursor_is_written_to_plainly(monkeypatch):
    from likewise.cli import gates
    from likewise.tasks.isolation import supervisor

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert gates.colour()
    assert supervisor._ProgressLine(shown=True)._shown
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not gates.colour()
            assert not supervisor._ProgressLine(shown=True)._shown


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_what_is_printed_beside_a_report_has_no_colour_either(tmp_path, monkeypatch, variable):
    import click

    from likewise.cli import likewise as program

    monkeypatch.setenv(variable, "dumb")
    seen = []
    monkeypatch.setattr(program, "main", lambda **given: seen.append(given["color"]) or 0)
    here("--version", folder=tmp_path)
    assert seen == [False]
    assert click.unstyle("plain") == "plain"


def test_an_inconclusive_verdict_keeps_its_remedy_where_it_is_short(folder):
    words = ("check", "models.py:right", "nowhere.onnx", "--data", "rows.parquet", *FLAGS)
    told = here(*words, "-q", folder=folder).expect(3).stdout
    report = likewise.load(folder / "parity_report.json")
    (remedy,) = {finding.remedy for finding in report.verdict.findings if finding.message == report.headline}
    assert remedy
    assert remedy in " ".join(told.split())


@pytest.mark.parametrize("format", ["terminal", "markdown", "junit", "html"])
@pytest.mark.parametrize("explain", [False, True])
def test_why_nothing_could_be_told_is_told_once(tmp_path, format, explain):
    (tmp_path / "cut.onnx").write_bytes(identity(DOUBLE)[:-30])
    report = data_only.check(lambda x: x, tmp_path / "cut.onnx", np.arange(9.0), explain=explain)
    assert report.outcome == "INCONCLUSIVE"
    assert report.diagnoses or not explain
    cause = report.headline.rpartition(": ")[2]
    shown = html.unescape(render(report, format)).replace("\\", "")
    told = {"junit": 3, "html": 2 if explain else 1}.get(format, 1)  # JUnit has it as message, text and output
    assert " ".join(shown.split()).casefold().count(cause.casefold()) <= told
    remedies = {finding.remedy for finding in report.verdict.findings if finding.message == report.headline}
    for remedy in [remedy_told(report.diagnoses[0])] if explain else remedies:
        assert remedy in " ".join(shown.split())


def test_a_file_or_a_column_that_is_missing_is_told_once(tmp_path):
    takes = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0], "z": [5.0, 6.0]})
    scaler = StandardScaler().fit(takes)
    for candidate, data, told in ((tmp_path / "gone.onnx", takes, "gone.onnx"), (lambda x: x, takes[["x", "z"]], "y")):
        report = data_only.check(scaler, candidate, data, explain=True)
        assert report.diagnoses
        for format in ("terminal", "markdown"):
            shown = render(report, format, width=1000).replace("\\", "")
            assert shown.count("no file") + shown.count("does not have") == 1, shown
            assert told in shown
            assert remedy_told(report.diagnoses[0]) in shown
            assert "experiment" not in shown


def test_rows_that_are_too_few_are_not_looked_into(tmp_path):
    report = data_only.check(lambda x: x, lambda x: x + 1e-9, np.arange(9.0), samples=20, explain=True)
    assert "20 rows were expected" in report.headline
    assert report.explanation is None


# The same from Python.


def test_a_timeout_is_refused_where_nothing_could_keep_it():
    with pytest.raises(UsageError, match="likewise check"):
        data_only.check(lambda x: x, lambda x: x, np.arange(9.0), timeout=5)


def test_a_report_is_saved_as_its_name_says(tmp_path):
    report = data_only.check(lambda x: x, lambda x: x + 1, np.arange(9.0))
    assert report.headline == report.verdict.headline
    begins = {"a.json": "{", "a.html": "<!", "a.md": "##", "a.junit.xml": "<?xml", "a.xml": "<?xml", "a.sarif": "{"}
    for name, beginning in {**begins, "a.txt": " FAIL"}.items():
        report.save(tmp_path / name)
        assert (tmp_path / name).read_text().startswith(beginning), name
    assert likewise.load(tmp_path / "a.json").outcome == "FAIL"
    report.save(str(tmp_path / "page"), format="html")
    assert (tmp_path / "page").read_bytes() == (tmp_path / "a.html").read_bytes()
    with pytest.raises(UsageError, match="does not say in which format"):
        report.save(tmp_path / "page.pdf")


def test_check_writes_the_formats_it_is_asked_for(tmp_path):
    files = {"html": tmp_path / "a.html", "junit": str(tmp_path / "a.xml"), "report": tmp_path / "a.txt"}
    data_only.check(lambda x: x, lambda x: x, np.arange(9.0), allow_same=True, **files)
    assert (tmp_path / "a.html").read_text().startswith("<!")
    assert (tmp_path / "a.xml").read_text().startswith("<?xml")
    assert likewise.load(tmp_path / "a.txt").passed
    with pytest.raises(UsageError, match="did you mean 'html'"):
        data_only.check(lambda x: x, lambda x: x, np.arange(9.0), htlm="a.html")
