"""A setting of an estimator that the candidate was not told of: the reference is asked with another value of it.

Converters know the parameters that most people set and pass over others: the weights of neighbours, the norm of a
normaliser, the rule of a vote. Nothing is fitted again: what only matters while fitting changes no answer here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from copy import copy
from typing import Any

from likewise.contracts.report import Place
from likewise.explain import experiment
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import Change, Trial
from likewise.models.sklearn.walk import MOST_MEMBERS, TEXT, Part, Role, joined, parts, with_parts

ENOUGH = 0.9
"""Of the failing rows, so many have to agree: a setting that was passed over is so for all of them."""

SHORTEST, LONGEST = -2, 3
"""Counts are tried so far below and above what they are."""

FITTING = {
    "verbose",
    "n_jobs",
    "random_state",
    "warm_start",
    "copy",
    "copy_X",
    "criterion",
    "n_estimators",
    "bootstrap",
}
"""Parameters that are looked up while answering and change no answer of a fitted model."""

PUTTING_TOGETHER = ("weights", "voting", "n_neighbors")
"""Parameters by which an estimator says how much each of several counts."""

COUNTING = {"norm", "use_idf", "smooth_idf", "sublinear_tf", "binary"}
"""Parameters of a vectoriser that say what is made of counts, not how text is split."""


@probe(
    "aggregation",
    "operator-semantics",
    "preprocessing-differs",
    "tokenizer",
    when=lambda case: case.framework("reference") == "sklearn" and case.native("reference") is not None,
)
def passed_over(case: Case) -> Explained | None:
    """Give one parameter of one estimator another value, and see whether the reference answers like the candidate."""
    native = case.native("reference")
    read = _read(case)
    tries = (
        (path, estimator, name, value)
        for path, estimator in _estimators(native)
        for name, value in _others(estimator)
        if name in read.get(path, ()) and name not in FITTING
    )

    def does(trial: Trial, found: tuple[str, Any, str, Any]) -> experiment.Effect | None:
        _, estimator, name, value = found
        return trial.run(Change("reference", target=_with(native, estimator, name, value)))

    shown = experiment.first(case, tries, does, enough=ENOUGH)
    if shown is None:
        return None
    (path, estimator, name, value), effect = shown
    kind, was = type(estimator).__name__, getattr(estimator, name)
    told = f"{name}={value!r} instead of {name}={was!r}"
    return effect.explained(
        _cause(estimator, name),
        Place(path or kind, (told,), path=path),
        f"with {told} in {' '.join(filter(None, (kind, path)))} the reference answers like the candidate on "
        f"{effect.told}",
        Remedy(
            suggestion=f"Fit the model with {name}={value!r} if that will do; else teach the converter what "
            f"{name}={was!r} of {kind} means",
            again="Export again from this reference",
        ),
        simplicity=3,
    )


def _cause(estimator: Any, name: str) -> str:
    if name not in COUNTING and any(kind.__name__ in TEXT for kind in type(estimator).__mro__):
        return "tokenizer"
    if name in PUTTING_TOGETHER:
        return "aggregation"
    return "operator-semantics" if hasattr(estimator, "predict") else "preprocessing-differs"


def _estimators(model: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every estimator of scikit-learn inside another, with its path; trees and many members alike are left out."""
    if type(model).__module__.startswith("sklearn.tree"):
        return
    if hasattr(model, "get_params") and type(model).__module__.startswith("sklearn."):
        yield path, model
    found = list(parts(model))
    many = sum(part.role is Role.MEMBER for part in found) > MOST_MEMBERS
    for part in found:
        if not (many and part.role is Role.MEMBER):
            yield from _estimators(part.estimator, joined(path, part.name))


def _read(case: Case) -> dict[str, set[str]]:
    """What each estimator looks up of itself while it answers: no other parameter can matter to an answer."""
    found: dict[str, set[str]] = {}

    def watched(estimator: Any, path: str) -> Any:
        made = with_parts(estimator, lambda part: watched(part.estimator, joined(path, part.name)))
        if not hasattr(estimator, "get_params"):
            return made
        kind, names = type(estimator), found.setdefault(path, set())

        def look(self: Any, name: str) -> Any:
            names.add(name)
            return object.__getattribute__(self, name)

        made = copy(estimator) if made is estimator else made
        place = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": look}
        try:
            made.__class__ = type(kind.__name__, (kind,), place)
        except TypeError:  # a class that does not take another in its place
            return made
        names.clear()
        return made

    Trial.few(case).run(Change("reference", target=watched(case.native("reference"), "")))
    return found


def _others(estimator: Any) -> Iterator[tuple[str, Any]]:
    """Other values that parameters may have: their default, the words they are chosen from, yes for no, one more."""
    known = getattr(estimator, "_parameter_constraints", {})
    defaults = inspect.signature(type(estimator).__init__).parameters
    for name, was in vars(estimator).items():
        # A function is no setting: without it the step does nothing, which is told of steps.
        if name not in defaults or callable(was):
            continue
        values = [defaults[name].default, *_options(known.get(name, ()))]
        if isinstance(was, bool):
            values.append(not was)
        elif isinstance(was, int):
            values += [was + step for step in range(SHORTEST, LONGEST) if was + step > 0]
        tried: list[Any] = [was]
        for value in values:
            plain = value is None or isinstance(value, str | bool | int | float)
            if plain and not any(type(value) is type(one) and value == one for one in tried):
                tried.append(value)
                yield name, value


def _options(constraints: Any) -> Iterator[Any]:
    """The words that scikit-learn itself allows for a parameter."""
    for constraint in constraints if isinstance(constraints, list | tuple) else ():
        options = getattr(constraint, "options", None)
        if isinstance(options, set | frozenset):
            yield from sorted(option for option in options if isinstance(option, str))
        elif constraint is None:
            yield None


def _with(model: Any, estimator: Any, name: str, value: Any) -> Any:
    """A copy of the model whose estimator has another value of a parameter."""
    if model is estimator:
        other = copy(model)
        setattr(other, name, value)
        return other

    def inside(part: Part) -> Any:
        return _with(part.estimator, estimator, name, value)

    return with_parts(model, inside)


EXTENSIONS = (passed_over,)
