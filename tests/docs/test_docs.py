"""What the documents say is true: their commands run, their tables match the code, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import joblib
import pandas as pd
import pytest

from likewise.cli import likewise
from likewise.contracts.verdict import AT_LEAST, AT_MOST
from likewise.judge.policy import PRESETS
from planting import here

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("likewise check")]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_readme_run(command, example_folder, tmp_path):
    here(*shlex.split(command)[1:], "--report", tmp_path / "report.json", folder=example_folder).expect(0)


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S) for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("likewise ")]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=lambda page: page.name)
def test_the_commands_of_the_guides_are_understood(page):
    found = commands(page)
    assert found
    for name, *words in found:
        command = likewise.get_command(click.Context(likewise), name)
        assert command is not None, name
        command.make_context(name, words)


def test_the_commands_for_a_failed_check_reach_a_verdict(example_folder, tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(example_folder, folder)
    for words in commands(ROOT / "docs" / "guide" / "debugging.md"):
        ran = here(*words, folder=folder)
        assert ran.returncode in (0, 1), " ".join(words) + ran.stdout + ran.stderr


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


def test_the_readme_maps_every_room_and_only_what_there_is():
    house = ROOT / "src" / "likewise"
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)/`", row) for row in table.splitlines()[4:] if row.startswith("|")]
    assert {room for room, *_ in rows} == {path.parent.name for path in house.glob("*/__init__.py")}
    for room, *inside in rows:
        for name in inside:
            assert (house / room / name).is_dir(), f"{room}/{name}"
