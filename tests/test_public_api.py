"""The public names are exactly those that are promised, and all of them work."""

from __future__ import annotations

import likewise

PROMISED = {
    "LikewiseError",
    "Outcome",
    "ParityError",
    "Policy",
    "Report",
    "bench",
    "bisect",
    "check",
    "elsewhere",
    "explain",
    "export",
    "fix",
    "inspect",
    "judge",
    "load",
    "noise",
    "quantize",
    "record",
    "stress",
    "verify",
}


def test_the_public_names_are_the_promised_ones():
    assert set(likewise.__all__) == PROMISED
    assert all(getattr(likewise, name) is not None for name in PROMISED)
    assert set(dir(likewise)) >= PROMISED


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert likewise.__version__ == version("likewise")
