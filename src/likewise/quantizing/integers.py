"""Eight-bit integers, by ONNX Runtime's own quantiser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Tensors
from likewise.contracts.quantizing import STATIC, Recipe
from likewise.errors import ModelError, one_line
from likewise.quantizing.graphs import heart

if TYPE_CHECKING:
    from onnx import ModelProto


def to_integers(
    model: ModelProto, folder: Path, recipe: Recipe, rows: Iterator[Tensors] | None, *, reduce_range: bool
) -> ModelProto:
    """The model with integer weights; `folder` is for files in between, `rows` calibrate a static one."""
    import onnx

    # From a file: given a model in memory, the quantiser moves its weights into a file that it then removes.
    source, target = folder / "float.onnx", folder / "integer.onnx"
    batches = None if rows is None else list(rows)
    try:
        onnx.save(model, source)
        _quantize(source, target, model, recipe, batches, reduce_range=reduce_range)
    except Exception as first:  # the quantiser raises many types
        if not model.graph.value_info:
            raise _failed(first) from first
        # Types and shapes noted by an exporter may contradict those the quantiser infers; it can do without.
        del model.graph.value_info[:]
        try:
            onnx.save(model, source)
            _quantize(source, target, model, recipe, batches, reduce_range=reduce_range)
        except Exception as second:
            raise _failed(second) from second
    return onnx.load(target)


def _quantize(
    source: Path, target: Path, model: ModelProto, recipe: Recipe, batches: list[Tensors] | None, *, reduce_range: bool
) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    chosen, excluded = _nodes(model, recipe)
    common: dict[str, Any] = {
        "op_types_to_quantize": chosen,
        "nodes_to_exclude": excluded,
        "per_channel": recipe.per_channel,
        "reduce_range": reduce_range,
        "weight_type": QuantType.QInt8 if recipe.weights == "int8" else QuantType.QUInt8,
    }
    if recipe.mode != STATIC:
        quantize_dynamic(source, target, **common)
        return
    from onnxruntime.quantization import CalibrationMethod, QuantFormat

    assert batches is not None
    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quantize_static(
        source,
        target,
        _Rows(batches),
        quant_format=QuantFormat.QDQ if recipe.format == "qdq" else QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        calibrate_method=getattr(CalibrationMethod, methods[recipe.calibration]),
        **common,
    )


def _nodes(model: ModelProto, recipe: Recipe) -> tuple[list[str] | None, list[str]]:
    """The operator types to quantise and the nodes to leave alone."""
    # The dynamic quantiser splits a Gemm before it looks at names.
    excluded = [*recipe.exclude, *(f"{name}_MatMul" for name in recipe.exclude)]
    if recipe.op_types:
        return list(recipe.op_types), excluded
    inner = heart(model.graph)
    outside = [node.name for node in model.graph.node if node.name not in inner]
    types = sorted({node.op_type for node in model.graph.node if node.name in inner})
    return (types if recipe.mode == STATIC else None), [*outside, *excluded]


class _Rows:
    """The calibration rows in the form the quantiser asks for."""

    def __init__(self, batches: list[Tensors]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[Tensors]:
        return self._batches


def _failed(error: BaseException) -> ModelError:
    return ModelError(
        f"ONNX Runtime's quantiser failed: {one_line(error)}",
        remedy="Try another --calibration, leave nodes out with --exclude, or name operators with --op-type MatMul",
    )
