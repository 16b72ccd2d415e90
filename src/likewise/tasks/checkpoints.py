"""What a long check has reached, kept beside its report: after a kill, the rows that were compared are not asked again.

A checkpoint belongs to one question: models, data and settings by their hashes, versions and machine. It is read like
a stranger's file: nothing in it is made but our own summaries, arrays and columns.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from likewise.contracts.comparison import Json
from likewise.data.columns import ArrayColumns, ArrowColumns, CaseColumns, _arrow_columns
from likewise.data.files import CHECKPOINT, atomically, is_checkpoint
from likewise.data.patterns import matching
from likewise.data.readers.arrays import StoredArrays
from likewise.errors import UsageError, one_line
from likewise.models import pickles
from likewise.models.pickles.rights import Right
from likewise.report import provenance
from likewise.report.formats.json import dumps
from likewise.tasks.settings import Settings, stated

OURS = ("likewise.compare.", "likewise.contracts.", "likewise.data.")
NAMED = {
    *(("pyarrow.lib", "py_buffer"), ("numpy", "dtype")),
    *(("numpy", "ndarray"), ("numpy._core.numeric", "_frombuffer"), ("numpy._core.multiarray", "_reconstruct")),
    *(("numpy._core.multiarray", "scalar"), ("numpy.core.numeric", "_frombuffer")),
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar")),
    *(("builtins", name) for name in ("bytearray", "complex", "frozenset", "set", "slice")),
}
"""What a checkpoint may name beside our own values."""

COLUMNS = (ArrayColumns, CaseColumns, StoredArrays)

EVERY = 60.0
"""Seconds after which a run from Python keeps what it has reached, as a command does."""

RESUMED = "Resumed from"

WRITTEN = ("report", "formats", "gate")
"""Settings that say where a report goes, and nothing about it."""


class Checkpoint:
    """Where a run keeps what it has reached, at most every so many seconds; `said` tells what became of an old one."""

    def __init__(
        self, settings: Settings, write: Callable[[bytes], None], *, every: float, old: Path | None = None
    ) -> None:
        self._settings, self._write, self._every, self._old = settings, write, every, old
        self._last = time.monotonic()
        self._key: str | None = None
        self.said = ""

    def load(self, details: Mapping[str, Json], fingerprint: Callable[[], str | None]) -> Any:
        """What an earlier run of the same question had reached, if it is to be gone on from; None for nothing."""
        self._question = details, fingerprint
        if self._old is None:
            return None
        told = f"{self._old} is not used"
        if not self._old.is_file():
            self.said = f"There is no {self._old}: all rows are compared."
            return None
        try:
            found = self._old.read_bytes()
            key, body = (found := found.removeprefix(CHECKPOINT))[:64], found[64:]
            if not is_checkpoint(self._old):
                self.said = f"{told}: it is not a checkpoint of this version."
            elif self._asked() is None or key.decode("ascii", "replace") != self._asked():
                self.said = f"{told}: it belongs to other files, settings or versions."
            else:
                state = _read(body, self._settings.data)
                self.said = f"{RESUMED} {self._old}: {state[1].rows:,} rows were compared already."
                return state
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, all rows are compared
            self.said = f"{told}: it is damaged ({one_line(error)})."
        return None

    def save(self, state: Any) -> None:
        """Keep what the run has reached, if it is time for that."""
        if time.monotonic() - self._last >= self._every and (key := self._asked()) is not None:
            self._write(CHECKPOINT + key.encode() + pickle.dumps(state, protocol=5))
            self._last = time.monotonic()

    def _asked(self) -> str | None:
        """The hash of the question; None where a model or the data have none, and nobody could tell whether it is new.

        Known once: files that change meanwhile make another question of the next run, not of this one.
        """
        if self._key is None:
            details, fingerprint = self._question
            targets = {side: getattr(self._settings, side) for side in ("reference", "candidate")}
            hashes = {side: provenance.sha256_of(target) for side, target in targets.items()}
            hashes["data"] = fingerprint()
            weights = {side: provenance.weights_beside(target, details.get(side)) for side, target in targets.items()}
            code = {side: provenance.named_by(getattr(self._settings, f"{side}_options")) for side in targets}
            said = {name: value for name, value in stated(self._settings).items() if name not in WRITTEN}
            asked = [hashes, weights, code, json.loads(dumps(said)), provenance.tools(), provenance.machine()]
            if None not in [*hashes.values(), *(sha256 for named in code.values() for sha256 in named.values())]:
                self._key = hashlib.sha256(dumps(asked).encode()).hexdigest()
        return self._key


class Kept(Checkpoint):
    """A checkpoint in a file beside the report, for a run from Python."""

    def __init__(self, settings: Settings, place: Path) -> None:
        self.place = place
        super().__init__(settings, lambda content: atomically(place, content), every=EVERY, old=place)

    def told(self) -> dict[str, Any]:
        """The same for a worker."""
        return {"checkpoint": {"place": str(self.place), "every": EVERY, "resume": True}}


@contextmanager
def going_on(settings: Settings) -> Iterator[Kept]:
    """Keep what a run reaches beside its report, and go on from what is there; it is gone when the run has ended."""
    if settings.report in (None, "-"):
        raise UsageError(
            "resume=True, and no file beside which to keep what was reached", remedy="Say report='report.json' too"
        )
    place = Path(f"{settings.report}.checkpoint")
    if os.path.lexists(place) and not is_checkpoint(place):
        raise UsageError(f"{place} is no checkpoint", remedy="Move it, or name another report")
    asked = place.exists()
    kept = Kept(settings, place)
    yield kept
    if asked and kept.said and not kept.said.startswith(RESUMED):
        warnings.warn(kept.said, stacklevel=4)
    place.unlink(missing_ok=True)


class _Ours(pickles.Gate):
    """Makes our own summaries, columns of the data at hand, and arrays as a pickled model may; nothing else."""

    def __init__(self, data: object) -> None:
        super().__init__(())
        self._data = data
        self._stand_ins = {StoredArrays: self._stored, _arrow_columns: _checked_columns}

    def trusts(self, reference: str | None) -> bool:
        module, _, name = (reference or "").rpartition(".")
        return (found := _own(module, name)) is not None and not issubclass(found, Enum)

    def find(self, module: str, name: str) -> Any:
        if (module, name) in NAMED:
            return super().find(module, name)
        if (module, name) == (_arrow_columns.__module__, _arrow_columns.__name__):
            return self.own(self._stand_ins[_arrow_columns])
        if (found := _own(module, name)) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        if found is StoredArrays:
            return self.own(self._stand_ins[StoredArrays])
        called = issubclass(found, Enum) or found in COLUMNS
        return self.grant(found, Right.CALL if called else Right.MAKE)

    def _stored(self, path: str) -> StoredArrays:
        """The arrays of a file, which has to be one of those that the run is about."""
        named = os.path.expanduser(self._data) if isinstance(self._data, str) else ""
        places = {os.path.realpath(found) for found in (named, *matching(named)) if found}
        if not places & {os.path.realpath(path), os.path.dirname(os.path.realpath(path))}:
            raise pickle.UnpicklingError("it names a file that is none of the data's")
        return StoredArrays(path)


def _own(module: str, name: str) -> type[Any] | None:
    """The class of ours that a checkpoint may hold under this name."""
    if not module.startswith(OURS) or "." in name:
        return None
    found = getattr(import_module(module), name, None)
    plain = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
    return found if plain or found in COLUMNS else None


def _checked_columns(*arguments: Any) -> ArrowColumns:
    """Columns whose offsets and codes lead nowhere outside."""
    made = _arrow_columns(*arguments)
    made.table.validate(full=True)
    return made


def _read(content: bytes, data: object) -> Any:
    gate = _Ours(data)
    found = pickles.Reader(io.BytesIO(content), gate).load()
    if gate.refused:
        raise pickle.UnpicklingError(f"it is {min(gate.refused)}")
    return found
