"""Every cause has its place in docs/causes.md, and nothing else has one."""

from __future__ import annotations

import re
from pathlib import Path

from likewise.contracts.report import CAUSES
from likewise.registry import extensions

PAGE = (Path(__file__).parents[2] / "docs" / "causes.md").read_text()


def test_the_page_describes_exactly_these_causes():
    headings = re.findall(r"^## (.+)$", PAGE, re.M)
    assert len(headings) == len(set(headings))
    assert set(headings) == CAUSES


def test_hypotheses_look_for_causes_of_the_list_only():
    for hypothesis in extensions("explain.probes"):
        assert hypothesis.causes
        assert set(hypothesis.causes) <= CAUSES, type(hypothesis).__name__


def test_every_cause_has_a_meaning_an_example_and_something_to_do():
    for part in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        name, *paragraphs = [text.strip() for text in part.split("\n\n") if text.strip()]
        kinds = [text.partition(":*")[0] for text in paragraphs[1:]]
        assert kinds == ["*Example", "*What to do"], name
        assert not paragraphs[0].startswith("*"), name
