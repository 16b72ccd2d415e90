"""From a trained model to a checked file: export it, say in the file where it came from, compare the two."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from likewise.compare.call import Side, settled
from likewise.compare.feed import Feed
from likewise.compare.feed import plan as plan_feed
from likewise.contracts.comparison import Json, Progress
from likewise.contracts.data import Batch
from likewise.contracts.models import NOTE, Exporter, ExportRequest, Kind, Label, Model, Runner
from likewise.contracts.report import Report
from likewise.contracts.values import dataclass
from likewise.data import selection
from likewise.data.files import atomically, hash_file, written_at
from likewise.errors import DataError, ModelError, UsageError, foreign
from likewise.models.onnx import describe
from likewise.registry import describe_model, exporters, open_model, open_source
from likewise.report.provenance import sha256_of
from likewise.tasks import check as verify

if TYPE_CHECKING:
    from onnx import ModelProto


SAMPLE_ROWS = 16_384
"""Rows from which the types of the inputs are read."""

ONE_FILE = 2**31 - 1
"""Bytes that protobuf, and with it an ONNX file, can hold."""


@dataclass(frozen=True, slots=True)
class Export:
    """A file that was written, with the verdict on it; its truth value is that verdict, false where it was not checked.

    `features` says what each input takes, `notes` are sentences on what was decided on the way.
    """

    source: str
    output: str
    sha256: str
    bytes: int
    features: tuple[Mapping[str, Json], ...]
    notes: tuple[str, ...] = ()
    report: Report | None = None

    def __bool__(self) -> bool:
        return self.report is not None and self.report.passed


def export(
    model: Any,
    data: Any,
    output: str | PathLike[str],
    *,
    check: bool = True,
    opset: int | None = None,
    double: bool = False,
    zipmap: bool = False,
    dynamic: Mapping[str, Sequence[int]] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **gate: Any,
) -> Export:
    """Write a trained model as an ONNX file and check that it answers like the model on the given rows.

    The types of the inputs are those of `data`. `double` keeps float64, `zipmap` gives one dictionary of
    probabilities a row, `dynamic` names the free axes of inputs. What else `likewise.check` takes is taken
    here too. Beside `model.onnx` stand `model.features.json`, what a caller has to feed, and
    `model.metadata.json`, where it came from. The result is true if the check passed.
    """
    path = Path(output)
    if path.suffix.lower() != ".onnx":
        raise UsageError(f"{path} is not a name for an ONNX file", remedy="Give one that ends in .onnx")
    settings = verify.settings_of(model, str(path), data, **gate)
    own = {**settings.reference_options, "trusted": settings.trusted}
    described = describe_model(model, own, batch_axis=settings.batch_axis)
    source = selection.select(open_source(data), drop=settings.drop, id=settings.id)
    if progress is not None:
        progress(Progress("exporting"))
    with open_model(described) as runner:
        first = next(source.batches(SAMPLE_ROWS), None)
        if first is None or not len(first) or not first.stacked:
            raise DataError(f"{source.location} holds no rows", remedy="Give rows to read the types of the inputs from")
        planned = plan_feed(first, runner.signature, side="reference", mapping=settings.feed)
        feed = settled(Side("reference", described.name, runner, planned), first)[0].feed
        sample, _ = feed(first)
        request = ExportRequest(
            runner.native,
            runner.signature,
            sample,
            details=runner.details,
            batch_axis=described.options.get("batch_axis", described.batch_axis),
            opset=opset,
            double=double,
            zipmap=zipmap,
            dynamic=None if dynamic is None else {name: tuple(axes) for name, axes in dynamic.items()},
        )
        proto = _exporter(described, runner).export(request)
        features = _features(proto, feed, first)
        about = _about(described, runner, proto)
    exported = _written(path, proto, described.name, features, about, double=double)
    if not check:
        return exported
    return replace(exported, report=verify.check(model, str(path), data, **gate))


def _exporter(described: Model, runner: Runner) -> Exporter:
    for exporter in exporters():
        if exporter.claims(runner.native):
            return exporter
    if described.framework == "onnx":
        raise ModelError(f"{described.name} is an ONNX model already", remedy="Check it with `likewise check`")
    raise ModelError(
        f"no exporter knows {described.name}, a model of {described.framework}",
        remedy=f"Models of these frameworks can be exported: {', '.join(known.framework for known in exporters())}",
    )


def _features(proto: ModelProto, feed: Feed, first: Batch) -> tuple[dict[str, Any], ...]:
    """What each input takes, and which columns of the data it was made for."""
    specs = describe.inputs(proto)
    fed = [route.columns for route in feed.routes or ()]
    if len(fed) != len(specs):
        # A booster's file takes side by side what the booster takes column by column.
        fed = [feed.columns or ()] if len(specs) == 1 else [(spec.name,) for spec in specs]
    found = []
    for spec, columns in zip(specs, fed, strict=True):
        entry = {"name": spec.name, "dtype": spec.dtype, "shape": None if spec.shape is None else list(spec.shape)}
        types = [str(first.inputs[name].dtype) for name in columns if name in first.inputs]
        if columns != (spec.name,):
            entry["columns"] = list(columns)
        found.append({**entry, "data_dtype": ", ".join(dict.fromkeys(types))})
    return tuple(found)


def _about(described: Model, runner: Runner, proto: ModelProto) -> dict[str, Any]:
    """Where the file comes from. No time and no path: the same model gives the same file."""
    versions = {"likewise": metadata.version("likewise"), "onnx": metadata.version("onnx")}
    if proto.producer_name:
        versions[proto.producer_name] = proto.producer_version
    if own := runner.details.get(described.framework):
        versions[described.framework] = str(own)
    return {
        "reference_sha256": sha256_of(described.target),
        "classes": _classes(runner),
        "versions": dict(sorted(versions.items())),
    }


def _classes(runner: Runner) -> list[Label] | None:
    kinds = (Kind.LABEL, Kind.PROBABILITY)
    named = [spec.classes for spec in runner.signature.outputs or () if spec.kind in kinds and spec.classes]
    return list(named[0]) if named else None


def _written(
    path: Path,
    proto: ModelProto,
    source: str,
    features: tuple[dict[str, Any], ...],
    about: Mapping[str, Any],
    *,
    double: bool,
) -> Export:
    note = next((entry.value for entry in proto.metadata_props if entry.key == NOTE), "")
    stamps = {"likewise.features": features, **{f"likewise.{name}": value for name, value in about.items()}}
    for key, value in stamps.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            proto.metadata_props.add(key=key, value=text)
    outputs = [
        {"name": spec.name, "kind": str(spec.kind), "dtype": spec.dtype, "classes": spec.classes}
        for spec in describe.outputs(proto)
    ]
    _save(path, proto, double=double)
    sha256, size = hash_file(str(written_at(path))), describe.file_bytes(written_at(path))
    described = {"model": path.name, "sha256": sha256, "bytes": size, "reference": Path(source).name}
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    _write_json(path.with_suffix(".features.json"), {"features": features})
    _write_json(
        path.with_suffix(".metadata.json"), {**described, **about, "outputs": outputs, "opsets": opsets, "note": note}
    )
    return Export(source, str(path), sha256, size, features, tuple(filter(None, note.split("; "))))


def _save(path: Path, proto: ModelProto, *, double: bool) -> None:
    """Put a file that loads in its place, with the weights beside it where one file cannot hold them."""
    import onnx

    _require_kernels(path, proto)
    if proto.ByteSize() <= ONE_FILE:
        content = proto.SerializeToString(deterministic=True)
        _require_loadable(content, path, double=double)
        atomically(path, content)
        return
    weights = f"{path.name}.data"
    place = written_at(path).parent
    place.mkdir(parents=True, exist_ok=True)
    with (
        foreign(DataError, f"{path} cannot be written", remedy="Name a file in a folder with enough space"),
        TemporaryDirectory(dir=place, prefix=f".{path.name}.") as folder,
    ):
        whole = Path(folder, path.name)
        onnx.save_model(proto, whole, save_as_external_data=True, location=weights)
        _require_loadable(str(whole), path, double=double)
        for name in (weights, path.name):
            os.chmod(Path(folder, name), 0o644)
            os.replace(Path(folder, name), place / name)


def _require_kernels(path: Path, proto: ModelProto) -> None:
    """Some kernels are found out not to take a type when they are asked, not when the file is loaded."""
    import onnx

    double = any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in proto.graph.input)
    for node in proto.graph.node if double else ():
        if node.op_type in ("LSTM", "GRU", "RNN"):
            raise ModelError(
                f"{path} was not written: it would hold an {node.op_type} in float64",
                remedy="ONNX Runtime runs recurrent layers in float32 only: leave out --double, export module.float()",
            )


def _require_loadable(content: bytes | str, path: Path, *, double: bool) -> None:
    """Converters succeed and give files that no runtime opens: nothing of that kind takes a file's place."""
    try:
        with open_model(Model("onnx", content)):
            return
    except ModelError as error:
        remedy = "Serve this model with the framework it comes from, or tell the authors of the converter"
        if double and ("implementation" in error.message or "double" in error.message):
            trees = "TreeEnsemble(5)" in error.message
            why = "ONNX Runtime has trees in float64 from 1.21 on: install it" if trees else "It may not run in float64"
            remedy = f"{why}{', or' if trees else ':'} leave out --double"
        elif "Could not find an implementation" in error.message:
            remedy = "ONNX Runtime has no such kernel for the types of this model: export it in float32"
        if "Type (tensor(string)) of output arg" in error.message:
            remedy = "Train it on classes that are whole numbers (0, 1, 2 …): its converter writes no others"
        if "is not a registered function/op" in error.message:
            remedy = "ONNX Runtime has no such operator: serve this model with the framework it comes from"
        raise ModelError(
            f"{path} was not written: what the converter gave does not load: {error.message.rstrip(chr(46))}",
            remedy=remedy,
        ) from error


def _write_json(path: Path, value: Any) -> None:
    atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
