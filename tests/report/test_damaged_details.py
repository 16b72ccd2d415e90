"""A stored report whose details are damaged is refused in one sentence, wherever it is read, or does no harm."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import data_only
import likewise
from likewise.errors import DataError
from likewise.judge.diff import diff
from likewise.report.formats.html import EXTENSION as HTML
from likewise.report.formats.json import document, dumps, loads
from likewise.report.formats.markdown import EXTENSION as MARKDOWN
from planting import planted, rows

COUNT = 30
SCORES = np.random.default_rng(0).normal(size=(COUNT, 6))


@pytest.fixture(scope="module")
def stored():
    labels = np.where(np.arange(COUNT) % 3, "yes", "no").astype(object)
    ours = planted(label=labels, value=np.arange(COUNT) / 7, scores=SCORES)
    theirs = planted(label=labels[::-1], value=np.arange(COUNT) / 7 + 1e-3, scores=SCORES[:, ::-1])
    return json.loads(dumps(document(data_only.check(ours, theirs, rows(COUNT)))))


def places(value, path=()):
    """Every place in plain values, of long lists the first."""
    for key, entry in value.items() if isinstance(value, dict) else list(enumerate(value))[:1]:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from places(entry, (*path, key))


def read_everywhere(text, whole):
    """What is said of the report; nothing where it can be judged, compared and shown."""
    try:
        report = loads(text, name="old.json")
    except DataError as error:
        return str(error)
    likewise.judge(report, abs_tol=0.5, rel_tol=0.1)
    diff(whole, report, allow=0.0)
    HTML.render(report)
    MARKDOWN.render(report)
    return ""


@pytest.mark.parametrize("damage", ["missing", None, "text", [], 7], ids=str)
def test_damaged_details_are_told_or_harmless(stored, damage):
    whole, refused = loads(json.dumps(stored)), 0
    for number, output in enumerate(stored["outputs"]):
        for path in places(output["details"]):
            damaged = copy.deepcopy(stored)
            *way, last = path
            holder = damaged["outputs"][number]["details"]
            for key in way:
                holder = holder[key]
            if damage == "missing":
                del holder[last]
            else:
                holder[last] = damage
            said = read_everywhere(json.dumps(damaged), whole)
            assert not said or "old.json is not a parity report: details of" in said, path
            refused += bool(said)
    assert refused > 10


def test_columns_of_unequal_length_are_told(stored):
    damaged = copy.deepcopy(stored)
    details = next(output["details"] for output in damaged["outputs"] if output["name"] == "value")
    details["scatter"]["reference"].pop()
    with pytest.raises(DataError, match=r"old\.json is not a parity report: details of 'value': scatter"):
        loads(json.dumps(damaged), name="old.json")
