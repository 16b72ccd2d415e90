"""Files that a pattern matches, as `glob` has it, with each folder looked at once for each part of the pattern.

`glob` goes every way that leads to a folder: a few links to their own folder, or a few `**`, keep it busy for good.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

EVERY = "**"
"""Stands for any number of folders."""


def matching(pattern: str) -> Iterator[str]:
    """What a pattern matches, nearest first; of the ways to a folder the shortest, and one without links if there is.

    Hidden names are matched by parts that begin with a dot, as a shell does it.
    """
    path = Path(pattern)
    parts = path.parts[1:] if path.anchor else path.parts
    waiting, seen = deque([(path.anchor, 0)] if parts else []), set[tuple[str, int]]()
    while waiting:
        folder, place = waiting.popleft()
        known = (os.path.realpath(folder or os.curdir), place)
        if known in seen:
            continue
        seen.add(known)
        part, last = parts[place], place == len(parts) - 1
        if part == EVERY and not last:
            waiting.append((folder, place + 1))
        for found in _named(folder, part):
            if last:
                yield found
            if (part == EVERY or not last) and os.path.isdir(found):
                waiting.append((found, place if part == EVERY else place + 1))


def _named(folder: str, part: str) -> Iterator[str]:
    """What a part of a pattern matches in a folder; links come last."""
    if not glob.has_magic(part):
        if os.path.lexists(found := os.path.join(folder, part)):
            yield found
        return
    with contextlib.suppress(OSError), os.scandir(folder or os.curdir) as entries:
        listed = sorted((entry.is_symlink(), entry.name) for entry in entries)
        for _, name in listed:
            if (part.startswith(".") or not name.startswith(".")) and fnmatch.fnmatch(name, part):
                yield os.path.join(folder, name)
