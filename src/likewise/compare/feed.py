"""From the columns of the data to what a model's inputs declare.

The route of every column is decided once, from the first rows and the model's signature, and said
in the report. The cast a declared type forces is made here, explicitly: a value that does not
survive it is counted, because a deployed model meets the same loss and nobody sees it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from likewise.contracts.comparison import Cast, Incident
from likewise.contracts.data import Array, Batch, Columns
from likewise.contracts.models import InputSpec, Signature
from likewise.contracts.values import dataclass
from likewise.data.cells import cast, listed, reading_of
from likewise.data.columns import ArrayColumns, numpy_dtype, own_array
from likewise.data.selection import require_column
from likewise.errors import FeedingError, UsageError, nearest


@dataclass(frozen=True, slots=True)
class Route:
    """Which columns become one input. `split` takes column i of a lone array instead."""

    input: InputSpec
    columns: tuple[str, ...]
    stacked: bool = False
    split: int | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """How the data becomes the inputs of one model.

    `as_it_is` names the inputs whose type the model does not declare and which it takes in the type of the data.
    """

    side: str
    routes: tuple[Route, ...] | None
    table: bool = False
    notes: tuple[str, ...] = ()
    as_it_is: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of the data that this model takes; None if it takes them all."""
        if self.routes is None:
            return None
        return tuple(dict.fromkeys(name for route in self.routes for name in route.columns))

    def guesses(self, batch: Batch) -> tuple[str, ...]:
        """The inputs for which the data would be cast to a type that the model does not declare."""
        found = []
        for route in self.routes or ():
            parts = [batch.inputs[name] for name in route.columns]
            target = self._target(route.input, parts) if route.input.guessed else None
            if target is not None and any(str(part.dtype) != target for part in parts):
                found.append(route.input.name)
        return tuple(found)

    def __call__(self, batch: Batch) -> tuple[Batch, tuple[Cast, ...]]:
        """The batch as the model takes it, and what was lost on the way."""
        # Each model gets memory of its own: what it writes there must reach neither the data nor the other model.
        if self.routes is None:
            return replace(batch, inputs=batch.inputs.copy()), ()
        if self.table and all(route.split is None for route in self.routes):
            taken = batch.inputs.select([route.columns[0] for route in self.routes])
            return replace(batch, inputs=taken.copy()), ()
        inputs: dict[str, Array] = {}
        casts: list[Cast] = []
        for route in self.routes:
            inputs[route.input.name] = self._input(route, batch, casts)
        return Batch(batch.rows, ArrayColumns(inputs), batch.stacked), tuple(casts)

    def _input(self, route: Route, batch: Batch, casts: list[Cast]) -> Array:
        spec = route.input
        if route.stacked:
            parts = [batch.inputs[name] for name in route.columns]
            dtype = self._target(spec, parts) or _common_dtype(parts)
            stacked = np.empty((len(batch), len(parts)), dtype=object if dtype == "string" else numpy_dtype(dtype))
            for index, (name, part) in enumerate(zip(route.columns, parts, strict=True)):
                stacked[:, index] = self._cast(part, dtype, spec.name, name, casts)
            return stacked
        name = route.columns[0]
        array = batch.inputs[name]
        if not hasattr(array, "dtype"):
            # A sequence or an absent optional value of a test case, which is fed as it is.
            return array
        if route.split is not None:
            array, name = array[:, route.split], f"{name}[{route.split}]"
        target = self._target(spec, [array])
        fed = array if target is None else self._cast(array, target, spec.name, name, casts)
        fed = own_array(fed) if np.may_share_memory(fed, array) or fed.dtype.kind == "O" else fed
        return self._shaped(fed, spec) if batch.stacked else fed

    def _target(self, spec: InputSpec, parts: Sequence[Array]) -> str | None:
        """The type to cast to; None where the data is to stay what it is."""
        whole = spec.floating and all(part.dtype.kind in "biu" for part in parts)
        return None if whole or spec.name in self.as_it_is else spec.dtype

    def _cast(self, array: Array, dtype: str, input_name: str, column: str, casts: list[Cast]) -> Array:
        result, loss = cast(array, dtype, column=column, side=self.side)
        if loss is not None:
            casts.append(
                Cast(
                    self.side, input_name, column, loss.source, dtype, array.size, loss.changed, loss.largest, loss.note
                )
            )
        return result

    def _shaped(self, array: Array, spec: InputSpec) -> Array:
        """A column as the (n, 1) or (n,) its input declares; any other shape must fit as it is."""
        if spec.shape is None:
            return array
        if _other_rank(array, spec) is not None:
            array = array.reshape(-1, 1) if array.ndim == 1 else array[:, 0]
        fits = array.ndim == len(spec.shape) and all(
            not isinstance(want, int) or want == have
            for want, have in zip(spec.shape[1:], array.shape[1:], strict=True)
        )
        if not fits:
            raise FeedingError(
                f"input {spec.name!r} of the {self.side} takes shape {_shape_text(spec.shape)}, "
                f"the data has {_shape_text((None, *array.shape[1:]))}",
                remedy="Give data of the shape the model was exported for",
                side=self.side,
            )
        return array


def _other_rank(array: Array, spec: InputSpec) -> str | None:
    """The shape in which a column is fed because its input declares another rank; None if it has the same."""
    rank = None if spec.shape is None else len(spec.shape)
    if array.ndim == 1 and rank == 2:
        return "(n, 1)"
    return "(n,)" if array.ndim == 2 and array.shape[1] == 1 and rank == 1 else None


def _told(planned: Feed, first: Batch) -> Feed:
    """The same, with a note on whatever reaches the model in another form than the data has it."""
    inputs, side = first.inputs, planned.side
    found: dict[str, list[str]] = {}
    coded: list[str] = []
    for route in planned.routes or ():
        name = route.columns[0]
        if planned.table and route.split is None:
            coded += [name] if route.input.coded else []
            continue
        for column in route.columns:
            if how := reading_of(inputs, column):
                found.setdefault(f"read as arrays: {how}", []).append(column)
        direct = first.stacked and not route.stacked and route.split is None
        if direct and (shape := _other_rank(inputs[name], route.input)):
            found.setdefault(f"fed as {shape}, as the inputs declare", []).append(name)
    notes = [f"{side}: {_listed(names)} {'is' if len(names) == 1 else 'are'} {how}" for how, names in found.items()]
    if coded and (bare := _without_categories(inputs, coded)):
        notes.append(f"{side}: values of {_listed(bare)} are coded by the model's own list of categories")
    taken = planned.columns if planned.table else None
    if taken is not None and [name for name in inputs if name in taken] != list(taken) and len(inputs) > 1:
        notes.append(f"{side}: columns are taken by name, in the model's order and not in the data's")
    return replace(planned, notes=(*planned.notes, *notes)) if notes else planned


def _without_categories(inputs: Columns, names: Sequence[str]) -> list[str]:
    """Those of the columns that are not categorical in the data."""
    frame = inputs.select(names).frame()
    kinds = [str(kind).lower() for kind in frame.dtypes]
    return [name for name, kind in zip(names, kinds, strict=True) if "categor" not in kind and "enum" not in kind]


def plan(
    first: Batch,
    signature: Signature,
    *,
    side: str,
    order: Sequence[str] | None = None,
    mapping: Mapping[str, str] | None = None,
) -> Feed:
    """Decide how the data feeds a model, with a note on whatever is not fed as the data has it.

    `order` is the order in which the reference takes its columns, for a model that takes them
    stacked in one input; `mapping` names the column of an input where the user says so.
    """
    return _told(_planned(first, signature, side, order, mapping), first)


def rows_apart(ours: Feed, theirs: Feed) -> Incident | None:
    """Why two models may not be asked the same: one has the rows of an input elsewhere, and of the other nobody says.

    Rows lie first in the data. What declares or is told another axis gets them there, the other one as they are.
    """
    places: dict[str, dict[str, int]] = {ours.side: {}, theirs.side: {}}
    for one, other in ((ours, theirs), (theirs, ours)):
        known = {route.columns: route.input.row_axis for route in other.routes or ()}
        for route in one.routes or ():
            if route.input.row_axis is None and (axis := known.get(route.columns)):
                places[one.side][route.input.name] = axis
    silent = next((side for side, axes in places.items() if axes), None)
    if silent is None:
        return None
    telling = theirs.side if silent == ours.side else ours.side
    axes = places[silent]
    told = _listed(f"{name}:{axis}" for name, axis in axes.items()).replace("'", "").replace(" ", "")
    return Incident(
        "row-axis",
        f"the {telling} has the rows of {_listed(axes)} along axis {min(axes.values())}, and nothing says where the "
        f"{silent} has them: it was given them first, so that the two may not have been asked the same",
        f"Say where the rows lie: --batch-axis {shlex.quote(told)} if there in both models, or "
        f"--{silent}-option batch_axis=0",
        silent,
    )


def require_inputs(mapping: Mapping[str, str], *signatures: Signature) -> None:
    """A usage error for an input to feed that no model has: it would be left out without a word."""
    known = [spec.name for signature in signatures for spec in signature.inputs or ()]
    for name, column in mapping.items():
        if name not in known:
            raise UsageError(
                f"there is no input {name!r} to feed from {column!r}{nearest(name, known)}",
                remedy=f"Inputs: {_listed(dict.fromkeys(known)) or 'none is declared, rows are fed as they are'}",
            )


def _planned(
    first: Batch, signature: Signature, side: str, order: Sequence[str] | None, mapping: Mapping[str, str] | None
) -> Feed:
    specs = signature.inputs
    if specs is None:
        return Feed(side, None)
    available = list(first.inputs)
    named = {spec.name: (mapping or {}).get(spec.name, spec.name) for spec in specs}
    notes: tuple[str, ...] = ()
    # The columns of a table keep their names on the way to the model, so there a name must be the same.
    if signature.underscored:
        notes = _take_names_alike(named, available, side, spelled=_underscored)
    elif not signature.table:
        notes = _take_names_alike(named, available, side, spelled=_spelled)
    specs = _without_absent(specs, named, available)
    named = {spec.name: named[spec.name] for spec in specs}
    for name, column in named.items():
        if name != column:
            require_column(column, available, f"to feed {name!r} from", "The data")
    if all(column in available for column in named.values()):
        routes = tuple(Route(spec, (named[spec.name],)) for spec in specs)
        return Feed(side, routes, signature.table, notes)
    if _numbered(available) and not signature.table and _are_inputs(first, specs):
        return _in_order(specs, available, side)
    if len(available) == 1 and (len(specs) > 1 or signature.table):
        return _split(first, specs, side=side, order=order, table=signature.table)
    if len(specs) == 1 and not signature.table:
        return _gather(first, specs[0], side=side, order=order)
    raise _missing(specs, named, available, side)


def _without_absent(
    specs: tuple[InputSpec, ...], named: Mapping[str, str], available: Sequence[str]
) -> tuple[InputSpec, ...]:
    """The inputs to feed: an optional one that the data does not have is left to its default."""
    # One that the user has named a column for was asked for; and a model that could do without all gets its first.
    wanted = [s for s in specs if not s.optional or named[s.name] != s.name or s.name in available]
    return tuple(wanted) or specs[:1]


def _numbered(names: Sequence[str]) -> bool:
    """Are these the names that numpy gives arrays without names (`arr_0`), or mere numbers?"""
    return all(re.fullmatch(r"(arr_|input_)?\d+", name) for name in names)


def _are_inputs(first: Batch, specs: Sequence[InputSpec]) -> bool:
    """Is there an array for each of several inputs, or for one that is no column, and perhaps targets after them?"""
    if len(first.inputs) == len(specs):
        return len(specs) > 1
    return len(first.inputs) > len(specs) and any(first.inputs[name].ndim > 1 for name in first.inputs)


def _in_order(specs: Sequence[InputSpec], available: Sequence[str], side: str) -> Feed:
    ordered = sorted(available, key=lambda name: int(name.rpartition("_")[2]))
    routes = tuple(Route(spec, (name,)) for spec, name in zip(specs, ordered, strict=False))
    note = f"{side}: arrays without names are taken in order as {_listed(spec.name for spec in specs)}"
    if spare := ordered[len(specs) :]:
        note += f"; {_listed(spare)} {'is' if len(spare) == 1 else 'are'} left out"
    return Feed(side, routes, notes=(note,))


def _take_names_alike(
    named: dict[str, str], available: Sequence[str], side: str, *, spelled: Callable[[str], str]
) -> tuple[str, ...]:
    """Feed an input from the only column whose name an exporter or a framework spells so; what was decided."""
    free = [name for name in available if name not in named.values()]
    notes = []
    for name in [name for name, column in named.items() if name == column and column not in available]:
        alike = [column for column in free if spelled(column) == spelled(name)]
        rivals = [other for other in named if spelled(other) == spelled(name)]
        if len(alike) == len(rivals) == 1:
            named[name] = alike[0]
            notes.append(f"{side}: input {name!r} is fed from column {alike[0]!r}")
    return tuple(notes)


def _spelled(name: str) -> str:
    """A name as exporters write it: what is no letter or digit becomes an underscore, and a leading digit gets one."""
    return re.sub(r"\W", "_", name).lstrip("_")


def _underscored(name: str) -> str:
    return name.replace(" ", "_")


def _gather(first: Batch, spec: InputSpec, *, side: str, order: Sequence[str] | None) -> Feed:
    """One input from columns of other names: the lone array of the data, or the columns side by side."""
    available = list(first.inputs)
    whole = len(spec.shape) == 1 if spec.shape is not None else not spec.stackable
    if len(available) == 1 and (whole or not first.stacked or first.inputs[available[0]].ndim > 1):
        note = f"{side}: input {spec.name!r} is fed from {available[0]!r}, the only column of the data"
        return Feed(side, (Route(spec, (available[0],)),), notes=(note,))
    rank = len(spec.shape) if spec.shape is not None else 2 if spec.stackable else None
    if rank is None or rank == 1:
        raise FeedingError(
            f"the {side} takes one column, and the data has {len(available)}: {_listed(available)}",
            remedy=f"Name it with --feed {shlex.quote(f'{spec.name}=COLUMN')}, or leave the others out with --drop",
            side=side,
        )
    columns = list(order) if order and all(name in available for name in order) else available
    width = spec.shape[1] if spec.shape is not None and rank == 2 else None
    flat = all(first.inputs[name].ndim == 1 for name in columns)
    if rank != 2 or not flat or (isinstance(width, int) and width != len(columns)):
        wide = next((name for name in available if first.inputs[name].ndim > 1), "COLUMN")
        whose = "the reference takes" if columns is not available else "the data has"
        raise FeedingError(
            f"input {spec.name!r} of the {side} takes {_shape_text(spec.shape) if spec.shape else 'one array'}, "
            f"{whose} {len(columns)} columns: {_listed(columns)}",
            remedy="Leave out columns that are not features with --drop, or say which one it is: "
            f"--feed {shlex.quote(f'{spec.name}={wide}')}",
            side=side,
        )
    where = "reference's" if columns is not available else "data's"
    note = (
        f"{side}: input {spec.name!r} is {len(columns)} columns side by side, in the {where} order: {_listed(columns)}"
    )
    return Feed(side, (Route(spec, tuple(columns), stacked=True),), notes=(note,))


def _split(first: Batch, specs: Sequence[InputSpec], *, side: str, order: Sequence[str] | None, table: bool) -> Feed:
    """One lone 2-D array for a model that takes a column an input: by position, and said so."""
    name = next(iter(first.inputs))
    array = first.inputs[name]
    if array.ndim != 2 or array.shape[1] != len(specs):
        raise _missing(specs, {spec.name: spec.name for spec in specs}, [name], side)
    names = [spec.name for spec in specs]
    positions = list(order) if order and sorted(order) == sorted(names) else names
    routes = tuple(Route(spec, (name,), split=positions.index(spec.name)) for spec in specs)
    note = f"{side}: the columns of {name!r} are taken by position as {_listed(positions)}"
    return Feed(side, routes, table, (note,))


def _missing(specs: Sequence[InputSpec], named: Mapping[str, str], available: Sequence[str], side: str) -> FeedingError:
    missing = [spec.name for spec in specs if named[spec.name] not in available]
    extra = [name for name in available if name not in named.values()]
    guesses = "".join(nearest(name, extra) for name in missing[:1])
    return FeedingError(
        f"the {side} takes {_listed(missing)}, which the data does not have{guesses}",
        remedy=f"It takes: {_listed(named)}. The data has: {_listed(available)}. "
        f"Rename the column, or use --feed {shlex.quote(f'{missing[0]}=COLUMN')}",
        side=side,
    )


def _common_dtype(parts: Sequence[Array]) -> str:
    if all(part.dtype.kind in "biuf" for part in parts):
        return str(np.result_type(*parts))
    return "object"


def _listed(names: Iterable[str]) -> str:
    return listed([repr(name) for name in names], limit=12)


def _shape_text(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("n" if dim is None else str(dim) for dim in shape) + ("," if len(shape) == 1 else "") + ")"
