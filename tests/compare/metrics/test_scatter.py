"""The sample to draw, found again by sorting all hashes."""

import json
import math

import numpy as np
import pytest
from making_pairs import make_pair, take

from likewise.compare.metrics.samples import POINTS, SCATTER
from likewise.contracts.models import Kind

MASK = 2**64 - 1


def splitmix64(number):
    """The published algorithm, with Python's own integers."""
    mixed = (number + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


@pytest.mark.parametrize(("rows", "width"), [(5, 1), (POINTS, 3), (POINTS + 1, 1), (4_000, 7), (20_000, 2)])
def test_the_rows_are_those_with_the_smallest_hashes(rows, width):
    rng = np.random.default_rng(rows)
    numbers = rng.permutation(3 * rows)[:rows]
    reference = rng.normal(size=(rows, width))
    pair = make_pair(reference, reference + 1, numbers=numbers)
    details = SCATTER.observe(pair).details()
    expected = sorted((splitmix64(int(number)), int(number), place) for place, number in enumerate(numbers))[:POINTS]
    assert details["rows_seen"] == rows
    assert details["row"] == [number for _, number, _ in expected]
    assert (details["element"] or [0] * len(expected)) == [hashed % width for hashed, _, _ in expected]
    assert details["reference"] == [reference[place, hashed % width] for hashed, _, place in expected]
    assert details["candidate"] == [reference[place, hashed % width] + 1 for hashed, _, place in expected]


def test_merging_small_batches_keeps_the_same_sample():
    reference = np.random.default_rng(1).normal(size=(3_500, 3))
    pair = make_pair(reference, reference * 2)
    merged = SCATTER.empty()
    for start in range(0, 3_500, 130):
        merged = SCATTER.observe(take(pair, range(start, min(3_500, start + 130)))).merge(merged)
    assert merged == SCATTER.observe(pair)


def test_rows_are_called_by_their_names():
    pair = make_pair([1.0, 2.0], [1.0, math.nan], numbers=[4, 5], names=["first", "x" * 500])
    details = SCATTER.observe(pair).details()
    named = dict(zip(details["row"], details["candidate"], strict=True))
    assert named["first"] == 1.0
    assert math.isnan(named["x" * 120])
    assert details["element"] == []


def test_a_report_of_a_wide_output_grows_by_little():
    reference = np.random.default_rng(0).normal(size=(1_200, 1_000))
    pair = make_pair(reference, reference.astype(np.float32), Kind.EMBEDDING)
    from likewise.compare.metrics import distribution

    added = [SCATTER.observe(pair).details(), distribution.DECILES.observe(pair).details()]
    assert len(json.dumps(added, indent=12)) < 300_000


def test_applies_to_numbers_that_are_no_labels():
    def applies(kind, *, numeric=True):
        return SCATTER.applies_to(make_pair([1.0], [1.0], kind).spec, numeric=numeric)

    assert applies(Kind.VALUE)
    assert applies(Kind.EMBEDDING)
    assert not applies(Kind.LABEL)
    assert not applies(Kind.VALUE, numeric=False)
