"""The weights of a PyTorch module, in every form in which an exporter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.parameters import BUFFER, FOLDED, MODEL, NETWORK, PACKED, PREPROCESSING, Parameter

GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The order in which ONNX wants the gates that torch has as 0, 1, 2 …"""

SCALING = ("mean", "std", "offset")
"""Names of buffers outside normalisation layers that inputs are scaled by."""

MOST_FOLDED = 4
"""Batch norms that are tried behind a layer."""

FOLDING = 1e-5
"""What folding a normalisation into the weights before it may cost, as part of the largest weight."""


def parameters_of(module: Any) -> Iterator[Parameter]:
    """The state of a module, then what becomes of it where a batch norm is folded or a cell is packed."""
    parts = dict(module.named_modules())
    norms = [(number, name) for number, name in enumerate(parts) if hasattr(parts[name], "running_mean")]
    learnt = {name for name, _ in module.named_parameters()}
    for name, values in _state(module):
        step, _, attribute = name.rpartition(".")
        linear = True if attribute == "weight" and hasattr(parts.get(step), "in_features") else None
        held = name not in learnt and not hasattr(parts.get(step), "running_mean")
        role = PREPROCESSING if held and any(word in attribute.lower() for word in SCALING) else MODEL
        yield Parameter(step, attribute, values, role, BUFFER if held else NETWORK, outputs_first=linear)
    for number, (name, part) in enumerate(parts.items()):
        yield from _recurrent(name, part)
        weight = getattr(part, "weight", None)
        if weight is None or hasattr(part, "running_mean") or getattr(weight, "ndim", 0) < 2:
            continue
        # The next one is the likeliest to have been folded in, where no value tells.
        nearest = sorted(norms, key=lambda entry: (entry[0] < number, entry[0]))
        folded = (_folded(name, part, norm, parts[norm]) for _, norm in nearest)
        yield from chain.from_iterable(islice(filter(None, folded), MOST_FOLDED))


def _state(module: Any) -> Iterator[tuple[str, Array]]:
    for name, tensor in module.state_dict().items():
        if not hasattr(tensor, "detach") or not tensor.numel() or name.endswith("num_batches_tracked"):
            continue
        yield name, _array(tensor)


def _array(tensor: Any) -> Array:
    dense = tensor.detach().cpu()
    dense = dense.dequantize() if dense.is_quantized else dense
    narrow = dense.is_floating_point() and dense.element_size() < 4
    array: Array = (dense.float() if narrow else dense).numpy()
    return array


def _folded(name: str, part: Any, norm_name: str, norm: Any) -> list[Parameter]:
    """Weights with a batch norm multiplied into them, as exporters write the two."""
    if norm.running_mean is None or norm.running_var is None:
        return []
    weight, mean = (_array(tensor).astype(np.float64) for tensor in (part.weight, norm.running_mean))
    transposed = "ConvTranspose" in type(part).__name__
    outputs = weight.shape[1] if transposed else weight.shape[0]
    if outputs != len(mean):
        return []
    gain = _array(norm.weight) if norm.weight is not None else np.ones_like(mean)
    shift = _array(norm.bias) if norm.bias is not None else np.zeros_like(mean)
    factor = gain / np.sqrt(_array(norm.running_var) + norm.eps)
    bias = _array(part.bias) if getattr(part, "bias", None) is not None else np.zeros_like(mean)
    shape = (1, -1) if transposed else (-1, 1)
    spread = factor.reshape(*shape, *(1,) * (weight.ndim - 2))
    linear = True if hasattr(part, "in_features") else None
    shifted = (bias - mean) * factor + shift
    return [
        Parameter(
            name, "weight", weight * spread, MODEL, FOLDED, folded=norm_name, rounding=FOLDING, outputs_first=linear
        ),
        Parameter(name, "bias", shifted, MODEL, FOLDED, folded=norm_name, rounding=FOLDING),
    ]


def _recurrent(name: str, part: Any) -> Iterator[Parameter]:
    """The weights of a recurrent layer, gates in ONNX's order and the biases side by side."""
    gates = GATES.get(type(part).__name__)
    if gates is None or not hasattr(part, "num_layers"):
        return
    for layer in range(part.num_layers):
        ends = [f"l{layer}", f"l{layer}_reverse"] if part.bidirectional else [f"l{layer}"]
        for stem in ("weight_ih", "weight_hh", "bias"):
            names = ("bias_ih", "bias_hh") if stem == "bias" else (stem,)
            found = [[getattr(part, f"{one}_{end}", None) for one in names] for end in ends]
            if any(tensor is None for row in found for tensor in row):
                continue
            packed = [np.concatenate([_reordered(_array(tensor), gates) for tensor in row]) for row in found]
            yield Parameter(name, f"{stem}_l{layer}", np.stack(packed), MODEL, PACKED)


def _reordered(values: Array, gates: tuple[int, ...]) -> Array:
    parts = np.split(values, len(gates))
    return np.concatenate([parts[gate] for gate in gates])
