"""Batches that come as columns: CSV, Parquet, Arrow. Nothing is lost, or the batch is rejected, row and column named.

What a cell of a CSV file means is decided later, with its whole column. Sizes are added up before anything is
decompressed: a few hundred bytes of a Parquet page or of an Arrow message can become gigabytes. Digits of a timestamp
beyond microseconds are cut, as in JSON. Structs, maps and lists become compact JSON text.
"""

import csv
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from icedb_log.csv_text import CsvRecord, cut_records
from icedb_log.parquet.pages import read_chunks, read_pages
from icedb_log.parquet.schema import DamagedFile
from icedb_log.parquet.thrift import ThriftError
from icedb_log.table.decimals import MAX_DIGITS
from icedb_log.table.time_columns import MAX_TIME_MS, MIN_TIME_MS
from icedb_log.texts import first_line
from icedb_log.units import MIB

from icedb_engine.arrow_types import name_arrow_type
from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import (
    BOM,
    BadLines,
    Batch,
    Fault,
    check_row_count,
    check_utf8,
    count_up,
    encode_cells,
)
from icedb_engine.reading.nested_json import write_json
from icedb_engine.reading.types import Form

_SHOWN_CHARS: Final = 80
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_LAST_CELL: Final = "\x1e"
_FIRST_ROW: Final = 2
"""Number of the first row after the header, as in a spreadsheet."""


@dataclass(frozen=True, slots=True)
class _OddRow:
    """A row of a CSV batch that is not what the header says.

    Attributes:
        text: As it was written.
        fault: What is wrong with it, in words that rows of the same fault share.
        own: The same about this one.
        remedy: What to do.
    """

    text: bytes
    fault: str
    own: str
    remedy: str

    def as_bad(self, number: int) -> tuple[bytes, Fault]:
        """Return the row as :class:`BadLines` has it."""
        shown = self.text[:_SHOWN_CHARS].decode(errors="replace")
        return self.text, Fault(f"{self.fault}: {self.remedy}", f"row {number} {self.own}: {shown}: {self.remedy}")


def read_csv_cells(decoded: bytes, limits: FlushUnitLimits) -> Batch:
    """Split a CSV batch into cells; an empty cell is null.

    Set aside are rows with more or fewer cells than the header, rows that are too long, and the last one if a quote of
    it stays open: what becomes of a row depends neither on other rows nor on where a file was cut into batches.

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
    header = next(cut_records((line[0] for line in _LINE.finditer(decoded)), max_bytes=limits.line_bytes))
    names = _read_header(header, limits)
    rows = memoryview(decoded)[decoded.index(header.text) + len(header.text) :]
    apart: dict[int, _OddRow] = {}
    places = None
    found = _parse_cells(rows, len(names), limits)
    if found is None or _may_be_long(*found, limits):
        whole, places, apart = _take_apart(bytes(rows), limits)
        found = _parse_cells(whole, len(names), limits)
    if found is None:
        raise BatchRejected("not CSV: quote cells with commas, line breaks or double quotes, and double the latter")
    table, odd = found
    numbers = np.setdiff1d(np.arange(table.num_rows + len(odd), dtype=np.int32), np.array([*odd], np.int32))
    if places is not None:
        numbers, odd = places[numbers], {int(places[place]): row for place, row in odd.items()}
    bad = {place + _FIRST_ROW: row.as_bad(place + _FIRST_ROW) for place, row in (odd | apart).items()}
    forms, (line,) = dict.fromkeys(names, Form.CELL), encode_cells([names])
    bad_lines = BadLines(bad, line + b"\n")
    return Batch(table.rename_columns(names), pa.array(numbers + _FIRST_ROW), len(decoded), forms, bad_lines)


def _parse_cells(
    rows: bytes | memoryview, width: int, limits: FlushUnitLimits
) -> tuple[pa.Table, dict[int, _OddRow]] | None:
    """Return the rows with as many cells as the header, and the others by their place; None if some row has no end.

    Arrow takes a quote that stays open for one that ends with the text. So a row is put after the last one: where it is
    not read as it is, something before it is open, or longer than what Arrow looks at together.
    """
    columns = [f"c{place}" for place in range(width)]
    odd: dict[int, _OddRow] = {}

    def on_odd_row(row: Any) -> str:
        odd[row.number - 1] = _OddRow(
            (row.text or "").encode(),
            "a row has more or fewer cells than the header",
            f"has {row.actual_columns} cells, the header has {row.expected_columns}",
            "quote cells with commas or line breaks",
        )
        return "skip"

    text = b"".join((rows, b"\n", ",".join([_LAST_CELL] * width).encode()))
    try:
        table = pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                use_threads=False, column_names=columns, block_size=min(len(text) + 1, 2 * limits.line_bytes)
            ),
            parse_options=pcsv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_odd_row),
            convert_options=pcsv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None
    row_count = table.num_rows - 1
    if row_count < 0 or any(column[row_count].as_py() != _LAST_CELL for column in table.columns):
        return None
    return table.slice(0, row_count), odd


def _may_be_long(table: pa.Table, odd: Mapping[int, _OddRow], limits: FlushUnitLimits) -> bool:
    """Return whether a row may have been longer than the limit: each of its characters may have been a double quote."""
    if any(len(row.text) > limits.line_bytes for row in odd.values()):
        return True
    if sum(column.nbytes for column in table.columns) * 2 <= limits.line_bytes:
        return False
    sizes = np.full(table.num_rows, len(table.columns) * len(b'"",'), np.int64)
    for column in table.columns:
        sizes += 2 * pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return bool((sizes > limits.line_bytes).any())


def _take_apart(rows: bytes, limits: FlushUnitLimits) -> tuple[bytes, np.ndarray, dict[int, _OddRow]]:
    """Return the rows that have an end, their places, and the others by place."""
    kept: list[bytes] = []
    places: list[int] = []
    odd: dict[int, _OddRow] = {}
    for place, record in enumerate(cut_records(rows.splitlines(keepends=True), max_bytes=len(rows))):
        text = record.text.rstrip(b"\r\n")
        if not record.is_closed:
            odd[place] = _OddRow(
                text,
                "a double quote is not closed",
                "has a double quote that is not closed",
                "quote cells with double quotes, and double them there",
            )
        elif len(text) > limits.line_bytes:
            fault = f"a row is longer than {limits.line_bytes} bytes"
            odd[place] = _OddRow(text, fault, f"has {len(text)} bytes", f"send at most {limits.line_bytes}")
        else:
            kept.append(record.text)
            places.append(place)
    return b"".join(kept), np.array(places, np.int32), odd


def _read_header(header: CsvRecord, limits: FlushUnitLimits) -> list[str]:
    try:
        (names,) = csv.reader([header.text.decode()], strict=True)
    except (csv.Error, ValueError) as error:
        raise BatchRejected(
            f"the header is not CSV ({error}): send the names of the columns in the first line"
        ) from error
    if len(names) == 1 and (separator := next((each for each in _SEPARATORS if each in names[0]), None)):
        raise BatchRejected(
            f"the header is one column {names[0][:_SHOWN_CHARS]!r}: its cells are separated by "
            f"{_SEPARATORS[separator]}; separate them by commas"
        )
    if "" in names:
        raise BatchRejected(
            f"column {names.index('') + 1} of the header has no name: name it, or leave it out (pandas writes its "
            "index so: `to_csv(index=False)`)"
        )
    if len(names) > limits.batch_columns:
        raise BatchRejected(f"{len(names)} columns; the limit is {limits.batch_columns}: send fewer columns")
    twice = _find_twice(names)
    if twice is not None:
        raise BatchRejected(f"column {twice!r} stands twice in the header; which one counts is not defined")
    return names


def _find_twice(names: list[str]) -> str | None:
    return next((name[:_SHOWN_CHARS] for name in names if names.count(name) > 1), None)


_IPC_MAGIC: Final = b"ARROW1\x00\x00"
_IPC_END: Final = b"ARROW1"
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_LENGTH_BYTES: Final = 4
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK: Final = "<qi4xq"
_BLOCK_BYTES: Final = struct.calcsize(_BLOCK)
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
    """Read one Arrow IPC stream or file.

    Raises:
        BatchRejected: Damaged, cut off, above a bound, or with columns that have no SQL type here.
    """
    data = pa.py_buffer(body)
    try:
        if body.startswith(_IPC_MAGIC):
            _check_sizes(_find_file_messages(body), limits)
            with pa.ipc.open_file(data) as file:
                batches = map(file.get_batch, range(file.num_record_batches))
                return _convert_rows(batches, file.schema, limits)
        _check_sizes(_find_stream_messages(data), limits)
        with pa.ipc.open_stream(data) as reader:
            return _convert_rows(reader, reader.schema, limits)
    except (*_DAMAGED, struct.error) as error:
        raise BatchRejected(f"not a whole Arrow stream or file ({first_line(error)}); send the batch again") from error


def _convert_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limits: FlushUnitLimits) -> Batch:
    _check_columns(schema, limits)
    return _convert_table(_collect(batches, schema, limits), limits)


def _find_stream_messages(data: pa.Buffer) -> Iterator[tuple[bytes, memoryview]]:
    for message in pa.ipc.MessageReader.open_stream(data):
        yield message.metadata.to_pybytes(), memoryview(message.body)


def _find_file_messages(body: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield metadata and body of the messages that the footer of a file names; other bytes are not read."""
    length_at = len(body) - len(_IPC_END) - _LENGTH_BYTES
    (length,) = struct.unpack_from("<i", body, length_at)
    if not body.endswith(_IPC_END) or not 0 < length <= length_at:
        raise ValueError("it does not end with its footer")
    footer = body[length_at - length : length_at]
    root = _follow(footer, 0)
    for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        place = _find_field(footer, root, field)
        if not place:
            continue
        blocks = _follow(footer, place)
        (count,) = struct.unpack_from("<I", footer, blocks)
        for offset, metadata_bytes, body_bytes in struct.iter_unpack(
            _BLOCK, footer[blocks + 4 : blocks + 4 + count * _BLOCK_BYTES]
        ):
            if min(offset, metadata_bytes, body_bytes) < 0 or offset + metadata_bytes + body_bytes > length_at:
                raise ValueError("its footer names bytes that it does not have")
            start = offset + metadata_bytes
            # Before the metadata stands their length, behind a mark that old writers leave out.
            prefix_bytes = 2 * _LENGTH_BYTES if body.startswith(_CONTINUATION, offset) else _LENGTH_BYTES
            yield body[offset + prefix_bytes : start], memoryview(body)[start : start + body_bytes]


def _check_sizes(messages: Iterable[tuple[bytes, memoryview]], limits: FlushUnitLimits) -> None:
    """Add up what messages become in memory."""
    total = 0
    for metadata, body in messages:
        try:
            total += _count_decoded_bytes(metadata, body)
        except (struct.error, IndexError) as error:
            raise BatchRejected(
                "not an Arrow stream or file: the metadata of a message is damaged; send the batch again"
            ) from error
        if total > limits.batch_decoded_bytes:
            raise BatchTooLarge(
                f"the Arrow data have more than {limits.batch_decoded_bytes} bytes without compression; "
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
_LONG_ROWS: Final = (16, 8192)
_LONG_BYTES: Final = 256 * MIB
"""Text is at most as long as its page, also where each value repeats the one before: rows with one stay below this."""


def read_parquet(body: bytes, limits: FlushUnitLimits) -> Batch:
    """Read one Parquet file.

    Raises:
        BatchRejected: Damaged, encrypted, above a bound, or with columns that have no SQL type here.
    """
    if body.endswith(_ENCRYPTED_MAGIC):
        raise BatchRejected(_ENCRYPTED)
    try:
        schema, longest_bytes = _check_parquet(body, limits)
        texts = [field.name for field in schema if _is_any(field.type, _BYTES)]
        try:
            # Text as dictionaries is measured before it is spread out, but delta encodings cannot be read so. What
            # Arrow says then, it says of damaged bytes, too: those it refuses twice.
            rows = _collect(_read_row_groups(body, texts, longest_bytes), schema, limits)
        except (pa.ArrowException, OSError):
            rows = _collect(_read_row_groups(body, None, longest_bytes), schema, limits)
        return _convert_table(rows, limits)
    except _DAMAGED as error:
        raise BatchRejected(f"not a readable Parquet file ({first_line(error)}); write the file again") from error


def _check_parquet(body: bytes, limits: FlushUnitLimits) -> tuple[pa.Schema, int]:
    """Return the columns of a file, and how long a value in it may be. Raises BatchRejected: it is above a bound."""
    metadata: Any = pq.read_metadata(pa.BufferReader(body))
    schema = metadata.schema.to_arrow_schema()
    _check_columns(schema, limits)
    decoded_bytes = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    least_bytes = metadata.num_rows * len(schema) // 8
    if max(decoded_bytes, least_bytes) > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"the Parquet file has {metadata.num_rows} rows and {decoded_bytes} bytes without compression; "
            f"the limit is {limits.batch_decoded_bytes} bytes: send smaller batches"
        )
    check_row_count(metadata.num_rows, limits)
    return schema, _check_pages(body, limit_bytes=limits.batch_decoded_bytes)


def _check_pages(body: bytes, *, limit_bytes: int) -> int:
    """Return the size of the largest page of a Parquet file if all are no larger than this, as each page says itself.

    A footer says how large its row groups are, and nobody has to believe it: a file of twenty kilobytes whose footer
    says little can hold pages of two gigabytes, one for each column. What a reader allocates is what stands before each
    page, so that is what is added up.

    Raises:
        BatchRejected: They are larger, or too many, or encrypted.
        ThriftError: The file is damaged.
    """
    total_bytes = page_count = largest_bytes = 0
    for chunk in read_chunks(body):
        if chunk.is_encrypted:
            raise BatchRejected(_ENCRYPTED)
        for page in read_pages(body, chunk):
            total_bytes += page.size_bytes
            largest_bytes = max(largest_bytes, page.size_bytes)
            page_count += 1
            if total_bytes > limit_bytes:
                raise BatchTooLarge(
                    f"the Parquet file has more than {limit_bytes} bytes without compression; send smaller batches"
                )
            if page_count > MAX_PAGES:
                raise BatchRejected(
                    f"the Parquet file has more than {MAX_PAGES} pages; let its writer make larger ones"
                )
    return largest_bytes


def _read_row_groups(body: bytes, dictionaries: list[str] | None, longest_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, few at once where the text of a page may come many times: in nested columns always.

    Args:
        body: The file.
        dictionaries: Columns that are read as dictionaries; None: no column is.
        longest_bytes: How long a value may be.
    """
    # INT96 counts nanoseconds of a day beside the days: as nanoseconds in 64 bits what lies outside 1677 to 2262 wraps.
    file = pq.ParquetFile(pa.BufferReader(body), read_dictionary=dictionaries, coerce_int96_timestamp_unit="us")
    row_count = _FLAT_ROWS
    if dictionaries is None or any(pa.types.is_nested(field.type) for field in file.schema_arrow):
        low, high = _LONG_ROWS
        row_count = max(low, min(high, _LONG_BYTES // max(1, longest_bytes)))
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
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
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
    forms: dict[str, str] = {}
    for name in table.column_names:
        arrays[name], forms[name] = _convert(name, table.column(name))
    converted = pa.table(arrays) if arrays else table
    size_bytes = converted.nbytes
    if size_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"{size_bytes} bytes in memory; the limit is {limits.batch_decoded_bytes}: send smaller batches"
        )
    return Batch(converted, count_up(table.num_rows, first=1), size_bytes, forms)


def _convert(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str]:
    arrow_type = values.type
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _convert(name, pa.chunked_array([chunk.storage for chunk in values.chunks], arrow_type.storage_type))
    if pa.types.is_dictionary(arrow_type):
        if pa.types.is_string_view(arrow_type.value_type):  # which Arrow does not spread out
            values = _cast(name, values, pa.dictionary(arrow_type.index_type, pa.large_string()))
        return _convert(name, _cast(name, values, values.type.value_type))
    for is_type, form, convert in _CONVERSIONS:
        if is_type(arrow_type):
            converted = convert(name, values)
            return converted, form or name_arrow_type(converted.type) or ""
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
    scale = min(max(0, values.type.scale), MAX_DIGITS)
    whole = max(0, values.type.precision - values.type.scale)
    return _cast(name, values, pa.decimal128(min(max(1, whole + scale), MAX_DIGITS), scale))


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
    if _has_nul(values.type):  # the engine is told names as C does, which end there
        raise BatchRejected(f"column {name!r} has a field with a NUL in its name; rename it")
    return write_json(name, values)


def _cast_to(to: pa.DataType) -> Callable[[str, pa.ChunkedArray], pa.ChunkedArray]:
    return lambda name, values: _cast(name, values, to)


_IsType = Callable[[pa.DataType], bool]
_CONVERSIONS: Final[tuple[tuple[_IsType, Any, Callable[[str, pa.ChunkedArray], pa.ChunkedArray]], ...]] = (
    (pa.types.is_null, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_boolean, Form.BOOLEAN, _cast_to(pa.bool_())),
    (pa.types.is_integer, Form.BIGINT, _convert_integer),
    (pa.types.is_floating, Form.DOUBLE, _cast_to(pa.float64())),
    (pa.types.is_decimal, None, _convert_decimal),
    (pa.types.is_string, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_large_string, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_string_view, Form.VARCHAR, _cast_to(pa.string())),
    (pa.types.is_date, Form.DATE, _convert_date),
    (pa.types.is_timestamp, Form.TIMESTAMP, _convert_timestamp),
)
"""Which Arrow types are taken, which form they become (of decimals their type), and how; nested ones besides."""
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
    return next((bad for each in _list_inner(arrow_type) if (bad := _find_untextual(each)) is not None), None)


def _has_nul(arrow_type: pa.DataType) -> bool:
    """Return whether a field inside a nested type has a NUL in its name."""
    if not _is_any(arrow_type, _NESTED):
        return False
    fields = range(arrow_type.num_fields if pa.types.is_struct(arrow_type) else 0)
    return any("\0" in arrow_type.field(place).name for place in fields) or any(map(_has_nul, _list_inner(arrow_type)))


def _list_inner(arrow_type: pa.DataType) -> list[pa.DataType]:
    """Return the types of which a nested one is made."""
    if pa.types.is_map(arrow_type):
        return [arrow_type.key_type, arrow_type.item_type]
    if pa.types.is_struct(arrow_type):
        return [arrow_type.field(place).type for place in range(arrow_type.num_fields)]
    return [arrow_type.value_type]


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
