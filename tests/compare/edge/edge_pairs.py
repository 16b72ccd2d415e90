"""Models and faithful exports of them, small enough to fit in a moment, and graphs changed by hand."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import helper, numpy_helper

import data_only
from likewise.compare.variations import edge

ROWS = 240


def table(seed: int = 0) -> pd.DataFrame:
    """Two numbers, a whole number and a text, as pandas reads them."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "income": rng.normal(size=ROWS),
            "rate": rng.normal(size=ROWS),
            "age": rng.integers(18, 90, size=ROWS),
            "city": np.array(["Oslo", "Rome", "Lima"], dtype=object)[rng.integers(0, 3, ROWS)],
        }
    )


def target(frame: pd.DataFrame) -> np.ndarray:
    return ((frame["income"] + (frame["city"] == "Oslo") > 0.3).astype(int)).to_numpy()


def pipeline(*, unknown: str = "ignore", final: Any = None, labels: Any = None) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    texts = OneHotEncoder(handle_unknown=unknown, sparse_output=False)
    prepare = ColumnTransformer([("numbers", numbers, ["income", "rate", "age"]), ("texts", texts, ["city"])])
    frame = table()
    return make_pipeline(prepare, final or LogisticRegression()).fit(frame, target(frame) if labels is None else labels)


def exported(model: Any) -> onnx.ModelProto:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    types = [(name, FloatTensorType([None, 1])) for name in ("income", "rate", "age")]
    types.append(("city", StringTensorType([None, 1])))
    return to_onnx(model, initial_types=types, options={"zipmap": False})


def forest() -> tuple[Any, onnx.ModelProto, np.ndarray]:
    """Trees on float32 numbers as they are, their export, and rows."""
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier

    rows = np.random.default_rng(3).normal(size=(ROWS, 3)).astype(np.float32)
    labels = (rows[:, 0] + rows[:, 1] ** 2 > 0.7).astype(int)
    model = RandomForestClassifier(6, max_depth=4, random_state=0).fit(rows, labels)
    return model, to_onnx(model, rows[:1], options={"zipmap": False}), rows


def changed(proto: onnx.ModelProto, operator: str, name: str, value: Any) -> onnx.ModelProto:
    """A copy whose first node of that operator has another attribute."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    node = next(node for node in copy.graph.node if node.op_type == operator)
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return copy


def attribute(proto: onnx.ModelProto, operator: str, name: str) -> Any:
    node = next(node for node in proto.graph.node if node.op_type == operator)
    return next(helper.get_attribute_value(a) for a in node.attribute if a.name == name)


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A graph from its parts."""
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "made", inputs, outputs, initializer=held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


@contextmanager
def opened(reference: Any, candidate: Any, data: Any, **options: Any) -> Any:
    """What the suites are given when these two are checked: the plan, the models as prepared, the first rows."""
    caught: list[Any] = []

    def catch(plan: Any, prepared: Any, head: Any, **_: Any) -> tuple[tuple[()], tuple[()]]:
        caught.append((plan, prepared, head, edge._seen(prepared, head, 0)))
        return (), ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge, "run", catch)
        report = data_only.check(reference, candidate, data, edge="report", **options)
    assert caught, report.verdict.headline
    yield caught[0]


def doubled(x: np.ndarray) -> np.ndarray:
    return 2 * x.reshape(len(x), -1).sum(axis=1)


def pooled(inputs: dict[str, np.ndarray]) -> np.ndarray:
    return (inputs["ids"] * inputs["attention_mask"]).sum(axis=1).astype(np.float64)


def total(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.sum([column.astype(np.float64) for column in columns.values()], axis=0)
