"""A part of the model is not in the candidate: an intercept, a bias, a normalisation, a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from likewise.explain import layers
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.repairs import agreeing, needed, tried
from likewise.explain.weights import Difference, Weights, weights
from likewise.models.parameters import Parameter

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_TRIED = 6


class DroppedParts:
    """Look for fitted arrays that the graph has as zeros or not at all; put them in, and see whether the rows agree."""

    causes = ("model-part-dropped", "preprocessing-dropped")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.native("reference") is not None

    def test(self, case: Case) -> Sequence[Explained]:
        found = weights(case)
        if found is None or found.stale:
            return []
        return self._emptied(case, found) or self._left_out(case, found) or self._unscaled(case, found)

    def _emptied(self, case: Case, found: Weights) -> list[Explained]:
        """Intercepts for which the graph has a place, with nothing in it."""
        emptied = [
            entry
            for entry in found.differences
            if entry.is_intercept and (entry.constant.absent or entry.pattern.text == "all zero")
        ]
        result = needed(case, emptied) if emptied else None
        if result is None:
            return []
        parts, effect = result
        where = ", ".join(entry.place for entry in parts[:3])
        state = "absent" if all(entry.constant.absent for entry in parts) else "all zero"
        evidence = f"{_names(parts)} {'is' if len(parts) == 1 else 'are'} {state} in the graph"
        return [_explained(f"{_part(parts[0])} ({_names(parts)}, {where})", evidence, effect)]

    def _left_out(self, case: Case, found: Weights) -> list[Explained]:
        """Arrays for which the graph has no place: made one where the rest of their layer stands."""
        for culprit, graph in _with_parts(found):
            effect = None if graph is None else tried(case, graph)
            if effect is not None and effect.explains:
                return [_explained(culprit, f"{culprit} is nowhere in the graph", effect)]
        return []

    def _unscaled(self, case: Case, found: Weights) -> list[Explained]:
        """What a module scales its input by, and the graph does not hold."""
        for culprit, graph in islice(layers.with_scaled_input(found.graph, found.missing), MOST_TRIED):
            effect = tried(case, graph)
            if effect is not None and effect.explains:
                return [_explained(culprit, f"{culprit} is nowhere in the graph", effect, "preprocessing-dropped")]
        return []


def _with_parts(found: Weights) -> Iterator[tuple[str, ModelProto | None]]:
    """Graphs with one missing part each, the likeliest first."""
    absent = [parameter for parameter in found.missing if not parameter.rounding]
    for parameter in [entry for entry in absent if entry.is_intercept and entry.values.any()][:MOST_TRIED]:
        graph = layers.with_bias(found.graph, found.matches, parameter)
        if graph is not None:
            yield f"{_word(parameter)} ({parameter.path})", graph
    folded = [parameter for parameter in found.known if parameter.rounding]
    for norm, changes in layers.unfolded(found.graph, found.matches, absent, folded)[:MOST_TRIED]:
        yield f"normalisation {norm}", layers.with_folded(found.graph, changes)
    for name, graph in layers.with_layer(found.graph, found.matches, found.known, absent):
        yield f"layer {name}", graph
    if not absent and not found.differences and any(layers.is_network(entry) for entry in found.matches):
        for name, graph in islice(layers.with_activation(found.graph), MOST_TRIED):
            yield f"activation {name}", graph


def _explained(culprit: str, evidence: str, effect: Effect, cause: str = "model-part-dropped") -> Explained:
    return Explained(
        cause,
        culprit,
        f"{evidence}; with it put in, {agreeing(effect)}",
        "Export again from this reference, and check the export before it is changed",
        covered=effect.covered,
        simplicity=1,
    )


def _part(entry: Difference) -> str:
    return "intercept" if entry.parameter is None else _word(entry.parameter)


def _word(parameter: Parameter) -> str:
    return "bias" if parameter.attribute.startswith(("bias", "intercepts_")) else "intercept"


def _names(parts: Sequence[Difference]) -> str:
    return ", ".join(entry.name for entry in parts[:3])


EXTENSION = DroppedParts()
