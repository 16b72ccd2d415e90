"""The shortest predicates on the inputs that tell failing rows from agreeing ones.

A predicate is one statement about one feature, or two of them joined by `and` or `or`. It is worth
telling if it catches most failing rows and few others; two statements only if clearly better than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from likewise.cases import Case
from likewise.contracts.data import Array
from likewise.contracts.reporting import Slice
from likewise.facts.atoms import Atom, atoms

WORTH_TELLING = 0.5
"""The smallest correlation of a predicate with failing, 1 being the same thing, at which it is told."""

CLEARLY_BETTER = 0.05
JOINED = 24
"""Statements that are tried in pairs: the best ones alone, by precision and by recall."""

TOLD = 3


@dataclass(frozen=True, slots=True)
class _Predicate:
    text: str
    holds: Array
    length: int
    columns: frozenset[str]


def find(case: Case) -> tuple[Slice, ...]:
    """The best slices, best first."""
    failing = case.required.failing
    if not failing.any() or failing.all():
        return ()
    single = list(atoms(case))
    found = [_Predicate(atom.text, atom.holds, 1, frozenset({atom.field.name})) for atom in single]
    found += _joined(single, failing)
    ranked = sorted(found, key=lambda one: (-_merit(one, failing), one.length, one.text))
    told: list[_Predicate] = []
    for one in ranked:
        # Another statement about the same feature is no news.
        if _association(one.holds, failing) < WORTH_TELLING or any(one.columns & other.columns for other in told):
            continue
        told.append(one)
    return tuple(_slice(one, failing) for one in told[:TOLD])


def _joined(single: Sequence[Atom], failing: Array) -> Iterator[_Predicate]:
    import numpy as np

    # For `or` each part must be precise, for `and` each must catch nearly all.
    merits = {id(atom): _association(atom.holds, failing) for atom in single}
    precise = sorted(single, key=lambda atom: -merits[id(atom)] - _precision(atom.holds, failing))[:JOINED]
    catching = sorted(single, key=lambda atom: -merits[id(atom)] - _recall(atom.holds, failing))[:JOINED]
    for place, one in enumerate(precise):
        for other in precise[place + 1 :]:
            if one.field == other.field:
                continue
            same = one.says == other.says
            text = f"{one.field.name} or {other.field.name} {one.says}" if same else f"{one.text} or {other.text}"
            yield _Predicate(text, one.holds | other.holds, 2, frozenset({one.field.name, other.field.name}))
    for place, one in enumerate(catching):
        for other in catching[place + 1 :]:
            both = one.holds & other.holds
            if one.field == other.field or not np.any(both):
                continue
            yield _Predicate(f"{one.text} and {other.text}", both, 2, frozenset({one.field.name, other.field.name}))


def _merit(one: _Predicate, failing: Array) -> float:
    return _association(one.holds, failing) - CLEARLY_BETTER * (one.length - 1)


def _slice(one: _Predicate, failing: Array) -> Slice:
    caught, total = int((one.holds & failing).sum()), int(failing.sum())
    others = int((one.holds & ~failing).sum())
    rest = f"; {others:,} rows with it agree" if others else ", and no other row"
    return Slice(
        f"{caught:,} of {total:,} failing rows: {one.text}{rest}",
        caught,
        others,
        round(_precision(one.holds, failing), 4),
        round(_recall(one.holds, failing), 4),
    )


def _association(holds: Array, failing: Array) -> float:
    """The correlation of two marks (Matthews): unlike precision and recall it is low where most rows fail anyway."""
    both, one, other = float((holds & failing).sum()), float(holds.sum()), float(failing.sum())
    count = len(holds)
    spread = (one * (count - one) * other * (count - other)) ** 0.5
    return (both * count - one * other) / spread if spread else 0.0


def _precision(holds: Array, failing: Array) -> float:
    return float((holds & failing).sum() / max(int(holds.sum()), 1))


def _recall(holds: Array, failing: Array) -> float:
    return float((holds & failing).sum() / max(int(failing.sum()), 1))
