"""A step of a pipeline that is missing in the export, or does something else there, is named with its column."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from onnx import ModelProto
from piped import NUMBERS, ask_only, changed, diagnoses, exported, fitted, people, step, strangers, top
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)

import data_only

MODELS = {
    "linear": LogisticRegression(max_iter=500),
    "forest": RandomForestClassifier(10, random_state=0),
    "boosted": HistGradientBoostingClassifier(max_iter=5),
}


@pytest.fixture(autouse=True)
def _only_steps_are_suspected(monkeypatch):
    ask_only(monkeypatch, "steps", "tokenizer")


@pytest.fixture(scope="module")
def models():
    return {name: fitted(model) for name, model in MODELS.items()}


def without_scaler(model):
    step(model, "prep__num").steps.pop()


def with_other_mean(model):
    step(model, "prep__num__scaler").mean_[1] += 20


def with_other_fill(model):
    step(model, "prep__num__imputer").statistics_[2] = 0


def with_cities_exchanged(model):
    categories = step(model, "prep__cat").categories_
    categories[0] = categories[0][[3, 1, 2, 0]]


PLANTED = {
    "left out": (without_scaler, {"preprocessing-dropped"}, ["scaler", "prep__num__scaler"]),
    "other mean": (with_other_mean, {"preprocessing-differs"}, ["prep__num__scaler", "income"]),
    "other fill": (
        with_other_fill,
        {"missing-value-handling", "preprocessing-differs"},
        ["prep__num__imputer", "balance"],
    ),
    "exchanged": (with_cities_exchanged, {"preprocessing-differs"}, ["prep__cat", "city"]),
}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("boosted", "other fill"), *((kind, fault) for kind in ("linear", "forest") for fault in PLANTED)],
)
def test_a_planted_fault_is_named(models, kind, fault):
    change, causes, names = PLANTED[fault]
    candidate = exported(changed(models[kind], change), people()[0])
    best = top(models[kind], candidate, people()[0])
    assert best.cause in causes
    assert all(name in best.culprit for name in names)
    assert best.explained_share > 0.6


def test_a_faithful_export_needs_no_explanation(models):
    report = data_only.explain(models["linear"], exported(models["linear"], people()[0]), strangers())
    assert report.passed
    assert not report.diagnoses


@pytest.mark.parametrize(
    ("encoder", "change"),
    [
        (
            OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
            lambda model: setattr(step(model, "prep__cat"), "unknown_value", 7),
        ),
        (TargetEncoder(), lambda model: setattr(step(model, "prep__cat"), "target_mean_", 0.95)),
    ],
    ids=["ordinal", "target"],
)
def test_a_category_that_was_never_seen_is_named_with_its_column(encoder, change):
    model = fitted(words=encoder)
    best = top(model, exported(changed(model, change), people()[0]), strangers())
    assert best.cause == "unknown-category"
    assert "city" in best.culprit
    assert "prep__cat" in best.culprit


@pytest.mark.parametrize(
    "numeric",
    [
        KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"),
        PowerTransformer(),
        QuantileTransformer(n_quantiles=30),
        MinMaxScaler(),
        PCA(3),
        Normalizer(),
    ],
    ids=lambda transformer: type(transformer).__name__,
)
def test_any_step_of_one_width_is_missed_when_it_is_left_out(numeric):
    model = fitted(numbers=Pipeline([("imputer", SimpleImputer()), ("shape", numeric)]))
    best = top(model, exported(changed(model, without_scaler), people()[0]), people()[0])
    assert (best.cause, best.explained_share) == ("preprocessing-dropped", 1.0)
    assert best.culprit == "shape (step 'prep__num__shape')"


@pytest.mark.parametrize(
    "numeric",
    [KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"), PCA(2)],
    ids=["bins", "pca"],
)
def test_a_step_that_was_fitted_again_is_named(numeric):
    model = fitted(numbers=Pipeline([("imputer", SimpleImputer()), ("shape", numeric)]))
    again = people()[0][NUMBERS].iloc[:60].fillna(1.0) * 1.3
    other = changed(model, lambda copied: step(copied, "prep__num__shape").fit(again))
    best = top(model, exported(other, people()[0]), people()[0])
    assert best.cause == "preprocessing-differs"
    assert "prep__num__shape" in best.culprit


def test_a_scaler_that_is_applied_twice_is_told():
    frame = people()[0][NUMBERS].fillna(0).to_numpy()
    model = Pipeline([("scaler", StandardScaler()), ("clf", Ridge())]).fit(frame, frame[:, 0])
    twice = changed(model, lambda copied: copied.steps.insert(1, ("again", deepcopy(copied.steps[0][1]))))
    best = top(model, exported(twice), {"X": frame})
    assert best.cause == "preprocessing-differs"
    assert best.culprit == "scaler (step 'scaler')"
    assert "twice" in best.evidence


def test_a_whole_preprocessing_that_is_left_out_is_named_step_by_step():
    frame, label = people()[0][NUMBERS].fillna(0).to_numpy(), people()[1]
    model = Pipeline([("scaler", StandardScaler()), ("rotation", PCA()), ("clf", LogisticRegression())])
    model.fit(frame, label)
    best = top(model, exported(model[-1]), {"X": frame})
    assert best.cause == "preprocessing-dropped"
    assert best.culprit == "scaler, rotation (steps 'scaler', 'rotation')"


def test_missing_values_that_a_converter_forgets_are_named():
    """PowerTransformer keeps gaps; its conversion turns them into zeros."""
    frame, label = people()
    steps = [("power", PowerTransformer()), ("imputer", SimpleImputer()), ("clf", LogisticRegression())]
    model = Pipeline(steps).fit(frame[NUMBERS].to_numpy(), label)
    best = top(model, exported(model), {"X": frame[NUMBERS].to_numpy()})
    assert best.cause == "missing-value-handling"
    assert "X[1], X[2]" in best.culprit
    assert "X[0]" not in best.culprit


def test_the_indicator_columns_that_a_converter_forgets_are_named():
    frame, label = people()
    model = Pipeline([("imputer", SimpleImputer(add_indicator=True)), ("clf", LogisticRegression(max_iter=500))])
    model.fit(frame[NUMBERS].to_numpy(), label)
    best = top(model, exported(model), {"X": frame[NUMBERS].to_numpy()})
    assert best.cause == "missing-value-handling"
    assert "3 of the 5 columns" in best.evidence


def test_a_column_of_a_step_that_the_model_of_the_export_has_no_room_for_is_missed():
    """Rare categories are one more column; written by hand without it, the model has a coefficient less as well."""
    frame, label = people()
    known = ["Berlin", "Paris", "Rome"]

    def encoded(**options):
        return ColumnTransformer(
            [("words", OneHotEncoder(sparse_output=False, **options), ["city"])], remainder="passthrough"
        )

    frame = frame[["city", "age"]]
    model = make_pipeline(encoded(min_frequency=30, handle_unknown="infrequent_if_exist"), LogisticRegression())
    model.fit(frame, label)
    other = make_pipeline(encoded(categories=[known], handle_unknown="ignore").fit(frame), deepcopy(model[1]))
    other[1].coef_, other[1].n_features_in_ = np.delete(other[1].coef_, 3, axis=1), 4
    best = top(model, exported(other, frame), frame)
    assert (best.cause, best.path, best.explained_share) == ("preprocessing-differs", "columntransformer__words", 1.0)
    assert "has 3 of the 4 columns" in best.evidence


def test_missing_text_that_an_encoder_learned_is_not_found_by_the_export():
    frame, label = people()
    frame = frame.copy()
    frame.loc[frame.index[::9], "city"] = None
    model = fitted(words=OneHotEncoder(handle_unknown="ignore")).fit(frame, label)
    best = top(model, exported(model, frame), frame)
    assert best.cause == "missing-value-handling"
    assert "city" in best.culprit


def test_branches_that_are_joined_in_another_order_are_told(models):
    graph = ModelProto()
    graph.CopyFrom(exported(models["linear"], people()[0]))
    joining = [node for node in graph.graph.node if node.op_type == "Concat"][-1]
    joining.input[0], joining.input[1] = joining.input[1], joining.input[0]
    best = top(models["linear"], graph, people()[0])
    assert best.cause == "feature-order"
    assert "prep" in best.culprit


def test_two_branches_at_fault_are_both_named(models):
    def both(model):
        with_other_mean(model)
        with_cities_exchanged(model)

    best = top(models["linear"], exported(changed(models["linear"], both), people()[0]), people()[0])
    assert best.cause == "preprocessing-differs"
    assert all(name in best.culprit for name in ("prep__num__scaler", "prep__cat", "income", "city"))


@pytest.mark.parametrize("shape", ["search", "union", "transformer", "frames"])
def test_steps_are_found_in_other_containers(shape):
    frame, label = people()
    frame = frame[NUMBERS].fillna(0)
    data = frame if shape == "frames" else {"X": frame.to_numpy()}
    table = frame if shape == "frames" else frame.to_numpy()
    pipeline = Pipeline([("scaler", StandardScaler()), ("clf", LogisticRegression())])
    if shape == "search":
        model = GridSearchCV(pipeline, {"clf__C": [0.5, 1]}, cv=2).fit(table, label)
        inner, path = model.best_estimator_, "scaler"
    elif shape == "union":
        union = FeatureUnion([("scaler", StandardScaler()), ("pca", PCA(2))])
        model = inner = Pipeline([("union", union), ("clf", LogisticRegression())]).fit(table, label)
        path = "union__scaler"
    elif shape == "transformer":
        model = inner = Pipeline([("scaler", StandardScaler()), ("pca", PCA(2))]).fit(table)
        path = "scaler"
    else:
        model = inner = pipeline.set_output(transform="pandas").fit(table, label)
        path = "scaler"

    def shift(copied):
        scaler = copied[0].transformer_list[0][1] if shape == "union" else copied[0]
        scaler.mean_[2] += 30

    best = top(model, exported(changed(inner, shift)), data)
    assert best.cause == "preprocessing-differs"
    assert path in best.culprit
    assert ("balance" if shape == "frames" else "2") in best.culprit


def test_what_is_not_a_matter_of_steps_is_left_to_others(models):
    """The model behind the steps is wrong."""
    other = changed(models["linear"], lambda copied: copied[-1].coef_.__imul__(1.5))
    assert diagnoses(models["linear"], exported(other, people()[0]), people()[0]) == ()


def test_values_at_the_edge_of_a_bin_are_a_matter_of_rounding():
    random = np.random.default_rng(0)
    table = np.column_stack([np.round(random.random(240), 1), random.normal(size=240)])
    bins = KBinsDiscretizer(10, encode="ordinal", strategy="uniform")
    model = Pipeline([("bins", bins), ("clf", Ridge())]).fit(table, table.sum(axis=1))
    assert diagnoses(model, exported(model), {"X": table}) == ()


def test_numbers_that_lose_their_fractions_on_the_way_in_are_not_the_fault_of_a_step():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import Int64TensorType

    table = people()[0][NUMBERS].fillna(0).to_numpy()
    model = Pipeline([("scaler", StandardScaler()), ("clf", Ridge())]).fit(table, table[:, 1])
    candidate = to_onnx(model, initial_types=[("X", Int64TensorType([None, 3]))], target_opset=18)
    assert diagnoses(model, candidate, {"X": table}) == ()


def test_columns_that_are_exchanged_on_the_way_in_are_not_the_fault_of_a_step(models):
    graph = ModelProto()
    graph.CopyFrom(exported(models["linear"], people()[0]))
    first = next(node for node in graph.graph.node if node.op_type == "Concat")
    first.input[0], first.input[2] = first.input[2], first.input[0]
    assert diagnoses(models["linear"], graph, people()[0]) == ()


def test_a_reference_without_steps_is_not_suspected():
    table = people()[0][NUMBERS].fillna(0).to_numpy()
    model = Pipeline([("scaler", StandardScaler()), ("clf", Ridge())]).fit(table, table[:, 1])
    assert diagnoses(lambda X: model.predict(X), exported(model[-1]), {"X": table}) == ()


def test_a_single_failing_row_is_enough(models):
    row = people()[0].iloc[[0]].assign(balance=np.nan)
    best = top(models["linear"], exported(changed(models["linear"], with_other_fill), people()[0]), row)
    assert best.cause == "missing-value-handling"
    assert "prep__num__imputer" in best.culprit


def test_a_scaler_is_missed_also_where_there_is_no_graph_to_look_into():
    """Most answers are 0 or 1 then, as after many another change; given scaled columns, the candidate agrees."""
    frame, label = people()
    frame = frame[NUMBERS].fillna(0) * 50
    model = Pipeline([("scaler", StandardScaler()), ("clf", LogisticRegression())]).fit(frame, label)
    best = top(model, lambda table: model[-1].predict_proba(table.to_numpy()), frame)
    assert (best.cause, best.culprit) == ("preprocessing-dropped", "scaler (step 'scaler')")
