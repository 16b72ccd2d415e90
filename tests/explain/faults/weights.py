"""Numbers inside the models: another training, lost parts, single wrong weights."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd

from faults import models, nets
from faults.editing import constants_of, with_attributes, with_constants, without
from faults.models import converted, folder, loans, measurements, numbered, recovery, rng, severity
from faults.registry import fault

MODEL = ["model", "coefficients", "weights"]


@fault("stale-weights", culprit=[*MODEL, "classifier", "clf"])
def older_pipeline():
    """The export of a pipeline that was fitted to last month's data."""
    return models.loan_pipeline(), converted(models.loan_pipeline(3), loans(), types=models.types_of(loans())), loans()


@fault("stale-weights", culprit=[*MODEL, "trees"])
def older_forest():
    """The export of another training of the same forest."""
    from sklearn.ensemble import RandomForestRegressor

    frame = measurements(300, 8)
    other = RandomForestRegressor(8, max_depth=5, random_state=4).fit(frame, recovery(frame, 5))
    return models.forest(), converted(other, frame), measurements()


@fault("stale-weights", culprit=[*MODEL, "trees"])
def older_booster():
    """The export of an XGBoost model of another training."""
    return models.xgb(), models.xgb_onnx("binary", False, 12, 3), numbered(measurements())


@fault("stale-weights", culprit=[*MODEL, "first.weight", "middle.weight", "last.weight"])
def older_network():
    """The export of a checkpoint of another training."""
    fresh = {name: value.detach().numpy() for name, value in nets.perceptron(1).state_dict().items()}
    changes = {name: (lambda old, name=name: fresh[name]) for name in constants_of(nets.perceptron_onnx())}
    return nets.perceptron(), with_constants(nets.perceptron_onnx(), changes), nets.vectors()


@fault("stale-weights", culprit=[*MODEL, "network", "coefficient", "coefs_"])
def older_sk_network():
    """The export of a scikit-learn network of another training, behind the same scaler."""
    from sklearn.base import clone

    frame = measurements()
    other = clone(models.sk_network()).set_params(network__random_state=5).fit(frame, severity(frame))
    return models.sk_network(), converted(other, frame), frame


@fault("stale-weights", culprit=[*MODEL, "trees"])
def older_file():
    """Both are files, and the export says by its hash that it was made from another file."""
    import joblib
    from sklearn.linear_model import Ridge

    frame = measurements()
    reference, candidate = folder() / "ridge.joblib", folder() / "ridge.onnx"
    joblib.dump(Ridge().fit(frame, recovery(frame)), reference)
    proto = converted(Ridge().fit(frame.iloc[:60], recovery(frame)[:60] + 2), frame)
    proto.metadata_props.add(key="likewise.reference_sha256", value="0" * 64)
    onnx.save(proto, candidate)
    return reference, candidate, frame


@fault("stale-weights", "weight-corruption", culprit=["last.weight", "last"])
def older_head():
    """The body of a network was exported with the head from before it was trained further."""
    draw = rng(2)
    changes = {"last.weight": lambda old: draw.normal(0, 0.5, old.shape), "last.bias": lambda old: 0.1 * old}
    return nets.perceptron(), with_constants(nets.perceptron_onnx(), changes), nets.vectors()


@fault("model-part-dropped", "weight-corruption", culprit=["intercept", "intercepts"])
def intercept_dropped():
    """A logistic regression without its intercept."""
    proto = with_attributes(models.logistic_onnx(3, True), "LinearClassifier", intercepts=lambda old: [0.0] * len(old))
    return models.logistic(3, True), proto, measurements()


@fault("model-part-dropped", "weight-corruption", culprit=["middle.bias"])
def bias_of_a_layer():
    """The bias of one layer of a network is zero."""
    proto = with_constants(nets.perceptron_onnx(), {"middle.bias": lambda old: 0 * old})
    return nets.perceptron(), proto, nets.vectors()


@fault("model-part-dropped", "weight-corruption", culprit=["intercepts1", "intercepts_[1]", "intercepts_"])
def bias_of_a_sk_network():
    """The bias of the second layer of a scikit-learn network is zero."""
    proto = with_constants(models.sk_network_onnx(), {"intercepts1": lambda old: 0 * old})
    return models.sk_network(), proto, measurements()


@fault("model-part-dropped", "wrong-wiring", culprit=["relu", "activation"])
def activation_dropped():
    """The second activation of a network is missing."""
    return nets.perceptron(), without(nets.perceptron_onnx(), "Relu", 1), nets.vectors()


@fault("weight-corruption", culprit=["dose", "coefficients", "coef_"])
def sign_of_a_coefficient():
    """One coefficient of a linear model has the opposite sign."""
    proto = with_attributes(
        models.logistic_onnx(),
        "LinearClassifier",
        coefficients=lambda old: [-x if i % 4 == 3 else x for i, x in enumerate(old)],
    )
    return models.logistic(), proto, measurements()


@fault("weight-corruption", "nonfinite", culprit=["coefficient1", "coefs_[1]", "coefs_"])
def not_a_number():
    """One weight of a scikit-learn network is NaN."""

    def spoil(old):
        old[3, 2] = np.nan
        return old

    proto = with_constants(models.sk_network_onnx(), {"coefficient1": spoil})
    return models.sk_network(), proto, measurements()


@fault("weight-corruption", culprit=["middle.weight"])
def weights_transposed():
    """The square weights of one layer are transposed."""
    proto = with_constants(nets.perceptron_onnx(), {"middle.weight": lambda old: old.T.copy()})
    return nets.perceptron(), proto, nets.vectors()


@fault("weight-corruption", culprit=["first.weight"])
def bit_flipped():
    """One bit in the exponent of one weight is another."""

    def flip(old):
        bits = old.view(np.int32)
        bits[5, 2] ^= 1 << 25
        return bits.view(np.float32)

    proto = with_constants(nets.perceptron_onnx(), {"first.weight": flip})
    return nets.perceptron(), proto, nets.vectors()


@fault("weight-corruption", culprit=["second.weight"])
def filters_exchanged():
    """Two filters of a convolution are exchanged."""
    proto = with_constants(nets.image_onnx(), {"second.weight": lambda old: old[[0, 1, 4, 3, 2, 5]]})
    return nets.image(), proto, nets.pictures()


@fault("weight-corruption", culprit=["head.weight"])
def weights_cleared():
    """A row of a layer's weights is zero."""

    def clear(old):
        old[2] = 0
        return old

    return nets.image(), with_constants(nets.image_onnx(), {"head.weight": clear}), nets.pictures()


@fault(
    "weight-corruption",
    culprit=["cluster_centers_", "centre", "center", "centers", "centres", "Ge_Gemmcst", "Re_Addcst", "Ad_Addcst"],
)
def centre_moved():
    """One centre of a clustering was moved."""
    from sklearn.cluster import KMeans

    frame = models.measurements()
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    moved = KMeans(3, n_init=1, random_state=0).fit(frame)
    moved.cluster_centers_ = moved.cluster_centers_.copy()
    moved.cluster_centers_[1, 2] += 8
    return model, converted(moved, frame), frame


@fault("weight-corruption", culprit=["coefficients", "dual_coef_", "dual"])
def support_vector_changed():
    """One of the coefficients of a support vector machine is ten times as large."""
    from sklearn.svm import SVR

    frame = models.measurements()
    z = pd.DataFrame(models.standard(frame), columns=models.FEATURES)
    model = SVR(C=2.0).fit(z, recovery(frame))
    proto = with_attributes(
        converted(model, z),
        "SVMRegressor",
        coefficients=lambda old: [10 * x if i == 7 else x for i, x in enumerate(old)],
    )
    return model, proto, z
