"""Does a report belong to these very files, and is it as it was written? And does the same run give the same again?"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.contracts.report import Artefact, Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome
from likewise.data import files
from likewise.data.files import content_of, named_once
from likewise.errors import DataError, UsageError, one_line
from likewise.judge import verdict as judging
from likewise.models.onnx.describe import EXTERNAL_DATA
from likewise.registry import describe_model, open_source
from likewise.report import provenance
from likewise.report.formats import json as json_report
from likewise.report.formats.statement import STATEMENT, TEST_RESULT, policy_digest, resources, statement_of
from likewise.report.words import worst
from likewise.tasks.own_files import is_within, place_of
from likewise.tasks.settings import Settings, require_types, settings_from, stated

MODELS = ("reference", "candidate")
UNDECIDED = ("explanation", "diagnoses", "bench", "provenance")
"""What of a stored report no answer of a model decides: causes are looked for as long as there is time."""

SUMMED_UP = ("samples", "max_abs_diff", "mean_abs_diff", "abs_tol", "mean_tol", "passed")
"""What a report says first, and what follows from the rest of it."""

WHOLE = ("catboost", "lightgbm", "onnx", "recorded", "sklearn", "torch", "xgboost")
"""Frameworks whose models are one file, and what that names."""

NAMES = (*MODELS, "data", "report", "formats", "gate")
"""Settings that name files: what is in them is hashed, and where a report goes does not change it."""

LATER = re.compile(r"generated\b|[^:]+:\w+")
"""What has no bytes to hash and can be opened again all the same: generated rows, an attribute of a module."""


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that was looked at. `holds` is None where it cannot be told."""

    about: str
    told: str
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at in a report, and the verdict it holds."""

    outcome: Outcome
    headline: str
    points: tuple[Point, ...]

    @property
    def holds(self) -> bool | None:
        """True if all that was looked at holds, None if something cannot be told."""
        found = [point.holds for point in self.points]
        return False if False in found else None if None in found else True


def verify(
    report: str | PathLike[str],
    *,
    reference: Any = None,
    candidate: Any = None,
    data: Any = None,
    statement: str | PathLike[str] | None = None,
    gate: str | None = None,
) -> Verified:
    """Hold a stored report against itself, and against the files that are given."""
    content = content_of(report)
    stored = json_report.loads(content, name=str(report), gate=gate)
    points = [_unedited(content, gate), _follows(stored), *_summed_up(content, stored, gate)]
    given = {"reference": reference, "candidate": candidate}
    points += [
        _model(side, target, getattr(stored.origin, side)) for side, target in given.items() if target is not None
    ]
    if data is not None:
        points.append(_same("data", str(data), fingerprint(data), stored.origin.data))
    if statement is not None:
        points += _stated(statement, content, stored)
    return Verified(stored.outcome, stored.headline, tuple(points))


def changed(report: str | PathLike[str], settings: Settings) -> str:
    """What keeps a stored report from being that of a run with these settings, here and now; empty if nothing does.

    What cannot be told has changed: code that may read other files, models that answer from elsewhere.
    """
    for side in MODELS:
        model, options = getattr(settings, side), getattr(settings, f"{side}_options")
        framework = describe_model(model, options, side=side).framework
        if framework not in WHOLE:
            return f"the {side} is not identified by the hash of a file"
        folders = any(isinstance(value, str) and os.path.exists(value) for value in options.values())
        if folders or provenance.named_by(options):
            return f"an option of the {side} names a file or code"
    if settings.trusted or settings.baseline:
        return "it depends on code" if settings.trusted else "it is held against a baseline"
    given = {name: getattr(settings, name) for name in (*MODELS, "data")}
    for point in verify(report, **given).points:
        if not point.holds:
            return point.told
    stored = json_report.loads(content_of(report), name=str(report)).origin
    said = (json.loads(json_report.dumps(table)) for table in (stored.settings, stated(settings)))
    before, now = ({name: value for name, value in table.items() if name not in NAMES} for table in said)
    if other := _unequal(before, now):
        return f"other settings: {', '.join(other)}"
    other = _unequal({**stored.versions, **stored.machine}, {**provenance.tools(), **provenance.machine()})
    return f"another version or machine: {', '.join(other)}" if other else ""


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names under which two tables hold different values."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def fingerprint(data: Any) -> str | None:
    """The hash of data, as a report has it."""
    return provenance.fingerprint_of(open_source(data))


def _unedited(content: bytes, gate: str | None) -> Point:
    """Is the text of a report what its digest was made from? White space and the layout of numbers do not count."""
    plain = json.loads(content)
    if "gates" in plain:
        gates = plain["gates"]
        plain = gates[gate] if gate is not None else next(iter(gates.values()))
    digest = plain["provenance"].get("digest")
    if not digest:
        return Point("report", "the report has no digest: it was written by an older likewise")
    plain["provenance"]["digest"] = ""
    if json_report.digest_of(plain) != digest or "\\ud" in ascii(plain):  # half a character is written as a mark
        return Point(
            "report", "the report was changed after it was written: its digest is that of another text", holds=False
        )
    return Point("report", f"the report is as it was written (digest {digest[:12]}…)", holds=True)


def _follows(stored: Report) -> Point:
    """Is the verdict what the facts of the report and its limits make it? A baseline is another file."""
    again = judging.judge(stored.comparison, stored.policy)
    if again.outcome == stored.outcome:
        return Point("verdict", f"{stored.outcome} follows from the figures and the limits in the report", holds=True)
    if "baseline" in stored.origin.settings:
        return Point("verdict", "the run was also held against a baseline, which is not looked at here")
    return Point(
        "verdict", f"the figures and limits in the report give {again.outcome}, not {stored.outcome}", holds=False
    )


def _summed_up(content: bytes, stored: Report, gate: str | None) -> Iterator[Point]:
    """What stands at the top for who reads no further: figures of one report, the verdict of many gates."""
    plain = json.loads(content)
    shown = plain["gates"][gate] if gate is not None and "gates" in plain else plain
    if "gates" in shown:
        shown = next(iter(plain["gates"].values()))
    facts = json_report.document(stored)
    wrong = [name for name in SUMMED_UP if json.loads(json_report.dumps(getattr(facts, name))) != shown.get(name)]
    if "gates" in plain:
        outcomes = [Outcome(entry["outcome"]) for entry in plain["gates"].values()]
        outcome = worst(outcomes)
        wrong += (
            ["the verdict of all gates"]
            if (plain.get("outcome"), plain.get("passed"))
            != (
                outcome,
                outcome is Outcome.PASS,
            )
            else []
        )
    if wrong:
        yield Point("summary", f"what the report says first is not what it holds: {', '.join(wrong)}", holds=False)


def _model(side: str, target: Any, known: Artefact) -> Point:
    found = _same(side, str(target), provenance.sha256_of(target), known)
    if found.holds and str(target).lower().endswith(".xml") and not _weights(known):
        return Point(side, f"the report names {target} without its weights: it was written by an older likewise")
    for name, sha256 in _weights(known).items() if found.holds else ():
        weights = Path(target).parent / name
        if Path(target).parent.resolve() not in weights.resolve().parents:
            return Point(side, f"the report looks for weights outside the folder of {target}", holds=False)
        if not weights.is_file() or files.hash_file(str(weights)) != sha256:
            return Point(side, f"{weights} is not what the {side} of the report had its weights in", holds=False)
    code = (known.details or {}).get(provenance.CODE)
    for named, sha256 in code.items() if found.holds and isinstance(code, Mapping) else ():
        # Only what lies here is looked at: a report may name any file.
        file = re.sub(r"(?<=\.py):[^:]*$", "", str(named))
        again = files.hash_file(file) if os.path.isfile(file) and is_within(place_of(file), place_of(".")) else None
        if sha256 is None or again is None:
            return Point(side, f"the {side} of the report was made by {named}, which cannot be held against it here")
        if again != sha256:
            return Point(side, f"{named} is not the code that the {side} of the report was made by", holds=False)
        found = replace(found, told=f"{found.told}, made by {named}")
    return found


def _weights(known: Artefact) -> Mapping[str, Any]:
    """The SHA-256 of the files that hold a model's weights, by their names."""
    found = (known.details or {}).get(EXTERNAL_DATA)
    return found if isinstance(found, Mapping) else {}


def _same(about: str, name: str, found: str | None, known: Artefact) -> Point:
    if found is None:
        return Point(about, f"{name} is not a file that can be hashed")
    if known.sha256 is None:
        return Point(about, f"the {about} of the report was a live object ({known.name}): it has no SHA-256")
    if found != known.sha256:
        return Point(
            about,
            f"{name} is not the {about} of the report: SHA-256 {found[:12]}…, not {known.sha256[:12]}…",
            holds=False,
        )
    return Point(about, f"{name} is the {about} of the report (SHA-256 {found[:12]}…)", holds=True)


def _stated(path: str | PathLike[str], content: bytes, stored: Report) -> Iterator[Point]:
    """Does a statement speak of this report, and of its models, data and limits?"""
    try:
        said = json.loads(content_of(path), object_pairs_hook=named_once)
        predicate = said["predicate"]
        subjects = {entry["digest"]["sha256"] for entry in said["subject"]}
        used = {entry["digest"]["sha256"] for entry in predicate["configuration"] if "digest" in entry}
        result, failed, kinds = predicate["result"], predicate["failedTests"], (said["_type"], said["predicateType"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not an in-toto statement of a test: {one_line(error)}") from error
    if kinds != (STATEMENT, TEST_RESULT):
        raise DataError(f"{path} is not an in-toto statement of a test: it is {kinds!r}")
    report = hashlib.sha256(content).hexdigest()
    tested = {entry["digest"]["sha256"] for entry in resources(stored.origin.candidate, "")} or {report}
    wanted = {"reference": stored.origin.reference, "data": stored.origin.data}
    shas = {
        f"the {told}": entry["digest"]["sha256"] for told, found in wanted.items() for entry in resources(found, "")
    }
    shas |= {"the limits": policy_digest(stored), "the report": report}
    missing = [told for told, sha256 in shas.items() if sha256 not in used]
    passed = stored.outcome is Outcome.PASS
    if subjects != tested:
        yield Point("statement", f"{path} is about another candidate than the report", holds=False)
    elif missing:
        yield Point("statement", f"{path} does not name {' and '.join(missing)} of this run", holds=False)
    elif result != ("PASSED" if passed else "FAILED") or (passed and failed != []):
        yield Point("statement", f"{path} says {str(result)[:40]}, the report {stored.outcome}", holds=False)
    elif other := _said_otherwise(said, json.loads(json_report.dumps(statement_of(stored, report)))):
        yield Point("statement", f"{path} says something else than the report: {', '.join(other)}", holds=False)
    else:
        yield Point("statement", f"{path} states this report, its models, data and limits: {result}", holds=True)


def _said_otherwise(said: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The parts of a statement that its report does not make: what a reader of the statement alone would believe."""
    inner = _unequal(said["predicate"], expected["predicate"])
    return [name for name in _unequal(said, expected) if name != "predicate"] + inner


def settings_again(stored: Report, **given: Any) -> Settings:
    """The settings of a finished run, to run it again: nothing is written, and no cause is looked for."""
    table = {name: value for name, value in stored.origin.settings.items() if name not in ("report", "formats", "gate")}
    for name in (*MODELS, "data"):
        named = given.get(name) or table.get(name, "")
        if given.get(name) is None and getattr(stored.origin, name).sha256 is None and not LATER.match(str(named)):
            raise UsageError(
                f"the {name} of the report is not a file: {named}", remedy=f"Name one that stands for it: --{name} FILE"
            )
        table[name] = named
    settings = require_types(settings_from({**table, "explain": False}, where="the report"), where="the report")
    # Whatever the report calls them: formats stand among the settings by their own names too.
    return replace(settings, report=None, formats={})


def require_same_files(stored: Report, again: Report) -> None:
    """An error unless a run was made from the very files of the report."""
    for about in (*MODELS, "data"):
        known, found = getattr(stored.origin, about), getattr(again.origin, about)
        if known.sha256 is not None and (found.sha256, _weights(found)) != (known.sha256, _weights(known)):
            there = "is another file than" if found.sha256 else "cannot be read here; it was"
            raise DataError(
                f"{found.name} {there} the {about} of the report, SHA-256 {known.sha256[:12]}…",
                remedy=f"Name the very same: --{about} FILE",
            )


def differences(before: Report, now: Report) -> list[str]:
    """The figures of a run that another run of the same does not give again, in sentences."""
    old, new = (json.loads(json_report.JsonRenderer().render(report)) for report in (before, now))
    return [f"{path} was {was!r}, is {became!r}" for path, was, became in _unlike(old, new)]


def _unlike(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two plain values are not alike, at the ends of their branches."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if path or name not in UNDECIDED:
                yield from _unlike(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, entries in enumerate(zip(old, new, strict=True)):
            yield from _unlike(*entries, f"{path}[{place}]")
    elif old != new:
        yield path, old, new
