"""What many tests share: the embedded example and a few fitted models, made once a session."""

from __future__ import annotations

import compileall
import fcntl
import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

import likewise
from planting import here

pytest_plugins = ["pytester"]

# Toy models, and a worker on every core: threads would only wait for each other, spinning. Before anything loads them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # boosters have as many threads as there are cores all the same

# The configurations of these tests are their own; what a stranger's may do is tested without it.
os.environ.setdefault("LIKEWISE_TRUST_CONFIG", "1")

# Hypothesis reads the source of all that is loaded at the first number it draws: seconds, in the whole suite.
settings.register_profile("whole suite", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whole suite")

COLOURS = ("blue", "green", "red")
COLUMNS = ["width", "age", "height"]
ROWS = 300

LISTINGS = (
    ("torch.onnx._internal.exporter._registration", "ONNXRegistry", "from_torchlib"),
    ("torch._export.utils", "", "_materialize_cpp_cia_ops"),
    ("skl2onnx.common._container", "", "get_all_schemas_with_history"),
)


def pytest_configure():
    """Compile likewise before hundreds of processes start with it: one behind walls cannot keep what it compiles."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        compileall.compile_dir(Path(likewise.__file__).parent, quiet=2)


def pytest_runtest_setup():
    """Let converters list the operators they know once, not at every export: most of what a small one costs."""
    for module, owner, name in LISTINGS:
        if module in sys.modules:
            holder = getattr(sys.modules[module], owner) if owner else sys.modules[module]
            if not hasattr(getattr(holder, name), "cache_info"):
                once = functools.cache(getattr(holder, name))
                setattr(holder, name, staticmethod(once) if owner else once)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Makes a folder that every worker reads: the first one that asks for it fills it, the others wait."""
    temporary = tmp_path_factory.getbasetemp()
    shared = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary

    def made(name, fill):
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                fill(tmp_path_factory.mktemp(name)).rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def example_folder(made_once):
    """The example of `likewise demo` with 3,000 rows to check on. Read it; do not write into it."""
    steps = "import sys; from likewise.tasks import demo; demo.demo(sys.argv[1], rows=3_000)"

    def fill(folder):
        # In a process of its own, whose sets have another order: `test_demo` compares the files with those of the demo.
        done = subprocess.run([sys.executable, "-c", steps, folder], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", "")
        return folder

    return made_once("example", fill)


@pytest.fixture(scope="session")
def demonstrated(made_once):
    """What `likewise demo` prints, in `printed.txt`, and the folder it leaves, `likewise-demo`. Only read."""

    def fill(folder):
        (folder / "printed.txt").write_text(here("demo", folder=folder).expect(0).stdout)
        return folder

    return made_once("demonstrated", fill)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with a fitted pipeline over three classes, its exports, and 300 rows of data.

    The data file has its columns in another order than the model was fitted with.
    """
    import joblib
    import numpy as np
    import pandas as pd
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folder = tmp_path_factory.mktemp("models")
    random = np.random.default_rng(7)
    table = pd.DataFrame(random.normal(size=(ROWS, 3)) * [1, 10, 100], columns=COLUMNS)
    score = table["width"] + table["age"] / 5 - table["height"] / 200
    colour = np.array(COLOURS)[(score > -0.7).astype(int) + (score > 0.7)]
    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, colour)
    numbered = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, (score > 0).astype(int))
    boolean = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, score > 0)
    regressor = make_pipeline(StandardScaler(), LinearRegression()).fit(table, 3 * score + 1)
    sample = table.to_numpy(np.float32)[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converters' and the fit's own
        network = make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=60, random_state=0)).fit(table, colour)
        plain = {"zipmap": False}
        exports = {
            "classifier": to_onnx(classifier, sample, options=plain),
            "zipmap": to_onnx(classifier, sample),
            "columns": to_onnx(classifier, table[:1].astype(np.float32), options=plain),
            "numbered": to_onnx(numbered, sample, options=plain),
            "numbered_zipmap": to_onnx(numbered, sample),
            "boolean": to_onnx(boolean, sample, options=plain),
            "regressor": to_onnx(regressor, sample),
            "network": to_onnx(network, sample, options=plain),
        }
        for name, exported in exports.items():
            (folder / f"{name}.onnx").write_bytes(exported.SerializeToString())
        _quantize(folder)
    fitted = {
        "classifier": classifier,
        "numbered": numbered,
        "boolean": boolean,
        "regressor": regressor,
        "network": network,
    }
    for name, model in fitted.items():
        joblib.dump(model, folder / f"{name}.joblib")
    shuffled = table[["height", "width", "age"]]
    shuffled.to_parquet(folder / "data.parquet")
    shuffled.assign(key=[f"k{number:03}" for number in range(ROWS)], target=colour).to_parquet(folder / "keyed.parquet")
    paths = {name: str(folder / f"{name}.joblib") for name in fitted}
    return SimpleNamespace(
        folder=folder,
        table=table,
        shuffled=shuffled,
        data=str(folder / "data.parquet"),
        keyed=str(folder / "keyed.parquet"),
        fitted=SimpleNamespace(**fitted),
        joblib=SimpleNamespace(**paths),
        onnx=SimpleNamespace(**{name: str(folder / f"{name}.onnx") for name in [*exports, "int8"]}),
    )


def _quantize(folder):
    import logging

    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(folder / "network.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8, reduce_range=True)
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture
def main(tmp_path):
    """The command line in this process and an empty folder."""
    return lambda *arguments: here(*arguments, folder=tmp_path)
