"""Small fitted models, their real exports, changes to these, and what an explanation of such a change must say."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import pandas as pd
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import data_only

OPSETS = {"": 18, "ai.onnx.ml": 3}
ROWS = 300

CAUSES = (
    "feature-order",
    "float32-input-cast",
    "input-layout",
    "input-type",
    "integer-overflow",
    "missing-value-handling",
    "preprocessing-dropped",
    "schema-mismatch",
    "unknown-category",
)
"""What is looked for where inputs are the subject: the faults of all families are scored together elsewhere."""


@cache
def _loans(seed):
    rng = np.random.default_rng(seed)
    city = rng.choice(np.array(["Rome", "Oslo", "Lima", "Bern"], dtype=object), ROWS)
    income, age = rng.lognormal(10, 1, ROWS), rng.integers(18, 90, ROWS).astype(float)
    score = np.log(income) + 1.5 * (city == "Rome") + age / 50 + rng.normal(0, 0.5, ROWS)
    return pd.DataFrame({"income": income, "age": age, "city": city}), (score > 11.5).astype(int)


def loans(seed=0):
    """Applicants with two numbers and a town, and whether they paid back."""
    frame, paid = _loans(seed)
    return frame.copy(), paid


def somewhere(frame, column, value, *, share=0.2, seed=1):
    """The same table with a value put into some rows of a column."""
    frame = frame.copy()
    frame.loc[np.random.default_rng(seed).random(len(frame)) < share, column] = value
    return frame


def pipeline(encoder=None, numbers=None, last=None):
    return Pipeline(
        [
            (
                "prep",
                ColumnTransformer(
                    [
                        ("num", StandardScaler() if numbers is None else numbers, ["income", "age"]),
                        ("cat", OneHotEncoder(handle_unknown="ignore") if encoder is None else encoder, ["city"]),
                    ]
                ),
            ),
            ("clf", LogisticRegression() if last is None else last),
        ]
    )


def exported(model, frame=None, types=None, opsets=OPSETS):
    """The real export; one input a column of the frame, or those in `types`."""
    if types is None:
        types = [
            (str(name), (FloatTensorType if frame[name].dtype.kind in "biuf" else StringTensorType)([None, 1]))
            for name in frame
        ]
    with warnings.catch_warnings():
        # The converter uses what numpy, onnx and scikit-learn call deprecated; that is not what is tested here.
        warnings.simplefilter("ignore")
        options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
        return to_onnx(model, initial_types=types, options=options, target_opset=opsets)


def matrix(width, double=False):
    return [("X", (DoubleTensorType if double else FloatTensorType)([None, width]))]


def before(model, name, *nodes, dtype=None, **constants):
    """The graph with nodes put between an input and what reads it: (operator, further inputs, attributes)."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    current, made = name, []
    for index, (operator, more, attributes) in enumerate(nodes):
        made.append(helper.make_node(operator, [current, *more], [f"{name}_{index}"], **attributes))
        current = f"{name}_{index}"
    for node in graph.node:
        node.input[:] = [current if given == name else given for given in node.input]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items())
    for place, node in enumerate(made):
        graph.node.insert(place, node)
    if dtype is not None:
        next(given for given in graph.input if given.name == name).type.tensor_type.elem_type = dtype
    return changed


def cast_to_float(model, name, dtype):
    """An input declared in another type, and cast to float inside."""
    return before(model, name, ("Cast", [], {"to": TensorProto.FLOAT}), dtype=dtype)


def with_attribute(model, operator, attribute, change):
    """The graph with one attribute of its first node of a kind changed in place."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = next(node for node in changed.graph.node if node.op_type == operator)
    change(next(found for found in node.attribute if found.name == attribute))
    return changed


def renamed(model, names):
    """The graph with inputs under other names."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for given in changed.graph.input:
        given.name = names.get(given.name, given.name)
    for node in changed.graph.node:
        node.input[:] = [names.get(given, given) for given in node.input]
    return changed


def explained(reference, candidate, data, cause, culprit, **options):
    """The first diagnosis, which must be of this cause and name this culprit first."""
    report = data_only.explain(reference, candidate, data, explain_budget=30, causes=CAUSES, **options)
    assert report.outcome != "PASS"
    assert report.diagnoses, report.explanation
    first = report.diagnoses[0]
    told = [(found.cause, found.culprit, found.explained_share) for found in report.diagnoses]
    assert first.cause == cause, told
    assert first.culprit == culprit or first.culprit.startswith(f"{culprit} ("), told
    return first
