"""The values inside the candidate's graph, and its answers when one of them is given from outside.

Only a few hundred rows are looked at with every tensor exposed; whatever is measured on more rows exposes or
replaces a single tensor, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from likewise.compare.call import Side
from likewise.contracts.data import Array, Batch, Tensors
from likewise.errors import LikewiseError
from likewise.explain.case import Case
from likewise.registry import adapter

if TYPE_CHECKING:
    from onnx import ModelProto


LARGEST_COPY = 512 * 2**20
"""Bytes of a graph beyond which no changed copies of it are made."""

MOST_VALUES = 20_000_000
"""Numbers of a step that are computed at most to measure an effect."""

BEFORE = "__before"
"""Behind the name of a tensor that is given from outside: the one that the graph itself comes to."""

WITHOUT_OPTIMISATION: Mapping[str, Any] = {"optimization": "disable"}


@dataclass(frozen=True, slots=True)
class Inside:
    """The tensors of the graph on some rows, those the graph is given first, then in the order it computes them.

    `made_by` is the operator that gives each; the inputs have none.
    """

    values: Mapping[str, Array]
    made_by: Mapping[str, str]


def looked_into(case: Case, batch: Batch) -> Inside | None:
    """Every tensor with a row axis that the graph computes for these rows; None where it cannot be opened up."""
    proto = case.graph("candidate")
    if proto is None or proto.ByteSize() > LARGEST_COPY:
        return None
    made_by = {name: node.op_type for node in proto.graph.node for name in node.output if name}
    fed = case.fed("candidate", batch)
    with _opened(case, _exposing(proto, made_by)) as side:
        found = None if side is None else run_rows(case, side, fed)
    if found is None:
        return None
    values = {**fed, **{name: found[name] for name in made_by if name in found}}
    return Inside({name: array for name, array in values.items() if array.shape[:1] == (len(batch),)}, made_by)


@contextmanager
def reader(case: Case, name: str) -> Iterator[Callable[[Batch], Array | None]]:
    """Reads one tensor for any rows."""
    if name in {value.name for value in case.graph("candidate").graph.input}:
        yield lambda batch: case.fed("candidate", batch)[name]
        return
    with _opened(case, _exposing(case.graph("candidate"), [name])) as side:

        def read(batch: Batch) -> Array | None:
            found = None if side is None else run_rows(case, side, case.fed("candidate", batch))
            return None if found is None else found.get(name)

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
            return run_rows(case, side, {**case.fed("candidate", batch), name: values.astype(dtype)})

        yield inject


def run_rows(case: Case, side: Side, fed: Mapping[str, Array]) -> Tensors | None:
    """What a graph gives for inputs in the form it takes, also if it takes one batch size only."""
    import numpy as np

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


def rows_for(case: Case, width: int) -> Array:
    """Positions of the rows of the sample to measure on: all, unless tables of this width would be slow to make."""
    import numpy as np

    failing, others = np.flatnonzero(case.required.failing), np.flatnonzero(~case.required.failing)
    most = max(128, MOST_VALUES // max(width, 1))
    if len(failing) + len(others) <= most:
        return np.arange(len(case.required))
    chosen = failing[: max(most // 2, most - len(others))]
    return np.sort(np.concatenate([chosen, others[: most - len(chosen)]]))


def in_parts(case: Case, positions: Array, width: int) -> Iterator[Batch]:
    """These rows of the sample, so many at a time that tables of this width stay small."""
    size = max(64, min(4_096, MOST_VALUES // 5 // max(width, 1)))
    for start in range(0, len(positions), size):
        yield case.rows(positions[start : start + size])


@contextmanager
def _opened(case: Case, proto: ModelProto | None) -> Iterator[Side | None]:
    """The candidate with another graph; what the runtime refuses to optimise is run as it stands."""
    if proto is None:
        yield None
        return
    model = replace(case.plan.candidate, target=proto)
    ours = model.options.get("runtime", "onnxruntime") == "onnxruntime"
    with ExitStack() as stack:
        found = None
        for options in (model.options, {**model.options, **WITHOUT_OPTIMISATION}) if ours else (model.options,):
            case.require_time()
            try:
                runner = stack.enter_context(adapter(model.framework).open(replace(model, options=options)))
            except LikewiseError:
                continue
            found = replace(case.side("candidate"), runner=runner)
            break
        yield found


def _exposing(proto: ModelProto, names: Collection[str]) -> ModelProto:
    """The graph with more of its tensors as outputs; the runtime finds out their types."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    there = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    return copy


def _cut(proto: ModelProto, name: str, dtype: Any) -> ModelProto | None:
    """The graph with a tensor as one more input; what it computed there leads nowhere."""
    import onnx
    from onnx import helper

    if name in {value.name for value in proto.graph.output}:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for node in copy.graph.node:
        for index, given in enumerate(node.output):
            if given == name:
                node.output[index] = name + BEFORE
    # What is noted of the shapes further on need not hold for what is given.
    del copy.graph.value_info[:]
    copy.graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None))
    return copy
