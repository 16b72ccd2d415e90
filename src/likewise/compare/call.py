"""Calling an open model on a batch: fed, cut to the call size, checked for one answer per row."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.differences import LARGEST, is_longer
from likewise.compare.feed import Feed, require_inputs
from likewise.contracts.comparison import Cast, Incident, Plan
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, Runner
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns
from likewise.data.selection import UNREADABLE
from likewise.errors import DataError, LikewiseError, ModelError, RowCountError, foreign
from likewise.models.remote import Apart
from likewise.registry import adapter, open_model

REFUSED = {
    "reference": "Both models have to answer every row: mend or leave out those it refuses",
    "candidate": "Both models have to answer every row: mend or leave out those it refuses, or if it answers none, "
    "make it another way or serve the reference itself",
}
"""The way out where a model raised an error of its own, which says what it did not like."""


def recorded(plan: Plan, side: str) -> bool:
    """Are there only recorded answers of a side, and none to what was not recorded?"""
    model = plan.reference if side == "reference" else plan.candidate
    return adapter(model.framework).answers_only


class SingleAnswerError(RowCountError):
    """A reference gave one number for all rows, and nothing else: it has none to lose."""

    code = "single-answer"


class BesideRowsError(RowCountError):
    """Beside answers for rows, a model gave one number for a whole call in some `outputs`, as a loss is."""

    outputs: frozenset[str] = frozenset()


_E = TypeVar("_E", bound=RowCountError)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models, open and ready to be fed; its `rowless` outputs are one number for a whole call."""

    name: str
    model: str
    runner: Runner
    feed: Feed
    outputs: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()
    rowless: frozenset[str] = frozenset()

    @property
    def fixed_batch(self) -> int | None:
        return self.runner.signature.batch


def incident(error: LikewiseError, code: str = "") -> Incident:
    """What an error kept from being compared, under its own code or another."""
    return Incident(code or error.code, error.message, error.remedy, error.side)


@contextmanager
def open_side(name: str, model: Model, first: Batch, mapping: Mapping[str, str]) -> Iterator[Side]:
    """One model alone, open and ready to be fed rows like the first ones."""
    with open_model(model) as runner:
        require_inputs(mapping, runner.signature)
        side = Side(name, model.name, runner, feeding.plan(first, runner.signature, side=name, mapping=mapping))
        yield settled(side, first)[0]


def settled(side: Side, first: Batch, size: int | None = None) -> tuple[Side, dict[str, Array] | None]:
    """The side, given the data in its own types; what the model refuses so is cast, and no more than that.

    Only types that the model does not declare are in question. What it refuses is found by asking: its answers are
    handed on, where there are any.
    """
    guesses = side.feed.guesses(first)
    if not guesses:
        return side, None
    as_it_is = replace(side, feed=replace(side.feed, as_it_is=frozenset(guesses)))
    taken, found = _asked(as_it_is, first, size)
    if taken:
        return as_it_is, found
    if len(guesses) > 1:
        taken, found = _asked(side, first, size)
        for name in guesses if taken else ():
            fewer = replace(side, feed=replace(side.feed, as_it_is=side.feed.as_it_is | {name}))
            also, given = _asked(fewer, first, size)
            side, found = (fewer, given) if also else (side, found)
    return side, found


def _asked(side: Side, first: Batch, size: int | None) -> tuple[bool, dict[str, Array] | None]:
    """Does the model answer these rows, be it not row by row? And what it answers."""
    try:
        return True, answers(side, first, size)[0]
    except RowCountError:
        return True, None
    except LikewiseError:
        return False, None


def answers(side: Side, batch: Batch, size: int | None = None) -> tuple[dict[str, Array], tuple[Cast, ...]]:
    """The model's answers to a batch, called with at most `size` rows at a time."""
    with foreign(DataError, f"{rows_text(batch)} cannot be read", remedy=UNREADABLE, side=side.name):
        fed, casts = side.feed(batch)
    if not batch.stacked:
        return {name: array[None] for name, array in _call(side, fed).items()}, casts
    size = side.fixed_batch or size or max(len(batch), 1)
    parts = [
        _answer_rows(side, fed if size >= len(fed) else fed.slice(start, start + size))
        for start in range(0, max(len(batch), 1), size)
    ]
    return joined(side, parts), casts


def answered(side: Side, first: Batch, size: int | None = None) -> tuple[Side, dict[str, Array]]:
    """The first answers; where some of them are one number beside answers for rows, it stands for all of its call."""
    try:
        return side, answers(side, first, size)[0]
    except BesideRowsError as error:
        side = replace(side, rowless=error.outputs)
        return side, answers(side, first, size)[0]


def timed(side: Side, batch: Batch, size: int | None = None) -> tuple[dict[str, Array], tuple[Cast, ...], float]:
    """The same, and the seconds it took: where others keep the machine busy, those of the processor."""
    began, busy = time.perf_counter(), time.process_time()
    found, casts = answers(side, batch, size)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    # What another process does is not counted as ours.
    return found, casts, seconds if isinstance(side.runner, Apart) else min(seconds, busy)


def _answer_rows(side: Side, fed: Batch) -> Tensors:
    wanted = side.fixed_batch
    tensors = _call(side, _padded(side, fed, wanted) if wanted is not None and len(fed) < wanted else fed)
    expected = wanted or len(fed)
    single = frozenset(name for name, array in tensors.items() if array.ndim == 0) - side.ignored
    if single and len(single) == len(tensors):
        alone = SingleAnswerError if side.name == "reference" else RowCountError
        raise uncounted(side, min(single), (), expected, alone)
    if single - side.rowless:
        error = uncounted(side, min(single - side.rowless), (), expected, BesideRowsError)
        error.outputs = single
        raise error
    tensors = {name: _counted(side, name, array, expected) for name, array in tensors.items()}
    return {name: array[: len(fed)] for name, array in tensors.items()} if wanted else tensors


def _counted(side: Side, name: str, array: Array, expected: int) -> Array:
    """The answers, if there is one a row; of an output that is left out, at least its name."""
    if array.ndim == 0 and name in side.rowless:
        return np.broadcast_to(array, (expected,))
    if array.ndim > 0 and len(array) == expected and name not in side.rowless:
        return array
    if name in side.ignored:
        return np.zeros((expected, 0))
    raise uncounted(side, name, array.shape, expected, RowCountError)


def uncounted(side: Side, output: str, shape: tuple[int, ...], rows: int, kind: type[_E]) -> _E:
    """Not one answer a row."""
    got = f"{shape[0]:,}" if shape else "a single number"
    return kind(
        f"the {side.name} ({side.model}) was given {rows:,} row{'s' * (rows != 1)} and answered {got} in output "
        f"{output!r}, of shape {shape}",
        remedy="Every output needs one answer per row along its first axis; leave it out with "
        f"--ignore {shlex.quote(output)}, or use --batch-axis {shlex.quote(f'{output}:none')}, or none "
        "where every call is one sample",
        side=side.name,
    )


def _call(side: Side, fed: Batch) -> Tensors:
    try:
        with foreign(ModelError, "it raised an error", remedy="Look at the rows, and at the model by itself"):
            given = side.runner.run(fed, outputs=side.outputs)
        for name, array in given.items():
            if name not in side.ignored:
                _require_values(name, array)
        # What a model keeps and writes to again in its next call is not ours.
        return {name: array if array.flags.owndata else array.copy() for name, array in given.items()}
    except SystemExit as stop:
        raise ModelError(
            f"the {side.name} ({side.model}) tried to end the process on {rows_text(fed)}: sys.exit({stop.code!r})",
            side=side.name,
        ) from stop
    except LikewiseError as error:
        error.side = side.name
        said = error.message.removeprefix(f"{side.model} did not answer: ")
        error.message = f"the {side.name} ({side.model}) failed on {rows_text(fed)}: {said}"
        error.remedy = error.remedy or REFUSED.get(side.name, "")
        raise


def _require_values(name: str, array: Array) -> None:
    """Numbers, text and dates are answers; a thing that equals only itself, or that holds other things, is none."""
    if array.dtype.kind != "O":
        if not array.dtype.itemsize:
            raise ModelError(f"output {name!r} holds values without a byte", remedy="Answer with numbers or text")
        if is_longer(array) and (np.abs(array[np.isfinite(array)]) > LARGEST).any():
            raise ModelError(
                f"output {name!r} holds numbers beyond {LARGEST:g}, which are not compared",
                remedy="Answer with numbers that a double holds, or with text",
            )
        return
    plain: tuple[object, object] = object.__eq__, object.__hash__
    for kind in set(map(type, array.ravel().tolist())) - {type(None)}:
        if not array.ndim or kind.__hash__ is None or (kind.__eq__, kind.__hash__) == plain:
            raise ModelError(
                f"output {name!r} holds objects of type {kind.__name__}, which cannot be compared as values",
                remedy=f"Leave it out with --ignore {shlex.quote(name)}, or answer with numbers or text, as many for "
                "every row; what has no rows is compared where every call is one sample: --batch-axis none",
            )


def _padded(side: Side, fed: Batch, size: int) -> Batch:
    """The last, short batch of a model that takes one batch size only: its last row again and again."""
    try:
        inputs = {
            name: np.concatenate([array, np.repeat(array[-1:], size - len(fed), axis=0)])
            for name, array in fed.inputs.items()
        }
    except (MemoryError, ValueError) as error:  # numpy's, of sizes that no array has
        raise ModelError(
            f"the {side.name} ({side.model}) takes {size:,} rows in every call, for which there is no memory",
            remedy="Export it for another batch size, or for any",
            side=side.name,
        ) from error
    return Batch(fed.rows, ArrayColumns(inputs))


def joined(side: Side, parts: Sequence[Tensors]) -> dict[str, Array]:
    """The answers of several calls as one, if they are of one kind."""
    if len(parts) == 1:
        return dict(parts[0])
    names = list(parts[0])
    if any(list(part) != names for part in parts):
        raise ModelError(f"the {side.name} ({side.model}) gives different outputs from call to call", side=side.name)
    together = {}
    for name in names:
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) > 1:
            raise ModelError(
                f"output {name!r} of the {side.name} ({side.model}) has a different shape from call to call: "
                f"{sorted(map(str, shapes))}",
                remedy="Where a call answers as many as it finds, give each as a sample of its own: a folder of .npz "
                "files, in Python a list of dicts",
                side=side.name,
            )
        together[name] = np.concatenate([part[name] for part in parts])
    return together


def rows_text(batch: Batch) -> str:
    """The rows of a batch as a person would name them."""
    if not len(batch):
        return "no rows"
    first, last = batch.rows.name(0), batch.rows.name(len(batch) - 1)
    return f"row {first}" if len(batch) == 1 else f"rows {first} to {last}"


def refused_alone(side: Side, first: Batch) -> int | None:
    """The first row that a model does not answer by itself either; none if only all of them together are refused."""
    for row in range(len(first)):
        try:
            answers(side, first.slice(row, row + 1))
        except LikewiseError:
            return row
    return None


def merged_casts(casts: Sequence[Cast]) -> tuple[Cast, ...]:
    """The casts of many batches, one entry a column."""
    totals: dict[tuple[str, str, str, str], Cast] = {}
    for cast in casts:
        key = (cast.side, cast.input, cast.column, cast.source_dtype)
        before = totals.get(key)
        if before is not None:
            cast = replace(
                before,
                values=before.values + cast.values,
                changed=before.changed + cast.changed,
                largest_relative_change=max(before.largest_relative_change, cast.largest_relative_change),
                note=max(before.note, cast.note),
            )
        totals[key] = cast
    return tuple(totals[key] for key in sorted(totals))


def columns_used(feeds: Sequence[Feed], available: Mapping[str, Array]) -> tuple[str, ...]:
    """The columns of the data that no model takes."""
    used: set[str] = set()
    for feed in feeds:
        if feed.columns is None:
            return ()
        used.update(feed.columns)
    return tuple(name for name in available if name not in used)
