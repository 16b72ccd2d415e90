"""Slopes inside a PyTorch module: of its answers, and of the units inside it that real rows hardly use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.calling import Side
from likewise.contracts.data import Array, Batch
from likewise.modules import answering, describing
from likewise.stressing.space import Space

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
    tensors = {name: answering.tensor_of(array) for name, array in fed.inputs.items()}
    inputs = {name: tensor.requires_grad_() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not inputs:
        return None
    args, kwargs = answering.bound(tensors, describing.parameters_of(module))
    with torch.enable_grad(), _layers(module) as layers:
        answer = module(*args, **kwargs)
    told = [value for _, value in answering.flatten(answer) if isinstance(value, torch.Tensor)]
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
