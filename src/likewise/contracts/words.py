"""How numbers and lists of sizes are written, in findings and in every format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from likewise.contracts.verdict import AT_LEAST, Change

MANY_TIMES = 900.0
"""Percent from which a factor reads better."""


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, three or more in a row as a range: 1–4, 7–9, 32."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found)


def at_sizes(sizes: Sequence[int], tried: Sequence[int]) -> str:
    """Ascending batch sizes; all that were tried by the smallest and the largest, and others one by one."""
    if len(sizes) == 1:
        return f"at batch size {sizes[0]}"
    every = len(sizes) > 2 and set(sizes) == set(tried)
    return f"at batch sizes {sizes[0]}–{sizes[-1]}" if every else f"at batch sizes {runs(sizes)}"


def lowered(text: str) -> str:
    """Words that go on in the middle of a sentence: a verb at their beginning loses its capital."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def figure(value: float | str | None) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:.4g}"


def told_apart(*values: float) -> tuple[str, ...]:
    """Numbers with as many digits as it takes to tell those apart that differ; at least six."""
    for digits in range(6, 18):
        shown = tuple(f"{value:.{digits}g}" for value in values)
        if len(set(shown)) == len(set(values)):
            break
    return shown


def change_text(change: Change) -> str:
    """How much worse or better, as a person reads it; nothing where both figures say it best."""
    measure = change.name.rpartition(".")[2]
    if measure in AT_LEAST:
        lacking = [1 - float(value) for value in (change.new, change.old)]
        told = measure != "sqnr_db" and all(map(math.isfinite, lacking))
        return f"lacks {figure(lacking[0])}, lacked {figure(lacking[1])}" if told else ""
    if change.percent is None:
        return ""
    if change.percent >= MANY_TIMES:
        return f"{change.percent / 100 + 1:,.0f} times as much"
    size = abs(change.percent)
    shown = f"{size:.0f}" if size >= 10 else f"{size:.2g}"
    return f"{shown}% {'worse' if change.percent > 0 else 'better'}"


def value_text(name: str, value: float) -> str:
    """A figure, also where what matters is how little it lacks to 1."""
    shown = figure(value)
    near_one = name.rpartition(".")[2] in AT_LEAST and shown == "1" and value != 1
    return f"1 − {1 - value:.2g}" if near_one else shown
