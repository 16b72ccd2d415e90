"""CatBoost models to ONNX, by CatBoost's own export.

What it is known to get wrong is refused: each case was seen to give other answers than the model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.models import ExportRequest
from likewise.errors import ModelError, extra
from likewise.models.boosters import derives_from
from likewise.models.catboost.open import Facts, facts_of, is_model, reason

if TYPE_CHECKING:
    from onnx import ModelProto


EXPONENTS = ("Poisson", "Tweedie")
"""Losses whose exponent CatBoostRegressor.predict applies and the export leaves out."""


class CatboostExporter:
    """All knowledge of CatBoost's ONNX export."""

    framework = "catboost"

    def claims(self, model: object) -> bool:
        return is_model(model)

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("boost", needed_for="the export of CatBoost models"):
            import catboost  # noqa: F401
        facts = facts_of(request.model)
        _require_convertible(request.model, facts, request)
        proto = _saved(request.model, facts)
        if not request.zipmap:
            _without_dictionaries(proto, len(request.model.classes_))
        for value in proto.graph.output:
            if value.name == "predictions":
                # It declares one axis and gives two, and ONNX Runtime warns of that in every call.
                value.type.tensor_type.shape.dim.add().dim_value = 1
        return proto


def _saved(model: Any, facts: Facts) -> ModelProto:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            model.save_model(str(path), format="onnx")
        except Exception as error:
            named = [*facts.categorical, *facts.text, *facts.embedding]
            which = f" (it takes {', '.join(map(repr, named[:12]))})" if named else ""
            raise ModelError(
                f"CatBoost cannot export the model: {reason(error)}{which}",
                remedy="Encode such features as numbers before the model" if named else "Serve the model with CatBoost",
            ) from error
        return onnx.load(path)


def _require_convertible(model: Any, facts: Facts, request: ExportRequest) -> None:
    """Refuse what the export is known to get wrong."""
    classes = model.classes_.tolist()
    threshold = dict(model.get_metadata()).get("binclass_probability_threshold")
    shifted = threshold is not None and float(threshold) != 0.5
    renamed = len(classes) == 2 and model.classes_.dtype.kind in "iu" and classes != [0, 1]
    exponent = facts.loss in EXPONENTS and derives_from(model, "catboost", ("CatBoostRegressor",))
    refused = (
        (request.double, "CatBoost exports float32 inputs only", "Leave out double"),
        (request.opset is not None, "CatBoost exports for an opset of its own choice", "Leave out the opset"),
        (shifted, f"CatBoost's export leaves out the probability threshold of {threshold}", "Apply it when serving"),
        (
            renamed,
            f"CatBoost's export of the classes {classes} answers 0 and 1 instead",
            "Train on 0 and 1 or text",
        ),
        (
            facts.loss == "MultiClassOneVsAll",
            "CatBoost exports MultiClassOneVsAll wrongly: with a softmax in the place of the sigmoids",
            "Train with MultiClass",
        ),
        (facts.multilabel, f"CatBoost exports {facts.loss} wrongly: as if a row had one label", "Export one a label"),
        (exponent, f"CatBoost's export of {facts.loss} leaves out the exponent", "Serve the model with CatBoost"),
        (
            facts.columns is not None and not classes,
            f"CatBoost exports {facts.loss}, which gives {facts.columns} values a row, as a file that does not load",
            "Export one model a value",
        ),
    )
    for wrong, message, remedy in refused:
        if wrong:
            raise ModelError(message, remedy=remedy)


def _without_dictionaries(proto: ModelProto, classes: int) -> None:
    """Probabilities as one array: the node before the ZipMap takes over its output."""
    from onnx import TensorProto, helper

    graph = proto.graph
    last = next((node for node in graph.node if node.op_type == "ZipMap"), None)
    if last is None:
        return
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == last.input[0]:
                node.output[index] = last.output[0]
    place = next(index for index, value in enumerate(graph.output) if value.name == last.output[0])
    graph.node.remove(last)
    graph.output[place].CopyFrom(
        helper.make_tensor_value_info(graph.output[place].name, TensorProto.FLOAT, ["N", classes])
    )


EXTENSION = CatboostExporter()
