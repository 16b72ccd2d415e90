"""What a fault is, and the list of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faults.quiet import quietly
from likewise.contracts.report import CAUSES

PLANTED = "planted"


@dataclass(frozen=True)
class Fault:
    """Two models, data, and what a good explanation says.

    `causes` are the acceptable ones, the preferred first; none for a sound deployment. `culprit` lists
    alternatives, one of which the culprit has to name; of a tuple it has to name every part.
    """

    name: str
    family: str
    reference: Any
    candidate: Any
    data: Any
    causes: tuple[str, ...]
    culprit: tuple[str | tuple[str, ...], ...]
    options: Mapping[str, Any]
    outcome: str


@dataclass(frozen=True)
class Entry:
    """A fault that is not built yet. `origin` says where a natural one was reported or what makes it natural."""

    name: str
    family: str
    told: str
    causes: tuple[str, ...]
    culprit: tuple[str | tuple[str, ...], ...]
    origin: str
    options: Mapping[str, Any]
    outcome: str
    build: Callable[[], tuple[Any, Any, Any]]

    @property
    def natural(self) -> bool:
        return self.origin != PLANTED

    def __call__(self) -> Fault:
        with quietly():
            reference, candidate, data = self.build()
        return Fault(
            self.name,
            self.family,
            reference,
            candidate,
            data,
            self.causes,
            self.culprit,
            self.options,
            self.outcome,
        )


FAULTS: dict[str, Entry] = {}
CONTROLS: dict[str, Entry] = {}
UNEXPLAINED: dict[str, Entry] = {}


def fault(
    *causes: str,
    culprit: Sequence[str | tuple[str, ...]],
    natural: str = PLANTED,
    outcome: str = "FAIL",
    **options: Any,
) -> Any:
    """Register a function that returns reference, candidate and data of a broken deployment.

    `outcome` is the verdict of the check; `options` are those of `likewise.explain`.
    """
    assert causes
    assert set(causes) <= CAUSES, set(causes) - CAUSES
    assert not isinstance(culprit, str), "several alternatives, or a list of one"
    return _registered(FAULTS, causes, tuple(culprit), natural, options, outcome)


def control(**options: Any) -> Any:
    """Register a function that returns reference, candidate and data of a sound deployment."""
    return _registered(CONTROLS, (), (), PLANTED, options, "PASS")


def unexplained(**options: Any) -> Any:
    """Register a function that returns a failure to which no cause of the list belongs: silence is right."""
    return _registered(UNEXPLAINED, (), (), PLANTED, options, "FAIL")


def _registered(
    entries: dict[str, Entry],
    causes: tuple[str, ...],
    culprit: tuple[str | tuple[str, ...], ...],
    origin: str,
    options: Mapping[str, Any],
    outcome: str,
) -> Any:
    def register(build: Callable[[], tuple[Any, Any, Any]]) -> Callable[[], tuple[Any, Any, Any]]:
        # A family may have several files: trees.py, trees_links.py.
        family = build.__module__.rpartition(".")[2].partition("_")[0]
        name = f"{family}/{build.__name__}"
        assert name not in entries, name
        told = " ".join((build.__doc__ or "").split())
        entries[name] = Entry(name, family, told, causes, culprit, origin, options, outcome, build)
        return build

    return register


def named(culprit: str, alternatives: Sequence[str | tuple[str, ...]]) -> bool:
    """Does the text of a culprit name one of the alternatives, whole words and regardless of case?"""
    return any(
        all(_says(culprit, part) for part in (alternative if isinstance(alternative, tuple) else (alternative,)))
        for alternative in alternatives
    )


def _says(text: str, word: str) -> bool:
    return re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text, re.I) is not None
