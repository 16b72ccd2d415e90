"""Classifiers made of classifiers, where skl2onnx decides by something else than their members give.

It takes probabilities where members were asked for scores, one column for two, numbers for classes that have names, and
writes steps for the line of an isotonic calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from likewise.models.sklearn.functions import Writing


def one_against_rest(write: Writing) -> None:
    """The largest score wins; of several labels a row, each that is above zero."""
    step = write.step
    if hasattr(step.estimators_[0], "predict_proba"):
        write.as_registered(write.operator.type)
        return
    scores = write.beside([_of_second(write, member) for member in step.estimators_])
    if step.multilabel_:
        write.into(0, write("Cast", write("Greater", scores, 0.0), to=7))
        write.into(1, scores)
    elif len(step.estimators_) == 1:
        _second_wins_above(write, scores, 0.0)
    else:
        _largest_wins(write, scores)


def one_against_one(write: Writing) -> None:
    """Every pair of classes has a vote; how sure they are decides between as many votes."""
    step = write.step
    classes, pairs = len(step.classes_), [*combinations(range(len(step.classes_)), 2)]
    if len(step.estimators_) != len(pairs) or any(not hasattr(member, "classes_") for member in step.estimators_):
        write.as_registered(write.operator.type)
        return
    by_scores = [_method(member) == SCORES for member in step.estimators_]
    sure = write.beside([_of_second(write, member) for member in step.estimators_])
    second = write("Cast", write("Greater", sure, np.where(by_scores, 0.0, 0.5)), to=write.kind)
    for_first, for_second = np.zeros((2, len(pairs), classes))
    for place, (one, other) in enumerate(pairs):
        for_first[place, one] = for_second[place, other] = 1.0
    # A vote that the second does not get is one for the first.
    votes = write("Add", write("MatMul", second, for_second - for_first), for_first.sum(axis=0))
    sums = write("MatMul", sure, for_second - for_first)
    share = write("Div", sums, write("Mul", write("Add", write("Abs", sums), 1.0), 3.0))
    scores = write("Add", votes, share)
    if classes == 2:
        _second_wins_above(write, write("Gather", scores, np.array([1]), axis=1), 0.0 if by_scores[0] else 0.5)
    else:
        _largest_wins(write, scores)


def stack(write: Writing) -> None:
    """What the members say, as the last one was trained on it: of two classes the second, and scores as they are."""
    step = write.step
    if SCORES not in step.stack_method_:
        write.as_registered(write.operator.type)
        return
    members = [member for member in step.estimators_ if member != "drop"]
    said = [
        _of_member(write, member, method, len(step.classes_))
        for member, method in zip(members, step.stack_method_, strict=True)
    ]
    table = write.beside([*said, *([write.table()] if step.passthrough else [])])
    probabilities = write.inside(step.final_estimator_, write.variable(table, step.final_estimator_.n_features_in_))
    _largest_wins(write, probabilities)


def calibrated(write: Writing) -> None:
    """Every member's scores, each calibrated in its own way, on average."""
    step = write.step
    kinds = {type(calibrator).__name__ for member in step.calibrated_classifiers_ for calibrator in member.calibrators}
    if not kinds <= CALIBRATIONS.keys():
        write.as_registered(write.operator.type)
        return
    found = [_calibrated_member(write, member, len(step.classes_)) for member in step.calibrated_classifiers_]
    probabilities = write("Div", write("Sum", *found), float(len(found)))
    _largest_wins(write, probabilities)


def _calibrated_member(write: Writing, member: Any, classes: int) -> str:
    scores = _of_member(write, member.estimator, _method(member.estimator), classes)
    columns = []
    for place, calibrator in enumerate(member.calibrators):
        column = write("Gather", scores, np.array([place]), axis=1)
        columns.append(CALIBRATIONS[type(calibrator).__name__](write, column, calibrator))
    table = write.beside(columns)
    if classes == 2:
        return write.beside([write("Sub", 1.0, table), table])
    total = write("ReduceSum", table, np.array([1]), keepdims=1)
    nothing = write("Equal", total, 0.0)
    shares = write("Div", table, write("Where", nothing, 1.0, total))
    return write("Where", nothing, 1.0 / classes, shares)


def _along_a_line(write: Writing, scores: str, calibrator: Any) -> str:
    """Through points, level before the first and behind the last."""
    xs, ys = (np.asarray(points, dtype=np.float64) for points in (calibrator.X_thresholds_, calibrator.y_thresholds_))
    if len(xs) == 1:
        return write("Add", write("Mul", scores, 0.0), float(ys[0]))
    between = write("Min", write("Max", scores, float(xs[0])), float(xs[-1]))
    passed = write("Cast", write("Not", write("Less", between, xs[1:-1])), to=7)
    place = write("ReduceSum", passed, np.array([1]), keepdims=1)
    start, base = (write("Gather", points, place) for points in (xs[:-1], ys[:-1]))
    slope = write("Gather", np.diff(ys) / np.diff(xs), place)
    return write("Add", base, write("Mul", write("Sub", between, start), slope))


def _by_sigmoid(write: Writing, scores: str, calibrator: Any) -> str:
    shifted = write("Add", write("Mul", scores, float(calibrator.a_)), float(calibrator.b_))
    return write("Sigmoid", write("Neg", shifted))


CALIBRATIONS: dict[str, Callable[[Writing, str, Any], str]] = {
    "IsotonicRegression": _along_a_line,
    "_SigmoidCalibration": _by_sigmoid,
}

SCORES = "decision_function"


def _method(member: Any) -> str:
    """What scikit-learn asks a member, where it wants to know how sure it is."""
    return SCORES if hasattr(member, SCORES) else "predict_proba"


def _of_member(write: Writing, member: Any, method: str, classes: int) -> str:
    found = write.inside(member, raw=method == SCORES)
    # Those of the second of two classes, whether both are given or only these.
    return write("Gather", found, np.array([-1]), axis=1) if classes == 2 else found


def _of_second(write: Writing, member: Any) -> str:
    return _of_member(write, member, _method(member), 2)


def _largest_wins(write: Writing, scores: str) -> None:
    write.label_at(write("ArgMax", scores, axis=1, keepdims=0))
    write.into(1, scores)


def _second_wins_above(write: Writing, scores: str, threshold: float) -> None:
    """Of two classes, by the one column that the second has."""
    write.label_at(write("Reshape", write("Cast", write("Greater", scores, threshold), to=7), np.array([-1])))
    write.into(1, write.both_ways(scores))
