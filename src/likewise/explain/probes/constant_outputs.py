"""A candidate that answers every row alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from likewise.compare.differences import Constancy, is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair
from likewise.explain import answers
from likewise.explain.case import Case, Explained

FEWEST_ROWS = 5


class ConstantOutputs:
    """Where the candidate gives one answer for all rows and the reference does not, nothing else need be asked."""

    causes = ("constant-output",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return len(case.required) >= FEWEST_ROWS and case.required.batch.stacked

    def test(self, case: Case) -> Sequence[Explained]:
        constant = [pair for pair in case.failing_pairs() if _is_constant(pair)]
        if not constant:
            return []
        covered = np.zeros(len(case.required), dtype=bool)
        elsewhere = np.zeros(len(case.required), dtype=bool)
        for pair in case.required.pairs:
            if any(pair is one for one in constant):
                covered |= rows_beyond(pair)
            else:
                elsewhere |= rows_beyond(pair)
        covered &= ~elsewhere
        if covered.sum() < 0.5 * case.required.failing.sum():
            return []
        told = "; ".join(
            f"{pair.spec.name} is {_shown(pair)} on all {len(pair.candidate):,} rows, where the reference gives "
            f"{_many(answers.distinct(pair.reference))} different answers"
            for pair in constant
        )
        return [
            Explained(
                "constant-output",
                answers.culprit(constant, "the same for every row"),
                told,
                "Check that the inputs reach the exported graph: an input that is not used, or a value frozen "
                "when it was traced",
                covered=covered,
                simplicity=4,
            )
        ]


def _is_constant(pair: Pair) -> bool:
    if answers.distinct(pair.reference, limit=3) < 2 or not Constancy.of(pair.candidate).constant:
        return False
    return not is_numeric(pair.candidate) or bool(np.isfinite(pair.candidate[:1]).all())


def _shown(pair: Pair) -> str:
    values = pair.candidate[:1].ravel()[:4].tolist()
    shown = ", ".join(f"{value:.6g}" if isinstance(value, float) else repr(value) for value in values)
    return shown if pair.candidate[:1].size <= 4 else f"{shown}, …"


def _many(count: int) -> str:
    return f"{count}" if count < 50 else "50 or more"


EXTENSION = ConstantOutputs()
