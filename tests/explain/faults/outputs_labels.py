"""Labels: their values, and the rule by which they are picked."""

from __future__ import annotations

import numpy as np
import pandas as pd
from onnx import TensorProto

import likewise
from faults import models
from faults.editing import Step, followed, labelled_above, only_outputs
from faults.models import converted, folder, ill, measurements, recovery, severity
from faults.registry import fault

LABELS = ["label"]


@fault("label-mapping", culprit=LABELS)
def positions_for_labels():
    """Labels are positions in the list of classes instead of the classes."""
    names = ["mild", "severe", "worst"]
    index = Step("LabelEncoder", domain="ai.onnx.ml", keys_strings=names, values_int64s=[0, 1, 2])
    proto = followed(models.logistic_onnx(3, True), "label", index, kind=TensorProto.INT64, shape=[None])
    return models.logistic(3, True), only_outputs(proto, "label"), measurements()


@fault("label-mapping", culprit=LABELS)
def labels_from_zero():
    """Classes 1, 2, 3 are answered as 0, 1, 2."""
    from sklearn.ensemble import RandomForestClassifier

    frame = measurements()
    model = RandomForestClassifier(6, max_depth=4, random_state=0).fit(frame, severity(frame) + 1)
    return model, followed(converted(model, frame), "label", Step("Sub", np.array(1))), frame


@fault("label-mapping", culprit=LABELS)
def labels_in_capitals():
    """Other spelling of the same classes."""
    capitals = Step(
        "LabelEncoder", domain="ai.onnx.ml", keys_strings=["healthy", "ill"], values_strings=["HEALTHY", "ILL"]
    )
    proto = followed(models.logistic_onnx(), "label", capitals)
    return models.logistic(), only_outputs(proto, "label"), measurements()


@fault("label-mapping", culprit=LABELS, natural="CatBoost writes 0 and 1 for two classes of other numbers")
def catboost_classes_one_and_two():
    """A model trained on 1 and 2 answers 0 and 1."""
    frame = measurements()
    model = models.cat(frame, ill(frame) + 1, classifier=True)
    return model, models.cat_converted(model), frame


@fault("decision-threshold", culprit=LABELS)
def threshold_of_a_third():
    """Labels are given above a probability of 0.3."""
    return models.logistic(2, False), labelled_above(models.logistic_onnx(2, False), 0.3), measurements()


@fault("decision-threshold", culprit=LABELS, natural="CatBoost leaves the probability threshold out of the file")
def catboost_threshold():
    """The model decides at 0.3, its export at 0.5."""
    frame = measurements()
    model = models.cat(frame, ill(frame), classifier=True)
    model.set_probability_threshold(0.3)
    return model, models.cat_converted(model), frame


@fault(
    "decision-threshold",
    "label-rule",
    culprit=LABELS,
    natural="skl2onnx converts TunedThresholdClassifierCV without its threshold",
)
def tuned_threshold():
    """The threshold that was tuned is not in the export."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import TunedThresholdClassifierCV

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    rare = (recovery(measurements()) > 13.5).astype(int)
    model = TunedThresholdClassifierCV(LogisticRegression(), cv=2, thresholds=20, random_state=0).fit(frame, rare)
    return model, converted(model, frame), frame


@fault(
    "label-rule",
    "tie-breaking",
    culprit=LABELS,
    natural="skl2onnx picks labels by probability where modified_huber of SGDClassifier picks by score",
)
def labels_by_probability():
    """Probabilities tie where the scores that decide do not."""
    from sklearn.linear_model import SGDClassifier

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = SGDClassifier(loss="modified_huber", random_state=0).fit(frame, severity(measurements()))
    return model, converted(model, frame), frame


@fault("label-rule", "decision-threshold", culprit=LABELS)
def labels_by_first_above():
    """The last class is given wherever its probability is above a fifth, not where it is the largest."""
    proto = labelled_above(models.forest_onnx("classifier"), 0.2, column=2, yes=2)
    return models.forest("classifier"), proto, measurements()


@fault("tie-breaking", "label-rule", culprit=LABELS, limits={"label_flips": 0})
def last_of_equal_classes():
    """Of classes with equal probability the last is given instead of the first."""
    from sklearn.neighbors import KNeighborsClassifier

    frame = measurements()
    model = KNeighborsClassifier(4).fit(frame.iloc[:150], ill(frame)[:150])
    return model, labelled_above(converted(model, frame), 0.4999), frame


@fault("label-mapping", culprit=LABELS)
def positions_against_recorded_answers():
    """Only recorded answers are there; the candidate gives positions for the labels, and probabilities."""
    frame = measurements()
    model = models.logistic(3, True)
    path = folder() / "positions.parquet"

    def answer(rows):
        return {"label": model.predict(rows).astype(object)}

    likewise.record(answer, frame, path)
    names = ["mild", "severe", "worst"]
    index = Step("LabelEncoder", domain="ai.onnx.ml", keys_strings=names, values_int64s=[0, 1, 2])
    proto = followed(models.logistic_onnx(3, True), "label", index, kind=TensorProto.INT64, shape=[None])
    return path, only_outputs(proto, "label"), frame
