"""How models are run: batches, shapes, training mode, chance, and what the runtime does to a graph."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from faults import models, nets
from faults.editing import Step, followed, preceded
from faults.models import measurements
from faults.registry import fault

BATCH = ["batch", "batch size", "call"]


@fault("fixed-batch", culprit=["4"], outcome="INCONCLUSIVE")
def four_rows_only():
    """The export was made with four rows and takes no other number."""
    return nets.perceptron(), nets.exported(nets.perceptron(), nets.vectors()["x"], dynamic=False), nets.vectors()


@fault("batch-dependence", culprit=[*BATCH, "ReduceMean", "Sub"])
def mean_of_the_batch():
    """The mean of the rows of a call is taken from each."""
    proto = _centred(nets.perceptron_onnx(), "x")
    return nets.perceptron(), proto, nets.vectors()


@fault("batch-dependence", "row-order", culprit=[*BATCH, "Gather", "Expand", "position", "first row"])
def first_row_for_all():
    """Every row of a call gets the answer to the first."""
    steps = [Step("Gather", np.array([0]), axis=0)]
    proto = followed(nets.perceptron_onnx(), "probabilities", *steps)
    graph = proto.graph
    last = graph.node[-1]
    last.output[0] = "n0"
    graph.node.extend(
        [
            helper.make_node("Shape", [last.input[0]], ["n1"]),
            helper.make_node("Expand", ["n0", "n1"], ["probabilities"]),
        ]
    )
    return nets.perceptron(), proto, nets.vectors()


@fault("batch-dependence", culprit=[*BATCH, "position"])
def position_in_the_batch():
    """The service adds something that grows with the place of a row in its call."""
    model = models.forest()

    def serve(frame):
        return {"value": model.predict(frame) + 0.05 * np.arange(len(frame))}

    return model, serve, measurements()


@fault(
    "training-mode",
    "batch-dependence",
    culprit=["BatchNormalization", "BatchNorm1d", "batch normalisation", "batch normalization"],
)
def normalisation_in_training():
    """A network was exported in training mode: its batch normalisation uses the rows of the call."""
    import torch

    module = _normalised()
    proto = nets.traced(
        module, nets.vectors()["x"], training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False
    )
    return module.eval(), proto, nets.vectors()


@fault(
    "training-mode",
    "nondeterminism",
    culprit=["dropout", "drop", "Dropout"],
    candidate_options={"optimization": "disable"},
)
def dropout_in_training():
    """A network was exported in training mode: its dropout is at work."""
    import torch
    from torch import nn

    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    proto = nets.traced(
        module, nets.vectors()["x"], training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False
    )
    return module.eval(), proto, nets.vectors()


@fault("nondeterminism", culprit=["candidate", "RandomNormalLike"])
def noise_in_the_graph():
    """Noise is added to the answers, new in every run."""
    proto = followed(models.forest_onnx(), "variable", Step("Identity"))
    graph = proto.graph
    before = graph.node.pop().input[0]
    graph.node.extend(
        [
            helper.make_node("RandomNormalLike", [before], ["n0"], scale=0.2),
            helper.make_node("Add", [before, "n0"], ["variable"]),
        ]
    )
    return models.forest(), proto, measurements()


@fault("nondeterminism", culprit=["candidate", "serve"])
def service_that_explores():
    """The service answers one in ten rows at random."""
    model, chance = models.forest(), np.random.default_rng(0)

    def serve(frame):
        values = model.predict(frame)
        return {"value": np.where(chance.random(len(values)) < 0.1, values + chance.normal(0, 2, len(values)), values)}

    return model, serve, measurements()


@fault("nondeterminism", culprit=["reference"], outcome="INCONCLUSIVE")
def reference_that_samples():
    """The reference draws from a distribution every time it is asked."""
    model, chance = models.forest(), np.random.default_rng(0)

    def sample(frame):
        return {"variable": model.predict(frame) + chance.normal(0, 0.5, len(frame))}

    return sample, models.forest_onnx(), measurements()


@fault("shape-specialization", culprit=["8", "12", "length", "axis 1", "steps"])
def length_of_the_example():
    """A mean over time divides by the length of the sequence that it was traced with."""
    import torch
    from torch import nn

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(3, 4)

        def forward(self, x):
            return torch.tanh(self.line(x)).sum(1) / int(x.shape[1])

    draw = np.random.default_rng(0)
    axes = {"x": {0: "rows", 1: "steps"}, "output": {0: "rows"}}
    proto = nets.traced(Mean().eval(), draw.normal(size=(2, 8, 3)).astype(np.float32), axes=axes)
    return Mean().eval(), proto, {"x": draw.normal(size=(64, 12, 3)).astype(np.float32)}


@fault(
    "runtime-optimization",
    culprit=["Pad_Fusion", "PadFusion", "Pad"],
    natural="ONNX Runtime merges a Pad into MaxPool, which pads with minus infinity instead of zero; "
    "compare https://github.com/microsoft/onnxruntime/issues/22177",
)
def padding_merged_into_pooling():
    """Zeros around a map are lost when the runtime merges them into a pooling."""
    import torch
    from torch import nn

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.pool = nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2)

        def forward(self, pixels):
            return self.pool(nn.functional.pad(-torch.abs(self.conv(pixels)), (1, 1, 1, 1)))

    data = {"pixels": (nets.pictures()["pixels"] / 255).astype(np.float32)}
    return Pooled().eval(), nets.exported(Pooled().eval(), data["pixels"]), data


@fault(
    "tie-breaking",
    "operator-semantics",
    culprit=["TopK", "topk", "output", "indices"],
    natural="torch.topk and ONNX's TopK order equal values differently",
)
def equal_values_ranked():
    """The places of the three largest values, among which many are equal."""
    import torch
    from torch import nn

    class Best(nn.Module):
        def forward(self, x):
            return torch.topk(torch.round(x), 3, dim=1).indices.float()

    return Best().eval(), nets.traced(Best().eval(), nets.vectors()["x"]), nets.vectors()


@fault("integer-overflow", culprit=["x", "Mul", "Cast", "Pow"])
def squares_of_32_bits():
    """The export squares in 32 bits what the model squares in 64."""
    import torch
    from torch import nn

    class Squared(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind

        def forward(self, x):
            whole = x.to(self.kind)
            return torch.log((whole * whole).float().abs() + 1)

    data = {"x": np.random.default_rng(1).integers(0, 90_000, (128, 3)).astype(np.float32)}
    return Squared(torch.int64).eval(), nets.traced(Squared(torch.int32).eval(), data["x"]), data


def _normalised():
    import torch
    from torch import nn

    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        module[1].running_mean.uniform_(-1, 1)
        module[1].running_var.uniform_(0.5, 3)
    return module


def _centred(proto, name):
    """The mean of the rows of a call taken from an input."""
    proto = preceded(proto, name, Step("Identity"))
    graph = proto.graph
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "c0"))
    graph.node[0].CopyFrom(helper.make_node("Sub", [name, "n0"], [graph.node[0].output[0]]))
    graph.node.insert(0, helper.make_node("ReduceMean", [name, "c0"], ["n0"]))
    return proto
