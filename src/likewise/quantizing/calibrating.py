"""Rows of the data as the model's own inputs, to learn the ranges of its values from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from likewise import onnxgraph, rowaxes, selecting
from likewise.contracts.data import Tensors
from likewise.contracts.models import BatchAxis, Signature
from likewise.discovery import open_source
from likewise.errors import DataError
from likewise.feeding import plan

if TYPE_CHECKING:
    from onnx import ModelProto

CALL_ROWS = 64
"""Rows a call: every value of the graph is kept for each, so calls stay small."""


def calibration_rows(
    model: ModelProto,
    data: Any,
    count: int,
    *,
    feed: Mapping[str, str] | None = None,
    batch_axis: BatchAxis | None = None,
    **selection: Any,
) -> Iterator[Tensors]:
    """`count` rows drawn evenly from the data, fed as a check would feed them."""
    said, inputs = rowaxes.parse(batch_axis), onnxgraph.inputs(model)
    axes = {spec.name: rowaxes.of_input(spec.name, spec.shape, said) for spec in inputs}
    inputs = tuple(replace(spec, shape=rowaxes.rows_first(spec.shape, axes[spec.name])) for spec in inputs)
    batches = {spec.shape[0] if spec.shape else None for spec in inputs}
    fixed = batches.pop() if len(batches) == 1 else None
    opened = open_source(data)
    wanted = count if opened.rows is None else min(count, opened.rows)
    # Histograms are only merged from calls of one size: one that leaves few rows over, and those are left out.
    size = fixed if isinstance(fixed, int) else max(1, wanted // -(-wanted // CALL_ROWS)) if wanted else 1
    source = selecting.select(opened, **{**selection, "samples": max(wanted, 1), "sample": "random"})
    route = None
    for batch in source.batches(size):
        if batch.stacked and len(batch) < size and (route is not None or isinstance(fixed, int)):
            break
        if route is None:
            route = plan(batch, Signature(inputs, None), side="model", mapping=feed)
        fed = route(batch)[0].inputs
        yield {name: rowaxes.from_front(array, axes[name]) if batch.stacked else array for name, array in fed.items()}
    if route is None:
        raise DataError(f"{source.location} has too few rows to calibrate on", remedy="Give at least one batch of rows")
