"""Would the tests notice if the gate judged otherwise? `make mutants`, or `python benchmarks/mutants.py`.

One place of a module that judges, pairs, feeds, lays out, observes or measures is changed: a comparison, a boundary, a
condition, a constant, an argument, a statement, what is returned. The tests that come to the changed line are run on
it, in a copy of a process that has collected them all and gets the changed function from memory; the files of the
source stay as they are. First come those that killed other mutants of the module, then the quickest; after --seconds of
tests nobody waits for the rest. A mutant that none of them kills is printed with its line: a test is missing, or the
line makes no difference.

    --sample 200      mutants, drawn with --seed from all that there are
    --only compare    modules with this in their path
    --tests FILE      other tests than those below
    --seconds 120     more tests of each mutant; some that survive a few seconds are killed by slow ones
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import hashlib
import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "src" / "likewise"
SAMPLE = 60
KEPT = ROOT / ".mutants"
"""What tests come to, for the next run."""

ROOMS = ("judge/**/*.py", "compare/**/*.py", "data/**/columns.py", "data/**/cells.py", "data/**/*cast*.py")
ELSEWHERE = ("/variations", "/engines/", "/judge/diff", "__init__.py")
"""Rooms whose tests take longer than a mutant may."""

TESTS = (
    *("tests/judge/test_told.py", "tests/judge/test_policy.py", "tests/judge/test_reach.py"),
    *("tests/judge/test_wide_tolerances.py", "tests/judge/test_diff.py", "tests/contracts/test_values.py"),
    *("tests/gate/test_numbers.py", "tests/gate/test_whole_numbers.py", "tests/gate/test_nothing_compared.py"),
    *("tests/gate/test_outputs.py", "tests/gate/test_forms.py", "tests/gate/test_rows.py", "tests/gate/test_inputs.py"),
    *("tests/gate/test_labels.py", "tests/gate/test_logits.py", "tests/gate/test_data_as_it_is.py"),
    *("tests/gate/test_own_copies.py", "tests/gate/test_batches.py", "tests/gate/test_fail_fast.py"),
    *("tests/compare/metrics", "tests/compare/test_session.py", "tests/compare/test_samples.py", "tests/data"),
    *("tests/compare/test_pairing.py", "tests/compare/test_feeding.py", "tests/compare/test_timeline.py"),
    *("tests/compare/test_align.py", "tests/compare/test_calling.py", "tests/compare/test_observing.py"),
    *("tests/judge/test_judging.py", "tests/explain/test_inputs_experiments.py"),
    *("tests/gate/test_oracle.py",),
)
"""Which of them are asked about a mutant is found out by running them all once."""

PRELOADED = (
    *("numpy", "pandas", "pyarrow", "onnx", "onnxruntime", "pytest", "psutil", "pydantic", "scipy.special"),
    *("sklearn.pipeline", "joblib", "skl2onnx", "onnxscript", "torch.onnx", "xgboost", "lightgbm"),
)
"""Imported once, before the process is copied for every mutant. Nothing of likewise is among them."""

MADE_ONCE = ("models", "example_folder")
"""What tests share and make without the modules that are changed: it is made before the process is copied."""

SECONDS = 12.0
"""Of tests for one mutant; all that come to a line may take two minutes, and kill some that survive these."""

FORBEARANCE, WAITING, IDLE = 4.0, 30.0, 30.0
"""A mutant that takes so many times as long as the tests do, and that again by the clock, is taken to hang, which is
noticed too; so is one that uses no processor for so many seconds, if its test ends without it."""

ELSEWHERE_MADE = 77
"""How a copy says that it is no function that changed."""

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

NOT_SWAPPED = ("isinstance", "getattr", "hasattr", "setattr", "cast")
"""Builtins whose arguments nobody can take for one another."""

SYMMETRIC = (
    "np.array_equal",
    "np.maximum",
    "np.minimum",
    "np.add",
    "np.logical_and",
    "np.logical_or",
    "np.result_type",
    "np.may_share_memory",
)
"""Functions of numpy whose first two arguments are of one rank by definition, NaN among them: swapped, nothing changes.
`max` and `min` of Python are not among them unless they are given whole numbers: NaN makes two functions of each."""


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
    same = as_good(tree)
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
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            others = [not node.value] if isinstance(node.value, bool) else [node.value + 1, node.value - 1]
            for constant in [other for other in others if other != same.get(node)]:
                yield line, f"{node.value} becomes {constant}", assigner(node, "value", constant)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield line, "the condition is negated", assigner(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.comprehension) and node.ifs:
            yield node.ifs[0].lineno, "the filter is negated", setter(node.ifs, 0, ast.UnaryOp(ast.Not(), node.ifs[0]))
        elif isinstance(node, ast.Call) and swappable(node):
            yield line, "the first two arguments are swapped", setter(node.args, slice(0, 2), node.args[1::-1])
        elif isinstance(node, ast.Return) and node.value is not None and not is_no(node.value):
            yield line, "None is returned", assigner(node, "value", ast.Constant(None))
        yield from removals(node)


def swappable(call: ast.Call) -> bool:
    """Two arguments that may be taken for one another, and whose order makes a difference."""
    plain = not any(isinstance(value, ast.Starred) for value in call.args)
    called = ast.unparse(call.func)
    if called in ("max", "min") and all(map(is_whole, call.args)):
        return False
    return len(call.args) > 1 and plain and called not in (*NOT_SWAPPED, *SYMMETRIC)


def is_whole(node: ast.expr) -> bool:
    """A whole number for certain, by what is written there: two that are equal cannot be told apart."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.BinOp):
        return is_whole(node.left) and is_whole(node.right) and not isinstance(node.op, ast.Div)
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "itemsize", "ndim")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("len", "int", "math.ceil", "math.floor")


def as_good(tree: ast.AST) -> dict[ast.AST, object]:
    """Constants, and what Python and numpy take for the same by definition."""
    found: dict[ast.AST, object] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "zip":  # raises only where the program is wrong
            found |= {word.value: False for word in call.keywords if word.arg == "strict"}
        called = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""
        if called == "astype":  # `copy=False` allows to share memory and promises nothing
            found |= {word.value: True for word in call.keywords if word.arg == "copy"}  # type: ignore[attr-defined]
        if called == "reshape":  # any negative extent is the one that is left open
            found |= {extent.operand: 2 for extent in call.args if isinstance(extent, ast.UnaryOp)}  # type: ignore[attr-defined]
    return found


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


def is_no(node: ast.expr) -> bool:
    """None, or False, which is as much of a no; that it becomes True is another change."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


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


def place_of(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from nested(constant)


@functools.cache
def functions() -> list[FunctionType]:
    """Those of the modules that are loaded. Looked for once: a copy that looks at every object copies all memory."""
    files = {str(path) for path in modules()}
    # By its type: to be asked for its class, an object of torch's warns, which ends a test.
    return [
        function
        for function in gc.get_objects()
        if type(function) is FunctionType and function.__code__.co_filename in files
    ]


def put_in(mutant: Mutant) -> bool:
    """Give the functions of a module that is loaded their changed code; False where it is no function that changed."""
    found = {place_of(code): code for code in nested(mutated(mutant))}
    own = [function for function in functions() if function.__code__.co_filename == str(mutant.path)]
    changed = [function for function in own if differs(function.__code__, found.get(place_of(function.__code__)))]
    try:
        for function in changed:
            function.__code__ = found[place_of(function.__code__)]
    except (KeyError, ValueError):  # other names from around it
        return False
    return bool(changed)


def differs(code: CodeType, other: CodeType | None) -> bool:
    return other is None or code.replace(co_filename=other.co_filename) != other


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


def copied(work: Callable[[], int], seconds: float, idle: float = IDLE) -> str:
    """What becomes of a copy of this process that does the work in so many seconds of the processor."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 99
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
            code = work()
        finally:
            os._exit(code)
    os.close(writing)
    ended = awaited(reading, child, WAITING * seconds, idle)
    os.close(reading)
    if not ended:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended or code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "hangs"
    return {0: "survived", ELSEWHERE_MADE: "made elsewhere"}.get(code, "killed")


def awaited(reading: int, child: int, seconds: float, idle: float) -> bool:
    """Does a child end in time? One that waits for what never comes uses no processor, nor do its own."""
    psutil = sys.modules["psutil"]
    until, used, since = time.monotonic() + seconds, -1.0, time.monotonic()
    # Readable when the child ends, which closes its side.
    while not select.select([reading], [], [], 1.0)[0]:
        spent = 0.0
        for process in (psutil.Process(child), *psutil.Process(child).children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                spent += sum(process.cpu_times()[:2])
        if spent > used:
            used, since = spent, time.monotonic()
        if time.monotonic() > min(until, since + idle):
            return False
    return True


def tested(mutant: Mutant | None, tests: Sequence[str], seconds: float) -> str:
    """`survived`, `killed` or `hangs`: the tests in a copy of this process, which has not loaded likewise."""

    def work() -> int:
        if mutant:
            sys.meta_path.insert(0, FromMemory(mutant))
        return run_pytest(tests)

    return copied(work, seconds)


def run_pytest(tests: Sequence[str], *plugins: object) -> int:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.chdir(ROOT)
    plugins = (Unhurried(), *plugins)
    # Plain: pytest would otherwise load the modules of every plugin's package itself, those of likewise too.
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", *tests]
    return int(pytest.main(words, plugins=list(plugins)))


class Unhurried:
    """A plugin: no example of hypothesis has to be done in time, and all are the same in every run."""

    def pytest_sessionstart(self) -> None:
        from hypothesis import settings

        settings.register_profile("mutants", settings.default, deadline=None, database=None, derandomize=True)
        settings.load_profile("mutants")


class Reach:
    """A plugin: which lines of the modules every test comes to, and how long it takes.

    What several tests share is made in the first of them, and in a copy in whichever is run first: its lines and its
    seconds are those of all that ask for it.
    """

    def __init__(self, told: IO[str]) -> None:
        self.told = told
        self.files = {str(path) for path in modules()}
        self.seen: set[tuple[str, int]] = set()
        self.shared: dict[Any, tuple[float, set[tuple[str, int]]]] = {}

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.item, self.seen, self.apart = item, set(), 0.0
        self.began = time.process_time()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        outer, self.seen, began = self.seen, set(), time.process_time()
        made = yield
        spent = time.process_time() - began
        self.shared[fixturedef] = (0.0 if fixturedef.argname in MADE_ONCE else spent), self.seen
        self.seen, self.apart = outer, self.apart + spent
        return made

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        own = max(0.0, time.process_time() - self.began - self.apart)
        known = self.item._fixtureinfo.name2fixturedefs.values()
        asked = [fixture for fixtures in known for fixture in fixtures if fixture in self.shared]
        seconds = {f"{fixture.baseid}::{fixture.argname}": self.shared[fixture][0] for fixture in asked}
        lines = self.seen.union(*(self.shared[fixture][1] for fixture in asked))
        self.told.write(json.dumps([nodeid, own, seconds, sorted(lines)]) + "\n")


@dataclass(frozen=True)
class Test:
    """A test, how long it takes by itself, and what it shares with others by how long that is made."""

    name: str
    own: float
    shared: tuple[tuple[str, float], ...]
    lines: frozenset[tuple[str, int]]

    @property
    def seconds(self) -> float:
        return self.own + sum(spent for _, spent in self.shared)

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]


def reach(tests: Sequence[str]) -> list[Test]:
    """Every test with what it comes to, the quickest first. What was found out is kept for the source as it is."""
    files = [path for test in tests for path in sorted(tests_in(ROOT / test))]
    known = {path: KEPT / f"{fingerprint(path)}.jsonl" for path in files}
    if missing := [path for path in files if not known[path].exists()]:
        KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryFile("w+") as told:

            def work() -> int:
                code = run_pytest([str(path) for path in missing], Reach(told))
                told.flush()
                return code

            if copied(work, 3600.0, math.inf) != "survived":
                sys.exit("The tests do not pass on the source as it is.")
            told.seek(0)
            lines = list(told)
        for path in missing:
            mine = [line for line in lines if ROOT / json.loads(line)[0].partition("::")[0] == path]
            known[path].write_text("".join(mine))
    found = [json.loads(line) for path in files for line in known[path].read_text().splitlines()]
    reached = [Test(name, own, (*shared.items(),), frozenset(map(tuple, lines))) for name, own, shared, lines in found]
    return sorted(reached, key=attrgetter("seconds"))


def tests_in(path: Path) -> list[Path]:
    return list(path.rglob("test_*.py")) if path.is_dir() else [path]


@functools.cache
def fingerprint(path: Path) -> str:
    """Of a file of tests, what it shares with others, and all that it tests."""
    shared = [other for other in (ROOT / "tests").rglob("*.py") if not other.name.startswith("test_")]
    digest = hashlib.sha256(f"2 {path.relative_to(ROOT).as_posix()}".encode())  # the second form of what is kept
    for part in sorted({path, *shared, *HOUSE.rglob("*.py"), ROOT / "benchmarks" / "oracle.py"}):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:32]


def coming_to(mutant: Mutant, known: Sequence[Test]) -> list[Test]:
    return [test for test in known if (str(mutant.path), mutant.line) in test.lines]


def coming_near(mutant: Mutant, known: Sequence[Test]) -> list[Test]:
    return [test for test in known if any(path == str(mutant.path) for path, _ in test.lines)]


def promising(tests: Sequence[Test], kills: dict[str, int], seconds: float) -> list[Test]:
    """As many tests as so many seconds allow: first those that killed more in less time, then the quickest.

    The tenth copy of a function, with other arguments, counts as ten times as slow: it rarely tells what nine did not.
    """
    copies: Counter[str] = Counter()
    order = {}
    for test in sorted(tests, key=attrgetter("seconds")):
        copies[test.function] += 1
        order[test] = (-kills.get(test.name, 0) / (test.seconds + 0.05), test.seconds * copies[test.function])
    picked: list[Test] = []
    made: set[str] = set()
    for test in sorted(tests, key=order.__getitem__):
        cost = test.own + sum(spent for name, spent in test.shared if name not in made)
        if cost <= seconds:
            picked.append(test)
            made.update(name for name, _ in test.shared)
            seconds -= cost
    return picked


def patience(tests: Sequence[Test]) -> float:
    return 20 + FORBEARANCE * sum(test.seconds for test in tests)


class Loop:
    """A plugin: collects the tests once, and asks a copy of that process about every mutant.

    What it cannot ask there, it tells: tests that are to be run in a process of their own.
    """

    def __init__(
        self,
        picked: Sequence[Mutant],
        known: Sequence[Test],
        seconds: float,
        told: Callable[[Mutant, str, Sequence[str]], None],
        say: Callable[[str], object],
    ) -> None:
        self.picked, self.known, self.seconds, self.told, self.say = picked, known, seconds, told, say
        self.steady: set[str] = set()
        self.unsteady: set[str] = set()
        self.history = KEPT / "kills.json"
        self.kills: dict[str, dict[str, int]] = json.loads(self.history.read_text()) if self.history.exists() else {}

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        # Polars has threads by now, which no copy has: who asks it there waits without an end.
        alone = {name for name, item in items.items() if "polars" in name + inspect.getsource(item.function)}
        self.unsteady |= alone
        make_once(session)
        functions()
        gc.freeze()  # for the same reason
        for mutant in self.picked:
            outcome, left = self.outcome(session, items, mutant), []
            if outcome == "made elsewhere":  # constants and classes, when their module is imported
                outcome, left = "survived", self.chosen(mutant, coming_near(mutant, self.known))
            elif outcome == "survived":
                coming = [test for test in coming_to(mutant, self.known) if test.name in alone]
                left = self.chosen(mutant, coming)
            self.told(mutant, outcome, [test.name for test in left])
        return True

    def chosen(self, mutant: Mutant, tests: Sequence[Test]) -> list[Test]:
        return promising(tests, self.kills.get(mutant.module, {}), self.seconds)

    def outcome(self, session: Any, items: dict[str, Any], mutant: Mutant) -> str:
        """What becomes of a mutant: a test kills it if it fails or hangs, and does neither on the source as it is."""
        coming = [test for test in coming_to(mutant, self.known) if test.name not in self.unsteady]
        tests = self.chosen(mutant, coming)
        with tempfile.TemporaryFile("w+") as failing:
            work = functools.partial(self.ask, session, [items[test.name] for test in tests], mutant, failing)
            outcome = copied(work, patience(tests))
            failing.seek(0)
            name = failing.read()
        if outcome not in ("killed", "hangs"):
            return outcome
        if not name:  # it ended before the first test: it cannot be put in
            return "made elsewhere"
        if name not in self.steady:
            alone = functools.partial(self.ask, session, [items[name]], None, None)
            if copied(alone, patience(tests)) != "survived":
                self.unsteady.add(name)
                self.say(f"not asked again, as it fails on the source as it is: {name}")
                return self.outcome(session, items, mutant)
        self.steady.add(name)
        mine = self.kills.setdefault(mutant.module, {})
        mine[name] = mine.get(name, 0) + 1
        self.history.write_text(json.dumps(self.kills))
        return outcome

    def ask(self, session: Any, items: list[Any], mutant: Mutant | None, failing: IO[str] | None) -> int:
        """In the copy: 0 if all tests pass; the one that is run is named in a file."""
        if mutant is not None and not put_in(mutant):
            return ELSEWHERE_MADE
        session.items = items
        for item, following in zip_longest(items, items[1:]):  # none, where no test comes to the line
            if failing is not None:
                failing.seek(0)
                failing.truncate()
                failing.write(item.nodeid)
                failing.flush()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return 1
        return 0


def make_once(session: Any) -> None:
    """What many tests share, for every copy."""
    for name in MADE_ONCE:
        asking = [item for item in session.items if name in item.fixturenames]
        if asking:
            item = min(asking, key=lambda item: len(item.fixturenames))
            # From another folder: what is common to both stays made, and has to be common to all.
            following = next(other for other in session.items if other.path.parent != item.path.parent)
            item.ihook.pytest_runtest_setup(item=item)
            item.ihook.pytest_runtest_teardown(item=item, nextitem=following)


def ask_all(
    picked: Sequence[Mutant], known: Sequence[Test], tests: Sequence[str], seconds: float = SECONDS
) -> Counter[str]:
    """How many mutants had which end; the survivors are printed."""
    counted: Counter[str] = Counter()
    shown = os.dup(1)
    with tempfile.TemporaryFile("w+") as kept:

        def say(text: str) -> None:
            os.write(shown, f"  {text}\n".encode())

        def told(mutant: Mutant, outcome: str, left: Sequence[str]) -> None:
            if outcome == "survived" and not left:
                say(f"survived: {mutant.text}")
            kept.write(json.dumps([picked.index(mutant), outcome, left]) + "\n")
            kept.flush()

        copied(lambda: run_pytest(tests, Loop(picked, known, seconds, told, say)), 1e6, math.inf)
        kept.seek(0)
        ends = [json.loads(line) for line in kept]
    for number, outcome, left in ends:
        if left:
            patient = 60 + patience([test for test in known if test.name in left])
            outcome = tested(picked[number], left, patient)
            if outcome == "survived":
                print(f"  survived: {picked[number].text}", flush=True)
        counted[outcome] += 1
    assert counted.total() == len(picked), "the tests could not be collected"
    return counted


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


def interval(noticed: int, asked: int) -> tuple[float, float]:
    """The share among all mutants that a sample tells, by Wilson's score."""
    z, share = 1.96, noticed / asked
    middle, width = share + z * z / (2 * asked), z * math.sqrt(share * (1 - share) / asked + (z / (2 * asked)) ** 2)
    return (middle - width) / (1 + z * z / asked), (middle + width) / (1 + z * z / asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    chosen = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"})
    prepare()
    picked, began = drawn(chosen.sample, chosen.seed, chosen.only), time.perf_counter()
    known = reach(chosen.tests)
    print(f"{len(picked)} mutants of {len(modules(chosen.only))} modules, {len(known)} tests", flush=True)
    counted = ask_all(picked, known, chosen.tests, chosen.seconds)
    noticed = counted["killed"] + counted["hangs"]
    low, high = interval(noticed, len(picked))
    print(f"{noticed} of {len(picked)} noticed, {noticed / len(picked):.1%} ({low:.1%} to {high:.1%} of all with 95% "
          f"confidence), {counted['hangs']} by a hang; "
          f"{time.perf_counter() - began:.0f} s, seed {chosen.seed}")  # fmt: skip


if __name__ == "__main__":
    main()
