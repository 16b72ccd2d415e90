"""Networks in another Python: programs of PyTorch and graphs of OpenVINO. Sent over the pipe, see `far_worker`."""

from __future__ import annotations

import warnings
from typing import Any


class Refused(Exception):  # noqa: N818 - a sentence for people, not an error of a program
    """Why a model is not opened here, in words for a person."""


class Network:
    """A program of PyTorch: one that was exported, TorchScript, or a pickled module."""

    def __init__(self, content: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a way of saving is going out of use says nothing of the answers
            self._load(content)

    def _load(self, content: bytes) -> None:
        import io
        import zipfile

        import torch

        torch_load: Any = torch.jit.load
        held = zipfile.ZipFile(io.BytesIO(content)).namelist() if zipfile.is_zipfile(io.BytesIO(content)) else []
        self.program: Any = None
        if any(name.endswith(("models/model.json", "serialized_exported_program.json")) for name in held):
            self.program = torch.export.load(io.BytesIO(content))
            self.module = self.program.module()
        elif any("/code/" in name for name in held):
            self.module = torch_load(io.BytesIO(content), map_location="cpu").eval()
        else:
            self.module = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
            if not isinstance(self.module, torch.nn.Module):
                raise Refused("it holds weights without the model they belong to: name that as file.py:function")
            self.module.eval()

    def described(self) -> dict[str, Any]:
        state = [*self.module.parameters(), *self.module.buffers()]
        weights = next((str(tensor.dtype).split(".")[1] for tensor in state if tensor.is_floating_point()), None)
        kinds = (getattr(part, "original_name", type(part).__name__) for part in self.module.modules())
        told = {"network": type(self.program or self.module).__name__, "weights": weights}
        inputs = self._parameters() if self.program is None else list(self._captured())
        return {**told, "embeds": any("Embedding" in kind for kind in kinds), "inputs": inputs}

    def _parameters(self) -> list[dict[str, Any]]:
        import inspect

        schema = getattr(self.module.forward, "schema", None)
        if schema is not None:
            arguments = [(a.name, a.has_default_value(), a.kwarg_only) for a in schema.arguments[1:]]
        else:
            found = inspect.signature(self.module.forward).parameters.values()
            named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            arguments = [(p.name, p.default is not p.empty, p.kind is p.KEYWORD_ONLY) for p in named]
        return [{"name": name, "optional": free, "keyword": named} for name, free, named in arguments]

    def _captured(self) -> Any:
        values = {node.name: node.meta.get("val") for node in self.program.graph.nodes if node.op == "placeholder"}
        spec = self.program.call_spec.in_spec
        _, named = spec.children() if hasattr(spec, "children") else spec.children_specs  # as older versions call it
        names = list(self.program.graph_signature.user_inputs)
        for place, name in enumerate(names):
            value = values[name]
            if not hasattr(value, "dtype"):
                raise Refused(f"the exported program takes {name!r} as something other than a tensor")
            bounds = [self._bounds(size) for size in value.shape]
            by_name = place >= len(names) - named.num_leaves
            given = str(list(named.context)[place - len(names)]) if by_name else name
            shape = [size if isinstance(size, int) else None for size in value.shape]
            dtype = str(value.dtype).split(".")[1]
            yield {"name": given, "dtype": dtype, "shape": shape, "bounds": bounds, "keyword": by_name}

    def _bounds(self, size: Any) -> list[int] | None:
        """The least and the most that it was captured for; None where there is no end."""
        bound = None if isinstance(size, int) else self.program.range_constraints.get(size.node.expr)
        return [int(bound.lower), int(bound.upper)] if bound is not None and str(bound.upper).isdigit() else None

    def ask(self, rows: Any, wanted: list[str] | None) -> Any:
        import torch

        given, named = [torch.from_numpy(array.copy()) for array in rows["given"]], rows["named"]
        with torch.inference_mode():
            return _arrays(self.module(*given, **{name: torch.from_numpy(a.copy()) for name, a in named.items()}))


def _arrays(answer: Any) -> Any:
    """An answer of a module with arrays in the place of tensors."""
    if hasattr(answer, "_asdict"):
        answer = answer._asdict()
    if isinstance(answer, dict):
        return {str(name): _arrays(entry) for name, entry in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [_arrays(entry) for entry in answer]
    if not hasattr(answer, "detach"):
        return answer
    tensor = answer.detach().cpu()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


class Compiled:
    """A graph of OpenVINO."""

    def __init__(self, graph: bytes, weights: bytes) -> None:
        from openvino import Core

        self.graph = Core().read_model(graph, weights)
        self.compiled = Core().compile_model(self.graph, "CPU")

    def described(self) -> dict[str, Any]:
        import numpy as np

        inputs = []
        for place, port in enumerate(self.graph.inputs):
            shape = port.get_partial_shape()
            sizes = None if shape.rank.is_dynamic else [None if s.is_dynamic else s.get_length() for s in shape]
            dtype = np.dtype(port.get_element_type().to_dtype())
            inputs.append({"name": self._name(port, place), "dtype": dtype.name, "shape": sizes})
        return {"network": "OpenVINO", "inputs": inputs}

    def _name(self, port: Any, place: int) -> str:
        return min(port.get_names(), default=f"{port.get_node().get_friendly_name()}.{place}")

    def ask(self, rows: Any, wanted: list[str] | None) -> Any:
        import numpy as np

        answers = self.compiled([*rows["given"], *rows["named"].values()])
        # Copied: the arrays are views of memory that the next call writes to.
        return {self._name(port, place): np.array(answers[place]) for place, port in enumerate(self.graph.outputs)}
