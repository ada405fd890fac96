"""Batches of typed formats: one Parquet file, or one Arrow IPC stream or file. Bounded before they are decoded.

Strings come as dictionaries where the file has them so, and are measured before they are spread out: a file of a few
kilobytes may hold one long string a million times.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.thrift import ThriftError
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batch_table import BatchTable
from icedb_engine.reading.ipc_bounds import count_decoded_bytes
from icedb_engine.reading.page_bounds import ENCRYPTED, check_pages
from icedb_engine.reading.staged_bytes import check_row_count
from icedb_engine.reading.typed_columns import convert_table, measure

_IPC_MAGIC: Final = b"ARROW1\x00\x00"
_ENCRYPTED_MAGIC: Final = b"PARE"
_FLAT_ROWS: Final = 65_536
_NESTED_ROWS: Final = (16, 8192)
_NESTED_BYTES: Final = 256 * MIB
"""A string of a nested column is at most as long as its row group: so many rows with one each stay below this."""

_DAMAGED: Final = (
    pa.ArrowException,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    ThriftError,
)
"""What reading of damaged bytes may end in: one batch must not stop the flush of the others (I5)."""
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def read_parquet(body: bytes, limits: FlushUnitLimits) -> BatchTable:
    """Read one Parquet file.

    Raises:
        BatchRejected: Damaged, encrypted, above a bound, or with columns that have no SQL type here.
    """
    if body.endswith(_ENCRYPTED_MAGIC):
        raise BatchRejected(ENCRYPTED)
    try:
        file = _open_parquet(body, limits)
        return convert_table(_collect(_read_row_groups(file), file.schema_arrow, limits), limits)
    except _DAMAGED as error:
        raise BatchRejected(f"not a readable Parquet file ({_first_line(error)}); write the file again") from error


def read_arrow(body: bytes, limits: FlushUnitLimits) -> BatchTable:
    """Read one Arrow IPC stream, or one file: which is a stream between two marks.

    Raises:
        BatchRejected: Damaged, cut off, above a bound, or with columns that have no SQL type here.
    """
    data = pa.py_buffer(body).slice(len(_IPC_MAGIC)) if body.startswith(_IPC_MAGIC) else pa.py_buffer(body)
    try:
        _check_messages(data, limits)
        with pa.ipc.open_stream(data) as reader:
            _check_columns(reader.schema, limits)
            return convert_table(_collect(reader, reader.schema, limits), limits)
    except _DAMAGED as error:
        raise BatchRejected(f"not a whole Arrow stream or file ({_first_line(error)}); send the batch again") from error


def _open_parquet(body: bytes, limits: FlushUnitLimits) -> pq.ParquetFile:
    metadata: Any = pq.read_metadata(pa.BufferReader(body))
    schema = metadata.schema.to_arrow_schema()
    _check_columns(schema, limits)
    strings = [field.name for field in schema if _is_text(field.type)]
    decoded_bytes = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    least_bytes = metadata.num_rows * len(schema) // 8
    if max(decoded_bytes, least_bytes) > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"the Parquet file has {metadata.num_rows} rows and {decoded_bytes} bytes without compression; "
            f"the limit is {limits.batch_decoded_bytes} bytes: send smaller batches"
        )
    check_row_count(metadata.num_rows, limits)
    check_pages(body, limit_bytes=limits.batch_decoded_bytes)
    return pq.ParquetFile(pa.BufferReader(body), read_dictionary=strings)


def _read_row_groups(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    metadata: Any = file.metadata
    is_nested = any(pa.types.is_nested(field.type) for field in file.schema_arrow)
    row_count = _FLAT_ROWS
    if is_nested:
        # WARN: nothing of a column chunk's metadata is asked: on damaged bytes pyarrow 26 ends the process there.
        groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=1)
        low, high = _NESTED_ROWS
        row_count = max(low, min(high, _NESTED_BYTES // max(1, largest)))
    yield from file.iter_batches(batch_size=row_count, use_threads=False)


def _check_messages(data: pa.Buffer, limits: FlushUnitLimits) -> None:
    """Add up what the messages of a stream become in memory."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        total += count_decoded_bytes(message.metadata.to_pybytes(), memoryview(message.body))
        if total > limits.batch_decoded_bytes:
            raise BatchTooLarge(
                f"the Arrow stream has more than {limits.batch_decoded_bytes} bytes without compression; "
                "send smaller batches"
            )


def _check_columns(schema: pa.Schema, limits: FlushUnitLimits) -> None:
    if len(schema) > limits.batch_columns:
        raise BatchRejected(f"{len(schema)} columns; the limit is {limits.batch_columns}: put some into a struct")
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise BatchRejected(f"column {twice[:80]!r} is there twice; which one counts is not defined")


def _collect(batches: Iterator[pa.RecordBatch], schema: pa.Schema, limits: FlushUnitLimits) -> pa.Table:
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        _validate(batch, sum(map(len, found)))
        size_bytes += measure(batch)
        if size_bytes > limits.batch_decoded_bytes:
            raise BatchTooLarge(
                f"more than {limits.batch_decoded_bytes} bytes in memory, at row {sum(map(len, found)) + 1}; "
                "send smaller batches"
            )
        found.append(batch)
        check_row_count(sum(map(len, found)), limits)
    return pa.Table.from_batches(found, found[0].schema if found else schema)


def _validate(batch: pa.RecordBatch, row_count: int) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BatchRejected(
                f"column {name!r} is damaged or not UTF-8 in the {len(batch)} rows from row {row_count + 1} on "
                f"({_first_line(error)}); encode text as UTF-8"
            ) from error


def _is_text(arrow_type: pa.DataType) -> bool:
    return any(is_type(arrow_type) for is_type in _TEXT)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
