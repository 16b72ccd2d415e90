"""Categories that a model was not fitted with, or in another spelling, are handled differently."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.data.cells import Edit, Field, missing_in, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial, association, patience, separates, smallest
from likewise.explain.fields import fields_of
from likewise.explain.fitted import graph_words, known_categories
from likewise.models.sklearn.inside import Known

MORE_OFTEN = 2.0
"""Rows with a strange value must fail so many times as often as others."""

MOST_TRIED = 40
"""Known categories that an unknown one is tried as."""

SHOWN = 3
"""Strange values that are named."""


def _unaccented(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "blanks around it": str.strip,
    "upper and lower case": str.casefold,
    "accents": _unaccented,
    "blanks and case": lambda text: text.strip().casefold(),
    "the form of its characters": lambda text: unicodedata.normalize("NFC", text),
}


@dataclass(frozen=True, slots=True)
class Strange:
    """The values of a feature that are not among those known, and whose knowledge that is."""

    values: frozenset[Any]
    ordinary: frozenset[Any]
    whose: str
    rare: bool = False

    def in_(self, array: Array) -> Array:
        return np.array([value in self.values for value in array.tolist()], dtype=bool)


class Categories:
    """Put a known category in the place of the strange ones, for both models, and see whether they then agree."""

    causes = ("unknown-category",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return bool(case.once(_strange))

    def test(self, case: Case) -> Sequence[Explained]:
        strange = case.once(_strange)
        trial = Trial.some(case)
        masks = {field: found.in_(trial.values(field)) for field, found in strange.items()}
        masks = {field: mask for field, mask in masks.items() if (mask & trial.failing).any()}
        few = _columns(trial, masks)
        if not few:
            found = _by_their_company(case, strange) if case.native("reference") is None else None
            return [] if found is None else [found]
        whole = Trial.whole(case)
        marked = {field: strange[field].in_(whole.values(field)) for field in few}
        effect = whole.ordinary(marked)
        rows = np.logical_or.reduce(list(marked.values()))
        if effect is None or not effect.explains or association(rows, whole.failing) < MORE_OFTEN:
            return []
        names = names_of(few)
        how = _taken_for(trial, few[0], strange[few[0]], masks[few[0]]) if len(few) == 1 else None
        return [
            Explained(
                "unknown-category",
                names,
                f"{_told(whole, few[0], strange[few[0]])}; {int((rows & whole.failing).sum()):,} of "
                f"{int(whole.failing.sum()):,} failing rows have such a value, and with a known one in its place, for "
                f"both models, {int(effect.covered.sum()):,} agree" + (f"; {how}" if how else ""),
                f"Map such values of {names} to a known category before the model is called, or fit again with them "
                "(handle_unknown='ignore' is kept by most exporters)",
                covered=effect.covered,
                simplicity=3,
            )
        ]


def _by_their_company(case: Case, strange: Mapping[Field, Strange]) -> Explained | None:
    """The column with a strange value in the failing rows and hardly in others, where the reference cannot be asked."""
    whole = Trial.whole(case)
    for field, found in strange.items():
        marked = found.in_(whole.values(field))
        if separates(marked, whole.failing):
            return Explained(
                "unknown-category",
                field.name,
                f"{_told(whole, field, found)}; {int((marked & whole.failing).sum()):,} of "
                f"{int(whole.failing.sum()):,} failing rows have such a value, and "
                f"{int((marked & ~whole.failing).sum()):,} that agree; the reference's answers are only on record, so "
                "that it could not be asked with another value",
                f"Map such values of {field.name} to a known category before the model is called",
                covered=marked & whole.failing,
                simplicity=5,
            )
    return None


def _strange(case: Case) -> dict[Field, Strange]:
    """The features with values that the model does not know, as far as that can be told."""
    words = graph_words(case)
    found = {field: _strange_in(case, field, words) for field in fields_of(case)}
    return {field: strange for field, strange in found.items() if strange is not None}


def _strange_in(case: Case, field: Field, words: frozenset[str]) -> Strange | None:
    sample = case.required
    values = field.of(sample.batch.inputs)
    known = known_categories(case, field)
    if known is None and values.dtype.kind not in "OUT":
        return None
    present = values[~missing_in(values)]
    here = set(present.tolist())
    if known is not None:
        return _by_encoder(here, known)
    text = {value for value in here if isinstance(value, str)}
    if text & words:
        unknown = text - words
        return Strange(frozenset(unknown), frozenset(text & words), "the candidate's graph") if unknown else None
    return _by_spelling(present, sample.failing[~missing_in(values)], text)


def _by_encoder(here: set[Any], known: Known) -> Strange | None:
    unknown = here - known.values
    if unknown:
        return Strange(frozenset(unknown), frozenset((here & known.values) - known.rare), known.whose)
    rare = here & known.rare
    return Strange(frozenset(rare), frozenset(here - rare), known.whose, rare=True) if rare else None


def _by_spelling(values: Array, failing: Array, text: set[str]) -> Strange | None:
    """Values that always fail and are a commoner one, which never does, in another spelling."""
    failed, agreed = set(values[failing].tolist()), set(values[~failing].tolist())
    bad = text & (failed - agreed)
    twins = {
        value
        for value in bad
        for alike in SPELLINGS.values()
        for other in agreed - failed
        if _alike(value, other, alike)
    }
    return Strange(frozenset(twins), frozenset(agreed), "the other rows") if twins else None


def _alike(one: Any, other: Any, spelt: Callable[[str], str]) -> bool:
    return isinstance(one, str) and isinstance(other, str) and spelt(one) == spelt(other)


def _columns(trial: Trial, masks: Mapping[Field, Array]) -> tuple[Field, ...]:
    """The fewest columns whose strange values carry the failure; none if they do not."""

    def effect(some: Sequence[Field]) -> Effect | None:
        return trial.ordinary({field: masks[field] for field in some})

    if not masks:
        return ()
    suspects = sorted(masks, key=lambda field: -association(masks[field], trial.failing))
    together = effect(suspects)
    if together is None or not together.explains:
        return ()
    bar = 0.95 * together.share

    def does(some: Sequence[Field]) -> bool:
        found = effect(some)
        return found is not None and found.share >= bar

    return smallest(suspects, does)


def _told(whole: Trial, field: Field, strange: Strange) -> str:
    """Which values, and why they are strange."""
    values = whole.values(field)[strange.in_(whole.values(field)) & whole.failing]
    words = list(dict.fromkeys(values.tolist()))
    shown = ", ".join(map(repr, words[:SHOWN])) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
    verb = "is rare" if strange.rare else "is unknown"
    text = f"{shown} in {field.name} {verb if len(words) == 1 else verb.replace('is', 'are')} to {strange.whose}"
    for told, spelt in SPELLINGS.items():
        if words and all(any(_alike(word, other, spelt) for other in strange.ordinary) for word in words):
            return f"{text}, which has it in another spelling ({told})"
    return text


def _taken_for(trial: Trial, field: Field, strange: Strange, mask: Array) -> str | None:
    """What one model makes of the strange values: a spelling of its own, or one particular category."""
    more = patience(trial.case)
    for told, replacement in _stand_ins(trial.values(field), strange, mask):
        for side, other in (("reference", "candidate"), ("candidate", "reference")):
            effect = trial.run(Change(side, cells=[Edit(field, mask, replacement)])) if more() else None
            if effect is not None and effect.share > 0 and float(effect.agrees[mask].mean()) >= 0.95:
                return f"the {other} takes it for {told}: given that, the {side} agrees with it"
    return None


def _stand_ins(values: Array, strange: Strange, mask: Array) -> Iterator[tuple[str, Any]]:
    for told, spelt in SPELLINGS.items():
        twins = {spelt(other): other for other in strange.ordinary if isinstance(other, str)}
        marked = values[mask].tolist()
        if marked and all(isinstance(value, str) and spelt(value) in twins for value in marked):
            respelt = values.astype(object)
            respelt[mask] = [twins[spelt(value)] for value in marked]
            yield f"the same without regard to {told}", respelt
    for category in sorted(strange.ordinary, key=str)[:MOST_TRIED]:
        yield repr(category), category


EXTENSION = Categories()
