"""The candidate is given its inputs in a narrower type than the reference."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.cases import Case, Explained
from likewise.contracts.data import Array


class NarrowInputs:
    """Feed the reference what the cast leaves of each column, and see whether it then answers like the candidate."""

    causes = ("float32-input-cast",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return bool(self._columns(case))

    def test(self, case: Case) -> Sequence[Explained]:
        narrowed = self._columns(case)
        whole = self._effect(case, narrowed)
        if whole is None or not whole.explains:
            return []
        alone = {name: self._effect(case, {name: array}) for name, array in narrowed.items()}
        shares = {name: 0.0 if effect is None else effect.share for name, effect in alone.items()}
        best = max(shares, key=lambda name: shares[name])
        culprit = best if shares[best] >= 0.8 * whole.share else ", ".join(narrowed)
        dtype = next(cast.target_dtype for cast in case.comparison.casts if cast.column in narrowed)
        return [
            Explained(
                "float32-input-cast",
                culprit,
                f"given {culprit} rounded to {dtype}, as the candidate is, the reference agrees with it on "
                f"{int(whole.covered.sum())} of {int(whole.failing.sum())} failing rows",
                f"Export with {culprit} as a double input (likewise export --double), or scale it before the export",
                covered=whole.covered,
            )
        ]

    def _columns(self, case: Case) -> dict[str, Array]:
        """The columns that a cast changes, as the candidate sees them, in the reference's own type."""
        sample = case.required
        found = {}
        for cast in case.comparison.casts:
            if cast.side == "candidate" and cast.changed and cast.target_dtype.startswith(("float", "bfloat")):
                column = sample.batch.inputs.get(cast.column)
                if column is not None and column.dtype.kind in "iuf":
                    found[cast.column] = column.astype(cast.target_dtype).astype(column.dtype)
        return found

    def _effect(self, case: Case, columns: dict[str, Array]):  # type: ignore[no-untyped-def]
        tensors = case.ask("reference", case.changed(columns))
        return None if tensors is None else case.effect(reference=tensors)


EXTENSION = NarrowInputs()
