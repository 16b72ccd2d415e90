"""Gates that nobody listed: every folder with a reference, a candidate and rows is one."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from likewise.errors import UsageError
from likewise.tasks.own_files import is_within, place_of
from likewise.tasks.settings import Settings, settings_from

REFERENCES = ("*.joblib", "*.pkl", "*.pickle", "*.skops", "*.pt2", "*.pt", "*.ubj", "*.cbm", "*.lgb")
CANDIDATES = ("*.onnx",)
ROWS = (
    *("*.parquet", "*.pq", "*.csv", "*.csv.gz", "*.tsv", "*.arrow", "*.feather", "*.jsonl", "*.npz", "*.npy"),
    *("*.captured.jsonl",),
)
"""What files are taken for, where a command does not name them."""

ALL_GATES = ("index", "fleet")
"""How the files that tell of all gates are called, without their endings."""


def find(
    folder: Path,
    *,
    reference: str | None = None,
    candidate: str | None = None,
    data: str | None = None,
    trusting: bool = False,
) -> dict[str, Settings]:
    """A gate for every candidate below a folder, called after where it lies.

    The three are names or patterns of files. A reference and rows lie beside their candidate; rows also in a folder
    above, for all that is below it. What is missing is left to the gate to say: it is inconclusive, not left out.
    Whoever filled the folder may have laid a link to your own files there: `trusting` lets it be followed.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", remedy="Give a folder of models, or a TOML file of gates")
    wanted = {"reference": reference, "candidate": candidate, "data": data}
    named = dict(zip(wanted, (REFERENCES, CANDIDATES, ROWS), strict=True))
    named |= {part: (pattern,) for part, pattern in wanted.items() if pattern is not None}
    gates: dict[str, Settings] = {}
    for here, names in _folders(folder):
        references, candidates = (_matching(names, named[part]) for part in ("reference", "candidate"))
        candidates = [name for name in candidates if name not in references or named["candidate"] == (name,)]
        if not candidates and references:
            candidates = [named["candidate"][0]]
        for name in candidates:
            gate = _name(folder, here, name if len(candidates) > 1 else "")
            if gate in gates:
                raise UsageError(f"two gates would be called {gate!r}", remedy="Rename a folder, or list them in TOML")
            table: dict[str, Any] = {
                "reference": str(here / _partner(name, references, named["reference"])),
                "candidate": str(here / name),
                "data": _rows(folder, here, named["data"], data),
                "gate": gate,
            }
            gates[gate] = settings_from(table, where=f"gate {gate!r}")
            for path in () if trusting else (table["reference"], table["candidate"], table["data"]):
                _require_inside(folder, path)
    if not gates:
        told = {part: " or ".join(patterns) for part, patterns in named.items()}
        raise UsageError(
            f"{folder} holds no models: neither {told['reference']} nor {told['candidate']} lies in it or below",
            remedy="Name them: --reference NAME --candidate NAME --data NAME",
        )
    return gates


def _folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder from `top` down and the files in it, by name; hidden ones and links are passed over."""
    for place, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(place), sorted(name for name in names if not name.startswith("."))


def _require_inside(top: Path, path: str) -> None:
    """A usage error for a link in the folder that leads out of it, also one in a folder of tables."""
    if not os.path.abspath(path).startswith(os.path.join(os.path.abspath(top), "")):
        return
    below = (os.path.join(here, name) for here, *names in os.walk(path) for name in chain(*names))
    for part in chain([path] if os.path.lexists(path) else [], below):
        if not is_within(place_of(part), top.resolve()):
            raise UsageError(
                f"{part} is a link that leads out of {top}, or to what keeps its versions",
                remedy="If you trust whoever filled the folder, say --trust-config",
            )


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _partner(candidate: str, references: Sequence[str], patterns: Sequence[str]) -> str:
    """The reference of a candidate: the only one, or that whose name the candidate's begins with, the longest."""
    if len(references) == 1:
        return references[0]
    stems = {name: name.partition(".")[0] for name in references}
    mine = candidate.partition(".")[0]
    found = [name for name, stem in stems.items() if mine == stem]
    if len(found) > 1:
        raise UsageError(
            f"{candidate} may belong to {' or '.join(found)}", remedy="Name the reference: --reference NAME"
        )
    return found[0] if found else patterns[0]


def _rows(top: Path, here: Path, patterns: Sequence[str], said: str | None) -> str:
    """The rows of a gate: beside its models, or in the nearest folder above, up to the one that was given."""
    if said is not None and said.partition(":")[0] == "generated":
        return said
    for folder in (here, *here.parents):
        found = _matching(sorted(entry.name for entry in os.scandir(folder)), patterns)
        if len(found) > 1:
            raise UsageError(
                f"{folder} holds several tables: {', '.join(found[:3])}",
                remedy="Say which one holds the rows: --data NAME",
            )
        if found:
            return str(folder / found[0])
        if folder == top:
            break
    return said if said is not None and os.path.exists(said) else str(here / patterns[0])


def _name(top: Path, here: Path, file: str) -> str:
    parts = [*here.relative_to(top).parts, *([file.rpartition(".")[0]] if file else [])]
    return ".".join(parts) or top.resolve().name or "gate"


def stem(gate: str) -> str:
    """The name of a gate as part of the name of a file."""
    return re.sub(r"[^\w.-]", "_", gate)


def require_stems(gates: Mapping[str, Settings]) -> None:
    """A usage error for gates whose reports would be one file."""
    seen: dict[str, str] = dict.fromkeys(ALL_GATES, "")
    for gate in gates:
        if (other := seen.setdefault(stem(gate).casefold(), gate)) != gate:
            told = (
                f"the reports of gates {other!r} and {gate!r}" if other else f"that of gate {gate!r} and the one of all"
            )
            raise UsageError(f"{told} would be one file", remedy="Rename one")
