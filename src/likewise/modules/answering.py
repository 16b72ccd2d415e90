"""Asking a PyTorch module: arrays in, named arrays out, in eval mode and without gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from likewise.contracts.data import Array
from likewise.errors import ModelError
from likewise.modules.describing import Parameter

LONE = "output"
"""What an answer without a name is called; the entries of a lone tuple are `output.0`, `output.1`."""


def training_parts(module: Any) -> dict[str, Any]:
    """The parts in training mode by their path. The module of a captured program has no modes, whatever it says."""
    if "eval" in vars(module):
        return {}
    return {name or type(module).__name__: part for name, part in module.named_modules() if part.training}


@contextmanager
def evaluating(module: Any) -> Iterator[list[str]]:
    """The module in eval mode, then as it was; what was found in training mode is listed."""
    training = training_parts(module)
    if training:
        module.eval()
    try:
        yield list(training)
    finally:
        # Part by part, because some may have been in eval mode on purpose.
        for part in training.values():
            part.training = True


def ask(module: Any, arguments: Mapping[str, Array], parameters: Sequence[Parameter] | None, device: Any) -> Any:
    """Call the module and give back what it returns."""
    import torch

    args, kwargs = bound({name: tensor_of(array).to(device) for name, array in arguments.items()}, parameters)
    with torch.inference_mode():
        return module(*args, **kwargs)


def bound(tensors: Mapping[str, Any], parameters: Sequence[Parameter] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By position as far as that goes, because hooks and captured programs know no names; the rest by name."""
    if parameters is None:
        return tuple(tensors.values()), {}
    positional, named = [], dict(tensors)
    for parameter in parameters:
        if parameter.keyword or parameter.name not in named:
            break
        positional.append(named.pop(parameter.name))
    return tuple(positional), named


def tensor_of(array: Array) -> Any:
    """The array as a tensor of the same type."""
    import numpy as np
    import torch

    # Row axes may have been moved, and torch takes neither negative strides nor memory it may not write to.
    array = np.require(array, requirements=["C", "W"])
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "biufc":
        raise ModelError(
            f"a tensor cannot hold {'text' if array.dtype.kind in 'OUST' else array.dtype}",
            remedy="Leave the column out with --drop, or give numbers",
        )
    return torch.from_numpy(array)


def flatten(answer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and number of an answer with the path that leads to it; what is None is left out."""
    entries = _entries(answer)
    if answer is None:
        return
    if entries is None:
        yield name or LONE, answer
        return
    for key, entry in entries:
        path = f"{name}.{key}" if name else key if not key.isdigit() else f"{LONE}.{key}"
        yield from flatten(entry, path)


def _entries(answer: Any) -> list[tuple[str, Any]] | None:
    if isinstance(answer, Mapping):
        return [(str(key), entry) for key, entry in answer.items()]
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        return [(field.name, getattr(answer, field.name)) for field in dataclasses.fields(answer)]
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        return list(zip(answer._fields, answer, strict=True))
    if isinstance(answer, tuple | list):
        return [(str(index), entry) for index, entry in enumerate(answer)]
    return None


def arrays_of(answer: Any) -> dict[str, Array]:
    """An answer as arrays by name."""
    arrays: dict[str, Array] = {}
    for name, value in flatten(answer):
        if name in arrays:
            raise ModelError(f"it answers {name!r} twice", remedy="Give each answer a name of its own")
        arrays[name] = _array(name, value)
    if not arrays:
        raise ModelError("it returned nothing", remedy="Return a tensor, or tensors in a dict or tuple")
    return arrays


def _array(name: str, value: Any) -> Array:
    import numpy as np
    import torch

    if isinstance(value, bool | int | float):
        return np.asarray(value)
    if not isinstance(value, torch.Tensor):
        raise ModelError(
            f"{name!r} is a {type(value).__name__}, which cannot be compared", remedy="Return tensors and numbers"
        )
    dense = value.detach().cpu()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    dense = dense.dequantize() if dense.is_quantized else dense
    narrow = dense.is_floating_point() and dense.dtype not in (torch.float16, torch.float32, torch.float64)
    # Copied: a module may give out the memory of its own state, or of its input.
    array: Array = (dense.float() if narrow else dense).numpy().copy()
    return array


def growing_axes(one: Mapping[str, Array], other: Mapping[str, Array], rows: tuple[int, int]) -> dict[str, int]:
    """The axis of the rows of every answer, from the answers to two numbers of rows: the one that follows them."""
    axes = {}
    for name, array in one.items():
        again = other[name].shape if name in other else ()
        following = [axis for axis, lengths in enumerate(zip(array.shape, again, strict=False)) if lengths == rows]
        axes[name] = following[0] if following else 0
    return axes
