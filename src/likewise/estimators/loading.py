"""An estimator out of a file, or an error that says what is in the file instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from likewise import unpickling
from likewise.errors import LikewiseError, ModelError, extra, one_line

SUFFIXES = (".joblib", ".pkl", ".pickle", ".skops")
_COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".z", ".lz4")


def names_a_model(path: str) -> bool:
    """Is this a file name of the kind scikit-learn models are saved under?"""
    name = path.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name.endswith(SUFFIXES)


def read(path: str | os.PathLike[str], *, trusted: Sequence[str]) -> tuple[Any, str | None]:
    """What a file holds, and the version of scikit-learn that wrote it where the file says so."""
    name = os.fspath(path)
    with extra("sklearn", needed_for=f"reading {name}"):
        import sklearn  # noqa: F401
    if name.lower().endswith(".skops"):
        value, version = _load_skops(name, trusted), None
    else:
        found = unpickling.read(path, trusted=trusted)
        value, version = found.value, ", ".join(found.sklearn_versions) or None
    return value, version


def _load_skops(name: str, trusted: Sequence[str]) -> Any:
    with extra("sklearn", needed_for=f"reading {name}"):
        import skops.io
    if not os.path.isfile(name):
        raise ModelError(f"there is no file {name}", remedy="Check the path of the model")
    try:
        unknown = skops.io.get_untrusted_types(file=name)
        refused = [
            entry
            for entry in unknown
            if not unpickling.known(entry) and not any(fnmatchcase(entry, pattern) for pattern in trusted)
        ]
        if refused:
            raise unpickling.refusal(name, refused)
        return skops.io.load(name, trusted=unknown)
    except (LikewiseError, Warning):
        raise
    except Exception as error:
        raise ModelError(
            f"{name} cannot be loaded: it is damaged or not a .skops file ({one_line(error)})",
            remedy="Copy it again, or save the model again with skops.io.dump(model, path)",
        ) from error


def require_estimator(value: Any, name: str | None = None) -> None:
    """Refuse what cannot answer: no estimator, or one that was never fitted. `name` is the file it was in."""
    holds = f"{name} holds" if name else "the model is"
    if not is_estimator(value):
        raise ModelError(f"{holds} {_content(value)}, not a scikit-learn estimator", remedy=_way_out(value))
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    searched = hasattr(value, "refit") and hasattr(value, "cv_results_") and not hasattr(value, "best_estimator_")
    if searched:
        raise ModelError(
            f"{holds} a {type(value).__name__} with refit=False, which has no model to ask",
            remedy="Search with refit=True, or save the estimator fitted with best_params_",
        )
    try:
        if isinstance(value, BaseEstimator):
            check_is_fitted(value)
    except NotFittedError as error:
        raise ModelError(
            f"{holds} a {type(value).__name__} that is not fitted", remedy="Call fit, then save the model again"
        ) from error


def is_estimator(value: object) -> bool:
    """Does this behave like an estimator? Classes do not: they have to be made and fitted first."""
    return not isinstance(value, type) and hasattr(value, "fit") and hasattr(value, "get_params")


def _content(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(repr(key) for key in list(value)[:10])}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value)
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _way_out(value: Any) -> str:
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, list | tuple) else ())
    )
    inside = [f"{key!r} ({type(entry).__name__})" for key, entry in list(entries)[:100] if is_estimator(entry)]
    if inside:
        return f"Save the estimator itself: the entry {' or '.join(inside)}"
    if not isinstance(value, type) and (hasattr(value, "predict") or callable(value)):
        return "Give a Python function that calls it instead: `file.py:function`"
    return "Save the fitted estimator itself, with its preprocessing, as a Pipeline"
