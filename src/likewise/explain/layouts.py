"""Forms in which the same picture, signal or table is handed over: layout, channel order, scale, mean and deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array

Change = Callable[[Array], Array]
"""What is done to an input, rows along axis 0."""

STATISTICS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ImageNet's mean and deviation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "a mean of 0.5 and a deviation of 0.5": ((0.5,), (0.5,)),
    "CLIP's mean and deviation": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10's mean and deviation": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-10's mean and another deviation": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "MNIST's mean and deviation": ((0.1307,), (0.3081,)),
    "the means that Caffe subtracts": ((123.68, 116.779, 103.939), (1.0,)),
}


def scales() -> Iterator[tuple[str, Change]]:
    """The same values from 0 to 255, from 0 to 1, from -1 to 1."""
    yield "0 to 255 instead of 0 to 1 (times 255)", lambda x: x * 255.0
    yield "0 to 1 instead of 0 to 255 (divided by 255)", lambda x: x / 255.0
    yield "-1 to 1 instead of 0 to 1", lambda x: x * 2.0 - 1.0
    yield "0 to 1 instead of -1 to 1", lambda x: (x + 1.0) / 2.0
    yield "-1 to 1 instead of 0 to 255", lambda x: x / 127.5 - 1.0
    yield "0 to 255 instead of -1 to 1", lambda x: (x + 1.0) * 127.5
    yield "black and white exchanged (1 minus it)", lambda x: 1.0 - x
    yield "black and white exchanged (255 minus it)", lambda x: 255.0 - x


def orders(shape: Sequence[int]) -> Iterator[tuple[str, Change]]:
    """Channels or axes in another order, for inputs of this shape."""
    rank = len(shape)
    for axis in (1, rank - 1):
        if rank >= 3 and shape[axis] in (3, 4):
            yield "channels in reverse (BGR instead of RGB)", _reversed(axis, shape[axis])
    if rank == 4:
        for told, axes in (
            ("channels last (NHWC) instead of first", (0, 2, 3, 1)),
            ("channels first (NCHW) instead of last", (0, 3, 1, 2)),
            ("height and width exchanged", (0, 1, 3, 2)),
            ("height and width exchanged", (0, 2, 1, 3)),
        ):
            yield told, partial(_moved, axes=axes)
            yield f"{told}, read anew without being moved", partial(_read_anew, axes=axes)
    elif rank == 3:
        yield "its two axes exchanged", partial(_moved, axes=(0, 2, 1))
        yield "its two axes exchanged, read anew without being moved", partial(_read_anew, axes=(0, 2, 1))
    if rank >= 3:
        for axis in range(1, rank):
            if shape[axis] > 4:
                yield f"axis {axis} in reverse", partial(np.flip, axis=axis)


def _reversed(axis: int, size: int) -> Change:
    order = [2, 1, 0, 3][:size]
    return lambda x: np.take(x, order, axis=axis)


def _moved(x: Array, *, axes: tuple[int, ...]) -> Array:
    """Axes exchanged; what no longer has the shape it must have is only read anew, as a careless reshape does."""
    return np.ascontiguousarray(x.transpose(axes)).reshape(x.shape)


def _read_anew(x: Array, *, axes: tuple[int, ...]) -> Array:
    """What a careless reshape to these axes undoes."""
    return x.reshape([x.shape[axis] for axis in axes]).transpose(np.argsort(axes))


def statistics(shape: Sequence[int], found: Sequence[tuple[str, Array, Array]]) -> Iterator[tuple[str, Change]]:
    """Mean and deviation taken out, or put back: common ones, and those found in the models."""
    for axis in _channel_axes(shape):
        known = [(told, np.array(mean), np.array(deviation)) for told, (mean, deviation) in STATISTICS.items()]
        for told, mean, deviation in [*found, *known]:
            if any(len(part) not in (1, shape[axis]) for part in (mean, deviation)) or not np.all(deviation):
                continue
            m, d = (_along(part, axis, len(shape)) for part in (mean, deviation))
            yield f"with {told} put back", partial(_affine, factor=d, offset=m)
            yield f"with {told} taken out", partial(_affine, factor=1 / d, offset=-m / d)
            yield f"divided by 255, with {told} taken out", partial(_affine, factor=1 / d / 255, offset=-m / d)
            yield f"with {told} put back, times 255", partial(_affine, factor=255 * d, offset=255 * m)


def _affine(x: Array, *, factor: Array, offset: Array) -> Array:
    result: Array = x * factor + offset
    return result


def _channel_axes(shape: Sequence[int]) -> list[int]:
    axes = [axis for axis in dict.fromkeys((1, len(shape) - 1)) if len(shape) >= 3 and shape[axis] in (1, 3, 4)]
    return axes or [len(shape) - 1] * (len(shape) >= 2)


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def statistics_of_module(module: Any) -> list[tuple[str, Array, Array]]:
    """Buffers of a torch module that are named as a mean and a deviation, of one value a channel."""
    tensors = dict(module.named_buffers()) if hasattr(module, "named_buffers") else {}
    means = {name: t for name, t in tensors.items() if name.rpartition(".")[2] in ("mean", "_mean", "pixel_mean")}
    found = []
    for name, mean in means.items():
        stem = name.removesuffix("mean")
        deviation = next(
            (tensors[stem + word] for word in ("std", "deviation", "scale") if stem + word in tensors), None
        )
        if deviation is not None and mean.numel() == deviation.numel() <= 4:
            told = f"the reference's own mean and deviation ('{name}')"
            found.append((told, *(t.detach().cpu().numpy().reshape(-1).astype(np.float64) for t in (mean, deviation))))
    return found


def statistics_of_graph(graph: Any, name: str) -> list[tuple[str, Array, Array]]:
    """What the first nodes after an input subtract from it and divide it by, as a mean and a deviation."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
    factor, offset, current = np.ones(1), np.zeros(1), name
    for node in graph.graph.node:
        if current not in node.input or node.op_type not in ("Sub", "Add", "Mul", "Div", "Cast", "Identity"):
            continue
        others = [constants[other] for other in node.input if other in constants]
        if node.op_type in ("Sub", "Add", "Mul", "Div"):
            if not others or (node.op_type in ("Sub", "Div") and node.input[0] != current):
                break
            value = numpy_helper.to_array(others[0]).astype(np.float64).reshape(-1)
            if len(value) not in (1, 3, 4):
                break
            if node.op_type in ("Sub", "Add"):
                offset = offset + (value if node.op_type == "Add" else -value)
            else:
                factor = factor * (value if node.op_type == "Mul" else 1.0 / value)
                offset = offset * (value if node.op_type == "Mul" else 1.0 / value)
        current = node.output[0]
    if np.all(factor == 1) and np.all(offset == 0):
        return []
    # factor * x + offset is (x - mean) / deviation.
    return [("the mean and deviation in the candidate's graph", -offset / factor, 1.0 / factor)]
