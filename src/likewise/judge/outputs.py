"""What a reader should know about each output beside its limits: labels, NaN, form, constant answers, meaning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from likewise.contracts.comparison import OutputFacts
from likewise.contracts.models import Kind
from likewise.contracts.verdict import Outcome
from likewise.judge.findings import Judgement
from likewise.judge.policy import FORM
from likewise.models.arrays import kind_of

ROUNDING = 0.01
"""How far outside 0 and 1 rounding may carry a probability, also an INT8 one; what is further out is none."""

MANY_NAN = 0.1
"""From this share on, NaN on both sides is more than gaps in the data: it is a warning, and stands in the headline."""

BESIDE_VALUES = frozenset({"nonfinite_mismatch", "nan_share", *FORM})
"""Limits that hold for outputs whose values were never compared."""


def holds_numbers(output: OutputFacts) -> bool:
    """Is there a number to hold against a tolerance? Labels, text and no values at all are judged by what fits them."""
    return "nonfinite_mismatch" in output.measures or not (is_empty(output) or "label_flips" in output.measures)


def is_empty(output: OutputFacts) -> bool:
    """There are rows, and none of them holds a value: shape and type are all there is to compare."""
    facts = output.details.get("closeness", {})
    return bool(facts.get("rows")) and not facts["values"]


def _is_missing(output: OutputFacts) -> bool:
    """Are there labels, and is none of them anything on either side?"""
    facts = output.details.get("agreement", {})
    return bool(facts.get("rows")) and facts.get("told") == 0


def judge_outputs(case: Judgement) -> None:
    judged = {check.output for check in case.checks if check.measure not in BESIDE_VALUES}
    labelled = any("label_flips" in output.measures for output in case.comparison.outputs)
    failed = {check.output for check in case.checks if check.outcome is Outcome.FAIL}
    mismatched = {mismatch.output for mismatch in case.comparison.mismatches}
    if case.comparison.outputs and all(map(is_empty, case.comparison.outputs)):
        case.doubt(
            "no-values",
            "no output holds a value for any row: only shapes and types were compared",
            remedy="Give rows to which the models have an answer",
        )
    for output in case.comparison.outputs:
        measures = output.measures
        # What is NaN or infinite on one side only was judged, and failed.
        hollow = "nonfinite_mismatch" in measures and "max_abs_diff" not in measures and output.name not in failed
        unjudged = output.name not in judged and output.name not in mismatched
        if is_empty(output):
            case.warn("no-values", f"output {output.name!r} holds no values: its shape and type were compared")
        elif _is_missing(output):
            case.doubt(
                "not-judged",
                f"output {output.name!r} was not judged: all of it is missing on both sides",
                output=output.name,
                remedy="Give rows to which the models have an answer",
            )
        elif hollow or (unjudged and (output.pair.kind is not Kind.LABEL or not judged)):
            case.doubt(
                "not-judged",
                f"output {output.name!r} was not judged: "
                + ("none of its values is finite on both sides" if hollow else "no limit applies to it"),
                output=output.name,
                remedy="Set a limit that applies, such as --limit label_flips=0"
                if output.pair.kind is Kind.LABEL
                else "Look at the worst rows in the report, and at the models' answers to them",
            )
        elif not unjudged and measures.get("label_flips") and not measures["material_flips"]:
            flips = int(measures["label_flips"])
            told = "1 label changed, within noise" if flips == 1 else f"{flips:,} labels changed, all within noise"
            case.note("label-flips", told, output=output.name)
        elif unjudged and measures.get("label_flips"):
            case.warn(
                "label-flips",
                f"{int(measures['label_flips']):,} of {case.comparison.rows:,} labels of {output.name!r} changed, "
                f"{int(measures['material_flips']):,} by more than noise, and no limit applies to them",
                output=output.name,
                remedy="Set one with --limit material_flips=0",
            )
        if measures.get("top1_flips") and not labelled:
            _judge_top_class(case, output)
        if measures.get("nan_both"):
            _judge_nan(case, output)
        if output.pair.kind is Kind.LABEL and measures.get("material_flips") and not output.pair.scores:
            case.note(
                "no-scores",
                f"no scores were compared, so a changed label of {output.name!r} cannot be told from noise",
                output=output.name,
                remedy="Let the candidate give them too, or say how many may change: --limit material_flips=N",
            )
        for told in output.pair.notes:
            case.note("pairing", f"{output.name}: {told}", output=output.name)
        _judge_form(case, output)
        _judge_constancy(case, output)
        _judge_meaning(case, output)
        if output.details.get("agreement", {}).get("types_differ"):
            case.warn(
                "label-types",
                f"labels of {output.name!r} are text on one side and numbers on the other: none can be equal",
                output=output.name,
                remedy="Export the labels themselves, not their positions",
            )
    for name in case.comparison.not_compared:
        case.note("not-compared", f"the candidate does not give {name!r}, so it was not compared")


def _judge_top_class(case: Judgement, output: OutputFacts) -> None:
    """Scores may all be within tolerance, and another one of them the largest."""
    facts, measures = output.details["top_class"], output.measures
    material = int(measures["top1_material_flips"])
    noise = "all within noise" if not material else f"{material:,} by more than noise"
    case.note(
        "top-class",
        f"in {int(measures['top1_flips']):,} of {facts['rows']:,} rows another of the {facts['classes']:,} columns of "
        f"{output.name!r} is the largest, {noise}",
        output=output.name,
        remedy="If they are classes, these are different labels: --limit label_flips=0 rejects them",
    )


def _judge_nan(case: Judgement, output: OutputFacts) -> None:
    """NaN on both sides agrees, and says nothing about the models."""
    share = nan_share(output)
    tell = case.fail if not case.policy.nan_equal else case.warn if share else case.note
    tell(
        "nan-both",
        f"{_values(int(output.measures['nan_both']))} NaN on both sides" + (f", {share}" if share else ""),
        output=output.name,
        remedy="Check that the data reaches the models; --limit nan_share=0.01 allows no more than 1%" if share else "",
    )


def _values(count: int) -> str:
    return f"{count:,} value{'s' * (count != 1)} {'is' if count == 1 else 'are'}"


def nan_share(output: OutputFacts) -> str:
    """How much of an output says nothing, if that is much."""
    share = output.measures.get("nan_share", 0.0)
    return f"{100 * share:.3g}% of {output.name!r}" if share >= MANY_NAN else ""


def _judge_form(case: Judgement, output: OutputFacts) -> None:
    """Another type, rank or layout: values decide, and whoever reads the answers has to know."""
    given = output.details.get("form", {})
    if given.get("reference") == given.get("candidate"):
        return
    told = (
        f"{output.name!r} is {' or '.join(given['reference'])} in the reference "
        f"and {' or '.join(given['candidate'])} in the candidate"
    )
    differing = [measure for measure in ("rank_mismatch", "layout_mismatch") if output.measures.get(measure)]
    if differing:
        remedy = f"Whatever reads the answers must expect this: --limit {shlex.quote(f'{differing[0]}=0')} rejects it"
        code = differing[0].replace("_", "-")
        case.warn(code, f"{told}; they were compared row by row", output=output.name, remedy=remedy)
    elif output.measures.get("dtype_mismatch"):
        remedy = "Use --limit dtype_mismatch=0 to reject this"
        case.note("dtype-mismatch", told, output=output.name, remedy=remedy)
    else:
        case.note("rank-mismatch", told, output=output.name)


def _judge_constancy(case: Judgement, output: OutputFacts) -> None:
    facts = output.details.get("closeness") or output.details.get("agreement") or {}
    constant = [side for side in ("reference", "candidate") if facts.get(f"constant_{side}")]
    if not constant or not case.comparison.varied or case.comparison.rows < 2 or output.pair.per_call:
        return
    who = "both models give" if len(constant) == 2 else f"the {constant[0]} gives"
    case.warn(
        "constant-output",
        f"{who} the same {output.name!r} for every one of {case.comparison.rows:,} rows of varied data",
        output=output.name,
        remedy="Check that the data reaches the model",
    )


def _judge_meaning(case: Judgement, output: OutputFacts) -> None:
    """Raw scores go under the name of probabilities in some exports."""
    extremes = output.details.get("extremes", {})
    if output.pair.kind is not Kind.PROBABILITY:
        return
    if not _leaves_unit(extremes.get("candidate")) or _leaves_unit(extremes.get("reference")):
        return
    low, high = extremes["candidate"]
    scores = [name for name in case.comparison.not_compared if kind_of(name, None) is Kind.SCORE]
    whole = output.name == output.pair.reference
    case.warn(
        "not-probabilities",
        f"{output.pair.candidate!r} of the candidate goes from {low:.4g} to {high:.4g}: "
        "these are scores, not probabilities",
        output=output.name,
        remedy="If scores are intended, compare them with scores: "
        f"--pair {shlex.quote(f'{output.pair.candidate}={scores[0]}')}"
        if scores and whole
        else "Export probabilities, or pair them with the reference's scores: --pair candidate_output=scores",
    )


def _leaves_unit(bounds: Sequence[float] | None) -> bool:
    return bounds is not None and not (bounds[0] >= -ROUNDING and bounds[1] <= 1 + ROUNDING)
