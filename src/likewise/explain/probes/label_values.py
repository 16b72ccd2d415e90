"""The right classes under other values: labels shifted, positions instead of classes, another spelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.explain import answers
from likewise.explain.case import Case, Explained

CONSISTENT = 0.98
"""A mapping of labels holds on this share of the rows, or it is none."""

FEWEST_ROWS = 5
MOST_VALUES = 2_000
MOST_SHOWN = 6


class LabelValues:
    """Translate the candidate's labels by the one-to-one mapping the rows suggest, and compare again."""

    causes = ("label-mapping",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and bool(answers.failing_labels(case))

    def test(self, case: Case) -> Sequence[Explained]:
        found: dict[int, Mapping[Any, Any]] = {}
        for position in answers.failing_labels(case):
            mapping = _mapping(answers.pairs(case)[position])
            if mapping is not None:
                found[position] = mapping
        changed = {
            position: _mapped(answers.pairs(case)[position].candidate, mapping) for position, mapping in found.items()
        }
        effect = answers.convincing(case, changed) if changed else None
        if effect is None:
            return []
        position, mapping = next(iter(found.items()))
        pair = answers.pairs(case)[position]
        how = _how(mapping, pair)
        return [
            Explained(
                "label-mapping",
                answers.culprit([answers.pairs(case)[p] for p in found], how),
                f"the candidate's labels are the reference's under other values ({_listed(mapping)}): translated back "
                f"they agree on {answers.told(effect)}",
                f"Export with the model's own class values, or translate: {_code(mapping)}",
                covered=effect.covered,
                simplicity=2,
            )
        ]


def _mapping(pair: Pair) -> Mapping[Any, Any] | None:
    """What each label of the candidate stands for, if that is the same on nearly all rows and something else."""
    theirs, ours = _plain(pair.candidate), _plain(pair.reference)
    together = Counter(zip(theirs, ours, strict=True))
    if len(theirs) < FEWEST_ROWS or len(together) > MOST_VALUES:
        return None
    best: dict[Any, tuple[Any, int]] = {}
    for (given, meant), count in together.items():
        if given not in best or count > best[given][1]:
            best[given] = (meant, count)
    consistent = sum(count for _, count in best.values())
    # One row supports any mapping of its label; two rows or more begin to tell.
    supported = sum(count for _, count in best.values() if count >= 2)
    mapping = {given: meant for given, (meant, _) in best.items()}
    several = len(mapping) >= 2 and len(set(mapping.values())) == len(mapping)
    if not several or consistent < CONSISTENT * len(theirs) or supported < 0.8 * len(theirs):
        return None
    return mapping if any(given != meant for given, meant in mapping.items()) else None


def _plain(array: Array) -> list[Any]:
    """Labels as plain values that can be counted; NaN is a label like any other."""
    return ["NaN" if value != value else value for value in array.ravel().tolist()]


def _mapped(array: Array, mapping: Mapping[Any, Any]) -> Array:
    translated = np.empty(array.size, dtype=object)
    translated[:] = [mapping[value] for value in _plain(array)]
    return translated.reshape(array.shape)


def _how(mapping: Mapping[Any, Any], pair: Pair) -> str:
    """The mapping in a few words."""
    pairs = list(mapping.items())
    classes = list(pair.spec.classes or ())
    if all(_is_whole(given) and _is_whole(meant) for given, meant in pairs):
        shifts = {given - meant for given, meant in pairs}
        if len(shifts) == 1 and shifts != {0}:
            return f"shifted by {shifts.pop():+d}"
    if all(_is_whole(given) and 0 <= given < len(classes) and classes[given] == meant for given, meant in pairs):
        return "position instead of class"
    if all(
        _is_whole(meant) and 0 <= meant < len(classes) and str(classes[meant]) == str(given) for given, meant in pairs
    ):
        return "class instead of position"
    if all(_folded(given) == _folded(meant) for given, meant in pairs):
        return "other spelling" if all(isinstance(v, str) for entry in pairs for v in entry) else "text and numbers"
    if set(mapping) == set(mapping.values()):
        return f"exchanged: {_listed(mapping)}"
    return _listed(mapping)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _folded(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip().casefold()
    return text[:-2] if text.endswith(".0") else text


def _listed(mapping: Mapping[Any, Any]) -> str:
    changed = [(given, meant) for given, meant in mapping.items() if given != meant]
    shown = ", ".join(f"{given!r} for {meant!r}" for given, meant in sorted(changed, key=repr)[:MOST_SHOWN])
    return shown + (f" and {len(changed) - MOST_SHOWN} more" if len(changed) > MOST_SHOWN else "")


def _code(mapping: Mapping[Any, Any]) -> str:
    shown = sorted(mapping.items(), key=repr)[:MOST_SHOWN]
    rest = ", …" if len(mapping) > MOST_SHOWN else ""
    return "{" + ", ".join(f"{given!r}: {meant!r}" for given, meant in shown) + rest + "}[label]"


EXTENSION = LabelValues()
