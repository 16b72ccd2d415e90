"""Quantise an ONNX file, then see what it gained and what it cost: size, speed, and the verdict of a check.

The file is written only if it loads and really differs from the one it comes from.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.compare import feed as feeding
from likewise.contracts.comparison import Json
from likewise.contracts.data import Tensors
from likewise.contracts.models import BatchAxis, Model
from likewise.contracts.report import Report
from likewise.contracts.results import BatchTiming
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import counted
from likewise.data import selection as selecting
from likewise.data.files import hash_file
from likewise.errors import DataError, ModelError, UsageError, nearest
from likewise.models import quietly
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits
from likewise.models.onnx import quantize as graphs
from likewise.models.onnx.quantize import DYNAMIC, FP16, STATIC, Recipe
from likewise.registry import open_source
from likewise.report.tables import summary_line
from likewise.report.words import size
from likewise.tasks import bench
from likewise.tasks import check as checking
from likewise.tasks.settings import Settings, require_known

if TYPE_CHECKING:
    from onnx import ModelProto


__all__ = ["AlreadyQuantizedError", "NothingToQuantizeError", "quantize"]

MODES = (DYNAMIC, STATIC, FP16)
CALIBRATIONS = ("minmax", "entropy", "percentile")
FORMATS = ("qdq", "qoperator")
WEIGHTS = ("int8", "uint8")

CALL_ROWS = 64
"""Rows a call of a calibration: every value of the graph is kept for each, so calls stay small."""

NODES_NAMED = 12


class NothingToQuantizeError(ModelError):
    """Quantising would change nothing, so a check of the result would say nothing either."""

    code = "nothing-to-quantize"


class AlreadyQuantizedError(ModelError):
    """The model computes with small numbers already."""

    code = "already-quantized"


def quantize(
    model: str | PathLike[str],
    output: str | PathLike[str],
    *,
    data: Any = None,
    calibrate: Any = None,
    check: bool = True,
    speed: bool = True,
    **options: Any,
) -> Quantization:
    """Write a quantised copy of an ONNX file and, where there is data, check it against the original.

    `data` are the rows to check on; a static quantisation calibrates on some of them, or on
    `calibrate`. Other options are those of the command line with underscores: `mode` (`dynamic`,
    `static`, `fp16`), `per_channel`, `calibration`, `format`, `weights`, `reduce_range`, `exclude`,
    `op_types`, `force`, `allow_noop`, and all of `check`. `speed` asks for a timing of both files
    too. The result is true when the verdict is PASS.
    """
    recipe, settings = _split(options)
    shared = {name: value for name, value in settings.items() if name in bench.SELECTION}
    quantized = write(model, output, recipe, data=data if calibrate is None else calibrate, **shared)
    if data is None or not check:
        return Quantization(quantized)
    settings.setdefault("preset", "standard" if recipe.mode == FP16 else "quantized")
    report = checking.check(str(model), str(output), data, **settings)
    return Quantization(quantized, report, bench.quick(str(model), str(output), data, **shared) if speed else None)


def _split(options: Mapping[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """What concerns quantising, and what concerns the check."""
    recipe_names = [entry.name for entry in fields(Recipe)]
    known = [*recipe_names, *(entry.name for entry in fields(Settings))]
    require_known(options, known)
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    recipe = Recipe(**{name: plain.pop(name) for name in recipe_names if name in plain})
    return recipe, plain


def write(
    model: str | PathLike[str], output: str | PathLike[str], recipe: Recipe, *, data: Any = None, **selection: Any
) -> Quantized:
    """Write `output`. `data` calibrates a static quantisation; `selection` picks its rows and columns."""
    _require_sense(recipe, data)
    source, target = Path(model), Path(output)
    if source.resolve() == target.resolve():
        raise UsageError(f"{output} is the model itself", remedy="Name another file with -o")
    original, size = graphs.read(source)
    _require_unquantized(original, recipe, source)
    edits.name_nodes(original.graph)
    _require_known_nodes(original, recipe)
    reduced, reason = _reduce_range(recipe)
    rows = None
    if recipe.mode == STATIC:
        rows = _calibration_rows(original, data, recipe.calibration_rows, **selection)
    with tempfile.TemporaryDirectory(prefix="likewise.") as folder, _contained():
        result = _convert(original, Path(folder), recipe, rows, reduce_range=reduced)
    changed = _small_numbers(result, recipe) - _small_numbers(original, recipe)
    if not changed and not recipe.allow_noop:
        raise _nothing_to_do(source, original)
    sha256 = hash_file(str(source))
    settings = {**asdict(recipe), "reduce_range": reduced} if recipe.mode != FP16 else {"mode": FP16}
    graphs.note_origin(result, original, sha256, settings)
    return Quantized(
        source=str(source),
        output=str(target),
        mode=recipe.mode,
        sha256=sha256,
        bytes_before=size,
        bytes_after=graphs.write(result, target),
        operators_before=graphs.operators(original),
        operators_after=graphs.operators(result),
        changed=changed,
        settings=settings,
        choices=_choices(original, recipe, reason, changed),
    )


def _require_sense(recipe: Recipe, data: Any) -> None:
    for name, known in (
        ("mode", MODES),
        ("calibration", CALIBRATIONS),
        ("format", FORMATS),
        ("weights", WEIGHTS),
    ):
        value = getattr(recipe, name)
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
    count, halved = _integer_nodes(model), _half_weights(model)
    if (count or halved) and not recipe.force:
        how = f"{count} integer-quantised nodes" if count else f"{halved} half-precision tensors"
        raise AlreadyQuantizedError(
            f"{path} is quantised already: it has {how}",
            remedy="Quantise the model it was made from, or give --force to quantise what is left",
        )


def _require_known_nodes(model: ModelProto, recipe: Recipe) -> None:
    names = [node.name for node in model.graph.node]
    for name in recipe.exclude:
        if name not in names:
            weighted = [node.name for node in graphs.weighted_nodes(model.graph)]
            more = f" and {len(weighted) - NODES_NAMED} more" if len(weighted) > NODES_NAMED else ""
            raise UsageError(
                f"the model has no node {name!r} to exclude{nearest(name, names)}",
                remedy=f"Nodes with weights: {', '.join(weighted[:NODES_NAMED])}{more}",
            )
    types = {node.op_type for node in model.graph.node}
    for name in recipe.op_types:
        if name not in types:
            raise UsageError(
                f"the model has no operator {name!r}{nearest(name, types)}",
                remedy=f"It has: {', '.join(sorted(types))}",
            )


def _reduce_range(recipe: Recipe) -> tuple[bool, str]:
    if recipe.mode == FP16:
        return False, ""
    if recipe.reduce_range is not None:
        return recipe.reduce_range, f"{7 if recipe.reduce_range else 8}-bit weights, as asked for"
    if recipe.weights == "uint8":
        return False, "8-bit unsigned weights: the kernels for these do not saturate on any processor"
    return graphs.reduce_range()


def _calibration_rows(
    model: ModelProto,
    data: Any,
    count: int,
    *,
    feed: Mapping[str, str] | None = None,
    batch_axis: BatchAxis | None = None,
    **selection: Any,
) -> Iterator[Tensors]:
    """`count` rows drawn evenly from the data, as the model's own inputs, fed as a check would feed them."""
    layout = RowLayout(Model("onnx", model, batch_axis=batch_axis), describe.inputs(model), ())
    fixed = layout.signature.batch
    opened = open_source(data)
    wanted = count if opened.rows is None else min(count, opened.rows)
    # Histograms are only merged from calls of one size: one that leaves few rows over, and those are left out.
    size = fixed if fixed is not None else max(1, wanted // -(-wanted // CALL_ROWS)) if wanted else 1
    source = selecting.select(opened, **{**selection, "samples": max(wanted, 1), "sample": "random"})
    route = None
    for batch in source.batches(size):
        if batch.stacked and len(batch) < size and (route is not None or fixed is not None):
            break
        if route is None:
            route = feeding.plan(batch, layout.signature, side="model", mapping=feed)
        yield layout.feed(route(batch)[0])
    if route is None:
        raise DataError(f"{source.location} has too few rows to calibrate on", remedy="Give at least one batch of rows")


def _convert(
    original: ModelProto, folder: Path, recipe: Recipe, rows: Iterator[Tensors] | None, *, reduce_range: bool
) -> ModelProto:
    model = edits.copied(original)
    if not graphs.weighted_nodes(model.graph) and not recipe.op_types:
        return model
    if recipe.mode == FP16:
        return graphs.to_halves(model, recipe)
    return graphs.to_integers(model, folder, recipe, rows, reduce_range=reduce_range)


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
    return _half_weights(model) if recipe.mode == FP16 else _integer_nodes(model)


def _integer_nodes(model: ModelProto) -> int:
    return int(describe.details(model)["quantized_nodes"])


def _half_weights(model: ModelProto) -> int:
    from onnx import TensorProto

    return sum(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)


def _nothing_to_do(path: Path, model: ModelProto) -> NothingToQuantizeError:
    counts = graphs.operators(model)
    if any(name.startswith("TreeEnsemble") for name in counts):
        why = "a tree ensemble compares with thresholds and has no weights to quantise"
    elif graphs.weighted_nodes(model.graph):
        why = "the nodes that have weights were excluded"
    else:
        why = "no operator of it multiplies with weights that the quantiser can reach"
    return NothingToQuantizeError(
        f"quantising {path} would change nothing: {why}",
        remedy=f"Its operators: {', '.join(f'{name} {count}' for name, count in counts.items())}. "
        "Deploy the float model, or give --allow-noop",
    )


def _choices(model: ModelProto, recipe: Recipe, reason: str, changed: int) -> tuple[str, ...]:
    told = [reason] if reason else []
    if not changed:
        told.append("nothing was changed: the file is a copy")
    elif recipe.op_types:
        told.append(f"operators: {', '.join(recipe.op_types)}, as asked for")
    else:
        weighted = len(graphs.weighted_nodes(model.graph))
        left = len(model.graph.node) - len(graphs.heart(model.graph))
        stay = "nodes before and after them stay" if left != 1 else "node before or after them stays"
        told.append(f"{counted(weighted, 'nodes')} with weights; {left} {stay} in float32")
    return tuple(told)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A file that was written, and what was decided on the way to it.

    `changed` counts the integer-quantised nodes, or the half-precision tensors, that were added;
    `choices` are sentences.
    """

    source: str
    output: str
    mode: str
    sha256: str
    bytes_before: int
    bytes_after: int
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    changed: int
    settings: Mapping[str, Json]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantised file with the verdict on it; its truth value is that verdict, false where it was not checked."""

    quantized: Quantized
    report: Report | None = None
    timing: BatchTiming | None = None

    def __bool__(self) -> bool:
        return self.report is not None and self.report.passed


def summary(quantized: Quantized, report: Report | None = None, timing: BatchTiming | None = None) -> str:
    """`2.1 MB → 0.6 MB (3.5× smaller), 1.8× faster at batch 256 (1.7–1.9), largest difference 0.012`"""
    before, after = quantized.bytes_before, quantized.bytes_after
    ratio = f"{before / after:.2g}× smaller" if after < before else f"{after / before:.2g}× larger"
    parts = [f"{size(before)} → {size(after)} ({ratio})"]
    if timing is not None:
        parts.append(summary_line(timing))
    if report is not None and report.max_abs_diff is not None:
        parts.append(f"largest difference {report.max_abs_diff:.3g}")
    return ", ".join(parts)
