"""The evaluator of the standard: onnx's own, in numpy, as an oracle. Slow, without any optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.errors import ModelError, UntrustedModelError, one_line
from likewise.models.onnx import describe
from likewise.models.onnx.walk import every_node

if TYPE_CHECKING:
    from onnx import ModelProto

REFUSED = {
    "ImageDecoder": "have the image opened by a library that starts other programs",
    "StringNormalizer": "change the language of the whole process, for good",
}
"""Operators with which it does more than compute, by Pillow and by `locale`. All others are numpy."""


def evaluator(proto: ModelProto) -> Any:
    """The evaluator with a graph, wherever one is asked: of a graph that does more than compute there is none."""
    from onnx.reference import ReferenceEvaluator

    found = next((node for node in every_node(proto) if node.op_type in REFUSED), None)
    if found is not None:
        raise UntrustedModelError(
            f"onnx's reference evaluator is not given a graph with {found.op_type} ({found.name!r}), reached or not: "
            f"it would {REFUSED[found.op_type]}",
            remedy="Leave out runtime=reference, or do before the graph what that operator does",
        )
    return ReferenceEvaluator(describe.whole(proto))


class ReferenceSession:
    """onnx's own evaluator, in the place of a runtime."""

    def __init__(self, model: Model, proto: ModelProto) -> None:
        import onnx

        try:
            self._evaluator = evaluator(proto)
        except ModelError:
            raise
        except Exception as error:  # operators it does not know raise many types
            raise ModelError(
                f"onnx's reference evaluator cannot load {model.name}: {one_line(error)}",
                remedy="Leave out runtime=reference",
            ) from error
        self.outputs = list(self._evaluator.output_names)
        self.settings: Mapping[str, Any] = {"runtime": "reference", "onnx": onnx.__version__}

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Any]:
        import numpy as np

        try:
            with np.errstate(all="ignore"):
                return list(self._evaluator.run(None, dict(inputs)))
        except Exception as error:
            raise ModelError(f"onnx's reference evaluator could not run it: {one_line(error)}") from error
