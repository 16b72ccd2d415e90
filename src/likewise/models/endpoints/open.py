"""A served model: a URL that is asked like any other model, so many rows a request and so many requests at a time.

Rows of one call come back in the order they were sent in, whatever the order of the answers; how many rows every answer
has is counted request by request, so that one too many here cannot make up for one too few there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, InputSpec, Kind, Model, OutputSpec, Shape, Signature
from likewise.data.captured import DTYPES
from likewise.errors import RowCountError, UsageError, nearest
from likewise.models import require_known
from likewise.models.arrays import kind_of, widened
from likewise.models.endpoints import protocols, transport
from likewise.models.endpoints.protocols import Form, Tally
from likewise.models.endpoints.transport import EndpointError, Request, Response
from likewise.models.remote import Apart

OPTIONS = (
    "protocol",
    "template",
    "rows",
    "concurrency",
    "timeout",
    "form",
    "binary",
    "token",
    "headers",
    "name",
    "previous",
)
PROTOCOLS = ("oip", "mlflow", "instances", "embeddings", "template")
ROWS = 256
"""Rows of a request, where nobody says how many."""

HIDDEN = re.compile(r"(?i)key|token|secret|passw|sig|auth")
"""Names of parameters in a URL that are nobody else's business."""

SHOWN = 200


class EndpointAdapter(Adapter):
    """Opens `http://…` and `https://…`."""

    framework = "endpoints"
    holds_interpreter = False
    elsewhere = True

    def claims(self, target: object) -> bool:
        return isinstance(target, str) and target.lower().startswith(("http://", "https://"))

    def require_options(self, model: Model) -> None:
        _settings(model)

    @contextmanager
    def open(self, model: Model) -> Iterator[EndpointRunner]:
        yield EndpointRunner(model.target, _settings(model))


def _settings(model: Model) -> dict[str, Any]:
    """The options of an endpoint, checked; a usage error for what would be written into a report and is a secret."""
    require_known(model, (*OPTIONS, "batch_axis"))
    if not EXTENSION.claims(model.target):
        # Whoever looks for servers, in a configuration of somebody else's, looks for such addresses.
        told = f"{str(model.target)[:200]!r} is no address of a server"
        raise UsageError(told, remedy="Write http://… or https://…")
    parts, options = urlsplit(str(model.target)), dict(model.options)
    if parts.username or parts.password or HIDDEN.search(parts.query):
        raise UsageError(
            "the address of the model holds a secret, and it would be in every report",
            remedy="Keep it in the environment: option token=NAME_OF_VARIABLE, or headers=X-Api-Key:NAME_OF_VARIABLE",
        )
    found: dict[str, Any] = {"template": options.get("template"), "name": str(options.get("name", ""))}
    for name, usual in (("rows", ROWS), ("concurrency", 1), ("timeout", 60)):
        try:
            found[name] = (float if name == "timeout" else int)(options.get(name, usual))
        except ValueError:
            found[name] = 0
        if not found[name] > 0:
            raise UsageError(f"{name} is {options[name]!r}", remedy="Give a number above zero")
    found["protocol"] = options.get("protocol") or ("template" if found["template"] else _protocol(parts.path))
    if found["protocol"] not in PROTOCOLS:
        told = f"unknown protocol {found['protocol']!r}{nearest(str(found['protocol']), PROTOCOLS)}"
        raise UsageError(told, remedy=f"Choose one of: {', '.join(PROTOCOLS)}")
    found["records"] = str(options.get("form", "split")) == "records"
    found["binary"] = None if "binary" not in options else str(options["binary"]).lower() in ("1", "true", "yes")
    secrets = {} if not options.get("token") else {"Authorization": f"Bearer {options['token']}"}
    for entry in filter(None, str(options.get("headers", "")).split(",")):
        name, colon, variable = entry.strip().partition(":")
        if not colon:
            raise UsageError(f"headers is {entry!r}", remedy="Write HEADER:VARIABLE; the variable holds the value")
        secrets[name.strip()] = variable.strip()
    return {**found, "secrets": secrets}


def _protocol(path: str) -> str:
    """By its path: every protocol has one of its own."""
    known = {
        r"/v2/models/[^/]+": "oip",
        r"/invocations/?$": "mlflow",
        r"/v1/models/[^/]+|/predictions/": "instances",
        r"/embeddings/?$": "embeddings",
    }
    found = next((name for pattern, name in known.items() if re.search(pattern, path)), None)
    if found is None:
        raise UsageError(
            f"{path or '/'!r} does not say how the server is asked",
            remedy="Give option protocol=oip, mlflow, instances or embeddings, or a --request-template FILE",
        )
    return found


class EndpointRunner(Apart):
    """A server, and what it says of its model."""

    native = None

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        self._settings, self._tally = settings, Tally()
        # Whoever asks ahead waits: how many requests there are at a time is for the user to say.
        self._turn = threading.Lock()
        self._seen: dict[str, Array] = {}
        self._first: int | None = None
        self.signature = Signature(None, None)
        self._about: dict[str, Any] = {name: settings[name] for name in ("protocol", "rows", "concurrency")}
        self._url = url
        self._form = self._opened(url.rstrip("/"))

    @property
    def details(self) -> Mapping[str, Any]:
        """Counted until now: what the data lost on the way is known once it was sent."""
        told = self._tally.told()
        return {**self._about, **({"warnings": told} if told else {})}

    def _opened(self, url: str) -> Form:
        protocol = self._settings["protocol"]
        if protocol == "template":
            return protocols.Template.of(_read(self._settings["template"]))
        if protocol == "mlflow":
            return protocols.Mlflow(self._settings["records"])
        if protocol == "embeddings":
            return protocols.Embeddings(self._settings["name"])
        if protocol == "instances":
            predicts = url.endswith(":predict") or "/v1/models/" not in url
            self._url = url if predicts else f"{url}:predict"
            return protocols.Instances()
        home = re.sub(r"/infer$", "", url)
        self._url = f"{home}/infer"
        about = self._document(home)
        server = self._document(home.partition("/v2/")[0] + "/v2", needed=False)
        self._about |= {name: about[name] for name in ("versions", "platform") if about.get(name)}
        self._about |= {"server": f"{server['name']} {server.get('version', '')}".strip()} if "name" in server else {}
        try:
            inputs = tuple(_input(entry) for entry in about.get("inputs") or ())
            outputs = tuple(_output(entry) for entry in about.get("outputs") or ())
        except (AttributeError, KeyError, TypeError) as error:
            told = f"{home} says of its model what cannot be read: {type(error).__name__} {error}"
            raise EndpointError(told, remedy="Inputs and outputs have a name, a datatype and a shape") from error
        for specs in (inputs, outputs):
            names = [spec.name for spec in specs]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise EndpointError(f"{home} declares {twice!r} twice", remedy="Names tell inputs and outputs apart")
        self.signature = Signature(inputs or None, outputs or None)
        binary = self._settings["binary"]
        if binary is None:
            binary = "binary_tensor_data" in (server.get("extensions") or ())
        self._about["binary"] = binary
        wanted = tuple(spec.name for spec in outputs)
        return protocols.OpenInference(bool(binary), declared=bool(inputs), wanted=wanted, said=_asked_of(home))

    def _document(self, url: str, *, needed: bool = True) -> Mapping[str, Any]:
        """What a server says of itself or of a model."""
        response = transport.ask([self._request(url, None, {})])[0]
        if not needed and (response.failed or response.status != 200):
            return {}
        _require_answer(response, url)
        found = protocols.parsed(response.body, Tally())
        if not isinstance(found, Mapping):
            raise EndpointError(f"{url} does not describe a model")
        return found

    def _request(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> Request:
        return Request(url, body, headers, self._settings["secrets"], self._settings["timeout"])

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        with self._turn:
            return self._run(batch)

    def _run(self, batch: Batch) -> Tensors:
        if batch.stacked and not len(batch):
            if not self._seen:
                raise EndpointError(
                    "there are no rows to ask the server about", remedy="Give data with at least one row"
                )
            return dict(self._seen)
        if int(batch.rows.numbers[0]) == self._first:
            self._tally = Tally()  # from the beginning again: rows that were shown to see what it takes count once
        self._first = self._first if self._first is not None else int(batch.rows.numbers[0])
        size = self._settings["rows"] if batch.stacked else max(len(batch), 1)
        parts = [batch.slice(start, start + size) for start in range(0, len(batch), size)] if batch.stacked else [batch]
        requests = [self._request(self._url, *self._form.write(dict(part.inputs), self._tally)) for part in parts]
        responses = transport.ask(requests, concurrency=self._settings["concurrency"])
        found = [self._answer(*asked) for asked in zip(parts, requests, responses, strict=True)]
        tensors = _joined(found)
        if self.signature.outputs is None:
            specs = tuple(_observed(name, array) for name, array in tensors.items())
            self.signature = Signature(self.signature.inputs, specs)
        self._seen = {name: array[:0] for name, array in tensors.items() if array.ndim}
        return tensors

    def _answer(self, part: Batch, request: Request, response: Response) -> dict[str, Array]:
        try:
            return self._read(part, response)
        except (EndpointError, RowCountError) as error:
            if kept := transport.keep(request):
                error.message += f"; the request is kept in {kept}"
            raise

    def _read(self, part: Batch, response: Response) -> dict[str, Array]:
        _require_answer(response, self._url)
        found = self._form.read(response.body, response.headers, self._tally)
        for name, array in found.items():
            if part.stacked and (not array.ndim or len(array) != len(part)):
                got = f"{len(array):,}" if array.ndim else "a single number"
                raise RowCountError(f"a request of {len(part):,} rows was answered by {got} in output {name!r}")
        return {name: widened(array) for name, array in found.items()}


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    import numpy as np

    names = list(parts[0])
    if any(list(part) != names for part in parts):
        raise EndpointError("the server gives different outputs from request to request")
    for name in names if len(parts) > 1 else ():
        arrays = [part[name] for part in parts]
        if np.result_type(*arrays).kind == "f":
            wide = (array for array in arrays if array.dtype.kind in "iu" and array.dtype.itemsize == 8)
            protocols.require_held((value for array in wide for value in array.ravel().tolist()), name)
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in names} if len(parts) > 1 else parts[0]
    except ValueError as error:
        raise EndpointError(f"the server gives different shapes from request to request: {error}") from error


def _require_answer(response: Response, url: str) -> None:
    place = urlsplit(url)
    where = f"{place.scheme}://{place.netloc}{place.path}"
    if response.failed:
        unknown = "CERTIFICATE_VERIFY_FAILED" in response.failed
        known = "Name the certificate of who signed it: SSL_CERT_FILE=ca.pem"
        remedy = known if unknown else "See whether the server runs, and what it logs"
        raise EndpointError(f"{where}: {response.failed}", remedy=remedy)
    if response.status != 200:
        said = " ".join(response.body[: 4 * SHOWN].decode(errors="replace").split())[:SHOWN]
        told = f"{where} answered with status {response.status}" + (f": {said}" if said else "")
        remedy = "Send fewer rows a request: option rows=32" if response.status == 413 else "See what the server logs"
        raise EndpointError(told, remedy=remedy)


def _asked_of(home: str) -> dict[str, str]:
    """The model, and the version of it, that an address names."""
    found = re.search("/v2/models/([^/]+)(?:/versions/([^/]+))?$", urlsplit(home).path)
    named = zip(protocols.MODEL, found.groups() if found else (), strict=False)
    return {name: unquote(part) for name, part in named if part}


def _read(path: Any) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "there is no file" if isinstance(error, FileNotFoundError) else "it cannot be read:"
        raise UsageError(f"the template of requests: {why} {path}") from error


def _input(entry: Mapping[str, Any]) -> InputSpec:
    return InputSpec(str(entry["name"]), DTYPES.get(entry.get("datatype", "")), _shape(entry.get("shape")))


def _output(entry: Mapping[str, Any]) -> OutputSpec:
    name, dtype = str(entry["name"]), DTYPES.get(entry.get("datatype", ""))
    return OutputSpec(name, kind_of(name, dtype) or Kind.VALUE, dtype, _shape(entry.get("shape")))


def _shape(declared: Any) -> Shape | None:
    """Rows first; what a server leaves open, it says with -1."""
    if not isinstance(declared, list) or not declared:
        return None
    return (None, *(size if isinstance(size, int) and size >= 0 else None for size in declared[1:]))


def _observed(name: str, array: Array) -> OutputSpec:
    dtype = "string" if array.dtype.kind == "O" else str(array.dtype)
    return OutputSpec(name, kind_of(name, dtype) or Kind.VALUE, dtype, (None, *array.shape[1:]))


EXTENSION = EndpointAdapter()
