"""Tables in files: Parquet, CSV and TSV, Arrow and Feather, JSON Lines.

A path, a folder or a glob; all files of one format, read in the order of their names as one table.

How a CSV becomes columns follows `pandas.read_csv`, because that is how the model met its data: an
empty field and the usual words for it (NA, NaN, null, None, ...) are missing, in text columns
too, so an empty string cannot be told from a missing one; dates stay text, in JSON Lines as well.
Types are settled on the first 8 MB of a file and hold for the rest.
"""

from __future__ import annotations

import os

from likewise.contracts.data import Source
from likewise.data.readers.tables.files import is_table, resolve
from likewise.data.readers.tables.source import open_table


class TablesReader:
    """Reads table files through pyarrow."""

    name = "tables"

    def claims(self, target: object) -> bool:
        """A file, glob or folder by its suffix, or a folder that holds table files."""
        return is_table(target)

    def open(self, target: object) -> Source:
        location = os.fspath(target)  # type: ignore[call-overload]
        return open_table(location, *resolve(location))


EXTENSION = TablesReader()
