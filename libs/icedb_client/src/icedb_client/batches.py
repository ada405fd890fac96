"""Rows and files to the bodies of batches.

Owns how a producer's rows become NDJSON, how files are cut into batches without being held in memory, and which
format a body is in. It checks that each line is a JSON object, because a whole batch goes to quarantine for one
bad line; it does not look at columns and types: the flush does.
"""

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson
from icedb_log.errors import InvalidRequest
from icedb_log.keys import StagingFormat

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB: Final = 1024 * 1024
MAX_BATCH_BYTES: Final = 64 * MIB
"""Largest body of one batch, as given by the producer."""
MAX_LINE_BYTES: Final = 16 * MIB
MAX_ARRAY_BYTES: Final = 256 * MIB
"""A file that is one JSON array is parsed whole; a larger one has to be NDJSON."""
DEFAULT_BATCH_ROWS: Final = 50_000
DEFAULT_BATCH_BYTES: Final = 16 * MIB
COMPRESS_FROM_BYTES: Final = 4096
ZSTD_LEVEL: Final = 3

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BROKEN_FILE: Final = (OSError, EOFError, zstd.ZstdError, zlib.error)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BatchBody:
    """What is staged.

    Attributes:
        body: Bytes in ``format``.
        format: One of the staging formats.
        row_count: Rows; ``None`` when they were not counted (a compressed body that was passed through).
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


def encode_rows(rows: Iterable[Mapping[str, Any]]) -> BatchBody:
    """Return rows as one batch.

    Dates and times become ISO 8601 text; a time without a zone counts as UTC. What JSON cannot hold is refused.

    Raises:
        InvalidRequest: A row is not an object or cannot be JSON (names it, from 1), or the batch is too large.
    """
    lines: list[bytes] = []
    size_bytes = 0
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"row {number} is a {type(row).__name__}; each row is an object of column to value")
        try:
            line = orjson.dumps(dict(row), option=orjson.OPT_NAIVE_UTC | orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise InvalidRequest(f"row {number} cannot be written as JSON: {error}") from error
        size_bytes += len(line) + 1
        if size_bytes > MAX_BATCH_BYTES:
            raise InvalidRequest(
                f"the batch is larger than {MAX_BATCH_BYTES} bytes at row {number}: enqueue it in several batches"
            )
        lines.append(line)
    return _pack(lines, first_row=1, position=0)


def wrap_bytes(body: bytes) -> BatchBody:
    """Return a producer's own NDJSON, plain or compressed with gzip or zstd, as one batch; it is not parsed.

    Raises:
        InvalidRequest: It is empty or too large.
    """
    if not body or len(body) > MAX_BATCH_BYTES:
        raise InvalidRequest(f"a batch has 1 to {MAX_BATCH_BYTES} bytes, this one {len(body)}: cut it into several")
    if body.startswith(_GZIP_MAGIC):
        return BatchBody(body, "ndjson.gz", None, len(body))
    if body.startswith(_ZSTD_MAGIC):
        return BatchBody(body, "ndjson.zst", None, len(body))
    row_count = sum(1 for line in body.split(b"\n") if line.strip())
    return _compress(body, row_count=row_count, first_row=1, position=0)


def split_file(
    source: Path | BinaryIO,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    first_row: int = 1,
) -> Iterator[BatchBody]:
    """Cut NDJSON into batches, reading as it goes. Compression is recognised by content, not by name.

    Args:
        source: A file: NDJSON or one JSON array, plain, gzip or zstd; or a binary stream of the same.
        batch_rows: Most rows of a batch.
        batch_bytes: Most bytes of a batch before compression; one row may be larger.
        first_row: Number of the row to begin with, from 1; rows before it are skipped.

    Raises:
        InvalidRequest: The file cannot be read, or a line is not a JSON object: the message names file and line.
    """
    if batch_rows < 1 or not 1 <= batch_bytes <= MAX_BATCH_BYTES or first_row < 1:
        raise InvalidRequest(
            f"batch rows {batch_rows}, batch bytes {batch_bytes}, first row {first_row}: "
            f"use at least 1, at most {MAX_BATCH_BYTES} bytes"
        )
    name = str(source) if isinstance(source, Path) else "standard input"
    lines: list[bytes] = []
    size_bytes = begun_at = number = position = 0
    try:
        with _open_source(source) as (raw, text):
            for number, line in enumerate(_read_objects(text, name), start=1):
                if number < first_row:
                    continue
                begun_at = begun_at or number
                lines.append(line)
                size_bytes += len(line) + 1
                if len(lines) >= batch_rows or size_bytes >= batch_bytes:
                    yield _pack(lines, first_row=begun_at, position=_tell(raw))
                    lines, size_bytes, begun_at = [], 0, 0
            position = _tell(raw)
    except _BROKEN_FILE as error:
        raise InvalidRequest(f"{name}: cannot be read after row {number}: {_reason(error)}") from error
    if lines:
        yield _pack(lines, first_row=begun_at, position=position)


def _read_objects(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    start = text.peek(64).lstrip()
    if start.startswith(b"["):
        yield from _read_array(text, name)
        return
    line_number = 0
    while line := text.readline(MAX_LINE_BYTES + 1):
        line_number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InvalidRequest(f"{name}: line {line_number} is longer than {MAX_LINE_BYTES} bytes")
        line = (line.removeprefix(_BYTE_ORDER_MARK) if line_number == 1 else line).strip()
        if not line:
            continue
        _check_object(line, f"{name}: line {line_number}")
        yield line


def _read_array(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    body = text.read(MAX_ARRAY_BYTES + 1)
    if len(body) > MAX_ARRAY_BYTES:
        raise InvalidRequest(
            f"{name}: a JSON array of more than {MAX_ARRAY_BYTES} bytes; write one object a line (NDJSON) instead"
        )
    try:
        rows = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{name}: not a JSON array: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InvalidRequest(f"{name}: element {number} of the array is not a JSON object")
        yield orjson.dumps(row)


def _check_object(line: bytes, where: str) -> None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is not a JSON object; each line is one object of column to value")


@contextmanager
def _open_source(source: Path | BinaryIO) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    raw: Any = source.open("rb") if isinstance(source, Path) else source
    try:
        buffered: io.BufferedReader = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw, MIB)
        start = buffered.peek(4)[:4]
        if start.startswith(_GZIP_MAGIC):
            yield buffered, io.BufferedReader(gzip.GzipFile(fileobj=buffered), MIB)
        elif start == _ZSTD_MAGIC:
            yield buffered, io.BufferedReader(zstd.ZstdFile(buffered), MIB)
        else:
            yield buffered, buffered
    finally:
        if isinstance(source, Path):
            raw.close()


def _pack(lines: list[bytes], *, first_row: int, position: int) -> BatchBody:
    body = b"\n".join(lines) + b"\n" if lines else b"\n"
    return _compress(body, row_count=len(lines), first_row=first_row, position=position)


def _compress(body: bytes, *, row_count: int, first_row: int, position: int) -> BatchBody:
    if len(body) < COMPRESS_FROM_BYTES:
        return BatchBody(body, "ndjson", row_count, len(body), first_row, position)
    packed = zstd.compress(body, ZSTD_LEVEL)
    return BatchBody(packed, "ndjson.zst", row_count, len(body), first_row, position)


def _tell(raw: io.BufferedReader) -> int:
    try:
        return raw.tell()
    except OSError:
        return 0  # a pipe


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
