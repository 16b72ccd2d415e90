"""Text is split or normalised in another way by the candidate."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, listed
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.first_wrong_step import WrongStep, first_wrong_step
from likewise.explain.trace import columns_behind, reference_steps
from likewise.models.sklearn.inside import Step

CLEARLY = 0.02
"""A further trait is named if without it so many more of the failing rows agree."""

MOST_TRAITS = 3

BY_PATTERN = {
    "accents",
    "words with letters beyond a-z",
    "words of one letter",
    "underscores",
    "punctuation",
    "numbers",
}
"""Traits that are a matter of the pattern that words are found with."""


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about texts that two tokenizers may treat in different ways, and the texts without it."""

    name: str
    without: Callable[[str], str]


class Tokenizing:
    """Take a trait (accents, capitals, punctuation …) out of the texts on both sides: does the difference go?"""

    causes = ("tokenizer",)
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return case.required.batch.stacked and any(step.reads_text for step in reference_steps(case))

    def test(self, case: Case) -> Sequence[Explained]:
        wrong = first_wrong_step(case)
        if wrong is not None and (not wrong.step.reads_text or wrong.same_words):
            return []
        steps = [wrong.step] if wrong is not None else [step for step in reference_steps(case) if step.reads_text]
        for step in steps:
            for field in columns_behind(case, step, text=True):
                found = _explained(case, step, field, wrong)
                if found is not None:
                    return [found]
        return []


def _explained(case: Case, step: Step, field: Field, wrong: WrongStep | None) -> Explained | None:
    traits, effect = _traits_at_fault(case, step, field, wrong)
    if wrong is None and effect is None:
        return None
    told = " and ".join(trait.name for trait in traits)
    shown = [] if wrong is None else [_words(wrong)]
    if effect is not None:
        looked_at = "" if wrong is None else " looked at"
        shown.append(f"with {told} taken out of {field.name} on both sides, {effect.told}{looked_at} agree")
    covered = wrong.covered if wrong is not None else effect.covered if effect is not None else None
    return Explained(
        "tokenizer",
        Place(
            step.name,
            (f"step '{step.path}'", f"column {field.name}", *([told] if told else [])),
            path=step.path,
            columns=(field.name,),
        ),
        "; ".join(shown),
        _remedy(step, traits),
        covered=covered,
        share=None if wrong is None else wrong.share,
        simplicity=3 if wrong is None else 2,
    )


def _traits_at_fault(
    case: Case, step: Step, field: Field, wrong: WrongStep | None
) -> tuple[list[Trait], Effect | None]:
    """The fewest traits without which the failing rows agree; a milder one goes before a stronger."""
    trial, traits = Trial.some(case) if wrong is None else wrong.trial, _traits(step)
    chosen: list[Trait] = []
    reached = 0.0
    while len(chosen) < MOST_TRAITS and reached < 1.0:
        shares = {t.name: _without(trial, field, [*chosen, t]) for t in traits if t not in chosen}
        known = {name: effect.share for name, effect in shares.items() if effect is not None}
        best = max(known, key=lambda name: round(known[name] / CLEARLY), default=None)
        if best is None or known[best] < reached + CLEARLY:
            break
        chosen.append(next(trait for trait in traits if trait.name == best))
        reached = known[best]
    if not chosen:
        return [], None
    # The step alone is the proof where it was found; else the texts have to be, all of them.
    whole = _without(Trial.whole(case) if wrong is None else trial, field, chosen)
    return (chosen, whole) if whole is not None and whole.explains else ([], None)


def _without(trial: Trial, field: Field, traits: Sequence[Trait]) -> Effect | None:
    """Both sides asked about the texts without these traits."""
    before = trial.values(field)
    after = np.empty(len(before), dtype=object)
    after[:] = before.tolist()
    for trait in traits:
        after[:] = [trait.without(text) if isinstance(text, str) else text for text in after.tolist()]
    marked = np.array([a is not b and a != b for a, b in zip(after.tolist(), before.tolist(), strict=True)], dtype=bool)
    if not (marked & trial.failing).any():
        return None
    cells = [Edit(field, marked, after)]
    effect = trial.run(Change("reference", cells=cells), Change("candidate", cells=cells))
    # Rows that keep their text keep failing, whatever is answered to the others.
    return None if effect is None else Effect(effect.agrees & (marked | ~trial.failing), trial.failing)


def _traits(step: Step) -> list[Trait]:
    """From the mildest to the strongest."""
    found = [
        Trait("runs of white space", lambda text: " ".join(text.split())),
        Trait("capital letters", str.lower),
        Trait("accents", _unaccented),
        Trait("words with letters beyond a-z", lambda text: re.sub(r"\w*[^\W\x00-\x7f]\w*", " ", text)),
        Trait("words of one letter", lambda text: re.sub(r"\b\w\b", " ", text)),
        Trait("underscores", lambda text: text.replace("_", " ")),
        Trait("punctuation", lambda text: re.sub(r"[^\w\s]|_", " ", text)),
        Trait("numbers", lambda text: re.sub(r"\w*\d\w*", " ", text)),
    ]
    words = _stop_words(step.estimator)
    if words:
        stop = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(words)))})\b", re.IGNORECASE)
        found.append(Trait("stop words", lambda text: stop.sub(" ", text)))
    return found


def _unaccented(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def _stop_words(vectorizer: Any) -> list[str]:
    get = getattr(vectorizer, "get_stop_words", None)
    words = None if get is None else get()
    return [] if not words else [word for word in words if isinstance(word, str) and word]


def _words(wrong: WrongStep) -> str:
    """The words that the graph overlooks, and those that it finds where they are not."""
    failing = wrong.trial.failing
    ours, theirs = wrong.expected[failing] != 0, wrong.found[failing] != 0
    told = []
    for verb, mask in (("overlooks", ours & ~theirs), ("finds words that are not there:", theirs & ~ours)):
        names = _most(wrong.step.estimator, mask)
        if names:
            told.append(f"{verb} {listed(names, 3)}")
    rows = int((ours != theirs).any(axis=1).sum())
    return (
        f"on {rows} of {int(failing.sum())} failing rows looked at the graph finds other words than "
        f"{type(wrong.step.estimator).__name__} '{wrong.step.path}'" + (f": it {' and '.join(told)}" if told else "")
    )


def _most(vectorizer: Any, mask: Array) -> list[str]:
    counts = mask.sum(axis=0)
    order = [int(column) for column in np.argsort(-counts, kind="stable") if counts[column]]
    names = getattr(vectorizer, "vocabulary_", None)
    if not isinstance(names, dict):
        return []
    known = {int(column): str(word) for word, column in names.items()}
    return [f"'{known[column]}' (in {int(counts[column])})" for column in order if column in known]


def _remedy(step: Step, traits: Sequence[Trait]) -> str:
    estimator = step.estimator
    usual = getattr(estimator, "token_pattern", None) == r"(?u)\b\w\w+\b" and estimator.analyzer == "word"
    if usual and traits and all(trait.name in BY_PATTERN for trait in traits):
        return (
            "Export with scikit-learn's own token pattern (likewise export does), or "
            r"to_onnx(model, options={id(step): {'tokenexp': r'[\p{L}\p{N}_]{2,}'}})"
        )
    what = f"take {' and '.join(trait.name for trait in traits)} out of" if traits else "normalise"
    return (
        "Export the fitted pipeline again: likewise export MODEL --data DATA -o model.onnx; if the words differ still, "
        f"{what} the text before the model, in training and in production"
    )


EXTENSION = Tokenizing()
