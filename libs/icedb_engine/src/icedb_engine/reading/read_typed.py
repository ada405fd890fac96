"""Batches that come as columns: CSV, Parquet, Arrow. Nothing is lost, or the batch is rejected, row and column named.

What a cell of a CSV file means is decided later, with its whole column. Sizes are added up before anything is
decompressed: a few hundred bytes of a Parquet page or of an Arrow message can become gigabytes. Digits of a timestamp
beyond microseconds are cut, as in JSON. Structs, maps and lists become compact JSON text.
"""

import csv
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from icedb_log.parquet.pages import read_chunks, read_pages
from icedb_log.parquet.schema import DamagedFile
from icedb_log.parquet.thrift import ThriftError
from icedb_log.table.time_columns import MAX_TIME_MS, MIN_TIME_MS
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import BOM, BadLines, BatchTable, Fault, check_row_count, check_utf8
from icedb_engine.reading.types import Form
from icedb_engine.sql import CLOSED, quote_name

_SHOWN_CHARS: Final = 80
_NO_ROWS: Final = BatchTable(pa.table({}), {}, pa.array([], pa.int32()), 0)


def read_csv_cells(decoded: bytes, limits: FlushUnitLimits, *, splits_rows: bool = False) -> BatchTable:
    """Split a CSV batch into cells; an empty cell is null.

    Args:
        decoded: The batch, decompressed: comma-separated, cells with commas or line breaks in double quotes.
        limits: The bounds of a batch.
        splits_rows: Rows with too many or too few cells are set aside instead of rejecting the batch.

    Raises:
        BatchRejected: Not CSV, or above a bound.
    """
    decoded = decoded.removeprefix(BOM)
    check_utf8(decoded)
    if not decoded.strip():
        return _NO_ROWS
    if decoded.count(b'"') % 2:
        raise BatchRejected(
            "a double quote is not closed, or the file is cut off: quote cells, and double quotes in them"
        )
    if not decoded.endswith(b"\n"):
        decoded += b"\n"
    names = _read_header(decoded, limits)
    odd_rows: dict[int, tuple[bytes, Fault]] = {}

    def on_odd_row(row: Any) -> str:
        number = row.number if row.number is not None else 0
        reason = (
            f"row {number} has {row.actual_columns} cells, the header has {row.expected_columns}: "
            f"{(row.text or '')[:_SHOWN_CHARS]}: quote cells with commas or line breaks"
        )
        odd_rows[number] = (
            (row.text or "").encode(),
            Fault("a row has more or fewer cells than the header: quote cells with commas", reason),
        )
        return "skip" if splits_rows else "error"

    columns = [f"c{place}" for place in range(len(names))]
    try:
        table = pcsv.read_csv(
            pa.BufferReader(decoded),
            read_options=pcsv.ReadOptions(
                use_threads=False,
                column_names=columns,
                skip_rows_after_names=1,
                block_size=min(len(decoded) + 1, 2 * limits.line_bytes),
            ),
            parse_options=pcsv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_odd_row),
            convert_options=pcsv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        if odd_rows and not splits_rows:
            raise BatchRejected(next(iter(odd_rows.values()))[1].reason) from error
        raise BatchRejected(
            f"not CSV ({str(error)[:200]}): is a quote not closed, or a row longer than {limits.line_bytes} bytes?"
        ) from error
    numbers = np.setdiff1d(
        np.arange(2, table.num_rows + len(odd_rows) + 2, dtype=np.int32), np.array(list(odd_rows), np.int32)
    )
    return BatchTable(
        table.rename_columns(names),
        dict.fromkeys(names, Form.CELL),
        pa.array(numbers),
        len(decoded),
        BadLines().add(odd_rows),
    )


def _read_header(decoded: bytes, limits: FlushUnitLimits) -> list[str]:
    text = io.TextIOWrapper(io.BytesIO(decoded), encoding="utf-8", newline="")
    try:
        names = next(row for row in csv.reader(text, strict=True) if row)
    except (csv.Error, StopIteration) as error:
        raise BatchRejected(
            f"the header is not CSV ({error}): send the names of the columns in the first line"
        ) from error
    if len(names) > limits.batch_columns:
        raise BatchRejected(f"{len(names)} columns; the limit is {limits.batch_columns}: send fewer columns")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BatchRejected(
            f"column {twice[:_SHOWN_CHARS]!r} stands twice in the header; which one counts is not defined"
        )
    return names


_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_BUFFER_BYTES: Final = 16
_PREFIX_BYTES: Final = 8


def count_decoded_bytes(metadata: bytes, body: bytes | memoryview) -> int:
    """Return how many bytes the buffers of one message take in memory.

    Args:
        metadata: The message's flatbuffer.
        body: Its body.

    Raises:
        BatchRejected: The metadata is damaged.
    """
    try:
        return _count(metadata, memoryview(body))
    except (struct.error, IndexError) as error:
        raise BatchRejected(
            "not an Arrow stream: the metadata of a message is damaged; send the batch again"
        ) from error


def _count(metadata: bytes, body: memoryview) -> int:
    message = _follow(metadata, 0)
    kind_at = _find_field(metadata, message, _MESSAGE_KIND)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = _follow(metadata, _find_field(metadata, message, _MESSAGE_HEADER))
    if kind == _DICTIONARY_BATCH:
        batch = _follow(metadata, _find_field(metadata, batch, _DICTIONARY_DATA))
    if not _find_field(metadata, batch, _BATCH_COMPRESSION):
        return len(body)
    buffers = _follow(metadata, _find_field(metadata, batch, _BATCH_BUFFERS))
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for offset, length in struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + count * _BUFFER_BYTES]):
        if length < _PREFIX_BYTES:
            continue
        (size_bytes,) = struct.unpack_from("<q", body, offset)
        total += size_bytes if size_bytes >= 0 else length
    return total


def _follow(data: bytes, at: int) -> int:
    """Return where the flatbuffer's offset at a place leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _find_field(data: bytes, table: int, number: int) -> int:
    """Return the place of a table's field; zero if the table does not have it."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size_bytes = int(struct.unpack_from("<H", data, vtable)[0])
    entry = 4 + 2 * number
    if vtable < 0 or entry + 2 > size_bytes:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + entry)[0])
    return table + offset if offset else 0


ENCRYPTED: Final = "an encrypted Parquet file cannot be read: send it without encryption"
MAX_PAGES: Final = 200_000
"""Pages of a batch; writers make them of 8 KiB and more."""


def check_pages(body: bytes, *, limit_bytes: int) -> None:
    """Return if the pages of a Parquet file are no larger than this together, as each page says itself.

    A footer says how large its row groups are, and nobody has to believe it: a file of twenty kilobytes whose footer
    says little can hold pages of two gigabytes, one for each column. What a reader allocates is what stands before each
    page, so that is what is added up.

    Args:
        body: The whole file.
        limit_bytes: Of all pages without compression.

    Raises:
        BatchRejected: They are larger, or too many, or encrypted.
        ThriftError: The file is damaged.
    """
    total_bytes = page_count = 0
    for chunk in read_chunks(body):
        if chunk.is_encrypted:
            raise BatchRejected(ENCRYPTED)
        for page in read_pages(body, chunk):
            total_bytes += page.size_bytes
            page_count += 1
            if total_bytes > limit_bytes:
                raise BatchTooLarge(
                    f"the Parquet file has more than {limit_bytes} bytes without compression; send smaller batches"
                )
            if page_count > MAX_PAGES:
                raise BatchRejected(
                    f"the Parquet file has more than {MAX_PAGES} pages; let its writer make larger ones"
                )


_MICROS: Final = pa.timestamp("us")
_MIN_US, _MAX_US = MIN_TIME_MS * 1000, MAX_TIME_MS * 1000 + 999
_PER_US: Final = {"s": 1_000_000, "ms": 1000}
_NANOS: Final = 1000
_MAX_BIGINT: Final = 2**63 - 1


def convert_table(table: pa.Table, limits: FlushUnitLimits) -> BatchTable:
    """Return the rows with columns of the forms that the engine knows.

    Raises:
        BatchRejected: A column or a value that has no place in the six types.
    """
    arrays: dict[str, pa.ChunkedArray] = {}
    forms: dict[str, Form] = {}
    for name in table.column_names:
        arrays[name], forms[name] = _convert(name, table.column(name))
    converted = pa.table(arrays) if arrays else table
    size_bytes = converted.nbytes
    if size_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"{size_bytes} bytes in memory; the limit is {limits.batch_decoded_bytes}: send smaller batches"
        )
    numbers = pa.array(np.arange(1, table.num_rows + 1, dtype=np.int32))
    return BatchTable(converted, forms, numbers, size_bytes)


def measure(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch with its dictionaries spread out."""
    return sum(_measure_column(column) for column in batch.columns)


def _measure_column(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values = column.dictionary
    if pa.types.is_primitive(values.type):
        return int(len(column) * values.type.bit_width // 8)
    average = int(values.nbytes) // max(1, len(values))
    if not (
        pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type)
    ):
        return len(column) * max(average, int(values.nbytes))
    lengths = pc.binary_length(values).take(column.indices)
    return len(column) * 4 + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _convert(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    arrow_type = values.type
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _convert(name, pa.chunked_array([chunk.storage for chunk in values.chunks], arrow_type.storage_type))
    if pa.types.is_dictionary(arrow_type):
        return _convert(name, _cast(name, values, arrow_type.value_type))
    for is_type, convert in _CONVERSIONS:
        if is_type(arrow_type):
            return convert(name, values)
    raise BatchRejected(
        f"column {name!r} has the Arrow type {arrow_type}, which has no SQL type here: {_remedy(arrow_type)}"
    )


def _convert_null(_: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return values.cast(pa.string()), Form.VARCHAR


def _convert_boolean(_: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return values, Form.BOOLEAN


def _convert_integer(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    if pa.types.is_uint64(values.type):
        _require(
            name,
            values,
            pc.less_equal(values, pa.scalar(_MAX_BIGINT, pa.uint64())),
            "BIGINT ends at 2^63 - 1: send such numbers as strings",
        )
    return _cast(name, values, pa.int64()), Form.BIGINT


def _convert_float(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return _cast(name, values, pa.float64()), Form.DOUBLE


def _convert_decimal(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    if values.type.scale <= 0:
        return _cast(name, values, pa.int64()), Form.BIGINT
    doubles = values.cast(pa.float64())
    try:
        back = doubles.cast(values.type)
    except pa.ArrowInvalid:
        back = pa.chunked_array([pa.nulls(len(values), values.type)])
    remedy = "a DOUBLE would lose digits: send such numbers as strings"
    _require(name, values, pc.fill_null(pc.equal(back, values), False), remedy)
    return doubles, Form.DOUBLE


def _convert_text(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return _cast(name, values, pa.string()), Form.VARCHAR


def _convert_date(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    days = _cast(name, values, pa.date32())
    moments = _cast(name, days, pa.timestamp("s")).cast(pa.int64())
    _require(
        name,
        values,
        _between(moments, MIN_TIME_MS // 1000, MAX_TIME_MS // 1000),
        "send dates of the years 1 to 9999",
    )
    return days, Form.DATE


def _convert_timestamp(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    unit = values.type.unit
    counts = values.cast(pa.int64())
    if unit == "ns":
        micros = _floor_divide(counts, _NANOS)
    else:
        per_us = _PER_US.get(unit, 1)
        _require(
            name,
            values,
            _between(counts, _MIN_US // per_us, _MAX_US // per_us),
            "send timestamps of the years 1 to 9999",
        )
        micros = pc.multiply(counts, per_us)
    return micros.cast(_MICROS), Form.TIMESTAMP


def _convert_nested(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    bad = _find_untextual(values.type)
    if bad is not None:
        raise BatchRejected(f"column {name!r} has {bad} inside {values.type}, which has no JSON text: {_remedy(bad)}")
    with duckdb.connect(config={"threads": 1, **CLOSED}) as engine:
        connection: Any = engine
        connection.register("nested", pa.table({"value": values}))
        column = quote_name("value")
        found = connection.execute(
            f"SELECT CASE WHEN {column} IS NOT NULL THEN CAST(to_json({column}) AS VARCHAR) END AS text FROM nested"  # noqa: S608
        ).to_arrow_table()
    return found.column(0), Form.NESTED


_NESTED: Final = (
    pa.types.is_struct,
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_map,
)
_CONVERSIONS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[..., tuple[pa.ChunkedArray, Form]]], ...]] = (
    (pa.types.is_null, _convert_null),
    (pa.types.is_boolean, _convert_boolean),
    (pa.types.is_integer, _convert_integer),
    (pa.types.is_floating, _convert_float),
    (pa.types.is_decimal, _convert_decimal),
    (pa.types.is_string, _convert_text),
    (pa.types.is_large_string, _convert_text),
    (pa.types.is_string_view, _convert_text),
    (pa.types.is_date, _convert_date),
    (pa.types.is_timestamp, _convert_timestamp),
    *((is_type, _convert_nested) for is_type in _NESTED),
)


def _is_plain_nested(arrow_type: pa.DataType) -> bool:
    return any(is_type(arrow_type) for is_type in _NESTED)


def _find_untextual(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return a type inside a nested one that has no JSON text; None if there is none."""
    if not _is_plain_nested(arrow_type):
        is_known = any(is_type(arrow_type) for is_type, convert in _CONVERSIONS if convert is not _convert_nested)
        return None if is_known or pa.types.is_dictionary(arrow_type) else arrow_type
    if pa.types.is_map(arrow_type):
        inner = [arrow_type.key_type, arrow_type.item_type]
    elif pa.types.is_struct(arrow_type):
        inner = [arrow_type.field(place).type for place in range(arrow_type.num_fields)]
    else:
        inner = [arrow_type.value_type]
    return next((bad for each in inner if (bad := _find_untextual(each)) is not None), None)


def _cast(name: str, values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BatchRejected(
            f"column {name!r}: {str(error)[:200]}; send values that fit {to}, or send them as strings"
        ) from error


def _require(name: str, values: pa.ChunkedArray, is_good: pa.ChunkedArray, remedy: str) -> None:
    """Reject the batch if a value that is not null is not good."""
    bad = pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(is_good, True)))
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise BatchRejected(f"row {row + 1}: column {name!r} has {_show(values[row])}; {remedy}")


def _show(value: Any) -> str:
    try:
        return str(value)
    except (OverflowError, ValueError):  # no Python date of such a year
        return f"{value.value} ({value.type})"


def _between(numbers: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))


def _floor_divide(numbers: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    quotients = pc.divide(numbers, divisor)
    is_below = pc.less(pc.subtract(numbers, pc.multiply(quotients, divisor)), 0)
    return pc.if_else(is_below, pc.subtract(quotients, 1), quotients)


def _remedy(arrow_type: pa.DataType) -> str:
    if (
        pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    ):
        return "send text (UTF-8), or encode the bytes as base64"
    if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type):
        return "send a string, or an integer with the unit in the column's name"
    return "cast the column to a plain type"


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
    DamagedFile,
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
