"""A verified remedy done again by hand, from its words alone: what was fixed so is checked like any other candidate."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import scipy.special

import data_only
import likewise

AS_MUCH = 0.95
"""Of the failing rows that a diagnosis explains, so many have to be gone."""


def helps(fault, report) -> str:
    """Why the verified remedy of the first diagnosis does not do what it says; empty if it does."""
    first = report.diagnoses[0]
    after = remedied(fault, first)
    if after is None:
        return f"nobody knows how to do: {first.remedy}"
    before, left = report.comparison.rows_beyond, after.comparison.rows_beyond
    if after.passed or (
        before and not after.comparison.incidents and left <= (1 - AS_MUCH * first.explained_share) * before
    ):
        return ""
    return f"{before} failing rows before, {left} after: {first.remedy}: {after.headline}"


def remedied(fault, diagnosis):
    """The check of the pair once the remedy is applied; None where its words do not tell how."""
    told = diagnosis.remedy
    options = dict(fault.options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "remedied.onnx"
        if "by likewise fix: " in told:
            # Only what the diagnosis is about is looked for again.
            only = {**data_only.OPTIONS, **options, "causes": (diagnosis.cause,)}
            return likewise.fix(fault.reference, fault.candidate, fault.data, file, speed=False, **only).report
        if export := re.search(r"with likewise export( --double)?", told):
            data_only.export(fault.reference, fault.data, file, check=False, double=export[1] is not None)
            return data_only.check(fault.reference, str(file), fault.data, **options)
        if setting := re.search(r"--candidate-option (\w+)=(\S+)", told):
            options["candidate_options"] = {**options.get("candidate_options", {}), setting[1]: setting[2]}
            return data_only.check(fault.reference, fault.candidate, fault.data, **options)
        if feeds := re.findall(r"--feed '?([^\s'=]+)=([^\s']+)'?", told):
            return data_only.check(fault.reference, fault.candidate, fault.data, **options, feed=dict(feeds))
        if attribute := re.search(r"Set (\w+)=(\w+) in the \w+ that gives '(.+)'", told):
            onnx.save(_with_attribute(_proto(fault.candidate), *attribute.groups()), file)
            return data_only.check(fault.reference, str(file), fault.data, **options)
        if line := re.fullmatch(r"[^:]+: (.*\b(output|label)\b.*)", told):
            return data_only.check(
                fault.reference, _followed_by(fault.candidate, *line.groups(), diagnosis.culprit), fault.data, **options
            )
    return None


def _proto(candidate):
    if isinstance(candidate, bytes):
        return onnx.load_from_string(candidate)
    return candidate if isinstance(candidate, onnx.ModelProto) else onnx.load(candidate)


def _with_attribute(proto, name, value, output):
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    (found,) = [one for one in copy.graph.node if output in one.output]
    kept = [one for one in found.attribute if one.name != name]
    del found.attribute[:]
    found.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    return copy


def _followed_by(candidate, code, word, culprit):
    """The candidate in plain ONNX Runtime, with a line of code behind the output that the culprit names."""
    session = onnxruntime.InferenceSession(_proto(candidate).SerializeToString())
    given = [output.name for output in session.get_outputs()]
    meant = culprit.partition(" (")[0]
    named = re.search(r"output '(.+?)'", culprit)
    changed = next(name for name in (named and named[1], meant, *given) if name in given)

    def serve(rows):
        found = dict(zip(given, session.run(None, _inputs(session, rows)), strict=True))
        output = found.pop(changed)
        names = {"np": np, "scipy": scipy}
        if word == "label":
            made = np.array([eval(code, {**names, "label": label}) for label in output.tolist()])
        else:
            made = eval(code, {**names, "output": output})
        return {meant: made, **found}

    return serve


def _inputs(session, rows):
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    wanted = session.get_inputs()
    if isinstance(rows, pd.DataFrame) and len(wanted) > 1:
        rows = {name: rows[[name]].to_numpy() for name in rows}
    elif not isinstance(rows, dict):
        rows = {wanted[0].name: np.asarray(rows)}
    return {one.name: np.asarray(rows[one.name]).astype(types.get(one.type, object)) for one in wanted}
