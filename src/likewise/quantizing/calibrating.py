"""Rows of the data as the model's own inputs, to learn the ranges of its values from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from likewise import onnxgraph, selecting
from likewise.contracts.data import Tensors
from likewise.contracts.models import Signature
from likewise.discovery import open_source
from likewise.errors import DataError
from likewise.feeding import plan

if TYPE_CHECKING:
    from onnx import ModelProto

CALL_ROWS = 64
"""Rows a call: every value of the graph is kept for each, so calls stay small."""


def calibration_rows(
    model: ModelProto, data: Any, count: int, *, feed: Mapping[str, str] | None = None, **selection: Any
) -> Iterator[Tensors]:
    """`count` rows drawn evenly from the data, fed as a check would feed them."""
    inputs = onnxgraph.inputs(model)
    batches = {spec.shape[0] if spec.shape else None for spec in inputs}
    fixed = batches.pop() if len(batches) == 1 else None
    size = fixed if isinstance(fixed, int) else CALL_ROWS
    opened = open_source(data)
    known = opened.rows
    chosen = {**selection, "samples": count if known is None else min(count, known), "sample": "random"}
    source = selecting.select(opened, **chosen)
    route = None
    for batch in source.batches(size):
        if isinstance(fixed, int) and len(batch) < fixed:
            break
        if route is None:
            route = plan(batch, Signature(inputs, None), side="model", mapping=feed)
        yield dict(route(batch)[0].inputs)
    if route is None:
        raise DataError(
            f"{source.location} holds no rows to calibrate on", remedy="Give data that the model was made for"
        )
