"""What a user asks for: options of a call, or gates named in `likewise.toml` or `[tool.likewise]`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.contracts.models import BatchAxis, Elsewhere
from likewise.contracts.report import CAUSES
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Policy
from likewise.data.stores import require_no_secrets
from likewise.errors import UsageError, nearest, one_line, require_file
from likewise.judge.policy import make_policy
from likewise.models.arrays import RowAxes
from likewise.registry import modules
from likewise.tasks import amounts
from likewise.tasks.own_files import FILE, is_no_name, place_of, require_own_files

REPORT = "parity_report.json"
"""Where the report of a command goes that says nothing else."""

PATHS = ("reference", "candidate", "data", "report", "baseline")
"""Settings that name files."""

POLICY = (
    *("preset", "abs_tol", "rel_tol", "mean_tol", "limits"),
    *("nan_equal", "confidence", "max_failure_rate", "fixed_batch", "allow_same"),
)
"""Settings that say what is acceptable."""

FORMATS = tuple(name for name in modules("report.formats") if name not in ("json", "terminal"))
"""Formats that a report is written in beside JSON."""

MOST_ROWS = 2**53
"""More than any data has, and few enough for every number that is worked out with them."""

MOST_WORKERS = 1024
"""Processes of one gate: a configuration of somebody else's could ask for more than a machine has room for."""

TOLERANCES = ("abs_tol", "rel_tol", "mean_tol")
ENTRY_BY_ENTRY = ("limits", "feed", "pair", "formats", "reference_options", "candidate_options")
"""Settings with names in them: those that are said again take the place of their namesakes only."""

MAPPINGS = {
    "limits": '{"probabilities.max_abs_diff": 0.02}',
    "feed": '{"input": "column"}',
    "pair": '{"candidate_output": "reference_output"}',
    "shapes": '{"seq": [1, 7, 128]}',
    "formats": '{"html": "page.html"}',
    "matrix": '{"threads": [1, 2]}',
    "options": '{"threads": 1}',
}
"""How settings that are mappings are written in Python; options of models are like the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One gate: two models, data, and what is acceptable; `gate` is what it is called."""

    reference: Any
    candidate: Any
    data: Any
    gate: str | None = None
    preset: str | None = None
    abs_tol: float | None = None
    rel_tol: float | None = None
    mean_tol: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    nan_equal: bool = True
    confidence: float = 0.95
    max_failure_rate: float | None = None
    samples: int | None = None
    sample: str = "first"
    seed: int = 0
    drop: tuple[str, ...] = ()
    where: str | None = None
    id: str | None = None
    stratify: str | None = None
    time: str | None = None
    feed: Mapping[str, str] = field(default_factory=dict)
    pair: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    batch_size: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    fixed_batch: bool = False
    allow_same: bool = False
    batch_axis: BatchAxis | None = None
    trusted: tuple[str, ...] = ()
    reference_options: Mapping[str, Any] = field(default_factory=dict)
    candidate_options: Mapping[str, Any] = field(default_factory=dict)
    report: str | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    baseline: str | None = None
    max_worse: float | None = None
    edge: str = "report"
    skip_suites: tuple[str, ...] = ()
    matrix: Mapping[str, Any] = field(default_factory=dict)
    beside_budget: str | float | None = None
    thorough: bool = False
    fail_fast: bool = False
    workers: int = 1
    engine: str = "local"
    address: str | None = None
    explain: bool = True
    explain_budget: float = 30.0
    memory: str | int = "2GB"
    causes: tuple[str, ...] = ()

    def policy(self) -> Policy:
        """What is acceptable; a usage error if it makes no sense."""
        if self.sample not in ("first", "random"):
            raise UsageError(f"--sample is {self.sample!r}", remedy="Choose `first` or `random`")
        for name in ("samples", "batch_size", "explain_budget", "workers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{name.replace('_', '-')} is {value}", remedy="Give a number above zero")
        for name, rows in (("samples", self.samples), ("batch-size", self.batch_size)):
            if rows is not None and rows > MOST_ROWS:
                raise UsageError(f"--{name} is {rows}", remedy="Give fewer: no data has so many rows")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}", remedy="Give zero or a number above it")
        if self.workers > MOST_WORKERS:
            raise UsageError(f"--workers is {self.workers:,}", remedy=f"Give at most {MOST_WORKERS}")
        if self.timeout is not None and not self.timeout >= 0:
            raise UsageError(f"--timeout is {self.timeout}", remedy="Give seconds, or 0 to wait without limit")
        if self.engine not in ("local", "ray"):
            raise UsageError(f"--engine is {self.engine!r}", remedy="Choose `local` or `ray`")
        if self.edge not in ("strict", "fail", "report", "off"):
            raise UsageError(f"--edge is {self.edge!r}", remedy="Choose `strict`, `fail`, `report` or `off`")
        for cause in self.causes:
            if cause not in CAUSES:
                raise UsageError(f"there is no cause {cause!r}{nearest(cause, CAUSES)}")
        if any(size < 1 for size in self.batch_sizes or ()):
            raise UsageError("--batch-sizes holds a size below 1", remedy="Give sizes such as 1,2,4,32,128")
        for name, lengths in (self.shapes or {}).items():
            if not lengths or any(not isinstance(length, int) or length < 1 for length in lengths):
                raise UsageError(f"--shapes {name}: no lengths above zero", remedy="Give lengths such as seq=1,7,128")
        if self.matrix:
            # Where settings are tried, arrays are needed too.
            from likewise.compare.variations.settings import settings_of

            settings_of(self.matrix)
        amounts.seconds_or_times(self.beside_budget)
        amounts.bytes_of(self.memory)
        RowAxes.parse(self.batch_axis)
        require_no_secrets(self.data)
        require_baseline(self.baseline, max_worse=self.max_worse)
        self.require_own_files()
        return make_policy(**{name: getattr(self, name) for name in POLICY})

    def require_own_files(self, *more: str) -> None:
        """A usage error where a report, or one of these other files, would replace what the run reads or writes."""
        read = {name: getattr(self, name) for name in ("reference", "candidate", "data", "baseline")}
        for options in (self.reference_options, self.candidate_options):
            read |= {f"option {name}": value for name, value in options.items()}
        others = [(f"output {number}", path) for number, path in enumerate(more, start=1)]
        require_own_files(read, [("json", self.report), *self.formats.items(), *others])


KNOWN = (*(entry.name for entry in fields(Settings)), *FORMATS)


def with_places(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with what is said as `reference = {model = "...", python = "..."}` among the options of a model."""
    plain = dict(table)
    for side in ("reference", "candidate"):
        said = plain.get(side)
        if isinstance(said, Mapping) and "model" in said:
            if not isinstance(said["model"], str | PathLike):
                raise UsageError(
                    f"the model of the {side} is no path", remedy='Write { model = "FILE", python = "..." }'
                )
            said = Elsewhere(said["model"], {name: value for name, value in said.items() if name != "model"})
        if isinstance(said, Elsewhere):
            plain[side] = said.model
            plain[f"{side}_options"] = {**_mapping(plain, f"{side}_options"), **said.options}
    return plain


def require_known(names: Iterable[str], known: Iterable[str]) -> None:
    """A usage error for a name that is no option."""
    for name in names:
        if name not in known:
            raise UsageError(f"there is no option {name!r}{nearest(name, known)}")


def with_formats(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with what is said as `html = "page.html"` among the formats."""
    files = {name: table[name] for name in FORMATS if table.get(name) is not None}
    plain = {name: value for name, value in table.items() if name not in FORMATS}
    if not files and not isinstance(plain.get("formats"), Mapping):
        return plain
    together = {**_mapping(plain, "formats"), **files}
    return {**plain, "formats": {k: os.fspath(v) if isinstance(v, PathLike) else v for k, v in together.items()}}


def _mapping(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a setting has by name, nothing where it is not there."""
    value = table.get(name, {})
    for _, fits, told, remedy in _expected(name, "Mapping", value):
        if not fits:
            raise UsageError(f"{name} is {value!r}, which is {told}", remedy=remedy)
    return value  # type: ignore[no-any-return]


def require_own_reports(gates: Mapping[str, Settings], together: Mapping[str, str]) -> None:
    """A usage error where one gate would replace what another one writes, or is made from.

    `together` has the files that hold all gates.
    """
    read = {
        place_of(value): (name, f"the {part}")
        for name, gate in gates.items()
        for part in PATHS[:3]
        if isinstance(value := getattr(gate, part), str | PathLike)
    }
    own = [(name, path) for name, gate in gates.items() for path in {gate.report, *gate.formats.values()}]
    written: dict[Path | str, str] = {}
    for name, path in (*own, *(("", path) for path in together.values())):
        if path is None:
            continue
        place = path if path == "-" else place_of(path)
        teller = f"gate {name!r}" if name else "the report on all gates"
        if written.setdefault(place, teller) != teller:
            raise UsageError(
                f"{written[place]} and {teller} would write the same file {path}",
                remedy="Give each a file of its own; a gate without `report` has one that is named after it",
            )
        if place in read and read[place][0] != name:
            raise UsageError(f"{teller} cannot be written to {path}: it is {read[place][1]} of gate {read[place][0]!r}")


def require_baseline(baseline: str | None, *, max_worse: float | None) -> None:
    """A usage error unless a baseline that is named is there."""
    if baseline is None:
        if max_worse is not None:
            raise UsageError("--max-worse without --baseline", remedy="Name the accepted run: --baseline OLD.json")
        return
    if not Path(baseline).is_file():
        raise UsageError(
            f"there is no baseline {baseline}",
            remedy="Keep the report of an accepted run under that name, or leave --baseline out until there is one",
        )
    if max_worse is not None and not 0 <= max_worse < math.inf:
        raise UsageError(f"--max-worse is {max_worse}", remedy="Give a percentage such as 20%")


def find(folder: Path) -> Path | None:
    """`likewise.toml`, or a `pyproject.toml` with a `[tool.likewise]` table: here or above, within the repository."""
    here = folder.absolute()
    for above in (here, *here.parents):
        place = Path(os.path.relpath(above, here)) if above != here else folder
        if (own := place / FILE).is_file():
            return own
        shared = place / "pyproject.toml"
        if shared.is_file() and "likewise" in _tables(_parse(shared), "tool"):
            return shared
        if (above / ".git").exists():
            return None
    return None


def load_gates(path: Path) -> dict[str, Settings]:
    """Every gate of a configuration file, by name. What it says of files and modules is said from its own folder."""
    table = _parse(path)
    if path.name == "pyproject.toml":
        table = _tables(_tables(table, "tool"), "likewise")
    shared = {name: value for name, value in table.items() if name != "gates"}
    gates = table.get("gates", {})
    if not isinstance(gates, dict) or not gates:
        raise UsageError(f"{path} names no gate", remedy="Add a [gates.NAME] table, or run `likewise init`")
    for name, gate in gates.items():
        if not isinstance(gate, dict):
            raise UsageError(f"{path}: gate {name!r} is {gate!r}", remedy="A gate is a table: [gates.NAME]")
        # A name becomes part of the name of a file.
        if not name.strip() or any(part in name for part in ("/", "\\", "..")) or not name.isprintable():
            raise UsageError(f"{path}: {name!r} is not a valid name for a gate", remedy="Use letters, digits, - and _")
    return {name: _gate(path, name, {**shared, **gate}) for name, gate in gates.items()}


def plain_values(table: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
    """Settings as plain values: numbers of numpy become Python's, a lone name or number a list of one.

    What is of another kind than the setting is refused: `nan_equal="false"` would be true, and a text no mapping.
    """
    kinds = {entry.name: str(entry.type).removesuffix(" | None") for entry in fields(Settings)}
    found: dict[str, Any] = {}
    for name, value in table.items():
        live = name in PATHS or name.endswith("_options")
        found[name] = value = value if live else _plain(value)
        if value is None:
            continue
        if name in PATHS and isinstance(value, str | PathLike) and is_no_name(os.fspath(value)):
            raise UsageError(
                f"{name} is {os.fspath(value)[:200]!r}, which no file can be called", remedy="Check the name"
            )
        wanted = kinds.get(name, "")
        if wanted.startswith("tuple"):
            found[name] = value = _listed(value)
        elif name == "shapes" and isinstance(value, Mapping):
            found[name] = value = {axis: _listed(lengths) for axis, lengths in value.items()}
        for entry, fits, told, remedy in _expected(name, wanted, value):
            if not fits:
                raise UsageError(f"{where + ': ' if where else ''}{name} is {entry!r}, which is {told}", remedy=remedy)
    return found


def _expected(name: str, wanted: str, value: Any) -> Iterator[tuple[Any, bool, str, str]]:
    """What a setting holds, one by one: is it of the kind that it has to be, else what it is not, and what helps."""
    if wanted == "bool":
        yield value, isinstance(value, bool), "neither true nor false", "Give True or False"
    elif wanted.startswith("Mapping"):
        example = MAPPINGS[name.rpartition("_")[2]]
        yield value, isinstance(value, Mapping), "not a mapping", f"Give names and what belongs to them: {example}"
    elif name in ("report", "baseline"):
        yield value, isinstance(value, str | PathLike), "not a path", "Give the name of a file"
    entries = value.values() if name == "limits" and isinstance(value, Mapping) else value
    for number in entries if name in ("limits", "batch_sizes") else [value] * (wanted in ("int", "float")):
        fits = isinstance(number, int | float | None) and not isinstance(number, bool)
        yield number, fits, "not a number", f"Give a number such as {'[1, 32]' if name == 'batch_sizes' else 0.01}"


def _listed(value: Any) -> Any:
    """A lone name or number as a list of one; whatever else can be gone through, as a list."""
    if isinstance(value, str | int | float):
        return (value,)
    return tuple(_plain(entry) for entry in value) if isinstance(value, Iterable) else (value,)


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, also inside tuples and mappings."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(entry) for entry in value)
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def settings_from(table: Mapping[str, Any], *, where: str) -> Settings:
    """Settings from plain values of the right types, checked for unknown and missing names."""
    table = with_places(with_formats(table))
    for name in table:
        if name not in KNOWN:
            raise UsageError(f"{where}: unknown setting {name!r}{nearest(name, KNOWN)}")
    missing = [name for name in PATHS[:3] if name not in table]
    if missing:
        raise UsageError(f"{where}: {missing[0]!r} is missing", remedy="A gate needs reference, candidate and data")
    return Settings(**plain_values(table, where=where))


def overridden(gate: Settings, said: Mapping[str, Any]) -> Settings:
    """The gate with what a command says beside it; a preset brings its own tolerances, as where it is judged again."""
    dropped = TOLERANCES if "preset" in said else ("rel_tol",) if "abs_tol" in said else ()
    changed = {**dict.fromkeys(dropped), **said}
    for name in ENTRY_BY_ENTRY:
        if name in changed:
            changed[name] = {**getattr(gate, name), **changed[name]}
    return replace(gate, **changed)


def require_types(settings: Settings, *, where: str) -> Settings:
    """What a file says may be of any type; a wrong one is said where it stands."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Settings).validate_python({e.name: getattr(settings, e.name) for e in fields(Settings)})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {place}: {first['msg'].lower()}, got {first['input']!r}") from error


def default_report(gate: str) -> str:
    """Where the report of a gate goes that says nothing else."""
    return f"parity_report.{gate}.json"


def _gate(path: Path, name: str, table: dict[str, Any]) -> Settings:
    where = f"{path.name}, gate {name!r}"
    _require_plain(table, where)
    settings = settings_from({"report": default_report(name), **table, "gate": name}, where=where)
    return require_types(settings, where=where)


def _require_plain(value: Any, where: str) -> None:
    """A usage error for what TOML can say and no setting is: dates, and texts with a NUL in them."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _require_plain(key, where)
            _require_plain(entry, f"{where}: {key}")
    elif isinstance(value, list):
        for entry in value:
            _require_plain(entry, where)
    elif isinstance(value, str) and "\0" in value:
        raise UsageError(f"{where}: {value!r} holds a NUL character", remedy="Write it without")
    elif not isinstance(value, str | int | float):
        raise UsageError(f"{where}: a date or time, got {value}", remedy="Put it in quotes where a text is meant")


def _tables(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table within a table; another tool's file may have something else of that name."""
    found = table.get(name, {})
    return found if isinstance(found, dict) else {}


def _parse(path: Path) -> dict[str, Any]:
    # Most commands read no file of settings, and start no faster than their imports.
    import tomllib

    require_file(path, UsageError)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", remedy="Run `likewise init` to write one") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of lists in lists
        raise UsageError(f"{path} cannot be read as TOML: {one_line(error)}") from error


def stated(settings: Settings) -> dict[str, Any]:
    """The settings as a user gave them; live objects by their type."""
    found: dict[str, Any] = {}
    for entry in fields(Settings):
        value = getattr(settings, entry.name)
        # A live frame or array does not compare like a value: it is named before anything is asked of it.
        if entry.name in PATHS and value is not None and not isinstance(value, str):
            value = str(value) if isinstance(value, PathLike) else type(value).__name__
        # Where nothing said is None, an empty list says something: `--batch-sizes none`.
        if value is None or (entry.default is not None and (value == () or value == {})):
            continue
        if entry.name.endswith("_options"):
            value = {name: _named(option) for name, option in value.items()}
        found[entry.name] = list(value) if isinstance(value, tuple) else value
    return found


def _named(option: Any) -> Any:
    """An option as JSON can hold it: a live factory by its name."""
    plain = isinstance(option, str | int | float | list | tuple | dict | None)
    return option if plain else str(getattr(option, "__name__", type(option).__name__))
