"""The first step of a pipeline that the candidate's graph gets wrong, and the tensor in which it does.

Proven from both sides. The reference, given the graph's tensor in the place of what its step gives, answers like the
candidate: the difference comes from before the tensor. The graph, given what the step gives in the place of the
tensor, answers like the reference: nothing else is wrong. And no tensor of the graph that the step could have
worked on explains it: the step itself is at fault, not what it was given.

Whether a step whose output differs is at fault itself, or rounding, or what it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array, Batch, Tensors
from likewise.explain.case import Case, made_once
from likewise.explain.counterparts import parts_of, places_of_steps
from likewise.explain.experiment import Effect, Trial
from likewise.explain.trace import (
    MOST_VALUES,
    Inside,
    ask_changed,
    differing,
    in_parts,
    injector,
    kept_columns,
    likeness,
    looked_into,
    reader,
    reference_steps,
    same_as_one,
    seen,
)
from likewise.models.onnx.inside import Opened
from likewise.models.sklearn.walk import Change, Seen, Step, in_form_of, numbers

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


WIDEST = 60_000
"""Columns of a step that is looked at."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Some rows, what each step was given and gave on them, and the tensors of the graph with numbers a row."""

    case: Case
    trial: Trial
    records: Mapping[str, Seen]
    inside: Inside

    @property
    def tensors(self) -> dict[str, Array]:
        return {name: array for name, array in self.inside.values.items() if array.dtype.kind in "biuf" and array.ndim}


@dataclass(frozen=True, slots=True)
class WrongStep:
    """The culprit: what it gives, what the graph has instead on the rows of the trial, and what was shown of it.

    `lacking` are columns that the graph does not have at all. `effect` is over `rows` of the sample: all of them,
    unless the step is very wide. `injected`: it is that of the graph put right, not only of the reference put wrong.
    """

    step: Step
    place: TensorPart
    watched: Watched
    expected: Array
    found: Array
    effect: Effect
    rows: Array
    injected: bool
    lacking: tuple[int, ...] = ()

    @property
    def trial(self) -> Trial:
        return self.watched.trial

    @property
    def record(self) -> Seen:
        return self.watched.records[self.step.path]

    @property
    def operator(self) -> str | None:
        """What makes the tensor; None if it is an input of the graph."""
        return self.watched.inside.made_by.get(self.place.tensor)

    @property
    def covered(self) -> Array:
        """The rows of the sample that failed and agree once the step is put right."""
        return Trial(self.watched.case, self.rows).mask(self.effect.covered)

    @property
    def share(self) -> float | None:
        """The part of the failing rows that agree, where not all of them were tried."""
        return None if len(self.rows) == len(self.watched.case.required) else self.effect.share

    @property
    def wrong(self) -> Array:
        """Which entries of the step's output the graph has wrong."""
        if not self.lacking:
            return differing(self.found, self.expected)
        mask = np.zeros(self.expected.shape, dtype=bool)
        mask[:, list(self.lacking)] = True
        return mask

    @property
    def same_words(self) -> bool:
        """Of texts: does the graph find the same words in each, and only weighs them in another way?"""
        bad = self.wrong.any(axis=1)
        return bool(((self.found[bad] != 0) == (self.expected[bad] != 0)).all())


@made_once
def watched_steps(case: Case) -> tuple[Trial, Mapping[str, Seen]]:
    """Some rows, as many as the widest step allows, and what each step was given and gave on them."""
    few = seen(case, Trial.some(case, 8, 8).batch)
    widest = max((wide(record) for record in few.values()), default=1)
    rows = max(16, min(200, 1_500_000 // max(widest, 1)))
    trial = Trial.some(case, rows, rows)
    return trial, seen(case, trial.batch)


@made_once
def first_wrong_step(case: Case) -> WrongStep | None:
    """The culprit among the steps; None if there is none, or if it cannot be shown."""
    steps = reference_steps(case)
    if not steps or not case.required.batch.stacked or case.graph("candidate") is None:
        return None
    trial, records = watched_steps(case)
    inside = looked_into(case, trial.batch)
    if inside is None:
        return None
    watched = Watched(case, trial, records, inside)
    for step in steps:
        expected = _numbers_of(records.get(step.path), len(trial))
        if expected is None:
            continue
        tensors = watched.tensors
        tables = {place: place.of(tensors[place.tensor]) for place in places_of(step, steps, records, tensors)}
        # Right where it matters: on the rows that fail.
        if any(not differing(table[trial.failing], expected[trial.failing]).any() for table in tables.values()):
            continue
        found = _proven(watched, step, expected, tables)
        if found is None and not step.joins:
            found = _narrower(watched, step, expected)
        if found is not None:
            return None if _innocent(found) else found
    return None


def _rows_for(case: Case, width: int) -> Array:
    """Positions of the rows of the sample to measure on: all, unless tables of this width would be slow to make."""
    return Trial.few(case, max(128, MOST_VALUES // max(width, 1))).positions


def _numbers_of(record: Seen | None, rows: int) -> Array | None:
    if record is None or not 0 < wide(record) <= WIDEST:
        return None
    output = record.output
    return output if output is not None and len(output) == rows else None


def _proven(watched: Watched, step: Step, expected: Array, tables: Mapping[TensorPart, Array]) -> WrongStep | None:
    """The tensor whose values, given by the step, let the reference answer like the candidate."""
    case, trial, rows = watched.case, watched.trial, _rows_for(watched.case, expected.shape[1])
    for places in most_likely(tables, expected):
        answered = ask_changed(case, {step.path: _giving(tables[places[0]])}, trial.batch)
        if answered is None or not trial.effect(reference=answered).explains:
            continue
        reproduced = _reproduced(case, step, places[0], rows, expected.shape[1])
        if reproduced is None or not reproduced.explains:
            continue
        refuted = False
        # Of equal tensors, one may be a by-product that nothing depends on.
        for place in places[:ALSO_TRIED]:
            repaired = _repaired(watched, step, place, rows, expected.shape[1])
            if repaired is not None and repaired.explains:
                return WrongStep(step, place, watched, expected, tables[place], repaired, rows, injected=True)
            refuted = refuted or repaired is not None
        if not refuted:
            place = places[0]
            return WrongStep(step, place, watched, expected, tables[place], reproduced, rows, injected=False)
    return None


def _narrower(watched: Watched, step: Step, expected: Array) -> WrongStep | None:
    """A tensor without some columns of the step, which are the difference: put in there, or left out of the step."""
    width, tensors = expected.shape[1], watched.tensors
    rows = _rows_for(watched.case, width)
    names = [name for name, array in tensors.items() if width / 2 <= array.size // len(array) < width]
    for name in reversed(names):
        place = TensorPart(name)
        if (kept := kept_columns(table := place.of(tensors[name]), expected)) is None:
            continue
        repaired = _repaired(watched, step, place, rows, width)
        # What follows may have no room for them.
        effect = _reproduced(watched.case, step, place, rows, width, list(kept)) if repaired is None else repaired
        if effect is not None and effect.explains:
            lacking = tuple(column for column in range(width) if column not in kept)
            injected = repaired is not None
            return WrongStep(step, place, watched, expected, table, effect, rows, injected=injected, lacking=lacking)
    return None


def _reproduced(
    case: Case, step: Step, place: TensorPart, rows: Array, width: int, kept: Any = slice(None)
) -> Effect | None:
    """The reference with the graph's tensor in the place of its step, or of those columns that it has kept."""
    with reader(case, place.tensor) as read:

        def answer(batch: Batch) -> Tensors | None:
            array = read(batch)
            if array is None or len(array) != len(batch):
                return None
            values = np.zeros((len(array), width))
            values[:, kept] = place.of(array)
            return ask_changed(case, {step.path: _giving(values)}, batch)

        answered = in_parts(case, rows, width, answer)
    return None if answered is None else Trial(case, rows).effect(reference=answered)


def _repaired(watched: Watched, step: Step, place: TensorPart, rows: Array, width: int) -> Effect | None:
    """The graph with what the step gives in the place of its tensor, where that differs from its own."""
    case, tensor = watched.case, watched.inside.values[place.tensor]
    with injector(case, place.tensor, tensor.dtype) as inject, reader(case, place.tensor) as read:

        def answer(batch: Batch) -> Tensors | None:
            record = seen(case, batch).get(step.path)
            values = None if record is None else record.output
            array = None if values is None else read(batch)
            if values is None or array is None:
                return None
            table = place.of(array)
            if table.shape == values.shape:
                values = np.where(differing(table, values), values, table)
            values = place.put(values, array)
            shape = (len(values), *tensor.shape[1:])
            return inject(batch, values.reshape(shape) if values.size == np.prod(shape) else values)

        answered = in_parts(case, rows, width, answer)
    return None if answered is None else Trial(case, rows).effect(candidate=answered)


def _giving(values: Array) -> Change:
    """A step that gives those of these values that are not its own but for rounding, which is another cause."""

    def change(_: Any, gave: Any) -> Any:
        own = numbers(gave)
        if own is None or own.shape != values.shape:
            return in_form_of(gave, values)
        return in_form_of(gave, np.where(differing(values, own), values, own))

    return change


def _innocent(found: WrongStep) -> bool:
    """Is the step not at fault: only rounding, or right for what the graph gives it?"""
    if found.lacking:
        return False
    stored = found.watched.inside.values[found.place.tensor].dtype
    if _is_noise(found.found, found.expected, stored):
        return True
    if found.record.input is None or found.step.joins:
        return False
    if _within_rounding(found.step, found.record, found.found, found.wrong, stored):
        return True
    return _right_for_other_input(found.step, found.record, found.found, found.wrong, _earlier(found))


def _earlier(found: WrongStep) -> Sequence[Array]:
    """What the graph has before the tensor: what the step may have been given there."""
    tensors = found.watched.tensors
    names = list(tensors)
    return [TensorPart(name).of(tensors[name]) for name in names[: names.index(found.place.tensor)]]


ALWAYS = 0.9
"""What holds for this share of the wrong rows or entries is the reason."""

NOISE = {"float32": 1e-3, "float64": 1e-3, "float16": 2e-2}
"""An error below this part of the spread of its column may be rounding that added up."""

DRAWS, ROUNDED_OFTEN = 8, 8.0
"""Steps are run so often on numbers that are moved at random, and may be off by so many times what that does."""

OPPOSITE = ((1.0, -1.0), (-1.0, 1.0))
"""Values and what they are compared with moved against each other: the way to an edge that no random draw takes."""

MOST_INPUTS = 16


def _is_noise(values: Array, expected: Array, stored: Any) -> bool:
    """Are all differences so small that adding up in the type of the tensor could be the reason?"""
    if not np.array_equal(np.isfinite(values), np.isfinite(expected)):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.where(np.isfinite(expected), expected, 0.0)
        spread = finite.max(axis=0) - finite.min(axis=0)
        scale = np.where(spread > 0, spread, np.abs(finite).max(axis=0))
        small = np.abs(values - expected) <= NOISE.get(stored.name, 1e-3) * scale
    return bool(small[np.isfinite(expected)].all())


def _within_rounding(step: Step, record: Seen, found: Array, wrong: Array, stored: Any) -> bool:
    """Does moving the step's numbers by what the type of the tensor rounds off move its output as far as that?

    Near the edge of a bin, or where large numbers cancel, that is far.
    """
    given, expected = record.input, record.output
    if given is None or expected is None or not wrong.any():
        return False
    ulp = float(np.finfo(stored).eps) if stored.kind == "f" else float(np.finfo(np.float32).eps)
    rng = np.random.default_rng(0)
    reach = np.zeros(expected.shape)
    for ours, theirs in (*OPPOSITE, *[(rng, rng)] * DRAWS):
        moved = transformed(_jittered(step, ulp, theirs), in_form_of(record.given, _moved(given, ulp, ours)))
        if moved is None or moved.shape != expected.shape:
            return False
        with np.errstate(invalid="ignore"):
            reach = np.maximum(reach, np.nan_to_num(np.abs(moved - expected), nan=0.0, posinf=np.inf))
    with np.errstate(invalid="ignore"):
        covered = np.abs(found - expected) <= ROUNDED_OFTEN * reach
    return bool(covered[wrong].mean() >= ALWAYS)


def _right_for_other_input(step: Step, record: Seen, found: Array, wrong: Array, tables: Sequence[Array]) -> bool:
    """Would the step give what the graph has, from a tensor before it or from its own input rounded?"""
    given, expected = record.input, record.output
    bad = wrong.any(axis=1)
    if given is None or expected is None or not bad.any():
        return False
    # What the step gives is no input of it: one that is applied twice is at fault.
    others = [table for table in tables if table.shape == given.shape and not same_as_one(table, [found, expected])]
    for table in [given.astype(np.float32).astype(np.float64), *others[:MOST_INPUTS]]:
        again = transformed(step, in_form_of(record.given, table))
        if again is None or again.shape != found.shape:
            continue
        still = differing(again, found).any(axis=1)
        if (still & bad).sum() <= (1 - ALWAYS) * bad.sum():
            return True
    return False


def transformed(step: Step, table: Any) -> Array | None:
    """What a step gives for a table; None if it refuses."""
    try:
        return numbers(step.estimator.transform(table))
    except Exception:  # noqa: BLE001 - steps raise many types on tables they were not made for
        return None


def _jittered(step: Step, ulp: float, way: Any) -> Step:
    """The step with what it was fitted to moved by rounding."""
    estimator = copy(step.estimator)
    for name, value in vars(step.estimator).items():
        if not isinstance(value, np.ndarray) or not name.endswith("_"):
            continue
        if value.dtype.kind == "f":
            setattr(estimator, name, _moved(value, ulp, way))
        elif value.dtype == object and value.ndim == 1 and all(isinstance(v, np.ndarray) for v in value):
            parts = np.empty(len(value), dtype=object)
            parts[:] = [_moved(part, ulp, way) if part.dtype.kind == "f" else part for part in value]
            setattr(estimator, name, parts)
    return Step(step.path, estimator, step.joins, step.upstream)


def _moved(values: Array, ulp: float, way: Any) -> Array:
    """Numbers moved by half of what rounding may do: up, down (1, -1), or each by chance."""
    ways = way if isinstance(way, float) else way.choice(np.array([-1.0, 1.0]), size=values.shape)
    moved: Array = values + 0.5 * ulp * ways * np.abs(values)
    return moved


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
    parts = parts_of(case, batch)
    places = places_of_steps(parts, {}, Opened.of(case.graph(), {}), inside.values)
    # The first tensor of a step, and of a branch what is joined in the end.
    first = {part.path: name for name, part in reversed(places.items())}
    return {part.path.partition("__")[0]: first[part.path] for part in parts if part.path in first}
