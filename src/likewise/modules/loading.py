"""A PyTorch module out of a file, without running code from the file."""

from __future__ import annotations

import copy
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from typing import Any

from likewise.contracts.models import Model
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.importing import load as load_named
from likewise.modules import archives
from likewise.quieting import quietly

SUFFIXES = (".pt", ".pth", ".pt2", ".jit", ".ts", ".torchscript")
WRAPPED_IN = ("state_dict", "model_state_dict", "model", "module", "weights", "ema")
"""Where training scripts keep the weights in a checkpoint."""


def load(model: Model) -> tuple[Any, str]:
    """What a file holds, a module or an exported program, and what that form is called."""
    path = os.fspath(model.target)
    if not os.path.isfile(path):
        raise ModelError(f"there is no file {path}", remedy="Check the path of the model")
    factory = model.options.get("factory")
    members = _members(path)
    if factory is not None:
        return _with_weights(path, factory)
    if "archive_format" in members or path.lower().endswith(".pt2"):
        return _program(path, trusted="*" in tuple(model.options.get("trusted", ()))), "torch.export"
    if "constants.pkl" in members:
        return _script(path), "TorchScript"
    weights = _tensors(path)
    raise ModelError(
        f"{path} holds {_content(weights)} and no module",
        remedy="Name what builds the module: factory=file.py:build (a function without arguments, or the class)",
    )


def _members(path: str) -> set[str]:
    """The names inside an archive, without its root; nothing if it is none."""
    if not zipfile.is_zipfile(path):
        return set()
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2] for name in archive.namelist()}


def _program(path: str, *, trusted: bool) -> Any:
    import torch

    if not trusted:
        archives.refuse_what_runs(path)
    try:
        with quietly(), archives.weights_only():
            return torch.export.load(path)
    except pickle.UnpicklingError as error:
        raise archives.refusal(path, _refused_by(error) or ["a pickled object"]) from error
    except Exception as error:  # a damaged archive breaks in many ways
        raise ModelError(
            f"{path} cannot be loaded as a program of torch.export: {one_line(error)}",
            remedy="Save it again with torch.export.save(program, path), with this version of torch",
        ) from error


def _script(path: str) -> Any:
    import torch

    try:
        with quietly():  # torch.jit.load is deprecated; the files are still deployed
            return torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be loaded as TorchScript: {one_line(error)}", remedy="Save it again with module.save(path)"
        ) from error


def _with_weights(path: str, factory: Any) -> tuple[Any, str]:
    """A module from the user's factory with the weights of a file, every one in its place."""
    import torch

    state = _state_dict(_tensors(path), path)
    # A copy: a factory may hand out one and the same module to both sides.
    module = copy.deepcopy(build(factory))
    name = factory if isinstance(factory, str) else getattr(factory, "__name__", type(factory).__name__)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{name} made a {type(module).__name__}, not a torch.nn.Module")
    try:
        module.load_state_dict(state, strict=True)
    except (RuntimeError, KeyError) as error:
        raise ModelError(
            f"the weights of {path} do not fit what {name} builds: {one_line(error)}",
            remedy="Build the module with the very arguments it was trained with",
        ) from error
    return module, "state dict"


def build(factory: Any) -> Any:
    """What a factory makes: `file.py:build`, a function, a class, or a module that is already there."""
    made = load_named(factory) if isinstance(factory, str) else factory
    if hasattr(made, "forward") and not isinstance(made, type):
        return made
    try:
        return made()
    except LikewiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"the factory {factory} failed: {one_line(error)}", remedy="It has to build the module without arguments"
        ) from error


def _tensors(path: str) -> Any:
    """The tensors of a file of torch.save, read without running anything in it."""
    import torch

    try:
        with quietly():
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = _globals(path) or _refused_by(error)
        if found:
            raise archives.refusal(path, found) from error
        raise _unreadable(path, error) from error
    except Exception as error:  # what is no checkpoint breaks in many ways
        raise _unreadable(path, error) from error


def _globals(path: str) -> list[str]:
    import torch

    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - the older format has no such list
        return []


def _refused_by(error: Exception) -> list[str]:
    """The name in torch's own refusal."""
    return re.findall(r"GLOBAL ([A-Za-z_][\w.]*)", str(error))[:1]


def _unreadable(path: str, error: Exception) -> ModelError:
    return ModelError(
        f"{path} holds no PyTorch model: it is damaged, or of another kind ({one_line(error, limit=160)})",
        remedy="Save it again with torch.save(model.state_dict(), path) or torch.export.save(program, path)",
    )


def _state_dict(found: Any, path: str) -> Mapping[str, Any]:
    import torch

    def is_state(value: Any) -> bool:
        return isinstance(value, Mapping) and bool(value) and all(isinstance(v, torch.Tensor) for v in value.values())

    if is_state(found):
        return dict(found)
    inside = [name for name in WRAPPED_IN if isinstance(found, Mapping) and is_state(found.get(name))]
    if len(inside) != 1:
        raise ModelError(
            f"{path} holds {_content(found)}, not the weights of one module",
            remedy="Save them by themselves: torch.save(model.state_dict(), path)",
        )
    return dict(found[inside[0]])


def _content(found: Any) -> str:
    if not isinstance(found, Mapping):
        return f"a {type(found).__name__}"
    names = ", ".join(repr(key) for key in list(found)[:6])
    return f"entries called {names}" + (f" and {len(found) - 6} more" if len(found) > 6 else "")
