"""The faults that explanations are scored on are what they claim to be: broken ones fail, sound ones pass."""

from __future__ import annotations

import pytest
from faults import CONTROLS, FAMILIES, FAULTS, UNEXPLAINED, named
from threadpoolctl import threadpool_limits

import data_only


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


def outcome(fault) -> str:
    """The verdict of a check. One that fails at the main batch size fails, whatever it does at others."""
    options = {"batch_sizes": (), **fault.options}
    quick = data_only.check(fault.reference, fault.candidate, fault.data, **options)
    if not quick.passed:
        return quick.outcome.name
    return data_only.check(fault.reference, fault.candidate, fault.data, **fault.options).outcome.name


@pytest.mark.parametrize("name", [*FAULTS, *UNEXPLAINED])
def test_a_fault_does_not_pass(name):
    fault = {**FAULTS, **UNEXPLAINED}[name]()
    assert outcome(fault) == fault.outcome


@pytest.mark.parametrize("name", CONTROLS)
def test_a_sound_deployment_passes(name):
    assert outcome(CONTROLS[name]()) == "PASS"


def test_there_are_enough_of_all_kinds():
    assert len(FAULTS) >= 90
    assert len(CONTROLS) >= 25
    assert sum(entry.natural for entry in FAULTS.values()) >= 30
    for family in FAMILIES:
        assert sum(entry.family == family for entry in FAULTS.values()) >= 10, family


def test_every_fault_says_what_is_wrong():
    assert [name for name, entry in FAULTS.items() if not entry.told or not entry.culprit] == []


def test_a_culprit_is_named_by_whole_words():
    assert named("income (tree 17, node 4)", ["income"])
    assert named("scaler (step 'prep__num__scaler')", ["scaler"])
    assert named("8 of 12 trees", [("8", "12")])
    assert named("last.weight[0, 2]", ["last.weight"])
    assert not named("outcome", ["come"])
    assert not named("x10", ["x1"])
    assert not named("8 of 13 trees", [("8", "12")])
