"""The scikit-learn models of the corpus by their last estimator: ensembles, neighbours, kernels."""

from __future__ import annotations

import numpy as np
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import PoissonRegressor, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MinMaxScaler,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from locate_faults.edits import leave_out
from locate_faults.pipelines import LR, PIPELINES, pipe, prepared
from locate_faults.slips import (
    MIXED,
    Construction,
    Slip,
    added,
    attribute_of,
    identity,
    leaf,
    mixed,
    scaled,
    step,
    swap_categories,
    swapped,
    threshold,
)

CONSTRUCTIONS = [
    *PIPELINES,
    Construction(
        "ada",
        lambda: AdaBoostClassifier(DecisionTreeClassifier(max_depth=2, random_state=0), n_estimators=6, random_state=0),
        "two",
        [
            Slip("stump", "threshold shifted", ("estimators_[2]", "tree 2"), threshold(step("estimators_", 2), 0.5)),
            Slip(
                "weights",
                "aggregation",
                ("estimator_weights_",),
                lambda m: setattr(m, "estimator_weights_", m.estimator_weights_[::-1].copy()),
                also=("weight-corruption",),
            ),
        ],
    ),
    Construction(
        "ada-regressor",
        lambda: AdaBoostRegressor(DecisionTreeRegressor(max_depth=3, random_state=0), n_estimators=5, random_state=0),
        "value",
        [
            Slip(
                "leaf",
                "weight edited",
                ("estimators_[0]", "estimators_[1]", "tree 0", "tree 1"),
                lambda m: (leaf(step("estimators_", 0), 3.0)(m), leaf(step("estimators_", 1), 3.0)(m)),
            ),
        ],
    ),
    Construction(
        "bagging-linear",
        lambda: BaggingRegressor(pipe(bagscale=StandardScaler(), bagridge=Ridge()), n_estimators=5, random_state=0),
        "value",
        [
            Slip(
                "member",
                "weight edited",
                ("estimators_[2]",),
                scaled(lambda m: m.estimators_[2].named_steps["bagridge"], "coef_", 1.5),
            ),
            Slip(
                "columns",
                "wiring",
                ("estimators_features_", "estimators_[1]"),
                lambda m: m.estimators_features_.__setitem__(1, np.roll(m.estimators_features_[1], 1)),
                also=("feature-order",),
            ),
        ],
    ),
    Construction(
        "bagging-trees",
        lambda: BaggingClassifier(
            DecisionTreeClassifier(max_depth=4, random_state=0), n_estimators=5, max_features=0.7, random_state=0
        ),
        "two",
        [
            Slip("leaf", "weight edited", ("estimators_[4]", "tree 4"), leaf(step("estimators_", 4))),
        ],
    ),
    Construction(
        "target",
        lambda: TransformedTargetRegressor(pipe(tscale=StandardScaler(), inner=Ridge()), transformer=StandardScaler()),
        "value",
        [
            Slip(
                "inverse",
                "step differs",
                ("transformer_",),
                scaled(step("transformer_"), "scale_", 1.2),
                also=("link-function",),
            ),
            Slip("inner", "step differs", ("tscale",), scaled(step("regressor_", "tscale"), "scale_", 0.8, 2)),
        ],
    ),
    Construction(
        "neighbours",
        lambda: pipe(nearscale=StandardScaler(), knn=KNeighborsClassifier(5)),
        "three",
        [
            Slip("scaler", "step differs", ("nearscale",), scaled(step("nearscale"), "scale_", 2.0, 1)),
        ],
    ),
    Construction(
        "neighbour-mean",
        lambda: pipe(close=MinMaxScaler(), knr=KNeighborsRegressor(4)),
        "value",
        [
            Slip(
                "targets",
                "weights stale",
                ("knr",),
                lambda m: setattr(m.named_steps["knr"], "_y", m.named_steps["knr"]._y * 1.05),
            ),
        ],
    ),
    Construction(
        "process",
        lambda: pipe(gscale=StandardScaler(), gp=GaussianProcessRegressor(RBF(2.0) + WhiteKernel(0.1), optimizer=None)),
        "value",
        [
            Slip(
                "length",
                "attribute changed",
                ("gp", "kernel_"),
                lambda m: setattr(m.named_steps["gp"], "kernel_", RBF(1.6) + WhiteKernel(0.1)),
                also=("weight-corruption",),
            ),
            Slip("alpha", "weight edited", ("gp",), scaled(step("gp"), "alpha_", 0.9)),
        ],
    ),
    Construction(
        "bayes",
        lambda: pipe(flagger=Binarizer(threshold=4.0), bern=BernoulliNB()),
        "three",
        [
            Slip("prior", "weight edited", ("bern",), added(step("bern"), "class_log_prior_", 0.3, 1)),
            Slip(
                "binarizer", "step differs", ("flagger",), lambda m: setattr(m.named_steps["flagger"], "threshold", 3.0)
            ),
        ],
    ),
    Construction(
        "whitening",
        lambda: pipe(even=StandardScaler(), whiten4=PCA(4, whiten=True), lda=LinearDiscriminantAnalysis()),
        "three",
        [
            Slip(
                "whiten",
                "step differs",
                ("whiten4",),
                lambda m: setattr(m.named_steps["whiten4"], "whiten", False),
                also=("preprocessing-dropped", "model-part-dropped"),
            ),
            Slip("component", "step differs", ("whiten4",), scaled(step("whiten4"), "components_", -1.0, 1)),
        ],
    ),
    Construction(
        "power",
        lambda: pipe(yeo=PowerTransformer(), line=Ridge()),
        "value",
        [
            Slip("lambda", "step differs", ("yeo",), added(step("yeo"), "lambdas_", 0.2, 1)),
            Slip(
                "no-scale",
                "step left out",
                ("yeo", "_scaler"),
                identity(lambda m: m.named_steps["yeo"]._scaler, mean_=0.0),
                also=("preprocessing-differs",),
            ),
        ],
    ),
    Construction(
        "target-encoding",
        lambda: pipe(
            code=ColumnTransformer(
                [
                    ("townmean", TargetEncoder(cv=2, random_state=0), ["city", "plan"]),
                    ("rest", SimpleImputer(), MIXED[:4]),
                ]
            ),
            leaves=RandomForestRegressor(6, max_depth=4, random_state=0),
        ),
        "value",
        [
            Slip(
                "encoding",
                "step differs",
                ("townmean",),
                lambda m: m.named_steps["code"].named_transformers_["townmean"].encodings_[0].__imul__(1.4),
            ),
        ],
        mixed,
    ),
    Construction(
        "histogram",
        lambda: prepared(HistGradientBoostingRegressor(max_iter=10, max_depth=3, random_state=0)),
        "value",
        [
            Slip("scale", "step differs", ("stand",), scaled(step("prep", "nums", "stand"), "scale_", 1.4, 1)),
            Slip(
                "base",
                "part left out",
                ("verdict",),
                lambda m: setattr(
                    m.named_steps["verdict"], "_baseline_prediction", m.named_steps["verdict"]._baseline_prediction * 0
                ),
            ),
        ],
        mixed,
    ),
    Construction(
        "forest",
        lambda: pipe(robustclip=RobustScaler(), wood=RandomForestClassifier(8, max_depth=4, random_state=0)),
        "three",
        [
            Slip(
                "class-order",
                "class order",
                ("wood",),
                file=attribute_of("TreeEnsembleClassifier", "classlabels_strings", swapped),
                also=("label-mapping",),
            ),
            Slip("scaler", "step differs", ("robustclip",), scaled(step("robustclip"), "scale_", 1.5, 2)),
        ],
    ),
    Construction(
        "one-vs-rest",
        lambda: OneVsRestClassifier(pipe(ovrscale=StandardScaler(), ovr=LR())),
        "three",
        [
            Slip(
                "one",
                "weight edited",
                ("estimators_[1]",),
                scaled(lambda m: m.estimators_[1].named_steps["ovr"], "coef_", 1.4),
            ),
        ],
    ),
    Construction(
        "isolation",
        lambda: pipe(iscale=StandardScaler(), lonely=IsolationForest(n_estimators=10, random_state=0)),
        "value",
        [
            Slip("scaler", "step differs", ("iscale",), added(step("iscale"), "mean_", 8.0, 0)),
        ],
    ),
    Construction(
        "perceptron",
        lambda: pipe(pscale=StandardScaler(), mlp=MLPClassifier((12, 8), max_iter=300, random_state=0)),
        "three",
        [
            Slip("layer", "weight edited", ("mlp",), lambda m: m.named_steps["mlp"].coefs_[1].__imul__(0.9)),
            Slip(
                "activation",
                "attribute changed",
                ("mlp",),
                lambda m: setattr(m.named_steps["mlp"], "activation", "tanh"),
                also=("approximation",),
            ),
        ],
    ),
    Construction(
        "ordinal",
        lambda: pipe(
            ords=ColumnTransformer(
                [("codes", OrdinalEncoder(), ["city", "plan"]), ("gaps", SimpleImputer(strategy="mean"), MIXED[:4])]
            ),
            extra=ExtraTreesRegressor(8, max_depth=5, random_state=0),
        ),
        "value",
        [
            Slip(
                "categories",
                "step differs",
                ("codes",),
                swap_categories(step("ords", "codes")),
                also=("label-mapping", "unknown-category"),
            ),
        ],
        mixed,
    ),
    Construction(
        "quantile",
        lambda: pipe(
            uniform=QuantileTransformer(n_quantiles=20, random_state=0),
            bins=KBinsDiscretizer(5, encode="onehot-dense"),
            lin=Ridge(),
        ),
        "value",
        [
            Slip("bins", "step differs", ("bins",), lambda m: m.named_steps["bins"].bin_edges_[1].__iadd__(0.07)),
        ],
    ),
    Construction(
        "poisson",
        lambda: pipe(ratescale=StandardScaler(), events=PoissonRegressor()),
        "counts",
        [
            Slip("link", "link left out", ("events",), file=leave_out("Exp", 0)),
            Slip(
                "scaler",
                "step left out",
                ("ratescale",),
                identity(step("ratescale"), scale_=1.0),
                also=("preprocessing-differs",),
            ),
        ],
    ),
]
