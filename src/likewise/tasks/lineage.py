"""Doubts about the files of a run: are they still what answered, and do they belong to each other?"""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

from likewise.contracts.comparison import Incident, RunFacts
from likewise.contracts.data import Source
from likewise.contracts.models import MADE_FROM, Model
from likewise.data.files import version_of
from likewise.report import provenance
from likewise.tasks.settings import Settings

QUANTIZED_FROM = "likewise.quantized_from"
"""Where a quantised ONNX file says, by SHA-256, which file it was made from."""


def versions(settings: Settings) -> dict[str, tuple[int, ...]]:
    """What tells of the models and the data of a run, as far as they are files, whether they are written again."""
    named = {name: getattr(settings, name) for name in ("reference", "candidate", "data")}
    paths = {name: os.fspath(path) for name, path in named.items() if isinstance(path, str | PathLike)}
    return {name: version_of(path) for name, path in paths.items() if os.path.isfile(path)}


def written_meanwhile(before: dict[str, tuple[int, ...]], settings: Settings) -> Incident | None:
    """A file that was written since: its hash, in the report, would be of another one than that which answered."""
    now = versions(settings)
    name = next((name for name, version in before.items() if now.get(name) != version), None)
    if name is None:
        return None
    told = f"{getattr(settings, name)} was written while it was compared"
    return Incident("changed", told, "Run it again when nobody writes there", None if name == "data" else name)


def of_other_data(source: Source, facts: RunFacts) -> Incident | None:
    """Answers that were recorded for other data than these."""
    for side, details in facts.details.items():
        recorded = details.get("data_fingerprint")
        if recorded is not None and recorded != source.fingerprint:
            return Incident(
                "other-data",
                f"the answers of the {side} were recorded for other data than {source.location}",
                "Record them again for this data, or name rows by a column: --id COLUMN",
                side,
            )
    return None


def stale(target: Any, reference: Model, facts: RunFacts) -> tuple[str, ...]:
    """Was the candidate made from another reference than the one it is compared with? Only files can tell."""
    ours, theirs = facts.details.get("reference", {}), facts.details.get("candidate", {}).get("metadata", {})
    quantized = reference.framework == "onnx" and QUANTIZED_FROM in theirs
    made_from = theirs.get(QUANTIZED_FROM if quantized else MADE_FROM)
    if made_from is None:
        return ()
    # Recorded answers stand for the model that gave them, and two exports of one model for each other.
    others = [] if quantized else [ours.get("recorded_sha256"), ours.get("metadata", {}).get(MADE_FROM)]
    known = [sha256 for sha256 in (*others, provenance.sha256_of(target)) if sha256 is not None]
    if not known or made_from in known:
        return ()
    found = f"its file names SHA-256 {made_from[:12]}…, this is {known[0][:12]}…"
    return (f"the candidate was made from another model than {reference.name}: {found}",)
