"""A node of the graph does something else than what the reference has in its place, or the wrong one is the output.

Both graphs are laid side by side by what their tensors hold, and the reference's part is put where the difference
begins (`explain/splice.py`): an attribute, a constant, the wiring, a part that is missing or too much. An output that
is another tensor of the model (a hidden layer, a step before the last, a sibling) is looked up among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec, Tolerance
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import answers, experiment, graph_diff, rounding, splice, trace
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.counterparts import parts_of
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.features import innermost, input_of_last_step
from likewise.explain.splice import Culprit
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

ALIKE = 0.98
"""Two tensors are the same if so many of the rows agree."""

WIDE = Tolerance(1e-3, 1e-2)
"""In a tolerance wider than this, tensors would be taken for one another."""

CAUSES = {
    "attribute": "operator-attribute",
    "constant": "operator-attribute",
    "weights": "weight-corruption",
    "narrowed": "precision-reduction",
    "frozen": "traced-branch",
    "wiring": "wrong-wiring",
    "missing": "model-part-dropped",
    "operator": "operator-semantics",
}
"""What a difference of two nodes is called."""

STORED = ("weights", "constant", "narrowed")
"""Differences of what is stored in a file."""

MISSING = {"inserted": "before", "appended": "behind"}
"""Where a part of the reference is missing, by how it is put in."""

IDLE = {"Identity": "does nothing", "ConstantOfShape": "gives one number for all"}
"""Operators that compute nothing from the data: where one stands for a part, the part is gone."""

LINKS = {"Softmax", "LogSoftmax", "Sigmoid", "Exp", "Log", "Tanh", "Softplus"}
"""Operators that make answers of scores."""

INTEGER = {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "MatMulIntegerToFloat"}
"""Operators that multiply integers."""

KEPT = Remedy("Keep it in float32 (likewise quantize --mode fp16 --exclude NODE)")
AGAIN = Remedy(again="Export again from this reference, and check the export before it is changed")


@probe(
    "operator-attribute",
    "wrong-wiring",
    "model-part-dropped",
    "operator-semantics",
    "weight-corruption",
    "traced-branch",
    "approximation",
    "precision-reduction",
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
    graph = found[0][0].beside.candidate
    nodes = [graph.node(index) for culprit in found[0] for index in culprit.graft.nodes]
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
    told = [_told(culprit) for culprit in culprits]
    cause, _, remedy = told[0]
    fitted = case.framework("reference") not in ("onnx", "torch")
    if fitted and any(entry.kind in ("constant", "weights") for entry in culprits[0].differing):
        cause = "weight-corruption"
    # What a probe of its own knows a cause by is told in better words than that two nodes differ.
    single = all(len(culprit.graft.nodes) == 1 or culprit.graft.how in MISSING for culprit in culprits)
    # So is an output that is another tensor of the reference.
    known = all(culprit.graft.how in ("inserted", "bypassed") or culprit.differing for culprit in culprits)
    exact = 2 if cause == "weight-corruption" or len(culprits) > 1 else 1
    said = "; ".join(dict.fromkeys(text for _, text, _ in told[:SHOWN]))
    more = f", and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    place = _place(culprits)
    return effect.explained(
        cause,
        place,
        f"{said}{more}; with the reference's part put there, {effect.agreeing}",
        remedy if all(other == remedy for _, _, other in told) else AGAIN,
        simplicity=exact if whole else 5 if fitted or not single else 3 if known else 4,
        fixes=Change(target=culprits[-1].graft.target).fixes(f"the reference's part put in the place of {place}"),
    )


def _told(culprit: Culprit) -> tuple[str, str, Remedy]:
    """The cause, what is different in words, and what to do."""
    graft, graph, twin = culprit.graft, culprit.beside.candidate, culprit.beside.twin
    here = listed([f"{graph.node(index).op_type} '{graph.node(index).name}'" for index in graft.nodes], SHOWN)
    if graft.how in MISSING:
        missing = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in graft.others], SHOWN)
        told = f"{MISSING[graft.how]} {here} the reference has {missing}, and the candidate has not"
        linked = graft.how == "appended" and {twin.node(index).op_type for index in graft.others} <= LINKS
        return "link-function" if linked else "model-part-dropped", told, AGAIN
    if graft.how == "bypassed" and any(_narrows(graph.node(index)) for index in graft.nodes):
        return "precision-reduction", f"{here} leave half precision of what the reference keeps in full", KEPT
    if graft.how == "bypassed":
        return "operator-semantics", f"the reference has nothing in the place of {here}", AGAIN
    differences = culprit.differing
    if differences:
        first = _first(differences)
        node = graph.node(graft.nodes[0])
        said = listed([entry.told for entry in differences], SHOWN)
        narrowed = all(entry.kind == "narrowed" for entry in differences)
        return _cause(node.op_type, first), f"{here}: {said}", KEPT if narrowed else _remedy(culprit, differences)
    instead = listed([_called(twin.node(index).op_type, twin.node(index).name) for index in graft.others], SHOWN)
    operators = {graph.node(index).op_type for index in graft.nodes}
    for idle, does in IDLE.items():
        if operators <= {idle, "Shape"}:
            return "model-part-dropped", f"{here} {does} where the reference has {instead}", AGAIN
    wanted = culprit.beside.theirs.get(_wanted(culprit))
    held = culprit.beside.ours.get(graft.tensor)
    exact = graph.types.get(graft.tensor) not in trace.FLOATS  # positions and masks are right or wrong
    near = wanted is not None and held is not None and not exact and splice.apart(held, wanted) <= NEAR
    return (
        "approximation" if near else "operator-semantics",
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


def _cause(operator: str, first: Differing) -> str:
    if first.name.startswith("classlabels"):
        return "label-mapping"
    if first.kind == "attribute":
        known = {name: cause for cause, name, _ in rewrites.CHOICES.get(operator, ())}
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
    found = [graph.node(index) for index in dict.fromkeys(i for culprit in culprits for i in culprit.graft.nodes)]
    place = trace.place_of(*found)
    if (how := culprits[0].graft.how) in MISSING:
        missing = [culprits[0].beside.twin.node(index).op_type for index in culprits[0].graft.others]
        place = replace(place, name=listed(missing, SHOWN), details=(f"missing {MISSING[how]} {place}",))
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
    yield from (entry.name for entry in culprit.differing if entry.kind in STORED and not entry.inner)


@probe("wrong-intermediate", when=lambda case: case.required.batch.stacked and bool(_concerned(case)))
def intermediates(case: Case) -> Sequence[Explained]:
    """Look for the reference's answer among the candidate's tensors, and for the candidate's among the reference's."""
    trial = Trial.few(case, FEW_ROWS)
    return list(_right_elsewhere(case, trial)) or list(_something_else(case, trial))


def _concerned(case: Case) -> list[PairSpec]:
    """Outputs that differ or could not be put side by side, numbers only."""
    failing = [pair.spec for pair in case.failing_pairs()]
    paired = [pair.spec for pair in case.required.pairs]
    found = []
    for spec in case.specs:
        theirs = case.required.candidate.get(spec.candidate)
        if theirs is None or not is_numeric(theirs) or spec.reference not in case.required.reference:
            continue
        if any(spec is one for one in failing) or not any(spec is one for one in paired):
            found.append(spec)
    return found


def _right_elsewhere(case: Case, trial: Trial) -> Iterator[Explained]:
    """Tensors of the candidate that the output is not made from, and that are what it should be."""
    if case.graph() is None:
        return
    leading = {spec.candidate: _sources(case.graph(), spec.candidate) for spec in _concerned(case)}
    inside = trace.looked_into(case, trial.batch, apart_from=set.intersection(*leading.values()))
    if inside is None:
        return
    for spec in _concerned(case):
        ours, sources = trial.reference[spec.reference], leading[spec.candidate]
        # The last one is the nearest to what an output is.
        for name, array in reversed(list(inside.values.items())):
            if name not in inside.made_by or name in sources or not _same(spec, ours, array, case):
                continue
            with trace.reader(case, name) as read:
                told = read(case.required.batch)
            if told is None:
                continue
            effect = Trial.whole(case).effect(candidate={**case.required.candidate, spec.candidate: told})
            if effect.explains:
                yield effect.explained(
                    "wrong-intermediate",
                    Place(
                        spec.name,
                        (f"output '{spec.candidate}' instead of tensor '{name}'",),
                        outputs=(spec.candidate,),
                        tensors=(name,),
                    ),
                    f"tensor '{name}' of the candidate's graph, which its output '{spec.candidate}' is not made from, "
                    f"agrees with the reference on {effect.told}",
                    f"Make '{name}' the output of the graph",
                    simplicity=3,
                )
                return


def _something_else(case: Case, trial: Trial) -> Iterator[Explained]:
    """Something the reference computes on its way, and that is what the candidate answers."""
    concerned = _concerned(case)
    if not concerned or case.native("reference") is None:
        return
    inner = _of_reference(case, trial)
    for spec in concerned:
        theirs, right = trial.candidate[spec.candidate], trial.reference[spec.reference]
        for name, array in inner.items():
            if answers.distinct(array) < 2 or _same(spec, right, array, case):
                continue
            if _same(spec, array, theirs, case):
                # What else a row is wrong in is not told by this output.
                told = [rows_beyond(p) if p.spec is spec else ~rows_beyond(p) for p in case.required.pairs]
                yield Explained(
                    "wrong-intermediate",
                    Place(spec.name, (f"output '{spec.candidate}' is {name}",), outputs=(spec.candidate,)),
                    f"on {len(trial)} rows looked at, the candidate's '{spec.candidate}' is {name} of the "
                    f"reference, not its {spec.name}",
                    f"Export the whole model: what it gives at the end is {spec.name}",
                    covered=np.logical_and.reduce([case.required.failing, *told]),
                )
                return


def _same(spec: PairSpec, ours: Array, theirs: Array, case: Case) -> bool:
    """Do two arrays hold the same numbers, row by row, whatever the shape of a row?"""
    if not (is_numeric(ours) and is_numeric(theirs)) or ours.shape[:1] != theirs.shape[:1]:
        return False
    if spec.columns is not None or spec.reference_column is not None or spec.expand is not None:
        aligned = align(spec, ours, theirs) if theirs.ndim == 2 or spec.columns is None else None
        if aligned is None or isinstance(aligned, Mismatch):
            return False
        ours, theirs = aligned
    if ours.size != theirs.size or not ours.size:
        return False
    known = case.tolerance
    tolerance = answers.forgiving(Tolerance(min(known.absolute, WIDE.absolute), min(known.relative, WIDE.relative)))
    plain = replace(spec, kind=Kind.VALUE, columns=None, reference_column=None, expand=None)
    batch = case.rows(np.arange(len(ours)))
    pair = Pair(plain, batch, ours, theirs.reshape(ours.shape), tolerance, nan_equal=case.plan.nan_equal)
    return bool(rows_beyond(pair).mean() <= 1 - ALIKE)


def _sources(proto: Any, output: str) -> set[str]:
    """The tensors that an output of a graph is made from."""
    found = {output}
    for node in reversed(proto.graph.node):
        if found.intersection(node.output):
            found.update(node.input)
    return found


def _of_reference(case: Case, trial: Trial) -> Mapping[str, Array]:
    """What the reference computes before its answer, and its other answers, by a name for a person."""
    framework = case.framework("reference")
    if framework == "onnx":
        proto = case.editable("reference")
        made = [] if proto is None else _of_its_size(case, proto, trial)
        told = None if proto is None else trace.seen_inside(case, "reference", proto, made, trial.positions)
        found = {f"tensor '{name}'": array for name, array in (told or {}).items()}
    else:
        step = "step " if framework == "sklearn" else ""
        parts = [part for part in parts_of(case, trial.batch) if part.gave is not None]
        found = {f"what {step}'{part.path}' gives": np.asarray(part.gave) for part in parts}
        found |= _of_last_step(case, trial) if framework == "sklearn" else _activated(found)
    return {name: array for name, array in found.items() if is_numeric(array) and array.shape[:1] == (len(trial),)}


def _of_its_size(case: Case, proto: ModelProto, trial: Trial) -> list[str]:
    """The tensors of the reference that may be an output, by their size: all of them at once may be too many."""
    made = [name for node in proto.graph.node for name in node.output if name]
    concerned = _concerned(case)
    if any(spec.columns is not None or spec.reference_column is not None or spec.expand for spec in concerned):
        return made
    sizes = {trial.candidate[spec.candidate].size // len(trial) for spec in concerned}
    seen = trace.seen_inside(case, "reference", proto, made, trial.positions[:1]) or {}
    return [name for name, array in seen.items() if array.ndim and array.size in {n * len(array) for n in sizes}]


def _activated(parts: Mapping[str, Array]) -> dict[str, Array]:
    """Activations are often functions, which no module stands for."""
    ways: dict[str, Callable[[Array], Array]] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": answers.sigmoid,
    }
    return {
        f"{name}, after a {told}": way(array)
        for name, array in parts.items()
        if is_numeric(array)
        for told, way in ways.items()
    }


def _of_last_step(case: Case, trial: Trial) -> dict[str, Array]:
    """What the methods of the last step give."""
    case.require_time()
    model, found = innermost(case), dict[str, Array]()
    try:
        data = input_of_last_step(case, trial.batch)
        for method in ("decision_function", "predict_log_proba", "score_samples", "transform", "predict_proba"):
            if hasattr(model, method):
                value = getattr(model, method)(data)
                found[f"{method} of the model"] = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    except Exception:  # noqa: BLE001 - a method that refuses these rows ends the list, no more
        pass
    return found


EXTENSIONS = (nodes, quantized_nodes, intermediates, operator_versions)
