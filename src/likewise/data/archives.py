"""Zip archives that every reader sees alike: some look for their list of parts at the end, some read from the start."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import IO

DESCRIBED = 0x08
"""The flag of a part whose sizes stand behind it."""

DESCRIPTIONS = (12, 16, 20, 24)
"""Bytes that this takes, in the forms that there are."""

LIST_ENDS = b"PK\x05\x06"
"""Begins what a reader looks for at the end."""

LIST_ENDS_IN = 22
"""Bytes that this takes, without the comment."""


def require_one_archive(archive: zipfile.ZipFile) -> None:
    """A `ValueError` unless a file is one archive from its first byte on, with nothing between its parts."""
    told = "bytes of it belong to none of its parts, and readers do not agree on what they are"
    file = archive.fp
    assert file is not None
    ends: tuple[int, ...] = (0,)
    for part in sorted(archive.infolist(), key=lambda part: part.header_offset):
        if part.header_offset not in ends:
            raise ValueError(told)
        file.seek(part.header_offset)
        name, extra = struct.unpack("<26x2H", file.read(30).ljust(30, b"\0"))
        end = part.header_offset + 30 + name + extra + part.compress_size
        ends = tuple(end + size for size in DESCRIPTIONS) if part.flag_bits & DESCRIBED else (end,)
    if archive.start_dir not in ends or LIST_ENDS in archive.comment or not _ends_with_its_list(file, archive.comment):
        raise ValueError(told)


def _ends_with_its_list(file: IO[bytes], comment: bytes) -> bool:
    """Is there nothing behind the end of the list of parts but the comment that it announces?"""
    tail = LIST_ENDS_IN + len(comment)
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - tail))
    return file.read(len(LIST_ENDS)) == LIST_ENDS
