"""PyTorch to ONNX with the exporter that captures the whole program (dynamo), and nothing silent about it.

The number of rows stays free, or the export fails: a batch size that was fixed by the way `forward` is
written would be noticed in production only. Outputs are named after the paths that lead to them in the
module's own answer, so that they are compared by name.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import ExportRequest
from likewise.errors import ModelError, UsageError, extra, nearest, one_line
from likewise.models import quietly
from likewise.models.arrays import RowAxes, from_front
from likewise.models.torch.open import (
    Parameter,
    bound,
    device_of,
    flatten,
    parameters_of,
    tensor_of,
    training_parts,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


SAMPLE_ROWS = 3
"""Rows the program is captured with: with one, PyTorch would take their number for a constant."""

PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class TorchExporter:
    """Exports live modules."""

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
        if request.double:
            module = copy.deepcopy(module).double()
        tensors = _sample(request, device_of(module))
        parameters = parameters_of(module)
        names = _answer_names(module, tensors, parameters)
        free = _free_axes(request, tensors)
        shapes = tuple(free.values()) if parameters is None else free
        program = _captured(module, tensors, parameters, shapes)
        try:
            with _silently():
                exported = torch.onnx.export(
                    program,
                    dynamo=True,
                    verbose=False,
                    opset_version=request.opset,
                    dynamic_shapes=shapes,
                )
        except Exception as error:  # the exporter raises many types
            raise _not_convertible(error, program) from error
        assert exported is not None
        proto = exported.model_proto
        # Shapes of values in between mislead tools that change the graph later, such as quantisers.
        del proto.graph.value_info[:]
        _require_free(proto, free)
        _name_outputs(proto.graph, names)
        return proto


def _require_exportable(module: Any, request: ExportRequest) -> None:
    import torch

    if request.zipmap:
        raise UsageError("a PyTorch module has no class labels for one dictionary per row", remedy="Leave out zipmap")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "a TorchScript module cannot be exported", remedy="Export the module that the script was made from"
        )
    # The adapter opens a module in eval mode; only its details still tell in which mode it was found.
    training = list(training_parts(module))
    if training or request.details.get("training_mode"):
        parts = f" ({', '.join(training[:3])})" if training else ""
        raise ModelError(
            f"the module is in training mode{parts}: what is exported so may keep dropout alive",
            remedy="Call model.eval() first, where the module is built or before it is captured",
        )


def _sample(request: ExportRequest, device: Any) -> dict[str, Any]:
    """A few rows as tensors, where the module has its rows."""
    axes = RowAxes.parse(request.batch_axis)
    if not len(request.sample):
        raise ModelError("there is no row to capture the module with", remedy="Give data with at least one row")

    def laid_out(name: str, array: Array) -> Array:
        rows = array[np.arange(SAMPLE_ROWS) % len(array)]
        return from_front(rows, axes.of(name, rows.ndim) or 0)

    tensors = {name: tensor_of(laid_out(name, array)) for name, array in request.sample.inputs.items()}
    if request.double:
        tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _answer_names(module: Any, tensors: Mapping[str, Any], parameters: tuple[Parameter, ...] | None) -> list[str]:
    import torch

    args, kwargs = bound(tensors, parameters)
    try:
        with torch.inference_mode():
            return [name for name, _ in flatten(module(*args, **kwargs))]
    except Exception as error:
        raise ModelError(f"the module does not answer the first rows: {one_line(error)}") from error


def _free_axes(request: ExportRequest, tensors: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Every input's axis of the rows, and the axes asked for."""
    from torch.export import Dim

    axes = RowAxes.parse(request.batch_axis)
    batch = Dim("batch")
    asked = request.dynamic or {}
    for name in asked:
        if name not in tensors:
            raise UsageError(f"there is no input {name!r} with free axes{nearest(name, tensors)}")
    return {
        name: {
            **dict.fromkeys(asked.get(name, ()), Dim.DYNAMIC),
            **({(axes.of(name, tensor.ndim) or 0): batch} if tensor.ndim else {}),
        }
        for name, tensor in tensors.items()
    }


def _captured(module: Any, tensors: Mapping[str, Any], parameters: tuple[Parameter, ...] | None, shapes: Any) -> Any:
    import torch

    args, kwargs = bound(tensors, parameters)
    try:
        with _silently():
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever forward does that cannot be captured
        reason = re.split(r"\n\s*(?:The error above|For more information|Suggested fixes)", str(error))[0]
        raise ModelError(
            f"the module cannot be captured{_at(str(error), error)}: {' '.join(reason.split())[:400]}",
            remedy="Write forward so that it holds for any number of rows and does not branch on values",
        ) from error


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
        where = f" of module {stack[-1][0] or 'the root'!r}" if stack else ""
        where += _at(found.meta.get("stack_trace") or "", None)
    what = f"operator {operator[1]}{where} has no ONNX counterpart" if operator else f"conversion failed{where}"
    return ModelError(
        f"{what}: {one_line(chain[-1], limit=300)}",
        remedy="Replace the operator in forward, or ask for a higher opset",
    )


def _node(program: Any, name: str, operator: str) -> Any:
    """The node of a program by its name or operator, also among those it is broken down into."""
    with _silently():
        graphs = (program.graph, program.run_decompositions().graph)
    for graph in graphs:
        for node in graph.nodes:
            if node.name == name or (operator and str(node.target).startswith(operator)):
                return node
    return None


def _at(text: str, error: BaseException | None) -> str:
    """The last line of the user's own code in a stack trace."""
    import torch

    places = PLACE.findall(text)
    trace = error.__traceback__ if error is not None else None
    while trace is not None and not PLACE.search(text):
        places.append((trace.tb_frame.f_code.co_filename, str(trace.tb_lineno)))
        trace = trace.tb_next
    library = torch.__file__.rpartition("/")[0]
    own = [(file, line) for file, line in places if not file.startswith(library) and file != __file__]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _require_free(proto: ModelProto, free: Mapping[str, Mapping[int, Any]]) -> None:
    in_order = dict(zip((value.name for value in proto.graph.input), free.values(), strict=False))
    for value in proto.graph.input:
        for axis in free.get(value.name, in_order.get(value.name, {})):
            dim = value.type.tensor_type.shape.dim[axis]
            if dim.HasField("dim_value"):
                raise ModelError(
                    f"axis {axis} of input {value.name!r} became fixed at {dim.dim_value}",
                    remedy="Write forward so that it holds for any size",
                )


def _name_outputs(graph: GraphProto, names: list[str]) -> None:
    """Outputs called by their paths; a value inside that has the same name steps aside, or the file would not load."""
    if len(graph.output) != len(names) or len(set(names)) != len(names):
        return
    fixed = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inside = {name for node in graph.node for name in node.output}
    wanted = {value.name: name for value, name in zip(graph.output, names, strict=True)}
    if len(wanted) != len(names) or fixed & {*wanted, *names}:
        return
    aside = {name: f"{name}_inside" for name in set(names) & inside if name not in wanted}
    _rename(graph, {**aside, **wanted})


def _rename(graph: GraphProto, mapping: Mapping[str, str]) -> None:
    for value in graph.output:
        value.name = mapping.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [mapping.get(name, name) for name in node.input]
        node.output[:] = [mapping.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, mapping)


@contextmanager
def _silently() -> Iterator[None]:
    """Without the exporter's progress and advice, which go to the terminal directly."""
    with quietly(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


EXTENSION = TorchExporter()
