"""A search for causes has its time also where others keep the machine busy."""

import time

import pytest

from likewise.explain.clock import Clock


@pytest.mark.parametrize(
    ("spent", "elsewhere", "had"),
    [
        (10.0, False, 10.0),  # all of one core
        (19.0, False, 10.0),  # two cores: nobody has more time than passes
        (4.0, False, 4.0),  # three others have the machine as well
        (0.0, False, 2.5),  # waiting: the search ends all the same, after four times its budget
        (0.0, True, 10.0),  # a server, whose processor we do not see
    ],
)
def test_time_that_the_machine_gave_others_is_not_counted(monkeypatch, spent, elsewhere, had):
    wall, busy = iter([100.0, 110.0]), iter([7.0, 7.0 + spent])
    monkeypatch.setattr(time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(time, "process_time", lambda: next(busy))
    clock = Clock(elsewhere, 0.0, time.monotonic(), time.process_time())
    assert clock.now() == had


def test_time_adds_up_from_look_to_look(monkeypatch):
    wall, busy = iter([0.0, 4.0, 6.0]), iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(time, "process_time", lambda: next(busy))
    clock = Clock(False, 0.0, time.monotonic(), time.process_time())
    assert [clock.now(), clock.now()] == [1.0, 3.0]
