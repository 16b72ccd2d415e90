"""Looks through a loaded model, whole and finished, before anything in it is called.

What a file may name and call while it is read says little about what it leaves behind: a list can be filled after the
object that holds it was checked. So the objects are walked as they are in the end: what they are, which methods their
attributes name, which functions they would call, where they would look for an estimator, and whether their numbers
stay inside their arrays. What no fitted model holds is refused, with the way to it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from types import MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from likewise.errors import UntrustedModelError, one_line
from likewise.models.pickles import calls, rights, structures
from likewise.models.pickles.given import DATA, DESCRIBING, ZONE_OF_COLUMN, is_shared, is_table, names_hook
from likewise.models.pickles.rights import Right, is_function

ANSWERS = frozenset(("auto", "decision_function", "predict", "predict_log_proba", "predict_proba", "transform"))
"""The methods that scikit-learn may be told to call on a part of a model."""

ESTIMATORS = re.compile(
    r"estimator|transformer|steps|regressor|classifier|calibrat|cluster(er)?$|_kernel|^init_?$|model"
)
"""Attributes of scikit-learn in which it looks for estimators and calls them."""

CONTAINERS = (dict, list, tuple, set, frozenset, deque)
HOLDERS = frozenset(("_catboost._CatBoost", "ctypes.c_void_p"))
"""What boosters keep their own memory in; the file cannot make these."""

RECORDS = ("cv_results_",)
"""Attributes in which a search keeps what it tried, in arrays with gaps; models compute with none of them."""

PLACES = dict.fromkeys(
    (f"sklearn.cluster._kmeans._kmeans_single_{algorithm}" for algorithm in ("elkan", "lloyd")), "_kmeans_single"
)
"""Functions that believe what they are given: they may stand where scikit-learn keeps them, and nowhere else."""

CLASSES = "bool bytes complex dict float frozenset int list object set str tuple"
"""Classes that may stand in a model as values: types of numbers and text, and empty containers."""


OWN_OF_TABLES = ("_cache", "_flags", "_item_cache", "_mgr")
"""What pandas' objects keep for themselves: answers given before, flags, and blocks, which are looked at apart."""


class Step(NamedTuple):
    """How the walk came to an object."""

    before: Step | None
    name: str

    def __str__(self) -> str:
        names: list[str] = []
        step: Step | None = self
        while step is not None:
            names.append(step.name)
            step = step.before
        whole = "".join(reversed(names))
        return whole if len(whole) <= 200 else f"{whole[:97]}…{whole[-97:]}"


class Slot(NamedTuple):
    """The object that a value belongs to, and the attribute it was found in, however deep inside."""

    owner: Any
    attribute: str

    @property
    def of_sklearn(self) -> bool:
        return type(self.owner).__module__.partition(".")[0] in ("sklearn", "imblearn")


def refuse_what_no_model_holds(name: str, model: object, trusted: Sequence[str] = ()) -> None:
    """Raise if anything that can be reached from a model could do more than answer. `name` is its file."""
    if "*" in trusted:
        return
    try:
        walk = _Walk(tuple(trusted))
        found = next(walk.faults(model), None)
        if found is None:
            walk.watch()
    except Exception as error:  # noqa: BLE001 - what breaks the walk could not be looked through
        found = f"something that cannot be looked through ({one_line(error)})"
    if found is not None:
        raise UntrustedModelError(
            f"{name} holds what no fitted model holds, and nothing in it was called: {found}",
            remedy="Find out where the file comes from, and save the model again from where it was fitted. Only if you "
            "would run a program from the same hand, allow everything with --trust '*': that runs the file's code",
        )


class _Walk:
    """One look at everything that hangs together; each object once, however often and in which circles it is held."""

    def __init__(self, trusted: tuple[str, ...]) -> None:
        self._trusted = trusted
        self._seen: dict[tuple[int, bool], object] = {}  # the objects too, so that none is freed and its id used again
        self._kinds: dict[type, bool] = {}
        self._names: list[tuple[str, Step]] = []
        self._held: list[tuple[Any, Step]] = []
        self._calls: list[str] = []

    def faults(self, model: object) -> Iterator[str]:
        waiting: deque[tuple[Any, Step, Slot]] = deque([(model, Step(None, "model"), Slot(None, ""))])
        while waiting:
            value, step, slot = waiting.pop()
            named = _tells_methods(slot)
            if isinstance(value, str) or type(value) in DATA:
                yield from self._text(value, step, slot)
                continue
            # What depends on where an object stands is looked at wherever it stands, the rest once.
            yield from self._in_place(value, step, slot)
            if (id(value), named) in self._seen:
                continue
            self._seen[id(value), named] = value
            yield from self._object(value, step)
            own = isinstance(value, CONTAINERS) or _is_array(value)
            for name, part, attribute in _parts(value):
                inside = slot if own and attribute is None else Slot(value, attribute or "")
                if isinstance(part, str) and ZONE_OF_COLUMN.search(part):
                    yield f"{step}{name} is a type of columns that names a file"
                if type(part) not in DATA or _tells_methods(inside):
                    waiting.append((part, Step(step, name), inside))
        yield from self._methods()
        # Numbers last: to look at them calls methods of what holds them, which are known by now.
        for value, step in self._held:
            if (fault := structures.fault_of(value)) is not None:
                yield f"{step} {fault}"
        yield from self._calls

    def watch(self) -> None:
        """Keep an eye on what will be called."""
        for value in self._seen.values():
            if _named(type(value)) == calls.TRANSFORMER:
                calls.watch(value, self._trusted)

    def _in_place(self, value: Any, step: Step, slot: Slot) -> Iterator[str]:
        kind = type(value)
        if callable(value) and (found := self._callable(value, slot)) is not None:
            yield f"{step} is {found}"
        if isinstance(value, type) or is_function(value) or self._is_trusted(kind):
            return
        if _tells_methods(slot) and (_is_array(value) or is_table(kind)):
            yield f"{step} is a {_named(kind)} in the place of the name of a method"
        if _is_array(value) and _named(kind) != "numpy.ndarray" and slot.attribute not in RECORDS:
            # Compiled code computes with all of its numbers; who looks at them sees those that it does not hide.
            yield f"{step} is a {_named(kind)} in the place of an array"
        # Of a ColumnTransformer.
        columns = step.name == "[2]" and (_is_array(value) or _is_index(value)) and value.ndim == 1
        asked = slot.of_sklearn and ESTIMATORS.search(slot.attribute) is not None and not columns
        if asked and _only_looks_like_an_estimator(value):
            yield f"{step} is a {_named(kind)} in the place of an estimator"

    def _object(self, value: Any, step: Step) -> Iterator[str]:
        kind = type(value)
        if isinstance(value, type) or is_function(value):
            return
        if not self._allowed(kind):
            yield f"{step} is a {_named(kind)}, which cannot be checked"
            return
        if (fault := calls.fault_of(value, self._trusted)) is not None:
            self._calls.append(f"{step}{fault}")
        if structures.known(kind):
            self._held.append((value, step))
        if not self._is_trusted(kind):
            yield from self._attributes(value, step)

    def _allowed(self, kind: type) -> bool:
        """May objects of this class be in a model at all?"""
        if kind not in self._kinds:
            named = _named(kind)
            known = kind in DATA or kind in CONTAINERS or kind is slice or named in HOLDERS or is_table(kind)
            self._kinds[kind] = (
                known
                or self._is_trusted(kind)
                or (rights.right_to(named, kind) is not None and not structures.opaque(kind))
            )
        return self._kinds[kind]

    def _is_trusted(self, kind: type) -> bool:
        return rights.trusts(self._trusted, _named(kind))

    def _text(self, value: Any, step: Step, slot: Slot) -> Iterator[str]:
        if isinstance(value, str) and _tells_methods(slot):
            text = str.__str__(value)
            if any(part.startswith("_") for part in text.split(".")):
                yield f"{step} is {text[:60]!r}, the name of something private"
            self._names.append((text, step))

    def _methods(self) -> Iterator[str]:
        """Names that would be looked up on whatever stands there: those of methods that do more than answer."""
        if not self._names:
            return
        import numpy as np
        import pandas as pd
        import scipy.sparse

        kinds = {*self._kinds, pd.DataFrame, pd.Series, np.ndarray, scipy.sparse.csr_array, str, list, dict}
        for name, step in self._names:
            if name not in ANSWERS and any(callable(getattr(kind, name, None)) for kind in kinds):
                yield f"{step} is {name[:60]!r}, which is not a method that answers rows"

    def _attributes(self, value: Any, step: Step) -> Iterator[str]:
        own, kind = _own(value), type(value)
        if isinstance(value, CONTAINERS) or not own or is_shared(value):
            return
        if is_table(kind):
            for name in OWN_OF_TABLES:
                if type(own.get(name)) is dict:
                    own[name].clear()  # answers that the file may have put there, and that can be made again
        if "memory" in own and own["memory"] is not None and hasattr(kind, "fit"):
            own["memory"] = None  # a folder of pickles, which only fitting would use
        read = own.get("input", "content") if kind.__module__ == "sklearn.feature_extraction.text" else "content"
        if type(read) is not str or read != "content":
            yield f"{step}.input is {_short(read)}, so that the model would read files"
        for name, entry in own.items():
            if isinstance(name, str) and names_hook(name):
                if name not in DESCRIBING or not (entry is None or type(entry) is str):
                    yield f"{step} says of itself what it is ({name[:60]})"
                continue
            if is_table(kind) and name in calls.METHODS.split():
                yield f"{step} has a {name} of its own"
            hidden = isinstance(name, str) and inspect.getattr_static(kind, name, None)
            if not hidden:
                continue
            if hasattr(type(hidden), "__get__") and not isinstance(hidden, MemberDescriptorType):
                yield f"{step}.{name[:60]} stands in the place of a method"

    def _callable(self, value: Any, slot: Slot) -> str | None:
        """What is wrong with something that could be called, or None."""
        reference = rights.identity(value)
        if isinstance(value, type):
            masked = slot.attribute == "_baseclass" and _top(type(slot.owner)) == "numpy"
            # A selector of columns compares types; elsewhere one of pandas could be called, and opens files then.
            compared = _is_type_of_columns(value) and slot.attribute.startswith("dtype")
            idle = slot.owner is None or masked or compared  # no model, or a masked array
            return None if _is_data_type(value) or idle or self._is_trusted(value) else f"the class {_named(value)}"
        if isinstance(value, functools.partial) and value.func in (max, min):
            return f"a choice among fixed values ({reference or 'functools.partial'} of {value.func.__name__})"
        if not is_function(value):
            return None  # an object whose class has been looked at
        if reference is not None and rights.trusts(self._trusted, reference):
            return None
        owner = getattr(value, "__self__", None)
        described = f"the function {reference or getattr(value, '__name__', type(value).__name__)}"
        if (owner is not None and not isinstance(owner, ModuleType)) or hasattr(value, "__objclass__"):
            name = getattr(value, "__name__", "")
            own = rights.method_allowed(owner if owner is not None else value.__objclass__, name)
            return (
                None
                if own or _is_part_of_distribution(value, owner, slot)
                else f"the method {_named(type(owner))}.{name}"
            )
        if slot.attribute != PLACES.get(reference or "", slot.attribute):
            return described
        if _is_part_of_interpolator(value, slot):
            return None
        return None if rights.right_to(reference or "", value) is Right.VALUE else described


def _parts(value: Any) -> Iterator[tuple[str, Any, str | None]]:
    """What an object holds: how it is written, the part, and the name of the attribute if it is one."""
    if isinstance(value, dict):
        for key, entry in dict.items(value):  # the object's own `items` could be any callable of the file
            yield f"[{_short(key)}]", entry, None
            yield f".keys()[{_short(key)}]", key, None
        if isinstance(factory := getattr(value, "default_factory", None), object) and factory is not None:
            yield ".default_factory", factory, "default_factory"
    elif isinstance(value, CONTAINERS):
        for index, entry in enumerate(value):
            yield f"[{index}]", entry, None
    elif _is_array(value):
        for index, entry in enumerate(_entries(value)):
            yield f"[{index}]", entry, None
    elif isinstance(value, functools.partial):
        yield from (
            (".func", value.func, "func"),
            (".args", value.args, "args"),
            (".keywords", value.keywords, "keywords"),
        )
    elif isinstance(value, operator.itemgetter):
        yield ".items", value.__reduce__()[1], "items"
    elif isinstance(value, slice):
        yield from ((f".{name}", getattr(value, name), name) for name in ("start", "stop", "step"))
    if isinstance(value, type) or is_function(value):
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            yield ".__self__", owner, "__self__"
        return
    if rights.is_distribution(value):
        return  # compared with scipy's own as a whole
    if type(value) in CONTAINERS:
        return
    if _top(type(value)) == "pandas":
        yield from _columns(value)
        yield from ((f".{name}", entry, str(name)) for name, entry in _own(value).items() if name not in OWN_OF_TABLES)
        return
    for name, entry in _own(value).items():
        yield f".{name}", entry, str(name)
    yield from _inside(value)


def _columns(value: Any) -> Iterator[tuple[str, Any, str | None]]:
    """The values of what pandas keeps; the rest of its objects is its own."""
    if (manager := getattr(value, "_mgr", None)) is not None:
        for index, block in enumerate(manager.blocks):
            yield f"._mgr.blocks[{index}].values", block.values, "values"
        for index, axis in enumerate(manager.axes):
            yield f"._mgr.axes[{index}]", axis, "axes"
    for name in ("_data", "_levels", "_codes", "_ndarray", "_pa_array", "_mask", "_dtype", "categories"):
        if (part := getattr(value, name, None)) is not None and not callable(part):
            yield f".{name}", part, name


def _inside(value: Any) -> Iterator[tuple[str, Any, str | None]]:
    """What compiled objects and slots keep."""
    kind = type(value)
    for base in kind.__mro__:
        if _top(base) in ("builtins", "numpy", "ctypes", "functools"):
            continue
        for name, member in vars(base).items():
            entry = getattr(value, name, None) if isinstance(member, MemberDescriptorType) else None
            if entry is not None:
                yield f".{name}", entry, name
    if _top(kind) == "sklearn" and not kind.__flags__ & rights.HEAP_TYPE:
        state = value.__getstate__() if hasattr(kind, "__getstate__") else None
        for index, entry in enumerate(state if isinstance(state, tuple) else ()):
            yield f".__getstate__()[{index}]", entry, "state"


def _own(value: Any) -> dict[str, Any]:
    own = getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else {}


def _tells_methods(slot: Slot) -> bool:
    """Is text found here used as the name of a method or an attribute?"""
    name = slot.attribute
    told = "method" in name or "getter" in name
    return told and slot.of_sklearn and type(slot.owner).__module__ != "sklearn.utils._metadata_requests"


def _only_looks_like_an_estimator(value: Any) -> bool:
    kind = type(value)
    if _top(kind) in ("sklearn", "imblearn"):
        return False
    if is_table(kind):
        return True  # what it does when it is asked, its file may have said
    return not hasattr(kind, "get_params") and any(hasattr(kind, name) for name in ("fit", *ANSWERS))


def _is_data_type(value: type) -> bool:
    import numpy as np

    plain = value.__module__ == "builtins" and value.__name__ in CLASSES.split()
    moments = value.__module__ in ("datetime", "decimal", "fractions", "collections")
    return plain or moments or (issubclass(value, np.generic | np.dtype) and _top(value) == "numpy")


def _is_type_of_columns(value: type) -> bool:
    return _top(value) == "pandas" and value.__name__.endswith("Dtype")


def _is_part_of_distribution(value: Any, owner: Any, slot: Slot) -> bool:
    """scipy's distributions keep some of their own methods."""
    return (
        rights.is_distribution(owner) and owner is slot.owner and getattr(type(owner), value.__name__, None) is not None
    )


def _is_part_of_interpolator(value: Any, slot: Slot) -> bool:
    """scipy's interpolation, which isotonic regression holds, keeps the one of its own functions that it calls."""
    kind = type(slot.owner)
    own = slot.attribute == "_call" and kind in structures.interpolators()
    return own and vars(kind).get(getattr(value, "__name__", "")) is value


def _entries(array: Any) -> list[Any]:
    """The objects in an array, by numpy's own methods."""
    import numpy as np

    whole = np.ndarray.view(array, np.ndarray)
    return whole.ravel().tolist() if whole.dtype.hasobject else []


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_index(value: Any) -> bool:
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Index)


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _top(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _short(key: Any) -> str:
    return repr(key)[:60] if type(key) in DATA else type(key).__name__
