"""What the guide on `likewise stress` shows can be done."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import joblib
import pandas as pd

from planting import here

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "stress.md").read_text()


def test_the_commands_of_the_guide_find_a_difference_and_show_it_again(example_folder, tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(example_folder, folder)
    lines = [line for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.S) for line in block.splitlines()]
    search, check, _ = (shlex.split(line)[1:] for line in lines)
    for words in (search, [*check, "--no-explain"]):
        here(*words, folder=folder).expect(1)


def test_the_python_of_the_guide_runs(example_folder, monkeypatch, capsys):
    monkeypatch.chdir(example_folder)
    import likewise

    known = {"likewise": likewise, "model": joblib.load("model.joblib"), "test_frame": pd.read_parquet("test.parquet")}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.S):
        exec(block, known)
    assert capsys.readouterr().out.startswith("PASS ")
