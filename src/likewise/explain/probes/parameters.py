"""A setting or a rule of an estimator that the candidate was not told of: the reference is asked with another one.

Converters know the parameters that most people set and pass over others: the weights of neighbours, the norm of a
normaliser, the rule of a vote. What no parameter says they may do in their own way: which of equally near neighbours
are taken, what lies between two points. Nothing is fitted again: what only matters while fitting changes no answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
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

    def other(found: Any) -> Any:
        made = copy(found)
        setattr(made, name, value)
        return made

    return _exchanged(model, lambda found: other(found) if found is estimator else None)


def _exchanged(model: Any, exchange: Callable[[Any], Any]) -> Any:
    """A copy of the model with another estimator wherever `exchange` has one for it."""

    def inside(part: Part) -> Any:
        return _exchanged(part.estimator, exchange)

    other = exchange(model)
    return with_parts(model, inside) if other is None else other


@dataclass(frozen=True, slots=True)
class Rule:
    """Another rule for estimators of a kind: what is said of it, and such an estimator that goes by it."""

    cause: str
    kind: str
    told: str
    remedy: str
    make: Callable[[Any], Any]

    def of(self, estimator: Any) -> Any:
        """The estimator by this rule; None if it is of another kind, or knows no other rule."""
        return self.make(estimator) if any(k.__name__ == self.kind for k in type(estimator).__mro__) else None


def _at_nearest_points(estimator: Any) -> Any:
    """An isotonic regression that gives what it gives at the nearest point it has learnt."""
    from scipy.interpolate import interp1d

    if not hasattr(estimator.f_, "x"):  # it has learnt one point only
        return None
    made, curve = copy(estimator), estimator.f_
    made.f_ = interp1d(curve.x, curve.y, kind="nearest", bounds_error=False, fill_value=(curve.y[0], curve.y[-1]))
    return made


EQUALLY_NEAR = 64
"""Neighbours beyond those wanted that are asked for, so that those as near as the last of them are seen."""


def _first_of_equally_near(estimator: Any) -> Any:
    """Neighbours that, where several are equally near, are those that come first in the data they were fitted to."""

    def kneighbors(X: Any = None, n_neighbors: int | None = None, *, return_distance: bool = True) -> Any:
        count = n_neighbors or estimator.n_neighbors
        distances, found = estimator.kneighbors(X, min(count + EQUALLY_NEAR, estimator.n_samples_fit_))
        order: Array = np.lexsort((found, distances))[:, :count]
        near = (np.take_along_axis(distances, order, 1), np.take_along_axis(found, order, 1))
        return near if return_distance else near[1]

    made = copy(estimator)
    made.kneighbors = kneighbors
    if made.weights == "uniform":  # of which scikit-learn makes a short cut that asks nobody for neighbours
        made.weights = np.ones_like
    return made


RULES = (
    Rule(
        "operator-semantics",
        "IsotonicRegression",
        "giving the value at the nearest point it has learnt, not one between two points",
        "Calibrate with method='sigmoid', or apply the isotonic regression to what the candidate answers without it",
        _at_nearest_points,
    ),
    Rule(
        "tie-breaking",
        "KNeighborsMixin",
        "taking, of equally near neighbours, those that come first in the training data",
        "Nothing where any of them will do: they are equally near; else take the neighbours by a distance without ties",
        _first_of_equally_near,
    ),
)


@probe(
    "operator-semantics",
    "tie-breaking",
    when=lambda case: case.framework("reference") == "sklearn" and case.native("reference") is not None,
)
def other_rules(case: Case) -> Explained | None:
    """Let all estimators of a kind go by another rule, and see whether the reference answers like the candidate."""
    native = case.native("reference")
    concerned = {rule: [(p, e) for p, e in _estimators(native) if rule.of(e) is not None] for rule in RULES}

    def does(trial: Trial, rule: Rule) -> experiment.Effect | None:
        return trial.run(Change("reference", target=_exchanged(native, rule.of)))

    shown = experiment.first(case, [rule for rule in RULES if concerned[rule]], does, enough=ENOUGH)
    if shown is None:
        return None
    rule, effect = shown
    paths = [path for path, _ in concerned[rule] if path]
    kind = type(concerned[rule][0][1]).__name__
    return effect.explained(
        rule.cause,
        Place(kind, (listed(paths),) if paths else (), path=paths[0] if len(paths) == 1 else ""),
        f"with {kind} {rule.told}, the reference answers like the candidate on {effect.told}",
        Remedy(suggestion=rule.remedy, again="Export again from this reference"),
        simplicity=2,
    )


EXTENSIONS = (passed_over, other_rules)
