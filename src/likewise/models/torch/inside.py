"""A look into a PyTorch module: its weights as exporters write them, and what its layers say about its inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, takewhile
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Signature
from likewise.data.random_values import About, Clues
from likewise.models.arrays import BUFFER, FOLDED, MODEL, NETWORK, PACKED, PREPROCESSING, Parameter

GATES = {4: (0, 3, 1, 2), 3: (1, 0, 2), 1: (0,)}
"""By the number of gates, as LSTM, GRU and RNN have them: the order in which ONNX wants what torch has as 0, 1, 2 …"""

EPSILON = 1e-5
"""What torch adds to a variance where nobody says otherwise."""

SCALING = ("mean", "std", "offset")
"""Names of buffers outside normalisation layers that inputs are scaled by."""

MOST_FOLDED = 4
"""Batch norms that are tried behind a layer."""

FOLDING = 1e-5
"""What folding a normalisation into the weights before it may cost, as part of the largest weight."""


def parameters_of(module: Any) -> Iterator[Parameter]:
    """The state of a module, then what becomes of it where a batch norm is folded or a cell is packed."""
    parts, epsilons = dict(module.named_modules()), epsilons_of(module)
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
        folded = (_folded(name, part, norm, parts[norm], epsilons.get(norm, EPSILON)) for _, norm in nearest)
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


def epsilons_of(module: Any) -> dict[str, float]:
    """What each normalisation adds to the variance. In an exported program its layers are names: the graph tells."""
    found = {name: float(part.eps) for name, part in module.named_modules() if hasattr(part, "eps")}
    for name, node, names in _normalising(module):
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        if isinstance(given.get("eps"), float):
            found[name] = given["eps"]
    return found


def tables_of(module: Any) -> frozenset[str]:
    """The arrays that a module keeps and that no training changes: masks, positions, angles."""
    buffers: Iterable[tuple[str, Any]] = getattr(module, "named_buffers", tuple)()
    return frozenset(name for name, _ in buffers if not name.rpartition(".")[2].startswith("running_"))


def _normalising(module: Any) -> Iterator[tuple[str, Any, list[str]]]:
    """The calls by which an exported program normalises: whose statistics they take, and what their arguments are."""
    nodes = getattr(getattr(module, "graph", None), "nodes", ())
    for node in () if callable(nodes) else nodes:  # those of a recorded module are of another kind
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        if node.op != "call_function" or "running_var" not in names:
            continue
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        held = str(getattr(given.get("running_var"), "target", ""))
        if held.endswith(".running_var"):
            yield held.removesuffix(".running_var"), node, names


def in_training(program: Any, norms: frozenset[str]) -> Any:
    """The program itself, changed so that these normalise by the batch."""
    for name, node, names in _normalising(program):
        place = names.index("training") if "training" in names else len(node.args)
        if name in norms and place < len(node.args):
            node.update_arg(place, True)  # noqa: FBT003 - as torch calls it
    program.recompile()
    return program


def _folded(name: str, part: Any, norm_name: str, norm: Any, epsilon: float) -> list[Parameter]:
    """Weights with a batch norm multiplied into them, as exporters write the two."""
    if norm.running_mean is None or getattr(norm, "running_var", None) is None:
        return []
    weight, mean = (_array(tensor).astype(np.float64) for tensor in (part.weight, norm.running_mean))
    # The layers of an exported program have lost their kind.
    bare = weight.shape[0] != len(mean) and not hasattr(part, "kernel_size")
    transposed = "ConvTranspose" in type(part).__name__ or bare
    outputs = weight.shape[1] if transposed else weight.shape[0]
    if outputs != len(mean):
        return []
    gain = _array(norm.weight) if getattr(norm, "weight", None) is not None else np.ones_like(mean)
    shift = _array(norm.bias) if getattr(norm, "bias", None) is not None else np.zeros_like(mean)
    factor = gain / np.sqrt(_array(norm.running_var) + epsilon)
    bias = _array(part.bias) if getattr(part, "bias", None) is not None else np.zeros_like(mean)
    if len(bias) != len(mean):
        return []
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
    last: Any = getattr(part, "weight_hh_l0", None)
    gates = GATES.get(len(last) // max(last.shape[1], 1)) if getattr(last, "ndim", 0) == 2 else None
    if gates is None or hasattr(part, "weight_hr_l0"):
        return
    for layer in takewhile(lambda number: hasattr(part, f"weight_hh_l{number}"), count()):
        both = hasattr(part, f"weight_hh_l{layer}_reverse")
        ends = [f"l{layer}", f"l{layer}_reverse"] if both else [f"l{layer}"]
        for stem in ("weight_ih", "weight_hh", "bias"):
            names = ("bias_ih", "bias_hh") if stem == "bias" else (stem,)
            found = [[getattr(part, f"{one}_{end}", None) for one in names] for end in ends]
            if any(tensor is None for row in found for tensor in row):
                continue
            split = [[np.split(_array(tensor), len(gates)) for tensor in row] for row in found]
            packed = [np.concatenate([parts[gate] for parts in row for gate in gates]) for row in split]
            yield Parameter(name, f"{stem}_l{layer}", np.stack(packed), MODEL, PACKED)


SEQUENCE, IMAGE = 16, 64
"""Sizes for a module that takes any."""

AS_IT_IS = frozenset(
    {
        *("to", "long", "int", "float", "double", "contiguous", "clone", "detach", "alias", "_to_copy"),
        *("_assert_tensor_metadata", "lift_fresh_copy", "unsqueeze", "squeeze", "dropout"),
    }
)
"""Functions and methods that pass values on."""


def clues_of(native: Any, signature: Signature) -> Clues | None:
    """The clues of a module, by parameter of `forward`; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(native, torch.nn.Module):
        return None
    clues = Clues()
    names = [spec.name for spec in signature.inputs or ()]
    graph = _graph(native)
    if graph is None:
        _note_lone(native, names, clues)
        return clues
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    by_name = {node.name: node.name for node in placeholders if node.name in names}
    origins: dict[Any, str] = {
        node: by_name.get(node.name, by_name.get(str(node.target), str(node.target))) for node in placeholders
    }
    for node in graph.nodes:
        _note(node, native, origins, clues)
    return clues


def _graph(module: Any) -> Any:
    """The operations of a module in order; None where it cannot be traced, as with branches on values."""
    from torch import fx

    if isinstance(module, fx.GraphModule):
        return module.graph
    try:
        return fx.Tracer().trace(module)
    except Exception:  # noqa: BLE001 - code of the user's, run on stand-ins that it may not be made for
        return None


def _note(node: Any, module: Any, origins: dict[Any, str], clues: Clues) -> None:
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        name = origins.get(node.args[0]) if node.args else None
        if name is not None:
            _note_layer(layer, name, clues)
            if type(layer).__name__.startswith(("Identity", "Dropout")):
                origins[node] = name
        return
    called = _called(node)
    if called == "embedding" and len(node.args) > 1:
        # torch.nn.functional has the ids first, the operator of an exported program has them second.
        first = origins.get(node.args[0])
        ids, table = (node.args[0], node.args[1]) if first is not None else (node.args[1], node.args[0])
        rows = _rows(table, module)
        if ids in origins and rows is not None:
            clues.add((origins[ids], None), About.IDS, (rows,), f"looked up in an embedding of {rows:,} rows")
    elif called in AS_IT_IS and node.args and node.args[0] in origins:
        origins[node] = origins[node.args[0]]


def _called(node: Any) -> str:
    target = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", target))
    return name.partition(".")[0]


def _rows(table: Any, module: Any) -> int | None:
    value = getattr(table, "meta", {}).get("val")
    if value is None and getattr(table, "op", "") == "get_attr":
        value = module
        for part in str(table.target).split("."):
            value = getattr(value, part, None)
    shape: Any = getattr(value, "shape", ())
    return int(shape[0]) if len(shape) == 2 else None


def _note_layer(layer: Any, name: str, clues: Clues) -> None:
    """What the first layer that sees an input asks of it."""
    kind = getattr(layer, "original_name", type(layer).__name__)
    place = (name, None)
    if kind in ("Embedding", "EmbeddingBag"):
        rows = int(layer.weight.shape[0])
        clues.add(place, About.IDS, (rows,), f"looked up in an embedding of {rows:,} rows")
        clues.shapes.setdefault(name, (SEQUENCE,))
    elif kind.startswith("BatchNorm") and layer.running_mean is not None:
        means, deviations = layer.running_mean.tolist(), layer.running_var.sqrt().tolist()
        told = (sum(means) / len(means), max(deviations))
        why = "the statistics of the batch normalisation that sees it first"
        clues.add(place, About.SCALE, told, why)
        for index, pair in enumerate(zip(means, deviations, strict=True)):
            clues.add((name, index), About.SCALE, pair, why)
        if kind == "BatchNorm1d":
            clues.shapes.setdefault(name, (len(means),))
    elif kind == "Linear":
        clues.shapes.setdefault(name, (int(layer.in_features),))
    elif kind == "Conv1d":
        clues.shapes.setdefault(name, (int(layer.in_channels), IMAGE))
    elif kind == "Conv2d":
        clues.shapes.setdefault(name, (int(layer.in_channels), IMAGE, IMAGE))
    elif kind in ("LSTM", "GRU", "RNN") and layer.batch_first:
        clues.shapes.setdefault(name, (SEQUENCE, int(layer.input_size)))


def _note_lone(module: Any, names: list[str], clues: Clues) -> None:
    """A module that cannot be traced: its first layer sees its only input, which is true of most."""
    layers = [layer for layer in module.modules() if not list(layer.children()) and list(layer.parameters())]
    if len(names) == 1 and layers:
        _note_layer(layers[0], names[0], clues)
