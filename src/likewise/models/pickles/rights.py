"""The names a pickled model may use, and which rights it has to each: what scikit-learn models are made of, no more.

Nothing belongs here that opens files, reaches attributes by name, imports, or runs text: a value in a
model can end up in a place where a library calls it.

A pickle can name any object, have it called with any arguments, and fill any object with any state.
These are told apart, because a model needs few of them: f_classif has to stand in a SelectKBest as a
value, but nothing in a model has to call it while the file is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from enum import Enum, IntEnum
from fnmatch import fnmatchcase
from importlib import import_module
from types import ModuleType
from typing import Any

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
    "scipy.optimize._lbfgsb_py": "LbfgsInvHessProduct",
    "scipy.optimize._optimize": "OptimizeResult",
}
"""What a file may make and fill, and their neighbours not: a DMatrix or a Dataset frees the address in its state, and
what scipy wraps functions in while it searches gives any answer for any rows, or calls with any arguments."""

VALUES = {
    "builtins": "Ellipsis NotImplemented abs len max min round sum",
    "numpy": "all amax amin any argmax argmin argsort array asarray ascontiguousarray atleast_1d atleast_2d average "
    "clip concatenate cumprod cumsum diff digitize dot expand_dims hstack isclose matrix max mean median min "
    "nan_to_num nanmax nanmean nanmedian nanmin nanstd nansum ndarray percentile prod ptp quantile ravel real reshape "
    "round searchsorted sort squeeze std sum transpose unique var vstack where zeros_like",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray",
    "numpy.linalg": "det inv norm pinv",
    "_operator": "add and_ eq ge gt le lt mul ne neg not_ or_ pow sub truediv",
    "operator": "add and_ eq ge gt le lt mul ne neg not_ or_ pow sub truediv",
    "pandas": "NA NaT",
    "pandas._libs.missing": "NA",
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
    "sklearn.cluster._kmeans": "_kmeans_single_elkan _kmeans_single_lloyd",
    "sklearn.preprocessing._function_transformer": "_identity",
    "sklearn.utils.validation": "check_array",
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
    "sklearn.feature_selection",
    "sklearn.metrics",
    "sklearn.preprocessing",
    "sklearn.utils.extmath",
)
"""Packages whose functions may stand in a model as values: mathematics only, and none that fits a model.

What fits one (`enet_path`, `k_means`) hands compiled code what it is given, unlooked at with `check_input=False`."""

REBUILT = ("numpy", "pandas", "sklearn._loss", "sklearn.linear_model._sgd_fast", "sklearn.tree._tree.Tree")
"""Compiled classes that libraries have pickle call. Others are made by functions of their own; what they believe of
what they are given, such as how many classes there are, nobody has looked at."""

NUMPY = ("numpy", "numpy._core._multiarray_umath", "numpy._core.umath", "numpy.core._multiarray_umath")
"""Modules in which scalar types and ufuncs may be looked up."""

BASES = ("abc", "builtins", "collections", "enum", "numbers", "typing")
"""Modules of the standard library that classes of those packages may derive from."""

FORBIDDEN_PARTS = (
    "__check_build __main__ _build_utils _callback_context _joblib _mocking _plot _plotting _progressbar _repr_html "
    "_scoring_monitor _test_common _unuran _testing _transport collective conftest ctypeslib dask datasets distutils "
    "estimator_checks experimental externals f2py federated linalg parallel plotting rabit setup spark testing tests "
    "tracker widget"
)
"""Parts of a module's name that take away what its package grants."""

FUNCTIONS = frozenset(
    {
        *("function", "builtin_function_or_method", "method", "method_descriptor", "wrapper_descriptor"),
        *("method-wrapper", "classmethod_descriptor", "ufunc", "_ArrayFunctionDispatcher"),
        *("cython_function_or_method", "fused_cython_function", "_lru_cache_wrapper"),
    }
)
"""The types of functions and methods, of Python, numpy and Cython."""

REBUILDERS = ("__pyx_unpickle_", "_new_", "_unpickle_", "newObj")
"""How the functions are called that libraries made for unpickling."""

METHODS_OF_TEXT = "capitalize casefold lower lstrip rstrip split splitlines strip swapcase title upper"
METHODS_OF_PATTERNS = "findall finditer fullmatch match search split sub"
"""Bound and unbound methods that serve as tokenizers: `str.lower`, `re.compile(...).findall`."""


class Right(IntEnum):
    """What the file may do with something it names. Each right includes those before it."""

    VALUE = 1
    MAKE = 2
    CALL = 3


_NAMED = {
    f"{module}.{name}": right
    for right, table in ((Right.VALUE, VALUES), (Right.MAKE, MADE), (Right.CALL, CALLED))
    for module, listed in table.items()
    for name in listed.split()
}
_FORBIDDEN = frozenset(FORBIDDEN_PARTS.split())
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for classes written in Python, not for compiled ones


def trusts(trusted: Iterable[str], reference: str) -> bool:
    """Is this among the code that the user trusts, given as patterns?"""
    return any(fnmatchcase(reference, pattern) for pattern in trusted)


def importable(module: str, name: str) -> bool:
    """May the name be looked up at all? Looking up imports the module, and that runs code."""
    if f"{module}.{name}" in _NAMED:
        return True
    hidden = any(part.startswith("__") and not part.startswith("__pyx_unpickle_") for part in name.split("."))
    return not hidden and (_within(module, (*CLASS_TREES, *FUNCTION_TREES)) or module in NUMPY)


def resolve(module: str, name: str) -> Any:
    """The object of that name. A dotted name may lead through classes, never through modules."""
    import_module(module)
    found: Any = sys.modules[module]
    for depth, part in enumerate(name.split(".")):
        if depth and not isinstance(found, type):
            raise AttributeError(f"{module} has no class {name!r}")
        found = getattr(found, part)
    return found


def is_function(value: Any) -> bool:
    """A function or method of any make, by its type: an object with a call of its own may carry any name."""
    return type(value).__name__ in FUNCTIONS and not isinstance(value, type)


def identity(found: Any) -> str | None:
    """Where something is defined, whatever name led to it; None for what is neither class nor function."""
    if not isinstance(found, type) and not is_function(found):
        return None
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else None


def right_to(reference: str, found: Any) -> Right | None:
    """The right a file has to what it refers to; judged by what was found, not only by what it was called."""
    import numpy as np

    if isinstance(found, np.ufunc):
        return Right.VALUE
    if reference in _NAMED and not isinstance(found, ModuleType):
        return _NAMED[reference]
    own = identity(found)
    if own is None:
        return None
    if own in _NAMED:
        return _NAMED[own]
    return _right_to_class(found) if isinstance(found, type) else _right_to_function(found)


def _right_to_class(found: type) -> Right | None:
    import numpy as np

    if issubclass(found, np.generic | np.dtype) and top(found.__module__) == "numpy":
        return Right.CALL
    if not _within(found.__module__, CLASS_TREES):
        return None
    packages = {top(tree) for tree in CLASS_TREES}
    for base in found.__mro__:
        if issubclass(base, np.memmap) or not (top(base.__module__) in packages or base.__module__ in BASES):
            return None  # a thread, a file or a joblib.Parallel in the guise of an allowed package
    if issubclass(found, Enum) or top(found.__module__) == "pandas":
        return Right.CALL
    if found.__flags__ & HEAP_TYPE:
        return Right.MAKE
    return Right.CALL if f"{identity(found)}.".startswith(tuple(f"{tree}." for tree in REBUILT)) else Right.VALUE


def _right_to_function(found: Any) -> Right | None:
    module, name = found.__module__, found.__qualname__
    if "." in name or not callable(found):
        return None  # a method could be handed an object it was never meant for
    if name.startswith(REBUILDERS) and _within(module, CLASS_TREES):
        return Right.CALL
    return Right.VALUE if _within(module, FUNCTION_TREES) and _is_public(module, name) else None


def rebuilt_by(function: Any) -> type | str | None:
    """The class that a function of a library rebuilds, with those derived from it, or the module whose classes it does.

    These make whatever class they are given, also one that a file may not make. None for what is given no class.
    """
    import numpy as np

    if not is_function(function) or not isinstance(name := function.__name__, str):
        return None
    module = sys.modules.get(function.__module__)
    if name == "_reconstruct":
        return np.ndarray
    if name == "_mareconstruct":
        return np.ma.MaskedArray
    if name == "newObj":
        return str(function.__module__)
    for prefix in ("__pyx_unpickle_", "_new_"):
        if name.startswith(prefix):
            found = getattr(module, name.removeprefix(prefix), None)
            return found if isinstance(found, type) else ""
    return None


def _is_public(module: str, name: str) -> bool:
    """Is this offered to users? What is not may call any method of what it is given."""
    tree = next(tree for tree in FUNCTION_TREES if module == tree or module.startswith(f"{tree}."))
    return name in getattr(sys.modules[tree], "__all__", (name,)) and not name.startswith("_")


def method_allowed(owner: Any, name: Any) -> bool:
    """May the file take this method of this object? Only tokenizers, and what scipy's discrete distributions keep."""
    if owner is str:
        return name in METHODS_OF_TEXT.split()
    if is_distribution(owner):
        return bool(name == "_entropy")
    return type(owner) is re.Pattern and name in METHODS_OF_PATTERNS.split()


def is_distribution(target: Any) -> bool:
    """Is this one of scipy's distributions?"""
    infrastructure = sys.modules.get("scipy.stats._distn_infrastructure")
    return infrastructure is not None and isinstance(target, infrastructure.rv_generic)


def is_state_of_distribution(target: Any, state: Any) -> bool:
    """scipy runs a text in the state of a distribution as code: it has to be the text scipy itself wrote."""
    import scipy.stats

    for known in vars(scipy.stats).values():
        if type(known) is type(target):
            genuine = known.__getstate__()
            same_code = isinstance(state, dict) and state.get("_parse_arg_template") == genuine["_parse_arg_template"]
            return same_code and state.keys() <= genuine.keys()
    return False


def top(module: str) -> str:
    return module.partition(".")[0]


def _within(module: str, trees: tuple[str, ...]) -> bool:
    inside = any(module == tree or module.startswith(f"{tree}.") for tree in trees)
    return inside and _FORBIDDEN.isdisjoint(module.split("."))
