"""Which features a candidate takes for which, found from the answers of both models to made-up rows.

With one and the same value in every feature, the order of the features does not matter: there both
models must agree, or the order is not what is wrong. From such a row, one feature at a time is set
to another value. The reference's answer to a change in feature j is then the candidate's answer to a
change in the feature that it takes for j. Features that are told apart are given values of their own
in the next round, so that the others are seen in more surroundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch, RowIds
from likewise.data.cells import Edit, Field, edited
from likewise.explain.case import Case
from likewise.explain.fields import declared_types

ROUNDS = 6
SURROUNDINGS = 24
"""Rows from which features are changed, in each round."""

MOST_ROWS = 8_000

BASES_THAT_AGREE = 0.8
"""Of rows with one value everywhere; rounding may set a few apart."""


@dataclass(slots=True)
class Exchange:
    """For each feature the one that the candidate takes it for; features not told apart yet are absent."""

    taken_for: dict[Field, Field] = field(default_factory=dict)

    def order(self, fields: Sequence[Field]) -> list[Field]:
        """For each feature the one whose values the candidate must be given in its place."""
        used = set(self.taken_for.values())
        open_ = [f for f in fields if f not in self.taken_for]
        # What no answer tells apart stays where it is, if it can.
        order = self.taken_for | {f: f for f in open_ if f not in used}
        left = [f for f in fields if f not in order.values()]
        order |= dict(zip([f for f in open_ if f in used], left, strict=True))
        return [order[f] for f in fields]


def found_exchange(case: Case, fields: Sequence[Field]) -> Exchange | None:
    """The exchange that explains both models' answers to made-up rows; None if none does."""
    rng = np.random.default_rng(0)
    own = _own_values(case, fields)
    # Every feature's quantiles: values from all over the features.
    pool = np.unique(np.concatenate([np.quantile(v, np.linspace(0.02, 0.98, 9)) for v in own.values()]))
    pool = np.unique(np.round(pool)) if _whole_numbers(case, fields) else pool.astype(np.float32).astype(np.float64)
    if len(pool) < 2:
        return None
    count = int(max(4, min(SURROUNDINGS, MOST_ROWS // (len(fields) + 1))))
    exchange = Exchange()
    if not _agree_where_order_does_not_matter(case, fields, pool, rng):
        return None
    ours: dict[Field, list[Array]] = {f: [] for f in fields}
    theirs: dict[Field, list[Array]] = {f: [] for f in fields}
    for _ in range(ROUNDS):
        made = _made(case, fields, exchange, own, pool, count, rng)
        answered = _answers(case, *made)
        if answered is None:
            return None
        reference, candidate = answered
        for index, f in enumerate(fields):
            ours[f].append(reference[index])
            theirs[f].append(candidate[index])
        exchange = _matched(fields, ours, theirs)
        if len(exchange.taken_for) == len(fields):
            break
    return exchange


def _agree_where_order_does_not_matter(
    case: Case, fields: Sequence[Field], pool: Array, rng: np.random.Generator
) -> bool:
    """Do the models agree on rows with one value everywhere?"""
    values = np.repeat(rng.choice(pool, SURROUNDINGS)[:, None], len(fields), axis=1)
    batch = _batch(case, fields, values, _some_row(case))
    paired = _paired(case, batch, batch)
    return paired is not None and float(paired[2].mean()) >= BASES_THAT_AGREE


def _some_row(case: Case) -> int:
    """A row that agrees, if there is one: what is not exchanged is taken from it."""
    return int(np.argmin(case.required.failing))


def _own_values(case: Case, fields: Sequence[Field]) -> dict[Field, Array]:
    """The finite values that each feature has in the sample; a lone zero if it has none."""
    inputs = case.required.batch.inputs
    found = {}
    for f in fields:
        values = f.of(inputs).astype(np.float64)
        values = values[np.isfinite(values)]
        found[f] = values if len(values) else np.zeros(1)
    return found


def _whole_numbers(case: Case, fields: Sequence[Field]) -> bool:
    """Does any of the features hold whole numbers only, in the data or as the candidate takes it?"""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields).values()
    return any(f.of(inputs).dtype.kind in "iu" for f in fields) or any(d.startswith(("int", "uint")) for d in declared)


def _made(
    case: Case,
    fields: Sequence[Field],
    exchange: Exchange,
    own: Mapping[Field, Array],
    pool: Array,
    count: int,
    rng: np.random.Generator,
) -> tuple[Batch, Batch, int]:
    """Made-up rows for the reference and the same for the candidate: the bases, then for each feature all of them."""
    width = len(fields)
    bases = np.repeat(rng.choice(pool, count)[:, None], width, axis=1)
    place = {f: index for index, f in enumerate(fields)}
    ours, theirs = bases.copy(), bases.copy()
    for one, other in exchange.taken_for.items():
        ours[:, place[other]] = theirs[:, place[one]] = rng.choice(own[other], count)
    steps = rng.choice(pool, count)
    blocks_ours, blocks_theirs = [ours], [theirs]
    for index in range(width):
        for base, blocks in ((ours, blocks_ours), (theirs, blocks_theirs)):
            moved = base.copy()
            moved[:, index] = steps
            blocks.append(moved)
    row = _some_row(case)
    return (
        _batch(case, fields, np.concatenate(blocks_ours), row),
        _batch(case, fields, np.concatenate(blocks_theirs), row),
        count,
    )


def _batch(case: Case, fields: Sequence[Field], values: Array, row: int) -> Batch:
    """Rows of the data with these values in the features; all else is as in one row of the sample."""
    count = len(values)
    batch = case.rows(np.full(count, row))
    batch = Batch(RowIds(np.arange(count)), batch.inputs)
    everywhere = np.ones(count, dtype=bool)
    inputs = batch.inputs
    columns = []
    for index, f in enumerate(fields):
        dtype = f.of(inputs).dtype
        columns.append(Edit(f, everywhere, values[:, index].astype(dtype if dtype.kind in "iuf" else np.float64)))
    return edited(batch, columns)


def _answers(case: Case, ours: Batch, theirs: Batch, count: int) -> tuple[Array, Array] | None:
    """For each feature what a change of it does to the answers of each model, counted in tolerances."""
    paired = _paired(case, ours, theirs)
    if paired is None:
        return None
    reference, candidate, _ = paired
    scale = (case.tolerance.absolute + case.tolerance.relative * np.abs(reference)).max(axis=0)
    features = len(ours) // count - 1
    effects = []
    for answers in (reference, candidate):
        blocks = (answers / np.maximum(scale, 1e-12)).reshape(features + 1, count, -1)
        effects.append((blocks[1:] - blocks[:1]).reshape(features, -1))
    return effects[0], effects[1]


def _paired(case: Case, ours: Batch, theirs: Batch) -> tuple[Array, Array, Array] | None:
    """The answers of both models as numbers, side by side, and on which rows they agree; None if one refuses."""
    reference, candidate = case.ask("reference", ours), case.ask("candidate", theirs)
    if reference is None or candidate is None:
        return None
    agrees = np.ones(len(ours), dtype=bool)
    sides: tuple[list[Array], list[Array]] = ([], [])
    for pair in case.pairs(ours, reference, candidate):
        if isinstance(pair, Mismatch):
            return None
        agrees &= ~rows_beyond(pair)
        for side, array in zip(sides, (pair.reference, pair.candidate), strict=True):
            side.append(_numbers(array, pair.reference))
    if not sides[0]:
        return None
    return np.concatenate(sides[0], axis=1), np.concatenate(sides[1], axis=1), agrees


def _numbers(array: Array, labels: Array) -> Array:
    """Answers as numbers; labels as one column for each."""
    if array.dtype.kind in "biuf" and labels.dtype.kind in "biuf":
        return array.astype(np.float64).reshape(len(array), -1)
    known = sorted(set(map(str, labels.ravel().tolist())))
    words = np.array([str(value) for value in array.ravel().tolist()]).reshape(len(array), -1)
    return np.concatenate([(words == word).astype(np.float64) for word in known], axis=1)


def _matched(fields: Sequence[Field], ours: dict[Field, list[Array]], theirs: dict[Field, list[Array]]) -> Exchange:
    """The pairs of features whose answers are each other's nearest, and nobody else's."""
    reference = np.nan_to_num(np.stack([np.concatenate(ours[f]) for f in fields]), posinf=1e9, neginf=-1e9)
    candidate = np.nan_to_num(np.stack([np.concatenate(theirs[f]) for f in fields]), posinf=1e9, neginf=-1e9)
    # Three tolerances: each answer may be off by one, and so may the base it is measured from.
    far = np.stack([(np.abs(reference - row) > 3.0).mean(axis=1) for row in candidate])
    near = far <= 0.02
    silent_ours = (np.abs(reference) <= 3.0).all(axis=1)
    exchange = Exchange()
    for index, f in enumerate(fields):
        matches = np.flatnonzero(near[index])
        if len(matches) == 1 and near[:, matches[0]].sum() == 1 and not silent_ours[matches[0]]:
            exchange.taken_for[f] = fields[int(matches[0])]
    return exchange
