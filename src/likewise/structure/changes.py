"""Changes of answers that are tried one after the other: on a few rows first, on all rows if that looks right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from likewise.cases import Case, Effect, Explained
from likewise.comparing import rows_beyond
from likewise.contracts.data import Array
from likewise.contracts.measuring import Pair
from likewise.structure import answers, trials

FEW_ROWS, FEW_NUMBERS = 128, 100_000
PROMISING = 0.5
"""A change is tried on all rows if this share of some failing rows agree after it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What may be wrong with an output, and the answers of one side as they would be then.

    On the candidate's side `made` puts its answers right; on the reference's side it does to the
    reference's what was done to the candidate's.
    """

    cause: str
    what: str
    done: str
    remedy: str
    side: str
    made: Callable[[], Array]
    simplicity: int = 2


Maker = Callable[[Case, Pair, Array], Iterable[Change]]
"""Lists the changes of a pair that holds some rows of the sample, and which rows these are."""


def best(case: Case, changes: Maker) -> Explained | None:
    """The change that explains most; one change for all failing outputs if there is one, else for one of them."""
    positions = answers.failing_numbers(case)
    tried = {position: _promising(case, position, changes) for position in positions}
    found: tuple[Effect, dict[int, Change]] | None = None
    for first in tried[positions[0]]:
        same = {
            position: change
            for position in positions[1:]
            for change in tried[position]
            if (change.cause, change.what) == (first.cause, first.what)
        }
        found = _better(case, found, {positions[0]: first, **same})
        if found is not None and found[0].share == 1:
            break
    if found is None and len(positions) > 1:
        for position in positions:
            for change in tried[position]:
                found = _better(case, found, {position: change})
    return None if found is None else _explained(case, *found)


def _better(
    case: Case, found: tuple[Effect, dict[int, Change]] | None, chosen: dict[int, Change]
) -> tuple[Effect, dict[int, Change]] | None:
    with np.errstate(all="ignore"):
        made = {position: change.made() for position, change in chosen.items()}
    effect = answers.convincing(
        case,
        {position: array for position, array in made.items() if chosen[position].side == "candidate"},
        {position: array for position, array in made.items() if chosen[position].side == "reference"},
    )
    if effect is None or (found is not None and found[0].share >= effect.share):
        return found
    return effect, chosen


def _promising(case: Case, position: int, changes: Maker) -> list[Change]:
    """The changes that put enough of a few failing rows right, for all rows."""
    pair = answers.pairs(case)[position]
    count = max(8, min(FEW_ROWS, FEW_NUMBERS // max(pair.reference[:1].size, 1)))
    rows = trials.few_rows(case, count)
    small = replace(pair, reference=pair.reference[rows], candidate=pair.candidate[rows], margin=None, noise=None)
    failing = rows_beyond(small)
    if not failing.any():
        rows = np.flatnonzero(rows_beyond(pair))[:count]
        small = replace(small, reference=pair.reference[rows], candidate=pair.candidate[rows])
        failing = np.ones(len(rows), dtype=bool)
    likely = set()
    with np.errstate(all="ignore"):
        for change in changes(case, small, rows):
            array = change.made()
            if array.shape != small.candidate.shape or (change.side == "reference" and not np.isfinite(array).all()):
                continue
            changed = replace(small, candidate=array)
            if change.side == "reference":
                changed = replace(small, reference=array)
            if (~rows_beyond(changed))[failing].mean() >= PROMISING:
                likely.add(change.done)
        everywhere = np.arange(len(pair.reference))
        return [change for change in changes(case, pair, everywhere) if change.done in likely]


def _explained(case: Case, effect: Effect, chosen: dict[int, Change]) -> Explained:
    change = next(iter(chosen.values()))
    concerned: Sequence[Pair] = [answers.pairs(case)[position] for position in chosen]
    return Explained(
        change.cause,
        answers.culprit(concerned, change.what),
        f"{change.done}, the candidate's {answers.names(concerned)} and the reference's agree on "
        f"{answers.told(effect)}",
        change.remedy,
        covered=effect.covered,
        simplicity=change.simplicity,
    )
