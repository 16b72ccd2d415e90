"""Gradient steps through a PyTorch reference: towards its extremes, and into units that real rows hardly use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from likewise.compare.call import Side
from likewise.compare.feed import Route
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import InputSpec
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError
from likewise.models.torch import open
from likewise.tasks.stress.moves import Move, Search, Turn
from likewise.tasks.stress.space import Rows, Space, together

MOST_UNITS = 20_000
"""Units of one layer beyond which it is left out: its slopes would fill the memory."""

STEPS = 8
"""Gradient steps from a start; the models are compared after every second one."""

PROBES = 2_048
"""Real rows that show how often a unit is used."""


@dataclass(frozen=True, slots=True, eq=False)
class _Inside:
    """What a module gives for some rows: its answers and its layers, side by side, one line a row.

    `inputs` are the tensors that slopes are taken of.
    """

    units: Any
    inputs: Mapping[str, Any]


def _look(side: Side, batch: Batch) -> _Inside | None:
    """Run the module with slopes; None where it gives nothing that has any."""
    import torch

    module = side.runner.native
    fed, _ = side.feed(batch)
    tensors = {name: open.tensor_of(array) for name, array in fed.inputs.items()}
    inputs = {name: tensor.requires_grad_() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not inputs:
        return None
    args, kwargs = open.bound(tensors, open.parameters_of(module))
    with torch.enable_grad(), _layers(module) as layers:
        answer = module(*args, **kwargs)
    told = [value for _, value in open.flatten(answer) if isinstance(value, torch.Tensor)]
    found = [
        tensor.reshape(len(batch), -1).to(torch.float64)
        for tensor in (*told, *layers)
        if tensor.requires_grad and tensor.is_floating_point() and tensor.ndim and len(tensor) == len(batch)
    ]
    found = [tensor for tensor in found if tensor.shape[1] <= MOST_UNITS]
    return _Inside(torch.cat(found, dim=1), inputs) if found else None


def _slopes(inside: _Inside, units: Array, signs: Array) -> dict[str, Array]:
    """For each row the slope of one unit, by input."""
    import torch

    rows = torch.arange(len(units))
    chosen = inside.units[rows, torch.from_numpy(units)] * torch.from_numpy(signs)
    found = torch.autograd.grad(chosen.sum(), list(inside.inputs.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(tensor.shape)) if slope is None else slope.numpy().astype(np.float64)
        for (name, tensor), slope in zip(inside.inputs.items(), found, strict=True)
    }


def _by_variable(side: Side, space: Space, found: Mapping[str, Array], rows: int) -> Array:
    """The slopes of the data's own variables, one line a row; zero where a variable reaches no such input."""
    total = np.zeros((rows, space.variables))
    starts = {column.name: int(np.flatnonzero(space.owner == n)[0]) for n, column in enumerate(space.columns)}
    widths = {column.name: column.width for column in space.columns}
    routes = side.feed.routes
    if routes is None:
        routes = tuple(Route(InputSpec(name), (name,)) for name in found)
    for route in routes:
        if route.input.name not in found:
            continue
        slope = found[route.input.name].reshape(rows, -1)
        for place, name in ((place, name) for place, name in enumerate(route.columns) if name in starts):
            start, width = starts[name], widths[name]
            if route.split is not None:
                total[:, start + route.split] += slope[:, 0]
            elif route.stacked:
                total[:, start] += slope[:, place]
            elif slope.shape[1] == width:
                total[:, start : start + width] += slope
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


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """What the units do on real rows: `order` has the least used first, `sign` the way to use them."""

    order: Array
    sign: Array
    starts: Array


def _gradients(search: Search) -> Turn | None:
    """Follows the gradient of one unit a row."""
    side, model = search.prepared.reference, search.plan.reference
    if model.framework != "torch" or side.fixed_batch or model.batch_axis or "batch_axis" in model.options:
        return None
    able = search.space.numbers()
    if not len(able):
        return None
    try:
        units = _survey(search)
    except (LikewiseError, RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    if units is None:
        return None
    place = 0

    def turn() -> None:
        nonlocal place
        count = max(4, search.count // (STEPS // 2))
        chosen = units.order[np.arange(place, place + count) % len(units.order)]
        place += count
        # Half go on from the worst rows, half start where the unit is nearest to being used.
        rows = search.space.real(units.starts[chosen])
        rows = rows.or_else(search.parents(count), search.random.random(count) < 0.5)
        signs = units.sign[chosen] * np.where(search.random.random(count) < 0.85, 1.0, -1.0)
        reached = []
        for step in range(STEPS):
            length = 0.5 ** (step // 2) * search.random.uniform(0.1, 0.5)
            rows = _stepped(search, able, rows, chosen, signs, length)
            if step % 2:
                reached.append(rows)
        search.measure(together(reached))

    return turn


def _survey(search: Search) -> _Units | None:
    """How real rows use the units."""
    positions = np.arange(min(len(search.pool), PROBES, max(64, search.count * 8)))
    rows = search.space.real(positions)
    inside = _looked(search, rows)
    if inside is None or not _slopes(inside, np.zeros(len(rows), np.int64), np.ones(len(rows))):
        return None
    values = inside.units.detach().numpy()
    used = (values > 0).mean(axis=0)
    sign = np.where(used <= 0.5, 1.0, -1.0)
    rare = np.minimum(used, 1 - used)
    return _Units(np.argsort(rare, kind="stable"), sign, positions[np.argmax(values * sign, axis=0)])


def _looked(search: Search, rows: Rows) -> _Inside | None:
    began = time.perf_counter()
    inside = _look(search.prepared.reference, search.batch(rows))
    # The way back through the module costs about as much as the way there.
    search.meter.count("reference", 2 * len(rows), time.perf_counter() - began)
    return inside


def _stepped(search: Search, able: Array, rows: Rows, units: Array, signs: Array, length: float) -> Rows:
    """One step up the slope, each number in units of its range."""
    space = search.space
    inside = _looked(search, rows)
    if inside is None:
        return rows
    slope = _by_variable(search.prepared.reference, space, _slopes(inside, units, signs), len(rows))
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


EXTENSION = Move("gradients", _gradients)
