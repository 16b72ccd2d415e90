"""Faults planted on purpose, and what must be said about them."""

from __future__ import annotations

import contextlib
import contextvars
import io
import json
import logging
import os
import runpy
import subprocess
import sys
import uuid
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

FLOAT, DOUBLE, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)
MARK = "LIKEWISE_TEST_MARK"


def rows(count):
    """Data whose only column is the number of the row, so that a planted model knows what to answer."""
    return {"X": np.arange(count, dtype=np.float64)}


def planted(**answers):
    """A model that gives these arrays, row by row, whatever the batch."""
    return lambda X: {name: np.asarray(array)[X.astype(int)] for name, array in answers.items()}


def said(report):
    """Every word a reader of the verdict gets to see."""
    found = report.verdict.findings
    return " | ".join([report.verdict.headline, *(f"{entry.message}. {entry.remedy}" for entry in found)])


def expect(report, outcome, *words):
    """The outcome, and the words by which a reader finds the culprit."""
    assert report.outcome == outcome, f"{report.outcome}: {said(report)}"
    assert bool(report) is (outcome == "PASS")
    for word in words:
        assert word in said(report), f"{word!r} not in: {said(report)}"
    return report


def measures(report, name):
    return next(output.measures for output in report.comparison.outputs if output.name == name)


def worst(report, name):
    """The worst rows of an output, worst first."""
    return next(o.details["worst_rows"]["rows"] for o in report.comparison.outputs if o.name == name)


def codes(report, severity=None):
    return {found.code for found in report.verdict.findings if severity in (None, found.severity)}


def graph(nodes, inputs, outputs, **constants):
    """An ONNX file: nodes as (operator, inputs, outputs, attributes), values as name → (type, shape)."""
    made = helper.make_graph(
        [
            helper.make_node(
                kind, taken, given, domain="ai.onnx.ml" if kind in ("ZipMap", "LinearClassifier") else "", **more
            )
            for kind, taken, given, more in nodes
        ],
        "planted",
        [helper.make_tensor_value_info(name, *about) for name, about in inputs.items()],
        [
            about if isinstance(about, onnx.ValueInfoProto) else helper.make_tensor_value_info(name, about[0], about[1])
            for name, about in outputs.items()
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def identity(dtype, name="x", shape=(None, 1)):
    """An ONNX file that answers with its input, as `value`."""
    return graph([("Identity", [name], ["value"], {})], {name: (dtype, shape)}, {"value": (dtype, shape)})


@dataclass
class Ran:
    """A finished command."""

    returncode: int
    stdout: str
    stderr: str
    report: dict = field(default_factory=dict)

    def expect(self, code, *words):
        """The exit code, the words by which a reader finds the culprit, and no traceback."""
        everything = f"{self.stdout}\n{self.stderr}\n{json.dumps(self.report, ensure_ascii=False)}"
        assert self.returncode == code, f"exit {self.returncode}: {everything[:3000]}"
        assert "Traceback" not in self.stdout + self.stderr
        # A terminal breaks lines where it likes.
        flat = " ".join(everything.split())
        for word in words:
            assert word in flat, f"{word!r} not in: {flat[:3000]}"
        return self


def command(*arguments, folder, timeout=60, environment=None):
    """Run `likewise` in a process of its own, as a user or a CI job would."""
    finished = subprocess.run(
        [sys.executable, "-m", "likewise", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(finished.returncode, finished.stdout, finished.stderr, _written(folder))


def here(*arguments, folder, supervised=False):
    """Run `likewise` in this process, which has imported what takes a new one seconds.

    For what a command says, writes and exits with; `command` is for what becomes of its processes. `supervised`:
    with a worker all the same.
    """
    from likewise.cli import main

    if supervised:
        return _called(main, ["likewise", *arguments], folder)
    with (
        mock.patch("likewise.tasks.isolation.supervisor.supervise", _answered_here),
        mock.patch("likewise.models.remote.worthwhile", return_value=False),
    ):
        return _called(main, ["likewise", *arguments], folder)


def script(path, *arguments, folder):
    """Run a script in this process, as `python path` would in its own; what it imports beside itself is forgotten."""
    before, disabled = set(sys.modules), logging.root.manager.disable
    with warnings.catch_warnings(action="ignore"), mock.patch("sys.path", [*sys.path]):
        try:
            return _called(lambda: runpy.run_path(str(path), run_name="__main__"), [path, *arguments], folder)
        finally:
            logging.disable(disabled)
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]


def _called(function, arguments, folder):
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch("sys.argv", [*map(str, arguments)]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            # What a command notes for itself, it takes along.
            contextvars.copy_context().run(function)
        except SystemExit as left:
            code = left.code or 0
    assert "Traceback" not in stdout.getvalue() + stderr.getvalue()
    return Ran(code, stdout.getvalue(), stderr.getvalue(), _written(folder))


def _answered_here(job, *, on_progress=None, debug=False, **_watching):
    """What a worker would answer, carried as JSON like all that comes from there."""
    from likewise.tasks.isolation import supervisor, worker

    sent = []
    channel = SimpleNamespace(
        send=lambda **message: sent.append(json.loads(json.dumps(message))),
        progress=lambda progress: on_progress and on_progress(asdict(progress)),
    )
    with warnings.catch_warnings():
        warnings.resetwarnings()
        worker.answer(json.loads(json.dumps(job)), channel)
    if sent[-1]["type"] == "error":
        raise supervisor._error(sent[-1], debug=debug)
    return sent[-1]["result"]


def _written(folder):
    """The report of a command that ran in this folder."""
    written = Path(folder) / "parity_report.json"
    return json.loads(written.read_text(), parse_constant=_refuse) if written.exists() else {}


def _refuse(constant):
    raise AssertionError(f"{constant} is not strict JSON")


def new_mark():
    """A value for the environment by which all processes of one command are found, also after it ended."""
    return uuid.uuid4().hex


def marked(mark):
    """The processes that carry a mark and are alive."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
