"""The first step of a pipeline that the candidate's graph gets wrong, and the tensor in which it does.

Proven from both sides. The reference, given the graph's tensor in the place of what its step gives, answers like the
candidate: the difference comes from before the tensor. The graph, given what the step gives in the place of the
tensor, answers like the reference: nothing else is wrong. And no tensor of the graph that the step could have
worked on explains it: the step itself is at fault, not what it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.cases import Case, Effect
from likewise.contracts.data import Array, Tensors
from likewise.structure import innocence
from likewise.structure.alike import differing, kept_columns, likeness, same_as_one
from likewise.structure.interventions import Trial
from likewise.structure.steps import (
    Change,
    Seen,
    Step,
    ask_changed,
    in_form_of,
    numbers,
    reference_steps,
    seen,
)
from likewise.structure.tensors import Inside, in_parts, injector, looked_into, reader

MOST_TENSORS, ALSO_TRIED = 10, 4
"""Tensors tried for one step: those that look most like what it gives, and some that are likely for where they are."""

FILLING = {"Imputer", "Where"}
"""Operators that put values in the place of missing ones."""

WIDEST = 60_000
"""Columns of a step that is looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor, or some of its columns where a step's output is part of a wider one."""

    tensor: str
    columns: range | None = None

    def of(self, array: Array) -> Array:
        table = array.reshape(len(array), -1)
        return table if self.columns is None else table[:, self.columns.start : self.columns.stop]


@dataclass(frozen=True, slots=True)
class WrongStep:
    """The culprit: what it gives, what the graph has instead on the rows of the trial, and what was shown of it.

    `inside` are the tensors of the graph on the same rows. `lacking` are columns that the graph does not have at all.
    `effect` is over the whole sample.
    """

    step: Step
    place: Place
    inside: Inside
    trial: Trial
    records: Mapping[str, Seen]
    expected: Array
    found: Array
    effect: Effect
    injected: bool
    lacking: tuple[int, ...] = ()

    @property
    def operator(self) -> str | None:
        """What makes the tensor; None if it is an input of the graph."""
        return self.inside.made_by.get(self.place.tensor)

    @property
    def left_out(self) -> bool:
        """Does the graph have there what the step was given, without a node that would stand for the step?"""
        given = self.records[self.step.path].input
        if self.lacking or given is None or given.shape != self.found.shape or differing(self.found, given).any():
            return False
        # A node that fills gaps is there, but does not find them.
        fills = "Imputer" in type(self.step.estimator).__name__
        equal = [name for name, array in self.inside.values.items() if same_as_one(_table(array), [given])]
        return not (fills and any(self.inside.made_by.get(name) in FILLING for name in equal))

    @property
    def wrong(self) -> Array:
        """Which entries of the step's output the graph has wrong."""
        import numpy as np

        if self.lacking:
            mask = np.zeros(self.expected.shape, dtype=bool)
            mask[:, list(self.lacking)] = True
            return mask
        return differing(self.found, self.expected)


def first_wrong_step(case: Case) -> WrongStep | None:
    """The culprit among the steps; None if there is none, or if it cannot be shown. Looked for once a case."""
    key = "first wrong step"
    if key not in case.memory:
        case.memory[key] = _search(case)
    found: WrongStep | None = case.memory[key]
    return found


def _search(case: Case) -> WrongStep | None:
    steps = reference_steps(case)
    if not steps or not case.required.batch.stacked or case.graph("candidate") is None:
        return None
    trial = trial_for(case)
    if trial is None:
        return None
    records = seen(case, trial.batch)
    inside = looked_into(case, trial.batch)
    if inside is None:
        return None
    tensors = {name: array for name, array in inside.values.items() if array.dtype.kind in "biuf" and array.ndim}
    for step in steps:
        expected = records[step.path].output if step.path in records else None
        if expected is None or expected.shape[1] > WIDEST or not expected.size:
            continue
        places = list(_places(step, steps, records, tensors, expected.shape[1]))
        tables = {place: _numbers_at(place, tensors) for place in places}
        # Right where it matters: on the rows that fail.
        if any(not differing(table[trial.failing], expected[trial.failing]).any() for table in tables.values()):
            continue
        found = _proven(case, step, trial, records, expected, tables, inside)
        if found is None and not step.joins:
            found = _narrower(case, step, trial, records, expected, tensors, inside)
        if found is not None:
            return None if _innocent(found, tensors) else found
    return None


def trial_for(case: Case) -> Trial | None:
    """Some rows, as many as the widest step allows."""
    few = Trial.of(case, 8, 8)
    if not len(few):
        return None
    widths = [1]
    for record in seen(case, few.batch).values():
        shape = getattr(record.gave, "shape", ())
        widths.append(int(shape[1]) if len(shape) == 2 else 1)
    rows = max(16, min(200, 1_500_000 // max(widths)))
    return Trial.of(case, rows, rows)


def _places(
    step: Step, steps: Sequence[Step], records: Mapping[str, Seen], tensors: Mapping[str, Array], width: int
) -> Iterator[Place]:
    """Where in the graph what a step gives may be: tensors of its width, or its part of one that joins branches."""
    sizes = {name: array.size // len(array) for name, array in tensors.items()}
    for name, size in sizes.items():
        if size == width:
            yield Place(name)
    for join in steps:
        part = part_of_join(join, step.path, records)
        whole = numbers_wide(records.get(join.path))
        if part is not None and len(part) == width != whole:
            for name, size in sizes.items():
                if size == whole:
                    yield Place(name, part)


def numbers_wide(record: Seen | None) -> int:
    shape = getattr(record.gave, "shape", ()) if record is not None else ()
    return int(shape[1]) if len(shape) == 2 else 0


def part_of_join(join: Step, path: str, records: Mapping[str, Seen]) -> range | None:
    """The columns of a join that a step gives, if it is the last of a branch."""
    if not join.joins or path not in join.upstream:
        return None
    root = f"{join.path}__" if any(p.startswith(f"{join.path}__") for p in join.upstream) else ""
    branches: dict[str, str] = {}
    for inner in join.upstream:
        if inner.startswith(root):
            branches[inner[len(root) :].partition("__")[0]] = inner
    branch = next((name for name, last in branches.items() if last == path), None)
    if branch is None:
        return None
    slices = getattr(join.estimator, "output_indices_", None)
    if slices is not None:
        return range(slices[branch].start, slices[branch].stop) if branch in slices else None
    start = 0
    for name, part, *_ in getattr(join.estimator, "transformer_list", ()):
        width = numbers_wide(records.get(branches.get(name, "")))
        if name == branch:
            return range(start, start + width)
        if not width or isinstance(part, str):
            return None
        start += width
    return None


def _numbers_at(place: Place, tensors: Mapping[str, Array]) -> Array:
    import numpy as np

    return place.of(tensors[place.tensor]).astype(np.float64)


def _table(array: Array) -> Array:
    import numpy as np

    return array.reshape(len(array), -1) if array.ndim and array.dtype.kind in "biuf" else np.empty((0, 0))


def _proven(
    case: Case,
    step: Step,
    trial: Trial,
    records: Mapping[str, Seen],
    expected: Array,
    tables: Mapping[Place, Array],
    inside: Inside,
) -> WrongStep | None:
    """The tensor whose values, given by the step, let the reference answer like the candidate."""
    width = expected.shape[1]
    for places in _most_likely(tables, expected):
        first = places[0]
        for only in (False, True):
            change = {step.path: _giving(tables[first], only_what_differs=only)}
            answered = ask_changed(case, change, trial.batch)
            if answered is None or not trial.effect(reference=answered).explains:
                continue
            reproduced = _reproduced(case, step, first, width, only_what_differs=only)
            if reproduced is None or not reproduced.explains:
                continue
            refuted = False
            # Of equal tensors, one may be a by-product that nothing depends on.
            for place in places[:ALSO_TRIED]:
                repaired = _repaired(case, step, place, inside, width)
                if repaired is not None and repaired.explains:
                    return WrongStep(
                        step, place, inside, trial, records, expected, tables[place], repaired, injected=True
                    )
                refuted = refuted or repaired is not None
            if not refuted:
                return WrongStep(
                    step, first, inside, trial, records, expected, tables[first], reproduced, injected=False
                )
    return None


def _most_likely(tables: Mapping[Place, Array], expected: Array) -> list[list[Place]]:
    """The places that look most like the step, its parts of wider tensors, and those that come last; equal ones together."""
    order = {place: (place.columns is not None, index) for index, place in enumerate(tables)}
    equal: dict[bytes, list[Place]] = {}
    for place in sorted(tables, key=lambda place: order[place]):
        equal.setdefault(tables[place].tobytes(), []).append(place)
    groups = list(equal.values())
    ranked = sorted(groups, key=lambda places: (-round(likeness(tables[places[0]], expected), 3), order[places[0]]))
    parts = [places for places in groups if places[0].columns is not None]
    chosen = [*ranked[:MOST_TENSORS], *parts[:ALSO_TRIED], *groups[-ALSO_TRIED:]]
    return [places for index, places in enumerate(chosen) if places not in chosen[:index]]


def _reproduced(case: Case, step: Step, place: Place, width: int, *, only_what_differs: bool) -> Effect | None:
    """The reference with the graph's tensor in the place of its step, on the whole sample."""
    import numpy as np

    read = reader(case, place.tensor)
    parts: list[Tensors] = []
    for _, batch in in_parts(case, width):
        array = read(batch)
        if array is None or len(array) != len(batch):
            return None
        change = _giving(place.of(array).astype(np.float64), only_what_differs=only_what_differs)
        answered = ask_changed(case, {step.path: change}, batch)
        if answered is None:
            return None
        parts.append(answered)
    return case.effect(reference=_joined(parts))


def _repaired(case: Case, step: Step, place: Place, inside: Inside, width: int) -> Effect | None:
    """The graph with what the step gives in the place of its tensor; all of it, or only what differs from its own."""
    effects = [_injected(case, step, place, inside, width, only_what_differs=False)]
    if effects[0] is not None and (effects[0].share < 1.0 or effects[0].damage):
        effects.append(_injected(case, step, place, inside, width, only_what_differs=True))
    return max((effect for effect in effects if effect is not None), key=lambda e: e.share - e.damage, default=None)


def _injected(
    case: Case, step: Step, place: Place, inside: Inside, width: int, *, only_what_differs: bool
) -> Effect | None:
    import numpy as np

    inject, read = injector(case, place.tensor, inside.values[place.tensor].dtype), reader(case, place.tensor)
    parts: list[Tensors] = []
    for _, batch in in_parts(case, width):
        record, array = seen(case, batch).get(step.path), read(batch)
        values = None if record is None else record.output
        if values is None or array is None:
            return None
        whole = array.reshape(len(array), -1)
        table = place.of(array).astype(np.float64)
        if only_what_differs and table.shape == values.shape:
            values = np.where(differing(table, values), values, table)
        if place.columns is not None:
            whole = whole.copy()
            whole[:, place.columns.start : place.columns.stop] = values
            values = whole
        answered = inject(batch, values.reshape(array.shape) if values.size == array.size else values)
        if answered is None:
            return None
        parts.append(answered)
    return case.effect(candidate=_joined(parts))


def _giving(values: Array, *, only_what_differs: bool) -> Change:
    """A step that gives these values; or only those that are not its own but for rounding, which is another cause."""
    import numpy as np

    def change(_: Any, gave: Any) -> Any:
        own = numbers(gave)
        if not only_what_differs or own is None or own.shape != values.shape:
            return in_form_of(gave, values)
        return in_form_of(gave, np.where(differing(values, own), values, own))

    return change


def _narrower(
    case: Case,
    step: Step,
    trial: Trial,
    records: Mapping[str, Seen],
    expected: Array,
    tensors: Mapping[str, Array],
    inside: Inside,
) -> WrongStep | None:
    """A tensor that lacks columns of the step, and with them answers like the reference."""
    width = expected.shape[1]
    names = [name for name, array in tensors.items() if width / 2 <= array.size // len(array) < width]
    for name in reversed(names):
        table = _numbers_at(Place(name), tensors)
        kept = kept_columns(table, expected)
        if kept is None:
            continue
        effect = _repaired(case, step, Place(name), inside, width)
        if effect is not None and effect.explains:
            lacking = tuple(k for k in range(width) if k not in kept)
            return WrongStep(
                step, Place(name), inside, trial, records, expected, table, effect, injected=True, lacking=lacking
            )
    return None


def _innocent(found: WrongStep, tensors: Mapping[str, Array]) -> bool:
    """Is the step not at fault: only rounding, or right for what the graph gives it?"""
    if found.lacking:
        return False
    record = found.records[found.step.path]
    stored = found.inside.values[found.place.tensor].dtype
    if innocence.is_noise(found.found, found.expected, stored):
        return True
    if record.input is None or found.step.joins:
        return False
    if innocence.within_rounding(found.step, record, found.found, found.wrong, stored):
        return True
    earlier = list(tensors)[: list(tensors).index(found.place.tensor)]
    tables = [_numbers_at(Place(name), tensors) for name in earlier]
    return innocence.right_for_other_input(found.step, record, found.found, found.wrong, tables)


def _joined(parts: Sequence[Tensors]) -> Tensors:
    import numpy as np

    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
