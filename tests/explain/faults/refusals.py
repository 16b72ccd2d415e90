"""What stops a comparison before there are answers: files that do not load, data that does not fit."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pandas as pd
from onnx import TensorProto, helper

from faults import models, nets
from faults.editing import copied, renamed
from faults.models import cat, cat_converted, converted, folder, ill, loans, measurements, recovery, severity
from faults.registry import fault

refusal = partial(fault, outcome="INCONCLUSIVE")


def saved(proto, name):
    path = folder() / name
    onnx.save(proto, path)
    return path


@refusal("unloadable-model", culprit=["cut.onnx"])
def file_cut_short():
    """Half of the file is missing."""
    path = folder() / "cut.onnx"
    content = models.forest_onnx().SerializeToString()
    path.write_bytes(content[: len(content) // 2])
    return models.forest(), path, measurements()


@refusal("unloadable-model", culprit=["pointer.onnx"])
def pointer_to_a_file():
    """The file is a pointer of git-lfs, never fetched."""
    path = folder() / "pointer.onnx"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 182340\n")
    return models.forest(), path, measurements()


@refusal("unloadable-model", culprit=["beside.onnx", "beside.onnx.data", "first.weight"])
def weights_left_behind():
    """The weights lie in a file of their own, which was not copied."""
    path = folder() / "beside.onnx"
    proto = copied(nets.perceptron_onnx())
    onnx.save(proto, path, save_as_external_data=True, location="beside.onnx.data", size_threshold=0)
    (folder() / "beside.onnx.data").unlink()
    return nets.perceptron(), path, nets.vectors()


@refusal("unloadable-model", culprit=["Fancy", "fancy.onnx"])
def operator_of_ones_own():
    """The graph has an operator that the runtime does not know."""
    proto = copied(nets.perceptron_onnx())
    node = proto.graph.node[-1]
    node.op_type, node.domain = "Fancy", "com.example"
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    return nets.perceptron(), saved(proto, "fancy.onnx"), nets.vectors()


@refusal("unloadable-model", culprit=["opset", "later.onnx"])
def opset_of_the_future():
    """The file was written for an opset that the runtime does not have."""
    proto = copied(nets.perceptron_onnx())
    for opset in proto.opset_import:
        opset.version = 99 if not opset.domain else opset.version
    return nets.perceptron(), saved(proto, "later.onnx"), nets.vectors()


@refusal(
    "unloadable-model",
    culprit=["Solve", "gaussian.onnx"],
    natural="skl2onnx writes an operator for GaussianProcessClassifier that no runtime has",
)
def gaussian_process_classifier():
    """The converter was satisfied; the runtime is not."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = GaussianProcessClassifier(RBF(), optimizer=None).fit(frame.iloc[:60], ill(measurements())[:60])
    return model, saved(converted(model, frame), "gaussian.onnx"), frame


@refusal(
    "unloadable-model",
    culprit=["Tokenizer", "words.onnx"],
    natural="skl2onnx copies scikit-learn's (?u) into a pattern that ONNX Runtime cannot read",
)
def pattern_the_runtime_cannot_read():
    """A token pattern of Python's in the export."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, liked = models.reviews()
    model = models.text_model(texts, liked, TfidfVectorizer(token_pattern=r"(?u)\b\w+\b"))
    return model, saved(models.text_converted(model), "words.onnx"), {"text": texts}


@refusal(
    "unloadable-model",
    culprit=["TreeEnsembleRegressor", "several.onnx"],
    natural="CatBoost writes several targets as a file that does not load",
)
def catboost_of_several_targets():
    """MultiRMSE is exported without an error."""
    frame = measurements()
    targets = np.c_[recovery(frame), models.standard(frame)[:, 0]]
    model = cat(frame, targets, loss_function="MultiRMSE")
    return model, saved(cat_converted(model), "several.onnx"), frame


@refusal(
    "unloadable-model",
    culprit=["ZipMap", "labels.onnx"],
    natural="skl2onnx writes dictionaries for a forest of several labels, and they do not load",
)
def forest_of_several_labels():
    """The default options of the converter give a file that does not load."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import RandomForestClassifier

    frame = measurements()
    model = RandomForestClassifier(4, max_depth=4, random_state=0).fit(frame, np.c_[ill(frame), severity(frame)])
    proto = to_onnx(model, initial_types=[("X", FloatTensorType([None, 4]))], target_opset=models.OPSETS)
    return model, saved(proto, "labels.onnx"), frame


@refusal(
    "unloadable-model",
    culprit=["ArrayFeatureExtractor", "radius.onnx"],
    natural="skl2onnx's RadiusNeighborsRegressor fails where rows have unequally many neighbours",
)
def neighbours_within_a_radius():
    """The file loads, and every call fails inside it."""
    from sklearn.neighbors import RadiusNeighborsRegressor

    frame = pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)
    model = RadiusNeighborsRegressor(2.5).fit(frame.iloc[:100], recovery(measurements())[:100])
    return model, saved(converted(model, frame), "radius.onnx"), frame


@refusal("schema-mismatch", culprit=["salary", "income"])
def column_renamed():
    """The export calls a column otherwise than the data."""
    return models.loan_pipeline(), renamed(models.loan_onnx(), {"income": "salary"}), loans()


@refusal("schema-mismatch", culprit=["Grade", "grade"])
def column_in_capitals():
    """The export spells a column with a capital."""
    return models.loan_pipeline(), renamed(models.loan_onnx(), {"grade": "Grade"}), loans()


@refusal("schema-mismatch", culprit=["tenure"])
def column_missing():
    """The export asks for a column that was added later."""
    proto = copied(models.loan_onnx())
    proto.graph.input.append(helper.make_tensor_value_info("tenure", TensorProto.FLOAT, [None, 1]))
    return models.loan_pipeline(), proto, loans()


@refusal("schema-mismatch", culprit=["X", ("4", "5")])
def one_column_more():
    """The export was made with an index among its five columns; the model has four."""
    from sklearn.linear_model import Ridge

    frame = measurements()
    wider = frame.assign(index=np.arange(len(frame)))
    model = Ridge().fit(frame, recovery(frame))
    return model, converted(Ridge().fit(wider, recovery(frame)), wider), frame


@refusal("input-layout", "schema-mismatch", culprit=["pixels"])
def channels_expected_last():
    """The export takes images with their channels last."""
    proto = copied(nets.image_onnx())
    steps = helper.make_node("Transpose", ["pixels"], ["pixels_turned"], perm=[0, 3, 1, 2])
    for node in proto.graph.node:
        node.input[:] = ["pixels_turned" if name == "pixels" else name for name in node.input]
    proto.graph.node.insert(0, steps)
    shape = proto.graph.input[0].type.tensor_type.shape
    shape.dim[1].dim_value, shape.dim[3].dim_value = 10, 3
    return nets.image(), proto, nets.pictures()
