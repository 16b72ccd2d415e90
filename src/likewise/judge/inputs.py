"""What a reader should know about the inputs: what changed on its way to a model, and what else was noted of both."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.comparison import Cast
from likewise.data.cells import listed
from likewise.judge.findings import Judgement

NOTABLE_CHANGE = 1e-6
"""A relative change of an input above this is more than the rounding of float64 to float32."""

AS_TAKEN = "Give the data as the model takes it, such as pixels from 0 to 255 and not from 0 to 1"


def judge_inputs(case: Judgement) -> None:
    quiet: dict[tuple[str, str, str], list[Cast]] = {}
    lossy: dict[tuple[str, str, str, str], list[Cast]] = {}
    for cast in case.comparison.casts:
        # A whole number that changes has become another one: that is no rounding.
        notable = cast.largest_relative_change > NOTABLE_CHANGE or cast.source_dtype.startswith(("int", "uint"))
        if cast.changed and (notable or cast.note):
            lossy.setdefault((cast.side, cast.source_dtype, cast.target_dtype, cast.note), []).append(cast)
        elif cast.note:
            case.note("converted-input", f"{cast.column!r}, fed to the {cast.side}: {cast.note}")
        elif cast.changed or cast.side == "reference":
            quiet.setdefault((cast.side, cast.source_dtype, cast.target_dtype), []).append(cast)
    for (side, _, target, _), casts in lossy.items():
        if side == "reference" and target.startswith(("int", "uint", "bool")):
            case.doubt("lossy-input", f"{_lost(casts)}: it was not asked what the data asks", remedy=AS_TAKEN)
        else:
            case.warn("lossy-input", _lost(casts))
    for (side, source, target), casts in quiet.items():
        case.note("cast-input", _cast_for(side, source, target, casts))
    for warning in case.comparison.warnings:
        case.warn("runner-warning", warning)
    for doubt in case.comparison.lineage:
        case.warn("stale-artefact", doubt, remedy="Export or quantise it again from this reference")
    for note in case.comparison.notes:
        case.note("note", note)


def _lost(casts: Sequence[Cast]) -> str:
    """Columns whose values change on the way, in one sentence; how far, of the one that changes most."""
    worst = max(casts, key=lambda cast: cast.largest_relative_change)
    note = f" ({worst.note})" if worst.note else ""
    change = f", by up to {100 * worst.largest_relative_change:.3g}%" if worst.largest_relative_change else ""
    change += f" in {worst.column!r}" if change and len(casts) > 1 else ""
    changed, values = sum(cast.changed for cast in casts), sum(cast.values for cast in casts)
    return (
        f"{changed:,} of {values:,} values of {_columns(casts)} change on their way to the {worst.side}, "
        f"from {worst.source_dtype} to {worst.target_dtype}{change}{note}"
    )


def _columns(casts: Sequence[Cast]) -> str:
    return listed([repr(cast.column) for cast in casts])


def _cast_for(side: str, source: str, target: str, casts: Sequence[Cast]) -> str:
    """Columns whose type had to be changed, in one sentence."""
    values, changed = sum(cast.values for cast in casts), sum(cast.changed for cast in casts)
    largest = max(cast.largest_relative_change for cast in casts)
    by = f" of {values:,} values changed, by up to {100 * largest:.1g}%" if changed else "no value changed"
    return (
        f"{_columns(casts)} {'was' if len(casts) == 1 else 'were'} cast from {source} to {target} for the {side}: "
        f"{f'{changed:,}' if changed else ''}{by}"
    )
