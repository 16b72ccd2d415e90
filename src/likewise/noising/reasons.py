"""Why the answers of a model move although it is the same model: one function a reason, each an experiment.

A reason yields pairs of answers to the same rows, as the model was asked first and as it was asked again. One
that makes no sense for a model, or that its framework does not allow, raises and is listed as not measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from likewise.contracts.data import Tensors
from likewise.errors import ModelError, UsageError
from likewise.noising import precision
from likewise.noising.subject import Subject
from likewise.onnxsessions import OPTIMIZATIONS
from likewise.sweeping import DEFAULT_SIZES, rows_swept

REPEATS = 4
"""How often the same is asked again."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason and its experiment."""

    name: str
    title: str
    pairs: Callable[[Subject], Iterator[tuple[Tensors, Tensors]]]


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
        yield precision.in_double(subject)
    elif subject.framework == "sklearn":
        other = precision.as_single(subject.batch, keep_type=False) or precision.as_double(subject.batch)
        if other is None:
            raise ModelError("the data holds no fractions")
        yield subject.answers, subject.ask(other)
    else:
        raise ModelError(f"{subject.framework} computes in the precision it has")


def _float32_inputs(subject: Subject) -> Iterator[tuple[Tensors, Tensors]]:
    batch = precision.as_single(subject.batch)
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
