"""UBJSON as XGBoost writes it, gone through before XGBoost reads it.

XGBoost takes the first of two values of one name, does not look at what stands behind the end, and follows lists in
lists until its stack ends, which takes the process with it.
"""

from __future__ import annotations

import struct

SIZES = {b"Z": 0, b"N": 0, b"T": 0, b"F": 0, b"C": 1, b"i": 1, b"U": 1, b"I": 2, b"l": 4, b"d": 4, b"L": 8, b"D": 8}
"""How many bytes follow the letter of a plain value."""

NUMBERS = (b"i", b"U", b"I", b"l", b"L", b"d", b"D")
"""What a list may hold whose values have one letter for all of them."""

DEEPEST = 100
"""Lists and objects within each other; a model has less than ten."""


def fault(content: bytes) -> str:
    """What keeps a file from being one model to everybody; empty if nothing does."""
    try:
        end = _after(content, 0, 0)
    except ValueError as error:
        return str(error)
    return "" if end == len(content) else f"{len(content) - end:,} bytes stand behind its end"


def _after(content: bytes, at: int, depth: int) -> int:
    """Where the value that begins here ends."""
    if depth > DEEPEST:
        raise ValueError(f"it has more than {DEEPEST} lists and objects within each other")
    letter, at = content[at : at + 1], at + 1
    if letter == b"{":
        return _after_object(content, at, depth)
    if letter == b"[":
        return _after_list(content, at, depth)
    if letter == b"S":
        return _text(content, at)[1]
    if letter not in SIZES:
        raise ValueError("it ends early" if not letter else f"it has {letter!r} in the place of a value")
    return _within(content, at + SIZES[letter])


def _after_object(content: bytes, at: int, depth: int) -> int:
    names: set[bytes] = set()
    while content[at : at + 1] != b"}":
        name, at = _text(content, at)
        if name in names:
            raise ValueError(f"it names {name[:40].decode(errors='replace')!r} twice in one place")
        names.add(name)
        at = _after(content, at, depth + 1)
    return at + 1


def _after_list(content: bytes, at: int, depth: int) -> int:
    """With a letter for all values and their number, with the number alone, or up to a mark of its end."""
    if content[at : at + 1] == b"$":
        letter, sign = content[at + 1 : at + 2], content[at + 2 : at + 3]
        if letter not in NUMBERS or sign != b"#":
            raise ValueError("it has a list of what nobody reads")
        count, at = _count(content, at + 3)
        return _within(content, at + count * SIZES[letter])
    if content[at : at + 1] == b"#":
        count, at = _count(content, at + 1)
        for _ in range(count):
            at = _after(content, at, depth + 1)
        return at
    while content[at : at + 1] != b"]":
        at = _after(content, at, depth + 1)
    return at + 1


def _text(content: bytes, at: int) -> tuple[bytes, int]:
    size, at = _count(content, at)
    return content[at : at + size], _within(content, at + size)


def _count(content: bytes, at: int) -> tuple[int, int]:
    """A length, which XGBoost writes in eight bytes."""
    end = _within(content, at + 9)
    count = int(struct.unpack_from(">q", content, at + 1)[0])
    if content[at : at + 1] != b"L" or count < 0:
        raise ValueError("it has something else in the place of a length")
    return count, end


def _within(content: bytes, end: int) -> int:
    if end > len(content):
        raise ValueError("it ends early")
    return end
