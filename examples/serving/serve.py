"""A small server of the Open Inference Protocol v2, from the standard library, for a scikit-learn model.

python serve.py model.joblib --port 8080
python serve.py model.joblib --port 8080 --fault columns    # a mistake that services make
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import joblib
import numpy as np
import pandas as pd

FAULTS = ("none", "columns", "mixed", "digits", "null")


class Service:
    """A model with the names and types of its columns, and what goes wrong around it."""

    def __init__(self, path: str, fault: str) -> None:
        self.model, self.fault = joblib.load(path), fault
        self.columns = {str(name): "FP64" for name in self.model.feature_names_in_}

    def about(self) -> dict[str, Any]:
        inputs = [{"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in self.columns.items()]
        classes = len(self.model.classes_)
        outputs = [
            {"name": "label", "datatype": "INT64", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP64", "shape": [-1, classes]},
        ]
        return {"name": "churn", "versions": ["1"], "platform": "scikit-learn", "inputs": inputs, "outputs": outputs}

    def infer(self, request: dict[str, Any]) -> dict[str, Any]:
        given = {tensor["name"]: tensor["data"] for tensor in request["inputs"]}
        rows = pd.DataFrame({name: pd.Series(given[name], dtype=float) for name in self.columns})
        if self.fault == "columns":  # sorted by name somewhere on the way, and taken by place
            rows = pd.DataFrame(rows[sorted(rows)].to_numpy(), columns=list(rows))
        if self.fault == "null":  # what is missing is filled with zeros
            rows = rows.fillna(0.0)
        probabilities = self.model.predict_proba(rows)
        label = self.model.predict(rows)
        if self.fault == "mixed" and len(rows) > 1:  # answers of a batch in another order
            probabilities, label = probabilities[::-1], label[::-1]
        if self.fault == "digits":
            probabilities = np.round(probabilities, 2)
        tensors = {"label": (label, "INT64"), "probabilities": (probabilities, "FP64")}
        outputs = [
            {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, (array, kind) in tensors.items()
        ]
        return {"model_name": "churn", "model_version": "1", "outputs": outputs}


def server_of(service: Service, port: int) -> ThreadingHTTPServer:
    """The server on the loopback interface; port 0 takes any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/v2": {"name": "serve.py", "version": "1", "extensions": []}, "/v2/models/churn": service.about()}
            found = known.get(self.path)
            self.reply(404 if found is None else 200, found or {"error": "not found"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                self.reply(200, service.infer(json.loads(body)))
            except (KeyError, TypeError, ValueError) as error:
                self.reply(400, {"error": f"{type(error).__name__}: {error}"})

        def reply(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *words: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    chosen = parser.parse_args()
    with server_of(Service(chosen.model, chosen.fault), chosen.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/v2/models/churn", flush=True)
        server.serve_forever()
