"""How far a model's answers move although nothing about it changed, and how that is shown.

Why each reason is measured apart: they call for different things. Answers that do not repeat are a fault,
answers that move with the number of threads are arithmetic, and what float32 inputs do is done to every
export that takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from likewise.contracts.values import dataclass
from likewise.report.console import drawn, plain_table
from likewise.report.words import sentence

if TYPE_CHECKING:
    from rich.console import RenderableType


APART = 100.0
"""Outputs whose sizes differ by so much are better given a limit each."""

REMEDY = (
    "A wrong model would pass above such noise. Make the model repeatable first: fix its seed, compare and serve it "
    "with the same batch size (--batch-size 1), or quantise it statically."
)
"""What to do about answers that move too far."""


@dataclass(frozen=True, slots=True)
class OutputNoise:
    """How far one output moves for one reason.

    `changed` is the share of its values that are not the same, `nonfinite` how many become or cease to be
    finite. The figures in numbers are None where the output holds labels or text. `jumps`: a few values move far
    and the rest hardly at all, as when a threshold is crossed; that is no noise, and no tolerance is proposed
    for it.
    """

    output: str
    values: int
    changed: float
    max_abs: float | None = None
    p99_abs: float | None = None
    max_rel: float | None = None
    p99_rel: float | None = None
    nonfinite: int = 0
    jumps: bool = False


@dataclass(frozen=True, slots=True)
class NoiseSource:
    """One reason why answers move, and by how much; or why that could not be measured."""

    name: str
    title: str
    outputs: tuple[OutputNoise, ...] = ()
    not_measured: str = ""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """What the noise of one output asks for on its own: a limit on its largest difference."""

    output: str
    largest_answer: float
    max_abs_diff: float


@dataclass(frozen=True, slots=True)
class NoiseResult:
    """The noise of one model on some rows, and the tolerances it asks for.

    |difference| <= abs_tol + rel_tol * |answer| holds for `margin` times every movement that was measured and
    is no jump; both are None where no output holds numbers, where the outputs are too unlike for one tolerance
    (`limits` has one for each), and where none can be proposed: `refused` says why, because a tolerance above such
    noise would let a wrong model pass. `dominated_by` is the source that takes most of it.
    """

    model: str
    framework: str
    data: str
    rows: int
    sources: tuple[NoiseSource, ...]
    margin: float
    abs_tol: float | None
    rel_tol: float | None
    dominated_by: str | None
    limits: tuple[OutputLimit, ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...] = ()
    schema_version: int = 1

    @property
    def options(self) -> str:
        """What to say to `likewise check`; empty where nothing is proposed."""
        if self.abs_tol is None or self.rel_tol is None:
            return self.limit_options
        return f"--abs-tol {self.abs_tol:g} --rel-tol {self.rel_tol:g}"

    @property
    def limit_options(self) -> str:
        """The same for each output on its own."""
        return " ".join(f"--limit {limit.output}.max_abs_diff={limit.max_abs_diff:g}" for limit in self.limits)


def table(result: NoiseResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of the sources and what to say to `check`; names of models are text, never markup."""
    return drawn(_parts(result), width=width, colour=colour)


def _parts(result: NoiseResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble((result.model, "bold"), f" ({result.framework}), {result.rows:,} rows of {result.data}")
    yield ""
    yield _figures(result)
    yield ""
    if result.refused:
        for why in result.refused:
            yield Text(f"No tolerance can be proposed: {why}.", style="bold")
        yield Text(REMEDY)
    elif result.abs_tol is not None:
        yield Text(_told(result))
        yield Text(f"  {result.options}", style="bold")
        sizes = [limit.largest_answer for limit in result.limits]
        if max(sizes) > APART * min(sizes):
            yield Text("The outputs are of very different sizes. A limit for each:")
            yield Text(f"  {result.limit_options}", style="bold")
    elif result.limits:
        yield Text("No one tolerance is small against the answers of every output. A limit for each:")
        yield Text(f"  {result.options}", style="bold")
    else:
        yield Text("No output holds numbers, so there is no tolerance to propose.")
    for source in result.sources:
        if source.not_measured:
            yield Text(f"· Not measured: {source.name}. {sentence(source.not_measured)}", style="dim")
    for note in result.notes:
        yield Text(f"! {sentence(note)}", style="yellow")


def _told(result: NoiseResult) -> str:
    times = f"{result.margin:g} times the noise, rounded up, and never below that of float32 itself"
    if result.dominated_by is None:
        jumped = any(output.jumps for source in result.sources for output in source.outputs)
        return f"{'Nothing else moves' if jumped else 'Nothing moves'}. Proposed, {times}:"
    return f"Most of it is {result.dominated_by}. Proposed, {times}:"


def _figures(result: NoiseResult) -> RenderableType:
    from rich.text import Text

    table = plain_table("what moves them", "output", "#max abs", "#p99 abs", "#max rel", "#p99 rel", "#changed")
    for source in result.sources:
        for place, output in enumerate(source.outputs):
            style = "yellow" if output.jumps or output.nonfinite else ""
            table.add_row("" if place else source.name, Text(output.output), *_cells(output), style=style)
    return table


def _cells(output: OutputNoise) -> Iterator[str]:
    for value in (output.max_abs, output.p99_abs, output.max_rel, output.p99_rel):
        yield "–" if value is None else f"{value:.2g}"
    yield f"{100 * output.changed:.3g}%"
