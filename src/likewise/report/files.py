"""Reports as files: read, drawn in any format, written so that no half of one is ever left."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.contracts.report import Renderer, Report
from likewise.data.files import atomically
from likewise.errors import DataError, UsageError, nearest
from likewise.registry import each
from likewise.report.formats import json as json_report


def load(path: str | PathLike[str]) -> Report:
    """A report from its file."""
    try:
        return json_report.loads(Path(path).read_bytes(), name=str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def render(report: Report, format: str, **options: Any) -> str:
    """The report as text: `json`, `terminal`, or any other file of the folder `formats`."""
    renderers: Iterator[Renderer] = each("report.formats", first=format)
    known = []
    for renderer in renderers:
        if renderer.format == format:
            return _encodable(renderer.render(report, **options))
        known.append(renderer.format)
    raise UsageError(f"there is no report format {format!r}{nearest(format, known)}")


def save(report: Report, path: Path) -> None:
    """Write a report so that a crash leaves either the old file or the new one."""
    atomically(path, render(report, "json").encode())


def _encodable(text: str) -> str:
    """Half a character, as in the name of a file that is not UTF-8, would keep the whole text from being written."""
    return text.encode("utf-8", "replace").decode()
