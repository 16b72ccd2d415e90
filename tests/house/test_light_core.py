"""`import likewise` and `likewise --help` stay light, and extensions are found without their frameworks."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from likewise.data.arrow import FEW_TEXTS

HEAVY = (
    "numpy",
    "sklearn",
    "torch",
    "onnx",
    "onnxruntime",
    "pandas",
    "polars",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "joblib",
)


def loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after running the code."""
    script = f"{code}\nimport sys, json; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import likewise",
        "import likewise; likewise.Report; likewise.LikewiseError; dir(likewise)",
        "import sys; from likewise.cli import likewise\n"
        "try: likewise(['--help'], standalone_mode=False)\nexcept SystemExit: pass",
        "import likewise.tasks.isolation.supervisor, likewise.cli.gates, likewise.tasks.settings",
        "from likewise import registry\nregistry.adapters()\n"
        "for folder in ('data.readers', 'report.formats'): registry.extensions(folder)",
    ],
    ids=["import", "public types", "help", "supervisor", "extensions"],
)
def test_no_framework_is_loaded_before_it_is_needed(code):
    assert not loaded_by(code) & set(HEAVY)


def test_adapters_recognise_targets_without_loading_their_frameworks():
    code = (
        "from likewise.registry import describe_model\n"
        "for name in ('a.joblib', 'a.pkl', 'a.skops', 'a.onnx', 'a.parquet', 'pkg.mod:model', 'file.py:model'):\n"
        "    describe_model(name)"
    )
    assert not loaded_by(code) & set(HEAVY)


def test_a_file_is_opened_by_the_framework_it_is_called_after(tmp_path):
    """No other adapter is imported; an address that ends like a file is still an address."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    code = (
        "import sys\nfrom likewise.registry import describe_model, opener\n"
        f"assert describe_model({str(path)!r}).framework == opener({str(path)!r}).framework == 'onnx'\n"
        "assert not [name for name in sys.modules if name.startswith(('likewise.models.endpoints', 'http'))]\n"
        "assert describe_model('http://localhost/model.onnx').framework == 'endpoints'"
    )
    assert "likewise" in loaded_by(code)


@pytest.mark.parametrize(("name", "framework"), [("a.joblib", "sklearn"), ("a.pkl", "sklearn"), ("a.pt2", "torch")])
def test_a_file_is_opened_by_who_most_likely_wrote_it(tmp_path, name, framework):
    path = tmp_path / name
    path.write_bytes(b"")
    others = [
        f"likewise.models.{other}" for other in ("catboost", "endpoints", "sklearn", "torch") if other != framework
    ]
    code = (
        "import sys\nfrom likewise.registry import describe_model\n"
        f"assert describe_model({str(path)!r}).framework == {framework!r}\n"
        f"assert not set(sys.modules) & {{*{others!r}, 'http.client'}}"
    )
    assert "likewise" in loaded_by(code)


def test_few_texts_are_read_without_what_takes_long_to_import(tmp_path):
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": ["a", None] * FEW_TEXTS}), path)
    code = (
        "import sys, pyarrow.parquet as pq\nfrom likewise.data.arrow import FEW_TEXTS, arrow_to_array\n"
        f"table = pq.ParquetFile({str(path)!r})\n"
        "few, many = (next(table.iter_batches(rows)).column(0) for rows in (16, 2 * FEW_TEXTS))\n"
        "assert arrow_to_array(few).tolist() == ['a', None] * 8\n"
        "assert not {'pandas', 'pyarrow.compute'} & set(sys.modules)\n"
        "assert arrow_to_array(many).tolist() == ['a', None] * FEW_TEXTS"
    )
    assert "pyarrow" in loaded_by(code)


def test_a_report_without_tables_is_shown_without_rich():
    code = (
        "from likewise.report.formats.terminal import EXTENSION\nfrom likewise.contracts.verdict import Outcome\n"
        "from likewise.tasks.check import could_not_run\nfrom likewise.tasks.settings import Settings\n"
        "from likewise.errors import DataError\n"
        "gate = Settings(reference='a.onnx', candidate='b.onnx', data='c.npz')\n"
        "assert 'no rows' in EXTENSION.render(could_not_run(gate, DataError('there are no rows')))"
    )
    assert "rich" not in loaded_by(code)


def test_a_graph_is_read_without_the_package_onnx_which_has_the_same_messages():
    code = (
        "import sys\nfrom likewise.models.onnx.describe import messages\nfound = messages()\n"
        "assert 'onnx' not in sys.modules\nimport onnx\n"
        "assert onnx.onnx_ml_pb2.ModelProto is onnx.ModelProto is found.ModelProto"
    )
    assert "onnx" in loaded_by(code)


def test_help_needs_no_types():
    """What `--help` says is text: the types of reports and models are for commands that run."""
    code = (
        "from likewise.cli import likewise\n"
        "try: likewise(['check', '--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        "import sys; print('\\n' + ' '.join(name for name in sys.modules if name.startswith('likewise.contracts.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
