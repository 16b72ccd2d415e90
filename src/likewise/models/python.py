"""Anything that can be called: `module:callable`, `file.py:callable`, live functions.

The callable gets one argument: a DataFrame when the data is a table, the array when there is a
single one, else a dict of arrays. It returns an array, arrays in dicts, tuples and lists within each other, a
DataFrame, an Arrow table or a structured array (one output a column) or one dictionary per row. A callable without
required parameters has no place for rows: it is a factory, is called once, and what it returns is
the model. Code that a user names is run: that is what naming it means.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, Kind, Label, Model, OutputSpec, Signature
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError, ModelError, nearest, one_line
from likewise.models import require_known
from likewise.models.arrays import array_of_dicts, dense, entries_of, kind_of, of_objects, unboxed, widened
from likewise.registry import adapters

SPECIFICATION = re.compile(r"^(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_][\w.]*)$")

WHOLE = r"(?i)u?int\d|bool"
"""How pandas, Polars and Arrow call types of whole numbers that may be missing."""

ONE_A_ROW = "Return an array with one answer per row, or, where every call is one sample, a list: --batch-axis none"


def load(specification: str) -> Any:
    """The object that `module:attribute` or `file.py:attribute` names."""
    match = SPECIFICATION.match(specification)
    if match is None:
        raise ModelError(
            f"{specification!r} names no Python object", remedy="Write `module:attribute` or `file.py:attribute`"
        )
    place, attribute = match["place"], match["attribute"]
    # Whose extensions there are is settled before a folder of the user's is where modules are found.
    adapters()
    try:
        if (folder := _folder(specification)) not in sys.path:
            # A file may import its neighbours, as it could when run as a script.
            sys.path.insert(0, folder)
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"importing {place} failed: {one_line(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            raise ModelError(f"{place} has no {part!r}{nearest(part, names)}", remedy="Check the name after the colon")
        found = getattr(found, part)
    return found


def _folder(specification: str) -> str:
    """The folder that is added to the path of modules for the object of that name."""
    place = specification.rpartition(":")[0]
    return str(Path(place).resolve().parent if place.endswith(".py") else Path.cwd())


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ModelError(f"there is no file {path}", remedy="Check the path before the colon")
    name = f"likewise_user_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class PythonAdapter(Adapter):
    """Opens callables, and hands on what another framework knows better."""

    framework = "python"

    def claims(self, target: object) -> bool:
        if isinstance(target, str):
            # A file called `x.py:load.lgb` is a file: whoever fills a folder would otherwise name code to run.
            return SPECIFICATION.match(target) is not None and not os.path.lexists(target)
        return callable(target) and _other_adapter(target) is None

    @contextmanager
    def open(self, model: Model) -> Iterator[Any]:
        target = load(model.target) if isinstance(model.target, str) else model.target
        options = dict(model.options)
        told = str(options.pop("factory", "")).lower() in ("1", "true", "yes")
        if _other_adapter(target) is None and callable(target) and (told or _takes_nothing(target)):
            target = _made_by(target, model.name)
        if (other := _other_adapter(target)) is not None:
            handed_on = replace(model, framework=other.framework, target=target, options=options)
            with other.open(handed_on) as runner:
                yield runner
            return
        require_known(model, ("factory",))
        if not callable(target) and callable(getattr(target, "predict", None)):
            target = target.predict
        if not callable(target):
            raise ModelError(
                f"{model.name} is a {type(target).__name__}, which cannot be called",
                remedy="Name a function, an object with `predict`, or a model of a known framework",
            )
        yield PythonRunner(target, model.target if isinstance(model.target, str) else None)


class PythonRunner:
    """A callable; what it gives back is known once it has run."""

    def __init__(self, function: Any, named: str | None = None) -> None:
        self.native = self._function = function
        self._classes: dict[str, tuple[Label, ...]] = {}
        self._lists: dict[str, bool] = {}
        self.signature = Signature(inputs=None, outputs=None)
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
        self.details: Mapping[str, Any] = {"callable": name.lstrip("."), "python": sys.version.split()[0]}
        if named is not None:
            self.details = {**self.details, "own_code": f"runs as it is; its modules are found in {_folder(named)} too"}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        try:
            answer = self._function(_argument(batch))
        except LikewiseError:
            raise
        except Exception as error:
            raise ModelError(f"it raised {one_line(error)}") from error
        tensors = self._named(answer, len(batch) if batch.stacked else None)
        if self.signature.outputs is None:
            specs = tuple(self._spec(name, array) for name, array in tensors.items())
            self.signature = Signature(inputs=None, outputs=specs)
        return tensors

    def _named(self, answer: Any, rows: int | None) -> dict[str, Array]:
        names = _columns(answer)
        columns = ((str(name), self._array(str(name), answer[name])) for name in dict.fromkeys(names or ()))
        found: dict[str, Array] = {}
        for name, array in self._parts("", answer, rows) if names is None else columns:
            if name in found:
                raise ModelError(f"it answers {name!r} twice", remedy="Give each answer a name of its own")
            found[name] = array
        return found

    def _parts(self, name: str, answer: Any, rows: int | None) -> Iterator[tuple[str, Array]]:
        """Every array of an answer, by the path that leads to it."""
        entries = entries_of(answer)
        if isinstance(answer, list) and (answer or not name):
            # Settled by the first call: in another, there may be as many rows as outputs.
            entries = entries if self._lists.setdefault(name, _several(answer, rows)) else None
        elif name and isinstance(answer, list | tuple) and not (answer and _several(answer, None)):
            entries = None
        if entries is None:
            yield name or "output", self._array(name or "output", answer)
        for key, entry in entries or ():
            own = f"output_{key}" if key.isdecimal() and not name else key
            yield from self._parts(f"{name}.{own}" if name else own, entry, rows)

    def _array(self, name: str, value: Any) -> Array:
        import numpy as np

        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            if any(map(_holds_arrays, value)):
                raise ModelError(f"{name!r} holds a dictionary of arrays for every row", remedy=ONE_A_ROW)
            array, self._classes[name] = array_of_dicts(value, self._classes.get(name))
            return array
        if value is None:
            raise ModelError(f"it returned None for {name!r}", remedy=ONE_A_ROW)
        if isinstance(value, np.ma.MaskedArray):
            return _unmasked(name, value)
        if hasattr(value, "toarray"):
            return dense(name, value)
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()  # a tensor that could still be learnt from
        try:
            # Copied: a function may give out memory that it writes into again in its next call.
            array = widened(np.array(value))
        except ValueError as error:
            raise ModelError(f"{name!r} is not an array: {one_line(error)}", remedy=ONE_A_ROW) from error
        cells = array.tolist() if array.dtype.kind == "O" and array.ndim == 1 else []
        if cells and all(isinstance(cell, np.ndarray) and cell.shape == cells[0].shape for cell in cells):
            array = np.stack(cells)  # a column with an array in every cell
        return array.astype(object) if array.dtype.kind in "UT" else unboxed(_whole(value, array))

    def _spec(self, name: str, array: Array) -> OutputSpec:
        classes = self._classes.get(name)
        kind = Kind.PROBABILITY if classes else kind_of(name, str(array.dtype)) or Kind.VALUE
        return OutputSpec(name, kind, str(array.dtype), (None, *array.shape[1:]), classes)


def _columns(answer: Any) -> list[Any] | None:
    """What the columns of a DataFrame, an Arrow table or a structured array are called; None of anything else."""
    if hasattr(answer, "columns") and hasattr(answer, "to_numpy"):
        return list(answer.columns)
    names = getattr(answer, "column_names", None) or getattr(getattr(answer, "dtype", None), "names", None)
    return None if names is None else list(names)


def _several(answers: Sequence[Any], rows: int | None) -> bool:
    """Are these several outputs, and not one answer per row?"""
    return len(answers) != rows and all(getattr(part, "ndim", 0) or _holds_arrays(part) for part in answers)


def _holds_arrays(answer: Any) -> bool:
    """Is it a dictionary, a tuple or the like of arrays, as a detector gives for an image, and not of numbers?"""
    return any(getattr(part, "ndim", 0) or entries_of(part) is not None for _, part in entries_of(answer) or ())


def _whole(column: Any, array: Array) -> Array:
    """The cells of a column of whole numbers with gaps, of which numpy makes floats."""
    kind = getattr(column, "dtype", None) or getattr(column, "type", None)
    listed = getattr(column, "to_pylist", None) or getattr(column, "to_list", None)
    if array.dtype.kind == "f" and listed is not None and re.match(WHOLE, str(kind)):
        return of_objects(listed())
    return array


def _unmasked(name: str, answers: Any) -> Array:
    """Masked answers are none: NaN where a type has it, as of a class that a row leaves out."""
    import numpy as np

    masked = int(np.count_nonzero(np.ma.getmaskarray(answers)))
    if masked and answers.dtype.kind != "f":
        raise ModelError(
            f"{masked:,} of {answers.size:,} answers of {name!r} are masked, and {answers.dtype} has no missing value",
            remedy="Return an answer for every row: answers.filled(VALUE)",
        )
    return np.array(answers.filled(np.nan) if masked else answers.data)


def _argument(batch: Batch) -> Any:
    if not isinstance(batch.inputs, ArrayColumns):
        return batch.inputs.frame()
    arrays = dict(batch.inputs)
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _takes_nothing(target: Any) -> bool:
    """Is there no parameter that a caller has to fill? Nothing that answers rows is like that."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # built in, without a signature
        return False
    return all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in parameters)


def _made_by(factory: Any, name: str) -> Any:
    try:
        made = factory()
    except Exception as error:
        raise ModelError(f"{name} made no model: it raised {one_line(error)}") from error
    if _other_adapter(made) is None and not callable(made) and not hasattr(made, "predict"):
        raise ModelError(
            f"{name} has no required parameter, so it was called to make the model, and returned {type(made).__name__}",
            remedy="Return a model, or take the rows as the first argument",
        )
    return made


def _other_adapter(target: object) -> Adapter | None:
    return next((a for a in adapters() if a.framework != PythonAdapter.framework and a.claims(target)), None)


EXTENSION = PythonAdapter()
