"""Tables in object stores, read from copies of their files."""

from __future__ import annotations

import tempfile
import weakref
from dataclasses import replace

from likewise.contracts.data import Source
from likewise.data import stores
from likewise.data.files import remove
from likewise.data.readers.tables import EXTENSION as TABLES
from likewise.data.readers.tables import TableSource
from likewise.errors import DataError


class StoresReader:
    """Reads what was copied; where nobody did, it is copied now and removed with the source."""

    name = "stores"

    def claims(self, target: object) -> bool:
        return stores.is_stored(target)

    def open(self, target: object) -> Source:
        address = str(target)
        folder = stores.COPIES.get(address)
        if folder is None:
            folder = tempfile.mkdtemp(prefix="likewise-copy.")
            stores.COPIES[address] = folder
            weakref.finalize(stores, remove, folder)
            stores.copy(address, folder)
        found = TABLES.open(folder)
        if not isinstance(found, TableSource):
            raise DataError(f"{address} holds no table files", remedy="Give Parquet, CSV, Arrow or JSON Lines files")
        return replace(found, location=address.partition("?")[0])


EXTENSION = StoresReader()
