"""The steps of a scikit-learn reference of a case, watched and changed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from likewise.contracts.data import Batch, Tensors
from likewise.explain.case import Case
from likewise.models.sklearn.inside import Change, Seen, Step, visit_steps, with_changes


def reference_steps(case: Case) -> tuple[Step, ...]:
    """The steps of the reference, in the order in which they run; none unless it is a scikit-learn model."""
    model = case.native("reference")
    if model is None or case.framework("reference") != "sklearn" or "sklearn" not in sys.modules:
        return ()
    found: list[Step] = []

    def note(step: Step) -> None:
        found.append(step)

    visit_steps(model, note)
    return tuple(found)


def seen(case: Case, batch: Batch) -> dict[str, Seen]:
    """What each step of the reference is given and gives on these rows."""
    found: dict[str, Seen] = {}

    def watch(path: str) -> Change:
        def note(given: Any, gave: Any) -> Any:
            found[path] = Seen(given, gave)
            return gave

        return note

    ask_changed(case, {step.path: watch(step.path) for step in reference_steps(case)}, batch)
    return found


def ask_changed(case: Case, changes: Mapping[str, Change], batch: Batch | None = None) -> Tensors | None:
    """What the reference answers with some of its steps changed; None if it refuses."""
    return case.ask_changed("reference", target=with_changes(case.native("reference"), changes), batch=batch)
