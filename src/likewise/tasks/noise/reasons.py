"""Why the answers of a model move although it is the same model: one function a reason, each an experiment.

A reason yields pairs of answers to the same rows, as the model was asked first and as it was asked again. One
that makes no sense for a model, or that its framework does not allow, raises and is listed as not measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from likewise.compare.call import Side, answers, open_side
from likewise.compare.variations.batches import DEFAULT_SIZES, rows_swept
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model
from likewise.data.columns import with_columns
from likewise.errors import ModelError, UsageError
from likewise.explain import rounding
from likewise.models.onnx import describe, edits, widen
from likewise.models.onnx.open import OPTIMIZATIONS

NAME = "model"
"""What errors call it; there is no other side."""

REPEATS = 4
"""How often the same is asked again."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the rows, and what it answered to them at first. `framework` is that of the open object.

    `notes` are what experiments leave to be told.
    """

    model: Model
    framework: str
    side: Side
    batch: Batch
    answers: Tensors
    mapping: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def ask(self, batch: Batch | None = None, *, size: int | None = None) -> Tensors:
        """What it answers now, to the same rows or to others."""
        return answers(self.side, self.batch if batch is None else batch, size)[0]

    def ask_other(self, *, batch: Batch | None = None, target: Any = None, **options: Any) -> Tensors:
        """What the model answers when it is opened with other options, or in another form."""
        model = replace(self.model, options={**self.model.options, **options})
        if target is not None:
            model = Model(self.framework, target, options, self.model.batch_axis)
        given = self.batch if batch is None else batch
        with open_side(NAME, model, given, self.mapping) as side:
            return answers(side, given)[0]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason and its experiment."""

    name: str
    title: str
    pairs: Callable[[Subject], Iterator[tuple[Tensors, Tensors]]]


def _in_double(subject: Subject) -> tuple[Tensors, Tensors]:
    """What the model answers to inputs that float32 can hold, as it is and when it computes in float64."""
    batch = _as_single(subject.batch)
    before = subject.answers if batch is None else subject.ask(batch)
    # The optimiser has fusions that know float32 only.
    options = {"optimization": "disable"} if subject.framework == "onnx" else {}
    return before, subject.ask_other(target=_doubled(subject), batch=batch, **options)


def _as_single(batch: Batch) -> Batch | None:
    """The rows with what float32 leaves of their numbers, still as float64; None if nothing changes."""
    wide = {name: array for name, array in batch.inputs.items() if array.dtype == np.float64}
    with np.errstate(over="ignore"):
        narrow = {name: array.astype(np.float32).astype(np.float64) for name, array in wide.items()}
    if all(np.array_equal(narrow[name], wide[name], equal_nan=True) for name in wide):
        return None
    return replace(batch, inputs=with_columns(batch.inputs, narrow))


def _as_type(batch: Batch, before: DTypeLike, after: DTypeLike) -> Batch | None:
    """The rows with their numbers of one type in another; None if there are none."""
    with np.errstate(over="ignore"):
        cast = {name: array.astype(after) for name, array in batch.inputs.items() if array.dtype == before}
    return replace(batch, inputs=with_columns(batch.inputs, cast)) if cast else None


def _doubled(subject: Subject) -> Any:
    if subject.framework == "torch":
        twin = rounding.copied_module(subject.side.runner.native)
        if twin is None:
            raise ModelError("the module cannot be copied")
        return twin.double()
    return _wide_graph(subject)


def _wide_graph(subject: Subject) -> Any:
    """The graph in double; refused where every operator that computes has no kernel for it."""
    proto = edits.editable(describe.with_weights(subject.model.target))
    if proto is None:
        raise ModelError("the graph is too large to be copied")
    plan = widen.Widening(edits.tensor_types(proto))
    computing = widen.computing_nodes(proto, plan)
    found = widen.runnable(proto, plan) if computing else None
    if found is None:
        raise ModelError("nothing in the graph can be computed in float64")
    wide, tried = found
    narrow = sorted({node.op_type for node in computing if node.op_type in tried.narrow_ops})
    if all(node.op_type in tried.narrow_ops for node in computing):
        raise ModelError(f"ONNX Runtime computes {', '.join(narrow)} in float32 only")
    if narrow:
        subject.notes.append(f"precision: {', '.join(narrow)} still compute in float32: there is no wider kernel")
    return wide


def _again(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    for _ in range(REPEATS):
        yield subject.answers, subject.ask()


def _batch_sizes(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    if subject.side.fixed_batch is not None:
        raise ModelError(f"it takes batches of {subject.side.fixed_batch} rows only")
    if not subject.batch.stacked:
        raise ModelError("the data is one test case, which can only be run whole")
    for size in (size for size in DEFAULT_SIZES if size < len(subject.batch)):
        rows = rows_swept(len(subject.batch), size)
        before = {name: array[:rows] for name, array in subject.answers.items()}
        yield before, subject.ask(subject.batch.slice(0, rows), size=size)


def _threads(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    try:
        counts = sorted({1, 2, os.cpu_count() or 2})
        found = [subject.ask_other(threads=count) for count in counts]
    except UsageError:
        # The adapter has no such option; the libraries that compute have a setting for the whole process.
        with _one_thread():
            found = [subject.ask()]
    for again in found:
        yield subject.answers, again


@contextmanager
def _one_thread() -> Iterator[None]:
    """BLAS, OpenMP and PyTorch with a single thread, then as before."""
    with ExitStack() as stack:
        limited = False
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            pass
        else:
            stack.enter_context(threadpool_limits(1))
            limited = True
        if torch := sys.modules.get("torch"):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            limited = True
        if not limited:
            raise ModelError("nothing here can limit its threads", remedy="Install threadpoolctl")
        yield


def _optimization(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    runtime = subject.model.options.get("runtime", "onnxruntime")
    if subject.model.framework != "onnx" or runtime != "onnxruntime":
        raise ModelError("only ONNX Runtime has levels of graph optimisation")
    for level in OPTIMIZATIONS:
        yield subject.answers, subject.ask_other(optimization=level)


def _float64(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    if subject.framework in ("torch", "onnx") and subject.model.options.get("runtime", "onnxruntime") == "onnxruntime":
        yield _in_double(subject)
    elif subject.framework == "sklearn":
        other = _as_type(subject.batch, np.float64, np.float32) or _as_type(subject.batch, np.float32, np.float64)
        if other is None:
            raise ModelError("the data holds no fractions")
        yield subject.answers, subject.ask(other)
    else:
        raise ModelError(f"{subject.framework} computes in the precision it has")


def _float32_inputs(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    batch = _as_single(subject.batch)
    if batch is None:
        raise ModelError("float32 holds every number of the data")
    fed, _ = subject.side.feed(subject.batch)
    if not any(str(array.dtype) == "float64" for array in fed.inputs.values()):
        raise ModelError("it takes float32 already")
    yield subject.answers, subject.ask(batch)


REASONS = (
    Reason("repeat", f"asked {REPEATS} times more", _again),
    Reason("batch size", "asked in smaller batches", _batch_sizes),
    Reason("threads", "asked with another number of threads", _threads),
    Reason("optimization", "opened at every level of graph optimisation", _optimization),
    Reason("precision", "computed in the other of float32 and float64", _float64),
    Reason("float32 inputs", "given its inputs rounded to float32", _float32_inputs),
)
