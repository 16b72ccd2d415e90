"""How fast two models are: as JSON and back, for a terminal in 80 columns, and as a small SVG of the speed-up."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from likewise.contracts.report import BatchTiming, BenchResult, Latency
from likewise.errors import DataError, one_line
from likewise.report.console import drawn, plain_table
from likewise.report.formats.json import first_fault, read
from likewise.report.words import between, cut, duration, end_of, faster, size

if TYPE_CHECKING:
    from rich.console import RenderableType


SCHEMA_VERSION = 1
WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 720, 48, 72, 64, 96, 150
STEPS = (1.0, 2.0, 5.0)


def loads(text: str | bytes, *, name: str = "the file") -> BenchResult:
    """The result that `likewise bench -o` wrote; anything else is an error that says what is wrong with it."""
    from pydantic import ValidationError

    remedy = "Give what `likewise bench REFERENCE CANDIDATE --data FILE -o BENCH.json` writes"
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or "timings" not in found:
            raise DataError(f"{name} is not the result of a bench: it has no timings", remedy=remedy)
        result = read(BenchResult, found)
    except ValidationError as error:
        raise DataError(f"{name} is not the result of a bench: {first_fault(error)}", remedy=remedy) from error
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {one_line(error)}", remedy=remedy) from error
    if result.schema_version != SCHEMA_VERSION:
        raise DataError(f"{name} has schema version {result.schema_version}, this likewise reads {SCHEMA_VERSION}")
    return result


def summary_line(timing: BatchTiming) -> str:
    """`1.8× faster at batch 256 (1.7–1.9)`"""
    return f"{faster(timing)} at batch {timing.batch_size:,}{between(timing)}"


def table(result: BenchResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of speed and of everything else; names of models are text, never markup."""
    return drawn(_parts(result), width=width, colour=colour)


def _parts(result: BenchResult) -> Iterator[RenderableType]:
    from rich.text import Text

    names = [end_of(footprint.name, 36) for footprint in (result.reference, result.candidate)]
    yield Text.assemble((names[0], "bold"), " → ", (names[1], "bold"))
    yield ""
    yield _speed(result)
    yield ""
    yield _footprints(result)
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


def _footprints(result: BenchResult) -> RenderableType:
    table = plain_table("", "#reference", "#candidate")
    both = (result.reference, result.candidate)
    table.add_row("file", *(size(model.file_bytes) for model in both))
    table.add_row("first load, with imports", *(duration(model.first_load) for model in both))
    table.add_row("load again", *(duration(model.load) for model in both))
    table.add_row("memory, loaded", *(size(model.memory_loaded) for model in both))
    table.add_row("memory, at peak", *(size(model.memory_peak) for model in both))
    return table


def plot(result: BenchResult) -> str:
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
