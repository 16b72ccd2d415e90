"""Many gates in one run: found or listed, each for itself, kept where nothing changed, resumed where it was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import likewise
from likewise.cli.fleet import MODEL_TIMES, PROCESS_BYTES, Memory, need
from likewise.errors import UsageError
from likewise.report import load, load_gates, render, render_gates
from likewise.report.words import gates_counted
from likewise.tasks.fleet import find
from likewise.tasks.settings import settings_from
from likewise.tasks.verify import changed
from planting import DOUBLE, command, graph, identity

QUICK = {"edge": "off", "batch_sizes": (), "explain": False}
CODE = """
import os, signal, time

import numpy as np

def dies(frame):
    os.kill(os.getpid(), signal.SIGSEGV)

def waits(frame):
    while os.path.exists("wait"):
        time.sleep(0.02)
    return {"value": frame["x"].to_numpy()}

def rolls(frame):
    return {"value": np.random.random(len(frame))}
"""
GATES = """
edge = "off"
batch_sizes = []
explain = false
data = "rows.parquet"
reference = "right.onnx"
[gates.hangs]
candidate = "code.py:waits"
timeout = 5
[gates.dies]
candidate = "code.py:dies"
[gates.good]
candidate = "near.onnx"
[gates."<b>bad"]
candidate = "wrong.onnx"
[gates.damaged]
candidate = "damaged.onnx"
[gates.rolls]
candidate = "code.py:rolls"
[gates.throws]
candidate = "code.py:rolls"
"""
DICE = ("rolls", "throws")


def plus(amount):
    """A model that adds to what it is given."""
    node = ("Add", ["x", "amount"], ["value"], {})
    return graph([node], {"x": (DOUBLE, (None, 1))}, {"value": (DOUBLE, (None, 1))}, amount=np.array([amount]))


def put(folder, **models):
    """Models and rows in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        (folder / f"{name}.onnx").write_bytes(model)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A list of gates: two that are asked for nothing unusual, and three that end badly."""
    folder = tmp_path_factory.mktemp("fleet")
    put(folder, right=identity(DOUBLE), near=plus(1e-9), wrong=plus(1.0))
    (folder / "damaged.onnx").write_bytes(b"\x08\x08\x12 no model at all")
    (folder / "code.py").write_text(CODE)
    (folder / "wait").touch()
    (folder / "gates.toml").write_text(GATES)
    pd.DataFrame({"x": np.linspace(1, 2, 40)}).to_parquet(folder / "rows.parquet")
    return folder


@pytest.fixture(scope="module")
def ran(project):
    """All of them at once, by one command."""
    return command("fleet", "gates.toml", "--trust-config", "--jobs", "3", folder=project, timeout=300)


def verdicts(folder):
    return {name: str(report.outcome) for name, report in load_gates(folder / "fleet.json").items()}


def without_times(report):
    """What does not depend on when, and where to, it was written."""
    plain = json.loads(render(report, "json"))
    for name in ("created", "digest", "run", "settings"):
        del plain["provenance"][name]
    return plain


def test_what_happens_to_one_gate_touches_no_other(project, ran):
    assert verdicts(project / "likewise-fleet") == {
        "hangs": "INCONCLUSIVE",
        "dies": "INCONCLUSIVE",
        "good": "PASS",
        "<b>bad": "FAIL",
        "damaged": "INCONCLUSIVE",
        **dict.fromkeys(DICE, "FAIL"),
    }
    assert ran.returncode == 3, ran.stderr
    told = {name: report.headline for name, report in load_gates(project / "likewise-fleet" / "fleet.json").items()}
    assert "SIGSEGV" in told["dies"]
    assert "no answer within 5 seconds" in told["hangs"]


def test_a_gate_says_what_it_says_alone_and_behind_walls(project, ran):
    alone = likewise.check(project / "right.onnx", project / "wrong.onnx", project / "rows.parquet", **QUICK)
    together = load(project / "likewise-fleet" / "_b_bad.json")
    ours, theirs = without_times(alone), without_times(together)
    for part in ("reference", "candidate", "data"):
        assert ours["provenance"][part].pop("name").endswith(theirs["provenance"][part].pop("name"))
    assert ours == theirs
    confined = [
        load(project / "likewise-fleet" / f"{name}.json").origin.run["confinement"] for name in ("good", "dies")
    ]
    assert sys.platform != "linux" or all("no network" in told for told in confined)


def test_one_table_one_page_one_document_one_junit(project, ran):
    folder = project / "likewise-fleet"
    reports = load_gates(folder / "fleet.json")
    assert (folder / "fleet.json").read_text() == render_gates(reports, "json")
    assert (folder / "fleet.junit.xml").read_text() == render_gates(reports, "junit")
    assert {name.partition(":")[0] for name in suites(folder / "fleet.junit.xml")} == set(reports)
    page = (folder / "index.html").read_text()
    links = re.findall(r'href="([^"#]+\.(?:html|json))"', page)
    assert sorted(links) == sorted(f"{name}.html" for name in ("hangs", "dies", "good", "_b_bad", "damaged", *DICE))
    assert all((folder / link).is_file() for link in links)
    assert "<b>bad" not in page
    assert "<b>bad" in unescape(page)
    assert "7 gates: 1 PASS, 3 FAIL, 3 INCONCLUSIVE." in ran.stdout
    assert sorted(re.findall(r"^\[\d/7\] [A-Z]+  ([^:]+):", ran.stderr, re.M)) == sorted(reports)


def suites(path):
    return [suite.get("name") for suite in ET.parse(path).getroot().iter("testsuite")]


def test_a_run_that_was_killed_goes_on_where_it_was(project, ran, tmp_path):
    """The first gate has ended and the second hangs when the run is killed: the first is not run again."""
    gates = GATES.replace("timeout = 5\n", "").partition("[gates.dies]")[0]
    gates = gates.replace("[gates.hangs]", '[gates.good]\ncandidate = "near.onnx"\n[gates.hangs]')
    (project / "two.toml").write_text(gates)
    words = [sys.executable, "-m", "likewise", "fleet", "two.toml", "--trust-config", "--jobs", "1", "--resume"]
    words += ["--reports", str(tmp_path)]
    with subprocess.Popen(words, cwd=project, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        seen = []
        while not any(line.startswith("[1/2] PASS") for line in seen):
            seen.append(running.stderr.readline())
            assert seen[-1], seen
        os.kill(running.pid, signal.SIGKILL)
    assert any("nothing to resume" in line for line in seen)
    before = (tmp_path / "good.json").read_bytes()
    (project / "wait").unlink()
    try:
        again = command(*words[3:], folder=project, timeout=300)
    finally:
        (project / "wait").touch()
    assert again.returncode == 0, again.stderr
    assert "[1/2] PASS, unchanged  good" in again.stderr
    assert "unchanged  hangs" not in again.stderr
    assert (tmp_path / "good.json").read_bytes() == before
    assert verdicts(tmp_path) == {"good": "PASS", "hangs": "PASS"}


def test_only_what_changed_is_run(project, ran, tmp_path):
    gates = (
        GATES.partition("[gates.hangs]")[0]
        + "[gates.good]"
        + GATES.partition("[gates.good]")[2].partition("[gates.rolls]")[0]
    )
    put(tmp_path, right=identity(DOUBLE), near=plus(1e-9), wrong=plus(1e-8))
    (tmp_path / "damaged.onnx").write_bytes((project / "damaged.onnx").read_bytes())
    (tmp_path / "rows.parquet").write_bytes((project / "rows.parquet").read_bytes())
    (tmp_path / "gates.toml").write_text(gates)
    before = project / "likewise-fleet" / "fleet.json"
    again = command("fleet", "gates.toml", "--changed-since", before, folder=tmp_path, timeout=300)
    assert verdicts(tmp_path / "likewise-fleet") == {"good": "PASS", "<b>bad": "PASS", "damaged": "INCONCLUSIVE"}
    assert re.findall(r"unchanged  (\w+)", again.stderr) == ["good"]
    assert "1 unchanged since an earlier run" in again.stdout
    kept = tmp_path / "likewise-fleet" / "good.json"
    assert kept.read_bytes() == (project / "likewise-fleet" / "good.json").read_bytes()


def test_what_keeps_a_report_from_standing(project, ran, tmp_path):
    put(tmp_path, right=identity(DOUBLE), near=plus(1e-9))
    rows = tmp_path / "rows.parquet"
    rows.write_bytes((project / "rows.parquet").read_bytes())
    table = {"reference": str(tmp_path / "right.onnx"), "candidate": str(tmp_path / "near.onnx"), "data": str(rows)}
    stored = project / "likewise-fleet" / "good.json"

    def why(report=stored, **other):
        return changed(report, settings_from({**QUICK, "batch_sizes": [], **table, **other}, where="here"))

    assert why() == ""
    assert "settings: abs_tol" in why(abs_tol=0.5)
    assert "is not identified by the hash" in why(candidate=f"{project / 'code.py'}:waits")
    assert "depends on code" in why(trusted=("*",))
    edited = tmp_path / "edited.json"
    edited.write_text(stored.read_text().replace('"samples": 40', '"samples": 41'))
    assert "changed after it was written" in why(edited)
    other = json.loads(stored.read_text())
    other["provenance"]["versions"]["onnxruntime"] = "1.0"
    other["provenance"]["digest"] = ""
    from likewise.report.formats.json import digest_of

    other["provenance"]["digest"] = digest_of(other)
    edited.write_text(json.dumps(other))
    assert "another version or machine: onnxruntime" in why(edited)
    put(tmp_path, near=plus(2e-9))
    assert "is not the candidate of the report" in why()
    put(tmp_path, near=plus(1e-9))
    pd.DataFrame({"x": np.linspace(1, 3, 40)}).to_parquet(rows)
    assert "is not the data of the report" in why()


def test_gates_are_found_by_where_their_files_lie(tmp_path):
    put(tmp_path / "eu" / "churn", model=identity(DOUBLE))
    (tmp_path / "eu" / "churn" / "model.joblib").touch()
    put(tmp_path / "us", first=identity(DOUBLE), second=identity(DOUBLE))
    for name in ("us/first.joblib", "us/second.joblib", "us/own.csv", "rows.parquet", "lonely/x.joblib"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {name: (gate.reference, gate.candidate, gate.data) for name, gate in find(tmp_path).items()}
    told = {name: tuple(os.path.relpath(path, tmp_path) for path in paths) for name, paths in found.items()}
    assert told == {
        "eu.churn": ("eu/churn/model.joblib", "eu/churn/model.onnx", "rows.parquet"),
        "lonely": ("lonely/x.joblib", "lonely/*.onnx", "rows.parquet"),
        "us.first": ("us/first.joblib", "us/first.onnx", "us/own.csv"),
        "us.second": ("us/second.joblib", "us/second.onnx", "us/own.csv"),
    }
    (tmp_path / "us" / "more.csv").touch()
    with pytest.raises(UsageError, match="several tables"):
        find(tmp_path)
    assert set(find(tmp_path, data="own.csv")) == set(told)
    with pytest.raises(UsageError, match="holds no models"):
        find(tmp_path / "lonely", reference="*.pt2")


def test_gates_run_together_as_far_as_memory_goes(tmp_path):
    large = tmp_path / "large.onnx"
    large.touch()
    os.truncate(large, 1 << 30)
    gates = {
        name: settings_from({"reference": str(path), "candidate": "none.onnx", "data": "none.csv"}, where="here")
        for name, path in (("large", large), ("larger", large), ("small", Path("none.onnx")))
    }
    assert need(gates["small"]) == PROCESS_BYTES
    assert need(gates["large"]) == PROCESS_BYTES + MODEL_TIMES * (1 << 30)
    memory = Memory(room=1.5 * need(gates["large"]))
    assert memory.next(gates, {}) == "large"
    rest = {name: gate for name, gate in gates.items() if name != "large"}
    assert memory.next(rest, {"large": None}) == "small"
    del rest["small"]
    assert memory.next(rest, {"large": None}) is None
    memory.free("large")
    assert memory.next(rest, {"small": None}) == "larger"
    assert Memory(room=0).next(rest, {}) == "larger"


def test_processes_that_are_copies_draw_numbers_of_their_own(project, ran):
    """Two models that roll dice would agree with each other, and with themselves in every gate."""
    first, second = (load(project / "likewise-fleet" / f"{name}.json").max_abs_diff for name in DICE)
    assert first is not None
    assert first != second


def test_one_gate_is_one_gate():
    assert gates_counted({"a": likewise.Outcome.FAIL}) == "1 gate: 1 FAIL"
