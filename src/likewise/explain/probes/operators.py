"""An operator that frameworks do not agree about: an approximation, a way of rounding, a mode of resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import alternatives, edits
from likewise.models.onnx.alternatives import Alternative

if TYPE_CHECKING:
    from onnx import ModelProto


MOST = 80
"""Changes that are tried."""

PATIENCE = 0.15
"""The part of the time left that trying may take."""

LEFT = 0.2
"""The part of the difference that the right change may leave."""


class Operators:
    """Let the nodes of one operator do what else they could have been meant to do: all of them, then one at a time."""

    causes = ("approximation", "operator-semantics", "operator-attribute")
    needs_answers = True
    slow = True

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        if proto is None:
            return []
        kinds: dict[str, list[Alternative]] = {}
        for found in alternatives.alternatives(proto):
            kinds.setdefault(found.kind, []).append(found)
        together = [{entry.node: entry for entry in group} for group in kinds.values()]
        alone = [{entry.node: entry} for group in kinds.values() if len(group) > 1 for entry in group]
        best: tuple[Effect, Mapping[str, Alternative]] | None = None
        for chosen in experiment.searching(case, [*together, *alone][:MOST], patience=PATIENCE):
            effect = self._effect(case, proto, chosen)
            if effect is not None and effect.explains and (best is None or effect.share > best[0].share):
                best = effect, chosen
        return [] if best is None else [_explained(proto, *best)]

    def _effect(self, case: Case, proto: ModelProto, chosen: Mapping[str, Alternative]) -> Effect | None:
        """On some rows first; on all of them only if that is promising."""
        try:
            changed = alternatives.changed(proto, chosen)
        except (ValueError, IndexError, KeyError):
            return None
        positions = Trial.few(case).positions
        answers = case.ask_changed("candidate", target=changed, batch=case.rows(positions))
        if answers is None or not Trial(case, positions).effect(candidate=answers).explains:
            return None
        # The right alternative leaves rounding, and nothing else, of the difference.
        before = Trial(case, positions).gap()
        if before and Trial(case, positions).gap(candidate=answers) > LEFT * before:
            return None
        return experiment.run(case, Change(target=changed))


def _explained(proto: ModelProto, effect: Effect, chosen: Mapping[str, Alternative]) -> Explained:
    nodes = [node for node in proto.graph.node if node.name in chosen]
    first = next(iter(chosen.values()))
    places = [edits.place(node) for node in nodes]
    some = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    attribute = first.told.partition("=")[0] if first.cause == alternatives.ATTRIBUTE else ""
    return Explained(
        first.cause,
        f"{some} ({attribute})" if attribute else some,
        f"with {first.told} in {some}, the candidate agrees with the reference on {int(effect.covered.sum())} of "
        f"{int(effect.failing.sum())} failing rows",
        "Make both compute it in one way, and export again: change the reference's layer, or this node of the graph",
        covered=effect.covered,
        simplicity=2,
    )


EXTENSION = Operators()
