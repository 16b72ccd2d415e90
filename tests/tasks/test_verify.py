"""A report belongs to its files, is as it was written, and holds when it is run again; or that is said."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

import likewise
from data_only import FLAGS
from likewise.report import render
from likewise.tasks.check import investigate
from likewise.tasks.checkpoints import Checkpoint
from likewise.tasks.settings import settings_from
from likewise.tasks.verify import _model, changed
from planting import here

RUN = ("check", "model.joblib", "model.onnx", "--data", "rows.npz", *FLAGS, "--batch-sizes", "none")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A fitted model, its export, rows, a report and its statement."""
    folder = tmp_path_factory.mktemp("evidence")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)).astype(np.float32)
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    joblib.dump(model, folder / "model.joblib")
    (folder / "model.onnx").write_bytes(to_onnx(model, X[:1], options={"zipmap": False}).SerializeToString())
    np.savez(folder / "rows.npz", X=X)
    here(*RUN, "--statement", "record.intoto.json", folder=folder).expect(0)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def edited(folder, change, name="parity_report.json"):
    path = folder / name
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found, indent=2))


FILES = ("--reference", "model.joblib", "--candidate", "model.onnx", "--data", "rows.npz")
ALL = (*FILES, "--statement", "record.intoto.json")


def test_a_statement_names_every_file_by_what_sha256sum_prints(folder):
    found = json.loads((folder / "record.intoto.json").read_text())
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert [(entry["name"], entry["digest"]["sha256"]) for entry in found["subject"]] == [
        ("model.onnx", sha256(folder / "model.onnx"))
    ]
    used = {entry["name"]: entry.get("digest", {}).get("sha256") for entry in found["predicate"]["configuration"]}
    assert {name: used[name] for name in ("model.joblib", "rows.npz", "parity_report.json")} == {
        name: sha256(folder / name) for name in ("model.joblib", "rows.npz", "parity_report.json")
    }
    assert found["predicate"]["result"] == "PASSED"
    assert found["predicate"]["failedTests"] == []
    assert "probabilities.mismatch_rate within 0" in found["predicate"]["passedTests"]


def test_what_does_not_pass_is_stated_as_failed(folder):
    broken = onnx.load(folder / "model.onnx")
    for node in broken.graph.node:
        for attribute in node.attribute:
            if attribute.name == "coefficients":
                attribute.floats[0] += 1.0
    onnx.save(broken, folder / "broken.onnx")
    told = ("--report", "broken.json", "--statement", "broken.intoto.json")
    here("check", "model.joblib", "broken.onnx", "--data", "rows.npz", *FLAGS, *told, folder=folder).expect(1)
    assert json.loads((folder / "broken.intoto.json").read_text())["predicate"]["result"] == "FAILED"
    here("verify", "broken.json", "--candidate", "broken.onnx", folder=folder).expect(1, "VERIFIED: broken.json, FAIL")
    gone = ("--report", "gone.json", "--statement", "gone.intoto.json")
    here("check", "model.joblib", "gone.onnx", "--data", "rows.npz", *FLAGS, *gone, folder=folder).expect(3)
    assert json.loads((folder / "gone.intoto.json").read_text())["predicate"]["result"] == "FAILED"


def test_a_report_beside_its_own_files_is_verified(folder):
    said = here("verify", "parity_report.json", *ALL, folder=folder)
    said.expect(0, "VERIFIED: parity_report.json, PASS", "as it was written", "model.onnx is the candidate")
    assert "✗" not in said.stdout
    assert "?" not in said.stdout
    said = json.loads(here("verify", "parity_report.json", *ALL, "--json", folder=folder).stdout)
    assert said["verified"] is True
    found = likewise.verify(folder / "parity_report.json", candidate=folder / "model.onnx")
    assert found.holds is True


def test_another_layout_of_the_same_report_is_the_same_report(folder):
    path = folder / "parity_report.json"
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")))
    here("verify", "parity_report.json", *FILES, folder=folder).expect(0, "as it was written")


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(samples=8000),
        lambda found: found["provenance"]["candidate"].update(sha256="0" * 64),
        lambda found: found["findings"].append({"code": "x", "severity": "note", "message": "y"}),
        lambda found: found["provenance"]["machine"].update(cores=64),
    ],
)
def test_a_report_that_was_changed_is_not_verified(folder, change):
    edited(folder, change)
    here("verify", "parity_report.json", folder=folder).expect(1, "NOT VERIFIED", "was changed after it was written")


def test_a_key_that_stands_twice_is_a_change(folder):
    path = folder / "parity_report.json"
    path.write_text(path.read_text().replace('"passed": true,', '"passed": false, "passed": true,', 1))
    here("verify", "parity_report.json", folder=folder).expect(3, "names something twice")


def test_a_verdict_that_does_not_follow_is_found_with_a_right_digest_too(folder):
    from likewise.report.formats.json import digest_of

    def forge(found):
        found["checks"] = []
        found["policy"]["limits"] = [
            {**limit, "bound": -1.0} if limit["measure"] == "mismatch_rate" else limit
            for limit in found["policy"]["limits"]
        ]
        found["provenance"]["digest"] = ""
        found["provenance"]["digest"] = digest_of(found)

    edited(folder, forge)
    said = here("verify", "parity_report.json", folder=folder)
    said.expect(1, "as it was written", "figures and limits in the report give FAIL, not PASS")


@pytest.mark.parametrize("name", ["model.joblib", "model.onnx", "rows.npz"])
def test_another_file_is_named(folder, name):
    if name == "rows.npz":
        np.savez(folder / name, **{key: array[::-1] for key, array in np.load(folder / name).items()})
    else:
        with (folder / name).open("ab") as file:
            file.write(b"\0")
    option = {"model.joblib": "--reference", "model.onnx": "--candidate", "rows.npz": "--data"}[name]
    here("verify", "parity_report.json", option, name, folder=folder).expect(1, f"{name} is not the", "of the report")


def test_weights_beside_the_graph_belong_to_it(folder):
    model = onnx.load(folder / "model.onnx")
    weights = numpy_helper.from_array(np.arange(2000, dtype=np.float32), "extra")
    model.graph.initializer.append(weights)
    model.graph.node.append(onnx.helper.make_node("Identity", ["extra"], ["extra_out"]))
    onnx.save(model, folder / "beside.onnx", save_as_external_data=True, location="beside.bin", size_threshold=0)
    here("check", "model.joblib", "beside.onnx", "--data", "rows.npz", *FLAGS, folder=folder).expect(0)
    here("verify", "parity_report.json", "--candidate", "beside.onnx", folder=folder).expect(0)
    (folder / "beside.bin").write_bytes((folder / "beside.bin").read_bytes()[:-4] + b"\0\0\0\1")
    here("verify", "parity_report.json", "--candidate", "beside.onnx", folder=folder).expect(1, "beside.bin is not")


def test_a_statement_of_another_run_is_found(folder):
    here(*RUN, "--preset", "strict", "--statement", "strict.intoto.json", folder=folder).expect(0)
    said = here("verify", "parity_report.json", "--statement", "record.intoto.json", folder=folder)
    said.expect(1, "does not name", "the limits")
    (folder / "no.json").write_text('{"_type": 1}')
    here("verify", "parity_report.json", "--statement", "no.json", folder=folder).expect(3, "not an in-toto statement")


def test_a_report_without_a_digest_is_undecided(folder):
    edited(folder, lambda found: found["provenance"].pop("digest"))
    here("verify", "parity_report.json", folder=folder).expect(3, "UNDECIDED", "older likewise")


def test_a_live_model_cannot_be_verified(folder):
    X = {"X": np.zeros((4, 3), dtype=np.float32)}
    model = joblib.load(folder / "model.joblib")
    likewise.check(model, folder / "model.onnx", X, explain=False, report=folder / "live.json")
    here("verify", "live.json", "--reference", "model.joblib", folder=folder).expect(3, "live object")
    here("replay", "live.json", folder=folder).expect(
        2, "the reference of the report is not a file", "--reference FILE"
    )


def test_a_run_holds_when_it_is_run_again(folder):
    before = (folder / "parity_report.json").read_bytes()
    here("replay", "parity_report.json", folder=folder).expect(0, "HOLDS: PASS, again")
    assert (folder / "parity_report.json").read_bytes() == before


def test_figures_that_do_not_hold_are_named(folder):
    edited(folder, lambda found: found.update(mean_abs_diff=0.5))

    def worse(found):
        found["outputs"][0]["measures"]["mean_abs_diff"] = 0.5

    edited(folder, worse)
    said = here("replay", "parity_report.json", folder=folder)
    said.expect(1, "DOES NOT HOLD: PASS, again", "mean_abs_diff was 0.5")


def test_a_verdict_that_does_not_hold_is_told(folder):
    edited(folder, lambda found: found.update(outcome="FAIL", passed=False))
    here("replay", "parity_report.json", folder=folder).expect(1, "DOES NOT HOLD: PASS, it was FAIL")


def test_another_model_is_not_replayed(folder):
    model = onnx.load(folder / "model.onnx")
    model.doc_string = "another"
    onnx.save(model, folder / "model.onnx")
    here("replay", "parity_report.json", folder=folder).expect(3, "model.onnx is another file than the candidate")


def test_code_that_a_report_names_is_not_run(folder):
    (folder / "code.py").write_text("def f(X):\n    return X[:, 0]\n\ndef g(X):\n    return X[:, 0]\n")
    here("check", "code.py:f", "code.py:g", "--data", "rows.npz", *FLAGS, folder=folder).expect(0)
    here("replay", "parity_report.json", folder=folder).expect(2, "names code to run", "--trust-report")
    here("replay", "parity_report.json", "--trust-report", folder=folder).expect(0, "HOLDS")


@pytest.mark.parametrize("name", ["command", "with", "python"])
def test_a_table_that_a_report_holds_in_the_place_of_a_command_is_not_run(folder, name):
    """Where words are expected, a table is gone through by its names, which were not looked at."""
    said = {name: {"/bin/sh": 1, "-c": 1, f"touch {folder}/ran": 1}}
    edited(folder, lambda found: found["provenance"]["settings"].update(reference_options=said))
    here("replay", "parity_report.json", folder=folder).expect(2, "names code to run", "--trust-report")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("said", [{"id": 7}, {"ignore": [7]}, {"pair": {"y": 3}}, {"preset": ["x"]}, {"causes": 5}])
def test_settings_of_a_report_that_are_of_another_kind_are_told(folder, said):
    edited(folder, lambda found: found["provenance"]["settings"].update(said))
    here("replay", "parity_report.json", folder=folder).expect(2, f"the report: {next(iter(said))}")


def test_a_run_that_is_replayed_writes_nothing(folder):
    """Formats stand among the settings of a report by their names, and a stranger's report may name any file."""
    edited(folder, lambda found: found["provenance"]["settings"].update(html="page.html", statement="told.json"))
    here("replay", "parity_report.json", folder=folder).expect(0, "HOLDS")
    assert not (folder / "page.html").exists()
    assert not (folder / "told.json").exists()


def test_without_other_batches_a_run_is_replayed_without_them(folder):
    stored = json.loads((folder / "parity_report.json").read_text())
    assert stored["provenance"]["settings"]["batch_sizes"] == []
    assert stored["batch_sizes"] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="signing is shown with openssl, which is not here")
def test_a_statement_is_signed_and_verified_offline_as_the_guide_shows(folder):
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "evidence.md").read_text()
    lines = [shlex.split(line) for line in re.findall(r"^openssl .*$", guide, re.M)]
    assert [words[1] for words in lines] == ["genpkey", "pkey", "pkeyutl", "pkeyutl"]
    for words in lines:
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    edited(folder, lambda found: found["predicate"].update(result="PASSED "), "record.intoto.json")
    assert subprocess.run(lines[-1], cwd=folder, check=False, capture_output=True).returncode != 0


FORGED = {
    "another subject": lambda found: found.update(subject=[{"name": "evil.onnx", "digest": {"sha256": "e" * 64}}]),
    "one more subject": lambda found: found["subject"].append({"name": "evil.onnx", "digest": {"sha256": "e" * 64}}),
    "failed tests": lambda found: found["predicate"].update(failedTests=["all of them"]),
    "another result": lambda found: found["predicate"].update(result="WARNED"),
    "more that passed": lambda found: found["predicate"].update(passedTests=["a review by people"]),
    "fewer warnings": lambda found: found["predicate"].update(warnedTests=["none"]),
    "another headline": lambda found: found["predicate"]["configuration"][-2]["annotations"].update(headline="x"),
    "more data": lambda found: found["predicate"]["configuration"].append(
        {"name": "all customers", "digest": {"sha256": "e" * 64}, "annotations": {"role": "data"}}
    ),
    "data as the reference": lambda found: found["predicate"]["configuration"][0]["annotations"].update(role="data"),
    "the name of another candidate": lambda found: found["subject"][0].update(name="production.onnx"),
    "a digest of another kind": lambda found: found["subject"][0]["digest"].update(sha512="e" * 128),
    "what nobody states": lambda found: found["predicate"].update(url="https://example.com/approved"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_statement_that_was_changed_is_not_verified(folder, name):
    edited(folder, FORGED[name], "record.intoto.json")
    here("verify", "parity_report.json", "--statement", "record.intoto.json", folder=folder).expect(1, "NOT VERIFIED")


def test_a_gate_is_verified_by_its_own_digest(folder):
    right = json.loads((folder / "parity_report.json").read_text())
    changed = {**right, "samples": 8000}
    gates = {"passed": True, "outcome": "PASS", "headline": "x", "schema_version": right["schema_version"]}
    right["provenance"]["settings"]["gate"] = changed["provenance"]["settings"]["gate"] = "other"
    (folder / "gates.json").write_text(json.dumps({**gates, "gates": {"prod": changed, "other": right}}))
    here("verify", "gates.json", "--gate", "prod", folder=folder).expect(1, "NOT VERIFIED", "was changed")


def test_what_stands_first_follows_from_the_rest(folder):
    """Who reads `passed` reads no further, and a new digest is easily made."""
    from likewise.report.formats.json import digest_of

    def forge(found):
        found["samples"] += 1
        found["provenance"]["digest"] = ""
        found["provenance"]["digest"] = digest_of(found)

    right = json.loads((folder / "parity_report.json").read_text())
    edited(folder, forge)
    here("verify", "parity_report.json", folder=folder).expect(1, "NOT VERIFIED", "not what it holds: samples")
    gates = {"passed": False, "outcome": "FAIL", "headline": "x", "schema_version": right["schema_version"]}
    (folder / "gates.json").write_text(json.dumps({**gates, "gates": {"prod": right}}))
    here("verify", "gates.json", folder=folder).expect(1, "NOT VERIFIED", "the verdict of all gates")


def test_weights_are_looked_for_in_the_folder_of_the_model(folder, tmp_path_factory):
    from likewise.report.formats.json import digest_of

    canary = tmp_path_factory.mktemp("outside") / "canary"
    canary.write_text("canary")

    def forge(found):
        found["provenance"]["candidate"]["details"]["external_data"] = {str(canary): sha256(canary)}
        found["provenance"]["digest"] = ""
        found["provenance"]["digest"] = digest_of(found)

    edited(folder, forge)
    here("verify", "parity_report.json", "--candidate", "model.onnx", folder=folder).expect(1, "outside the folder")


NET = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
"""


def test_what_builds_a_network_belongs_to_it(tmp_path, monkeypatch):
    """Its weights are half of it: other code around the same weights is another model, and answers otherwise."""
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "net.py"
    code.write_text(NET)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    torch.save(network.state_dict(), "w.pt")
    np.savez("rows.npz", x=np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    table = {"reference": "w.pt", "candidate": "w.pt", "data": "rows.npz", "report": "r.json", "allow_same": True}
    table |= {f"{side}_options": {"factory": "net.py:make"} for side in ("reference", "candidate")}
    settings = settings_from({**table, "edge": "off", "explain": False}, where="here")
    states = []
    report, _ = investigate(settings, checkpoint=Checkpoint(settings, states.append, every=0))
    assert report.passed, report.headline
    Path("r.json").write_text(render(report, "json"))
    Path("kept").write_bytes(states[-1])
    here("verify", "r.json", "--candidate", "w.pt", folder=tmp_path).expect(0, "net.py:make")
    assert likewise.verify("r.json", candidate="w.pt").holds is True
    assert "names a file or code" in changed("r.json", settings)

    def resumed():
        kept = Checkpoint(settings, lambda _: None, every=1e9, old=Path("kept"))
        investigate(settings, checkpoint=kept)
        return kept.said

    assert "Resumed" in resumed()
    code.write_text(NET.replace("ReLU", "Sigmoid"))
    here("verify", "r.json", "--candidate", "w.pt", folder=tmp_path).expect(1, "net.py:make is not the code")
    assert likewise.verify("r.json", candidate="w.pt").holds is False
    assert "other files, settings or versions" in resumed()
    code.unlink()
    assert likewise.verify("r.json", candidate="w.pt").holds is None


def test_a_report_has_no_code_looked_up_elsewhere(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "other.py"
    outside.write_text("")
    told = {f"{outside}:make": hashlib.sha256(b"").hexdigest()}
    stored = likewise.report.load(folder / "parity_report.json").origin.candidate
    point = _model("candidate", folder / "model.onnx", replace(stored, details={"code": told}))
    assert point.holds is None


@pytest.mark.parametrize("name", ["model.onnx", "rows.npz"])
def test_a_file_that_is_written_while_it_is_compared_is_not_vouched_for(folder, name):
    """The report would name the SHA-256 of what nobody has asked, and verify would find it there."""
    before = (folder / name).read_bytes()

    def overwriting(rows):
        (folder / name).write_bytes(before + b"\0")
        return joblib.load(folder / "model.joblib").predict(rows)

    found = likewise.check(overwriting, folder / "model.onnx", folder / "rows.npz", pair={"label": "output"})
    assert found.outcome == "INCONCLUSIVE"
    assert found.comparison.incidents[0].message == f"{folder / name} was written while it was compared"
