"""Steps of pipelines: dropped, refitted, or meant otherwise by the converter; and text."""

from __future__ import annotations

import numpy as np

from faults import models
from faults.editing import with_attributes
from faults.models import converted, defaulted, ill, loans, measurements, recovery, reviews, rng, severity
from faults.registry import fault

SKL = "https://github.com/onnx/sklearn-onnx/issues"
TOKENS = ["tfidf", "text"]


@fault("preprocessing-dropped", culprit=["scaler"])
def scaler_left_out():
    """Only the last step of a pipeline was exported."""
    return models.logistic(), converted(models.logistic()[-1], measurements()), measurements()


@fault("preprocessing-dropped", culprit=["scaler"])
def scaler_left_out_of_a_branch():
    """The numbers of a mixed table are imputed and encoded, but not scaled."""
    from sklearn.pipeline import Pipeline

    model = models.loan_pipeline()
    bare = models.loan_columns(scaled=False).fit(loans())
    return (
        model,
        converted(Pipeline([("prep", bare), ("clf", model[-1])]), loans(), types=models.types_of(loans())),
        loans(),
    )


@fault("preprocessing-dropped", culprit=["rotation"])
def rotation_left_out():
    """A principal component analysis that keeps all components was dropped."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    frame = measurements()
    steps = [("scaler", StandardScaler()), ("rotation", PCA()), ("clf", LogisticRegression())]
    model = Pipeline(steps).fit(frame, severity(frame))
    return model, converted(Pipeline([steps[0], steps[2]]), frame), frame


@fault(
    "preprocessing-dropped",
    culprit=["log"],
    natural="skl2onnx has no converter for FunctionTransformer(np.log1p): people leave it out",
)
def logarithm_left_out():
    """The first step takes logarithms of the columns; it cannot be converted and was left out."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    frame = loans()[["income", "age"]].astype(float)
    steps = [("log", FunctionTransformer(np.log1p)), ("scaler", StandardScaler()), ("line", Ridge())]
    model = Pipeline(steps).fit(frame, np.asarray(np.log(frame["income"]) * 3 + frame["age"] / 10))
    return model, converted(Pipeline(steps[1:]), frame), frame


@fault("preprocessing-dropped", culprit=["norm"])
def normaliser_left_out():
    """Rows are scaled to unit length in the model, not in the export."""
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import Normalizer

    frame = measurements()
    steps = [("norm", Normalizer()), ("trees", GradientBoostingClassifier(n_estimators=8, random_state=0))]
    model = Pipeline(steps).fit(frame, ill(frame))
    return model, converted(model[-1], frame), frame


@fault("preprocessing-differs", culprit=["scaler"])
def scaler_refitted():
    """The scaler was fitted again to the data of the service."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    model, later = models.logistic(3, True), measurements(300, 6) * 1.07 + 2
    other = Pipeline([("scaler", StandardScaler().fit(later)), ("classifier", model[-1])])
    return model, converted(other, measurements()), measurements()


@fault("preprocessing-differs", culprit=["scaler", "age"])
def mean_of_one_column():
    """The scaler takes another mean from one column."""
    proto = with_attributes(models.sk_network_onnx(), "Scaler", offset=lambda old: [old[0], old[1], old[2] + 9, old[3]])
    return models.sk_network(), proto, measurements()


@fault("preprocessing-differs", culprit=["scaler"])
def variance_for_deviation():
    """The scaler divides by the variance instead of the standard deviation."""
    proto = with_attributes(models.logistic_onnx(), "Scaler", scale=lambda old: [x * x for x in old])
    return models.logistic(), proto, measurements()


@fault("preprocessing-differs", "missing-value-handling", culprit=["imputer", "balance"])
def mean_for_median():
    """Gaps are filled with the mean of the column instead of its median."""
    mean = float(loans()["balance"].mean() + 150)
    proto = with_attributes(models.loan_onnx(), "Imputer", imputed_value_floats=lambda old: [old[0], mean, old[2]])
    return models.loan_pipeline(), proto, loans()


@fault("preprocessing-differs", "unknown-category", culprit=["city"])
def categories_in_another_order():
    """The columns of an encoder stand for other cities."""
    proto = with_attributes(
        models.loan_onnx(), "OneHotEncoder", cats_strings=lambda old: [old[2], old[1], old[0], old[3]]
    )
    return models.loan_pipeline(), proto, loans()


@fault("preprocessing-differs", culprit=["grade", "ordinal"])
def ranks_in_another_order():
    """An ordinal encoder ranks the grades the other way round."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    frame = loans()[["grade", "income"]]

    def fitted(ranks):
        columns = [("ordinal", OrdinalEncoder(categories=[ranks]), ["grade"]), ("rest", "passthrough", ["income"])]
        return ColumnTransformer(columns).fit(frame)

    trees = GradientBoostingClassifier(n_estimators=8, random_state=0)
    model = Pipeline([("prep", fitted(["A", "B", "C"])), ("trees", trees)]).fit(frame, defaulted(loans()))
    other = Pipeline([("prep", fitted(["C", "B", "A"])), ("trees", model[-1])])
    return model, converted(other, frame, types=models.types_of(frame)), frame


@fault("preprocessing-differs", culprit=["select"])
def other_features_selected():
    """The selector of the export lets other columns through."""
    from sklearn.feature_selection import SelectKBest, f_regression
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline

    frame = measurements()
    model = Pipeline([("select", SelectKBest(f_regression, k=2)), ("line", Ridge())]).fit(frame, recovery(frame))
    other = SelectKBest(f_regression, k=2).fit(frame, models.standard(frame)[:, 2] - models.standard(frame)[:, 0])
    return model, converted(Pipeline([("select", other), ("line", model[-1])]), frame), frame


@fault("preprocessing-differs", culprit=["power"])
def exponents_refitted():
    """The exponents of a power transformation are those of other data."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import PowerTransformer

    frame = (measurements() / 50).abs()
    model = Pipeline([("power", PowerTransformer()), ("line", Ridge())]).fit(frame, recovery(measurements()))
    other = PowerTransformer().fit(frame)
    other.lambdas_ = other.lambdas_ + 0.2
    return model, converted(Pipeline([("power", other), ("line", model[-1])]), frame), frame


@fault("preprocessing-differs", "model-part-dropped", "operator-semantics", culprit=["scaler", "clip"])
def clipping_left_out():
    """The scaler clips what is out of range; its export does not."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import MinMaxScaler

    frame = measurements()
    scaler = MinMaxScaler(clip=True).fit(frame.iloc[:40])
    model = Pipeline([("scaler", scaler), ("line", Ridge().fit(scaler.transform(frame), recovery(frame)))])
    bare = MinMaxScaler().fit(frame.iloc[:40])
    return model, converted(Pipeline([("scaler", bare), ("line", model[-1])]), frame), frame


@fault("preprocessing-differs", "wrong-wiring", "feature-order", culprit=["prep", "num", "cat", "Concat", "columns"])
def branches_exchanged():
    """The numbers and the categories of a mixed table are joined in the other order."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    model = models.loan_pipeline()
    branches = {name: (name, step, columns) for name, step, columns in model[0].transformers_}
    other = ColumnTransformer([branches["cat"], branches["num"]]).fit(loans())
    return (
        model,
        converted(Pipeline([("prep", other), ("clf", model[-1])]), loans(), types=models.types_of(loans())),
        loans(),
    )


@fault(
    "model-part-dropped",
    "preprocessing-differs",
    "missing-value-handling",
    "output-layout",
    culprit=["indicator", "add_indicator", "imputer", "value", "variable"],
    natural="skl2onnx ignores add_indicator of SimpleImputer",
)
def indicators_left_out():
    """The columns that say where a value was missing are not in the export."""
    from sklearn.impute import SimpleImputer

    frame = models.with_gaps(measurements(), "age", "dose")
    model = SimpleImputer(add_indicator=True).fit(frame)
    return model, converted(model, frame), frame


@fault(
    "operator-semantics",
    "approximation",
    culprit=["IsotonicRegression", "calibrated_classifiers_", "calibrator", "ArgMin", "CalibratedClassifierCV"],
    natural="skl2onnx takes the nearest step of an isotonic calibration where the model interpolates",
)
def calibration_by_steps():
    """Calibrated probabilities are those of the nearest point instead of between two."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.naive_bayes import GaussianNB

    frame = measurements()
    model = CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=2).fit(frame, ill(frame))
    return model, converted(model, frame), frame


@fault(
    "aggregation",
    "model-part-dropped",
    "operator-semantics",
    culprit=["value", "variable", "weights", "neighbours", "neighbors", "KNeighborsRegressor"],
    natural="skl2onnx ignores weights='distance' of KNeighborsRegressor",
)
def neighbours_unweighted():
    """The nearest neighbours count alike, whatever their distance."""
    from sklearn.neighbors import KNeighborsRegressor

    frame = measurements()
    model = KNeighborsRegressor(5, weights="distance").fit(frame.iloc[:120], recovery(frame)[:120])
    return model, converted(model, frame), frame.iloc[120:]


@fault("tokenizer", culprit=TOKENS, natural="https://github.com/onnx/onnx/issues/6078")
def letters_beyond_ascii():
    """Words with accents and other scripts are cut into pieces."""
    texts, liked = reviews(160, ("café", "naïve", "über", "straße", "данные"))
    model = models.text_model(texts, liked)
    return model, models.text_converted(model), {"text": texts}


@fault(
    "tokenizer", culprit=TOKENS, natural="skl2onnx makes n-grams before stop words are taken out, scikit-learn after"
)
def stop_words_inside_pairs():
    """Pairs of words across a stop word are found by the model only."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, liked = reviews()
    model = models.text_model(texts, liked, TfidfVectorizer(ngram_range=(1, 2), stop_words=["film", "plot"]))
    return model, models.text_converted(model), {"text": texts}


@fault("tokenizer", culprit=TOKENS)
def split_at_blanks():
    """The export splits at blanks only, so that a comma sticks to its word."""
    texts, liked = reviews()
    texts = np.array([text.replace(" ", ", ", 2) for text in texts], dtype=object)
    model = models.text_model(texts, liked)
    return model, models.text_converted(model, separators=[" "]), {"text": texts}


@fault("tokenizer", culprit=TOKENS)
def capitals_kept():
    """The export does not turn capitals into small letters."""
    texts, liked = reviews()
    model = models.text_model(texts, liked)
    proto = with_attributes(models.text_converted(model), "StringNormalizer", case_change_action="NONE")
    return model, proto, {"text": texts}


@fault("tokenizer", "preprocessing-differs", culprit=TOKENS)
def single_letters_dropped():
    """The model counts words of one letter, its export words of two and more."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, liked = reviews(160, ("a", "b", "c"))
    model = models.text_model(texts, liked, TfidfVectorizer(token_pattern=r"[a-zA-Z]+"))
    return model, models.text_converted(model, tokenexp="[a-zA-Z][a-zA-Z]+"), {"text": texts}


@fault(
    "preprocessing-differs",
    "operator-semantics",
    culprit=TOKENS,
    natural="skl2onnx gets the logarithms of sublinear_tf wrong",
)
def sublinear_counts():
    """Counts of words enter by their logarithm, which the export computes otherwise."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, liked = reviews()
    model = models.text_model(texts, liked, TfidfVectorizer(sublinear_tf=True))
    return model, models.text_converted(model), {"text": texts}


@fault("preprocessing-differs", culprit=TOKENS)
def older_word_weights():
    """The weights of the words are those of another collection of texts."""
    texts, liked = reviews()
    model = models.text_model(texts, liked)
    other = models.text_model(texts, liked)
    vectorizer = other[0]
    vectorizer.idf_ = vectorizer.idf_ * rng(3).uniform(0.5, 2.0, len(vectorizer.idf_))
    other.steps[1] = ("clf", model[1])
    return model, models.text_converted(other), {"text": texts}
