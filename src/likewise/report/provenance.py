"""Where a report comes from: files by their SHA-256, versions, machine, settings."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from os import PathLike, cpu_count
from pathlib import Path
from typing import Any

from likewise.contracts.comparison import RunFacts
from likewise.contracts.data import Source
from likewise.contracts.models import Model
from likewise.contracts.report import Artefact, Origin
from likewise.data import files
from likewise.errors import LikewiseError
from likewise.models.confinement import in_force
from likewise.models.onnx.describe import EXTERNAL_DATA
from likewise.registry import about_packages

LIBRARIES = (
    *("likewise", "numpy", "onnx", "onnxruntime", "scikit-learn", "pandas", "pyarrow", "skl2onnx"),
    *("torch", "onnxscript", "openvino", "xgboost", "xgboost-cpu", "lightgbm", "catboost"),
)

CODE = "code"
"""Where a report lists the code and the files that the options of a model name."""


def origin(
    targets: Mapping[str, Any],
    stated: Mapping[str, Any],
    facts: RunFacts,
    models: Mapping[str, Model],
    source: Source | None,
) -> Origin:
    """Everything about a run that a reader needs to find the same models and data again.

    `targets` are the reference, the candidate and the data as they were given, `stated` the settings in plain values.
    """
    return Origin(
        reference=model_artefact(targets["reference"], models.get("reference"), facts.details.get("reference")),
        candidate=model_artefact(targets["candidate"], models.get("candidate"), facts.details.get("candidate")),
        data=_data_artefact(targets["data"], source),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=tools(),
        machine=machine(),
        settings=dict(stated),
        run={
            "call_sizes": dict(facts.batch_size),
            "seconds": {name: round(value, 3) for name, value in facts.seconds.items()},
            "confinement": in_force(),
        },
    )


def tools() -> dict[str, str]:
    """The version of Python, and of every package that a verdict may depend on."""
    return {"python": sys.version.split()[0], **versions(LIBRARIES)}


def machine() -> dict[str, Any]:
    """What a report says of the machine."""
    return {"system": platform.system(), "processor": platform.machine(), "cores": cpu_count()}


def model_artefact(target: Any, model: Model | None, details: Mapping[str, Any] | None) -> Artefact:
    name = (
        model.name
        if model is not None
        else str(target)
        if isinstance(target, str | PathLike)
        else type(target).__name__
    )
    kind = model.framework if model is not None else "unknown"
    content = _content(target)
    size = content.stat().st_size if isinstance(content, Path) else None if content is None else len(content)
    if beside := weights_beside(target, details):
        details = {**(details or {}), EXTERNAL_DATA: beside}
    if model is not None and (code := named_by(model.options)):
        details = {**(details or {}), CODE: code}
    return Artefact(name, kind, sha256_of(target), size, details)


def weights_beside(target: Any, details: Mapping[str, Any] | None) -> dict[str, str]:
    """The SHA-256 of the files that an open model says its weights are in, by their names from its own folder on."""
    content, names = _content(target), (details or {}).get(EXTERNAL_DATA, ())
    return {name: files.hash_file(str(content.parent / name)) for name in names} if isinstance(content, Path) else {}


def named_by(options: Mapping[str, Any]) -> dict[str, str | None]:
    """The SHA-256 of the code and the files that a model's options name, as they name them; None for what has none."""
    named = {name: value for name, value in options.items() if isinstance(value, str | PathLike) or name == "factory"}
    found = {name: sha256_of(value) for name, value in named.items()}
    return {
        str(value) if isinstance(value, str | PathLike) else name: found[name]
        for name, value in named.items()
        if found[name] is not None or name == "factory"
    }


def hash_ahead(source: Source, *targets: Any) -> None:
    """Hash the data and the files of models while the models run: what was hashed once is remembered.

    What cannot be read is told by whoever needs the hash; nobody waits for this where a run ends early.
    """
    with contextlib.suppress(OSError):
        fingerprint_of(source)
        for target in targets:
            if isinstance(target, str | PathLike):
                sha256_of(target)


def sha256_of(target: Any) -> str | None:
    """The SHA-256 of the file or bytes a model is given as; None for a live object."""
    content = _content(target)
    if isinstance(content, Path):
        return files.hash_file(str(content))
    return None if content is None else hashlib.sha256(content).hexdigest()


def _content(target: Any) -> Path | bytes | None:
    if isinstance(target, str | PathLike):
        path = Path(str(target).rpartition(":")[0] or str(target)) if ".py:" in str(target) else Path(target)
        return path if path.is_file() else None
    if isinstance(target, bytes):
        return target
    return bytes(target.SerializeToString()) if hasattr(target, "SerializeToString") else None


def _data_artefact(target: Any, source: Source | None) -> Artefact:
    if source is None:
        # Of rows that nobody got to read, the file is known all the same.
        stored = isinstance(target, str | PathLike) and Path(target).is_file()
        name = str(target) if isinstance(target, str | PathLike) else type(target).__name__
        return Artefact(name, "unknown", files.hash_file(str(target)) if stored else None)
    return Artefact(source.location, str(source.provenance), fingerprint_of(source))


def fingerprint_of(source: Source) -> str | None:
    """The hash of the data, which the source remembers; computed beside the models, as they leave time for it."""
    try:
        return source.fingerprint
    except LikewiseError:
        return None


def versions(names: Iterable[str]) -> dict[str, str]:
    """The version of every package that is installed here."""
    found, homes = {}, about_packages()
    for name in names:
        for file in ("METADATA", "PKG-INFO", "") if name in homes else ():
            # By its line: reading all that a package says about itself takes milliseconds for each.
            with contextlib.suppress(OSError), open(os.path.join(homes[name], file), "rb") as text:
                if told := re.search(rb"^Version: *(\S+)", text.read(), re.M):
                    found[name] = told[1].decode()
                    break
    return found
