"""The scikit-learn models of the corpus that are pipelines, unions and meta-estimators, and what goes wrong in each."""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from locate_faults.slips import (
    MIXED,
    Construction,
    Slip,
    added,
    leaf,
    mixed,
    scaled,
    step,
    swap_categories,
    threshold,
)


def prepared(last: BaseEstimator) -> Pipeline:
    nums = Pipeline([("medians", SimpleImputer(strategy="median")), ("stand", StandardScaler())])
    cats = Pipeline([("onehot", OneHotEncoder(handle_unknown="ignore", sparse_output=False))])
    table = ColumnTransformer([("nums", nums, MIXED[:4]), ("cats", cats, MIXED[4:])])
    return Pipeline([("prep", table), ("verdict", last)])


def pipe(**steps: BaseEstimator) -> Pipeline:
    return Pipeline(list(steps.items()))


LR = partial(LogisticRegression, max_iter=500)
PIPELINES = [
    Construction(
        "columns",
        lambda: prepared(LR()),
        "two",
        [
            Slip(
                "fill",
                "step differs",
                ("medians",),
                added(step("prep", "nums", "medians"), "statistics_", 15.0, 1),
                also=("missing-value-handling",),
            ),
            Slip("std", "step differs", ("stand",), scaled(step("prep", "nums", "stand"), "scale_", 1.15, 3)),
            Slip(
                "categories",
                "step differs",
                ("onehot",),
                swap_categories(step("prep", "cats", "onehot")),
                also=("feature-order", "wrong-wiring", "unknown-category"),
            ),
            Slip(
                "intercept",
                "part left out",
                ("verdict",),
                scaled(step("verdict"), "intercept_", 0.0),
                also=("weight-corruption",),
            ),
        ],
        mixed,
    ),
    Construction(
        "union",
        lambda: pipe(
            both=FeatureUnion(
                [
                    ("lowrank", PCA(3)),
                    ("products", pipe(squeeze01=MinMaxScaler(), exp=PolynomialFeatures(2, include_bias=False))),
                ]
            ),
            ridge=Ridge(),
        ),
        "value",
        [
            Slip("pca-mean", "step differs", ("lowrank",), added(step("both", "lowrank"), "mean_", 1.5, 0)),
            Slip(
                "minmax",
                "step differs",
                ("squeeze01",),
                scaled(step("both", "products", "squeeze01"), "scale_", 1.1, 1),
            ),
            Slip("coef", "weight edited", ("ridge",), scaled(step("ridge"), "coef_", 1.1)),
        ],
    ),
    Construction(
        "union-of-columns",
        lambda: pipe(
            wide=FeatureUnion(
                [
                    (
                        "left",
                        ColumnTransformer(
                            [
                                ("money", pipe(gap=SimpleImputer(), robust=RobustScaler()), ["income", "balance"]),
                                ("plain", "passthrough", ["age"]),
                            ]
                        ),
                    ),
                    ("right", ColumnTransformer([("town", OneHotEncoder(sparse_output=False), ["city"])])),
                ]
            ),
            boost=GradientBoostingClassifier(n_estimators=12, random_state=0),
        ),
        "three",
        [
            Slip(
                "robust", "step differs", ("robust",), added(step("wide", "left", "money", "robust"), "center_", 3.0, 0)
            ),
            Slip(
                "gap",
                "step differs",
                ("gap",),
                added(step("wide", "left", "money", "gap"), "statistics_", 25.0, 0),
                also=("missing-value-handling",),
            ),
        ],
        mixed,
    ),
    Construction(
        "stacking",
        lambda: StackingClassifier(
            [
                ("line", pipe(std=StandardScaler(), logit=LR())),
                ("branches", DecisionTreeClassifier(max_depth=4, random_state=0)),
            ],
            final_estimator=LR(),
            cv=3,
        ),
        "two",
        [
            Slip(
                "tree",
                "threshold shifted",
                ("branches", "tree 0"),
                threshold(lambda m: m.named_estimators_["branches"]),
                also=("float32-threshold",),
            ),
            Slip(
                "std",
                "step differs",
                ("std",),
                scaled(lambda m: m.named_estimators_["line"].named_steps["std"], "scale_", 1.2, 0),
            ),
            Slip(
                "final",
                "weight edited",
                ("final_estimator_", "final_estimator"),
                scaled(step("final_estimator_"), "coef_", 0.8),
            ),
        ],
    ),
    Construction(
        "stacking-regressor",
        lambda: StackingRegressor(
            [("flatridge", Ridge()), ("forest", RandomForestRegressor(8, max_depth=4, random_state=0))],
            final_estimator=LinearRegression(),
            cv=3,
            passthrough=True,
        ),
        "value",
        [
            Slip(
                "forest",
                "weight edited",
                ("forest", "tree 3"),
                leaf(lambda m: m.named_estimators_["forest"].estimators_[3]),
            ),
            Slip(
                "flat",
                "weights stale",
                ("flatridge",),
                scaled(lambda m: m.named_estimators_["flatridge"], "coef_", 1.1),
            ),
        ],
    ),
    Construction(
        "voting",
        lambda: VotingClassifier(
            [
                ("softline", pipe(zed=StandardScaler(), lone=LR())),
                ("gauss", GaussianNB()),
                ("stumps", DecisionTreeClassifier(max_depth=3, random_state=1)),
            ],
            voting="soft",
            weights=np.array([3, 1, 2]),
        ),
        "three",
        [
            Slip(
                "nested",
                "weight edited",
                ("lone", "softline"),
                scaled(lambda m: m.named_estimators_["softline"].named_steps["lone"], "coef_", 1.3, 0),
            ),
            Slip("bayes", "weight edited", ("gauss",), scaled(lambda m: m.named_estimators_["gauss"], "var_", 1.5, 1)),
            Slip(
                "weights",
                "aggregation",
                ("weights", "members"),
                lambda m: setattr(m, "weights", None),
                also=("weight-corruption", "model-part-dropped"),
            ),
        ],
    ),
    Construction(
        "voting-regressor",
        lambda: VotingRegressor(
            [
                ("vec", pipe(norm=StandardScaler(), svr=SVR(C=2.0))),
                ("grow", DecisionTreeRegressor(max_depth=4, random_state=0)),
            ]
        ),
        "value",
        [
            Slip(
                "svr",
                "part left out",
                ("svr", "vec"),
                added(lambda m: m.named_estimators_["vec"].named_steps["svr"], "intercept_", 0.3),
                also=("weight-corruption",),
            ),
            Slip("tree", "weight edited", ("grow", "tree 0"), leaf(lambda m: m.named_estimators_["grow"])),
        ],
    ),
    Construction(
        "calibrated",
        lambda: CalibratedClassifierCV(LR(C=0.1), cv=3),
        "flag",
        [
            Slip(
                "sigmoid",
                "weight edited",
                ("calibrators", "calibrated_classifiers_[1]"),
                lambda m: setattr(
                    m.calibrated_classifiers_[1].calibrators[0],
                    "a_",
                    m.calibrated_classifiers_[1].calibrators[0].a_ * 1.4,
                ),
                also=("link-function",),
            ),
            Slip(
                "base",
                "weight edited",
                ("calibrated_classifiers_[2]",),
                scaled(lambda m: m.calibrated_classifiers_[2].estimator, "coef_", 0.7),
            ),
        ],
    ),
    Construction(
        "isotonic",
        lambda: CalibratedClassifierCV(RandomForestClassifier(6, max_depth=3, random_state=0), method="isotonic", cv=2),
        "two",
        [
            Slip(
                "tree",
                "weight edited",
                ("calibrated_classifiers_[0]",),
                leaf(lambda m: m.calibrated_classifiers_[0].estimator.estimators_[2]),
            ),
        ],
    ),
    Construction(
        "multi-output",
        lambda: MultiOutputRegressor(pipe(level=StandardScaler(), lasso=Lasso(0.01))),
        "values",
        [
            Slip(
                "second",
                "weight edited",
                ("estimators_[1]",),
                scaled(lambda m: m.estimators_[1].named_steps["lasso"], "coef_", 1.2),
            ),
            Slip(
                "scaler",
                "step differs",
                ("estimators_[2]",),
                added(lambda m: m.estimators_[2].named_steps["level"], "mean_", 2.0, 0),
            ),
        ],
    ),
    Construction(
        "multi-class-output",
        lambda: MultiOutputClassifier(LR()),
        "labels",
        [
            Slip("first", "weight edited", ("estimators_[0]",), scaled(lambda m: m.estimators_[0], "coef_", 1.3)),
        ],
    ),
    Construction(
        "search",
        lambda: GridSearchCV(
            pipe(wash=StandardScaler(), vectors=SVC(probability=False)), {"vectors__C": [0.5, 2.0]}, cv=2
        ),
        "three",
        [
            Slip("scaler", "step differs", ("wash",), added(step("best_estimator_", "wash"), "mean_", 10.0, 1)),
            Slip(
                "gamma",
                "attribute changed",
                ("vectors",),
                lambda m: setattr(m.best_estimator_.named_steps["vectors"], "_gamma", 0.5),
                also=("weight-corruption",),
            ),
        ],
    ),
]
