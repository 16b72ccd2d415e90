"""CatBoost models: live ones, .cbm files, and .json files of save_model(format="json").

To ONNX they go by CatBoost's own export. What it is known to get wrong is refused: each case was seen to give other
answers than the model.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.contracts.models import Adapter, ExportRequest, Kind, Label, Model, OutputSpec, Runner, Signature
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, extra, one_line
from likewise.models import boosters, require_known
from likewise.models.boosters import BoosterRunner, classifier_outputs, derives_from, dtype_of, output

if TYPE_CHECKING:
    from onnx import ModelProto


JSON = re.compile(rb'\s*\{\s*"(ctr_data|features_info)"\s*:')

MAGIC = b"CBM1"


def is_model(target: object) -> bool:
    """Is this a model of CatBoost?"""
    return derives_from(target, "catboost", ("CatBoost",))


@dataclass(frozen=True, slots=True)
class Facts:
    """`loss` is the training's loss without its parameters; `columns` is how many numbers a row has, None for one."""

    loss: str
    trees: int
    best_tree: int | None
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    text: tuple[str, ...]
    embedding: tuple[str, ...]
    scale: float
    bias: tuple[float, ...]

    @property
    def multilabel(self) -> bool:
        return self.loss in ("MultiLogloss", "MultiCrossEntropy")

    @property
    def columns(self) -> int | None:
        return len(self.bias) if len(self.bias) > 1 else None


def facts_of(model: Any) -> Facts:
    """Read from the model; one that was loaded from a file may know less about its training."""
    names = tuple(model.feature_names_)
    scale, bias = model.get_scale_and_bias()
    return Facts(
        loss=_loss_of(model),
        trees=model.tree_count_,
        best_tree=model.best_iteration_,
        features=len(names),
        # What CatBoost writes where the training data had no names.
        names=None if names == tuple(map(str, range(len(names)))) else names,
        categorical=tuple(names[index] for index in model.get_cat_feature_indices()),
        text=tuple(names[index] for index in model.get_text_feature_indices()),
        embedding=tuple(names[index] for index in model.get_embedding_feature_indices()),
        scale=float(scale),
        bias=tuple(bias) if isinstance(bias, list | tuple) else (float(bias),),
    )


def _loss_of(model: Any) -> str:
    """The loss function, as the model itself keeps it."""
    return str(model.get_all_params().get("loss_function", "")).partition(":")[0]


def reason(error: Exception) -> str:
    """What CatBoost said, without the place in its source."""
    return re.sub(r"^\w+: (\S+\.(cpp|h|pyx):\d+: )?", "", one_line(error)).rstrip(".")


class CatboostAdapter(Adapter):
    """All knowledge of CatBoost."""

    framework = "catboost"
    modules = ("catboost",)

    def claims(self, target: object) -> bool:
        return boosters.named(target, (".cbm",)) or boosters.begins(target, (".json",), JSON) or is_model(target)

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model)
        target = boosters.loaded(model, _load)
        if not target.is_fitted():
            raise boosters.unfitted(model.name)
        facts = facts_of(target)
        inputs, table = boosters.inputs_of(facts.names, facts.features)
        signature = Signature(inputs, _outputs(target, facts), table=table)
        yield BoosterRunner(
            target,
            signature,
            _details(target, facts),
            name=model.name,
            ask=lambda batch: _Answers(target, boosters.data_of(batch, signature), facts),
            reason=reason,
        )


class _Answers(boosters.Answers):
    def __init__(self, model: Any, data: Any, facts: Facts) -> None:
        super().__init__(model, _pool(data, facts))
        self._facts = facts

    def _ask(self, kind: str) -> Array:
        from catboost import CatBoost

        # The method of the base class: those of the wrappers take other arguments.
        return CatBoost.predict(self._model, self._data, prediction_type=kind)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._ask("RawFormulaVal")

    @cached_property
    def probabilities(self) -> Array:
        return self._ask("Probability")

    @cached_property
    def label(self) -> Array:
        found = self._ask("Class")
        return found if self._facts.multilabel else found.reshape(len(found))


def _pool(data: Any, facts: Facts) -> Any:
    """The rows, read once for all questions."""
    from catboost import Pool

    return Pool(
        data,
        cat_features=_places(facts.categorical, facts),
        text_features=_places(facts.text, facts),
        embedding_features=_places(facts.embedding, facts),
    )


def _places(names: tuple[str, ...], facts: Facts) -> list[Any] | None:
    """Features as CatBoost takes them: by name, or by position in an array."""
    return None if not names else list(names) if facts.names else [int(name) for name in names]


def _load(path: str | os.PathLike[str]) -> Any:
    """The model in a file, as the class that its loss belongs to."""
    content = boosters.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import catboost
    written = "cbm" if content.startswith(MAGIC) else "json"
    if written == "json":
        # CatBoost loads a JSON file that was cut without a word, with the trees it found.
        try:
            json.loads(content)
        except ValueError as error:
            raise boosters.unreadable(path, "CatBoost", "it is neither .cbm nor whole JSON") from error
    try:
        model = catboost.CatBoost().load_model(os.fspath(path), format=written)
        loss = _loss_of(model)
        ranks = catboost.CatBoost._is_ranking_objective(loss)
        other = catboost.CatBoostRanker if ranks else catboost.CatBoostRegressor
        kind = catboost.CatBoostClassifier if len(model.classes_) else other
        return kind().load_model(os.fspath(path), format=written)
    except Exception as error:
        raise boosters.unreadable(path, "CatBoost", reason(error)) from error


def _outputs(model: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if derives_from(model, "catboost", ("CatBoostRanker",)):
        return (output("scores", Kind.SCORE, facts.columns, dtype="float64"),)
    classes = model.classes_
    if not len(classes):
        return (output("value", Kind.VALUE, facts.columns, dtype="float64"),)
    if facts.multilabel:
        several = facts.columns
        return classifier_outputs(None, labels=several, probabilities=several, scores=several, dtype="float64")
    labels: list[Label] = classes.tolist()
    return classifier_outputs(
        labels, label=dtype_of(classes), probabilities=len(labels), scores=facts.columns, dtype="float64"
    )


def _details(model: Any, facts: Facts) -> Mapping[str, Any]:
    import catboost

    details: dict[str, Any] = {
        "catboost": catboost.__version__,
        "model": type(model).__name__,
        "objective": facts.loss,
        "trees": facts.trees,
        "best_iteration": facts.best_tree,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
        "text_features": list(facts.text),
        "embedding_features": list(facts.embedding),
        "scale": facts.scale,
        "bias": list(facts.bias),
    }
    if threshold := dict(model.get_metadata()).get("binclass_probability_threshold"):
        details["probability_threshold"] = float(threshold)
    return details


EXPONENTS = ("Poisson", "Tweedie")
"""Losses whose exponent CatBoostRegressor.predict applies and the export leaves out."""


def _exported(request: ExportRequest) -> ModelProto:
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
        (
            facts.multilabel,
            f"CatBoost exports {facts.loss} wrongly: as if a row had one label",
            "Export one model per label",
        ),
        (exponent, f"CatBoost's export of {facts.loss} leaves out the exponent", "Serve the model with CatBoost"),
        (
            facts.columns is not None and not classes,
            f"CatBoost exports {facts.loss}, which gives {facts.columns} values per row, as a file that does not load",
            "Export one model per value",
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


EXTENSION = CatboostAdapter()
EXPORTER = boosters.BoosterExporter("catboost", is_model, _exported)
