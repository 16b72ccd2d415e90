"""Which upgrade was it? The same model with the packages of before and of after, and the smallest set that tells.

Packages are upgraded in halves, then one at a time, until no smaller set changes the answers (delta debugging). What
cannot be installed together is passed over, and said.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from likewise.contracts.models import Elsewhere
from likewise.contracts.results import BisectResult, Trial, Upgrade
from likewise.contracts.verdict import Outcome, counted
from likewise.errors import UsageError
from likewise.models.environments.make import name_of

PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;\\#]+)")
PYTHON = re.compile(r"python[\d.]*t?d?(\.exe)?", re.I)
"""How interpreters are called. A lock file may be called `python-3.11.txt`, and a stranger may mark it as a program."""

INSTALLED = (
    "from importlib.metadata import distributions as d;"
    "print('\\n'.join(sorted('%s==%s' % (p.metadata['Name'], p.version) for p in d())))"
)
TOOLS = ("pip", "setuptools", "wheel", "uv")
"""What installs packages, and answers nothing."""

QUICK = {"batch_sizes": (), "edge": "off", "explain": False}

Compare = Callable[[Sequence[str], Sequence[str]], tuple[Outcome, str]]
"""The outcome, and its headline, of the model with some packages against the model with others."""


def bisect(
    model: str | os.PathLike[str],
    data: Any,
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    python: str | None = None,
    compare: Compare | None = None,
    tell: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> BisectResult:
    """The smallest set of packages whose upgrade changes the answers of a model.

    `old` and `new` are files of `name==version` lines (lock files, `pip freeze`), or the Pythons of two environments.
    `python` is the interpreter that environments are made for; other options are those of `check`.
    """
    before, after = pins(old), pins(new)
    changed = upgrades(before, after)
    compare = compare or _compared(model, data, python, options)
    differing = f"{counted(len(changed), 'packages')} {'differs' if len(changed) == 1 else 'differ'}"
    tell(f"{differing}; {_expected(len(changed))}")
    trials: dict[frozenset[str], Trial] = {}

    def differs(chosen: Iterable[Upgrade]) -> bool:
        """Do the answers change with these upgrades? Where it cannot be told, they are not the ones."""
        names = frozenset(upgrade.name for upgrade in chosen)
        if names not in trials:
            mixed = {**before, **{name: after.get(name, "") for name in names}}
            outcome, told = compare(_listed(before), _listed(mixed))
            trials[names] = Trial(tuple(sorted(names)), outcome, told)
            tell(f"{outcome}: {', '.join(sorted(names)) if len(names) <= 4 else f'{len(names)} packages'} upgraded")
        return trials[names].outcome is Outcome.FAIL

    if not changed:
        return BisectResult(os.fspath(model), Outcome.PASS, changed)
    if not differs(changed):
        return BisectResult(os.fspath(model), next(iter(trials.values())).outcome, changed, trials=(*trials.values(),))
    culprits = smallest(changed, differs)
    rest = tuple(upgrade for upgrade in changed if upgrade not in culprits)
    alike = not differs(rest) if rest else True
    told = trials.get(frozenset(upgrade.name for upgrade in rest))
    known = told is None or told.outcome is not Outcome.INCONCLUSIVE
    return BisectResult(
        os.fspath(model), Outcome.FAIL, changed, culprits, alike if known else None, tuple(trials.values())
    )


def smallest(changed: Sequence[Upgrade], differs: Callable[[Sequence[Upgrade]], bool]) -> tuple[Upgrade, ...]:
    """A set that differs and of which no part was found that does, asked in halves first (Zeller's ddmin)."""
    current, parts = list(changed), 2
    while len(current) > 1:
        cuts = [len(current) * part // parts for part in range(parts + 1)]
        pieces = [current[start:stop] for start, stop in pairwise(cuts)]
        others = [[entry for entry in current if entry not in piece] for piece in pieces] if parts > 2 else []
        found = next((part for part in (*pieces, *others) if differs(part)), None)
        if found is not None:
            parts = 2 if found in pieces else max(parts - 1, 2)
            current = found
        elif parts >= len(current):
            break
        else:
            parts = min(len(current), 2 * parts)
    return tuple(current)


def pins(source: str | os.PathLike[str]) -> dict[str, str]:
    """The version of every package in a lock file or in an environment, by name."""
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="Give a lock file, the output of pip freeze, or a Python")
    if os.access(path, os.X_OK) and PYTHON.fullmatch(path.name):
        # By its place: a name alone would be looked for among the programs of the system.
        words = [os.path.abspath(path), "-I", "-c", INSTALLED]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        text = done.stdout
    else:
        text = path.read_text(encoding="utf-8", errors="replace")
    found = {name_of(pin[1]): pin[2] for line in text.splitlines() if (pin := PIN.match(line.strip()))}
    if not found:
        raise UsageError(
            f"{path} pins no package", remedy="Write lines such as scikit-learn==1.5.2: pip freeze > old.txt"
        )
    return {name: version for name, version in found.items() if name not in TOOLS}


def upgrades(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Upgrade, ...]:
    """What differs, by name; a package that one side does not have has no version there."""
    names = sorted({*before, *after})
    return tuple(
        Upgrade(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def _listed(versions: Mapping[str, str]) -> list[str]:
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if version]


def _expected(count: int) -> str:
    """How many environments are made: at best one for every halving, and three beside them."""
    return (
        f"about {3 + 2 * math.ceil(math.log2(count))} environments are made"
        if count > 1
        else "two environments are made"
    )


def _compared(model: str | os.PathLike[str], data: Any, python: str | None, options: Mapping[str, Any]) -> Compare:
    def compare(before: Sequence[str], after: Sequence[str]) -> tuple[Outcome, str]:
        from likewise.tasks.check import check

        place = {"python": python} if python else {}
        old, new = (Elsewhere(os.fspath(model), {"with": list(pins), **place}) for pins in (before, after))
        report = check(old, new, data, **{**QUICK, **options})
        return report.outcome, report.headline

    return compare
