"""What a .pt2 file would run while it is opened, looked at before it is.

torch.export.load unpickles, evaluates expressions, generates Python source out of names and loads
compiled libraries: a .pt2 is a program. A file of `torch.export.save` needs none of that beyond
operators of torch, plain names and arithmetic on sizes, so anything else is refused.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from likewise.errors import ModelError, UntrustedModelError

NAME = re.compile(r"[\w.\-/ ]*")
"""What a name in the file may look like: it may end up in generated source, where nothing of this can call anything."""

OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|prim|quantized|quantized_decomposed|higher_order|onnx|torchvision)\.\w+(\.\w+)?"
    r"|_operator\.\w+|math\.\w+|torch\.sym_\w+|torch\._sym_\w+"
)
READING_FILES = re.compile(r"torch\.ops\.aten\.(from_file|save)\b")
FREE_TEXT = {"metadata", "as_string", "as_strings", "torch_version"}
"""Entries that are only ever text: stack traces, constants of operators."""

SIZES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare,
    ast.cmpop, ast.Subscript, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Attribute, ast.List,
    ast.Tuple,
)  # fmt: skip
"""What arithmetic on sizes is written with."""

METHODS = {"size", "stride", "storage_offset", "item", "shape", "ndim", "dim"}
FUNCTION = re.compile(r"[A-Z]\w*|min|max|abs|floor|ceil|not_")


def refuse_what_runs(path: str) -> None:
    """Raise unless the file holds nothing but a graph of torch's operators and its weights."""
    import torch

    try:
        reader = torch._C.PyTorchFileReader(path)
        records = reader.get_all_records()
        found = {f"compiled code ({name})" for name in records if name.startswith("data/aotinductor/")}
        for name in records:
            if name.startswith("models/"):
                found.update(_suspicious(json.loads(reader.get_record(name))))
            elif name.endswith("_config.json"):
                found.update(_pickled(json.loads(reader.get_record(name))))
    except (RuntimeError, ValueError, AttributeError) as error:
        raise _not_a_program(path) from error
    if "models/model.json" not in records:
        raise _not_a_program(path)
    if found:
        raise refusal(path, sorted(found))


def _pickled(config: Any) -> Iterator[str]:
    """Objects that are not tensors: those the loader unpickles whatever they are."""
    for entry in config.get("config", {}).values():
        place = str(entry.get("path_name"))
        if not place.startswith(("weight", "tensor")):
            yield f"a pickled object ({place})"


@contextmanager
def weights_only() -> Iterator[None]:
    """Every pickle inside the file holds tensors, whatever the loader asks for."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def refusal(path: str, found: list[str]) -> UntrustedModelError:
    """The error for a file that could run code."""
    shown = ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
    return UntrustedModelError(
        f"{path} refers to code that is not known to be safe, and none of it was run: {shown}",
        remedy="Save plain weights: torch.save(model.state_dict(), path), and name what builds the model with "
        "factory=file.py:build; or name the live model as file.py:attribute, which runs your own code",
    )


def _not_a_program(path: str) -> ModelError:
    return ModelError(
        f"{path} is no program of torch.export, or of an older version of it",
        remedy="Save it again with torch.export.save(program, path)",
    )


def _suspicious(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _suspicious(name, "name")
            if name not in FREE_TEXT:
                yield from _suspicious(entry, name)
    elif isinstance(value, list):
        for entry in value:
            yield from _suspicious(entry, key)
    elif isinstance(value, str) and not _harmless(value, key):
        yield f"{key} {value[:80]!r}"


def _harmless(text: str, key: str) -> bool:
    if key == "target":
        return OPERATORS.fullmatch(text) is not None and not READING_FILES.match(text)
    if key in ("expr_str", "guards_code"):
        return _arithmetic(text)
    if key in ("in_spec", "out_spec", "context"):
        return NAME.fullmatch(text) is not None or _harmless_json(text)
    return NAME.fullmatch(text) is not None


def _harmless_json(text: str) -> bool:
    try:
        return not any(_suspicious(json.loads(text), "context"))
    except ValueError:
        return False


def _arithmetic(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(node, SIZES) and _plain(node) for node in ast.walk(tree))


def _plain(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return NAME.fullmatch(text) is not None
        case ast.Attribute(attr=attribute):
            return attribute in METHODS
        case ast.Call(func=ast.Name(id=name)):
            return FUNCTION.fullmatch(name) is not None
        case ast.Call(func=function):
            return isinstance(function, ast.Attribute)
        case _:
            return True
