"""The noise of one model: how far its answers move by themselves, and the tolerances that this asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from likewise.compare import pair
from likewise.compare.call import Side, answers, open_side
from likewise.contracts.comparison import Progress, Tolerance
from likewise.contracts.data import Batch, Source
from likewise.contracts.models import BatchAxis, Kind, Model
from likewise.data import selection as selecting
from likewise.data.rows import first_rows
from likewise.errors import LikewiseError, ModelError, UsageError, one_line
from likewise.registry import adapter, describe_model, open_source
from likewise.report.noise import NoiseResult, NoiseSource
from likewise.tasks.noise import movements
from likewise.tasks.noise.movements import Movement
from likewise.tasks.noise.reasons import NAME, REASONS, Reason, Subject

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

    It is asked the same again, in other batches, with other numbers of threads, at other levels of
    optimisation, in the other precision and with inputs rounded to float32, on the first rows of the data.
    `drop`, `samples`, `row_id` and so on select columns and rows.
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
                    f"{output.max_abs:.3g}, as when a threshold is crossed: that is no noise, and was left out"
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
