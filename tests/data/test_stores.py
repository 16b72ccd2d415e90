"""Tables in an object store: pyarrow's own S3 client against a small server on this machine."""

from __future__ import annotations

import io
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import pytest

from likewise.data import stores
from likewise.errors import DataError, LikewiseError, UsageError
from likewise.registry import open_source
from likewise.tasks.harmless import require_harmless
from likewise.tasks.settings import settings_from
from planting import DOUBLE, command, identity


class Store(BaseHTTPRequestHandler):
    """As much of S3 as reading takes: objects, parts of them, and lists."""

    objects: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        asked = urlsplit(self.path)
        if "list-type" in parse_qs(asked.query):
            self._list(parse_qs(asked.query).get("prefix", [""])[0])
        else:
            self._answer(body=True)

    def _answer(self, *, body):
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        if key not in self.objects:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, total = self.objects[key], len(self.objects[key])
        given = self.headers.get("Range")
        first, last = (int(place) for place in given.removeprefix("bytes=").split("-")) if given else (0, total - 1)
        content = content[first : last + 1]
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{total}")
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _list(self, prefix):
        found = [(key, content) for key, content in sorted(self.objects.items()) if key.startswith(prefix)]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><ETag>1</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in found
        )
        told = f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
        text = f"<ListBucketResult>{told}<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def parquet(*values):
    sink = io.BytesIO()
    pd.DataFrame({"x": values}).to_parquet(sink)
    return sink.getvalue()


@pytest.fixture(scope="module")
def address():
    """Where the rows are, `{}` for their name."""
    Store.objects = {
        "rows/country=NL/a.parquet": parquet(1.0, 2.0),
        "rows/country=BE/b.parquet": parquet(3.0),
        "rows/_SUCCESS": b"",
        "one.parquet": parquet(7.0, 8.0),
        "up/../../owned.parquet": parquet(9.0),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"s3://bucket/{{}}?endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def values(source):
    return [float(x) for batch in source.batches(2) for x in batch.inputs["x"]]


def test_a_file_a_folder_and_a_pattern(address):
    assert values(open_source(address.format("one.parquet"))) == [7.0, 8.0]
    whole = open_source(address.format("rows"))
    assert values(whole) == [3.0, 1.0, 2.0]
    assert [str(c) for batch in whole.batches(9) for c in batch.inputs["country"]] == ["BE", "NL", "NL"]
    assert values(open_source(address.format("rows/country=N*/*.parquet"))) == [1.0, 2.0]
    assert whole.location == "s3://bucket/rows"


def test_what_is_not_there_is_said(address):
    with pytest.raises(LikewiseError, match="nothing at s3://bucket/none"):
        open_source(address.format("none"))


def test_a_name_in_a_store_leads_nowhere_else(address, tmp_path):
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    with pytest.raises(DataError, match="nothing at"):
        stores.copy(address.format("up"), str(inside))
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "c"]


def test_a_command_reads_from_a_store_and_keeps_its_walls(address, tmp_path):
    (tmp_path / "m.onnx").write_bytes(identity(DOUBLE))
    words = ["--edge", "off", "--batch-sizes", "none", "--no-explain", "--allow-same", "--where", "country = 'NL'"]
    words += ["--drop", "country"]
    ran = command("check", "m.onnx", "m.onnx", "--data", address.format("rows"), *words, folder=tmp_path, timeout=300)
    ran.expect(0, "2 rows agree", "s3://bucket/rows where country = 'NL'")
    assert sys.platform != "linux" or "no network" in ran.report["provenance"]["run"]["confinement"]
    missing = command("check", "m.onnx", "m.onnx", "--data", address.format("none"), folder=tmp_path, timeout=300)
    missing.expect(3, "nothing at s3://bucket/none")


def test_a_configuration_reads_from_no_store_unless_it_is_trusted():
    gate = settings_from({"reference": "a.onnx", "candidate": "b.onnx", "data": "s3://bucket/rows"}, where="here")
    with pytest.raises(UsageError, match="object store"):
        require_harmless({"g": gate}, trusted=False)


@pytest.mark.parametrize(
    "address",
    [
        *("s3://key:secret@bucket/rows", "s3://key@bucket/rows", "abfss://:word@account.dfs.core.windows.net/rows"),
        *("s3://bucket/rows?access_key=a", "abfs://account.dfs.core.windows.net/rows?sas_token=b"),
    ],
)
def test_an_address_holds_no_secrets(address):
    gate = settings_from({"reference": "a.onnx", "candidate": "b.onnx", "data": address}, where="here")
    with pytest.raises(UsageError, match="holds a key or a password"):
        gate.policy()
    container = "abfss://container@account.dfs.core.windows.net/rows"
    settings_from({"reference": "a.onnx", "candidate": "b.onnx", "data": container}, where="here").policy()


def test_arrays_in_memory_have_no_address():
    assert not stores.is_stored({"x": np.zeros(1)})
    assert not stores.is_stored("rows.parquet")
