"""What a PyTorch module takes: the parameters of `forward`, and the types its weights ask for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.contracts.models import InputSpec
from likewise.data.casts import numpy_dtype
from likewise.errors import ModelError, UsageError

AS_THE_DATA = "data"
"""The value of the option `dtype` that leaves every column as it is."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of `forward`; `keyword` where it can only be given by name."""

    name: str
    optional: bool = False
    keyword: bool = False


def parameters_of(module: Any) -> tuple[Parameter, ...] | None:
    """The inputs of `forward` by name; None if it takes whatever it is given (`*args`)."""
    schema = getattr(module.forward, "schema", None)  # TorchScript's, which has no signature of Python
    if schema is not None:
        arguments = schema.arguments[1:]
        return tuple(Parameter(a.name, a.has_default_value(), a.kwarg_only) for a in arguments)
    found = inspect.signature(module.forward).parameters.values()
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named:
        return None
    return tuple(Parameter(p.name, p.default is not p.empty, p.kind is p.KEYWORD_ONLY) for p in named)


def inputs_of(module: Any, parameters: Sequence[Parameter] | None, dtype: str | None) -> tuple[InputSpec, ...] | None:
    """The inputs as the data has to feed them.

    Nothing in a module says which of its inputs are numbers and which are indices. Fractions are cast
    to the type of the weights; whole numbers too where they cannot be indices, that is where there is
    one input and no embedding. `dtype` overrules this.
    """
    if parameters is None:
        return None
    required = [p for p in parameters if not p.optional] or list(parameters[:1])
    lone = len(required) == 1
    if dtype is None:
        wanted, indices = _weights_dtype(module), not lone or _has_embedding(module)
    else:
        wanted, indices = _stated(dtype), False
    return tuple(
        InputSpec(p.name, wanted, optional=p.optional, floating=indices or p.optional, stackable=lone and p in required)
        for p in parameters
    )


def _stated(dtype: str) -> str | None:
    try:
        return None if dtype == AS_THE_DATA else str(numpy_dtype(dtype))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"dtype is {dtype!r}", remedy=f"Give a type such as float32 or int64, or {AS_THE_DATA!r} to cast nothing"
        ) from error


def program_inputs(program: Any) -> tuple[InputSpec, ...]:
    """The inputs of an exported program, with the types and shapes it was captured with."""
    found = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in program.graph_signature.user_inputs:
        value: Any = found.get(name)
        if not hasattr(value, "dtype"):
            raise ModelError(
                f"the exported program takes {name!r} as something other than a tensor",
                remedy="Capture it with tensors only: wrap the module in one whose forward takes tensors",
            )
        shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        specs.append(InputSpec(name, _numpy_name(value.dtype), shape))
    return tuple(specs)


def program_parameters(program: Any) -> tuple[Parameter, ...]:
    """The same inputs as parameters: those captured by position refuse to be named, and the reverse."""
    positional, named = program.call_spec.in_spec.children()
    names = list(program.graph_signature.user_inputs)
    if len(names) != positional.num_leaves + named.num_leaves or any(
        not child.is_leaf() for spec in (positional, named) for child in spec.children()
    ):
        raise ModelError(
            "the exported program takes nested inputs, which columns cannot feed",
            remedy="Capture a module whose forward takes plain tensors",
        )
    by_name = [Parameter(str(name), keyword=True) for name in named.context or ()]
    return (*(Parameter(name) for name in names[: positional.num_leaves]), *by_name)


def program_sizes(program: Any) -> dict[str, str]:
    """The sizes that an exported program was captured for, by symbol: below the least it may be silently wrong."""
    found = {}
    for name, bound in program.range_constraints.items():
        most = f"to {bound.upper}" if str(bound.upper).isdigit() else "or more"
        found[str(name)] = f"{bound.lower} {most}"
    return found


def live_training(program: Any) -> list[str]:
    """The operators of an exported program that were captured in training mode."""
    flags = {"dropout": 2, "native_dropout": 2, "batch_norm": 5, "feature_dropout": 2, "alpha_dropout": 2}
    found = []
    for node in program.graph.nodes:
        place = flags.get(str(node.target).split(".")[1] if str(node.target).startswith("aten.") else "")
        if place is not None and len(node.args) > place and node.args[place] is True:
            found.append(node.name)
    return found


def _weights_dtype(module: Any) -> str | None:
    """The type of the first floating parameter or buffer; None if there is none."""
    first = next((tensor for tensor in _state(module) if tensor.is_floating_point()), None)
    return None if first is None else _numpy_name(first.dtype)


def device_of(module: Any) -> Any:
    """Where the module's state lies."""
    import torch

    first = next(_state(module), None)
    return torch.device("cpu") if first is None else first.device


def _has_embedding(module: Any) -> bool:
    """Does it look rows up by whole numbers?"""
    return any("Embedding" in getattr(part, "original_name", type(part).__name__) for part in module.modules())


def _numpy_name(dtype: Any) -> str:
    """What numpy calls a type of torch."""
    return str(dtype).removeprefix("torch.")


def details(module: Any, what: str) -> Mapping[str, Any]:
    """Facts for the record and for `likewise inspect`."""
    import torch

    kind = getattr(module, "original_name", None) or f"{type(module).__module__}.{type(module).__qualname__}"
    return {
        "torch": torch.__version__,
        "form": what,
        "module": kind,
        "parameters": sum(tensor.numel() for tensor in module.parameters()),
        "dtype": _weights_dtype(module),
        "device": str(device_of(module)),
        "threads": torch.get_num_threads(),
    }


def _state(module: Any) -> Iterator[Any]:
    from itertools import chain

    return chain(module.parameters(), module.buffers())
