"""How results look and where they come from. Nothing is judged here.

Reports are read from files, drawn in any format and written so that no half of one is ever left. `formats/` has one
format a file, `words` what they share, `console` and `notebook` where they are shown, `provenance` where a report comes
from; `tables` and `diff` show the other results. The supervisor and `--help` come through this door:
the types of a report are imported once one is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.errors import UsageError, nearest
from likewise.registry import each, extensions

if TYPE_CHECKING:
    from likewise.contracts.report import GatesRenderer, Renderer, Report
    from likewise.contracts.results import BenchResult


ENDINGS = {"markdown": "md", "junit": "junit.xml", "terminal": "txt", "statement": "intoto.json"}
"""How files of a format end, where that is not its name."""

OTHER_ENDINGS = {"xml": "junit", "markdown": "markdown", "htm": "html", "sarif.json": "sarif"}
"""Other endings that say which format is meant."""


def load(path: str | PathLike[str], gate: str | None = None) -> Report:
    """A report from its file; of one that holds many gates, that of the gate of this name."""
    from likewise.data.files import content_of
    from likewise.report.formats import json

    return json.loads(content_of(path), name=str(path), gate=gate)


def load_gates(path: str | PathLike[str], only: str | None = None) -> dict[str, Report]:
    """The reports of a file that holds many gates, by their names; of a file of one gate that one."""
    from likewise.data.files import content_of
    from likewise.report.formats import json

    return json.loads_gates(content_of(path), name=str(path), only=only)


def load_bench(path: str | PathLike[str]) -> BenchResult:
    """The result that `likewise bench -o` wrote."""
    from likewise.data.files import content_of
    from likewise.report.formats import json

    return json.loads_bench(content_of(path), name=str(path))


def render(report: Report, format: str, **options: Any) -> str:
    """The report as text: `json`, `terminal`, or any other file of the folder `formats`."""
    return _encodable(_renderer(format).render(report, **options))


def all_forms(
    report: Report, look: Mapping[str, Any] | None = None, formats: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """A report in every form asked for, by the file it goes to; `look` describes the terminal, if anybody looks."""
    from likewise.contracts.verdict import Outcome
    from likewise.report.words import remedy_of

    return {
        "outcome": report.outcome,
        "headline": report.headline,
        "json": render(report, "json"),
        "shown": "" if look is None else render(report, "terminal", **look),
        "remedy": remedy_of(report) if report.outcome is Outcome.INCONCLUSIVE else "",
        "files": {path: render(report, name) for name, path in formats},
    }


def render_gates(reports: Mapping[str, Report], format: str) -> str:
    """The reports of many gates as one text."""
    return _encodable(require_of_gates(format).render_gates(reports))


def require_of_gates(format: str) -> GatesRenderer:
    """The format, if it can hold many gates."""
    from likewise.contracts.report import GatesRenderer

    found = _renderer(format)
    if not isinstance(found, GatesRenderer):
        raise UsageError(
            f"a report as {format} is about one gate",
            remedy="Write one for each with --reports FOLDER, or choose a gate with --gate NAME",
        )
    return found


def _renderer(format: str) -> Renderer:
    renderers: Iterator[Renderer] = each("report.formats", first=format)
    known = []
    for renderer in renderers:
        if renderer.format == format:
            return renderer
        known.append(renderer.format)
    raise UsageError(f"there is no report format {format!r}{nearest(format, known)}")


def save(report: Report, path: str | PathLike[str], format: str | None = None) -> None:
    """Write a report so that a crash leaves either the old file or the new one; in the format its name ends with."""
    from likewise.data.files import atomically

    atomically(Path(path), render(report, format or format_of(path)).encode())


def file_name(stem: str, format: str) -> str:
    """What a report is called in a format."""
    return f"{stem}.{ENDINGS.get(format, format)}"


def format_of(path: str | PathLike[str]) -> str:
    """The format that the name of a file asks for."""
    name = Path(path).name.casefold()
    renderers: tuple[Renderer, ...] = extensions("report.formats")
    known = {ENDINGS.get(renderer.format, renderer.format): renderer.format for renderer in renderers}
    for ending, format in sorted({**known, **OTHER_ENDINGS}.items(), key=lambda entry: -len(entry[0])):
        if name.endswith(f".{ending}"):
            return format
    raise UsageError(
        f"{path} does not say in which format the report is wanted",
        remedy=f"End its name with {', '.join(f'.{ending}' for ending in known)}, or give the format",
    )


def _encodable(text: str) -> str:
    """Half a character, as in the name of a file that is not UTF-8, would keep the whole text from being written."""
    return text.encode("utf-8", "replace").decode()
