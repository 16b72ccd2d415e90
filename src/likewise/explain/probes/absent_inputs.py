"""Inputs that the reference takes and the candidate does not, such as an attention mask that got lost in an export."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, Trial, shown

DEFAULTS = (1, 0)
"""What an export has in the place of an input that it was not given."""

MOST_FREQUENT = 2
"""Values of the input itself that are tried too."""


def _absent(case: Case) -> list[str]:
    """Inputs of the reference that have no counterpart; where as many are called otherwise, none is missing."""
    ours, theirs = (case.runners[side].signature for side in ("reference", "candidate"))
    if ours.table or theirs.table or ours.inputs is None or theirs.inputs is None:
        return []
    taken = {spec.name for spec in theirs.inputs}
    return [spec.name for spec in ours.inputs if spec.name not in taken] if len(taken) < len(ours.inputs) else []


@probe("model-part-dropped", when=lambda case: len(case.runners) > 1 and bool(_absent(case)))
def absent_inputs(case: Case) -> Iterator[Explained]:
    """Ask the reference with one value everywhere in such an input."""
    given = case.fed("reference", Trial.few(case).batch)
    for name in _absent(case):
        values = given.get(name)
        if values is None or values.dtype.kind not in "biuf":
            continue
        kinds, counts = np.unique(values, return_counts=True)
        frequent = kinds[np.argsort(counts)[::-1]][:MOST_FREQUENT].tolist()
        tried = dict.fromkeys([*map(values.dtype.type, DEFAULTS), *map(values.dtype.type, frequent)])
        yield from shown(case, (_claim(name, value) for value in tried))


def _claim(name: str, value: object) -> Claim:
    return Claim(
        "model-part-dropped",
        Place(f"input {name!r}", ("the candidate does not take it",)),
        f"with {value} everywhere in {name!r}, which the candidate does not take, {HEALED} agree",
        Remedy(f"Export with {name!r} among the inputs: give it to the exporter with the example"),
        (Change("reference", fed={name: partial(_everywhere, value)}),),
        simplicity=1,
    )


def _everywhere(value: object, array: Array) -> Array:
    return np.full_like(array, value)


EXTENSIONS = (absent_inputs,)
