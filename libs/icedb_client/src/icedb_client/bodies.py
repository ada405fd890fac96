"""Rows and bytes to the bodies of batches: NDJSON that is made here, and what producers made themselves.

Owns what a staged body is, how a producer's rows become NDJSON, and how a body's format is told from its first
bytes. It does not look at columns and types: the flush does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson
from icedb_log.content import UndecodableError, decode_start, zstd
from icedb_log.errors import InvalidRequest
from icedb_log.formats import (
    DATA_FORMATS,
    FORMATS,
    Compression,
    DataFormat,
    StagingFormat,
    describe_unread,
    join_format,
    sniff_compression,
    sniff_format,
)
from icedb_log.units import MIB

MAX_BATCH_BYTES: Final = 64 * MIB
"""Largest body of one batch, as given by the producer."""
MAX_LINE_BYTES: Final = 8 * MIB
"""Largest row: the ingest worker's bound, so that such a row is refused here and not in quarantine."""
COMPRESS_FROM_BYTES: Final = 4096
ZSTD_LEVEL: Final = 3
JSON_OPTIONS: Final = (
    orjson.OPT_NAIVE_UTC | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME
)

_PEEK_BYTES: Final = 4096
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class BatchBody:
    """What is staged.

    Attributes:
        body: Bytes in ``format``.
        format: One of the staging formats.
        row_count: Rows; ``None`` when they were not counted (a body that was passed through).
        raw_bytes: Size before compression, as far as it was seen.
        first_row: Number of the first row in the file it comes from, from 1.
        position: Bytes of the file read so far, as stored (compressed), for progress bars.
    """

    body: bytes
    format: StagingFormat
    row_count: int | None
    raw_bytes: int
    first_row: int = 1
    position: int = 0


def _encode_value(value: object) -> object:
    """Return what JSON says of a value that orjson does not know, or not exactly.

    Dates and times are ISO 8601 text; a moment without a zone counts as UTC, and one whose offset has seconds, as local
    times before standard time have, is written in UTC: orjson cuts the seconds. A Decimal is a number with all digits.
    """
    if isinstance(value, datetime):
        offset = value.utcoffset()
        if offset is None:
            return f"{value.isoformat()}+00:00"
        return (value.astimezone(UTC) if offset % _MINUTE else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time) and value.tzinfo is None:
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_snan():
        return orjson.Fragment(str(value.copy_abs() if value.is_qnan() else value))
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def encode_row(row: object, *, number: int) -> bytes:
    """Return a row as a line of NDJSON, with its line feed.

    Raises:
        InvalidRequest: It is not an object, or JSON cannot hold a value of it; named by ``number``.
    """
    if not isinstance(row, Mapping):
        raise InvalidRequest(f"row {number} is a {type(row).__name__}; each row is an object of column to value")
    try:
        line = orjson.dumps(row if type(row) is dict else dict(row), default=_encode_value, option=JSON_OPTIONS)
    except TypeError as error:
        raise InvalidRequest(f"row {number} cannot be written as JSON: {_find_unwritable(row) or error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"row {number} has {len(line)} bytes as JSON, more than {MAX_LINE_BYTES}")
    return line


def _find_unwritable(row: Mapping[Any, Any]) -> str:
    """Return which column of a row has a value that JSON cannot hold, and what to do; nothing if it is a name."""
    for name, value in row.items():
        try:
            orjson.dumps(value, default=_encode_value, option=JSON_OPTIONS)
        except TypeError as error:
            return f"column {str(name)[:80]!r}: {error}; send text, or a number"
    return ""


def encode_rows(rows: Iterable[Mapping[str, Any]]) -> BatchBody:
    """Return rows as one batch of NDJSON.

    Raises:
        InvalidRequest: A row is not an object or cannot be JSON (names it, from 1), or the batch is too large.
    """
    lines: list[bytes] = []
    size_bytes = 0
    for number, row in enumerate(rows, start=1):
        line = encode_row(row, number=number)
        size_bytes += len(line)
        if size_bytes > MAX_BATCH_BYTES:
            raise InvalidRequest(
                f"the batch is larger than {MAX_BATCH_BYTES} bytes at row {number}: enqueue it in several batches"
            )
        lines.append(line)
    return compress_body(b"".join(lines) or b"\n", "ndjson", row_count=len(lines))


def compress_body(
    body: bytes, data_format: DataFormat, *, row_count: int, first_row: int = 1, position: int = 0
) -> BatchBody:
    """Return text as a body: zstd unless it is small. Equal text gives equal bytes, so a retry stages the same."""
    if len(body) < COMPRESS_FROM_BYTES:
        return BatchBody(body, join_format(data_format, ""), row_count, len(body), first_row, position)
    packed = zstd.compress(body, ZSTD_LEVEL)
    return BatchBody(packed, join_format(data_format, "zst"), row_count, len(body), first_row, position)


def wrap_bytes(body: bytes, data_format: DataFormat | None = None) -> BatchBody:
    """Return a producer's own bytes as one batch; they are not parsed.

    Args:
        body: NDJSON, a JSON array or CSV, plain, gzip or zstd; a Parquet file; an Arrow IPC stream or file.
        data_format: What it is; by default what its first bytes say (CSV has to be said).

    Raises:
        InvalidRequest: It is empty or too large, or not what ``data_format`` says.
    """
    if not body or len(body) > MAX_BATCH_BYTES:
        raise InvalidRequest(f"a batch has 1 to {MAX_BATCH_BYTES} bytes, this one {len(body)}: cut it into several")
    check_data_format(data_format)
    compression = sniff_compression(body)
    start = body[:_PEEK_BYTES] if not compression else _peek(body, compression)
    if unread := describe_unread(start):
        raise InvalidRequest(f"the batch {unread}")
    found = sniff_format(start)
    said = data_format or found
    if not FORMATS[said].is_text:
        if compression or found != said:
            raise InvalidRequest(
                f"the batch is said to be {said}, but its first bytes are "
                f"{body[:8]!r}; give one whole {said} file, not compressed"
            )
        return BatchBody(body, join_format(said, ""), None, len(body))
    if compression:
        return BatchBody(body, join_format(said, compression), None, len(body))
    if not FORMATS[said].has_lines:
        packed = compress_body(body, said, row_count=0)
        return BatchBody(packed.body, packed.format, None, len(body))
    row_count = sum(1 for line in body.split(b"\n") if line.strip())
    return compress_body(body, said, row_count=row_count)


def check_data_format(data_format: str | None) -> None:
    """Raise InvalidRequest unless it is a known format, or ``None``."""
    if data_format is not None and data_format not in DATA_FORMATS:
        raise InvalidRequest(f"format {data_format[:40]!r} is unknown; use one of {', '.join(DATA_FORMATS)}")


def _peek(body: bytes, compression: Compression) -> bytes:
    try:
        return decode_start(body, compression, _PEEK_BYTES)
    except UndecodableError:
        return b""  # what is wrong with it is for the flush to say
