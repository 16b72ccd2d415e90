"""torch's older exporter, which records what a module does when it is called.

What it writes is right for the run that was recorded: it is asked at other sizes before it is believed.
A captured program is made into a module that can be recorded, for comparison with such files.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.models import NOTE
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, one_line
from likewise.models import silently, unheard
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

CHECKED = ("aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default")
"""Operators of a captured program that compute nothing, and see to it that sizes are those it was captured for."""


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

    with suppress(Exception):  # what the newer exporter said is what to change
        return _believed(subject, opset, f"and it agrees at other sizes: {error.message.replace('; ', ', ')}")
    double = any(tensor.dtype is torch.float64 for tensor in subject.tensors.values())
    if double and any(isinstance(part, torch.nn.RNNBase) for part in subject.module.modules()):
        error.remedy = "ONNX Runtime runs recurrent layers in float32 only: leave out --double, export module.float()"
    raise error


def recorded_script(subject: Subject, opset: int | None) -> ModelProto:
    """TorchScript, which the newer exporter does not take."""
    try:
        return _believed(subject, opset, "because the module is TorchScript")
    except Exception as error:  # the exporter raises many types
        operator = re.search(r"operator '([\w:]+)'", str(error))
        what = f"its operator {operator[1]} has no ONNX counterpart" if operator else one_line(error, limit=300)
        raise ModelError(
            f"the TorchScript module cannot be exported: {what}",
            remedy="Export the module that the script was made from",
        ) from error


def _believed(subject: Subject, opset: int | None, why: str) -> ModelProto:
    """What was recorded, with a note on who wrote it; an error where the module says something else at other sizes."""
    proto, lost = recorded(subject, opset)
    if wrong := lost or _wrong_elsewhere(subject, proto):
        raise ModelError(wrong)
    proto.metadata_props.add(key=NOTE, value=f"{OLDER} wrote the file, {why}")
    return proto


def recorded(subject: Subject, opset: int | None) -> tuple[ModelProto, str]:
    """The graph of one run, and what torch says is lost in it of what Python decided on the way."""
    import onnx
    import torch

    axes = {name: dict(free) for name, free in subject.free.items() if free}
    with TemporaryDirectory() as folder, unheard(), warnings.catch_warnings(record=True) as told:
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
    # torch's own layers compare sizes in Python, which other sizes show to be harmless.
    lost = [e for e in told if e.category.__name__ == "TracerWarning" and not e.filename.startswith(library)]
    del proto.graph.value_info[:]
    return proto, f"a recorded run would not hold for other values: {lost[0].message}" if lost else ""


def _by_position(subject: Subject) -> Any:
    """The module as the older exporter takes it: inputs in their order, answers in theirs, no dict among them."""
    import torch

    module = subject.module
    scripted = isinstance(module, torch.jit.ScriptModule)
    if scripted:
        # As out of a file: a frozen module cannot be part of another before.
        content = BytesIO()
        torch.jit.save(module, content)
        module = torch.jit.load(BytesIO(content.getvalue()))  # type: ignore[no-untyped-call]

    def forward(*tensors: Any) -> tuple[Any, ...]:
        args, kwargs = bound(dict(zip(subject.tensors, tensors, strict=True)), subject.parameters)
        return tuple(value for _, value in flatten((module if scripted else module.forward)(*args, **kwargs)))

    if scripted or isinstance(module, torch.fx.GraphModule):
        around = torch.nn.Module()
        around.module, around.forward = module, forward
        if not scripted:
            return around
        # What was scripted stays so, with its branches and loops; only the call is recorded.
        inputs = tuple(subject.tensors.values())
        return torch.jit.trace(around, inputs, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    # A shallow copy and not a module around it: the paths of its parts are in the names of the nodes.
    changed = copy.copy(module)
    changed.forward = forward
    return changed


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


def recordable(module: Any) -> Any:
    """The module of a captured program as the older exporter takes it: its sizes follow from what it is given."""
    import torch

    made = copy.copy(module)
    with silently():
        made.graph = copy.deepcopy(module.graph)
    inside: list[str] = []
    for node in list(made.graph.nodes):
        called = inside if node.op in ("placeholder", "get_attr") else _callers(node)
        if called != inside:  # in the end none is left open, which torch does not survive
            same = (one == other for one, other in zip(called, inside, strict=False))
            shared = sum(takewhile(bool, same))
            with made.graph.inserting_before(node):
                made.graph.call_function(_enter, (len(inside) - shared, called[shared:]))
            inside = called
        if node.target is torch.ops.aten.sym_size.int:
            node.target = _size
        elif str(node.target) in CHECKED or node.target == "_guards_fn":
            made.graph.erase_node(node)
        elif any(isinstance(given.meta.get("val"), torch.SymInt) for given in node.all_input_nodes):
            node.target = _spoken(node.target)
    made.recompile()
    made.train = lambda mode=True: made  # it has no modes, and raises where one is asked for
    return made


def _spoken(operator: Any) -> Any:
    """An operator as Python calls it, which records where a size is from; what a program calls takes it as a number."""
    import torch

    schema = getattr(operator, "_schema", None)
    if schema is None:
        return operator
    house = torch.Tensor if schema.arguments and schema.arguments[0].name == "self" else torch
    return getattr(house, schema.name.rpartition("::")[2], operator)


def _callers(node: Any) -> list[str]:
    """The modules that call one another until a node of a captured program is reached, as recorded runs name them."""
    names: list[str] = []
    caller = ""
    for path, _ in node.meta.get("nn_module_stack", {}).values() if node.op != "output" else ():
        if path and not path.startswith("_"):
            own = path.removeprefix(f"{caller}.")
            # A part of an nn.Sequential carries the name of the whole once more: /stem/stem.1/Conv.
            names.append(f"{names[-1]}.{own}" if names and own.isdigit() else own)
            caller = path
    return names


def _enter(left: int, modules: Sequence[str]) -> None:
    """What is recorded from now on is of these modules, and no more of the last `left` ones."""
    import torch

    recording = torch._C._get_tracing_state()
    if recording is not None:
        for _ in range(left):
            recording.pop_scope()
        for module in modules:
            recording.push_scope(f"Module::{module}")


def _size(tensor: Any, axis: int) -> Any:
    return tensor.shape[axis]
