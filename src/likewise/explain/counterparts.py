"""Where both models meet: what in the graph stands for each part of the reference, and the error each node adds.

Tensors of two graphs are known by name or by structure. What a step gives is looked for among the tensors of the
graph. A node is run alone on the reference's own values; what it gives then is held against what the reference has
there. Where the reference has nothing in the place of a node's inputs, the nodes before it are run along, back to the
nearest values that it has. All parts of a graph run at once, in windows of bounded size.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric, rows_of, same_labels
from likewise.contracts.comparison import Mismatch, PairSpec
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.errors import ModelError
from likewise.explain.case import Case
from likewise.explain.experiment import Trial
from likewise.explain.features import innermost
from likewise.explain.trace import differing, inside, likeness, reference_steps, run, seen
from likewise.explain.weight_matching import aligned
from likewise.models.onnx import edits
from likewise.models.onnx.describe import SHAPE_ONLY
from likewise.models.onnx.inside import GIVEN, Cone, Opened, rewritten
from likewise.models.sklearn.walk import Step

if TYPE_CHECKING:
    pass


QUANTIZED_NAME = re.compile(r"(_(DequantizeLinear|QuantizeLinear)_(Output|Input)|_dequantized)(_\d+)?$")
"""What quantisers put behind the name of a tensor that they write in whole numbers and back."""

KNOWN_BY_NAME = 0.5
"""If names tell of so many tensors, structure is not asked."""


def counterparts(reference: Opened, candidate: Opened) -> dict[str, str]:
    """For tensors of the candidate the name of the reference's."""
    theirs = candidate.tensors
    ours = {*reference.tensors, *reference.inputs}
    readers = candidate.readers

    def only_quantised(name: str) -> bool:
        return {candidate.node(index).op_type for index in readers.get(name, ())} == {"QuantizeLinear"}

    named = {
        name: plain
        for name in theirs
        if (plain := QUANTIZED_NAME.sub("", name)) in ours
        # A quantiser leaves out a Relu where writing in whole numbers does the same: what the name says comes behind.
        and (not only_quantised(name) or reference.made_by(name) in (None, candidate.made_by(name)))
    }
    if len(set(named.values())) >= KNOWN_BY_NAME * min(len(ours), len(theirs)):
        return named
    found = dict(named)
    taken = set(named.values())
    for mine, yours in aligned(reference.proto, candidate.proto):
        outputs = zip(reference.node(mine).output, candidate.node(yours).output, strict=False)
        found |= {other: name for name, other in outputs if name and other not in named and name not in taken}
    return found


def comparable(found: Mapping[str, str], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, str]:
    """Those that hold the same kind of thing in the same shape, from the values of both on one row."""

    def kind(values: Array) -> str:
        return str(values.dtype.kind).replace("u", "i")

    return {
        name: other
        for name, other in found.items()
        if name in theirs
        and other in ours
        and theirs[name].shape == ours[other].shape
        and kind(theirs[name]) == kind(ours[other])
    }


LARGEST = 16 * 2**20
"""Bytes of what a part gives that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A step or module by its path, the parts that it gets its inputs from, and what it gave on some rows."""

    path: str
    operator: str
    before: tuple[str, ...] = ()
    gave: Array | None = None
    detail: str = ""


def parts_of(case: Case, batch: Batch) -> tuple[Part, ...]:
    """The parts of the reference in the order in which they run; a model that has none is one part."""
    model = case.native("reference")
    torch = sys.modules.get("torch")
    if case.framework("reference") == "sklearn":
        return _steps(case, batch)
    if torch is not None and isinstance(model, torch.nn.Module) and (found := _modules(case, model, batch)):
        return found
    kind = case.plan.reference.framework if model is None else type(model).__name__
    return (Part(kind, kind, detail=_detail(model)),)


def _steps(case: Case, batch: Batch) -> tuple[Part, ...]:
    steps = reference_steps(case)
    records = seen(case, batch) if steps and batch.stacked else {}
    upstream = {step.path: step.upstream for step in steps}
    found = []
    for step in steps:
        record = records.get(step.path)
        # Once all numbers of a table are written out as doubles.
        too_large = record is not None and 8 * prod(getattr(record.gave, "shape", ())) > LARGEST
        gave = None if record is None or too_large else record.output
        before = _nearest(step.upstream, upstream)
        found.append(Part(step.path, type(step.estimator).__name__, before, gave, _detail(step.estimator)))
    last = innermost(case)
    if not any(step.estimator is last for step in steps):
        before = _nearest(list(upstream), upstream)
        found.append(Part(_name_of_last(case, steps), type(last).__name__, before, detail=_detail(last)))
    return tuple(found)


def _nearest(paths: Sequence[str], upstream: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Of all that comes before, what comes directly before."""
    further = {earlier for path in paths for earlier in upstream.get(path, ())}
    return tuple(path for path in paths if path not in further)


def _name_of_last(case: Case, steps: Sequence[Step]) -> str:
    model = getattr(case.native("reference"), "best_estimator_", case.native("reference"))
    named = getattr(model, "steps", None)
    name = str(named[-1][0]) if isinstance(named, list) and named else type(model).__name__
    return name if name not in {step.path for step in steps} else f"{name} (model)"


def _modules(case: Case, model: Any, batch: Batch) -> tuple[Part, ...]:
    """The innermost modules in the order in which they are called; one that is called again keeps no values."""
    called: dict[str, Array | None] = {}

    def look(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = hasattr(output, "detach") and output.element_size() * output.nelement() <= LARGEST
            once = name not in called and tensor
            called[name] = output.detach().cpu().float().numpy().copy() if once else None

        return hook

    parts = {name: part for name, part in model.named_modules() if name and not list(part.children())}
    handles: list[Any] = []
    try:
        handles.extend(part.register_forward_hook(look(name)) for name, part in parts.items())
        case.ask("reference", batch)
    except RuntimeError:  # a captured program has modules that take no hooks
        return ()
    finally:
        for handle in handles:
            handle.remove()
    names = list(called)
    before = dict(pairwise(reversed(names)))
    return tuple(
        Part(
            name,
            type(parts[name]).__name__,
            (before[name],) if name in before else (),
            called[name],
            _detail(parts[name]),
        )
        for name in names
    )


def _detail(model: Any) -> str:
    """What was chosen of a part, in its own words."""
    try:
        return "" if model is None or hasattr(model, "__code__") else " ".join(repr(model).split())
    except Exception:  # noqa: BLE001 - the repr of somebody's class may raise anything
        return ""


ALONG = 0.9
"""How well the columns of a tensor must go along with those of a step to be taken for them, 1 being all the way."""


def owners(graph: Opened, paths: Sequence[str]) -> dict[int, str]:
    """The module that nodes come from: as the exporter says, or as the weights they read are called."""
    known = set(paths)
    found: dict[int, str] = {}
    for index in graph.computing:
        said = edits.module_of(graph.node(index))
        holders = (name.rpartition(".")[0] for name in graph.reads[index])
        owner = said if said in known else next((holder for holder in holders if holder in known), None)
        if owner is not None:
            found[index] = owner
    return found


def places_of_modules(parts: Sequence[Part], graph: Opened, tensors: Mapping[str, Array]) -> dict[str, Part]:
    """For the tensors that leave a module, the module: what leaves it is the last that it computes."""
    held = owners(graph, [part.path for part in parts])
    found: dict[str, Part] = {}
    for part in parts:
        last = max((index for index, owner in held.items() if owner == part.path), default=None)
        name = "" if last is None else graph.node(last).output[0]
        if name in tensors and part.gave is not None and tensors[name].shape == part.gave.shape:
            found[name] = part
    return found


def places_of_steps(
    parts: Sequence[Part], known: Mapping[str, str], graph: Opened, tensors: Mapping[str, Array]
) -> dict[str, Part]:
    """For tensors that hold what a step gives, right or wrong, the step.

    `known` are tensors that were shown to be a step's, by its path. What is equal tells by itself; of the rest the
    last tensor is taken whose columns go along with those of the step.
    """
    tables = {
        name: rows_of(tensors[name]).astype("float64")
        for name in graph.tensors
        if name in tensors and tensors[name].ndim and tensors[name].size and is_numeric(tensors[name])
    }
    found: dict[str, Part] = {}
    waiting: list[tuple[Part, Array]] = []
    for part in parts:
        if part.gave is None:
            continue
        fitting = [name for name, table in tables.items() if table.shape == part.gave.shape]
        equal = [name for name in fitting if not differing(tables[name], part.gave).any()]
        proven = known.get(part.path)
        if equal:
            found |= dict.fromkeys(equal, part)
        elif proven in fitting:
            found[proven] = part
        else:
            waiting.append((part, part.gave))
    for part, gave in waiting:
        free = [name for name, table in tables.items() if table.shape == gave.shape and name not in found]
        scored = [(round(likeness(tables[name], gave), 2), place, name) for place, name in enumerate(free)]
        if scored and max(scored)[0] >= ALONG:
            found[max(scored)[2]] = part
    return found


TENSORS = 128
"""Tensors that are asked for at once where their sizes are not known yet: those of an image may be megabytes each."""


def in_windows(case: Case, side: str, graph: Opened, inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """All tensors of a graph on some rows, some at a time."""
    names = [name for name in graph.tensors if name in graph.types]
    for start in range(0, len(names), TENSORS):
        yield inside(case, side, graph, names[start : start + TENSORS], inputs)


def outlines(case: Case, side: str, graph: Opened, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Type and shape of all tensors on some rows: arrays of zeros that take no memory."""
    return {
        name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
        for seen in chain((inputs,), in_windows(case, side, graph, inputs))
        for name, array in seen.items()
    }


PASSING_ON = (SHAPE_ONLY - {"Normalizer"}) | {"QuantizeLinear", "DequantizeLinear"}
"""Operators that are not to blame for a part of the graph that was measured as a whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference answers in the place of an output of the graph."""

    spec: PairSpec
    values: Array


@dataclass(frozen=True, slots=True)
class Beside:
    """What the reference has in the place of tensors of the candidate, asked for by the candidate's names.

    `tensors` have the same shape on both sides and may be given to the candidate; `answers` are only compared.
    """

    tensors: frozenset[str]
    values: Callable[[Collection[str]], Mapping[str, Array]]
    answers: Mapping[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Errors:
    """What was measured of some nodes. `together` are all the nodes that the measurement of one is about."""

    introduced: Mapping[int, float]
    inherited: Mapping[int, float]
    together: Mapping[int, tuple[int, ...]]


def error(reference: Array, candidate: Array) -> float | None:
    """The largest difference as a part of the largest value of either side; None where shapes do not allow it.

    It is 1 at least where one side alone is not finite. Of text and truth values it is the share that differs.
    """
    if reference.size != candidate.size or not reference.size:
        return None
    candidate = candidate.reshape(reference.shape)
    if not all(is_numeric(side) and side.dtype.kind != "b" for side in (reference, candidate)):
        return float(1.0 - same_labels(reference, candidate).mean())
    ours, theirs = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    broken = 1.0 if (~finite & ~same).any() else 0.0
    ours, theirs = ours[finite], theirs[finite]
    scale = max(np.abs(ours).max(initial=0.0), np.abs(theirs).max(initial=0.0))
    # Each is divided first: the difference of two huge numbers may be no number.
    return max(float(np.abs(ours / scale - theirs / scale).max()) if scale else 0.0, broken)


def answer_error(answer: Answer, candidate: Array) -> float | None:
    """How far an output is from the reference's answer, with the columns put in the reference's order."""
    aligned = align(answer.spec, answer.values, candidate) if len(candidate) == len(answer.values) else None
    if aligned is None or isinstance(aligned, Mismatch):
        return None
    if answer.spec.kind is Kind.LABEL:
        return float(1.0 - same_labels(*aligned).mean())
    return error(*aligned)


def measured(
    case: Case,
    graph: Opened,
    beside: Beside,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int],
    nodes: Collection[int],
    suspects: Collection[int] = (),
) -> Errors:
    """The errors of these nodes, as far as the reference has something in their place.

    `sizes` are the bytes of the candidate's tensors. The error of a part of several nodes is told of the suspects among
    them, or else of the last one that does not only pass values on.
    """
    given = beside.tensors & graph.types.keys()
    cones = [
        graph.cone(name, given)
        for index in sorted(nodes)
        for name in graph.node(index).output
        if (name in given or name in beside.answers) and name in graph.types
    ]
    introduced: dict[int, float] = {}
    inherited: dict[int, float] = {}
    together: dict[int, tuple[int, ...]] = {}
    for window in _windows(cones, sizes, case.held):
        sources = {name for cone in window for name in cone.sources}
        theirs = inside(case, "candidate", graph, sources, inputs)
        ours = beside.values(sources | {cone.tensor for cone in window if cone.tensor in given})
        alone = _alone(case, graph, window, {**inputs, **_as_given(ours, theirs)})
        for cone in window:
            if cone.tensor not in alone:
                continue
            known, answer, gave = ours.get(cone.tensor), beside.answers.get(cone.tensor), alone[cone.tensor]
            found = None if known is None else error(known, gave)
            if known is None and answer is not None:
                found = answer_error(answer, gave)
            felt = [error(ours[name], theirs[name]) for name in cone.sources if name in ours and name in theirs]
            for index in _blamed(graph, cone, suspects):
                if found is not None:
                    introduced[index] = max(found, introduced.get(index, 0.0))
                inherited[index] = max(inherited.get(index, 0.0), *(value or 0.0 for value in felt), 0.0)
                together[index] = max(together.get(index, ()), graph.computing_in(cone), key=len)
    return Errors(introduced, inherited, together)


def _as_given(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, Array]:
    """The reference's values in the types and shapes that the candidate computes with."""
    found: dict[str, Array] = {}
    for name, array in theirs.items():
        if name in ours and ours[name].size == array.size:
            with np.errstate(over="ignore", invalid="ignore"):
                found[name + GIVEN] = ours[name].astype(array.dtype).reshape(array.shape)
    return found


def _alone(case: Case, graph: Opened, cones: Sequence[Cone], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the parts give, each on its own; one that does not run takes no other along."""
    ready = [cone for cone in cones if all(name + GIVEN in inputs for name in cone.sources)]
    if not ready:
        return {}
    try:
        return run(case, "candidate", graph.alone(ready), inputs)
    except ModelError:
        if len(ready) == 1:
            return {}
    half = len(ready) // 2
    return {**_alone(case, graph, ready[:half], inputs), **_alone(case, graph, ready[half:], inputs)}


def _blamed(graph: Opened, cone: Cone, suspects: Collection[int]) -> list[int]:
    """The nodes that the error of a part is told of."""
    nodes = graph.computing_in(cone)
    suspected = [index for index in nodes if index in suspects]
    if suspected or len(nodes) <= 1:
        return suspected or list(nodes)
    last = graph.makers[cone.tensor]
    while graph.node(last).op_type in PASSING_ON:
        before = graph.makers.get(graph.node(last).input[0])
        if before is None or before not in nodes:
            break
        last = before
    return [last]


def _windows(cones: Sequence[Cone], sizes: Mapping[str, int], most: int) -> Iterator[list[Cone]]:
    """Parts whose values together stay within bounds, one after the other."""
    window: list[Cone] = []
    held = 0
    for cone in cones:
        needed = sum(sizes.get(name, 0) for name in (*cone.sources, cone.tensor))
        if window and held + needed > most:
            yield window
            window, held = [], 0
        window.append(cone)
        held += needed
    if window:
        yield window


SEEN_AS_WRITTEN = 0.5
"""A graph is shown as it is written if running it so moves its answers by no more than this part of the difference."""


def opened(case: Case, side: str, positions: Array) -> tuple[Opened, bool]:
    """A side's graph in the form in which the difference is in it; and whether the runtime has rewritten that.

    Names are those that its owner knows wherever the graph as it is written differs like the one that runs. Where it
    does not, the optimiser is at fault, and only the graph that it makes shows where.
    """
    written = case.editable(side)
    if written is None:
        raise ModelError(f"the graph of the {side} is too large to be opened up")
    options = case.plan.candidate.options
    ours = options.get("runtime", "onnxruntime") == "onnxruntime" and options.get("optimization", "all") != "disable"
    if side == "candidate" and ours and not _differs_as_written(case, positions):
        made = rewritten(case.plan.candidate, written)
        return Opened.of(made, edits.tensor_types(made)), True
    return Opened.of(written, case.tensor_types(side)), False


def _differs_as_written(case: Case, positions: Array) -> bool:
    batch = case.rows(positions)
    plain = case.ask_changed("candidate", options={"optimization": "disable"}, batch=batch)
    # Asked about the same rows again: the answers of some models depend on the rows beside.
    running = case.ask("candidate", batch)
    if plain is None or running is None:
        return True
    apart = Trial(case, positions).gap()
    return Trial(case, positions).moved(plain, running) <= SEEN_AS_WRITTEN * apart
