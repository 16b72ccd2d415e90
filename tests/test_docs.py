"""What the documents say is true: their commands run, their tables match the code, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import joblib
import pandas as pd
import pytest

from likewise.policies import AT_LEAST, AT_MOST, PRESETS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("likewise check")]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_readme_run(command, example_folder, tmp_path):
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "likewise", *words, "--report", str(tmp_path / "report.json")],
        cwd=example_folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_python_of_the_readme_runs(example_folder, monkeypatch, capsys):
    monkeypatch.chdir(example_folder)
    known = {"model": joblib.load("model.joblib"), "test_frame": pd.read_parquet("test.parquet")}
    for block in blocks("python"):
        exec(block, known)
    assert capsys.readouterr().out.startswith("PASS ")


def test_every_measure_and_preset_is_described():
    text = (ROOT / "docs" / "measures.md").read_text()
    described = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert described >= AT_LEAST | AT_MOST
    readme = (ROOT / "README.md").read_text()
    assert all(f"| `{name}`" in readme for name in PRESETS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_files_that_the_readme_maps_exist():
    table = (ROOT / "README.md").read_text().split("## Where things are")[1]
    named = re.findall(r"`(src/[\w./]+)`(?:, ((?:`\w+\.py`(?:, )?)+))?", table)
    assert len(named) >= 10
    for first, more in named:
        assert (ROOT / first).exists(), first
        for name in re.findall(r"`(\w+\.py)`", more):
            assert (ROOT / first).with_name(name).exists(), name
