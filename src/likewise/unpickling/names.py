"""The names a pickled model may use: what scikit-learn models are made of, and no more.

Nothing belongs here that opens files, reaches attributes by name, imports, or runs text: a value in a
model can end up in a place where a library calls it.
"""

from __future__ import annotations

CALLED = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "functools": "partial",
    "operator": "itemgetter",
    "pathlib": "PosixPath PurePosixPath PureWindowsPath WindowsPath",
    "re": "_compile",
    "_codecs": "encode",
    "numpy": "dtype vectorize",
    "numpy.ma.core": "_mareconstruct",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "numpy.random._pickle": "__bit_generator_ctor __generator_ctor __randomstate_ctor",
    "pandas": "ArrowDtype BooleanDtype Categorical CategoricalDtype CategoricalIndex DataFrame DatetimeIndex "
    "DatetimeTZDtype Float32Dtype Float64Dtype Index Int16Dtype Int32Dtype Int64Dtype Int8Dtype Interval "
    "IntervalDtype IntervalIndex MultiIndex Period PeriodDtype PeriodIndex RangeIndex Series SparseDtype "
    "StringDtype Timedelta TimedeltaIndex Timestamp UInt16Dtype UInt32Dtype UInt64Dtype UInt8Dtype",
    "pandas.core.frame": "DataFrame",
    "pandas.core.series": "Series",
    "pandas._libs.tslibs.nattype": "_nat_unpickle",
    "pandas._libs.tslibs.timedeltas": "_timedelta_unpickle",
    "pyarrow.lib": "_restore_array chunked_array py_buffer type_for_alias",
}
"""What a file may call: constructors and the functions that libraries made for unpickling."""

MADE = {
    "xgboost.core": "Booster",
    "lightgbm.basic": "Booster",
    "catboost.core": "CatBoost CatBoostClassifier CatBoostRanker CatBoostRegressor",
}
"""What a file may make and fill, and their neighbours not: a DMatrix or a Dataset frees the address in its state."""

VALUES = {
    "builtins": "Ellipsis NotImplemented abs len max min round sum",
    "numpy": "all amax amin any argmax argmin argsort array asarray ascontiguousarray atleast_1d atleast_2d average "
    "clip concatenate cumprod cumsum diff digitize dot expand_dims hstack isclose matrix max mean median min "
    "nan_to_num nanmax nanmean nanmedian nanmin nanstd nansum ndarray percentile prod ptp quantile ravel real reshape "
    "round searchsorted sort squeeze std sum transpose unique var vstack where zeros_like",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray",
    "numpy.linalg": "det inv norm pinv",
    "operator": "add and_ eq ge gt le lt mul ne neg not_ or_ pow sub truediv",
    "pandas": "NA NaT",
    "pandas._libs.missing": "NA",
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
}
"""What may stand in a model as a value, such as the function of a FunctionTransformer."""

CLASS_TREES = (
    "sklearn",
    "imblearn",
    "category_encoders",
    "xgboost.callback",
    "xgboost.sklearn",
    "lightgbm.callback",
    "lightgbm.sklearn",
    "numpy.dtypes",
    "numpy.polynomial",
    "numpy.random",
    "pandas._libs.arrays",
    "pandas._libs.internals",
    "pandas._libs.interval",
    "pandas._libs.missing",
    "pandas._libs.sparse",
    "pandas._libs.tslibs",
    "pandas.arrays",
    "pandas.core.arrays",
    "pandas.core.dtypes",
    "pandas.core.indexes",
    "pandas.core.internals",
    "scipy.interpolate",
    "scipy.optimize._lbfgsb_py",
    "scipy.optimize._optimize",
    "scipy.sparse",
    "scipy.spatial",
    "scipy.stats",
)
"""Packages whose classes may be made."""

FUNCTION_TREES = (
    "imblearn.metrics",
    "math",
    "scipy.spatial.distance",
    "scipy.special",
    "scipy.stats._stats_py",
    "sklearn.cluster",
    "sklearn.covariance",
    "sklearn.decomposition",
    "sklearn.feature_selection",
    "sklearn.gaussian_process",
    "sklearn.impute",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.neighbors",
    "sklearn.neural_network",
    "sklearn.preprocessing",
    "sklearn.utils.extmath",
)
"""Packages whose functions may stand in a model as values: mathematics only."""

NUMPY = ("numpy", "numpy._core._multiarray_umath", "numpy._core.umath", "numpy.core._multiarray_umath")
"""Modules in which scalar types and ufuncs may be looked up."""

BASES = ("abc", "builtins", "collections", "enum", "numbers", "typing")
"""Modules of the standard library that classes of those packages may derive from."""

FORBIDDEN_PARTS = (
    "__check_build __main__ _build_utils _callback_context _joblib _mocking _plot _plotting _progressbar _repr_html "
    "_scoring_monitor _test_common _testing _transport collective conftest ctypeslib dask datasets distutils "
    "estimator_checks experimental externals f2py federated parallel plotting rabit setup spark testing tests tracker "
    "widget"
)
"""Parts of a module's name that take away what its package grants."""

METHODS_OF_TEXT = "capitalize casefold lower lstrip rstrip split splitlines strip swapcase title upper"
METHODS_OF_PATTERNS = "findall finditer fullmatch match search split sub"
"""Bound and unbound methods that serve as tokenizers: `str.lower`, `re.compile(...).findall`."""
