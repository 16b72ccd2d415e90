"""A finished run judged again, without running the models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from likewise.contracts.report import Explanation, Report
from likewise.contracts.verdict import Policy
from likewise.data.files import content_of
from likewise.errors import DataError
from likewise.judge import verdict as judging
from likewise.judge.policy import make_policy
from likewise.report.formats import json as json_report
from likewise.tasks.settings import require_baseline


def judge(report: Report, **options: Any) -> Report:
    """Judge a finished run again, without running the models: only what is named changes."""
    before = report.policy
    asked = {name: value for name, value in options.items() if value is not None}
    given = {name: asked.pop(name) for name in ("baseline", "max_worse") if name in asked}
    report = judging.with_baseline(report, **given)
    if given:
        stated = report.origin.settings
        require_baseline(stated.get("baseline"), max_worse=stated.get("max_worse"))
    limits = asked.pop("limits", {})
    if asked.keys() & {"preset", "abs_tol", "rel_tol", "mean_tol"}:
        policy = make_policy(**{**_kept(report, asked), **asked}, limits={**_own_limits(before), **limits})
        if not asked.keys() & {"preset", "abs_tol", "rel_tol"}:
            policy = replace(policy, tolerance=before.tolerance)
    else:
        added = make_policy(preset=before.preset, limits=limits, **asked)
        fresh = [limit for limit in added.limits if limit.explicit]
        replaced = {(limit.output, limit.measure) for limit in fresh}
        kept = [limit for limit in before.limits if (limit.output, limit.measure) not in replaced]
        changes = {name: getattr(added, name) for name in asked}
        policy = replace(before, limits=(*kept, *fresh), **changes)
    if policy != before and report.explanation is not None:
        # What explains a failure under some limits need not explain one under others.
        note = "the run was judged again under other limits: `likewise explain` looks for causes under these"
        report = replace(report, diagnoses=(), explanation=Explanation(not_tested=(note,)))
    return held_to_baseline(replace(report, policy=policy, verdict=judging.judge(report.comparison, policy)))


def _own_limits(policy: Policy) -> dict[str, float]:
    """The limits a user named beside the tolerances."""
    tolerances = {"max_abs_diff", "mismatch_rate", "mean_abs_diff"}
    return {
        limit.text: limit.bound
        for limit in policy.limits
        if limit.explicit and (limit.output is not None or limit.measure not in tolerances)
    }


def _kept(report: Report, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of the policy when a tolerance or the preset changes."""
    before = report.policy
    names = ("preset", "nan_equal", "confidence", "max_failure_rate", "fixed_batch", "allow_same")
    kept: dict[str, Any] = {name: getattr(before, name) for name in names}
    if "preset" in asked:
        return kept
    kept["mean_tol"] = report.mean_tol
    if "abs_tol" not in asked:
        kept["abs_tol"] = before.tolerance.absolute
        kept["rel_tol"] = before.tolerance.relative
    return kept


def held_to_baseline(report: Report) -> Report:
    """The report, also judged against the accepted run that its settings name, if they name one."""
    path = report.origin.settings.get("baseline")
    if path is None:
        return report
    try:
        content = content_of(path)
        gates = json_report.loads_gates(content, name=str(path))
    except DataError as error:
        return judging.baseline_undecided(report, error.message)
    gate = report.origin.settings.get("gate")
    if len(gates) > 1 and gate not in gates:
        named = f"no gate {gate!r}" if gate else "many gates, and this one has no name"
        return judging.baseline_undecided(report, f"{path} has {named}")
    accepted = gates[str(gate)] if len(gates) > 1 else next(iter(gates.values()))
    return judging.held_against(report, accepted, hashlib.sha256(content).hexdigest())
