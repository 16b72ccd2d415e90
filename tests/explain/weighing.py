"""Edits of weights that tests plant, and asking for the cause with the hypotheses on weights alone."""

from __future__ import annotations

from piped import ask_only, diagnoses

import data_only

HYPOTHESES = ("weights", "members")


def ask_about_weights(monkeypatch):
    ask_only(monkeypatch, *HYPOTHESES)


def top(reference, candidate, data):
    """The best explanation, as cause and culprit."""
    found = diagnoses(reference, candidate, data)
    return (found[0].cause, found[0].culprit) if found else (None, "")


def silent(reference, candidate, data, **options):
    """Is there a failure that weights have nothing to do with?"""
    report = data_only.explain(reference, candidate, data, explain_budget=60, **options)
    assert not report.passed
    return report.diagnoses == ()


def times(place, factor):
    """One entry multiplied."""

    def change(old):
        values = old.copy() if hasattr(old, "copy") else list(old)
        if hasattr(values, "flat"):
            values.flat[place] *= factor
        else:
            values[place] *= factor
        return values

    return change


def cleared(old):
    return 0 * old if hasattr(old, "shape") else [0.0] * len(old)


def exchanged(old):
    """The first two entries in each other's place."""
    values = old.copy()
    values[0], values[1] = old[1].copy() if hasattr(old[1], "copy") else old[1], old[0]
    return values
