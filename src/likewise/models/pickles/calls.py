"""What a model calls when it answers: functions that make rows of rows, and what they are given beside the rows.

A function that only computes can be led astray by what stands beside it. With `out`, numpy writes into an array of the
model that was looked at before; a choice among fixed values hands the next step an object of the file in the place of
rows, such as the name of a file for one that reads files. So both are told from what fitted models hold.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from likewise.errors import ModelError
from likewise.models.pickles import rights
from likewise.models.pickles.given import DATA

TRANSFORMER = "sklearn.preprocessing._function_transformer.FunctionTransformer"

MAKING_ROWS = (
    *("numpy", "scipy.special", "scipy.interpolate", "sklearn.gaussian_process.kernels"),
    *("sklearn.metrics.pairwise", "sklearn.preprocessing", "sklearn.utils"),
)
"""Whose functions and callable objects give an array for an array."""

OBJECTS = ("numpy.vectorize", "scipy.interpolate", "sklearn.gaussian_process.kernels")
"""Which of these are objects with a call of their own."""

OPERATORS = ("builtins.abs", "builtins.round", "_operator", "operator")

REDUCING = (
    "all amax amin any argmax argmin average max mean median min nanmax nanmean nanmedian nanmin nanstd nansum "
    "percentile prod ptp quantile std sum var"
)
"""Functions of numpy that make one value of many, unless they are told to go along the columns."""

COMPUTING = "add dot isclose searchsorted"
"""Functions of numpy that compute with an array before the rows; others hand it on, and the next step changes it."""

OF_ROWS = ("numpy", "pandas", "polars", "pyarrow", "scipy")
"""Whose arrays, sparse matrices and frames hold rows."""

BELIEVED = ("X_norm_squared", "Y_norm_squared")
"""What compiled code takes for as long as the points that it belongs to."""

PAIRS = re.compile(r"sklearn\.metrics\.pairwise\.(?!paired_)\w+_(kernels?|distances|similarity)")
"""Functions that answer for every row and every point."""

METHODS = (
    "fit fit_predict fit_transform get_params predict predict_proba predict_log_proba decision_function score "
    "transform inverse_transform __array__ __array_function__ __array_ufunc__ __sklearn_tags__"
)
"""What is asked of an estimator or of rows."""


THREADS = re.compile(r"n_jobs|n_?threads?|num_threads?|thread_count|cat_features_threads")
MOST_THREADS = 1024
"""How parameters are called that say how many threads are started, and more than any machine has use for: the C++ of
boosters ends the process where the system has no more of them."""


def fault_of(value: Any, trusted: tuple[str, ...]) -> str | None:
    """What is wrong with what an object would call, or with what would be given to it, as it follows the way to it."""
    if isinstance(value, dict):
        return next(_of_options(value), None)
    if (name := _too_many_threads(getattr(value, "__dict__", None))) is not None:
        return f".{name} is a number of threads that no machine has"
    if isinstance(value, functools.partial):
        return _of_partial(value, trusted)
    if rights.identity(type(value)) == "numpy.vectorize":
        called = _unfolded(vars(value).get("pyfunc"))[0]
        plain = rights.is_function(called) or _is_trusted(called, trusted)
        return None if plain else f".pyfunc is a {type(called).__name__}, and no function"
    if rights.identity(type(value)) == TRANSFORMER:
        own = vars(value)
        for name, options in (("func", "kw_args"), ("inverse_func", "inv_kw_args")):
            given = own.get(options) or {}
            if not isinstance(given, Mapping) or not _fixed(given):
                return f".{options} holds values that are not plain"
            if _makes_text(given):
                return f".{options} has text made of rows"
            if (why := _no_rows(own.get(name), given, trusted)) is not None:
                return f".{name} {why}"
    return None


def _of_options(value: dict[Any, Any]) -> Iterator[str]:
    """A mapping may be what a function is called with, and scikit-learn's `Bunch` may be taken for an object."""
    if not (value.get("out") is None or type(value["out"]) in DATA):
        yield " names an array to write into (out)"
    if (threads := _too_many_threads(value)) is not None:
        yield f"[{threads!r}] is a number of threads that no machine has"
    for name in BELIEVED:
        if name in value:
            yield f" says how long points are ({name}), which nothing checks"
    if hasattr(type(value), "__getattr__"):
        named = sorted(name for name in METHODS.split() if name in value)
        if named:
            yield f" has a {named[0]} of its own"


def _too_many_threads(told: Any) -> str | None:
    """The name by which a model asks for more threads than a machine has, or for what is no number of them."""
    if not isinstance(told, dict):
        return None
    named = ((name, value) for name, value in dict.items(told) if isinstance(name, str) and THREADS.fullmatch(name))
    return next((str.__str__(name) for name, value in named if not all(map(_is_few, _each(value)))), None)


def _each(value: Any) -> Iterator[Any]:
    """A value, or those that a search may choose from."""
    import numpy as np

    if isinstance(value, np.ndarray):
        value = np.ndarray.view(value, np.ndarray).ravel().tolist()
    yield from value if type(value) in (list, tuple, set, frozenset) else (value,)


def _is_few(count: Any) -> bool:
    if count is None or not (type(count) in DATA or type(count).__module__ == "numpy"):
        return True
    try:
        return abs(float(count)) <= MOST_THREADS
    except (TypeError, ValueError):
        return False


def _of_partial(value: functools.partial[Any], trusted: tuple[str, ...]) -> str | None:
    function, arguments, keywords = _unfolded(value)
    if _is_trusted(function, trusted):
        return None
    if not _fixed(arguments) or not _fixed(keywords):
        return " is given values that are not plain"
    if any(map(_is_text, arguments)) or _makes_text(keywords):
        return " is given text in the place of numbers"
    if any(_is_array(part) for part in arguments) and not _computes(function):
        return " is given an array before the rows, which the next step could change"
    # A second one before the rows would make these the third: what numpy writes into.
    return " is given more than one value before the rows" if len(arguments) > 1 else None


def _is_array(value: Any) -> bool:
    """Is this an array, or a container that may hold one?"""
    return type(value) not in DATA and not isinstance(value, type)


def _is_text(value: Any) -> bool:
    """Is this text, or would numpy make text of it?"""
    if isinstance(value, dict):
        return False
    parts = value if type(value) in (list, tuple, set, frozenset) else ()
    return isinstance(value, str | bytes | bytearray) or any(map(_is_text, parts))


def _makes_text(options: Mapping[Any, Any]) -> bool:
    """Is a function told to answer text or objects, in which anything may stand?"""
    import numpy as np

    told: Any = options.get("dtype")
    for part in told if isinstance(told, list | tuple) else (told,):
        try:
            if part is not None and np.dtype(part).kind not in "biufcmM":
                return True
        except TypeError:  # a word of the function's own, such as 'numeric'
            continue
    return False


def _computes(function: Any) -> bool:
    """Does this make something new of an array and the rows?"""
    import numpy as np

    named = rights.identity(function) or ""
    known = rights.top(named) == "numpy" and getattr(function, "__name__", "") in COMPUTING.split()
    return isinstance(function, np.ufunc) or known or named.startswith(OPERATORS[2:])


def _unfolded(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A function, and what all the partial calls around it have given it."""
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        if not isinstance(function, functools.partial):
            break
        arguments, keywords = (*function.args, *arguments), {**function.keywords, **keywords}
        function = function.func
    return function, arguments, keywords


def _fixed(value: Any, depth: int = 0) -> bool:
    """Numbers, text, types and arrays of these, in containers that are not deep."""
    import numpy as np

    if type(value) in DATA or isinstance(value, np.generic | type):
        return True
    if isinstance(value, np.ndarray | np.dtype):
        # Text beside the rows could become the rows of the next step: the name of a file, for one that reads files.
        return (value if isinstance(value, np.dtype) else value.dtype).kind in "biufcmM"
    if type(value).__module__.startswith("scipy.sparse"):
        return True
    if depth < 4 and type(value) in (list, tuple, set, frozenset):
        return all(_fixed(entry, depth + 1) for entry in value)
    if depth < 4 and type(value) in (dict, slice):
        parts = value.values() if isinstance(value, dict) else (value.start, value.stop, value.step)
        return all(_fixed(entry, depth + 1) for entry in parts)
    # A metric or a kernel may be told by a function, which is looked at where it stands.
    named = rights.identity(value) or ""
    return depth > 0 and (isinstance(value, np.ufunc) or rights.right_to(named, value) is not None)


def _no_rows(function: Any, options: Mapping[str, Any], trusted: tuple[str, ...]) -> str | None:
    """Why a function makes no rows of rows, or None if it does."""
    import numpy as np

    function, arguments, keywords = _unfolded(function)
    keywords = {**keywords, **options}
    if function is None or isinstance(function, np.ufunc) or _is_trusted(function, trusted):
        return None
    if isinstance(function, operator.itemgetter):
        # One number takes one of the rows.
        return None if all(_names_columns(item) for item in function.__reduce__()[1]) else "takes a part of the rows"
    named = rights.identity(function) or rights.identity(type(function)) or ""
    if function in (max, min):
        return f"is a choice among fixed values ({named})"
    known = (*MAKING_ROWS, *OPERATORS) if rights.is_function(function) else OBJECTS
    if not any(named == entry or named.startswith(f"{entry}.") for entry in known):
        return f"makes no rows of rows ({named[:60] or type(function).__name__})"
    if rights.top(named) == "numpy" and getattr(function, "__name__", "") in REDUCING.split():
        axis = keywords.get("axis", arguments[1] if len(arguments) > 1 else None)
        along = axis if isinstance(axis, tuple) else (axis,)
        if keywords.get("keepdims") is not True and not all(type(part) is int and part > 0 for part in along):
            return f"makes one value of many ({named})"
    return None


def watch(value: Any, trusted: tuple[str, ...]) -> None:
    """Have what a FunctionTransformer answers looked at whenever it does: nobody can tell from its function alone."""
    own = vars(value)
    if not any(own.get(name) is not None and _is_trusted(own[name], trusted) for name in ("func", "inverse_func")):
        own["_transform"] = rows_of_rows


def rows_of_rows(rows: Any, func: Any = None, kw_args: Mapping[str, Any] | None = None) -> Any:
    """What a function makes of rows, in the place of `FunctionTransformer._transform`: as many rows, or an error."""
    made = rows if func is None else func(rows, **(kw_args or {}))
    if made is rows:
        return made
    count = rows.shape[0] if getattr(rows, "shape", ()) else len(rows)
    shape = getattr(made, "shape", None) if rights.top(type(made).__module__) in OF_ROWS else None
    if not shape or shape[0] != count:
        told = f"{type(made).__name__} of shape {shape}" if shape else f"a {type(made).__name__}"
        raise ModelError(f"a FunctionTransformer of the file makes {told} of {count} rows, and no rows")
    return made


def compares_pairs(kernel: Any) -> bool:
    """Does a kernel answer for each row and each point it is given? libsvm does not look how wide its answers are."""
    if isinstance(kernel, functools.partial):
        return not kernel.args and compares_pairs(kernel.func)
    named = rights.identity(kernel) or rights.identity(type(kernel)) or ""
    if rights.right_to(named, kernel if rights.is_function(kernel) else type(kernel)) is None:
        return True  # code of the user's, who trusts it
    if named.startswith("sklearn.gaussian_process.kernels."):
        return all(compares_pairs(part) for part in vars(kernel).values() if callable(part))
    return PAIRS.fullmatch(named) is not None


def _names_columns(item: Any) -> bool:
    if isinstance(item, tuple):
        return any(isinstance(part, slice | type(...)) for part in item)
    return isinstance(item, str | slice | list)


def _is_trusted(function: Any, trusted: tuple[str, ...]) -> bool:
    """Is this the user's own, or of a class that is?"""
    named = rights.identity(function) or rights.identity(type(function))
    return named is not None and rights.trusts(trusted, named)
