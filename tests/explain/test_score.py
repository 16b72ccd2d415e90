"""The score of all faults is kept: `make explain-score` fails where it falls, and the page shows what is kept."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from faults import CONTROLS, FAULTS, UNEXPLAINED

ROOT = Path(__file__).parents[2]
KEPT = tomllib.loads((ROOT / "benchmarks" / "explain_score.toml").read_text())


@pytest.fixture(scope="module")
def score():
    """The benchmark, as a module."""
    spec = spec_from_file_location("explain_score", ROOT / "benchmarks" / "explain_score.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture
def perfect(score):
    """A run in which everything is right."""
    return [
        score.Result(entry.name, entry.family, entry.causes, "", True, True, True, (), 0.0, entry.natural)
        for entry in (*FAULTS.values(), *CONTROLS.values(), *UNEXPLAINED.values())
    ]


def test_a_score_as_good_as_the_one_kept_passes(score, perfect):
    assert score.fallen(perfect, KEPT) == []
    assert score.fallen(perfect, score.figures(perfect)) == []


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("steps", {"cause_right": False, "culprit_right": False}, ["causes_right is", "culprits_right is"]),
        ("steps", {"culprit_right": False}, ["culprits_right is"]),
        ("controls", {"cause_right": False}, ["controls_diagnosed is 1, and 0"]),
        ("unexplained", {"cause_right": False}, ["unexplained_diagnosed is 1, and 0"]),
    ],
)
def test_one_more_miss_is_told_by_the_figure_it_lowers(score, perfect, family, changes, said):
    place = next(place for place, result in enumerate(perfect) if result.family == family and not result.natural)
    worse = [replace(result, **changes) if at == place else result for at, result in enumerate(perfect)]
    found = score.fallen(worse, score.figures(perfect))
    assert len(found) == len(said)
    assert all(text.startswith(begin) for text, begin in zip(found, said, strict=True))


def test_a_natural_fault_that_is_missed_lowers_its_own_figure(score, perfect):
    place = next(place for place, result in enumerate(perfect) if result.natural)
    worse = [replace(result, cause_right=at != place) for at, result in enumerate(perfect)]
    assert any("natural_right" in text for text in score.fallen(worse, score.figures(perfect)))


def test_the_page_shows_no_less_than_is_kept():
    page = (ROOT / "docs" / "accuracy.md").read_text()
    faults, causes, culprits = map(int, re.search(r"\*\*all\*\* \| (\d+) \| (\d+) .*?\| (\d+) ", page).groups())
    natural, found = map(int, re.search(r"of which natural \| (\d+) \| (\d+) ", page).groups())
    assert (causes, culprits, found) >= (KEPT["causes_right"], KEPT["culprits_right"], KEPT["natural_right"])
    assert faults == len(FAULTS)
    assert natural == sum(entry.natural for entry in FAULTS.values())
    assert f"controls: {KEPT['controls_diagnosed']} of {len(CONTROLS)} with a diagnosis" in page
    assert f"unexplained: {KEPT['unexplained_diagnosed']} of {len(UNEXPLAINED)} with a diagnosis" in page
