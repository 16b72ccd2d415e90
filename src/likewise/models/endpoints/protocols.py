"""What servers of models are asked with, and how they answer: one class a protocol, all of them without a network.

JSON has no NaN, many readers of it have no whole numbers beyond 2⁵³, and some writers cut digits off: whatever does not
survive on the way is counted, because a client of the service meets the same loss and nobody sees it.
"""

from __future__ import annotations

import json
import operator
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import counted
from likewise.data.captured import DTYPES
from likewise.data.columns import plain
from likewise.data.files import named_once
from likewise.errors import UsageError
from likewise.models.arrays import of_objects
from likewise.models.endpoints.transport import HEADER_LENGTH, EndpointError

EXACT = 2**53
FEW_DIGITS, ENOUGH_NUMBERS = 6, 20
"""A float32 takes up to nine digits: of so many numbers, one has more than six unless somebody cut them."""

DATATYPES = {ours: theirs for theirs, ours in DTYPES.items()}
JSON_BODY = {"Content-Type": "application/json"}

MODEL = ("model_name", "model_version")
"""What an answer of the Open Inference Protocol says of who gives it."""

Body = tuple[bytes, Mapping[str, str]]


@dataclass(slots=True)
class Tally:
    """What did not survive being written as text."""

    not_finite: int = 0
    beyond: int = 0
    nulls: int = 0
    numbers: int = 0
    digits: int = 0

    def told(self) -> list[str]:
        """In words for a report."""
        short = self.numbers >= ENOUGH_NUMBERS and self.digits <= FEW_DIGITS
        found = {
            f"{counted(self.not_finite, 'values')} went as null: JSON has no NaN and no infinity": self.not_finite,
            f"{counted(self.beyond, 'whole numbers')} beyond 2^53 went out: many servers read floats": self.beyond,
            f"{counted(self.nulls, 'answers')} came as null, or as text that says NaN: taken for NaN": self.nulls,
            f"its answers are written with at most {self.digits} digits: the service cuts or rounds them": short,
        }
        return [text for text, there in found.items() if there]

    def number(self, text: str) -> float:
        """A float of an answer, whose digits are looked at."""
        digits = text.lower().partition("e")[0].lstrip("-0.").replace(".", "")
        self.numbers, self.digits = self.numbers + 1, max(self.digits, len(digits))
        return float(text)


class Form(Protocol):
    """How one protocol writes rows and reads answers."""

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body: ...

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]: ...


def cells(array: Array, tally: Tally) -> Any:
    """An array as nested lists that JSON can hold."""
    import numpy as np

    kind = array.dtype.kind
    if kind == "f" or array.dtype.name == "bfloat16":
        gaps = ~np.isfinite(array.astype(np.float64))
        if gaps.any():
            tally.not_finite += int(gaps.sum())
            array = array.astype(np.float64).astype(object)
            array[gaps] = None
        return array.tolist()
    if kind in "iu":
        if array.dtype.itemsize == 8 and array.size:
            tally.beyond += int(np.count_nonzero((array > EXACT) | (array < -EXACT if kind == "i" else False)))
        return array.tolist()
    if kind in "mM":
        gaps = np.isnat(array)
        tally.not_finite += int(gaps.sum())
        text = np.datetime_as_string(array).astype(object) if kind == "M" else array.astype(np.int64).astype(object)
        text[gaps] = None
        return text.tolist()
    if kind == "b":
        return array.tolist()
    listed = [plain(value) for value in array.ravel().tolist()]
    found = np.empty(len(listed), dtype=object)
    for place, value in enumerate(listed):
        missing = isinstance(value, float) and value != value
        tally.not_finite += int(missing)
        found[place] = None if missing else value
    return found.reshape(array.shape).tolist()


def parsed(body: bytes, tally: Tally) -> Any:
    """JSON of an answer; an error where it is none, or not whole."""
    try:
        return json.loads(body.decode("utf-8"), parse_float=tally.number, object_pairs_hook=named_once)
    except (ValueError, RecursionError) as error:
        shown = body[:80].decode(errors="replace").strip()
        why = "" if isinstance(error, json.JSONDecodeError | RecursionError) else f": {error}"
        raise EndpointError(f"the answer is not whole JSON ({len(body):,} bytes, {shown!r}…){why}") from error


def require_no_error(document: Any) -> None:
    """An error where an answer tells of one beside its values, whatever its status."""
    if isinstance(document, Mapping) and document.get("error"):
        raise EndpointError(f"the answer tells of an error beside its values: {str(document['error'])[:200]!r}")


def column(values: Any, name: str, tally: Tally, *, floating: bool = False) -> Array:
    """Answers from a list, one a row: numbers with NaN for null, or text. `floating`: they are said to be fractions."""
    import numpy as np

    if not isinstance(values, list):
        raise EndpointError(f"{name!r} of the answer is {type(values).__name__}, not a list with an entry a row")
    flat, shape = _flattened(values, name)
    if not all(value is None or isinstance(value, bool | int | float | str) for value in flat):
        raise EndpointError(f"{name!r} of the answer holds what is neither number nor text")
    if any(isinstance(value, str) for value in flat):
        return of_objects(flat).reshape(shape)  # 1 beside text stays a number: it is not the label '1'
    tally.nulls += sum(value is None or value != value for value in flat)
    numbers = [float("nan") if value is None else value for value in flat]
    found = np.array(numbers, dtype=float if floating or not numbers else None)
    if found.dtype.kind in "biu" or floating:
        return found.reshape(shape)
    require_held((value for value in flat if type(value) is int), name)
    return found.astype(np.float64).reshape(shape)


def require_held(whole: Iterable[int], name: str) -> None:
    """An error for whole numbers that would be rounded to stand beside fractions or gaps."""
    for value in whole:
        if abs(value) > 2**53 and (abs(value) >= 2**1024 or int(float(value)) != value):
            raise EndpointError(
                f"{name!r} of the answer holds whole numbers beyond what a double holds, beside what is none",
                remedy="Have the server give such numbers as text, or all of them as whole numbers",
            )


def _flattened(values: list[Any], name: str) -> tuple[list[Any], tuple[int, ...]]:
    shape: tuple[int, ...] = (len(values),)
    while values and all(isinstance(entry, list) for entry in values):
        sizes = {len(entry) for entry in values}
        if len(sizes) > 1:
            raise EndpointError(f"{name!r} of the answer has rows of {min(sizes)} and of {max(sizes)} entries")
        shape, values = (*shape, sizes.pop()), [value for entry in values for value in entry]
    return values, shape


def outputs_of(found: Any, tally: Tally) -> dict[str, Array]:
    """The outputs in what a server calls its predictions: a list, rows as objects, or one list an output."""
    if isinstance(found, Mapping):
        return {str(name): column(values, str(name), tally) for name, values in found.items()}
    if isinstance(found, list) and found and all(isinstance(row, Mapping) for row in found):
        names = list(found[0])
        if any(list(row) != names for row in found):
            raise EndpointError("the rows of the answer do not have the same fields")
        return {str(name): column([row[name] for row in found], str(name), tally) for name in names}
    return {"output": column(found, "output", tally)}


def _rows(inputs: Mapping[str, Array], tally: Tally) -> list[dict[str, Any]]:
    lists = {name: cells(array, tally) for name, array in inputs.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _encoded(document: Any) -> Body:
    return json.dumps(document, allow_nan=False).encode(), JSON_BODY


@dataclass(frozen=True, slots=True)
class OpenInference:
    """Open Inference Protocol v2: KServe, Triton, MLServer. `binary`: tensors go as bytes behind the JSON.

    `wanted` are the outputs that the server declares: some give only the first of them to whoever asks for none.
    `said` is what answers have to say of who gives them: what was asked for, and then what the first one said.
    """

    binary: bool = False
    declared: bool = True
    wanted: tuple[str, ...] = ()
    said: dict[str, str] = field(default_factory=dict)

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body:
        import numpy as np

        document: dict[str, Any] = {"inputs": []}
        if self.wanted:
            document["outputs"] = [{"name": name} for name in self.wanted]
        if not self.declared and all(array.ndim == 1 for array in inputs.values()):
            document["parameters"] = {"content_type": "pd"}  # columns of a table, as MLServer calls them
        behind: list[bytes] = []
        for name, array in inputs.items():
            kind = "BYTES" if array.dtype.kind in "OUST" else DATATYPES.get(str(array.dtype))
            if kind is None:
                raise EndpointError(f"{name!r} is of type {array.dtype}, which the protocol does not have")
            tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": kind}
            if self.binary:
                behind.append(_texts(array) if kind == "BYTES" else np.ascontiguousarray(array).tobytes())
                tensor["parameters"] = {"binary_data_size": len(behind[-1])}
            else:
                tensor["data"] = cells(array.reshape(-1), tally)
            document["inputs"].append(tensor)
        if not self.binary:
            return _encoded(document)
        document["parameters"] = {**document.get("parameters", {}), "binary_data_output": True}
        head = json.dumps(document).encode()
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        return b"".join([head, *behind]), headers

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]:
        length = headers.get(HEADER_LENGTH.lower(), str(len(body))).strip()
        if not re.fullmatch("[0-9]{1,18}", length) or int(length) > len(body):
            raise EndpointError(f"the answer of {len(body):,} bytes says that {length[:40]!r} of them are JSON")
        split = int(length)
        return self.outputs(parsed(body[:split], tally), body[split:], tally)

    def outputs(self, document: Any, behind: bytes, tally: Tally) -> dict[str, Array]:
        """The tensors of an answer, by name; those that went as bytes are behind the document."""
        place = 0
        require_no_error(document)
        self._require_one_model(document)
        tensors = document.get("outputs") if isinstance(document, Mapping) else None
        if not isinstance(tensors, list) or not tensors:
            raise EndpointError("the answer has no outputs")
        found: dict[str, Array] = {}
        for tensor in tensors:
            try:
                if str(tensor["name"]) in found:
                    raise ValueError(f"there are two called {tensor['name']!r}")
                size = (tensor.get("parameters") or {}).get("binary_data_size", 0)
                if type(size) is not int or not 0 <= size <= len(behind) - place or (size and "data" in tensor):
                    raise ValueError(f"{size!r} bytes, of {len(behind) - place:,}")
                found[str(tensor["name"])] = self._tensor(tensor, behind[place : place + size], size, tally)
                place += size
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
                raise EndpointError(
                    f"an output of the answer is not a tensor: {type(error).__name__} {error}"
                ) from error
        if missing := [name for name in self.wanted if name not in found]:
            told = f"the server declares {missing[0]!r}, and does not give it"
            raise EndpointError(
                told, remedy="See what it says of its model: outputs that it does not give are no outputs"
            )
        if place != len(behind):
            raise EndpointError(f"behind the outputs of the answer are {len(behind) - place:,} bytes of nothing")
        return found

    def _require_one_model(self, document: Any) -> None:
        """An error where another model answers than was asked, or now one version of it and now another."""
        for name in MODEL if isinstance(document, Mapping) else ():
            told = str(document.get(name) or "")
            if told and told != self.said.setdefault(name, told):
                raise EndpointError(
                    f"the answer comes from {name} {told[:80]!r}, and not from {self.said[name]!r}",
                    remedy="Name the version in the address (/v2/models/NAME/versions/1), and see what the server runs",
                )

    def _tensor(self, tensor: Mapping[str, Any], raw: bytes, size: int, tally: Tally) -> Array:
        import numpy as np

        name, shape = str(tensor["name"]), [operator.index(length) for length in tensor["shape"]]
        dtype = DTYPES.get(tensor["datatype"])
        if dtype is None:
            raise EndpointError(f"output {name!r} is of type {tensor['datatype']!r}, which the protocol does not have")
        if size:
            values = _of_texts(raw) if dtype == "string" else np.frombuffer(raw, dtype).copy()
            nested = values.shape
        elif not isinstance(tensor["data"], list):
            raise EndpointError(f"the values of output {name!r} are no list")
        elif dtype == "string":
            flat, nested = _flattened(tensor["data"], name)
            if not all(value is None or isinstance(value, str) for value in flat):
                raise EndpointError(f"output {name!r} is of type BYTES, and holds what is no text")
            values = of_objects(flat)
        else:
            floating = np.dtype(dtype).kind == "f"
            answered = column(tensor["data"], name, tally, floating=floating)
            given, nested = answered.ravel(), answered.shape
            values = given.astype(dtype) if given.dtype.kind in "biuf" else given
            if values is given or (values.dtype.kind in "biu" and not np.array_equal(values, given)):
                raise EndpointError(f"output {name!r} holds what {tensor['datatype']} does not")
        if values.size != int(np.prod(shape, dtype=np.int64)):
            raise EndpointError(f"output {name!r} of shape {shape} has {values.size:,} values")
        if len(nested) > 1 and list(nested) != shape:
            raise EndpointError(f"output {name!r} of shape {shape} has its values in lists of shape {list(nested)}")
        return values.reshape(shape)


def _texts(array: Array) -> bytes:
    encoded = [("" if value is None else str(value)).encode() for value in array.ravel().tolist()]
    return b"".join(struct.pack("<I", len(entry)) + entry for entry in encoded)


def _of_texts(raw: bytes) -> Array:
    import numpy as np

    found, place = [], 0
    while place < len(raw):
        (size,) = struct.unpack_from("<I", raw, place)
        if place + 4 + size > len(raw):
            raise ValueError("text that ends early")
        found.append(raw[place + 4 : place + 4 + size].decode())
        place += 4 + size
    return np.array(found, dtype=object)


@dataclass(frozen=True, slots=True)
class Mlflow:
    """MLflow's `/invocations`: a table as `split` or as `records`, tensors as `inputs`."""

    records: bool = False

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body:
        if any(array.ndim > 1 for array in inputs.values()):
            lists = {name: cells(array, tally) for name, array in inputs.items()}
            return _encoded({"inputs": next(iter(lists.values())) if len(lists) == 1 else lists})
        rows = _rows(inputs, tally)
        if self.records:
            return _encoded({"dataframe_records": rows})
        return _encoded({"dataframe_split": {"columns": list(inputs), "data": [list(row.values()) for row in rows]}})

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]:
        document = parsed(body, tally)
        if isinstance(document, Mapping) and "predictions" in document:
            require_no_error(document)
            document = document["predictions"]
        return outputs_of(document, tally)


@dataclass(frozen=True, slots=True)
class Instances:
    """`{"instances": […]}` as TensorFlow Serving, TorchServe and KServe v1 take it."""

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body:
        rows = _rows(inputs, tally)
        return _encoded({"instances": [next(iter(row.values())) for row in rows] if len(inputs) == 1 else rows})

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]:
        document = parsed(body, tally)
        if isinstance(document, Mapping):
            if "predictions" in document and "outputs" in document:
                raise EndpointError("the answer has both 'predictions' and 'outputs'")
            if "predictions" in document or "outputs" in document:
                require_no_error(document)
            document = document.get("predictions", document.get("outputs", document))
        return outputs_of(document, tally)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """`{"input": […]}` as OpenAI's `/v1/embeddings` takes it; `name` is the model, where a server has several."""

    name: str = ""

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body:
        if len(inputs) != 1:
            told = f"embeddings are asked for of one column, and there are {len(inputs)}: {', '.join(inputs)}"
            raise EndpointError(told, remedy="Leave the others out: --drop")
        named = {"model": self.name} if self.name else {}
        return _encoded({**named, "input": cells(next(iter(inputs.values())), tally), "encoding_format": "float"})

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]:
        document = parsed(body, tally)
        require_no_error(document)
        rows = document.get("data") if isinstance(document, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "embedding" in row for row in rows):
            raise EndpointError("the answer has no embeddings")
        places = [row.get("index", place) for place, row in enumerate(rows)]
        if sorted(map(str, places)) != sorted(map(str, range(len(rows)))):
            raise EndpointError("the answer has embeddings without a place of their own")
        rows = [row for _, row in sorted(zip(places, rows, strict=True), key=lambda entry: int(entry[0]))]
        return {"embedding": column([row["embedding"] for row in rows], "embedding", tally)}


@dataclass(frozen=True, slots=True)
class Template:
    """A body of the user's own: Jinja2 over `rows` and `inputs`; `{# answer: NAME = $.path[*] #}` names an output."""

    text: str
    answers: Mapping[str, tuple[str | int | None, ...]] = field(default_factory=dict)

    @staticmethod
    def of(text: str) -> Template:
        """The template in a file."""
        answers = {}
        for entry in re.findall(r"\{#\s*answer:\s*(.*?)\s*#\}", text):
            name, sign, path = entry.rpartition("=")
            answers[name.strip() if sign else "output"] = steps(path.strip())
        return Template(text, answers)

    def write(self, inputs: Mapping[str, Array], tally: Tally) -> Body:
        from jinja2 import StrictUndefined, TemplateError
        from jinja2.sandbox import SandboxedEnvironment

        rows = _rows(inputs, tally)
        lists = {name: [row[name] for row in rows] for name in inputs}
        # `tojson` of Jinja2 is for pages: it writes signs of markup in another way, which JSON takes for the same.
        environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
        try:
            body = environment.from_string(self.text).render(rows=rows, inputs=lists)
            json.loads(body)
        except TemplateError as error:
            raise EndpointError(f"the template of requests cannot be filled: {error}") from error
        except ValueError as error:
            raise EndpointError(f"the template of requests gives no JSON: {error}") from error
        return body.strip().encode(), JSON_BODY

    def read(self, body: bytes, headers: Mapping[str, str], tally: Tally) -> dict[str, Array]:
        document = parsed(body, tally)
        if not self.answers:
            return outputs_of(document, tally)
        return {name: column(follow(document, path), name, tally) for name, path in self.answers.items()}


def steps(path: str) -> tuple[str | int | None, ...]:
    """`$.predictions[*].score` as steps: names, numbers, and None for every entry."""
    found: list[str | int | None] = []
    rest = path.removeprefix("$")
    while rest:
        match = re.match(r"\.([\w-]+)|\[(\d+)\]|\[(\*)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]", rest)
        if match is None:
            raise UsageError(f"{path!r} leads nowhere", remedy="Write a path such as $.predictions[*].score")
        name = next((match[number] for number in (1, 4, 5) if match[number] is not None), None)
        found.append(name if name is not None else None if match[3] else int(match[2]))
        rest = rest[match.end() :]
    return tuple(found)


def follow(document: Any, path: Sequence[str | int | None]) -> Any:
    """What a path leads to; an error that says where it ends."""
    for place, step in enumerate(path):
        if step is None:
            if not isinstance(document, list):
                raise EndpointError(f"step {place + 1} of the path to the answer is not a list")
            return [follow(entry, path[place + 1 :]) for entry in document]
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(f"the answer has no {step!r} at step {place + 1} of the path") from error
    return document
