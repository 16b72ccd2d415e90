"""Failures to which no cause belongs: what an explanation must not talk about."""

from __future__ import annotations

import hashlib

import numpy as np
from onnx import helper, numpy_helper

import likewise
from faults import models
from faults.editing import Step, followed
from faults.models import folder, measurements, rng
from faults.registry import unexplained


@unexplained()
def ripple():
    """The graph adds something to its answers that is in no model."""
    proto = followed(models.forest_onnx(), "variable", Step("Identity"))
    graph = proto.graph
    before = graph.node.pop().input[0]
    graph.initializer.append(numpy_helper.from_array(np.float32([[31.0], [-17.0], [9.0], [53.0]]), "c0"))
    graph.node.extend(
        [
            helper.make_node("MatMul", ["X", "c0"], ["n0"]),
            helper.make_node("Sin", ["n0"], ["n1"]),
            helper.make_node("Add", [before, "n1"], ["variable"]),
        ]
    )
    return models.forest(), proto, measurements()


@unexplained()
def recorded_noise():
    """Answers of both sides were recorded; one has noise."""
    draw = rng(1)
    model = models.forest()
    plain, noisy = folder() / "plain.parquet", folder() / "noisy.parquet"
    likewise.record(lambda frame: {"value": model.predict(frame)}, measurements(), plain)
    likewise.record(
        lambda frame: {"value": model.predict(frame) + draw.normal(0, 0.3, len(frame))}, measurements(), noisy
    )
    return plain, noisy, measurements()


@unexplained()
def some_rows_by_hash():
    """A service answers one in twenty rows otherwise, always the same ones, for no visible reason."""
    model = models.forest()

    def serve(frame):
        digests = [hashlib.sha256(row.tobytes()).digest()[0] for row in frame.to_numpy()]
        return {"value": model.predict(frame) + np.where(np.array(digests) % 20 == 0, 1.0, 0.0) * digests}

    return model, serve, measurements()


@unexplained()
def probabilities_blurred():
    """Probabilities are pulled towards each other by an amount that depends on a hash of the row."""
    model = models.forest("classifier")

    def serve(frame):
        weights = np.array([hashlib.sha256(row.tobytes()).digest()[0] for row in frame.to_numpy()])[:, None] / 512
        return {"probabilities": (1 - weights) * model.predict_proba(frame) + weights / 3}

    return model, serve, measurements()
