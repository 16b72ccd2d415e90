"""A node of the graph does something else than what the reference has in its place.

Both graphs are laid side by side by what their tensors hold, and the reference's part is put where the difference
begins (`explain/splice.py`): an attribute, a constant, the wiring, a part that is missing or too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment, graph_diff, parts, rounding, splice, trace
from likewise.explain.case import Case, Explained, OutOfTimeError, Remedy, probe
from likewise.explain.experiment import Change, Effect
from likewise.explain.first_wrong_step import step_of
from likewise.explain.splice import Culprit
from likewise.explain.weight_arrays import pattern, unequal
from likewise.explain.weight_matching import before_the_model
from likewise.explain.weights import reference_parameters
from likewise.models.onnx import edits, rewrites, widen
from likewise.models.onnx.grafts import Differing
from likewise.models.onnx.inside import Opened

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

SHOWN = 3
"""Differences and nodes that are told one by one."""

NEAR = 0.05
"""If what a node gives differs by no more than this part of it, it computes the same less exactly."""

FEW_ROWS = 48
"""Rows on which they are looked at."""

CAUSES = {
    "attribute": "operator-attribute",
    "constant": "operator-attribute",
    "weights": "weight-corruption",
    "narrowed": "precision-reduction",
    "wiring": "wrong-wiring",
    "missing": "model-part-dropped",
    "operator": "operator-semantics",
}
"""What a difference of two nodes is called."""

NAMED = {"post_transform": "link-function", "training_mode": "training-mode"}
"""Attributes that have a cause of their own."""

STRUCTURE = ("traced-branch", "wrong-wiring", "model-part-dropped")
"""Causes that speak of how nodes hang together."""

STORED = ("weights", "constant", "narrowed")
"""Differences of what is stored in a file."""

MISSING = {"inserted": "before", "appended": "behind"}
"""Where a part of the reference is missing, by how it is put in."""

IDLE = {"Identity": "does nothing", "ConstantOfShape": "gives one number for all"}
"""Operators that compute nothing from the data: where one stands for a part, the part is gone."""

BRANCHING = frozenset({"If", "Loop"})
"""Operators that decide by their inputs what is computed; a run that was recorded keeps one way."""

LINKS = {"Softmax", "LogSoftmax", "Sigmoid", "Exp", "Log", "Tanh", "Softplus"}
"""Operators that make answers of scores."""

WEIGHED = {"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN"}
"""Operators whose arrays are learnt, in whatever form they are kept."""

INTEGER = {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "MatMulIntegerToFloat"}
"""Operators that multiply integers."""

KEPT = Remedy("Keep it in float32 (likewise quantize --mode fp16 --exclude NODE)")
AGAIN = Remedy(again="Export again from this reference, and check the export before it is changed")


@probe(
    *("operator-attribute", "wrong-wiring", "model-part-dropped", "operator-semantics", "weight-corruption"),
    *("traced-branch", "approximation", "precision-reduction", "preprocessing-differs"),
    when=lambda case: case.graph() is not None and case.native("reference") is not None and _quantised_alike(case),
    slow=True,  # after the weights, which are read off the files however large they are
)
def nodes(case: Case) -> Explained | None:
    """Put the reference's part where the graphs differ, or where the difference begins.

    A reference that is no graph is exported now. A quantised graph has a probe of its own, unless the reference is
    quantised alike.
    """
    read = graph_diff.found(case)
    if read is not None:
        return _explained(case, read.culprits, read.effect, whole=read.whole)
    found = None if case.comparison.quantized_nodes else splice.culprits(case)
    return None if found is None else _explained(case, *found)


@probe(
    "quantization",
    "model-part-dropped",
    when=lambda case: (
        case.graph() is not None
        and case.framework("reference") in ("onnx", "torch")
        and case.comparison.quantized_nodes > 0
        and not rounding.located(case)
    ),
    slow=True,
)
def quantized_nodes(case: Case) -> Explained | None:
    """Put the reference's part where a quantised graph leaves it by more than rounding."""
    found = splice.culprits(case)
    if found is None:
        return None
    told = _explained(case, *found)
    nodes = _nodes(found[0])
    if not any(map(parts.is_about_integers, found[0])):
        return told
    if len(nodes) > SHOWN and len(multiplied := [node for node in nodes if node.op_type in INTEGER]) == 1:
        # What quantises around one product is written with it.
        place = trace.place_of(*multiplied)
        told, nodes = replace(told, culprit=replace(place, tensors=told.culprit.tensors)), multiplied
    return replace(told, cause="quantization", simplicity=3 if len(nodes) <= SHOWN else 5)


@probe("operator-semantics", when=lambda case: case.framework("reference") == "onnx" and bool(_versions(case)))
def operator_versions(case: Case) -> Explained | None:
    """Read the candidate by the reference's versions of the operators, where a node means something else by its own."""
    proto, versions = case.editable(), _versions(case)
    if proto is None:
        return None
    target = edits.copied(proto)
    for entry in target.opset_import:
        entry.version = versions.get(entry.domain, entry.version)
    effect = experiment.run(case, Change(target=target))
    if effect is None or not effect.explains:
        return None
    concerned = _first_apart(case, proto, target)
    told = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(versions.items()))
    return effect.explained(
        "operator-semantics",
        trace.place_of(concerned) if concerned is not None else Place("opset"),
        f"read by the reference's versions of the operators ({told}), the candidate agrees on {effect.told}",
        Remedy(done=f"Declare the versions that the nodes were written for: {told}"),
        simplicity=1,
        fixes=Change(target=target).fixes(f"the operators read by the reference's versions ({told})"),
    )


def _first_apart(case: Case, proto: ModelProto, other: ModelProto) -> NodeProto | None:
    """The first node that gives something else in another reading of the same graph."""
    types = case.tensor_types()
    inputs = trace.fed(case, "candidate", case.rows(trace.failing_positions(case, FEW_ROWS)))
    graphs = [Opened.of(one, types) for one in (proto, other)]
    ours, theirs = (trace.inside(case, "candidate", graph, graph.tensors, inputs) for graph in graphs)
    both = {name for name in ours if name in theirs}
    apart = {
        name for name in both if not np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f")
    }
    found: NodeProto | None = next((node for node in proto.graph.node if apart.intersection(node.output)), None)
    return found


def _versions(case: Case) -> dict[str, int]:
    """The reference's versions of operators, in the domains in which the candidate has others."""
    graphs = [case.graph(side) for side in ("reference", "candidate")]
    if None in graphs:
        return {}
    ours, theirs = ({entry.domain: entry.version for entry in graph.opset_import} for graph in graphs)
    return {domain: ours[domain] for domain, version in theirs.items() if ours.get(domain, version) != version}


def _quantised_alike(case: Case) -> bool:
    """Is the candidate not quantised, or the reference as much? Quantising writes other operators wherever it works."""
    count = case.runners["reference"].details.get("quantized_nodes", 0)
    return case.comparison.quantized_nodes in (0, count)


def _explained(case: Case, culprits: Sequence[Culprit], effect: Effect, *, whole: bool = False) -> Explained:
    """What was put right, by the cause of the first; `whole`: the graphs differ in nothing else."""
    culprits = [parts.as_missing(culprit) for culprit in culprits]
    told = [_told(case, culprit) for culprit in culprits]
    # How numbers lie is written by every exporter in its own way.
    main = next((place for place, culprit in enumerate(culprits) if not parts.only_moves(culprit)), 0)
    cause, _, remedy = told[main]
    if cause == "weight-corruption" and not any(map(partial(_learnt, case), culprits[0].differing)):
        cause = "operator-attribute"  # a table that was computed when it was exported
    elif cause in STRUCTURE and _in_one_place(culprits, told):
        cause = "operator-semantics"
    elif _moved(culprits):
        cause = "wrong-wiring"
    fitted = hasattr(case.native("reference"), "get_params")
    if (
        fitted
        and cause != "tree-count"
        and any(entry.kind in ("constant", "weights") for entry in culprits[0].differing)
    ):
        cause = "weight-corruption"
    elif fitted and cause == "operator-semantics" and _prepares(culprits[0]):
        cause = "preprocessing-differs"
    # What a probe of its own knows a cause by is told in better words than that two nodes differ.
    single = all(len(culprit.graft.nodes) == 1 or culprit.graft.how in MISSING for culprit in culprits)
    # So is an output that is another tensor of the reference.
    known = all(culprit.graft.how in ("inserted", "bypassed") or culprit.differing for culprit in culprits)
    exact = 2 if cause == "weight-corruption" or len(culprits) > 1 else 1
    said = "; ".join(dict.fromkeys(text for _, text, _ in told[:SHOWN]))
    more = f", and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    place = _in_its_step(case, _place(culprits), culprits) if fitted else _place(culprits)
    return effect.explained(
        cause,
        place,
        f"{said}{more}; with the reference's part put there, {effect.agreeing}",
        remedy if all(other == remedy for _, _, other in told) else AGAIN,
        simplicity=exact if whole else 5 if fitted or not single else 3 if known else 4,
        fixes=Change(target=culprits[-1].graft.target).fixes(f"the reference's part put in the place of {place}"),
    )


def _prepares(culprit: Culprit) -> bool:
    """Do the nodes that differ stand before what was learnt?"""
    return before_the_model(culprit.beside.candidate.proto).issuperset(culprit.graft.nodes)


def _learnt(case: Case, differing: Differing) -> bool:
    """Is it an array of a network that it keeps, in whatever order, or one that an accident made of it?"""
    values, held = differing.value, differing.constant
    if case.framework("reference") != "torch" or not isinstance(values, np.ndarray) or held is None:
        return True
    if values.dtype.kind != "f" or held.operator in WEIGHED:
        return True
    if pattern(held.values, values, unequal(held.values, values)).regular:
        return True
    kept = (entry.values for entry in reference_parameters(case) if entry.values.size == values.size)
    ours = np.sort(values, axis=None)
    if any(np.allclose(np.sort(array, axis=None), ours, rtol=1e-4, atol=1e-6) for array in kept):
        return True
    # Or rows of such an array that were looked up when it was exported.
    different = np.unique(values)
    return len(different) > SHOWN and any(
        np.isin(different, entry.values).all()
        for entry in reference_parameters(case)
        if len(different) <= entry.values.size <= values.size
    )


def _in_one_place(culprits: Sequence[Culprit], told: Sequence[tuple[str, str, Remedy]]) -> bool:
    """Does every module that is concerned differ in several ways at once? It computes something else, then."""
    causes: dict[str, set[str]] = {}
    for culprit, (cause, _, _) in zip(culprits, told, strict=True):
        module = edits.module_of(culprit.beside.candidate.node(culprit.graft.nodes[0])) or ""
        causes.setdefault(module, set()).add(cause)
    return all(len(found) > 1 for found in causes.values())


def _moved(culprits: Sequence[Culprit]) -> bool:
    """Does the candidate have elsewhere what it has not where the reference has it?"""
    missing: Counter[str] = Counter()
    more: Counter[str] = Counter()
    for culprit in culprits:
        graft = culprit.graft
        if graft.how in MISSING:
            twin = culprit.beside.twin
            missing.update(twin.node(index).op_type for index in splice.giving_numbers(twin, graft.others))
        elif graft.how == "bypassed":
            more.update(culprit.beside.candidate.node(index).op_type for index in graft.nodes)
    return bool(missing) and missing == more


def _told(case: Case, culprit: Culprit) -> tuple[str, str, Remedy]:
    """The cause, what is different in words, and what to do."""
    graft, graph, twin = culprit.graft, culprit.beside.candidate, culprit.beside.twin
    known = parts.purpose(case, culprit)
    here = listed([f"{graph.node(index).op_type} '{graph.node(index).name}'" for index in graft.nodes], SHOWN)
    if graft.how in MISSING:
        others = splice.giving_numbers(twin, graft.others)
        missing = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in others], SHOWN)
        told = f"{MISSING[graft.how]} {here} the reference has {missing}, and the candidate has not"
        linked = graft.how == "appended" and {twin.node(index).op_type for index in graft.others} <= LINKS
        return "link-function" if linked else known or "model-part-dropped", told, AGAIN
    if graft.how == "bypassed" and any(_narrows(graph.node(index)) for index in graft.nodes):
        return "precision-reduction", f"{here} leave half precision of what the reference keeps in full", KEPT
    if graft.how == "bypassed":
        return known or "operator-semantics", f"the reference has nothing in the place of {here}", AGAIN
    differences = culprit.differing
    if differences:
        first = _first(differences)
        count, meant = _trees(graph.node(graft.nodes[0])), _trees(twin.node(graft.others[0]))
        if count != meant:
            return "tree-count", f"{here} has {count} trees, in the reference {meant}", AGAIN
        said = listed([entry.told for entry in differences], SHOWN)
        narrowed = all(entry.kind == "narrowed" for entry in differences)
        return _cause(culprit, first), f"{here}: {said}", KEPT if narrowed else _remedy(culprit, differences)
    instead = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in graft.others], SHOWN)
    operators = {graph.node(index).op_type for index in graft.nodes}
    for idle, does in IDLE.items():
        if operators <= {idle, "Shape"}:
            return "model-part-dropped", f"{here} {does} where the reference has {instead}", AGAIN
    if BRANCHING.intersection(twin.node(index).op_type for index in graft.others) - operators:
        return "traced-branch", f"{here} stands where the reference decides by its inputs ({instead})", AGAIN
    wanted = culprit.beside.theirs.get(_wanted(culprit))
    held = culprit.beside.ours.get(graft.tensor)
    exact = graph.types.get(graft.tensor) not in trace.FLOATS  # positions and masks are right or wrong
    near = wanted is not None and held is not None and not exact and splice.apart(held, wanted) <= NEAR
    return (
        known or ("approximation" if near else "operator-semantics"),
        f"{here} stands where the reference has {instead}",
        AGAIN,
    )


def _narrows(node: NodeProto) -> bool:
    return node.op_type == "Cast" and edits.attribute(node, "to") in (widen.HALF, widen.BRAIN)


def _wanted(culprit: Culprit) -> str:
    """The twin's tensor that was put in."""
    others = culprit.graft.others
    return "" if not others else culprit.beside.twin.node(others[-1]).output[0]


def _called(operator: str, name: str) -> str:
    return f"{operator} '{name}'" if name else operator


def _first(differences: Sequence[Differing]) -> Differing:
    """The one that the others follow from: an attribute explains more than a constant beside it."""
    order = ("missing", "operator", "attribute", "weights", "narrowed", "frozen", "constant", "wiring")
    return min(differences, key=lambda entry: order.index(entry.kind))


def _cause(culprit: Culprit, first: Differing) -> str:
    if first.name.startswith("classlabels"):
        return "label-mapping"
    if first.kind == "attribute":
        operator = culprit.beside.candidate.node(culprit.graft.nodes[0]).op_type
        known = {name: cause for cause, name, _ in rewrites.CHOICES.get(operator, ())}
        return {**known, **NAMED}.get(first.name, "operator-attribute")
    return parts.frozen(culprit.beside.twin, first.value) if first.kind == "frozen" else CAUSES[first.kind]


def _trees(node: NodeProto) -> int:
    """How many trees a node holds."""
    named: Any = edits.attribute(node, "nodes_treeids", ()) or edits.attribute(node, "tree_roots", ())
    return len(set(named))


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


def _nodes(culprits: Sequence[Culprit]) -> list[NodeProto]:
    """The nodes of all culprits, each once; every culprit counts them in the graph as it was before it."""
    found = [culprit.beside.candidate.node(index) for culprit in culprits for index in culprit.graft.nodes]
    return [*{node.output[0]: node for node in found}.values()]


def _place(culprits: Sequence[Culprit]) -> Place:
    found = _nodes(culprits)
    place = trace.place_of(*found)
    if (how := culprits[0].graft.how) in MISSING and not _moved(culprits):
        twin = culprits[0].beside.twin
        missing = [twin.node(index).op_type for index in splice.giving_numbers(twin, culprits[0].graft.others)]
        place = replace(place, name=listed(missing, SHOWN), details=(f"missing {MISSING[how]} {place}",))
    tensors = [name for culprit in culprits for name in _tensors(culprit)]
    sources = [line for node in found if (line := edits.source_of(node))]
    first = found[0]
    inside = list(dict.fromkeys(entry.name for culprit in culprits for entry in culprit.differing if entry.inner))
    return replace(
        place,
        details=(*place.details, *(f"'{name}' inside" for name in inside), *sources[:1]),
        path=place.path or edits.module_of(first) or "",
        nodes=tuple(dict.fromkeys([*place.nodes, *inside])),
        tensors=tuple(dict.fromkeys([*place.tensors, *tensors])),
        source=sources[0] if sources else "",
    )


def _in_its_step(case: Case, place: Place, culprits: Sequence[Culprit]) -> Place:
    """The same with the step of the reference that its nodes belong to."""
    owner, written = None, case.editable()
    with suppress(OutOfTimeError):
        owner = None if written is None else step_of(case, written, _nodes(culprits)[0])
    return place if owner is None else replace(place, details=(*place.details, f"in {owner}"), path=place.path or owner)


def _tensors(culprit: Culprit) -> Iterator[str]:
    yield culprit.graft.tensor
    yield from (entry.name for entry in culprit.differing if entry.kind in STORED and not entry.inner)


EXTENSIONS = (nodes, quantized_nodes, operator_versions)
