"""The page as text: whole, bounded, the same every time, and no name in it is ever markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making_reports import HOSTILE, bench, hostile, with_everything

import data_only
import likewise
from likewise.contracts.comparison import Stratum
from likewise.contracts.report import GraphNode, GraphView
from likewise.errors import DataError
from likewise.report import render
from likewise.report.formats.html import FOLDER
from likewise.report.formats.html.charts import NODES_DRAWN, OUTPUTS_DRAWN, embedded
from likewise.report.formats.json import dumps, loads, loads_bench
from planting import here

ROWS = 400


def reference(rows):
    score = rows["income"].to_numpy() / 100
    return {"score": np.stack([score, -score], axis=1), "label": np.where(score > 0, "yes", "no")}


def candidate(rows):
    score = rows["income"].to_numpy() / 100
    wrong = np.where(score > 1.5, score + 0.25, score.astype(np.float32))
    return {"score": np.stack([wrong, -wrong], axis=1), "label": np.where(score > 0.1, "yes", "no")}


def broken(rows):
    raise ValueError("no")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"income": rng.normal(size=ROWS) * 100, "city": rng.choice(["Oslo", "Rome"], ROWS)})


@pytest.fixture(scope="module")
def reports(table):
    failed = data_only.check(reference, candidate, table)
    return {
        "pass": data_only.check(reference, reference, table),
        "fail": failed,
        "everything": with_everything(failed),
        "inconclusive": data_only.check(reference, broken, table),
    }


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text between them; raises where tags do not close."""

    VOID = frozenset({"meta", "link", "rect", "wbr"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)
    return json.loads(text)


@pytest.mark.parametrize("which", ["pass", "fail", "everything", "inconclusive"])
def test_every_report_renders_the_same_twice_and_after_it_was_stored(reports, which):
    page = render(reports[which], "html")
    assert page == render(reports[which], "html")
    again = render(loads(render(reports[which], "json")), "html")
    assert Elements(again).texts == Elements(page).texts
    assert data_of(again) == data_of(page)
    assert len(page.encode()) < 1_000_000


@pytest.mark.parametrize("which", ["pass", "fail", "everything", "inconclusive"])
def test_the_top_says_the_verdict_the_models_the_data_and_the_reach(reports, which):
    report = reports[which]
    text = " ".join(" ".join(Elements(render(report, "html")).texts).split())
    assert str(report.outcome) in text
    assert report.verdict.headline[1:] in text
    for artefact in (report.origin.reference, report.origin.candidate, report.origin.data):
        assert artefact.name in text
    assert f"{report.samples:,}" in text
    if report.verdict.confidence is not None:
        assert report.verdict.confidence.statement[1:] in text


def test_everything_in_a_report_is_on_the_page(reports):
    report = reports["everything"]
    text = " ".join(" ".join(Elements(render(report, "html")).texts).split())
    expected = [
        *(check.measure for check in report.verdict.checks),
        *(suite.title for suite in report.comparison.suites),
        *(entry.value for entry in report.comparison.strata),
        *(entry.start for entry in report.comparison.timeline.periods),
        *(entry.predicate for entry in report.explanation.slices),
        *(entry.why for entry in report.explanation.unusual),
        *(node.name for node in report.explanation.graph.nodes),
        *(text for entry in report.diagnoses for text in (entry.cause, entry.culprit, entry.evidence[1:])),
        *(text for text in (*report.explanation.excluded, *report.explanation.not_tested, *report.explanation.shape)),
        *report.origin.versions,
        "2.50× faster (2.30–2.70)",
        "as fast (0.90–2.80)",
        "not covered",
        "Flipped labels of label",
        "◆",
    ]
    assert [entry for entry in expected if entry not in text] == []


def test_no_text_of_a_model_or_of_data_becomes_markup(reports):
    clean, page = Elements(render(reports["everything"], "html")), render(hostile(reports["everything"]), "html")
    found = Elements(page)
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in clean.elements}
    assert {(tag, *sorted(names)) for tag, names in found.elements} <= {
        (tag, *sorted(names)) for tag, names in clean.elements
    } | {("span", "title")}
    assert len(found.elements) > 0.9 * len(clean.elements)
    assert "<script>alert" not in page
    assert page.count("</script>") == 3
    assert "\u2028" not in page.split('id="report-data">')[1].split("</script>")[0]
    assert data_of(page)["outputs"][0]["name"].endswith(HOSTILE)


def test_hostile_columns_and_labels_of_a_real_run_are_text():
    rows = pd.DataFrame({HOSTILE: np.arange(50.0), "word": [HOSTILE] * 50})

    def first(frame):
        return {HOSTILE: frame.iloc[:, 0].to_numpy(), "label": np.where(np.arange(len(frame)) % 2, HOSTILE, "b")}

    def second(frame):
        return {HOSTILE: frame.iloc[:, 0].to_numpy() + 1, "label": np.full(len(frame), "b")}

    page = render(data_only.check(first, second, rows), "html")
    tags = {tag for tag, _ in Elements(page).elements}
    assert not tags & {"img", "iframe", "object", "embed", "form", "base"}
    assert page.count("</script>") == 3
    assert "<script>alert" not in page


def test_the_policy_of_the_page_allows_its_own_scripts_and_nothing_else(reports):
    page = render(reports["everything"], "html")
    elements = Elements(page).elements
    (policy,) = [a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    for content in re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.S):
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
    for tag, attributes in elements:
        assert not any(name.startswith("on") or name == "style" or name == "src" for name in attributes), tag
        assert attributes.get("href", "#").startswith(("#", "data:")), tag


def test_data_in_the_page_cannot_end_its_element():
    text = embedded({"a": "</script><!-- & \u2028\u2029"})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"a": "</script><!-- & \u2028\u2029"}


def test_the_points_are_the_sample_and_the_exact_extremes(reports, table):
    page = render(reports["fail"], "html")
    (output,) = data_of(page)["outputs"]
    worst = [point for point in output["points"] if point.get("worst")]
    rows = reports["fail"].comparison.outputs
    extremes = next(o for o in rows if o.name == "score").details["worst_rows"]["rows"]
    assert [point["row"] for point in worst] == [str(row["row"]) for row in extremes]
    scores = table["income"].to_numpy() / 100
    for point in output["points"]:
        assert abs(point["r"]) == abs(scores[int(point["row"])])
    assert len(output["points"]) == ROWS + len(worst)
    assert f"and the {len(worst)} rows that differ most, exactly" in page
    far = [point for point in output["points"] if abs(point["c"] - point["r"]) > 0.1]
    assert {int(point["row"]) for point in far} == set(np.flatnonzero(scores > 1.5).tolist())


def test_a_report_from_before_there_was_a_sample_shows_what_it_has(reports):
    report = reports["fail"]
    old = tuple(
        replace(output, details={k: v for k, v in output.details.items() if k not in ("scatter", "deciles")})
        for output in report.comparison.outputs
    )
    page = render(replace(report, comparison=replace(report.comparison, outputs=old)), "html")
    (output,) = data_of(page)["outputs"]
    assert all(point["worst"] for point in output["points"])
    assert output["histogram"]
    assert output["deciles"] == []
    assert "this report was written without one" in page


def test_answers_that_are_not_finite_are_counted_and_not_drawn(table):
    def infinite(rows):
        return {"score": np.where(rows["income"] > 0, np.inf, 0.0)}

    def undefined(rows):
        return {"score": np.where(rows["income"] > 0, np.nan, 0.0)}

    page = render(data_only.check(infinite, undefined, table), "html")
    (output,) = data_of(page)["outputs"]
    positive = int((table["income"] > 0).sum())
    assert len(output["points"]) == ROWS - positive
    assert f"Not drawn, because not finite: {positive + 10} points" in page


def test_flips_are_a_matrix_of_the_labels(reports, table):
    score = table["income"].to_numpy() / 100
    flipped = int(((score > 0) & (score <= 0.1)).sum())
    page = render(reports["fail"], "html")
    section = page.split('id="flips"')[1].split("</section>")[0]
    body = section.split("<tbody>")[1]
    cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body, re.S)]
    kept = int((score <= 0).sum()), int((score > 0.1).sum())
    assert cells == ["no", str(kept[0]), "·", "yes", str(flipped), str(kept[1])]


def test_many_outputs_inputs_strata_and_nodes_stay_bounded(table):
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(1_100, 60)), columns=[f"c{place}" for place in range(60)])

    def many(rows):
        return {f"out{place}": rows[f"c{place}"].to_numpy() for place in range(40)}

    def off(rows):
        return {name: values + 0.5 for name, values in many(rows).items()}

    report = data_only.check(many, off, wide, batch_sizes=())
    nodes = tuple(GraphNode(f"n{place}", "candidate", f"node {place}", "Add") for place in range(5_000))
    strata = tuple(Stratum("c", f"value {place}", 10, 1) for place in range(5_000))
    everything = with_everything(report)
    report = replace(
        everything,
        comparison=replace(everything.comparison, strata=strata),
        explanation=replace(everything.explanation, graph=GraphView(nodes)),
    )
    page = render(report, "html")
    data = data_of(page)
    assert len(page.encode()) < 2_000_000
    assert len(data["outputs"]) == OUTPUTS_DRAWN
    assert len(data["graph"]["nodes"]) == NODES_DRAWN
    assert "28 more outputs are not drawn" in page
    assert "more inputs are in the JSON report" in page


def test_nothing_that_goes_into_the_page_can_end_a_script_or_reach_the_network():
    for path in sorted((FOLDER / "assets").iterdir()):
        text = path.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert not re.search(r"\b(fetch|XMLHttpRequest|eval|insertAdjacentHTML|document\.write)\b", text)
        assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg"}
    for path in (*(FOLDER / "assets").iterdir(), *(FOLDER / "vendor").glob("*.min.*")):
        assert not re.search(r"</(script|style)", path.read_text(encoding="utf-8"), re.I)
    licences = [(FOLDER / "vendor" / f"{name}.LICENSE").read_text() for name in ("uplot", "dagre")]
    assert all("Permission is hereby granted" in text for text in licences)


@pytest.fixture(scope="module")
def stored_report(reports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    origin = reports["fail"].origin
    named = replace(
        origin,
        reference=replace(origin.reference, name="a/model.joblib"),
        candidate=replace(origin.candidate, name="model.onnx"),
    )
    (folder / "report.json").write_text(render(replace(reports["fail"], origin=named), "json"))
    return folder


def rendered(folder, *words):
    return here("report", "report.json", *words, folder=folder)


def test_a_finished_run_becomes_a_page_with_its_bench(stored_report):
    (stored_report / "bench.json").write_text(dumps(bench()))
    done = rendered(stored_report, "--bench", "bench.json", "--html", "out.html")
    assert done.returncode == 0, done.stderr
    page = (stored_report / "out.html").read_text(encoding="utf-8")
    assert "2.50× faster (2.30–2.70)" in page
    assert "Latency and throughput" in page
    plain = rendered(stored_report, "--html", "-")
    assert plain.stdout.startswith("<!doctype html>")
    assert "Latency and throughput" not in plain.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the result of a bench"),
        ('{"timings": [], "samples": 3}', "is not the result of a bench"),
    ],
)
def test_what_is_no_bench_is_an_error_that_says_so(text, told):
    with pytest.raises(DataError, match=told):
        loads_bench(text, name="bench.json")


def test_a_bench_of_other_models_does_not_go_into_a_report(stored_report):
    other = bench()
    other = replace(other, candidate=replace(other.candidate, name="other.onnx"))
    (stored_report / "other.json").write_text(dumps(other))
    done = rendered(stored_report, "--bench", "other.json", "--html", "never.html")
    assert done.returncode == 2
    assert "about other models" in done.stderr
    assert not (stored_report / "never.html").exists()
    missing = rendered(stored_report, "--bench", "nowhere.json")
    assert missing.returncode != 0
    assert "cannot be read" in missing.stderr


def test_templates_styles_and_scripts_are_packaged():
    root = Path(likewise.__file__).parent
    assert root in FOLDER.parents
    for name in ("templates/page.html", "assets/style.css", "vendor/uplot.min.js", "vendor/dagre.LEGAL.txt"):
        assert (FOLDER / name).is_file()
