"""What a service does to rows before its model sees them, and which model that is.

Inside a service, or the code around a model, nothing can be looked at or changed. So the reference is asked what may
have been asked there: columns with a default in them, text that was cut, dates read the other way round, numbers
without their decimals. Where its answers are those of the candidate then, that is what happens there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, missing_in
from likewise.explain.case import Case, Explained, probe
from likewise.explain.experiment import Change, Claim, Trial, run, shown
from likewise.explain.features import fields_of, place_of
from likewise.registry import describe_model

SERVED, CODE = ("endpoints", "captured"), "python"
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100, 128, 200, 255, 256)
"""Characters to which people cut a column of text."""

DEFAULTS = (0.0, 1.0, -1.0, 99.0, 999.0, -999.0)
MOST_DEFAULTS = 256
"""Values of a column, the most frequent ones, that are tried as what a service fills in."""

DATE = re.compile(r"^(\d{1,2})([./-])(\d{1,2})(?=\2\d)|(?<=\d{4}[./-])(\d{1,2})([./-])(\d{1,2})(?!\d)")
"""Day and month of a date that begins or ends with them."""

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


def _is_served(case: Case) -> bool:
    return case.framework("candidate") in SERVED and case.framework("reference") not in SERVED


def _is_closed(case: Case) -> bool:
    """Is the candidate nothing but its answers, and can the reference be asked something else?"""
    return _is_served(case) or (case.framework("candidate") == CODE and case.framework("reference") != "recorded")


@probe("preprocessing-differs", when=lambda case: _is_closed(case) and bool(fields_of(case)))
def changed_by_the_service(case: Case) -> Iterator[Explained]:
    """Each column in turn, as a service may hand it on; the first way that gives the service's answers."""
    for field in fields_of(case):
        values = Trial.whole(case).values(field)
        # What nothing is known of any more, such as words in capital letters, is ignored like what is not handed on.
        ways = chain(_ways(values), _defaults(values) if _ignored(case, field) else _limits(case, values))
        yield from _first(case, field, ways)


def _first(case: Case, field: Field, ways: Iterator[tuple[str, Array]]) -> Iterator[Explained]:
    few, whole = Trial.few(case), Trial.whole(case)
    for told, values in ways:
        # A few rows first, of the column as it would be handed on: most ways lead nowhere.
        seen = few.run(_handed_on(few, field, values))
        if seen is None or not seen.promising:
            continue
        effect = run(case, _handed_on(whole, field, values))
        if effect is not None and effect.explains:
            who = "service" if _is_served(case) else "candidate"
            evidence = f"with {field.name} {told}, the reference answers as the {who} does: {effect.agreeing}"
            remedy = f"Hand {field.name} on to the model as it came"
            yield effect.explained("preprocessing-differs", place_of([field]), evidence, remedy)
            return


def _handed_on(trial: Trial, field: Field, values: Array) -> Change:
    everywhere = np.ones(len(trial), dtype=bool)
    return Change("reference", cells=[Edit(field, everywhere, values[trial.positions])], whole=True)


def _limits(case: Case, values: Array) -> Iterator[tuple[str, Array]]:
    """Numbers bounded where rows begin to fail, on either side: by the last value before, by that, or between."""
    failing = case.required.failing
    if values.dtype.kind not in "iuf" or failing.all() or not np.isfinite(values[failing]).any():
        return
    good, bad = values[~failing].astype(np.float64), values[failing].astype(np.float64)
    least, most = float(np.nanmin(bad)), float(np.nanmax(bad))
    for limit in dict.fromkeys((float(good[good < least].max(initial=-np.inf)), float(np.floor(least)), least)):
        if np.isfinite(limit):
            yield f"bounded to at most {limit:g}", np.minimum(values, limit).astype(values.dtype)
    for limit in dict.fromkeys((float(good[good > most].min(initial=np.inf)), float(np.ceil(most)), most)):
        if np.isfinite(limit):
            yield f"bounded to at least {limit:g}", np.maximum(values, limit).astype(values.dtype)


def _ways(values: Array) -> Iterator[tuple[str, Array]]:
    """The column as a service may hand it on, where that makes a difference."""
    if values.dtype.kind == "f":
        for digits in range(4):
            yield f"rounded to {digits} decimals", np.round(values, digits)
        yield "cut to whole numbers", np.trunc(values)
    if values.dtype.kind not in "OUT":
        return
    texts = values.tolist()
    if not any(isinstance(text, str) for text in texts):
        return
    longest = max(len(text) for text in texts if isinstance(text, str))
    ways = {**SPELT, **{f"cut to {size} characters": _cut(size) for size in LENGTHS if size < longest}}
    for told, way in ways.items():
        made = np.empty(len(texts), dtype=object)
        made[:] = [way(text) if isinstance(text, str) else text for text in texts]
        if made.tolist() != texts:
            yield told, made


def _cut(size: int) -> Callable[[str], str]:
    return lambda text: text[:size]


def _defaults(values: Array) -> Iterator[tuple[str, Array]]:
    """What may stand in all rows of a column: its most frequent values, its mean, what people write for nothing."""
    known, counts = np.unique(values[~missing_in(values)], return_counts=True)
    found: list[Any] = known[np.argsort(-counts, kind="stable")[:MOST_DEFAULTS]].tolist()
    if values.dtype.kind in "iuf" and len(known):
        found = [*DEFAULTS, float(np.mean(known)), float(np.median(known)), *found]
    for value in found if values.dtype.kind in "iuf" else [*found, ""]:
        filled = np.full(len(values), value, dtype=values.dtype if values.dtype.kind in "iuf" else object)
        yield f"filled with {value!r}", filled


def _ignored(case: Case, field: Field) -> bool:
    """Do the answers stay as they are when the values of a column change their rows? On record, nobody can be asked."""
    if case.framework("candidate") == "captured":
        return True
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
                f"{path} answers as the service does: {{failing rows healed}} agree",
                "Put the new model behind the address, and see that the service loads it",
                (Change("reference", target=path),),
                simplicity=1,
            )
        ],
    )


EXTENSIONS = (changed_by_the_service, another_version)
