"""Every estimator of scikit-learn, fitted on small data that suits it, beside what skl2onnx makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from conformance.atlas_oracle import Case, Pair, runtime

ROWS, COLUMNS = 240, 5
WORDS = ("the cat sat on the mat", "a dog, a cat and the moon", "Moon over the grey sea", "sea of cats; sea of dogs",
         "one more line of plain text", "grey dogs sat on plain mats")  # fmt: skip


def cases() -> tuple[Case, ...]:
    """One of each public estimator, by name."""
    from sklearn.utils import all_estimators

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(Case(name, _maker(name, kind)) for name, kind in all_estimators())


def _maker(name: str, kind: type) -> Callable[[], Pair]:
    def make() -> Pair:
        from skl2onnx._supported_operators import sklearn_operator_name_map
        from skl2onnx.common.exceptions import MissingShapeCalculator

        if kind not in sklearn_operator_name_map and name not in TAKEN_APART:
            raise MissingShapeCalculator(f"there is no converter for {name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pair(fitted(name, kind), data_for(name))

    return make


def fitted(name: str, kind: type) -> Any:
    estimator: Any = SPECIAL[name]() if name in SPECIAL else kind(**_small(kind))
    rows, target = data_for(name), target_for(name, estimator)
    return estimator.fit(rows) if target is None else estimator.fit(rows, target)


def _small(kind: Any) -> dict[str, Any]:
    """Cheap, and the same each time."""
    wanted = {"random_state": 0, "n_estimators": 10, "max_iter": 200, "n_components": 3, "n_clusters": 3}
    known = kind._get_param_names() if hasattr(kind, "_get_param_names") else ()
    return {name: value for name, value in wanted.items() if name in known}


@cache
def table() -> Any:
    """Numbers as people have them: float64, of different sizes."""
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, COLUMNS)) * [1.0, 0.2, 3.0, 1.0, 10.0] + [0.0, 1.0, -2.0, 0.5, 4.0]


def classes() -> Any:
    rows = table()
    return np.digitize(rows[:, 0] + rows[:, 3] * rows[:, 1], [-0.3, 0.9])


def values() -> Any:
    rows = table()
    return 2 * rows[:, 0] - rows[:, 2] + 0.1 * rows[:, 4] * rows[:, 3]


def several() -> Any:
    return np.stack([values(), table()[:, 1] * 3 - table()[:, 4]], axis=1)


def positive() -> Any:
    return np.abs(table()) + 0.01


def counts() -> Any:
    return np.round(np.abs(table()) * 2).astype(np.int64) % 4


def texts() -> Any:
    return np.array([WORDS[number % len(WORDS)] + f" {WORDS[number % 5].split()[1]}" for number in range(60)], object)


def categories() -> Any:
    import pandas as pd

    names = np.array(["red", "green", "blue"])
    return pd.DataFrame({"colour": names[counts()[:, 0] % 3], "size": np.array(["s", "m", "l"])[counts()[:, 2] % 3]})


def dicts() -> Any:
    return [{"height": float(row[0]), "width": float(row[1])} for row in table()[:40]]


def images() -> Any:
    return np.random.default_rng(0).random((6, 8, 8))


def kernel() -> Any:
    return table()[:60] @ table()[:60].T


DATA: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("MultinomialNB", "ComplementNB", "CategoricalNB",
                     "LatentDirichletAllocation"), counts),
    **dict.fromkeys(("AdditiveChi2Sampler", "SkewedChi2Sampler", "NMF", "MiniBatchNMF"), positive),
    **dict.fromkeys(("CountVectorizer", "TfidfVectorizer", "HashingVectorizer"), texts),
    **dict.fromkeys(("OneHotEncoder", "OrdinalEncoder", "TargetEncoder"), categories),
    "DictVectorizer": dicts,
    "FeatureHasher": lambda: np.array([text.split()[:3] for text in texts()], object),
    "TfidfTransformer": lambda: counts().astype(np.float64),
    "PatchExtractor": images,
    "KernelCenterer": kernel,
    "IsotonicRegression": lambda: table()[:, :1],
    "LabelEncoder": classes,
    "LabelBinarizer": classes,
    "MultiLabelBinarizer": lambda: [[int(v) for v in row[:2]] for row in counts()],
}  # fmt: skip

TAKEN_APART = {"ColumnTransformer", "FeatureUnion", "Pipeline"}
"""What skl2onnx converts step by step, without a converter of its own."""

WITHOUT_TARGET = {"LabelEncoder", "LabelBinarizer", "MultiLabelBinarizer"}
SEVERAL = {"MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV", "MultiOutputRegressor",
           "RegressorChain", "CCA", "PLSCanonical", "PLSRegression", "PLSSVD"}  # fmt: skip
TWO_CLASSES = {"TargetEncoder", "GaussianProcessClassifier", "FixedThresholdClassifier", "TunedThresholdClassifierCV"}
POSITIVE_TARGET = {"GammaRegressor", "PoissonRegressor", "TweedieRegressor"}


@cache
def data_for(name: str) -> Any:
    return DATA.get(name, table)()


def target_for(name: str, estimator: Any) -> Any:
    from sklearn.base import is_clusterer, is_regressor

    if name in WITHOUT_TARGET or len(data_for(name)) != ROWS or is_clusterer(estimator):
        return None
    if name in SEVERAL:
        return several() / several().std(axis=0)
    if name in ("MultiOutputClassifier", "ClassifierChain"):
        return np.stack([classes() > 0, table()[:, 2] > -2], axis=1).astype(np.int64)
    if name in TWO_CLASSES:
        return (classes() > 0).astype(np.int64)
    if name in POSITIVE_TARGET:
        return np.exp(values() / 10)
    if name == "IsotonicRegression":
        return table()[:, 0] ** 3
    return values() if is_regressor(estimator) else classes()


def _special() -> dict[str, Callable[[], Any]]:
    import sklearn.calibration as calibration
    import sklearn.compose as compose
    import sklearn.decomposition as decomposition
    import sklearn.discriminant_analysis as discriminant
    import sklearn.ensemble as ensemble
    import sklearn.feature_extraction as extraction
    import sklearn.feature_extraction.image as image
    import sklearn.feature_selection as selection
    import sklearn.frozen as frozen
    import sklearn.linear_model as linear
    import sklearn.model_selection as search
    import sklearn.multiclass as multiclass
    import sklearn.multioutput as multioutput
    import sklearn.neighbors as neighbors
    import sklearn.pipeline as pipeline
    import sklearn.preprocessing as preprocessing
    import sklearn.random_projection as projection
    import sklearn.semi_supervised as semi
    from sklearn.experimental import enable_halving_search_cv, enable_iterative_imputer  # noqa: F401

    def classifier() -> Any:
        return linear.LogisticRegression(max_iter=500)

    def regressor() -> Any:
        return linear.Ridge()

    def base(kind: Any, inner: Callable[[], Any], **options: Any) -> Callable[[], Any]:
        return lambda: kind(inner(), **options)

    grid: dict[str, Any] = {"C": [0.1, 1.0]}
    return {
        "AdaBoostClassifier": lambda: ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
        "BaggingClassifier": base(ensemble.BaggingClassifier, classifier, n_estimators=3, random_state=0),
        "BaggingRegressor": base(ensemble.BaggingRegressor, regressor, n_estimators=3, random_state=0),
        "CalibratedClassifierCV": base(calibration.CalibratedClassifierCV, classifier, cv=2),
        "ClassifierChain": base(multioutput.ClassifierChain, classifier),
        "ColumnTransformer": lambda: compose.ColumnTransformer(
            [("scaled", preprocessing.StandardScaler(), [0, 1, 2]), ("range", preprocessing.MinMaxScaler(), [3, 4])]
        ),
        "FeatureUnion": lambda: pipeline.FeatureUnion(
            [("scaled", preprocessing.StandardScaler()), ("axes", decomposition.PCA(2))]
        ),
        "FixedThresholdClassifier": base(search.FixedThresholdClassifier, classifier, threshold=0.6),
        "FrozenEstimator": lambda: frozen.FrozenEstimator(classifier().fit(table(), classes())),
        "FunctionTransformer": lambda: preprocessing.FunctionTransformer(),
        "GaussianRandomProjection": lambda: projection.GaussianRandomProjection(3, random_state=0),
        "KBinsDiscretizer": lambda: preprocessing.KBinsDiscretizer(encode="onehot-dense"),
        "FeatureHasher": lambda: extraction.FeatureHasher(16, input_type="string"),
        "LinearDiscriminantAnalysis": discriminant.LinearDiscriminantAnalysis,
        "QuantileTransformer": lambda: preprocessing.QuantileTransformer(n_quantiles=20, random_state=0),
        "SparseRandomProjection": lambda: projection.SparseRandomProjection(3, random_state=0),
        "GridSearchCV": base(search.GridSearchCV, classifier, param_grid=grid, cv=2),
        "HalvingGridSearchCV": base(search.HalvingGridSearchCV, classifier, param_grid=grid, cv=2),
        "HalvingRandomSearchCV": base(search.HalvingRandomSearchCV, classifier, param_distributions=grid, cv=2,
                                      random_state=0),
        "RandomizedSearchCV": base(search.RandomizedSearchCV, classifier, param_distributions=grid, n_iter=2, cv=2,
                                   random_state=0),
        "LocalOutlierFactor": lambda: neighbors.LocalOutlierFactor(novelty=True),
        "MultiOutputClassifier": base(multioutput.MultiOutputClassifier, classifier),
        "MultiOutputRegressor": base(multioutput.MultiOutputRegressor, regressor),
        "OneVsOneClassifier": base(multiclass.OneVsOneClassifier, classifier),
        "OneVsRestClassifier": base(multiclass.OneVsRestClassifier, classifier),
        "OutputCodeClassifier": base(multiclass.OutputCodeClassifier, classifier, random_state=0),
        "PatchExtractor": lambda: image.PatchExtractor(patch_size=(2, 2), max_patches=4, random_state=0),
        "Pipeline": lambda: pipeline.Pipeline([("scale", preprocessing.StandardScaler()), ("model", classifier())]),
        "CCA": lambda: __import__("sklearn.cross_decomposition").cross_decomposition.CCA(2),
        "PLSCanonical": lambda: __import__("sklearn.cross_decomposition").cross_decomposition.PLSCanonical(2),
        "PLSRegression": lambda: __import__("sklearn.cross_decomposition").cross_decomposition.PLSRegression(2),
        "PLSSVD": lambda: __import__("sklearn.cross_decomposition").cross_decomposition.PLSSVD(2),
        "RANSACRegressor": base(linear.RANSACRegressor, linear.LinearRegression, random_state=0),
        "RFE": base(selection.RFE, classifier, n_features_to_select=2),
        "RFECV": base(selection.RFECV, classifier, cv=2),
        "RegressorChain": base(multioutput.RegressorChain, regressor),
        "SelectFromModel": base(selection.SelectFromModel, classifier),
        "SelectKBest": lambda: selection.SelectKBest(k=3),
        "SelfTrainingClassifier": base(semi.SelfTrainingClassifier, classifier),
        "SequentialFeatureSelector": base(selection.SequentialFeatureSelector, classifier, n_features_to_select=2,
                                          cv=2),
        "RadiusNeighborsClassifier": lambda: neighbors.RadiusNeighborsClassifier(radius=20.0),
        "RadiusNeighborsRegressor": lambda: neighbors.RadiusNeighborsRegressor(radius=20.0),
        "NearestNeighbors": lambda: neighbors.NearestNeighbors(n_neighbors=3, radius=None),
        "OrthogonalMatchingPursuitCV": linear.OrthogonalMatchingPursuitCV,
        "RandomTreesEmbedding": lambda: ensemble.RandomTreesEmbedding(5, sparse_output=False, random_state=0),
        "RadiusNeighborsTransformer": lambda: neighbors.RadiusNeighborsTransformer(radius=20.0),
        "SparseCoder": lambda: decomposition.SparseCoder(np.eye(COLUMNS)[:3]),
        "StackingClassifier": lambda: ensemble.StackingClassifier(
            [("line", classifier()), ("tree", ensemble.RandomForestClassifier(5, random_state=0))], cv=2),
        "StackingRegressor": lambda: ensemble.StackingRegressor(
            [("line", regressor()), ("tree", ensemble.RandomForestRegressor(5, random_state=0))], cv=2),
        "TransformedTargetRegressor": lambda: compose.TransformedTargetRegressor(
            regressor(), transformer=preprocessing.StandardScaler()),
        "TunedThresholdClassifierCV": base(search.TunedThresholdClassifierCV, classifier, cv=2),
        "VotingClassifier": lambda: ensemble.VotingClassifier(
            [("line", classifier()), ("tree", ensemble.RandomForestClassifier(5, random_state=0))], voting="soft",
            flatten_transform=False),
        "VotingRegressor": lambda: ensemble.VotingRegressor(
            [("line", regressor()), ("tree", ensemble.RandomForestRegressor(5, random_state=0))]),
        "TargetEncoder": lambda: preprocessing.TargetEncoder(random_state=0),
    }  # fmt: skip


SPECIAL = _special()


def pair(estimator: Any, rows: Any) -> Pair:
    """What skl2onnx makes of it with its own defaults, asked about the rows."""
    model = convert(estimator, rows)
    session = runtime(model)
    inputs = [(entry.name, entry.type) for entry in session.get_inputs()]
    names = [entry.name for entry in session.get_outputs()]

    def ask_candidate(question: Any) -> list[Any]:
        if isinstance(question, list):
            # One dictionary a call: this is what the type of the input says.
            found = [session.run(None, {inputs[0][0]: row}) for row in question]
            return [np.concatenate([np.atleast_2d(_plain(row[0], estimator)) for row in found])]
        return [_plain(found, estimator) for found in session.run(None, dict(_fed(question, inputs)))]

    return Pair(
        estimator, model, rows, tuple(_parts(rows)), lambda question: _answers(estimator, question, names),
        ask_candidate, scores=1 if len(names) == 2 and names[0] == "label" else None,
    )  # fmt: skip


def convert(estimator: Any, rows: Any) -> Any:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    if hasattr(rows, "columns"):
        return to_onnx(estimator, initial_types=[(name, StringTensorType([None, 1])) for name in rows.columns])
    if isinstance(rows, list):
        from skl2onnx.common.data_types import DictionaryType

        return to_onnx(estimator, initial_types=[("X", DictionaryType(StringTensorType([1]), FloatTensorType([1])))])
    if rows.dtype == object:
        # The locale of the default is not there on every machine, and the file then does not load.
        options = {type(estimator): {"locale": "C"}} if rows.ndim == 1 else None
        return to_onnx(estimator, initial_types=[("X", StringTensorType([None, *rows.shape[1:]]))], options=options)
    shape = [None, *rows.shape[1:]]
    kind = Int64TensorType if rows.dtype.kind == "i" else FloatTensorType
    # Isolation forests are written for this version of the operators of trees.
    opset = {"": 18, "ai.onnx.ml": 3} if hasattr(estimator, "max_samples_") else None
    return to_onnx(estimator, initial_types=[("X", kind(shape))], target_opset=opset)


def _parts(rows: Any) -> Iterator[Any]:
    yield rows
    if len(rows) > 7:
        yield rows[:1]
        yield rows[:7]


def _fed(question: Any, inputs: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    for name, kind in inputs:
        column = question[[name]].to_numpy() if hasattr(question, "columns") else np.asarray(question)
        if "string" in kind:
            yield name, column.astype(object)
        else:
            yield name, column.astype({"tensor(float)": np.float32, "tensor(int64)": np.int64}[kind])


def _answers(estimator: Any, question: Any, names: list[str]) -> list[Any]:
    """By what skl2onnx documents of its outputs: a label, then scores; or one table."""
    if len(names) == 1:
        method = "predict" if _predicts(estimator) or not hasattr(estimator, "transform") else "transform"
        found = getattr(estimator, method)(question)
        return [found.toarray() if hasattr(found, "toarray") else found]
    if names == ["index", "distance"]:
        return list(reversed(estimator.kneighbors(question)))
    label = estimator.predict(question)
    for method in _second(estimator):
        if hasattr(estimator, method):
            found = getattr(estimator, method)(question)
            return [label, np.stack(found) if isinstance(found, list) else found]
    raise TypeError(f"no answers for {names}")


def _predicts(estimator: Any) -> bool:
    from sklearn.base import is_classifier, is_regressor

    # A selection of columns around a classifier calls itself one, and is converted as what it selects.
    return bool(is_classifier(estimator) or is_regressor(estimator)) and not hasattr(estimator, "get_support")


def _second(estimator: Any) -> tuple[str, ...]:
    from sklearn.base import is_clusterer

    return ("transform",) if is_clusterer(estimator) else ("predict_proba", "decision_function")


def _plain(found: Any, estimator: Any) -> Any:
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return np.array([[row[name] for name in getattr(estimator, "classes_", sorted(row))] for row in found])
    if isinstance(found, list):
        return np.stack(found)
    return found.toarray() if hasattr(found, "toarray") else found
