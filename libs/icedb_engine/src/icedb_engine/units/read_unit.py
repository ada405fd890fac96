"""One task that reads data files: their rows become record batches that Spark can take.

Runs inside a task, or directly in a test: it needs a store, not Spark. Every row carries the place of its file; its
columns have the table's names and types, wider than the file's where the table is wider, NULL where the file has no
such column. Files, or the columns and row groups of them that are read, are copied to scratch, some at a time, and read
a chunk at a time by the native engine.
"""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, SchemaConflict
from icedb_log.parquet.pages import check_file_sums
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

from icedb_engine.arrow_types import find_arrow_type, fit
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import TRANSFER_COUNT
from icedb_engine.reading.column_ranges import fetch_columns
from icedb_engine.reading.data_files import describe_columns, is_read_as, require_path_values, scan_files
from icedb_engine.sql import quote_name
from icedb_engine.work import DataFile, ReadUnit

CHUNK_BYTES: Final = 8 * MIB
"""Decoded size that a chunk aims at; a single row may be larger."""
CHUNK_ROWS: Final = 65_536
_FILES_AT_ONCE: Final = 16
_CLOSE_TRIES: Final = 200
_CLOSE_PAUSE_S: Final = 0.05


def spark_arrow_type(sql_type: str) -> Any:
    """Return the Arrow type of one of our types as Spark takes and gives it: its timestamps have a zone, UTC."""
    return pa.timestamp("us", tz="UTC") if sql_type == "TIMESTAMP" else find_arrow_type(sql_type)


@contextmanager
def closing_rows(rows: Generator[pa.RecordBatch, None, None]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield rows of files, and release the files at the end, also if not all rows were taken.

    WARN: an engine that failed over a stream may still take a batch of it in a thread of its own, and a generator that
    is running cannot be closed.
    """
    try:
        yield rows
    finally:
        pause = threading.Event()
        for _ in range(_CLOSE_TRIES):
            try:
                rows.close()
                break
            except ValueError:
                pause.wait(_CLOSE_PAUSE_S)


def read_files(unit: ReadUnit, store: ObjectStore) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of all files of a unit: the file's place in it, then the columns that come out.

    Use :func:`closing_rows`.

    Raises:
        NotFound: A file is gone.
        SchemaConflict: A column of a file has another type than in the table, or is not in the table.
        CorruptLog: A file cannot be read as Parquet, or has not as many rows as the log says.
        InvalidRequest: The condition cannot be evaluated on a row.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with open_scratch(unit.engine) as scratch, open_engine(unit.engine, scratch) as engine:
        for start in range(0, len(unit.files), _FILES_AT_ONCE):
            files = unit.files[start : start + _FILES_AT_ONCE]
            paths = [scratch / f"{number}.parquet" for number in range(len(files))]
            with ThreadPoolExecutor(TRANSFER_COUNT, thread_name_prefix="icedb-download") as pool:
                row_counts = list(pool.map(partial(_fetch, unit, store), files, paths))
            for place, (file, path, row_count) in enumerate(zip(files, paths, row_counts, strict=True), start):
                yield from _FileReader(unit, file, path, engine, row_count=row_count).read(place)
                path.unlink()


def _fetch(unit: ReadUnit, store: ObjectStore, file: DataFile, path: Path) -> int | None:
    """Fetch what is read of a file; return its rows by its footer if that is not all, ``None`` if it is the whole."""
    try:
        row_count = None if unit.is_whole else fetch_columns(store, file, path, unit.columns, where=unit.where)
        if row_count is None:
            store.download(file.path, path)
    except NotFound as error:
        raise NotFound(
            f"table {unit.paths.name}: data file {file.path} is gone from the store: "
            "read the log again; if it is still named there, restore the object"
        ) from error
    return row_count


class _FileReader:
    """Reads one file that was fetched, or what was fetched of it; ``row_count``: rows of the whole, if it is a part."""

    def __init__(self, unit: ReadUnit, file: DataFile, path: Path, engine: Any, *, row_count: int | None) -> None:
        self._unit = unit
        self._file = file
        self._path = path
        self._engine = engine
        self._row_count = row_count
        self._what = f"table {unit.paths.name}: data file {file.path}"

    def read(self, place: int) -> Iterator[pa.RecordBatch]:
        """Yield its rows: the file's place, then ``c0``, ``c1``, … with the table's types."""
        unit = self._unit
        row_count, chunk_rows = self._measure()
        try:
            # The engine does not: damage would be written anew with checksums that are right.
            check_file_sums(self._path)
        except DamagedFile as error:
            raise self._unreadable(error) from error
        outputs = unit.outputs.values()
        schema = pa.schema([(f"c{place}", spark_arrow_type(kind)) for place, kind in enumerate(outputs)])
        read_count = 0
        try:
            for chunk in self._select().to_arrow_reader(chunk_rows):
                read_count += chunk.num_rows
                ordinals = pa.repeat(pa.scalar(place, pa.int32()), chunk.num_rows)
                columns = fit(chunk, schema).columns if len(schema) else []
                yield pa.RecordBatch.from_arrays([ordinals, *columns], names=["ordinal", *schema.names])
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as error:
            if unit.where is None:
                raise self._unreadable(error) from error
            raise InvalidRequest(
                f"table {unit.paths.name}: the condition cannot be evaluated on the rows of {self._file.path}: "
                f"{self._first_line(error)}; write TRY_CAST where a value may not convert"
            ) from error
        except duckdb.Error as error:
            raise self._unreadable(error) from error
        if read_count != row_count and unit.where is None:
            raise CorruptLog(
                f"{self._what} has {row_count} rows by its footer, and {read_count} were read: restore the object"
            )

    def _select(self) -> Any:
        """Return the query of the file's rows."""
        unit, columns = self._unit, self._make_columns()
        source = scan_files([self._path])
        if unit.where is None and unit.wanted is None:
            outputs = [f"{value} AS c{place}" for place, value in enumerate(columns.values())] or ["0 AS nothing"]
            return self._engine.sql(f"SELECT {', '.join(outputs)} FROM {source}")  # noqa: S608 - names and texts are quoted
        named = ", ".join(f"{value} AS {quote_name(name)}" for name, value in columns.items())
        rows = self._engine.sql(f"SELECT {named} FROM {source}")  # noqa: S608 - as above
        if unit.where is not None:
            rows = rows.filter(unit.where)  # one expression, whatever stands in it
        return rows.project(", ".join(f"{quote_name(name)} AS c{place}" for place, name in enumerate(unit.outputs)))

    def _measure(self) -> tuple[int, int]:
        """Return the rows of what was fetched, and how many of them a chunk should have."""
        try:
            footer = pq.read_metadata(self._path)
            row_count = int(footer.num_rows)
            size_bytes = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
        except (OSError, ValueError) as error:
            raise CorruptLog(
                f"{self._what} is not readable as Parquet ({str(error)[:200]}): restore the object"
            ) from error
        whole_count = row_count if self._row_count is None else self._row_count
        if self._file.row_count not in (None, whole_count):
            raise CorruptLog(
                f"{self._what} has {whole_count} rows, and {self._file.row_count} by the log: restore the object"
            )
        fitting = CHUNK_BYTES * row_count // max(size_bytes, 1)
        return row_count, max(1, min(CHUNK_ROWS, fitting))

    def _make_columns(self) -> dict[str, str]:
        """Return each column with what is selected for it: the file's, with the table's type, or NULL."""
        unit, key = self._unit, self._file.path
        found = {}
        known = {name.lower(): name for name in unit.columns}
        fields = {folder.partition("=")[0].lower() for folder in unit.paths.partition_of(key).split("/")}
        for name, sql_type in describe_columns(self._engine, self._path).items():
            table_name = known.get(name.lower())
            if table_name is None and not unit.is_whole:
                continue
            if table_name is None and name.lower() in fields:  # other writers repeat values of the path in merged files
                require_path_values(self._engine, self._path, name, sql_type, paths=unit.paths, data_key=key)
                continue
            table_type = None if table_name is None else unit.columns[table_name]
            if table_type is None or table_name != name or not is_read_as(sql_type, table_type):
                there = "the table has no such column"
                if table_type is not None:
                    there = f"the table has {table_name!r} as {table_type}"
                raise SchemaConflict(
                    f"table {unit.paths.name}: column {name!r} is {sql_type} in data file {key}, but {there}: "
                    "rewrite that file with the table's columns"
                )
            found[name] = quote_name(name)
        return {name: f"CAST({found.get(name, 'NULL')} AS {kind})" for name, kind in unit.columns.items()}

    def _unreadable(self, error: Exception) -> CorruptLog:
        return CorruptLog(f"{self._what} cannot be read ({self._first_line(error)}): restore the object")

    def _first_line(self, error: Exception) -> str:
        return str(error).partition("\n")[0].replace(str(self._path), self._file.path)[:300]
