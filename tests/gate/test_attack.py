"""The second attack: models and files made to lead the tool astray, by somebody who had read its source.

Each was a success before it was refused: it read a file outside, wrote or read beyond an array, or had the command end
without a report. Here none is asked for more than to be read, so that a success would be seen as a file that loads.
"""

from __future__ import annotations

import copyreg
import functools
import io
import json
import math
import operator
import os
import pickle
import queue
import re
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import scipy.stats
import skops.io
from pandas._libs.tslibs.nattype import _nat_unpickle
from pandas.core.indexes.base import _new_Index
from pandas.core.indexes.datetimes import _new_DatetimeIndex
from pandas.core.indexes.timedeltas import _new_TimedeltaIndex
from scipy.optimize import OptimizeResult
from scipy.optimize._optimize import MemoizeJac, _Brute_Wrapper
from scipy.spatial._qhull import _Qhull
from sklearn.cluster import Birch, BisectingKMeans, KMeans
from sklearn.cluster._kmeans import _kmeans_single_lloyd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression, enet_path
from sklearn.metrics import _dist_metrics, make_scorer
from sklearn.metrics.pairwise import euclidean_distances, pairwise_kernels
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer, RadiusNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, MultiLabelBinarizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, OneClassSVM
from sklearn.tree._criterion import Gini, __pyx_unpickle_Criterion
from sklearn.tree._tree import Tree
from sklearn.utils import Bunch
from sklearn.utils._fast_dict import IntFloatDict
from sklearn.utils.validation import check_array

import likewise
from likewise.cli import gates
from likewise.data.files import remove
from likewise.errors import ModelError, UntrustedModelError
from likewise.models.pickles import load
from likewise.models.sklearn import open as sklearn_files
from likewise.report.console import quoted
from likewise.tasks.isolation import messages
from likewise.tasks.isolation.supervisor import CrashError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = RNG.integers(0, 3, 60)


def changed(model, **attributes):
    vars(model).update(attributes)
    return model


def without(model, name):
    del vars(model)[name]
    return model


def given_instead_of_rows(value, *, by=max):
    """Steps that hand the next one an object of the file: a number of rows, whether it is any, and that many of it."""
    some = FunctionTransformer(functools.partial(operator.le, 0))
    many = FunctionTransformer(functools.partial(operator.mul, [value]))
    return [FunctionTransformer(len), some, many, FunctionTransformer(by)]


def boosting(**attributes):
    return changed(GradientBoostingClassifier(n_estimators=2, max_depth=1).fit(X, Y), **attributes)


def beginning_with_no_class():
    model = boosting()
    model.init_.class_prior_ = np.zeros(1)
    return model


def called(function, *arguments):
    """What has that function called while the file is read."""

    class Call:
        def __reduce__(self):
            return function, arguments

    return Call()


def handing_on(array):
    """Steps that make -1 of all rows, and of that the shape of an array of the model, which the next one is given."""
    names = (FunctionTransformer(np.sign), FunctionTransformer(np.unique))
    return make_pipeline(*names, FunctionTransformer(functools.partial(np.reshape, array)))


def splitting_by_category():
    model = HistGradientBoostingClassifier(max_iter=1).fit(X, Y)
    tree = model._predictors[0][0]
    tree.nodes["is_categorical"][0], tree.raw_left_cat_bitsets = 1, np.zeros((1, 8), np.uint32)
    return model


def vectors_in_columns():
    model = SVC().fit(scipy.sparse.csr_matrix(X), Y)
    return changed(model, support_vectors_=scipy.sparse.csc_matrix(model.support_vectors_))


def unnamed_field():
    """An array with a field that no order names, beyond its end."""
    fields = {"a": (np.dtype("f8"), 0), "b": (np.dtype("f8"), 10**6)}

    class Type:
        def __reduce__(self):
            return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 16)

    class Array:
        def __reduce__(self):
            empty = (np.ndarray, (0,), b"b")
            return np._core.multiarray._reconstruct, empty, (1, (3,), Type(), False, bytes(24))

    return Array()


def new(kind, *arguments):
    """What has an object of that class made while the file is read, as pickle makes most objects."""

    class Made:
        __class__ = kind  # as pickle asks of whoever says so

        def __reduce__(self):
            return copyreg.__newobj__, (kind, *arguments)

    return Made()


def always(value):
    """An object of scipy's that answers the same whatever it is asked."""
    return changed(MemoizeJac(None), x=np.zeros((0, 1, 1)), _value=value, jac=1)


def calling_itself(value, **names):
    return changed(value, **{f"__{name}__": text for name, text in names.items()})


def kernel_over_few_rows(kernel, rows=10**7, fitted=None):
    """Support vectors that lie far behind what the kernel is computed from."""
    model = SVC(kernel="precomputed").fit(X @ X.T, Y)
    last = (rows - 1 - np.arange(len(model.support_))).astype(np.int32)
    fitted = np.zeros((1, 3)) if fitted is None else fitted
    return changed(
        model, kernel=kernel, shape_fit_=(rows, 3), support_=last, _BaseLibSVM__Xfit=fitted, n_features_in_=3
    )


def filled(kind, *arguments, **state):
    """An object of that class which has a state of the file's choice."""

    class Filled:
        def __reduce__(self):
            return kind, arguments, state

    return Filled()


def typed(name, *state):
    """A type of arrays with a state of the file's choice."""

    class Typed:
        def __reduce__(self):
            return np.dtype, (name, False, True), state

    return Typed()


def hiding(array, number):
    """The same array, in which all but the last number are another one that it hides."""
    mask = np.ones(array.shape, bool)
    mask[-1] = False
    return np.ma.masked_array(np.where(mask, number, array).astype(array.dtype), mask=mask)


def hiding_codes():
    words = np.array([["a"]] * 20 + [["b"]] * 20 + [["c"]] * 2 + [["d"]], dtype=object)
    model = OneHotEncoder(min_frequency=5, handle_unknown="infrequent_if_exist").fit(words)
    model._default_to_infrequent_mappings[0] = hiding(model._default_to_infrequent_mappings[0], 10**9)
    return model


def step(value):
    return changed(make_pipeline(StandardScaler().fit(X)), steps=[("a", value), ("b", StandardScaler().fit(X))])


ADDRESS = {"shape": (1,), "dtype": np.dtype("O"), "buffer": bytes(range(8))}
ZONE = "datetime64[ns, dateutil//etc/passwd]"
BRUTE = KNeighborsClassifier(algorithm="brute", metric="manhattan")
SPARSE = scipy.sparse.csr_matrix(np.eye(3))
FEW_ROWS = FunctionTransformer(functools.partial(np.mean, axis=0, keepdims=True))
PAYLOADS = {
    # What a step hands to the next one, where that should be rows.
    "a file name for xgboost": lambda: make_pipeline(
        *given_instead_of_rows("/etc/passwd?format=csv"), StandardScaler()
    ),
    "the smallest of fixed values": lambda: FunctionTransformer(min),
    "the number of rows": lambda: FunctionTransformer(len),
    "one of the rows": lambda: FunctionTransformer(operator.itemgetter(0)),
    "one value of many": lambda: FunctionTransformer(np.max),
    "one value along the rows": lambda: FunctionTransformer(np.sum, kw_args={"axis": 0}),
    "objects to multiply with": lambda: FunctionTransformer(np.dot, kw_args={"b": np.array(["/etc"], dtype=object)}),
    "an estimator made of functions": lambda: Pipeline([("a", Bunch(transform=np.ravel, fit=len))]),
    "a table made of functions": lambda: changed(StandardScaler(), rows=Bunch(__array__=len)),
    "a maker of scorers": lambda: FunctionTransformer(make_scorer, kw_args={"response_method": ("eval",)}),
    # Arrays that were looked at, written into later.
    "out": lambda: FunctionTransformer(np.trunc, kw_args={"out": SPARSE.indices, "casting": "unsafe"}),
    "out in a partial": lambda: FunctionTransformer(functools.partial(np.trunc, out=SPARSE.indices)),
    "out by its place": lambda: FunctionTransformer(functools.partial(np.add, np.ones(3), np.ones(3))),
    "out of a metric": lambda: changed(KNeighborsClassifier().fit(X, Y), effective_metric_params_={"out": X}),
    # Functions that believe what they are given.
    "means of other widths": lambda: FunctionTransformer(
        _kmeans_single_lloyd, kw_args={"sample_weight": np.ones(1), "centers_init": np.zeros((2, 1))}
    ),
    "a path without a look": lambda: FunctionTransformer(enet_path, kw_args={"check_input": False}),
    "a density": lambda: FunctionTransformer(scipy.stats.gaussian_kde(X.T)),
    # Numbers that become columns of sparse matrices and places in answers.
    "a column for a category": lambda: changed(OneHotEncoder().fit(X[:, :1]), _n_features_outs=[1]),
    "a category left out": lambda: changed(
        OneHotEncoder().fit(X[:, :1]), _drop_idx_after_grouping=np.array([10**6], dtype=object), _n_features_outs=[59]
    ),
    "a column for a word": lambda: changed(CountVectorizer().fit(["a word"]), vocabulary_={"word": 10**9}),
    "a column below zero": lambda: changed(CountVectorizer().fit(["a word"]), vocabulary_={"word": -1}),
    "a column for a name": lambda: changed(DictVectorizer().fit([{"a": 1}]), vocabulary_={"a": 10**9}),
    "a column for a label": lambda: changed(MultiLabelBinarizer().fit([["a"]]), _cached_dict={"a": 10**9}),
    "a column for a neighbour": lambda: changed(KNeighborsTransformer().fit(X), n_samples_fit_=10),
    "an answer for a neighbour": lambda: changed(KNeighborsClassifier().fit(X, Y), _y=np.full(60, 10**9)),
    "answers for fewer neighbours": lambda: changed(KNeighborsClassifier().fit(X, Y), _y=Y[:1]),
    "centres of an unknown width": lambda: without(KMeans(2, n_init=1).fit(X), "n_features_in_"),
    "neighbours of an unknown width": lambda: without(KNeighborsClassifier().fit(X, Y), "n_features_in_"),
    "fewer rows to begin with": lambda: boosting(init_=make_pipeline(FEW_ROWS, LogisticRegression().fit(X, Y))),
    "fewer classes to begin with": beginning_with_no_class,
    # The sixth attempt.
    "answers beyond the classes, as fractions": lambda: changed(BRUTE.fit(X, Y), _y=np.full(60, 1e9)),
    "answers beyond the classes, unsigned": lambda: changed(BRUTE.fit(X, Y), _y=np.full(60, 10**9, np.uint64)),
    "lengths of fewer points": lambda: changed(BRUTE.fit(X, Y), effective_metric_params_={"Y_norm_squared": Y[:1]}),
    "lengths of fewer centres": lambda: changed(Birch(n_clusters=None).fit(X), _subcluster_norms=np.zeros(1)),
    "support vectors in columns": vectors_in_columns,
    "categories of a feature without any": splitting_by_category,
    "an array of the model for the next step": lambda: handing_on(np.zeros(3)),
    "a field that is not named": unnamed_field,
    "classes that are counted wrong": lambda: called(Gini, 10**8, np.ones(1, np.intp)),
    "compiled code that nobody fits with": lambda: called(IntFloatDict, np.arange(9), np.ones(1)),
    "a hull": lambda: called(_Qhull, b"d", X, b"Qt"),
    "a file in the type of a column": lambda: called(pd.Series, [], None, ZONE),
    "a file in the type of an index": lambda: called(pd.Index, [], ZONE),
    "a file in a type of Arrow's": lambda: called(
        pd.Series, [], None, "timestamp[ns, tz=dateutil//etc/passwd][pyarrow]"
    ),
    "a file in numpy's text": lambda: called(pd.DatetimeTZDtype, "ns", np.str_("dateutil//etc/passwd")),
    "a file in the type of rows": lambda: FunctionTransformer(check_array, kw_args={"dtype": ZONE}),
    "a type that is called": lambda: OneHotEncoder(feature_name_combiner=pd.DatetimeTZDtype),
    # The tenth attempt: functions that rebuild any class they are given, and what believes numbers.
    "an address in an index": lambda: called(_new_TimedeltaIndex, np.ndarray, ADDRESS),
    "an address in another index": lambda: called(_new_DatetimeIndex, np.ndarray, ADDRESS),
    "an address in any index": lambda: called(_new_Index, np.ndarray, ADDRESS),
    "classes counted wrong by an index": lambda: called(
        _new_TimedeltaIndex, Gini, {"n_outputs": 10**8, "n_classes": np.ones(1, np.intp)}
    ),
    "a class of another module": lambda: called(_dist_metrics.newObj, Tree),
    "a class that is derived": lambda: called(__pyx_unpickle_Criterion, Gini, 0, None),
    "masked, and no array": lambda: called(np.ma.core._mareconstruct, StandardScaler, np.ndarray, (0,), b"b"),
    "an array that was not filled": lambda: called(np._core.multiarray._reconstruct, np.ndarray, (9,), "f8"),
    "outputs counted wrong": lambda: new(Tree, 3, np.ones(1, np.intp), 10**8),
    "as many bytes as it says": lambda: new(bytearray, 10**6),
    # Objects that say what they are, and what scipy wraps functions in.
    "a file name for any rows": lambda: FunctionTransformer(
        calling_itself(always("/etc/passwd?format=csv"), module="numpy", qualname="rows")
    ),
    "a file name, for each row": lambda: FunctionTransformer(np.vectorize(always("/etc/passwd?format=csv"))),
    "out, by a wrapper for each row": lambda: FunctionTransformer(
        np.vectorize(_Brute_Wrapper(np.sum, (0, np.int64, SPARSE.indices)), signature="(n)->(m)")
    ),
    "an object for each row": lambda: FunctionTransformer(np.vectorize(RBF())),
    # The fourteenth attempt: text made of arrays, tables with methods of the file's choice, types that crash numpy,
    # numbers that an array hides from who looks at them, and threads without end.
    "text made of rows": lambda: FunctionTransformer(np.zeros_like, kw_args={"dtype": np.dtype("U1")}),
    "text made of rows, by a word": lambda: FunctionTransformer(functools.partial(np.zeros_like, dtype="U1")),
    "objects made of rows": lambda: FunctionTransformer(np.asarray, kw_args={"dtype": object}),
    "objects or numbers made of rows": lambda: FunctionTransformer(check_array, kw_args={"dtype": [float, "O"]}),
    "text before the rows": lambda: FunctionTransformer(functools.partial(np.add, np.array(["/etc/passwd"]))),
    "listed text before the rows": lambda: FunctionTransformer(functools.partial(np.add, ["/etc/passwd"])),
    "an index in the place of a step": lambda: step(filled(pd.Index, [1])),
    "an index that transforms": lambda: step(filled(pd.Index, [1], transform=np.asarray)),
    "a column that transforms": lambda: step(filled(pd.Series, [1], transform=np.asarray)),
    "a table that transforms": lambda: step(filled(pd.DataFrame, [1], transform=np.asarray)),
    "a type that makes arrays": lambda: filled(pd.CategoricalDtype, ["a"], construct_array_type=dict),
    "columns with a least of their own": lambda: filled(pd.Series, [1], **pd.Series([1]).__getstate__(), min=int),
    "columns with a least that is no function": lambda: filled(pd.Index, [1], min=5),
    "columns that are fitted": lambda: filled(pd.Index, [1], fit=5),
    "what is missing": lambda: filled(_nat_unpickle, None, extra=5),
    "a time without a unit": lambda: typed("M8", 3, "<", None, None, None, -1, -1, 0),
    "a duration without a unit": lambda: typed("m8", 4, "<", None, None, None, -1, -1, 0, None),
    "a time of another unit": lambda: typed("M8", 4, "<", None, None, None, -1, -1, 0, (None, (b"Z", 1, 1, 1))),
    "a time of no unit": lambda: typed("M8", 4, "<", None, None, None, -1, -1, 0, (None, (b"s", 0, 1, 1))),
    "text that lies anywhere": lambda: typed("U2", 3, "<", None, None, None, 8, 0, 8),
    "bytes that lie anywhere": lambda: typed("V8", 3, "|", None, None, None, 8, -1, 0),
    "fields that lie anywhere": lambda: typed("V8", 3, "|", None, ("a",), {"a": (np.dtype("f8"), 0)}, 8, 0, 16),
    "answers that are hidden": lambda: changed(BRUTE.fit(X, Y), _y=hiding(Y, 10**10)),
    "support vectors that are hidden": lambda: changed(
        SVC().fit(X, Y), _n_support=np.ma.masked_array(np.full(3, 10**9, np.int32), mask=True)
    ),
    "codes that are hidden": hiding_codes,
    "threads without end": lambda: changed(StandardScaler(), n_jobs=10**6),
    "threads without end, as text": lambda: changed(StandardScaler(), _other_params={"num_threads": "1000000"}),
    "threads without end, in an array": lambda: changed(StandardScaler(), thread_count=np.array([10**6])),
    "threads without end, backwards": lambda: changed(StandardScaler(), nthread=-float("inf")),
    "another module": lambda: calling_itself(StandardScaler().fit(X), module="numpy"),
    "another name": lambda: calling_itself(StandardScaler().fit(X), qualname="sum"),
    "another name, in numpy's text": lambda: calling_itself(StandardScaler().fit(X), name=np.str_("sum")),
    # Kernels that give fewer columns than there are support vectors to look up.
    "a kernel that subtracts": lambda: kernel_over_few_rows(operator.sub),
    "a kernel of numpy": lambda: kernel_over_few_rows(np.subtract),
    "a kernel of few rows": lambda: kernel_over_few_rows(pairwise_kernels),
    "a kernel in parts": lambda: kernel_over_few_rows(RBF() + changed(RBF(), part=operator.sub), rows=60, fitted=X),
    "a kernel as it is written": lambda: kernel_over_few_rows("precomputed"),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_leads_a_model_astray_is_refused(tmp_path, name):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(PAYLOADS[name](), protocol=5))
    with pytest.raises(UntrustedModelError, match=r"m\.pkl"):
        load(tmp_path / "m.pkl")


HONEST = {
    "categories": lambda: OneHotEncoder(drop="if_binary", min_frequency=2).fit(np.r_[X[:, :1] > 0, X[:, 1:2] > 2]),
    "rare categories": lambda: OneHotEncoder(max_categories=3).fit(RNG.integers(0, 9, (60, 2))),
    "words": lambda: CountVectorizer().fit(["in and out", "out of the box"]),
    "names": lambda: DictVectorizer().fit([{"out": 1, "in": 2}]),
    "boosting": boosting,
    "boosting from nothing": lambda: GradientBoostingClassifier(n_estimators=2, init="zero").fit(X, Y > 1),
    "neighbours": lambda: KNeighborsClassifier(algorithm="kd_tree").fit(X, Y),
    "means by halves": lambda: BisectingKMeans(3).fit(X),
    "columns": lambda: FunctionTransformer(operator.itemgetter("text")),
    "a mean of columns": lambda: FunctionTransformer(np.mean, kw_args={"axis": 1, "keepdims": True}),
    "clipped": lambda: FunctionTransformer(functools.partial(np.clip, a_min=0, a_max=1)),
    "columns by their type": lambda: make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include=[pd.Int64Dtype, float]))
    ).fit(pd.DataFrame(X)),
    "several answers of neighbours": lambda: KNeighborsClassifier().fit(X, np.c_[Y, Y > 1]),
    "neighbours by radius": lambda: RadiusNeighborsClassifier(algorithm="brute", metric="manhattan").fit(X, Y > 1),
    "a matrix before the rows": lambda: FunctionTransformer(functools.partial(np.dot, np.eye(3))),
    "words of a library": lambda: CountVectorizer(token_pattern=r"\S+").fit(["in dateutil/tz, or dateutil/parser"]),
    "words to leave out": lambda: changed(CountVectorizer().fit(["a word"]), stop_words_=frozenset({"a"}), more=[1]),
    "a column of pandas": lambda: changed(StandardScaler().fit(X), mean_=pd.Series([1.0, 2.0, 3.0])),
    "lengths of centres": lambda: Birch(n_clusters=None).fit(X),
    "sparse support vectors": lambda: SVC().fit(scipy.sparse.csr_matrix(X), Y),
    "a kernel": lambda: SVC(kernel=pairwise_kernels).fit(X, Y),
    "a kernel with its width": lambda: SVC(kernel=functools.partial(pairwise_kernels, metric="rbf", gamma=0.5)).fit(
        X, Y
    ),
    "a kernel of processes": lambda: SVC(kernel=RBF() + WhiteKernel()).fit(X, Y),
    "a kernel that is known": lambda: SVC(kernel="precomputed").fit(X @ X.T, Y),
    "one class by a kernel": lambda: OneClassSVM(kernel=euclidean_distances).fit(X),
    "a kernel of sparse rows": lambda: SVC(kernel=pairwise_kernels).fit(scipy.sparse.csr_matrix(X), Y),
    "one by one": lambda: FunctionTransformer(np.vectorize(math.exp)),
    "moments": lambda: changed(StandardScaler().fit(X), when=pd.date_range("2020", periods=3)),
    "months": lambda: changed(StandardScaler().fit(X), when=pd.period_range("2020", periods=3, freq="M")),
    "durations": lambda: changed(StandardScaler().fit(X), when=pd.timedelta_range("1D", periods=3)),
    "ranges": lambda: changed(StandardScaler().fit(X), when=pd.interval_range(0, 3)),
    "what a search has tried": lambda: changed(
        StandardScaler().fit(X), cv_results_={"param_C": np.ma.masked_array([1.0, 2.0], mask=[0, 1])}
    ),
    "what a search found": lambda: changed(StandardScaler().fit(X), found=OptimizeResult(x=X)),
    "doubled": lambda: FunctionTransformer(functools.partial(operator.mul, 2), inverse_func=np.log1p),
}


SHORT = {
    "one value": lambda: FunctionTransformer(np.zeros_like, kw_args={"shape": ()}),
    "fewer rows": lambda: FunctionTransformer(np.zeros_like, kw_args={"shape": (1,)}),
    "more rows": lambda: FunctionTransformer(np.ravel),
    "a number": lambda: FunctionTransformer(functools.partial(np.dot, np.ones(60))),
    "a number, on the way back": lambda: FunctionTransformer(inverse_func=functools.partial(np.dot, np.ones(60))),
}


@pytest.mark.parametrize(("name", "end"), [*((name, "pkl") for name in SHORT), ("one value", "skops")])
def test_what_a_function_makes_of_rows_is_rows(tmp_path, name, end):
    """What is left after it was read: a function that answers otherwise than its name says."""
    path = tmp_path / f"m.{end}"
    path.write_bytes(skops.io.dumps(SHORT[name]()) if end == "skops" else pickle.dumps(SHORT[name]()))
    model = sklearn_files.read(path, trusted=())[0]
    rows = X[:, 0]
    with pytest.raises(ModelError, match="of 60 rows, and no rows"):
        model.inverse_transform(rows) if "back" in name else model.transform(X if name == "more rows" else rows)


@pytest.mark.parametrize(
    "rows", [X, pd.DataFrame(X, columns=[*"abc"]), SPARSE, X.tolist()], ids=lambda rows: type(rows)
)
def test_rows_go_through_functions_as_before(tmp_path, rows):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps([FunctionTransformer(np.abs), FunctionTransformer()]))
    for model in load(tmp_path / "m.pkl"):
        assert type(model.transform(rows)) is type(FunctionTransformer(model.func).transform(rows))
        assert type(pickle.loads(pickle.dumps(model))) is FunctionTransformer


@pytest.mark.parametrize(
    "name", ["support vectors that are hidden", "codes that are hidden", "answers that are hidden"]
)
def test_nothing_is_hidden_in_a_skops_file(tmp_path, name):
    (tmp_path / "m.skops").write_bytes(skops.io.dumps(PAYLOADS[name]()))
    with pytest.raises(UntrustedModelError, match="MaskedArray in the place of an array"):
        sklearn_files.read(tmp_path / "m.skops", trusted=())


@pytest.mark.parametrize("name", HONEST)
def test_what_people_fit_is_not_refused(tmp_path, name):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(HONEST[name](), protocol=5))
    load(tmp_path / "m.pkl")


def edited_skops(path, model, old, new):
    """A file of skops with one text in its description replaced."""
    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(model))) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            content, found = re.subn(old, new, before.read(name)) if name == "schema.json" else (before.read(name), 1)
            assert found
            after.writestr(name, content)


def test_no_text_in_a_skops_file_is_run(tmp_path):
    """The state of a distribution of scipy holds source, which scipy runs as soon as it is given that state."""
    ran = tmp_path / "ran"
    genuine = scipy.stats.norm.__getstate__()
    state = {name: value for name, value in genuine.items() if isinstance(value, str | int | None)}
    state["_parse_arg_template"] = f"import os\nos.mkdir({str(ran)!r})\n{genuine['_parse_arg_template']}"
    model = LogisticRegression().fit(X, Y)
    model.extra = MinMaxScaler()
    vars(model.extra).clear()
    vars(model.extra).update(state)
    old = rb'"MinMaxScaler",(\s*)"__module__": "sklearn.preprocessing._data"'
    edited_skops(tmp_path / "m.skops", model, old, rb'"norm_gen",\1"__module__": "scipy.stats._continuous_distns"')
    with pytest.raises(UntrustedModelError, match="norm_gen"):
        sklearn_files.read(tmp_path / "m.skops", trusted=())
    assert not ran.exists()
    skops.io.load(tmp_path / "m.skops", trusted=["scipy.stats._continuous_distns.norm_gen"])  # the attack itself
    assert ran.exists()


@pytest.mark.parametrize(
    ("what", "of"),
    [("Gini", "sklearn.tree._criterion"), ("argsort", "numpy"), ("StandardScaler", "sklearn.preprocessing")],
)
@pytest.mark.parametrize("loader", ["LossNode", "ListNode"])
def test_a_skops_file_calls_nothing_of_its_choice(tmp_path, loader, what, of):
    """skops calls the class of a loss or a container with what the file holds; the first crashed Python."""
    model = changed(LogisticRegression().fit(X, Y), extra=[1, 2])
    old = rb'"list",(\s*)"__module__": "builtins",(\s*)"__loader__": "ListNode"'
    new = rf'"{what}",\1"__module__": "{of}",\2"__loader__": "{loader}"'.encode()
    edited_skops(tmp_path / "m.skops", model, old, new)
    with pytest.raises(UntrustedModelError, match=rf"{what}\b"):
        sklearn_files.read(tmp_path / "m.skops", trusted=())


def test_a_skops_file_takes_no_method_of_an_object(tmp_path):
    model = FunctionTransformer(LogisticRegression().fit(X, Y).predict)
    edited_skops(tmp_path / "m.skops", model, b'"predict"', b'"__sklearn_tags__"')
    with pytest.raises(UntrustedModelError, match="takes a method of an object"):
        sklearn_files.read(tmp_path / "m.skops", trusted=())


def test_a_time_zone_names_no_file(tmp_path):
    """pandas opens the file that stands behind `dateutil/`, while the model is read."""

    class Zone:
        def __reduce__(self):
            return pd.DatetimeTZDtype, ("ns", f"dateutil/{tmp_path}/private")

    (tmp_path / "private").write_text("TZif")
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(Zone()))
    with pytest.raises(UntrustedModelError, match="calling pandas"):
        load(tmp_path / "m.pkl")


def test_two_arrays_of_a_file_share_no_memory(tmp_path):
    """What was looked at as indices could be changed as numbers, by a step that works in place."""
    shared = bytearray(64)

    class Of:
        def __init__(self, kind):
            self.kind = kind

        def __reduce__(self):
            return np._core.numeric._frombuffer, (shared, np.dtype(self.kind), (8,), "C")

    class Filled(Of):
        def __reduce__(self):
            empty = (np.ndarray, (0,), b"b")
            return np._core.multiarray._reconstruct, empty, (1, (1000,), np.dtype(self.kind), False, state)

    class Arrow:
        def __reduce__(self):
            return pa.py_buffer, (shared,)

    state, arrow = bytes(8000), Arrow()

    class Through(Of):
        def __reduce__(self):
            return np._core.numeric._frombuffer, (arrow, np.dtype(self.kind), (8,), "C")

    for kind in (Of, Filled, Through):
        (tmp_path / "m.pkl").write_bytes(pickle.dumps([kind("i8"), kind("f8")], protocol=5))
        whole, numbers = load(tmp_path / "m.pkl")
        numbers[:] = 1.0
        assert not whole.any()


def npy(shape, content=b""):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return head.getvalue() + content


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("x.npy", npy((1,), b"\0" * 4)), ("x.npy", npy((1,), b"\1" * 4))], "two arrays 'x'"),
        ([("x.npy", npy((10**12,), b"\0" * 4))], "is shorter than its shape"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_claims_what_it_does_not_hold(tmp_path, members, told):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    report = likewise.check(lambda x: x, lambda x: x, data=str(tmp_path / "d.npz"), explain=False)
    assert report.outcome == "INCONCLUSIVE"
    assert told in report.headline


def test_a_message_of_many_parts_is_not_read():
    """A list of two bytes takes 64 in memory: a message of 256 MiB would take six GiB."""
    found = queue.Queue()
    line = b"[" + b"[]," * messages.MOST_PARTS + b"[]]\n"
    messages.read(io.BytesIO(line), found, "t")
    assert "more parts" in str(found.get())
    assert found.get() is None


def test_a_folder_is_removed_however_deep_it_is(tmp_path, monkeypatch):
    """Python's own way stops at its limit of calls within each other, and took the report along."""
    room, kept = tmp_path / "room", tmp_path / "kept"
    room.mkdir()
    kept.write_text("of somebody else")
    (room / "link").symlink_to(tmp_path)
    monkeypatch.chdir(room)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
        os.symlink(kept, "link")
    monkeypatch.chdir(tmp_path)
    (room / "note").write_text("whose it is")
    remove(str(room), "note")
    assert not room.exists()
    assert kept.read_text() == "of somebody else"


def test_json_for_a_terminal_says_the_same_and_orders_nothing():
    said = {"name": "\x9b31m\u202e ##vso[task.setvariable]x \x7f"}
    shown = quoted(json.dumps(said, ensure_ascii=False))
    assert shown.isascii()
    assert shown.isprintable()
    assert "##vso" not in shown
    assert json.loads(shown) == said


def test_pieces_of_a_worker_that_are_no_base64_do_not_cost_the_report():
    said = {"outcome": "FAIL", "headline": "h", "json": json.dumps({"outcome": "FAIL"}), "shown": "", "files": {}}
    with pytest.raises(CrashError, match="not a report"):
        gates.answered({**said, "repro": dict.fromkeys(gates.REPRO, "%%%")}, [])
    _, pieces = gates.answered({**said, "repro": dict.fromkeys(gates.REPRO, "eA==")}, [])
    assert set(pieces.values()) == {b"x"}
