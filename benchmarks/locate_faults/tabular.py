"""Faults in scikit-learn models of nested estimators: one nested part is another one in the file.

Half of them are planted in a copy of the model before it is exported, as a part that was fitted again or read from an
older file would be; the others in the graph.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from sklearn.base import BaseEstimator, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier, AdaBoostRegressor, BaggingClassifier, BaggingRegressor, ExtraTreesRegressor,
    GradientBoostingClassifier, HistGradientBoostingRegressor, IsolationForest, RandomForestClassifier,
    RandomForestRegressor, StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor,
)  # fmt: skip
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer, KBinsDiscretizer, MinMaxScaler, OneHotEncoder, OrdinalEncoder, PolynomialFeatures, PowerTransformer,
    QuantileTransformer, RobustScaler, StandardScaler, TargetEncoder,
)  # fmt: skip
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from locate_faults.corpus import WORDS, Built, Edit, beyond, truth_of
from locate_faults.edits import attribute, graphs, leave_out, weight

NUMBERS = ["age", "income", "balance", "rate", "visits", "score"]
MIXED = ["age", "income", "balance", "rate", "city", "plan"]
Change = Callable[[Any], None]


@cache
def table() -> pd.DataFrame:
    """Rows with missing numbers in two columns of the mixed table, and categories."""
    rng = np.random.default_rng(11)
    n = 240
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(np.float32),
            "income": rng.gamma(2.0, 20.0, n).astype(np.float32),
            "balance": rng.normal(0, 3, n).astype(np.float32),
            "rate": rng.uniform(0, 1, n).astype(np.float32),
            "visits": rng.poisson(4, n).astype(np.float32),
            "score": rng.normal(5, 2, n).astype(np.float32),
            "city": rng.choice(["Bern", "Graz", "Lyon", "Porto"], n),
            "plan": rng.choice(["basic", "plus", "pro"], n),
        }
    )
    return frame


def mixed() -> pd.DataFrame:
    frame = table()[MIXED].copy()
    rng = np.random.default_rng(12)
    for column in ("income", "balance"):
        frame.loc[rng.random(len(frame)) < 0.15, column] = np.nan
    return frame


def numbers() -> pd.DataFrame:
    return table()[NUMBERS].copy()


@cache
def targets() -> dict[str, np.ndarray]:
    f = table()
    rng = np.random.default_rng(13)
    value = (
        0.05 * f.age + 0.02 * f.income + np.sin(f.balance) + 2 * f.rate + (f.city == "Lyon") + 0.1 * f.score * f.rate
        + rng.normal(0, 0.2, len(f))
    ).to_numpy()  # fmt: skip
    cut = np.quantile(value, [0.33, 0.66])
    return {
        "value": value,
        "flag": (value > np.median(value)).astype(np.int64),
        "two": np.where(value > np.median(value), "yes", "no"),
        "three": np.array(["low", "mid", "top"])[np.digitize(value, cut)],
        "counts": rng.poisson(np.exp(value / 4)),
        "values": np.stack([value, value * f.rate.to_numpy(), f.age.to_numpy() / 10 - value], 1),
        "labels": np.stack([(value > cut[0]).astype(int), (value > cut[1]).astype(int), (f.rate > 0.5).astype(int)], 1),
    }


@dataclass(frozen=True)
class Slip:
    """One fault: a change of the model before its export, or of the file; `tells` names its place in the model."""

    name: str
    word: str
    tells: tuple[str, ...]
    model: Change | None = None
    file: Edit | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Construction:
    """A model, what it is fitted to, and what goes wrong with it."""

    name: str
    make: Callable[[], BaseEstimator]
    target: str
    slips: Sequence[Slip]
    rows: Callable[[], pd.DataFrame] = numbers
    options: dict[str, Any] = field(default_factory=dict)


def scaled(path: Callable[[Any], Any], name: str, factor: float = 1.2, where: Any = ...) -> Change:
    """A fitted array with other values."""

    def change(model: Any) -> None:
        part = path(model)
        value = np.array(getattr(part, name), copy=True)
        value[where] = value[where] * factor
        setattr(part, name, value)

    return change


def added(path: Callable[[Any], Any], name: str, amount: float, where: Any = ...) -> Change:
    def change(model: Any) -> None:
        part = path(model)
        value = np.array(getattr(part, name), copy=True)
        value[where] = value[where] + amount
        setattr(part, name, value)

    return change


def leaf(path: Callable[[Any], Any], amount: float = 0.4) -> Change:
    """The leaf of a tree that most rows reach has another value."""

    def change(model: Any) -> None:
        tree = path(model).tree_
        ends = np.flatnonzero(tree.children_left == -1)
        busy = ends[np.argmax(tree.n_node_samples[ends])]
        if tree.value.shape[2] > 1:
            tree.value[busy, 0, :] = np.roll(tree.value[busy, 0, :], 1)
        else:
            tree.value[busy] += amount

    return change


def threshold(path: Callable[[Any], Any], share: float = 0.2) -> Change:
    """The first split of a tree lies elsewhere."""

    def change(model: Any) -> None:
        tree = path(model).tree_
        tree.threshold[0] += share * max(abs(tree.threshold[0]), 1.0)

    return change


def step(*names: Any) -> Callable[[Any], Any]:
    """The nested estimator at the end of names, attributes and positions."""

    def walk(model: Any) -> Any:
        for name in names:
            if isinstance(name, int):
                model = model[name]
            elif hasattr(model, "named_steps") and name in model.named_steps:
                model = model.named_steps[name]
            elif hasattr(model, "named_transformers_") and name in model.named_transformers_:
                model = model.named_transformers_[name]
            elif isinstance(model, FeatureUnion) and name in dict(model.transformer_list):
                model = dict(model.transformer_list)[name]
            else:
                model = getattr(model, name)
        return model

    return walk


def swap_categories(path: Callable[[Any], Any]) -> Change:
    def change(model: Any) -> None:
        encoder = path(model)
        first = encoder.categories_[0].copy()
        first[[0, 1]] = first[[1, 0]]
        encoder.categories_ = [first, *encoder.categories_[1:]]

    return change


def identity(path: Callable[[Any], Any], **values: Any) -> Change:
    """A scaler that does nothing: as if it had been left out."""

    def change(model: Any) -> None:
        part = path(model)
        for name, value in values.items():
            setattr(part, name, np.full_like(getattr(part, name), value))

    return change




def attribute_of(operator: str, name: str, change: Callable[[list[Any]], Any]) -> Edit:
    """A list in an attribute of a node of ai.onnx.ml, edited."""

    def edit(model: onnx.ModelProto) -> None:
        node = next(n for g in graphs(model.graph) for n in g.node if n.op_type == operator)
        old = next(a for a in node.attribute if a.name == name)
        value = onnx.helper.get_attribute_value(old)
        new = change(list(value) if not isinstance(value, (int, float, bytes)) else value)
        node.attribute.remove(old)
        node.attribute.append(onnx.helper.make_attribute(name, new))

    return edit


def swapped(values: list[Any]) -> list[Any]:
    values[0], values[1] = values[1], values[0]
    return values


def prepared(last: BaseEstimator, dense: bool = True) -> Pipeline:
    nums = Pipeline([("medians", SimpleImputer(strategy="median")), ("stand", StandardScaler())])
    cats = Pipeline([("onehot", OneHotEncoder(handle_unknown="ignore", sparse_output=not dense))])
    table = ColumnTransformer([("nums", nums, MIXED[:4]), ("cats", cats, MIXED[4:])])
    return Pipeline([("prep", table), ("verdict", last)])


def pipe(**steps: BaseEstimator) -> Pipeline:
    return Pipeline(list(steps.items()))



LR = partial(LogisticRegression, max_iter=500)
CONSTRUCTIONS = [
    Construction("columns", lambda: prepared(LR()), "two", [
        Slip("fill", "step differs", ("medians",), added(step("prep", "nums", "medians"), "statistics_", 15.0, 1), also=("missing-value-handling",)),
        Slip("std", "step differs", ("stand",), scaled(step("prep", "nums", "stand"), "scale_", 1.15, 3)),
        Slip("categories", "step differs", ("onehot",), swap_categories(step("prep", "cats", "onehot")),
             also=("feature-order", "wrong-wiring", "unknown-category")),
        Slip("intercept", "part left out", ("verdict",), scaled(step("verdict"), "intercept_", 0.0), also=("weight-corruption",)),
    ], mixed),
    Construction("union", lambda: pipe(both=FeatureUnion([
        ("lowrank", PCA(3)), ("products", pipe(squeeze01=MinMaxScaler(), exp=PolynomialFeatures(2, include_bias=False)))]), ridge=Ridge()), "value", [
        Slip("pca-mean", "step differs", ("lowrank",), added(step("both", "lowrank"), "mean_", 1.5, 0)),
        Slip("minmax", "step differs", ("squeeze01",), scaled(step("both", "products", "squeeze01"), "scale_", 1.1, 1)),
        Slip("coef", "weight edited", ("ridge",), scaled(step("ridge"), "coef_", 1.1)),
    ]),
    Construction("union-of-columns", lambda: pipe(wide=FeatureUnion([
        ("left", ColumnTransformer([("money", pipe(gap=SimpleImputer(), robust=RobustScaler()), ["income", "balance"]),
                                    ("plain", "passthrough", ["age"])])),
        ("right", ColumnTransformer([("town", OneHotEncoder(sparse_output=False), ["city"])]))]),
        boost=GradientBoostingClassifier(n_estimators=12, random_state=0)), "three", [
        Slip("robust", "step differs", ("robust",), added(step("wide", "left", "money", "robust"), "center_", 3.0, 0)),
        Slip("gap", "step differs", ("gap",), added(step("wide", "left", "money", "gap"), "statistics_", 25.0, 0), also=("missing-value-handling",)),
    ], mixed),
    Construction("stacking", lambda: StackingClassifier(
        [("line", pipe(std=StandardScaler(), logit=LR())), ("branches", DecisionTreeClassifier(max_depth=4, random_state=0))],
        final_estimator=LR(), cv=3), "two", [
        Slip("tree", "threshold shifted", ("branches",), threshold(lambda m: m.named_estimators_["branches"]) , also=("float32-threshold",)),
        Slip("std", "step differs", ("std",), scaled(lambda m: m.named_estimators_["line"].named_steps["std"], "scale_", 1.2, 0)),
        Slip("final", "weight edited", ("final_estimator_", "final_estimator"), scaled(step("final_estimator_"), "coef_", 0.8)),
    ]),
    Construction("stacking-regressor", lambda: StackingRegressor(
        [("flatridge", Ridge()), ("forest", RandomForestRegressor(8, max_depth=4, random_state=0))], final_estimator=LinearRegression(), cv=3,
        passthrough=True), "value", [
        Slip("forest", "weight edited", ("forest", "tree 3"), leaf(lambda m: m.named_estimators_["forest"].estimators_[3])),
        Slip("flat", "weights stale", ("flatridge",), scaled(lambda m: m.named_estimators_["flatridge"], "coef_", 1.1)),
    ]),
    Construction("voting", lambda: VotingClassifier(
        [("softline", pipe(zed=StandardScaler(), lone=LR())), ("gauss", GaussianNB()), ("stumps", DecisionTreeClassifier(max_depth=3, random_state=1))],
        voting="soft", weights=np.array([3, 1, 2])), "three", [
        Slip("nested", "weight edited", ("lone", "softline"), scaled(lambda m: m.named_estimators_["softline"].named_steps["lone"], "coef_", 1.3, 0)),
        Slip("bayes", "weight edited", ("gauss",), scaled(lambda m: m.named_estimators_["gauss"], "var_", 1.5, 1)),
        Slip("weights", "aggregation", ("weights",), lambda m: setattr(m, "weights", None), also=("weight-corruption", "model-part-dropped")),
    ]),
    Construction("voting-regressor", lambda: VotingRegressor(
        [("vec", pipe(norm=StandardScaler(), svr=SVR(C=2.0))), ("grow", DecisionTreeRegressor(max_depth=4, random_state=0))]), "value", [
        Slip("svr", "part left out", ("svr", "vec"), added(lambda m: m.named_estimators_["vec"].named_steps["svr"], "intercept_", 0.3), also=("weight-corruption",)),
        Slip("tree", "weight edited", ("grow", "tree 0"), leaf(lambda m: m.named_estimators_["grow"])),
    ]),
    Construction("calibrated", lambda: CalibratedClassifierCV(LR(C=0.1), cv=3), "flag", [
        Slip("sigmoid", "weight edited", ("calibrators", "calibrated_classifiers_[1]"),
             lambda m: setattr(m.calibrated_classifiers_[1].calibrators[0], "a_", m.calibrated_classifiers_[1].calibrators[0].a_ * 1.4), also=("link-function",)),
        Slip("base", "weight edited", ("calibrated_classifiers_[2]",), scaled(lambda m: m.calibrated_classifiers_[2].estimator, "coef_", 0.7)),
    ]),
    Construction("isotonic", lambda: CalibratedClassifierCV(RandomForestClassifier(6, max_depth=3, random_state=0), method="isotonic", cv=2), "two", [
        Slip("tree", "weight edited", ("calibrated_classifiers_[0]",), leaf(lambda m: m.calibrated_classifiers_[0].estimator.estimators_[2])),
    ]),
    Construction("multi-output", lambda: MultiOutputRegressor(pipe(level=StandardScaler(), lasso=Lasso(0.01))), "values", [
        Slip("second", "weight edited", ("estimators_[1]",), scaled(lambda m: m.estimators_[1].named_steps["lasso"], "coef_", 1.2)),
        Slip("scaler", "step differs", ("estimators_[2]",), added(lambda m: m.estimators_[2].named_steps["level"], "mean_", 2.0, 0)),
    ]),
    Construction("multi-class-output", lambda: MultiOutputClassifier(LR()), "labels", [
        Slip("first", "weight edited", ("estimators_[0]",), scaled(lambda m: m.estimators_[0], "coef_", 1.3)),
    ]),
    Construction("search", lambda: GridSearchCV(pipe(wash=StandardScaler(), vectors=SVC(probability=False)), {"vectors__C": [0.5, 2.0]}, cv=2), "three", [
        Slip("scaler", "step differs", ("wash",), added(step("best_estimator_", "wash"), "mean_", 10.0, 1)),
        Slip("gamma", "attribute changed", ("vectors",), lambda m: setattr(m.best_estimator_.named_steps["vectors"], "_gamma", 0.5), also=("weight-corruption",)),
    ]),
    Construction("ada", lambda: AdaBoostClassifier(DecisionTreeClassifier(max_depth=2, random_state=0), n_estimators=6, random_state=0), "two", [
        Slip("stump", "threshold shifted", ("estimators_[2]",), threshold(step("estimators_", 2), 0.5)),
        Slip("weights", "aggregation", ("estimator_weights_",), lambda m: setattr(m, "estimator_weights_", m.estimator_weights_[::-1].copy()), also=("weight-corruption",)),
    ]),
    Construction("ada-regressor", lambda: AdaBoostRegressor(DecisionTreeRegressor(max_depth=3, random_state=0), n_estimators=5, random_state=0), "value", [
        Slip("leaf", "weight edited", ("estimators_[0]", "estimators_[1]"), lambda m: (leaf(step("estimators_", 0), 3.0)(m), leaf(step("estimators_", 1), 3.0)(m))),
    ]),
    Construction("bagging-linear", lambda: BaggingRegressor(pipe(bagscale=StandardScaler(), bagridge=Ridge()), n_estimators=5, random_state=0), "value", [
        Slip("member", "weight edited", ("estimators_[2]",), scaled(lambda m: m.estimators_[2].named_steps["bagridge"], "coef_", 1.5)),
        Slip("columns", "wiring", ("estimators_features_", "estimators_[1]"), lambda m: m.estimators_features_.__setitem__(1, np.roll(m.estimators_features_[1], 1)),
             also=("feature-order",)),
    ]),
    Construction("bagging-trees", lambda: BaggingClassifier(DecisionTreeClassifier(max_depth=4, random_state=0), n_estimators=5, max_features=0.7, random_state=0), "two", [
        Slip("leaf", "weight edited", ("estimators_[4]",), leaf(step("estimators_", 4))),
    ]),
    Construction("target", lambda: TransformedTargetRegressor(pipe(tscale=StandardScaler(), inner=Ridge()), transformer=StandardScaler()), "value", [
        Slip("inverse", "step differs", ("transformer_",), scaled(step("transformer_"), "scale_", 1.2), also=("link-function",)),
        Slip("inner", "step differs", ("tscale",), scaled(step("regressor_", "tscale"), "scale_", 0.8, 2)),
    ]),
    Construction("neighbours", lambda: pipe(nearscale=StandardScaler(), knn=KNeighborsClassifier(5)), "three", [
        Slip("scaler", "step differs", ("nearscale",), scaled(step("nearscale"), "scale_", 2.0, 1)),
    ]),
    Construction("neighbour-mean", lambda: pipe(close=MinMaxScaler(), knr=KNeighborsRegressor(4)), "value", [
        Slip("targets", "weights stale", ("knr",), lambda m: setattr(m.named_steps["knr"], "_y", m.named_steps["knr"]._y * 1.05)),
    ]),
    Construction("process", lambda: pipe(gscale=StandardScaler(), gp=GaussianProcessRegressor(RBF(2.0) + WhiteKernel(0.1), optimizer=None)), "value", [
        Slip("length", "attribute changed", ("gp", "kernel_"), lambda m: setattr(m.named_steps["gp"], "kernel_", RBF(1.6) + WhiteKernel(0.1)), also=("weight-corruption",)),
        Slip("alpha", "weight edited", ("gp",), scaled(step("gp"), "alpha_", 0.9)),
    ]),
    Construction("bayes", lambda: pipe(flagger=Binarizer(threshold=4.0), bern=BernoulliNB()), "three", [
        Slip("prior", "weight edited", ("bern",), added(step("bern"), "class_log_prior_", 0.3, 1)),
        Slip("binarizer", "step differs", ("flagger",), lambda m: setattr(m.named_steps["flagger"], "threshold", 3.0)),
    ]),
    Construction("whitening", lambda: pipe(even=StandardScaler(), whiten4=PCA(4, whiten=True), lda=LinearDiscriminantAnalysis()), "three", [
        Slip("whiten", "step differs", ("whiten4",), lambda m: setattr(m.named_steps["whiten4"], "whiten", False), also=("preprocessing-dropped", "model-part-dropped")),
        Slip("component", "step differs", ("whiten4",), scaled(step("whiten4"), "components_", -1.0, 1)),
    ]),
    Construction("power", lambda: pipe(yeo=PowerTransformer(), line=Ridge()), "value", [
        Slip("lambda", "step differs", ("yeo",), added(step("yeo"), "lambdas_", 0.2, 1)),
        Slip("no-scale", "step left out", ("yeo", "_scaler"), identity(lambda m: m.named_steps["yeo"]._scaler, mean_=0.0), also=("preprocessing-differs",)),
    ]),
    Construction("target-encoding", lambda: pipe(code=ColumnTransformer([
        ("townmean", TargetEncoder(cv=2, random_state=0), ["city", "plan"]), ("rest", SimpleImputer(), MIXED[:4])]), leaves=RandomForestRegressor(6, max_depth=4, random_state=0)), "value", [
        Slip("encoding", "step differs", ("townmean",), lambda m: m.named_steps["code"].named_transformers_["townmean"].encodings_[0].__imul__(1.4)),
    ], mixed),
    Construction("histogram", lambda: prepared(HistGradientBoostingRegressor(max_iter=10, max_depth=3, random_state=0)), "value", [
        Slip("scale", "step differs", ("stand",), scaled(step("prep", "nums", "stand"), "scale_", 1.4, 1)),
        Slip("base", "part left out", ("verdict",), lambda m: setattr(m.named_steps["verdict"], "_baseline_prediction", m.named_steps["verdict"]._baseline_prediction * 0)),
    ], mixed),
    Construction("forest", lambda: pipe(robustclip=RobustScaler(), wood=RandomForestClassifier(8, max_depth=4, random_state=0)), "three", [
        Slip("class-order", "class order", ("wood",), file=attribute_of("TreeEnsembleClassifier", "classlabels_strings", swapped), also=("label-mapping",)),
        Slip("scaler", "step differs", ("robustclip",), scaled(step("robustclip"), "scale_", 1.5, 2)),
    ]),
    Construction("one-vs-rest", lambda: OneVsRestClassifier(pipe(ovrscale=StandardScaler(), ovr=LR())), "three", [
        Slip("one", "weight edited", ("estimators_[1]",), scaled(lambda m: m.estimators_[1].named_steps["ovr"], "coef_", 1.4)),
    ]),
    Construction("isolation", lambda: pipe(iscale=StandardScaler(), lonely=IsolationForest(n_estimators=10, random_state=0)), "value", [
        Slip("scaler", "step differs", ("iscale",), added(step("iscale"), "mean_", 8.0, 0)),
    ]),
    Construction("perceptron", lambda: pipe(pscale=StandardScaler(), mlp=MLPClassifier((12, 8), max_iter=300, random_state=0)), "three", [
        Slip("layer", "weight edited", ("mlp",), lambda m: m.named_steps["mlp"].coefs_[1].__imul__(0.9)),
        Slip("activation", "attribute changed", ("mlp",), lambda m: setattr(m.named_steps["mlp"], "activation", "tanh"), also=("approximation",)),
    ]),
    Construction("ordinal", lambda: pipe(ords=ColumnTransformer([
        ("codes", OrdinalEncoder(), ["city", "plan"]), ("gaps", SimpleImputer(strategy="mean"), MIXED[:4])]), extra=ExtraTreesRegressor(8, max_depth=5, random_state=0)), "value", [
        Slip("categories", "step differs", ("codes",), swap_categories(step("ords", "codes")), also=("label-mapping", "unknown-category")),
    ], mixed),
    Construction("quantile", lambda: pipe(uniform=QuantileTransformer(n_quantiles=20, random_state=0), bins=KBinsDiscretizer(5, encode="onehot-dense"), lin=Ridge()), "value", [
        Slip("bins", "step differs", ("bins",), lambda m: m.named_steps["bins"].bin_edges_[1].__iadd__(0.07)),
    ]),
    Construction("poisson", lambda: pipe(ratescale=StandardScaler(), events=PoissonRegressor()), "counts", [
        Slip("link", "link left out", ("events",), file=leave_out("Exp", 0)),
        Slip("scaler", "step left out", ("ratescale",), identity(step("ratescale"), scale_=1.0), also=("preprocessing-differs",)),
    ]),
]  # fmt: skip


def fitted(case: Construction) -> tuple[Any, pd.DataFrame]:
    rows = case.rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.make().fit(rows, targets()[case.target]), rows


def export(model: Any, rows: pd.DataFrame, path: Path) -> onnx.ModelProto:
    import likewise

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        likewise.export(model, rows, path, check=False)
    return onnx.load(str(path))


def ask(path: Path, rows: pd.DataFrame) -> list[np.ndarray]:
    """The file's answers by plain onnxruntime: one input a column, or all of them as a matrix."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = session.get_inputs()
    if len(taken) == 1 and len(rows.columns) > 1:
        kind = np.float64 if "double" in taken[0].type else np.float32
        return session.run(None, {taken[0].name: rows.to_numpy(kind)})
    feeds = {}
    for one in taken:
        value = rows[[one.name]].to_numpy()
        kind = {"tensor(string)": object, "tensor(double)": np.float64, "tensor(float)": np.float32}.get(one.type)
        feeds[one.name] = value.astype(kind) if kind else value
    return session.run(None, feeds)


def makers(store: Any) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for case in CONSTRUCTIONS:
        for slip in case.slips:
            yield f"{case.name}-{slip.name}", partial(plant, case, slip)
    for case in CONSTRUCTIONS[::3]:
        yield f"clean-{case.name}", partial(plant, case, None)


def plant(case: Construction, slip: Slip | None, place: Path) -> Built:
    """The model as a joblib file, its rows, and the file that differs from a sound export by one slip."""
    import joblib

    model, rows = fitted(case)
    joblib.dump(model, place / "model.joblib")
    rows.to_parquet(place / "rows.parquet")
    sound = export(model, rows, place / "sound.onnx")
    expected = ask(place / "sound.onnx", rows)
    if not is_classifier(model) and hasattr(model, "predict") and case.name != "isolation":
        own = np.asarray(model.predict(rows), float)
        assert not beyond([own.reshape(len(rows), -1)], [np.asarray(expected[0]).reshape(len(rows), -1)]), "unsound"
    elif is_classifier(model) and case.target != "labels":
        wrong = (np.asarray(model.predict(rows)).astype(str) != np.asarray(expected[0]).astype(str)).mean()
        assert wrong < 0.01, f"unsound: {wrong}"
    path = place / "candidate.onnx"
    paths = str(place / "model.joblib"), str(path), str(place / "rows.parquet")
    if slip is None:
        (place / "sound.onnx").rename(path)
        return Built(f"clean-{case.name}", "clean", *paths)
    if slip.model is not None:
        other = copy.deepcopy(model)
        slip.model(other)
        faulty = export(other, rows, path)
    else:
        assert slip.file is not None
        faulty = copy.deepcopy(sound)
        slip.file(faulty)
        onnx.save(faulty, str(path))
    failing = beyond(expected, ask(path, rows))
    assert failing, f"{case.name}-{slip.name}: no row is beyond the tolerance"
    truth = truth_of(sound, faulty)
    if len(truth.nodes) > 12:  # names have moved: the place is told by the model's own names
        truth.nodes.clear()
        truth.tensors.clear()
    return Built(
        f"{case.name}-{slip.name}", "scikit-learn", *paths, slip.word, (*WORDS[slip.word], *slip.also),
        tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)), slip.tells, {},
        f"{slip.word} in a part of {type(model).__name__}, reference scikit-learn",
    )  # fmt: skip
