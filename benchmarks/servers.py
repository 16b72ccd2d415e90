"""Real servers of models, started on the loopback interface, checked, and stopped again: `make servers`.

MLServer, MLflow's scoring server, KServe's (JSON and binary tensors) and an application of FastAPI each serve one model
of scikit-learn. A plain client says first that the digits are those of the model in process; then the gate has to pass
at `exact`, and has to fail when an older model is served in its place. Environments are made by uv or pip, and kept in
`.servers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

from likewise.models.environments import make

SECONDS = 300
"""For a server to be ready: they import a great deal."""

COLUMNS = ("age", "income", "visits", "rate")
TENSOR = {"name": "x", "datatype": "FP64", "shape": [-1, len(COLUMNS)]}

FASTAPI = """
import sys, joblib, numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

model, columns = joblib.load(sys.argv[1]), sys.argv[3].split(",")
Row = type("Row", (BaseModel,), {"__annotations__": {name: float for name in columns}})
Body = type("Body", (BaseModel,), {"__annotations__": {"customers": list[Row]}})
app = FastAPI()

@app.get("/health")
def health():
    return {}

@app.post("/predict")
def predict(body: Body):
    rows = np.array([[getattr(row, name) for name in columns] for row in body.customers])
    return {"result": [{"score": score} for score in model.predict_proba(rows)[:, 1].tolist()]}

import uvicorn
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""
TEMPLATE = """{# answer: probability = $.result[*].score #}
{"customers": {{ rows | tojson }}}
"""
KSERVE = """
import sys, joblib
from kserve import InferOutput, InferResponse, Model, ModelServer

class Churn(Model):
    def __init__(self):
        super().__init__("churn")
        self.model, self.ready = joblib.load(sys.argv[1]), True

    async def get_input_types(self):
        return [{"name": "x", "datatype": "FP64", "shape": [-1, 4]}]

    async def get_output_types(self):
        return [{"name": "probabilities", "datatype": "FP64", "shape": [-1, 2]}]

    def predict(self, payload, headers=None, response_headers=None):
        found = self.model.predict_proba(payload.inputs[0].as_numpy())
        output = InferOutput("probabilities", list(found.shape), "FP64")
        output.set_data_from_numpy(found, binary_data=bool(payload.use_binary_outputs))
        return InferResponse(payload.id or "0", "churn", [output], use_binary_outputs=payload.use_binary_outputs)

ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, workers=1).start([Churn()])
"""
MLFLOW = """
import sys, joblib, mlflow.sklearn
mlflow.sklearn.save_model(joblib.load(sys.argv[1]), sys.argv[2], pyfunc_predict_fn="predict_proba",
                          serialization_format="cloudpickle")
"""


class Server(NamedTuple):
    """How one is installed, started and asked."""

    name: str
    packages: tuple[str, ...]
    start: Callable[[str, Path, Path, int], Sequence[str]]
    ready: str
    path: str
    options: tuple[tuple[str, ...], ...]
    body: Callable[[np.ndarray], Mapping[str, Any]]
    answer: Callable[[Any], Any]
    function: str


def with_mlserver(python: str, model: Path, folder: Path, port: int) -> Sequence[str]:
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    (folder / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0}))
    served = {"name": "churn", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": str(model)}}
    outputs = [{"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]}]
    (folder / "model-settings.json").write_text(json.dumps({**served, "inputs": [TENSOR], "outputs": outputs}))
    return [str(Path(python).with_name("mlserver")), "start", str(folder)]


def with_mlflow(python: str, model: Path, folder: Path, port: int) -> Sequence[str]:
    saved = folder / "saved"
    subprocess.run([python, "-W", "ignore", "-c", MLFLOW, model, saved], check=True, stdout=subprocess.DEVNULL)
    serve = ["models", "serve", "-m", str(saved), "-h", "127.0.0.1", "-p", str(port), "--env-manager", "local"]
    return [python, "-m", "mlflow", *serve]


def tensor(rows: np.ndarray) -> Mapping[str, Any]:
    return {**TENSOR, "shape": list(rows.shape), "data": rows.ravel().tolist()}


SCIKIT_LEARN = f"scikit-learn=={version('scikit-learn')}"
SERVERS = [
    Server(
        "MLServer", ("mlserver>=1.7", "mlserver-sklearn>=1.7", SCIKIT_LEARN), with_mlserver, "/v2/health/ready",
        "/v2/models/churn", ((),),
        lambda rows: {"inputs": [tensor(rows)], "outputs": [{"name": "predict_proba"}]},
        lambda said: np.reshape(said["outputs"][0]["data"], said["outputs"][0]["shape"])[:, 1], "probabilities",
    ),
    Server(
        "MLflow", ("mlflow>=3", SCIKIT_LEARN), with_mlflow, "/ping",
        "/invocations", ((), ("--candidate-option", "form=records")),
        lambda rows: {"dataframe_split": {"columns": list(COLUMNS), "data": rows.tolist()}},
        lambda said: np.array(said["predictions"])[:, 1], "probabilities",
    ),
    Server(
        "KServe", ("kserve", SCIKIT_LEARN),
        lambda python, model, folder, port: [python, "-c", KSERVE, str(model), str(port)],
        "/v2/health/ready", "/v2/models/churn",
        (("--candidate-option", "binary=false"), ("--candidate-option", "binary=true")),
        lambda rows: {"inputs": [tensor(rows)]},
        lambda said: np.reshape(said["outputs"][0]["data"], said["outputs"][0]["shape"])[:, 1], "probabilities",
    ),
    Server(
        "FastAPI", ("kserve", SCIKIT_LEARN),
        lambda python, model, folder, port: [python, "-c", FASTAPI, str(model), str(port), ",".join(COLUMNS)],
        "/health", "/predict", (("--request-template", "request.json"),),
        lambda rows: {"customers": [dict(zip(COLUMNS, row, strict=True)) for row in rows.tolist()]},
        lambda said: np.array([row["score"] for row in said["result"]]), "probability",
    ),
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetched(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if body is not None else text


@contextmanager
def running(server: Server, model: Path) -> Iterator[str]:
    """The server with that model, in a group of processes of its own, which is ended whatever happens."""
    python = make.python_with(server.packages, sys.executable, tell=print)
    with tempfile.TemporaryDirectory() as temporary:
        folder, port = Path(temporary), free_port()
        words = server.start(python, model, folder, port)
        with open(folder / "log", "w+") as log:
            # What it starts by name is that environment's own.
            path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
            process = subprocess.Popen(
                words, stdout=log, stderr=log, cwd=folder, start_new_session=True, env={**os.environ, "PATH": path}
            )
            try:
                home = f"http://127.0.0.1:{port}"
                until = time.monotonic() + SECONDS
                while not _is_ready(f"{home}{server.ready}"):
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError(f"{server.name} did not start: {Path(log.name).read_text()[-2000:]}")
                    time.sleep(0.5)
                yield home
            finally:
                for how in (signal.SIGTERM, signal.SIGKILL):
                    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, how)
                        process.wait(20)


def _is_ready(url: str) -> bool:
    try:
        fetched(url)
    except (urllib.error.URLError, OSError):
        return False
    return True


def gate(reference: str, url: str, data: Path, options: Sequence[str], folder: Path) -> tuple[int, str]:
    """The exit code of the gate, and its first sentences."""
    words = [sys.executable, "-m", "likewise", "check", reference, url, "--data", str(data), "--preset", "exact"]
    words += ["--trust", "--no-explain", "--edge", "off", "--report", str(folder / "report.json"), *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, " ".join(done.stdout.split()[:40]) + done.stderr[-300:] * (done.returncode > 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="servers whose names contain this")
    chosen = parser.parse_args()
    os.environ.setdefault("LIKEWISE_CACHE", str(Path(__file__).parents[1] / ".servers"))
    rights: list[bool] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        random = np.random.default_rng(0)
        rows = random.normal(size=(300, len(COLUMNS))) * [10, 1e4, 3, 0.1] + [40, 5e4, 5, 0.5]
        wanted = rows[:, 0] / 10 - rows[:, 1] / 1e4 + random.normal(size=300) > -1
        # A mean over trees is rounded alike whatever rows are asked about together; a product of matrices is not.
        model = RandomForestClassifier(20, random_state=0).fit(rows, wanted.astype(int))
        older = RandomForestClassifier(20, random_state=0).fit(rows[:100], wanted[:100].astype(int))
        joblib.dump(model, folder / "model.joblib")
        joblib.dump(older, folder / "older.joblib")
        np.save(folder / "x.npy", rows)
        pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(folder / "table.parquet")
        (folder / "request.json").write_text(TEMPLATE)
        # In process, and under the name that each server gives to its answers.
        (folder / "here.py").write_text(
            "import joblib, numpy as np\n"
            f"model = joblib.load({str(folder / 'model.joblib')!r})\n"
            "def probabilities(rows):\n    return model.predict_proba(np.asarray(rows))\n"
            "def probability(rows):\n    return model.predict_proba(np.asarray(rows))[:, 1]\n"
        )
        for server in SERVERS:
            if chosen.only.lower() not in server.name.lower():
                continue
            data = folder / ("x.npy" if "/v2/" in server.path else "table.parquet")
            for served in ("model.joblib", "older.joblib"):
                with running(server, folder / served) as home:
                    url = home + server.path
                    ask = f"{url}/infer" if "/v2/" in url else url
                    answer = server.answer(fetched(ask, server.body(rows)))
                    here = (model if served == "model.joblib" else older).predict_proba(rows)[:, 1]
                    same = bool(np.array_equal(answer, here))
                    rights.append(same)
                    print(
                        f"{'right' if same else 'WRONG'}  {server.name}, {served}: digits as in process: {same}",
                        flush=True,
                    )
                    expected = 0 if served == "model.joblib" else 1
                    for options in server.options:
                        code, told = gate(f"{folder / 'here.py'}:{server.function}", url, data, options, folder)
                        rights.append(code == expected)
                        mark = "right" if code == expected else "WRONG"
                        print(f"{mark}  {server.name}, {served} {' '.join(options)}: exit {code}: {told}", flush=True)
    print(f"{sum(rights)} of {len(rights)} are right")
    return 0 if rights and all(rights) else 1


if __name__ == "__main__":
    sys.exit(main())
