"""What a service does to rows before its model sees them, and which model that is.

Inside a service, or the code around a model, nothing can be looked at or changed. So the reference is asked what may
have been asked there: columns with a default in them, text that was cut, dates read the other way round or in another
time zone, numbers that were rounded, bounded or are in another unit, categories numbered in another order. Where its
answers are those of the candidate then, that is what happens there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, listed, missing_in
from likewise.explain.case import CODE, Case, Explained, probe
from likewise.explain.experiment import HEALED, Change, Claim, Effect, Trial, run, shown
from likewise.explain.features import fields_of, place_of
from likewise.models.sklearn.walk import steps_before
from likewise.models.trees.read import cut_to, trees_of
from likewise.registry import describe_model

SERVED = ("endpoints", "captured")
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100, 128, 200, 255, 256)
"""Characters to which people cut a column of text."""

DEFAULTS = (0.0, 1.0, -1.0, 99.0, 999.0, -999.0)
MOST_DEFAULTS = 256
"""Values of a column, the most frequent ones, that are tried as what a service fills in."""

DATE = re.compile(r"^(\d{1,2})([./-])(\d{1,2})(?=\2\d)|(?<=\d{4}[./-])(\d{1,2})([./-])(\d{1,2})(?!\d)")
"""Day and month of a date that begins or ends with them."""

MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)([T ])([01]\d:[0-5]\d|2[0-3]:[0-5]\d)")
"""The beginning of a date with its time."""

UNSEEN = "\x7fnever seen"
"""A category that no model knows."""

MOST_CATEGORIES, REPRODUCES, SHOWN = 24, 0.95, 3
"""Categories that are tried in each other's place, the part of the rows that agree then, and those named."""

NUMBERS: Mapping[str, Callable[[Array], Array]] = {
    "in Fahrenheit instead of Celsius": lambda values: values * 1.8 + 32,
    "in Celsius instead of Fahrenheit": lambda values: (values - 32) / 1.8,
    "in kelvin instead of Celsius": lambda values: values + 273.15,
    "in Celsius instead of kelvin": lambda values: values - 273.15,
    "replaced by the logarithm of one more": np.log1p,
    "replaced by its logarithm": np.log,
    "with the other sign": np.negative,
    "without its sign": np.abs,
}
"""What is done to numbers, beside factors and rounding."""

POWERS = tuple(np.arange(-4.0, 4.5, 0.5).tolist())
HALFWAY, NARROWINGS, GOLDEN, SIMPLE, NEARER, FEW_BEYOND = 0.7, 22, (5**0.5 - 1) / 2, 1e-3, 0.1, 0.1
"""Powers of ten that are tried as factors, the part of the difference that the nearest may leave on a few rows, how
often it is narrowed down and to which part, how near a simple number has to be, the part that may be left then, and the
part of the rows that may agree although they are beyond a bound."""

SPELT: Mapping[str, Callable[[str], str]] = {
    "in lower case": str.lower,
    "in upper case": str.upper,
    "without blanks around it": str.strip,
    "up to its first blank": lambda text: text.split(" ")[0],
    "without what is not ASCII": lambda text: text.encode("ascii", "ignore").decode(),
    "read with day and month the other way round": lambda text: DATE.sub(_turned, text),
}


def _turned(found: re.Match[str]) -> str:
    """Day and month exchanged, where either may be the month."""
    day, between, month = [part for part in found.groups() if part is not None]
    return f"{month}{between}{day}" if max(int(day), int(month)) <= 12 else found[0]


def _moved(hours: int) -> Callable[[str], str]:
    """A moment read on the clock of another time zone, written as it was."""

    def made(text: str) -> str:
        found = MOMENT.match(text)
        if found is None:
            return text
        moved = np.datetime64(f"{found[1]}T{found[3]}", "m") + np.timedelta64(hours, "h")
        return str(moved).replace("T", found[2]) + text[found.end() :]

    return made


def _clock(hours: int) -> str:
    return f"read {hours:+d} hours from its time zone"


HOURS = tuple(hours for hours in range(-12, 15) if hours)
CLOCKS = {_clock(hours): _moved(hours) for hours in HOURS}


def _is_served(case: Case) -> bool:
    return case.framework("candidate") in SERVED and case.framework("reference") not in SERVED


def _is_closed(case: Case) -> bool:
    """Is the candidate nothing but its answers, and can the reference be asked something else?"""
    return _is_served(case) or (case.framework("candidate") in (CODE, "recorded") and _can_be_asked(case, "reference"))


def _can_be_asked(case: Case, side: str) -> bool:
    return case.framework(side) not in ("captured", "recorded")


@probe("preprocessing-differs", when=lambda case: _is_closed(case) and bool(fields_of(case)))
def changed_by_the_service(case: Case) -> Iterator[Explained]:
    """Each column in turn, as a service may hand it on, and whether that gives the service's answers."""
    for field in fields_of(case):
        values = Trial.whole(case).values(field)
        ways = [_ways(values)]
        # What nothing is known of any more, such as words in capital letters, is ignored like what is not handed on.
        ignored = _ignored(case, field) if _can_be_asked(case, "candidate") else None
        if not ignored:
            ways += [
                _limits(case, field),
                _exchanged(case, field),
                _in_another_unit(case, field),
            ]
        if ignored is None:  # where the candidate can be asked, that is what the probe of missing values does
            ways.append(_gaps(case, field))
        if ignored is not False:
            ways.append(_defaults(values))
        yield from _best(case, field, chain.from_iterable(ways))


def _best(case: Case, field: Field, ways: Iterator[tuple[str, Array]]) -> Iterator[Explained]:
    """The first way that explains nearly all, or else the one that explains most: 1,000s are near 2,000s."""
    few, whole = Trial.few(case), Trial.whole(case)
    found: tuple[Effect, str] | None = None
    for told, values in ways:
        # A few rows first, of the column as it would be handed on: most ways lead nowhere.
        seen = few.run(_handed_on(few, field, values))
        if seen is None or not seen.promising:
            continue
        effect = run(case, _handed_on(whole, field, values))
        if effect is not None and effect.explains and (found is None or effect.share > found[0].share):
            found = effect, told
            if effect.share == 1:
                break
    if found is not None:
        effect, told = found
        who = "service" if _is_served(case) else "candidate"
        evidence = f"with {field.name} {told}, the reference answers as the {who} does: {effect.agreeing}"
        remedy = f"Hand {field.name} on to the model as it came"
        yield effect.explained("preprocessing-differs", place_of([field]), evidence, remedy)


def _handed_on(trial: Trial, field: Field, values: Array) -> Change:
    everywhere = np.ones(len(trial), dtype=bool)
    return Change("reference", cells=[Edit(field, everywhere, values[trial.positions])], whole=True)


def _limits(case: Case, field: Field) -> Iterator[tuple[str, Array]]:
    """Numbers bounded where rows begin to fail, on either side: by the last value before, by that, or between."""
    values, failing = Trial.whole(case).values(field), case.required.failing
    if values.dtype.kind not in "iuf" or failing.all() or not np.isfinite(values[failing]).any():
        return
    good, bad = values[~failing].astype(np.float64), values[failing].astype(np.float64)
    least, most = float(np.nanmin(bad)), float(np.nanmax(bad))

    def at_most(limit: float) -> Array:
        return np.asarray(np.minimum(values, limit).astype(values.dtype))

    def at_least(limit: float) -> Array:
        return np.asarray(np.maximum(values, limit).astype(values.dtype))

    below, above = good[good < least], good[good > most]
    for limit in _between(float(below.max(initial=-np.inf)), least):
        yield f"bounded to at most {limit:g}", at_most(limit)
    for limit in _between(float(above.min(initial=np.inf)), most):
        yield f"bounded to at least {limit:g}", at_least(limit)
    # Rows that lie just beyond a bound do not fail: it is where the reference comes nearest to the candidate.
    sides = ("most", at_most, below, (good > least).mean()), ("least", at_least, above, (good < most).mean())
    for side, bounded, within, beyond in sides:
        if not len(within) or beyond > FEW_BEYOND:
            continue
        few = Trial.few(case)
        edges = float(np.median(within)), least if side == "most" else most
        limit, left = _nearest(_apart(few, field, bounded), *sorted(edges))
        for simple in (*(float(f"{limit:.{digits}g}") for digits in range(1, 5)), limit):
            if left <= NEARER * few.gap() and abs(simple - limit) <= NEARER * abs(edges[1] - edges[0]):
                yield f"bounded to at {side} {simple:.6g}", bounded(simple)


def _apart(few: Trial, field: Field, made: Callable[[float], Array]) -> Callable[[float], float]:
    """How far the reference is from the candidate when it is given a column that is made with a number."""

    def apart(number: float) -> float:
        answers = few.ask(_handed_on(few, field, made(number)))
        return np.inf if answers is None else few.gap(reference=answers)

    return apart


def _nearest(apart: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Between two numbers, where the reference comes nearest to the candidate, and how far it is from it there."""
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    left = [apart(number) for number in inner]
    for _ in range(NARROWINGS):
        # Of the two numbers inside, the nearer one is inside again, and has been asked about.
        if left[0] <= left[1]:
            high = inner[1]
            inner, left = [high - GOLDEN * (high - low), inner[0]], [np.nan, left[0]]
        else:
            low = inner[0]
            inner, left = [inner[1], low + GOLDEN * (high - low)], [left[1], np.nan]
        left = [apart(number) if np.isnan(known) else known for number, known in zip(inner, left, strict=True)]
    return (low + high) / 2, apart((low + high) / 2)


def _between(good: float, bad: float) -> list[float]:
    """Where a bound may lie: at either value, or at the roundest number between the two, which people write."""
    if not np.isfinite(good):
        return [bad]
    low, high = sorted((good, bad))
    steps = (10.0**power for power in range(int(np.ceil(np.log10(max(-low, high, 1.0)))), -4, -1))
    round_ones = (step * np.ceil(low / step) for step in steps)
    return list(dict.fromkeys((good, next((float(one) for one in round_ones if low <= one <= high), bad), bad)))


def _gaps(case: Case, field: Field) -> Iterator[tuple[str, Array]]:
    """What is missing filled in, where that is what most failing rows have in common."""
    values, failing = Trial.whole(case).values(field), case.required.failing
    empty = missing_in(values)
    if not (empty & failing).sum() > failing.sum() / 2:
        return
    for told, filled in _defaults(values):
        yield f"{told} where it is missing", np.where(empty, filled, values)
    known = values[~empty]
    if values.dtype.kind not in "iuf" or not len(known):
        return

    def made(number: float) -> Array:
        return np.where(empty, number, values)

    few, reach = Trial.few(case), float(np.ptp(known))
    number, left = _nearest(_apart(few, field, made), float(known.min()) - reach, float(known.max()) + reach)
    if left <= NEARER * few.gap():
        for simple in (*(float(f"{number:.{digits}g}") for digits in range(1, 5)), number):
            yield f"filled with {simple:.6g} where it is missing", made(simple)


def _exchanged(case: Case, field: Field) -> Iterator[tuple[str, Array]]:
    """Categories that are taken for others, as in another numbering: those with which the reference answers alike."""
    values, some = Trial.whole(case).values(field), Trial.some(case)
    known = list(dict.fromkeys(values[~missing_in(values)].tolist())) if values.dtype.kind in "OUTiub" else []
    if not 1 < len(known) <= MOST_CATEGORIES:
        return
    text, here = values.dtype.kind in "OUT", some.values(field)
    # By what the reference is given in the place of all categories: the part of each one's rows that agree then.
    fits: dict[Any, dict[Any, float]] = {}
    for other in [*known, UNSEEN] if text else known:
        effect = some.run(_handed_on(some, field, _filled(values, other)))
        agrees = np.zeros(len(some), dtype=bool) if effect is None else effect.agrees
        fits[other] = {one: float(agrees[here == one].mean()) for one in known if (here == one).any()}
    best = {one: max(fits, key=lambda other: (fits[other].get(one, 0.0), other == one)) for one in known}
    taken = {one: other for one, other in best.items() if other != one}
    if taken and all(fits[other][one] >= REPRODUCES for one, other in taken.items()):
        made = values.astype(object)
        made[:] = [taken.get(value, value) for value in values.tolist()]
        words = {other: "one never seen" if other == UNSEEN else repr(other) for other in taken.values()}
        told = listed([f"{one!r} for {words[other]}" for one, other in taken.items()], SHOWN)
        yield f"read by other categories ({told})", made if text else made.astype(values.dtype)


def _in_another_unit(case: Case, field: Field) -> Iterator[tuple[str, Array]]:
    """Numbers times the factor with which the reference comes nearest to the candidate, and simple ones beside it."""
    values, few = Trial.whole(case).values(field), Trial.few(case)
    if values.dtype.kind not in "iuf":
        return

    apart = _apart(few, field, lambda power: values * 10.0**power)
    tried = {power: apart(power) for power in POWERS}
    nearest = min(tried, key=lambda power: tried[power])
    # Between two powers a factor such as 1.3 may lie, which neither is near to.
    if nearest and tried[nearest] > HALFWAY * few.gap():
        return
    step = POWERS[1] - POWERS[0]
    power, left = _nearest(apart, nearest - step, nearest + step)
    if left > NEARER * few.gap():
        return
    factor = float(10.0**power)
    for simple in (round(factor, 1), 1 / max(round(1 / factor, 1), 0.1), factor):
        if abs(simple / factor - 1) <= SIMPLE:
            told = f"times {simple:.6g}" if simple > 1 else f"divided by {1 / simple:.6g}"
            yield told, values * simple


def _ways(values: Array) -> Iterator[tuple[str, Array]]:
    """The column as a service may hand it on, where that makes a difference."""
    if values.dtype.kind == "f":
        for digits in range(4):
            yield f"rounded to {digits} decimals", np.round(values, digits)
        yield "cut to whole numbers", np.trunc(values)
    if values.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            yield from ((told, way(values.astype(np.float64))) for told, way in NUMBERS.items())
        for step in _steps(values):
            yield f"rounded to {step:,}s", np.round(values / step) * step
            yield f"rounded down to {step:,}s", np.floor(values / step) * step
    if values.dtype.kind == "M":
        for hours in HOURS:
            yield _clock(hours), values + np.timedelta64(hours, "h")
    if values.dtype.kind not in "OUT":
        return
    texts = values.tolist()
    if not any(isinstance(text, str) for text in texts):
        return
    longest = max(len(text) for text in texts if isinstance(text, str))
    ways = {**SPELT, **CLOCKS, **{f"cut to {size} characters": _cut(size) for size in LENGTHS if size < longest}}
    for told, way in ways.items():
        made = np.empty(len(texts), dtype=object)
        made[:] = [way(text) if isinstance(text, str) else text for text in texts]
        if made.tolist() != texts:
            yield told, made


def _steps(values: Array) -> list[int]:
    """Whole numbers to which people round such a column: two, five, ten and so on, up to half of its range."""
    known = values[np.isfinite(values)]
    largest = float(np.ptp(known)) / 2 if len(known) else 0.0
    steps = (lead * 10**power for power in range(10) for lead in (2, 5, 10))
    return list(takewhile(lambda step: step <= largest, steps))


def _cut(size: int) -> Callable[[str], str]:
    return lambda text: text[:size]


def _defaults(values: Array) -> Iterator[tuple[str, Array]]:
    """What may stand in all rows of a column: its most frequent values, its mean, what people write for nothing."""
    known, counts = np.unique(values[~missing_in(values)], return_counts=True)
    found: list[Any] = known[np.argsort(-counts, kind="stable")[:MOST_DEFAULTS]].tolist()
    if values.dtype.kind in "iuf" and len(known):
        found = [*DEFAULTS, float(np.mean(known)), float(np.median(known)), *found]
    for value in found if values.dtype.kind in "iuf" else [*found, ""]:
        yield f"filled with {value!r}", _filled(values, value)


def _filled(values: Array, value: Any) -> Array:
    return np.full(len(values), value, dtype=values.dtype if values.dtype.kind in "iuf" else object)


def _ignored(case: Case, field: Field) -> bool:
    """Do the answers stay as they are when the values of a column change their rows?"""
    few = Trial.few(case)
    turned = np.roll(few.values(field), 1)
    answers = few.ask(Change("candidate", cells=[Edit(field, np.ones(len(few), dtype=bool), turned)]))
    return answers is not None and few.moved(answers, few.candidate) == 0.0


@probe("stale-weights", when=lambda case: _is_served(case) and bool(case.model("candidate").options.get("previous")))
def another_version(case: Case) -> Iterator[Explained]:
    """A model file that was behind the address before, or may be: are these its answers?"""
    path = str(case.model("candidate").options["previous"])
    other: Model = describe_model(path)
    if other.framework != case.framework("reference"):
        return
    yield from shown(
        case,
        [
            Claim(
                "stale-weights",
                Place("model"),
                f"{path} answers as the service does: {HEALED} agree",
                "Put the new model behind the address, and see that the service loads it",
                (Change("reference", target=path),),
                simplicity=1,
            )
        ],
    )


@probe("tree-count", when=lambda case: _is_closed(case) and case.native("reference") is not None)
def trees_behind(case: Case) -> Iterator[Explained]:
    """Trees that the reference holds and does not use, as after early stopping, are used behind the answers."""
    _, model = steps_before(case.native("reference"))
    held = trees_of(model)
    every = None if held is None or held.stored <= held.trees else cut_to(case.native("reference"), held.stored)
    if every is None or held is None:
        return
    yield from shown(
        case,
        [
            Claim(
                "tree-count",
                Place(f"{held.stored} trees instead of {held.trees}"),
                f"the reference holds {held.stored} trees and uses {held.trees}; with all of them it answers as the "
                f"candidate does: {HEALED} agree",
                "Save the model with the trees that predict uses: booster[:best_iteration + 1] (XGBoost), "
                "save_model(num_iteration=best_iteration) (LightGBM)",
                (Change("reference", target=every),),
            )
        ],
    )


EXTENSIONS = (changed_by_the_service, another_version, trees_behind)
