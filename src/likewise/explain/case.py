"""A failed comparison, opened up for experiments.

A `Case` holds both models, open, and a bounded sample of rows with the answers of both. A probe lists changes of
one thing (inputs, answers, a weight, a graph, a setting); `experiment` tries them and tells which of the failing
rows agree then. What a probe found comes back as `Explained`. Every call of a model is within the budget.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.call import Side, answers
from likewise.compare.engines import Head
from likewise.compare.observe import Prepared, paired, prepare, rows_beyond
from likewise.contracts.comparison import Comparison, Incident, Mismatch, Pair, PairSpec, Plan, Tolerance
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, Runner
from likewise.contracts.report import Place
from likewise.contracts.verdict import Outcome, Verdict
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError
from likewise.explain.clock import Clock
from likewise.models.onnx import edits
from likewise.models.remote import resident
from likewise.registry import adapter, adapters, open_model

if TYPE_CHECKING:
    from onnx import ModelProto


CODE = "python"
"""The framework of a function, or of code that builds a model."""

UNNAMED = re.compile(r"output(\.\d+)?")
"""What an output is called that a model does not name."""

NAMED = 20
"""Rows of a diagnosis that are named."""

Known = TypeVar("Known")
Rest = ParamSpec("Rest")


def made_once(make: Callable[Concatenate[Case, Rest], Known]) -> Callable[Concatenate[Case, Rest], Known]:
    """A function of a case whose result is made once a case and kept."""

    shape = signature(make)

    @wraps(make)
    def known(case: Case, /, *arguments: Rest.args, **named: Rest.kwargs) -> Known:
        # What is left out is the same as its default.
        given = shape.bind(case, *arguments, **named)
        given.apply_defaults()
        key = (make, *given.args[1:])
        if key not in case.known:
            case.known[key] = make(case, *arguments, **named)
        return cast(Known, case.known[key])

    return known


MEMORY = 2 * 2**30
"""Bytes, where nobody says otherwise: half of what the smallest of usual CI machines has."""

ELSEWHERE = 0.9
"""The part of further samples that a change has to heal, or leave as right as they were."""

OUT_OF_MEMORY = "the memory for explaining is used up (--memory)"
OUT_OF_TIME = "the time for explaining is used up"


class OutOfTimeError(LikewiseError):
    """The budget of the investigation is used up, or what it may hold."""

    code = "out-of-time"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about a cause, where more is known than that it may help.

    `done`: what the experiment that showed the cause did to the candidate or its answers, in words by which anybody can
    do it again: an option, a line of code, the value of an attribute. `again` tells to export the reference anew, which
    is tried before it is told. `suggestion` is what else may help.
    """

    suggestion: str = ""
    again: str = ""
    done: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """A remedy that can be carried out: what is done, in words, and the candidate's graph as it is then.

    `make` gives None where it turns out that it cannot be done. `options` are settings of the session, under which the
    graph stays as it is. `proven`: just this was done in the experiment that showed the cause.
    """

    told: str
    make: Callable[[], ModelProto | None]
    options: Mapping[str, str] = field(default_factory=dict)
    proven: bool = False


DOUBLE = "Export it in double (likewise export --double)"
WHOLE_PIPELINE = "Export the whole fitted pipeline: likewise export MODEL --data DATA -o model.onnx"
"""Exports that several probes ask for."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What an experiment showed: a cause and where it lies, in words a user can act on.

    `covered` marks the rows of the sample that failed and agree after the change. `share` stands in
    where the experiment was not on rows of the sample (another batch size, the weights themselves).
    `simplicity` breaks ties: 1 is exact knowledge of the culprit (this threshold of that tree, this
    weight), 3 a change from outside that takes the difference away, 5 a suspicion that fits. A remedy that is
    a plain text is a suggestion. `fixes` are ways to carry one out, the best first.
    """

    cause: str
    culprit: Place
    evidence: str
    remedy: Remedy | str
    covered: Array | None = None
    share: float | None = None
    simplicity: int = 3
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows looked at, with the answers of both models. `complete`: every row of the data is among them."""

    batch: Batch
    reference: Tensors
    candidate: Tensors
    pairs: tuple[Pair, ...]
    failing: Array
    complete: bool

    def __len__(self) -> int:
        return len(self.batch)

    def names(self, mask: Array) -> tuple[int | str, ...]:
        """The first rows of a mask, as a person calls them."""
        return tuple(self.batch.rows.name(int(position)) for position in np.flatnonzero(mask)[:NAMED])


@dataclass(slots=True)
class Case:
    """A comparison that failed or was inconclusive.

    `sample`, `reference` and `candidate` are None where the models could not be opened, fed or paired:
    then only `comparison` and what the files themselves say can be looked at. `call_rows` is how many rows the run
    asked in a call, where that was its choice: a network takes far more memory for all rows of the sample at once.
    `others` are further samples, where a sample has no rows: what heals one has to heal them too.
    `deadline` is by the case's own `clock`. `memory` is what the search may take beyond what was taken `before`
    it, in bytes: what it holds at a time is cut to that. `cut_short`: something was left out for lack of time.
    """

    plan: Plan
    comparison: Comparison
    verdict: Verdict
    deadline: float
    tolerance: Tolerance
    runners: dict[str, Runner] = field(default_factory=dict)
    reference: Side | None = None
    candidate: Side | None = None
    specs: tuple[PairSpec, ...] = ()
    sample: Sample | None = None
    others: list[Head] = field(default_factory=list)
    call_rows: int | None = None
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    memory: int = MEMORY
    before: int = field(default_factory=lambda: resident() or 0)
    cut_short: bool = False

    @property
    def held(self) -> int:
        """Bytes of inner values, or of answers, that are held at once, of either side."""
        return self.memory // 32

    @property
    def looked_at(self) -> int:
        """Bytes of inner values of one graph that are looked at in all, window by window."""
        return self.memory // 8

    @property
    def largest_copy(self) -> int:
        """Bytes of a model beyond which no changed copies of it are made."""
        return self.memory // 4

    def seconds_left(self) -> float:
        return self.deadline - self.clock.now()

    def lasts(self, seconds: float) -> bool:
        """Is so much time left? What is left out otherwise was not tried."""
        enough = self.seconds_left() >= seconds
        self.cut_short |= not enough
        return enough

    def require_time(self) -> None:
        """Stop the probe that asks when the budget is used up, or what it may hold."""
        if self.seconds_left() <= 0:
            raise OutOfTimeError(OUT_OF_TIME, remedy="Give more with --explain-budget")
        if (resident() or 0) - self.before > self.memory:
            raise OutOfTimeError(OUT_OF_MEMORY, remedy="Give more with --memory")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What cannot be stopped, such as an export, does not take the time of the probe that needs it."""
        began = self.clock.now()
        yield
        self.deadline += self.clock.now() - began

    def native(self, side: str) -> Any:
        """The framework's own open object of a side (estimator, booster, module, ModelProto), or None."""
        runner = self.runners.get(side)
        return None if runner is None else runner.native

    def framework(self, side: str) -> str:
        """Whose model a side is; that of code that only builds one is the framework of what it built."""
        named, native = self.model(side).framework, self.native(side)
        built = (known.framework for known in adapters() if named == CODE != known.framework and known.claims(native))
        return next(built, named)

    def model(self, side: str) -> Model:
        return self.plan.reference if side == "reference" else self.plan.candidate

    def side(self, name: str) -> Side:
        found = self.reference if name == "reference" else self.candidate
        assert found is not None
        return found

    def graph(self, side: str = "candidate") -> Any:
        """The ONNX ModelProto of a side, its large weights left in their files, or None. Not to be changed: copy it."""
        return self.native(side) if self.framework(side) == "onnx" else None

    @made_once
    def editable(self, side: str = "candidate") -> ModelProto | None:
        """A side's graph in the form that experiments start from: nodes named, functions written out. Copy it."""
        return edits.editable(self.graph(side), self.largest_copy)

    @made_once
    def tensor_types(self, side: str = "candidate") -> dict[str, int]:
        """The types of the tensors of that graph."""
        proto = self.editable(side)
        return {} if proto is None else edits.tensor_types(proto)

    def as_judged(self, spec: PairSpec) -> PairSpec:
        """Where no label may change at all, one that changed within noise fails too."""
        return replace(spec, margin_from=None, margin_kind=None) if self.counts_every_flip(spec) else spec

    def counts_every_flip(self, spec: PairSpec) -> bool:
        """Did an output fail a limit on all labels that changed, those within noise among them?"""
        failed = [check for check in self.verdict.checks if check.outcome is Outcome.FAIL and check.output == spec.name]
        return any(check.measure in ("label_flips", "flip_rate") for check in failed)

    @property
    def required(self) -> Sample:
        """The sample, for a probe that said it needs one."""
        assert self.sample is not None
        return self.sample

    def rows(self, positions: Array) -> Batch:
        """Some rows of the sample, in the order of the positions; what has no row axis can only be taken whole."""
        batch = self.required.batch
        whole = not batch.stacked or np.array_equal(positions, np.arange(len(batch)))
        return batch if whole else batch.at(positions)

    def fed(self, side: str, batch: Batch | None = None) -> Mapping[str, Array]:
        """The sample as a side's model is given it."""
        fed, _ = self.side(side).feed(self.required.batch if batch is None else batch)
        return fed.inputs

    def ask(self, side: str | Side, batch: Batch | None = None, *, size: int | None = None) -> Tensors | None:
        """What a model answers to these rows (by default the sample); None if it refuses."""
        self.require_time()
        asked = self.side(side) if isinstance(side, str) else side
        try:
            return answers(asked, self.required.batch if batch is None else batch, size or self.call_rows)[0]
        except LikewiseError:
            return None

    def ask_fed(self, side: str | Side, inputs: Mapping[str, Array]) -> Tensors | None:
        """What a model answers to inputs that are already in the form it takes; None if it refuses."""
        self.require_time()
        asked = self.side(side) if isinstance(side, str) else side
        try:
            return asked.runner.run(Batch(self.required.batch.rows, ArrayColumns(inputs)))
        except LikewiseError:
            return None

    def ask_changed(
        self,
        side: str,
        *,
        target: Any = None,
        options: Mapping[str, Any] | None = None,
        batch: Batch | None = None,
    ) -> Tensors | None:
        """What a side's model answers with other settings or another graph; None if it does not load or run."""
        with self.opened(side, target=target, options=options) as opened:
            return None if opened is None else self.ask(opened, batch)

    @contextmanager
    def opened(
        self, side: str, *, target: Any = None, options: Mapping[str, Any] | None = None, fed: bool = True
    ) -> Iterator[Side | None]:
        """A side's model once more, with other settings or another graph, until the block ends.

        None if it cannot be opened or, unless it is fed by hand, cannot be fed.
        """
        self.require_time()
        model = self.model(side)
        changed = replace(
            model,
            target=model.target if target is None else target,
            options={**model.options, **(options or {})},
        )
        with ExitStack() as stack:
            try:
                self.make_room(side)
                runner = stack.enter_context(open_model(changed))
                before = self.side(side)
                feed = before.feed if target is None or not fed else self._feed(side, runner)
                found: Side | None = replace(before, runner=runner, feed=feed)
            except LikewiseError:
                found = None
            yield found

    def make_room(self, side: str) -> None:
        """Let a side's own large model rest while a changed copy of it is open: two never are for long."""
        adapter(self.framework(side)).rest(self.runners[side])

    def _feed(self, side: str, runner: Runner) -> feeding.Feed:
        first = self.required.batch.slice(0, 1)
        order = self.reference.feed.columns if self.reference is not None else None
        planned = feeding.plan(first, runner.signature, side=side, order=order, mapping=self.plan.feed)
        return replace(planned, as_it_is=self.side(side).feed.as_it_is)

    def pairs(
        self,
        batch: Batch,
        reference: Tensors,
        candidate: Tensors,
        specs: Sequence[PairSpec] | None = None,
        tolerance: Tolerance | None = None,
    ) -> list[Pair | Mismatch]:
        """The answers of both sides to some rows put together, output by output, as the gate does."""
        return [
            paired(spec, batch, reference, candidate, tolerance or self.tolerance, nan_equal=self.plan.nan_equal)
            for spec in (self.specs if specs is None else specs)
        ]

    def agreeing(
        self, batch: Batch, reference: Tensors, candidate: Tensors, specs: Sequence[PairSpec] | None = None
    ) -> Array:
        """The rows on which these answers agree."""
        return rows_agreeing(self.pairs(batch, reference, candidate, specs), len(batch))

    def compared(
        self, plan: Plan, candidate: Runner, batch: Batch, known: Tensors | None = None
    ) -> tuple[Prepared, Array] | None:
        """How the reference and some candidate are fed and paired, and the rows on which they agree.

        `known` are answers of the reference: it is not asked again if they are all that is compared. None if the two
        cannot be fed or paired; what a model refuses is raised.
        """
        prepared = prepare(plan, self.runners["reference"], candidate, batch)
        if isinstance(prepared, Incident):
            return None
        read, specs = prepared.reference.outputs, [self.as_judged(spec) for spec in prepared.pairing.pairs]
        if known is None or read is None or not read <= known.keys():
            known, _ = answers(prepared.reference, batch, self.call_rows)
        theirs, _ = answers(prepared.candidate, batch, self.call_rows)
        return prepared, self.agreeing(batch, known, theirs, specs)

    def heals_others(self, changed: Mapping[str, Side]) -> bool:
        """Do further samples agree as well, nearly all of them, with a side changed in the same way?"""
        found = []
        for other in self.others:
            told = {name: self.ask(side, other.batch) for name, side in changed.items()}
            ours, theirs = told.get("reference", other.reference), told.get("candidate", other.candidate)
            answered = ours is not None and theirs is not None
            found.append(answered and bool(self.agreeing(other.batch, ours or {}, theirs or {}).all()))
        return sum(found) >= ELSEWHERE * len(found)

    @property
    def by_company(self) -> bool:
        """Have other batches shown that the candidate answers by the rows of a call? Quantised ones do so a little."""
        if self.comparison.quantized_nodes or not self.required.batch.stacked or self.side("candidate").fixed_batch:
            return False
        swept = (*self.comparison.batch_sizes, *self.comparison.batch_orders)
        measures = [output.measures for facts in swept for output in facts.outputs]
        drifts = (found.get(name, 0.0) for found in measures for name in ("batch_drift", "position_drift"))
        return max(drifts, default=0.0) > self.tolerance.absolute

    def failing_pairs(self) -> tuple[Pair, ...]:
        """The pairs of outputs on which rows of the sample fail."""
        return tuple(pair for pair in self.required.pairs if rows_beyond(pair).any())


def rows_agreeing(pairs: Iterable[Pair | Mismatch], rows: int) -> Array:
    """The rows on which all pairs of outputs agree: the one comparison of all experiments, which is the gate's."""
    agrees = np.ones(rows, dtype=bool)
    for pair in pairs:
        agrees &= False if isinstance(pair, Mismatch) else ~rows_beyond(pair)
    return agrees


class Probe(Protocol):
    """One family of causes and the changes that tell them apart."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes it can find, from the closed list."""
        ...

    @property
    def needs_answers(self) -> bool:
        """Does it need a sample with the answers of both models, or can it work on a refusal?"""
        ...

    @property
    def slow(self) -> bool:
        """Is it tried after the others, because it takes long?"""
        ...

    def plausible(self, case: Case) -> bool:
        """Is it worth a test? Cheap, from the facts."""
        ...

    def test(self, case: Case) -> Iterable[Explained]:
        """Change one thing, ask again, and say what that showed; nothing if it explains nothing.

        What was told before the time ran out is kept.
        """
        ...


Look = Callable[[Case], "Explained | Iterable[Explained] | None"]
"""Changes one thing, asks again, and tells what that showed: nothing, one thing, or several."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A probe that is one function."""

    causes: tuple[str, ...]
    look: Look
    plausible: Callable[[Case], bool]
    needs_answers: bool
    slow: bool

    def test(self, case: Case) -> Iterable[Explained]:
        found = self.look(case)
        return () if found is None else (found,) if isinstance(found, Explained) else found


def probe(
    *causes: str, when: Callable[[Case], bool] = lambda case: True, needs_answers: bool = True, slow: bool = False
) -> Callable[[Look], Hypothesis]:
    """Make a probe of a function, which is worth a test `when` the facts, cheaply seen, say so."""
    return lambda look: Hypothesis(causes, look, when, needs_answers, slow)
