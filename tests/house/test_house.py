"""The house keeps its shape: few things at the door, no circles, files that can be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

import likewise

HOUSE = Path(likewise.__file__).parent
ROOMS = {"contracts", "data", "models", "compare", "judge", "explain", "report", "tasks", "cli"}
MODULES = {".".join(("likewise", *path.relative_to(HOUSE).with_suffix("").parts)): path for path in HOUSE.rglob("*.py")}
HEAVY = {
    "catboost", "joblib", "lightgbm", "matplotlib", "onnx", "onnxmltools", "onnxruntime", "openvino", "pandas",
    "polars", "pyarrow", "scipy", "skl2onnx", "sklearn", "skops", "torch", "xgboost",
}  # fmt: skip
"""Imported where they are used: whoever has none of them, or needs none, does not pay for them."""

LONGEST = 500


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("likewise", exclude_type_checking_imports=True, cache_dir=None)


def test_at_the_door_stand_the_rooms_and_little_else():
    entries = {path.name for path in HOUSE.iterdir() if path.name != "__pycache__"}
    assert entries >= ROOMS
    assert len(entries - ROOMS) <= 10, sorted(entries - ROOMS)


def test_no_module_is_longer_than_a_person_reads_at_once():
    long = {name: lines for name, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > LONGEST}
    assert long == {}


def test_no_module_is_called_after_nothing():
    empty = {"utils", "helpers", "core", "base", "common", "misc"}
    assert [name for name in MODULES if name.rpartition(".")[2] in empty] == []


def test_no_module_needs_itself(imports):
    """Imports inside functions count too, those for type checkers do not."""
    assert circles({name: imports.find_modules_directly_imported_by(name) for name in imports.modules}) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def circles(needs: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which needs every other: Tarjan's strongly connected components."""
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        open_.append(name)
        for other in sorted(needs.get(name, ())):
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in open_:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            place = open_.index(name)
            if len(open_) - place > 1:
                found.append(sorted(open_[place:]))
            del open_[place:]

    for name in sorted(needs):
        if name not in numbers:
            visit(name)
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_heavy_libraries_are_imported_where_they_are_used(name):
    assert imported_at_once(ast.parse(MODULES[name].read_text())) & HEAVY == set()


def imported_at_once(tree: ast.Module) -> set[str]:
    """The packages that importing a module imports: what stands in functions or is for type checkers waits."""
    found, waiting = set(), list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found
