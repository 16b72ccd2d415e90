"""What a PyTorch module says about its inputs: the embeddings, normalisations and layers that see them first."""

from __future__ import annotations

import sys
from typing import Any

from likewise.contracts.models import Signature
from likewise.models.clues import About, Clues

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
