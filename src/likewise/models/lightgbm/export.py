"""LightGBM models to ONNX, through onnxmltools.

What the converter is known to get wrong is refused: each case was seen to give other answers than the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from likewise.contracts.models import ExportRequest
from likewise.errors import ModelError, extra
from likewise.models import boosters
from likewise.models.lightgbm.open import Facts, booster_of, facts_of, is_model, is_wrapper

if TYPE_CHECKING:
    from onnx import ModelProto


UNSUPPORTED = ("cross_entropy", "cross_entropy_lambda", "fair", "mape")


class LightgbmExporter:
    """All knowledge of onnxmltools' LightGBM converter."""

    framework = "lightgbm"

    def claims(self, model: object) -> bool:
        return is_model(model)

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("boost", needed_for="the export of LightGBM models"):
            import lightgbm
            import onnxmltools  # noqa: F401
        wrapper = request.model if is_wrapper(request.model) else None
        booster = booster_of(request.model)
        facts = facts_of(booster)
        _require_convertible(wrapper, booster, facts, request)

        def used() -> Any:
            """A copy of a booster has the trees that predict uses and the objective's proper name."""
            if wrapper is not None:
                return wrapper
            return lightgbm.Booster(model_str=booster.model_to_string(num_iteration=facts.best_round))

        return boosters.to_onnx("lightgbm", used, facts.features, request, zipmap=request.zipmap)


def _require_convertible(wrapper: Any, booster: Any, facts: Facts, request: ExportRequest) -> None:
    """Refuse what the converter is known to get wrong, or to give up on without a reason."""
    if request.double:
        raise ModelError(
            "onnxmltools converts LightGBM models to float32 only",
            remedy="Leave out double; rows whose values lie on a split may then answer differently",
        )
    if not facts.objective or facts.task in UNSUPPORTED:
        named = repr(facts.task) if facts.task else "that is a function"
        raise ModelError(f"onnxmltools cannot convert the objective {named}", remedy="Serve the model with LightGBM")
    for wrong, what in _wrong(facts):
        if wrong:
            raise ModelError(f"onnxmltools converts {what}", remedy="Serve the model with LightGBM")
    for node in _nodes_of(booster):
        if node.get("missing_type") == "Zero":
            name = facts.names[node["split_feature"]] if facts.names else node["split_feature"]
            raise ModelError(
                f"the model takes zero for a missing value (feature {name!r}), and ONNX knows only NaN",
                remedy="Replace zero by NaN in the data, and train without zero_as_missing",
            )
        if "leaf_coeff" in node:
            raise ModelError(
                "onnxmltools converts linear trees wrongly: it keeps only the constant of a leaf",
                remedy="Train without linear_tree",
            )
    if hasattr(wrapper, "predict_proba") and wrapper.classes_.dtype.kind == "b":
        raise ModelError("onnxmltools cannot convert boolean classes", remedy="Train on 0 and 1")
    for index, known in enumerate(facts.categories):
        told = len(facts.categorical) == len(facts.categories)
        name = repr(facts.categorical[index]) if told else f"number {index + 1} of the categorical ones"
        boosters.require_codes(name, known)


def _nodes_of(booster: Any) -> Iterator[dict[str, Any]]:
    """Every split and leaf of every tree that predict uses."""
    stack = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node[side] for side in ("left_child", "right_child") if side in node)


def _wrong(facts: Facts) -> tuple[tuple[bool, str], ...]:
    sigmoid = re.search(r"sigmoid:(\S+)", facts.objective)
    steep = sigmoid is not None and float(sigmoid[1]) != 1
    return (
        (facts.task == "multiclassova", "'multiclassova' wrongly: it puts a softmax in the place of the sigmoids"),
        (steep, f"{facts.objective!r} wrongly: it takes the sigmoid's factor for 1"),
        ("sqrt" in facts.objective.split(), f"{facts.objective!r} wrongly: it leaves out the square"),
        (facts.averaged, "random forests wrongly: it does not divide by the number of trees"),
    )


EXTENSION = LightgbmExporter()
