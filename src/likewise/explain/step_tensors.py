"""Where in a graph what a step gives may be found: whole tensors, or its columns of one that joins branches.

Which columns of the data what a step gives depends on, found by changing one column after the other.

Which step of a scikit-learn pipeline a node of the graph belongs to.

The output of every step is computed and looked for among the tensors of the graph: a node before such a
tensor, and not before the one of an earlier step, belongs to that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.data.cells import Edit, Field, edited, transplanted
from likewise.explain import experiment
from likewise.explain.alike import differing, likeness
from likewise.explain.case import Case
from likewise.explain.experiment import Trial
from likewise.explain.fields import fields_of
from likewise.explain.steps import seen
from likewise.models.sklearn.inside import Seen, Step

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


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


ROWS = 24
MOST_COLUMNS = 80


def columns_behind(case: Case, step: Step, *, text: bool = False, suspects: Sequence[str] = ()) -> dict[Field, Array]:
    """For each column of the data that matters to a step, a mask of the columns of its output that it changes.

    Every row is given the value of another one. Where there are very many columns, only the suspects are tried.
    """
    import numpy as np

    fields = [field for field in fields_of(case) if not text or _holds_text(field.of(case.required.batch.inputs))]
    if len(fields) > MOST_COLUMNS:
        fields = [field for field in fields if field.name in suspects]
    if len(fields) > MOST_COLUMNS:
        return {}
    trial = Trial.some(case, ROWS, ROWS)
    record = seen(case, trial.batch).get(step.path)
    before = None if record is None else record.output
    found: dict[Field, Array] = {}
    if before is None:
        return found
    for field in fields:
        other = _with_other_values(trial, field)
        again = None if other is None else seen(case, other).get(step.path)
        after = None if again is None else again.output
        if after is not None and after.shape == before.shape:
            moved: Array = np.asarray(differing(after, before).any(axis=0))
            if moved.any():
                found[field] = moved
        elif after is not None:
            found[field] = np.ones(before.shape[1], dtype=bool)
    return found


def _with_other_values(trial: Trial, field: Field) -> Batch | None:
    """The rows with the values of others in one column; a row that is alone with another number, or no text."""
    import numpy as np

    values = trial.values(field)
    if len(values) > 1:
        order = np.argsort(np.array([str(value) for value in values.tolist()]), kind="stable")
        donors = np.empty(len(values), dtype=np.int64)
        donors[order] = np.roll(order, len(values) // 2)
        return transplanted(trial.batch, {field: donors})
    numeric = values.dtype.kind in "iuf"
    other = np.nan_to_num(values.astype(np.float64)) + 1.0 if numeric else ""
    return edited(trial.batch, [Edit(field, np.ones(len(values), dtype=bool), other)])


def _holds_text(values: Array) -> bool:
    return values.dtype.kind in "OUT" and any(isinstance(value, str) for value in values[:200].tolist())


ALIKE = 1e-3
"""Tensors are the same step's output if they differ by at most this part of their largest value."""


def steps_of(case: Case) -> list[tuple[str, Any]]:
    """The named steps of the reference, in order; none where it is no pipeline."""
    native = case.native("reference")
    if case.framework("reference") != "sklearn" or not hasattr(native, "steps"):
        return []
    return [(name, step) for name, step in native.steps if step not in (None, "passthrough")]


def step_of(case: Case, proto: ModelProto, node: NodeProto | None) -> str | None:
    """The step a node belongs to, or the class of an estimator without steps; None where it cannot be told."""
    if case.framework("reference") != "sklearn":
        return None
    steps = steps_of(case)
    if not steps:
        return type(case.native("reference")).__name__
    if len(steps) == 1:
        return steps[0][0]
    if node is None:
        return None
    boundaries = case.once(_boundaries)
    for name, tensor in boundaries.items():
        if node.name in _ancestors(proto, tensor):
            return name
    # A node behind the last step found belongs to the last step only if no step in between is missing.
    return steps[-1][0] if len(boundaries) == len(steps) - 1 else None


def _boundaries(case: Case) -> dict[str, str]:
    """For each step but the last, the tensor that holds its output."""
    import numpy as np

    proto = case.editable()
    assert proto is not None
    positions = Trial.few(case).positions
    batch = case.rows(positions)
    types = case.tensor_types()
    floats = [name for node in proto.graph.node for name in node.output if types.get(name) in (1, 11)]
    seen = experiment.seen_inside(case, "candidate", proto, floats, positions)
    if seen is None:
        return {}
    native, found = case.native("reference"), {}
    for count, (name, _) in enumerate(native.steps[:-1], start=1):
        told = case.ask_changed("reference", target=native[:count], batch=batch)
        if told is None:
            continue
        for array in told.values():
            if array.dtype.kind == "f" and (tensor := _alike(np.asarray(array, np.float64), seen, floats)) is not None:
                found[name] = tensor
    return found


def _alike(array: Array, tensors: Tensors, names: list[str]) -> str | None:
    import numpy as np

    for name in names:
        other = tensors.get(name)
        if other is not None and other.shape == array.shape:
            gap = np.abs(other.astype(np.float64) - array)
            if np.nanmax(gap, initial=0.0) <= ALIKE * max(float(np.nanmax(np.abs(array), initial=0.0)), 1e-12):
                return name
    return None


def _ancestors(proto: ModelProto, tensor: str) -> set[str]:
    """The names of the nodes that a tensor is computed by."""
    makers: Mapping[str, NodeProto] = {name: node for node in proto.graph.node for name in node.output}
    queue, seen = [tensor], set[str]()
    while queue:
        node = makers.get(queue.pop())
        if node is not None and node.name not in seen:
            seen.add(node.name)
            queue.extend(node.input)
    return seen
