"""Values that both models take for different things, or one refuses: missing ones, stand-ins, unknown categories."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.contracts.verdict import lowered
from likewise.data.cells import MISSING, Edit, Field, listed, missing_in, names_of, transplanted
from likewise.explain.case import Case, Explained, Sample, made_once, probe
from likewise.explain.experiment import (
    ENOUGH,
    Change,
    Effect,
    Trial,
    fewest,
    first,
    searching,
)
from likewise.explain.features import (
    ROWS,
    agreement,
    association,
    fed_sides,
    fields_of,
    first_rows,
    graph_words,
    imputed,
    known_categories,
    place_of,
    separates,
    unaccented,
)

MORE_OFTEN = 2.0
"""Rows with a suspicious value must fail so many times as often as others, or it is not the value."""

REPRODUCES = 0.95
"""A stand-in is what a model takes a value for if so many of the rows that have it agree then."""

HUGE = 1e30
"""Above every threshold of a tree and still a float32."""

NUMBERS = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 1.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS = ("", "nan", "NaN", "None", "NA", "N/A", "null", "?", "missing", "Missing", "unknown")
"""What people write for a value that is missing."""

MOST_TRIED = 40
"""Known categories that an unknown one is tried as."""

MOST_ROWS = 8_192
"""Rows among which one that is refused is looked for."""

MOST_REFUSED = 200
"""Columns, and values of a column, that are tried one by one."""

NEARBY = 40
"""Rows among which one that is answered is looked for."""

SHOWN = 3
"""Strange values that are named."""


REMEDIES = {
    "missing-value-handling": "Impute {} in a step of the pipeline before it is fitted, and export that",
    "unknown-category": "Map such values of {} to a known category before the model is called, or fit again with them "
    "(handle_unknown='ignore' is kept by most exporters)",
}

Masks = Mapping[Field, Array]
"""For each feature the rows of the sample with a suspicious value."""


SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "blanks around it": str.strip,
    "upper and lower case": str.casefold,
    "accents": unaccented,
    "blanks and case": lambda text: text.strip().casefold(),
    "the form of its characters": lambda text: unicodedata.normalize("NFC", text),
}


def _ordinary(masks: Masks, trial: Trial, fields: Sequence[Field]) -> Effect | None:
    """Ordinary values in the place of suspicious ones, for both models."""
    return trial.ordinary({field: masks[field][trial.positions] for field in fields})


def _instead(
    side: str, masks: Masks, values: Mapping[Field, Any], trial: Trial, fields: Sequence[Field]
) -> Effect | None:
    """These values in the place of suspicious ones, for one side."""
    cells = []
    for field in fields:
        value = values[field]
        value = value[trial.positions] if isinstance(value, np.ndarray) else value
        cells.append(Edit(field, masks[field][trial.positions], value))
    return trial.run(Change(side, cells=cells))


def _suspects(case: Case, masks: Masks) -> list[Field]:
    """The features with suspicious values in failing rows, those first that set failing rows apart most."""
    failing = case.required.failing
    found = [field for field, mask in masks.items() if (mask & failing).any()]
    return sorted(found, key=lambda field: -association(masks[field], failing))


def _anywhere(masks: Masks, fields: Sequence[Field]) -> Array:
    rows: Array = np.logical_or.reduce([masks[field] for field in fields])
    return rows


def _counts(case: Case, rows: Array, what: str) -> str:
    failing = case.required.failing
    return (
        f"{int((rows & failing).sum()):,} of {int(failing.sum()):,} failing rows have {what}, and "
        f"{int((rows & ~failing).sum()):,} that agree"
    )


def _by_company(case: Case, cause: str, masks: Masks, what: Callable[[Field], str]) -> Explained | None:
    """The one feature with suspicious values in failing rows and hardly in others, if the reference is on record."""
    if case.native("reference") is not None:
        return None
    failing = case.required.failing
    field = next((field for field in _suspects(case, masks) if separates(masks[field], failing)), None)
    if field is None:
        return None
    told = "the reference's answers are only on record, so that it could not be asked with another value"
    covered = masks[field] & failing
    remedy = REMEDIES[cause].format(field.name)
    return Explained(cause, place_of([field]), f"{what(field)}; {told}", remedy, covered=covered, simplicity=5)


@dataclass(frozen=True, slots=True)
class StandIn:
    """What the other model takes suspicious values for, seen by giving it to this side."""

    side: str
    told: str
    values: Mapping[Field, Any]

    @property
    def other(self) -> str:
        return "candidate" if self.side == "reference" else "reference"


def _stand_in(case: Case, masks: Masks, ways: Iterator[tuple[str, Mapping[Field, Any]]]) -> StandIn | None:
    """The first of some ways with which the rows concerned agree, those included that agreed before."""
    trial, fields = Trial.some(case), list(masks)
    concerned = _anywhere(masks, fields)[trial.positions]
    both = (StandIn(side, *way) for way in ways for side in ("reference", "candidate"))
    for found in searching(case, both):
        effect = _instead(found.side, masks, found.values, trial, fields)
        if effect is not None and effect.share > 0 and float(effect.agrees[concerned].mean()) >= REPRODUCES:
            return found
    return None


def _taken_otherwise(
    case: Case, cause: str, masks: Masks, few: Sequence[Field], what: str, taken: StandIn | None
) -> Explained | None:
    """Suspicious values of a few features, with ordinary ones in their place or what the other model takes them for."""
    whole, rows = Trial.whole(case), _anywhere(masks, few)
    effect = _ordinary(masks, whole, few)
    shown = "with an ordinary value in its place, for both models,"
    remedy = REMEDIES[cause].format(names_of(few))
    if taken is not None:
        instead = _instead(taken.side, masks, taken.values, whole, few)
        if instead is not None and instead.explains:
            effect = instead
            shown = (
                f"the {taken.other} takes it for {taken.told}: given that instead, the {taken.side} agrees with it, and"
            )
        if taken.side == "candidate":
            before = f"Put {taken.told} in its place before the candidate is called, as the reference does"
            remedy = f"{before}, or {lowered(remedy)}"
    if effect is None or not effect.explains or (taken is None and association(rows, whole.failing) < MORE_OFTEN):
        return None
    evidence = f"{_counts(case, rows, what)}; {shown} {effect.agreeing}"
    return effect.explained(cause, place_of(few), evidence, remedy, simplicity=3)


@made_once
def _missing(case: Case) -> dict[Field, Array]:
    masks = {field: missing_in(field.of(case.required.batch.inputs)) for field in fields_of(case)}
    return {field: mask for field, mask in masks.items() if mask.any()}


@probe("missing-value-handling", when=lambda case: bool(_suspects(case, _missing(case))))
def missing_values(case: Case) -> Explained | None:
    """Put ordinary values in the place of missing ones; then find the value that one model takes them for."""
    cause, masks = "missing-value-handling", _missing(case)
    few = _columns(case, masks)
    if not few:
        return _by_company(case, cause, masks, lambda field: _counts(case, masks[field], f"{field.name} missing"))
    here = {field: masks[field] for field in few}
    taken = _stand_in(case, here, _encodings(case, here))
    return _taken_otherwise(case, cause, here, few, f"{names_of(few)} missing", taken)


def _columns(case: Case, masks: Masks) -> tuple[Field, ...]:
    """The fewest columns whose missing values carry the failure; none if they do not."""
    suspects, whole = _suspects(case, masks), Trial.whole(case)
    fillable = [field for field in suspects if whole.donors(field, masks[field]) is not None]
    found = fewest(case, fillable, partial(_ordinary, masks))
    if found is not None:
        return found[0]
    # A column without a single value has no ordinary one to put in; what a model takes it for may still be found.
    empty = tuple(field for field in suspects if field not in fillable)
    if empty or case.native("reference") is not None:
        return empty
    # Where the reference's answers are only on record, the candidate alone is given other values.
    ways = _encodings(case, {field: masks[field] for field in suspects})
    way = first(case, ways, lambda trial, way: _instead("candidate", masks, way[1], trial, suspects), enough=REPRODUCES)
    found = None if way is None else fewest(case, suspects, partial(_instead, "candidate", masks, way[0][1]))
    return () if found is None else found[0]


def _encodings(case: Case, masks: Masks) -> Iterator[tuple[str, dict[Field, Any]]]:
    """What missing values are commonly taken for, the likely first."""
    columns = {field: field.of(case.required.batch.inputs) for field in masks}
    kinds = {array.dtype.kind for array in columns.values()}
    fitted = {field: value for field in masks if (value := imputed(case, field)) is not None}
    if len(fitted) == len(masks):
        yield f"what the imputer was fitted to put in ({listed(list(map(str, fitted.values())), SHOWN)})", fitted
    if kinds <= set("biuf"):
        yield "larger than every other value", dict.fromkeys(masks, HUGE)
        yield "smaller than every other value", dict.fromkeys(masks, -HUGE)
        yield from ((f"{number:g}", dict.fromkeys(masks, number)) for number in NUMBERS)
        known = {field: array[np.isfinite(array)].astype(np.float64) for field, array in columns.items()}
        if all(len(values) for values in known.values()):
            for told, statistic in (("mean", np.mean), ("median", np.median), ("smallest value", np.min)):
                yield f"the {told} of the column", {field: float(statistic(values)) for field, values in known.items()}
    elif not kinds & set("biufmM"):
        yield from ((f"the text '{word}'", dict.fromkeys(masks, word)) for word in WORDS)
        yield "a category that was never seen", dict.fromkeys(masks, "\x7fnever seen")


@probe("missing-value-handling", when=lambda case: next(_sentinels(case), None) is not None)
def sentinel_values(case: Case) -> Explained | None:
    """Feed one model nothing where the other may read nothing, and see whether they then agree."""
    for value, masks in searching(case, _sentinels(case)):
        nothing = dict.fromkeys(masks, MISSING)
        for side, other in (("candidate", "reference"), ("reference", "candidate")):
            suspects = [] if _gives_nothing(case, other) else _suspects(case, masks)
            found = fewest(case, suspects, partial(_instead, side, masks, nothing))
            if found is None:
                continue
            few, effect = found
            names, shown = names_of(few), f"{value:g}" if isinstance(value, float) else repr(value)
            return effect.explained(
                "missing-value-handling",
                place_of(few),
                f"{_counts(case, _anywhere(masks, few), f'{shown} in {names}')}; given a missing value there, "
                f"the {side} agrees with the {other} on {effect.told}: the {other} takes {shown} for missing, "
                f"the {side} does not",
                f"Store a missing {names} as missing, not as {shown}, fit again and export that"
                if side == "candidate"
                else f"Keep {shown} in {names} from being taken for missing when the model is exported",
            )
    return None


def _gives_nothing(case: Case, side: str) -> bool:
    """Is there no number in what a side answers to failing rows? So it is with whoever is asked about nothing."""
    sample = case.required
    answers = (sample.reference if side == "reference" else sample.candidate).values()
    numbers = [array[sample.failing] for array in answers if sample.batch.stacked and array.dtype.kind == "f"]
    return bool(numbers) and not any(np.isfinite(array).any() for array in numbers)


def _sentinels(case: Case) -> Iterator[tuple[Any, dict[Field, Array]]]:
    """The values that may stand for missing, with where they are, if most failing rows have one somewhere."""
    values, failing = {field: field.of(case.required.batch.inputs) for field in fields_of(case)}, case.required.failing
    for sentinel in dict.fromkeys([*_declared_missing(case), *NUMBERS, *WORDS]):
        masks = {
            field: np.asarray(array == sentinel, dtype=bool)
            for field, array in values.items()
            if array.dtype.kind in ("iuf" if isinstance(sentinel, float) else "O")
        }
        masks = {field: mask for field, mask in masks.items() if mask.any()}
        if masks and (_anywhere(masks, list(masks)) & failing).sum() >= ENOUGH * failing.sum():
            yield sentinel, masks


def _declared_missing(case: Case) -> list[float]:
    """What the reference itself says it takes for missing."""
    try:
        found = float(getattr(case.native("reference"), "missing", None))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [found] if found == found else []


@dataclass(frozen=True, slots=True)
class Strange:
    """The values of a feature that are not among those known, and whose knowledge that is."""

    values: frozenset[Any]
    ordinary: frozenset[Any]
    whose: str

    def in_(self, array: Array) -> Array:
        return np.array([value in self.values for value in array.tolist()], dtype=bool)


@made_once
def _strange(case: Case) -> dict[Field, Strange]:
    """The features with values that the model does not know, as far as that can be told."""
    words = graph_words(case)
    found = {field: _strange_in(case, field, words) for field in fields_of(case)}
    return {field: strange for field, strange in found.items() if strange is not None}


@probe("unknown-category", when=lambda case: bool(_strange(case)))
def categories(case: Case) -> Explained | None:
    """Put a known category in the place of the strange ones, for both models, and see whether they then agree."""
    cause, strange, inputs = "unknown-category", _strange(case), case.required.batch.inputs
    masks = {field: found.in_(field.of(inputs)) for field, found in strange.items()}
    found = fewest(case, _suspects(case, masks), partial(_ordinary, masks))
    if found is None:
        return _by_company(case, cause, masks, lambda field: _why_strange(case, field, strange[field]))
    few = found[0]
    if association(_anywhere(masks, few), case.required.failing) < MORE_OFTEN:
        return None
    field, here = few[0], {field: masks[field] for field in few}
    taken = None if len(few) > 1 else _stand_in(case, here, _known_instead(case, field, strange[field], here[field]))
    what = f"such a value: {_why_strange(case, field, strange[field])}"
    return _taken_otherwise(case, cause, here, few, what, taken)


def _strange_in(case: Case, field: Field, words: frozenset[str]) -> Strange | None:
    values = field.of(case.required.batch.inputs)
    known = known_categories(case, field)
    if known is None and values.dtype.kind not in "OUT":
        return None
    present = ~missing_in(values)
    here = set(values[present].tolist())
    if known is not None:
        unknown = here - known.values
        ordinary = frozenset((here & known.values) - known.rare)
        return Strange(frozenset(unknown), ordinary, known.whose) if unknown else None
    text = {value for value in here if isinstance(value, str)}
    strange = text - words
    if not strange or strange == text:
        return None
    return Strange(frozenset(strange), frozenset(text & words), "the candidate's graph")


def _why_strange(case: Case, field: Field, strange: Strange) -> str:
    """Which values, and why they are strange."""
    values = field.of(case.required.batch.inputs)
    words = list(dict.fromkeys(values[strange.in_(values) & case.required.failing].tolist()))
    shown = listed(list(map(repr, words)), SHOWN)
    text = f"{shown} in {field.name} {'is' if len(words) == 1 else 'are'} unknown to {strange.whose}"
    for told, spelt in SPELLINGS.items():
        if words and all(word in _twins(strange, spelt, words) for word in words):
            return f"{text}, which has it in another spelling ({told})"
    return text


def _twins(strange: Strange, spelt: Callable[[str], str], words: Sequence[Any]) -> dict[Any, str]:
    """For each word the known one that is the same in this spelling."""
    known = {spelt(other): other for other in strange.ordinary if isinstance(other, str)}
    return {word: known[spelt(word)] for word in words if isinstance(word, str) and spelt(word) in known}


def _known_instead(
    case: Case, field: Field, strange: Strange, mask: Array
) -> Iterator[tuple[str, Mapping[Field, Any]]]:
    """Known values that a strange one may be taken for: its own in another spelling, or one particular category."""
    values = field.of(case.required.batch.inputs).astype(object)
    words = values[mask].tolist()
    for told, spelt in SPELLINGS.items():
        twins = _twins(strange, spelt, words)
        if words and all(word in twins for word in words):
            respelt = values.copy()
            respelt[mask] = [twins[word] for word in words]
            yield f"the same without regard to {told}", {field: respelt}
    for category in sorted(strange.ordinary, key=str)[:MOST_TRIED]:
        yield repr(category), {field: category}


@probe(
    "unknown-category",
    "missing-value-handling",
    when=lambda case: (
        case.sample is None
        and len(case.runners) == 2
        and any(incident.code == "model" for incident in case.comparison.incidents)
    ),
    needs_answers=False,
)
def refused_rows(case: Case) -> Explained | None:
    """Find a row that is refused, and the column that makes it so: with the value of an answered row it is answered."""
    batch = first_rows(case, MOST_ROWS)
    sides = None if batch is None else fed_sides(case, batch)
    if batch is None or sides is None:
        return None
    # Both are fed these rows, although they do not answer all of them.
    sample = Sample(batch, {}, {}, (), np.zeros(len(batch), dtype=bool), complete=False)
    opened = replace(case, reference=sides[0], candidate=sides[1], sample=sample, known=dict(case.known))
    return _refused_by(opened, "reference") or _refused_by(opened, "candidate")


def _refused_by(case: Case, side: str) -> Explained | None:
    """The column whose value a model refuses, and what is special about that value."""
    border = None if _answers(case, side, np.arange(len(case.required))) else _border(case, side)
    if border is None:
        return None
    two = case.rows(np.array(border))
    for field in fields_of(case)[:MOST_REFUSED]:
        # Is the refused row answered with the value of the answered one in this column?
        if case.ask(side, transplanted(two, {field: np.array([1, 1])})) is not None:
            found = _special(case, side, field, border[0])
            if found is not None:
                return found
    return None


def _border(case: Case, side: str) -> tuple[int, int] | None:
    """A row that is refused, by halving, and one that is answered."""
    low, high = 0, len(case.required)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _answers(case, side, np.arange(low, middle)) else (low, middle)
    if _answers(case, side, np.array([low])):
        return None
    others = sorted(set(range(len(case.required))) - {low}, key=lambda row: abs(row - low))[:NEARBY]
    return next(((low, row) for row in others if _answers(case, side, np.array([row]))), None)


def _answers(case: Case, side: str, rows: Array) -> bool:
    return case.ask(side, case.rows(rows)) is not None


def _special(case: Case, side: str, field: Field, refused: int) -> Explained | None:
    """What is special about the refused value: it is missing, or not among the categories that others have."""
    values = field.of(case.required.batch.inputs)
    gone = missing_in(values)
    if gone[refused]:
        cause, rows = "missing-value-handling", gone
        what = f"in which {field.name} is missing"
    else:
        known = known_categories(case, field)
        if known is None and not isinstance(values[refused], str):
            return None
        rows = _unknown(case, side, values, refused) if known is None else ~np.isin(values, list(known.values))
        if not rows[refused]:
            return None
        cause, rows = "unknown-category", rows & ~gone
        words = ", ".join(repr(word) for word in list(dict.fromkeys(values[rows].tolist()))[:3])
        what = f"with {words} in {field.name}" + ("" if known is None else f", unknown to {known.whose},")
    kept = np.flatnonzero(~rows & ~gone)[:ROWS]
    share = agreement(case, case.rows(kept)) if len(kept) else None
    also = "" if share is None else f"; without these rows both models agree on {share:.0%} of {len(kept):,} others"
    return Explained(
        cause,
        Place(field.name, columns=(field.name,), side=side),
        f"the {side} refuses rows {what} ({int(rows.sum()):,} of {len(values):,}) and answers them with a value of "
        f"another row{also}",
        REMEDIES[cause].format(field.name),
        simplicity=2,
    )


def _unknown(case: Case, side: str, values: Array, refused: int) -> Array:
    """The rows with a value that is refused, each distinct one tried where it stands first."""
    strange = np.zeros(len(values), dtype=bool)
    first = {value: row for row, value in reversed(list(enumerate(values.tolist())))}
    for value, row in list(first.items())[:MOST_REFUSED]:
        if value == values[refused] or not _answers(case, side, np.array([row])):
            strange |= np.asarray(values == value, dtype=bool)
    return strange


EXTENSIONS = (missing_values, sentinel_values, categories, refused_rows)
