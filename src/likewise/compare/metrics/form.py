"""In which form answers come: type, number of axes, and where the rows lie.

Values decide whether two models agree; whoever reads the answers depends on their form too.
"""

from __future__ import annotations

from collections.abc import Mapping

from likewise.contracts.comparison import Form, Json, Pair, PairSpec
from likewise.contracts.values import dataclass


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms that the answers of either side came in: one each, unless a model changes its mind."""

    reference: frozenset[Form] = frozenset()
    candidate: frozenset[Form] = frozenset()
    column_for_vector: bool = False

    def merge(self, other: Forms, /) -> Forms:
        plain = self.column_for_vector or other.column_for_vector
        return Forms(self.reference | other.reference, self.candidate | other.candidate, plain)

    def measurements(self) -> Mapping[str, float]:
        if not self.reference or not self.candidate:
            return {}
        ranks = self._differ("rank") and not self.column_for_vector
        return {
            "dtype_mismatch": float(self._differ("dtype")),
            "rank_mismatch": float(ranks),
            "layout_mismatch": float(self._differ("row_axis")),
        }

    def details(self) -> Mapping[str, Json]:
        return {
            "reference": sorted(form.text for form in self.reference),
            "candidate": sorted(form.text for form in self.candidate),
            "column_for_vector": self.column_for_vector,
        }

    def _differ(self, what: str) -> bool:
        ours, theirs = ({getattr(form, what) for form in side} for side in (self.reference, self.candidate))
        # Where a model does not tell where its rows lie, nothing is known to differ.
        return None not in ours | theirs and ours != theirs


class FormMetric:
    """Applies to whatever can be compared."""

    name = "form"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return True

    def empty(self) -> Forms:
        return Forms()

    def observe(self, pair: Pair) -> Forms:
        if pair.forms is None or not len(pair.reference):
            return Forms()
        reference, candidate = pair.forms
        return Forms(frozenset({reference}), frozenset({candidate}), pair.spec.column_for_vector)


EXTENSION = FormMetric()
