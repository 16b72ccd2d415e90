"""An ONNX file with smaller numbers, written only if it loads and really differs from the one it comes from."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import onnxgraph
from likewise.contracts.data import Tensors
from likewise.contracts.quantizing import CALIBRATIONS, FORMATS, FP16, MODES, STATIC, WEIGHTS, Quantized, Recipe
from likewise.errors import ModelError, UsageError, nearest
from likewise.fingerprints import of_file
from likewise.quantizing import files, graphs, halves, integers, processors
from likewise.quantizing.calibrating import calibration_rows
from likewise.quieting import quietly

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["AlreadyQuantizedError", "NothingToQuantizeError", "default_preset", "quantize"]


class NothingToQuantizeError(ModelError):
    """Quantising would change nothing, so a check of the result would say nothing either."""

    code = "nothing-to-quantize"


class AlreadyQuantizedError(ModelError):
    """The model computes with small numbers already."""

    code = "already-quantized"


def default_preset(mode: str) -> str:
    """The limits meant for a mode."""
    return "standard" if mode == FP16 else "quantized"


def quantize(
    model: str | PathLike[str], output: str | PathLike[str], recipe: Recipe, *, data: Any = None, **selection: Any
) -> Quantized:
    """Write `output`. `data` calibrates a static quantisation; `selection` picks its rows and columns."""
    _require_sense(recipe, data)
    source, target = Path(model), Path(output)
    if source.resolve() == target.resolve():
        raise UsageError(f"{output} is the model itself", remedy="Name another file with -o")
    original, size = files.read(source)
    _require_unquantized(original, recipe, source)
    graphs.name_nodes(original.graph)
    recipe = replace(recipe, exclude=_known_nodes(original, recipe))
    before = graphs.operators(original)
    reduced, reason = _reduce_range(recipe)
    rows: Iterator[Tensors] | None = None
    if recipe.mode == STATIC:
        rows = calibration_rows(original, data, recipe.calibration_rows, **selection)
    with tempfile.TemporaryDirectory(prefix="likewise.") as folder, _contained():
        result = _convert(original, Path(folder), recipe, rows, reduce_range=reduced)
    changed = _small_numbers(result, recipe) - _small_numbers(original, recipe)
    if not changed and not recipe.allow_noop:
        raise _nothing_to_do(source, original, recipe)
    sha256 = of_file(str(source))
    settings = {**asdict(recipe), "reduce_range": reduced} if recipe.mode != FP16 else {"mode": FP16}
    files.describe(result, original, sha256, settings)
    written = files.write(result, target)
    return Quantized(
        source=str(source),
        output=str(target),
        mode=recipe.mode,
        sha256=sha256,
        bytes_before=size,
        bytes_after=written,
        operators_before=before,
        operators_after=graphs.operators(result),
        changed=changed,
        settings=settings,
        choices=_choices(original, recipe, reason, changed),
    )


def _require_sense(recipe: Recipe, data: Any) -> None:
    for name, value, known in (
        ("mode", recipe.mode, MODES),
        ("calibration", recipe.calibration, CALIBRATIONS),
        ("format", recipe.format, FORMATS),
        ("weights", recipe.weights, WEIGHTS),
    ):
        if value not in known:
            raise UsageError(
                f"--{name} is {value!r}{nearest(value, known)}", remedy=f"Choose one of: {', '.join(known)}"
            )
    if recipe.mode == STATIC and data is None:
        raise UsageError(
            "static quantisation needs rows to calibrate on", remedy="Give them with --data FILE, or use --mode dynamic"
        )
    if not recipe.calibration_rows > 0:
        raise UsageError(f"--calibration-rows is {recipe.calibration_rows}", remedy="Give a number above zero")


def _require_unquantized(model: ModelProto, recipe: Recipe, path: Path) -> None:
    count = onnxgraph.details(model)["quantized_nodes"]
    halved = _half_weights(model)
    if (count or halved) and not recipe.force:
        how = f"{count} integer-quantised nodes" if count else f"{halved} half-precision tensors"
        raise AlreadyQuantizedError(
            f"{path} is quantised already: it has {how}",
            remedy="Quantise the model it was made from, or give --force to quantise what is left",
        )


def _known_nodes(model: ModelProto, recipe: Recipe) -> tuple[str, ...]:
    names = [node.name for node in model.graph.node]
    for name in recipe.exclude:
        if name not in names:
            raise UsageError(
                f"the model has no node {name!r} to exclude{nearest(name, names)}",
                remedy=f"Nodes with weights: {_weights_text(model)}",
            )
    types = {node.op_type for node in model.graph.node}
    for name in recipe.op_types:
        if name not in types:
            raise UsageError(
                f"the model has no operator {name!r}{nearest(name, types)}",
                remedy=f"It has: {', '.join(sorted(types))}",
            )
    return recipe.exclude


def _reduce_range(recipe: Recipe) -> tuple[bool, str]:
    if recipe.mode == FP16:
        return False, ""
    if recipe.reduce_range is not None:
        return recipe.reduce_range, f"{7 if recipe.reduce_range else 8}-bit weights, as asked for"
    if recipe.weights == "uint8":
        return False, "8-bit unsigned weights: the kernels for these do not saturate on any processor"
    return processors.reduce_range()


def _convert(
    original: ModelProto, folder: Path, recipe: Recipe, rows: Iterator[Tensors] | None, *, reduce_range: bool
) -> ModelProto:
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(original)
    if not graphs.weighted_nodes(model.graph) and not recipe.op_types:
        return model
    if recipe.mode == FP16:
        return halves.to_halves(model, recipe)
    return integers.to_integers(model, folder, recipe, rows, reduce_range=reduce_range)


@contextmanager
def _contained() -> Iterator[None]:
    """Keep what the quantiser prints to itself, and the import path as it was."""
    import onnxruntime

    path = list(sys.path)
    # Its modules import each other by their bare names, `fusion_utils` or `metrics`, from a folder that it adds once.
    sys.path.append(str(Path(onnxruntime.__file__).parent / "transformers"))
    try:
        with quietly(), redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.path[:] = path


def _small_numbers(model: ModelProto, recipe: Recipe) -> int:
    """Half-precision tensors or integer-quantised nodes, whichever are to be made."""
    return _half_weights(model) if recipe.mode == FP16 else int(onnxgraph.details(model)["quantized_nodes"])


def _half_weights(model: ModelProto) -> int:
    from onnx import TensorProto

    return sum(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)


def _nothing_to_do(path: Path, model: ModelProto, recipe: Recipe) -> NothingToQuantizeError:
    counts = graphs.operators(model)
    trees = [name for name in counts if name.startswith("TreeEnsemble")]
    why = (
        "a tree ensemble compares with thresholds and has no weights to quantise"
        if trees
        else "the nodes that have weights were excluded"
        if graphs.weighted_nodes(model.graph)
        else "no operator of it multiplies with weights that the quantiser can reach"
    )
    return NothingToQuantizeError(
        f"quantising {path} would change nothing: {why}",
        remedy=f"Its operators: {', '.join(f'{name} {count}' for name, count in counts.items())}. "
        "Deploy the float model, or give --allow-noop",
    )


def _choices(model: ModelProto, recipe: Recipe, reason: str, changed: int) -> tuple[str, ...]:
    weighted = graphs.weighted_nodes(model.graph)
    told = [reason] if reason else []
    if not changed:
        told.append("nothing was changed: the file is a copy")
    elif recipe.op_types:
        told.append(f"operators: {', '.join(recipe.op_types)}, as asked for")
    else:
        left = len(model.graph.node) - len(graphs.heart(model.graph))
        told.append(f"{len(weighted)} nodes with weights; {left} nodes before and after them stay in float32")
    return tuple(told)


def _weights_text(model: ModelProto, limit: int = 12) -> str:
    names = [node.name for node in graphs.weighted_nodes(model.graph)]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
