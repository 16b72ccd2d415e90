"""The folder is the registry.

An extension is a module in one of our folders with an `EXTENSION` constant (or several, `EXTENSIONS`), or an
entry point of the group `likewise.<folder>` in somebody else's package. Nothing is listed by hand.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from likewise.errors import DataError, LikewiseError, ModelError, foreign, require_file

if TYPE_CHECKING:
    from likewise.contracts.data import Reader, Source
    from likewise.contracts.models import Adapter, BatchAxis, Exporter, Model, Runner

WRITES = {**dict.fromkeys(("joblib", "pkl", "pickle", "skops"), "sklearn"), **dict.fromkeys(("pt", "pt2"), "torch")}
"""Who most likely wrote a file that ends so, where the ending is not called after it. It is asked first, no more."""


def modules(folder: str, first: str = "") -> list[str]:
    """The names of our own modules in a folder, written with dots: `compare.metrics`; one of them may come first."""
    return sorted(_listed(folder), key=lambda name: (name != first, name))


@cache
def _listed(folder: str) -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(import_module(f"likewise.{folder}").__path__))


@cache
def extensions(folder: str) -> tuple[Any, ...]:
    """Every extension of a folder, ours and those of other packages: `data.readers`, `compare.metrics` and so on."""
    return tuple(each(folder))


def each(folder: str, first: str = "") -> Iterator[Any]:
    """The extensions one by one, the module of a given name first: whoever has what it looks for imports no more."""
    for name in modules(folder, first):
        yield from _declared(import_module(f"likewise.{folder}.{name}"))
    yield from _of_others(folder)


def opener(target: object) -> Adapter | None:
    """Which of our own adapters opens a model: no more of them are imported than it takes to find it."""
    names = modules("models", _called(target))
    ours: Iterator[Adapter] = (found for name in names for found in _declared(_opening(name)))
    return next((found for found in ours if found.claims(target)), None)


def _called(target: object) -> str:
    """What the ending of a file says: its framework is asked before others are imported."""
    if not isinstance(target, str | os.PathLike) or not os.path.isfile(target):
        return ""
    ending = os.path.splitext(str(target))[1][1:].lower()
    return WRITES.get(ending, ending)


@cache
def frameworks() -> tuple[str, ...]:
    """Our own frameworks: `models/NAME.py`, or `models/NAME/open.py` where there is more to it than opening."""
    return tuple(name for name in modules("models") if hasattr(_opening(name), "EXTENSION"))


@cache
def adapters() -> tuple[Adapter, ...]:
    """What opens models, one adapter a framework."""
    return tuple(_each_adapter())


def _each_adapter(first: str = "") -> Iterator[Adapter]:
    for name in modules("models", first):
        yield from _declared(_opening(name))
    yield from _of_others("models")


@cache
def exporters() -> tuple[Exporter, ...]:
    """What writes models as ONNX files: an `EXPORTER` beside the adapter, or a file `export.py` in the folder."""
    homes = [_opening(name) for name in frameworks()]
    files = [f"{home.__package__}.export" for home in homes]
    ours = [
        import_module(file).EXTENSION if find_spec(file) else getattr(home, "EXPORTER", None)
        for home, file in zip(homes, files, strict=True)
    ]
    return (*filter(None, ours), *_of_others("export"))


def adapter(framework: str) -> Adapter:
    """The adapter of a framework by its name."""
    if (found := _known_adapter(framework)) is not None:
        return found
    known = ", ".join(found.framework for found in adapters())
    raise ModelError(f"there is no adapter for {framework!r}", remedy=f"Known frameworks: {known}")


@cache
def _known_adapter(framework: str) -> Adapter | None:
    return next((found for found in _each_adapter(first=framework) if found.framework == framework), None)


@contextmanager
def open_model(model: Model) -> Iterator[Runner]:
    """A model, open, with what it says about itself; or why it cannot be opened, whatever its framework raises."""
    remedy = "Save it again, with all that belongs to it: it may be damaged, or of another version of its framework"
    with ExitStack() as stack:
        with foreign(ModelError, f"{model.name} cannot be read", remedy=remedy):
            runner = stack.enter_context(adapter(model.framework).open(model))
            assert runner.signature is not None
            assert runner.details is not None
        yield runner


def _opening(name: str) -> ModuleType:
    """The module of `models` that would open a framework of that name; of a folder, its file `open.py`."""
    home = import_module(f"likewise.models.{name}")
    file = f"{home.__name__}.open"
    return import_module(file) if hasattr(home, "__path__") and find_spec(file) else home


def _declared(home: ModuleType) -> Iterator[Any]:
    if hasattr(home, "EXTENSIONS"):
        yield from home.EXTENSIONS
    elif hasattr(home, "EXTENSION"):
        yield home.EXTENSION


def _of_others(folder: str) -> list[Any]:
    if not _extended():
        return []
    from importlib.metadata import entry_points

    return [point.load() for point in entry_points(group=f"likewise.{folder.rpartition('.')[2]}")]


@cache
def _extended() -> bool:
    """Does any package that is installed add something to us? A look at its text: `importlib.metadata` takes longer."""
    for home in about_packages().values():
        try:
            with open(os.path.join(home, "entry_points.txt"), "rb") as file:
                if b"[likewise." in file.read():
                    return True
        except OSError:
            continue
    return False


@cache
def about_packages() -> dict[str, str]:
    """Where every package that is installed says what it is, by its name in small letters with `-` for `_` and `.`."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for name in sorted(names):
            if name.endswith((".dist-info", ".egg-info")):
                package = re.sub(r"[-_.]+", "-", name.rpartition(".")[0].partition("-")[0]).lower()
                found.setdefault(package, os.path.join(folder, name))
    return found


def describe_model(
    target: object,
    options: Mapping[str, Any] | None = None,
    *,
    batch_axis: BatchAxis | None = None,
    side: str | None = None,
) -> Model:
    """Find the framework a path, a `module:attribute` or a live object belongs to.

    The option `framework` names it where several could open the same file. Errors concern the `side`, if one is given.
    """
    from likewise.contracts.models import PLACES, Elsewhere, Model

    if isinstance(target, Model):
        return target
    options = dict(options or {})
    if isinstance(target, Elsewhere):
        options.update(target.options)
        target = target.model
    if any(options.get(place) for place in PLACES):
        return Model("environments", target, options, batch_axis)
    try:
        require_file(target, ModelError)
        return Model(_framework(target, options.pop("framework", None)), target, options, batch_axis)
    except LikewiseError as error:
        error.side = side or error.side
        raise


def _framework(target: object, named: object) -> str:
    if named:
        return adapter(str(named)).framework
    for found in _each_adapter(first=_called(target)):
        if found.claims(target):
            return found.framework
    name = target if isinstance(target, str) else getattr(target, "name", type(target).__name__)
    raise ModelError(
        f"no framework recognises {name!r} as a model",
        remedy="Give a .joblib, .pkl, .skops, .onnx, .pt2 or .pt file, a booster's own file, recorded answers, a URL, "
        "`module:attribute` or `file.py:attribute`",
    )


def open_source(target: object) -> Source:
    """Find the reader of a path, a glob, a folder, a DataFrame or arrays."""
    require_file(target, DataError)
    readers: Iterator[Reader] = each("data.readers")
    name = str(target) if isinstance(target, str) or hasattr(target, "__fspath__") else type(target).__name__
    for reader in readers:
        if reader.claims(target):
            with foreign(
                DataError, f"{name} cannot be read", remedy="Write it again: it is damaged, or something else"
            ):
                return reader.open(target)
    if hasattr(target, "batches") and hasattr(target, "shards"):
        return target  # type: ignore[return-value]
    raise DataError(
        f"nothing here can read {name!r} as data",
        remedy="Give a .parquet, .csv, .arrow, .feather, .jsonl, .npz or .npy file, a folder or glob of "
        "them, an ONNX test_data_set folder, a DataFrame, arrays, a list of rows or a DataLoader; without any data, "
        "`generated`",
    )
