"""Reports for tests of formats: real ones with everything that only some runs have put in by hand."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import pairwise

from likewise.contracts.comparison import Comparison, Stratum, SuiteFacts
from likewise.contracts.report import Diagnosis, Explanation, GraphEdge, GraphNode, GraphView, Slice, Unusual
from likewise.contracts.results import BatchTiming, BenchResult, Footprint, Latency, Round
from likewise.contracts.timeline import Period, Spell, Timeline
from likewise.contracts.verdict import Check, Outcome, SuiteVerdict

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 {{ 7*7 }} </script><!-- \x01'


FIXED = {
    "GraphNode": ("id", "side"),
    "GraphEdge": ("source", "target"),
    "SuiteFacts": ("kind",),
    "SuiteVerdict": ("kind",),
    "Check": ("measure",),
    "Finding": ("code",),
}


def graph():
    """A layer of a network on both sides; the candidate's MatMulInteger is the culprit."""
    chain = [("scale", "Mul", 0.0), ("dense", "MatMulInteger", 0.031), ("bias", "Add", 3.7e-8), ("act", "Relu", 0.0)]
    nodes, edges = [], []
    for side in ("candidate", "reference"):
        for name, operator, introduced in chain:
            ours = side == "candidate"
            operator = operator if ours else operator.replace("Integer", "")
            nodes.append(
                GraphNode(
                    f"{side}/{name}",
                    side,
                    f"/net/layer.1/{name}",
                    operator,
                    culprit=ours and name == "dense",
                    introduced=introduced if ours else None,
                    inherited=0.002 if ours else None,
                    detail="weights are 8 bits wide" if ours and name == "dense" else "",
                )
            )
        names = [name for name, _, _ in chain]
        edges += [GraphEdge(f"{side}/{a}", f"{side}/{b}", f"{a}_out") for a, b in pairwise(names)]
    edges.append(GraphEdge("candidate/scale", "candidate/bias", "skip"))
    return GraphView(tuple(nodes), tuple(edges), "Errors were measured on 64 failing rows")


def bench():
    latency = Latency(240, 1.25, 1.5, 1.9, 200_000.0)
    quick = Latency(240, 0.5, 0.6, None, 480_000.0)
    rounds = (Round(("reference", "candidate"), (1_250_000,), (500_000,)),)
    timings = tuple(
        BatchTiming(size, latency, quick, 2.5, interval, rounds)
        for size, interval in ((1, (2.3, 2.7)), (16, None), (256, (0.9, 2.8)))
    )
    foot = Footprint("model.joblib", "sklearn", 8_400, 1.2, 0.01, 50_000_000, 60_000_000, {})
    small = Footprint("model.onnx", "onnx", 4_400, 0.2, 0.002, 5_000_000, None, {})
    machine = {"cores": 2, "load_average": {"before": 0.1, "after": 0.4}}
    return BenchResult(foot, small, timings, "test.parquet", {"confidence": 0.95}, machine, ("two rounds were slow",))


def suites(report):
    """Facts and verdicts of suites of every kind, one of them not covered."""
    part = Comparison(rows=64, outputs=tuple(replace(o, details={}) for o in report.comparison.outputs))
    shown = [
        ("edge", "missing", "Missing values in every column", Outcome.PASS, True, ""),
        ("edge", "extremes", "Extremes of every column", Outcome.FAIL, False, ""),
        ("shape", "lengths", "Other lengths", Outcome.INCONCLUSIVE, False, "no input has a free axis"),
        ("setting", "threads", "1 thread", Outcome.PASS, False, ""),
        ("setting", "unoptimised", "optimisation off", Outcome.FAIL, True, ""),
    ]
    facts = [SuiteFacts(kind, name, title, part, blocks, 3, why) for kind, name, title, outcome, blocks, why in shown]
    verdicts = [
        SuiteVerdict(
            kind,
            name,
            title,
            64,
            3,
            blocks,
            outcome,
            f"{title}: {outcome}",
            tuple(Check(o.name, m, v, 0.04, outcome) for o in part.outputs for m, v in list(o.measures.items())[:1]),
        )
        for kind, name, title, outcome, blocks, _ in shown
    ]
    return tuple(facts), tuple(verdicts)


def with_everything(report):
    """A report that did not pass, with everything a report can hold."""
    rows = [row["row"] for o in report.comparison.outputs for row in o.details["worst_rows"]["rows"]]
    columns = [
        name for o in report.comparison.outputs for row in o.details["worst_rows"]["rows"] for name in row["inputs"]
    ]
    row, column = rows[0], columns[0]
    facts, verdicts = suites(report)
    return replace(
        report,
        comparison=replace(
            report.comparison,
            suites=facts,
            strata=(
                Stratum("city", "Oslo", 1_200, 14, {report.comparison.outputs[0].name: 0.08}),
                Stratum("city", "Rome", 900, 0, {}),
            ),
            timeline=Timeline(
                2_100,
                3,
                "2026-11-03T10:00:00Z",
                "2026-11-03T11:00:00Z",
                (Period("2026-11-03T10:00:00Z", 1_500, 0), Period("2026-11-03T10:41:07Z", 600, 14)),
                Spell("2026-11-03T10:41:07Z", None, "2026-11-03T10:41:02Z", None, 600, 14, 1_500, 0, 0.0001),
            ),
        ),
        verdict=replace(report.verdict, suites=verdicts),
        diagnoses=(
            Diagnosis(
                "quantization",
                "/net/layer.1/dense",
                0.9375,
                "with the weights of this node put back in float 15 of 16 failing rows agree",
                "leave this node in float: likewise quantize --exclude /net/layer.1/dense",
                tuple(rows[:3]),
            ),
            Diagnosis("float32-threshold", "income", 0.0625, "the rest", "export with double inputs"),
        ),
        explanation=Explanation(
            rows=128,
            failing_rows=16,
            complete=True,
            shape=("the differences are one-sided",),
            slices=(Slice("income > 80000 and city = Oslo", 14, 2, 0.875, 0.9), Slice("age < 21", 9, 9, 0.5, 0.5625)),
            unusual=(Unusual(row, column, 1.5, "larger than 99.9% of the rows"),),
            excluded=("feature-order", "label-order"),
            not_tested=("tokenizer: the model takes no text",),
            graph=graph(),
        ),
        bench=bench(),
    )


def hostile(value, marker=HOSTILE):
    """The same structure with every text in it, keys of mappings too, followed by markup and worse."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: hostile(getattr(value, field.name), marker) for field in fields(value)}
        # What the page looks things up by stays, so that everything is still found and shown.
        for fixed in FIXED.get(type(value).__name__, ()):
            changed[fixed] = getattr(value, fixed)
        return type(value)(**changed)
    if isinstance(value, dict):
        return {name: hostile(entry, marker) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(hostile(entry, marker) for entry in value)
    if type(value) is str:
        return value + marker if value else value
    return value
