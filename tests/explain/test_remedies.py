"""A remedy is told as verified only where just that was done and helped: done again here, from its words alone.

Of each kind one; what happens by itself is held to it in test_faults, and `make remedies` does it for all faults.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
from applying import helps
from faults import FAULTS
from faults.quiet import quietly
from sklearn.linear_model import LogisticRegression

import data_only
from likewise.report.formats.json import loads
from likewise.report.words import remedy_told

VERIFIED = {
    "weights/sign_of_a_coefficient": "Export the reference again with likewise export: exported that way, it agrees",
    "refusals/column_renamed": "Say so: --feed salary=income",
    "outputs/classes_permuted_against_recorded_answers": "Reorder the columns: output[:, [2, 0, 1]]",
    "outputs/logarithms_of_probabilities": "Apply the exp to the candidate's output: np.exp(output)",
    "outputs/channels_last": "output.transpose(0, 3, 1, 2)",
    "trees/tree_with_gaps": "Have it put right in a copy by likewise fix",
}


@cache
def explained(name):
    """A fault and its report, made once."""
    fault = FAULTS[name]()
    with quietly():
        return fault, data_only.explain(fault.reference, fault.candidate, fault.data, **fault.options)


@pytest.mark.parametrize("name", VERIFIED)
def test_a_verified_remedy_helps(name):
    fault, report = explained(name)
    first = report.diagnoses[0]
    assert first.remedy_verified
    assert VERIFIED[name] in first.remedy
    with quietly():
        assert helps(fault, report) == ""


def test_doing_nothing_does_not_help():
    """What the tests above rely on: a remedy that leaves the failing rows is noticed."""
    fault, report = explained("outputs/classes_permuted_against_recorded_answers")
    other = replace(report.diagnoses[0], remedy="Reorder the columns: output[:, [0, 2, 1]]")
    with quietly():
        assert "failing rows before" in helps(fault, replace(report, diagnoses=(other,)))
        unknown = replace(other, remedy="Think about it")
        assert helps(fault, replace(report, diagnoses=(unknown,))) == "nobody knows how to do: Think about it"


def test_an_export_that_does_not_help_is_no_remedy():
    """The converter gives trees that were trained with gaps no direction for them, however often it is asked."""
    first = explained("trees/tree_with_gaps")[1].diagnoses[0]
    assert "xport the" not in first.remedy
    assert remedy_told(first).startswith("Verified: have it put right in a copy by likewise fix")
    assert "Suggestion: fill missing values" in remedy_told(first)


def rows(count=300):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).astype(int)


def damaged(file: Path, change) -> None:
    proto = onnx.load(file)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "coefficients":
                change(attribute.floats)
    onnx.save(proto, file)


def test_exporting_a_file_again_that_likewise_wrote_is_told_only_where_it_was_tried(tmp_path):
    inputs, classes = rows()
    model, file = str(tmp_path / "model.joblib"), tmp_path / "model.onnx"
    joblib.dump(LogisticRegression().fit(inputs, classes), model)
    data_only.export(model, inputs, file, check=False)
    damaged(file, lambda floats: floats.__setitem__(0, -floats[0]))
    first = data_only.explain(model, str(file), inputs).diagnoses[0]
    assert (first.cause, first.remedy_verified) == ("weight-corruption", True)
    # What was said about the names of this file need not hold for another one: none is made.
    spoken = data_only.explain(model, str(file), inputs, pair={"probabilities": "probabilities"}).diagnoses[0]
    assert spoken.remedy == "Have it put right in a copy by likewise fix: coef_ put back from the reference"
    assert "another export helps only if it was changed since" in spoken.suggestion
    unstamped = onnx.load(file)
    del unstamped.metadata_props[:]
    onnx.save(unstamped, file)
    foreign = data_only.explain(model, str(file), inputs, pair={"probabilities": "probabilities"}).diagnoses[0]
    assert foreign.suggestion == "Export or copy the file again, and compare its SHA-256 on both ends"


def test_a_preset_that_has_failed_is_not_recommended():
    """INT8 is judged as such already."""
    fault, report = explained("precision/dynamic_integers")
    assert "--preset quantized" in report.diagnoses[0].remedy
    options = {**fault.options, "preset": "quantized", "limits": {"max_abs_diff": 1e-6}}
    with quietly():
        strict = data_only.explain(fault.reference, fault.candidate, fault.data, **options)
    assert strict.diagnoses[0].cause == "quantization"
    assert "--preset" not in strict.diagnoses[0].remedy


def test_every_format_says_whether_a_remedy_was_verified(tmp_path):
    report = explained("outputs/logarithms_of_probabilities")[1]
    first = report.diagnoses[0]
    assert remedy_told(first) == (
        "Verified: apply the exp to the candidate's output: np.exp(output). Suggestion: export with the exp at the end"
    )
    suggested = replace(report, diagnoses=(replace(first, remedy_verified=False, suggestion=""),))
    for ending in ("html", "md", "junit.xml", "sarif"):
        for told, mark in ((report, "Verified: apply the exp"), (suggested, "Suggestion: apply the exp")):
            told.save(tmp_path / f"report.{ending}")
            assert mark in (tmp_path / f"report.{ending}").read_text(), (ending, mark)
    assert "Verified: apply the exp" in report._repr_html_()


def test_a_report_from_before_loads_with_suggestions(tmp_path):
    report = explained("outputs/logarithms_of_probabilities")[1]
    report.save(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["diagnoses"][0]["remedy_verified"] is True
    for diagnosis in document["diagnoses"]:
        del diagnosis["remedy_verified"], diagnosis["suggestion"]
    old = loads(json.dumps(document))
    assert remedy_told(old.diagnoses[0]).startswith("Suggestion: apply the exp")
