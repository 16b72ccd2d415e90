"""Since when rows differ, in words: of recorded traffic, and of rows whose times a column has."""

from __future__ import annotations

from likewise.contracts.comparison import Comparison
from likewise.contracts.timeline import Spell
from likewise.judge.findings import Judgement

SPELL, UNTIMED = "since-when", "untimed"


def judge_timeline(case: Judgement) -> None:
    """Say in which part of the time rows differ, if that is more than chance, and how many rows have no time."""
    found = case.comparison.timeline
    if found is None:
        return
    if found.untimed:
        all_rows = found.rows + found.untimed
        case.note(
            UNTIMED,
            f"{found.untimed:,} of {all_rows:,} rows have no time that can be read",
            remedy="Write times as 2026-11-03T10:15:00Z, or as seconds since 1970",
        )
    # Under another tolerance than the run's other rows differ, and nobody kept which.
    if found.spell is not None and case.policy.tolerance == case.comparison.tolerance:
        message = f"{_when(found.spell)}: {_counted(found.spell, case.comparison)}"
        case.warn(SPELL, message, remedy="Look at what was changed then")


def _when(spell: Spell) -> str:
    since, until = f"since {spell.since}", f"until {spell.until}"
    if spell.since is not None and spell.until is not None:
        words = f"from {spell.since} until {spell.until}"
    else:
        words = since if spell.since is not None else until
    only = "rows differ" if not spell.beyond_outside else "more rows differ"
    next_to = [f"the row before: {spell.before}"] if spell.before is not None else []
    next_to += [f"the row after: {spell.after}"] if spell.after is not None else []
    return f"{only} {words} ({', '.join(next_to)})"


def _counted(spell: Spell, comparison: Comparison) -> str:
    where = "before" if spell.until is None else "after" if spell.since is None else "before and after"
    inside = f"{spell.rows_beyond:,} of {spell.rows:,} {comparison.unit} then"
    outside = f"{spell.beyond_outside:,} of {spell.rows_outside:,} {where}"
    return f"{inside}, {outside}; by chance {round(spell.chance * 10_000):,} in 10,000"
