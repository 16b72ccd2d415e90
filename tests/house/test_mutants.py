"""`make mutants` changes what it says it changes, one place at a time, and leaves the source alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import mutants

SOURCE = '''
def judged(value, limit):
    """A text is left alone."""
    if value <= limit and not value < 0:
        return max(value, 1)
    raise ValueError("1 < 2")
'''


def test_every_kind_of_change_is_made_and_only_one_at_a_time():
    count = len(list(mutants.changes(ast.parse(SOURCE))))
    found = set()
    for number in range(count):
        tree = ast.parse(SOURCE)
        list(mutants.changes(tree))[number][2]()
        found.add(ast.unparse(ast.fix_missing_locations(tree)))
    assert len(found) == count, "no change twice"
    for line in (
        "if value < limit and (not value < 0):",
        "if value <= limit or not value < 0:",
        "if not (value <= limit and (not value < 0)):",
        "return max(1, value)",
        "return max(value, 2)",
        "return None",
        "pass",
    ):
        assert sum(line in text for text in found) == 1, line


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("np.maximum(a, b)", []),
        ("max(a, b)", ["max(b, a)"]),
        ("max(len(a), len(b))", []),
        ("max(len(a), b)", ["max(b, len(a))"]),
        ("max(len(a) / n, len(b))", ["max(len(b), len(a) / n)", "max(len(a) * n, len(b))"]),
        ("zip(*a, strict=True)", []),
        ("zip(*a, strict=False)", ["zip(*a, strict=True)"]),
        ("isinstance(a, b)", []),
        ("np.subtract(a, b)", ["np.subtract(b, a)"]),
        ("a.astype(b, copy=False)", []),
        ("np.array(b, copy=False)", ["np.array(b, copy=True)"]),
        ("a.reset_index(drop=True)", ["a.reset_index(drop=False)"]),
        ("a.reshape(-1)", ["a.reshape(-0)"]),
        ("a.sum(-1)", ["a.sum(-2)", "a.sum(-0)"]),
        ("return False", ["return True"]),
        ("return True", ["return None", "return False"]),
    ],
)
def test_what_makes_no_difference_by_definition_is_not_changed(source, changed):
    found = []
    for number in range(len(list(mutants.changes(ast.parse(source))))):
        tree = ast.parse(source)
        list(mutants.changes(tree))[number][2]()
        found.append(ast.unparse(tree))
    assert [text for text in found if text != "pass"] == changed


def test_the_rooms_of_the_gate_are_found_and_their_mutants_compile():
    rooms = {path.parent.name for path in mutants.modules()}
    assert {"judge", "compare", "metrics"} <= rooms
    before = {path: path.read_bytes() for path in mutants.modules()}
    picked = mutants.drawn(20, seed=0)
    assert picked == mutants.drawn(20, seed=0)
    for mutant in picked:
        mutants.mutated(mutant)
    assert before == {path: path.read_bytes() for path in mutants.modules()}


@pytest.mark.parametrize("test", mutants.TESTS)
def test_the_tests_that_are_run_are_there(test):
    assert (mutants.ROOT / test).exists()


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What comes of some mutants, in a process of its own: a changed module has to be the first of its name there."""
    program = f"""
import json, mutants, pathlib
mutants.prepare()
path = mutants.HOUSE / "judge" / "policy.py"
broken = next(m for m in mutants.mutants(path) if m.change == "None is returned" and "return Policy(" in m.text)
tests = ["tests/judge/test_policy.py"]
found = {{"as it is": mutants.tested(None, tests, 200.0), "broken": mutants.tested(broken, tests, 200.0)}}

mutants.KEPT = pathlib.Path({str(tmp_path_factory.mktemp("mutants"))!r}) / "kept"
tests = ["tests/compare/metrics/test_deciles.py"]
known = mutants.reach(tests)
found["kept for the next run"] = mutants.reach(tests) == known and len(list(mutants.KEPT.iterdir())) == 1
everything = [m for name in ("judge/verdict.py", "compare/sums.py") for m in mutants.mutants(mutants.HOUSE / name)]
returned = [m for m in everything if m.change == "None is returned"]
missed = [m for m in returned if not mutants.coming_to(m, known)]
asked = [next(m for m in missed if m.path.name == name) for name in ("verdict.py", "sums.py")]
asked.append(next(m for m in returned if mutants.coming_to(m, known)))
found["counted"] = mutants.ask_all(asked, known, tests)
print(json.dumps(found))
"""
    folder = str(Path(mutants.__file__).parent)
    run = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_a_mutant_that_breaks_everything_is_killed_and_the_source_as_it_is_survives(asked):
    assert (asked["as it is"], asked["broken"]) == ("survived", "killed")


def test_a_mutant_that_no_test_comes_to_survives(asked):
    assert asked["kept for the next run"]
    assert (asked["counted"]["survived"], asked["counted"]["killed"]) == (2, 1)


def test_a_sample_tells_a_range():
    low, high = mutants.interval(95, 100)
    assert low == pytest.approx(0.888, abs=1e-3)  # by hand: (0.95 + 0.0192 ± 0.0468) / 1.0384
    assert high == pytest.approx(0.978, abs=1e-3)
    assert mutants.interval(10, 10)[1] == pytest.approx(1.0)


def test_the_most_promising_tests_come_first_and_only_so_many_seconds_of_them():
    def made(name, own, **shared):
        return mutants.Test(name, own, (*shared.items(),), frozenset())

    known = [made("a[1]", 0.1), made("a[2]", 0.1), made("b", 0.15), made("slow", 3.0), made("killer", 2.0)]
    names = [test.name for test in mutants.promising(known, {"killer": 1}, 4.0)]
    assert names == ["killer", "a[1]", "b", "a[2]"]
    dear = [made("first", 0.5, files=3.0), made("second", 0.6, files=3.0)]
    assert mutants.promising(dear, {}, 4.2) == dear, "what both share is made once"
    assert mutants.promising(dear, {}, 4.0) == dear[:1]
