"""Twelve faults that people plant into services, behind a real server: each fails, and is named."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import likewise
from likewise.contracts.models import Elsewhere

RNG = np.random.default_rng(0)
ROWS = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, 60).astype(float),
        "income": RNG.normal(5, 2, 60),
        "debt": RNG.normal(40, 30, 60),
        "city": RNG.choice(["Oslo", "Rome", "Limassol", "Limerick"], 60),
    }
)
WORTH = ROWS["city"].map({"Oslo": 1.0, "Rome": 0.0, "Limassol": 2.0, "Limerick": -2.0})
LABEL = (ROWS["age"] / 40 + ROWS["debt"] / 30 - ROWS["income"] / 5 + WORTH > 2).astype(int)


def fitted(rows, label):
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder="passthrough")
    return make_pipeline(columns, LogisticRegression(max_iter=2000)).fit(rows, label)


MODEL, OLD = fitted(ROWS, LABEL), fitted(ROWS[:30], LABEL[:30])


def exchanged(rows):
    return rows.assign(age=rows["debt"], debt=rows["age"])


def cut(rows, size):
    return rows.assign(city=rows["city"].str[:size])


def one(rows, model=MODEL):
    return model.predict_proba(rows)[:, 1]


FAULTS = {
    "columns in another order": (lambda rows: one(exchanged(rows)), "feature-order"),
    "rows in another order": (lambda rows: one(rows)[::-1], "row-order"),
    "answers one row late": (lambda rows: np.roll(one(rows), 1), "row-order"),
    "rows of a batch mixed": (
        lambda rows: one(rows.assign(debt=rows["debt"] - rows["debt"].mean() + 40)),
        "batch-dependence",
    ),
    "missing values filled in": (lambda rows: one(rows.fillna({"income": 0.0})), "missing-value-handling"),
    "a default in the place of a column": (lambda rows: one(rows.assign(age=42.0)), "preprocessing-differs"),
    "text cut": (lambda rows: one(cut(rows, 4)), "preprocessing-differs"),
    "text in lower case": (
        lambda rows: one(rows.assign(city=rows["city"].str.lower())),
        "preprocessing-differs",
    ),
    "whole numbers": (lambda rows: one(rows.assign(debt=np.trunc(rows["debt"]))), "preprocessing-differs"),
    "answers rounded": (lambda rows: np.round(one(rows), 2), "output-kind"),
    "the other class": (lambda rows: 1 - one(rows), "output-kind"),
    "another version": (lambda rows: one(rows, OLD), "stale-weights"),
}


@pytest.fixture(scope="module")
def service():
    """A server on the loopback interface; the path says which fault it has."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["dataframe_split"]
            rows = pd.DataFrame(told["data"], columns=told["columns"]).astype({"income": float})
            fault, _ = list(FAULTS.values())[int(self.path.split("/")[1])]
            content = json.dumps({"predictions": np.asarray(fault(rows)).tolist()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def reference(rows):
    filled = rows.assign(income=rows["income"].fillna(5.0))
    return {"output": one(filled)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_service_is_found_and_named(service, name, tmp_path):
    _, cause = FAULTS[name]
    options, ours, rows = {}, reference, ROWS
    if cause == "missing-value-handling":
        rows = ROWS.assign(income=ROWS["income"].where(np.arange(60) % 7 > 0))
    if cause == "stale-weights":
        (tmp_path / "old.py").write_text(
            "import joblib, os\nmodel = joblib.load(os.path.join(os.path.dirname(__file__), 'old.joblib'))\n\n"
            "def old(rows):\n    return {'output': model.predict_proba(rows)[:, 1]}\n"
        )
        joblib.dump(OLD, tmp_path / "old.joblib")
        options = {"previous": f"{tmp_path}/old.py:old"}
    address = f"{service}/{list(FAULTS).index(name)}/invocations"
    sizes = None if cause == "batch-dependence" else ()
    report = likewise.check(ours, Elsewhere(address, options), rows, edge="off", batch_sizes=sizes, explain_budget=120)
    assert report.outcome == "FAIL"
    assert report.diagnoses, "no cause"
    assert report.diagnoses[0].cause == cause, report.diagnoses[0].evidence
