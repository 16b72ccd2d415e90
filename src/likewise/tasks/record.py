"""One model by itself: what it says, and what it answers, stored for machines that do not have its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.compare.call import answers, open_side
from likewise.compare.pair import observed
from likewise.contracts.comparison import Progress
from likewise.data import selection as selecting
from likewise.errors import DataError
from likewise.models.recorded import Writer
from likewise.registry import describe_model, open_model, open_source
from likewise.report import provenance


def record(
    model: Any,
    data: Any,
    output: str | PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    trusted: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **selection: Any,
) -> int:
    """Store a model's answers, for machines that do not have its framework. Returns the number of rows.

    `drop`, `samples`, `id` and so on select columns and rows, `feed` says which column an input is fed from.
    """
    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)})
    feed = selection.pop("feed", {})
    source = selecting.select(open_source(data), **selection)
    first = next(source.batches(1), None)
    if first is None or not first.stacked:
        raise DataError(f"{source.location} holds no rows", remedy="Give a table or arrays to record answers for")
    with open_side("reference", described, first, feed) as side:
        signature, columns = side.runner.signature, side.feed.columns
        artefact = provenance.model_artefact(described.target, described, {})
        with Writer(
            Path(output),
            model=artefact.name,
            sha256=artefact.sha256,
            fingerprint=source.fingerprint,
            inputs=columns if columns is not None and signature.table else (),
            fingerprinted=tuple(first.inputs) if columns is None else columns,
            keyed_by_name=source.row_id is not None,
        ) as writer:
            for batch in source.batches(16_384):
                if progress is not None:
                    first_row, last_row = int(batch.rows.numbers[0]), int(batch.rows.numbers[-1])
                    progress(Progress("recording", "reference", first_row, last_row, writer.rows, source.rows))
                tensors, _ = answers(side, batch)
                writer.write(batch, tensors, observed(signature, tensors))
            return writer.rows


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
