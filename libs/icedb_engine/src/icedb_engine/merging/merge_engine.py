"""The rows of data files, sorted by the native engine: for what does not fit into memory, or has to be converted.

Slower than :mod:`icedb_engine.merging.merge_rows` does it in memory, but bounded: the engine spills.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from icedb_log.errors import CorruptLog
from icedb_log.parquet.pages import DamagedPages, check_file_sums

from icedb_engine.merging.merge_inputs import MergeInput, unreadable
from icedb_engine.sql import quote_name, quote_text

ROWS_PER_CHUNK: Final = 65_536
_NO_ROOM: Final = ("Out of Memory Error", "IO Error")
_SHOWN_CHARS: Final = 300

OpenEngine = Callable[[], AbstractContextManager[Any]]


def describe_columns(each: MergeInput, *, open_engine: OpenEngine, folder: Path) -> dict[str, str]:
    """Return column to SQL type of a data file, as the engine reads it."""
    with open_engine() as engine:
        found = engine.execute(f"DESCRIBE SELECT * FROM {_scan([each.make_file(folder)])}").fetchall()  # noqa: S608
    return {name: sql_type for name, sql_type, *_ in found}


def sort_in_engine(
    inputs: Sequence[MergeInput],
    *,
    table: str,
    columns: Mapping[str, str],
    sort: Sequence[str],
    open_engine: OpenEngine,
    folder: Path,
) -> Iterator[pa.Table]:
    """Yield the rows of data files in order, with the columns' types.

    Args:
        inputs: The data files.
        table: Name of the table, for messages.
        columns: Column to SQL type of what comes out.
        sort: Sort columns, all of them among the columns.
        open_engine: Opens the engine, which may read below the folder.
        folder: For files that are in memory.

    Raises:
        CorruptLog: A file cannot be read, has pages that differ from their checksums, or a value cannot be converted.
        Unavailable: Memory and scratch did not suffice.
    """
    files = [each.make_file(folder) for each in inputs]
    for each, file in zip(inputs, files, strict=True):
        try:
            check_file_sums(file)  # the engine does not: damage would be written anew with checksums that are right
        except DamagedPages as error:
            raise unreadable(each.marker, error) from error
    outputs = ", ".join(f"CAST({quote_name(name)} AS {kind}) AS {quote_name(name)}" for name, kind in columns.items())
    order = ", ".join(f"{quote_name(name)} NULLS LAST" for name in sort)
    sql = f"SELECT {outputs} FROM {_scan(files)}{f' ORDER BY {order}' if order else ''}"  # noqa: S608 - all quoted
    with open_engine() as engine:
        try:
            engine.execute(sql)
            for chunk in engine.to_arrow_reader(ROWS_PER_CHUNK):
                yield pa.Table.from_batches([chunk])
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except (duckdb.Error, OSError, ValueError, pa.ArrowException) as error:
            message = str(error).partition("\n")[0]
            if any(word in message for word in _NO_ROOM):  # as Arrow's error, once rows are being fetched
                raise duckdb.OutOfMemoryException(message) from error
            for each, file in zip(inputs, files, strict=True):
                message = message.replace(str(file), each.marker.path)
            raise CorruptLog(
                f"table {table}: a data file, one of {len(files)} from {inputs[0].marker.path} on, cannot be merged "
                f"({message[:_SHOWN_CHARS]}): find it and restore the object"
            ) from error


def _scan(files: Sequence[Path]) -> str:
    names = ", ".join(quote_text(str(file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"
