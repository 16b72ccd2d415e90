"""A configuration that may be somebody else's: it neither names code to run nor reaches out of its repository."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.contracts.models import PLACES
from likewise.data.patterns import matching
from likewise.data.stores import is_stored
from likewise.errors import UsageError
from likewise.models.python import SPECIFICATION
from likewise.tasks.own_files import is_within, place_of
from likewise.tasks.settings import Settings

CONFIG = "--trust-config, or set LIKEWISE_TRUST_CONFIG=1 in CI"
"""How a user says that a configuration may name code."""

OPENED = ("reference", "candidate", "data", "baseline", "reference_options", "candidate_options", "matrix")
"""Settings that may name files to read, or code to run."""

OWN_CLUSTERS = ("auto", "local")
"""How the user's own Ray cluster is called, wherever that is: to another one, models and rows would be sent."""


def require_harmless(
    gates: Mapping[str, Settings], *, trusted: bool, whose: str = "the configuration of gate {!r}", flag: str = CONFIG
) -> None:
    """A usage error where a configuration names code to run, or files outside its folder to write.

    It may be part of somebody else's repository. `trusted`: the command itself says which code pickles may use.
    """
    here, project = place_of("."), _project()
    for name, gate in gates.items():
        texts = [entry for part in OPENED for entry in _texts(getattr(gate, part), part)]
        named = [(key, text) for key, text in texts if SPECIFICATION.match(text) and not key.endswith(".batch_axis")]
        code = [f"{key} = {text!r}" for key, text in named]
        # Whatever kind of value it is given: a table is gone through by its names where words are expected.
        code += [f"{key} = {text!r}" for key, text in texts if any(step in PLACES for step in key.split("."))]
        code += [f"trusted = {list(gate.trusted)}"] if gate.trusted and not trusted else []
        written = [path for path in (gate.report, *gate.formats.values()) if path is not None and path != "-"]
        faults = {
            "names code to run": code,
            "reads from an object store": [text for _, text in texts if is_stored(text)],
            "sends rows to a server": [text for _, text in texts if text.lower().startswith(("http://", "https://"))],
            "sends rows to a cluster": [gate.address] if gate.address not in (None, *OWN_CLUSTERS) else [],
            "writes outside its folder": [path for path in written if not is_within(place_of(path), here)],
            "reads outside its repository": [text for _, text in texts if _beyond(text, project)],
        }
        for fault, found in faults.items():
            if found:
                told = f"{whose.format(name)} {fault} ({found[0]})"
                raise UsageError(told, remedy=f"If you trust whoever wrote it, say {flag}")


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """All that settings say, however deep, with the names that lead there: names are texts too, and numbers as such."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield name, str(key)
            yield from _texts(entry, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry, name)
    elif value is not None:
        yield name, os.fspath(value) if isinstance(value, PathLike) else str(value)


def _beyond(text: str, project: Path) -> bool:
    """Does a setting name something outside a folder that is there, by itself or as a pattern?"""
    if not text:
        return False
    path = Path(os.path.expanduser(text))
    place = next((above for above in (path, *path.parents) if not glob.has_magic(str(above))), path)
    if not os.path.lexists(place):
        return False
    # Links lead anywhere, those that a pattern matches and those in a folder too. What is hidden in a folder is no
    # data, what a pattern matches is.
    inside = (os.path.join(here, name) for here, *names in os.walk(path) for name in chain(*names))
    visible = (part for part in inside if not any(step.startswith(".") for step in Path(part).relative_to(path).parts))
    seen = visible if path.is_dir() else matching(str(path))
    return any(not is_within(part, project) for part in map(place_of, chain([str(place)], seen)) if part != project)


def _project() -> Path:
    """The repository around the folder of a configuration, or that folder."""
    here = place_of(".")
    return next((above for above in (here, *here.parents) if (above / ".git").exists()), here)
