"""One side answers NaN or Inf where the other has a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array, Tensors
from likewise.explain import trace
from likewise.explain.case import Case, Explained
from likewise.models.onnx import edits, widen


class Nonfinite:
    """Follow the first NaN or Inf to the node that makes it of finite numbers."""

    causes = ("nonfinite", "weight-corruption")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return any(
            _broken_rows(pair, side).any() for pair in case.failing_pairs() for side in ("candidate", "reference")
        )

    def test(self, case: Case) -> Sequence[Explained]:
        found = []
        for side in ("candidate", "reference"):
            rows = {pair.spec.name: _broken_rows(pair, side) & ~_unusable(case, side) for pair in case.failing_pairs()}
            rows = {name: mask for name, mask in rows.items() if mask.any()}
            if rows:
                found.extend(self._of_side(case, side, rows))
        return found

    def _of_side(self, case: Case, side: str, rows: dict[str, Array]) -> list[Explained]:
        anywhere = np.logical_or.reduce(list(rows.values())) & case.required.failing
        output = max(rows, key=lambda name: int(rows[name].sum()))
        counts = f"{int(anywhere.sum())} of {int(case.required.failing.sum())} failing rows"
        other = "reference" if side == "candidate" else "candidate"
        evidence = f"{side} answers NaN or Inf in '{output}' on {counts}, the {other} a number"
        proto = case.editable(side)
        origin = None
        if proto is not None:
            origin = trace.origin(case, side, proto, np.flatnonzero(anywhere))
        if proto is None or origin is None:
            whose = output if side == "candidate" else f"{output} of the reference"
            remedy = f"Look at what the {side} does with these rows before it is compared"
            return [Explained("nonfinite", whose, f"the {evidence}", remedy, covered=anywhere, simplicity=4)]
        if origin.constant is not None:
            where = f"'{origin.constant}' (index {', '.join(map(str, origin.index))})"
            told = f"the {evidence}; it comes from the number stored at {where}, which is not finite"
            return [
                Explained(
                    "weight-corruption", where, told, "Export it again from the trained model", anywhere, simplicity=2
                )
            ]
        place = edits.place(origin.node)
        evidence = f"the {evidence}; {place} is the first to make it of finite numbers: {origin.how}"
        wider = self._in_wider_type(case, proto) if side == "candidate" else None
        if wider == "half":
            # Half precision overflows at 65,504: that is the reduction of the precision, told as such elsewhere.
            return []
        if wider == "double":
            evidence += "; computed in double it does not happen"
        return [
            Explained(
                "nonfinite",
                f"{output} ({origin.how}: {place})",
                evidence,
                "Export it in double (likewise export --double), or bound the value before this node"
                if wider == "double"
                else "Bound the value before this node as the reference does (torch.clamp), and export again",
                covered=anywhere,
                simplicity=2,
            )
        ]

    def _in_wider_type(self, case: Case, proto: object) -> str | None:
        """The type that cures it: `half` if float32 is enough, `double`, or None."""
        types = case.tensor_types()
        halves = frozenset({widen.HALF, widen.BRAIN})
        for told, kinds, to in (
            ("half", halves, widen.SINGLE),
            ("double", frozenset({widen.SINGLE}), widen.DOUBLE),
        ):
            if not any(kind in kinds for kind in types.values()):
                continue
            plan = widen.Widening(types, kinds, to)
            found = widen.runnable(proto, plan)  # type: ignore[arg-type]
            answers = None if found is None else case.ask_changed("candidate", target=found[0])
            if answers is not None and _finite(case, answers):
                return told
        return None


def _finite(case: Case, answers: Tensors) -> bool:
    for pair in case.failing_pairs():
        array = answers.get(pair.spec.candidate)
        rows = _broken_rows(pair, "candidate")
        if array is None or (array.dtype.kind == "f" and not np.isfinite(array[rows].astype(np.float64)).all()):
            return False
    return True


def _broken_rows(pair: Pair, side: str) -> Array:
    """The rows where this side has NaN or Inf and the other a number."""
    mine, theirs = (pair.candidate, pair.reference) if side == "candidate" else (pair.reference, pair.candidate)
    if mine.dtype.kind != "f":
        return np.zeros(len(mine), dtype=bool)
    mine = mine.astype(np.float64).reshape(len(mine), -1)
    broken: Array = ~np.isfinite(mine)
    if theirs.dtype.kind == "f":
        broken = broken & np.isfinite(theirs.astype(np.float64)).reshape(len(theirs), -1)
    return np.asarray(broken.any(axis=1))


def _unusable(case: Case, side: str) -> Array:
    """The rows that are given NaN or Inf: what a model does with those is another matter."""
    mask = np.zeros(len(case.required), dtype=bool)
    if not case.required.batch.stacked:
        return mask
    for array in case.fed(side).values():
        if array.dtype.kind == "f":
            mask = mask | ~np.isfinite(array.astype(np.float64)).reshape(len(array), -1).all(axis=1)
        elif array.dtype.kind == "O" and array.ndim == 1:
            mask = mask | np.array([value is None or value != value for value in array], dtype=bool)
    return mask


EXTENSION = Nonfinite()
