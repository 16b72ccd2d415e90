"""The older exporter of torch, which records one run: for TorchScript, and for modules that cannot be captured.

Recurrent layers over a free time axis are the usual case. What Python decided during the run is lost in
such a graph, so it is asked at other sizes before it is believed, and its note says who wrote it.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.models import NOTE
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, one_line
from likewise.models import quietly
from likewise.models.onnx.open import plain_session
from likewise.models.torch.open import Parameter, bound, flatten

if TYPE_CHECKING:
    from onnx import ModelProto


BATCH = "batch"
"""What the axis of the rows is called; other free axes are lengths."""

OLDER = "torch's older exporter (dynamo=False)"

OTHER_ROWS = (5, 1)
OTHER_LENGTHS: tuple[Callable[[int], int], ...] = (lambda size: size + 2, lambda size: 2 * size, lambda size: size - 1)
"""Where a recorded run is asked again, as far as the module answers there."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A module, a few rows to ask it, a few others, and by input which axes are free and what these are called."""

    module: Any
    parameters: tuple[Parameter, ...] | None
    tensors: Mapping[str, Any]
    others: Mapping[str, Any]
    free: Mapping[str, Mapping[int, str]]

    def answers(self, tensors: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """What the module says, by the paths that lead to it."""
        import torch

        args, kwargs = bound(tensors, self.parameters)
        with torch.inference_mode():
            return list(flatten(self.module(*args, **kwargs)))


def recorded_instead(subject: Subject, opset: int | None, error: ModelError) -> ModelProto:
    """By the older exporter what cannot be captured, where that is right at other sizes too; else the first error."""
    import torch

    try:
        proto = recorded(subject, opset)
        believed = not _wrong_elsewhere(subject, proto)
    except Exception:  # noqa: BLE001 - what the newer exporter said is what to change
        believed = False
    if not believed:
        double = any(tensor.dtype is torch.float64 for tensor in subject.tensors.values())
        if double and any(isinstance(part, torch.nn.RNNBase) for part in subject.module.modules()):
            error.remedy = "ONNX Runtime runs recurrent layers of a free length in float32 only: leave out --double"
        raise error
    why = f"{OLDER} wrote the file, and it agrees at other sizes: {error.message.replace('; ', ', ')}"
    proto.metadata_props.add(key=NOTE, value=why)
    return proto


def recorded_script(subject: Subject, opset: int | None) -> ModelProto:
    """TorchScript, which the newer exporter does not take."""
    remedy = "Export the module that the script was made from"
    try:
        proto = recorded(subject, opset)
    except Exception as error:  # the exporter raises many types
        operator = re.search(r"operator '([\w:]+)'", str(error))
        what = f"its operator {operator[1]} has no ONNX counterpart" if operator else one_line(error, limit=300)
        raise ModelError(f"the TorchScript module cannot be exported: {what}", remedy=remedy) from error
    if wrong := _wrong_elsewhere(subject, proto):
        raise ModelError(f"the TorchScript module cannot be exported: {wrong}", remedy=remedy)
    proto.metadata_props.add(key=NOTE, value=f"{OLDER} wrote the file, because the module is TorchScript")
    return proto


def recorded(subject: Subject, opset: int | None) -> ModelProto:
    """The graph of one run. What Python decided on the way is lost in it: where torch says so, there is no graph."""
    import onnx
    import torch

    axes = {name: dict(free) for name, free in subject.free.items() if free}
    with TemporaryDirectory() as folder, _unheard(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            _by_position(subject),
            tuple(subject.tensors.values()),
            path,
            dynamo=False,
            input_names=list(subject.tensors),
            dynamic_axes=axes,
            opset_version=opset,
        )
        proto = onnx.load(path)
    library = str(Path(torch.__file__).parent)
    for entry in told:
        # torch's own layers compare sizes in Python, which other sizes show to be harmless.
        if entry.category.__name__ == "TracerWarning" and not entry.filename.startswith(library):
            raise ModelError(f"a recorded run would not hold for other values: {entry.message}")
    del proto.graph.value_info[:]
    return proto


def _by_position(subject: Subject) -> Any:
    """The module as the older exporter takes it: inputs in their order, answers in theirs, no dict among them."""
    import torch

    module = subject.module
    scripted = isinstance(module, torch.jit.ScriptModule)
    if scripted:
        # As out of a file: a frozen module cannot be part of another before.
        module = _reloaded(module)

    def forward(*tensors: Any) -> tuple[Any, ...]:
        args, kwargs = bound(dict(zip(subject.tensors, tensors, strict=True)), subject.parameters)
        return tuple(value for _, value in flatten((module if scripted else module.forward)(*args, **kwargs)))

    if scripted:
        # What was scripted stays so, with its branches and loops; only the call is recorded.
        around = torch.nn.Module()
        around.module, around.forward = module, forward
        inputs = tuple(subject.tensors.values())
        return torch.jit.trace(around, inputs, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    # A shallow copy and not a module around it: the paths of its parts are in the names of the nodes.
    changed = copy.copy(module)
    changed.forward = forward
    return changed


def _reloaded(module: Any) -> Any:
    import torch

    content = BytesIO()
    torch.jit.save(module, content)
    content.seek(0)
    return torch.jit.load(content)  # type: ignore[no-untyped-call]


def _wrong_elsewhere(subject: Subject, proto: ModelProto) -> str:
    """Why a recorded run cannot be believed: the module says something else, or nothing, at other sizes."""
    session = plain_session(proto)
    names = {value.name for value in session.get_inputs()}
    lengths = {called for free in subject.free.values() for called in free.values()} - {BATCH}
    tries = {
        "number of rows": [_resized(subject, rows=rows) for rows in OTHER_ROWS],
        "length": [_resized(subject, length=change) for change in OTHER_LENGTHS if lengths],
    }
    for what, trials in tries.items():
        answered = False
        for tensors in trials:
            try:
                expected = subject.answers(tensors)
            except Exception:  # noqa: BLE001 - a size that the module itself does not take
                continue
            answered = True
            fed = {name: tensor.cpu().numpy() for name, tensor in tensors.items() if name in names}
            try:
                found = session.run(None, fed)
            except Exception:  # noqa: BLE001 - the runtime raises many types
                return f"what comes of it does not run at another {what}"
            if not _alike([value for _, value in expected], found):
                return f"what comes of it is right only at the {what} it was recorded with"
        if trials and not answered:
            return f"the module itself answers no other {what}, and nothing can be compared there"
    return ""


def _resized(
    subject: Subject, *, rows: int | None = None, length: Callable[[int], int] | None = None
) -> dict[str, Any]:
    """Other rows than those that were recorded, with another number of them, or another length along the free axes."""
    import torch

    found = {}
    for name, tensor in subject.others.items():
        for axis, called in subject.free[name].items():
            before = tensor.shape[axis]
            size = rows if called == BATCH else length and length(before)
            tensor = tensor.index_select(axis, torch.arange(size or before, device=tensor.device) % before)
        found[name] = tensor
    return found


def _alike(expected: list[Any], found: list[Any]) -> bool:
    """Roughly, since the gate judges the numbers: here it is asked whether it is the same computation."""
    arrays = [np.asarray(value.cpu().float() if value.is_floating_point() else value.cpu()) for value in expected]
    if [array.shape for array in arrays] != [np.shape(value) for value in found]:
        return False
    return all(
        np.allclose(value, array, rtol=1e-2, atol=1e-3, equal_nan=True)
        for array, value in zip(arrays, found, strict=True)
    )


@contextmanager
def silently() -> Iterator[None]:
    """Without the exporter's progress and advice, which go to the terminal directly."""
    with quietly(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def _unheard() -> Iterator[None]:
    """Without what the older exporter prints from C++, past Python's streams."""
    with silently(), open(os.devnull, "w") as nothing:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(nothing.fileno(), number)
            yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
