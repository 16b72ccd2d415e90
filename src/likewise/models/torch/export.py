"""PyTorch to ONNX with the exporter that captures the whole program (dynamo), and nothing silent about it.

The number of rows stays free, or the export fails: a batch size that was fixed by the way `forward` is
written would be noticed in production only. An exported program keeps the sizes it was captured for.
TorchScript, and modules that cannot be captured (recurrent layers over a free time axis), go through
the older exporter, which records one run: what it gives is asked at other sizes before it is believed.
Outputs are named after the paths that lead to them in the module's own answer, so that they are compared by name.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import NOTE, ExportRequest
from likewise.errors import ModelError, UsageError, extra, nearest, one_line
from likewise.models import silently
from likewise.models.arrays import RowAxes, moved
from likewise.models.onnx.edits import name_outputs
from likewise.models.torch.open import (
    PROGRAM,
    bound,
    device_of,
    flatten,
    parameters_of,
    program_sizes,
    program_values,
    tensor_of,
    training_parts,
)
from likewise.models.torch.recording import (
    BATCH,
    Subject,
    recordable,
    recorded,
    recorded_instead,
    recorded_script,
)

if TYPE_CHECKING:
    from onnx import ModelProto


SAMPLE_ROWS = 3
"""Rows the program is captured with: with one, PyTorch would take their number for a constant."""

PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class TorchExporter:
    """Exports live modules, TorchScript and exported programs."""

    framework = "torch"

    def claims(self, model: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(model, torch.nn.Module)

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("torch", needed_for="exporting a PyTorch module"):
            import onnxscript  # noqa: F401
            import torch
        module = request.model
        _require_exportable(module, request)
        program = getattr(module, "meta", {}).get(PROGRAM)
        if program is not None and not request.recorded:
            return _program_as_onnx(program, request)
        if program is not None:
            module = recordable(module)
        if request.double:
            module = copy.deepcopy(module).double()
        subject = _subject(module, request)
        names = _answer_names(subject)
        if isinstance(module, torch.jit.ScriptModule):
            proto = recorded_script(subject, request.opset)
        elif request.recorded:
            proto, _ = recorded(subject, request.opset)
        else:
            try:
                proto = _captured_as_onnx(subject, request.opset)
            except ModelError as error:
                proto = recorded_instead(subject, request.opset, error)
        name_outputs(proto.graph, names)
        return proto


def _require_exportable(module: Any, request: ExportRequest) -> None:
    if request.zipmap:
        raise UsageError("a PyTorch module has no class labels for one dictionary per row", remedy="Leave out zipmap")
    # The adapter opens a module in eval mode; only its details still tell in which mode it was found.
    training = list(training_parts(module))
    if training or request.details.get("training_mode"):
        parts = f" ({', '.join(training[:3])})" if training else ""
        raise ModelError(
            f"the module is in training mode{parts}: what is exported so may keep dropout alive",
            remedy="Call model.eval() first, where the module is built or before it is captured",
        )


def _subject(module: Any, request: ExportRequest) -> Subject:
    """The first rows as tensors, where the module has its rows."""
    axes, device = RowAxes.parse(request.batch_axis), device_of(module)
    if not len(request.sample):
        raise ModelError("there is no row to capture the module with", remedy="Give data with at least one row")

    whole = not request.sample.stacked

    def has_rows(name: str) -> bool:
        return not whole and (axes.rowless or axes.has_rows(name))

    def tensor(name: str, array: Array, rows: Array) -> Any:
        axis = axes.of(name, array.ndim) or 0
        one = array if whole else np.asarray(array[0])
        laid_out = moved(array[rows % len(array)], 0, axis) if has_rows(name) else one
        found = tensor_of(laid_out).to(device)
        return found.double() if request.double and found.is_floating_point() else found

    inputs = request.sample.inputs.items()
    tensors = {name: tensor(name, array, np.arange(SAMPLE_ROWS)) for name, array in inputs}
    others = {name: tensor(name, array, -1 - np.arange(SAMPLE_ROWS)) for name, array in inputs}
    asked = _asked_axes(request, tensors)
    sizes = list(dict.fromkeys(tensors[name].shape[axis] for name, some in asked.items() for axis in some))
    called = {size: "length" if len(sizes) == 1 else f"length_{place}" for place, size in enumerate(sizes)}
    free = {
        name: {
            **{axis: called[given.shape[axis]] for axis in asked.get(name, ())},
            **({(axes.of(name, given.ndim) or 0): BATCH} if given.ndim and has_rows(name) else {}),
        }
        for name, given in tensors.items()
    }
    return Subject(module, parameters_of(module), tensors, others, free)


def _asked_axes(request: ExportRequest, ranked: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    """The axes that are to be free beside those of the rows."""
    asked = request.dynamic or {}
    for name, axes in asked.items():
        if name not in ranked:
            raise UsageError(
                f"there is no input {name!r} with free axes{nearest(name, ranked)}",
                remedy=f"The inputs are called: {', '.join(ranked)}",
            )
        if beyond := [axis for axis in axes if not 0 <= axis < ranked[name].ndim]:
            raise UsageError(
                f"input {name!r} has no axis {beyond[0]}", remedy=f"Its axes are 0 to {ranked[name].ndim - 1}"
            )
    return asked


def _answer_names(subject: Subject) -> list[str]:
    import torch

    try:
        answers = subject.answers(subject.tensors)
    except Exception as error:
        raise ModelError(
            f"the module does not answer the first rows: {one_line(error)}",
            remedy=f"It is asked about {SAMPLE_ROWS} rows: see that it takes any number of them",
        ) from error
    _require_tensors([(name, isinstance(value, torch.Tensor)) for name, value in answers])
    return [name for name, _ in answers]


def _require_tensors(answers: list[tuple[str, bool]]) -> None:
    if plain := [name for name, is_tensor in answers if not is_tensor]:
        raise ModelError(
            f"output {plain[0]!r} is no tensor, and a graph gives nothing else",
            remedy="Return torch.tensor(...) of a number, or leave it out",
        )


def _captured_as_onnx(subject: Subject, opset: int | None) -> ModelProto:
    """By the exporter that captures the whole program."""
    from torch import export

    batch = export.Dim(BATCH)
    free = {
        name: {axis: batch if called == BATCH else export.Dim.DYNAMIC for axis, called in axes.items()}
        for name, axes in subject.free.items()
    }
    shapes = tuple(free.values()) if subject.parameters is None else free
    args, kwargs = bound(subject.tensors, subject.parameters)
    try:
        with silently():
            program = export.export(subject.module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever forward does that cannot be captured
        what, remedy = _refusal(error)
        raise ModelError(f"the module cannot be captured{_at(str(error), error)}: {what}", remedy=remedy) from error
    proto = _translated(program, opset, shapes)
    _require_free(proto, subject.free)
    return proto


def _translated(program: Any, opset: int | None, shapes: Any = None) -> ModelProto:
    import torch

    try:
        with silently():
            exported = torch.onnx.export(
                program, dynamo=True, verbose=False, opset_version=opset, dynamic_shapes=shapes
            )
    except Exception as error:  # the exporter raises many types
        raise _not_convertible(error, program) from error
    assert exported is not None
    proto = exported.model_proto
    # Shapes of values in between mislead tools that change the graph later, such as quantisers.
    del proto.graph.value_info[:]
    return proto


def _program_as_onnx(program: Any, request: ExportRequest) -> ModelProto:
    """An exported program with the sizes it was captured for: what it fixes stays fixed, and is told."""
    from torch.utils._pytree import tree_unflatten

    if request.double:
        raise UsageError(
            "an exported program keeps its types", remedy="Capture model.double() and export that, without --double"
        )
    inputs = program_values(program)
    for name, axes in _asked_axes(request, inputs).items():
        if fixed := [axis for axis in axes if isinstance(inputs[name].shape[axis], int)]:
            raise ModelError(
                f"axis {fixed[0]} of input {name!r} is fixed at {inputs[name].shape[fixed[0]]} in the exported program",
                remedy=f"Capture it again with dynamic_shapes={{{name!r}: {{{fixed[0]}: torch.export.Dim.DYNAMIC}}}}",
            )
    outputs = next(node for node in program.graph.nodes if node.op == "output").args[0]
    answers = list(flatten(tree_unflatten(list(outputs), program.call_spec.out_spec)))
    _require_tensors([(name, hasattr(value, "meta")) for name, value in answers])
    for value in inputs.values():
        # A program out of a file lists ranges of `2*n` among those of symbols, and torch then stumbles over them.
        ranges = value.fake_mode.shape_env.var_to_range
        for derived in [entry for entry in ranges if not entry.is_Symbol]:
            del ranges[derived]
    proto = _translated(program, request.opset)
    name_outputs(proto.graph, [name for name, _ in answers])
    told = _sizes_told(program, inputs, RowAxes.parse(request.batch_axis))
    if told:
        proto.metadata_props.add(key=NOTE, value="; ".join(told))
    return proto


def _sizes_told(program: Any, inputs: Mapping[str, Any], axes: RowAxes) -> list[str]:
    """Sentences on the sizes that the program does not leave free."""
    ranges, told = program_sizes(program), []
    for name, value in inputs.items():
        for axis, size in enumerate(value.shape):
            rows = axis == (axes.of(name, len(value.shape)) or 0)
            if isinstance(size, int):
                told += [f"it takes {size} row{'s' if size > 1 else ''} at a time, as the program does"] if rows else []
            elif " to " in (taken := ranges.get(str(size), "")):
                told.append(f"axis {axis} of {name!r} was captured for sizes of {taken}")
    return list(dict.fromkeys(told))


def _refusal(error: Exception) -> tuple[str, str]:
    """The sentence of torch's that matters, and what to change."""
    text = re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.shape[\2]", str(error))
    if fixed := re.search(r"marked (.+?) as dynamic but your code specialized it to be a constant \((\d+)\)", text):
        size = "the number of rows" if fixed[1] == BATCH else fixed[1]
        return (
            f"forward fixes {size} at {fixed[2]}",
            f"Write forward so that {size} may be anything, such as reshape(-1, …) or sizes read from x.shape",
        )
    if held := re.search(r"satisfy the generated guard (.+?)\.?\s*(?:\n|$)", text):
        return f"forward holds only where {held[1]}", "Write forward so that it does not branch on sizes"
    if "data-dependent" in text:
        return "forward branches on values", "Replace the branch with torch.where, or loops over values with tensors"
    reason = re.split(r"\n\s*(?:The error above|For more information|Suggested fixes|from user code)", text)[0]
    return " ".join(reason.split())[:400], "Write forward with operations on tensors alone"


def _not_convertible(error: BaseException, program: Any) -> ModelError:
    """Which module and line the exporter stumbled over."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(str(link) for link in chain)
    operator, node = re.search(r"op='([\w.]+)'", text), re.search(r"node %(\w+)", text)
    found = _node(program, node[1] if node else "", operator[1] if operator else "")
    where = ""
    if found is not None:
        stack = list((found.meta.get("nn_module_stack") or {}).values())
        where = f" of module {stack[-1][0]!r}" if stack and stack[-1][0] else ""
        where += _at(found.meta.get("stack_trace") or "", None)
    named = f"operator {operator[1]}" if operator else "the module"
    what = f"cannot be converted: {one_line(chain[-1], limit=300)}"
    if operator and "No ONNX function found" in text:
        what = "has no ONNX counterpart"
    return ModelError(f"{named}{where} {what}", remedy="Replace the operator in forward, or ask for a higher opset")


def _node(program: Any, name: str, operator: str) -> Any:
    """The node of a program by its name or operator, also among those it is broken down into."""
    with silently():
        nodes = [*program.graph.nodes, *program.run_decompositions().graph.nodes]
    same = (node for node in nodes if node.name == name or (operator and str(node.target).startswith(operator)))
    return next(same, None)


def _at(text: str, error: BaseException | None) -> str:
    """The last line of the user's own code in a stack trace."""
    import torch

    trace = extract_tb(error.__traceback__) if error is not None else []
    places = PLACE.findall(text) or [(frame.filename, frame.lineno) for frame in trace]
    library = torch.__file__.rpartition("/")[0]
    own = [(file, line) for file, line in places if not file.startswith(library) and file != __file__]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _require_free(proto: ModelProto, free: Mapping[str, Mapping[int, str]]) -> None:
    in_order = dict(zip((value.name for value in proto.graph.input), free.values(), strict=False))
    for value in proto.graph.input:
        for axis in free.get(value.name, in_order.get(value.name, {})):
            dim = value.type.tensor_type.shape.dim[axis]
            if dim.HasField("dim_value"):
                raise ModelError(
                    f"axis {axis} of input {value.name!r} became fixed at {dim.dim_value}",
                    remedy="Write forward so that it holds for any size",
                )


EXTENSION = TorchExporter()
