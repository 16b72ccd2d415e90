"""A model is looked through as it is when it has been read: what was put into it late, and where its numbers point."""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import pickletools
import struct

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.spatial
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
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import ClassifierChain, RegressorChain
from sklearn.neighbors import BallTree, KDTree, KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from likewise.errors import UntrustedModelError
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
    assert "model.steps[1][1].stack_method_[0] is 'eval', which is no method that answers" in refused(
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
    model = FunctionTransformer(kw_args={})
    model.kw_args["itself"] = [model, model.kw_args]
    assert isinstance(load(dumped(tmp_path, model)), FunctionTransformer)
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
    loaded = load(tmp_path / "m.pkl")
    assert loaded.dtype == np.dtype([("a", "f8")])


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
    array, _ = load(tmp_path / "m.pkl")
    assert array.nbytes == 8


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
    assert "cannot be checked" in refused(dumped(tmp_path, scipy.spatial.cKDTree(X)))


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
    assert "Pipeline.fit" in refused_skops(FunctionTransformer(Pipeline([("a", StandardScaler())]).fit))
