"""Faults in nested scikit-learn models and boosters of the second set: a part fitted again, or a slip in the file."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from locate_faults.corpus import WORDS, Built, Edit, beyond, truth_of
from locate_faults.edits import leave_out
from locate_faults.slips import Change, Construction, Slip, added, attribute_of, leaf, scaled, step, swapped, threshold
from locate_faults.tabular import ask, export
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.linear_model import GammaRegressor, LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeClassifier

from locate_second import bases

NUMBERS = ["km", "year", "power", "weight", "owners"]


@cache
def cars() -> pd.DataFrame:
    rng = np.random.default_rng(21)
    n = 220
    return pd.DataFrame(
        {
            "km": rng.gamma(2.0, 40.0, n).astype(np.float32),
            "year": rng.integers(1998, 2024, n).astype(np.float32),
            "power": rng.normal(110, 30, n).astype(np.float32),
            "weight": rng.normal(1.4, 0.3, n).astype(np.float32),
            "owners": rng.integers(1, 5, n).astype(np.float32),
            "fuel": rng.choice(["diesel", "petrol", "electric"], n),
            "body": rng.choice(["van", "coupe", "estate", "suv"], n),
        }
    )


def numbers() -> pd.DataFrame:
    return cars()[NUMBERS].copy()


def gaps() -> pd.DataFrame:
    frame, rng = cars().copy(), np.random.default_rng(22)
    for column in ("km", "power"):
        frame.loc[rng.random(len(frame)) < 0.2, column] = np.nan
    return frame


def numbers_with_gaps() -> pd.DataFrame:
    return gaps()[NUMBERS].copy()


def notes() -> pd.DataFrame:
    rng = np.random.default_rng(23)
    words = np.array(
        [
            "Clean",
            "scratched",
            "rust",
            "new",
            "engine",
            "brakes",
            "tyres",
            "noisy",
            "quiet",
            "warranty",
            "dealer",
            "private",
        ]
    )
    return pd.DataFrame({"note": [" ".join(rng.choice(words, rng.integers(3, 9))) for _ in range(220)]})


@cache
def targets() -> dict[str, np.ndarray]:
    f, rng = cars(), np.random.default_rng(24)
    worth = (
        30 - 0.08 * f.km + 0.4 * (f.year - 2010) + 0.05 * f.power + 3 * np.sin(4 * f.weight)
        + 4 * (f.fuel == "electric") + rng.normal(0, 0.5, len(f))
    ).to_numpy()  # fmt: skip
    note = notes().note
    return {
        "worth": worth,
        "positive": np.exp(worth / 15),
        "sold": np.where(worth + rng.normal(0, 2, len(f)) > np.median(worth), "sold", "kept"),
        "flag": (worth > np.median(worth)).astype(np.int64),
        "band": np.digitize(worth, np.quantile(worth, [0.3, 0.7])),
        "tone": (note.str.count("new|quiet|warranty") > note.str.count("rust|noisy")).to_numpy().astype(int),
        "pair": np.stack([worth, worth * f.weight.to_numpy()], 1),
    }


def columns() -> ColumnTransformer:
    nums = Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
    return ColumnTransformer(
        [("nums", nums, NUMBERS), ("kinds", OneHotEncoder(handle_unknown="ignore"), ["fuel", "body"])]
    )


def scale(model: BaseEstimator) -> Pipeline:
    return Pipeline([("scale", StandardScaler()), ("model", model)])


def refitted(path: Callable[[Any], Any], rows: Callable[[], pd.DataFrame], part: slice, names: list[str]) -> Change:
    """A step that was fitted to other rows."""

    def change(model: Any) -> None:
        path(model).fit(rows()[names].to_numpy()[part])

    return change


def given(path: Callable[[Any], Any], name: str, value: Any) -> Change:
    def change(model: Any) -> None:
        part = path(model)
        old = getattr(part, name)
        setattr(part, name, value(old) if callable(value) else value)

    return change


def labels(operator: str) -> Edit:
    """The class names of a node change places."""

    def edit(model: onnx.ModelProto) -> None:
        for name in ("classlabels_strings", "classlabels_ints", "classlabels_int64s"):
            try:
                return attribute_of(operator, name, swapped)(model)
            except StopIteration:
                continue
        raise LookupError(operator)

    return edit


def rounded(names: tuple[str, ...], digits: int) -> Edit:
    """The thresholds of trees as they are after a detour through text."""

    def edit(model: onnx.ModelProto) -> None:
        for name in names:
            attribute_of("TreeEnsembleClassifier", name, lambda v: [round(x, digits) for x in v])(model)

    return edit


@cache
def register() -> None:
    """Boosters inside pipelines, as the documentation of their converters says."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )
    from xgboost import XGBClassifier, XGBRegressor

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"], "raw_scores": [True, False]}
    for kind, convert in ((LGBMClassifier, convert_lightgbm), (XGBClassifier, convert_xgboost)):
        update_registered_converter(
            kind, kind.__name__, calculate_linear_classifier_output_shapes, convert, options=options
        )
    for kind, convert in ((LGBMRegressor, convert_lightgbm), (XGBRegressor, convert_xgboost)):
        update_registered_converter(
            kind, kind.__name__, calculate_linear_regressor_output_shapes, convert, options={"split": None}
        )


def lgbm(**options: Any) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMRegressor if options.pop("number", False) else LGBMClassifier
    return kind(n_estimators=20, num_leaves=7, verbose=-1, n_jobs=1, **options)


def shorter(model: Any, rounds: int) -> None:
    """A booster of fewer rounds."""
    model._Booster = model.get_booster()[:rounds]


def xgb(**options: Any) -> Any:
    from xgboost import XGBClassifier, XGBRegressor

    kind = XGBRegressor if options.pop("number", False) else XGBClassifier
    return kind(n_estimators=15, max_depth=3, n_jobs=1, **options)


def case(
    name: str, make: Callable[[], BaseEstimator], target: str, slips: list[Slip],
    rows: Callable[[], pd.DataFrame] = numbers,
) -> Construction:  # fmt: skip
    return Construction(name, make, target, slips, rows)


MEMBER = ("calibrated_classifiers_", 1, "estimator")
CONSTRUCTIONS = [
    case(
        "calibrated",
        lambda: Pipeline(
            [("fill", SimpleImputer()), ("model", CalibratedClassifierCV(LinearDiscriminantAnalysis(), cv=3))]
        ),
        "sold",
        [
            Slip(
                "one-member",
                "weight edited",
                ("calibrated_classifiers_[1]",),
                scaled(step("model", *MEMBER), "coef_", 1.4, (0, 2)),
                also=("stale-weights",),
            ),
            Slip(
                "slope",
                "step differs",
                ("calibrators", "calibrated_classifiers_[2]", "_SigmoidCalibration"),
                scaled(step("model", "calibrated_classifiers_", 2, "calibrators", 0), "a_", 1.6),
                also=("link-function", "operator-semantics", "stale-weights", "aggregation"),
            ),
        ],
        numbers_with_gaps,
    ),
    case(
        "columns-fill",
        lambda: Pipeline([("prep", columns()), ("model", LogisticRegression())]),
        "sold",
        [
            Slip(
                "fill-of-km",
                "step differs",
                ("fill", "km"),
                scaled(step("prep", "nums", "fill"), "statistics_", 3.0, 0),
                also=("missing-value-handling",),
            ),
            Slip(
                "scaler-of-old-rows",
                "step differs",
                ("scale",),
                refitted(step("prep", "nums", "scale"), cars, slice(0, 40), NUMBERS),
            ),
            Slip(
                "word-spelled",
                "step differs",
                ("kinds", "fuel"),
                file=attribute_of(
                    "OneHotEncoder", "cats_strings", lambda v: [b"Diesel" if x == b"diesel" else x for x in v]
                ),
                also=("unknown-category",),
            ),
            Slip("classes", "class order", ("model",), file=labels("LinearClassifier"), also=("label-mapping",)),
            Slip(
                "no-intercept",
                "part left out",
                ("model",),
                given(step("model"), "intercept_", lambda b: b * 0),
                also=("weight-corruption",),
            ),
        ],
        gaps,
    ),
    case(
        "stacked-pipelines",
        lambda: StackingClassifier(
            [
                ("near", scale(KNeighborsClassifier(7))),
                ("tree", DecisionTreeClassifier(max_depth=4, random_state=0)),
                ("line", scale(LogisticRegression())),
            ],
            LogisticRegression(),
            cv=3,
        ),
        "flag",
        [
            Slip(
                "scaler-of-neighbours",
                "step differs",
                ("near__scale",),
                refitted(step("estimators_", 0, "scale"), numbers, slice(0, 60), NUMBERS),
            ),
            Slip(
                "split-of-tree",
                "threshold shifted",
                ("tree",),
                threshold(step("estimators_", 1)),
                also=("stale-weights",),
            ),
            Slip(
                "final-order",
                "weights stale",
                ("final_estimator_",),
                given(step("final_estimator_"), "coef_", lambda c: c[:, ::-1].copy()),
                also=("weight-corruption", "feature-order", "wrong-wiring", "output-mapping"),
            ),
        ],
    ),
    case(
        "votes-weighted",
        lambda: VotingClassifier(
            [
                ("line", scale(LogisticRegression())),
                ("bayes", GaussianNB()),
                ("wood", RandomForestClassifier(12, max_depth=5, random_state=0)),
            ],
            voting="soft",
            weights=np.array([1, 1, 4]),
        ),
        "band",
        [
            Slip(
                "weights-lost",
                "aggregation",
                ("weights", "weighted"),
                given(lambda m: m, "weights", None),
                also=("weight-corruption",),
            ),
            Slip(
                "bayes-spread",
                "weight edited",
                ("bayes",),
                scaled(step("estimators_", 1), "var_", 3.0, (0, 1)),
                also=("stale-weights",),
            ),
            Slip(
                "leaf-of-wood",
                "weight edited",
                ("wood", "tree 4", "estimators_[4]"),
                leaf(step("estimators_", 2, "estimators_", 4)),
                also=("stale-weights",),
            ),
        ],
    ),
    case(
        "bags",
        lambda: BaggingRegressor(scale(Ridge(0.1)), 6, max_features=4, random_state=1),
        "worth",
        [
            Slip(
                "third-line",
                "weight edited",
                ("estimators_[3]", "estimator 3"),
                scaled(step("estimators_", 3, "model"), "coef_", -1.0, 2),
                also=("stale-weights",),
            ),
            Slip(
                "columns-of-one",
                "step differs",
                ("estimators_[1]", "estimators_features_"),
                lambda m: m.estimators_features_.__setitem__(1, m.estimators_features_[1][::-1].copy()),
                also=("feature-order", "wrong-wiring"),
            ),
        ],
    ),
    case(
        "bags-of-trees",
        lambda: BaggingClassifier(GradientBoostingClassifier(n_estimators=6, max_depth=2), 4, random_state=1),
        "flag",
        [
            Slip(
                "one-leaf",
                "weight edited",
                ("estimators_[2]", "estimator 2", "tree 13"),
                leaf(lambda m: m.estimators_[2].estimators_[1, 0], 1.5),
                also=("stale-weights",),
            ),
        ],
    ),
    case(
        "searched-bins",
        lambda: GridSearchCV(
            Pipeline(
                [
                    ("bins", KBinsDiscretizer(5, encode="onehot-dense", quantile_method="averaged_inverted_cdf")),
                    ("line", Ridge()),
                ]
            ),
            {"line__alpha": [0.5, 2.0]},
            cv=2,
        ),
        "worth",
        [
            Slip(
                "edges",
                "step differs",
                ("bins", "year"),
                lambda m: (
                    m.best_estimator_[0].bin_edges_[1].__setitem__(2, m.best_estimator_[0].bin_edges_[1][2] + 3.0)
                ),
            ),
            Slip(
                "intercept",
                "part left out",
                ("line",),
                given(step("best_estimator_", "line"), "intercept_", 0.0),
                also=("weight-corruption",),
            ),
        ],
    ),
    case(
        "target-scaled",
        lambda: TransformedTargetRegressor(
            Pipeline(
                [
                    ("scale", RobustScaler()),
                    ("net", MLPRegressor(hidden_layer_sizes=(9, 6), activation="tanh", max_iter=300, random_state=0)),
                ]
            ),
            transformer=StandardScaler(),
        ),
        "worth",
        [
            Slip(
                "spread-of-target",
                "step differs",
                ("transformer_",),
                scaled(step("transformer_"), "scale_", 0.8),
                also=("output-kind", "link-function"),
            ),
            Slip("layer", "weights stale", ("net", "coefs_[1]"), lambda m: m.regressor_["net"].coefs_[1].__imul__(-1)),
            Slip("centre", "step differs", ("scale",), added(step("regressor_", "scale"), "center_", 20.0, 0)),
        ],
    ),
    case(
        "rest",
        lambda: OneVsRestClassifier(scale(LogisticRegression())),
        "band",
        [
            Slip(
                "one-of-them",
                "weight edited",
                ("estimators_[1]", "estimator 1"),
                scaled(step("estimators_", 1, "model"), "coef_", -1.0, (0, 0)),
                also=("stale-weights",),
            ),
            Slip(
                "scaler-of-one",
                "step differs",
                ("estimators_[2]", "estimator 2", "scale"),
                scaled(step("estimators_", 2, "scale"), "scale_", 1.7, 1),
            ),
        ],
    ),
    case(
        "vectors",
        lambda: Pipeline([("scale", MinMaxScaler()), ("axes", PCA(4)), ("model", SVR(C=20.0))]),
        "worth",
        [
            Slip("axis-flipped", "step differs", ("axes",), scaled(step("axes"), "components_", -1.0, 1)),
            Slip(
                "width",
                "attribute changed",
                ("model",),
                given(step("model"), "_gamma", lambda g: g * 1.4),
                also=("weight-corruption",),
            ),
            Slip("range", "step differs", ("scale",), lambda m: setattr(m["scale"], "min_", m["scale"].min_ + 0.2)),
        ],
    ),
    case(
        "words",
        lambda: Pipeline(
            [("cols", ColumnTransformer([("note", TfidfVectorizer(), "note")])), ("model", LogisticRegression(C=10.0))]
        ),
        "tone",
        [
            Slip(
                "rarity",
                "step differs",
                ("note",),
                lambda m: (
                    m["cols"]
                    .named_transformers_["note"]
                    ._tfidf.__dict__.update(
                        idf_=m["cols"].named_transformers_["note"]._tfidf.idf_ * np.where(np.arange(12) == 3, 2.5, 1.0)
                    )
                ),
                also=("tokenizer",),
            ),
            Slip(
                "case-kept",
                "step differs",
                ("note",),
                lambda m: setattr(m["cols"].named_transformers_["note"], "lowercase", False),
                also=("tokenizer",),
            ),
            Slip(
                "norm-l1",
                "step differs",
                ("note",),
                lambda m: setattr(m["cols"].named_transformers_["note"], "norm", "l1"),
                also=("tokenizer", "operator-attribute"),
            ),
        ],
        notes,
    ),
    case(
        "boosted-columns",
        lambda: Pipeline(
            [
                (
                    "prep",
                    ColumnTransformer(
                        [("kinds", OrdinalEncoder(), ["fuel", "body"]), ("rest", "passthrough", NUMBERS)]
                    ),
                ),
                ("model", lgbm()),
            ]
        ),
        "sold",
        [
            Slip(
                "ordinals",
                "step differs",
                ("kinds", "body", "fuel"),
                lambda m: (
                    m["prep"]
                    .named_transformers_["kinds"]
                    .categories_.__setitem__(1, m["prep"].named_transformers_["kinds"].categories_[1][::-1].copy())
                ),
            ),
            Slip(
                "leaf",
                "weight edited",
                ("model", "tree 1"),
                file=attribute_of(
                    "TreeEnsembleClassifier",
                    "class_weights",
                    lambda v: [x + (0.8 if i == 9 else 0) for i, x in enumerate(v)],
                ),
                also=("stale-weights",),
            ),
        ],
        cars,
    ),
    case(
        "boosted",
        lambda: xgb(),
        "flag",
        [
            Slip(
                "rounded",
                "threshold shifted",
                ("model", "XGBClassifier", "year", "weight", "km", "power"),
                file=rounded(("nodes_values",), 1),
                also=("preprocessing-differs", "float32-threshold"),
            ),
            Slip(
                "fewer-trees",
                "part left out",
                ("model", "XGBClassifier", "9 of 15 trees"),
                lambda m: shorter(m, 9),
                also=("tree-count",),
            ),
        ],
    ),
    case(
        "mean-of-models",
        lambda: VotingRegressor(
            [
                ("extra", ExtraTreesRegressor(8, max_depth=5, random_state=0)),
                ("gbm", lgbm(number=True)),
                ("near", scale(KNeighborsRegressor(4))),
            ]
        ),
        "worth",
        [
            Slip(
                "neighbours-fewer",
                "weight edited",
                ("near", "estimators_[2]"),
                given(step("estimators_", 2, "model"), "n_neighbors", 2),
                also=(
                    "operator-semantics",
                    "operator-attribute",
                    "stale-weights",
                    "aggregation",
                    "preprocessing-differs",
                ),
            ),
            Slip(
                "scaler-of-neighbours",
                "step differs",
                ("near__scale",),
                scaled(step("estimators_", 2, "scale"), "scale_", 4.0, 0),
            ),
        ],
    ),
    case(
        "stacked-numbers",
        lambda: StackingRegressor(
            [
                ("gbm", lgbm(number=True)),
                ("line", Pipeline([("best", SelectKBest(f_regression, k=3)), ("line", Ridge())])),
            ],
            Ridge(),
            cv=3,
            passthrough=True,
        ),
        "worth",
        [
            Slip(
                "chosen-columns",
                "step differs",
                ("best",),
                lambda m: m.estimators_[1]["best"].scores_.__setitem__(
                    slice(None), m.estimators_[1]["best"].scores_[::-1].copy()
                ),
                also=("feature-order", "wrong-wiring"),
            ),
            Slip(
                "final-weight",
                "weight edited",
                ("final_estimator_",),
                scaled(step("final_estimator_"), "coef_", 1.3, 0),
                also=("stale-weights",),
            ),
        ],
    ),
    case(
        "gaps-histogram",
        lambda: HistGradientBoostingClassifier(max_iter=12, max_depth=3, random_state=0),
        "band",
        [
            Slip(
                "gaps-go-right",
                "step differs",
                ("model", "HistGradientBoostingClassifier", "km", "power"),
                file=attribute_of("TreeEnsembleClassifier", "nodes_missing_value_tracks_true", lambda v: [0] * len(v)),
                also=("missing-value-handling",),
            ),
            Slip(
                "classes",
                "class order",
                ("model", "classlabels_int64s", "HistGradientBoostingClassifier", "label"),
                file=labels("TreeEnsembleClassifier"),
                also=("label-mapping",),
            ),
        ],
        numbers_with_gaps,
    ),
    case(
        "quantiles-normal",
        lambda: Pipeline(
            [
                ("spread", QuantileTransformer(n_quantiles=40, random_state=0)),
                ("unit", Normalizer()),
                ("model", LinearDiscriminantAnalysis()),
            ]
        ),
        "band",
        [
            Slip("norm-l1", "step differs", ("unit",), given(step("unit"), "norm", "l1"), also=("operator-attribute",)),
            Slip(
                "prior",
                "weight edited",
                ("model",),
                scaled(step("model"), "intercept_", 3.0, 0),
                also=("stale-weights", "model-part-dropped"),
            ),
        ],
    ),
    case(
        "joined",
        lambda: Pipeline(
            [
                (
                    "both",
                    FeatureUnion(
                        [("axes", PCA(2)), ("bins", Pipeline([("scale", RobustScaler()), ("unit", MinMaxScaler())]))]
                    ),
                ),
                ("model", scale(KNeighborsRegressor(5))),
            ]
        ),
        "worth",
        [
            Slip(
                "inner-scaler",
                "step differs",
                ("bins", "scale", "unit"),
                scaled(step("both", "bins", "unit"), "scale_", 2.0, 2),
            ),
            Slip("mean-of-axes", "step differs", ("axes",), added(step("both", "axes"), "mean_", 15.0, 0)),
        ],
    ),
    case(
        "positive",
        lambda: scale(GammaRegressor()),
        "positive",
        [
            Slip("no-exponent", "link left out", ("model",), file=leave_out("Exp", 0)),
            Slip(
                "coefficient",
                "weight edited",
                ("model",),
                scaled(step("model"), "coef_", 1.5, 1),
                also=("stale-weights",),
            ),
        ],
    ),
    case(
        "strange",
        lambda: scale(IsolationForest(n_estimators=12, max_samples=60, random_state=0)),
        "flag",
        [
            Slip("scaler", "step differs", ("scale",), scaled(step("scale"), "scale_", 1.5, 0)),
        ],
    ),
    case(
        "mixture",
        lambda: scale(GaussianMixture(3, random_state=0)),
        "flag",
        [
            Slip(
                "one-mean",
                "weight edited",
                ("model",),
                added(step("model"), "means_", 0.8, (1, 0)),
                also=("stale-weights",),
            ),
        ],
    ),
]


def makers(
    store: bases.Store, constructions: Sequence[Construction] = CONSTRUCTIONS
) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for case in constructions:
        for slip in case.slips:
            name = f"{store.label}-{case.name}-{slip.name}"
            yield name, partial(plant, name, store.label, case, slip)
    for case in constructions[::3]:
        name = f"{store.label}-clean-{case.name}"
        yield name, partial(plant, name, store.label, case, None)


def plant(name: str, label: str, case: Construction, slip: Slip | None, place: Path) -> Built:
    """The model as a joblib file, its rows, and a file that differs from a sound export by one slip."""
    import joblib

    rows = case.rows()
    register()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = case.make().fit(rows, targets()[case.target])
    joblib.dump(model, place / "model.joblib")
    rows.to_parquet(place / "rows.parquet")
    sound = export(model, rows, place / "sound.onnx")
    expected = ask(place / "sound.onnx", rows)
    own = np.asarray(model.predict(rows))
    if own.dtype.kind == "f":
        assert not beyond([own.reshape(len(rows), -1)], [np.asarray(expected[0]).reshape(len(rows), -1)]), "unsound"
    else:
        wrong = (own.astype(str) != np.asarray(expected[0]).ravel().astype(str)).mean()
        assert wrong < 0.01, f"unsound: {wrong}"
    path = place / "candidate.onnx"
    paths = str(place / "model.joblib"), str(path), str(place / "rows.parquet")
    if slip is None:
        (place / "sound.onnx").rename(path)
        return Built(name, "clean", *paths)
    if slip.model is not None:
        other = copy.deepcopy(model)
        slip.model(other)
        faulty = export(other, rows, path)
    else:
        assert slip.file is not None
        faulty = copy.deepcopy(sound)
        slip.file(faulty)
        onnx.save(faulty, str(path))
    assert beyond(expected, ask(path, rows)), f"{name}: no row is beyond the tolerance"
    truth = truth_of(sound, faulty)
    if len(truth.nodes) > 12:  # names have moved: the place is told by the model's own names
        truth.nodes.clear()
        truth.tensors.clear()
    return Built(
        name, f"{label}: scikit-learn", *paths, slip.word, (*WORDS[slip.word], *slip.also),
        tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)), slip.tells, {},
        f"{slip.name} in {case.name}, reference scikit-learn",
    )  # fmt: skip
