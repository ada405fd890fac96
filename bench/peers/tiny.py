"""The peers of the benchmark of tiny batches: one append a batch, by one writer, each visible when it has returned."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from bench.figures import Figure, TakesTurns
from bench.tiny_work import ROWS_PER_BATCH, make_rows, sum_durations


class Appends(TakesTurns, ABC):
    """So many appends to a fresh table.

    Args:
        folder: Where the table lies.
        count: How many batches.
    """

    name = ""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._elapsed_s = 0.0

    def prepare(self) -> None:
        """Make an empty table."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._create(pa.Table.from_pylist(make_rows(0)).schema)

    def run(self) -> None:
        """Append one batch after the other."""
        started_s = perf_counter()
        for number in range(self._count):
            self._append(pa.Table.from_pylist(make_rows(number)))
        self._elapsed_s = perf_counter() - started_s

    def check(self) -> Sequence[Figure]:
        """Count the rows that a reader sees, and add them up."""
        durations = self._read_durations()
        found = (len(durations), pc.sum(durations).as_py())
        if found != (self._count * ROWS_PER_BATCH, sum_durations(self._count)):
            raise AssertionError(f"{self.name}: rows and their sum are {found}")
        return (Figure("visible", "batches/s", self._count / self._elapsed_s), Figure("batches", "", self._count))

    @abstractmethod
    def _create(self, schema: pa.Schema) -> None: ...

    @abstractmethod
    def _append(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _read_durations(self) -> pa.ChunkedArray: ...


class DeltaRs(Appends):
    """delta-rs: ``write_deltalake`` to the path of a table. It does not wait for the disk."""

    name = "delta-rs"

    def _create(self, schema: pa.Schema) -> None:
        self._place: Any = str(self._folder / "table")
        DeltaTable.create(self._place, schema)

    def _append(self, rows: pa.Table) -> None:
        write_deltalake(self._place, rows, mode="append")

    def _read_durations(self) -> pa.ChunkedArray:
        uris = DeltaTable(self._folder / "table").file_uris()
        return pa.chunked_array([chunk for uri in uris for chunk in pq.read_table(uri)["duration_ms"].chunks])


class DeltaRsKeptOpen(DeltaRs):
    """The same with a table that is kept open, so that its log is not read anew for each append."""

    name = "delta-rs, kept open"

    def _create(self, schema: pa.Schema) -> None:
        super()._create(schema)
        self._place = DeltaTable(self._place)


class PyIceberg(Appends):
    """PyIceberg: ``append`` to a table of an SQL catalog on SQLite."""

    name = "pyiceberg"

    def _create(self, schema: pa.Schema) -> None:
        place = f"file://{self._folder}/warehouse"
        self._catalog = SqlCatalog("bench", uri=f"sqlite:///{self._folder}/catalog.db", warehouse=place)
        self._catalog.create_namespace("bench")
        self._table: Any = self._catalog.create_table("bench.events", schema=schema)

    def _append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def _read_durations(self) -> pa.ChunkedArray:
        return self._catalog.load_table("bench.events").scan(selected_fields=("duration_ms",)).to_arrow()["duration_ms"]
