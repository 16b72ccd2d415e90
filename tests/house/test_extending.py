"""One file adds one extension: every row of the table "To add …" in docs/architecture.md is walked here.

What a person would write is put into a folder of its own that the package looks into too. Nothing else is touched:
it is found, it is used, and afterwards it is gone.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import data_only
import likewise
from likewise import registry
from likewise.compare.engines import Session
from likewise.report import render

ROOT = Path(__file__).parents[2]
ROWS = {"x": np.arange(1.0, 61.0)}
WALKED = {
    "models/NAME/open.py",
    "data/readers/NAME.py",
    "compare/metrics/NAME.py",
    "compare/engines/NAME.py",
    "models/NAME/export.py",
    "report/formats/NAME.py",
    "explain/probes/NAME.py",
    "tasks/stress/moves/NAME.py",
    "compare/variations/edge/NAME.py",
    "cli/commands/NAME.py",
}
FRAMEWORK = '''
"""Models that fit on a line: `3 x` is a number and the column it is multiplied by."""

from contextlib import contextmanager

from likewise.contracts.models import Adapter, InputSpec, Kind, OutputSpec, Signature


class Line:
    def __init__(self, text):
        factor, self.column = text.split()
        self.factor = float(factor)


class LineRunner:
    def __init__(self, line):
        self.native = line
        outputs = (OutputSpec("value", Kind.VALUE, "float64"),)
        self.signature = Signature((InputSpec(line.column, "float64", (None,)),), outputs)
        self.details = {"line": "1.0"}

    def run(self, batch, *, outputs=None):
        return {"value": self.native.factor * batch.inputs[self.native.column]}


class LineAdapter(Adapter):
    framework = "line"

    def claims(self, target):
        return str(target).endswith(".line")

    @contextmanager
    def open(self, model):
        with open(model.target) as file:
            yield LineRunner(Line(file.read()))


EXTENSION = LineAdapter()
'''
EXPORTER = '''
"""Lines to ONNX."""


class LineExporter:
    framework = "line"

    def claims(self, model):
        return type(model).__name__ == "Line"

    def export(self, request):
        from onnx import TensorProto, helper

        line, double = request.model, TensorProto.DOUBLE
        nodes = [
            helper.make_node("Constant", [], ["factor"], value_float=line.factor),
            helper.make_node("Cast", ["factor"], ["wide"], to=double),
            helper.make_node("Mul", [line.column, "wide"], ["value"]),
        ]
        values = [helper.make_tensor_value_info(name, double, ["rows"]) for name in (line.column, "value")]
        graph = helper.make_graph(nodes, "line", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


EXTENSION = LineExporter()
'''


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Write `compare/metrics/NAME.py` beside the package, where it looks too; forget it afterwards."""
    before = set(sys.modules)

    def written(place: str, code: str) -> None:
        path = tmp_path / "added" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        folder = path.parent.parent if place.startswith("models/") else path.parent
        if folder != path.parent:
            (path.parent / "__init__.py").touch()
        package = import_module(".".join(("likewise", *folder.relative_to(tmp_path / "added").parts)))
        if str(folder) not in package.__path__:
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        forget()

    yield written
    monkeypatch.undo()
    added = [name for name in set(sys.modules) - before if _file(name).startswith(str(tmp_path))]
    for name in sorted(added, reverse=True):  # what is in a folder before the folder
        parent, _, attribute = name.rpartition(".")
        delattr(sys.modules[parent], attribute)
        del sys.modules[name]
    forget()


def _file(module: str) -> str:
    return str(getattr(sys.modules[module], "__file__", None))


def forget() -> None:
    """Let everything that was found be looked for again."""
    invalidate_caches()
    for found in (
        registry.extensions,
        registry.frameworks,
        registry.adapters,
        registry.exporters,
        registry.about_packages,
        registry._extended,
        registry._listed,
        registry._known_adapter,
    ):
        found.cache_clear()


def twice(x):
    return {"value": 2 * x}


def thrice(x):
    return {"value": 3 * x}


def off_by_seven(x):
    return {"value": 3 * x + 7 * (x == 7)}


def test_these_are_the_rows_of_the_table():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## To add")[2].partition("\n## ")[0]
    places = [re.search(r"`(\w[\w/]*/)", row)[1] for row in table.splitlines() if row.startswith("| a")]
    named = re.findall(r"`([\w/]*NAME[\w/.]*)`", table)
    assert set(named) == WALKED
    assert len(places) == len(WALKED)


def test_a_framework(add, tmp_path):
    add("models/line/open.py", FRAMEWORK)
    (tmp_path / "model.line").write_text("3 x")
    assert "line" in registry.frameworks()
    report = likewise.check(tmp_path / "model.line", thrice, ROWS)
    assert report.passed
    assert report.origin.reference.kind == "line"
    assert not data_only.check(tmp_path / "model.line", twice, ROWS).passed


def test_a_way_to_onnx(add, tmp_path):
    add("models/line/open.py", FRAMEWORK)
    add("models/line/export.py", EXPORTER)
    (tmp_path / "model.line").write_text("3 x")
    exported = data_only.export(tmp_path / "model.line", ROWS, tmp_path / "model.onnx")
    assert exported
    assert exported.report.comparison.rows == 60


def test_a_kind_of_data(add, tmp_path):
    add(
        "data/readers/tally.py",
        '''
"""Tallies: as many strokes as the number."""

from likewise.data.readers.arrays import EXTENSION as ARRAYS


class TallyReader:
    name = "tally"

    def claims(self, target):
        return str(target).endswith(".tally")

    def open(self, target):
        import numpy as np

        with open(target) as file:
            return ARRAYS.open({"x": np.array([float(len(line.strip())) for line in file])})


EXTENSION = TallyReader()
''',
    )
    (tmp_path / "rows.tally").write_text("|\n||||\n||\n")
    report = data_only.check(twice, twice, tmp_path / "rows.tally")
    assert report.passed
    assert report.comparison.rows == 3


def test_a_metric(add):
    add(
        "compare/metrics/sevens.py",
        '''
"""How often the candidate is off by seven."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sevens:
    count: int = 0

    def merge(self, other):
        return Sevens(self.count + other.count)

    def measurements(self):
        return {"sevens": float(self.count)}

    def details(self):
        return {}


class SevensMetric:
    name = "sevens"

    def applies_to(self, spec, *, numeric):
        return numeric

    def empty(self):
        return Sevens()

    def observe(self, pair):
        return Sevens(int((pair.candidate - pair.reference == 7).sum()))


EXTENSION = SevensMetric()
''',
    )
    report = data_only.check(thrice, off_by_seven, ROWS)
    assert report.comparison.outputs[0].measures["sevens"] == 1
    assert '"sevens": 1.0' in render(report, "json")


def test_an_engine(add):
    add(
        "compare/engines/slow_motion.py",
        '''
"""One row after the other."""

from dataclasses import replace

from likewise.compare.engines.local import EXTENSION as LOCAL


class SlowMotion:
    name = "slow motion"

    def run(self, plan, session):
        return LOCAL.run(replace(plan, batch_size=1), session)


EXTENSION = SlowMotion()
''',
    )
    engines = {engine.name: engine for engine in registry.extensions("compare.engines")}
    plan = planned(thrice, off_by_seven)
    with Session(plan.reference, plan.candidate) as session:
        slow, usual = (engines[name].run(plan, session) for name in ("slow motion", "local"))
    assert slow.facts.batch_size == {"reference": 1, "candidate": 1}
    assert slow.comparison == usual.comparison
    assert slow.comparison.rows_beyond == 1


def planned(reference, candidate):
    from likewise.contracts.comparison import Plan, Tolerance

    models = [registry.describe_model(model) for model in (reference, candidate)]
    return Plan(*models, registry.open_source(ROWS), Tolerance(1e-4, 1e-3))


def test_a_report_format(add):
    add(
        "report/formats/telegram.py",
        '''
"""Few words, and dear ones."""


class Telegram:
    format = "telegram"

    def render(self, report, **options):
        return f"{report.outcome} STOP {report.comparison.rows} ROWS STOP"


EXTENSION = Telegram()
''',
    )
    assert render(data_only.check(twice, twice, ROWS), "telegram") == "PASS STOP 60 ROWS STOP"


def test_a_probe(add):
    add(
        "explain/probes/sevens.py",
        '''
"""Answers that are seven too large."""

from likewise.contracts.report import Place
from likewise.explain.case import Explained, probe


@probe("approximation")
def sevens(case):
    pair = case.required.pairs[0]
    covered = case.required.failing & (pair.candidate - 7 == pair.reference)
    told = (Place("the seven"), "seven less and it agrees", "Do not add seven")
    return Explained("approximation", *told, covered, simplicity=0)


EXTENSION = sevens
''',
    )
    report = data_only.explain(thrice, off_by_seven, ROWS)
    assert report.diagnoses[0].culprit == "the seven"
    assert report.diagnoses[0].explained_share == 1


def test_a_move_of_the_search(add):
    def off_at_one_number(x):
        return {"value": 3 * x + (x == 77.777)}

    assert likewise.stress(thrice, off_at_one_number, ROWS, calls=20).outcome == "PASS"
    add(
        "tasks/stress/moves/one_number.py",
        '''
"""Every number becomes the same one."""

import numpy as np

from likewise.tasks.stress.moves import Move


def _one_number(search):
    def turn():
        rows = search.space.real(np.arange(8))
        for cells in rows.cells.values():
            cells[:] = 77.777
        search.measure(rows)

    return turn


EXTENSION = Move("one number", _one_number)
''',
    )
    found = likewise.stress(thrice, off_at_one_number, ROWS, calls=20)
    assert found.outcome == "FAIL"
    assert found.rows[0].changes[0].after == 77.777


def test_an_edge_suite(add):
    add(
        "compare/variations/edge/sevens.py",
        '''
"""Rows of sevens."""

from likewise.compare.variations.edge import all_features
from likewise.contracts.comparison import Suite
from likewise.data.cells import Variant, varied


def _sevens(seen):
    for field in all_features(seen):
        yield from varied(seen.batch.slice(0, 4), [Variant("seven", {field: 7.0})])


EXTENSION = Suite("sevens", "A seven in every column", _sevens)
''',
    )
    report = data_only.check(thrice, off_by_seven, {"x": ROWS["x"] + 100}, edge="fail")
    (suite,) = [suite for suite in report.verdict.suites if suite.name == "sevens"]
    assert suite.outcome == "FAIL"
    assert report.outcome == "FAIL"


def test_a_command(add):
    add(
        "cli/commands/wave.py",
        '''
"""`likewise wave`: greet."""

import click


@click.command(short_help="Greet.")
@click.argument("name")
def wave(name):
    """Greet somebody."""
    click.echo(f"Hello, {name}")


EXTENSION = wave
''',
    )
    from likewise.cli import likewise as command

    assert "wave" in CliRunner().invoke(command, ["--help"]).output
    assert CliRunner().invoke(command, ["wave", "you"]).output == "Hello, you\n"


def test_what_was_added_is_gone(add, tmp_path):
    assert "line" not in registry.frameworks()
    assert "wave" not in registry.modules("cli.commands")
    assert "sevens" not in {metric.name for metric in registry.extensions("compare.metrics")}


def test_other_packages_add_by_entry_points(monkeypatch, tmp_path):
    """What somebody else has installed is found like ours: the group is named after the folder."""
    theirs = tmp_path / "theirs-1.0.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", "utf-8")
    (theirs / "entry_points.txt").write_text("[likewise.formats]\ntheirs = posixpath:sep\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    assert "/" in registry.extensions("report.formats")
    assert "/" not in registry.extensions("compare.metrics")
    monkeypatch.undo()
    forget()
