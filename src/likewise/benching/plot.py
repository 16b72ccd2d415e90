"""The speed-up at every batch size with its interval, as a small SVG that needs nothing to be shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from likewise.benching.stored import summary_line
from likewise.contracts.benching import BatchTiming, BenchResult
from likewise.showing import duration

WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 720, 48, 72, 64, 96, 150
STEPS = (1.0, 2.0, 5.0)


def render(result: BenchResult) -> str:
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
        f'<text x="16" y="28" font-size="16" font-weight="bold" fill="#1a1a1a">{escape(_short(title))}</text>',
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


def _short(text: str, limit: int = 76) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
