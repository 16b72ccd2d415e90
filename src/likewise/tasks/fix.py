"""From a failed check to a repaired file: remedies carried out on copies, each checked in full, until one passes.

Which remedies there are, and that they helped on some rows, is what explaining has shown (`explain/remedies.py`).
Here each is written into a copy of the candidate, and the copy is opened anew and checked on all rows, under the same
policy. Where none is enough alone, the one that helps most is explained again, and what is found then is added to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Progress
from likewise.contracts.models import MADE_FROM
from likewise.contracts.report import Report
from likewise.contracts.results import BatchTiming
from likewise.contracts.verdict import Outcome
from likewise.data.files import hash_file, replacing
from likewise.errors import UsageError, one_line
from likewise.models.onnx import describe, edits
from likewise.registry import describe_model
from likewise.report.provenance import sha256_of
from likewise.report.tables import summary_line
from likewise.report.words import size
from likewise.tasks import bench
from likewise.tasks import check as checking
from likewise.tasks.own_files import require_outputs
from likewise.tasks.settings import Settings

if TYPE_CHECKING:
    from onnx import ModelProto

    from likewise.explain.case import Explained, Fix
    from likewise.explain.driver import Investigation

__all__ = ["fix"]

FIXED_FROM, FIXED_BY = "likewise.fixed_from", "likewise.fixed_by"
"""Where a repaired ONNX file says, by SHA-256, which file it was made from, and what was done to it."""

MOST_TOGETHER = 3
"""Remedies that are put together, one after the other."""

Follower = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One remedy that was carried out on a copy: for which cause and place, and the verdict on the copy."""

    told: str
    cause: str
    culprit: str
    outcome: Outcome
    headline: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """What became of a candidate; its truth value is whether there is a file that passes.

    `after` is the check of the file that was written, None where none was. `done` is what that file got, `tried` what
    was carried out and left the candidate outside its limits. `settings` are those of a session under which the
    candidate passes as it is: a file cannot carry them.
    """

    before: Report
    after: Report | None = None
    output: str | None = None
    done: tuple[Step, ...] = ()
    tried: tuple[Step, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    bytes_before: int | None = None
    bytes_after: int | None = None
    timing: BatchTiming | None = None

    def __bool__(self) -> bool:
        return self.report.passed

    @property
    def report(self) -> Report:
        """The check that counts: of the file that was written, or of the candidate."""
        return self.before if self.after is None else self.after


def fix(
    reference: Any, candidate: Any, data: Any, output: str | PathLike[str], *, speed: bool = True, **options: Any
) -> Fixed:
    """Check, explain, and carry out what was found on a copy of the candidate; `output` is written only if it passes.

    Options are those of `check`. `speed` asks for a timing of the candidate and the repaired file. Models and data are
    never touched. The result is true when the candidate passes, as it is or repaired.
    """
    settings = checking.settings_of(reference, candidate, data, **{"explain_budget": checking.FULL_BUDGET, **options})
    settings.policy()
    require_outputs({"reference": reference, "candidate": candidate, "data": data}, str(output))
    fixed, _ = run(settings, output)
    if not speed or fixed.output is None:
        return fixed
    shared = {name: getattr(settings, name) for name in bench.SELECTION}
    return replace(fixed, timing=bench.quick(candidate, fixed.output, data, **shared))


def run(
    settings: Settings, output: str | PathLike[str], *, progress: Follower | None = None
) -> tuple[Fixed, Investigation | None]:
    """Check one gate, and repair its candidate if it does not pass; also what was found out about it as it was."""
    path = Path(output)
    if path.suffix.lower() != ".onnx":
        raise UsageError(f"{path} is not a name for an ONNX file", remedy="Give one that ends in .onnx")
    candidate = describe_model(settings.candidate, settings.candidate_options, side="candidate")
    if candidate.framework != "onnx":
        raise UsageError(
            f"{candidate.name} is a model of {candidate.framework}: only ONNX files are repaired",
            remedy="likewise explain says what is wrong with it; likewise export writes an ONNX file",
        )
    if isinstance(candidate.target, str | PathLike) and not Path(candidate.target).exists():
        # A name that is misspelt is no fault to repair by a new export.
        raise UsageError(f"there is no file {candidate.target}", remedy="Name the ONNX file to repair")
    settings = replace(settings, explain=True, report=None, formats={})
    before, found = checking.investigate(settings, progress=progress)
    fixed = Fixed(before, bytes_before=before.origin.candidate.bytes)
    if before.passed or found is None:
        return fixed, found
    with TemporaryDirectory(prefix="likewise.") as folder:
        return _Repair(settings, path, Path(folder), progress).run(fixed, found), found


@dataclass(slots=True)
class _Copy:
    """A repaired copy, what it got, and the verdict on it."""

    path: Path
    steps: tuple[Step, ...]
    report: Report


@dataclass(slots=True)
class _Repair:
    """The copies of one candidate: written, checked, and the first that passes put in its place."""

    settings: Settings
    output: Path
    folder: Path
    progress: Follower | None
    copies: int = 0
    tried: list[Step] = field(default_factory=list)

    def run(self, fixed: Fixed, found: Investigation | None) -> Fixed:
        settings, report = self.settings, fixed.before
        done: tuple[Step, ...] = ()
        for _ in range(MOST_TOGETHER):
            best: _Copy | None = None
            for copy in self._attempts(settings, found, done):
                if not isinstance(copy, _Copy):
                    return replace(fixed, settings=copy, tried=tuple(self.tried))
                if copy.report.passed:
                    return self._finished(fixed, copy)
                if _left(copy.report) < _left(report if best is None else best.report):
                    best = copy
            if best is None:
                break
            settings, done = replace(self.settings, candidate=str(best.path)), best.steps
            report, found = checking.investigate(settings, progress=self.progress)
        return replace(fixed, tried=tuple(self.tried))

    def _attempts(
        self, settings: Settings, found: Investigation | None, done: tuple[Step, ...]
    ) -> Iterator[_Copy | Mapping[str, str]]:
        """Every remedy carried out: a copy with the verdict on it, or settings under which the candidate passes."""
        from likewise.explain import remedies

        for entry, remedy in () if found is None else remedies.fixes(found.case, found.best):
            try:
                path = None if remedy.options else self._written(remedy)
                if path is None and not remedy.options:
                    continue
                options = {**settings.candidate_options, **remedy.options}
                target = settings.candidate if path is None else str(path)
                report = self._checked(replace(settings, candidate=target, candidate_options=options))
            except Exception as error:  # noqa: BLE001 - a remedy that cannot be carried out must not take the others along
                self._note(entry, remedy, Outcome.INCONCLUSIVE, f"it could not be carried out: {one_line(error)}")
                continue
            step = self._note(entry, remedy, report.outcome, report.headline)
            if path is not None:
                yield _Copy(path, (*done, step), report)
            elif report.passed and not done:
                yield remedy.options

    def _checked(self, settings: Settings) -> Report:
        """The verdict on a copy, by a check like any other: both models are opened anew, all rows are asked."""
        return checking.investigate(replace(settings, explain=False), progress=self.progress)[0]

    def _note(self, entry: Explained | None, remedy: Fix, outcome: Outcome, headline: str) -> Step:
        cause, culprit = ("", "") if entry is None else (entry.cause, str(entry.culprit))
        self.tried.append(Step(remedy.told, cause, culprit, outcome, headline))
        return self.tried[-1]

    def _written(self, remedy: Fix) -> Path | None:
        """The copy with a remedy carried out, in a folder of its own; None where it cannot be done."""
        proto = remedy.make()
        if proto is None:
            return None
        self.copies += 1
        folder = self.folder / str(self.copies)
        folder.mkdir()
        path = folder / self.output.name
        path.write_bytes(self._stamped(proto, remedy).SerializeToString(deterministic=True))
        return path

    def _stamped(self, proto: ModelProto, remedy: Fix) -> ModelProto:
        """The graph with all its weights, saying where it comes from; it is no longer the file that was exported."""
        from onnx import helper

        whole = edits.copied(describe.whole(proto))
        kept = {entry.key: entry.value for entry in whole.metadata_props if entry.key != MADE_FROM}
        before = kept.get(FIXED_BY)
        sha256 = sha256_of(self.settings.candidate)
        kept |= {} if sha256 is None else {FIXED_FROM: sha256}
        kept[FIXED_BY] = remedy.told if before is None else f"{before}; {remedy.told}"
        helper.set_model_props(whole, kept)
        return whole

    def _finished(self, fixed: Fixed, copy: _Copy) -> Fixed:
        """Put the copy in its place, and say in its report where that is."""
        with replacing(self.output) as place:
            shutil.copyfile(copy.path, place)
        origin, name = copy.report.origin, str(self.output)
        origin = replace(
            origin,
            candidate=replace(origin.candidate, name=name, sha256=hash_file(str(copy.path))),
            settings={**origin.settings, "candidate": name},
        )
        return replace(
            fixed,
            after=replace(copy.report, origin=origin),
            output=name,
            done=copy.steps,
            tried=tuple(step for step in self.tried if step not in copy.steps),
            bytes_after=describe.file_bytes(copy.path),
        )


def _left(report: Report) -> tuple[bool, float, int]:
    """How far a verdict is from a pass: could all be compared, which share is beyond, how many limits do not hold."""
    compared = report.comparison
    share = compared.rows_beyond / compared.rows if compared.rows else 1.0
    return (
        report.outcome is Outcome.INCONCLUSIVE,
        share,
        sum(check.outcome is Outcome.FAIL for check in report.verdict.checks),
    )


def cost(before: int | None, after: int, timing: BatchTiming | None) -> str:
    """`2.1 MB → 2.2 MB, 1.1× slower at batch 256 (1.0–1.2)`"""
    grown = size(after) if before is None else f"{size(before)} → {size(after)}"
    return grown if timing is None else f"{grown}, {summary_line(timing)}"
