"""Zip archives that every reader sees alike: some look for their list of parts at the end, some read from the start."""

from __future__ import annotations

import struct
import zipfile

DESCRIBED = 0x08
"""The flag of a part whose sizes stand behind it."""

DESCRIPTIONS = (12, 16, 20, 24)
"""Bytes that this takes, in the forms that there are."""

LIST_ENDS = b"PK\x05\x06"
"""Begins what a reader looks for at the end."""


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
    if archive.start_dir not in ends or LIST_ENDS in archive.comment:
        raise ValueError(told)
