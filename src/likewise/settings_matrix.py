"""Several runtime settings of one candidate: which there are, and from which of them on its answers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from likewise.contracts.judging import Finding, Outcome, Severity, SuiteVerdict
from likewise.errors import UsageError

KIND = "setting"
DIVERGES = "setting-diverges"
MOST = 64
"""Settings that are tried in one run: each opens the candidate once more."""

_REMEDY = (
    "Deploy it with a setting that agrees, or look into the one that does not: likewise explain --candidate-option"
)
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
    count = 1
    for values in axes.values():
        count *= len(values)
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


def findings(suites: Sequence[SuiteVerdict]) -> Iterator[Finding]:
    """Where the candidate begins to differ along each option, and which settings could not be tried."""
    tried = [suite for suite in suites if suite.kind == KIND]
    left: dict[tuple[str, bool], list[str]] = {}
    for suite in tried:
        if suite.outcome is Outcome.INCONCLUSIVE:
            left.setdefault((suite.headline, suite.blocks), []).append(suite.name)
    for (reason, blocks), names in left.items():
        severity = Severity.INCONCLUSIVE if blocks else Severity.NOTE
        remedy = "Run the same check where it is" if not blocks else ""
        yield Finding("setting-not-covered", severity, f"not covered: {'; '.join(names)}: {reason}", None, remedy)
    covered = [suite for suite in tried if suite.outcome is not Outcome.INCONCLUSIVE]
    failed = [suite for suite in covered if suite.outcome is Outcome.FAIL]
    if not failed:
        return
    if len(failed) == len(covered):
        every = "under every setting tried" if len(covered) > 1 else f"under {failed[0].name}"
        remedy = "No setting tried makes it agree: look at the answers themselves" if len(covered) > 1 else ""
        yield _failure(f"the candidate differs {every}: {failed[0].headline}", remedy)
        return
    along = list(_along_each_option(covered))
    yield from along
    if not along:
        places = "; ".join(suite.name for suite in failed)
        yield _failure(f"the candidate differs at {places}: {failed[0].headline}")


def _along_each_option(covered: Sequence[SuiteVerdict]) -> Iterator[Finding]:
    """An option tells something when some of its values never differ, whatever the others are."""
    assigned = {suite.name: assigned_in(suite.name) for suite in covered}
    for option in assigned[covered[0].name]:
        values = list(dict.fromkeys(assigned[suite.name].get(option, "") for suite in covered))
        first = {
            value: next(
                (s for s in covered if s.outcome is Outcome.FAIL and assigned[s.name].get(option, "") == value), None
            )
            for value in values
        }
        differing = [value for value in values if first[value] is not None]
        agreeing = [value for value in values if first[value] is None]
        if not differing or not agreeing:
            continue
        begins = values.index(differing[0])
        onward = len(differing) > 1 and differing == values[begins:]
        where = (
            f"from {option}={differing[0]} on" if onward else f"at {' and '.join(f'{option}={v}' for v in differing)}"
        )
        agree = "agrees" if len(agreeing) == 1 else "agree"
        seen = first[differing[0]]
        assert seen is not None
        yield _failure(
            f"the candidate differs {where}; {', '.join(f'{option}={value}' for value in agreeing)} {agree} "
            f"({seen.name}: {seen.headline})"
        )


def _failure(message: str, remedy: str = _REMEDY) -> Finding:
    return Finding(DIVERGES, Severity.FAILURE, message, None, remedy)


def _values(name: object, given: Any) -> tuple[Any, ...]:
    """The values of one option, each once, in the order given."""
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    plain = all(isinstance(value, str | int | float) for value in values)
    if not values or not plain or not str(name) or any(", " in str(value) for value in values):
        raise UsageError(f"matrix: {name} has the values {given!r}", remedy=_FORM)
    return tuple(dict.fromkeys(values))
