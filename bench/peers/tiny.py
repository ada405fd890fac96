"""The peers of the benchmark of tiny batches: one append a batch, by one writer, each visible when it has returned."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from bench.figures import Figure, TakesTurns
from bench.peers.duck import Lake
from bench.tiny_work import ROWS_PER_BATCH, WARM_SHARE, make_rows, sum_durations


class Appends(TakesTurns, ABC):
    """So many appends to a fresh table.

    Args:
        folder: Of this process.
        count: How many batches; in the first turn, which does not count, a tenth of them.
        place: Where the tables lie, a path or a URL; in the folder by default.
        options: How they are reached.
    """

    name = ""

    def __init__(self, folder: Path, count: int, place: str = "", options: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._full_count = count
        self._place = place or str(folder)
        self._options = dict(options or {})
        self._turn = 0
        self._elapsed_s = 0.0

    def prepare(self) -> None:
        """Make an empty table."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._turn += 1
        self._count = max(1, self._full_count // WARM_SHARE if self._turn == 1 else self._full_count)
        self._create(f"{self._place}/{self._turn}", pa.Table.from_pylist(make_rows(0)).schema)

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
    def _create(self, place: str, schema: pa.Schema) -> None: ...

    @abstractmethod
    def _append(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _read_durations(self) -> pa.ChunkedArray: ...


class DeltaRs(Appends):
    """delta-rs: ``write_deltalake`` to the path of a table. It does not wait for the disk."""

    name = "delta-rs"

    def _create(self, place: str, schema: pa.Schema) -> None:
        self._uri = place
        self._empty = DeltaTable.create(place, schema, storage_options=self._options)

    def _append(self, rows: pa.Table) -> None:
        write_deltalake(self._uri, rows, mode="append", storage_options=self._options)

    def _read_durations(self) -> pa.ChunkedArray:
        table = DeltaTable(self._uri, storage_options=self._options)
        return table.to_pyarrow_table(columns=["duration_ms"])["duration_ms"]


class DeltaRsKeptOpen(DeltaRs):
    """The same with a table that is kept open, so that its log is not read anew for each append."""

    name = "delta-rs, kept open"

    def _append(self, rows: pa.Table) -> None:
        write_deltalake(self._empty, rows, mode="append")


class PyIceberg(Appends):
    """PyIceberg: ``append`` to a table of an SQL catalog on SQLite."""

    name = "pyiceberg"

    def _create(self, place: str, schema: pa.Schema) -> None:
        warehouse = place if "://" in place else f"file://{place}"
        database = f"sqlite:///{self._folder}/catalog.db"
        self._catalog = SqlCatalog("bench", uri=database, warehouse=warehouse, **self._options)
        self._catalog.create_namespace("bench")
        self._table: Any = self._catalog.create_table("bench.events", schema=schema)

    def _append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def _read_durations(self) -> pa.ChunkedArray:
        return self._catalog.load_table("bench.events").scan(selected_fields=("duration_ms",)).to_arrow()["duration_ms"]


class DuckLake(Appends):
    """DuckLake: ``INSERT``, by a catalog in DuckDB, which holds so few rows itself until they are flushed."""

    name = "ducklake"
    _lake_options: Mapping[str, Any] = {}

    def _create(self, place: str, schema: pa.Schema) -> None:
        self._lake = Lake(self._folder, place, secret=self._options, options=self._lake_options)
        self._lake.connection.register("empty", schema.empty_table())
        self._lake.connection.execute("CREATE TABLE lake.events AS FROM empty")

    def _append(self, rows: pa.Table) -> None:
        self._lake.connection.register("rows", rows)
        self._lake.connection.execute("INSERT INTO lake.events FROM rows")

    def _read_durations(self) -> pa.ChunkedArray:
        found = self._lake.connection.execute("SELECT duration_ms FROM lake.events").to_arrow_table()["duration_ms"]
        self._lake.close()
        return found


class DuckLakeFiles(DuckLake):
    """The same with a data file for each append, so that the rows are where ours are."""

    name = "ducklake, files"
    _lake_options: Mapping[str, Any] = {"data_inlining_row_limit": 0}
