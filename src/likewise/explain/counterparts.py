"""Which tensor of a reference's graph stands in the place of which of the candidate's: by name, then by structure.

A reference that is no graph as the parts it is made of: the steps of a pipeline, the modules of a network.

Where in a graph what a part of the reference gives is found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from likewise.compare.differences import is_numeric, rows_of
from likewise.contracts.data import Array, Batch
from likewise.explain.alike import differing, likeness
from likewise.explain.case import Case
from likewise.explain.parts import innermost
from likewise.explain.steps import reference_steps, seen
from likewise.explain.twins import aligned
from likewise.models.onnx.edits import module_of
from likewise.models.onnx.inside import Opened
from likewise.models.sklearn.inside import Step

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
        gave = None if record is None or _size(record.gave) > LARGEST else record.output
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


def _size(table: Any) -> int:
    """Bytes of a table once all its numbers are written out as doubles."""
    size = 8
    for length in getattr(table, "shape", ()):
        size *= length
    return size


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
