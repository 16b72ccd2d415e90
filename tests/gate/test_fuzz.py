"""Damaged files of every kind end in an outcome with a sentence of ours, and none passes wrongly: part of `make fuzz`.

Here are the kinds whose readers do not take the process with them; the rest needs processes of its own, and minutes.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import fuzz

SLOW = {"likewise.toml", "script.pt", "program.pt2", "report.json", "m.skops", "trees.onnx"}
KINDS = [seed for seed in fuzz.SEEDS if not seed.crashes and seed.name not in SLOW]
DRAWN, FILES = 8, 12

pytestmark = pytest.mark.filterwarnings("ignore")  # what libraries think of such files


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return tmp_path_factory.mktemp("seeds")


@pytest.mark.parametrize("seed", KINDS, ids=lambda seed: seed.name)
def test_whole_files_pass_and_damaged_ones_break_no_promise(seed, seeds, tmp_path):
    whole = fuzz.whole_file(seed, seeds)
    assert fuzz.ask(seed, whole, whole) == ("PASS", "")
    for number in range(FILES):
        folder = tmp_path / f"{number}-{seed.name}"
        folder.mkdir()
        path = fuzz.mutate(whole, folder, seed.form, random.Random(f"{DRAWN} {number}"))
        outcome, problem = fuzz.ask(seed, path, whole)
        assert not problem, f"python benchmarks/fuzz.py --repeat {folder}: {problem}"
        assert outcome in fuzz.OUTCOMES.values()


def test_a_file_that_takes_the_process_with_it_is_inconclusive_on_the_command_line(tmp_path):
    campaign = fuzz.Campaign(count=1, drawn=0, only="l.txt", folder=tmp_path, kept=tmp_path / "kept")
    told = campaign.run()
    assert [one.problem for one in told] == [""]


def test_a_pass_that_the_format_does_not_confirm_is_noticed(seeds):
    seed = next(seed for seed in fuzz.SEEDS if seed.name == "m.onnx")
    whole = fuzz.whole_file(seed, seeds)
    assert fuzz.confirmed(seed, whole, fuzz.answers(seed, whole)) == ""
    assert "by_onnxruntime reads" in fuzz.confirmed(seed, whole, fuzz.answers(seed, whole) + np.float32(0.01))
    assert "cannot read it" in fuzz.confirmed(seed, whole.parent, fuzz.answers(seed, whole))
