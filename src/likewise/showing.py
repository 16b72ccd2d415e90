"""What the formats that people read have in common: figures, sentences, which limits to show."""

from __future__ import annotations

from likewise.contracts.judging import Check, Outcome


def most_telling(checks: tuple[Check, ...], limit: int) -> list[Check]:
    """What failed, then the limits on all rows; a batch size is named where it fails and all rows together do not."""
    known = {(c.output, c.measure) for c in checks if c.outcome is not Outcome.PASS and c.batch_size is None}
    failed = [
        check
        for check in checks
        if check.outcome is not Outcome.PASS
        and (check.batch_size is None or (check.output, check.measure) not in known)
    ]
    held = [check for check in checks if check.outcome is Outcome.PASS and check.batch_size is None]
    return [*failed, *held][:limit]


def figure(value: float | str | None) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:.4g}"


def sentence(text: str) -> str:
    """Words that begin with a capital, unless they begin with a name, and end with a stop."""
    text = text[:1].upper() + text[1:] if text[:1].islower() and "." not in text.split(" ")[0] else text
    return text if not text or text.endswith((".", "?", "!")) else text + "."
