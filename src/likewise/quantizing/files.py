"""Reading the whole model, and putting the quantised one in its place once it has shown that it loads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import onnxgraph
from likewise.errors import ModelError, UsageError, one_line
from likewise.recording import replacing

if TYPE_CHECKING:
    from onnx import ModelProto

OPEN = """
import sys
import onnxruntime as ort
settings = ort.SessionOptions()
settings.log_severity_level = 4
ort.InferenceSession(sys.argv[1], settings, providers=["CPUExecutionProvider"])
"""


def read(path: Path) -> tuple[ModelProto, int]:
    """The model with weights that are stored beside its file, and the bytes of both."""
    from onnx.external_data_helper import load_external_data_for_model

    if path.suffix.lower() != ".onnx":
        raise UsageError(f"{path} is not an .onnx file", remedy="Export the model to ONNX first")
    model = onnxgraph.read(path)
    places = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    size = path.stat().st_size + sum((path.parent / place).stat().st_size for place in places)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise ModelError(
            f"the weights of {path} cannot be read: {one_line(error)}", remedy="Export it again"
        ) from error
    return model, size


def describe(result: ModelProto, original: ModelProto, sha256: str, settings: Mapping[str, Any]) -> None:
    """Keep what the input says about itself and add where the file comes from."""
    from importlib.metadata import version

    import onnx

    versions = {name: version(name) for name in ("likewise", "onnx", "onnxruntime")}
    kept = {entry.key: entry.value for entry in (*original.metadata_props, *result.metadata_props)}
    kept |= {
        "likewise.quantized_from": sha256,
        "likewise.quantization_mode": str(settings["mode"]),
        "likewise.quantization_settings": json.dumps(settings, sort_keys=True),
        "likewise.quantization_versions": json.dumps(versions, sort_keys=True),
    }
    onnx.helper.set_model_props(result, kept)


def write(model: ModelProto, path: Path) -> int:
    """Put the file in its place once ONNX Runtime has opened it; its size."""
    with replacing(path) as temporary:
        try:
            temporary.write_bytes(model.SerializeToString())
        except Exception as error:  # protobuf has several types for "larger than 2 GB"
            raise ModelError(f"{path} cannot be written as one file: {one_line(error)}") from error
        _require_loadable(temporary)
        return temporary.stat().st_size


def _require_loadable(path: Path) -> None:
    """Open the file in a process of its own: the runtime's optimisers may crash on a graph that is valid."""
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip().splitlines()
    how = f"ONNX Runtime crashed on it ({_signal(done.returncode)})" if done.returncode < 0 else said[-1][:500]
    raise ModelError(
        f"the quantised file does not load and was not kept: {how}",
        remedy="Export the model for opset 13 or later, leave nodes out with --exclude, or leave out --per-channel",
    )


def _signal(code: int) -> str:
    """What ended a process, from its negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
