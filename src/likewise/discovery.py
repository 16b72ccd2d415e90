"""The folder is the registry.

An extension is a module in one of our folders with an `EXTENSION` constant, or an entry point of
the group `likewise.<kind>` in somebody else's package. Nothing is listed by hand.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from likewise.errors import DataError, ModelError

if TYPE_CHECKING:
    from likewise.contracts.data import Reader, Source
    from likewise.contracts.models import Adapter, BatchAxis, Model


def modules(kind: str) -> list[str]:
    """The names of our own modules of a kind."""
    return sorted(info.name for info in pkgutil.iter_modules(import_module(f"likewise.{kind}").__path__))


@cache
def extensions(kind: str) -> tuple[Any, ...]:
    """Every extension of a kind: `adapters`, `sources`, `metrics`, `engines`, `reports`."""
    ours = [import_module(f"likewise.{kind}.{name}").EXTENSION for name in modules(kind)]
    from importlib.metadata import entry_points

    theirs = [point.load() for point in entry_points(group=f"likewise.{kind}")]
    return (*ours, *theirs)


def adapter(framework: str) -> Adapter:
    """The adapter of a framework by its name."""
    if framework in modules("adapters"):
        # Ours are found without looking at everybody else's.
        return import_module(f"likewise.adapters.{framework}").EXTENSION  # type: ignore[no-any-return]
    for found in extensions("adapters"):
        if found.framework == framework:
            return found  # type: ignore[no-any-return]
    known = ", ".join(found.framework for found in extensions("adapters"))
    raise ModelError(f"there is no adapter for {framework!r}", remedy=f"Known frameworks: {known}")


def describe_model(
    target: object, options: dict[str, Any] | None = None, *, batch_axis: BatchAxis | None = None
) -> Model:
    """Find the framework a path, a `module:attribute` or a live object belongs to.

    The option `framework` names it where several could open the same file.
    """
    from likewise.contracts.models import Model

    if isinstance(target, Model):
        return target
    options = dict(options or {})
    if framework := options.pop("framework", None):
        return Model(adapter(str(framework)).framework, target, options, batch_axis)
    for found in extensions("adapters"):
        if found.claims(target):
            return Model(found.framework, target, options, batch_axis)
    name = target if isinstance(target, str) else getattr(target, "name", type(target).__name__)
    raise ModelError(
        f"no framework recognises {name!r} as a model",
        remedy="Give a .joblib, .pkl, .skops, .onnx, .pt2 or .pt file, a booster's own file, recorded answers, "
        "`module:attribute` or `file.py:attribute`",
    )


def open_source(target: object) -> Source:
    """Find the reader of a path, a glob, a folder, a DataFrame or arrays."""
    for reader in _readers():
        if reader.claims(target):
            return reader.open(target)
    if hasattr(target, "batches") and hasattr(target, "shards"):
        return target  # type: ignore[return-value]
    name = str(target) if isinstance(target, str) or hasattr(target, "__fspath__") else type(target).__name__
    raise DataError(
        f"nothing here can read {name!r} as data",
        remedy="Give a .parquet, .csv, .arrow, .feather, .jsonl, .npz or .npy file, a folder or glob of "
        "them, an ONNX test_data_set folder, a DataFrame, or arrays; without any data, `generated`",
    )


def _readers() -> tuple[Reader, ...]:
    return extensions("sources")
