"""A model is looked through as it is when it has been read: what was put into it late, and where its numbers point."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import itertools
import operator
import pickle
import pickletools
import struct
import warnings

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import scipy.spatial
import scipy.stats._unuran.unuran_wrapper
from joblib.numpy_pickle import NumpyArrayWrapper
from scipy.optimize import OptimizeResult
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    StackingRegressor,
    VotingRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics._scorer import _MultimetricScorer, _PassthroughScorer
from sklearn.multioutput import ClassifierChain, RegressorChain
from sklearn.neighbors import BallTree, KDTree, KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from likewise.errors import ModelError, UntrustedModelError
from likewise.models.pickles import load, refuse_what_no_model_holds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture
def command(tmp_path):
    """A command that leaves a file behind if it is ever run."""
    victim = tmp_path / "executed"
    yield f"touch {victim}"
    assert not victim.exists(), "code from the file was executed"


def refused(path, **options):
    with pytest.raises(UntrustedModelError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def dumped(tmp_path, model, name="model.joblib"):
    joblib.dump(model, tmp_path / name)
    return tmp_path / name


def text(value):
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def filled_late(model, attribute, item):
    """The pickle of a model whose empty list gets its item after everything that holds the list was built."""
    body = pickle.dumps(model, protocol=2)
    operations = list(pickletools.genops(body))
    key = next(i for i, (op, value, _) in enumerate(operations) if op.name == "BINUNICODE" and value == attribute)
    place = next(i for i in range(key, len(operations)) if operations[i][0].name == "EMPTY_LIST")
    memo = operations[place + 1][1]
    return body[:-1] + b"j" + struct.pack("<I", memo) + text(item) + b"a0."


# ---------------------------------------------------------------- methods that are named


def stacked(command):
    """A regressor that hands the text of a transformer to a method of a table."""
    code = f"@np.lib._npyio_impl.os.system({command!r})"
    model = StackingRegressor([("a", Ridge())], Ridge(), cv=2).fit(X, Y)
    model.estimators_, model.stack_method_ = [FrozenEstimator(pd.DataFrame({"a": [1.0]}))], []
    return make_pipeline(FunctionTransformer(functools.partial(max, code, key=len)), model)


def test_a_method_named_after_the_object_was_built(tmp_path, command):
    pipeline = stacked(command)
    pipeline.steps[1][1].estimators_ = [Ridge().fit(X, Y)]
    pipeline.steps[0] = ("scale", StandardScaler().fit(X))
    (tmp_path / "m.pkl").write_bytes(filled_late(pipeline, "stack_method_", "eval"))
    assert "model.steps[1][1].stack_method_[0] is 'eval', which is not a method that answers" in refused(
        tmp_path / "m.pkl"
    )


def test_a_table_in_the_place_of_an_estimator_and_a_text_in_the_place_of_rows(tmp_path, command):
    (tmp_path / "m.pkl").write_bytes(filled_late(stacked(command), "stack_method_", "eval"))
    assert "model.steps" in refused(tmp_path / "m.pkl")
    (tmp_path / "m.pkl").write_bytes(filled_late(stacked(command), "stack_method_", "predict"))
    assert "DataFrame in the place of an estimator" in refused(tmp_path / "m.pkl")
    pipeline = make_pipeline(stacked(command).steps[0][1], Ridge().fit(X, Y))
    assert "model.steps[0][1].func is a choice among fixed values" in refused(dumped(tmp_path, pipeline))
    assert "estimator is a pandas" in refused(dumped(tmp_path, FrozenEstimator(pd.DataFrame({"a": [1.0]}))))


@pytest.mark.parametrize("kind", [ClassifierChain, RegressorChain])
def test_a_chain_does_not_fit_and_a_memory_is_not_written(tmp_path, kind):
    cache = tmp_path / "cache"
    member = Pipeline([("a", StandardScaler()), ("b", Ridge())], memory=str(cache)).fit(X, Y)
    for path in cache.rglob("*"):
        assert path.is_file() or path.is_dir()
    model = kind(LogisticRegression() if kind is ClassifierChain else Ridge()).fit(X, np.c_[Y, 1 - Y])
    model.chain_method_ = "fit"
    model.estimators_ = [member, member]
    assert "model.chain_method_ is 'fit'" in refused(dumped(tmp_path, model))
    assert load(dumped(tmp_path, member)).memory is None


@pytest.mark.parametrize("name", ["to_pickle", "__class__", "tofile", "set_params"])
def test_any_attribute_that_names_a_method_may_only_name_answers(tmp_path, name):
    model = SelectFromModel(Ridge()).fit(X, Y)
    model.some_future_method_ = {"inside": [("deep", name)]}
    assert "model.some_future_method_['inside'][0][1] is" in refused(dumped(tmp_path, model))
    model.some_future_method_ = "predict_proba"
    assert isinstance(load(dumped(tmp_path, model)), SelectFromModel)


def test_an_attribute_does_not_stand_in_the_place_of_a_method(tmp_path):
    model = Ridge().fit(X, Y)
    model.predict = np.log1p
    assert "model.predict stands in the place of a method" in refused(dumped(tmp_path, model))


def test_a_text_model_does_not_read_files(tmp_path):
    model = CountVectorizer(input="filename")
    assert "model.input is 'filename'" in refused(dumped(tmp_path, model))


def test_a_circle_is_walked_once(tmp_path):
    model = StandardScaler()
    model.held = {}
    model.held["itself"] = [model, model.held]
    assert isinstance(load(dumped(tmp_path, model)), StandardScaler)
    deep = []
    for _ in range(20_000):
        deep = [deep]
    refuse_what_no_model_holds("deep", deep)


# ---------------------------------------------------------------- what could be called


def test_private_functions_of_allowed_packages_are_no_values(tmp_path):
    from sklearn.feature_selection._rfe import _rfe_single_fit
    from sklearn.metrics._scorer import _cached_call

    for function in (_cached_call, _rfe_single_fit):
        assert function.__name__ in refused(dumped(tmp_path, FunctionTransformer(functools.partial(function, None))))


def test_classes_and_makers_do_not_wait_to_be_called(tmp_path):
    """numpy.ndarray(shape, object, bytes) takes the bytes for an address."""
    pointer = functools.partial(np.ndarray, (1,), object, b"A" * 8)
    assert "model.func.func is the class numpy.ndarray" in refused(dumped(tmp_path, FunctionTransformer(pointer)))
    maker = functools.partial(np._core.multiarray._reconstruct, np.int64)
    assert "_reconstruct" in refused(dumped(tmp_path, FunctionTransformer(maker)))
    assert "xgboost.core.Booster" in refused(_with_global(tmp_path, "xgboost.core", "Booster"))


def _with_global(tmp_path, module, name):
    body = pickle.dumps(FunctionTransformer(func=len), protocol=2)
    for builtins in (b"c__builtin__\nlen\n", b"cbuiltins\nlen\n"):
        body = body.replace(builtins, f"c{module}\n{name}\n".encode())
    (tmp_path / "m.pkl").write_bytes(body)
    return tmp_path / "m.pkl"


# ---------------------------------------------------------------- numbers that point


def test_the_fields_of_a_dtype_are_not_changed_after_they_were_checked(tmp_path):
    """The dict of fields is kept by the file, and gets a field of objects before an array is made with the dtype."""
    body = pickle.dumps(np.dtype([("a", "f8")]), protocol=2)
    operations = list(pickletools.genops(body))
    place = next(i for i, (op, _, _) in enumerate(operations) if op.name == "EMPTY_DICT")
    fields = operations[place + 1][1]
    pointer = (0xDEAD0000).to_bytes(8, "little")
    objects = pickle.dumps((np.dtype("O"), 0), protocol=2)[2:-1]
    array = (
        body[:-1] + b"q\xf0" + b"j" + struct.pack("<I", fields) + text("a") + _shifted(objects, 200) + b"s0"
        b"0cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01K\x01\x85h\xf0\x89C\x08"
        + pointer
        + b"tb."
    )
    (tmp_path / "m.pkl").write_bytes(array)
    with pytest.raises(UntrustedModelError, match=r"changing builtins\.dict"):
        load(tmp_path / "m.pkl")


def _shifted(body, by):
    """A pickled part whose memo does not touch that of the part before."""
    out = io.BytesIO()
    operations = [*pickletools.genops(body + b".")]
    for (op, value, start), (_, _, end) in itertools.pairwise(operations):
        piece = body[start:end]
        out.write(piece[:1] + bytes([value + by]) if op.name in ("BINPUT", "BINGET") else piece)
    return out.getvalue()


def test_a_dtype_does_not_grow_after_an_array_was_made_with_it(tmp_path):
    """The same dtype is built twice: first as it should be, then larger than the memory of the array."""
    small = np.zeros(1, dtype="V8")
    body = pickle.dumps((small, small.dtype), protocol=2)
    operations = list(pickletools.genops(body))
    made = max(i for i, (op, _, _) in enumerate(operations) if op.name == "BINGET")
    state = pickle.dumps((3, "|", None, None, None, 1 << 20, 1, 0), protocol=2)[2:-1]
    start, end = operations[made][2], operations[made + 1][2]
    body = body[:start] + body[start:end] + _shifted(state, 100) + b"b" + body[end:]
    (tmp_path / "m.pkl").write_bytes(body)
    with pytest.raises(UntrustedModelError, match="changing numpy"):
        load(tmp_path / "m.pkl")


def sparse_beyond(kind):
    matrix = kind(np.eye(3))
    (matrix.col if matrix.format == "coo" else matrix.indices)[0] = 1 << 30
    return matrix


SPARSE = [
    sparse_beyond(scipy.sparse.csr_matrix),
    sparse_beyond(scipy.sparse.csc_array),
    sparse_beyond(scipy.sparse.bsr_matrix),
    sparse_beyond(scipy.sparse.coo_matrix),
]


@pytest.mark.parametrize("matrix", SPARSE, ids=lambda matrix: matrix.format)
def test_sparse_indices_stay_inside(tmp_path, matrix):
    assert "model.kw_args['w'] has an index beyond" in refused(
        dumped(tmp_path, FunctionTransformer(kw_args={"w": matrix}))
    )


def test_sparse_row_pointers_stay_inside(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indptr[-1] = 1 << 30
    assert "has row pointers beyond its values" in refused(dumped(tmp_path, matrix))


def changed_tree(field, value, *, make=DecisionTreeClassifier):
    model = make(max_depth=3).fit(X, Y)
    trees = [model] if hasattr(model, "tree_") else list(np.ravel(model.estimators_))
    state = trees[-1].tree_.__getstate__()
    state["nodes"] = state["nodes"].copy()
    state["nodes"][field][0] = value
    trees[-1].tree_.__setstate__(state)
    return model


def a_shallow_tree(max_depth):
    return GradientBoostingClassifier(n_estimators=2, max_depth=max_depth)


def a_small_forest(max_depth):
    return RandomForestClassifier(n_estimators=2, max_depth=max_depth, random_state=0)


@pytest.mark.parametrize("make", [DecisionTreeClassifier, a_small_forest, a_shallow_tree])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("left_child", 1 << 40, "child is not in the tree"),
        ("right_child", 0, "child is not in the tree"),
        ("left_child", 2, "lead in a circle"),
        ("feature", 3, "asks for a feature beyond its 3"),
        ("feature", -7, "asks for a feature beyond its 3"),
    ],
)
def test_trees_stay_inside(tmp_path, make, field, value, said):
    if field == "left_child" and value == 2:
        value = make(max_depth=3).fit(X, Y)
        first = value if hasattr(value, "tree_") else np.ravel(value.estimators_)[-1]
        value = int(first.tree_.children_right[0])
    assert said in refused(dumped(tmp_path, changed_tree(field, value, make=make)))


def test_the_parts_of_an_ensemble_have_the_features_of_the_whole(tmp_path):
    wide = RNG.normal(size=(40, 9))
    forest = RandomForestClassifier(n_estimators=2).fit(X, Y)
    forest.estimators_[1] = DecisionTreeClassifier().fit(wide, Y)
    assert "another number of features" in refused(dumped(tmp_path, forest))
    boosted = GradientBoostingClassifier(n_estimators=2).fit(X, Y)
    boosted.estimators_ = np.repeat(boosted.estimators_, 3, axis=1)
    assert "stages that do not fit" in refused(dumped(tmp_path, boosted))
    isolated = IsolationForest(n_estimators=2).fit(X)
    isolated.estimators_[0] = IsolationForest(n_estimators=2).fit(wide).estimators_[0]
    assert "another number of features" in refused(dumped(tmp_path, isolated))
    tree = DecisionTreeClassifier().fit(wide, Y)
    tree.n_features_in_ = 3
    assert "another number of features" in refused(dumped(tmp_path, tree))


def test_a_tree_is_not_made_with_fewer_classes_than_outputs(tmp_path):
    body = pickle.dumps(DecisionTreeClassifier().fit(X, Y).tree_.__reduce__()[1], protocol=2)[2:-1]
    (tmp_path / "m.pkl").write_bytes(
        b"\x80\x02csklearn.tree._tree\nTree\n" + body.replace(b"K\x01\x87", b"K\x7f\x87") + b"R."
    )
    assert "calling sklearn.tree._tree.Tree" in refused(tmp_path / "m.pkl")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("left", 1 << 30, "child is not in the tree"),
        ("feature_idx", 77, "asks for a feature beyond its 3"),
        ("bitset_idx", 99, "categories that it does not have"),
    ],
)
def test_histogram_trees_stay_inside(tmp_path, field, value, said):
    rows = np.c_[np.tile(X[:, :2], (4, 1)), np.repeat(np.arange(4.0), 40)]
    model = HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=3, categorical_features=[2])
    model.fit(rows, np.isin(rows[:, 2], (0, 3)))
    assert np.array_equal(load(dumped(tmp_path, model)).predict_proba(rows), model.predict_proba(rows))
    nodes = model._predictors[0][0].nodes
    nodes[field][np.flatnonzero(nodes["is_categorical"])[0]] = value
    assert said in refused(dumped(tmp_path, model))


@pytest.mark.parametrize("kind", [KDTree, BallTree])
@pytest.mark.parametrize(("part", "field"), [(1, None), (2, "idx_end"), (2, "idx_start")])
def test_trees_of_neighbours_stay_inside(tmp_path, kind, part, field):
    tree = kind(X, leaf_size=4)
    array = tree.__getstate__()[part]
    (array if field is None else array[field])[0] = 1 << 40
    assert "beyond its rows" in refused(dumped(tmp_path, tree))


def test_points_are_as_wide_as_the_data(tmp_path):
    model = KMeans(2, n_init=1).fit(X)
    model.cluster_centers_ = model.cluster_centers_[:, :1].copy()
    assert "cluster_centers_ of 1 columns for 3" in refused(dumped(tmp_path, model))
    near = KNeighborsClassifier(algorithm="brute").fit(X, Y)
    near._fit_X = near._fit_X[:, :1].copy()
    assert "_fit_X of 1 columns for 3" in refused(dumped(tmp_path, near))


@pytest.mark.parametrize(
    ("attribute", "change"),
    [
        ("_n_support", lambda array: array + 1000),
        ("_dual_coef_", lambda array: array[:, :1].copy()),
        ("support_vectors_", lambda array: array[:, :1].copy()),
        ("_intercept_", lambda array: array[:0].copy()),
    ],
)
def test_support_vectors_fit_their_counts(tmp_path, attribute, change):
    model = SVC().fit(X, Y)
    setattr(model, attribute, change(getattr(model, attribute)))
    assert "model " in refused(dumped(tmp_path, model))


def test_other_numbers_that_point_stay_inside(tmp_path):
    random = np.random.RandomState(0)
    state = random.get_state(legacy=False)
    state["state"]["pos"] = 1 << 30
    random.set_state(state)
    assert "reads random numbers at position" in refused(dumped(tmp_path, random))
    splines = SplineTransformer().fit(X)
    splines.bsplines_[0].c = splines.bsplines_[0].c[:1]
    assert "model.bsplines_[0] has knots" in refused(dumped(tmp_path, splines))
    codes = pd.Categorical(["a", "b"])
    codes._ndarray[0] = 100
    assert "has a code without a category" in refused(dumped(tmp_path, codes))
    assert "scipy.spatial._ckdtree.cKDTree" in refused(dumped(tmp_path, scipy.spatial.cKDTree(X)))


def test_an_address_is_not_hidden_in_an_array_of_objects(tmp_path):
    bad = scipy.sparse.csr_matrix(np.eye(2))
    bad.indices[0] = 9
    hidden = np.empty(2, dtype=object)
    hidden[:] = [None, {"w": bad}]
    assert "model.categories[1]['w']" in refused(dumped(tmp_path, OneHotEncoder(categories=hidden)))


# ---------------------------------------------------------------- .skops


def test_the_state_of_a_skops_file_is_looked_at_too(tmp_path):
    import skops.io

    from likewise.models.sklearn.open import read

    path = tmp_path / "m.skops"

    def refused_skops(model):
        skops.io.dump(model, path)
        with pytest.raises(UntrustedModelError) as caught:
            read(path, trusted=())
        return str(caught.value)

    good = VotingRegressor([("a", Ridge())]).fit(X, Y)
    skops.io.dump(good, path)
    assert np.array_equal(read(path, trusted=())[0].predict(X), good.predict(X))
    chain = RegressorChain(Ridge()).fit(X, np.c_[Y, Y])
    chain.chain_method_ = "fit"
    assert "model.chain_method_ is 'fit'" in refused_skops(chain)
    assert "child is not in the tree" in refused_skops(changed_tree("left_child", 1 << 40))
    assert "index beyond" in refused_skops(FunctionTransformer(kw_args={"w": SPARSE[0]}))
    assert "takes a method of an object" in refused_skops(FunctionTransformer(Pipeline([("a", StandardScaler())]).fit))


class Called:
    """Pickled as a call of something on some arguments."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def answering(marker):
    """What runs a command when it is called, whatever with: a scorer of the attack by `DataFrame.eval`."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    stacked = StackingRegressor([("a", Ridge())], Ridge(), cv=2).fit(X, X[:, 0])
    stacked.estimators_ = [FrozenEstimator(pd.DataFrame({"a": [1.0]}))]
    stacked.stack_method_ = ["eval"]
    code = f"@np.lib._npyio_impl.os.system('touch {marker}')"
    model = make_pipeline(FunctionTransformer(functools.partial(max, code, key=len)), stacked)
    return functools.partial(_PassthroughScorer(None), model, np.zeros((2, 3)), np.zeros(2))


def holding(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


ROWS, LABELS = np.random.default_rng(1).normal(size=(50, 2)), np.arange(50) % 2


class Writer(pickle._Pickler):
    """Writes what is made by a call, or a class, as an object that is then given a state."""

    def save(self, obj, save_persistent_id=True):
        if not (isinstance(obj, tuple) and obj[:1] == ("filled",)):
            return super().save(obj, save_persistent_id)
        _, made, state = obj
        self.save(made)
        self.write(b")\x81" if isinstance(made, type) else b"")
        self.save(state)
        return self.write(b"b")


def filled(made, state):
    out = io.BytesIO()
    Writer(out, 2).dump(("filled", made, state))
    return out.getvalue()


def disguised(value, name="sum"):
    """An object that says of itself that it is a function of numpy."""
    vars(value).update(__module__="numpy", __qualname__=name, __name__=name)
    return value


def stacking(estimators, methods):
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = StackingRegressor([("a", Ridge())], Ridge(), cv=2).fit(X, X[:, 0])
    return holding(model, estimators_=estimators, stack_method_=methods)


def told(text):
    """Steps that make a text of any rows."""
    return (
        FunctionTransformer(functools.partial(np.where, np.True_, text)),
        FunctionTransformer(operator.itemgetter((0, 0))),
    )


FRAME = pd.DataFrame({"a": [1.0]})
ASKED = {
    "names of methods in an array": lambda ran: make_pipeline(
        *told(ran), stacking([np.zeros(1)], np.array(["tofile"]))
    ),
    "names of methods as numpy's text": lambda ran: make_pipeline(
        *told(ran), stacking([np.zeros(1)], [np.str_("tofile")])
    ),
    "names of methods as keys": lambda ran: make_pipeline(*told(ran), stacking([np.zeros(1)], {"tofile": 1})),
    "names of methods in an index": lambda ran: make_pipeline(
        *told(ran), stacking([np.zeros(1)], pd.Index(["tofile"], dtype=object))
    ),
    "a table that was seen elsewhere before": lambda ran: holding(
        make_pipeline(*told(ran), stacking([FrozenEstimator(FRAME)], ["predict"])), zzz=FRAME
    ),
    "a class that was seen elsewhere before": lambda ran: holding(
        make_pipeline(FunctionTransformer(pd.DataFrame), Ridge()), _baseclass=pd.DataFrame
    ),
    "an object called numpy.sum": lambda ran: make_pipeline(
        FunctionTransformer(disguised(_MultimetricScorer(scorers={"a": answering(ran)}))), Ridge()
    ),
    "a list of names that holds itself": lambda ran: stacking([1], endless()),
}


def endless():
    found = []
    found.append(found)
    return [found, "eval"]


@pytest.mark.parametrize("name", ASKED)
def test_a_model_that_would_do_more_than_answer_is_not_asked(tmp_path, name):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(ASKED[name](str(tmp_path / "ran"))))
    with pytest.raises(UntrustedModelError, match=r"holds what no fitted model holds|changing sklearn"):
        load(path)


CALLING = {
    "the text of a version": lambda run: filled(
        Ridge, {"_sklearn_version": holding(ConstantKernel(), constant_value=Bunch(sqrt=run))}
    ),
    "objects in records": lambda run: filled(
        Called(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b"),
        (1, (1,), np.dtype([("a", "O"), ("b", "f8", (2,))]), False, [(None, Bunch(__array__=run))]),
    ),
    "a sparse matrix of a list": lambda run: Called(
        copyreg._reconstructor, scipy.sparse.coo_array, scipy.sparse.coo_array, [Bunch(__array__=run)]
    ),
    "the shape of an array on disk": lambda run: filled(
        NumpyArrayWrapper, {"shape": Bunch(__array__=run), "order": "C", "dtype": np.dtype("f8")}
    ),
    "a seed's `squeeze`": lambda run: Called(np.random.RandomState, Bunch(squeeze=run)),
    "`__array__` of an index": lambda run: Called(pd.Index, Bunch(__array__=run)),
    "`__array__` of moments": lambda run: Called(pd.DatetimeIndex, Bunch(__array__=run)),
    "`keys` of a dict": lambda run: Called(dict, Bunch(keys=run)),
    "`items` of a result": lambda run: holding(OptimizeResult(x=1), items=run),
    "a density": lambda run: Called(
        scipy.stats._unuran.unuran_wrapper.TransformedDensityRejection, Bunch(pdf=run, dpdf=run, support=run)
    ),
    "row pointers": lambda run: holding(scipy.sparse.csr_matrix(np.eye(3)), indptr=Bunch(__array__=run)),
    "coordinates": lambda run: holding(
        scipy.sparse.coo_matrix(np.eye(3)), coords=(Bunch(min=run, max=run, size=1, shape=(3,)),) * 2
    ),
    "features of a forest": lambda run: holding(
        IsolationForest(n_estimators=2).fit(ROWS), estimators_features_=[Bunch(size=1, min=run, max=run)] * 2
    ),
    "support vectors": lambda run: holding(
        SVC(kernel="precomputed").fit(np.eye(4), [0, 1, 0, 1]), support_=holding(Ridge(), size=1, min=run, max=run)
    ),
    "stages": lambda run: holding(
        GradientBoostingClassifier(n_estimators=1).fit(ROWS, LABELS), estimators_=Bunch(ndim=2, shape=(1, 1), ravel=run)
    ),
}


@pytest.mark.parametrize("name", CALLING)
def test_neither_reading_nor_looking_calls_what_a_file_holds(tmp_path, name):
    marker = tmp_path / "ran"
    path = tmp_path / "model.pkl"
    made = CALLING[name](answering(marker))
    path.write_bytes(made if isinstance(made, bytes) else pickle.dumps(made))
    with pytest.raises((UntrustedModelError, ModelError)):
        load(path)
    assert not marker.exists()


def test_the_call_that_is_not_made_would_run(tmp_path):
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
        answering(tmp_path / "ran")()
    assert (tmp_path / "ran").exists()


def test_an_object_is_filled_once(tmp_path):
    """A second state would reach whoever looked at the first."""
    array = b"\x80\x02" + pickle.dumps(np.zeros(2), 2)[2:-1]
    path = tmp_path / "model.pkl"
    path.write_bytes(
        array + b"(K\x01K\x02\x85" + pickle.dumps(np.dtype("f8"), 2)[2:-1] + b"\x89U\x10" + bytes(16) + b"tb."
    )
    with pytest.raises(UntrustedModelError, match=r"changing numpy\.ndarray"):
        load(path)


def test_bytes_of_an_arrow_array_are_looked_at_as_it_is_made(tmp_path):
    restore, (state,) = pa.array(np.arange(4.0)).__reduce__()
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Called(pd.Index, Called(restore, (state[0], 4000, *state[2:])))))
    with pytest.raises(ModelError, match="too small"):
        load(path)


def test_data_that_was_handed_over_stays_as_it_was(tmp_path):
    """A list is put into an index while it is empty, and gets its content afterwards."""
    content = b"\x80\x02(]q\x01cpandas\nIndex\nh\x01\x85R" + b"h\x01K\x01at."
    (tmp_path / "model.pkl").write_bytes(content)
    with pytest.raises(UntrustedModelError, match=r"changing builtins\.list"):
        load(tmp_path / "model.pkl")


def test_the_bytes_of_records_are_no_addresses(tmp_path):
    records = np.dtype([("a", "O")])
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Called(np._core.multiarray.scalar, records, np.zeros(0, records))))
    with pytest.raises(UntrustedModelError, match="calling numpy"):
        load(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.large_binary()])
def test_an_arrow_array_without_its_buffers_is_not_made(tmp_path, kind):
    restore, _ = pa.array([1]).__reduce__()
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Called(restore, (kind, 3, 0, 0, [], None, None))))
    with pytest.raises(UntrustedModelError, match="calling pyarrow"):
        load(path)
