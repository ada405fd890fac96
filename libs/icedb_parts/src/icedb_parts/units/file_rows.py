"""The rows of a data file as a stream of record batches with the table's types, for queries that read data files.

Runs inside a task, or directly in a test. Nothing is guessed: a file that is gone, cannot be read, holds other rows
than its log file says, or a column of another type is an error that names the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict
from icedb_log.object_store import ObjectStore

from icedb_parts.arrow_types import ARROW_TYPES
from icedb_parts.reading.event_frame import ROWS_PER_CHUNK

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file to be read.

    Attributes:
        path: Its key.
        row_count: Rows by its log file; ``None`` when that does not say.
    """

    path: str
    row_count: int | None


def read_file_rows(
    store: ObjectStore, file: DataFile, types: Mapping[str, str], *, scratch: Path
) -> Iterator[pa.RecordBatch]:
    """Read a data file; NULL where it has no such column. Columns that are not asked for are passed over.

    Args:
        store: Where it is.
        file: Which.
        types: Columns of the rows, with SQL types.
        scratch: A folder of one's own; empty again at the end.

    Raises:
        NotFound: It is gone.
        CorruptLog: It is not readable as Parquet, or has another number of rows.
        SchemaConflict: A column has a type that cannot be read as the table's.
        Unavailable: The store did not answer.
    """
    schema = pa.schema([(name, spark_arrow_type(kind)) for name, kind in types.items()])
    local = scratch / "input.parquet"
    try:
        store.download(file.path, local)
    except NotFound as error:
        raise NotFound(f"data file {file.path} is gone from the store: restore the object") from error
    row_count = 0
    try:
        with pq.ParquetFile(local) as parquet:
            wanted = [name for name in parquet.schema_arrow.names if name in types]
            for rows in parquet.iter_batches(ROWS_PER_CHUNK, columns=wanted):
                row_count += rows.num_rows
                yield _align(rows, schema, file)
    except (pa.ArrowException, OSError) as error:
        raise CorruptLog(
            f"data file {file.path} is not readable as Parquet ({str(error)[:_SHOWN_CHARS]}): restore the object"
        ) from error
    finally:
        local.unlink(missing_ok=True)
    if file.row_count is not None and row_count != file.row_count:
        raise CorruptLog(
            f"data file {file.path} holds {row_count} rows, but {file.row_count} by its log file: restore the object"
        )


def spark_arrow_type(sql_type: str) -> Any:
    """Return the Arrow type in which Spark takes a column. Sessions run in UTC, and so are our timestamps."""
    return pa.timestamp("us", tz="UTC") if sql_type == "TIMESTAMP" else ARROW_TYPES[sql_type]


def _align(rows: pa.RecordBatch, schema: pa.Schema, file: DataFile) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays = [
        _read_as(columns[field.name], field, file) if field.name in columns else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_as(values: pa.Array, field: pa.Field, file: DataFile) -> pa.Array:
    found, wanted = values.type, field.type
    if found == wanted:
        return values
    if not _is_narrower(found, wanted):
        raise SchemaConflict(
            f"column {field.name!r} is {found} in data file {file.path}, and the table has {wanted}: rewrite that file "
            "with the table's type"
        )
    return values.cast(wanted)


def _is_narrower(found: Any, wanted: Any) -> bool:
    """Whether each value of a type is one of the wanted type, too (S2), or was proved to be one when it widened."""
    if pa.types.is_integer(found):
        return bool(pa.types.is_int64(wanted) or pa.types.is_float64(wanted))
    if pa.types.is_floating(found):
        return bool(pa.types.is_float64(wanted))
    if pa.types.is_date(found) or pa.types.is_timestamp(found):
        return bool(pa.types.is_timestamp(wanted) or (pa.types.is_date(found) and pa.types.is_date(wanted)))
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        return bool(pa.types.is_string(wanted))
    return False
