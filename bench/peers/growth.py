"""Tables of the peers that grow by one append after the other, on an S3 server that counts what it is asked for."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from bench.figures import Figure


class _Growing(ABC):
    """What both have in common: appends of the same rows, and a cold look at which files are live.

    Args:
        row_count: Rows of one append.
    """

    name = ""

    def __init__(self, row_count: int) -> None:
        day_us = 1_793_491_200_000_000
        self._rows = pa.table(
            {
                "ts": pa.array(range(day_us, day_us + row_count * 1000, 1000), pa.timestamp("us")),
                "event": pa.array([f"event-{number % 20:02d}" for number in range(row_count)]),
                "user_id": pa.array([f"u{number * 7919 % 50_000}" for number in range(row_count)]),
                "amount": pa.array([number % 500 + 0.25 for number in range(row_count)]),
            }
        )

    def append(self, count: int) -> float:
        """Append so often; return the processor time, seconds."""
        began_s = time.process_time()
        for _ in range(count):
            self._append()
        return time.process_time() - began_s

    def look(self, file_count: int) -> float:
        """Open the table as if nothing was known of it, and list its files; return the processor time, seconds."""
        began_s = time.process_time()
        found = self._find()
        if found != file_count:
            raise AssertionError(f"{self.name}: {found} data files, not {file_count}")
        return time.process_time() - began_s

    def check(self) -> list[Figure]:
        """Return nothing: who asks has counted."""
        return []

    @abstractmethod
    def _append(self) -> None:
        """Append once."""

    @abstractmethod
    def _find(self) -> int:
        """Return how many data files are live."""


class Delta(_Growing):
    """delta-rs: ``write_deltalake`` to a table that is kept open; it writes a checkpoint now and then by itself."""

    name = "delta-rs"

    def __init__(self, row_count: int, uri: str, options: Mapping[str, str]) -> None:
        super().__init__(row_count)
        self._uri = uri
        self._options = dict(options)
        write_deltalake(uri, self._rows.slice(0, 0), storage_options=self._options)
        self._table = DeltaTable(uri, storage_options=self._options)

    def _append(self) -> None:
        write_deltalake(self._table, self._rows, mode="append")

    def _find(self) -> int:
        return len(DeltaTable(self._uri, storage_options=self._options).file_uris())


class Iceberg(_Growing):
    """PyIceberg: ``append`` to a table that is kept open, with a catalog in SQLite (which is not counted)."""

    name = "pyiceberg"

    def __init__(self, row_count: int, database: Path, warehouse: str, properties: Mapping[str, str]) -> None:
        super().__init__(row_count)
        self._catalog = SqlCatalog("growth", uri=f"sqlite:///{database}", warehouse=warehouse, **properties)
        self._catalog.create_namespace("bench")
        self._table: Any = self._catalog.create_table("bench.events", schema=self._rows.schema)

    def _append(self) -> None:
        self._table.append(self._rows)

    def _find(self) -> int:
        return sum(1 for _ in self._catalog.load_table("bench.events").scan().plan_files())
