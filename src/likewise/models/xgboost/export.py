"""XGBoost models to ONNX, through onnxmltools.

The converter is handed a copy of exactly the trees that `predict` uses, without feature names and inside
the wrapper whose conversion is right for the objective. What it is known to get wrong is refused: each
entry of `WRONG` was seen to give other answers than the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from likewise.contracts.models import ExportRequest
from likewise.errors import ModelError, extra
from likewise.models import boosters
from likewise.models.xgboost.open import Facts, booster_of, categories_of, facts_of, is_model, is_wrapper, reason

if TYPE_CHECKING:
    from onnx import ModelProto


CLASSIFIED = ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax")

WRONG = {
    "reg:logistic": "leaves out the sigmoid",
    "survival:cox": "leaves out the exponent",
    "survival:aft": "leaves out the exponent",
}
"""Objectives whose link function onnxmltools 1.16 does not convert."""


class XgboostExporter:
    """All knowledge of onnxmltools' XGBoost converter."""

    framework = "xgboost"

    def claims(self, model: object) -> bool:
        return is_model(model)

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("boost", needed_for="the export of XGBoost models"):
            import onnxmltools  # noqa: F401
            import xgboost
        wrapper = request.model if is_wrapper(request.model) else None
        booster = booster_of(request.model)
        facts = facts_of(booster)
        _require_convertible(wrapper, booster, facts, request)
        if wrapper is not None and facts.best_round is not None:
            booster = booster[: facts.best_round + 1]

        def clean() -> Any:
            made = (xgboost.XGBClassifier if facts.objective in CLASSIFIED else xgboost.XGBRegressor)()
            made.load_model(_anonymous(booster, facts))
            return made

        return boosters.to_onnx("xgboost", clean, facts.features, request, reason=reason)


def _anonymous(booster: Any, facts: Facts) -> bytearray:
    """A copy as the converter reads it: features by position, without early stopping, softmax as probabilities."""
    booster = booster.copy()
    types = booster.feature_types
    booster.feature_names = None
    # A dump writes no threshold for a boolean and a rounded one for an integer.
    booster.feature_types = types and ["c" if str(kind).startswith("c") else "float" for kind in types]
    booster.set_attr(best_iteration=None, best_score=None, scikit_learn=None)
    if facts.objective == "multi:softmax":
        booster.set_param({"objective": "multi:softprob"})
    raw: bytearray = booster.save_raw("json")
    return raw


def _require_convertible(wrapper: Any, booster: Any, facts: Facts, request: ExportRequest) -> None:
    """Refuse what the converter is known to get wrong, or to give up on without a reason."""
    if request.double:
        raise ModelError("XGBoost computes in float32 itself, so there is no float64 export", remedy="Leave out double")
    if request.zipmap:
        raise ModelError("onnxmltools writes no dictionaries for XGBoost models", remedy="Leave out zipmap")
    if facts.kind != "gbtree":
        what = "its trees carry weights" if facts.kind == "dart" else "it has no trees"
        raise ModelError(f"onnxmltools cannot convert the booster {facts.kind!r}: {what}", remedy="Train a gbtree")
    if facts.objective in WRONG:
        raise ModelError(
            f"onnxmltools converts the objective {facts.objective!r} wrongly: it {WRONG[facts.objective]}",
            remedy="Serve the model with XGBoost",
        )
    if wrapper is not None and (facts.objective == "binary:logitraw" or callable(wrapper.objective)):
        raise ModelError(
            "onnxmltools cannot convert a classifier that gives margins",
            remedy="Export its booster: model.get_booster()",
        )
    if facts.targets > 1:
        raise ModelError(
            f"onnxmltools converts a model with {facts.targets} targets wrongly: it adds all trees to the first",
            remedy="Export one model a target",
        )
    if facts.objective.startswith("multi:") and (facts.classes == 2 or facts.parallel_trees > 1):
        why = "two classes" if facts.classes == 2 else f"{facts.parallel_trees} parallel trees"
        raise ModelError(
            f"onnxmltools converts {facts.objective!r} with {why} wrongly: it gives trees to other classes",
            remedy="Train with binary:logistic" if facts.classes == 2 else "Train with num_parallel_tree=1",
        )
    missing = getattr(wrapper, "missing", None)
    if missing is not None and missing == missing:
        raise ModelError(
            f"the model takes {missing} for a missing value, and ONNX knows only NaN",
            remedy="Replace it by NaN in the data, and train with the default",
        )
    categories = categories_of(booster)
    for name, known in categories.items():
        boosters.require_codes(repr(name), known)
    if facts.categorical and not categories and facts.names is not None:
        raise ModelError(
            f"feature {facts.categorical[0]!r} is categorical, and the model does not keep the names of its categories",
            remedy="Encode it before the model, and train on the codes",
        )


EXTENSION = XgboostExporter()
