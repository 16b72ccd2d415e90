"""A model answers differently each time it is asked the same."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.data import Array, Tensors
from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, Trial
from likewise.models.onnx import edits

REPEATS = 4
ROWS = 512
RANDOM = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)
"""Operators that throw dice; a Dropout only in training mode."""


class Nondeterminism:
    """Ask both models the same several times."""

    causes = ("nondeterminism",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return True

    def test(self, case: Case) -> Sequence[Explained]:
        found = []
        positions = Trial.few(case, ROWS).positions
        failing = case.required.failing[positions]
        for side in ("candidate", "reference"):
            if case.framework(side) == "recorded" or not self._changes(case, side):
                continue
            apart = self._apart(case, side, positions)
            if apart is None or (apart & failing).sum() < ENOUGH * failing.sum():
                continue
            covered = apart & failing
            found.append(
                Explained(
                    "nondeterminism",
                    self._culprit(case, side),
                    f"asked {REPEATS} times about the same rows, the {side} answers differently from time to time, on "
                    f"{int(covered.sum())} of {int(failing.sum())} failing rows than when they failed",
                    "Export it for inference (model.eval()), or fix the seed of what is random in it",
                    covered=Trial(case, positions).mask(covered),
                    share=float(covered.sum() / max(int(failing.sum()), 1)),
                    simplicity=2,
                )
            )
        return found

    def _changes(self, case: Case, side: str) -> bool:
        """Do two calls differ on a few rows, or is there something in the graph that throws dice?"""
        batch = case.rows(Trial.few(case).positions)
        one, other = case.ask(side, batch), case.ask(side, batch)
        if one is None or other is None:
            return False
        return bool(self._random(case, side)) or bool(experiment.rows_apart(case, side, one, other).any())

    def _apart(self, case: Case, side: str, positions: Array) -> Array | None:
        """The rows that were answered differently before, of a model whose answers change from call to call."""
        batch = case.rows(positions)
        given: Tensors = getattr(case.required, side)
        before = {name: array[positions] for name, array in given.items()}
        first, proven, apart = case.ask(side, batch), False, None
        for _ in range(1, REPEATS):
            again = case.ask(side, batch)
            if first is None or again is None:
                return None
            proven = proven or bool(experiment.rows_apart(case, side, first, again).any())
            now = experiment.rows_apart(case, side, before, first) | experiment.rows_apart(case, side, before, again)
            apart = now if apart is None else apart | now
        return apart if proven else None

    def _random(self, case: Case, side: str) -> list[str]:
        proto = case.graph(side)
        if proto is None:
            return []
        nodes = [node for node in edits.all_nodes(proto.graph) if node.op_type in RANDOM]
        return [edits.place(node) for node in nodes]

    def _culprit(self, case: Case, side: str) -> str:
        named = self._random(case, side)
        return f"{side} ({named[0]})" if len(named) == 1 else side


EXTENSION = Nondeterminism()
