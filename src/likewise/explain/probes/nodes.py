"""A node of the graph does something else than what the reference has in its place.

Both graphs are laid side by side by what their tensors hold, and the reference's part is put where the difference
begins (`explain/splice.py`): an attribute, a constant, the wiring, a part that is missing or too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import splice, trace
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import Change, Effect
from likewise.explain.splice import Culprit
from likewise.models.onnx import alternatives, edits
from likewise.models.onnx.grafts import Differing

SHOWN = 3
"""Differences and nodes that are told one by one."""

NEAR = 0.05
"""If what a node gives differs by no more than this part of it, it computes the same less exactly."""

CAUSES = {
    "attribute": "operator-attribute",
    "constant": "operator-attribute",
    "weights": "weight-corruption",
    "frozen": "traced-branch",
    "wiring": "wrong-wiring",
    "missing": "model-part-dropped",
    "operator": "operator-semantics",
}
"""What a difference of two nodes is called."""

AGAIN = Remedy(again="Export again from this reference, and check the export before it is changed")


@probe(
    "operator-attribute",
    "wrong-wiring",
    "model-part-dropped",
    "operator-semantics",
    "weight-corruption",
    "traced-branch",
    "approximation",
    when=lambda case: (
        case.graph() is not None and case.native("reference") is not None and not case.comparison.quantized_nodes
    ),
)
def nodes(case: Case) -> Explained | None:
    """Put the reference's part where the difference begins; a reference that is no graph is exported now."""
    found = splice.culprits(case)
    return None if found is None else _explained(case, *found)


@probe(
    "quantization",
    when=lambda case: (
        case.graph() is not None
        and case.framework("reference") in ("onnx", "torch")
        and case.comparison.quantized_nodes > 0
    ),
    slow=True,
)
def quantized_nodes(case: Case) -> Explained | None:
    """Put the reference's part where a quantised graph leaves it by more than rounding."""
    found = splice.culprits(case)
    if found is None:
        return None
    few = sum(len(culprit.graft.nodes) for culprit in found[0]) <= SHOWN
    return replace(_explained(case, *found), cause="quantization", simplicity=3 if few else 5)


def _explained(case: Case, culprits: Sequence[Culprit], effect: Effect) -> Explained:
    """What was put right, by the cause of the first."""
    told = [_told(culprit) for culprit in culprits]
    cause, _, remedy = told[0]
    fitted = case.framework("reference") not in ("onnx", "torch")
    if fitted and any(entry.kind in ("constant", "weights") for entry in culprits[0].differing):
        cause = "weight-corruption"
    # What a probe of its own knows a cause by is told in better words than that two nodes differ.
    single = all(len(culprit.graft.nodes) == 1 or culprit.graft.how == "inserted" for culprit in culprits)
    known = all(culprit.graft.how != "replaced" or culprit.differing for culprit in culprits)
    said = "; ".join(dict.fromkeys(text for _, text, _ in told[:SHOWN]))
    more = f", and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    place = _place(culprits)
    return effect.explained(
        cause,
        place,
        f"{said}{more}; with the reference's part put there, {effect.told} agree",
        remedy if len(culprits) == 1 else AGAIN,
        simplicity=5 if fitted or not single else 3 if known else 4,
        fixes=Change(target=culprits[-1].graft.target).fixes(f"the reference's part put in the place of {place}"),
    )


def _told(culprit: Culprit) -> tuple[str, str, Remedy]:
    """The cause, what is different in words, and what to do."""
    graft, graph, twin = culprit.graft, culprit.beside.candidate, culprit.beside.twin
    here = listed([f"{graph.node(index).op_type} '{graph.node(index).name}'" for index in graft.nodes], SHOWN)
    if graft.how == "inserted":
        missing = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in graft.others], SHOWN)
        return "model-part-dropped", f"before {here} the reference has {missing}, and the candidate has not", AGAIN
    if graft.how == "bypassed":
        return "operator-semantics", f"the reference has nothing in the place of {here}", AGAIN
    differences = culprit.differing
    if differences:
        first = _first(differences)
        node = graph.node(graft.nodes[0])
        said = listed([entry.told for entry in differences], SHOWN)
        return _cause(node.op_type, first), f"{here}: {said}", _remedy(culprit, differences)
    instead = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in graft.others], SHOWN)
    wanted = culprit.beside.theirs.get(_wanted(culprit))
    held = culprit.beside.ours.get(graft.tensor)
    near = wanted is not None and held is not None and splice.apart(held, wanted) <= NEAR
    return (
        "approximation" if near else "operator-semantics",
        f"{here} stands where the reference has {instead}",
        AGAIN,
    )


def _wanted(culprit: Culprit) -> str:
    """The twin's tensor that was put in."""
    others = culprit.graft.others
    return "" if not others else culprit.beside.twin.node(others[-1]).output[0]


def _called(operator: str, name: str) -> str:
    return f"{operator} '{name}'" if name else operator


def _first(differences: Sequence[Differing]) -> Differing:
    """The one that the others follow from: an attribute explains more than a constant beside it."""
    order = ("missing", "operator", "attribute", "weights", "frozen", "constant", "wiring")
    return min(differences, key=lambda entry: order.index(entry.kind))


def _cause(operator: str, first: Differing) -> str:
    if first.name.startswith("classlabels"):
        return "label-mapping"
    if first.kind == "attribute":
        known = {name: cause for cause, name, _ in alternatives.CHOICES.get(operator, ())}
        return {**known, "post_transform": "link-function"}.get(first.name, "operator-attribute")
    return CAUSES[first.kind]


def _remedy(culprit: Culprit, differences: Sequence[Differing]) -> Remedy:
    """The attribute to set, if nothing else is different."""
    only = differences[0]
    if len(differences) > 1 or only.kind != "attribute" or only.inner or only.value is None:
        return AGAIN
    node = culprit.beside.candidate.node(culprit.graft.nodes[0])
    value = only.value.decode("utf-8", "replace") if isinstance(only.value, bytes) else only.value
    if hasattr(value, "dims"):
        return AGAIN
    return Remedy(done=edits.setting(node, only.name, str(list(value) if isinstance(value, tuple) else value)))


def _place(culprits: Sequence[Culprit]) -> Place:
    graph = culprits[0].beside.candidate
    found = [culprit.beside.candidate.node(index) for culprit in culprits for index in culprit.graft.nodes]
    place = trace.place_of(*found)
    if culprits[0].graft.how == "inserted":
        missing = [culprits[0].beside.twin.node(index).op_type for index in culprits[0].graft.others]
        place = replace(place, name=listed(missing, SHOWN), details=(f"missing before {place}",))
    tensors = [name for culprit in culprits for name in _tensors(culprit)]
    sources = [line for node in found if (line := edits.source_of(node))]
    first = graph.node(culprits[0].graft.nodes[0])
    inside = list(dict.fromkeys(entry.name for culprit in culprits for entry in culprit.differing if entry.inner))
    return replace(
        place,
        details=(*place.details, *(f"'{name}' inside" for name in inside), *sources[:1]),
        path=place.path or edits.module_of(first) or "",
        nodes=tuple(dict.fromkeys([*place.nodes, *inside])),
        tensors=tuple(dict.fromkeys([*place.tensors, *tensors])),
        source=sources[0] if sources else "",
    )


def _tensors(culprit: Culprit) -> Iterator[str]:
    yield culprit.graft.tensor
    yield from (entry.name for entry in culprit.differing if entry.kind in ("weights", "constant") and not entry.inner)


EXTENSIONS = (nodes, quantized_nodes)
