"""What to do about a cause: verified where just that was done and the failing rows agreed, else a suggestion.

Some experiments are the remedy themselves: a line of code, an option (`Remedy.done`), or a change of the graph, which
`likewise fix` makes in a copy (`Explained.fixes`). Beside them, what most causes call for is tried: the reference is
exported again, as `likewise export` does, and asked about the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.observe import Prepared
from likewise.contracts.data import Batch
from likewise.contracts.models import MADE_FROM, Exporter, ExportRequest, Model
from likewise.contracts.report import Diagnosis
from likewise.contracts.verdict import lowered
from likewise.explain.case import Case, Explained, Fix, Remedy, made_once
from likewise.explain.experiment import AS_MUCH, FEW, Effect, Trial
from likewise.models import quietly
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits
from likewise.models.onnx import quantize as graphs
from likewise.models.sklearn.walk import innermost, walk
from likewise.registry import exporters, open_model

if TYPE_CHECKING:
    from onnx import ModelProto

IN_DOUBLE = frozenset({"float32-input-cast", "float32-threshold", "float32-compute", "nonfinite"})
"""Causes that an export in double may take away."""

NOT_BY_EXPORT = frozenset({"quantization", "precision-reduction", "runtime-optimization"})
"""Causes of what was done to an export afterwards, mostly on purpose: a plain one is no answer to them."""

CAPTURED = frozenset({"torch"})
"""Frameworks whose programs are captured for an export, which takes too long to be tried by the way."""

SECONDS_PER_MB = {False: 1.5, True: 4.0}
"""What converting takes by the size of the file; in double more. Measured on forests, which take longest."""

FIRST_ROWS = 256
"""Rows from which an export reads the types of its inputs, where no sample of answers is there."""

MOST_OF_TIME = 0.5
"""The part of the time left that a conversion, which cannot be stopped, may be expected to take."""

STAMPED = (
    "Compare its SHA-256 with the one in the .metadata.json that was written beside it: another export helps only if "
    "it was changed since"
)
"""What there is to do about a file that says it was exported from this very reference."""


def diagnoses(case: Case, found: Sequence[tuple[Explained, float]]) -> Iterator[Diagnosis]:
    """What was found, each with its share, and what to do about it. The export that helps the first cause is tried."""
    first = bool(found) and found[0][0].cause in IN_DOUBLE
    for entry, share in found:
        rows = () if entry.covered is None or case.sample is None else case.sample.names(entry.covered)
        place = entry.culprit
        told = Diagnosis(
            entry.cause,
            str(place),
            round(share, 4),
            entry.evidence,
            "",
            rows,
            path=place.path or (_last_step(case) if place.outputs else ""),
            nodes=place.nodes,
            tensors=place.tensors,
            source=place.source,
        )
        remedy = entry.remedy if isinstance(entry.remedy, Remedy) else Remedy(entry.remedy)
        tried = bool(remedy.again) or entry.cause not in NOT_BY_EXPORT
        double = entry.cause in IN_DOUBLE
        effect = exported(case, *(["--double"] if double else [])) if tried and double == first else None
        # Only graphs are repaired.
        fixes = entry.fixes if case.graph() is not None else ()
        proven = next((fix for fix in fixes if fix.proven and not fix.options), None)
        if proven is not None and not remedy.done and entry.cause not in NOT_BY_EXPORT:
            remedy = replace(remedy, done=f"Have it put right in a copy by likewise fix: {proven.told}")
        yield _with_remedy(case, told, remedy, effect)


def _last_step(case: Case) -> str:
    """The path of the estimator that gives the answers, where outputs are all that is named of a pipeline."""
    model = case.native("reference")
    if case.framework("reference") != "sklearn" or model is None:
        return ""
    last = innermost(model)
    return next((path for path, part in walk(model) if part is last), "")


def _with_remedy(case: Case, told: Diagnosis, remedy: Remedy, effect: Effect | None) -> Diagnosis:
    """The remedy that was verified, if there is one, or what may help; `effect` is that of an export that was tried."""
    double = told.cause in IN_DOUBLE
    command = f"likewise export{' --double' if double else ''}"
    if effect is not None and _as_claimed(effect, told.explained_share):
        again = "" if double else " again"
        done = f"Export the reference{again} with {command}: exported that way, it agrees on {effect.told}"
        return replace(told, remedy=done, remedy_verified=True)
    if effect is not None and remedy.again:
        instead = remedy.suggestion or f"Serve the model with {case.framework('reference')}"
        suggested = f"{instead}; {command} gives no file that agrees"
    else:
        again = STAMPED if remedy.again and not double and _stamped(case) else remedy.again
        both = f"{again}, or {lowered(remedy.suggestion)}"
        suggested = both if again and remedy.suggestion else again or remedy.suggestion
    if remedy.done:
        return replace(told, remedy=remedy.done, remedy_verified=True, suggestion=suggested)
    return replace(told, remedy=suggested)


@made_once
def exported(case: Case, *options: str) -> Effect | None:
    """What `likewise export` of the reference would do in the candidate's place; None if it is not tried."""
    double = "--double" in options
    exporter = _exporter(case, double=double)
    if exporter is None:
        return None
    trial = Trial.whole(case)
    try:
        found = in_candidates_place(trial, exporter.export(request_of(case, double=double)))
    except Exception:  # noqa: BLE001 - what cannot be exported or fails in some converter does not help
        return Effect(np.zeros(len(trial), dtype=bool), trial.failing)
    return None if found is None or found[0].pairing.incidents else found[1]


def in_candidates_place(trial: Trial, proto: ModelProto) -> tuple[Prepared, Effect] | None:
    """An export of the reference in the candidate's place: how it is fed, and the rows on which they agree.

    None if it has other outputs. What was said about the names of the candidate need not hold for another file.
    Where a sample has no rows, it has to agree on the others too: an export may be right for the length of one only.
    """
    case, model = trial.case, Model("onnx", proto.SerializeToString())
    with open_model(model) as opened:
        plan = replace(case.plan, candidate=model, pair={}, feed={})
        found = case.compared(plan, opened, trial.batch, trial.reference)
        further = (case.compared(plan, opened, other.batch, other.reference) for other in case.others)
        elsewhere = all(other is not None and other[1].all() for other in further)
    if found is None or found[0].pairing.mismatches:
        return None
    return found[0], Effect(found[1] & elsewhere, trial.failing)


def fixes(case: Case, found: Sequence[Explained]) -> Iterator[tuple[Explained | None, Fix]]:
    """What can be carried out, the likeliest first: what the experiments did, then the reference exported anew.

    An export that nothing in particular calls for stands without an explanation.
    """
    for entry in found:
        yield from ((entry, fix) for fix in entry.fixes)
    if found and found[0].cause in NOT_BY_EXPORT:
        return
    candidate, exporter = case.runners.get("candidate"), exporter_of(case)
    if exporter is None or (candidate is not None and candidate.details.get("quantized_nodes")):
        return
    double = bool(found) and found[0].cause in IN_DOUBLE
    for wide in (double, not double):
        told = f"the reference exported anew with likewise export{' --double' if wide else ''}"
        yield found[0] if found and wide == double else None, Fix(told, partial(_anew, case, exporter, double=wide))


def quantised_again(case: Case) -> Iterator[Fix]:
    """The float model quantised once more, as the candidate was but in ways that lose less; its size stays."""
    proto, exporter = case.graph(), exporter_of(case)
    if proto is None or (case.framework("reference") != "onnx" and exporter is None):
        return
    if case.runners["reference"].details.get("quantized_nodes"):
        return
    operators = {node.op_type for node in edits.all_nodes(proto.graph)}
    mode = graphs.DYNAMIC if any(name.startswith("Dynamic") for name in operators) else graphs.STATIC
    written = "qoperator" if any(name.startswith("QLinear") for name in operators) else "qdq"
    recipe = graphs.Recipe(mode=mode, format=written, per_channel=True)
    for narrow in dict.fromkeys((graphs.reduce_range()[0], True)):
        told = f"quantised again with a scale for every channel{' and 7-bit weights' if narrow else ''}"
        yield Fix(told, partial(_quantised, case, exporter, recipe, narrow=narrow))


def _quantised(case: Case, exporter: Exporter | None, recipe: graphs.Recipe, *, narrow: bool) -> ModelProto | None:
    model = case.graph("reference") if exporter is None else _anew(case, exporter, double=False)
    if model is None:
        return None
    model = describe.whole(model)
    edits.name_nodes(model.graph)
    layout = RowLayout(Model("onnx", model, batch_axis=case.model("candidate").batch_axis), describe.inputs(model), ())
    fed = feeding.plan(case.required.batch, layout.signature, side="candidate", mapping=case.plan.feed)
    size = layout.signature.batch or FEW
    few = range(0, min(len(case.required), FIRST_ROWS) - size + 1, size)
    rows = (layout.feed(fed(case.required.batch.slice(start, start + size))[0]) for start in few)
    with TemporaryDirectory(prefix="likewise.") as folder, quietly():
        static = recipe.mode == graphs.STATIC
        return graphs.to_integers(model, Path(folder), recipe, rows if static else None, reduce_range=narrow)


def _anew(case: Case, exporter: Exporter, *, double: bool) -> ModelProto | None:
    try:
        return exporter.export(request_of(case, double=double))
    except Exception:  # noqa: BLE001 - converters raise what they like
        return None


def request_of(case: Case, **more: Any) -> ExportRequest:
    """The reference, to be exported for rows like those of the sample or, where nothing was answered, the data."""
    runner, model = case.runners["reference"], case.model("reference")
    if case.sample is not None and case.reference is not None:
        fed, _ = case.reference.feed(case.sample.batch)
    else:
        first = next(iter(case.plan.source.batches(FIRST_ROWS)))
        feed = feeding.plan(first, runner.signature, side="reference", mapping=case.plan.feed)
        fed, _ = feed(first)
    axis = model.options.get("batch_axis", model.batch_axis)
    given = {"details": runner.details, "batch_axis": axis, "dynamic": _free_axes(case, fed), **more}
    return ExportRequest(runner.native, runner.signature, fed, **given)


def _free_axes(case: Case, fed: Batch) -> dict[str, tuple[int, ...]] | None:
    """Of a sample without rows, the axes in which other samples have other sizes."""
    if fed.stacked or case.reference is None:
        return None
    shapes: dict[str, list[tuple[int, ...]]] = {name: [array.shape] for name, array in fed.inputs.items()}
    for other in case.others:
        for name, array in case.reference.feed(other.batch)[0].inputs.items():
            shapes[name].append(array.shape)
    return {
        name: tuple(axis for axis, sizes in enumerate(zip(*of_input, strict=True)) if len(set(sizes)) > 1)
        for name, of_input in shapes.items()
    }


def exporter_of(case: Case) -> Exporter | None:
    """Who exports models like the reference."""
    native = case.native("reference")
    return next((known for known in exporters() if known.claims(native)), None)


def _exporter(case: Case, *, double: bool) -> Exporter | None:
    """Who exports the reference, where that stands for the candidate and there is time for it."""
    graph, framework = case.graph(), case.framework("reference")
    if case.sample is None or not case.sample.batch.stacked or graph is None or framework in CAPTURED:
        return None
    # What was said about the names of this file need not hold for another.
    if case.plan.pair or case.plan.feed or case.runners["candidate"].details.get("quantized_nodes"):
        return None
    if graph.ByteSize() / 1e6 * SECONDS_PER_MB[double] > MOST_OF_TIME * case.seconds_left():
        return None
    return exporter_of(case)


def _as_claimed(effect: Effect, share: float) -> bool:
    """Are as many failing rows gone as the diagnosis says, those counted that fail only now?"""
    return int((~effect.agrees).sum()) <= (1 - AS_MUCH * share) * int(effect.failing.sum())


def _stamped(case: Case) -> bool:
    """Does the candidate's file say that it was exported from this very reference?"""
    runner = case.runners.get("candidate")
    stamps = {} if runner is None else runner.details.get("metadata", {})
    return MADE_FROM in stamps and not case.comparison.lineage
