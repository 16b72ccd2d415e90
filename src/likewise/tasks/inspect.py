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
            "details": {**runner.details, **_build_paths(described.framework, runner.native)},
        }


def _build_paths(framework: str, native: Any) -> dict[str, str]:
    """Whether a graph names files of the machine that exported it, which whoever gets the file can read."""
    if framework != "onnx":
        return {}
    from likewise.models.onnx import edits

    found = [source for node in edits.all_nodes(native.graph) if (source := edits.source_of(node))]
    if not found:
        return {}
    told = f"{len(found):,} nodes name source files of the machine that exported them, such as {found[0]}"
    return {"build_paths": f"{told}; take metadata_props out of the nodes if nobody else should read that"}
