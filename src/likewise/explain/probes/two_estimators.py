"""Both models are estimators of scikit-learn, such as a pipeline before and after somebody fitted or changed it.

Nothing has to be read off a graph: parts stand for one another by their paths, and where they differ, the reference's
is put into the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.sklearn.walk import walk, with_parts

SHOWN = 3
"""Parts, and attributes of a part, that are named."""

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


def _both(case: Case) -> bool:
    natives = [case.native(side) for side in ("reference", "candidate")]
    return all(hasattr(model, "get_params") for model in natives)


@probe("preprocessing-differs", "stale-weights", when=_both)
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
    prepares = all(not hasattr(part.theirs, "predict") for part in culprits)
    named = listed([part.told for part in culprits], SHOWN)
    return effect.explained(
        "preprocessing-differs" if prepares else "stale-weights",
        Place(named, path=culprits[0].path if len(culprits) == 1 else ""),
        f"the candidate's {named} differ from the reference's; with the reference's in their place, {effect.agreeing}",
        Remedy("Save the candidate again from the pipeline that was fitted, without fitting or changing a part of it"),
        simplicity=1,
    )


def _apart(reference: Any, candidate: Any) -> list[Apart]:
    """The parts of one path and kind that differ in what is their own: what they hold has a path of its own."""
    ours = dict(walk(reference))
    found = []
    for path, theirs in walk(candidate):
        mine = ours.get(path)
        if mine is None or type(mine) is not type(theirs) or not hasattr(theirs, "get_params"):
            continue
        held, wanted = vars(theirs), vars(mine)
        names = [name for name in held.keys() | wanted.keys() if _differ(held.get(name), wanted.get(name))]
        if names:
            found.append(Apart(path, mine, theirs, tuple(sorted(names))))
    return found


def _differ(one: Any, other: Any) -> bool:
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
