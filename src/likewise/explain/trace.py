"""What is inside both models: the steps of a pipeline with what they give, the tensors of a graph, and both changed.

Only a few hundred rows are looked at with every tensor of a graph exposed; whatever is measured on more rows exposes
or replaces a single tensor, some rows at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.call import Side
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, edited, listed, transplanted
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError
from likewise.explain import experiment
from likewise.explain.case import Case
from likewise.explain.experiment import Trial
from likewise.explain.features import fields_of
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits
from likewise.models.onnx.inside import GIVEN, Opened
from likewise.models.onnx.open import RESTING, open_session
from likewise.models.sklearn.walk import Change, Seen, Step, visit_steps, with_changes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


MOST_NAMED = 3
"""Nodes that a place names one by one."""


def place_of(*nodes: NodeProto, side: str = "candidate") -> Place:
    """Where nodes are, in their owner's words: the module each comes from where the file says so, then its own name."""
    told = [_told(node) for node in nodes]
    owners = [(module, node.op_type) for node in nodes if (module := edits.module_of(node))]
    modules = {module: listed([op for own, op in owners if own == module], MOST_NAMED) for module, _ in owners}
    names = [f"{name} ({', '.join(given)})" for name, given in told]
    if len(told) > MOST_NAMED and modules:
        # Of many nodes, whose they are says more than their names.
        names = [f"{module} ({operators})" for module, operators in modules.items()]
    name, given = told[0] if len(told) == 1 else (listed(names, MOST_NAMED), ())
    return Place(
        name,
        given,
        side=side,
        path=next(iter(modules)) if len(modules) == 1 else "",
        nodes=tuple(node.name for node in nodes if node.name),
        tensors=tuple(node.output[0] for node in nodes if not node.name),
    )


def _told(node: NodeProto) -> tuple[str, tuple[str, ...]]:
    own = f"node '{node.name}'" if node.name else f"the node that gives '{node.output[0]}'"
    module = edits.module_of(node)
    return (module, (node.op_type, own)) if module else (node.op_type, (own,))


def reference_steps(case: Case) -> tuple[Step, ...]:
    """The steps of the reference, in the order in which they run; none unless it is a scikit-learn model."""
    model = case.native("reference")
    if model is None or case.framework("reference") != "sklearn" or "sklearn" not in sys.modules:
        return ()
    found: list[Step] = []
    visit_steps(model, found.append)
    return tuple(found)


def seen(case: Case, batch: Batch) -> dict[str, Seen]:
    """What each step of the reference is given and gives on these rows."""
    found: dict[str, Seen] = {}

    def watch(path: str) -> Change:
        def note(given: Any, gave: Any) -> Any:
            found[path] = Seen(given, gave)
            return gave

        return note

    ask_changed(case, {step.path: watch(step.path) for step in reference_steps(case)}, batch)
    return found


def ask_changed(case: Case, changes: Mapping[str, Change], batch: Batch) -> Tensors | None:
    """What the reference answers with some of its steps changed; None if it refuses."""
    return case.ask_changed("reference", target=with_changes(case.native("reference"), changes), batch=batch)


def with_steps(case: Case, changes: Mapping[str, Change]) -> experiment.Change:
    """The reference with some of its steps changed."""
    return experiment.Change("reference", target=with_changes(case.native("reference"), changes))


ROWS_CHANGED = 24
"""Failing rows, and as many others, whose columns are changed one after the other."""

MOST_COLUMNS = 80
"""Columns that are changed; where there are more, only suspects are."""


def columns_behind(case: Case, step: Step, *, text: bool = False, suspects: Sequence[str] = ()) -> dict[Field, Array]:
    """For each column of the data that matters to a step, a mask of the columns of its output that it changes.

    Every row is given the value of another one. Where there are very many columns, only the suspects are tried.
    """
    fields = [field for field in fields_of(case) if not text or _holds_text(field.of(case.required.batch.inputs))]
    if len(fields) > MOST_COLUMNS:
        fields = [field for field in fields if field.name in suspects]
    if len(fields) > MOST_COLUMNS:
        return {}
    trial = Trial.some(case, ROWS_CHANGED, ROWS_CHANGED)
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


def failing_positions(case: Case, count: int) -> Array:
    """Positions of failing rows, as many as a graph takes at once where it takes one number only."""
    sample = case.required
    if not sample.batch.stacked:
        return np.arange(len(sample))
    chosen = np.flatnonzero(sample.failing)[: max(count, 1)]
    graphs = [side for side in ("candidate", "reference") if case.framework(side) == "onnx"]
    fixed = [size for side in graphs if (size := case.side(side).fixed_batch) is not None]
    return np.resize(chosen, fixed[0]) if fixed else chosen


WITHOUT_OPTIMISATION = {"optimization": "disable"}

AS_STORED = {"session.disable_prepacking": "1"}
"""Large weights stay as they are mapped: to lay them out anew takes longer than to multiply a few rows with them."""


def fed(case: Case, side: str, batch: Batch) -> dict[str, Array]:
    """The inputs of a side's graph for these rows, with the axes in the order it wants them."""
    layout = RowLayout(case.model(side), describe.inputs(case.graph(side)), ())
    return layout.feed(replace(batch, inputs=ArrayColumns(case.fed(side, batch))))


def run(
    case: Case, side: str, proto: ModelProto, inputs: Mapping[str, Array], options: Mapping[str, Any] | None = None
) -> dict[str, Array]:
    """All outputs of a graph that hold arrays; the runtime takes it as it stands: fusing would take away tensors."""
    case.require_time()
    model = case.model(side)
    asked = {**model.options, **(options or {})}
    if asked.get("runtime", "onnxruntime") == "onnxruntime":
        asked |= WITHOUT_OPTIMISATION | (AS_STORED if describe.size(proto) >= RESTING else {})
    case.make_room(side)
    session = open_session(replace(model, target=proto, options=asked), proto)
    wanted = {value.name for value in proto.graph.input}
    answers: Any = session.run({name: array for name, array in inputs.items() if name in wanted})
    return {
        name: np.asarray(answer)
        for name, answer in zip(session.outputs, answers, strict=True)
        if answer is not None and not isinstance(answer, list | dict)
    }


def inside(
    case: Case, side: str, graph: Opened, names: Collection[str], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of these tensors of a graph, its inputs among them."""
    given = {name: inputs[name] for name in names if name in inputs}
    made = [name for name in names if name in graph.makers and name in graph.types]
    if not made:
        return given
    found = run(case, side, edits.exposed(graph.proto, made, graph.types), inputs)
    return {**given, **{name: found[name] for name in made if name in found}}


def seen_inside(
    case: Case,
    side: str,
    proto: ModelProto,
    names: Collection[str],
    positions: Array,
    options: Mapping[str, Any] | None = None,
    types: Mapping[str, int] | None = None,
) -> dict[str, Array] | None:
    """The values of tensors inside a graph, for some rows of the sample; None if it does not run."""
    exposed = edits.exposed(proto, names, case.tensor_types(side) if types is None else types)
    size = case.side(side).fixed_batch
    batch = case.rows(positions if size is None else np.resize(positions, size))
    case.require_time()
    try:
        seen = run(case, side, exposed, fed(case, side, batch), options)
    except LikewiseError:
        return None
    return {name: seen[name] for name in names if name in seen}


MOST_VALUES = 20_000_000
"""Numbers of a step that are computed at most to measure an effect."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The tensors of the graph on some rows, those the graph is given first, then in the order it computes them.

    `made_by` is the operator that gives each; the inputs have none.
    """

    values: Mapping[str, Array]
    made_by: Mapping[str, str]


def looked_into(case: Case, batch: Batch, *, apart_from: Collection[str] = ()) -> Inside | None:
    """Every tensor with a row axis that the graph computes for these rows; None where it cannot be opened up.

    Those that do not matter cost nothing: in a large network all of them together may not fit into memory.
    """
    proto = case.graph("candidate")
    if proto is None or proto.ByteSize() > case.largest_copy:
        return None
    nodes = proto.graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output if name and name not in apart_from}
    with _values(case, made_by) as read:
        one = read(batch.slice(0, 1))
        fits = one is not None and len(batch) * sum(array.nbytes for array in one.values()) <= case.looked_at
        found = read(batch) if fits else None
    if found is None:
        return None
    return Inside({name: array for name, array in found.items() if array.shape[:1] == (len(batch),)}, made_by)


@contextmanager
def reader(case: Case, name: str) -> Iterator[Callable[[Batch], Array | None]]:
    """Reads one tensor for any rows."""
    with _values(case, [name]) as read:
        yield lambda batch: (read(batch) or {}).get(name)


@contextmanager
def _values(case: Case, names: Collection[str]) -> Iterator[Callable[[Batch], Tensors | None]]:
    """Reads the inputs of the graph and these of its tensors, in its own order, for any rows."""
    proto = case.graph("candidate")
    inputs = {value.name for value in proto.graph.input}
    made = [name for name in names if name not in inputs]
    with _opened(case, edits.exposed(proto, made) if made else None) as side:

        def read(batch: Batch) -> Tensors | None:
            fed = case.fed("candidate", batch)
            if not made:
                return fed
            found = None if side is None else run_rows(case, side, fed)
            return None if found is None else {**fed, **{name: found[name] for name in made if name in found}}

        yield read


@contextmanager
def injector(case: Case, name: str, dtype: Any) -> Iterator[Callable[[Batch, Array], Tensors | None]]:
    """Runs the graph with one of its tensors given from outside."""
    proto = case.graph("candidate")
    inputs = {value.name for value in proto.graph.input}
    as_it_is = nullcontext(case.side("candidate"))
    with as_it_is if name in inputs else _opened(case, _cut(proto, name, dtype)) as side:

        def inject(batch: Batch, values: Array) -> Tensors | None:
            if side is None:
                return None
            given = name if name in inputs else name + GIVEN
            return run_rows(case, side, {**case.fed("candidate", batch), given: values.astype(dtype)})

        yield inject


def run_rows(case: Case, side: Side, fed: Mapping[str, Array]) -> Tensors | None:
    """What a graph gives for inputs in the form it takes, also if it takes one batch size only."""
    size, rows = case.side("candidate").fixed_batch, len(next(iter(fed.values())))
    if size is None:
        return case.ask_fed(side, fed)
    parts: list[Tensors] = []
    for start in range(0, rows, size):
        positions = np.minimum(np.arange(start, start + size), rows - 1)
        part = case.ask_fed(side, {name: array[positions] for name, array in fed.items()})
        if part is None:
            return None
        parts.append(part)
    stacked = [name for name, array in parts[0].items() if array.ndim and len(array) == size]
    return {name: np.concatenate([part[name] for part in parts])[:rows] for name in stacked}


def in_parts(case: Case, positions: Array, width: int, answer: Callable[[Batch], Tensors | None]) -> Tensors | None:
    """Answers about these rows of the sample, asked for so many at a time that tables of this width stay small.

    None if one part is refused.
    """
    size = max(64, min(4_096, MOST_VALUES // 5 // max(width, 1)))
    parts: list[Tensors] = []
    for start in range(0, len(positions), size):
        part = answer(case.rows(positions[start : start + size]))
        if part is None:
            return None
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _opened(case: Case, proto: ModelProto | None) -> Iterator[Side | None]:
    """The candidate with another graph; what the runtime refuses to optimise is run as it stands."""
    with ExitStack() as stack:
        found = None
        for options in ({}, WITHOUT_OPTIMISATION):
            if proto is not None and found is None:
                opened = case.opened("candidate", target=proto, options=options, fed=False)
                found = stack.enter_context(opened)
        yield found


def _cut(proto: ModelProto, name: str, dtype: Any) -> ModelProto | None:
    """The graph with a tensor as one more input; what it computed there leads nowhere."""
    from onnx import helper

    if name in {value.name for value in proto.graph.output}:
        return None
    copy, kind = edits.copied(proto), helper.np_dtype_to_tensor_dtype(dtype)
    edits.replace_reads(copy.graph, {name: name + GIVEN})
    # What is noted of the shapes further on need not hold for what is given.
    del copy.graph.value_info[:]
    copy.graph.input.append(helper.make_tensor_value_info(name + GIVEN, kind, None))
    return copy


RELATIVE, OF_LARGEST = 2e-5, 2e-6
"""What single precision may cost: a part of the value itself, and of the largest value of its column."""


def differing(values: Array, expected: Array) -> Array:
    """Which entries are not the same but for single precision; missing values are equal to each other."""
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(expected)
        largest = np.where(np.isfinite(size), size, 0.0).max(axis=0, initial=0.0)
        close = np.abs(values - expected) <= RELATIVE * size + OF_LARGEST * largest + 1e-9
    same: Array = close | (values == expected) | (np.isnan(values) & np.isnan(expected))
    return ~same


def same_as_one(table: Array, known: Sequence[Array]) -> bool:
    """Is a table the same as one of others, but for single precision?"""
    return any(table.shape == other.shape and not differing(table, other).any() for other in known)


def likeness(values: Array, expected: Array) -> float:
    """How much a tensor looks like what a step gave: the share of rows that are equal, and how well columns go along.

    A counterpart with other parameters is equal nowhere, but its columns rise and fall with those of the step.
    """
    equal = float((~differing(values, expected).any(axis=1)).mean())
    ours = np.nan_to_num(expected, posinf=0.0, neginf=0.0)
    theirs = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    ours, theirs = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
    norm = np.sqrt((ours**2).sum(axis=0) * (theirs**2).sum(axis=0))
    along = np.abs((ours * theirs).sum(axis=0)) / np.where(norm > 0, norm, 1.0)
    return equal + float(along.mean())


def order_of(values: Array, expected: Array) -> tuple[int, ...] | None:
    """The order in which the columns of one array are those of the other; None if they are others, or in order."""
    used: set[int] = set()
    order: list[int] = []
    for column in range(expected.shape[1]):
        free = [k for k in range(values.shape[1]) if k not in used]
        alike = [k for k in free if _same_column(values, k, expected, column)]
        if not alike:
            return None
        best = column if column in alike else alike[0]
        used.add(best)
        order.append(best)
    return None if order == sorted(order) else tuple(order)


def kept_columns(values: Array, expected: Array) -> tuple[int, ...] | None:
    """Which columns of what a step gave a narrower tensor holds, in order; None if it holds others."""
    kept: list[int] = []
    for column in range(values.shape[1]):
        later = range(kept[-1] + 1 if kept else 0, expected.shape[1])
        found = next((k for k in later if _same_column(values, column, expected, k)), None)
        if found is None:
            return None
        kept.append(found)
    return tuple(kept)


def _same_column(values: Array, column: int, expected: Array, other: int) -> bool:
    return not differing(values[:, [column]], expected[:, [other]]).any()


FLOATS = (1, 10, 11, 16)
ROWS_SEEN = 16
"""Rows whose values are looked at inside the graph."""
