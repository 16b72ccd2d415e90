"""What the tests of XGBoost, LightGBM and CatBoost share: data, exports, figures by hand, faults in ONNX files."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from threadpoolctl import threadpool_limits

import data_only
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import ExportRequest
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.registry import adapter, describe_model, exporters

RNG = np.random.default_rng(0)
ROWS = 300
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
X[RNG.random(X.shape) < 0.1] = np.nan
FILLED = np.nan_to_num(X)
TWO = (FILLED[:, 0] + 0.3 * FILLED[:, 1] > 0.4).astype(int)
THREE = FILLED[:, :3].argmax(axis=1)
COLOURS = np.array(["red", "green", "blue"])[THREE]
TARGET = FILLED @ [1.0, 2.0, 3.0, 4.0] + 100
COUNTS = np.exp(FILLED[:, 0]).round() + 1
GROUPS = np.repeat(np.arange(ROWS // 10), 10)
CITIES = RNG.choice(["Lima", "Oslo", "Rome"], ROWS)
NAMES = ["age", "f", "f 2x", "Ertrag"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


def opened(target, **options):
    described = describe_model(target, options)
    return adapter(described.framework).open(described)


def batch_of(data):
    columns = ArrayColumns({"X": data}) if isinstance(data, np.ndarray) else FrameColumns(data)
    return Batch(RowIds(np.arange(len(data))), columns)


def answers(target, data, **options):
    with opened(target, **options) as runner:
        return runner.run(batch_of(data))


def exported(model, data, **options):
    with opened(model) as runner:
        request = ExportRequest(runner.native, runner.signature, batch_of(data), **options)
        exporter = next(found for found in exporters() if found.claims(runner.native))
        return exporter.export(request)


def onnx_answers(proto, data):
    """What a hand-written script gets from ONNX Runtime."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    rows = np.asarray(data, dtype=np.float32)
    found = session.run(None, {session.get_inputs()[0].name: rows})
    return dict(zip((value.name for value in session.get_outputs()), found, strict=True))


def figures(reference, candidate):
    """The figures of a plain script: float64, no cleverness."""
    reference, candidate = (np.asarray(side, dtype=np.float64) for side in (reference, candidate))
    gap = np.abs(candidate.reshape(reference.shape) - reference)
    return {"max_abs_diff": gap.max(), "mean_abs_diff": gap.mean()}


def checked(reference, candidate, data, **options):
    """A check in one call, as ONNX Runtime adds up trees in another order in calls of another size."""
    return data_only.check(reference, candidate, data, **{"batch_size": ROWS, "batch_sizes": (), **options})


def measured(report, name):
    return next(output.measures for output in report.comparison.outputs if output.name == name)


def agrees(report, name, reference, candidate):
    """The report's figures are those of the plain script."""
    expected, found = figures(reference, candidate), measured(report, name)
    assert found["max_abs_diff"] == expected["max_abs_diff"]
    np.testing.assert_allclose(found["mean_abs_diff"], expected["mean_abs_diff"], rtol=1e-9, atol=1e-300)


def said(report):
    found = report.verdict.findings
    return " | ".join([report.verdict.headline, *(f"{entry.message}. {entry.remedy}" for entry in found)])


def ensemble(proto):
    return next(node for node in proto.graph.node if node.op_type.startswith("TreeEnsemble"))


def changed(proto, **changes):
    """A copy of the model whose trees have other attributes; None takes one away."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    node = ensemble(copy)
    for name, change in changes.items():
        place = next(index for index, attribute in enumerate(node.attribute) if attribute.name == name)
        value = change(helper.get_attribute_value(node.attribute[place])) if change is not None else None
        del node.attribute[place]
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
    return copy


FAULTS = {
    "margin instead of probability": {"post_transform": lambda _: "NONE"},
    "missing goes the other way": {"nodes_missing_value_tracks_true": lambda old: [1 - way for way in old]},
    "a threshold is edited": {"nodes_values": lambda old: [old[0] + 0.5, *old[1:]]},
    "features in another order": {"nodes_featureids": lambda old: [(1, 0, 2, 3)[feature] for feature in old]},
    "base score dropped": {"base_values": None},
    "class columns swapped": {"class_ids": lambda old: [(1, 2, 0)[number] for number in old]},
}
