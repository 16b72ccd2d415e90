"""A reference that is no graph as the parts it is made of: the steps of a pipeline, the modules of a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from likewise.cases import Case
from likewise.contracts.data import Array, Batch
from likewise.structure.parts import innermost
from likewise.structure.steps import Step, reference_steps, seen

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
