"""The audit record: strict JSON, stable field order, a published schema.

A figure that is not finite is written as the text "NaN", "Infinity" or "-Infinity", because JSON
has no number for it and null would hide it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, starmap
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeVar

from likewise.contracts.comparison import (
    ROWS,
    BatchSizeFacts,
    Cast,
    Comparison,
    GeneratedColumn,
    Incident,
    Mismatch,
    OutputFacts,
    Stratum,
    SuiteFacts,
    Tolerance,
    Untried,
)
from likewise.contracts.report import SCHEMA_VERSION, Diagnosis, Explanation, Origin, Report
from likewise.contracts.results import BenchResult
from likewise.contracts.timeline import Timeline
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Check, Confidence, Finding, Outcome, Policy, SuiteVerdict, Verdict
from likewise.data.files import named_once
from likewise.errors import DataError, nearest, one_line
from likewise.report.console import quoted
from likewise.report.details import fault_of
from likewise.report.words import gates_told, worst

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


T = TypeVar("T")

WORST_ROWS = "worst_rows"
BENCH_VERSION = 1


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One of the rows where the models differ most."""

    output: str
    row: int | str
    number: int
    severity: float
    reference: Any
    candidate: Any
    inputs: Mapping[str, Any]
    abs_diff: float | None = None
    index: tuple[int, ...] = ()
    label: Any = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was compared, and what was not."""

    rows: int
    expected_rows: int | None
    rows_beyond: int
    varied: bool
    tolerance: Tolerance
    nan_equal: bool
    not_compared: tuple[str, ...]
    casts: tuple[Cast, ...]
    mismatches: tuple[Mismatch, ...]
    incidents: tuple[Incident, ...]
    notes: tuple[str, ...]
    fixed_batch: int | None
    quantized_nodes: int
    unit: str = ROWS
    warnings: tuple[str, ...] = ()
    lineage: tuple[str, ...] = ()
    strata: tuple[Stratum, ...] = ()
    timeline: Timeline | None = None
    generated: tuple[GeneratedColumn, ...] = ()
    same_model: bool = False
    same_bytes: bool = False
    untried: tuple[Untried, ...] = ()
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite: its facts beside its verdict."""

    facts: SuiteFacts
    verdict: SuiteVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The published layout of `parity_report.json`. What was added later has a default: old reports stay readable."""

    samples: int
    max_abs_diff: float | None
    mean_abs_diff: float | None
    abs_tol: float
    mean_tol: float | None
    passed: bool
    outcome: Outcome
    headline: str
    schema_version: int
    outputs: tuple[OutputFacts, ...]
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    diagnoses: tuple[Diagnosis, ...]
    explanation: Explanation | None = None
    worst_rows: tuple[WorstRow, ...]
    confidence: Confidence | None
    batch_sizes: tuple[BatchSizeFacts, ...]
    batch_orders: tuple[BatchSizeFacts, ...] = ()
    suites: tuple[Suite, ...] = ()
    bench: BenchResult | None = None
    coverage: Coverage
    policy: Policy
    provenance: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The published layout of many gates in one file: the worst outcome, and the document of each by its name."""

    passed: bool
    outcome: Outcome
    headline: str
    schema_version: int
    gates: Mapping[str, Document]


NO_DIGEST = '"digest": ""'
"""How the last of a report's values is written while it is not known."""


class JsonRenderer:
    """The report as the file that machines and auditors read."""

    format = "json"

    def render(self, report: Report, **options: Any) -> str:
        written = dumps(_blank(report))
        # It stands last: to write all of it once more takes longer than to put it there.
        before, _, after = written.rpartition(NO_DIGEST)
        # The digest is that of the values, however they are spelt.
        return quoted(f'{before}"digest": "{_digest(written)}"{after}')

    def render_gates(self, reports: Mapping[str, Report]) -> str:
        outcomes = {name: report.outcome for name, report in reports.items()}
        return "".join(gates_written(outcomes, (self.render(report) for report in reports.values())))


def gates_written(outcomes: Mapping[str, Outcome], documents: Iterable[str]) -> Iterator[str]:
    """The pieces of the file that holds many gates, in the layout of `Gates`, given the text of each one's own."""
    outcome = worst(outcomes.values())
    told = Gates(
        passed=outcome is Outcome.PASS,
        outcome=outcome,
        headline=gates_told(outcomes),
        schema_version=SCHEMA_VERSION,
        gates={},
    )
    yield dumps(told).removesuffix("{}\n}\n") + "{"
    for place, (name, text) in enumerate(zip(outcomes, documents, strict=True)):
        # In JSON no text holds a line break: all of them are between the values.
        yield f"{',' if place else ''}\n    {encode_basestring(name)}: " + text.rstrip().replace("\n", "\n    ")
    yield "\n  }\n}\n"


def document(report: Report) -> Document:
    """A report in its published layout."""
    found = _blank(report)
    return replace(found, provenance=replace(found.provenance, digest=digest_of(found)))


def _blank(report: Report) -> Document:
    """The same without its digest."""
    facts, verdict = report.comparison, report.verdict
    shared = {name: getattr(facts, name) for name in Coverage.__dataclass_fields__}
    return Document(
        samples=report.samples,
        max_abs_diff=report.max_abs_diff,
        mean_abs_diff=report.mean_abs_diff,
        abs_tol=report.abs_tol,
        mean_tol=report.mean_tol,
        passed=report.passed,
        outcome=report.outcome,
        headline=verdict.headline,
        schema_version=SCHEMA_VERSION,
        outputs=tuple(replace(output, details=_without_rows(output)) for output in facts.outputs),
        checks=verdict.checks,
        findings=verdict.findings,
        diagnoses=report.diagnoses,
        explanation=report.explanation,
        worst_rows=worst_rows(report),
        confidence=verdict.confidence,
        batch_sizes=facts.batch_sizes,
        batch_orders=facts.batch_orders,
        suites=tuple(starmap(Suite, zip(facts.suites, verdict.suites, strict=True))),
        bench=report.bench,
        coverage=Coverage(**shared),
        policy=report.policy,
        provenance=replace(report.origin, digest=""),
    )


def digest_of(blank: Any) -> str:
    """The SHA-256 of a stored report in the layout of this file, its own digest left blank."""
    return _digest(dumps(blank))


def _digest(written: str) -> str:
    return hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()


def worst_rows(report: Report) -> tuple[WorstRow, ...]:
    """The rows where the models differ most, output by output."""
    return tuple(
        WorstRow(output=output.name, **row) for output in report.comparison.outputs for row in output.worst_rows
    )


def dumps(value: Any) -> str:
    """A dataclass or plain values as strict JSON: what is not finite becomes text."""
    return _written(value, "\n") + "\n"


def _written(value: Any, margin: str) -> str:
    """What `json.dumps` writes with an indent of 2, in one walk: copies in plain values take longer than the text."""
    if leaf := LEAVES.get(type(value)):
        return leaf(value)
    inner = f"{margin}  "
    if isinstance(value, list | tuple):
        return f"[{inner}{f',{inner}'.join(_each_written(value, inner))}{margin}]" if value else "[]"
    if hasattr(type(value), "__dataclass_fields__"):
        names = [f'"{name}": ' for name in value.__dataclass_fields__]
        values: Iterable[Any] = [getattr(value, name) for name in value.__dataclass_fields__]
    elif isinstance(value, Mapping):
        names, values = [f"{encode_basestring(str(key))}: " for key in value], value.values()
    else:
        for kind, leaf in LEAVES.items():
            if isinstance(value, kind):
                return leaf(value)
        raise TypeError(f"{type(value).__name__} is not a value of JSON")
    entries = [name + text for name, text in zip(names, _each_written(values, inner), strict=True)]
    return f"{{{inner}{f',{inner}'.join(entries)}{margin}}}" if names else "{}"


def _each_written(values: Iterable[Any], margin: str) -> list[str]:
    # Nearly all values are leaves: they are not worth a call.
    return [leaf(value) if (leaf := LEAVES.get(type(value))) else _written(value, margin) for value in values]


def _number(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


LEAVES: Mapping[type, Callable[[Any], str]] = {
    float: _number,
    str: encode_basestring,
    type(None): lambda _: "null",
    bool: {True: "true", False: "false"}.__getitem__,
    int: int.__repr__,
}
"""How values are written that hold no others; and those of a kind of one of them, in this order."""


def read(kind: type[T], plain: Any) -> T:
    """The value of this kind that plain values describe."""
    found: T = _adapter(kind).validate_python(plain)  # type: ignore[arg-type]
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Reads and describes values of a kind; building it takes a while, so it is built once."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def first_fault(error: ValidationError) -> str:
    """Where plain values do not describe what they should, and why."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def loads(text: str | bytes, *, name: str = "the report", gate: str | None = None) -> Report:
    """A report from its JSON, as strictly as it was written; of many gates that of the one named."""
    found = loads_gates(text, name=name, only=gate)
    if len(found) > 1:
        raise DataError(
            f"{name} holds {len(found)} gates, and none is chosen", remedy=f"Choose one of: {', '.join(found)}"
        )
    return next(iter(found.values()))


def loads_gates(text: str | bytes, *, name: str = "the report", only: str | None = None) -> dict[str, Report]:
    """The reports of many gates by their names; one that is alone is called after its gate, if that had a name."""
    from pydantic import ValidationError

    try:
        found = json.loads(text, object_pairs_hook=named_once)
        version = found.get("schema_version") if isinstance(found, dict) else None
        if version != SCHEMA_VERSION:
            if version is None:
                raise DataError(f"{name} is not a parity report", remedy="Give the JSON that `likewise check` wrote")
            raise DataError(f"{name} has schema version {version!r}, this likewise reads {SCHEMA_VERSION}")
        if "gates" not in found:
            alone = _report(read(Document, found), name)
            gate = str(alone.origin.settings.get("gate", ""))
            if only is not None and gate != only:
                raise DataError(f"{name} is the report of {f'gate {gate!r}' if gate else 'one gate without a name'}")
            return {gate: alone}
        gates = found["gates"]
        if not isinstance(gates, dict) or not gates:
            raise DataError(f"{name} holds no gates")
        if only is not None and only not in gates:
            raise DataError(f"{name} has no gate {only!r}{nearest(only, gates)}", remedy=f"It has: {', '.join(gates)}")
        chosen = gates if only is None else {only: gates[only]}
        return {gate: _report(read(Document, stored), name) for gate, stored in chosen.items()}
    except ValidationError as error:
        raise DataError(f"{name} is not a parity report: {first_fault(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name} is not JSON: {one_line(error)}", remedy="It may be half written; check again"
        ) from error


def loads_bench(text: str | bytes, *, name: str) -> BenchResult:
    """The result that `likewise bench -o` wrote; anything else is an error that says what is wrong with it."""
    from pydantic import ValidationError

    remedy = "Give what `likewise bench REFERENCE CANDIDATE --data FILE -o BENCH.json` writes"
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or "timings" not in found:
            raise DataError(f"{name} is not the result of a bench: it has no timings", remedy=remedy)
        result = read(BenchResult, found)
    except ValidationError as error:
        raise DataError(f"{name} is not the result of a bench: {first_fault(error)}", remedy=remedy) from error
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {one_line(error)}", remedy=remedy) from error
    if result.schema_version != BENCH_VERSION:
        raise DataError(f"{name} has schema version {result.schema_version}, this likewise reads {BENCH_VERSION}")
    return result


def _report(stored: Document, name: str) -> Report:
    beside = [facts.outputs for facts in (*stored.batch_sizes, *stored.batch_orders)]
    beside += [suite.facts.comparison.outputs for suite in stored.suites]
    for output in chain(stored.outputs, *beside):
        if fault := fault_of(output):
            raise DataError(f"{name} is not a parity report: {fault}")
    outputs = tuple(_with_rows(output, stored.worst_rows) for output in stored.outputs)
    shared = {field: getattr(stored.coverage, field) for field in Coverage.__dataclass_fields__}
    return Report(
        comparison=Comparison(
            outputs=outputs,
            batch_sizes=stored.batch_sizes,
            batch_orders=stored.batch_orders,
            suites=tuple(suite.facts for suite in stored.suites),
            **shared,
        ),
        policy=stored.policy,
        verdict=Verdict(
            stored.outcome,
            stored.headline,
            stored.checks,
            stored.findings,
            stored.confidence,
            tuple(suite.verdict for suite in stored.suites),
        ),
        origin=replace(stored.provenance, digest=""),
        diagnoses=stored.diagnoses,
        explanation=stored.explanation,
        bench=stored.bench,
    )


def schema() -> dict[str, Any]:
    """The JSON Schema of a report; that of many gates in one file is its definition `Gates`."""
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
    from pydantic_core import core_schema

    class Strict(GenerateJsonSchema):
        def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
            return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}

        def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
            return {**super().dataclass_schema(schema), "additionalProperties": False}

    found = _adapter(Document).json_schema(schema_generator=Strict, mode="serialization")
    gates = _adapter(Gates).json_schema(schema_generator=Strict, mode="serialization")
    gates["properties"]["gates"]["additionalProperties"] = {"$ref": "#"}
    del gates["$defs"]
    found["$defs"]["Gates"] = gates
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "likewise parity report"}


def _without_rows(output: OutputFacts) -> dict[str, Any]:
    return {name: value for name, value in output.details.items() if name != WORST_ROWS}


def _with_rows(output: OutputFacts, rows: tuple[WorstRow, ...]) -> OutputFacts:
    mine = [_shown(row) for row in rows if row.output == output.name]
    return replace(output, details={**output.details, WORST_ROWS: {"rows": mine}}) if output.details or mine else output


def _shown(row: WorstRow) -> dict[str, Any]:
    """The row as the metric gave it: what it does not have is left out."""
    optional = {"abs_diff": row.abs_diff, "label": row.label}
    absent = {"output", *(name for name, value in optional.items() if value is None)}
    return {k: list(v) if k == "index" else v for k, v in asdict(row).items() if k not in absent}


EXTENSION = JsonRenderer()
