"""Gradient steps through a PyTorch reference: towards its extremes, and into units that real rows hardly use."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array
from likewise.errors import LikewiseError
from likewise.stressing import autograd
from likewise.stressing.pools import batch_of
from likewise.stressing.searching import Search
from likewise.stressing.space import Rows, together

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
    if inside is None or not autograd.slopes(inside, np.zeros(len(rows), np.int64), np.ones(len(rows))):
        return None
    values = inside.units.detach().numpy()
    used = (values > 0).mean(axis=0)
    sign = np.where(used <= 0.5, 1.0, -1.0)
    rare = np.minimum(used, 1 - used)
    return _Units(np.argsort(rare, kind="stable"), sign, positions[np.argmax(values * sign, axis=0)])


def _looked(search: Search, rows: Rows) -> autograd.Inside | None:
    began = time.perf_counter()
    inside = autograd.look(search.prepared.reference, batch_of(search.pool, search.space, rows))
    # The way back through the module costs about as much as the way there.
    search.meter.count("reference", 2 * len(rows), time.perf_counter() - began)
    return inside


def _stepped(search: Search, rows: Rows, units: Array, signs: Array, length: float) -> Rows:
    """One step up the slope, each number in units of its range."""
    space = search.space
    inside = _looked(search, rows)
    if inside is None:
        return rows
    slope = autograd.by_variable(search.prepared.reference, space, autograd.slopes(inside, units, signs), len(rows))
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
