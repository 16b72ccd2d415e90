"""Inputs in another form than the candidate wants: axes, channels or scale of pictures; columns in other order.

The order of columns is read from the answers of both models to made-up rows. With one and the same value in every
feature the order does not matter: there both models must agree, or the order is not what is wrong. From such a row,
one feature at a time is set to another value. The reference's answer to a change in feature j is then the candidate's
answer to a change in the feature that it takes for j. Features that are told apart are given values of their own in
the next round, so that the others are seen in more surroundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array, Batch, RowIds
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, edited, listed, names_of
from likewise.explain.case import Case, Explained, Fix, Remedy, probe, rows_agreeing
from likewise.explain.experiment import Change, Effect, Trial, first
from likewise.explain.features import declared_types, fields_of
from likewise.models.onnx import edits, rewrites

SURE = 0.9
"""The right form makes nearly every row agree; a wrong one mostly breaks all of them."""

FEW, FEWEST = 24, 4
"""Failing rows, and others, that a form is tried on."""

ENOUGH_NUMBERS = 1_000_000
"""Of large pictures fewer are tried, so that there are not many more numbers than this."""

FLAT = 16
"""Columns from which on a flat input may be a picture."""

MOST_PAIRS = 120
"""Pairs of columns that are exchanged one after the other where the reference cannot be asked."""

MOST_NAMED = 12
MOST_TOLD = 4
"""Columns of which it is told, one by one, what each is taken for."""

ROUNDS = 6
SURROUNDINGS = 24
"""Made-up rows from which features are changed, in each round."""

MOST_ROWS = 8_000
"""Made-up rows that one call may have."""

BASES_THAT_AGREE = 0.8
"""Of rows with one value everywhere; rounding may set a few apart."""

SAME_ANSWER = 3.0
"""Tolerances that two changes of an answer may be apart: each answer may be off by one, and so may its base."""

RARELY = 0.02
"""Of the answers to a change of the same feature so many may be further apart."""

SCALES = {
    "0 to 255 instead of 0 to 1 (times 255)": (255.0, 0.0),
    "0 to 1 instead of 0 to 255 (divided by 255)": (1 / 255, 0.0),
    "-1 to 1 instead of 0 to 1": (2.0, -1.0),
    "0 to 1 instead of -1 to 1": (0.5, 0.5),
    "-1 to 1 instead of 0 to 255": (1 / 127.5, -1.0),
    "0 to 255 instead of -1 to 1": (127.5, 127.5),
    "black and white exchanged (1 minus it)": (-1.0, 1.0),
    "black and white exchanged (255 minus it)": (-1.0, 255.0),
}
"""The same picture in another range: a factor, and what is added then."""

MASK = (0, 1)
"""What has no more values than this is not a picture in another range: it says what counts."""

STATISTICS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ImageNet's mean and deviation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "a mean of 0.5 and a deviation of 0.5": ((0.5,), (0.5,)),
    "CLIP's mean and deviation": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "MNIST's mean and deviation": ((0.1307,), (0.3081,)),
    "the means that Caffe subtracts": ((123.68, 116.779, 103.939), (1.0,)),
}
"""What trained vision models want taken out of their pictures."""

Form = tuple[str, Callable[[Array], Array]]
"""What a form is called, and an input, rows along axis 0, brought into it."""

Order = tuple[str, list[Field]]
"""What an order is called, and for each feature the one whose values the candidate is given in its place."""


@probe("input-layout", when=lambda case: case.required.batch.stacked)
def image_layout(case: Case) -> Explained | None:
    """Hand the candidate its inputs in other forms, where they may be pictures or signals, also laid out flat."""
    numbers = {name: array for name, array in case.fed("candidate").items() if array.dtype.kind in "iuf"}
    pictures = [name for name, x in numbers.items() if x.ndim > 2 or (x.ndim == 2 and x.shape[1] >= FLAT)]
    return next((found for name in pictures if (found := _form(case, name)) is not None), None)


def _form(case: Case, name: str) -> Explained | None:
    """The form of one input in which the candidate agrees."""
    values = case.fed("candidate")[name]
    shape = (1, *values.shape[1:])
    rows = int(np.clip(ENOUGH_NUMBERS // max(int(np.prod(shape)), 1), FEWEST, FEW))
    found = first(
        case,
        _forms(shape, ranges=len(np.unique(values)) > len(MASK)),
        lambda trial, form: trial.run(Change(fed={name: partial(_brought_into, form)})),
        enough=SURE,
        trial=Trial.some(case, rows, rows),
    )
    if found is None or _fits_any_rows(case, name, found[0]):
        return None
    (told, way), effect = found
    proto, nodes = case.graph(), rewrites.rearranged(way, shape[1:])
    fixes: tuple[Fix, ...] = ()
    if proto is not None and nodes is not None:
        fixes = (Fix(f"nodes put in front of {name!r}: {told}", lambda: edits.in_front(proto, name, nodes)),)
    return effect.explained(
        "input-layout",
        Place(name, (told,), tensors=(name,)),
        f"given {name} in another form ({told}), the candidate agrees with the reference on {effect.told}",
        f"Hand {name} to the candidate in that form, or put the step into the model before it is exported",
        simplicity=3,
        fixes=fixes,
    )


def _fits_any_rows(case: Case, name: str, form: Form) -> bool:
    """Do rows agree as well that are given the input of others in this form? Then it tells nothing of theirs."""
    effect = Trial.some(case).run(Change(fed={name: lambda array: _brought_into(form, np.roll(array, 1, axis=0))}))
    return effect is not None and effect.explains and effect.share >= SURE


def _brought_into(form: Form, array: Array) -> Array:
    """The change made in float64, in the type that the input has."""
    with np.errstate(all="ignore"):
        changed = form[1](array.astype(np.float64))
        changed = changed if array.dtype.kind == "f" else np.round(changed)
        return np.ascontiguousarray(changed.astype(array.dtype))


def _forms(shape: Sequence[int], *, ranges: bool) -> Iterator[Form]:
    """One change after the other, then orders together with the others; `ranges`: the values may be in another one."""
    orders = list(_orders_of_axes(shape))
    values: list[Form] = []
    if ranges:
        values = [(told, partial(_affine, factor=f, offset=o)) for told, (f, o) in SCALES.items()]
        values += _normalisations(shape) if len(shape) > 2 else ()
    yield from (*orders, *values)
    for told, order in orders[:4]:
        for also, change in values:
            yield f"{told}, and {also}", partial(_both, first=order, then=change)
            yield f"{also}, and then {told}", partial(_both, first=change, then=order)


def _both(array: Array, *, first: Callable[[Array], Array], then: Callable[[Array], Array]) -> Array:
    return then(first(array))


def _affine(x: Array, *, factor: Array | float, offset: Array | float) -> Array:
    result: Array = x * factor + offset
    return result


def _orders_of_axes(shape: Sequence[int]) -> Iterator[Form]:
    """Channels or axes in another order, for inputs of this shape."""
    rank = len(shape)
    for axis in (1, rank - 1):
        if rank >= 3 and shape[axis] in (3, 4):
            order = [2, 1, 0, 3][: shape[axis]]
            yield "channels in reverse (BGR instead of RGB)", partial(np.take, indices=order, axis=axis)
    moves: list[tuple[str, tuple[int, ...]]] = []
    if rank == 4:
        moves = [
            ("channels last (NHWC) instead of first", (0, 2, 3, 1)),
            ("channels first (NCHW) instead of last", (0, 3, 1, 2)),
            ("height and width exchanged", (0, 1, 3, 2)),
            ("height and width exchanged", (0, 2, 1, 3)),
        ]
    elif rank == 3:
        moves = [("its two axes exchanged", (0, 2, 1))]
    for told, axes in moves:
        yield told, partial(_moved, axes=axes)
        yield f"{told}, read anew without being moved", partial(_read_anew, axes=axes)
    for axis in range(1, rank if rank >= 3 else 0):
        if shape[axis] > 4:
            yield f"axis {axis} in reverse", partial(np.flip, axis=axis)


def _moved(x: Array, *, axes: tuple[int, ...]) -> Array:
    """Axes exchanged; what no longer has the shape it must have is only read anew, as a careless reshape does."""
    return np.ascontiguousarray(x.transpose(axes)).reshape(x.shape)


def _read_anew(x: Array, *, axes: tuple[int, ...]) -> Array:
    """What a careless reshape to these axes undoes."""
    return x.reshape([x.shape[axis] for axis in axes]).transpose(np.argsort(axes))


def _normalisations(shape: Sequence[int]) -> Iterator[Form]:
    """A usual mean and deviation taken out, or put back."""
    rank = len(shape)
    channels = [axis for axis in dict.fromkeys((1, rank - 1)) if shape[axis] in (1, 3, 4)] or [rank - 1]
    for axis in channels:
        for told, statistics in STATISTICS.items():
            if any(len(part) not in (1, shape[axis]) for part in statistics):
                continue
            m, d = (np.reshape(part, [-1 if i == axis else 1 for i in range(rank)]) for part in statistics)
            yield f"with {told} put back", partial(_affine, factor=d, offset=m)
            yield f"with {told} taken out", partial(_affine, factor=1 / d, offset=-m / d)
            yield f"divided by 255, with {told} taken out", partial(_affine, factor=1 / d / 255, offset=-m / d)
            yield f"with {told} put back, times 255", partial(_affine, factor=255 * d, offset=255 * m)


@probe("feature-order", when=lambda case: any(len(fields) > 1 for fields in _of_one_kind(case)))
def feature_order(case: Case) -> Explained | None:
    """Give the candidate the columns in other orders; the order it wants is read from how both models react."""
    numbers, texts = _of_one_kind(case)
    for fields, orders in ((numbers, _orders(case, numbers)), (texts, _exchanges(texts))):
        others = (order for order in orders if order[1] != list(fields))
        found = first(case, others, partial(_given, fields), enough=SURE)
        if found is not None:
            return _explained(case, fields, *found)
    return None


def _of_one_kind(case: Case) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The features that could be mistaken for each other: those that are numbers, and those that are text."""
    kinds = {field: field.of(case.required.batch.inputs).dtype.kind for field in fields_of(case)}
    numbers, texts = (tuple(f for f, kind in kinds.items() if kind in some) for some in ("iuf", "OUT"))
    return numbers, texts


def _orders(case: Case, fields: Sequence[Field]) -> Iterator[Order]:
    """Orders to try: those that have a name, the one that the models' reactions tell, and single exchanges."""
    if len(fields) < 2:
        return
    yield from _named_orders(case, fields)
    taken_for = _exchange(case, fields)
    if taken_for is not None:
        yield "", _completed(fields, taken_for)
    elif case.native("reference") is None:
        yield from _exchanges(fields)


def _exchanges(fields: Sequence[Field]) -> Iterator[Order]:
    """Two features exchanged, for one pair after the other."""
    for one, other in islice(combinations(range(len(fields)), 2), MOST_PAIRS):
        order = list(fields)
        order[one], order[other] = order[other], order[one]
        yield "", order


def _named_orders(case: Case, fields: Sequence[Field]) -> Iterator[Order]:
    """For a candidate that takes columns side by side: orders in which somebody may have put them."""
    slots = _slots(case, fields)
    if not slots:
        return
    by_name = {field.name: field for field in fields}
    wanted = {
        "the order of the data": sorted(fields, key=lambda field: field.place),
        "alphabetical order": sorted(fields, key=lambda field: field.name),
        "alphabetical order without regard to case": sorted(fields, key=lambda field: field.name.casefold()),
        "the reverse order": list(reversed(slots)),
        "its own order turned by one": [*slots[1:], slots[0]],
        "its own order turned back by one": [slots[-1], *slots[:-1]],
    }
    names = case.side("reference").feed.columns or ()
    if len(names) == len(fields) and all(name in by_name for name in names):
        wanted = {"the order in which the reference takes them": [by_name[name] for name in names], **wanted}
    for told, order in wanted.items():
        given = dict(zip(slots, order, strict=True))
        yield told, [given[field] for field in fields]


def _slots(case: Case, fields: Sequence[Field]) -> list[Field]:
    """The features in the order in which they lie in the one input of the candidate; none if there are several."""
    routes = case.side("candidate").feed.routes
    if routes is None or len(routes) != 1:
        return []
    slots = [field for column in routes[0].columns for field in fields if field.column == column]
    return slots if len(slots) == len(fields) else []


def _given(fields: Sequence[Field], trial: Trial, order: Order) -> Effect | None:
    """The candidate given, in the place of each feature, the values of another."""
    everywhere = np.ones(len(trial), dtype=bool)
    moved = [(field, other) for field, other in zip(fields, order[1], strict=True) if field != other]
    return trial.run(Change(cells=[Edit(field, everywhere, trial.values(other)) for field, other in moved]))


def _explained(case: Case, fields: Sequence[Field], order: Order, effect: Effect) -> Explained:
    told, given = order[0], dict(zip(fields, order[1], strict=True))
    moved = {field: other for field, other in given.items() if field != other}
    one_by_one = ", ".join(f"{field.name} as {other.name}" for field, other in moved.items())
    how = told or (f"taken {one_by_one}" if len(moved) <= MOST_TOLD else "in another order")
    slots = _slots(case, fields)
    wants = f": it wants {listed([given[slot].name for slot in slots], MOST_NAMED)}" if slots else ""
    sent = ", ".join(f"{other.name} as {field.name}" for field, other in list(moved.items())[:MOST_NAMED])
    return effect.explained(
        "feature-order",
        Place(
            names_of(list(moved)),
            ("exchanged" if len(moved) == 2 else how,),
            columns=tuple(field.name for field in moved),
        ),
        f"given the columns in {told or 'another order'}{wants}, the candidate agrees with the reference on "
        f"{effect.told}",
        Remedy(
            "" if slots else f"Send each input the column that it means: {sent}",
            again="Export again with the columns in the order the reference was fitted with",
        ),
        fixes=_in_graph(case, slots, given),
    )


def _in_graph(case: Case, slots: Sequence[Field], given: Mapping[Field, Field]) -> tuple[Fix, ...]:
    """The order put right in the graph: of the columns of its one input, or by the names of its inputs."""
    proto, routes = case.graph(), case.side("candidate").feed.routes or ()
    if proto is None:
        return ()
    if slots:
        name, order = routes[0].input.name, [slots.index(given[slot]) for slot in slots]
        told = f"columns put into the candidate's order in front of {name!r}"
        return (Fix(told, lambda: edits.in_front(proto, name, rewrites.columns(order))),)
    inputs = {route.columns[0]: route.input.name for route in routes if len(route.columns) == 1}
    moved = {field.column: other.column for field, other in given.items() if field != other}
    if len(inputs) < len(routes) or any(column not in inputs for column in (*moved, *moved.values())):
        return ()
    names = {inputs[column]: inputs[other] for column, other in moved.items()}
    told = ", ".join(f"{old!r} is called {new!r}" for old, new in names.items())
    return (Fix(f"inputs renamed: {told}", lambda: edits.renamed(proto, names)),)


def _completed(fields: Sequence[Field], taken_for: Mapping[Field, Field]) -> list[Field]:
    """For each feature the one whose values the candidate must be given in its place."""
    used = set(taken_for.values())
    open_ = [f for f in fields if f not in taken_for]
    # What no answer tells apart stays where it is, if it can.
    order = {**taken_for, **{f: f for f in open_ if f not in used}}
    left = [f for f in fields if f not in order.values()]
    order |= dict(zip([f for f in open_ if f in used], left, strict=True))
    return [order[f] for f in fields]


def _exchange(case: Case, fields: Sequence[Field]) -> dict[Field, Field] | None:
    """For each feature the one that the candidate takes it for, as far as made-up rows tell; None if none explains."""
    rng = np.random.default_rng(0)
    own = _own_values(case, fields)
    # Every feature's quantiles: values from all over the features.
    pool = np.unique(np.concatenate([np.quantile(v, np.linspace(0.02, 0.98, 9)) for v in own.values()]))
    pool = np.unique(np.round(pool)) if _whole_numbers(case, fields) else pool.astype(np.float32).astype(np.float64)
    if len(pool) < 2:
        return None
    # Where all features have one value, their order does not matter.
    alike = _made_up(case, fields, np.repeat(rng.choice(pool, SURROUNDINGS)[:, None], len(fields), axis=1))
    answered = _answers(case, alike, alike)
    if answered is None or float(answered[2].mean()) < BASES_THAT_AGREE:
        return None
    count = int(max(4, min(SURROUNDINGS, MOST_ROWS // (len(fields) + 1))))
    seen: tuple[list[Array], list[Array]] = ([], [])
    taken_for: dict[Field, Field] = {}
    for _ in range(ROUNDS):
        ours, theirs = _surroundings(fields, taken_for, own, pool, count, rng)
        answered = _answers(case, _made_up(case, fields, ours), _made_up(case, fields, theirs))
        if answered is None:
            return None
        scale = (case.tolerance.absolute + case.tolerance.relative * np.abs(answered[0])).max(axis=0)
        for side, told in zip(seen, answered[:2], strict=True):
            blocks = (told / np.maximum(scale, 1e-12)).reshape(len(fields) + 1, count, -1)
            side.append((blocks[1:] - blocks[:1]).reshape(len(fields), -1))
        taken_for = _matched(fields, *(np.concatenate(side, axis=1) for side in seen))
        if len(taken_for) == len(fields):
            break
    return taken_for


def _own_values(case: Case, fields: Sequence[Field]) -> dict[Field, Array]:
    """The finite values that each feature has in the sample; a lone zero if it has none."""
    found = {f: f.of(case.required.batch.inputs).astype(np.float64) for f in fields}
    found = {f: values[np.isfinite(values)] for f, values in found.items()}
    return {f: values if len(values) else np.zeros(1) for f, values in found.items()}


def _whole_numbers(case: Case, fields: Sequence[Field]) -> bool:
    """Does any of the features hold whole numbers only, in the data or as the candidate takes it?"""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields).values()
    return any(f.of(inputs).dtype.kind in "iu" for f in fields) or any(d.startswith(("int", "uint")) for d in declared)


def _surroundings(
    fields: Sequence[Field],
    taken_for: Mapping[Field, Field],
    own: Mapping[Field, Array],
    pool: Array,
    count: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Made-up values for the reference and the same for the candidate: bases, then for each feature all of them."""
    ours = np.repeat(rng.choice(pool, count)[:, None], len(fields), axis=1)
    theirs = ours.copy()
    place = {f: index for index, f in enumerate(fields)}
    for one, other in taken_for.items():
        ours[:, place[other]] = theirs[:, place[one]] = rng.choice(own[other], count)
    steps = rng.choice(pool, count)

    def moved(bases: Array) -> Array:
        blocks = np.tile(bases, (len(fields) + 1, 1)).reshape(len(fields) + 1, count, len(fields))
        for index in range(len(fields)):
            blocks[index + 1, :, index] = steps
        return blocks.reshape(-1, len(fields))

    return moved(ours), moved(theirs)


def _made_up(case: Case, fields: Sequence[Field], values: Array) -> Batch:
    """Rows with these values in the features; all else is as in one row of the sample, one that agrees if any does."""
    count = len(values)
    batch = case.rows(np.full(count, int(np.argmin(case.required.failing))))
    batch = Batch(RowIds(np.arange(count)), batch.inputs)
    everywhere = np.ones(count, dtype=bool)
    columns = []
    for index, f in enumerate(fields):
        dtype = f.of(batch.inputs).dtype
        columns.append(Edit(f, everywhere, values[:, index].astype(dtype if dtype.kind in "iuf" else np.float64)))
    return edited(batch, columns)


def _answers(case: Case, ours: Batch, theirs: Batch) -> tuple[Array, Array, Array] | None:
    """The answers of both models as numbers, side by side, and on which rows they agree; None if one refuses."""
    reference, candidate = case.ask("reference", ours), case.ask("candidate", theirs)
    if reference is None or candidate is None:
        return None
    pairs = case.pairs(ours, reference, candidate)
    known = [pair for pair in pairs if isinstance(pair, Pair)]
    if not known or len(known) < len(pairs):
        return None
    mine = np.concatenate([_numbers(pair.reference, pair.reference) for pair in known], axis=1)
    yours = np.concatenate([_numbers(pair.candidate, pair.reference) for pair in known], axis=1)
    return mine, yours, rows_agreeing(pairs, len(ours))


def _numbers(array: Array, labels: Array) -> Array:
    """Answers as numbers; labels as one column for each."""
    if array.dtype.kind in "biuf" and labels.dtype.kind in "biuf":
        return array.astype(np.float64).reshape(len(array), -1)
    known = sorted(set(map(str, labels.ravel().tolist())))
    words = np.array([str(value) for value in array.ravel().tolist()]).reshape(len(array), -1)
    return np.concatenate([(words == word).astype(np.float64) for word in known], axis=1)


def _matched(fields: Sequence[Field], ours: Array, theirs: Array) -> dict[Field, Field]:
    """The pairs of features whose answers are each other's nearest, and nobody else's."""
    ours, theirs = (np.nan_to_num(side, posinf=1e9, neginf=-1e9) for side in (ours, theirs))
    near = np.stack([(np.abs(ours - row) > SAME_ANSWER).mean(axis=1) for row in theirs]) <= RARELY
    silent = (np.abs(ours) <= SAME_ANSWER).all(axis=1)
    found: dict[Field, Field] = {}
    for index, f in enumerate(fields):
        matches = np.flatnonzero(near[index])
        if len(matches) == 1 and near[:, matches[0]].sum() == 1 and not silent[matches[0]]:
            found[f] = fields[int(matches[0])]
    return found


EXTENSIONS = (image_layout, feature_order)
