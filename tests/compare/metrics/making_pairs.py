"""Pairs of answers for tests of metrics: built by hand, drawn by hypothesis, cut into batches."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from likewise.contracts.comparison import Pair, PairSpec, Tolerance
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind
from likewise.data.columns import ArrayColumns

TOLERANCE = Tolerance(1e-4, 1e-3)
NUMERIC_KINDS = [Kind.VALUE, Kind.PROBABILITY, Kind.EMBEDDING, Kind.SCORE, Kind.DISTANCE]
FLOATS = ["f2", "f4", "f8"]
WHOLES = ["?", "i1", "u1", "i4", "i8", "u8"]


def text(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def make_pair(
    reference,
    candidate,
    kind=Kind.VALUE,
    *,
    tolerance=TOLERANCE,
    margin=None,
    noise=None,
    numbers=None,
    names=None,
    classes=None,
    nan_equal=True,
):
    reference, candidate = np.asarray(reference), np.asarray(candidate)
    numbers = np.arange(len(reference)) if numbers is None else np.asarray(numbers)
    inputs = ArrayColumns({"x": numbers * 0.5, "city": text([f"c{number}" for number in numbers])})
    return Pair(
        PairSpec("out", "out", kind, "name", classes),
        Batch(RowIds(numbers, None if names is None else np.asarray(names)), inputs),
        reference,
        candidate,
        tolerance,
        None if margin is None else np.asarray(margin, dtype=np.float64),
        None if noise is None else np.asarray(noise, dtype=np.float64),
        nan_equal,
    )


def take(pair, positions):
    """The same pair with only these rows, in this order."""
    positions = np.asarray(positions, dtype=np.int64)
    rows = pair.batch.rows
    return Pair(
        pair.spec,
        Batch(
            RowIds(rows.numbers[positions], None if rows.names is None else rows.names[positions]),
            ArrayColumns({name: column[positions] for name, column in pair.batch.inputs.items()}),
        ),
        pair.reference[positions],
        pair.candidate[positions],
        pair.tolerance,
        None if pair.margin is None else pair.margin[positions],
        None if pair.noise is None else pair.noise[positions],
        pair.nan_equal,
    )


def is_numeric(pair):
    return pair.reference.dtype.kind in "biuf" and pair.candidate.dtype.kind in "biuf"


def applicable(metric, pair):
    return metric.applies_to(pair.spec, numeric=is_numeric(pair))


def elements(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        width = dtype.itemsize * 8
        special = st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 0.5])
        return st.one_of(st.floats(width=width), special)
    return npst.from_dtype(dtype)


@st.composite
def numeric_arrays(draw, shape, dtypes=(*FLOATS, *WHOLES)):
    """Reference and candidate: often equal, often near, sometimes unrelated."""
    first, second = draw(st.sampled_from(dtypes)), draw(st.sampled_from(dtypes))
    reference = draw(npst.arrays(first, shape, elements=elements(first)))
    candidate = draw(npst.arrays(second, shape, elements=elements(second)))
    same = draw(npst.arrays(bool, shape))
    with np.errstate(all="ignore"):
        candidate = np.where(same, reference.astype(second), candidate)
    return reference, candidate


TOLERANCES = st.sampled_from([TOLERANCE, Tolerance(0.0, 0.0), Tolerance(0.0, 1e-3), Tolerance(0.5, 0.0)])


@st.composite
def numeric_pairs(draw, *, most_rows=12, dtypes=(*FLOATS, *WHOLES)):
    rows = draw(st.integers(0, most_rows))
    shape = (rows, *draw(st.sampled_from([(), (1,), (2,), (3, 2), (0,), (17,)])))
    reference, candidate = draw(numeric_arrays(shape, dtypes))
    return make_pair(
        reference,
        candidate,
        draw(st.sampled_from(NUMERIC_KINDS)),
        tolerance=draw(TOLERANCES),
        numbers=draw(st.permutations(range(5, 5 + rows))),
        nan_equal=draw(st.booleans()),
    )


LABELS = st.sampled_from(["a", "b", "", "1", None, 1, 0, True, 1.0, math.nan, 2**53 + 1])


@st.composite
def label_pairs(draw, *, most_rows=12):
    rows = draw(st.integers(0, most_rows))
    shape = (rows, *draw(st.sampled_from([(), (1,), (3,)])))
    if draw(st.booleans()):
        reference, candidate = draw(numeric_arrays(shape))
    else:
        reference = draw(npst.arrays(object, shape, elements=LABELS))
        candidate = np.where(
            draw(npst.arrays(bool, shape)), reference, draw(npst.arrays(object, shape, elements=LABELS))
        )
    margin = noise = None
    if draw(st.booleans()):
        margin = draw(npst.arrays("f8", rows, elements=st.floats(0, 2) | st.sampled_from([math.nan, math.inf])))
        noise = draw(npst.arrays("f8", rows, elements=st.floats(0, 1)))
    numbers = draw(st.permutations(range(rows)))
    return make_pair(reference, candidate, Kind.LABEL, margin=margin, noise=noise, numbers=numbers)
