"""Numbers in a model that compiled code follows without looking: indices, children of nodes, sizes, states.

numpy, scipy and scikit-learn believe what a file says about itself: a tree whose child is node 10⁹, a sparse matrix
with an index beyond its columns, support vectors narrower than the data. Each of these reads or writes memory that is
not the model's. What cannot be right is said in a few words, and the file is refused before anything is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from likewise.models.pickles import calls, given, rights

Fault = str | None


def fault_of(value: Any) -> Fault:
    """What is wrong with the numbers inside one object, or None."""
    for check in _checks(type(value)):
        try:
            found = check(value)
        except Exception:  # noqa: BLE001 - attributes that are missing or of another type: no model either
            return f"is no {type(value).__name__} that could have been fitted"
        if found is not None:
            return found
    return None


def known(kind: type) -> bool:
    """Is there anything to look at in objects of this class?"""
    return bool(_checks(kind))


def _checks(kind: type) -> tuple[Callable[[Any], Fault], ...]:
    names = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
    return tuple(_CHECKS[name] for name in names if name in _CHECKS)


def _outside(indices: Any, size: int, low: int = 0) -> bool:
    return bool(indices.size) and not (indices.min() >= low and indices.max() < size)


def _array(value: Any) -> Fault:
    return _dtype(value.dtype)


def _dtype(value: Any) -> Fault:
    if value.names is None and value.subdtype is None:
        return None
    if not given.is_state_of_dtype(value, value.__reduce__()[2]):
        return "has fields that do not fit its size"
    parts = [value.subdtype[0]] if value.subdtype else [value.fields[name][0] for name in value.names]
    return next((found for part in parts if (found := _dtype(part)) is not None), None)


def _random(value: Any) -> Fault:
    state = value.get_state(legacy=False) if hasattr(value, "get_state") else _bits(value).state
    at = state.get("buffer_pos", state["state"].get("pos", 0) if isinstance(state.get("state"), dict) else 0)
    most = 4 if "buffer_pos" in state else 624
    return None if 0 <= int(at) <= most else f"reads random numbers at position {at} of {most}"


def _bits(value: Any) -> Any:
    return getattr(value, "bit_generator", value)


def _compressed(value: Any) -> Fault:
    import numpy as np

    rows, columns = value.shape if value.format in ("csr", "bsr") else value.shape[::-1]
    if value.format == "bsr":
        height, width = value.data.shape[1:]
        rows, columns = rows // height, columns // width
    starts, indices = np.asarray(value.indptr), np.asarray(value.indices)
    if starts.shape != (rows + 1,) or starts.dtype.kind != "i" or indices.dtype.kind != "i":
        return "has row pointers that do not fit its shape"
    ordered = starts[0] == 0 and bool((np.diff(starts) >= 0).all())
    if not ordered or starts[-1] > min(len(indices), len(value.data)):
        return "has row pointers beyond its values"
    return "has an index beyond its columns" if _outside(indices, columns) else None


def _coordinates(value: Any) -> Fault:
    for indices, size in zip(value.coords, value.shape, strict=True):
        if indices.shape != value.data.shape or _outside(indices, size):
            return "has an index beyond its shape"
    return None


def _diagonals(value: Any) -> Fault:
    fits = value.data.ndim == 2 and value.offsets.shape == value.data.shape[:1]
    return None if fits else "has diagonals that do not fit its values"


def _lists(value: Any) -> Fault:
    rows, columns = value.shape
    fits = value.rows.shape == value.data.shape == (rows,) and all(
        type(indices) is type(values) is list
        and len(indices) == len(values)
        and all(type(index) is int and 0 <= index < columns for index in indices)
        for indices, values in zip(value.rows, value.data, strict=True)
    )
    return None if fits else "has an index beyond its columns"


def _children(left: Any, right: Any, leaf: Any) -> Fault:
    """Every node but the root is the child of at most one, so that no way down is endless or leaves the tree."""
    import numpy as np

    if not len(leaf):
        return "is a tree without nodes"
    below = np.concatenate([left[~leaf], right[~leaf]]).astype(np.int64)
    if _outside(below, len(leaf), low=1):
        return "has a node whose child is not in the tree"
    return "has nodes that lead in a circle" if len(np.unique(below)) != len(below) else None


def _tree(value: Any) -> Fault:
    state = value.__getstate__()
    nodes = state["nodes"]
    if state["node_count"] != len(nodes) or not 0 <= state["max_depth"] <= len(nodes):
        return "counts more nodes than it has"
    leaf = nodes["left_child"] == -1
    if _outside(nodes["feature"][~leaf], value.n_features):
        return f"asks for a feature beyond its {value.n_features}"
    if _outside(value.n_classes, value.max_n_classes + 1):
        return "counts more classes than it has values"
    return _children(nodes["left_child"], nodes["right_child"], leaf)


def _tree_estimator(value: Any) -> Fault:
    if "tree_" not in vars(value):
        return None
    fits = value.tree_.n_features == value.n_features_in_ and value.tree_.n_outputs == getattr(value, "n_outputs_", 1)
    return None if fits else "has a tree of another number of features than its own"


def _forest(value: Any) -> Fault:
    """The trees of a forest are asked without a look at the columns."""
    trees = vars(value).get("estimators_", ())
    fits = all(tree.tree_.n_features == value.n_features_in_ for tree in trees)
    return None if fits else "has a tree of another number of features than its own"


def _isolation_forest(value: Any) -> Fault:
    if "estimators_" not in vars(value):
        return None
    whole = value._max_features == value.n_features_in_
    for tree, features in zip(value.estimators_, value.estimators_features_, strict=True):
        if tree.tree_.n_features != (value.n_features_in_ if whole else len(features)):
            return "has a tree of another number of features than its own"
        if _outside(features, value.n_features_in_):
            return f"asks for a feature beyond its {value.n_features_in_}"
    return None


def _boosting(value: Any) -> Fault:
    if "estimators_" not in vars(value):
        return None
    stages = value.estimators_
    # An ndarray of any other form is written beyond the end of the answers; before 1.4 the loss said how wide they are.
    counts = {vars(value).get("n_trees_per_iteration_"), vars(value._loss).get("K")} - {None}
    if stages.ndim != 2 or counts != {stages.shape[1]}:
        return "has stages that do not fit its number of classes"
    if getattr(value._loss, "n_classes", None) not in (None, 1, 2, stages.shape[1]):
        return "has a loss of another number of classes"
    fits = all(
        tree.tree_.n_features == value.n_features_in_ and tree.tree_.value.shape[1:] == (1, 1)
        for tree in stages.ravel()
    )
    return _beginning(value) if fits else "has a tree of another number of features or outputs than its own"


def _beginning(value: Any) -> Fault:
    """The answers that boosting begins with are written into as if there were one a row and class."""
    first = value.init_
    if isinstance(first, str) and first == "zero":
        return None
    kind = f"{type(first).__module__}.{type(first).__qualname__}"
    if kind == "sklearn.dummy.DummyRegressor":
        fits = first.n_outputs_ == 1 and first.constant_.size == 1
    elif kind == "sklearn.dummy.DummyClassifier":
        classes = max(2, value.estimators_.shape[1])
        fits = first.n_outputs_ == 1 and first.n_classes_ == len(first.class_prior_) == classes
    else:
        return "begins with the answers of another model (init), whose number nothing checks"
    return None if fits else "begins with answers that do not fit its classes"


def _hist_tree(value: Any) -> Fault:
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    nodes, bitsets = value.nodes, value.raw_left_cat_bitsets
    if nodes.dtype != PREDICTOR_RECORD_DTYPE or bitsets.ndim != 2 or bitsets.shape[1] != 8:
        return "has nodes of an unknown form"
    leaf = nodes["is_leaf"].astype(bool)
    splits = nodes[~leaf]
    if _outside(splits["bitset_idx"][splits["is_categorical"].astype(bool)], len(bitsets)):
        return "asks for categories that it does not have"
    return _children(nodes["left"], nodes["right"], leaf)


def _hist_boosting(value: Any) -> Fault:
    import numpy as np

    if "_predictors" not in vars(value):
        return None
    features, mapper = value.n_features_in_, value._bin_mapper
    known = mapper.is_categorical_
    if known.shape != (features,) or getattr(value, "_in_fit", False):
        return "has categories of another number of features than its own"
    for index in np.flatnonzero(known):
        if _outside(np.asarray(mapper.bin_thresholds_[index]), 256):
            return "knows a category beyond the 256 it may have"
    prepared = getattr(value, "_preprocessor", None)  # before 1.4 there was none
    if prepared is not None:
        steps = [entry for entry in prepared.transformers_ if entry[:2] != ("remainder", "drop")]
        masks = [np.asarray(columns) for _, _, columns in steps]
        kinds = [type(step).__name__ for _, step, _ in steps]
        whole = len(masks) == 2 and masks[0].shape == (features,) and (masks[0] ^ masks[1]).all()
        if kinds != ["OrdinalEncoder", "FunctionTransformer"] or not whole:
            return "has a preparation that scikit-learn did not make"
    for tree in (tree for stage in value._predictors for tree in stage):
        splits = tree.nodes[~tree.nodes["is_leaf"].astype(bool)]
        if _outside(splits["feature_idx"], features):
            return f"asks for a feature beyond its {features}"
        if not known[splits["feature_idx"][splits["is_categorical"].astype(bool)]].all():
            return "asks for categories of a feature that has none"
    return None


def _metric(value: Any, rows: Any = None) -> Fault:
    vector, matrix = value.__getstate__()[1:3]
    if matrix.size > 1 and not matrix.shape[0] == matrix.shape[1] == len(vector):
        return "has a matrix that is not square"
    if rows is not None:
        value._validate_data(rows)
    return None


def _neighbours(value: Any) -> Fault:
    import numpy as np

    rows, order, nodes, bounds, _, levels, count, *_, metric, weights = value.__getstate__()
    lists = (
        bounds.shape[0] == (2 if "KDTree" in type(value).__name__ else 1),
        bounds.shape[1:] == (count, rows.shape[1]),
    )
    if len(nodes) != count or count != 2**levels - 1 or not all(lists):
        return "has nodes that do not fit its size"
    if order.shape != rows.shape[:1] or _outside(order, len(rows)):
        return "has an index beyond its rows"
    if weights is not None and weights.shape != rows.shape[:1]:
        return "has weights that do not fit its rows"
    first, last = nodes["idx_start"], nodes["idx_end"]
    if _outside(first, len(rows) + 1) or _outside(last, len(rows) + 1) or (last < first).any():
        return "has a node beyond its rows"
    if not nodes["is_leaf"][np.arange(count) * 2 + 2 >= count].all():
        return "has a node whose child is not in the tree"
    return _metric(metric, rows)


def _support_vectors(value: Any) -> Fault:
    import numpy as np

    if "support_" not in vars(value):
        return None
    if value._impl != type(value)._impl:
        return f"calls itself a {value._impl}"
    kept, counts = len(value.support_), value._n_support
    classes = len(counts)
    pairs = classes * (classes - 1) // 2
    precomputed = callable(value.kernel) or value.kernel == "precomputed"
    vectors = value.support_vectors_
    if value._sparse and vectors.format != "csr":
        return "has support vectors that do not lie in rows"
    if precomputed:
        fitted = vars(value).get("_BaseLibSVM__Xfit")
        if callable(value.kernel) and not calls.compares_pairs(value.kernel):
            return "has a kernel that does not compare all rows with each other"
        width = getattr(fitted, "shape", None) or (len(fitted),) if callable(value.kernel) else (value.n_features_in_,)
        if tuple(value.shape_fit_[: len(width)]) != width or _outside(value.support_, width[0]):
            return "has a support vector beyond its rows"
    elif vectors.shape[0] != kept or (kept and vectors.shape[1] != value.n_features_in_):
        return "has support vectors that do not fit its features"
    if (counts < 0).any() or (value._impl in ("c_svc", "nu_svc") and counts.sum() != kept):
        return "counts other support vectors than it has"
    weights = value._dual_coef_.data if value._sparse else np.asarray(value._dual_coef_)
    shape = ((classes - 1) * kept,) if value._sparse else (classes - 1, kept)
    sizes = {value._probA.size, value._probB.size}
    if weights.shape != shape or value._intercept_.size != max(pairs, 1) or (sizes != {0} and sizes != {pairs}):
        return "has coefficients that do not fit its classes"
    if value._sparse and sizes == {0} and bool(getattr(value, "_effective_probability", value.probability)):
        return "has no coefficients for its probabilities"
    return None


def _as_wide_as_the_data(value: Any) -> Fault:
    """Points that are compared with rows by compiled code, which trusts that both have as many columns."""
    own = vars(value)
    width = own.get("n_features_in_")
    for name in ("cluster_centers_", "subcluster_centers_", "_fit_X"):
        points = own.get(name)
        if getattr(points, "ndim", 0) == 2 and points.size and points.shape[1] != width:
            # Without a number of features, scikit-learn does not look at that of the data.
            return f"has a {name} of {points.shape[1]} columns for {width or 'an unknown number of'} features"
    lengths, points = own.get("_subcluster_norms"), own.get("subcluster_centers_")
    if lengths is not None and lengths.shape != points.shape[:1]:
        return "has another number of lengths than of centres"
    waiting = [own["_bisecting_tree"]] if own.get("_bisecting_tree") is not None else []
    steps = 0
    while waiting:
        node, steps = waiting.pop(), steps + 1
        if node.center.shape != (width,) or steps > 2 * value.n_clusters:
            return "has a centre that does not fit its features"
        waiting.extend(child for child in (node.left, node.right) if child is not None)
    return None


def _one_hot(value: Any) -> Fault:
    """Codes of categories become the columns of a sparse matrix, which nothing compares with its width."""
    own = vars(value)
    if "_n_features_outs" not in own:
        return None
    grouped = own["_infrequent_indices"] if own["_infrequent_enabled"] else [None] * len(value.categories_)
    dropped = own["_drop_idx_after_grouping"]
    for place, known in enumerate(value.categories_):
        rare = grouped[place]
        count = len(known) - (0 if rare is None else rare.size - 1)
        mapped = None if rare is None else own["_default_to_infrequent_mappings"][place]
        left_out = None if dropped is None else dropped[place]
        if mapped is not None and (len(mapped) != len(known) or _outside(mapped, count)):
            return "has a category beyond its columns"
        if left_out is not None and not 0 <= int(left_out) < count:
            return "leaves out a category that it does not have"
        if own["_n_features_outs"][place] != count - (left_out is not None):
            return "has another number of columns than of categories"
    return None if len(own["_n_features_outs"]) == len(value.categories_) else "has columns without categories"


def _vocabulary(value: Any) -> Fault:
    """Words, names or labels and their columns, of which a sparse matrix is made without a look at its width."""
    for name in ("vocabulary_", "_cached_dict"):
        known = vars(value).get(name)
        if known is None:
            continue
        if type(known) is not dict or not all(0 <= int(place) < len(known) for place in known.values()):
            return f"has a column beyond the {len(known)} of its {name}"
    return None


def _neighbouring(value: Any) -> Fault:
    """Numbers of neighbours become columns, and places in the list of answers."""
    own = vars(value)
    if "_fit_X" not in own:
        return None
    tree = own.get("_tree")
    rows = own["_fit_X"].shape[0] if own["_fit_X"].size else own["n_samples_fit_"]
    answers = own.get("_y")
    counts = {own["n_samples_fit_"], rows}
    counts |= set() if tree is None else {tree.get_arrays()[0].shape[0]}
    counts |= set() if answers is None else {len(answers)}
    if len(counts) != 1:
        return "has neighbours that do not fit its rows"
    classes = own.get("classes_")
    if classes is None or answers is None:
        return None
    # One list of classes, or one for each column of answers; compiled code takes any number for a whole one.
    columns, several = (answers[:, None], [classes]) if answers.ndim == 1 else (answers, classes)
    fits = columns.dtype.kind == "i" and columns.shape[1] == len(several)
    fits = fits and not any(_outside(column, len(own)) for column, own in zip(columns.T, several, strict=True))
    return None if fits else "has an answer that is none of its classes"


def _spline(value: Any) -> Fault:
    import numpy as np

    knots, degree = np.asarray(value.t), int(value.k)
    fits = knots.ndim == 1 and 0 <= degree < 1000 and len(knots) >= 2 * degree + 2 and (np.diff(knots) >= 0).all()
    return None if fits and len(value.c) >= len(knots) - degree - 1 else "has knots that do not fit its coefficients"


def _polynomial(value: Any) -> Fault:
    fits = value.c.ndim >= 2 and value.x.ndim == 1 and value.c.shape[1] == len(value.x) - 1
    return None if fits else "has breakpoints that do not fit its coefficients"


def _distribution(value: Any) -> Fault:
    genuine = rights.is_state_of_distribution(value, value.__getstate__())
    return None if genuine else "is not as scipy made it"


def _blocks(value: Any) -> Fault:
    import numpy as np

    manager = value._mgr
    if value.ndim == 1:
        fits = len(manager.blocks) == 1 and len(manager.blocks[0].values) == len(manager.axes[0])
        return None if fits else "has other values than rows"
    manager._verify_integrity()
    places = [np.asarray(block.mgr_locs.as_array) for block in manager.blocks]
    found = np.sort(np.concatenate(places)) if places else np.zeros(0, int)
    return None if np.array_equal(found, np.arange(len(manager.axes[0]))) else "has columns that lie outside it"


def _categories(value: Any) -> Fault:
    return "has a code without a category" if _outside(value.codes, len(value.categories), low=-1) else None


def _levels(value: Any) -> Fault:
    fits = all(not _outside(codes, len(level), low=-1) for codes, level in zip(value.codes, value.levels, strict=True))
    return None if fits else "has a code without a level"


def _arrow(value: Any) -> Fault:
    value.validate(full=True)
    return None


def _booster(value: Any) -> Fault:
    """Libraries of boosters follow the address of what they loaded; where they loaded nothing, that is nowhere."""
    handle = vars(value).get("_handle", vars(value).get("handle"))
    return None if getattr(handle, "value", None) else "holds no trees"


_CHECKS: dict[str, Callable[[Any], Fault]] = {
    "numpy.ndarray": _array,
    "numpy.dtype": _dtype,
    "numpy.random.mtrand.RandomState": _random,
    "numpy.random._generator.Generator": _random,
    "numpy.random.bit_generator.BitGenerator": _random,
    "scipy.sparse._compressed._cs_matrix": _compressed,
    "scipy.sparse._coo._coo_base": _coordinates,
    "scipy.sparse._dia._dia_base": _diagonals,
    "scipy.sparse._lil._lil_base": _lists,
    "scipy.interpolate._bsplines.BSpline": _spline,
    "scipy.interpolate._interpolate._PPolyBase": _polynomial,
    "scipy.stats._distn_infrastructure.rv_generic": _distribution,
    "sklearn.base.BaseEstimator": _as_wide_as_the_data,
    "sklearn.ensemble._forest.BaseForest": _forest,
    "sklearn.ensemble._gb.BaseGradientBoosting": _boosting,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.BaseHistGradientBoosting": _hist_boosting,
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor": _hist_tree,
    "sklearn.ensemble._iforest.IsolationForest": _isolation_forest,
    "sklearn.feature_extraction._dict_vectorizer.DictVectorizer": _vocabulary,
    "sklearn.feature_extraction.text._VectorizerMixin": _vocabulary,
    "sklearn.metrics._dist_metrics.DistanceMetric64": _metric,
    "sklearn.metrics._dist_metrics.DistanceMetric32": _metric,
    "sklearn.neighbors._ball_tree.BinaryTree64": _neighbours,
    "sklearn.neighbors._ball_tree.BinaryTree32": _neighbours,
    "sklearn.neighbors._kd_tree.BinaryTree64": _neighbours,
    "sklearn.neighbors._kd_tree.BinaryTree32": _neighbours,
    "sklearn.neighbors._base.NeighborsBase": _neighbouring,
    "sklearn.preprocessing._encoders.OneHotEncoder": _one_hot,
    "sklearn.preprocessing._label.MultiLabelBinarizer": _vocabulary,
    "sklearn.svm._base.BaseLibSVM": _support_vectors,
    "sklearn.tree._classes.BaseDecisionTree": _tree_estimator,
    "sklearn.tree._tree.Tree": _tree,
    "pandas.core.generic.NDFrame": _blocks,
    "pandas.core.arrays.categorical.Categorical": _categories,
    "pandas.Categorical": _categories,
    "pandas.core.indexes.multi.MultiIndex": _levels,
    "pandas.MultiIndex": _levels,
    "lightgbm.basic.Booster": _booster,
    "xgboost.core.Booster": _booster,
    "pyarrow.lib.Array": _arrow,
    "pyarrow.lib.ChunkedArray": _arrow,
}
"""What is looked at in objects of these classes, and of those derived from them."""


def opaque(kind: type) -> bool:
    """Is the content of such objects beyond what can be checked? Trees of neighbours, hulls and densities of scipy are.

    Distributions that were frozen hold one that is checked, and numbers.
    """
    module = kind.__module__
    if not module.startswith(("scipy.interpolate", "scipy.spatial", "scipy.stats")) or kind in interpolators():
        return False
    return not _checks(kind) and not (module == "scipy.stats._distn_infrastructure" and "frozen" in kind.__name__)


def interpolators() -> tuple[type, ...]:
    """scipy's interpolation, where it is loaded: its numbers are plain arrays, which are looked at."""
    module: Any = sys.modules.get("scipy.interpolate")
    return () if module is None else (module.interp1d,)
