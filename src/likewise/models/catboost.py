"""CatBoost models: live ones, .cbm files, and .json files of save_model(format="json").

To ONNX they go by CatBoost's own export. What it is known to get wrong is refused: each case was seen to give other
answers than the model.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import ExportRequest, Kind, Label, Model, OutputSpec, Runner
from likewise.contracts.values import dataclass
from likewise.data.files import named_once
from likewise.errors import ModelError, one_line
from likewise.models import boosters
from likewise.models.boosters import BoosterRunner, classifier_outputs, dtype_of, output

if TYPE_CHECKING:
    from onnx import ModelProto

    from likewise.models.trees.ensemble import Ensemble, Tree


JSON = re.compile(rb'\s*\{\s*"(ctr_data|features_info)"\s*:')
MAGIC = b"CBM1"


is_model = boosters.instances_of("catboost", "CatBoost")
"""Is this a model of CatBoost?"""


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


def _behind(content: bytes) -> str:
    """What is said of bytes behind the model that belong to none of its parts; CatBoost does not look at them.

    The model is a table of FlatBuffers, whose fourth field lists the parts that follow it (statistics of categories).
    """
    (size,), (root,) = struct.unpack_from("<I", content, 4), struct.unpack_from("<I", content, 8)
    table = 8 + root
    fields = table - struct.unpack_from("<i", content, table)[0]
    (room,) = struct.unpack_from("<H", content, fields)
    place = struct.unpack_from("<H", content, fields + 10)[0] if room >= 12 else 0
    parts = table + place + struct.unpack_from("<I", content, table + place)[0] if place else 0
    follows = parts and struct.unpack_from("<I", content, parts)[0]
    extra = len(content) - 8 - size
    return f"{extra:,} bytes stand behind its end" if extra > 0 and not follows else ""


def _as_json(model: Any) -> dict[str, Any]:
    """The model as CatBoost writes it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        written: dict[str, Any] = json.loads(path.read_text())
    return written


def _read_otherwise(told: dict[str, Any], read: dict[str, Any]) -> str:
    """The part of a file that CatBoost does not go by, while others do; empty if there is none.

    A split is told twice, by its feature with its border and by a number, and it takes the number. Leaves that are too
    few it takes from the next tree.
    """
    parts = ("oblivious_trees", "trees", "scale_and_bias")
    return next((name for name in parts if told.get(name) and not _alike(told[name], read.get(name))), "")


def _alike(told: Any, read: Any) -> bool:
    """Are values of JSON the same, up to the digits that are written, as far as both name them?"""
    if isinstance(told, dict) and isinstance(read, dict):
        return all(_alike(told[name], read[name]) for name in told.keys() & read.keys())
    if isinstance(told, list) and isinstance(read, list):
        return len(told) == len(read) and all(map(_alike, told, read))
    if isinstance(told, int | float) and isinstance(read, int | float):
        return math.isclose(told, read, rel_tol=1e-6)
    return bool(told == read)


class CatboostAdapter(boosters.BoosterAdapter):
    """All knowledge of CatBoost."""

    framework, title = "catboost", "CatBoost"
    modules = ("catboost",)

    def claims(self, target: object) -> bool:
        return boosters.named(target, (".cbm",)) or boosters.begins(target, (".json",), JSON) or is_model(target)

    def damage(self, content: bytes) -> str:
        # CatBoost loads a JSON file that was cut without a word, with the trees it found.
        try:
            if content.startswith(MAGIC):
                return _behind(content)
            json.loads(content, object_pairs_hook=named_once)
        except json.JSONDecodeError:
            return "it is neither .cbm nor whole JSON"
        except (ValueError, struct.error) as error:
            return one_line(error)
        return ""

    def load(self, path: str, content: bytes) -> Any:
        """The model in a file, as the class that its loss belongs to."""
        import catboost

        written = "cbm" if content.startswith(MAGIC) else "json"
        model = catboost.CatBoost().load_model(path, format=written)
        if written == "json" and (other := _read_otherwise(json.loads(content), _as_json(model))):
            raise ModelError(f"{path} says two things: CatBoost does not read its {other} as they are written there")
        ranks = catboost.CatBoost._is_ranking_objective(_loss_of(model))
        other = catboost.CatBoostRanker if ranks else catboost.CatBoostRegressor
        kind = catboost.CatBoostClassifier if len(model.classes_) else other
        return kind().load_model(path, format=written)

    def reason(self, error: Exception) -> str:
        """What CatBoost said, without the place in its source."""
        return re.sub(r"^\w+: (\S+\.(cpp|h|pyx):\d+: )?", "", one_line(error)).rstrip(".")

    def runner(self, target: Any, model: Model) -> Runner:
        if not target.is_fitted():
            raise boosters.unfitted(model.name)
        facts = facts_of(target)
        signature = boosters.signature_of(facts.names, facts.features, _outputs(target, facts))

        def ask(batch: Batch) -> _Answers:
            return _Answers(target, _pool(boosters.data_of(batch, signature), facts), facts)

        return BoosterRunner(target, signature, _details(target, facts), model.name, ask, self.reason)


class _Answers(boosters.Answers):
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


def _outputs(model: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if boosters.instances_of("catboost", "CatBoostRanker")(model):
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


def _converted(request: ExportRequest) -> ModelProto:
    proto = _saved(request.model, facts_of(request.model))
    if not request.zipmap:
        _without_dictionaries(proto, len(request.model.classes_))
    for value in proto.graph.output:
        if value.name == "predictions":
            # It declares one axis and gives two, and ONNX Runtime warns of that in every call.
            value.type.tensor_type.shape.dim.add().dim_value = 1
    return proto


def _saved(model: Any, facts: Facts) -> ModelProto:
    import onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            model.save_model(str(path), format="onnx")
        except Exception as error:
            named = [*facts.categorical, *facts.text, *facts.embedding]
            which = f" (it takes {', '.join(map(repr, named[:12]))})" if named else ""
            raise ModelError(
                f"CatBoost cannot export the model: {EXTENSION.reason(error)}{which}",
                remedy="Encode such features as numbers before the model" if named else "Serve the model with CatBoost",
            ) from error
        return onnx.load(path)


def _refusals(request: ExportRequest) -> boosters.Refusals:
    model, facts = request.model, facts_of(request.model)
    classes = model.classes_.tolist()
    threshold = dict(model.get_metadata()).get("binclass_probability_threshold")
    if request.double:
        yield "CatBoost exports float32 inputs only", "Leave out double"
    if request.opset is not None:
        yield "CatBoost exports for an opset of its own choice", "Leave out the opset"
    if threshold is not None and float(threshold) != 0.5:
        yield f"CatBoost's export leaves out the probability threshold of {threshold}", "Apply it when serving"
    if len(classes) == 2 and model.classes_.dtype.kind in "iu" and classes != [0, 1]:
        yield f"CatBoost's export of the classes {classes} answers 0 and 1 instead", "Train on 0 and 1 or text"
    if facts.loss == "MultiClassOneVsAll":
        told = "CatBoost exports MultiClassOneVsAll wrongly: with a softmax in the place of the sigmoids"
        yield told, "Train with MultiClass"
    if facts.multilabel:
        yield f"CatBoost exports {facts.loss} wrongly: as if a row had one label", "Export one model per label"
    if facts.loss in EXPONENTS and boosters.instances_of("catboost", "CatBoostRegressor")(model):
        yield f"CatBoost's export of {facts.loss} leaves out the exponent", "Serve the model with CatBoost"
    if facts.columns is not None and not classes:
        many = f"{facts.columns} values per row"
        told = f"CatBoost exports {facts.loss}, which gives {many}, as a file that does not load"
        yield told, "Export one model per value"


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


def read_trees(model: Any) -> Ensemble | None:
    """All trees; None for a model that splits on categories, text or embeddings, which no graph can hold."""
    import numpy as np

    from likewise.models.trees.ensemble import LEAF, Gap, ensemble_of

    saved = _as_json(model)
    floats = saved["features_info"].get("float_features", [])
    columns = {entry["feature_index"]: entry["flat_feature_index"] for entry in floats}
    gaps_left = {entry["feature_index"]: entry.get("nan_value_treatment") != "AsTrue" for entry in floats}
    scale, bias = saved["scale_and_bias"]
    bias = np.asarray(bias, dtype=np.float64).reshape(-1)
    trees = []
    for number, entry in enumerate(saved.get("oblivious_trees") or saved.get("trees") or []):
        tree = _symmetric(number, entry, len(bias)) if "splits" in entry else _other(number, entry, len(bias))
        if tree is None:
            return None
        gap = [Gap.LEFT if gaps_left.get(int(feature), True) else Gap.RIGHT for feature in tree.feature]
        feature = [LEAF if feature < 0 else columns[int(feature)] for feature in tree.feature]
        node, output, value = tree.leaves
        leaves = (node, output, value * scale)
        trees.append(replace(tree, feature=np.array(feature), leaves=leaves, gap=np.array(gap)))
    return ensemble_of(trees, outputs=max(len(bias), 1), dtype="float32", base=bias)


def _symmetric(number: int, entry: dict[str, Any], outputs: int) -> Tree | None:
    """A tree with the same question on every level; the last question stands at the root."""
    import numpy as np

    from likewise.models.trees.ensemble import LEAF, Tree

    splits = entry["splits"] or []
    if any(split["split_type"] != "FloatFeature" for split in splits):
        return None
    depth = len(splits)
    inner = (1 << depth) - 1
    feature, threshold = np.full(2 * inner + 1, LEAF), np.zeros(2 * inner + 1)
    for level in range(depth):
        split = splits[depth - 1 - level]
        here = slice((1 << level) - 1, (1 << (level + 1)) - 1)
        feature[here], threshold[here] = split["float_feature_index"], split["border"]
    nodes = np.arange(2 * inner + 1)
    values = np.asarray(entry["leaf_values"], dtype=np.float64).reshape(-1)
    leaf = np.repeat(inner + np.arange(1 << depth), outputs)
    return Tree(
        number,
        feature,
        threshold,
        np.where(feature >= 0, 2 * nodes + 1, 0),
        np.where(feature >= 0, 2 * nodes + 2, 0),
        (leaf, np.tile(np.arange(outputs), 1 << depth), values),
    )


def _other(number: int, entry: dict[str, Any], outputs: int) -> Tree | None:
    """A tree that asks another question in every node."""
    import numpy as np

    from likewise.models.trees.ensemble import LEAF, Tree

    nodes, left, right = boosters.unrolled(entry, "left", "right")
    splits = [node.get("split") for node in nodes]
    if any(split is not None and split["split_type"] != "FloatFeature" for split in splits):
        return None
    leaf = [place for place, split in enumerate(splits) if split is None]
    values = np.stack([np.asarray(nodes[place]["value"], dtype=np.float64).reshape(-1)[:outputs] for place in leaf])
    return Tree(
        number,
        np.array([LEAF if split is None else split["float_feature_index"] for split in splits]),
        np.array([0.0 if split is None else split["border"] for split in splits]),
        left,
        right,
        (np.repeat(leaf, values.shape[1]), np.tile(np.arange(values.shape[1]), len(leaf)), values.ravel()),
    )


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only."""
    cut = model.copy()
    cut.shrink(trees)
    return cut


EXTENSION = CatboostAdapter()
EXPORTER = boosters.BoosterExporter("catboost", "CatBoost", is_model, _refusals, _converted, packages=())
