"""The noise of one model: how far its answers move by themselves, and the tolerances that this asks for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from likewise.compare import pair
from likewise.compare.call import Side, answers, open_side
from likewise.compare.variations.batches import DEFAULT_SIZES, rows_swept
from likewise.contracts.comparison import Progress, Tolerance
from likewise.contracts.data import Batch, Source, Tensors
from likewise.contracts.models import BatchAxis, Kind, Model
from likewise.contracts.results import NoiseResult, NoiseSource
from likewise.contracts.values import dataclass
from likewise.data import selection as selecting
from likewise.data.cells import with_columns
from likewise.data.readers import first_rows
from likewise.errors import LikewiseError, ModelError, UsageError, one_line
from likewise.explain import rounding
from likewise.models.onnx import describe, edits, widen
from likewise.models.onnx.open import OPTIMIZATIONS
from likewise.registry import adapter, describe_model, open_source
from likewise.tasks.noise import movements
from likewise.tasks.noise.movements import Movement

__all__ = ["noise"]

ROWS = 1_024
FIRST_ROWS = 32
BYTES = 32 * 2**20
SECONDS = 5.0
"""At most so many rows are asked about, of at most so many bytes with their answers, in at most so long a call."""

BUDGET = 60.0
NO_TIME = f"there was no time left after {BUDGET:g} seconds"
"""Nothing new is begun after so long."""

MARGIN = 10.0
"""A proposed tolerance is so many times the noise that was seen: other rows and other machines move further."""

TOO_MUCH = 0.01
"""A proposal above this part of the largest answer is doubted."""


def noise(
    model: Any,
    data: Any,
    *,
    margin: float = MARGIN,
    options: Mapping[str, Any] | None = None,
    trusted: Sequence[str] = (),
    batch_axis: BatchAxis | None = None,
    feed: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **selection: Any,
) -> NoiseResult:
    """Measure how far a model's own answers move, and propose tolerances above that.

    The first rows of the data are asked again: as they are, in other batches, with other numbers of threads, at other
    levels of optimisation, in the other precision and rounded to float32.
    `drop`, `samples`, `id` and so on select columns and rows.
    """
    if not 1 <= margin < float("inf"):
        raise UsageError(f"--margin is {margin:g}", remedy="Give a number of at least 1, such as 10")
    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)}, batch_axis=batch_axis)
    if adapter(described.framework).answers_only:
        raise UsageError(f"{described.name} holds recorded answers, which do not move", remedy="Give the model")
    source = selecting.select(open_source(data), **selection)
    _tell(progress, "loading the model")
    mapping = feed or {}
    head = first_rows(source, FIRST_ROWS)
    with open_side(NAME, described, head, mapping) as side:
        batch = _rows(source, side, head)
        given, _ = answers(side, batch)
        kinds = {spec.name: spec.kind for spec in pair.observed(side.runner.signature, given)}
        labels = frozenset(name for name, kind in kinds.items() if kind is Kind.LABEL)
        subject = Subject(described, _framework(described, side.runner.native), side, batch, given, mapping)
        found: dict[str, list[Movement]] = {}
        sources: list[NoiseSource] = []
        until = time.monotonic() + BUDGET
        for reason in REASONS:
            _tell(progress, f"measuring: {reason.name}")
            late = time.monotonic() > until
            moved = NO_TIME if late else _moved(reason, subject, labels)
            if isinstance(moved, str):
                sources.append(NoiseSource(reason.name, reason.title, not_measured=moved))
                continue
            found[reason.name] = moved
            sources.append(NoiseSource(reason.name, reason.title, movements.described(moved)))
    if not found:
        raise ModelError(f"nothing could be measured of {described.name}: {sources[0].not_measured}")
    tolerance, most = movements.propose(found, margin=margin)
    limits = movements.limits(found, margin=margin)
    answered = movements.spreads(given, kinds)
    refused = movements.refused(found, answered, margin=margin)
    if refused or (tolerance is not None and not movements.suits_all(tolerance, answered)):
        tolerance = None
    return NoiseResult(
        model=described.name,
        framework=subject.framework,
        data=source.location,
        rows=len(batch),
        sources=tuple(sources),
        margin=margin,
        abs_tol=None if tolerance is None else tolerance.absolute,
        rel_tol=None if tolerance is None else tolerance.relative,
        dominated_by=most,
        limits=() if refused else limits,
        notes=(*subject.notes, *_notes(sources), *_doubts(tolerance, found), *movements.unknown(answered)),
        refused=refused,
    )


def _rows(source: Source, side: Side, head: Batch) -> Batch:
    """As many rows as can be afforded, from what the first ones take."""
    if not head.stacked:
        return head
    shown, _ = answers(side, head)
    # Timed the second time: the first call of a model prepares much.
    began = time.perf_counter()
    answers(side, head)
    seconds = time.perf_counter() - began
    held = sum(array.nbytes for array in (*shown.values(), *head.inputs.values()))
    by_time = int(len(head) * SECONDS / max(seconds, 1e-6))
    count = min(ROWS, len(head) * BYTES // max(held, 1), by_time)
    return first_rows(source, count) if count > len(head) else head


def _framework(model: Model, native: Any) -> str:
    """What runs the model; a file or a name may have led to another framework than that which opened it."""
    if native is None or model.framework in ("onnx", "openvino"):
        return model.framework
    try:
        return describe_model(native).framework
    except LikewiseError:
        return model.framework


def _moved(reason: Reason, subject: Subject, labels: frozenset[str]) -> list[Movement] | str:
    """How far the answers move for one reason, or why that cannot be told."""
    try:
        found = [
            movement
            for before, after in reason.pairs(subject)
            for movement in movements.movements(before, after, labels=labels)
        ]
    except LikewiseError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - a module in double may raise anything; the others can still be measured
        return one_line(error)
    return found or "the data has too few rows"


def _notes(sources: Sequence[NoiseSource]) -> list[str]:
    """What no tolerance covers, or covers up."""
    notes = []
    for source in sources:
        for output in source.outputs:
            if output.nonfinite:
                notes.append(
                    f"{source.name}: {output.nonfinite:,} values of {output.output} become or cease to be finite, "
                    "which no tolerance covers"
                )
            if output.jumps:
                notes.append(
                    f"{source.name}: {output.changed:.2%} of the values of {output.output} move, by up to "
                    f"{output.max_abs:.3g}, as when a threshold is crossed: that is not noise, and was left out"
                )
            if output.max_abs is None and output.changed:
                notes.append(f"{source.name}: {output.changed:.2%} of {output.output} change")
            if source.name == "repeat" and output.changed:
                notes.append(f"{output.output} is not the same from call to call: fix its seed, or set it to inference")
    return notes


def _doubts(tolerance: Tolerance | None, found: Mapping[str, Sequence[Movement]]) -> list[str]:
    """A tolerance that covers so much noise lets a broken model pass."""
    largest = max((movement.largest for entries in found.values() for movement in entries), default=0.0)
    if tolerance is None or tolerance.absolute + tolerance.relative * largest <= TOO_MUCH * largest:
        return []
    return [f"the proposal is above {TOO_MUCH:.0%} of the largest answer: find out why the answers move so far first"]


def _tell(progress: Callable[[Progress], None] | None, phase: str) -> None:
    if progress is not None:
        progress(Progress(phase))


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
    proto = edits.editable(describe.read(subject.model.target))
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
