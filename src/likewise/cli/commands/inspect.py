"""`likewise inspect`: what a model says about itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from likewise.cli import options
from likewise.report.console import printable, quoted


@click.command(short_help="Inputs, outputs, kinds, dtypes, classes, operators, size.")
@click.argument("model")
@options.batch_axis_option
@options.trust_option
@options.timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.debug_option
def inspect(
    *, model: str, batch_axis: str | None, trusted: tuple[str, ...], timeout: float | None, as_json: bool, debug: bool
) -> None:
    """Show what MODEL declares about itself."""
    from likewise.tasks.isolation.supervisor import supervise, taking_apart

    own = options.given(batch_axis=batch_axis)
    job = {"do": "inspect", "arguments": {"model": model, "trusted": trusted, "options": own}}
    found = supervise(job, timeout=timeout, debug=debug)
    with taking_apart():
        shown = printable("\n".join(_lines(found)))
    told = quoted(json.dumps(found, indent=2, ensure_ascii=False)) if as_json else shown
    click.echo(told)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    size = f", {found['bytes']:,} bytes" if found["bytes"] is not None else ""
    yield f"{found['name']}: {found['framework']}{size}"
    if found["sha256"]:
        yield f"sha256 {found['sha256']}"
    for title, entries in (("inputs", found["inputs"]), ("outputs", found["outputs"])):
        yield ""
        if entries is None:
            yield f"{title}: not declared"
            continue
        yield f"{title}:"
        yield from (f"  {_spec(entry)}" for entry in entries)
    if found["batch"] is not None:
        yield f"\nbatch size: {found['batch']} only"
    yield ""
    for name, value in found["details"].items():
        if value not in (None, {}, [], ""):
            yield f"{name}: {_value(value)}"


def _spec(entry: Mapping[str, Any]) -> str:
    shape = (
        "" if entry["shape"] is None else " (" + ", ".join("n" if d is None else str(d) for d in entry["shape"]) + ")"
    )
    parts = [entry["name"], entry.get("kind"), (entry["dtype"] or "any type") + shape]
    classes = entry.get("classes")
    if classes:
        more = f" and {len(classes) - 8} more" if len(classes) > 8 else ""
        parts.append("classes " + ", ".join(map(repr, classes[:8])) + more)
    return "  ".join(part for part in parts if part)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(" ".join(map(str, one.values())) if isinstance(one, Mapping) else str(one) for one in value)
    return str(value)


EXTENSION = inspect
