"""Both models are estimators of scikit-learn, such as a pipeline before and after somebody fitted or changed it.

Nothing has to be read off a graph: parts stand for one another by their paths, and where they differ, the reference's
is put into the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.weight_arrays import Pattern, pattern, unequal
from likewise.models.sklearn.walk import walk, with_parts

SHOWN = 3
"""Parts, and attributes of a part, that are named."""

TOKENS = frozenset(
    [
        *("analyzer", "lowercase", "ngram_range", "preprocessor"),
        *("stop_words", "strip_accents", "token_pattern", "tokenizer"),
    ]
)
"""What vectorisers call the ways to cut text into words."""

DEEPEST = 3
"""Lists within each other in which estimators are looked for."""


class Apart(NamedTuple):
    """A part that differs: where it is, both sides of it, and the attributes in which they differ."""

    path: str
    ours: Any
    theirs: Any
    names: tuple[str, ...]

    @property
    def told(self) -> str:
        """The part and what differs, in words."""
        return f"{self.path or type(self.theirs).__name__} ({listed(self.names, SHOWN)})"

    @property
    def patterns(self) -> dict[str, Pattern]:
        """In what way fitted numbers differ; nothing of an attribute that is not numbers of one shape."""
        found = {}
        for name in self.names:
            held, wanted = (np.asarray(_numbers(getattr(part, name, None))) for part in (self.theirs, self.ours))
            if held.shape == wanted.shape and all(array.dtype.kind in "iuf" for array in (held, wanted)):
                found[name] = pattern(np.atleast_1d(held), np.atleast_1d(wanted), np.atleast_1d(unequal(held, wanted)))
        return found


def _cause(culprits: Sequence[Apart]) -> str:
    """What happened to these parts: an accident leaves most of what was learnt as it was, a training does not."""
    if all(TOKENS.issuperset(part.names) for part in culprits):
        return "tokenizer"
    if all(not hasattr(part.theirs, "predict") for part in culprits):
        return "preprocessing-differs"
    if all(set(part.names) <= part.theirs.get_params(deep=False).keys() for part in culprits):
        return "operator-semantics"
    patterns = [part.patterns for part in culprits]
    if any(len(found) < len(part.names) for found, part in zip(patterns, culprits, strict=True)):
        return "stale-weights"
    every = [found for of_part in patterns for found in of_part.values()]
    if all(found.zero for found in every):
        return "model-part-dropped"
    return "weight-corruption" if all(found.regular or found.zero for found in every) else "stale-weights"


def _both(case: Case) -> bool:
    natives = [case.native(side) for side in ("reference", "candidate")]
    return all(hasattr(model, "get_params") for model in natives)


@probe(
    *("preprocessing-differs", "stale-weights", "weight-corruption", "model-part-dropped", "tokenizer"),
    "operator-semantics",
    when=_both,
)
def two_estimators(case: Case) -> Explained | None:
    """Put the reference's part in the place of each that differs; then as few as are enough."""
    apart = _apart(case.native("reference"), case.native("candidate"))

    def does(trial: Trial, some: Sequence[Apart]) -> Effect | None:
        return trial.run(Change(target=_with(case, some)))

    few = experiment.fewest(case, apart, does) if len(apart) > 1 else (apart, None)
    if not apart or few is None:
        return None
    culprits = [part for part in apart if part in few[0]]
    effect = experiment.run(case, Change(target=_with(case, culprits)))
    if effect is None or not effect.explains:
        return None
    named = listed([part.told for part in culprits], SHOWN)
    how = [f"{name}: {found.text}" for part in culprits for name, found in part.patterns.items()]
    also = f" ({listed(how, SHOWN)})" if how else ""
    return effect.explained(
        _cause(culprits),
        Place(named, path=culprits[0].path if len(culprits) == 1 else ""),
        f"the candidate's {named} differ from the reference's{also}; with the reference's in their place, "
        f"{effect.agreeing}",
        Remedy("Save the candidate again from the pipeline that was fitted, without fitting or changing a part of it"),
        # The reference in the candidate's place agrees with itself, whatever the cause is.
        simplicity=1 if all(part.theirs is not case.native("candidate") for part in culprits) else 4,
    )


def _apart(reference: Any, candidate: Any) -> list[Apart]:
    """The parts of one path and kind that differ in what is their own: what they hold has a path of its own."""
    # What a part keeps for itself, as a power transformer its scaler, has no path of its own.
    ours = {(path, type(part)): part for path, part in walk(reference)}
    found = []
    for path, theirs in walk(candidate):
        mine = ours.get((path, type(theirs)))
        if mine is None or not hasattr(theirs, "get_params"):
            continue
        held, wanted = vars(theirs), vars(mine)
        names = [name for name in held.keys() | wanted.keys() if _differ(held.get(name), wanted.get(name))]
        if names:
            found.append(Apart(path, mine, theirs, tuple(sorted(names))))
    return found


def _numbers(value: Any) -> Any:
    """What was learnt, of what keeps it in memory of its own: the nodes of a tree, the points of a search tree."""
    if hasattr(value, "children_left") and hasattr(value, "threshold"):
        parts = (value.children_left, value.children_right, value.feature, value.threshold, value.value)
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])
    if hasattr(value, "get_arrays"):  # beside them it counts how often it was asked
        return [np.asarray(array) for array in value.get_arrays()]
    return value


def _differ(one: Any, other: Any) -> bool:
    one, other = _numbers(one), _numbers(other)
    if _holds_estimators(one) or _holds_estimators(other):
        return False
    import joblib  # of scikit-learn, which is loaded where there is an estimator

    try:
        return bool(joblib.hash(one) != joblib.hash(other))
    except Exception:  # noqa: BLE001 - what cannot be pickled is not compared
        return False


def _holds_estimators(value: Any, depth: int = DEEPEST) -> bool:
    if hasattr(value, "get_params"):
        return True
    if isinstance(value, Mapping):
        value = list(value.values())
    objects = getattr(getattr(value, "dtype", None), "kind", "") == "O" and hasattr(value, "ravel")
    held = value.ravel().tolist() if objects else value
    return depth > 0 and isinstance(held, list | tuple) and any(_holds_estimators(entry, depth - 1) for entry in held)


def _with(case: Case, some: Sequence[Apart]) -> Any:
    """The candidate with the reference's parts in the place of some."""
    others = {id(part.theirs): part.ours for part in some}

    def exchanged(model: Any) -> Any:
        return others.get(id(model)) or with_parts(model, lambda part: exchanged(part.estimator))

    return exchanged(case.native("candidate"))


EXTENSIONS = (two_estimators,)
