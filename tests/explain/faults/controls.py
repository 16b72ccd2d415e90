"""Sound deployments, among them some that look suspicious: no explanation is wanted."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd

import likewise
from faults import models, nets
from faults.editing import Step, copied, followed, labelled_above, with_attributes
from faults.models import (
    cat,
    cat_converted,
    converted,
    folder,
    ill,
    light,
    light_converted,
    loans,
    measurements,
    numbered,
    recovery,
    reviews,
    rng,
    severity,
    standard,
    types_of,
    with_gaps,
)
from faults.precision import halved, quantized
from faults.registry import control


@control()
def logistic_regression():
    return models.logistic(), models.logistic_onnx(), measurements()


@control()
def mixed_table():
    """Gaps, and categories that the encoder has not seen."""
    frame = loans().assign(city=np.where(rng(6).random(len(loans())) < 0.1, "Tokyo", loans()["city"]))
    return models.loan_pipeline(), models.loan_onnx(), frame


@control()
def columns_of_the_data_in_another_order():
    """Inputs are fed by name, so the order of the table does not matter."""
    return models.loan_pipeline(), models.loan_onnx(), loans()[["grade", "age", "city", "balance", "income"]]


@control()
def forest():
    return models.forest(), models.forest_onnx(), measurements()


@control()
def forest_of_classes():
    return models.forest("classifier"), models.forest_onnx("classifier"), measurements()


@control()
def gradient_boosting():
    return models.boosted(), models.boosted_onnx(), measurements()


@control()
def histogram_boosting_with_gaps():
    from sklearn.ensemble import HistGradientBoostingClassifier

    frame = with_gaps(measurements(), "age", "dose")
    model = HistGradientBoostingClassifier(max_iter=8, random_state=0).fit(frame, severity(measurements()))
    return model, converted(model, frame), frame


@control()
def several_targets():
    from sklearn.ensemble import RandomForestRegressor

    frame = measurements()
    model = RandomForestRegressor(5, max_depth=4, random_state=0).fit(frame, np.c_[recovery(frame), standard(frame)])
    return model, converted(model, frame), frame


@control()
def xgboost_binary():
    return models.xgb(), models.xgb_onnx(), numbered(measurements())


@control()
def xgboost_three_classes():
    return models.xgb("three"), models.xgb_onnx("three"), numbered(measurements())


@control()
def xgboost_with_gaps():
    data = numbered(with_gaps(measurements(), "weight", "dose"))
    return models.xgb("regression", True), models.xgb_onnx("regression", True), data


@control()
def lightgbm_regression():
    return models.light_plain(), models.light_plain_onnx(), measurements()


@control()
def lightgbm_categories():
    """Category splits, gaps and a category that was not there in training."""
    draw = rng(9)
    frame = pd.DataFrame(
        {"region": draw.integers(0, 12, 300).astype(float), "size": models.single(draw.normal(size=300))}
    )
    target = 4.0 * frame["region"].isin([1, 4, 7, 9]) + frame["size"]
    model = light(frame, np.asarray(target), fit={"categorical_feature": ["region"]})
    data = frame.copy()
    data.loc[::17, "region"], data.loc[5::19, "region"] = 40.0, np.nan
    return model, light_converted(model, 2), data


@control()
def catboost_regression():
    frame = measurements()
    model = cat(frame, recovery(frame))
    return model, cat_converted(model), frame


@control()
def catboost_named_classes():
    frame = measurements()
    model = cat(frame, models.words(severity(frame), "mild", "severe", "worst"), classifier=True)
    return model, cat_converted(model), frame


@control()
def network_of_sklearn():
    return models.sk_network(), models.sk_network_onnx(), measurements()


@control()
def text():
    texts, liked = reviews()
    model = models.text_model(texts, liked)
    return model, models.text_converted(model), {"text": texts}


@control()
def text_beyond_ascii():
    """With a pattern that knows all letters."""
    texts, liked = reviews(160, ("café", "naïve", "über", "straße", "данные"))
    model = models.text_model(texts, liked)
    return model, models.text_converted(model, tokenexp=r"[\p{L}\p{N}_]{2,}"), {"text": texts}


@control()
def network_of_torch():
    return nets.perceptron(), nets.perceptron_onnx(), nets.vectors()


@control()
def images():
    return nets.image(), nets.image_onnx(), nets.pictures()


@control()
def two_heads():
    return nets.twins(), nets.twins_onnx(), nets.vectors()


@control()
def clusters():
    from sklearn.cluster import KMeans

    frame = pd.DataFrame(standard(measurements()), columns=models.FEATURES)
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    return model, converted(model, frame), frame


@control()
def outliers():
    from sklearn.ensemble import IsolationForest

    frame = measurements()
    model = IsolationForest(n_estimators=15, random_state=0, contamination=0.1).fit(frame)
    return model, converted(model, frame), frame


@control()
def neighbours():
    from sklearn.neighbors import KNeighborsClassifier

    frame = measurements()
    model = KNeighborsClassifier(5).fit(frame.iloc[:120], severity(frame)[:120])
    return model, converted(model, frame), frame


@control()
def support_vectors():
    from sklearn.svm import SVR

    frame = pd.DataFrame(standard(measurements()), columns=models.FEATURES)
    model = SVR().fit(frame, recovery(measurements()))
    return model, converted(model, frame), frame


@control()
def times_in_double_precision():
    """Timestamps need more than float32, and the export takes float64."""
    from skl2onnx.common.data_types import DoubleTensorType
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = pd.DataFrame({"when": 1.7e9 + rng(1).uniform(0, 3e4, 300), "load": rng(2).normal(size=300)})
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame, np.asarray((frame["when"] - 1.7e9) / 3e3))
    return model, converted(model, frame, types=[("X", DoubleTensorType([None, 2]))]), frame


@control()
def target_in_the_millions():
    """Absolute differences are large, relative ones are not; and every input loses digits."""
    from sklearn.linear_model import Ridge

    frame = pd.DataFrame(standard(measurements()) + 0.1, columns=models.FEATURES)
    model = Ridge().fit(frame, 1e7 + 1e5 * recovery(measurements()))
    return model, converted(model, frame), frame


@control()
def classes_listed_backwards():
    """The export lists its classes in another order, and its columns with them."""

    def backwards(old):
        half = len(old) // 2
        return [*old[half:], *old[:half]]

    proto = with_attributes(
        models.logistic_onnx(),
        "LinearClassifier",
        classlabels_strings=lambda old: list(reversed(old)),
        coefficients=backwards,
        intercepts=backwards,
    )
    return models.logistic(), proto, measurements()


@control()
def dictionaries_for_probabilities():
    """One dictionary a row, as converters do by default."""
    model = models.logistic(3, True)
    return model, converted(model, measurements(), options={id(model): {"zipmap": True}}), measurements()


@control()
def labels_that_tie():
    """Labels change where the classes are equally likely; that is within noise."""
    from sklearn.neighbors import KNeighborsClassifier

    frame = measurements()
    model = KNeighborsClassifier(4).fit(frame.iloc[:150], ill(frame)[:150])
    return model, labelled_above(converted(model, frame), 0.4999), frame


@control(preset="quantized")
def integers_within_their_limits():
    """INT8, held to the limits of INT8."""
    return models.sk_network(), quantized(models.sk_network_onnx()), measurements()


@control(abs_tol=0.002)
def half_precision_within_its_limits():
    return nets.perceptron(), halved(nets.perceptron_onnx()), nets.vectors()


@control(preset="standard")
def bias_within_a_loose_limit():
    """Every probability is off by a little less than the limit."""
    proto = followed(models.forest_onnx("classifier"), "probabilities", Step("Add", np.float32([[0.009, -0.009, 0.0]])))
    return models.forest("classifier"), proto, measurements()


@control()
def hash_of_another_file():
    """The export says that it was made from another file; its answers are right all the same."""
    import joblib

    reference, candidate = folder() / "sound.joblib", folder() / "sound.onnx"
    joblib.dump(models.forest(), reference)
    proto = copied(models.forest_onnx())
    proto.metadata_props.add(key="likewise.reference_sha256", value="0" * 64)
    onnx.save(proto, candidate)
    return reference, candidate, measurements()


@control()
def recorded_reference():
    path = folder() / "sound.parquet"
    likewise.record(models.logistic(), measurements(), path)
    return path, models.logistic_onnx(), measurements()


@control()
def one_answer_to_everything():
    """Both models have learnt nothing and say so."""
    from sklearn.linear_model import Lasso

    frame = measurements()
    model = Lasso(alpha=1e6).fit(frame, recovery(frame))
    return model, converted(model, frame), frame


@control()
def whole_numbers_as_floats():
    """Small whole numbers survive any cast."""
    from sklearn.tree import DecisionTreeRegressor

    frame = pd.DataFrame({"visits": rng(4).integers(0, 90, 300), "errors": rng(5).integers(0, 9, 300)})
    model = DecisionTreeRegressor(max_depth=6, random_state=0).fit(frame, np.asarray(frame["visits"] % 7 * 1.0))
    return model, converted(model, frame), frame


@control()
def module_in_training_mode():
    """The module was left in training mode; its export was made in eval mode."""
    import torch
    from torch import nn

    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)).eval()
    proto = nets.traced(module, nets.vectors()["x"])
    return module.train(), proto, nets.vectors()


@control()
def one_column_apart():
    """A mixed pipeline with a column that nobody uses."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = loans()
    columns = ColumnTransformer([("city", OneHotEncoder(), ["city"]), ("rest", "passthrough", ["age"])])
    model = Pipeline([("prep", columns), ("line", Ridge())]).fit(frame, np.asarray(frame["age"] / 9.0))
    return model, converted(model, frame, types=types_of(frame)), frame
