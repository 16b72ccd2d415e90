"""Where both models meet: the parts of the reference (steps, modules, tensors), and what in the graph stands for each.

Tensors of two graphs are known by name or by structure. What a step gives is looked for among the tensors of the
graph: a whole one, or its columns of one that joins branches. A node before such a tensor, and not before the one of
an earlier step, belongs to that step.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.differences import is_numeric, rows_of
from likewise.contracts.data import Array, Batch
from likewise.explain.case import Case, made_once
from likewise.explain.experiment import Trial
from likewise.explain.features import innermost
from likewise.explain.trace import differing, likeness, looked_into, reference_steps, seen
from likewise.explain.weights.matching import aligned
from likewise.models.onnx.edits import module_of
from likewise.models.onnx.inside import Opened
from likewise.models.sklearn.inside import Seen, Step

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


QUANTIZED_NAME = re.compile(r"(_(DequantizeLinear|QuantizeLinear)_(Output|Input)|_dequantized)(_\d+)?$")
"""What quantisers put behind the name of a tensor that they write in whole numbers and back."""

KNOWN_BY_NAME = 0.5
"""If names tell of so many tensors, structure is not asked."""


def counterparts(reference: Opened, candidate: Opened) -> dict[str, str]:
    """For tensors of the candidate the name of the reference's."""
    theirs = candidate.tensors
    ours = {*reference.tensors, *reference.inputs}
    readers: dict[str, set[str]] = {}
    for index, names in enumerate(candidate.reads):
        for name in names:
            readers.setdefault(name, set()).add(candidate.node(index).op_type)
    named = {
        name: plain
        for name in theirs
        if (plain := QUANTIZED_NAME.sub("", name)) in ours
        and not (readers.get(name) == {"QuantizeLinear"} and _other_makers(reference, candidate, name))
    }
    if len(set(named.values())) >= KNOWN_BY_NAME * min(len(ours), len(theirs)):
        return named
    found = dict(named)
    taken = set(named.values())
    for mine, yours in aligned(reference.proto, candidate.proto):
        outputs = zip(reference.node(mine).output, candidate.node(yours).output, strict=False)
        found |= {other: name for name, other in outputs if name and other not in named and name not in taken}
    return found


def _other_makers(reference: Opened, candidate: Opened, name: str) -> bool:
    """Is a tensor made by another operator? A quantiser leaves out a Relu where writing in whole numbers does the same.

    Then the tensor is what its name says only behind that.
    """
    if name not in reference.makers:
        return False
    maker, other = candidate.node(candidate.makers[name]), reference.node(reference.makers[name])
    return maker.op_type != other.op_type


def comparable(found: Mapping[str, str], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, str]:
    """Those that hold the same kind of thing in the same shape, from the values of both on one row."""
    return {
        name: other
        for name, other in found.items()
        if name in theirs
        and other in ours
        and theirs[name].shape == ours[other].shape
        and _kind(theirs[name]) == _kind(ours[other])
    }


def _kind(values: Array) -> str:
    return {"f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "marks"}.get(values.dtype.kind, "text")


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
    if torch is not None and isinstance(model, torch.nn.Module):
        found = _modules(case, model, batch)
        if found:
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
        said = module_of(graph.node(index))
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


MOST_TENSORS, ALSO_TRIED = 10, 4
"""Tensors tried for one step: those that look most like what it gives, and some that are likely for where they are."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor, or some of its columns where a step's output is part of a wider one."""

    tensor: str
    columns: range | None = None

    def of(self, array: Array) -> Array:
        """The values there, as a table of float64."""
        table = array.reshape(len(array), -1)
        if self.columns is not None:
            table = table[:, self.columns.start : self.columns.stop]
        return table.astype(np.float64)

    def put(self, values: Array, array: Array) -> Array:
        """The whole tensor with other values there."""
        if self.columns is None:
            return values
        whole = array.reshape(len(array), -1).copy()
        whole[:, self.columns.start : self.columns.stop] = values
        return whole


def places_of(
    step: Step, steps: Sequence[Step], records: Mapping[str, Seen], tensors: Mapping[str, Array]
) -> Iterator[TensorPart]:
    """Tensors as wide as what the step gives, and its part of those as wide as a join that it leads to."""
    width = wide(records[step.path])
    sizes = {name: array.size // len(array) for name, array in tensors.items()}
    for name, size in sizes.items():
        if size == width:
            yield TensorPart(name)
    for join in steps:
        part, whole = part_of_join(join, step.path, records), wide(records.get(join.path))
        if part is not None and len(part) == width != whole:
            for name, size in sizes.items():
                if size == whole:
                    yield TensorPart(name, part)


def wide(record: Seen | None) -> int:
    """How many columns a step gave; 0 if that is no table."""
    shape: tuple[int, ...] = tuple(getattr(record.gave, "shape", ())) if record is not None else ()
    return int(shape[1]) if len(shape) == 2 else 0


def part_of_join(join: Step, path: str, records: Mapping[str, Seen]) -> range | None:
    """The columns of a join that a step gives, if it is the last of a branch."""
    if not join.joins or path not in join.upstream:
        return None
    inside = [inner for inner in join.upstream if inner.startswith(f"{join.path}__")]
    root = f"{join.path}__" if inside else ""
    last_of = {inner[len(root) :].partition("__")[0]: inner for inner in inside or join.upstream}
    branch = next((name for name, last in last_of.items() if last == path), None)
    if branch is None:
        return None
    slices = getattr(join.estimator, "output_indices_", None)
    if slices is not None:
        return range(slices[branch].start, slices[branch].stop) if branch in slices else None
    start = 0
    for name, *_ in getattr(join.estimator, "transformer_list", ()):
        width = wide(records.get(last_of.get(name, "")))
        if name == branch:
            return range(start, start + width)
        if not width:
            return None
        start += width
    return None


def most_likely(tables: Mapping[TensorPart, Array], expected: Array) -> list[list[TensorPart]]:
    """The places that look most like the step, its parts of wider tensors, and the last ones; equal ones together."""
    order = {place: (place.columns is not None, index) for index, place in enumerate(tables)}
    equal: dict[bytes, list[TensorPart]] = {}
    for place in sorted(tables, key=lambda place: order[place]):
        equal.setdefault(tables[place].tobytes(), []).append(place)
    groups = list(equal.values())
    ranked = sorted(groups, key=lambda places: (-round(likeness(tables[places[0]], expected), 3), order[places[0]]))
    parts = [places for places in groups if places[0].columns is not None]
    chosen = [*ranked[:MOST_TENSORS], *parts[:ALSO_TRIED], *groups[-ALSO_TRIED:]]
    return [places for index, places in enumerate(chosen) if places not in chosen[:index]]


def step_of(case: Case, proto: ModelProto, node: NodeProto | None) -> str | None:
    """The step a node belongs to, or the class of an estimator without steps; None where it cannot be told."""
    if case.framework("reference") != "sklearn":
        return None
    native = case.native("reference")
    steps = [name for name, step in getattr(native, "steps", ()) if step not in (None, "passthrough")]
    if not steps:
        return type(native).__name__
    if len(steps) == 1 or node is None:
        return steps[0] if len(steps) == 1 else None
    boundaries, graph = _boundaries(case), Opened.of(proto, {})
    for name, tensor in boundaries.items():
        before = graph.cone(tensor, ()).nodes if tensor in graph.makers else ()
        if any(graph.node(index).name == node.name for index in before):
            return name
    # A node behind the last step found belongs to the last step only if no step in between is missing.
    return steps[-1] if len(boundaries) == len(steps) - 1 else None


@made_once
def _boundaries(case: Case) -> dict[str, str]:
    """For steps of the pipeline, the tensor that holds what they give."""
    batch = Trial.few(case).batch
    inside = looked_into(case, batch)
    if inside is None:
        return {}
    parts = _steps(case, batch)
    places = places_of_steps(parts, {}, Opened.of(case.graph(), {}), inside.values)
    # The first tensor of a step, and of a branch what is joined in the end.
    first = {part.path: name for name, part in reversed(places.items())}
    return {part.path.partition("__")[0]: first[part.path] for part in parts if part.path in first}
