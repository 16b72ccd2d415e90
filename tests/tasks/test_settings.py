"""What a configuration says may be of any kind: it is taken as what it is, or refused in words."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from likewise.contracts.models import Model
from likewise.errors import LikewiseError, UsageError
from likewise.models.onnx.open import require_options
from likewise.tasks.harmless import require_harmless
from likewise.tasks.settings import KNOWN, find, load_gates, require_own_reports, stated

BASE = {"reference": '"a.onnx"', "candidate": '"b.onnx"', "data": '"rows.npy"'}
VALUES = (
    *("true", "7", "-1", "0", "nan", "inf", '"x"', '""', '["x"]', "[]", "{x = 1}", "{}", "[{x = 1}]", "[[1]]"),
    *("2020-01-01", "2020-01-01T00:00:00Z", "1" + "0" * 400, '"a\\u0000b"', '{"a\\u0000" = "b"}', '"\\u202e"'),
    *('{x = ["y"]}', "{threads = 2020-01-01}", '["*"]', '{"*" = 1}', f'"{"x" * 5000}"'),
)


def gate(folder: Path, said: dict[str, str]) -> Path:
    path = folder / "likewise.toml"
    path.write_text("[gates.g]\n" + "".join(f"{name} = {value}\n" for name, value in {**BASE, **said}.items()))
    return path


@pytest.mark.parametrize("name", [*KNOWN, "formats and html", "options beside a table"])
def test_a_setting_of_any_kind_is_taken_or_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = 0
    for value in VALUES:
        said = {name: value}
        if name == "formats and html":
            said = {"formats": value, "html": '"page.html"'}
        elif name == "options beside a table":
            said = {"reference": '{model = "a.onnx", threads = 1}', "reference_options": value}
        path = gate(tmp_path, said)
        try:
            gates = load_gates(path)
            require_harmless(gates, trusted=False)
            require_own_reports(gates, {})
            gates["g"].policy()
            json.dumps(stated(gates["g"]))
        except LikewiseError:
            refused += 1
    assert refused >= 4, "dates and texts that no system takes are none of any setting"


@pytest.mark.parametrize("text", ["tool = 5", 'tool = "likewise"', 'tool = ["likewise"]', "[tool.black]\nx = 1"])
def test_somebody_elses_project_file_holds_no_gates(text, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text(text)
    assert find(tmp_path) is None


@pytest.mark.parametrize("text", ["likewise = 5", 'likewise = "gates"', "likewise.gates = 5", "likewise = {}"])
def test_a_project_file_whose_gates_are_none_is_told(text, tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool]\n{text}\n")
    with pytest.raises(UsageError, match="names no gate"):
        load_gates(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("providers", 5), ("providers", [5]), ("providers", {"CPUExecutionProvider": {}})),
        *(("disabled_optimizers", 5), ("runtime", ["onnxruntime"]), ("optimization", ["all"])),
        *(("threads", 10**300), ("threads", datetime.date(2020, 1, 1))),
    ],
)
def test_an_option_of_a_session_that_is_of_another_kind_is_refused_by_its_name(name, value):
    with pytest.raises(UsageError, match=name):
        require_options(Model("b.onnx", "onnx", options={name: value}))
