"""Values that both models take for different things: missing ones, ones that stand for missing, unknown categories."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import MISSING, Edit, Field, missing_in, names_of
from likewise.explain.case import Case, Explained, made_once, probe
from likewise.explain.experiment import (
    ENOUGH,
    HEALED,
    Change,
    Claim,
    Effect,
    Trial,
    association,
    fewest,
    first,
    searching,
    separates,
    shown,
)
from likewise.explain.features import fields_of, graph_words, imputed, known_categories, place_of, unaccented
from likewise.models.sklearn.inside import Known

BOOSTERS = ("XGB", "LGBM", "Booster", "CatBoost")
"""What the names of boosters have in them."""

MORE_OFTEN = 2.0
"""Rows with a suspicious value must fail so many times as often as others, or it is not the value."""

REPRODUCES = 0.95
"""A stand-in is what a model takes a value for if so many of the rows that have it agree then."""

HUGE = 1e30
"""Above every threshold of a tree and still a float32."""

NUMBERS = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS = ("", "nan", "NaN", "None", "NA", "N/A", "null", "?", "missing", "unknown")
"""What people write for a value that is missing."""

MOST_TRIED = 40
"""Known categories that an unknown one is tried as."""

MOST_FREQUENT = 12
"""Words of a column that a missing one is tried as."""

SHOWN = 3
"""Strange values that are named."""


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


def _by_company(
    case: Case, cause: str, masks: Masks, what: Callable[[Field], str], remedy: Callable[[str], str]
) -> Explained | None:
    """The one feature with suspicious values in failing rows and hardly in others, if the reference is on record."""
    if case.native("reference") is not None:
        return None
    for field in _suspects(case, masks):
        if separates(masks[field], case.required.failing):
            return Explained(
                cause,
                place_of([field]),
                f"{what(field)}; the reference's answers are only on record, so that it could not be asked with "
                "another value",
                remedy(field.name),
                covered=masks[field] & case.required.failing,
                simplicity=5,
            )
    return None


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


@made_once
def _missing(case: Case) -> dict[Field, Array]:
    masks = {field: missing_in(field.of(case.required.batch.inputs)) for field in fields_of(case)}
    return {field: mask for field, mask in masks.items() if mask.any()}


@probe("missing-value-handling", when=lambda case: bool(_suspects(case, _missing(case))))
def missing_values(case: Case) -> Explained | None:
    """Put ordinary values in the place of missing ones; then find the value that one model takes them for."""
    masks, whole = _missing(case), Trial.whole(case)
    few = _columns(case, masks)
    if not few:
        return _by_company(
            case,
            "missing-value-handling",
            masks,
            lambda field: _counts(case, masks[field], f"{field.name} missing"),
            _impute,
        )
    here = {field: masks[field] for field in few}
    taken = _stand_in(case, here, _encodings(case, here))
    effect = None if taken is None else _instead(taken.side, here, taken.values, whole, few)
    if taken is not None and effect is not None and effect.explains:
        shown = (
            f"given {taken.told} instead, the {taken.side} agrees with the {taken.other} on "
            f"{int(effect.covered.sum()):,} of them: the {taken.other} takes a missing value for {taken.told}"
        )
    else:
        effect = _ordinary(masks, whole, few)
        if effect is None or not effect.explains:
            return None
        shown = f"with an ordinary value in its place, for both models, {int(effect.covered.sum()):,} agree"
    rows = _anywhere(masks, few)
    if taken is None and association(rows, whole.failing) < MORE_OFTEN:
        return None
    names = names_of(few)
    return effect.explained(
        "missing-value-handling",
        place_of(few),
        f"{_counts(case, rows, f'{names} missing')}; {shown}",
        f"Fill missing {names} before the candidate is called, as the reference does: with {taken.told}"
        if taken is not None and taken.side == "candidate"
        else _impute(names),
        simplicity=3,
    )


def _impute(names: str) -> str:
    return f"Impute {names} in a step of the pipeline before it is fitted, and export that, or before both models"


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
    if kinds <= set("biuf"):
        known = {field: array[np.isfinite(array)].astype(np.float64) for field, array in columns.items()}
        yield "0", dict.fromkeys(masks, 0.0)
        fitted = {field: value for field in masks if isinstance(value := imputed(case, field), float)}
        if len(fitted) == len(masks):
            shown = ", ".join(f"{value:g}" for value in list(fitted.values())[:SHOWN])
            yield f"what the imputer was fitted to put in ({shown})", fitted
        yield "larger than every other value", dict.fromkeys(masks, HUGE)
        yield "smaller than every other value", dict.fromkeys(masks, -HUGE)
        for sentinel in (-1.0, -999.0, -9999.0, 999.0, 1.0):
            yield f"{sentinel:g}", dict.fromkeys(masks, sentinel)
        if all(len(values) for values in known.values()):
            for told, statistic in (("mean", np.mean), ("median", np.median), ("smallest value", np.min)):
                yield f"the {told} of the column", {field: float(statistic(values)) for field, values in known.items()}
    elif not kinds & set("biufmM"):
        for word in ("", "nan", "None", "missing", "NaN", "Missing", "unknown", "NA"):
            yield f"the text '{word}'" if word else "empty text", dict.fromkeys(masks, word)
        yield "a category that was never seen", dict.fromkeys(masks, "\x7fnever seen")
        if len(masks) == 1:
            ((field, array),) = columns.items()
            words, counts = np.unique(array[~masks[field]].astype(str), return_counts=True)
            for word in words[np.argsort(-counts, kind="stable")][:MOST_FREQUENT].tolist():
                yield f"the text '{word}'", {field: word}


@probe("missing-value-handling", when=lambda case: next(_sentinels(case), None) is not None)
def sentinel_values(case: Case) -> Explained | None:
    """Feed one model nothing where the other may read nothing, and see whether they then agree."""
    for value, masks in searching(case, _sentinels(case)):
        nothing = dict.fromkeys(masks, MISSING)
        for side, other in (("candidate", "reference"), ("reference", "candidate")):
            found = fewest(case, _suspects(case, masks), partial(_instead, side, masks, nothing))
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
    rare: bool = False

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
    strange, inputs = _strange(case), case.required.batch.inputs
    masks = {field: found.in_(field.of(inputs)) for field, found in strange.items()}
    found = fewest(case, _suspects(case, masks), partial(_ordinary, masks))
    if found is None:
        return _by_company(
            case,
            "unknown-category",
            masks,
            lambda field: f"{_why_strange(case, field, strange[field])}; {_counts(case, masks[field], 'such a value')}",
            lambda name: f"Map such values of {name} to a known category before the model is called",
        )
    few, effect = found
    rows, field = _anywhere(masks, few), few[0]
    if association(rows, case.required.failing) < MORE_OFTEN:
        return None
    here = {field: masks[field]}
    ways = _known_instead(case, field, strange[field], masks[field])
    taken = _stand_in(case, here, ways) if len(few) == 1 else None
    also = (
        ""
        if taken is None
        else f"; the {taken.other} takes it for {taken.told}: given that, the {taken.side} agrees with it"
    )
    return effect.explained(
        "unknown-category",
        place_of(few),
        f"{_why_strange(case, field, strange[field])}; {_counts(case, rows, 'such a value')}; with a known one "
        f"in its place, for both models, {int(effect.covered.sum()):,} agree{also}",
        f"Map such values of {names_of(few)} to a known category before the model is called, or fit again with "
        "them (handle_unknown='ignore' is kept by most exporters)",
        simplicity=3,
    )


def _strange_in(case: Case, field: Field, words: frozenset[str]) -> Strange | None:
    values = field.of(case.required.batch.inputs)
    known = known_categories(case, field)
    if known is None and values.dtype.kind not in "OUT":
        return None
    present = ~missing_in(values)
    here = set(values[present].tolist())
    if known is not None:
        return _by_encoder(here, known)
    text = {value for value in here if isinstance(value, str)}
    if text & words:
        unknown = text - words
        return Strange(frozenset(unknown), frozenset(text & words), "the candidate's graph") if unknown else None
    return _by_spelling(values[present], case.required.failing[present], text)


def _by_encoder(here: set[Any], known: Known) -> Strange | None:
    unknown = here - known.values
    if unknown:
        return Strange(frozenset(unknown), frozenset((here & known.values) - known.rare), known.whose)
    rare = here & known.rare
    return Strange(frozenset(rare), frozenset(here - rare), known.whose, rare=True) if rare else None


def _by_spelling(values: Array, failing: Array, text: set[str]) -> Strange | None:
    """Values that always fail and are a commoner one, which never does, in another spelling."""
    failed, agreed = set(values[failing].tolist()), set(values[~failing].tolist())
    sound = [other for other in agreed - failed if isinstance(other, str)]
    twins: set[str] = set()
    for spelt in SPELLINGS.values():
        known = set(map(spelt, sound))
        twins |= {value for value in text & (failed - agreed) if spelt(value) in known}
    return Strange(frozenset(twins), frozenset(agreed), "the other rows") if twins else None


def _why_strange(case: Case, field: Field, strange: Strange) -> str:
    """Which values, and why they are strange."""
    values = field.of(case.required.batch.inputs)
    words = list(dict.fromkeys(values[strange.in_(values) & case.required.failing].tolist()))
    shown = ", ".join(map(repr, words[:SHOWN])) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
    what = f"{'is' if len(words) == 1 else 'are'} {'rare' if strange.rare else 'unknown'}"
    text = f"{shown} in {field.name} {what} to {strange.whose}"
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


@probe("missing-value-handling", when=lambda case: _pipeline(case) is not None)
def sparse_zeros(case: Case) -> Iterator[Explained]:
    """Hand a booster behind a sparse step its input dense: in a sparse matrix it takes zeros for missing values."""
    yield from shown(case, [_dense(_pipeline(case))])


def _pipeline(case: Case) -> Any:
    """The reference, if it is a pipeline that ends in a booster; None otherwise."""
    model = case.native("reference")
    model = getattr(model, "best_estimator_", model)
    if "sklearn" not in sys.modules or not hasattr(model, "steps") or len(model.steps) < 2:
        return None
    return model if any(word in type(model.steps[-1][1]).__name__ for word in BOOSTERS) else None


def _dense(pipeline: Any) -> Claim:
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    (before, _), (name, booster) = pipeline.steps[-2:]
    dense = FunctionTransformer(_as_dense, accept_sparse=True)
    return Claim(
        "missing-value-handling",
        Place(name, (f"after the sparse step {before!r}",), path=name),
        f"step {before!r} gives a sparse matrix, in which {type(booster).__name__} takes every zero for missing; given "
        f"the same matrix dense, the reference agrees with the candidate on {HEALED}",
        f"Make {before!r} dense (OneHotEncoder(sparse_output=False), ColumnTransformer(sparse_threshold=0)), fit again "
        "and export that",
        (Change("reference", target=Pipeline([*pipeline.steps[:-1], ("dense", dense), (name, booster)])),),
    )


def _as_dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


EXTENSIONS = (missing_values, sentinel_values, categories, sparse_zeros)
