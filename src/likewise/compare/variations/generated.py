"""Rows where there are none: from what open models say about their inputs to the columns of generated rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from typing import Any

from likewise.compare import feed as feeding
from likewise.compare.call import Side, answers
from likewise.contracts.comparison import FRACTIONS_UNTRIED
from likewise.contracts.data import Batch
from likewise.contracts.models import InputSpec, Model, Runner, Shape, Signature
from likewise.contracts.values import dataclass
from likewise.data.random_values import (
    About,
    Between,
    Cells,
    Clue,
    Clues,
    Column,
    OneOf,
    Padded,
    Part,
    Places,
    WithGaps,
    Words,
    merged,
    part_of,
)
from likewise.data.readers.generated import GeneratedSource, rows_wanted
from likewise.errors import DataError, LikewiseError
from likewise.models.onnx import guess as onnx_guess
from likewise.models.sklearn import inside as sklearn_inside
from likewise.models.torch import inside as torch_inside
from likewise.registry import open_model

ALTERNATIVES = (32, 8, 64, 128, 224)
"""Sizes that are tried one after the other where a model refuses the first."""


@dataclass(slots=True)
class Sizes:
    """Sizes for the axes that a model leaves open: one for each symbol, or `everywhere` the same."""

    everywhere: int | None = None
    free: dict[str, int] = field(default_factory=dict)

    def of_row(self, shape: Shape) -> tuple[int, ...]:
        """The shape of one row of an input; its first axis is that of the rows."""
        image = onnx_guess.is_image(shape)
        return tuple(
            dim if isinstance(dim, int) else self._of(dim, axis, len(shape), image=image)
            for axis, dim in enumerate(shape)
            if axis
        )

    def _of(self, symbol: str | None, axis: int, rank: int, *, image: bool) -> int:
        # An axis without a name is the same as that of other inputs with as many axes.
        key = symbol or f"axis {axis} of {rank}"
        return self.free.setdefault(key, self.everywhere or (torch_inside.IMAGE if image else torch_inside.SEQUENCE))


READERS: tuple[Callable[[Any, Signature], Clues | None], ...] = (
    onnx_guess.clues_of,
    sklearn_inside.clues_of,
    torch_inside.clues_of,
)
MOST_PARTS = 4_096
"""Columns of one input that are drawn each in its own way; of more all are drawn alike."""

TRIAL_ROWS = 2

ROLES: tuple[tuple[str, Any, str], ...] = (
    (r"padding_mask$", Between(0, 0, whole=True), "a mask of padding, by its name: nothing is padded"),
    (r"mask$", Padded(), "a mask, by its name"),
    (r"(position_ids|positions|pos_ids)$", Places(), "positions, by their name"),
    (r"(token_type_ids|segment_ids)$", Between(0, 1, whole=True), "one of two segments, by its name"),
)
"""What the name of an input says about its values."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the columns have in common: those of a `table`, `several`, and the shape of a `sequence` of ids."""

    table: bool
    several: bool
    sequence: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A model, what it declares, and what it says about its inputs."""

    side: str
    model: Model
    runner: Runner
    clues: Clues

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        specs = self.runner.signature.inputs or ()
        return tuple(spec for spec in specs if not spec.optional) or specs[:1]


@dataclass(frozen=True, slots=True)
class Planned:
    """The columns of rows that all models take, and what the models declare, by side."""

    columns: tuple[Column, ...]
    signatures: Mapping[str, Signature]
    table: bool

    def source(self, *, asked: int | None, seed: int) -> GeneratedSource:
        """So many rows of these columns; as many as is usual where no number is asked for."""
        rows = rows_wanted(self.columns, asked=asked)
        return GeneratedSource(self.columns, seed, rows, self.table, stop=rows)


def planned_for(
    models: Mapping[str, Model],
    *,
    feed: Mapping[str, str] | None = None,
    opened: Callable[[str], Runner] | None = None,
) -> Planned:
    """What rows the models take, by side; the first that declares its inputs names the columns.

    `opened` gives the open model of a side; without it models are opened for this alone.
    """
    with ExitStack() as stack:

        def opened_here(side: str) -> Runner:
            return stack.enter_context(open_model(models[side]))

        find = opened or opened_here
        return _planned([_telling(side, model, find(side)) for side, model in models.items()], feed or {})


def _planned(opened: Sequence[Opened], feed: Mapping[str, str]) -> Planned:
    telling = [one for one in opened if one.inputs]
    if not telling:
        names = " and ".join(one.model.name for one in opened)
        raise DataError(
            f"rows cannot be generated: nothing says what {names} takes",
            remedy="Give data, or compare with a model that declares its inputs, such as an ONNX file",
        )
    columns = _columns(telling, feed, sizes := Sizes())
    # A function that is asked beside a graph with an input a column gets the DataFrame that users have.
    table = telling[0].runner.signature.table or (len(columns) > 1 and not any(c.shape for c in columns))
    for size in ALTERNATIVES if sizes.free and not _taken(opened, columns, feed, table=table) else ():
        tried = _columns(telling, feed, Sizes(everywhere=size))
        if _taken(opened, tried, feed, table=table):
            columns = tried
            break
    return Planned(columns, {one.side: one.runner.signature for one in opened}, table)


def _telling(side: str, model: Model, runner: Runner) -> Opened:
    found = (read(runner.native, runner.signature) for read in READERS)
    return Opened(side, model, runner, next((clues for clues in found if clues is not None), Clues()))


def _columns(opened: Sequence[Opened], feed: Mapping[str, str], sizes: Sizes) -> tuple[Column, ...]:
    lead = opened[0]
    names = [feed.get(spec.name, spec.name) for spec in lead.inputs]
    told = [_under_names(one, names, feed) for one in opened]
    clues = merged([found for found, _ in told], [{name: name for name in names}] * len(told))
    others = {one.side: specs for one, (_, specs) in zip(opened, told, strict=True)}
    form = Form(lead.runner.signature.table, len(names) > 1, clues.sequence)
    return tuple(
        _column(name, {side: specs[name] for side, specs in others.items() if name in specs}, clues, sizes, form)
        for name in names
    )


def _under_names(one: Opened, names: Sequence[str], feed: Mapping[str, str]) -> tuple[Clues, dict[str, InputSpec]]:
    """What a model says, under the names of the columns: its inputs by name, or by position where it stacks them."""
    specs = one.inputs
    renamed = {spec.name: feed.get(spec.name, spec.name) for spec in specs}
    alike = {re.sub(r"\W", "_", name).lstrip("_"): name for name in names}
    for spec in specs:
        if renamed[spec.name] not in names:
            renamed[spec.name] = alike.get(re.sub(r"\W", "_", spec.name).lstrip("_"), spec.name)
    if all(renamed[spec.name] in names for spec in specs):
        clues = merged([one.clues], [renamed])
        return clues, {renamed[spec.name]: spec for spec in specs}
    if len(specs) == len(names) == 1:
        return merged([one.clues], [{specs[0].name: names[0]}]), {names[0]: specs[0]}
    moved = Clues()
    for (name, index), found in one.clues.found.items():
        place = _place(name, index, specs, names)
        if place is not None:
            moved.found.setdefault(place, []).extend(found)
    typed = {name: InputSpec(name, specs[0].dtype) for name in names} if len(specs) == 1 else {}
    return moved, typed


def _place(
    name: str, index: int | None, specs: Sequence[InputSpec], names: Sequence[str]
) -> tuple[str, int | None] | None:
    """Where the clue on an input belongs: one model stacks in an input what the other takes one by one."""
    if len(specs) == 1 and len(names) > 1:
        return (names[index], None) if index is not None and index < len(names) else None
    if len(names) == 1 and len(specs) > 1 and index in (None, 0):
        return names[0], [spec.name for spec in specs].index(name)
    return None


def _column(name: str, declared: Mapping[str, InputSpec], clues: Clues, sizes: Sizes, form: Form) -> Column:
    """One column: its type and shape as declared by each side, its values by the clues."""
    specs = list(declared.values())
    dtype = _dtype(name, specs, clues)
    shape = _shape(name, specs, clues, sizes, form)
    suggested = _suggested(name, (None, *shape), dtype)
    if len(shape) == 1 and clues.columns(name) > 0 and shape[0] <= MOST_PARTS:
        said = [[*suggested, *clues.of(name, index)] for index in range(shape[0])]
    else:
        said = [[*suggested, *clues.of(name)]]
    parts = [part_of(found, dtype=dtype) for found in said]
    if _whole_by_candidate(declared, dtype):
        parts = [
            part if _says_whole(part, own) else _untried(part, dtype) for part, own in zip(parts, said, strict=True)
        ]
    return Column(name, dtype, shape, tuple(_fitting(part, dtype) for part in parts))


def _shape(name: str, specs: Sequence[InputSpec], clues: Clues, sizes: Sizes, form: Form) -> tuple[int, ...]:
    """The shape of one row: declared by a model, concluded from its layers, or that of what a mask is for."""
    declared = next((spec.shape for spec in specs if spec.shape is not None), None)
    if declared is not None:
        if not declared:
            raise DataError(f"input {name!r} is a single number, without rows", remedy="Give data for this model")
        shape = sizes.of_row(declared)
        return () if form.several and shape == (1,) else shape
    if name in clues.shapes:
        return clues.shapes[name]
    if form.sequence is not None and _role(name):
        return form.sequence
    if form.table:
        return ()
    raise DataError(
        f"rows cannot be generated: nothing says what shape {name!r} has",
        remedy="Give data, or compare with a model that declares its shapes, such as an ONNX file",
    )


def _role(name: str) -> list[Clue]:
    """What the name of an input says about its values; the first that applies."""
    return [Clue(About.ROLE, (drawn,), why) for pattern, drawn, why in ROLES if re.search(pattern, name.lower())][:1]


def _suggested(name: str, shape: tuple[int | None, ...], dtype: str) -> list[Clue]:
    """What the name and the form of an input say, whatever the models do with it."""
    if dtype in ("object", "string"):
        return []
    found = _role(name)
    if (drawn := onnx_guess.pixels(shape, dtype)) is not None:
        found.append(Clue(About.FORM, (drawn,), "an image, by its shape; nothing says how it is scaled", sure=False))
    return found


def _dtype(name: str, specs: Sequence[InputSpec], clues: Clues) -> str:
    """The type that a model declares; else what the clues say, for columns of tables are often not declared."""
    found = [clue for place, listed in clues.found.items() if place[0] == name for clue in listed]
    texts = [clue for clue in found if clue.about is About.WORDS or _of_text(clue)]
    if texts:
        return "object"
    stated = specs[0] if specs else InputSpec(name)
    if stated.floating:
        # A module takes whole numbers as they come; what it was exported with is what it is fed.
        stated = next((spec for spec in specs if spec.dtype is not None and not spec.floating), stated)
    whole = any(clue.about is About.IDS for clue in found) or (stated.floating and bool(_role(name)))
    if stated.dtype is not None and not (stated.floating and whole):
        return stated.dtype if stated.dtype != "string" else "object"
    if whole:
        return "int64"
    gaps = any(clue.about is About.GAPS for clue in found)
    categories = [clue for clue in found if clue.about is About.CATEGORIES]
    if categories and not gaps and all(isinstance(value, int) for clue in categories for value in clue.told):
        return "int64"
    other = next((spec.dtype for spec in specs if spec.dtype is not None), None)
    if other is None or other.startswith("float") or (gaps and other.startswith("int")):
        return "float64"
    return "object" if other == "string" else other


def _of_text(clue: Clue) -> bool:
    drawn = clue.told[0] if clue.about is About.FORM and clue.told else None
    if isinstance(drawn, OneOf | Words):
        return True
    return clue.about in (About.CATEGORIES, About.FILL) and any(isinstance(value, str) for value in clue.told)


def _whole_by_candidate(declared: Mapping[str, InputSpec], dtype: str) -> bool:
    """Is the column of whole numbers because of the type that the candidate alone declares?"""
    reference = declared.get("reference")
    if "candidate" not in declared or not dtype.startswith(("int", "uint")):
        return False
    return reference is None or reference.dtype is None or reference.floating


def _says_whole(part: Part, clues: Sequence[Clue]) -> bool:
    """Do the models say by more than a type that the values are whole numbers?"""
    values = part.values.values if isinstance(part.values, WithGaps) else part.values
    if isinstance(values, Cells):
        return values.whole
    return any(clue.about in (About.ROLE, About.CATEGORIES, About.IDS) for clue in clues)


def _untried(part: Part, dtype: str) -> Part:
    why = f"{part.why}; whole numbers, because the candidate takes {dtype}: {FRACTIONS_UNTRIED}"
    return Part(part.values, why, known=False)


def _fitting(part: Part, dtype: str) -> Part:
    """Whole numbers cannot be missing."""
    if isinstance(part.values, WithGaps) and dtype.startswith(("int", "uint", "bool")):
        return Part(part.values.values, part.why, part.known)
    return part


def _taken(opened: Sequence[Opened], columns: tuple[Column, ...], feed: Mapping[str, str], *, table: bool) -> bool:
    """Do the models answer rows of these sizes? What one refuses for another reason is told by the check itself."""
    first: Batch = next(GeneratedSource(columns, 0, TRIAL_ROWS, table, stop=TRIAL_ROWS).batches(TRIAL_ROWS))
    try:
        for one in opened:
            fed = feeding.plan(first, one.runner.signature, side=one.side, mapping=feed)
            answers(Side(one.side, one.model.name, one.runner, fed), first)
    except LikewiseError:
        return False
    return True
