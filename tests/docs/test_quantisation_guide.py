"""The page on quantisation is true: its commands run in order, its Python runs, its options exist."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click

from likewise.cli import likewise as group
from planting import here

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "quantisation.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def test_the_commands_and_the_python_of_the_page_run(example_folder, tmp_path, monkeypatch, capsys):
    for name in ("model.joblib", "model.onnx", "test.parquet"):
        shutil.copy(example_folder / name, tmp_path)
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) >= 7
    for command in commands:
        assert command.startswith("likewise ")
        # What takes time to measure is measured briefly here; the page says the same commands.
        if command.startswith("likewise quantize"):
            command += " --no-speed"
        command = command.replace("--budget 5s", "--budget 0.5s")
        here(*shlex.split(command)[1:], folder=tmp_path).expect(0)
    assert (tmp_path / "reports" / "speed.svg").exists()
    script = "\n".join(blocks("python")).replace("per_channel=True", "per_channel=True, speed=False")
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    assert "nodes with weights" in capsys.readouterr().out


def test_the_options_the_page_names_exist():
    context = click.Context(group)
    known = {
        name
        for command in ("check", "quantize", "bench")
        for parameter in group.get_command(context, command).params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PAGE.read_text()))
    assert named <= known
