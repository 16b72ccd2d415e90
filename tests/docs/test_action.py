"""The GitHub Action, the GitLab template and the pre-commit hook do in a shell what they do in CI."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SPEC, JOBS = yaml.safe_load_all((ROOT / "templates" / "likewise.yml").read_text())
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
MODELS = {"reference": "trained.onnx", "candidate": "model.onnx", "data": "test.parquet"}
QUICK = "--samples=200\n--no-explain\n--edge=off"
HOSTILE = '$(touch hacked) `touch hacked`"; touch hacked; #'


@pytest.fixture
def folder(example_folder, tmp_path):
    for name in ("model.joblib", "model.onnx", "model.int8.onnx", "test.parquet"):
        shutil.copy(example_folder / name, tmp_path)
    # As good a reference as any, and open at once.
    shutil.copy(example_folder / "model.onnx", tmp_path / "trained.onnx")
    return tmp_path


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CI"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}


class Runner:
    """Enough of GitHub's runner: expressions, environment, outputs of steps, a summary."""

    def __init__(self, folder, inputs, **more):
        self.folder, self.more = folder, more
        self.values = {f"inputs.{name}": entry["default"] for name, entry in ACTION["inputs"].items()}
        self.values |= {f"inputs.{name}": value for name, value in inputs.items()}
        self.values["github.action_path"] = "/actions/likewise"
        self.summary = folder / "summary.md"
        self.shown = ""

    def filled(self, text):
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: self.values.get(found[1], ""), str(text))

    def step(self, name):
        (step,) = (step for step in ACTION["runs"]["steps"] if step["name"] == name)
        assert step["shell"] == "bash"
        script, outputs = self.folder / "script.sh", self.folder / "outputs"
        script.write_text(step["run"])
        outputs.write_text("")
        own = {name: self.filled(value) for name, value in step["env"].items()}
        github = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": outputs, "GITHUB_STEP_SUMMARY": self.summary}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.folder / self.filled(step.get("working-directory", ".")),
            env=environment(**{name: str(value) for name, value in github.items()}, **own, **self.more),
            capture_output=True,
            text=True,
            check=False,
        )
        self.shown += done.stdout + done.stderr
        for line in outputs.read_text().splitlines():
            key, _, value = line.partition("=")
            self.values[f"steps.{step.get('id')}.outputs.{key}"] = value
        return done.returncode

    def run(self):
        """The check and the verdict; what GitHub's own actions do is left out, and pip."""
        assert self.step("Check") == 0, self.shown
        return self.step("Verdict")

    def output(self, name):
        return self.filled(ACTION["outputs"][name]["value"])


def test_no_script_of_the_action_holds_an_expression_and_every_input_is_used():
    steps = ACTION["runs"]["steps"]
    assert not any("${{" in step.get("run", "") for step in steps)
    text = yaml.safe_dump(steps)
    unused = [name for name in ACTION["inputs"] if f"inputs.{name}" not in text]
    assert unused == []
    for step in steps:
        for name in step.get("env", {}):
            assert f"${name}" in step["run"] or f"${{{name}" in step["run"], name


def test_the_action_passes_and_leaves_every_report(folder):
    github = Runner(folder, {**MODELS, "args": QUICK, "abs-tol": "0.0001"})
    assert github.run() == 0, github.shown
    assert (github.output("outcome"), github.output("exit-code")) == ("PASS", "0")
    report = json.loads((folder / github.output("report")).read_text())
    assert (report["samples"], report["abs_tol"], report["passed"]) == (200, 0.0001, True)
    assert github.summary.read_text().startswith("## ✅ PASS: trained.onnx")
    endings = {"json", "md", "junit.xml", "sarif", "html", "intoto.json"}
    assert {path.name for path in (folder / "likewise-reports").iterdir()} == {f"parity_report.{e}" for e in endings}


def test_the_action_fails_with_its_reports_and_says_so_where_people_look(folder):
    github = Runner(folder, {**MODELS, "candidate": "model.int8.onnx", "args": QUICK, "reports": HOSTILE})
    assert github.run() == 1
    assert github.output("outcome") == "FAIL"
    assert "::error title=likewise FAIL::" in github.shown
    assert github.summary.read_text().startswith("## ❌ FAIL: trained.onnx")
    assert json.loads((folder / github.output("report")).read_text())["outcome"] == "FAIL"
    assert int(ET.parse(folder / HOSTILE / "parity_report.junit.xml").getroot().get("failures")) > 0
    assert not list(folder.rglob("hacked"))


def test_the_action_runs_the_gates_of_a_project_in_a_folder(folder):
    project = folder / "project"
    project.mkdir()
    gate = "reference = '../trained.onnx'\ncandidate = '../{}'\ndata = '../test.parquet'\nsamples = 50\n"
    gate += "explain = false\nedge = 'off'\n"
    gates = {"export": "model.onnx", "gone": "nowhere.onnx"}
    text = "\n".join(f"[gates.{name}]\n{gate.format(file)}" for name, file in gates.items())
    (project / "gates.toml").write_text(text)
    github = Runner(folder, {"config": "gates.toml", "working-directory": "project"})
    assert github.run() == 3
    assert (github.output("outcome"), github.output("report")) == ("INCONCLUSIVE", "project/likewise-reports")
    written = {path.name: json.loads(path.read_text()) for path in (folder / github.output("report")).glob("*.json")}
    stated = {name: written.pop(name)["predicate"]["result"] for name in [*written] if name.endswith(".intoto.json")}
    assert stated == {"export.intoto.json": "PASSED", "gone.intoto.json": "FAILED"}
    assert {name: report["outcome"] for name, report in written.items()} == {
        "export.json": "PASS",
        "gone.json": "INCONCLUSIVE",
    }


@pytest.mark.parametrize(
    "inputs", [{"reference": HOSTILE, "data": HOSTILE, "baseline": HOSTILE}, {"args": HOSTILE}], ids=["models", "args"]
)
def test_what_an_input_holds_is_never_run(folder, inputs):
    github = Runner(folder, {**MODELS, **inputs})
    assert github.run() == 2, github.shown
    assert github.output("outcome") == "INCONCLUSIVE"
    assert not list(folder.rglob("hacked"))


def test_a_check_that_never_ran_does_not_pass(folder):
    assert Runner(folder, MODELS).step("Verdict") == 3


@pytest.mark.parametrize(
    ("inputs", "installed"),
    [
        ({}, "/actions/likewise[sklearn]"),
        ({"extras": ""}, "/actions/likewise"),
        ({"extras": "torch,boost"}, "/actions/likewise[torch,boost]"),
        ({"install": "likewise[torch]==0.1.0"}, "likewise[torch]==0.1.0"),
    ],
)
def test_the_action_installs_itself_or_what_it_is_told(tmp_path, inputs, installed):
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    github = Runner(tmp_path, inputs, PATH=f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    assert github.step("Install likewise") == 0
    assert github.shown.split() == ["-P", "-m", "pip", "install", "--disable-pip-version-check", installed]


def test_nothing_installs_by_a_pip_of_the_repository_that_is_checked(tmp_path):
    (tmp_path / "pip.py").write_text("raise SystemExit('that of a stranger')")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    github = Runner(tmp_path, {"install": "--help"}, PATH=path)
    assert github.step("Install likewise") == 0, github.shown
    assert "pip install [options]" in github.shown
    (job,) = JOBS.values()
    variables = environment(LIKEWISE_INSTALL="--help", PATH=path)
    done = subprocess.run(["sh", "-e", "-c", *job["before_script"]], cwd=tmp_path, env=variables, check=False)
    assert done.returncode == 0


def test_the_action_keeps_its_reports_whatever_happens():
    *_, upload, verdict = ACTION["runs"]["steps"]
    assert upload["if"].startswith("always()")
    assert upload["with"]["path"] == "${{ inputs.working-directory }}/${{ inputs.reports }}"
    assert verdict["if"] == "always()"


def gitlab(folder, **inputs):
    """The script of the job as GitLab's runner carries it out: line by line in one shell, inputs as variables."""
    (job,) = JOBS.values()
    values = {name: (entry or {}).get("default", "") for name, entry in SPEC["spec"]["inputs"].items()} | inputs
    variables = {
        name: re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda found: values[found[1]], entry["value"])
        for name, entry in job["variables"].items()
    }
    assert all(entry["expand"] is False for entry in job["variables"].values())
    script = "\n".join(job["script"])
    assert "$[[" not in script
    return subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("candidate", "code"), [("model.onnx", 0), ("model.int8.onnx", 1), (HOSTILE, 3)])
def test_the_job_of_gitlab_gates(folder, candidate, code):
    done = gitlab(folder, **{**MODELS, "candidate": candidate, "args": QUICK})
    assert done.returncode == code, done.stdout + done.stderr
    (job,) = JOBS.values()
    (junit,) = folder.glob(job["artifacts"]["reports"]["junit"])
    assert (ET.parse(junit).getroot().get("failures") == "0") == (code != 1)
    assert not (folder / "hacked").exists()
    assert job["artifacts"]["when"] == "always"


def test_the_hook_runs_the_gates_of_the_configuration(folder):
    models = "reference = 'trained.onnx'\ncandidate = 'model.int8.onnx'\ndata = 'test.parquet'\n"
    (folder / "likewise.toml").write_text(f"[gates.int8]\n{models}samples = 50\nedge = 'off'\n")
    assert HOOK["pass_filenames"] is False
    done = subprocess.run(
        shlex.split(HOOK["entry"]), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "int8:" in done.stdout
    assert all(
        re.search(HOOK["files"], name) for name in ("likewise.toml", "a/model.onnx", "data/test.parquet", "m.pt")
    )
    assert not any(re.search(HOOK["files"], name) for name in ("README.md", "src/model.py", "otherlikewise.toml"))


def test_the_hook_runs_for_every_format_that_is_read():
    from likewise.data.readers import tables
    from likewise.models.sklearn import open as sklearn
    from likewise.models.torch import load

    source = ROOT / "src" / "likewise"
    suffixes = {*tables.SUFFIXES, *sklearn.SUFFIXES, *load.SUFFIXES, ".npy", ".npz"}
    suffixes |= {f".joblib{packed}" for packed in sklearn._COMPRESSED}
    for path in [*source.glob("models/*.py"), *source.glob("models/*/open.py"), *source.glob("data/readers/*.py")]:
        claims = re.findall(r"(?:endswith|begins|named)\(.*", path.read_text())
        suffixes |= {found for line in claims for found in re.findall(r'"(\.[a-z0-9]+)"', line)}
    assert {".onnx", ".ort", ".cbm", ".ubj", ".lgb", ".xml"} <= suffixes
    missed = [suffix for suffix in suffixes - {".py"} if not re.search(HOOK["files"], f"models/v1.2{suffix}")]
    assert missed == []


def test_a_folder_for_reports_may_begin_with_a_dash(folder):
    github = Runner(folder, {**MODELS, "args": QUICK, "reports": "-reports"})
    assert github.run() == 0, github.shown
    assert github.output("outcome") == "PASS"
    assert json.loads((folder / github.output("report")).read_text())["passed"]
    assert (folder / "-reports" / "parity_report.html").is_file()


def test_init_writes_what_is_asked_for_and_replaces_nothing(main, tmp_path):
    written = {
        "--gitlab": "likewise.gitlab-ci.yml",
        "--pre-commit": ".pre-commit-config.yaml",
        "--github": ".github/workflows/likewise.yml",
    }
    for flag, name in written.items():
        assert main("init", flag).returncode == 0
        assert yaml.safe_load((tmp_path / name).read_text())
        gates = (tmp_path / "likewise.toml").read_text()
        (tmp_path / "likewise.toml").write_text(f"{gates}# mine\n")
    assert (tmp_path / "likewise.toml").read_text().endswith("# mine\n" * 3)
    (tmp_path / "likewise.gitlab-ci.yml").write_text("mine")
    refused = main("init", "--gitlab")
    assert refused.returncode == 2
    assert "likewise.gitlab-ci.yml exists" in refused.stderr
    assert (tmp_path / "likewise.gitlab-ci.yml").read_text() == "mine"
    assert main("init", "--gitlab", "--force").returncode == 0
    assert (tmp_path / "likewise.gitlab-ci.yml").read_text() != "mine"
    assert (tmp_path / "likewise.toml").read_text().endswith("# mine\n")


def test_what_init_writes_runs_the_same_check_everywhere(tmp_path):
    from likewise.cli.commands.init import CI

    files = {name: yaml.safe_load(text) for name, (_, text) in CI.items()}
    (github,) = files["github"]["jobs"].values()
    (gitlab,) = files["gitlab"].values()
    (hook,) = files["pre_commit"]["repos"][0]["hooks"]
    command = "likewise check --reports likewise-reports"
    assert command in [step.get("run") for step in github["steps"]]
    assert gitlab["script"] == [command]
    assert gitlab["artifacts"]["reports"]["junit"] == "likewise-reports/*.junit.xml"
    assert {name: hook[name] for name in ("entry", "files")} == {name: HOOK[name] for name in ("entry", "files")}


CLONED = "likewise[sklearn] @ git+https://git.example.com/your-organisation/likewise"


@pytest.mark.parametrize(
    ("noted", "origin", "installed"),
    [
        (None, "", "likewise[sklearn]"),
        (
            {"url": "https://git.firm.com/ml/likewise", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "",
            "likewise[sklearn] @ git+https://git.firm.com/ml/likewise@ab12",
        ),
        ({"url": "https://firm.com/a.whl"}, "", "likewise[sklearn] @ https://firm.com/a.whl"),
        ("clone", "", CLONED),
        ("clone", "/home/me/elsewhere", CLONED),
        (
            "clone",
            "https://me:secret@git.firm.com/ml/likewise.git",
            "likewise[sklearn] @ git+https://git.firm.com/ml/likewise.git",
        ),
        ("clone", "git@git.firm.com:ml/likewise.git", "likewise[sklearn] @ git+ssh://git@git.firm.com/ml/likewise.git"),
    ],
)
def test_what_init_writes_installs_the_likewise_that_wrote_it(main, tmp_path, monkeypatch, noted, origin, installed):
    if noted == "clone":
        clone = tmp_path / "my clone"
        subprocess.run(["git", "init", "-q", clone], check=True)
        if origin:
            subprocess.run(["git", "-C", clone, "remote", "add", "origin", origin], check=True)
        noted = {"url": clone.as_uri(), "dir_info": {}}
    text = None if noted is None else json.dumps(noted)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    said = main("init", "--github", "--gitlab").expect(0).stdout
    (github,) = yaml.safe_load((tmp_path / ".github/workflows/likewise.yml").read_text())["jobs"].values()
    (gitlab,) = yaml.safe_load((tmp_path / "likewise.gitlab-ci.yml").read_text()).values()
    assert f"pip install '{installed}'" in [step.get("run") for step in github["steps"]]
    assert gitlab["before_script"] == [f"pip install '{installed}'"]
    assert ("put the repository" in said) == (installed == CLONED)


def test_until_it_is_published_every_line_installs_it_from_a_repository():
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"^pip install .*", readme, re.M) == ["pip install '.[sklearn]'"]
    for name in ("github.yml", "gitlab-ci.yml"):
        text = (ROOT / "examples" / "ci" / name).read_text()
        assert re.findall(r"pip install .*", text) == [f"pip install '{CLONED}'"]
    assert CLONED in SPEC["spec"]["inputs"]["install"]["description"]
    assert "default" not in SPEC["spec"]["inputs"]["install"]


@pytest.mark.parametrize("in_the_way", ["file", "folder", "read-only"])
def test_init_says_what_stands_in_the_way_of_a_file(main, tmp_path, monkeypatch, in_the_way):
    if in_the_way == "file":
        (tmp_path / ".github").write_text("mine")
    elif in_the_way == "folder":
        (tmp_path / ".github/workflows/likewise.yml").mkdir(parents=True)
    else:

        def refuse(path, *words, **more):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "write_text", refuse)
    done = main("init", "--github", "--force").expect(2)
    name = "likewise.toml" if in_the_way == "read-only" else ".github/workflows/likewise.yml"
    assert f"{name} cannot be written: " in done.stderr
    assert "Run it in a folder that you may write to" in done.stderr


GUIDE = (ROOT / "docs" / "guide" / "ci.md").read_text()


def test_the_examples_of_the_guide_are_valid_and_name_inputs_that_exist():
    github, gitlab, hook = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.S))
    (step,) = (step for step in github["jobs"]["parity"]["steps"] if step.get("id") == "parity")
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert set(gitlab["include"][0]["inputs"]) <= set(SPEC["spec"]["inputs"])
    assert hook["repos"][0]["hooks"][0]["id"] == HOOK["id"]
