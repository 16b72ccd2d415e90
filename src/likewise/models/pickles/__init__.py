"""Reads pickled models without running code from the file.

A pickle can run anything. This reader lets a file use only what scikit-learn models are made of and puts
an inert object in the place of everything else; if there was anything to replace, the file is refused with
the full list. `rights` says what is allowed, `reader` asks at every step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from likewise.errors import ModelError, UntrustedModelError, one_line
from likewise.models.pickles import rights
from likewise.models.pickles.reader import Gate, Reader, decompressed

__all__ = ["Unpickled", "known", "load", "read", "refusal"]

_MOST_NAMES_SHOWN = 20
_SAVE_AGAIN = "Copy it again, or save the model again with joblib.dump(model, path)"


@dataclass(frozen=True, slots=True)
class Unpickled:
    """What a file holds, and the versions of scikit-learn it says it was written with."""

    value: object
    sklearn_versions: tuple[str, ...]


def load(path: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> object:
    """Read a .joblib, .pkl or .pickle file. `trusted` holds patterns of code it may run, such as `mypackage.*`."""
    return read(path, trusted=trusted).value


def read(path: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> Unpickled:
    """Read a file like `load`, with what it says about itself."""
    name = os.fspath(path)
    if not os.path.isfile(path):
        raise ModelError(f"there is no file {name}", remedy="Check the path of the model")
    gate = Gate(trusted)
    try:
        with open(path, "rb") as raw:
            value = Reader(decompressed(raw), gate).load()
    except Exception as error:
        if gate.refused:  # the inert objects may well be what broke it
            raise refusal(name, gate.refused) from error
        if isinstance(error, Warning):
            raise
        raise _unreadable(name, error) from error
    if gate.refused:
        raise refusal(name, gate.refused)
    return Unpickled(value, tuple(sorted(gate.sklearn_versions)))


def known(reference: str) -> bool:
    """Is this part of scikit-learn or numpy, and safe to have in a model?"""
    module, _, name = reference.rpartition(".")
    if module.partition(".")[0] not in ("sklearn", "numpy") or not rights.importable(module, name):
        return False
    try:
        return rights.right_to(reference, rights.resolve(module, name)) is not None
    except (ImportError, AttributeError):
        return False


def refusal(name: str, refused: Iterable[str]) -> UntrustedModelError:
    """The error for a file that refers to code which is not known to be safe."""
    listed = sorted(refused)
    shown = ", ".join(listed[:_MOST_NAMES_SHOWN])
    more = f" and {len(listed) - _MOST_NAMES_SHOWN} more" if len(listed) > _MOST_NAMES_SHOWN else ""
    return UntrustedModelError(
        f"{name} refers to code that is not known to be safe, and none of it was run: {shown}{more}",
        remedy=_remedy({entry.rpartition(" ")[2] for entry in listed}),
    )


def _remedy(references: set[str]) -> str:
    packages = sorted({reference.partition(".")[0] for reference in references})
    if "__main__" in packages:
        return (
            "What was defined in a script or notebook (__main__) cannot be found again: move it into a module "
            "that can be imported, and save the model again from there"
        )
    alien = [package for package in packages if package in sys.stdlib_module_names]
    if alien:
        return (
            f"A model has no business with {', '.join(alien)}: find out where the file comes from. "
            "Only if you would run a program from the same hand, allow everything with --trust '*' "
            'or trusted = ["*"] in likewise.toml: that runs the file\'s code'
        )
    options = " ".join(f"--trust '{package}.*'" for package in packages)
    setting = ", ".join(f'"{package}.*"' for package in packages)
    return (
        f"If you trust whoever made the file, allow it with {options} or trusted = [{setting}] in likewise.toml: "
        "that runs the file's code"
    )


def _unreadable(name: str, error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return ModelError(f"{name} cannot be loaded: {error.message}", remedy=error.remedy or _SAVE_AGAIN)
    cut = isinstance(error, EOFError) or "truncated" in str(error) or "Ran out of input" in str(error)
    reason = "it ends early" if cut else f"it is damaged or not a pickle ({one_line(error)})"
    return ModelError(f"{name} cannot be loaded: {reason}", remedy=_SAVE_AGAIN)
