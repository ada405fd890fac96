"""Batches that come as columns: CSV, Parquet, Arrow. Nothing is lost, or the batch is rejected, row and column named.

What a cell of a CSV file means is decided later, with its whole column. Sizes are added up before anything is
decompressed: a few hundred bytes of a Parquet page or of an Arrow message can become gigabytes. Digits of a timestamp
beyond microseconds are cut, as in JSON. Structs, maps and lists become compact JSON text.
"""

import csv
import io
import struct
from collections.abc import Callable, Iterable, Iterator
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
from icedb_log.texts import first_line
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import BOM, BadLines, Batch, Fault, check_row_count, check_utf8, count_up
from icedb_engine.reading.types import Form
from icedb_engine.sql import CLOSED

_SHOWN_CHARS: Final = 80


def read_csv_cells(decoded: bytes, limits: FlushUnitLimits) -> Batch:
    """Split a CSV batch into cells; an empty cell is null. Rows with too many or too few cells are set aside.

    Args:
        decoded: The batch, decompressed: comma-separated, cells with commas or line breaks in double quotes.
        limits: The bounds of a batch.

    Raises:
        BatchRejected: Not CSV, or above a bound.
    """
    decoded = decoded.removeprefix(BOM)
    check_utf8(decoded)
    if not decoded.strip():
        return Batch(pa.table({}), pa.array([], pa.int32()), 0, {})
    if decoded.count(b'"') % 2:
        raise BatchRejected(
            "a double quote is not closed, or the file is cut off: quote cells, and double quotes in them"
        )
    if not decoded.endswith(b"\n"):
        decoded += b"\n"
    names = _read_header(decoded, limits)
    odd_rows: dict[int, tuple[bytes, Fault]] = {}

    def on_odd_row(row: Any) -> str:
        number, text = row.number if row.number is not None else 0, row.text or ""
        fault = Fault(
            "a row has more or fewer cells than the header: quote cells with commas",
            f"row {number} has {row.actual_columns} cells, the header has {row.expected_columns}: "
            f"{text[:_SHOWN_CHARS]}: quote cells with commas or line breaks",
        )
        odd_rows[number] = (text.encode(), fault)
        return "skip"

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
        raise BatchRejected(
            f"not CSV ({str(error)[:200]}): is a quote not closed, or a row longer than {limits.line_bytes} bytes?"
        ) from error
    numbers = np.setdiff1d(
        np.arange(2, table.num_rows + len(odd_rows) + 2, dtype=np.int32), np.array(list(odd_rows), np.int32)
    )
    forms = dict.fromkeys(names, Form.CELL)
    return Batch(table.rename_columns(names), pa.array(numbers), len(decoded), forms, BadLines(odd_rows))


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
    twice = _find_twice(names)
    if twice is not None:
        raise BatchRejected(f"column {twice!r} stands twice in the header; which one counts is not defined")
    return names


def _find_twice(names: list[str]) -> str | None:
    return next((name[:_SHOWN_CHARS] for name in names if names.count(name) > 1), None)


_IPC_MAGIC: Final = b"ARROW1\x00\x00"
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_BUFFER_BYTES: Final = 16
_PREFIX_BYTES: Final = 8

_DAMAGED: Final = (
    pa.ArrowException,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    DamagedFile,
    ThriftError,
)
"""What reading of damaged bytes may end in: one batch must not stop the flush of the others (I5)."""


def read_arrow(body: bytes, limits: FlushUnitLimits) -> Batch:
    """Read one Arrow IPC stream, or one file: which is a stream between two marks.

    Raises:
        BatchRejected: Damaged, cut off, above a bound, or with columns that have no SQL type here.
    """
    data = pa.py_buffer(body).slice(len(_IPC_MAGIC)) if body.startswith(_IPC_MAGIC) else pa.py_buffer(body)
    try:
        _check_messages(data, limits)
        with pa.ipc.open_stream(data) as reader:
            _check_columns(reader.schema, limits)
            return _convert_table(_collect(reader, reader.schema, limits), limits)
    except _DAMAGED as error:
        raise BatchRejected(f"not a whole Arrow stream or file ({first_line(error)}); send the batch again") from error


def _check_messages(data: pa.Buffer, limits: FlushUnitLimits) -> None:
    """Add up what the messages of a stream become in memory."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        try:
            total += _count_decoded_bytes(message.metadata.to_pybytes(), memoryview(message.body))
        except (struct.error, IndexError) as error:
            raise BatchRejected(
                "not an Arrow stream: the metadata of a message is damaged; send the batch again"
            ) from error
        if total > limits.batch_decoded_bytes:
            raise BatchTooLarge(
                f"the Arrow stream has more than {limits.batch_decoded_bytes} bytes without compression; "
                "send smaller batches"
            )


def _count_decoded_bytes(metadata: bytes, body: memoryview) -> int:
    """Return how many bytes the buffers of one message take in memory.

    Args:
        metadata: The message's flatbuffer.
        body: Its body.
    """
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


_ENCRYPTED: Final = "an encrypted Parquet file cannot be read: send it without encryption"
_ENCRYPTED_MAGIC: Final = b"PARE"
MAX_PAGES: Final = 200_000
"""Pages of a batch; writers make them of 8 KiB and more."""
_FLAT_ROWS: Final = 65_536
_NESTED_ROWS: Final = (16, 8192)
_NESTED_BYTES: Final = 256 * MIB
"""A string of a nested column is at most as long as its row group: so many rows with one each stay below this."""


def read_parquet(body: bytes, limits: FlushUnitLimits) -> Batch:
    """Read one Parquet file.

    Raises:
        BatchRejected: Damaged, encrypted, above a bound, or with columns that have no SQL type here.
    """
    if body.endswith(_ENCRYPTED_MAGIC):
        raise BatchRejected(_ENCRYPTED)
    try:
        file = _open_parquet(body, limits)
        return _convert_table(_collect(_read_row_groups(file), file.schema_arrow, limits), limits)
    except _DAMAGED as error:
        raise BatchRejected(f"not a readable Parquet file ({first_line(error)}); write the file again") from error


def _open_parquet(body: bytes, limits: FlushUnitLimits) -> pq.ParquetFile:
    metadata: Any = pq.read_metadata(pa.BufferReader(body))
    schema = metadata.schema.to_arrow_schema()
    _check_columns(schema, limits)
    strings = [field.name for field in schema if _is_any(field.type, _BYTES)]
    decoded_bytes = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    least_bytes = metadata.num_rows * len(schema) // 8
    if max(decoded_bytes, least_bytes) > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"the Parquet file has {metadata.num_rows} rows and {decoded_bytes} bytes without compression; "
            f"the limit is {limits.batch_decoded_bytes} bytes: send smaller batches"
        )
    check_row_count(metadata.num_rows, limits)
    _check_pages(body, limit_bytes=limits.batch_decoded_bytes)
    return pq.ParquetFile(pa.BufferReader(body), read_dictionary=strings)


def _check_pages(body: bytes, *, limit_bytes: int) -> None:
    """Return if the pages of a Parquet file are no larger than this together, as each page says itself.

    A footer says how large its row groups are, and nobody has to believe it: a file of twenty kilobytes whose footer
    says little can hold pages of two gigabytes, one for each column. What a reader allocates is what stands before each
    page, so that is what is added up.

    Raises:
        BatchRejected: They are larger, or too many, or encrypted.
        ThriftError: The file is damaged.
    """
    total_bytes = page_count = 0
    for chunk in read_chunks(body):
        if chunk.is_encrypted:
            raise BatchRejected(_ENCRYPTED)
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


def _read_row_groups(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    metadata: Any = file.metadata
    row_count = _FLAT_ROWS
    if any(pa.types.is_nested(field.type) for field in file.schema_arrow):
        # WARN: nothing of a column chunk's metadata is asked: on damaged bytes pyarrow 26 ends the process there.
        groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=1)
        low, high = _NESTED_ROWS
        row_count = max(low, min(high, _NESTED_BYTES // max(1, largest)))
    yield from file.iter_batches(batch_size=row_count, use_threads=False)


def _check_columns(schema: pa.Schema, limits: FlushUnitLimits) -> None:
    if len(schema) > limits.batch_columns:
        raise BatchRejected(f"{len(schema)} columns; the limit is {limits.batch_columns}: put some into a struct")
    twice = _find_twice(schema.names)
    if twice is not None:
        raise BatchRejected(f"column {twice!r} is there twice; which one counts is not defined")


def _collect(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limits: FlushUnitLimits) -> pa.Table:
    found: list[pa.RecordBatch] = []
    size_bytes = row_count = 0
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise BatchRejected(
                    f"column {name!r} is damaged or not UTF-8 in the {len(batch)} rows from row {row_count + 1} on "
                    f"({first_line(error)}); encode text as UTF-8"
                ) from error
        size_bytes += sum(map(_measure, batch.columns))
        if size_bytes > limits.batch_decoded_bytes:
            raise BatchTooLarge(
                f"more than {limits.batch_decoded_bytes} bytes in memory, at row {row_count + 1}; send smaller batches"
            )
        found.append(batch)
        row_count += len(batch)
        check_row_count(row_count, limits)
    return pa.Table.from_batches(found, found[0].schema if found else schema)


def _measure(column: pa.Array) -> int:
    """Return the bytes of a column with its dictionary spread out."""
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values = column.dictionary
    if pa.types.is_primitive(values.type):
        return int(len(column) * values.type.bit_width // 8)
    if not _is_any(values.type, (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)):
        return len(column) * int(values.nbytes)
    lengths = pc.binary_length(values).take(column.indices)
    return len(column) * 4 + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


_MICROS: Final = pa.timestamp("us")
_MIN_US, _MAX_US = MIN_TIME_MS * 1000, MAX_TIME_MS * 1000 + 999
_PER_US: Final = {"s": 1_000_000, "ms": 1000}
_NANOS: Final = 1000
_MAX_BIGINT: Final = 2**63 - 1


def _convert_table(table: pa.Table, limits: FlushUnitLimits) -> Batch:
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
    return Batch(converted, count_up(table.num_rows, first=1), size_bytes, forms)


def _convert(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    arrow_type = values.type
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _convert(name, pa.chunked_array([chunk.storage for chunk in values.chunks], arrow_type.storage_type))
    if pa.types.is_dictionary(arrow_type):
        return _convert(name, _cast(name, values, arrow_type.value_type))
    for is_type, form, convert in _CONVERSIONS:
        if is_type(arrow_type):
            return convert(name, values), form(arrow_type) if callable(form) else form
    if _is_any(arrow_type, _NESTED):
        return _convert_nested(name, values), Form.NESTED
    raise BatchRejected(
        f"column {name!r} has the Arrow type {arrow_type}, which has no SQL type here: {_remedy(arrow_type)}"
    )


def _convert_integer(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_uint64(values.type):
        is_good = pc.less_equal(values, pa.scalar(_MAX_BIGINT, pa.uint64()))
        _require(name, values, is_good, "BIGINT ends at 2^63 - 1: send such numbers as strings")
    return _cast(name, values, pa.int64())


def _convert_decimal(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if values.type.scale <= 0:
        return _cast(name, values, pa.int64())
    doubles = values.cast(pa.float64())
    try:
        back = doubles.cast(values.type)
    except pa.ArrowInvalid:
        back = pa.chunked_array([pa.nulls(len(values), values.type)])
    remedy = "a DOUBLE would lose digits: send such numbers as strings"
    _require(name, values, pc.fill_null(pc.equal(back, values), False), remedy)
    return doubles


def _convert_date(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    days = _cast(name, values, pa.date32())
    moments = _cast(name, days, pa.timestamp("s")).cast(pa.int64())
    is_good = _between(moments, MIN_TIME_MS // 1000, MAX_TIME_MS // 1000)
    _require(name, values, is_good, "send dates of the years 1 to 9999")
    return days


def _convert_timestamp(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    unit = values.type.unit
    counts = values.cast(pa.int64())
    if unit == "ns":
        quotients = pc.divide(counts, _NANOS)
        is_below = pc.less(pc.subtract(counts, pc.multiply(quotients, _NANOS)), 0)
        return pc.if_else(is_below, pc.subtract(quotients, 1), quotients).cast(_MICROS)
    per_us = _PER_US.get(unit, 1)
    is_good = _between(counts, _MIN_US // per_us, _MAX_US // per_us)
    _require(name, values, is_good, "send timestamps of the years 1 to 9999")
    return pc.multiply(counts, per_us).cast(_MICROS)


def _convert_nested(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    bad = _find_untextual(values.type)
    if bad is not None:
        raise BatchRejected(f"column {name!r} has {bad} inside {values.type}, which has no JSON text: {_remedy(bad)}")
    with duckdb.connect(config={"threads": 1, **CLOSED}) as engine:
        connection: Any = engine
        connection.register("nested", pa.table({"value": values}))
        found = connection.execute(
            'SELECT CASE WHEN "value" IS NOT NULL THEN CAST(to_json("value") AS VARCHAR) END AS text FROM nested'
        ).to_arrow_table()
    return found.column(0)


def _cast_to(to: pa.DataType) -> Callable[[str, pa.ChunkedArray], pa.ChunkedArray]:
    return lambda name, values: _cast(name, values, to)


_IsType = Callable[[pa.DataType], bool]
_CONVERSIONS: Final[tuple[tuple[_IsType, Any, Callable[[str, pa.ChunkedArray], pa.ChunkedArray]], ...]] = (
    (pa.types.is_null, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_boolean, Form.BOOLEAN, _cast_to(pa.bool_())),
    (pa.types.is_integer, Form.BIGINT, _convert_integer),
    (pa.types.is_floating, Form.DOUBLE, _cast_to(pa.float64())),
    (pa.types.is_decimal, lambda of: Form.DOUBLE if of.scale > 0 else Form.BIGINT, _convert_decimal),
    (pa.types.is_string, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_large_string, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_string_view, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_date, Form.DATE, _convert_date),
    (pa.types.is_timestamp, Form.TIMESTAMP, _convert_timestamp),
)
"""Which Arrow types are taken, which form they become, and how; nested ones besides."""
_NESTED: Final[tuple[_IsType, ...]] = (
    pa.types.is_struct,
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_map,
)
_BYTES: Final[tuple[_IsType, ...]] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def _is_any(arrow_type: pa.DataType, kinds: tuple[_IsType, ...]) -> bool:
    return any(is_type(arrow_type) for is_type in kinds)


def _find_untextual(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return a type inside a nested one that has no JSON text; None if there is none."""
    if not _is_any(arrow_type, _NESTED):
        is_known = any(is_type(arrow_type) for is_type, *_ in _CONVERSIONS)
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
    if row < 0:
        return
    value = values[row]
    try:
        shown = str(value)
    except (OverflowError, ValueError):  # no Python date of such a year
        shown = f"{value.value} ({value.type})"
    raise BatchRejected(f"row {row + 1}: column {name!r} has {shown}; {remedy}")


def _between(numbers: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))


def _remedy(arrow_type: pa.DataType) -> str:
    if _is_any(arrow_type, (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)):
        return "send text (UTF-8), or encode the bytes as base64"
    if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type):
        return "send a string, or an integer with the unit in the column's name"
    return "cast the column to a plain type"
