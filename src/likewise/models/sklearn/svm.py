"""Support vector machines in plain operators, which keep float64 where ONNX's own have float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from likewise.errors import ModelError
from likewise.models.sklearn.functions import Writing


def _dense(array: Any) -> Any:
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array, dtype=np.float64)


def _kernel(write: Writing) -> str:
    """The kernel of every row with every support vector."""
    step, table = write.step, write.table()
    vectors = _dense(step.support_vectors_)
    gamma, offset, degree = float(step._gamma), float(step.coef0), float(step.degree)
    if step.kernel == "rbf":
        # Around their middle, where the squares are small and little is lost between them.
        middle = vectors.mean(axis=0)
        rows, centred = write("Sub", table, middle), vectors - middle
        square = write("ReduceSum", write("Mul", rows, rows), np.array([1]), keepdims=1)
        product = write("MatMul", rows, (-2 * centred).T.copy())
        distance = write("Add", write("Add", square, (centred**2).sum(axis=1)), product)
        return write("Exp", write("Mul", distance, -gamma))
    product = write("MatMul", table, vectors.T.copy())
    if step.kernel == "linear":
        return product
    scaled = write("Add", write("Mul", product, gamma), offset)
    if step.kernel == "poly":
        return write("Pow", scaled, degree)
    if step.kernel == "sigmoid":
        return write("Tanh", scaled)
    raise ModelError(
        f"the kernel {step.kernel!r} of {type(step).__name__} is not one that ONNX has",
        remedy="Use one of linear, poly, rbf, sigmoid",
    )


def regressor(write: Writing) -> None:
    step = write.step
    kernel = _kernel(write)
    found = write("Add", write("MatMul", kernel, _dense(step.dual_coef_).T.copy()), step.intercept_.astype(np.float64))
    if len(write.operator.outputs) == 1:
        write.into(0, found)
        return
    # An outlier detector says on which side a row lies, and how far.
    side = write("Where", write("Greater", found, 0.0), np.array([[1]]), np.array([[-1]]))
    write.into(0, side)
    write.into(1, found)


def as_scikit_learn_shows_it(write: Writing) -> None:
    """The operator of ONNX, which gives the scores of two classes as libsvm has them: with the other sign."""
    from skl2onnx.common._registration import get_converter

    registered = get_converter(write.operator.type)
    if len(write.step.classes_) > 2 or len(getattr(write.step, "_probA", ())) or write.raw:
        write.as_registered(write.operator.type)
    else:
        write.into(1, write("Neg", write.made_by(registered, 1)))


def classifier(write: Writing) -> None:
    """One against one, as libsvm does it: each pair of classes has a score, and a vote."""
    step = write.step
    classes = len(step.classes_)
    if len(getattr(step, "_probA", ())) or getattr(step, "decision_function_shape", "ovr") != "ovr":
        write.as_registered("SklearnSVC")
        return
    kernel = _kernel(write)
    pairs = [(first, second) for first in range(classes) for second in range(first + 1, classes)]
    weights = np.zeros((len(step.support_vectors_), len(pairs)))
    ends = np.cumsum(step.n_support_)
    dual = _dense(step._dual_coef_)
    for column, (first, second) in enumerate(pairs):
        for one, other in ((first, second), (second, first)):
            rows = slice(ends[one] - step.n_support_[one], ends[one])
            weights[rows, column] = dual[other - 1 if other > one else other, rows]
    # As libsvm has them: scikit-learn shows those of two classes with the other sign.
    decision = write("Add", write("MatMul", kernel, weights), step._intercept_.astype(np.float64))
    votes = write("Cast", write("Greater", decision, 0.0), to=write.kind)
    wins = np.zeros((len(pairs), classes))
    for column, (first, second) in enumerate(pairs):
        wins[column, first], wins[column, second] = 1.0, -1.0
    counted = write("Add", write("MatMul", votes, wins), np.array([float(place) for place in range(classes)]))
    write.label_at(write("ArgMax", counted, axis=1, keepdims=0))
    if classes == 2:
        write.into(1, write.both_ways(write("Neg", decision)))
        return
    sums = write("MatMul", decision, wins)
    confidence = write("Div", sums, write("Mul", write("Add", write("Abs", sums), 1.0), 3.0))
    write.into(1, write("Add", counted, confidence))
