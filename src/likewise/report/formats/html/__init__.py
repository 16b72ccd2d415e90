"""The report as one page that needs nothing else: no network, no server, no other file.

Every table is in the page as it is written; scripts only draw charts and the graph, sort tables and
switch the theme. Whatever comes from a model or from data is escaped by the template or stands as
JSON in a block of data, and a policy in the page forbids it to load anything or to run other scripts.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.report import Report
from likewise.report.console import printable

if TYPE_CHECKING:
    from jinja2 import Template


FOLDER = Path(__file__).parent
STYLES = ("vendor/uplot.min.css", "assets/style.css")
EARLY_SCRIPTS = ("assets/theme.js",)
"""Run before anything is shown, so that a chosen theme does not flash."""

SCRIPTS = (
    "vendor/uplot.min.js",
    "vendor/dagre.min.js",
    "assets/text.js",
    "assets/scatter.js",
    "assets/bars.js",
    "assets/table.js",
    "assets/graph.js",
    "assets/start.js",
)


class HtmlRenderer:
    """A page for people; every name from a model or the data is text, never markup."""

    format = "html"

    def render(self, report: Report, **options: Any) -> str:
        from likewise.report.formats.html import page
        from likewise.report.formats.html.charts import embedded

        shown = page.context(report)
        text = _template().render(
            **shown,
            data=embedded(page.data(report, shown["charts"])),
            style=_joined(STYLES),
            early=_joined(EARLY_SCRIPTS),
            script=_joined(SCRIPTS),
            policy=_policy(),
        )
        return text.rstrip() + "\n"


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What is marked as safe is ours; all other text comes from models and data.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html")


@cache
def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8").strip() for name in names)


@cache
def _policy() -> str:
    """Nothing is loaded, and only the scripts and styles of this package run, by their hashes."""
    scripts = " ".join(_hash(_joined(names)) for names in (EARLY_SCRIPTS, SCRIPTS))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(_joined(STYLES))}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


EXTENSION = HtmlRenderer()
