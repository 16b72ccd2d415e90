"""What goes wrong between the data and the model: types, order, gaps, categories, pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd
from onnx import TensorProto

from faults import models, nets
from faults.editing import (
    Step,
    preceded,
    with_attributes,
    with_input_type,
    with_trees,
    with_values_replaced,
    without,
)
from faults.models import converted, defaulted, loans, measurements, recovery, rng
from faults.registry import fault

SKL = "https://github.com/onnx/sklearn-onnx/issues"


@fault(
    "float32-input-cast",
    culprit=["when"],
    natural="every export with float inputs: seconds since 1970 have 10 digits, float32 holds 7",
)
def timestamps():
    """A time in seconds is cast to float32, which holds it to within two minutes."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    when = _around(1_700_015_360.0, 15_000, seed=1)
    frame = pd.DataFrame({"when": when, "load": models.single(rng(1).normal(size=300))})
    target = np.asarray((frame["when"] - 1.7e9) / 3e3 + frame["load"])
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame, target)
    return model, converted(model, frame), frame


@fault(
    "float32-input-cast",
    "unknown-category",
    culprit=["customer"],
    natural="every export with float inputs: float32 holds whole numbers up to 2^24",
)
def large_identifiers():
    """Customer numbers above 2^24 fall together when they become float32, and are not found by the encoder."""
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    draw = rng(2)
    frame = pd.DataFrame({"customer": 20_000_001 + 2 * draw.integers(0, 6, 300)})
    target = np.sin(np.asarray(frame["customer"] % 100)) * 5
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    model = make_pipeline(encoder, Ridge(alpha=0.01)).fit(frame, target)
    return model, converted(model, frame, types=[("customer", FloatTensorType([None, 1]))]), frame


@fault(
    "float32-input-cast", culprit=["turnover"], natural="every export with float inputs: cents of an amount in billions"
)
def cents_of_large_amounts():
    """What is left of an amount after a deduction is small; the amount itself has ten digits."""
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    turnover = _around(500_000_000.0, 2_000, seed=3).round(2)
    frame = pd.DataFrame({"turnover": turnover, "staff": rng(3).integers(5, 90, 300)})
    target = np.asarray((frame["turnover"] - 5e8) * 0.05 + frame["staff"])
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(frame, target)
    return model, converted(model, frame), frame


@fault("float32-input-cast", "precision-reduction", culprit=["age", "dose", "weight", "height"])
def half_precision_input():
    """The input of a linear model is declared as float16."""
    from sklearn.linear_model import Ridge

    frame = measurements()
    model = Ridge().fit(frame, recovery(frame))
    return model, with_input_type(converted(model, frame), "X", TensorProto.FLOAT16), frame


@fault("input-type", culprit=["height", "weight", "age", "dose"], natural=f"{SKL}/1129")
def whole_numbers_declared():
    """The input was declared as int64 to the converter, and fractions are cut off."""
    from skl2onnx.common.data_types import Int64TensorType

    proto = converted(models.logistic(), measurements(), types=[("X", Int64TensorType([None, 4]))])
    return models.logistic(), proto, measurements()


@fault("input-type", culprit=["income"])
def one_column_of_whole_numbers():
    """One input of a mixed table is int64; the amounts in it have cents."""
    frame = loans().assign(income=(loans()["income"] / 10_000).round(3))
    model = _refitted(frame)
    proto = with_input_type(converted(model, frame, types=models.types_of(frame)), "income", TensorProto.INT64)
    return model, proto, frame


@fault("input-type", culprit=["visits"])
def count_declared_as_flag():
    """A count is declared as a boolean: everything above zero becomes one."""
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.pipeline import make_pipeline

    draw = rng(4)
    frame = pd.DataFrame({"visits": draw.integers(0, 6, 300), "age": models.single(draw.normal(50, 9, 300))})
    model = make_pipeline(_side_by_side(frame), GradientBoostingRegressor(n_estimators=10, random_state=0))
    model.fit(frame, np.asarray(frame["visits"] * 2 + frame["age"] / 9))
    proto = converted(model, frame, types=[(name, FloatTensorType([None, 1])) for name in frame])
    return model, with_input_type(proto, "visits", TensorProto.BOOL), frame


@fault("integer-overflow", "input-type", culprit=["bytes", "Cast"])
def counter_of_32_bits():
    """A counter beyond 2^31 is declared as int32 and wraps."""
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    draw = rng(5)
    frame = pd.DataFrame({"bytes": 1024 * draw.integers(0, 4_000_000, 300), "errors": draw.integers(0, 9, 300)})
    model = make_pipeline(_side_by_side(frame), StandardScaler(), Ridge())
    model.fit(frame, np.asarray(frame["bytes"] / 1e9 + frame["errors"]))
    proto = converted(model, frame, types=[(name, FloatTensorType([None, 1])) for name in frame])
    wrapped = Step("Cast", to=TensorProto.INT32), Step("Cast", to=TensorProto.FLOAT)
    proto = preceded(proto, "bytes", *wrapped)
    value = next(value for value in proto.graph.input if value.name == "bytes")
    value.type.tensor_type.elem_type = TensorProto.INT64
    return model, proto, frame


@fault("feature-order", culprit=[("weight", "dose")])
def two_columns_exchanged():
    """The export was made from a table in which two columns stood the other way round."""
    proto = preceded(models.logistic_onnx(), "X", Step("Gather", np.array([0, 3, 2, 1]), axis=1))
    return models.logistic(), proto, measurements()


@fault("feature-order", culprit=[("height", "weight", "age", "dose")])
def columns_sorted_by_name():
    """The service sends its columns in alphabetical order to a model that was fitted on another."""
    order = [models.FEATURES.index(name) for name in sorted(models.FEATURES)]
    proto = preceded(models.forest_onnx("classifier"), "X", Step("Gather", np.array(order), axis=1))
    return models.forest("classifier"), proto, measurements()


@fault("feature-order", culprit=[("f0", "f3")])
def features_exchanged_in_a_booster():
    """The trees ask for one feature where another is meant, all along."""
    changed = with_trees(
        models.xgb_onnx("regression"), nodes_featureids=lambda ids: [{0: 3, 3: 0}.get(one, one) for one in ids]
    )
    return models.xgb("regression"), changed, models.numbered(measurements())


@fault("feature-order", "input-layout", culprit=[("1", "4"), ("2", "5")])
def features_exchanged_in_a_network():
    """Two features of a network's input are exchanged."""
    proto = preceded(nets.perceptron_onnx(), "x", Step("Gather", np.array([0, 4, 2, 3, 1, 5]), axis=1))
    return nets.perceptron(), proto, nets.vectors()


@fault("missing-value-handling", "preprocessing-differs", culprit=["balance", "imputer"])
def gaps_filled_with_zero():
    """Missing balances become zero instead of the median."""
    proto = with_attributes(models.loan_onnx(), "Imputer", imputed_value_floats=lambda old: [old[0], 0.0, old[2]])
    return models.loan_pipeline(), proto, loans()


@fault("missing-value-handling", culprit=["balance", "imputer"])
def zeros_taken_for_gaps():
    """A balance of zero is a value to the model; the export replaces it by the median."""
    frame = _with_zeros()
    model = _refitted(frame)
    proto = converted(model, frame, types=models.types_of(frame))
    return model, with_values_replaced(proto, "balance", 0.0, np.nan), frame


@fault("missing-value-handling", "preprocessing-differs", culprit=["balance", "imputer"])
def sentinel_for_gaps():
    """The service writes -999 for what is missing, and the export does not know that."""
    proto = with_attributes(models.loan_onnx(), "Imputer", imputed_value_floats=lambda old: [old[0], -999.0, old[2]])
    return models.loan_pipeline(), proto, loans()


@fault(
    "missing-value-handling",
    "unknown-category",
    culprit=["colour"],
    natural="skl2onnx's OneHotEncoder does not find a missing string among its categories",
)
def missing_text_one_hot():
    """Missing text is a category of its own to the encoder, and none to its export."""
    from sklearn.preprocessing import OneHotEncoder

    return _encoded_colours(OneHotEncoder(handle_unknown="ignore", sparse_output=False), gaps=True)


@fault(
    "missing-value-handling",
    "unknown-category",
    culprit=["colour"],
    natural="skl2onnx's OrdinalEncoder does not write NaN for a missing string",
)
def missing_text_as_a_number():
    """Missing text is encoded as -2; its export has another number."""
    from sklearn.preprocessing import OrdinalEncoder

    return _encoded_colours(OrdinalEncoder(encoded_missing_value=-2), gaps=True)


@fault(
    "missing-value-handling",
    "unknown-category",
    culprit=["colour"],
    natural="skl2onnx's TargetEncoder takes a missing string for an unknown one",
)
def missing_text_by_target():
    """Missing text has a mean target of its own, which the export does not use."""
    from sklearn.preprocessing import TargetEncoder

    return _encoded_colours(TargetEncoder(random_state=0), gaps=True)


@fault("unknown-category", culprit=["city"])
def unknown_taken_for_the_first():
    """A city that the encoder has not seen is nothing to the model, and Lima to the export."""
    frame = loans().assign(city=np.where(rng(6).random(len(loans())) < 0.1, "Tokyo", loans()["city"]))
    first = Step(
        "LabelEncoder",
        domain="ai.onnx.ml",
        keys_strings=["Lima", "Oslo", "Quito", "Rome"],
        values_strings=["Lima", "Oslo", "Quito", "Rome"],
        default_string="Lima",
    )
    return models.loan_pipeline(), preceded(models.loan_onnx(), "city", first), frame


@fault("unknown-category", "preprocessing-differs", culprit=["city"])
def categories_in_small_letters():
    """The export knows the cities in small letters only."""
    proto = with_attributes(
        models.loan_onnx(), "OneHotEncoder", cats_strings=lambda old: [text.lower() for text in old]
    )
    return models.loan_pipeline(), proto, loans()


@fault("unknown-category", culprit=["grade"])
def blanks_stripped():
    """The data has grades with a blank behind; the encoder does not know them, the export strips them."""
    frame = loans().assign(grade=np.where(rng(7).random(len(loans())) < 0.15, loans()["grade"] + " ", loans()["grade"]))
    known = [letter + blank for letter in "ABC" for blank in ("", " ")]
    strip = Step(
        "LabelEncoder",
        domain="ai.onnx.ml",
        keys_strings=known,
        values_strings=[text.strip() for text in known],
        default_string="?",
    )
    return models.loan_pipeline(), preceded(models.loan_onnx(), "grade", strip), frame


@fault("unknown-category", "input-type", "preprocessing-differs", culprit=["branch", "encoder"])
def numbers_written_as_text():
    """Branch numbers were written as 1.0, 2.0 for the export, and arrive as 1, 2."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = pd.DataFrame({"branch": rng(8).integers(1, 6, 300)})
    texts = frame.astype(float).astype(str).astype(object)
    target = np.asarray(frame["branch"] ** 2.0)

    def steps():
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        return Pipeline([("encoder", encoder), ("line", Ridge(alpha=0.1))])

    model, other = steps().fit(frame, target), steps().fit(texts, target)
    return model, converted(other, texts, types=models.types_of(texts)), frame


@fault("input-layout", culprit=["pixels"])
def red_and_blue():
    """The export takes its channels as blue, green, red."""
    proto = preceded(nets.image_onnx(), "pixels", Step("Gather", np.array([2, 1, 0]), axis=1))
    return nets.image(), proto, nets.pictures()


@fault("input-layout", culprit=["pixels"])
def height_and_width():
    """Height and width are exchanged."""
    proto = preceded(nets.image_onnx(), "pixels", Step("Transpose", perm=[0, 1, 3, 2]))
    return nets.image(), proto, nets.pictures()


@fault("input-layout", culprit=["pixels"])
def pixels_of_zero_to_one():
    """The export expects pixels of 0 to 1 and gets 0 to 255: it scales them up first."""
    proto = preceded(nets.image_onnx(), "pixels", Step("Mul", np.float32(255)))
    return nets.image(), proto, nets.pictures()


@fault(
    "input-layout", "preprocessing-dropped", "model-part-dropped", culprit=["pixels", "mean", "spread", "Sub", "Div"]
)
def pixels_not_normalised():
    """The mean and the spread of the training images are not taken out in the export."""
    return nets.image(), without(without(nets.image_onnx(), "Div"), "Sub"), nets.pictures()


def _refitted(frame):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline

    steps = [("prep", models.loan_columns()), ("clf", LogisticRegression(max_iter=500))]
    return Pipeline(steps).fit(frame, defaulted(loans()))


def _with_zeros():
    frame = loans().copy()
    frame.loc[rng(10).random(len(frame)) < 0.15, "balance"] = 0.0
    return frame


def _side_by_side(frame):
    from sklearn.compose import ColumnTransformer

    return ColumnTransformer([("columns", "passthrough", list(frame))])


def _encoded_colours(encoder, *, gaps):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline

    draw = rng(12)
    colour = draw.choice(["amber", "blue", "cyan"], 300).astype(object)
    if gaps:
        colour[draw.random(300) < 0.15] = np.nan
    frame = pd.DataFrame({"colour": colour})
    target = pd.Series(colour).map({"amber": 1.0, "blue": 5.0, "cyan": -3.0}).fillna(9.0) + draw.normal(0, 0.1, 300)
    model = Pipeline([("encoder", encoder), ("line", Ridge(alpha=0.1))]).fit(frame, np.asarray(target))
    return model, converted(model, frame, types=models.types_of(frame)), frame


def _around(centre, reach, *, seed):
    """Numbers whose mean float32 holds exactly: the scaler's own constant is not what loses digits."""
    offsets = rng(seed).uniform(0, reach, 150)
    return centre + np.concatenate([offsets, -offsets])
