"""The audit record, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from likewise.contracts.comparison import Comparison, Json
from likewise.contracts.results import BenchResult
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome, Policy, Verdict

SCHEMA_VERSION = 1

CAUSES = frozenset(
    {
        "float32-input-cast",
        "float32-threshold",
        "float32-compute",
        "precision-reduction",
        "quantization",
        "approximation",
        "missing-value-handling",
        "unknown-category",
        "categorical-split",
        "preprocessing-dropped",
        "preprocessing-differs",
        "model-part-dropped",
        "tree-count",
        "tokenizer",
        "operator-semantics",
        "operator-attribute",
        "wrong-wiring",
        "integer-overflow",
        "runtime-optimization",
        "link-function",
        "wrong-intermediate",
        "aggregation",
        "output-mapping",
        "output-kind",
        "output-layout",
        "label-order",
        "label-mapping",
        "label-rule",
        "decision-threshold",
        "tie-breaking",
        "feature-order",
        "input-layout",
        "schema-mismatch",
        "input-type",
        "stale-weights",
        "weight-corruption",
        "constant-output",
        "row-order",
        "batch-dependence",
        "fixed-batch",
        "shape-specialization",
        "training-mode",
        "traced-branch",
        "nondeterminism",
        "nonfinite",
        "unloadable-model",
    }
)
"""The closed list of causes; `docs/causes.md` describes each with an example."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A model or a data set, named so that a reader can find the very same one again."""

    name: str
    kind: str
    sha256: str | None = None
    bytes: int | None = None
    details: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a report comes from. Everything here may differ between two runs with equal answers.

    `digest` is that of the stored report, itself left out: it stands last, and only in the file.
    """

    reference: Artefact
    candidate: Artefact
    data: Artefact
    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Json]
    settings: Mapping[str, Json]
    run: Mapping[str, Json]
    warnings: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a model or its data something lies.

    `name` and `details` are what a person reads; whatever else is known is for code, which never reads it out of a
    sentence: the path of a step or module, nodes and tensors of a graph, columns of the data, outputs, a source line.
    """

    name: str
    details: tuple[str, ...] = ()
    side: str = "candidate"
    path: str = ""
    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.details)})" if self.details else self.name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause, what it covers, and the experiment that showed it.

    `explained_share` is the part of the failing rows looked at that agree once the cause is taken
    away; `rows` names the first of them. `remedy_verified`: just what the remedy says was done, and the failing rows
    agreed; else it is a suggestion. `suggestion` is what else may help beside a verified remedy. Where the culprit is
    known to the code: the `path` of a step or module, `nodes` and `tensors` of the graph, the `source` as file:line.
    """

    cause: str
    culprit: str
    explained_share: float
    evidence: str
    remedy: str
    rows: tuple[int | str, ...] = ()
    remedy_verified: bool = False
    suggestion: str = ""
    path: str = ""
    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Slice:
    """A predicate on the inputs that tells failing rows from agreeing ones."""

    predicate: str
    failing: int
    agreeing: int
    precision: float
    recall: float


@dataclass(frozen=True, slots=True)
class Unusual:
    """What is special about one value of a failing row."""

    row: int | str
    column: str
    value: Json
    why: str


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operation of a graph near a culprit.

    `introduced` is the largest error the node adds when it is given the reference's own inputs, `inherited`
    the largest error of the inputs it gets in the candidate; None where that could not be measured. Both are
    parts of the largest value of the tensor on either side: 1 is an error as large as the values themselves.
    Of labels and text they are the share that differs.
    """

    id: str
    side: str
    name: str
    operator: str
    culprit: bool = False
    introduced: float | None = None
    inherited: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A tensor from one node to another of the same side."""

    source: str
    target: str
    tensor: str


@dataclass(frozen=True, slots=True)
class GraphView:
    """The nodes around the culprit, of the candidate and where it can be told of the reference."""

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an investigation looked at beside the diagnoses: facts, and what was excluded.

    `shape` says in sentences what the difference looks like; `excluded` what was tried and did not
    explain it; `not_tested` what could not be tried, and why.
    """

    rows: int = 0
    failing_rows: int = 0
    complete: bool = False
    shape: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    unusual: tuple[Unusual, ...] = ()
    excluded: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    graph: GraphView | None = None


class ParityError(AssertionError):
    """The candidate does not answer like the reference, or that could not be established."""

    def __init__(self, report: Report) -> None:
        told = f"{report.outcome}: {report.verdict.headline}"
        about = (finding for finding in report.verdict.findings if finding.message == report.verdict.headline)
        remedy = next((finding.remedy for finding in about if finding.remedy), "")
        super().__init__(f"{told}. {remedy}" if remedy else told)
        self.report = report


@dataclass(frozen=True, slots=True)
class Report:
    """Comparison, policy, verdict, diagnoses and where they came from. Its truth value is the verdict."""

    comparison: Comparison
    policy: Policy
    verdict: Verdict
    origin: Origin
    diagnoses: tuple[Diagnosis, ...] = ()
    explanation: Explanation | None = None
    bench: BenchResult | None = None

    def __repr__(self) -> str:
        return f"<Report {self.outcome}: {self.verdict.headline}>"

    def __bool__(self) -> bool:
        return self.passed

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        return self.verdict.headline

    @property
    def passed(self) -> bool:
        return self.verdict.outcome is Outcome.PASS

    @property
    def samples(self) -> int:
        return self.comparison.rows

    @property
    def max_abs_diff(self) -> float | None:
        """The largest difference of any numeric output, or None if none was compared."""
        return self._largest("max_abs_diff")

    @property
    def mean_abs_diff(self) -> float | None:
        """The mean difference of the numeric output where it is largest."""
        return self._largest("mean_abs_diff")

    @property
    def abs_tol(self) -> float:
        return self.policy.tolerance.absolute

    @property
    def mean_tol(self) -> float | None:
        """The limit on the mean difference, or None where there is none."""
        bounds = [limit.bound for limit in self.policy.limits if limit.measure == "mean_abs_diff"]
        return min(bounds, default=None)

    def save(self, path: Any, format: str | None = None) -> None:
        """Write the report: as JSON, or by how the file is called as a page (.html), .md, .junit.xml or .sarif."""
        import_module("likewise.report").save(self, path, format)

    def to_frame(self, what: str = "checks") -> Any:
        """A part of the report as a DataFrame: checks, measures, worst_rows, batch_sizes, suites, strata, timeline …"""
        return _views().frame(self, what)

    def plot(self, output: str | None = None, *, ax: Any = None) -> Any:
        """Candidate against reference with the tolerance band, as Matplotlib axes."""
        return _views().plot(self, output, ax=ax)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        text: str = _views().compact(self)
        return text

    def raise_for_verdict(self) -> None:
        """Raise `ParityError` unless the verdict is PASS."""
        if not self.passed:
            raise ParityError(self)

    def _largest(self, measure: str) -> float | None:
        values = [o.measures[measure] for o in self.comparison.outputs if measure in o.measures]
        broken = [value for value in values if value != value]
        return broken[0] if broken else max(values, default=None)


def _views() -> Any:
    """How a report looks is known above it, and looked up when somebody looks."""
    return import_module("likewise.report.notebook")


class Renderer(Protocol):
    """A report as text. Pure: the same report gives the same text."""

    @property
    def format(self) -> str: ...

    def render(self, report: Report, **options: Any) -> str: ...


@runtime_checkable
class GatesRenderer(Renderer, Protocol):
    """A format that can hold many gates in one text."""

    def render_gates(self, reports: Mapping[str, Report]) -> str:
        """The reports of gates, by their names."""
        ...
