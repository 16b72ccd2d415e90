"""The package whose upgrade changes the answers is named, and what cannot be installed together is passed over."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import likewise
from likewise.contracts.results import Upgrade
from likewise.contracts.verdict import Outcome
from likewise.errors import UsageError
from likewise.tasks.bisect import bisect, pins, smallest, upgrades
from planting import command

MODEL = """
from importlib.metadata import version

def model(rows):
    return rows * (2.0 if version("beta") == "1" else 2.5)
"""
INSTALLER = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
if words[0] == "venv":
    subprocess.run([words[-2], "-m", "venv", "--without-pip", words[-1]], check=True)
    sys.exit()
home = next(pathlib.Path(words[words.index("--python") + 1]).parents[1].glob("lib/python*/site-packages"))
(home / "others.pth").write_text({packages!r})
pins = dict(word.split("==") for word in words if "==" in word)
for name, version in pins.items():
    (home / f"{{name}}-{{version}}.dist-info").mkdir()
    (home / f"{{name}}-{{version}}.dist-info" / "METADATA").write_text(f"Name: {{name}}\\nVersion: {{version}}\\n")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A model, its rows, two lock files, and an installer that notes packages instead of fetching them."""
    (tmp_path / "own.py").write_text(MODEL)
    np.save(tmp_path / "rows.npy", np.arange(10.0))
    for name, version in (("old.txt", 1), ("new.txt", 2)):
        lines = [f"{package}=={version}" for package in ("alpha", "beta", "gamma")]
        (tmp_path / name).write_text("# frozen\nsame==1 ; python_version > '3'\n-e .\n" + "\n".join(lines))
    tool = tmp_path / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(INSTALLER.format(python=sys.executable, packages=str(Path(np.__file__).parents[1])))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_package_is_named_from_python_and_by_a_command(project):
    told: list[str] = []
    for name, version in (("old.txt", 1), ("new.txt", 2)):
        (project / name).write_text(f"beta=={version}\n")
    model, old, new = f"{project / 'own.py'}:model", project / "old.txt", project / "new.txt"
    result = likewise.bisect(model, np.arange(10.0), old, new, tell=told.append)
    assert result.outcome == "FAIL"
    assert result.culprits == (Upgrade("beta", "1", "2"),)
    assert told[0] == "1 package differs; two environments are made"
    words = ("own.py:model", "--data", "rows.npy", "--from", "old.txt", "--to", "new.txt")
    done = command("bisect", *words, folder=project)
    done.expect(1, "own.py:model answers differently because of: beta 1 → 2", "1 package differs")
    assert "Making an environment" not in done.stderr


def test_what_does_not_go_together_is_passed_over(project):
    def compare(before, after):
        assert before == ["alpha==1", "beta==1", "gamma==1", "same==1"]
        if "gamma==2" in after and "alpha==1" in after:
            return Outcome.INCONCLUSIVE, "gamma 2 needs alpha 2"
        return (Outcome.FAIL if "beta==2" in after else Outcome.PASS), "told"

    result = bisect("own.py:model", None, project / "old.txt", project / "new.txt", compare=compare)
    assert result.culprits == (Upgrade("beta", "1", "2"),)
    assert result.rest_alike is True
    assert {trial.upgraded: str(trial.outcome) for trial in result.trials} == {
        ("alpha", "beta", "gamma"): "FAIL",
        ("alpha",): "PASS",
        ("beta", "gamma"): "INCONCLUSIVE",
        ("beta",): "FAIL",
        ("alpha", "gamma"): "PASS",
    }


def upgrade(number):
    return Upgrade(f"package{number}", "1", "2")


@pytest.mark.parametrize("needed", [{5}, {0, 31}, {3, 4, 20}, set(range(32))])
def test_the_smallest_set_is_found_in_few_steps(needed):
    asked: list[frozenset[str]] = []

    def differs(chosen):
        asked.append(frozenset(entry.name for entry in chosen))
        return asked[-1] >= {upgrade(number).name for number in needed}

    found = smallest([upgrade(number) for number in range(32)], differs)
    assert set(found) == {upgrade(number) for number in needed}
    assert len(set(asked)) <= {1: 10, 2: 45, 3: 70}.get(len(needed), 130)


def test_nothing_changes_or_cannot_be_told(project):
    files = (project / "old.txt", project / "new.txt")

    def outcome(found):
        return bisect("model.onnx", None, *files, compare=lambda before, after: (found, "told")).outcome

    assert outcome(Outcome.PASS) == "PASS"
    assert outcome(Outcome.INCONCLUSIVE) == "INCONCLUSIVE"
    assert bisect("model.onnx", None, files[0], files[0], compare=lambda *_: pytest.fail("asked")).changed == ()


def test_a_lock_file_is_read_whatever_it_is_called(tmp_path, monkeypatch):
    """A repository says which of its files are programs; nobody who names a lock file asks for one to be run."""
    lock = tmp_path / "python-3.11.lock"
    lock.write_text("#!/bin/sh\ntouch ran\nnumpy==2.0.0\n")
    lock.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert pins(lock) == pins(lock.name) == {"numpy": "2.0.0"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.name != "posix", reason="a stand-in for a Python is a script")
def test_a_python_of_this_folder_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    own = tmp_path / "python3"
    own.write_text("#!/bin/sh\necho alpha==7\n")
    own.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert pins("python3") == {"alpha": "7"}


def test_lock_files_and_environments_are_read(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("Scikit_Learn[extra]==1.5.2 \\\n    --hash=sha256:00\npip==24.0\nnumpy==2.0.0 # why\nother>=1\n")
    assert pins(lock) == {"scikit-learn": "1.5.2", "numpy": "2.0.0"}
    assert pins(sys.executable)["numpy"] == np.__version__
    assert upgrades({"a": "1", "b": "1"}, {"b": "1", "c": "2"}) == (Upgrade("a", "1", None), Upgrade("c", None, "2"))
    lock.write_text("nothing is pinned\n")
    with pytest.raises(UsageError, match="pins no package"):
        pins(lock)
    with pytest.raises(UsageError, match="there is no file"):
        pins(tmp_path / "none.txt")
