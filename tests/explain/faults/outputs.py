"""What can be seen from the answers alone: order, meaning, link, layout, rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from onnx import TensorProto

import likewise
from faults import models, nets
from faults.editing import Step, followed, only_outputs, renamed, with_attributes, with_trees, without
from faults.models import converted, folder, ill, measurements, recovery
from faults.registry import fault

PROBABILITIES = ["probabilities"]
VALUES = ["value", "variable"]
LABELS = ["label"]


def recorded(model, data, name):
    """Answers of a reference, on a machine without its framework."""
    path = folder() / f"{name}.parquet"
    likewise.record(model, data, path)
    return path


@fault("label-order", culprit=PROBABILITIES)
def two_classes_reversed():
    """The columns of a binary classifier's probabilities are exchanged; only they are exported."""
    proto = followed(models.logistic_onnx(), "probabilities", Step("Gather", np.array([1, 0]), axis=1))
    return models.logistic(), only_outputs(proto, "probabilities"), measurements()


@fault("label-order", culprit=PROBABILITIES)
def three_classes_permuted():
    """Class columns in the order in which another framework met the classes."""
    proto = followed(models.logistic_onnx(3, True), "probabilities", Step("Gather", np.array([2, 0, 1]), axis=1))
    return models.logistic(3, True), only_outputs(proto, "probabilities"), measurements()


@fault("label-order", culprit=PROBABILITIES)
def tree_classes_permuted():
    """The class ids of a tree ensemble's leaves are permuted, and its base values with them."""
    changed = with_trees(
        models.xgb_onnx("three"),
        class_ids=lambda ids: [(1, 2, 0)[one] for one in ids],
        base_values=lambda old: [old[2], old[0], old[1]],
    )
    return models.xgb("three"), only_outputs(changed, "probabilities"), models.numbered(measurements())


@fault("label-order", "label-mapping", culprit=[*PROBABILITIES, *LABELS])
def class_names_exchanged():
    """The list of class names is in another order, so that probabilities and labels stand for other classes."""
    proto = with_attributes(
        models.logistic_onnx(), "LinearClassifier", classlabels_strings=lambda names: list(reversed(names))
    )
    return models.logistic(), proto, measurements()


@fault("label-order", culprit=PROBABILITIES)
def classes_permuted_against_recorded_answers():
    """Only the reference's recorded answers are there; three class columns are permuted."""
    reference = recorded(models.logistic(3, False), measurements(), "permuted")
    proto = followed(models.logistic_onnx(3, False), "probabilities", Step("Gather", np.array([1, 2, 0]), axis=1))
    return reference, only_outputs(proto, "probabilities"), measurements()


@fault("label-order", "output-kind", culprit=PROBABILITIES)
def probability_of_the_other_class():
    """One column instead of two, and it is the one of the negative class."""
    first = [Step("Gather", np.array(0), axis=1)]
    proto = followed(models.xgb_onnx(), "probabilities", *first, kind=TensorProto.FLOAT, shape=[None])
    return models.xgb(), only_outputs(proto, "probabilities"), models.numbered(measurements())


@fault("link-function", "output-kind", culprit=PROBABILITIES)
def margins_of_a_booster():
    """The sigmoid of a binary booster is missing: margins go under the name of probabilities."""
    proto = with_trees(models.xgb_onnx(), post_transform="NONE")
    return models.xgb(), only_outputs(proto, "probabilities"), models.numbered(measurements())


@fault("link-function", "output-kind", culprit=PROBABILITIES)
def softmax_missing():
    """A multinomial regression answers with its linear scores."""
    proto = with_attributes(models.logistic_onnx(3, True), "LinearClassifier", post_transform="NONE")
    return models.logistic(3, True), only_outputs(proto, "probabilities"), measurements()


@fault("link-function", culprit=[*PROBABILITIES, "output"])
def softmax_missing_in_a_network():
    """A network is exported up to its logits."""
    return nets.perceptron(), without(nets.perceptron_onnx(), "Softmax"), nets.vectors()


@fault("link-function", culprit=PROBABILITIES)
def softmax_twice():
    """The serving code added a softmax to a network that has one."""
    proto = followed(nets.perceptron_onnx(), "probabilities", Step("Softmax", axis=1))
    return nets.perceptron(), proto, nets.vectors()


@fault("link-function", culprit=PROBABILITIES)
def sigmoid_twice():
    """A sigmoid over probabilities of a booster."""
    second = [Step("Gather", np.array(1), axis=1), Step("Sigmoid")]
    proto = followed(models.xgb_onnx(), "probabilities", *second, kind=TensorProto.FLOAT, shape=[None])
    return models.xgb(), only_outputs(proto, "probabilities"), models.numbered(measurements())


@fault("link-function", culprit=PROBABILITIES)
def logarithms_of_probabilities():
    """log_softmax was exported in the place of softmax."""
    proto = followed(nets.perceptron_onnx(), "probabilities", Step("Log"))
    return nets.perceptron(), proto, nets.vectors()


@fault("link-function", "model-part-dropped", culprit=[*VALUES, "exp"])
def exponent_missing():
    """A Poisson regression without its exponent."""
    from sklearn.linear_model import PoissonRegressor

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = PoissonRegressor().fit(frame, np.abs(recovery(measurements())))
    return model, without(converted(model, frame), "Exp"), frame


@fault(
    "link-function",
    "model-part-dropped",
    culprit=[*VALUES, "transformer", "regressor", "func", "inverse_func"],
    natural="TransformedTargetRegressor has no converter: people export its regressor_",
)
def regressor_inside_a_log_target():
    """Trained on log(1 + y) by TransformedTargetRegressor; the inner regressor was exported."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.linear_model import Ridge

    frame = measurements()
    target = np.exp(0.2 * recovery(frame))
    model = TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1).fit(frame, target)
    return model, converted(model.regressor_, frame), frame


@fault(
    "model-part-dropped",
    "link-function",
    "output-kind",
    "preprocessing-dropped",
    culprit=[*VALUES, "transformer", "target", "regressor"],
    natural="TransformedTargetRegressor has no converter: people export its regressor_",
)
def regressor_inside_a_scaled_target():
    """Trained on a standardised target by TransformedTargetRegressor; the inner regressor was exported."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.preprocessing import StandardScaler

    frame = measurements()
    inner = GradientBoostingRegressor(n_estimators=10, random_state=0)
    model = TransformedTargetRegressor(inner, transformer=StandardScaler()).fit(frame, 50 * recovery(frame))
    return model, converted(model.regressor_, frame), frame


@fault("link-function", culprit=PROBABILITIES)
def margins_against_recorded_answers():
    """Only recorded answers of the reference are there, and the candidate gives margins."""
    reference = recorded(models.xgb(), models.numbered(measurements()), "margins")
    proto = followed(
        with_trees(models.xgb_onnx(), post_transform="NONE"),
        "probabilities",
        Step("Gather", np.array(1), axis=1),
        kind=TensorProto.FLOAT,
        shape=[None],
    )
    return reference, only_outputs(proto, "probabilities"), models.numbered(measurements())


@fault(
    "link-function",
    culprit=PROBABILITIES,
    natural="skl2onnx writes LinearDiscriminantAnalysis of two classes with a softmax of (-z, z)",
)
def discriminant_of_two_classes():
    """The sigmoid is taken of twice the score."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    frame = measurements()
    model = LinearDiscriminantAnalysis().fit(frame, ill(frame))
    return model, converted(model, frame), frame


@fault(
    "label-order",
    "output-kind",
    culprit=["scores", "probability", "output_probability"],
    natural="skl2onnx writes the decision function of a binary SVC with the opposite sign",
)
def scores_of_a_support_vector_machine():
    """The scores of the two classes are exchanged; labels are right."""
    from sklearn.svm import SVC

    frame = measurements()
    model = SVC().fit(frame, ill(frame))
    return model, converted(model, frame), frame


@fault(
    "output-kind",
    "link-function",
    "operator-semantics",
    culprit=["scores", "probability", "output_probability"],
    natural="skl2onnx writes 1 - z for the first of two classes of OneVsOneClassifier",
)
def scores_one_against_one():
    """The score of the first class is one minus the other, not its negative."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsOneClassifier

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = OneVsOneClassifier(LogisticRegression()).fit(frame, ill(measurements()))
    return model, converted(model, frame), frame


@fault("output-kind", "link-function", culprit=PROBABILITIES)
def probabilities_in_percent():
    """Probabilities from 0 to 100."""
    proto = followed(models.forest_onnx("classifier"), "probabilities", Step("Mul", np.float32(100)))
    return models.forest("classifier"), proto, measurements()


@fault("output-kind", "link-function", culprit=PROBABILITIES)
def certain_probabilities():
    """Each row has probability one for its label and zero for the others."""
    harden = [Step("Hardmax", axis=1)]
    proto = followed(models.forest_onnx("classifier"), "probabilities", *harden)
    return models.forest("classifier"), proto, measurements()


@fault("link-function", "output-kind", culprit=["distances", "scores"])
def squared_distances():
    """The distances to the centres are squared."""
    from sklearn.cluster import KMeans

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    proto = followed(converted(model, frame), "scores", Step("Pow", np.float32(2)))
    return model, proto, frame


@fault("output-kind", "model-part-dropped", "wrong-intermediate", culprit=["scores", "offset"])
def scores_without_offset():
    """An outlier detector gives score_samples where decision_function was meant: its offset is missing."""
    from sklearn.ensemble import IsolationForest

    frame = measurements()
    model = IsolationForest(n_estimators=15, random_state=0, contamination=0.1).fit(frame)
    proto = followed(converted(model, frame), "scores", Step("Add", np.float32([[model.offset_]])))
    return model, proto, frame


@fault("wrong-intermediate", "model-part-dropped", culprit=["output", "linear", "relu", "first", "middle"])
def earlier_layer():
    """The hidden layer before the last one, of the same width, was made the output."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]
    whole, part = nn.Sequential(*layers).eval(), nn.Sequential(*layers[:3]).eval()
    return whole, nets.traced(part, nets.vectors()["x"]), nets.vectors()


@fault("output-mapping", "label-order", culprit=VALUES)
def targets_permuted():
    """The columns of a regressor with three targets are in another order."""
    from sklearn.ensemble import RandomForestRegressor

    frame = measurements()
    z = models.standard(frame)
    targets = np.c_[recovery(frame), z[:, 1] * 5, z[:, 2] ** 2]
    model = RandomForestRegressor(6, max_depth=5, random_state=0).fit(frame, targets)
    return model, followed(converted(model, frame), "variable", Step("Gather", np.array([2, 0, 1]), axis=1)), frame


@fault("output-mapping", culprit=["price", "risk"])
def heads_exchanged():
    """Two outputs of a network carry each other's name."""
    proto = renamed(nets.twins_onnx(), {"price": "risk", "risk": "price"})
    return nets.twins(), proto, nets.vectors()


@fault("output-layout", culprit=["output", "linear"])
def transposed():
    """Classes lie along the first axis, rows along the second."""
    proto = followed(nets.image_onnx(), "linear", Step("Transpose", perm=[1, 0]), shape=[None, None])
    return nets.image(), proto, nets.pictures()


@fault("output-layout", culprit=["output", "getitem", "conv2d"])
def channels_last():
    """A map of features with its channels last; height, width and channels are equally many."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()).eval()
    pixels = (nets.pictures()["pixels"] / 255).astype(np.float32)
    proto = followed(nets.traced(module, pixels), "output", Step("Transpose", perm=[0, 2, 3, 1]))
    return module, proto, {"input": pixels}


@fault("constant-output", "weight-corruption", culprit=[*PROBABILITIES, "coefficients"])
def always_the_same():
    """All coefficients are zero, so every row gets the same probability."""
    proto = with_attributes(models.logistic_onnx(), "LinearClassifier", coefficients=lambda old: [0.0 * x for x in old])
    return models.logistic(), proto, measurements()


@fault("constant-output", "weight-corruption", culprit=[*VALUES, "trees", "leaves"])
def same_value_for_all():
    """The trees of a regressor answer zero; its base value is left."""
    proto = with_trees(models.boosted_onnx(), target_weights=lambda old: [0.0 * x for x in old])
    return models.boosted(), proto, measurements()


@fault("row-order", culprit=["output", *VALUES])
def rows_in_another_order():
    """The service sorts its rows before it answers and does not put them back."""
    model = models.forest()

    def serve(frame):
        return {"value": model.predict(frame.sort_values("dose"))}

    return model, serve, measurements()


@fault("row-order", "batch-dependence", culprit=[*PROBABILITIES, *LABELS])
def rows_reversed():
    """The answers come in the opposite order of the rows of a call."""
    backwards = Step("Slice", np.array([-1]), np.array([np.iinfo(np.int64).min]), np.array([0]), np.array([-1]))
    return nets.perceptron(), followed(nets.perceptron_onnx(), "probabilities", backwards), nets.vectors()


@fault("aggregation", culprit=[*VALUES, "trees", "ensemble", "forest"])
def forest_summed():
    """The trees of a forest are added up instead of averaged."""
    proto = with_trees(models.forest_onnx(), target_weights=lambda old: [8 * x for x in old])
    return models.forest(), proto, measurements()


@fault("aggregation", culprit=[*PROBABILITIES, "trees", "ensemble", "forest", "estimators"])
def forest_by_vote():
    """Each tree of a forest votes for one class, where the model averages their probabilities."""
    model = models.forest("classifier")

    def serve(frame):
        votes = np.stack([tree.predict(frame.to_numpy()) for tree in model.estimators_])
        return {"probabilities": np.stack([(votes == one).mean(0) for one in range(3)], axis=1)}

    return model, serve, measurements()


@fault("aggregation", culprit=[*VALUES, "ensemble", "estimators", "weights"])
def voters_unweighted():
    """The weights of an ensemble of regressors are left out: a plain average."""
    from sklearn.ensemble import VotingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.tree import DecisionTreeRegressor

    frame = measurements()
    voters = [("line", Ridge()), ("tree", DecisionTreeRegressor(max_depth=4, random_state=0))]
    model = VotingRegressor(voters, weights=np.array([1.0, 4.0])).fit(frame, recovery(frame))
    plain = VotingRegressor(voters).fit(frame, recovery(frame))
    return model, converted(plain, frame), frame
