"""Where in a graph what a step gives may be found: whole tensors, or its columns of one that joins branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from likewise.contracts.data import Array
from likewise.structure.alike import likeness
from likewise.structure.steps import Seen, Step

MOST_TENSORS, ALSO_TRIED = 10, 4
"""Tensors tried for one step: those that look most like what it gives, and some that are likely for where they are."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor, or some of its columns where a step's output is part of a wider one."""

    tensor: str
    columns: range | None = None

    def of(self, array: Array) -> Array:
        """The values there, as a table of float64."""
        import numpy as np

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
) -> Iterator[Place]:
    """Tensors as wide as what the step gives, and its part of those as wide as a join that it leads to."""
    width = wide(records[step.path])
    sizes = {name: array.size // len(array) for name, array in tensors.items()}
    for name, size in sizes.items():
        if size == width:
            yield Place(name)
    for join in steps:
        part, whole = part_of_join(join, step.path, records), wide(records.get(join.path))
        if part is not None and len(part) == width != whole:
            for name, size in sizes.items():
                if size == whole:
                    yield Place(name, part)


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


def most_likely(tables: Mapping[Place, Array], expected: Array) -> list[list[Place]]:
    """The places that look most like the step, its parts of wider tensors, and the last ones; equal ones together."""
    order = {place: (place.columns is not None, index) for index, place in enumerate(tables)}
    equal: dict[bytes, list[Place]] = {}
    for place in sorted(tables, key=lambda place: order[place]):
        equal.setdefault(tables[place].tobytes(), []).append(place)
    groups = list(equal.values())
    ranked = sorted(groups, key=lambda places: (-round(likeness(tables[places[0]], expected), 3), order[places[0]]))
    parts = [places for places in groups if places[0].columns is not None]
    chosen = [*ranked[:MOST_TENSORS], *parts[:ALSO_TRIED], *groups[-ALSO_TRIED:]]
    return [places for index, places in enumerate(chosen) if places not in chosen[:index]]
