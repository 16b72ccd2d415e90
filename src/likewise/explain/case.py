"""A failed comparison, opened up for experiments.

A `Case` holds both models, open, and a bounded sample of rows with the answers of both. A hypothesis
changes one thing (the inputs of one side, its answers, its settings, its graph), asks the model again,
and reads from the `Effect` how many of the failing rows agree now and how many others no longer do.
What it found comes back as `Explained`. Every call of a model is within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from likewise.compare import feed
from likewise.compare.call import Side, answers
from likewise.compare.observe import paired, rows_beyond
from likewise.contracts.comparison import Comparison, Mismatch, Pair, PairSpec, Plan, Tolerance
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, Runner
from likewise.contracts.verdict import Verdict
from likewise.data.columns import ArrayColumns, with_columns
from likewise.data.rows import rows_at
from likewise.errors import LikewiseError
from likewise.registry import adapter

ENOUGH = 0.5
"""A change explains a failure if this share of the failing rows agree after it."""

HARMLESS = 0.02
"""... and if no larger share of the other rows stops agreeing."""


class OutOfTimeError(LikewiseError):
    """The budget of the investigation is used up."""

    code = "out-of-time"


@dataclass(frozen=True, slots=True)
class Explained:
    """What an experiment showed: a cause and a culprit, in words a user can act on.

    `covered` marks the rows of the sample that failed and agree after the change. `share` stands in
    where the experiment was not on rows of the sample (another batch size, the weights themselves).
    `simplicity` breaks ties: 1 is exact knowledge of the culprit (this threshold of that tree, this
    weight), 3 a change from outside that takes the difference away, 5 a suspicion that fits.
    """

    cause: str
    culprit: str
    evidence: str
    remedy: str
    covered: Array | None = None
    share: float | None = None
    simplicity: int = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change did: which rows of the sample agree after it.

    `share` is the part of the failing rows that agree now, `damage` the part of the others that no
    longer do.
    """

    agrees: Array
    failing: Array

    @property
    def covered(self) -> Array:
        covered: Array = self.failing & self.agrees
        return covered

    @property
    def share(self) -> float:
        return float(self.covered.sum() / max(int(self.failing.sum()), 1))

    @property
    def damage(self) -> float:
        others = ~self.failing
        return float((others & ~self.agrees).sum() / max(int(others.sum()), 1))

    @property
    def explains(self) -> bool:
        return self.share >= ENOUGH and self.damage <= HARMLESS


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

    def names(self, mask: Array, limit: int = 20) -> tuple[int | str, ...]:
        """The first rows of a mask, as a person calls them."""
        import numpy as np

        return tuple(self.batch.rows.name(int(position)) for position in np.flatnonzero(mask)[:limit])


@dataclass(slots=True)
class Case:
    """A comparison that failed or was inconclusive.

    `sample`, `reference` and `candidate` are None where the models could not be opened, fed or paired:
    then only `comparison` and what the files themselves say can be looked at.
    """

    plan: Plan
    comparison: Comparison
    verdict: Verdict
    deadline: float
    stack: ExitStack
    tolerance: Tolerance
    runners: dict[str, Runner] = field(default_factory=dict)
    reference: Side | None = None
    candidate: Side | None = None
    specs: tuple[PairSpec, ...] = ()
    sample: Sample | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def require_time(self) -> None:
        """Stop the hypothesis that asks when the budget is used up."""
        if self.seconds_left() <= 0:
            raise OutOfTimeError("the time for explaining is used up", remedy="Give more with --explain-budget")

    def native(self, side: str) -> Any:
        """The framework's own open object of a side (estimator, booster, module, ModelProto), or None."""
        runner = self.runners.get(side)
        return None if runner is None else runner.native

    def framework(self, side: str) -> str:
        model: Model = getattr(self.plan, side)
        return model.framework

    def graph(self, side: str = "candidate") -> Any:
        """The ONNX ModelProto of a side with its weights, or None. Not to be changed: copy it."""
        if self.framework(side) != "onnx" or side not in self.runners:
            return None
        if side not in self.memory:
            self.memory[side] = graph_with_weights(getattr(self.plan, side))
        return self.memory[side]

    def failing_pairs(self) -> tuple[Pair, ...]:
        """The pairs of outputs on which rows of the sample fail."""
        sample = self.required
        return tuple(pair for pair in sample.pairs if rows_beyond(pair).any())

    @property
    def required(self) -> Sample:
        """The sample, for a hypothesis that said it needs one."""
        assert self.sample is not None
        return self.sample

    def ask(self, side: str | Side, batch: Batch | None = None, *, size: int | None = None) -> Tensors | None:
        """What a model answers to these rows (by default the sample); None if it refuses."""
        self.require_time()
        asked = self.side(side) if isinstance(side, str) else side
        try:
            return answers(asked, self.required.batch if batch is None else batch, size)[0]
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

    def fed(self, side: str, batch: Batch | None = None) -> Mapping[str, Array]:
        """The sample as a side's model is given it."""
        fed, _ = self.side(side).feed(self.required.batch if batch is None else batch)
        return fed.inputs

    def side(self, name: str) -> Side:
        found: Side | None = getattr(self, name)
        assert found is not None
        return found

    def changed(self, columns: Mapping[str, Array]) -> Batch:
        """The sample with other values in some columns."""
        batch = self.required.batch
        return replace(batch, inputs=with_columns(batch.inputs, columns))

    def rows(self, positions: Array) -> Batch:
        """Some rows of the sample, in the order of the positions."""
        return rows_at(self.required.batch, positions)

    def reopened(self, side: str, *, target: Any = None, options: Mapping[str, Any] | None = None) -> Side | None:
        """A side's model once more, with other settings or another graph; None if it cannot be opened or fed."""
        self.require_time()
        model: Model = getattr(self.plan, side)
        model = replace(
            model,
            target=model.target if target is None else target,
            options={**model.options, **(options or {})},
        )
        try:
            runner = self.stack.enter_context(adapter(model.framework).open(model))
            before = self.side(side)
            fed = before.feed
            if target is not None:
                first = self.required.batch.slice(0, 1)
                order = self.reference.feed.columns if self.reference is not None else None
                fed = feed.plan(first, runner.signature, side=side, order=order, mapping=self.plan.feed)
        except LikewiseError:
            return None
        return replace(before, runner=runner, feed=fed)

    def effect(self, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> Effect:
        """Compare again with the answers of one side replaced."""
        import numpy as np

        sample = self.required
        pairs = pairs_of(
            self.specs,
            sample.batch,
            sample.reference if reference is None else reference,
            sample.candidate if candidate is None else candidate,
            self.tolerance,
            nan_equal=self.plan.nan_equal,
        )
        beyond = np.zeros(len(sample), dtype=bool)
        for pair in pairs:
            beyond |= True if isinstance(pair, Mismatch) else rows_beyond(pair)
        return Effect(~beyond, sample.failing)


def pairs_of(
    specs: Sequence[PairSpec],
    batch: Batch,
    reference: Tensors,
    candidate: Tensors,
    tolerance: Tolerance,
    *,
    nan_equal: bool = True,
) -> list[Pair | Mismatch]:
    """The answers of both sides put together, output by output."""
    return [paired(spec, batch, reference, candidate, tolerance, nan_equal=nan_equal) for spec in specs]


def graph_with_weights(model: Model) -> Any:
    """The graph with everything stored beside the file."""
    import onnx

    from likewise.models.onnx.describe import read

    proto = read(model.target)
    if isinstance(model.target, bytes | onnx.ModelProto):
        return proto
    return onnx.load(str(model.target))


class Hypothesis(Protocol):
    """One family of causes and the experiments that tell them. One with `slow = True` is tested after the others."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes it can find, from the closed list."""
        ...

    @property
    def needs_answers(self) -> bool:
        """Does it need a sample with the answers of both models, or can it work on a refusal?"""
        ...

    def plausible(self, case: Case) -> bool:
        """Is it worth a test? Cheap, from the facts."""
        ...

    def test(self, case: Case) -> Sequence[Explained]:
        """Change one thing, ask again, and say what that showed; nothing if it explains nothing."""
        ...
