"""Requests to a server: sent from here, or from behind walls by a courier that was started outside of them.

The courier moves bytes to one server and back, and reads nothing else: what an answer means is found out by who asked.
Tokens are in the environment, and only whoever sends a request reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from likewise.contracts.values import dataclass
from likewise.errors import ModelError, one_line
from likewise.models import confinement
from likewise.models.environments.make import cache_folder
from likewise.models.environments.wire import receive, send
from likewise.models.remote import Copy, die_with_parent

MOST_BYTES = 1 << 30
"""Bytes of an answer; whoever sends more does not answer the question."""

ATTEMPTS = 3
"""How often a request is sent that the server says it has not begun to handle."""

MOST_KEPT = 20
"""Requests that failed and are kept, the latest ones: they hold rows of somebody's data."""

HEADER_LENGTH = "Inference-Header-Content-Length"
"""How many bytes of an answer are JSON, where numbers stand behind it."""

PIECE = 1 << 16
WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""How zlib is told of a compression."""

CERTIFICATES = (
    "/etc/ssl",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/run/systemd",
)
"""What is read to find a server and to know it."""


class EndpointError(ModelError):
    """A server did not answer, or answered what is no answer."""

    code = "endpoint"


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent: `secrets` has the names of headers and of the environment variables that hold their values."""

    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: a status, or 0 and why there is none. `unheard`: the server was not reached at all."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    failed: str = ""
    unheard: bool = False


def ask(requests: Sequence[Request], *, concurrency: int = 1) -> list[Response]:
    """The answers to all requests, in their order, so many at a time."""
    courier = next((known for known in _COURIERS if all(known.serves(request.url) for request in requests)), None)
    if courier is not None:
        return courier.ask(requests, concurrency)
    if len(requests) == 1 or concurrency <= 1:
        return [fetch(request) for request in requests]
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(fetch, requests))


def keep(request: Request) -> str:
    """Keep the body of a request that failed, as it was sent and without its headers; where, or nothing."""
    courier = next((known for known in _COURIERS if known.serves(request.url)), None)
    return _kept(request) if courier is None else courier.keep(request)


def _kept(request: Request) -> str:
    body, folder = request.body or b"", cache_folder("requests")
    path = folder / f"{hashlib.sha256(body).hexdigest()[:16]}.{'json' if body[-1:] in b'}]' else 'bin'}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(body)
        for old in sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime)[:-MOST_KEPT]:
            old.unlink()
        return str(path)
    return ""


def fetch(request: Request) -> Response:
    """One answer. What the server has not begun to handle (no connection, 429, 503) is sent again; nothing else is."""
    for attempt in range(ATTEMPTS):
        found = _once(request)
        if not (found.unheard or found.status in (429, 503)) or attempt == ATTEMPTS - 1:
            break
        time.sleep(min(_pause(found.headers.get("retry-after", ""), 0.1 * 2**attempt), request.timeout))
    return found


def _pause(said: str, usual: float) -> float:
    """Seconds to wait: as many as the server says, or until the moment that it says."""
    if said.isdecimal():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (OverflowError, TypeError, ValueError):
        return usual


def _once(request: Request) -> Response:
    parts = urlsplit(request.url)
    connection: http.client.HTTPConnection | None = None
    ending: _Ending | None = None
    try:
        headers = {**dict(request.headers), **{name: _secret(held) for name, held in dict(request.secrets).items()}}
        connection = _connection(parts, request.timeout)
        try:
            connection.connect()
        except TimeoutError:
            raise
        except OSError as error:
            return Response(0, {}, b"", f"no connection to {parts.netloc}: {one_line(error)}", unheard=True)
        ending = _Ending(connection.sock, request.timeout)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET" if request.body is None else "POST", path, body=request.body, headers=headers)
        answer = connection.getresponse()
        _require_one_length(answer)
        told = {name.lower(): value for name, value in answer.getheaders()}
        body = _body(answer)
        if ending.came:  # what was cut off then may look like the end of an answer
            raise TimeoutError
        return Response(answer.status, told, _unpacked(body, told.get("content-encoding", "")))
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or (ending is not None and ending.came):
            return Response(0, {}, b"", f"no answer within {request.timeout:g} seconds")
        if isinstance(error, http.client.IncompleteRead):
            return Response(0, {}, b"", f"the answer ended early, after {len(error.partial):,} bytes")
        return Response(0, {}, b"", one_line(error))
    finally:
        if ending is not None:
            ending.cancel()
        if connection is not None:
            connection.close()


class _Ending:
    """The end of the time for an answer, whatever is read then: a server may send headers byte by byte, or say for
    ever that it goes on."""

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        self.came = False
        self._socket = connected
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.came = True
        with contextlib.suppress(OSError, ValueError):
            # The socket itself: what encrypts it would wait for the other side.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def cancel(self) -> None:
        """There is an answer, or none will come."""
        self._timer.cancel()


def _require_one_length(answer: http.client.HTTPResponse) -> None:
    """Readers do not agree on where an answer ends that says so in two ways, nor on how it is packed."""
    lengths, ways, codings, heads = (
        {text.strip().lower() for text in answer.headers.get_all(name, [])}
        for name in ("Content-Length", "Transfer-Encoding", "Content-Encoding", HEADER_LENGTH)
    )
    plain = all(text.isascii() and text.isdecimal() for text in lengths)
    known = ways <= {"chunked"}
    if len(lengths) + len(ways) > 1 or len(codings) > 1 or len(heads) > 1 or not plain or not known:
        raise ValueError("the answer says in two ways how long it is or how it is packed, or in none that is known")


def _connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)


def _body(answer: http.client.HTTPResponse) -> bytes:
    """All of it, as long as it may be."""
    found = bytearray()
    while piece := answer.read1(PIECE):
        found += piece
        if len(found) > MOST_BYTES:
            raise ValueError(f"an answer of more than {MOST_BYTES >> 20} MiB")
    if answer.length:
        raise http.client.IncompleteRead(bytes(found))
    return bytes(found)


def _unpacked(body: bytes, coding: str) -> bytes:
    """A body without the compression that nobody asked for and some servers send; no larger than others."""
    if not body or coding.lower() in ("", "identity"):
        return body
    if coding.lower() not in WINDOWS:
        raise ValueError(f"the answer is encoded as {coding}, which was not asked for")
    reader = zlib.decompressobj(WINDOWS[coding.lower()])
    try:
        found = reader.decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"the answer is no {coding}: {error}") from error
    if reader.unconsumed_tail:
        raise ValueError(f"an answer of more than {MOST_BYTES >> 20} MiB")
    if not reader.eof:
        raise http.client.IncompleteRead(body)
    if reader.unused_data:
        raise ValueError(f"{len(reader.unused_data):,} bytes stand behind what is packed in the answer")
    return found


def _secret(name: str) -> str:
    prefix, _, variable = name.rpartition(" ")
    value = os.environ.get(variable)
    if not value:
        raise ValueError(f"the environment has no {variable}")
    return f"{prefix} {value}" if prefix else value


class Courier:
    """A process outside the walls that sends requests to one server."""

    def __init__(self, url: str, walls: confinement.Walls) -> None:
        self._home = _server(url)
        self._lock = threading.Lock()
        self._process = Copy(lambda: _carry(self._home, walls))

    def serves(self, url: str) -> bool:
        return _server(url) == self._home

    def ask(self, requests: Sequence[Request], concurrency: int) -> list[Response]:
        found, bodies = self._asked(requests, concurrency)
        return [
            Response(int(status), headers, bytes(body), failed)
            for (status, headers, failed), body in zip(found, bodies, strict=True)
        ]

    def keep(self, request: Request) -> str:
        return str(self._asked([request], KEEP)[0])

    def _asked(self, requests: Sequence[Request], concurrency: int) -> tuple[Any, list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        told = [
            [request.url, request.body is not None, dict(request.headers), dict(request.secrets), request.timeout]
            for request in requests
        ]
        with self._lock:
            try:
                send(self._process.stdin, [concurrency, told], [request.body or b"" for request in requests])
                return receive(self._process.stdout)
            except (EOFError, OSError) as error:
                raise EndpointError("the process that sends requests ended") from error


_COURIERS: list[Courier] = []

KEEP = 0
"""In the place of how many requests are sent at a time: none is, the one at hand is kept."""


def start_ahead(urls: Sequence[str], own: str) -> None:
    """Start what sends requests, while there is a network."""
    for url in dict.fromkeys(urls):
        named = [os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
        kept = cache_folder("requests")
        with contextlib.suppress(OSError):
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        walls = confinement.Walls((own, str(kept)), (*CERTIFICATES, *named), network=True)
        _COURIERS.append(Courier(url, walls))


def _carry(home: tuple[str, str, int | None], walls: confinement.Walls) -> None:
    """What the courier does: requests to its server, and to no other."""
    die_with_parent()
    confinement.confine(walls)
    with os.fdopen(0, "rb", closefd=False) as questions, os.fdopen(1, "wb", closefd=False) as answers:
        while True:
            try:
                (concurrency, told), bodies = receive(questions)
            except EOFError:
                return
            requests = [
                Request(url, bytes(body) if posts else None, headers, secrets, timeout)
                for (url, posts, headers, secrets, timeout), body in zip(told, bodies, strict=True)
            ]
            if concurrency == KEEP:
                send(answers, _kept(requests[0]), [])
                continue
            if any(_server(request.url) != home for request in requests):
                found = [Response(0, {}, b"", "that is another server") for _ in requests]
            else:
                with ThreadPoolExecutor(max(1, int(concurrency))) as pool:
                    found = list(pool.map(fetch, requests))
            send(answers, [[r.status, dict(r.headers), r.failed] for r in found], [r.body for r in found])


def _server(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
