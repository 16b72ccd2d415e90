"""What a model says about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from likewise.registry import describe_model, open_model
from likewise.report import provenance


def inspect(model: Any, *, trusted: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a model says about itself: inputs, outputs, kinds, dtypes, classes, operators, size."""
    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)})
    with open_model(described) as runner:
        artefact = provenance.model_artefact(described.target, described, {})
        signature = asdict(runner.signature)
        return {
            "name": artefact.name,
            "framework": described.framework,
            "bytes": artefact.bytes,
            "sha256": artefact.sha256,
            **signature,
            "details": dict(runner.details),
        }
