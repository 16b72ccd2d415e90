"""Forests and boosters: what is made of the answers of their trees."""

from __future__ import annotations

import numpy as np

from faults.models import (
    cat,
    cat_converted,
    converted,
    ill,
    light,
    light_converted,
    measurements,
    numbered,
    recovery,
    severity,
    standard,
    xgb_converted,
)
from faults.registry import fault

VALUES = ["value", "variable"]
PROBABILITIES = ["probabilities"]
ENSEMBLE = ["trees", "ensemble", "forest"]


@fault("aggregation", culprit=[*VALUES, *ENSEMBLE], natural="onnxmltools does not divide by the number of trees")
def lightgbm_forest():
    """LightGBM in the mode of a random forest: trees are added up instead of averaged."""
    frame = measurements()
    model = light(frame, recovery(frame), boosting_type="rf", bagging_freq=1, bagging_fraction=0.7)
    return model, light_converted(model), frame


@fault(
    "aggregation",
    "output-mapping",
    "wrong-wiring",
    culprit=[*VALUES, *ENSEMBLE, "target"],
    natural="onnxmltools adds the trees of all targets of XGBoost to the first",
)
def several_targets():
    """A booster with three targets answers with one sum."""
    import xgboost

    frame = numbered(measurements())
    z = standard(measurements())
    targets = np.c_[recovery(measurements()), 3 * z[:, 0], z[:, 1] ** 2]
    model = xgboost.XGBRegressor(n_estimators=8, max_depth=3, n_jobs=1).fit(frame, targets)
    return model, xgb_converted(model), frame


@fault("link-function", culprit=PROBABILITIES, natural="onnxmltools writes a softmax for LightGBM's multiclassova")
def lightgbm_one_against_all():
    """A softmax in the place of a sigmoid for each class."""
    frame = measurements()
    model = light(frame, severity(frame), classifier=True, objective="multiclassova")
    return model, light_converted(model), frame


@fault("link-function", culprit=PROBABILITIES, natural="onnxmltools takes the factor of LightGBM's sigmoid for 1")
def lightgbm_steep_sigmoid():
    """The model was trained with sigmoid=2."""
    frame = measurements()
    model = light(frame, ill(frame), classifier=True, sigmoid=2.0)
    return model, light_converted(model), frame


@fault("link-function", culprit=VALUES, natural="onnxmltools leaves out the square of LightGBM's reg_sqrt")
def lightgbm_square_root():
    """Trained on the square root of the target."""
    frame = measurements()
    model = light(frame, recovery(frame) * 10, reg_sqrt=True)
    return model, light_converted(model), frame


@fault("link-function", culprit=VALUES, natural="onnxmltools leaves out the sigmoid of reg:logistic")
def xgboost_logistic_regression():
    """A regression of shares without its sigmoid."""
    import xgboost

    frame = numbered(measurements())
    shares = 1 / (1 + np.exp(-(recovery(measurements()) - 10) / 2))
    model = xgboost.XGBRegressor(objective="reg:logistic", n_estimators=10, max_depth=3, n_jobs=1).fit(frame, shares)
    return model, xgb_converted(model), frame


@fault("link-function", culprit=VALUES, natural="onnxmltools leaves out the exponent of survival:cox")
def xgboost_hazards():
    """Hazard ratios without their exponent."""
    import xgboost

    frame = numbered(measurements())
    model = xgboost.XGBRegressor(objective="survival:cox", n_estimators=10, max_depth=3, n_jobs=1)
    return model.fit(frame, np.abs(recovery(measurements())) + 0.1), xgb_converted(model), frame


@fault("link-function", culprit=VALUES, natural="skl2onnx leaves out the exponent of loss='poisson'")
def histogram_counts():
    """Counts by HistGradientBoostingRegressor without their exponent."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame = measurements()
    model = HistGradientBoostingRegressor(max_iter=10, loss="poisson", random_state=0)
    model.fit(frame, np.abs(recovery(frame)).round())
    return model, converted(model, frame), frame


@fault("link-function", culprit=VALUES, natural="CatBoost leaves out the exponent of Poisson")
def catboost_counts():
    """Counts by CatBoost without their exponent."""
    frame = measurements()
    model = cat(frame, np.abs(recovery(frame)).round(), loss_function="Poisson")
    return model, cat_converted(model), frame


@fault("link-function", culprit=PROBABILITIES, natural="CatBoost writes a softmax for MultiClassOneVsAll")
def catboost_one_against_all():
    """A softmax in the place of a sigmoid for each class."""
    frame = measurements()
    model = cat(frame, severity(frame), classifier=True, loss_function="MultiClassOneVsAll")
    return model, cat_converted(model), frame
