"""Would the tests notice if the gate judged otherwise? `make mutants`, or `python benchmarks/mutants.py`.

One place of a module that judges, pairs, feeds, lays out, observes or measures is changed: a comparison, a boundary, a
condition, a constant, an argument, a statement, what is returned. A part of the tests is run on it, in a process of its
own that gets the changed module from memory; the files of the source stay as they are. A mutant that no test kills is
printed with its line: a test is missing, or the line makes no difference.

    --sample 200      mutants, drawn with --seed from all that there are
    --only compare    modules with this in their path
    --tests FILE      other tests than those below
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import os
import random
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "src" / "likewise"
SAMPLE = 60

ROOMS = ("judge/**/*.py", "compare/**/*.py", "data/**/columns.py", "data/**/cells.py", "data/**/*cast*.py")
ELSEWHERE = ("/variations", "/engines/", "/judge/diff", "__init__.py")
"""Rooms whose tests take longer than a mutant may."""

TESTS = (
    *("tests/judge/test_policy.py", "tests/judge/test_reach.py", "tests/judge/test_wide_tolerances.py"),
    *("tests/gate/test_numbers.py", "tests/gate/test_whole_numbers.py", "tests/gate/test_nothing_compared.py"),
    *("tests/gate/test_outputs.py", "tests/gate/test_forms.py", "tests/gate/test_rows.py", "tests/gate/test_inputs.py"),
    *("tests/gate/test_labels.py", "tests/gate/test_logits.py", "tests/gate/test_data_as_it_is.py"),
    *("tests/compare/metrics", "tests/data", "tests/gate/test_oracle.py"),
)
"""Quick ones first: a mutant is done with at the first test that fails."""

PRELOADED = ("numpy", "pandas", "pyarrow", "onnx", "onnxruntime", "pytest", "psutil", "pydantic", "scipy")
"""Imported once, before the process is copied for every mutant. Nothing of likewise is among them."""

FORBEARANCE = 4.0
"""A mutant that takes so many times as long as the tests do is taken to hang, which is noticed too."""

OTHER_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OTHER_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the place among all of its changes, and words for it."""

    path: Path
    number: int
    line: int
    change: str

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(HOUSE.parent).with_suffix("").parts)

    @property
    def text(self) -> str:
        source = self.path.read_text().splitlines()[self.line - 1].strip()
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.change}\n      {source}"


Change = tuple[int, str, Callable[[], None]]


def changes(tree: ast.Module) -> Iterator[Change]:
    """Every change that can be made to a module, in a fixed order; calling one makes it."""
    for node in walked(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare):
            for other in OTHER_COMPARISONS[type(node.ops[0])]:
                yield line, f"{name(node.ops[0])} becomes {other.__name__}", setter(node.ops, 0, other())
        elif isinstance(node, ast.BoolOp):
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield line, f"{name(node.op)} becomes {name(other_op)}", assigner(node, "op", other_op)
        elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_ARITHMETIC:
            swapped = OTHER_ARITHMETIC[type(node.op)]()
            yield line, f"{name(node.op)} becomes {name(swapped)}", assigner(node, "op", swapped)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield line, f"{node.value} becomes {not node.value}", assigner(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            for step in (1, -1):
                yield line, f"{node.value} becomes {node.value + step}", assigner(node, "value", node.value + step)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield line, "the condition is negated", assigner(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.comprehension) and node.ifs:
            yield node.ifs[0].lineno, "the filter is negated", setter(node.ifs, 0, ast.UnaryOp(ast.Not(), node.ifs[0]))
        elif isinstance(node, ast.Call) and swappable(node):
            yield line, "the first two arguments are swapped", setter(node.args, slice(0, 2), node.args[1::-1])
        elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
            yield line, "None is returned", assigner(node, "value", ast.Constant(None))
        yield from removals(node)


def swappable(call: ast.Call) -> bool:
    """Two arguments that may be taken for one another; those of `isinstance` cannot be."""
    builtin = isinstance(call.func, ast.Name) and call.func.id in (
        "isinstance",
        "getattr",
        "hasattr",
        "setattr",
        "cast",
    )
    return len(call.args) > 1 and not builtin and not any(isinstance(value, ast.Starred) for value in call.args)


def removals(node: ast.AST) -> Iterator[Change]:
    """Statements that can be left out without leaving a name undefined."""
    for block in (getattr(node, part, None) for part in ("body", "orelse")):
        for place, statement in enumerate(block if isinstance(block, list) else ()):
            call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Yield | ast.YieldFrom)
            if call or isinstance(statement, ast.AugAssign | ast.Raise | ast.Continue):
                yield statement.lineno, "the statement is left out", setter(block, place, ast.Pass())


def walked(node: ast.AST) -> Iterator[ast.AST]:
    """All that is run; annotations, decorators, texts of errors and what only type checkers read are not."""
    yield node
    for part, value in ast.iter_fields(node):
        if part in ("annotation", "returns", "decorator_list", "type_params", "exc") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield from walked(child)


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def name(node: ast.AST) -> str:
    return type(node).__name__


def setter(values: list, place: int | slice, new: object) -> Callable[[], None]:  # type: ignore[type-arg]
    return lambda: values.__setitem__(place, new)


def assigner(node: ast.AST, part: str, new: object) -> Callable[[], None]:
    return lambda: setattr(node, part, new)


def mutants(path: Path) -> list[Mutant]:
    found = changes(ast.parse(path.read_text()))
    return [Mutant(path, number, line, change) for number, (line, change, _) in enumerate(found)]


def mutated(mutant: Mutant) -> CodeType:
    tree = ast.parse(mutant.path.read_text())
    next(make for number, (_, _, make) in enumerate(list(changes(tree))) if number == mutant.number)()
    return compile(ast.fix_missing_locations(tree), str(mutant.path), "exec", dont_inherit=True)


class FromMemory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the changed module to whoever imports it."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)  # type: ignore[arg-type]

    def exec_module(self, module: ModuleType) -> None:
        exec(mutated(self.mutant), module.__dict__)


def tested(mutant: Mutant | None, tests: Sequence[str], seconds: float) -> str:
    """`survived`, `killed` or `hangs`: the tests in a copy of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        run_tests(mutant, tests)
    os.close(writing)
    try:
        if not select.select([reading], [], [], seconds)[0]:  # readable when the child ends, which closes its side
            os.kill(child, 9)
            return "hangs"
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    return "survived" if status == 0 else "killed"


def run_tests(mutant: Mutant | None, tests: Sequence[str]) -> None:
    """In the copy; does not return."""
    code = 99
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        if mutant:
            sys.meta_path.insert(0, FromMemory(mutant))
        os.chdir(ROOT)
        import pytest

        # Plain: pytest would otherwise load the modules of every plugin's package itself, those of likewise too.
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", *tests]))
    finally:
        os._exit(code)


def prepare() -> None:
    """What every copy needs, once."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]
    sys.dont_write_bytecode = True
    for package in PRELOADED:
        importlib.import_module(package)
    assert not any(package.partition(".")[0] == "likewise" for package in sys.modules)


def modules(only: str = "") -> list[Path]:
    found = {path for pattern in ROOMS for path in HOUSE.glob(pattern)}
    return sorted(
        path for path in found if only in str(path) and not any(part in path.as_posix() for part in ELSEWHERE)
    )


def drawn(sample: int, seed: int, only: str = "") -> list[Mutant]:
    everything = [mutant for path in modules(only) for mutant in mutants(path)]
    return random.Random(seed).sample(everything, min(sample, len(everything)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    chosen = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"})
    prepare()
    picked, began = drawn(chosen.sample, chosen.seed, chosen.only), time.perf_counter()
    if tested(None, chosen.tests, 600.0) != "survived":
        sys.exit("The tests do not pass on the source as it is.")
    usual = time.perf_counter() - began
    print(f"{len(picked)} mutants of {len(modules(chosen.only))} modules; the tests take {usual:.0f} s", flush=True)
    counted: Counter[str] = Counter()
    for mutant in picked:
        outcome = tested(mutant, chosen.tests, 10 + FORBEARANCE * usual)
        counted[outcome] += 1
        if outcome == "survived":
            print(f"  survived: {mutant.text}", flush=True)
    noticed = counted["killed"] + counted["hangs"]
    print(f"{noticed} of {len(picked)} noticed ({noticed / max(1, len(picked)):.0%}), {counted['hangs']} by a hang; "
          f"{time.perf_counter() - began:.0f} s, seed {chosen.seed}")  # fmt: skip


if __name__ == "__main__":
    main()
