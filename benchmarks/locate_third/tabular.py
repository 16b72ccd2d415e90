"""Faults in nested scikit-learn models of the third set: a part with other numbers, or a slip in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from locate_faults.corpus import Built
from locate_faults.edits import leave_out
from locate_faults.slips import Slip, added, leaf, scaled, step, threshold
from locate_second.bases import Store
from locate_second.tabular import NUMBERS, case, gaps, given, numbers_with_gaps, scale
from locate_second.tabular import makers as planted
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import AdaBoostRegressor, BaggingRegressor, StackingRegressor, VotingRegressor
from sklearn.feature_selection import SelectPercentile, f_regression
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, LogisticRegression, PoissonRegressor, QuantileRegressor, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

KINDS = ["fuel", "body"]


def nested() -> FeatureUnion:
    """A table of transformers inside a union, beside another."""
    filled = Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", RobustScaler())])
    table = ColumnTransformer(
        [("nums", filled, NUMBERS), ("kinds", OneHotEncoder(handle_unknown="ignore"), KINDS)], sparse_threshold=0
    )
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    other = ColumnTransformer([("codes", codes, KINDS)])
    return FeatureUnion([("table", table), ("codes", other)])


def stale(*also: str) -> tuple[str, ...]:
    return ("stale-weights", "preprocessing-differs", *also)


CONSTRUCTIONS = [
    case(
        "union-of-tables",
        lambda: Pipeline([("prep", nested()), ("model", Ridge())]),
        "worth",
        [
            Slip(
                "median",
                "step differs",
                ("fill", "nums"),
                added(step("prep", "table", "nums", "fill"), "statistics_", 9.0, 0),
                also=stale(),
            ),
            Slip(
                "robust-centre",
                "step differs",
                ("scale", "nums"),
                added(step("prep", "table", "nums", "scale"), "center_", 0.6, 3),
                also=stale(),
            ),
            Slip("head", "weight edited", ("model",), scaled(step("model"), "coef_", -1.0, 2), also=stale()),
        ],
        gaps,
    ),
    case(
        "target-transformed",
        lambda: TransformedTargetRegressor(
            Pipeline([("power", PowerTransformer()), ("net", ElasticNet(0.01))]), transformer=StandardScaler()
        ),
        "worth",
        [
            Slip(
                "lambda",
                "step differs",
                ("power",),
                added(step("regressor_", "power"), "lambdas_", 0.3, 0),
                also=stale(),
            ),
            Slip(
                "target-scale",
                "weight edited",
                ("transformer_",),
                scaled(step("transformer_"), "scale_", 1.1),
                also=stale("model-part-dropped"),
            ),
        ],
    ),
    case(
        "calibrated-svm",
        lambda: scale(CalibratedClassifierCV(LinearSVC(), cv=3)),
        "sold",
        [
            Slip(
                "slope",
                "weight edited",
                ("calibrators", "calibrated_classifiers_", "model"),
                given(step("model", "calibrated_classifiers_", 1, "calibrators", 0), "a_", lambda a: a * 1.5),
                also=stale(),
            ),
            Slip("spread", "step differs", ("scale",), scaled(step("scale"), "scale_", 1.3, 1), also=stale()),
        ],
    ),
    case(
        "process",
        lambda: scale(GaussianProcessRegressor(RBF(2.0) + WhiteKernel(0.5), optimizer=None)),
        "worth",
        [
            Slip(
                "alpha", "weight edited", ("model",), scaled(step("model"), "alpha_", 1.2, slice(0, 20)), also=stale()
            ),
            Slip("centre", "step differs", ("scale",), added(step("scale"), "mean_", 2.0, 2), also=stale()),
        ],
    ),
    case(
        "bag-of-pipelines",
        lambda: BaggingRegressor(scale(Ridge()), n_estimators=4, random_state=0),
        "worth",
        [
            Slip(
                "one-scaler",
                "step differs",
                ("scale", "estimators_[2]"),
                added(step("estimators_", 2, "scale"), "mean_", 30.0, 0),
                also=stale(),
            ),
            Slip(
                "one-head",
                "weight edited",
                ("model", "estimators_[1]"),
                scaled(step("estimators_", 1, "model"), "coef_", 2.0, 1),
                also=stale(),
            ),
        ],
    ),
    case(
        "one-against-rest",
        lambda: Pipeline([("bound", MaxAbsScaler()), ("rest", OneVsRestClassifier(LogisticRegression()))]),
        "band",
        [
            Slip(
                "one-class",
                "weight edited",
                ("rest", "estimators_[1]"),
                added(step("rest", "estimators_", 1), "intercept_", 1.5),
                also=stale(),
            ),
            Slip("bound", "step differs", ("bound",), scaled(step("bound"), "scale_", 1.6, 1), also=stale()),
        ],
    ),
    case(
        "bins",
        lambda: Pipeline([("bins", KBinsDiscretizer(5, encode="onehot-dense", subsample=None)), ("model", Ridge())]),
        "worth",
        [
            Slip(
                "edges",
                "step differs",
                ("bins",),
                given(step("bins"), "bin_edges_", lambda e: np.array([e[0] * 1.05, *e[1:]], dtype=object)),
                also=stale(),
            ),
            Slip("head", "weight edited", ("model",), added(step("model"), "coef_", 0.7, 3), also=stale()),
        ],
    ),
    case(
        "stack-of-pipelines",
        lambda: StackingRegressor(
            [
                ("line", scale(ElasticNet(0.01))),
                (
                    "tree",
                    Pipeline(
                        [
                            ("pick", SelectPercentile(f_regression, percentile=60)),
                            ("tree", DecisionTreeRegressor(max_depth=4)),
                        ]
                    ),
                ),
            ],
            Ridge(),
            cv=3,
        ),
        "worth",
        [
            Slip(
                "final",
                "weight edited",
                ("final_estimator_",),
                scaled(step("final_estimator_"), "coef_", 1.4, 0),
                also=stale(),
            ),
            Slip("leaf", "weight edited", ("tree",), leaf(step("estimators_", 1, "tree")), also=stale()),
            Slip(
                "threshold",
                "threshold shifted",
                ("tree",),
                threshold(step("estimators_", 1, "tree"), 0.3),
                also=stale(),
            ),
        ],
    ),
    case(
        "votes",
        lambda: VotingRegressor(
            [
                ("partial", scale(PLSRegression(2))),
                ("many", Pipeline([("svd", TruncatedSVD(3)), ("line", Ridge())])),
                ("rounds", AdaBoostRegressor(DecisionTreeRegressor(max_depth=3), n_estimators=5, random_state=0)),
            ],
            weights=np.array([2, 1, 1]),
        ),
        "worth",
        [
            Slip(
                "weights",
                "aggregation",
                ("weights", "VotingRegressor", "model"),
                given(step(), "weights", np.array([1, 2, 1])),
                also=("weight-corruption", "operator-attribute"),
            ),
            Slip(
                "components",
                "step differs",
                ("svd",),
                scaled(step("estimators_", 1, "svd"), "components_", 1.3, 0),
                also=("weight-corruption", *stale()),
            ),
        ],
    ),
    case(
        "counts",
        lambda: Pipeline(
            [("fill", SimpleImputer(add_indicator=True)), ("scale", StandardScaler()), ("model", PoissonRegressor())]
        ),
        "positive",
        [
            Slip("indicator-scale", "step differs", ("scale",), scaled(step("scale"), "scale_", 3.0, 5), also=stale()),
            Slip("link", "link left out", ("model",), file=leave_out("Exp", 0)),
        ],
        numbers_with_gaps,
    ),
    case(
        "several",
        lambda: Pipeline(
            [("flag", Binarizer(threshold=100.0)), ("many", MultiOutputRegressor(QuantileRegressor(alpha=0)))]
        ),
        "pair",
        [
            Slip(
                "flag",
                "step differs",
                ("flag",),
                given(step("flag"), "threshold", 60.0),
                also=("operator-attribute", *stale()),
            ),
        ],
    ),
]


def makers(store: Store) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    yield from planted(store, CONSTRUCTIONS)
