"""A judgement under way: limits beside their measures, and what a reader should know about tolerance and rows.

A tolerance may be smaller than what a model's own answers move by, or so wide that a model which always
answers the same would pass; and generated rows allow no claim about real ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from likewise.compare.metrics.distribution import ALIKE
from likewise.contracts.comparison import Comparison, OutputFacts, Tolerance
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import (
    AT_LEAST,
    Check,
    Confidence,
    Finding,
    Limit,
    Outcome,
    Policy,
    Severity,
    at_sizes,
    figure,
)
from likewise.data.cells import listed
from likewise.judge.policy import LOSSY

DRIFTS = {"batch_drift": "candidate", "reference_drift": "reference"}
"""How far a model's answers move between batch sizes, and whose."""

NOISE = 1e-3
"""Answers that move by more than this part of the largest are no noise: that is judged as a difference."""

ENOUGH = 10
"""Fewer rows may lie close together by chance."""

TARGETS = 64
"""Wider answers are features of one scale; one of them that hardly moves is told and does not block."""

OF_PRESETS = frozenset({"mismatch_rate", "max_abs_diff", "mean_abs_diff"})
"""What presets bound the differences of numbers by."""

INSTEAD = frozenset({"max_abs_diff", "max_rel_diff", "mismatch_rate"})
"""A limit of a user's on these says how far, or how many, whole numbers may differ, which else are to be equal."""

FLIPS = frozenset({"label_flips", "flip_rate"})
"""A limit of a user's on these says how many labels may change."""

TOP_CLASS = {"label_flips": "top1_flips", "flip_rate": "top1_flip_rate", "material_flips": "top1_material_flips"}
"""What limits on labels ask of scores."""

NAMED_OUTPUTS = 2
"""Outputs that are named in the headline."""


@dataclass(slots=True)
class Judgement:
    """The facts, what is acceptable, and what has been made of them up to now."""

    comparison: Comparison
    policy: Policy
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def fail(self, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, Severity.FAILURE, message, output, remedy))

    def doubt(self, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, Severity.INCONCLUSIVE, message, output, remedy))

    def warn(self, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, Severity.WARNING, message, output, remedy))

    def note(self, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, Severity.NOTE, message, output, remedy))


def checked(case: Judgement, limit: Limit, output: OutputFacts, batch_size: int | None = None) -> Iterator[Check]:
    """The limit beside its measure, if the output has it."""
    value = output.measures.get(limit.measure)
    if value is None and _asks_for_top_class(case, limit):
        value = output.measures.get(TOP_CLASS[limit.measure])
    if value is None or _gives_way(case.policy, limit, output):
        return
    bound = _bound(case.policy, limit, output)
    within = value >= bound if limit.measure in AT_LEAST else value <= bound
    outcome = Outcome.PASS if within else Outcome.FAIL
    if limit.measure in ("mismatch_rate", "material_flips") and _asked_otherwise(case, output):
        outcome, value = _again(case, limit, output)
    if outcome is Outcome.INCONCLUSIVE:
        where = f" at batch size {batch_size}" if batch_size is not None else ""
        case.doubt(
            "undecided",
            f"{output.name}.{limit.measure}{where} cannot be decided under the new tolerance from the stored facts",
            output=output.name,
            remedy="Run the check again with this tolerance",
        )
    yield Check(output.name, limit.measure, value, bound, outcome, batch_size)


def concerns(limit: Limit, output: OutputFacts) -> bool:
    """Is the limit on this output, or on all of them?"""
    return limit.output in (None, output.name, output.pair.candidate)


def _asks_for_top_class(case: Judgement, limit: Limit) -> bool:
    """Scores are asked for their best class where somebody limits labels and no model gives any."""
    if not limit.explicit or limit.measure not in TOP_CLASS:
        return False
    return limit.output is not None or not any("label_flips" in output.measures for output in case.comparison.outputs)


def _gives_way(policy: Policy, limit: Limit, output: OutputFacts) -> bool:
    """Has the user said how far these whole numbers may differ, or how many of these labels?"""
    instead: frozenset[str] = frozenset()
    if limit.measure in OF_PRESETS and _must_be_equal(policy, limit, output):
        instead = INSTEAD
    elif limit.measure == "material_flips" and policy.preset in LOSSY and not limit.explicit:
        instead = FLIPS
    return any(other.explicit and other.measure in instead and concerns(other, output) for other in policy.limits)


def _bound(policy: Policy, limit: Limit, output: OutputFacts) -> float:
    """What a limit asks of an output: of whole numbers no preset allows any difference."""
    exact = limit.measure == "max_abs_diff" and _must_be_equal(policy, limit, output)
    return 0.0 if exact else limit.bound


def _must_be_equal(policy: Policy, limit: Limit, output: OutputFacts) -> bool:
    """Is this a preset's limit beside whole numbers?"""
    return policy.tolerance.exact_integers and output.integer_rounding is not None and not limit.explicit


def _asked_otherwise(case: Judgement, output: OutputFacts) -> bool:
    """Was the output measured under another tolerance than it is judged by?"""
    return output.asked_by(case.policy.tolerance) != output.asked_by(case.comparison.tolerance)


def _again(case: Judgement, limit: Limit, output: OutputFacts) -> tuple[Outcome, float | None]:
    """A measure that depends on the tolerance, under another tolerance than the run's.

    The stored facts bound it from both sides: what is published is the bound that decides.
    """
    low, high = _bounds(output, limit.measure, case.policy.tolerance)
    if high <= limit.bound:
        return Outcome.PASS, high
    return (Outcome.INCONCLUSIVE, None) if low <= limit.bound else (Outcome.FAIL, low)


def _bounds(output: OutputFacts, measure: str, tolerance: Tolerance) -> tuple[float, float]:
    """The least and the most that `mismatch_rate` or `material_flips` can be under a tolerance."""
    tolerance = output.asked_by(tolerance)
    if measure == "material_flips":
        margins = output.details.get("agreement", output.details.get("top_class", {}))["margins"]
        low, high = map(float, flips_above(margins, 2 * tolerance.absolute))
        return low if tolerance.relative == 0 else 0.0, high
    facts, broken = output.details["closeness"], output.measures["nonfinite_mismatch"]
    certain, possible = mismatch_bounds(facts["magnitudes"], tolerance.absolute, tolerance.relative)
    return max(broken, certain) / facts["values"], 1.0 if possible or broken else 0.0


def rows_beyond(case: Judgement) -> int | None:
    """How many rows the tolerance does not cover; None where the facts of a run under another one do not tell."""
    comparison, tolerance = case.comparison, case.policy.tolerance
    nan = any(output.measures.get("nan_both") for output in comparison.outputs)
    same = not any(_asked_otherwise(case, output) for output in comparison.outputs)
    if same and (not nan or case.policy.nan_equal == comparison.nan_equal):
        return comparison.rows_beyond
    if nan and not case.policy.nan_equal:
        return None
    measures = ("mismatch_rate", "material_flips")
    most = [_bounds(o, m, tolerance)[1] for o in comparison.outputs for m in measures if m in o.measures]
    return 0 if most and not any(most) and not comparison.mismatches else None


def in_words(check: Check) -> str:
    """A limit that does not hold, in words."""
    side = "below" if check.measure in AT_LEAST else "above"
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    return f"{check.output}.{check.measure} is {figure(check.value)}{where}, {side} its limit of {figure(check.bound)}"


IN_WORDS = {
    "max_abs_diff": "the largest difference",
    "mean_abs_diff": "the mean difference",
    "max_rel_diff": "the largest relative difference",
    "p50_abs_diff": "the median difference",
    "p90_abs_diff": "the 90th percentile of the differences",
    "p95_abs_diff": "the 95th percentile of the differences",
    "p99_abs_diff": "the 99th percentile of the differences",
    "p99_9_abs_diff": "the 99.9th percentile of the differences",
}
"""What a measure is to a reader."""

LABELS = frozenset({"material_flips", "label_flips", "flip_rate"})
VALUES = frozenset({"mismatch_rate", "max_abs_diff", "nonfinite_mismatch"})
"""Limits that single labels and single values fail."""

DIFFERING = ("rows_beyond", "label_flips")
"""Measures that count rows."""


def failure_in_words(case: Judgement, failed: Sequence[Check]) -> str:
    """What the limits that do not hold amount to: rows that differ, labels that changed, or else the first of them."""
    sizes = sorted({check.batch_size for check in failed if check.batch_size is not None})
    elsewhere = all(check.batch_size is not None for check in failed)
    found = [facts for facts in case.comparison.batch_sizes if facts.size in sizes] if elsewhere else []
    told_of = [(output, facts.rows) for facts in found for output in facts.outputs]
    told_of = told_of or [(output, case.comparison.rows) for output in case.comparison.outputs]
    asked = {name: _Asked.of([entry for entry in told_of if entry[0].name == name]) for name in _names(told_of)}
    tolerance = case.policy.tolerance.in_other_batches if elsewhere else case.policy.tolerance
    known = case.comparison.tolerance.in_other_batches if elsewhere else case.comparison.tolerance
    told = list(_values_in_words(case, failed, asked, tolerance, known))
    told += _labels_in_words(failed, asked)
    if not told:
        check = failed[0]
        what = IN_WORDS.get(check.measure)
        if what is None:
            return in_words(check)
        told = [f"{what} in {check.output!r} is {figure(check.value)}, and {figure(check.bound)} is allowed"]
    text = "; ".join(told)
    return f"{at_sizes(sizes, [facts.size for facts in case.comparison.batch_sizes])}: {text}" if elsewhere else text


@dataclass(frozen=True, slots=True)
class _Asked:
    """An output on its rows; of several batch sizes, where most differ. `alike`: at the others as many do."""

    output: OutputFacts
    rows: int
    sizes: int
    alike: bool

    @staticmethod
    def of(found: Sequence[tuple[OutputFacts, int]]) -> _Asked:
        rows = [_rows_of(output) or given for output, given in found]
        differing = [max(output.measures.get(name, 0.0) for name in DIFFERING) for output, _ in found]
        worst = max(range(len(found)), key=lambda place: differing[place])
        shares = {count / max(of, 1) for count, of in zip(differing, rows, strict=True)}
        return _Asked(found[worst][0], rows[worst], len(found), len(shares) == 1)

    def counted(self, count: int, unit: str) -> str:
        """So many of the rows; at several batch sizes at most so many."""
        if self.alike and 1 < count == self.rows:
            return f"all {unit}" if self.sizes > 1 else f"all {count:,} {unit}"
        return f"{'' if self.alike else 'up to '}{count:,} of {self.rows:,} {unit}"


def _rows_of(output: OutputFacts) -> int:
    """How many rows, or labels, the figures of an output are about; 0 where it does not say."""
    facts = [output.details.get(name, {}).get("rows", 0) for name in ("closeness", "agreement")]
    return int(next((rows for rows in facts if rows), 0))


def _names(found: Sequence[tuple[OutputFacts, int]]) -> Iterable[str]:
    return dict.fromkeys(output.name for output, _ in found)


def _values_in_words(
    case: Judgement,
    failed: Sequence[Check],
    asked: Mapping[str, _Asked],
    tolerance: Tolerance,
    measured: Tolerance,
) -> Iterator[str]:
    """Rows that differ, first in the output where most do."""
    outputs = {name: entry.output for name, entry in asked.items()}
    names = dict.fromkeys(check.output for check in failed if check.measure in VALUES)
    rows = {name: outputs[name].measures.get("rows_beyond", 0.0) for name in names if name in outputs}
    same = {name: outputs[name].asked_by(tolerance) == outputs[name].asked_by(measured) for name in rows}
    counted = sorted((name for name in rows if rows[name] and same[name]), key=lambda name: -rows[name])
    for place, name in enumerate(counted[:NAMED_OUTPUTS]):
        output = outputs[name]
        allowed = output.asked_by(tolerance)
        unit = f"generated {case.comparison.unit}" if case.comparison.generated else case.comparison.unit
        count = int(rows[name])
        whole = tolerance.exact_integers and output.integer_rounding is not None
        beyond = f" by more than {allowed.text}" if (allowed.absolute or allowed.relative) and not whole else ""
        if place:
            yield f"{count:,} in {name!r}"
            continue
        differ = "differs" if count == 1 else "differ"
        shown = asked[name].counted(count, unit)
        yield f"{shown} {differ}{beyond} in {name!r}{_worst_by(output, allowed)}"
    if len(counted) > NAMED_OUTPUTS:
        left = len(counted) - NAMED_OUTPUTS
        yield f"and in {left:,} more output{'s' * (left > 1)}"
    if not counted and any(not held for held in same.values()):
        name = next(name for name in same if not same[name])
        largest = figure(outputs[name].measures.get("max_abs_diff"))
        yield f"{name!r} differs by up to {largest}, and {outputs[name].asked_by(tolerance).text} is allowed"


def _worst_by(output: OutputFacts, allowed: Tolerance) -> str:
    """The largest difference that is beyond tolerance for certain; of large answers more may be allowed."""
    if output.measures.get("nonfinite_mismatch"):
        return ", the worst is NaN or infinite on one side only"
    largest = {
        _magnitude_range(entry["exponent"])[1]: float(entry["max_abs_diff"])
        for entry in output.details.get("closeness", {}).get("magnitudes", ())
    }
    beyond = [apart for most, apart in largest.items() if not apart <= allowed.absolute + allowed.relative * most]
    known = beyond or [row["abs_diff"] for row in output.worst_rows[:1] if isinstance(row.get("abs_diff"), float)]
    return f", the worst by {figure(max(known))}" if known else ""


def _labels_in_words(failed: Sequence[Check], asked: Mapping[str, _Asked]) -> Iterator[str]:
    for name in dict.fromkeys(check.output for check in failed if check.measure in LABELS and check.output in asked):
        measures = asked[name].output.measures
        count, material = int(measures.get("label_flips", 0)), int(measures.get("material_flips", 0))
        if count:
            noise = "" if count == material else f", {material:,} by more than noise"
            labels = f"labels of {name!r}" if name != "label" else "labels"
            most = "" if asked[name].alike else "up to "
            yield f"{most}{count:,} of {asked[name].rows:,} {labels} changed{noise}"


def noise_findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """What is asked of each output, beside how far the models themselves move."""
    for output in comparison.outputs:
        largest = _largest_answer(output)
        bound = _allowed(output, policy, largest)
        if bound is None:
            continue
        for measure, side in DRIFTS.items():
            moves = output.measures.get(measure)
            if moves is not None and bound < moves <= NOISE * largest:
                yield Finding(
                    "below-noise-floor",
                    Severity.WARNING,
                    f"the tolerance of {output.name!r}, {bound:.3g}, is below what the {side}'s own answers move "
                    f"between batch sizes, {moves:.3g}: a failure of that size may be noise",
                    output.name,
                    f"Measure it: likewise noise {side.upper()} --data FILE, and choose a tolerance above it",
                )


def _largest_answer(output: OutputFacts) -> float:
    """A bound on the reference's answers; zero where they are no numbers."""
    known = [entry["exponent"] for entry in output.details.get("closeness", {}).get("magnitudes", ())]
    exponents = [exponent for exponent in known if exponent is not None]
    return math.ldexp(1.0, min(max(exponents), 1023)) if exponents else 0.0


def _allowed(output: OutputFacts, policy: Policy, largest: float) -> float | None:
    """The most that any answer may differ by; None where no limit bounds single answers."""
    tolerance, bounds = output.asked_by(policy.tolerance), []
    for limit in policy.limits:
        if concerns(limit, output):
            if limit.measure == "max_abs_diff":
                bounds.append(_bound(policy, limit, output))
            elif limit.measure == "mismatch_rate" and limit.bound == 0:
                bounds.append(tolerance.absolute + tolerance.relative * largest)
    return min(bounds, default=None)


def wide_tolerance_findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """Where the tolerance covers everything the reference says, in an output or in one of its columns.

    That is inconclusive where the candidate does not follow the reference either and the user did not choose the
    tolerance; else it is a warning.
    """
    if not comparison.varied:
        return
    for output in comparison.outputs:
        extremes = output.details.get("extremes", {})
        bounds = extremes.get("widest")
        if bounds is None or bounds[0] == bounds[1]:
            continue
        low, high = bounds
        bound = _covering(output, policy, low, high)
        chosen = any(limit.explicit and concerns(limit, output) for limit in policy.limits)
        doubtful = Severity.WARNING if chosen or comparison.rows < ENOUGH else Severity.INCONCLUSIVE
        if bound is None:
            yield from _wide_in_columns(output, policy, extremes.get("columns", {}), doubtful)
            continue
        # Written so that NaN does not follow.
        follows = output.measures.get("max_abs_diff", 0.0) <= ALIKE * (high - low)
        yield _wide(output, f"{output.name!r}", (low, high), bound, Severity.WARNING if follows else doubtful)


def _covering(output: OutputFacts, policy: Policy, low: float, high: float) -> float | None:
    """The most that answers may differ by, if some number is within tolerance of everything between these two."""
    below, above = (_allowed(output, policy, abs(end)) for end in (low, high))
    return None if below is None or above is None or high - low > below + above else max(below, above)


def _wide(output: OutputFacts, what: str, bounds: tuple[float, float], bound: float, severity: Severity) -> Finding:
    low, high = bounds
    return Finding(
        "wide-tolerance",
        severity,
        f"the reference's {what} goes from {low:.4g} to {high:.4g} and may differ by {bound:.3g}: "
        "a model that always answers the same would be within tolerance",
        output.name,
        f"Choose one below the differences that matter, such as --abs-tol {(high - low) / 1000:.0e} --rel-tol 0",
    )


def _wide_in_columns(
    output: OutputFacts, policy: Policy, columns: Mapping[str, Any], doubtful: Severity
) -> Iterator[Finding]:
    """A small target beside a large one. Classes are no targets: most have small probabilities by nature."""
    if output.pair.kind is Kind.PROBABILITY or columns.get("count", 0) < 2:
        return
    wide = []
    for place, low, high, apart in columns["narrowest"]:
        if (bound := _covering(output, policy, low, high)) is not None:
            wide.append((place, (low, high), bound, apart <= ALIKE * (high - low)))
    left = [entry for entry in wide if not entry[3]]
    if not wide:
        return
    place, bounds, bound, follows = (left or wide)[0]
    severity = Severity.NOTE if follows else doubtful if columns["count"] <= TARGETS else Severity.WARNING
    others = f" (as are {len(left or wide) - 1} other columns or more)" if len(left or wide) > 1 else ""
    yield _wide(output, f"column {place} of {output.name!r}{others}", bounds, bound, severity)


def generated_findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """A warning on every verdict that stands on generated rows; a rate among real rows cannot be shown by them."""
    columns = comparison.generated
    if not columns:
        return
    rounded = [column.name for column in columns if column.fractions_untried]
    blind = [column.name for column in columns if not column.known and not column.fractions_untried]
    guessed = f"; nothing is known about {len(blind):,} of {len(columns):,} columns: {listed(blind)}" if blind else ""
    if rounded:
        guessed += f"; only whole numbers were tried, because the candidate takes no others, in {listed(rounded)}"
    yield Finding(
        "generated-data",
        Severity.WARNING,
        f"the rows are generated from what the models say about their inputs, none of them real{guessed}",
        remedy="Check on real rows before you deploy: --data FILE",
    )
    if policy.max_failure_rate is not None:
        yield Finding(
            "generated-rate",
            Severity.INCONCLUSIVE,
            "generated rows cannot show how many real ones are beyond tolerance",
            remedy="Give real rows, or leave --max-failure-rate out",
        )


def generated_confidence(violations: int, rows: int, level: float, unit: str) -> Confidence | None:
    """The count without a claim: generated rows are like no others, so no rate is ruled out."""
    if rows == 0:
        return None
    statement = f"{violations:,} of {rows:,} generated {unit} beyond tolerance: nothing is claimed about real ones"
    return Confidence(level, rows, violations, 1.0, statement)


def _count_above(spans: Iterable[Any], threshold: float) -> tuple[int, int]:
    certain = possible = 0
    for above, up_to, amount in spans:
        if float(up_to) > threshold:
            possible += int(amount)
            # A bucket excludes its lower edge, except the bucket of zero, which is never above anything.
            certain += int(amount) if float(above) >= threshold else 0
    return certain, possible


def flips_above(margins: Mapping[str, Any], threshold: float) -> tuple[int, int]:
    """How many of the stored flips had a margin above a threshold: at least, and at most.

    `margins` is what the agreement metric keeps in its details. A flip whose margin is unknown
    counts as above.
    """
    certain, possible = _count_above(margins["spans"], threshold)
    return certain + int(margins["unknown"]), possible + int(margins["unknown"])


def mismatch_bounds(magnitudes: Iterable[Mapping[str, Any]], absolute: float, relative: float) -> tuple[bool, bool]:
    """Whether some stored element is certainly, and whether one is possibly, beyond another tolerance.

    `magnitudes` is what the closeness metric keeps in its details: the largest difference of the
    elements whose reference lies in [2**(exponent-1), 2**exponent), or is zero (exponent null).
    """
    certain = possible = False
    for entry in magnitudes:
        least, most = _magnitude_range(entry["exponent"])
        largest = float(entry["max_abs_diff"])
        # The largest double stands for all differences that are larger still, up to twice as large.
        scale = 2.0 if largest >= sys.float_info.max else 1.0
        possible |= not largest <= absolute / scale + relative * (least / scale)
        certain |= not largest <= absolute + relative * most
    return certain, possible


def _magnitude_range(exponent: int | None) -> tuple[float, float]:
    if exponent is None:
        return 0.0, 0.0
    least = 0.0 if exponent < sys.float_info.min_exp else math.ldexp(0.5, exponent)
    most = math.ldexp(1.0, exponent) if exponent < sys.float_info.max_exp else sys.float_info.max
    return least, most
