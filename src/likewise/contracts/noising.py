"""How far a model's answers move although nothing about it changed: the floor under every tolerance.

Why each reason is measured apart: they call for different things. Answers that do not repeat are a fault,
answers that move with the number of threads are arithmetic, and what float32 inputs do is done to every
export that takes them.
"""

from __future__ import annotations

from dataclasses import dataclass


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
