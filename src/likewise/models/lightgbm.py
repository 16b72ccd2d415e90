"""LightGBM models: live boosters and scikit-learn wrappers, and the text files of save_model.

To ONNX they go through onnxmltools. What it is known to get wrong is refused: each case was seen to give other answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import ExportRequest, Kind, Label, Model, OutputSpec, Runner
from likewise.contracts.values import dataclass
from likewise.errors import ModelError
from likewise.models import boosters
from likewise.models.boosters import BoosterRunner, classifier_outputs, dtype_of, output

if TYPE_CHECKING:
    from onnx import ModelProto

    from likewise.models.trees.ensemble import Ensemble, Gap, Tree


_UNNAMED = re.compile(r"Column_\d+")

HEADER = re.compile(rb"tree\r?\nversion=")

PARAMETER = re.compile(rb"\[\w+: .*\]")

RANKING = ("lambdarank", "rank_xendcg")


is_model = boosters.instances_of("lightgbm", "LGBMModel", "Booster")
"""Is this a model of LightGBM: a booster, or one of its scikit-learn wrappers?"""

is_wrapper = boosters.instances_of("lightgbm", "LGBMModel")
"""Is this one of the scikit-learn wrappers, also a subclass of one?"""


def booster_of(model: Any) -> Any:
    """The booster in a wrapper, or the booster itself."""
    return model.booster_ if is_wrapper(model) else model


@dataclass(frozen=True, slots=True)
class Facts:
    """`objective` is as the model writes it, such as `binary sigmoid:1`; empty where it was a function."""

    objective: str
    classes: int
    rounds: int
    trees: int
    best_round: int | None
    averaged: bool
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    categories: tuple[Sequence[Any], ...]

    @property
    def task(self) -> str:
        """The first word of the objective."""
        return self.objective.partition(" ")[0]


def facts_of(booster: Any) -> Facts:
    """Read from the model itself: parameters may be synonyms, or those of another training."""
    header = booster.dump_model(num_iteration=1)
    names = tuple(header["feature_names"])
    infos = header.get("feature_infos") or {}
    best = booster.best_iteration
    return Facts(
        objective=header.get("objective", ""),
        classes=int(header["num_class"]),
        rounds=booster.current_iteration(),
        trees=booster.num_trees(),
        best_round=best if best and best > 0 else None,
        averaged=bool(header.get("average_output")),
        features=len(names),
        names=None if all(_UNNAMED.fullmatch(name) for name in names) else names,
        # Ranges are written for numbers, the codes themselves for categories.
        categorical=tuple(name for name in names if infos.get(name, {}).get("values")),
        categories=tuple(booster.pandas_categorical or ()),
    )


def categories_by_column(facts: Facts, frame: Any) -> Mapping[str, Sequence[Any]]:
    """Which column has which categories. The model keeps the lists in the order of the columns, without their names."""
    import pandas as pd

    if not facts.categories:
        return {}
    given = [name for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    if len(given) == len(facts.categories):
        return dict(zip(given, facts.categories, strict=True))
    if len(facts.categorical) == len(facts.categories):
        return dict(zip(facts.categorical, facts.categories, strict=True))
    raise ModelError(
        f"the model was trained on {len(facts.categories)} categorical columns and does not say which; "
        f"the data has {len(given)}",
        remedy="Give the columns that were categorical in training as pandas categories",
    )


class LightgbmAdapter(boosters.BoosterAdapter):
    """All knowledge of LightGBM."""

    framework, title = "lightgbm", "LightGBM"
    modules = ("lightgbm",)

    def claims(self, target: object) -> bool:
        return (
            boosters.begins(target, (".txt", ".lgb", ".lgbm"), HEADER)
            or boosters.begins(target, (".model",), HEADER, there=True)
            or is_model(target)
        )

    def damage(self, content: bytes) -> str:
        if not HEADER.match(content):
            return "it does not begin with a tree and a version"
        # LightGBM reads beyond the end of a file that was cut, and takes the process with it.
        whole = b"\nend of trees" in content and (b"\nparameters:" in content) == (b"\nend of parameters" in content)
        if not whole:
            return "it ends early"
        if b"\0" in content:
            return "it holds a NUL, where some readers end"
        trees, _, rest = content.partition(b"\nend of trees")
        # Readers do not agree on which of two lines of one name counts, or on trees behind the last.
        for section in re.split(rb"[\r\n](?=Tree=)", trees):
            names = [line.partition(b"=")[0] for line in section.splitlines() if line]
            if twice := next((name for name in names if names.count(name) > 1), b""):
                return f"it says {twice[:40].decode(errors='replace')!r} twice in one place"
        if b"\nTree=" in rest:
            return "it has a tree behind its last"
        if content.count(b"\npandas_categorical:") > 1:
            return "it says 'pandas_categorical' twice"
        # LightGBM looks for it in the last line of a text, and in one of the last two of a file.
        if b"\n" in content.partition(b"\npandas_categorical:")[2].replace(b"\r\n", b"\n").removesuffix(b"\n"):
            return "something stands behind its categories"
        if _sizes(trees) != _said_sizes(trees):
            return "its trees are not where it says"
        # It looks for the value of a parameter where its line may have ended.
        told = content.partition(b"\nparameters:")[2].partition(b"\nend of parameters")[0].splitlines()
        odd = next((line for line in told if line and not PARAMETER.fullmatch(line)), b"")
        return f"among its parameters is {odd[:40].decode(errors='replace')!r}" if odd else ""

    def load(self, path: str, content: bytes) -> Any:
        import lightgbm

        booster = lightgbm.Booster(model_str=content.decode())
        # It ends at the first line that it does not know; whoever looks for trees has all of them.
        if booster.num_trees() != (stored := len(re.findall(rb"[\r\n]Tree=", content))):
            raise ModelError(f"{path} holds {stored} trees, of which LightGBM reads {booster.num_trees()}")
        return booster

    def runner(self, target: Any, model: Model) -> Runner:
        wrapper = target if is_wrapper(target) else None
        booster = target if wrapper is None else boosters.fitted(lambda: target.booster_, model.name)
        # What LightGBM would follow without a look.
        if not (isinstance(handle := getattr(booster, "_handle", None), c_void_p) and handle):
            raise ModelError(f"{model.name} is damaged: its booster holds no trees", remedy="Save the model again")
        facts = facts_of(booster)
        coded = facts.categorical if facts.categories else ()
        signature = boosters.signature_of(
            facts.names, facts.features, _outputs(wrapper, facts), coded=coded, underscored=True
        )

        def ask(batch: Batch) -> _Answers:
            data = boosters.data_of(batch, signature)
            if signature.table and facts.categories:
                known = categories_by_column(facts, data)
                data = boosters.with_categories(data, known, refuse_unseen=False)
            return _Answers(target, data, facts, raw_score=True)

        return BoosterRunner(target, signature, _details(target, facts), model.name, ask)


def _sizes(trees: bytes) -> list[int]:
    """How many bytes each tree takes, with the empty lines behind it."""
    starts = [found.start() + 1 for found in re.finditer(rb"\nTree=", trees)]
    return [end - start for start, end in pairwise([*starts, len(trees) + 1])]


def _said_sizes(trees: bytes) -> list[int]:
    """What the file says of that: LightGBM goes by it, and sees nothing of what stands between."""
    said = re.search(rb"\ntree_sizes=([\d ]*)", trees)
    return _sizes(trees) if said is None else [int(size) for size in said[1].split()]


class _Answers(boosters.Answers):
    @cached_property
    def probabilities(self) -> Array:
        if hasattr(self._model, "predict_proba"):
            return self._model.predict_proba(self._data)  # type: ignore[no-any-return]
        return self.value

    @cached_property
    def label(self) -> Array:
        """The class of the largest probability, which is how the wrapper's own predict decides."""
        import numpy as np

        classes = _classes(self._model if is_wrapper(self._model) else None, self._facts)
        assert classes is not None
        found = self.probabilities
        if found.ndim == 1:
            found = np.stack([1.0 - found, found], axis=1)
        return classes[np.argmax(found, axis=1)]  # type: ignore[no-any-return]


def _classes(wrapper: Any, facts: Facts) -> Array | None:
    """The labels of a classifier; a booster numbers its classes, as its training data did."""
    import numpy as np

    if wrapper is not None:
        return np.asarray(wrapper.classes_) if hasattr(wrapper, "predict_proba") else None
    if facts.task in ("binary", "multiclass", "multiclassova"):
        return np.arange(max(facts.classes, 2))
    return None


def _outputs(wrapper: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if facts.task in RANKING or boosters.instances_of("lightgbm", "LGBMRanker")(wrapper):
        return (output("scores", Kind.SCORE, dtype="float64"),)
    classes = _classes(wrapper, facts)
    several = facts.classes if facts.classes > 1 else None
    if classes is None:
        return (output("value", Kind.VALUE, several, dtype="float64"),)
    if not facts.objective:  # a function: the wrapper cannot tell what its sums mean
        return (output("scores", Kind.SCORE, several, dtype="float64"),)
    labels: list[Label] = [
        value if isinstance(value, bool | int | float | str) else str(value) for value in classes.tolist()
    ]
    return classifier_outputs(
        labels,
        label=dtype_of(classes),
        probabilities=several if wrapper is None else len(labels),
        scores=several,
        dtype="float64",
    )


def _details(native: Any, facts: Facts) -> Mapping[str, Any]:
    import lightgbm

    return {
        "lightgbm": lightgbm.__version__,
        "model": type(native).__name__,
        "objective": facts.objective,
        "rounds": facts.rounds,
        "rounds_used": facts.best_round or facts.rounds,
        "best_iteration": facts.best_round,
        "trees": facts.trees,
        "averaged": facts.averaged,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
    }


UNSUPPORTED = ("cross_entropy", "cross_entropy_lambda", "fair", "mape")


def _converted(request: ExportRequest) -> ModelProto:
    import lightgbm

    booster = booster_of(request.model)
    facts = facts_of(booster)

    def used() -> Any:
        """A copy of a booster has the trees that predict uses and the objective's proper name."""
        if is_wrapper(request.model):
            return request.model
        return lightgbm.Booster(model_str=booster.model_to_string(num_iteration=facts.best_round))

    return boosters.to_onnx("lightgbm", used, facts.features, request, zipmap=request.zipmap)


def _refusals(request: ExportRequest) -> boosters.Refusals:
    booster = booster_of(request.model)
    facts = facts_of(booster)
    if request.double:
        told = "onnxmltools converts LightGBM models to float32 only"
        yield told, "Leave out double; rows whose values lie on a split may then answer differently"
    if not facts.objective or facts.task in UNSUPPORTED:
        named = repr(facts.task) if facts.task else "that is a function"
        yield f"onnxmltools cannot convert the objective {named}", "Serve the model with LightGBM"
    for what in _wrong(facts):
        yield f"onnxmltools converts {what}", "Serve the model with LightGBM"
    trees = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    for node in (node for tree in trees for node in boosters.unrolled(tree, "left_child", "right_child")[0]):
        if node.get("missing_type") == "Zero":
            name = facts.names[node["split_feature"]] if facts.names else node["split_feature"]
            told = f"the model takes zero for a missing value (feature {name!r}), and ONNX knows only NaN"
            yield told, "Replace zero by NaN in the data, and train without zero_as_missing"
        if "leaf_coeff" in node:
            told = "onnxmltools converts linear trees wrongly: it keeps only the constant of a leaf"
            yield told, "Train without linear_tree"
    if hasattr(request.model, "predict_proba") and request.model.classes_.dtype.kind == "b":
        yield "onnxmltools cannot convert boolean classes", "Train on 0 and 1"
    for index, known in enumerate(facts.categories):
        told_apart = len(facts.categorical) == len(facts.categories)
        name = repr(facts.categorical[index]) if told_apart else f"number {index + 1} of the categorical ones"
        yield from boosters.named_categories(name, known)


def _wrong(facts: Facts) -> Iterator[str]:
    sigmoid = re.search(r"sigmoid:(\S+)", facts.objective)
    if facts.task == "multiclassova":
        yield "'multiclassova' wrongly: it puts a softmax in the place of the sigmoids"
    if sigmoid is not None and float(sigmoid[1]) != 1:
        yield f"{facts.objective!r} wrongly: it takes the sigmoid's factor for 1"
    if "sqrt" in facts.objective.split():
        yield f"{facts.objective!r} wrongly: it leaves out the square"
    if facts.averaged:
        yield "random forests wrongly: it does not divide by the number of trees"


def read_trees(model: Any) -> Ensemble:
    """The trees up to the best iteration, where training stopped early."""
    from likewise.models.trees.ensemble import ensemble_of

    booster = booster_of(model)
    dumped = booster.dump_model()
    each = int(dumped["num_tree_per_iteration"])
    trees = [_tree(index, entry, index % each) for index, entry in enumerate(dumped["tree_info"])]
    return ensemble_of(
        trees,
        outputs=each,
        dtype="float64",
        whole=True,
        average=bool(dumped.get("average_output")),
        stored=booster.num_trees(),
    )


def _tree(number: int, entry: dict[str, Any], output: int) -> Tree:
    import numpy as np

    from likewise.models.trees.ensemble import LEAF, Gap, Tree

    nodes, left, right = boosters.unrolled(entry["tree_structure"], "left_child", "right_child")
    splits = ["split_index" in node for node in nodes]
    grouped = [node.get("decision_type") == "==" for node in nodes]
    asked = np.array(splits) & ~np.array(grouped)
    leaf = np.flatnonzero(~np.array(splits))
    return Tree(
        number=number,
        feature=np.array([node.get("split_feature", LEAF) for node in nodes]),
        threshold=np.array([float(node["threshold"]) if asked[place] else 0.0 for place, node in enumerate(nodes)]),
        left=left,
        right=right,
        leaves=(leaf, np.full(len(leaf), output), np.array([float(nodes[place]["leaf_value"]) for place in leaf])),
        gap=np.array([_gap(node) if asked[place] else Gap.RIGHT for place, node in enumerate(nodes)]),
        zero_is_gap=np.array([node.get("missing_type") == "Zero" for node in nodes]),
        groups={
            place: np.array([float(entry) for entry in str(nodes[place]["threshold"]).split("||")])
            for place in np.flatnonzero(grouped).tolist()
        },
        node_numbers=np.array([node.get("split_index", node.get("leaf_index", 0)) for node in nodes]),
        linear=[place for place in leaf.tolist() if nodes[place].get("leaf_coeff")],
    )


def _gap(node: dict[str, Any]) -> Gap:
    from likewise.models.trees.ensemble import Gap

    if node["missing_type"] == "None":
        return Gap.LIKE_ZERO
    return Gap.LEFT if node["default_left"] else Gap.RIGHT


def without_linear_leaves(model: Any) -> Any:
    """A copy with the constants of its leaves only."""
    return _with_trees(model, booster_of(model).model_to_string().replace("\nis_linear=1\n", "\nis_linear=0\n"))


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only; None if that is no whole number of rounds."""
    booster = booster_of(model)
    rounds, rest = divmod(trees, booster.num_model_per_iteration())
    if rest:
        return None
    cut = _with_trees(model, booster.model_to_string(num_iteration=rounds))
    if model is not booster:
        cut._best_iteration = -1
    return cut


def _with_trees(model: Any, written: str) -> Any:
    import lightgbm

    return boosters.rewrapped(model, lightgbm.Booster(model_str=written), wrapper=is_wrapper(model))


EXTENSION = LightgbmAdapter()
EXPORTER = boosters.BoosterExporter("lightgbm", "LightGBM", is_model, _refusals, _converted)
