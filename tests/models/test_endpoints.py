"""Served models: asked like any other, in every protocol, and whatever a server can do wrong ends as it should."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import threading
import time
import zlib
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import likewise
from likewise.contracts.models import Elsewhere
from likewise.errors import UsageError
from likewise.models import confinement
from likewise.models.endpoints import protocols, transport
from likewise.models.endpoints.open import _joined
from likewise.models.endpoints.transport import EndpointError
from likewise.registry import describe_model, open_model
from likewise.report import render
from likewise.tasks.harmless import require_harmless
from likewise.tasks.settings import load_gates
from planting import command

QUICK = {"batch_sizes": (), "edge": "off", "explain": False}
FAST = ("--quiet", "--batch-sizes", "none", "--edge", "off", "--no-explain")
ROWS = np.random.default_rng(0).normal(size=(60, 3))
OIP = "/v2/models/sum"
ABOUT = {
    "name": "sum",
    "versions": ["7"],
    "platform": "numpy",
    "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
    "outputs": [{"name": "value", "datatype": "FP64", "shape": [-1]}],
}


def model(rows):
    return {"value": np.asarray(rows).sum(axis=1)}


class Server:
    """A server on the loopback interface that answers by a function of the path, the headers and the body."""

    def __init__(self, answer, certificate=None):
        self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):  # noqa: N805 - the server is `self` here
                length = int(handler.headers.get("Content-Length", 0))
                body = handler.rfile.read(length)
                self.asked.append((handler.path, dict(handler.headers), body))
                found = answer(handler.path, handler.headers, body)
                if found is None:
                    handler.close_connection = True
                    return
                status, headers, content = found
                handler.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(content)

            do_POST = do_GET  # noqa: N815

            def log_message(handler, *words):  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    started = []

    def start(answer, certificate=None):
        started.append(Server(answer, certificate))
        return started[-1]

    yield start
    for server in started:
        server.server.shutdown()
        server.server.server_close()


def said(document, status=200, **headers):
    return status, headers, document if isinstance(document, bytes) else json.dumps(document).encode()


def oip(computed=model, *, binary=False, spoil=lambda document: document):
    """An honest server of the Open Inference Protocol, but for what is spoilt."""

    def answer(path, headers, body):
        if path == "/v2":
            return said({"name": "tiny", "version": "1", "extensions": ["binary_tensor_data"] if binary else []})
        if path == OIP:
            return said(ABOUT)
        size = int(headers.get("Inference-Header-Content-Length", len(body)))
        document = json.loads(body[:size])
        (tensor,) = document["inputs"]
        assert tensor["datatype"] == "FP64"
        flat = np.frombuffer(body[size:]) if binary else np.array(tensor["data"], float)
        value = np.asarray(computed(flat.reshape(tensor["shape"]))["value"])
        told = {"name": "value", "datatype": "FP64", "shape": list(value.shape)}
        if binary:
            told["parameters"] = {"binary_data_size": value.nbytes}
            head = json.dumps({"outputs": [told]}).encode()
            return said(head + value.tobytes(), **{"Inference-Header-Content-Length": str(len(head))})
        found = spoil({"outputs": [{**told, "data": value.tolist()}]})
        return found if isinstance(found, tuple) or found is None else said(found)

    return answer


@pytest.mark.parametrize("binary", [False, True])
def test_a_served_model_gives_the_same_digits(serve, binary):
    server = serve(oip(binary=binary))
    far = Elsewhere(server.url + OIP, {"rows": 7, "concurrency": 3})
    report = likewise.check(model, far, {"x": ROWS}, preset="exact", edge="off", explain=False)
    assert report.passed, report.headline
    details = report.origin.candidate.details
    assert details["server"] == "tiny 1"
    assert details["versions"] == ["7"]
    assert details["binary"] is binary
    assert (details["rows"], details["concurrency"]) == (7, 3)


@pytest.mark.parametrize(
    "fault",
    [
        lambda rows: {"value": rows[::-1].sum(axis=1)},
        lambda rows: {"value": rows.sum(axis=1) - rows.mean()},
        lambda rows: {"value": (rows * [3, 1, 1]).sum(axis=1)},
        lambda rows: {"value": np.round(rows.sum(axis=1), 2)},
        lambda rows: {"value": np.where(rows.sum(axis=1) > 2, np.nan, rows.sum(axis=1))},
    ],
    ids=["order of rows", "rows mixed", "columns", "digits cut", "NaN"],
)
def test_a_service_at_fault_fails(serve, fault):
    server = serve(oip(fault))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, explain=False, edge="off")
    assert report.outcome == "FAIL", report.headline


def test_a_service_that_mixes_rows_only_in_company_fails_by_other_batches(serve):
    server = serve(oip(lambda rows: {"value": rows.sum(axis=1) + (len(rows) > 1 and len(rows) < 60) * 0.5}))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, explain=False, edge="off")
    assert report.outcome == "FAIL"


def broken(**changed):
    return lambda document: {"outputs": [{**document["outputs"][0], **changed}]}


BROKEN = {
    "no JSON": (lambda document: said(b"<html>"), "not whole JSON"),
    "half a document": (lambda document: said(json.dumps(document).encode()[:-20]), "not whole JSON"),
    "ends early": (lambda document: (200, {"Content-Length": "9999"}, b"{}"), "ended early"),
    "nothing at all": (lambda document: None, "RemoteDisconnected"),
    "bad request": (lambda document: said({"error": "no column x"}, 400), 'status 400: {"error": "no column x"}'),
    "not there": (lambda document: said({}, 404), "status 404"),
    "too large": (lambda document: said({}, 413), "option rows=32"),
    "moved": (lambda document: said({}, 302, Location="http://127.0.0.1:1/"), "status 302"),
    "no outputs": (lambda document: {"outputs": []}, "no outputs"),
    "a list": (lambda document: [1, 2], "no outputs"),
    "another type": (broken(datatype="COMPLEX"), "'COMPLEX'"),
    "text for numbers": (broken(data=["a"] * 60), "holds what FP64 does not"),
    "fractions for whole numbers": (broken(datatype="INT64"), "holds what INT64 does not"),
    "values that do not fit the shape": (broken(shape=[61]), "of shape [61] has 32 values"),
    "no data": (lambda document: {"outputs": [{"name": "value", "shape": [60], "datatype": "FP64"}]}, "not a tensor"),
    "objects": (broken(data=[{}] * 60), "neither number nor text"),
    "rows of several lengths": (broken(data=[[1.0], [1.0, 2.0]]), "rows of 1 and of 2 entries"),
    "numbers that no float holds": (broken(datatype="INT8", data=[300] * 60), "holds what INT8 does not"),
    "bytes that are no text": (lambda document: said(b"\xff\xfe{}"), "not whole JSON"),
    "an error of its own": (lambda document: said({"error": "out of memory"}, 500), "out of memory"),
    "another model": (lambda document: {**document, "model_name": "other"}, "comes from model_name 'other'"),
    "nothing inside": (lambda document: said(b""), "not whole JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_inconclusive(serve, name):
    spoil, told = BROKEN[name]
    server = serve(oip(spoil=spoil))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK)
    assert report.outcome == "INCONCLUSIVE", report.headline
    (incident,) = report.comparison.incidents
    assert incident.code == "endpoint"
    assert told in f"{incident.message} {incident.remedy}"
    # The request that failed can be sent again by hand.
    kept = Path(incident.message.partition("the request is kept in ")[2])
    assert kept.read_bytes() in [body for _, _, body in server.asked if body]
    assert kept.stat().st_mode & 0o077 == 0


def test_a_model_that_is_exchanged_while_it_is_asked_is_inconclusive(serve):
    """Two versions behind one address: what is compared is not one model."""
    versions = iter(["1", "1", *"2" * 100])
    server = serve(oip(spoil=lambda document: {**document, "model_name": "sum", "model_version": next(versions)}))
    report = likewise.check(model, Elsewhere(server.url + OIP, {"rows": 20}), {"x": ROWS}, **QUICK)
    assert report.outcome == "INCONCLUSIVE"
    assert "comes from model_version '2', and not from '1'" in report.headline


def test_a_version_that_was_asked_for_is_that_which_answers(serve):
    def served(version):
        honest = oip(spoil=lambda document: {**document, "model_version": version})
        return lambda path, *more: honest(path.replace("/versions/3", ""), *more)

    for version, outcome in (("3", "PASS"), ("4", "INCONCLUSIVE")):
        url = f"{serve(served(version)).url}{OIP}/versions/3"
        assert likewise.check(model, url, {"x": ROWS}, **QUICK).outcome == outcome


def test_rows_too_many_here_do_not_make_up_for_rows_too_few_there(serve):
    sizes = iter([6, 5, 7, *[6] * 100])
    server = serve(oip(lambda rows: {"value": np.resize(rows.sum(axis=1), next(sizes))}))
    report = likewise.check(model, Elsewhere(server.url + OIP, {"rows": 6}), {"x": ROWS}, **QUICK)
    assert report.outcome == "FAIL"
    assert "a request of 6 rows was answered by 5" in report.headline


def test_a_server_that_does_not_answer(serve):
    slow = serve(lambda *_: time.sleep(3))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    for url, told in ((slow.url, "no answer within 0.2 seconds"), (nobody, "no connection to 127.0.0.1")):
        report = likewise.check(model, Elsewhere(url + OIP, {"timeout": 0.2}), {"x": ROWS}, **QUICK)
        assert report.outcome == "INCONCLUSIVE"
        assert told in report.comparison.incidents[0].message


def test_only_what_was_not_begun_is_sent_again(serve):
    refused = {"/busy": 2, "/broken": 2}

    def answer(path, headers, body):
        refused[path] -= 1
        busy = said({}, 503 if path == "/busy" else 500, **{"Retry-After": "0"})
        return busy if refused[path] >= 0 else said({"done": True})

    server = serve(answer)
    found = {path: transport.fetch(transport.Request(server.url + path, b"{}")).status for path in refused}
    assert found == {"/busy": 200, "/broken": 500}
    assert [path for path, *_ in server.asked] == ["/busy", "/busy", "/busy", "/broken"]


def table():
    rows = pd.DataFrame({"size": [1.5, np.nan, 3.0, 4.25], "colour": ["red", "blue", None, "red"]})
    return rows.assign(number=np.array([1, 2**60 + 1, 3, 4]))


def score(rows):
    return rows["size"].to_numpy() * 2 + rows["number"].to_numpy() % 7


@pytest.mark.parametrize("form", ["split", "records"])
def test_mlflow_gets_a_table_and_what_json_loses_is_told(serve, form):
    def answer(path, headers, body):
        document = json.loads(body)
        if form == "split":
            assert document["dataframe_split"]["columns"] == ["size", "colour", "number"]
            rows = pd.DataFrame(document["dataframe_split"]["data"], columns=document["dataframe_split"]["columns"])
        else:
            rows = pd.DataFrame(document["dataframe_records"])
        assert rows["colour"].isna().tolist() == [False, False, True, False]
        return said({"predictions": [None if value != value else value for value in score(rows.infer_objects())]})

    far = Elsewhere(serve(answer).url + "/invocations", {"form": form})
    report = likewise.check(score, far, table(), **QUICK)
    assert report.passed, report.headline
    told = " ".join(report.comparison.warnings)
    assert "1 value went as null: JSON has no NaN" in told
    assert "1 whole number beyond 2^53" in told
    assert "1 answer came as null" in told


def test_instances_and_templates_read_fields(serve, tmp_path):
    def answer(path, headers, body):
        document = json.loads(body)
        if path == "/predict":
            assert document["wanted"] == "score"
            return said({"result": [{"score": entry["s"] * 2, "label": entry["c"]} for entry in document["entries"]]})
        return said(
            {"predictions": [{"score": row["size"] * 2, "label": row["colour"]} for row in document["instances"]]}
        )

    def here(rows):
        return {"score": rows["size"].to_numpy() * 2, "label": rows["colour"].to_numpy().astype(object)}

    rows = pd.DataFrame({"size": np.linspace(0, 1, 30), "colour": ["red", "blue", "grün"] * 10})
    server = serve(answer)
    assert likewise.check(here, server.url + "/v1/models/sum", rows, **QUICK).passed
    template = tmp_path / "request.json"
    template.write_text(
        "{# answer: score = $.result[*].score #}{# answer: label = $['result'][*].label #}\n"
        '{"wanted": "score", "entries": [{% for row in rows %}'
        '{"s": {{ row.size | tojson }}, "c": {{ row.colour | tojson }}}'
        "{{ ', ' if not loop.last }}{% endfor %}]}"
    )
    assert likewise.check(here, Elsewhere(server.url + "/predict", {"template": template}), rows, **QUICK).passed
    template.write_text("{{ rows[0].nothing }}")
    report = likewise.check(here, Elsewhere(server.url + "/predict", {"template": template}), rows, **QUICK)
    assert "cannot be filled" in report.headline
    with pytest.raises(UsageError, match="how the server is asked"):
        likewise.check(here, server.url + "/predict", rows, **QUICK)


def test_embeddings_come_back_by_their_place(serve):
    def embed(text):
        return [float(len(text)), float(text.count("a"))]

    def answer(path, headers, body):
        document = json.loads(body)
        assert document["model"] == "small"
        found = [{"index": place, "embedding": embed(text)} for place, text in enumerate(document["input"])]
        return said({"data": found[::-1] if path.startswith("/v1") else found[:-1] + found[:1]})

    def here(rows):
        return {"embedding": np.array([embed(text) for text in rows["text"]])}

    rows = pd.DataFrame({"text": ["a", "banana", "grün", "", "an aardvark"]})
    server = serve(answer)
    report = likewise.check(here, Elsewhere(server.url + "/v1/embeddings", {"name": "small", "rows": 3}), rows, **QUICK)
    assert report.passed, report.headline
    report = likewise.check(here, Elsewhere(server.url + "/v2/embeddings", {"name": "small"}), rows, **QUICK)
    assert "without a place of their own" in report.headline
    two = likewise.check(here, Elsewhere(server.url + "/v1/embeddings", {}), rows.assign(b="x"), **QUICK)
    assert "of one column, and there are 2" in two.headline


def test_answers_that_were_cut_are_told():
    tally = protocols.Tally()
    protocols.parsed(json.dumps([0.1234] * 30).encode(), tally)
    assert tally.told() == ["its answers are written with at most 4 digits: the service cuts or rounds them"]


def test_a_token_comes_from_the_environment_and_is_in_no_report(serve, monkeypatch):
    server = serve(oip())
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    far = Elsewhere(server.url + OIP, {"token": "MY_TOKEN", "headers": "X-Key:MY_TOKEN"})
    report = likewise.check(model, far, {"x": ROWS}, **QUICK)
    assert report.passed
    assert server.asked[-1][1]["Authorization"] == "Bearer s3cret"
    assert server.asked[-1][1]["X-Key"] == "s3cret"
    kept = transport.keep(transport.Request(server.url + OIP, b"{}", {}, {"X-Key": "MY_TOKEN"}))
    assert Path(kept).read_bytes() == b"{}"
    for number in range(2 * transport.MOST_KEPT):
        transport.keep(transport.Request(server.url, b"{%d}" % number))
    assert len(list(Path(kept).parent.iterdir())) == transport.MOST_KEPT
    assert "s3cret" not in render(report, "json")
    monkeypatch.delenv("MY_TOKEN")
    assert "the environment has no MY_TOKEN" in likewise.check(model, far, {"x": ROWS}, **QUICK).headline
    for address in ("http://me:s3cret@127.0.0.1:1/v2/models/x", "http://127.0.0.1:1/v2/models/x?api_key=s3cret"):
        with pytest.raises(UsageError, match="holds a secret"):
            likewise.check(model, address, {"x": ROWS}, **QUICK)


@pytest.mark.skipif(confinement._abi() < 6, reason="this system has no Landlock of version 6 or later")
def test_from_behind_walls_a_courier_asks_and_models_still_cannot(serve, tmp_path):
    server = serve(oip())
    (tmp_path / "own.py").write_text(
        "import socket\n\ndef model(rows):\n    try:\n        socket.socket()\n    except OSError:\n"
        "        return {'value': rows.sum(axis=1)}\n    raise RuntimeError('there is a network')\n"
    )
    np.savez(tmp_path / "rows.npz", x=ROWS)
    models = ("own.py:model", server.url + OIP, "--data", "rows.npz", "--candidate-option", "concurrency=2")
    done = command("check", *models, *FAST, folder=tmp_path).expect(0)
    broken = serve(oip(spoil=lambda document: said(b"half")))
    failed = command("check", models[0], broken.url + OIP, *models[2:], *FAST, folder=tmp_path)
    failed.expect(3, "the request is kept in")
    assert list((tmp_path / "cache" / "requests").iterdir())
    assert done.report["provenance"]["run"]["confinement"].endswith("no network, no exec")


def test_a_configuration_that_names_a_server_needs_trust(tmp_path):
    (tmp_path / "likewise.toml").write_text(
        '[gates.service]\nreference = "model.onnx"\ncandidate = "http://127.0.0.1:1/invocations"\ndata = "rows.csv"\n'
    )
    with pytest.raises(UsageError, match="sends rows to a server"):
        require_harmless(load_gates(tmp_path / "likewise.toml"), trusted=True)


def test_a_server_that_answers_byte_by_byte_is_kept_to_its_time():
    """Ten bytes a second of a thousand: every one of them comes in time."""
    done = threading.Event()

    def drip(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not done.wait(0.1):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        report = likewise.check(model, Elsewhere(url + OIP, {"timeout": 0.5}), {"x": ROWS}, **QUICK)
        done.set()
        thread.join()
    assert "no answer within 0.5 seconds" in report.comparison.incidents[0].message


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WITHOUT_END = {
    "a status": (b"", b"H"),
    "a header": (HEAD + b"X: ", b"y"),
    "that it goes on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the length of a piece": (CHUNKED, b"0"),
    "what is said of a piece": (CHUNKED + b"2;", b"x"),
    "headers behind the last piece": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: y\r\n"),
}


def asked_once(send):
    """What is made of a server that does this to its first caller."""

    def serve(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            send(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        found = transport.fetch(transport.Request(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout=0.5))
        thread.join(5)
    return found


@pytest.mark.parametrize("what", WITHOUT_END)
def test_whatever_a_server_sends_without_an_end_its_time_has_one(what):
    """A byte now and then is not silence: no wait for the next one was ever too long."""
    first, again = WITHOUT_END[what]

    def send(connection):
        connection.sendall(first)
        for _ in range(200):
            connection.sendall(again)
            time.sleep(0.02)

    began = time.monotonic()
    assert asked_once(send).failed == "no answer within 0.5 seconds"
    assert time.monotonic() - began < 3.5


PACKED = gzip.compress(b"{}")
TWO_READINGS = {
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 20\r\n\r\n{}", "in two ways"),
    "pieces and a length": (
        CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "in two ways",
    ),
    "a length with a sign": (HEAD + b"Content-Length: +2\r\n\r\n{}", "in none that is known"),
    "pieces that are packed": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n{}", "in none that is known"),
    "packed and not": (HEAD + b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n" + PACKED, "in two ways"),
    "two lengths of JSON": (
        HEAD + b"Inference-Header-Content-Length: 2\r\nInference-Header-Content-Length: 4\r\n\r\n{}{}",
        "in two ways",
    ),
    "packed twice in a row": (
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + PACKED + gzip.compress(b"[]"),
        "bytes stand behind what is packed",
    ),
}


@pytest.mark.parametrize("what", TWO_READINGS)
def test_where_an_answer_ends_is_said_once(what):
    content, told = TWO_READINGS[what]
    assert told in asked_once(lambda connection: connection.sendall(content)).failed


def test_a_length_that_is_said_again_is_one_length():
    found = asked_once(lambda connection: connection.sendall(HEAD + b"Content-Length: 2\r\n" * 2 + b"\r\n{}"))
    assert (found.status, found.body, found.failed) == (200, b"{}", "")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_an_answer_that_is_compressed_unasked_is_read(serve, coding):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[coding]
    packed = serve(
        oip(spoil=lambda found: said(pack(json.dumps(found).encode()), **{"Content-Encoding": coding.upper()}))
    )
    assert likewise.check(model, packed.url + OIP, {"x": ROWS}, preset="exact", **QUICK).passed


@pytest.mark.parametrize(
    ("coding", "body", "told"),
    [
        ("gzip", gzip.compress(b"{}" * 500)[:-9], "the answer ended early"),
        ("gzip", b"{}", "the answer is no gzip"),
        ("br", b"{}", "encoded as br"),
        ("gzip", gzip.compress(bytes(5_000)), "an answer of more than"),
    ],
    ids=["half", "none", "unknown", "without end"],
)
def test_what_is_not_compressed_as_it_says_is_no_answer(serve, monkeypatch, coding, body, told):
    monkeypatch.setattr(transport, "MOST_BYTES", 4_000)
    server = serve(lambda *_: said(body, **{"Content-Encoding": coding}))
    assert told in transport.fetch(transport.Request(server.url)).failed


def test_answers_in_pieces_are_put_together_and_half_of_them_is_none():
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"
    found = []
    for sent in (whole, whole[:-5], whole[:-9]):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def answer(listening=listening, sent=sent):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(sent)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            found.append(transport.fetch(transport.Request(f"http://127.0.0.1:{listening.getsockname()[1]}/")))
            thread.join()
    assert (found[0].status, found[0].body) == (200, b"[1,2]")
    assert all("ended early" in half.failed for half in found[1:])


def test_a_server_is_given_the_time_it_asks_for(serve, monkeypatch):
    """As many seconds as it says, or until the moment it names, and never longer than a request may take."""
    waited = []
    monkeypatch.setattr(transport.time, "sleep", waited.append)
    for asked in ("7", formatdate(time.time() + 40, usegmt=True), "900", "soon"):
        server = serve(lambda *_, asked=asked: said({}, 429, **{"Retry-After": asked}))
        assert transport.fetch(transport.Request(server.url, b"{}")).status == 429
        assert len(server.asked) == transport.ATTEMPTS
    assert waited[:2] == [7, 7]
    assert all(30 < pause <= 40 for pause in waited[2:4])
    assert waited[4:6] == [60, 60]
    assert all(pause < 1 for pause in waited[6:])


def test_a_moment_that_no_calendar_has_is_not_waited_for():
    assert transport._pause("-1 Dec 99999999999999999999 00:00 -0000 +9999 99:99:99", 0.1) == 0.1


def test_a_certificate_of_your_own_is_known_if_you_name_it(serve, monkeypatch):
    certificate = Path(__file__).with_name("loopback.pem")
    server = serve(oip(), certificate)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    unknown = likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK)
    assert unknown.outcome == "INCONCLUSIVE"
    assert "self-signed certificate" in unknown.headline
    assert "SSL_CERT_FILE" in unknown.comparison.incidents[0].remedy
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert likewise.check(model, server.url + OIP, {"x": ROWS}, preset="exact", **QUICK).passed


def test_a_server_that_goes_away_in_the_middle_loses_no_report(serve, tmp_path):
    """Rows that were compared before are in the report, and the failing ones of them too."""
    asked = iter(range(1_000))
    server = serve(oip(spoil=lambda document: document if next(asked) < 300 else None))
    report = likewise.check(
        model, Elsewhere(server.url + OIP, {"rows": 64}), {"x": np.resize(ROWS, (40_000, 3))}, **QUICK
    )
    assert report.outcome == "INCONCLUSIVE"
    assert 0 < report.comparison.rows < 40_000
    assert "RemoteDisconnected" in report.headline


def test_outputs_that_a_server_declares_are_asked_for(serve):
    """MLServer gives labels to whoever asks for nothing, whatever it declares."""
    server = serve(oip())
    assert likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK).passed
    assert all(json.loads(body)["outputs"] == [{"name": "value"}] for _, _, body in server.asked if body)


@pytest.mark.parametrize(
    "about", [{"inputs": [{}]}, {"inputs": 3}, {"outputs": ["y"]}, {"inputs": [{"name": "x", "shape": {}}]}]
)
def test_what_a_server_says_of_its_model_may_be_anything(serve, about):
    server = serve(lambda path, *_: said({**ABOUT, **about} if path == OIP else {}))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK)
    assert report.outcome == "INCONCLUSIVE"
    assert report.comparison.incidents[0].code == "endpoint", report.headline


FOUR = np.arange(4, dtype="<f4").tobytes()


def answering(size, count=2, **more):
    return {"name": "y", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": size}, **more}


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ([answering(8, data=[9, 9]), answering(8, name="z")], "not a tensor"),
        ([answering(-8)], "not a tensor"),
        ([answering(80)], "not a tensor"),
        ([answering(8.9)], "not a tensor"),
        ([answering(16, count=4.9)], "not a tensor"),
        ([answering(8)], "8 bytes of nothing"),
    ],
)
def test_an_answer_has_one_reading(outputs, told):
    """Numbers both as bytes and as text, sizes that are none, bytes that belong to nothing."""
    head = json.dumps({"outputs": outputs}).encode()
    headers = {protocols.HEADER_LENGTH.lower(): str(len(head))}
    with pytest.raises(transport.EndpointError, match=told):
        protocols.OpenInference().read(head + FOUR, headers, protocols.Tally())
    whole = json.dumps({"outputs": [answering(16, count=4)]}).encode()
    found = protocols.OpenInference().read(
        whole + FOUR, {protocols.HEADER_LENGTH.lower(): str(len(whole))}, protocols.Tally()
    )
    assert found["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "data"),
    [("BYTES", [1, "a"]), ("BYTES", [{"a": 1}, "a"]), ("BYTES", "ab"), ("BYTES", {"a": 1, "b": 2}), ("FP32", "12")],
)
def test_text_of_an_answer_is_text(kind, data):
    """A number, an object or the names of one are no labels, whatever they look like as text."""
    tensor = {"name": "y", "datatype": kind, "shape": [2], "data": data}
    with pytest.raises(EndpointError, match=r"no text|no list"):
        protocols.OpenInference().outputs({"outputs": [tensor]}, b"", protocols.Tally())


def test_what_stands_beside_text_in_an_answer_stays_what_it_is():
    found = protocols.outputs_of(["a", 1, None, True], protocols.Tally())
    assert found["output"].tolist() == ["a", 1, None, True]
    tensor = {"name": "y", "datatype": "BYTES", "shape": [2], "data": ["a", None]}
    named = protocols.OpenInference().outputs({"outputs": [tensor]}, b"", protocols.Tally())
    assert named["y"].tolist() == ["a", None]
    with pytest.raises(EndpointError, match="neither number nor text"):
        protocols.outputs_of(["a", ["b"]], protocols.Tally())


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (protocols.OpenInference(), {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}]}),
        (protocols.Instances(), {"predictions": [1.0]}),
        (protocols.Mlflow(), {"predictions": [1.0]}),
        (protocols.Embeddings(), {"data": [{"embedding": [1.0]}]}),
    ],
)
def test_values_beside_an_error_are_no_answer(form, answer):
    form.read(json.dumps({**answer, "error": None}).encode(), {}, protocols.Tally())
    with pytest.raises(EndpointError, match="an error beside its values: 'out of memory'"):
        form.read(json.dumps({**answer, "error": "out of memory"}).encode(), {}, protocols.Tally())


def test_an_output_may_be_called_error():
    assert protocols.Instances().read(b'{"error": [0.5]}', {}, protocols.Tally())["error"].tolist() == [0.5]


@pytest.mark.parametrize("length", ["9" * 5000, "400", "-1", "+4", "\u00b2", ""])
def test_how_much_of_an_answer_is_json_is_a_number_of_its_bytes(length):
    with pytest.raises(EndpointError, match="of them are JSON"):
        protocols.OpenInference().read(b"{}", {protocols.HEADER_LENGTH.lower(): length}, protocols.Tally())


def test_an_answer_names_nothing_twice():
    with pytest.raises(transport.EndpointError, match="names something twice"):
        protocols.Instances().read(b'{"predictions": [[1]], "predictions": [[2]]}', {}, protocols.Tally())


LARGE = 2**53


@pytest.mark.parametrize("values", [[LARGE + 1, float(LARGE)], [LARGE + 1, None], [2**63 + 1, -1], [10**400, 0.5]])
def test_whole_numbers_that_no_double_holds_are_not_rounded_beside_fractions(values):
    body = json.dumps({"predictions": values}).encode()
    with pytest.raises(EndpointError, match="beyond what a double holds"):
        protocols.Instances().read(body, {}, protocols.Tally())
    tensor = {"name": "y", "datatype": "INT64", "shape": [2], "data": values}
    with pytest.raises(EndpointError):
        protocols.OpenInference(binary=False).outputs({"outputs": [tensor]}, b"", protocols.Tally())


def test_requests_that_are_answered_in_other_types_are_not_rounded_either():
    whole, broken = {"y": np.array([LARGE + 1])}, {"y": np.array([0.5])}
    with pytest.raises(EndpointError, match="beyond what a double holds"):
        _joined([whole, broken])
    assert _joined([{"y": np.array([LARGE])}, broken])["y"].tolist() == [float(LARGE), 0.5]


def test_doubles_that_are_written_as_whole_numbers_are_doubles():
    tensor = {"name": "y", "datatype": "FP64", "shape": [2], "data": [12345678901234567000001, 0.5]}
    found = protocols.OpenInference(binary=False).outputs({"outputs": [tensor]}, b"", protocols.Tally())
    assert found["y"].tolist() == [1.2345678901234567e22, 0.5]
    found = protocols.Instances().read(json.dumps({"predictions": [LARGE + 2, 0.5]}).encode(), {}, protocols.Tally())
    assert found["output"].tolist() == [LARGE + 2, 0.5]


def described(**changed):
    honest = oip()
    return lambda path, *more: said({**ABOUT, **changed}) if path == OIP else honest(path, *more)


def test_an_output_that_a_server_declares_and_does_not_give_is_missed(serve):
    more = [*ABOUT["outputs"], {"name": "second", "datatype": "FP64", "shape": [-1]}]
    server = serve(described(outputs=more))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK)
    assert report.outcome == "INCONCLUSIVE"
    assert "declares 'second', and does not give it" in report.headline


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_what_a_server_declares_twice_has_no_one_reading(serve, part):
    server = serve(described(**{part: ABOUT[part] * 2}))
    report = likewise.check(model, server.url + OIP, {"x": ROWS}, **QUICK)
    assert report.outcome == "INCONCLUSIVE"
    assert "twice" in report.headline


def test_an_answer_is_called_by_one_name():
    with pytest.raises(EndpointError, match="both"):
        protocols.Instances().read(b'{"outputs": [9.0], "predictions": [1.0]}', {}, protocols.Tally())


@pytest.mark.parametrize("address", [" http://{}/x", "\thttp://{}/x", "//{}/x", "ftp://{}/x", "{}/x"])
def test_only_an_address_that_everybody_takes_for_one_is_asked(address):
    """A configuration that nobody trusts named the framework, and had rows and tokens sent where there are no walls."""
    model = describe_model(address.format("127.0.0.1:9"), {"framework": "endpoints", "protocol": "instances"})
    with pytest.raises(UsageError, match="is no address of a server"), open_model(model):
        pass
