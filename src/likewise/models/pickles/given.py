"""What code may be given while a file is read: data, and nothing that the file could have filled.

Constructors and setters of states ask what they are given for its attributes, hash it, compare it, write it as text.
None of that may reach an object whose attributes the file chose, so that reading calls nothing of the file's.
"""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import prod
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from likewise.models.pickles.rights import (
    HEAP_TYPE,
    identity,
    is_distribution,
    is_state_of_distribution,
    rebuilt_by,
    top,
)

DATA = frozenset(
    (type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...), type(NotImplemented), re.Pattern)
)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
SEQUENCES = (list, tuple, set, frozenset, deque)
KEEPING = frozenset(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple")) | {
    "collections.OrderedDict",
    "collections.deque",
}
"""Containers, which may be made from containers of anything, as long as no object is hashed."""

PLAIN_ONLY = ("builtins", "collections", "decimal", "fractions", "pathlib", "re")
"""Modules whose functions and classes are given numbers, text and containers, and nothing else."""

BUILT_FROM_DATA = ("datetime", "decimal", "fractions", "pandas", "pathlib", "pyarrow")
"""Packages whose objects are made and filled from data alone."""

ESTIMATOR = "sklearn.base.BaseEstimator"
LOOKING = (
    *("numpy.ma.MaskedArray", "scipy.sparse._coo.coo_matrix", "sklearn.isotonic.IsotonicRegression"),
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
)
"""Classes that look at the arrays in their state, and at nothing else."""

STORING = frozenset(("functools.partial", "sklearn.utils._bunch.Bunch"))
"""Classes that take a state by keeping it, and look at nothing in it."""

PACKAGES_OF_TABLES = ("pandas", "pyarrow")
"""Whose objects are looked at by what their columns hold, and none of whose attributes may be called."""

DESCRIBING = ("__doc__", "__name__")
"""Names of the language that objects of libraries keep texts in: `numpy.vectorize`, and scipy's distributions."""

ZONE = re.compile(r"^dateutil/")
ZONE_OF_COLUMN = re.compile(r"\[.*[,=] *dateutil/", re.DOTALL)
"""How pandas is told of a time zone by its file, any file, which it opens: by itself, and in the type of a column."""

UNITS = frozenset(b"Y M W D h m s ms us ns ps fs as generic".split())
"""What numpy counts times in."""

_ALIGNED = 0x80  # NPY_ALIGNED_STRUCT: how fields were laid out, without consequence


def inert(*values: Any, plain: bool = False, held: dict[int, Any] | None = None) -> bool:
    """Is everything in here data, none of whose attributes or methods are the file's to choose?

    Libraries ask what they are given for `__array__`, `squeeze` or `keys`, on the object itself: what a file filled may
    answer with whatever it likes, before anybody has looked at it. `plain` leaves numbers, text and containers only.
    What was looked at is put into `held`, so that it can be kept as it was.
    """
    import numpy as np

    waiting, seen = list(values), {} if held is None else held
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if isinstance(value, str) and (ZONE.search(value) or ZONE_OF_COLUMN.search(value)):  # numpy's own text too
            return False
        if kind in DATA or id(value) in seen:
            continue
        seen[id(value)] = value
        if kind in MAPPINGS:
            waiting += dict.keys(value)
            waiting += dict.values(value)
            waiting += [value.default_factory] if kind is defaultdict else []
        elif kind in SEQUENCES:
            waiting += value
        elif kind is np.ndarray and not plain:
            waiting += value.ravel().tolist() if value.dtype.hasobject else []
        elif kind is slice:
            waiting += (value.start, value.stop, value.step)
        elif isinstance(value, np.generic):
            if value.dtype.hasobject:
                return False
        elif isinstance(value, np.dtype):
            continue
        elif plain or not _unfilled(value):
            return False
    return True


def _unfilled(value: Any) -> bool:
    """Is this a class or a function, or an object that nothing but its own library's code can have filled?"""
    kind = type(value)
    if isinstance(value, type | FunctionType | BuiltinFunctionType | MethodType | MethodDescriptorType | Enum):
        return True
    compiled = not kind.__flags__ & HEAP_TYPE and not hasattr(value, "__dict__")
    return compiled or top(kind.__module__) in BUILT_FROM_DATA


def calling_allowed(function: Any, arguments: tuple[Any, ...], held: dict[int, Any]) -> bool:
    """Is this call harmless? Most functions may be given data only; a few keep what they are given and do no more.

    What is looked at is put into `held`: no more is put into it afterwards.
    """
    name = identity(function)
    if name == "functools.partial":
        return True
    if name in KEEPING:
        made_from, rest = arguments[:1], arguments[1:]
        containers = all(type(part) in (*MAPPINGS, *SEQUENCES) for part in made_from)
        return containers and inert(*(key for part in made_from for key in _keys(function, part)), *rest, held=held)
    plain = name is not None and top(name) in PLAIN_ONLY and name != "collections.defaultdict"
    scalar = isinstance(function, type) and _is_scalar(function)
    return inert(*arguments, plain=plain or scalar, held=held) and arguments_allowed(name, arguments)


def _is_scalar(kind: type) -> bool:
    import numpy as np

    return issubclass(kind, np.generic)


def _keys(function: Any, given: Any) -> Iterable[Any]:
    """What will be hashed and compared of what a container is made from: the values are only kept."""
    if type(given) in MAPPINGS:
        return dict.keys(given)
    if issubclass(function, dict):
        return [pair[0] if type(pair) in (list, tuple) and len(pair) == 2 else pair for pair in given]
    return given if issubclass(function, set | frozenset) else ()


def of_its_family(function: Any, arguments: tuple[Any, ...], may_make: Callable[[type], bool]) -> bool:
    """Is the class that a function is to rebuild one of those it was made for, and one that the file may make?"""
    import numpy as np

    family = rebuilt_by(function)
    if family is None:
        return True
    kind = arguments[0] if arguments else None
    if not isinstance(kind, type):
        return False
    if isinstance(family, str):
        return kind.__module__ == family
    if not issubclass(family, np.ndarray):
        return issubclass(kind, family) and may_make(kind)
    # Arrays are made empty, of bytes, and filled by their state.
    *base, shape, _ = arguments[1:] if len(arguments) > 2 else (None, None)
    plain = all(isinstance(part, type) and issubclass(part, np.ndarray) for part in base)
    return issubclass(kind, family) and plain and shape == (0,) and arguments[-1] in (b"b", "b")


def arguments_allowed(name: str | None, arguments: tuple[Any, ...]) -> bool:
    """For the few functions that call, import or decode what they are given, or believe numbers in it."""
    if name in ("builtins.bytes", "builtins.bytearray") and any(isinstance(part, int) for part in arguments):
        return False  # as many bytes as it says
    if name == "_codecs.encode":  # how bytes are written up to protocol 2; other codecs are imported by name
        return len(arguments) == 2 and isinstance(arguments[0], str) and arguments[1] in ("latin1", "latin-1")
    if name is not None and name.startswith("numpy.random._pickle."):
        return all(_makes_random_bits(argument) for argument in arguments)
    if name == "sklearn.tree._tree.Tree":  # reads as many numbers of classes as it is told to have outputs
        return len(arguments) == 3 and getattr(arguments[1], "shape", None) == (arguments[2],)
    if name is not None and name.endswith(".multiarray.scalar"):
        return _is_scalar_of_bytes(*arguments)
    if name == "pyarrow.lib._restore_array":
        return len(arguments) == 1 and _has_its_buffers(arguments[0])
    return True


def _is_scalar_of_bytes(dtype: Any = None, content: Any = b"", *more: Any) -> bool:
    """numpy follows the pointers in what it is told to be an object, and believes an array to be long enough."""
    import numpy as np

    known = isinstance(dtype, np.dtype) and not dtype.hasobject and not more
    return known and type(content) is bytes and len(content) == dtype.itemsize


def _has_its_buffers(data: Any) -> bool:
    """pyarrow looks into the buffers that an array of this type has before it looks whether they are there."""
    import pyarrow as pa

    if type(data) is not tuple or len(data) < 6 or not isinstance(data[0], pa.DataType) or type(data[4]) is not list:
        return False
    kind, (length, _, offset), buffers, children = data[0], data[1:4], data[4], data[5]
    if not all(type(number) is int and number >= 0 for number in (length, offset)):
        return False
    whole = len(buffers) == kind.num_buffers and all(
        buffer is None or isinstance(buffer, pa.Buffer) for buffer in buffers
    )
    offsets = any(test(kind) for test in (pa.types.is_binary, pa.types.is_string, pa.types.is_list, pa.types.is_map))
    offsets = offsets or any(
        test(kind) for test in (pa.types.is_large_binary, pa.types.is_large_string, pa.types.is_large_list)
    )
    return whole and not (offsets and buffers[1] is None) and all(map(_has_its_buffers, children or ()))


def _makes_random_bits(argument: Any) -> bool:
    from numpy.random import BitGenerator

    if isinstance(argument, type):
        return issubclass(argument, BitGenerator)
    return isinstance(argument, str | BitGenerator) or identity(argument) == "numpy.random._pickle.__bit_generator_ctor"


def state_allowed(target: Any, state: Any, held: dict[int, Any]) -> bool:
    """May this object be given this state? What is looked at is put into `held`."""
    if isinstance(target, type | ModuleType | FunctionType | BuiltinFunctionType | MethodType | Enum):
        return False
    if is_shared(target):
        return False  # these are shared with the rest of the process
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, Mapping) and type(part) not in MAPPINGS:
            return False
        if isinstance(part, dict) and not all(_entry_allowed(key, value) for key, value in dict.items(part)):
            return False
        if isinstance(part, dict) and is_table(type(target)) and any(map(callable, dict.values(part))):
            return False  # it would stand in the place of a method, and who is given a table calls some
    if is_distribution(target):
        return is_state_of_distribution(target, state) and inert(*(v for v in state.values() if not _vectorized(v)))
    if not _kept_as_it_is(target, state) and not inert(state, held=held):
        return False
    import numpy as np

    if isinstance(target, np.dtype):
        return is_state_of_dtype(target, state)
    if isinstance(target, np.ndarray) and isinstance(state, tuple):
        # numpy reads as many objects as the shape says, also beyond the end of the list
        shapes = [part for part in state if isinstance(part, tuple) and all(isinstance(n, int) for n in part)]
        return all(bool(shapes) and prod(shapes[0]) == len(part) for part in state if isinstance(part, list))
    return True


def keeps_any_state(kind: type) -> bool:
    """Does a class store what it is filled with, and run nothing of it? scipy's distributions run a text in it.

    What is compiled looks at arrays and numbers; those are looked at when all is there.
    """
    setter = next((base for base in kind.__mro__ if "__setstate__" in vars(base)), None)
    compiled = setter is not None and not setter.__flags__ & HEAP_TYPE
    return setter is None or compiled or identity(setter) in (ESTIMATOR, *LOOKING, *STORING)


def _kept_as_it_is(target: Any, state: Any) -> bool:
    """Is the state only stored, with no look at what is in it?"""
    import numpy as np

    kind = type(target)
    setter = next((base for base in kind.__mro__ if "__setstate__" in vars(base)), None)
    if setter is None:
        return top(kind.__module__) not in BUILT_FROM_DATA
    if identity(setter) == ESTIMATOR:
        # Another version is told with what stands here, as text.
        return type(state) is dict and type(state.get("_sklearn_version", "")) is str
    if kind is np.ndarray:
        # Objects are stored as they are, unless they are parts of records, which ask them for numbers and text.
        types = [part for part in state if isinstance(part, np.dtype)] if type(state) is tuple else []
        return len(types) == 1 and types[0] == np.dtype("O")
    return identity(setter) in STORING


def _vectorized(value: Any) -> bool:
    """What scipy's discrete distributions keep of their own methods, and make anew."""
    import numpy as np

    return type(value) is np.vectorize and type(vars(value).get("pyfunc")) is MethodType


def _entry_allowed(key: Any, value: Any) -> bool:
    return (
        not isinstance(key, str) or not names_hook(key) or (key in DESCRIBING and (value is None or type(value) is str))
    )


def is_table(kind: type) -> bool:
    """Is this a class of pandas' or pyarrow's?"""
    return top(kind.__module__) in PACKAGES_OF_TABLES


def is_shared(value: Any) -> bool:
    """Is this what pandas has one of, for what is missing?"""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def names_hook(name: str) -> bool:
    """Does the name belong to the language? What is called so is the class's business, not that of a state."""
    return name.startswith("__") and name.endswith("__")


def is_array(target: Any) -> bool:
    """Is this one of numpy's arrays?"""
    import numpy as np

    return isinstance(target, np.ndarray)


def is_dtype(target: Any) -> bool:
    """Is this a type of numpy's arrays?"""
    import numpy as np

    return isinstance(target, np.dtype)


def built_dtype(target: Any, state: tuple[Any, ...]) -> Any:
    """A dtype of its own with this state: numpy keeps the dict of the fields, and the file could change it later."""
    built = copy.copy(target)
    built.__setstate__(tuple(dict(part) if isinstance(part, dict) else part for part in state))
    return built


def is_state_of_dtype(target: Any, state: Any) -> bool:
    """numpy believes flags and sizes as they are written, and a wrong one makes it follow pointers that are none."""
    import numpy as np

    if not isinstance(state, tuple) or len(state) < 8:
        return False
    _, _, base, fields_in_order, fields, size, alignment, flags = state[:8]
    try:
        if base is not None:
            expected = np.dtype(base)
        elif fields is not None:
            formats, offsets = zip(*(fields[name][:2] for name in fields_in_order), strict=True)
            layout: Any = {"names": fields_in_order, "formats": formats, "offsets": offsets, "itemsize": size}
            expected = np.dtype(layout, align=bool(flags & _ALIGNED))
            if len(fields) != len(fields_in_order):
                return False  # a field that no order names is found by its name all the same, wherever it lies
        else:
            expected = target
        # Of what numpy knows the size and place of by itself, it takes none from a state; of the others it takes any.
        known = (-1,) if target.kind not in "SUV" else ()
        unsized = target.kind in "SUV" and base is None
        fits = size in (*known, expected.itemsize) or (unsized and isinstance(size, int) and size >= 0)
        # Whether an array lies well in memory is found by dividing by it.
        fits = fits and alignment in (*known, expected.alignment)
        fits = fits and (target.kind not in "mM" or _counts_times(*state[8:]))
        return bool(fits and flags & ~_ALIGNED == expected.flags & ~_ALIGNED)
    except (TypeError, ValueError, KeyError):
        return False


def _counts_times(told: Any = None, *more: Any) -> bool:
    """numpy looks up the unit of a time in what its state has behind all else, also where there is nothing."""
    if more or type(told) is not tuple or len(told) != 2 or type(told[1]) is not tuple or len(told[1]) != 4:
        return False
    unit, *numbers = told[1]
    return unit in UNITS and all(type(number) is int and 0 < number < 2**31 for number in numbers)
