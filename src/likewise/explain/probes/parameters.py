"""A setting or a rule of an estimator that the candidate was not told of: the reference is asked with another one.

Converters know the parameters that most people set and pass over others: the weights of neighbours, the norm of a
normaliser, the rule of a vote. What no parameter says they may do in their own way: which of equally near neighbours
are taken, what lies between two points. Nothing is fitted again: what only matters while fitting changes no answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import Change, Trial
from likewise.models.onnx import edits
from likewise.models.sklearn.walk import MOST_MEMBERS, TEXT, Part, Role, joined, parts, with_parts

ENOUGH = 0.9
"""Of the failing rows, so many have to agree: a setting that was passed over is so for all of them."""

MOST_PAIRS = 40
"""Settings of one estimator that are tried two at a time, where none alone explains anything."""

Settings = Sequence[tuple[str, Any]]

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

VOTES = frozenset(("weights", "voting"))

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
    """Give one parameter of one estimator another value, or two, and see whether the reference answers alike."""
    native = case.native("reference")
    read, counts = _read(case), _counts(case)
    settings = [
        (path, estimator, [one for one in _others(estimator, counts) if one[0] in read.get(path, set()) - FITTING])
        for path, estimator in _estimators(native)
    ]
    singles = ((path, estimator, (one,)) for path, estimator, others in settings for one in others)
    pairs = [
        (path, estimator, (one, other))
        for path, estimator, others in settings
        for one, other in combinations(others, 2)
        if one[0] != other[0]
    ]
    pairs.sort(key=lambda pair: -sum(name in PUTTING_TOGETHER for name, _ in pair[2]))

    def does(trial: Trial, found: tuple[str, Any, Settings]) -> experiment.Effect | None:
        _, estimator, given = found
        return trial.run(Change("reference", target=_with(native, estimator, given)))

    shown = experiment.first(case, chain(singles, islice(pairs, MOST_PAIRS)), does, enough=ENOUGH)
    if shown is None:
        return None
    (path, estimator, given), effect = shown
    kind = type(estimator).__name__
    now, was = (
        ", ".join(f"{name}={value!r}" for name, value in side)
        for side in (given, [(name, getattr(estimator, name)) for name, _ in given])
    )
    told = f"{now} instead of {was}"
    return effect.explained(
        _cause(estimator, [name for name, _ in given]),
        Place(path or kind, (told,), path=path),
        f"with {told} in {' '.join(filter(None, (kind, path)))} the reference answers like the candidate on "
        f"{effect.told}",
        Remedy(
            suggestion=f"Fit the model with {now} if that will do; else teach the converter what {was} of {kind} means",
            again="Export again from this reference",
        ),
        simplicity=3,
    )


def _counts(case: Case) -> list[int]:
    """The numbers that the candidate counts by: how many neighbours, columns or places it takes."""
    proto = case.graph()
    stored = {} if proto is None else edits.constants(proto.graph)
    return sorted({array.item() for array in stored.values() if array.dtype.kind == "i" and array.size == 1})


def _cause(estimator: Any, names: Sequence[str]) -> str:
    if names[0] not in COUNTING and any(kind.__name__ in TEXT for kind in type(estimator).__mro__):
        return "tokenizer"
    if not VOTES.isdisjoint(names):
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


def _others(estimator: Any, counts: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Other values that parameters may have: default, words they are chosen from, yes for no, one more, `counts`."""
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
            near = [was + step for step in range(SHORTEST, LONGEST)]
            values += [count for count in (*counts, *near) if count > 0]
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


def _with(model: Any, estimator: Any, given: Settings) -> Any:
    """A copy of the model whose estimator has other values of some parameters."""

    def other(found: Any) -> Any:
        made = copy(found)
        for name, value in given:
            setattr(made, name, value)
        return made

    return _exchanged(model, lambda found: other(found) if found is estimator else None)


def _exchanged(model: Any, exchange: Callable[[Any], Any]) -> Any:
    """A copy of the model with another estimator wherever `exchange` has one for it."""

    def inside(part: Part) -> Any:
        return _exchanged(part.estimator, exchange)

    other = exchange(model)
    return with_parts(model, inside) if other is None else other


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Another rule for estimators of a kind: what is said of it, and such an estimator that goes by it.

    `steps` are those that it is about, where it is not about the estimator as a whole.
    """

    cause: str
    kind: str
    told: str
    remedy: str
    make: Callable[[Any], Any]
    steps: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """A classifier in the place of its calibrated self."""

    estimator: Any
    classes: Any

    def predict_proba(self, X: Any) -> Array:
        shares: Array = self.estimator.predict_proba(X)
        return shares


def _uncalibrated(estimator: Any, *, first: bool) -> Any:
    """A calibrated classifier that passes on what its members say: all of them, or the first."""
    members = getattr(estimator, "calibrated_classifiers_", [])[: 1 if first else None]
    if not members or not all(hasattr(member.estimator, "predict_proba") for member in members):
        return None
    made = copy(estimator)
    made.calibrated_classifiers_ = [_AsItIs(member.estimator, member.classes) for member in members]
    return made


def _exchanged_steps(model: Any) -> Iterator[Rule]:
    """For every two steps of a pipeline that follow one another: the pipeline with them the other way round."""
    for path, pipeline in _estimators(model):
        named = getattr(pipeline, "steps", ())
        for place in range(len(named) - 2) if type(pipeline).__name__ == "Pipeline" else ():
            (one, _), (other, _) = both = named[place : place + 2]
            order = [*named[:place], *reversed(both), *named[place + 2 :]]
            kinds = [type(estimator).__name__ for _, estimator in both]
            # Where gaps are filled is a matter of missing values.
            if not all(hasattr(e, "transform") for _, e in both) or any("Imputer" in kind for kind in kinds):
                continue

            def make(found: Any, pipeline: Any = pipeline, order: Sequence[Any] = order) -> Any:
                if found is not pipeline:
                    return None
                made = copy(pipeline)
                made.steps = list(order)
                return made

            steps = joined(path, one), joined(path, other)
            names = " and ".join(f"'{step}'" for step in steps)
            told = f"having {names} in the other order"
            remedy = f"Export the pipeline with {names} in the order in which it was fitted"
            yield Rule("preprocessing-differs", "Pipeline", told, remedy, make, steps)


MISTAKEN = (("log", "log1p"), ("exp", "expm1"), ("log", "log10"), ("log", "log2"), ("sqrt", "cbrt"))
"""Functions of numpy that are taken for one another."""


def _mistaken(estimator: Any, *, func: str, other: str) -> Any:
    """A step that applies another function than its own, which has nearly the same name."""
    if estimator.func is not getattr(np, func):
        return None
    made = copy(estimator)
    made.func = getattr(np, other)
    return made


RULES = (
    *(
        Rule(
            "preprocessing-differs",
            "FunctionTransformer",
            f"taking np.{other} in the place of np.{func}",
            f"Apply np.{func}, as the reference does",
            partial(_mistaken, func=func, other=other),
        )
        for pair in MISTAKEN
        for func, other in (pair, pair[::-1])
    ),
    *(
        Rule(
            "model-part-dropped",
            "CalibratedClassifierCV",
            f"giving what {whom} {say} without the calibration",
            "Export the calibrated classifier, not the one inside",
            partial(_uncalibrated, first=first),
        )
        for first, whom, say in ((False, "its members", "say"), (True, "its first member", "says"))
    ),
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
    "model-part-dropped",
    "operator-semantics",
    "preprocessing-differs",
    "tie-breaking",
    when=lambda case: case.framework("reference") == "sklearn" and case.native("reference") is not None,
)
def other_rules(case: Case) -> Explained | None:
    """Let all estimators of a kind go by another rule, and see whether the reference answers like the candidate."""
    native = case.native("reference")
    rules = [*RULES, *_exchanged_steps(native)]
    concerned = {rule: [(p, e) for p, e in _estimators(native) if rule.of(e) is not None] for rule in rules}

    def does(trial: Trial, rule: Rule) -> experiment.Effect | None:
        return trial.run(Change("reference", target=_exchanged(native, rule.of)))

    shown = experiment.first(case, [rule for rule in rules if concerned[rule]], does, enough=ENOUGH)
    if shown is None:
        return None
    rule, effect = shown
    paths = [*rule.steps] or [path for path, _ in concerned[rule] if path]
    kind = type(concerned[rule][0][1]).__name__
    return effect.explained(
        rule.cause,
        Place(kind, (listed(paths),) if paths else (), path=paths[0] if rule.steps or len(paths) == 1 else ""),
        f"with {kind} {rule.told}, the reference answers like the candidate on {effect.told}",
        Remedy(suggestion=rule.remedy, again="Export again from this reference"),
        simplicity=1 if rule.steps else 2,
    )


EXTENSIONS = (passed_over, other_rules)
