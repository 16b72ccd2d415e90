"""Which runtime settings of a candidate a matrix asks for, and what each is called. Read without arrays or models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from likewise.errors import UsageError

KIND = "setting"
DIVERGES = "setting-diverges"
MOST = 64
"""Settings that are tried in one run: each opens the candidate once more."""

_FORM = "Give options of the candidate's adapter with their values, such as optimization=disable,all threads=1,2"


def axes_from(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The options and their values that `optimization=disable,all threads=1,2` names, in one text or several."""
    axes: dict[str, tuple[str, ...]] = {}
    for word in " ".join(texts).split():
        name, sign, values = word.partition("=")
        found = tuple(value for value in values.split(",") if value)
        if not sign or not name or not found:
            raise UsageError(f"--matrix: {word!r} is not of the form NAME=VALUE,VALUE", remedy=_FORM)
        axes[name] = (*axes.get(name, ()), *found)
    if texts and not axes:
        raise UsageError("--matrix names no setting", remedy=_FORM)
    return axes


def settings_of(matrix: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Every combination of the values, the last option changing fastest."""
    axes = {str(name): _values(name, values) for name, values in matrix.items()}
    count = prod(len(values) for values in axes.values())
    if count > MOST:
        raise UsageError(f"--matrix asks for {count:,} settings, and at most {MOST} are tried", remedy="Name fewer")
    if not axes:
        return ()
    return tuple(dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values()))


def name_of(setting: Mapping[str, Any]) -> str:
    """What a setting is called: `optimization=basic, threads=2`."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def assigned_in(name: str) -> dict[str, str]:
    """The options of a setting with their values, from what it is called."""
    found = {}
    for part in name.split(", "):
        option, _, value = part.partition("=")
        found[option] = value
    return found


def _values(name: object, given: Any) -> tuple[Any, ...]:
    """The values of one option, each once, in the order given."""
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    plain = all(isinstance(value, str | int | float) for value in values)
    if not values or not plain or not str(name) or any(", " in str(value) for value in values):
        raise UsageError(f"matrix: {name} has the values {given!r}", remedy=_FORM)
    return tuple(dict.fromkeys(values))
