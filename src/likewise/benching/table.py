"""The result for a terminal: what a person wants to know first, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from likewise.consoles import drawn
from likewise.contracts.benching import BenchResult, Latency
from likewise.showing import between, duration, faster, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def render(result: BenchResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of speed and of everything else; names of models are text, never markup."""
    return drawn(_parts(result), width=width, colour=colour)


def _parts(result: BenchResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble((_short(result.reference.name), "bold"), " → ", (_short(result.candidate.name), "bold"))
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
    threads = [f"{side} {_threads(getattr(result, side).details)}" for side in ("reference", "candidate")]
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
    table = _table("batch", "", ("p50", "right"), ("p90", "right"), ("p99", "right"), ("rows/s", "right"), "")
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
    table = _table("", ("reference", "right"), ("candidate", "right"))
    both = (result.reference, result.candidate)
    table.add_row("file", *(size(model.file_bytes) for model in both))
    table.add_row("first load, with imports", *(duration(model.first_load) for model in both))
    table.add_row("load again", *(duration(model.load) for model in both))
    table.add_row("memory, loaded", *(size(model.memory_loaded) for model in both))
    table.add_row("memory, at peak", *(size(model.memory_peak) for model in both))
    return table


def _table(*columns: str | tuple[str, str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        heading, justify = (column, "left") if isinstance(column, str) else column
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def _threads(details: Any) -> str:
    chosen = details.get("threads")
    return "its default" if not chosen else str(chosen)


def _short(name: str, limit: int = 36) -> str:
    return name if len(name) <= limit else "…" + name[-limit + 1 :]
