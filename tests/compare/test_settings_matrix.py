"""The candidate under several runtime settings: the first that differs is named, what is not there is listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import data_only
import likewise
from likewise import report as report_files
from likewise.compare.variations import settings
from likewise.contracts.verdict import Outcome, Severity, SuiteVerdict
from likewise.errors import UsageError
from likewise.judge.variations import setting_findings
from likewise.tasks.settings import load_gates
from planting import here

LEVELS = ["disable", "basic", "extended", "all"]


def pooled():
    """A graph that ONNX Runtime's Pad_Fusion changes: MaxPool pads with minus infinity, Pad with zero."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("MaxPool", ["padded"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["output"]),
    ]
    pads = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 48])],
        [pads],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def pooling(x):
    """What the graph means, written out."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = padded.reshape(len(x), 3, 4, 2, 4, 2)
    return {"output": windows.max(axis=(3, 5)).reshape(len(x), -1)}


@pytest.fixture(scope="module")
def images():
    return {"x": -np.abs(np.random.default_rng(0).normal(size=(64, 3, 6, 6))).astype(np.float32)}


def checked(images, matrix, **options):
    return data_only.check(pooling, pooled(), images, matrix=matrix, **options)


def found(report, code):
    return [finding for finding in report.verdict.findings if finding.code == code]


@pytest.fixture(scope="module")
def diverging(images):
    """The gate itself runs without optimisation and agrees: only the matrix can find it."""
    matrix = {"optimization": LEVELS, "threads": [1, 2]}
    return checked(images, matrix, candidate_options={"optimization": "disable"})


def test_the_first_setting_that_differs_is_named_and_fails(diverging):
    assert diverging.outcome is Outcome.FAIL
    assert all(check.outcome is Outcome.PASS for check in diverging.verdict.checks)
    (finding,) = found(diverging, "setting-diverges")
    assert finding.severity is Severity.FAILURE
    assert "differs from optimization=basic on; optimization=disable agrees" in finding.message
    assert diverging.verdict.headline.startswith("the candidate differs from optimization=basic on")
    outcomes = {suite.name: suite.outcome for suite in diverging.verdict.suites}
    assert list(outcomes) == [f"optimization={level}, threads={count}" for level in LEVELS for count in (1, 2)]
    for name, outcome in outcomes.items():
        assert outcome is (Outcome.PASS if "disable" in name else Outcome.FAIL), name


def test_every_setting_has_its_rows_and_differences(diverging, images):
    worst = float(np.abs(pooling(images["x"])["output"] - _without_padding(images["x"])).max())
    for suite in diverging.comparison.suites:
        assert suite.comparison.rows == 64
        (output,) = suite.comparison.outputs
        expected = 0.0 if "disable" in suite.name else worst
        assert output.measures["max_abs_diff"] == pytest.approx(expected)
    shown = report_files.render(diverging, "terminal", width=120)
    lines = [line.split() for line in shown.splitlines() if line.startswith("optimization=")]
    assert [line[-1] for line in lines] == ["✓"] * 2 + ["✗"] * 6
    assert {line[2] for line in lines} == {"64"}


def _without_padding(x):
    """What the merged operator answers: the border takes no part."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return padded.reshape(len(x), 3, 4, 2, 4, 2).max(axis=(3, 5)).reshape(len(x), -1)


def test_the_report_is_read_back_and_judged_again(diverging, tmp_path):
    report_files.save(diverging, tmp_path / "report.json")
    again = likewise.load(tmp_path / "report.json")
    assert [suite.name for suite in again.verdict.suites] == [suite.name for suite in diverging.verdict.suites]
    assert likewise.judge(again, abs_tol=100.0).outcome is Outcome.PASS
    assert likewise.judge(again, abs_tol=0.001).outcome is Outcome.FAIL


def test_the_search_for_the_cause_looks_at_the_setting_that_differs(diverging):
    plan = planned()
    looked_at, measured = settings.to_explain(plan, diverging.comparison, diverging.verdict)
    assert looked_at.candidate.options == {"optimization": "basic", "threads": "1"}
    assert measured is diverging.comparison.suites[2].comparison
    failing = replace(diverging.comparison, mismatches=())
    verdict = replace(diverging.verdict, findings=(*diverging.verdict.findings, _other_failure()))
    assert settings.to_explain(plan, failing, verdict) == (plan, failing)


def planned():
    from likewise.contracts.comparison import Plan, Tolerance
    from likewise.contracts.models import Model

    model = Model("onnx", b"", {"optimization": "disable"})
    return Plan(model, model, source=None, tolerance=Tolerance(0.0, 0.0))


def _other_failure():
    from likewise.contracts.verdict import Finding

    return Finding("max_abs_diff", Severity.FAILURE, "the data differs")


def test_a_correct_model_agrees_everywhere(example_folder):
    report = data_only.check(
        str(example_folder / "model.joblib"),
        str(example_folder / "model.onnx"),
        str(example_folder / "test.parquet"),
        matrix={"optimization": LEVELS, "threads": [1, 2]},
    )
    assert report.outcome is Outcome.PASS, report.verdict.headline
    assert [suite.outcome for suite in report.verdict.suites] == [Outcome.PASS] * 8
    assert {suite.rows for suite in report.verdict.suites} == {3_000}
    assert all(suite.blocks for suite in report.verdict.suites)


def test_rows_are_bounded(images):
    many = {"x": np.resize(images["x"], (settings.ROWS + 900, 3, 6, 6))}
    report = checked(many, {"threads": [1]}, candidate_options={"optimization": "disable"}, batch_sizes=())
    assert report.comparison.rows == settings.ROWS + 900
    assert report.comparison.suites[0].comparison.rows == settings.ROWS


def test_a_provider_that_is_not_there_is_listed_and_does_not_block(images):
    report = checked(images, {"providers": ["CPU", "CUDA"]}, candidate_options={"optimization": "disable"})
    assert report.outcome is Outcome.PASS
    cpu, cuda = report.comparison.suites
    assert (cpu.not_covered, cpu.comparison.rows) == ("", 64)
    assert cuda.not_covered == "CUDAExecutionProvider is not on this machine"
    (finding,) = found(report, "setting-not-covered")
    assert finding.severity is Severity.NOTE
    assert "providers=CUDA: CUDAExecutionProvider is not on this machine" in finding.message
    assert "not covered" in report_files.render(report, "terminal")


def test_a_matrix_of_which_nothing_could_be_tried_is_inconclusive(images):
    report = checked(images, {"providers": ["CUDA"]}, candidate_options={"optimization": "disable"})
    assert report.outcome is Outcome.INCONCLUSIVE
    assert found(report, "setting-not-covered")[0].severity is Severity.INCONCLUSIVE


def test_a_provider_that_nobody_knows_is_inconclusive(images):
    report = checked(images, {"providers": ["CPU", "CUDDA"]}, candidate_options={"optimization": "disable"})
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "did you mean 'CUDAExecutionProvider'" in report.verdict.headline


def test_a_limit_on_the_drift_is_not_asked_of_settings(images):
    report = checked(
        images, {"threads": [1]}, candidate_options={"optimization": "disable"}, limits={"batch_drift": 0.0}
    )
    assert report.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        ({"optimisation": ["all"]}, "did you mean 'optimization'"),
        ({"optimization": ["most"]}, "unknown optimization 'most'"),
        ({"threads": ["many"]}, "threads is 'many'"),
        ({"threads": []}, "threads has the values"),
        ({"threads": list(range(65))}, "65 settings"),
        ({"threads": list(range(9)), "inter_threads": list(range(8))}, "72 settings"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(matrix, told, images):
    def never(x):
        raise AssertionError("a model was run")

    with pytest.raises(UsageError, match=told):
        data_only.check(never, pooled(), images, matrix=matrix)


def test_a_candidate_without_settings_is_refused(images):
    with pytest.raises(UsageError, match="has no option 'threads'"):
        data_only.check(pooling, pooling, images, matrix={"threads": [1, 2]})


def test_recorded_answers_have_no_settings(images, tmp_path):
    np.savez(tmp_path / "rows.npz", **images)
    likewise.record(pooling, str(tmp_path / "rows.npz"), tmp_path / "golden.parquet")
    with pytest.raises(UsageError, match="recorded answers"):
        data_only.check(
            pooling, str(tmp_path / "golden.parquet"), str(tmp_path / "rows.npz"), matrix={"threads": [1, 2]}
        )


def test_both_forms_of_the_option_say_the_same():
    expected = {"optimization": ("disable", "all"), "threads": ("1", "2")}
    assert settings.axes_from(["optimization=disable,all threads=1,2"]) == expected
    assert settings.axes_from(["optimization=disable,all", "threads=1,2"]) == expected
    assert settings.axes_from(["threads=1", "threads=2"]) == {"threads": ("1", "2")}
    for wrong in ("threads", "=1", "threads=", "threads=,"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            settings.axes_from([wrong])


def suites(outcomes):
    """Verdicts on settings by what they are called."""
    return [
        SuiteVerdict("setting", name, "", 8, 0, True, Outcome.PASS if agrees else Outcome.FAIL, "y.max is 1")
        for name, agrees in outcomes.items()
    ]


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ({"o=a": True, "o=b": False, "o=c": False}, ["differs from o=b on; o=a agrees (o=b: y.max is 1)"]),
        ({"o=a": True, "o=b": False, "o=c": True}, ["differs at o=b; o=a, o=c agree"]),
        ({"o=a": False, "o=b": True, "o=c": False}, ["differs at o=a and o=c; o=b agrees"]),
        ({"o=a": False, "o=b": False}, ["differs under every setting tried"]),
        ({"o=a": False}, ["differs under o=a"]),
        (
            {"o=a, t=1": True, "o=a, t=2": True, "o=b, t=1": True, "o=b, t=2": False},
            ["differs at o=b; o=a agrees (o=b, t=2: ", "differs at t=2; t=1 agrees (o=b, t=2: "],
        ),
        (
            {"o=a, t=1": True, "o=a, t=2": False, "o=b, t=1": False, "o=b, t=2": True},
            ["differs at o=a, t=2; o=b, t=1: y.max is 1"],
        ),
        ({"o=a": True, "o=b": True}, []),
    ],
)
def test_where_the_answers_begin_to_differ(outcomes, told):
    messages = [finding.message for finding in setting_findings(suites(outcomes))]
    assert len(messages) == len(told)
    for message, part in zip(messages, told, strict=True):
        assert part in message


def test_a_gate_of_the_configuration_has_a_matrix(tmp_path):
    (tmp_path / "likewise.toml").write_text(
        '[gates.net]\nreference = "a.onnx"\ncandidate = "b.onnx"\ndata = "rows.npz"\n'
        'matrix = {optimization = ["disable", "all"], threads = [1, 2]}\n'
    )
    gate = load_gates(tmp_path / "likewise.toml")["net"]
    assert [settings.name_of(setting) for setting in settings.settings_of(gate.matrix)] == [
        "optimization=disable, threads=1",
        "optimization=disable, threads=2",
        "optimization=all, threads=1",
        "optimization=all, threads=2",
    ]


def test_the_command_tries_the_matrix(images, tmp_path):
    onnx.save(pooled(), tmp_path / "model.onnx")
    np.savez(tmp_path / "rows.npz", **images)
    words = ["model.onnx", "model.onnx", "--data", "rows.npz", "--no-explain", "--edge", "off"]
    words += ["--reference-option", "runtime=reference", "--candidate-option", "optimization=disable"]

    def run(*more):
        return here("check", *words, *more, folder=tmp_path)

    failed = run("--matrix", "optimization=disable,all threads=1,2")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "differs at optimization=all; optimization=disable agrees" in " ".join(failed.stdout.split())
    refused = run("--matrix", "optimization=most")
    assert refused.returncode == 2, refused.stdout + refused.stderr
