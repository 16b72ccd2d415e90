"""The results of bench, noise and stress for a terminal in 80 columns, and the speed-up as a small SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from likewise.contracts.results import (
    BatchTiming,
    BenchResult,
    Latency,
    NoiseResult,
    OutputNoise,
    StressedRow,
    StressResult,
)
from likewise.contracts.verdict import Outcome, figure
from likewise.report.console import drawn, plain_table, printable
from likewise.report.words import between, cut, duration, end_of, faster, footprints, sentence

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 720, 48, 72, 64, 96, 150
STEPS = (1.0, 2.0, 5.0)

APART = 100.0
"""Outputs whose sizes differ by so much are better given a limit each."""

REMEDY = (
    "A wrong model would pass above such noise. Make the model repeatable first: fix its seed, compare and serve it "
    "with the same batch size (--batch-size 1), or quantise it statically."
)
"""What to do about answers that move too far."""

LISTED = 12
"""Changes of the worst row that are shown."""

OUTCOMES = {Outcome.PASS: "black on green", Outcome.FAIL: "white on red", Outcome.INCONCLUSIVE: "black on yellow"}


def summary_line(timing: BatchTiming) -> str:
    """`1.8× faster at batch 256 (1.7–1.9)`"""
    return f"{faster(timing)} at batch {timing.batch_size:,}{between(timing)}"


def bench_table(result: BenchResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of speed and of everything else; names of models are text, never markup."""
    return drawn(_bench(result), width=width, colour=colour)


def _bench(result: BenchResult) -> Iterator[RenderableType]:
    from rich.text import Text

    names = [end_of(footprint.name, 36) for footprint in (result.reference, result.candidate)]
    yield Text.assemble((names[0], "bold"), " → ", (names[1], "bold"))
    yield ""
    yield _speed(result)
    yield ""
    table = plain_table("", "#reference", "#candidate")
    for texts in footprints(result):
        table.add_row(*texts)
    yield table
    yield ""
    rounds = max((len(timing.rounds) for timing in result.timings), default=0)
    yield Text(
        f"{rounds} rounds in random order. With {result.settings['confidence']:.0%} confidence the interval holds the "
        "ratio of medians on this machine as busy as it was.",
        style="dim",
    )
    both = {"reference": result.reference, "candidate": result.candidate}
    threads = [f"{side} {model.details.get('threads') or 'its default'}" for side, model in both.items()]
    load = result.machine["load_average"]
    yield Text(
        f"{result.machine['cores']} cores, load {load['before']} before and {load['after']} after; "
        f"threads: {', '.join(threads)}.",
        style="dim",
    )
    missing = [timing for timing in result.timings if None in (timing.reference.p99, timing.candidate.p99)]
    for note in (*result.notes, *(["– stands for a p99 of fewer than 100 calls"] if missing else ())):
        yield Text(f"· {note[:1].upper()}{note[1:]}.", style="dim")


def _speed(result: BenchResult) -> RenderableType:
    table = plain_table("batch", "", "#p50", "#p90", "#p99", "#rows/s", "")
    for timing in result.timings:
        told = faster(timing) + between(timing)
        for side, latency, note in (("reference", timing.reference, ""), ("candidate", timing.candidate, told)):
            size = f"{timing.batch_size:,}" if side == "reference" else ""
            table.add_row(size, side, *_latency(latency), note)
    return table


def _latency(latency: Latency) -> tuple[str, str, str, str]:
    p99 = "–" if latency.p99 is None else duration(latency.p99 / 1e3)
    return duration(latency.p50 / 1e3), duration(latency.p90 / 1e3), p99, f"{latency.rows_per_second:,.0f}"


def bench_plot(result: BenchResult) -> str:
    """One line a batch size on a logarithmic axis; right of 1 the candidate is faster."""
    timings = result.timings
    height = TOP + ROW * len(timings) + BOTTOM
    low, high = _range(timings)
    title = f"Speed of {result.candidate.name} against {result.reference.name}"
    described = "; ".join(summary_line(timing) for timing in timings)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description" font-family="sans-serif" font-size="13">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(described)}</desc>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="bold" fill="#1a1a1a">{escape(cut(title, 76))}</text>',
        f'<text x="16" y="48" fill="#595959">Ratio of median latencies, {result.settings["confidence"]:.0%} '
        "interval; right of 1 the candidate is faster</text>",
        *_axis(low, high, height),
    ]
    for index, timing in enumerate(timings):
        parts += _line(timing, TOP + ROW * index + ROW / 2, low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _range(timings: tuple[BatchTiming, ...]) -> tuple[float, float]:
    values = [value for timing in timings for value in (timing.ratio, *(timing.interval or ()))]
    return min([*values, 1.0]) / 1.15, max([*values, 1.0]) * 1.15


def _x(value: float, low: float, high: float) -> float:
    share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _axis(low: float, high: float, height: int) -> Iterator[str]:
    bottom = height - BOTTOM
    for tick in _ticks(low, high):
        x = _x(tick, low, high)
        style = 'stroke="#595959"' if tick == 1 else 'stroke="#d9d9d9" stroke-dasharray="2 3"'
        yield f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" {style}/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="#595959">{tick:g}×</text>'
    yield (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 42}" text-anchor="middle" fill="#1a1a1a">'
        "how many times faster than the reference</text>"
    )


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [step * 10.0**power for power in powers for step in STEPS]
    return sorted({1.0, *(tick for tick in found if low <= tick <= high)})


def _line(timing: BatchTiming, y: float, low: float, high: float) -> Iterator[str]:
    x = _x(timing.ratio, low, high)
    medians = f"{duration(timing.reference.p50 / 1e3)} → {duration(timing.candidate.p50 / 1e3)}"
    yield f"<g><title>{escape(summary_line(timing))}</title>"
    yield f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#1a1a1a">batch {timing.batch_size:,}</text>'
    if timing.interval is not None:
        first, last = (_x(value, low, high) for value in timing.interval)
        yield f'<line x1="{first}" y1="{y}" x2="{last}" y2="{y}" stroke="#0b5fa5" stroke-width="3"/>'
        for end in (first, last):
            yield f'<line x1="{end}" y1="{y - 6}" x2="{end}" y2="{y + 6}" stroke="#0b5fa5" stroke-width="2"/>'
    yield f'<circle cx="{x}" cy="{y}" r="5" fill="#0b5fa5"/>'
    yield f'<text x="{WIDTH - RIGHT + 12}" y="{y + 4}" fill="#595959">{escape(medians)}</text></g>'


def noise_table(result: NoiseResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of the sources and what to say to `check`; names of models are text, never markup."""
    return drawn(_noise(result), width=width, colour=colour)


def _noise(result: NoiseResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble((result.model, "bold"), f" ({result.framework}), {result.rows:,} rows of {result.data}")
    yield ""
    yield _movements(result)
    yield ""
    if result.refused:
        for why in result.refused:
            yield Text(f"No tolerance can be proposed: {why}.", style="bold")
        yield Text(REMEDY)
    elif result.abs_tol is not None:
        yield Text(_proposed(result))
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


def _proposed(result: NoiseResult) -> str:
    times = f"{result.margin:g} times the noise, rounded up, and never below that of float32 itself"
    if result.dominated_by is None:
        jumped = any(output.jumps for source in result.sources for output in source.outputs)
        return f"{'Nothing else moves' if jumped else 'Nothing moves'}. Proposed, {times}:"
    return f"Most of it is {result.dominated_by}. Proposed, {times}:"


def _movements(result: NoiseResult) -> RenderableType:
    from rich.text import Text

    table = plain_table("what moves them", "output", "#max abs", "#p99 abs", "#max rel", "#p99 rel", "#changed")
    for source in result.sources:
        for place, output in enumerate(source.outputs):
            style = "yellow" if output.jumps or output.nonfinite else ""
            table.add_row("" if place else source.name, Text(output.output), *_moved(output), style=style)
    return table


def _moved(output: OutputNoise) -> Iterator[str]:
    for value in (output.max_abs, output.p99_abs, output.max_rel, output.p99_rel):
        yield "–" if value is None else f"{value:.2g}"
    yield f"{100 * output.changed:.3g}%"


def stress_table(result: StressResult, *, width: int = 80, colour: bool = False) -> str:
    """The worst input and how it was found; names are text, never markup."""
    text = drawn(_stress(result), width=width, colour=colour)
    # A command that is to be copied is one line, however long.
    return text if result.again is None else f"{text}  {printable(result.again)}\n"


def _stress(result: StressResult) -> Iterator[RenderableType]:
    from rich.text import Text

    names = f"{_short(result.reference)} → {_short(result.candidate)}"
    yield Text.assemble((f" {result.outcome} ", OUTCOMES[result.outcome]), "  ", (names, "bold"))
    yield Text(sentence(result.headline))
    if result.data_rows:
        yield ""
        yield _worst_cases(result)
    if result.rows:
        yield ""
        yield from _worst(result.rows[0])
    if result.moves:
        yield ""
        yield Text(_effort(result))
    for kind, count in (("reference", result.refusals.reference_only), ("candidate", result.refusals.candidate_only)):
        if count:
            yield Text(f"The {kind} refuses {count:,} of the rows tried, and the other model answers.")
    if result.refusals.both:
        yield Text(f"Both models refuse {result.refusals.both:,} of the rows tried.")
    for note in result.notes:
        yield Text(f"· {sentence(note)}", style="dim")
    if result.file is not None:
        rows = f"The {len(result.rows)} worst rows are" if len(result.rows) > 1 else "The row is"
        yield ""
        largest = "" if result.max_abs_diff is None else f" (max_abs_diff {figure(result.max_abs_diff)})"
        yield Text(f"{rows} in {result.file}{largest}; to measure it again:")


def _worst_cases(result: StressResult) -> Table:
    table = plain_table("", "#abs diff", "#× tolerance")
    real = f"worst of {result.data_rows:,} real rows"
    table.add_row(real, _apart(result.data_abs_diff), _severity(result.data_worst))
    if result.rows:
        worst = result.rows[0]
        table.add_row("worst input found", _apart(worst.abs_diff_in_search), _severity(worst.severity_in_search))
        table.add_row("factor", "", _factor(worst.severity_in_search, result.data_worst))
        if _differs_in_file(worst):
            table.add_row("the same in the file", _apart(worst.abs_diff), _severity(worst.severity))
    return table


def _worst(row: StressedRow) -> Iterator[RenderableType]:
    from rich.text import Text

    if not row.changed:
        yield Text(f"The worst input is row {row.base} as it is: no change made it much worse.")
    else:
        what = "one value" if row.changed == 1 else f"{row.changed:,} values"
        yield Text(f"The worst input is row {row.base} with {what} changed:")
        table = plain_table("column", "real row", "", "worst input")
        for change in row.changes[:LISTED]:
            table.add_row(change.column, _cell(change.before), "→", _cell(change.after))
        yield table
        if row.changed > LISTED:
            yield Text(f"… and {row.changed - LISTED:,} more")
    if row.output:
        where = " in the file" if _differs_in_file(row) else ""
        yield Text(f"{row.output}{where}: {_cell(row.reference)} became {_cell(row.candidate)}")


def _effort(result: StressResult) -> str:
    rows, calls = result.evaluated.get("candidate", 0), result.calls.get("candidate", 0)
    paid = sorted((move for move in result.moves if move.gains), key=lambda move: (-move.best, move.name))
    told = ", ".join(f"{move.name} ({move.gains})" for move in paid) or "none"
    share = result.seconds_in_models / result.seconds if result.seconds else 0.0
    return (
        f"{rows:,} rows in {calls:,} calls of each model, {result.seconds:.1f} s, {share:.0%} of it in the models. "
        f"Moves that made it worse: {told}."
    )


def _differs_in_file(row: StressedRow) -> bool:
    return figure(row.severity) != figure(row.severity_in_search)


def _apart(value: float | None) -> str:
    return "" if value is None else figure(value)


def _severity(value: float) -> str:
    return figure(value) if math.isfinite(value) else "not finite on one side"


def _factor(found: float, before: float) -> str:
    if not math.isfinite(found) or before <= 0:
        return "∞" if found > before else "1×"
    return f"{figure(found / before)}×"


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(value, float):
        return repr(value)
    text = "[" + ", ".join(figure(entry) for entry in value) + "]" if _numbers(value) else str(value)
    return cut(text, 60)


def _numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, int | float) for entry in value)


def _short(name: str) -> str:
    return Path(name).name if "/" in name else name
