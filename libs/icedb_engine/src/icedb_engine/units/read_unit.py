"""One task that reads data files: their rows become record batches that Spark can take.

Runs inside a task, or directly in a test: it needs a store, not Spark. Every row carries the ordinal of its file; its
columns have the table's names and types, wider than the file's where the table is wider, NULL where the file has no
such column. Files are copied to scratch, some at a time, and read a chunk at a time by the native engine.
"""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, SchemaConflict
from icedb_log.keys import TablePaths
from icedb_log.parquet.pages import check_file_sums
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.data_files import describe_columns, is_read_as, require_path_values, scan_files
from icedb_engine.sql import quote_name

CHUNK_BYTES: Final = 8 * MIB
"""Decoded size that a chunk aims at; a single row may be larger."""
CHUNK_ROWS: Final = 65_536
_FILES_AT_ONCE: Final = 16
_CLOSE_TRIES: Final = 200
_CLOSE_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class NumberedFile:
    """A data file to be read.

    Attributes:
        ordinal: What its rows carry.
        path: Key.
        row_count: Rows in it by the log; ``None`` if the log does not say.
    """

    ordinal: int
    path: str
    row_count: int | None


@dataclass(frozen=True, slots=True)
class ReadFilesUnit:
    """Some data files, for one task.

    Attributes:
        paths: Keys of the table.
        columns: Columns to be read, with the table's types.
        is_whole: Whether these are all columns of the table, so that a file with others would lose them.
        files: The data files.
        engine: Bounds of the task.
        where: A condition over the columns, DuckDB's SQL, checked (:mod:`icedb_engine.sql.checks`): only rows
            for which it is true come out. ``None``: all rows.
        wanted: Which of the columns come out, in their order; ``None``: all.
    """

    paths: TablePaths
    columns: Mapping[str, str]
    is_whole: bool
    files: tuple[NumberedFile, ...]
    engine: EngineLimits
    where: str | None = None
    wanted: tuple[str, ...] | None = None

    @property
    def outputs(self) -> Mapping[str, str]:
        """The columns that come out, with their types."""
        return self.columns if self.wanted is None else {name: self.columns[name] for name in self.wanted}


def spark_arrow_type(sql_type: str) -> Any:
    """Return the Arrow type of one of our types as Spark takes and gives it: its timestamps have a zone, UTC."""
    return pa.timestamp("us", tz="UTC") if sql_type == "TIMESTAMP" else ARROW_TYPES[sql_type]


@contextmanager
def closing_rows(rows: Generator[pa.RecordBatch, None, None]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Take rows of files, and let go of the files at the end, also if not all rows were taken.

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


def read_files(unit: ReadFilesUnit, store: ObjectStore) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of all files of a unit: the ordinal, then the columns that come out; use :func:`closing_rows`.

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
            for file, path in zip(files, _download(unit, files, store, scratch), strict=True):
                yield from _read_file(unit, file, path, engine)
                path.unlink()


def _download(unit: ReadFilesUnit, files: Sequence[NumberedFile], store: ObjectStore, scratch: Path) -> Sequence[Path]:
    def fetch(numbered: tuple[int, NumberedFile]) -> Path:
        number, file = numbered
        path = scratch / f"{number}.parquet"
        try:
            store.download(file.path, path)
        except NotFound as error:
            raise NotFound(
                f"table {unit.paths.name}: data file {file.path} is gone from the store: "
                "read the log again; if it is still named there, restore the object"
            ) from error
        return path

    with ThreadPoolExecutor(unit.engine.transfer_count, thread_name_prefix="icedb-download") as pool:
        return list(pool.map(fetch, enumerate(files)))


def _read_file(unit: ReadFilesUnit, file: NumberedFile, path: Path, engine: Any) -> Iterator[pa.RecordBatch]:
    row_count, chunk_rows = _measure(unit, file, path)
    try:
        check_file_sums(path)  # the engine does not: damage would be written anew with checksums that are right
    except DamagedFile as error:
        raise _unreadable(unit, file, path, error) from error
    schema = pa.schema([(f"c{place}", spark_arrow_type(kind)) for place, kind in enumerate(unit.outputs.values())])
    read_count = 0
    try:
        for chunk in _select(unit, file, path, engine).to_arrow_reader(chunk_rows):
            read_count += chunk.num_rows
            yield _number(chunk, file.ordinal, schema)
    except (duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as error:
        if unit.where is None:
            raise _unreadable(unit, file, path, error) from error
        raise InvalidRequest(
            f"table {unit.paths.name}: the condition cannot be evaluated on the rows of {file.path}: "
            f"{_first_line(error, path, file)}; write TRY_CAST where a value may not convert"
        ) from error
    except duckdb.Error as error:
        raise _unreadable(unit, file, path, error) from error
    if read_count != row_count and unit.where is None:
        raise CorruptLog(
            f"table {unit.paths.name}: data file {file.path} has {row_count} rows by its footer, and {read_count} were "
            "read: restore the object"
        )


def _select(unit: ReadFilesUnit, file: NumberedFile, path: Path, engine: Any) -> Any:
    """Return the query of a file's rows: their columns as ``c0``, ``c1``, … with the table's types."""
    columns = _make_columns(unit, file, path, engine)
    if unit.where is None and unit.wanted is None:
        outputs = [f"{value} AS c{place}" for place, value in enumerate(columns.values())] or ["0 AS nothing"]
        return engine.sql(f"SELECT {', '.join(outputs)} FROM {scan_files([path])}")  # noqa: S608 - names and texts are quoted
    named = ", ".join(f"{value} AS {quote_name(name)}" for name, value in columns.items())
    rows = engine.sql(f"SELECT {named} FROM {scan_files([path])}")  # noqa: S608 - as above
    if unit.where is not None:
        rows = rows.filter(unit.where)  # one expression, whatever stands in it
    return rows.project(", ".join(f"{quote_name(name)} AS c{place}" for place, name in enumerate(unit.outputs)))


def _unreadable(unit: ReadFilesUnit, file: NumberedFile, path: Path, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"table {unit.paths.name}: data file {file.path} cannot be read ({_first_line(error, path, file)}): "
        "restore the object"
    )


def _first_line(error: Exception, path: Path, file: NumberedFile) -> str:
    return str(error).partition("\n")[0].replace(str(path), file.path)[:300]


def _measure(unit: ReadFilesUnit, file: NumberedFile, path: Path) -> tuple[int, int]:
    """Return the rows of a file, and how many of them a chunk should have."""
    try:
        footer = pq.read_metadata(path)
        row_count = int(footer.num_rows)
        size_bytes = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    except (OSError, ValueError) as error:
        raise CorruptLog(
            f"table {unit.paths.name}: data file {file.path} is not readable as Parquet ({str(error)[:200]}): "
            "restore the object"
        ) from error
    if file.row_count is not None and row_count != file.row_count:
        raise CorruptLog(
            f"table {unit.paths.name}: data file {file.path} has {row_count} rows, and {file.row_count} by the log: "
            "restore the object"
        )
    fitting = CHUNK_BYTES * row_count // max(size_bytes, 1)
    return row_count, max(1, min(CHUNK_ROWS, fitting))


def _make_columns(unit: ReadFilesUnit, file: NumberedFile, path: Path, engine: Any) -> dict[str, str]:
    """Return each column with what is selected for it: the file's, with the table's type, or NULL."""
    found = {}
    known = {name.lower(): name for name in unit.columns}
    folders = unit.paths.partition_of(file.path).split("/")
    fields = {folder.partition("=")[0].lower() for folder in folders}
    for name, sql_type in describe_columns(engine, path).items():
        table_name = known.get(name.lower())
        if table_name is None and not unit.is_whole:
            continue
        if table_name is None and name.lower() in fields:  # other writers repeat values of the path in merged files
            require_path_values(engine, path, name, sql_type, paths=unit.paths, data_key=file.path)
            continue
        table_type = None if table_name is None else unit.columns[table_name]
        if table_type is None or table_name != name or not is_read_as(sql_type, table_type):
            there = (
                "the table has no such column"
                if table_type is None
                else f"the table has {table_name!r} as {table_type}"
            )
            raise SchemaConflict(
                f"table {unit.paths.name}: column {name!r} is {sql_type} in data file {file.path}, but {there}: "
                "rewrite that file with the table's columns"
            )
        found[name] = quote_name(name)
    return {name: f"CAST({found.get(name, 'NULL')} AS {kind})" for name, kind in unit.columns.items()}


def _number(chunk: pa.RecordBatch, ordinal: int, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.repeat(pa.scalar(ordinal, pa.int32()), chunk.num_rows)]
    for array, field in zip(chunk.columns, schema, strict=False):
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, names=["ordinal", *schema.names])
