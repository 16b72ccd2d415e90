"""The right answers in the wrong place: columns in another order, outputs under each other's names, rows exchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from likewise.compare.differences import is_numeric, rows_of
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair, Tolerance
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.explain import answers
from likewise.explain.case import Case, Explained, Fix, Remedy, probe, rows_agreeing
from likewise.explain.experiment import ENOUGH, Effect
from likewise.models.onnx import interface
from likewise.models.onnx.interface import Nodes

ALIKE = 0.98
"""An output is another one's if it agrees with it on this share of the rows."""

EXACT = 0.995
"""Numbers that are all there are nearly all the same."""

MOST_COLUMNS = 1_024
"""Columns beyond which no order of them is searched for."""

MOST_NAMED = 12
"""Columns that are named one by one."""

FEWEST_ROWS = 12
"""Fewer rows fall into an order by chance."""

MOST_ROWS = 1_024
"""Rows asked about at once to see their order."""

NEARLY_ALL = 0.95
"""The right order of rows puts so many of the failing ones right."""

LAST_DIGITS = 3e-5
"""Of the spread of the answers: what float32 leaves open. Answers of other rows are further apart."""

FREE_ORDER = 0.5
"""An order without a rule is believed only where at least this share of the answers are different ones."""

NEAR = 0.02
"""Rows with the same answers are at most so far apart, in standard deviations."""

ONE_BY_ONE = 16
"""Rows asked one at a time, where no other row can be in the way."""

WIDEST = 64
"""Columns that rows are told apart by."""


@probe("label-order", "output-mapping", when=answers.complete)
def column_order(case: Case) -> Explained | None:
    """Put the candidate's columns into the order that fits the reference best, and compare again."""
    pairs = answers.pairs(case)
    orders = {at: order for at in answers.failing(case) if (order := _column_order(pairs[at])) is not None}
    changed = {at: pairs[at].candidate[:, order] for at, order in orders.items()}
    effect = answers.convincing(case, changed) if changed else None
    if effect is None:
        return None
    # Probabilities tell the most; a row of labels has the same order.
    position = min(orders, key=lambda at: pairs[at].spec.kind is Kind.LABEL)
    pair, order = pairs[position], orders[position]
    of_classes = _of_classes(case, pair)
    names = [str(name) for name in pair.spec.classes or range(len(order))]
    renamed = pair.spec.columns is not None and [pair.spec.columns[i] for i in order] == list(range(len(order)))
    where = _named(pair.spec.columns, names) if renamed and pair.spec.columns else _where(order, names)
    concerned = [pairs[at] for at in orders]
    remedy = _remedy(order, names, renamed=renamed, of_classes=of_classes, alike=len(set(orders.values())) == 1)
    return effect.explained(
        "label-order" if of_classes else "output-mapping",
        answers.culprit(concerned, where),
        f"with the {'classes' if of_classes else 'columns'} of {answers.names(concerned)} put into the reference's "
        f"order, the candidate agrees on {effect.told}",
        answers.on_arrays(case, concerned, remedy),
        # Numbers that are all there, each in another place, are no other numbers.
        simplicity=1 if effect.share >= EXACT else 2,
        fixes=answers.behind(
            case,
            {pairs[at].spec.candidate: _columns(pairs[at], order) for at, order in orders.items()},
            "columns put into the reference's order",
        ),
    )


@probe("output-mapping", when=answers.complete)
def output_names(case: Case) -> Explained | None:
    """Read outputs of the candidate that carry what belongs to another one under each other's names, and compare."""
    pairs = answers.pairs(case)
    taken: dict[int, int] = {}
    for mine in answers.failing(case):
        others = (at for at in range(len(pairs)) if at != mine and _holds(pairs[mine], pairs[at]))
        if (other := next(others, None)) is not None:
            taken[mine] = other
    changed = {mine: pairs[other].candidate.reshape(pairs[mine].candidate.shape) for mine, other in taken.items()}
    effect = answers.convincing(case, changed) if changed else None
    if effect is None:
        return None
    swapped = all(taken.get(other) == mine for mine, other in taken.items())
    held = [(pairs[mine].spec.name, pairs[other].spec.candidate) for mine, other in taken.items()]
    return effect.explained(
        "output-mapping",
        Place(
            ", ".join(name for name, _ in held),
            ("swapped" if swapped else "; ".join(f"{name} is given as {given}" for name, given in held),),
            outputs=tuple(given for _, given in held),
        ),
        "; ".join(f"the candidate gives the reference's {name!r} as {given!r}" for name, given in held)
        + f": read that way it agrees on {effect.told}",
        "Name the outputs of the export in the order the model gives them (output_names=[...])",
        fixes=_renamed(case, {pairs[o].spec.candidate: pairs[m].spec.candidate for m, o in taken.items()})
        if swapped
        else (),
    )


def _columns(pair: Pair, order: Sequence[int]) -> Nodes:
    """This order of the columns as they are compared, for the columns as the graph gives them."""
    given = pair.spec.columns or tuple(range(len(order)))
    return interface.columns([given[order[given.index(column)]] for column in range(len(given))])


def _renamed(case: Case, names: Mapping[str, str]) -> tuple[Fix, ...]:
    """Outputs under each other's names in the graph itself."""
    proto = case.graph()
    told = ", ".join(f"{old!r} is called {new!r}" for old, new in names.items())
    return () if proto is None else (Fix(f"outputs renamed: {told}", lambda: interface.renamed(proto, names)),)


def _column_order(pair: Pair) -> tuple[int, ...] | None:
    """The columns of the candidate in the order that fits the reference; None if that is the order they have."""
    from scipy.optimize import linear_sum_assignment

    reference, candidate, tolerance = pair.reference, pair.candidate, pair.tolerance
    if not (is_numeric(reference) and is_numeric(candidate)):
        return None
    if reference.ndim != 2 or reference.shape != candidate.shape or not 2 <= reference.shape[1] <= MOST_COLUMNS:
        return None
    width = reference.shape[1]
    count = int(max(8, min(256, 4_000_000 / width**2)))
    rows = np.unique(np.linspace(0, len(reference) - 1, count).astype(int))
    ours, theirs = reference[rows].astype(np.float64), candidate[rows].astype(np.float64)
    if not _same_numbers(ours, theirs, tolerance):
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(ours[:, :, None] - theirs[:, None, :])
        allowed = tolerance.absolute + tolerance.relative * np.abs(ours)[:, :, None]
        same = (apart <= allowed) | (np.isnan(ours)[:, :, None] & np.isnan(theirs)[:, None, :])
        capped = np.nan_to_num(apart / (1.0 + apart), nan=1.0, posinf=1.0)
    # Rows that agree decide; how far the others are apart only breaks ties.
    cost = (~same).mean(axis=0) + 1e-3 * capped.mean(axis=0)
    _, order = linear_sum_assignment(cost)
    return None if (order == np.arange(width)).all() else tuple(order.tolist())


def _same_numbers(ours: Array, theirs: Array, tolerance: Tolerance) -> bool:
    """Do many rows hold the same numbers in whatever order? Much cheaper to see than the order."""
    ours, theirs = np.sort(ours, axis=1), np.sort(theirs, axis=1)
    with np.errstate(all="ignore"):
        apart = np.abs(ours - theirs)
        near = apart <= 2 * (tolerance.absolute + tolerance.relative * np.abs(ours))
    return bool((near | (np.isnan(ours) & np.isnan(theirs))).all(axis=1).mean() >= ENOUGH)


def _of_classes(case: Case, pair: Pair) -> bool:
    """Are the columns classes, not targets of their own?"""
    if pair.spec.classes or pair.spec.kind in (Kind.PROBABILITY, Kind.SCORE, Kind.DISTANCE, Kind.LABEL):
        return True
    table = pair.reference.astype(np.float64)
    with np.errstate(all="ignore"):
        if np.nanmin(table) >= 0 and np.allclose(table.sum(axis=1), 1.0, atol=1e-3):
            return True
    labels = [other for other in answers.pairs(case) if other.spec.kind is Kind.LABEL and other.reference.ndim == 1]
    return any(
        answers.best_rule(label.reference, pair.reference, answers.classes_of(label, pair)) is not None
        for label in labels
    )


def _named(columns: tuple[int, ...], names: list[str]) -> str:
    """What the candidate calls its columns, which are in the right order."""
    given = [names[columns.index(column)] for column in range(len(columns))]
    return f"classes are named {', '.join(given[:MOST_NAMED])}" + (", …" if len(given) > MOST_NAMED else "")


def _where(order: tuple[int, ...], names: list[str]) -> str:
    """Which column holds what."""
    held = [names[order.index(column)] for column in range(len(order))]
    moved = [column for column in range(len(order)) if held[column] != names[column]]
    if len(order) <= MOST_NAMED:
        return f"columns hold {', '.join(held)}"
    shown = ", ".join(f"{names[column]} and {held[column]}" for column in moved[:1])
    return f"{shown} swapped" if len(moved) == 2 else f"{len(moved)} of {len(order)} columns in another place"


def _remedy(order: tuple[int, ...], names: list[str], *, renamed: bool, of_classes: bool, alike: bool) -> Remedy:
    if renamed:
        return Remedy(f"Give the export the classes in the model's own order: [{', '.join(names[:MOST_NAMED])}]")
    kind = "classes_" if of_classes else "targets"
    again = f"Export again with the columns in the order of the model's {kind}"
    done = f"Reorder the columns: output[:, {list(order)}]" if alike and len(order) <= MOST_NAMED else ""
    return Remedy(again=again, done=done)


def _holds(wanted: Pair, other: Pair) -> bool:
    """Does the candidate's answer of another pair agree with what this one should be?"""
    if (wanted.spec.kind is Kind.LABEL) != (other.spec.kind is Kind.LABEL):
        return False
    if wanted.reference.size != other.candidate.size or answers.distinct(wanted.reference) < 2:
        return False
    if is_numeric(wanted.reference) != is_numeric(other.candidate):
        return False
    return bool(
        (~rows_beyond(replace(wanted, candidate=other.candidate.reshape(wanted.candidate.shape)))).mean() >= ALIKE
    )


@dataclass(frozen=True, slots=True)
class Order:
    """`take` puts the candidate's rows right; `rule` says how they were put wrong."""

    rule: str
    take: Array
    free: bool = False


@probe(
    "row-order",
    when=lambda case: answers.complete(case) and case.required.batch.stacked and len(case.required) >= FEWEST_ROWS,
)
def row_order(case: Case) -> Explained | None:
    """Put the candidate's answers into the order in which they fit the reference's, and compare."""
    batch = next(iter(case.plan.source.batches(MOST_ROWS)))
    if len(batch) < FEWEST_ROWS:
        return None
    ours, theirs = case.ask("reference", batch), case.ask("candidate", batch)
    if ours is None or theirs is None:
        return None
    together = case.pairs(batch, ours, theirs, tolerance=answers.forgiving(case.tolerance))
    pairs = [pair for pair in together if isinstance(pair, Pair)]
    failing = ~rows_agreeing(together, len(batch))
    if len(pairs) != len(together) or failing.sum() < FEWEST_ROWS // 2:
        return None
    # An output that agrees as it is was not moved.
    moved = [pair for pair in pairs if rows_beyond(pair).any()]
    kept = [pair for pair in pairs if not any(pair is other for other in moved)]
    for order in _orders([_narrowed(pair) for pair in moved]):
        put_back = [replace(pair, candidate=pair.candidate[order.take]) for pair in moved]
        effect = Effect(rows_agreeing([*kept, *put_back], len(batch)), failing)
        if effect.share >= NEARLY_ALL and effect.explains and _tells(moved, order, effect):
            return _row_order_explained(case, batch, moved, order, effect)
    return None


def _row_order_explained(case: Case, batch: Batch, pairs: list[Pair], order: Order, effect: Effect) -> Explained:
    count = min(ONE_BY_ONE, len(batch))
    few = batch.slice(0, count)
    ours, theirs = case.ask("reference", few), case.ask("candidate", few, size=1)
    alone = ""
    if ours is not None and theirs is not None:
        pieces = case.pairs(few, ours, theirs, tolerance=answers.forgiving(case.tolerance))
        if rows_agreeing(pieces, count).all():
            alone = "; asked one row at a time it gives the right answers, so rows change places within a call"
    return Explained(
        "row-order",
        Place(answers.names(pairs), (order.rule,), outputs=tuple(pair.spec.candidate for pair in pairs)),
        f"the candidate's answers to the first {len(batch):,} rows are the reference's in another order "
        f"({order.rule}): put back they agree on {effect.told}{alone}",
        "Look for a sort, shuffle, reverse or roll along the first axis of the export",
        share=effect.share,
        # That answers depend on the batch is true as well, and says less.
        simplicity=1,
    )


def _narrowed(pair: Pair) -> Pair:
    """Some columns of a wide output: enough to tell its rows apart."""
    width = rows_of(pair.reference).shape[1]
    if width <= WIDEST:
        return pair
    columns = np.unique(np.linspace(0, width - 1, WIDEST).astype(int))
    ours, theirs = rows_of(pair.reference)[:, columns], rows_of(pair.candidate)[:, columns]
    return replace(pair, reference=ours, candidate=theirs)


def _orders(pairs: Sequence[Pair]) -> Iterator[Order]:
    """Orders worth a trial, those with a rule first."""
    count = len(pairs[0].reference)
    everywhere = np.arange(count)
    yield Order("rows reversed", everywhere[::-1])
    for shift in _shifts(pairs):
        yield Order(
            f"rows shifted by {shift if shift <= count // 2 else shift - count:+d}", np.roll(everywhere, -shift)
        )
    free = _matched(pairs)
    if free is not None:
        numbers = [pair.candidate for pair in pairs if answers.is_number(pair)]
        ordered = np.diff(rows_of(numbers[0])[:, 0].astype(np.float64))
        told = "rows sorted by the answer" if (ordered >= 0).all() or (ordered <= 0).all() else ""
        told = told or "rows shuffled without a rule"
        yield Order(told, free, free=True)


def _shifts(pairs: Sequence[Pair]) -> list[int]:
    """By how many rows the answers may be shifted: where the first of them are found."""
    pair = max(pairs, key=lambda one: answers.distinct(one.reference))
    count = len(pair.reference)
    votes = np.zeros(count, dtype=int)
    probes = np.unique(np.linspace(0, count - 1, 12).astype(int))
    for row in probes:
        wanted = np.broadcast_to(pair.reference[row], pair.candidate.shape)
        same = ~rows_beyond(replace(pair, reference=wanted, margin=None, noise=None))
        votes[(np.flatnonzero(same) - row) % count] += 1
    likely = [int(shift) for shift in np.argsort(-votes, kind="stable")[:8] if votes[shift] >= len(probes) - 2]
    return [shift for shift in likely if shift]


def _matched(pairs: Sequence[Pair]) -> Array | None:
    """For each row of the reference the candidate's row with the same answers, each used once."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial import cKDTree

    numbers = [pair for pair in pairs if answers.is_number(pair)]
    if not numbers:
        return None
    ours = np.concatenate([rows_of(pair.reference) for pair in numbers], axis=1).astype(np.float64)
    theirs = np.concatenate([rows_of(pair.candidate) for pair in numbers], axis=1).astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    spread = np.maximum(ours.std(axis=0), 1e-12)
    if ours.shape[1] == 1:
        take = np.empty(len(ours), dtype=int)
        take[np.argsort(ours[:, 0], kind="stable")] = np.argsort(theirs[:, 0], kind="stable")
        return take
    apart, nearest = cKDTree(theirs / spread).query(ours / spread)
    if len(np.unique(nearest)) == len(nearest):
        return np.asarray(nearest)
    if len(ours) > MOST_ROWS or np.quantile(apart, NEARLY_ALL) > NEAR:
        return None
    apart = np.abs((ours / spread)[:, None, 0] - (theirs / spread)[None, :, 0])
    for column in range(1, min(ours.shape[1], 16)):
        apart += np.abs((ours / spread)[:, None, column] - (theirs / spread)[None, :, column])
    _, take = linear_sum_assignment(apart)
    return np.asarray(take)


def _tells(pairs: Sequence[Pair], order: Order, effect: Effect) -> bool:
    """Could so many rows fall into place by chance? Not by a rule, nor if most answers are different ones."""
    count = len(pairs[0].reference)
    if (order.take == np.arange(count)).all():
        return False
    different = max(answers.distinct(pair.reference, limit=count) for pair in pairs)
    if not order.free:
        return different >= 2 and effect.failing.sum() >= FEWEST_ROWS // 2
    return different >= FREE_ORDER * count and effect.share >= 0.99 and _exact(pairs, order)


def _exact(pairs: Sequence[Pair], order: Order) -> bool:
    """Do answers put together by their size agree to the last digits? Within a wide tolerance any answers would."""
    for pair in pairs:
        if answers.is_number(pair):
            ours, theirs = rows_of(pair.reference).astype(np.float64), rows_of(pair.candidate).astype(np.float64)
            spread = np.maximum(ours.std(axis=0), np.finfo(np.float64).tiny)
            if np.quantile(np.abs(theirs[order.take] - ours) / spread, NEARLY_ALL) > LAST_DIGITS:
                return False
    return True


EXTENSIONS = (column_order, output_names, row_order)
