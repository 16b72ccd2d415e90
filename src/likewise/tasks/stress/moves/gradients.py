"""Slopes inside a PyTorch module: of its answers, and of the units inside it that real rows hardly use.

Gradient steps through a PyTorch reference: towards its extremes, and into units that real rows hardly use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.compare.call import Side
from likewise.contracts.data import Array, Batch
from likewise.errors import LikewiseError
from likewise.models.torch import describe, open
from likewise.tasks.stress.pools import batch_of
from likewise.tasks.stress.search import Search
from likewise.tasks.stress.space import Rows, Space, together

MOST_UNITS = 20_000
"""Units of one layer beyond which it is left out: its slopes would fill the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """What a module gives for some rows: its answers and its layers, side by side, one line a row.

    `inputs` are the tensors that slopes are taken of.
    """

    units: Any
    inputs: Mapping[str, Any]


def look(side: Side, batch: Batch) -> Inside | None:
    """Run the module with slopes; None where it gives nothing that has any."""
    import torch

    module = side.runner.native
    fed, _ = side.feed(batch)
    tensors = {name: open.tensor_of(array) for name, array in fed.inputs.items()}
    inputs = {name: tensor.requires_grad_() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not inputs:
        return None
    args, kwargs = open.bound(tensors, describe.parameters_of(module))
    with torch.enable_grad(), _layers(module) as layers:
        answer = module(*args, **kwargs)
    told = [value for _, value in open.flatten(answer) if isinstance(value, torch.Tensor)]
    found = [
        tensor.reshape(len(batch), -1).to(torch.float64)
        for tensor in (*told, *layers)
        if tensor.requires_grad and tensor.is_floating_point() and tensor.ndim and len(tensor) == len(batch)
    ]
    found = [tensor for tensor in found if tensor.shape[1] <= MOST_UNITS]
    return Inside(torch.cat(found, dim=1), inputs) if found else None


def slopes(inside: Inside, units: Array, signs: Array) -> dict[str, Array]:
    """For each row the slope of one unit, by input."""
    import torch

    rows = torch.arange(len(units))
    chosen = inside.units[rows, torch.from_numpy(units)] * torch.from_numpy(signs)
    found = torch.autograd.grad(chosen.sum(), list(inside.inputs.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(tensor.shape)) if slope is None else slope.numpy().astype(np.float64)
        for (name, tensor), slope in zip(inside.inputs.items(), found, strict=True)
    }


def by_variable(side: Side, space: Space, found: Mapping[str, Array], rows: int) -> Array:
    """The slopes of the data's own variables, one line a row; zero where a variable reaches no such input."""
    total = np.zeros((rows, space.variables))
    starts = {column.name: int(np.flatnonzero(space.owner == n)[0]) for n, column in enumerate(space.columns)}
    routes = side.feed.routes
    pairs: list[tuple[str, str, int | None]]
    if routes is None:
        pairs = [(name, name, None) for name in found if name in starts]
    else:
        pairs = []
        for route in routes:
            many = route.stacked or route.split is not None
            pairs += [(route.input.name, name, place if many else None) for place, name in enumerate(route.columns)]
    splits = {route.input.name: route.split for route in routes or () if route.split is not None}
    for given, name, place in pairs:
        if given not in found or name not in starts:
            continue
        slope, start = found[given].reshape(rows, -1), starts[name]
        column = space.columns[int(space.owner[start])]
        if given in splits:
            total[:, start + splits[given]] += slope[:, 0]
        elif place is not None:
            total[:, start] += slope[:, place]
        elif slope.shape[1] == column.width:
            total[:, start : start + column.width] += slope
    return total


@contextmanager
def _layers(module: Any) -> Iterator[list[Any]]:
    """What the parts of the module that have no parts give, while it runs."""
    import torch

    seen: list[Any] = []

    def keep(part: Any, given: Any, answer: Any) -> None:
        if isinstance(answer, torch.Tensor):
            seen.append(answer)

    parts = [part for part in module.modules() if not list(part.children())] if hasattr(module, "modules") else []
    handles = []
    for part in parts:
        try:
            handles.append(part.register_forward_hook(keep))
        except RuntimeError:  # a compiled part takes no hooks
            continue
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


STEPS = 8
"""Gradient steps from a start; the models are compared after every second one."""

PROBES = 2_048
"""Real rows that show how often a unit is used."""


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """What the units do on real rows: `order` has the least used first, `sign` the way to use them."""

    order: Array
    sign: Array
    starts: Array


class Gradients:
    """Follows the gradient of one unit a row."""

    name = "gradients"

    def applies(self, search: Search) -> bool:
        side = search.prepared.reference
        model = search.case.plan.reference
        if model.framework != "torch" or side.fixed_batch or model.batch_axis or "batch_axis" in model.options:
            return False
        if not len(search.space.numbers()):
            return False
        try:
            found = _survey(search)
        except (LikewiseError, RuntimeError, TypeError, ValueError, NotImplementedError):
            return False
        if found is None:
            return False
        search.memory["gradients"] = [found, 0]
        return True

    def turn(self, search: Search) -> None:
        units, place = search.memory["gradients"]
        count = max(4, search.count // (STEPS // 2))
        chosen = units.order[np.arange(place, place + count) % len(units.order)]
        search.memory["gradients"][1] = place + count
        # Half go on from the worst rows, half start where the unit is nearest to being used.
        fresh = search.space.real(units.starts[chosen])
        rows = search.parents(count)
        real = search.random.random(count) < 0.5
        cells = {name: np.where(real[:, None], fresh.cells[name], cell) for name, cell in rows.cells.items()}
        rows = Rows(np.where(real, fresh.base, rows.base), cells)
        signs = units.sign[chosen] * np.where(search.random.random(count) < 0.85, 1.0, -1.0)
        reached = []
        for step in range(STEPS):
            rows = _stepped(search, rows, chosen, signs, 0.5 ** (step // 2) * search.random.uniform(0.1, 0.5))
            if step % 2:
                reached.append(rows)
        search.measure(together(reached))


def _survey(search: Search) -> _Units | None:
    """How real rows use the units."""
    positions = np.arange(min(len(search.pool), PROBES, max(64, search.count * 8)))
    rows = search.space.real(positions)
    inside = _looked(search, rows)
    if inside is None or not slopes(inside, np.zeros(len(rows), np.int64), np.ones(len(rows))):
        return None
    values = inside.units.detach().numpy()
    used = (values > 0).mean(axis=0)
    sign = np.where(used <= 0.5, 1.0, -1.0)
    rare = np.minimum(used, 1 - used)
    return _Units(np.argsort(rare, kind="stable"), sign, positions[np.argmax(values * sign, axis=0)])


def _looked(search: Search, rows: Rows) -> Inside | None:
    began = time.perf_counter()
    inside = look(search.prepared.reference, batch_of(search.pool, search.space, rows))
    # The way back through the module costs about as much as the way there.
    search.meter.count("reference", 2 * len(rows), time.perf_counter() - began)
    return inside


def _stepped(search: Search, rows: Rows, units: Array, signs: Array, length: float) -> Rows:
    """One step up the slope, each number in units of its range."""
    space = search.space
    inside = _looked(search, rows)
    if inside is None:
        return rows
    slope = by_variable(search.prepared.reference, space, slopes(inside, units, signs), len(rows))
    able = search.memory.setdefault("numbers", space.numbers())
    span = space.spans(able)
    steep = slope[:, able] * span
    largest = np.abs(steep).max(axis=1, keepdims=True)
    steep = np.divide(steep, largest, out=np.zeros_like(steep), where=largest > 0)
    # Every other row moves all its numbers alike: where many small slopes add up, that goes further.
    steep[::2] = np.sign(steep[::2])
    here = space.as_numbers(rows, able)
    there = np.where(np.isfinite(here), here + length * steep * span, here)
    at = np.repeat(np.arange(len(rows)), len(able))
    return space.assigned(rows, at, np.tile(able, len(rows)), there.reshape(-1))


EXTENSION = Gradients()
