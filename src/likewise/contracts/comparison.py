"""Observed differences, not judged.

A metric looks at one `Pair` of arrays and returns a `Summary`: immutable, bounded, mergeable in
any order. That is why a comparison gives the same bits whatever the batch size, the number of
shards or the order they finish in. A `Comparison` is plain data: it can be stored and judged again.
A `Suite` makes inputs to find trouble with from real rows and from what the models say about
themselves; it runs nothing, and what both models answer is judged apart from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Protocol, Self, TypeAlias

from likewise.contracts.data import Array, Batch, Source, Tensors
from likewise.contracts.models import Kind, Label, Model, Runner
from likewise.contracts.timeline import Timeline
from likewise.contracts.values import dataclass

Json: TypeAlias = Any
"""A plain JSON value."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers are close when |candidate - reference| <= absolute + relative * |reference|.

    `exact_integers`: nobody said so of whole numbers, which may be names. Those must be equal.
    """

    absolute: float
    relative: float
    exact_integers: bool = False

    @property
    def text(self) -> str:
        """`0.0001 + 0.001·|reference|`, without what is zero."""
        parts = [f"{self.absolute:g}"] if self.absolute or not self.relative else []
        return " + ".join([*parts, *([f"{self.relative:g}·|reference|"] if self.relative else [])])

    @property
    def in_other_batches(self) -> Tolerance:
        """What is asked of the same rows in other batches. Another size is another order of summation: where not a bit
        may differ on the data, float32 rounding may there."""
        return KERNELS if self == Tolerance(0.0, 0.0) else self


KERNELS = Tolerance(1e-4, 1e-3, exact_integers=True)
"""The rule of the preset `float32`."""


ROWS, SAMPLES = "rows", "samples"
"""What a comparison counts."""

POSITION = "position"
"""How outputs were paired that neither side names."""


@dataclass(frozen=True, slots=True)
class PairSpec:
    """Which output is compared with which, and how that was decided.

    `columns` orders the candidate's columns as `classes` names them. `reference_column` is set when
    the candidate gives one column of what the reference gives in full, `expand` when the reference
    gives one column of two: the other is its negative (`negate`) or what it leaves of one
    (`complement`). `margin_from` is the reference's output that tells how sure a label is, of kind
    `margin_kind`, and `scores` are the pairs that may explain why it changed. `other_follows`: of two columns the
    candidate gives the second, which is all there is to know while the first follows from it. `row_axes` is where
    the rows lie in the reference and in the candidate, where they tell. `column_for_vector`: (n, 1) stands for (n,),
    as exporters of table models write it. `per_call`: beside answers for rows, one number for a whole call, which
    stands for all of its rows.
    """

    reference: str
    candidate: str
    kind: Kind
    matched_by: str
    classes: tuple[Label, ...] | None = None
    columns: tuple[int, ...] | None = None
    reference_column: int | None = None
    expand: str | None = None
    margin_from: str | None = None
    margin_kind: Kind | None = None
    notes: tuple[str, ...] = ()
    scores: tuple[PairSpec, ...] = ()
    other_follows: bool = False
    row_axes: tuple[int | None, int | None] = (None, None)
    column_for_vector: bool = False
    per_call: bool = False

    @property
    def name(self) -> str:
        """What the pair is called in limits and reports: the reference's name for it."""
        if self.reference_column is not None and self.classes is not None and self.candidate != self.reference:
            return f"{self.reference}[{self.classes[self.reference_column]}]"
        return self.reference


@dataclass(frozen=True, slots=True)
class Form:
    """How an output came, before it was laid beside its counterpart; of a whole sample there are no `rows`."""

    dtype: str
    rank: int
    row_axis: int | None = None
    rows: bool = True

    @property
    def text(self) -> str:
        if not self.rows:
            return f"{self.dtype} of rank {self.rank}"
        axes = ["…"] * (self.rank - 1)
        axes.insert(self.row_axis or 0, "n")
        return f"{self.dtype} ({', '.join(axes)}{',' * (self.rank == 1)})"


@dataclass(frozen=True, slots=True)
class Pair:
    """Answers of both models to the same rows, of equal shape, rows along axis 0.

    `margin` is how far the reference's best class is ahead of the next, NaN where no scores of the
    candidate explain that its label is another, and `noise` how much of it the tolerance allows to be
    noise; both only where the pair holds labels and both models also gave scores. `nan_equal`: NaN on
    both sides agrees. `forms` is how both came. `walked` holds the differences that
    `compare.differences` has worked out for one metric, for the next.
    """

    spec: PairSpec
    batch: Batch
    reference: Array
    candidate: Array
    tolerance: Tolerance
    margin: Array | None = None
    noise: Array | None = None
    nan_equal: bool = True
    forms: tuple[Form, Form] | None = None
    walked: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)


class Summary(Protocol):
    """What a metric saw. Merging is associative and commutative, to the bit."""

    def merge(self, other: Self, /) -> Self: ...

    def measurements(self) -> Mapping[str, float]:
        """Figures a limit can be set on. A figure that was not measured is absent, never zero."""
        ...

    def details(self) -> Mapping[str, Json]:
        """Everything else worth keeping, as plain JSON values of bounded size."""
        ...


class Metric(Protocol):
    """A pure observation of a pair."""

    @property
    def name(self) -> str: ...

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool: ...

    def empty(self) -> Summary: ...

    def observe(self, pair: Pair) -> Summary: ...


@dataclass(frozen=True, slots=True)
class Cast:
    """One input column whose values were changed to fit a model's declared type."""

    side: str
    input: str
    column: str
    source_dtype: str
    target_dtype: str
    values: int
    changed: int
    largest_relative_change: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference in structure: an output without counterpart, another shape, another row count."""

    code: str
    message: str
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that kept rows from being compared. One incident is enough to be inconclusive."""

    code: str
    message: str
    remedy: str = ""
    side: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """Everything measured on one pair of outputs."""

    name: str
    pair: PairSpec
    measures: Mapping[str, float]
    details: Mapping[str, Json] = field(default_factory=dict)

    @property
    def integer_rounding(self) -> float | None:
        """Zero where one side at least holds whole numbers, which no rounding excuses; None of fractions."""
        found: float | None = self.details.get("closeness", {}).get("integer_rounding")
        return found

    def asked_by(self, tolerance: Tolerance) -> Tolerance:
        """What a tolerance asks of this output."""
        rounding = self.integer_rounding if tolerance.exact_integers else None
        if rounding is not None:
            return Tolerance(0.0, rounding)
        return Tolerance(tolerance.absolute, tolerance.relative)

    @property
    def worst_rows(self) -> list[dict[str, Json]]:
        """The rows where the models differ most, the worst first."""
        found: list[dict[str, Json]] = self.details.get("worst_rows", {}).get("rows", [])
        return found


@dataclass(frozen=True, slots=True)
class BatchSizeFacts:
    """The candidate at one batch size: against the reference, and against itself at the main size.

    `order` says how the rows were put into other places, if they were. `reference` is what kept the
    reference from answering there, which is not the candidate's fault. `same_batch`: the reference depends on
    the batch, and the candidate was compared with its answers in the same one.
    """

    size: int
    rows: int
    outputs: tuple[OutputFacts, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    incidents: tuple[Incident, ...] = ()
    order: str = ""
    reference: tuple[Incident, ...] = ()
    same_batch: bool = False


@dataclass(frozen=True, slots=True)
class Stratum:
    """The rows that hold one value of a column: how many there are, how many are beyond, and the worst difference.

    `worst` is the largest difference by output; an output without numbers is not in it.
    """

    column: str
    value: str
    rows: int
    rows_beyond: int
    worst: Mapping[str, float] = field(default_factory=dict)


FRACTIONS_UNTRIED = "fractions were not tried"
"""How the reason of a column ends that was drawn in whole numbers only because the candidate's type wants it."""


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """What stood in for real values of one column: what was drawn, why, and whether the model itself says so."""

    name: str
    values: str
    why: str
    known: bool

    @property
    def fractions_untried(self) -> bool:
        """The reference may take fractions, and none was drawn."""
        return self.why.endswith(FRACTIONS_UNTRIED)


@dataclass(frozen=True, slots=True)
class SuiteFacts:
    """The same two models on other inputs or under other settings, measured apart from the data.

    `kind` is `edge` (inputs made to find trouble), `shape` (other lengths and image sizes) or `setting`
    (the candidate under other runtime settings). `blocks`: the verdict depends on it. `refused` counts
    the rows that both models refuse, which agrees. `not_covered` says why nothing could be tried.
    """

    kind: str
    name: str
    title: str
    comparison: Comparison
    blocks: bool = False
    refused: int = 0
    not_covered: str = ""


@dataclass(frozen=True, slots=True)
class Untried:
    """What there was no room for beside the data, by name; `kind` is `batch`, `shape` or `edge`."""

    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured facts about two models on the same rows. `lineage` doubts that one was made from the other.

    `same_model` says that there is one model on both sides, opened with the same options; `same_bytes` that two files
    hold the same.

    `generated` describes the columns of rows that are not real; it is empty where the rows are. `unit` is what was
    counted: samples where inputs share no axis of rows. `untried` is what would have taken longer than it may.
    """

    rows: int = 0
    expected_rows: int | None = None
    rows_beyond: int = 0
    varied: bool = False
    tolerance: Tolerance = Tolerance(0.0, 0.0)
    nan_equal: bool = True
    outputs: tuple[OutputFacts, ...] = ()
    not_compared: tuple[str, ...] = ()
    casts: tuple[Cast, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    incidents: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    lineage: tuple[str, ...] = ()
    batch_sizes: tuple[BatchSizeFacts, ...] = ()
    batch_orders: tuple[BatchSizeFacts, ...] = ()
    strata: tuple[Stratum, ...] = ()
    timeline: Timeline | None = None
    suites: tuple[SuiteFacts, ...] = ()
    generated: tuple[GeneratedColumn, ...] = ()
    fixed_batch: int | None = None
    quantized_nodes: int = 0
    unit: str = ROWS
    same_model: bool = False
    same_bytes: bool = False
    untried: tuple[Untried, ...] = ()
    stopped: bool = False
    """Rows are left that were not asked about, because a limit could no longer hold."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is doing now. `side` is the model being called with these rows, until `finished`."""

    phase: str
    side: str | None = None
    first: int = 0
    last: int = 0
    done: int = 0
    total: int | None = None
    finished: bool = False


class Checkpoint(Protocol):
    """Keeps what a run has reached: a value that its engine gives and takes."""

    def load(self, details: Mapping[str, Json], fingerprint: Callable[[], str | None]) -> Any:
        """What an earlier run of the same question had reached, or None; `fingerprint` is the hash of the data."""
        ...

    def save(self, state: Any) -> None:
        """Keep this, if it is time for that."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """All an engine needs to compare two models; a description, so that any worker can carry it out.

    `shapes` are lengths by the name of an axis; None leaves the choice to us, none at all tries none. So do
    `batch_sizes`.
    """

    reference: Model
    candidate: Model
    source: Source
    tolerance: Tolerance
    nan_equal: bool = True
    batch_size: int | None = None
    batch_sizes: tuple[int, ...] | None = ()
    shapes: Mapping[str, tuple[int, ...]] | None = None
    pair: Mapping[str, str] = field(default_factory=dict)
    feed: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    stratify: str | None = None
    expected_rows: int | None = None
    progress: Callable[[Progress], None] | None = None
    decided: Callable[[Comparison], bool] | None = None
    """Are the rows so far enough, because no further ones can bring them within the limits? None reads them all."""
    workers: int = 1
    """Processes that compare at the same time."""
    address: str | None = None
    """Of the cluster that they belong to."""
    checkpoint: Checkpoint | None = None
    """Where what was reached is kept, for a run that goes on after a kill."""

    @property
    def nothing(self) -> Comparison:
        """What is known where nothing was compared."""
        return Comparison(tolerance=self.tolerance, nan_equal=self.nan_equal)

    def tell(
        self,
        phase: str,
        side: str | None = None,
        batch: Batch | None = None,
        *,
        done: int | None = None,
        finished: bool = False,
    ) -> None:
        """Let whoever follows the run know what is being done, and with which rows."""
        if self.progress is not None:
            numbers = batch.rows.numbers if batch is not None and len(batch) else (0, 0)
            total = None if done is None else self.expected_rows
            self.progress(Progress(phase, side, int(numbers[0]), int(numbers[-1]), done or 0, total, finished))


@dataclass(frozen=True, slots=True)
class RunFacts:
    """How the run went, beside the comparison. `batch_size` are the rows of a call, by side."""

    batch_size: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Json] = field(default_factory=dict)


Fed: TypeAlias = tuple[tuple[str, int | None], ...]
"""The features that one input of a model is made of, in order: a column, and a position where it is an array."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Seen:
    """What a suite may look at: the first rows on which both agree, their answers to them, and the open models.

    `runners` are by side. The native object of a runner may be None, as where a model runs in another
    process or has only recorded answers. `columns` are those that at least one of the models takes, and
    `fed` tells by side and input what each input is made of.
    """

    batch: Batch
    reference: Tensors
    candidate: Tensors
    pairs: tuple[PairSpec, ...]
    runners: Mapping[str, Runner]
    columns: tuple[str, ...]
    seed: int = 0
    fed: Mapping[str, Mapping[str, Fed]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """One named kind of trouble. `title` says in a sentence what its rows are.

    `batches` makes rows in the form of the data, each named after what was done to it; none where that makes
    no sense. `by_column`: it goes through the columns one by one; of very many it takes a sample.
    `about_batches`: it is about the rows of a batch together; the rows of others stand for themselves.
    `outside`: its values are no ordinary numbers, and a reference may rightly refuse them.
    """

    name: str
    title: str
    batches: Callable[[Seen], Iterable[Batch]]
    by_column: bool = False
    about_batches: bool = False
    outside: bool = False
