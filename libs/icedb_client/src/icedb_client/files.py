"""Files of any size, and what callers hand over as one batch, to bodies; the first rows of a stored body as text."""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from icedb_log.content import UndecodableError, decode_start, zstd
from icedb_log.csv_text import cut_records, read_lines
from icedb_log.errors import InvalidRequest
from icedb_log.formats import (
    BYTE_ORDER_MARK,
    FORMATS,
    STAGING_FORMATS,
    DataFormat,
    describe_unread,
    find_format,
    join_format,
    sniff_compression,
    sniff_format,
)
from icedb_log.units import MIB

from icedb_client.arrow_bodies import (
    count_rows,
    encode_arrow,
    first_rows,
    is_arrow_data,
    split_binary,
)
from icedb_client.bodies import (
    MAX_BATCH_BYTES,
    MAX_LINE_BYTES,
    BatchBody,
    check_data_format,
    compress_body,
    encode_rows,
    wrap_bytes,
)

DEFAULT_BATCH_ROWS: Final = 50_000
DEFAULT_BATCH_BYTES: Final = 16 * MIB
SUFFIXES: Final = {suffix: record.name for record in FORMATS.values() for suffix in record.suffixes}
COMPRESSION_SUFFIXES: Final = (".gz", ".zst")
STDIN_NAME: Final = "standard input"

_BROKEN_FILE: Final = (OSError, EOFError, zstd.ZstdError, zlib.error)
_PEEK_BYTES: Final = 64
MAX_ARRAY_BYTES: Final = 256 * MIB
"""A file that is one JSON array is parsed whole; a larger one has to be NDJSON."""
_JSON_SPACE: Final = " \t\r\n"
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
NO_BOUND: Final = 1 << 62
PREVIEW_BYTES: Final = 256 * 1024
MAX_LINE_CHARACTERS: Final = 500


def format_of_name(name: str) -> DataFormat | None:
    """Return the format that a file's name shows, e.g. ``csv`` for ``a.csv.gz``; ``None`` if it shows none."""
    path = Path(name.lower())
    if path.suffix in COMPRESSION_SUFFIXES:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix)


def may_hold_rows(name: str) -> bool:
    """Return whether a file's name is one of data that can be read; what ends in ``.gz`` or ``.zst`` may be."""
    return format_of_name(name) is not None or name.lower().endswith(COMPRESSION_SUFFIXES)


def hash_file(source: Path | BinaryIO) -> str:
    """Return the SHA-256, in hex, of a file's bytes. Raises InvalidRequest: it is a stream, or cannot be read."""
    if not isinstance(source, Path):
        raise InvalidRequest(
            "--once is for files, once=True too: what comes from a stream is known only when it has been sent"
        )
    try:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest(f"{source}: cannot be read: {_reason(error)}") from error


def split_file(
    source: Path | BinaryIO,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    first_row: int = 1,
    data_format: DataFormat | None = None,
) -> Iterator[BatchBody]:
    """Cut a file into batches, reading as it goes. Compression is recognised by content, not by name.

    Args:
        source: A file: NDJSON, one JSON array or CSV (plain, gzip or zstd), Parquet, Arrow IPC; or a binary stream.
        batch_rows: Most rows of a batch.
        batch_bytes: Most bytes of a batch before compression; one row may be larger. A Parquet or Arrow file that is
            not larger is one batch, as it is, whatever its rows.
        first_row: Number of the row to begin with, from 1; rows before it are skipped.
        data_format: What it is; by default what its content shows, and, for text, its name.

    Raises:
        InvalidRequest: The file cannot be read, or a line is not a row: the message names file and line.
    """
    if batch_rows < 1 or not 1 <= batch_bytes <= MAX_BATCH_BYTES or first_row < 1:
        raise InvalidRequest(
            f"batch rows {batch_rows}, batch bytes {batch_bytes}, first row {first_row}: "
            f"use at least 1, at most {MAX_BATCH_BYTES} bytes"
        )
    check_data_format(data_format)
    name = str(source) if isinstance(source, Path) else STDIN_NAME
    bounds = _Bounds(batch_rows, batch_bytes, first_row)
    try:
        with _open_source(source) as (raw, text):
            start = text.peek(_PEEK_BYTES)
            if not start:
                return
            if unread := describe_unread(start):
                raise InvalidRequest(f"{name}: {unread}")
            found = _choose_format(name, start, data_format)
            if not FORMATS[found].is_text:
                if raw is not text:
                    raise InvalidRequest(f"{name}: a compressed {found} file; decompress it first")
                yield from _split_binary(raw, name, found, bounds)
            else:
                yield from _split_text(raw, text, name, found, bounds)
    except _BROKEN_FILE as error:
        raise InvalidRequest(f"{name}: cannot be read after row {bounds.row_number}: {_reason(error)}") from error


class _Bounds:
    """The bounds of batches, and how far the file has been read."""

    def __init__(self, batch_rows: int, batch_bytes: int, first_row: int) -> None:
        self.batch_rows = batch_rows
        self.batch_bytes = batch_bytes
        self.first_row = first_row
        self.row_number = 0


def _choose_format(name: str, start: bytes, wanted: DataFormat | None) -> DataFormat:
    """Return what a file is: what it was said to be, what its content shows, what its name says."""
    shown = sniff_format(start)
    if wanted is not None:
        if wanted == "csv":
            return wanted
        # Both kinds of JSON are told apart by content: a `.json` file is often NDJSON.
        if shown != wanted and not {shown, wanted} <= {"ndjson", "json"}:
            raise InvalidRequest(f"{name}: not {wanted}: its first bytes are {start[:8]!r}")
        return shown
    if not FORMATS[shown].is_text:
        return shown
    named = format_of_name(name)
    if named is not None and not FORMATS[named].is_text:
        raise InvalidRequest(f"{name}: not {named}, as its name says: its first bytes are {start[:8]!r}")
    if named == "csv" and start.startswith(b'{"'):
        raise InvalidRequest(f"{name}: named as CSV, and begins as JSON: say which it is, --input-format ndjson or csv")
    return "csv" if named == "csv" else shown


def _split_text(
    raw: io.BufferedReader, text: io.BufferedReader, name: str, found: DataFormat, bounds: _Bounds
) -> Iterator[BatchBody]:
    if found == "csv":
        records = read_csv(text, name)
        yield from _pack_rows(raw, records, bounds, header=next(records, b""), data_format="csv")
        return
    rows = read_json_array(text, name) if found == "json" else read_ndjson(text, name)
    yield from _pack_rows(raw, (row + b"\n" for row in rows), bounds, header=b"", data_format="ndjson")


def _pack_rows(
    raw: io.BufferedReader,
    rows: Iterable[bytes],
    bounds: _Bounds,
    *,
    header: bytes,
    data_format: DataFormat,
) -> Iterator[BatchBody]:
    taken: list[bytes] = []
    taken_bytes = begun_at = 0

    def pack() -> BatchBody:
        body = header + b"".join(taken)
        return compress_body(body, data_format, row_count=len(taken), first_row=begun_at, position=_tell(raw))

    for number, row in enumerate(rows, start=1):
        bounds.row_number = number
        if number < bounds.first_row:
            continue
        begun_at = begun_at or number
        taken.append(row)
        taken_bytes += len(row)
        if len(taken) >= bounds.batch_rows or taken_bytes >= bounds.batch_bytes:
            yield pack()
            taken, taken_bytes, begun_at = [], 0, 0
    if taken:
        yield pack()


def _split_binary(raw: io.BufferedReader, name: str, found: DataFormat, bounds: _Bounds) -> Iterator[BatchBody]:
    is_stream = found == "arrow" and not raw.peek(1).startswith(b"A")
    size_bytes = _size_of(raw)
    if size_bytes is None and not is_stream:
        # All kinds of file have their directory at the end.
        body = raw.read(MAX_BATCH_BYTES + 1)
        if len(body) > MAX_BATCH_BYTES:
            raise InvalidRequest(f"{name}: a {found} file of more than {MAX_BATCH_BYTES} bytes cannot come from a pipe")
        raw, size_bytes = io.BufferedReader(io.BytesIO(body)), len(body)
    if size_bytes is not None and size_bytes <= bounds.batch_bytes and bounds.first_row == 1:
        body = raw.read()
        row_count = count_rows(body, found, name=name)
        yield BatchBody(body, join_format(found, ""), row_count, len(body), position=len(body))
        return
    yield from split_binary(
        raw,
        found,
        name=name,
        size_bytes=size_bytes or 0,
        batch_rows=bounds.batch_rows,
        batch_bytes=bounds.batch_bytes,
        first_row=bounds.first_row,
    )


@contextmanager
def _open_source(source: Path | BinaryIO) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    raw: Any = source.open("rb") if isinstance(source, Path) else source
    try:
        buffered: io.BufferedReader = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw, MIB)
        compression = sniff_compression(buffered.peek(_PEEK_BYTES))
        if compression == "gz":
            yield buffered, io.BufferedReader(gzip.GzipFile(fileobj=buffered), MIB)
        elif compression == "zst":
            yield buffered, io.BufferedReader(zstd.ZstdFile(buffered), MIB)
        else:
            yield buffered, buffered
    finally:
        if isinstance(source, Path):
            raw.close()


def _size_of(raw: io.BufferedReader) -> int | None:
    """Return the size of a file that can be read from any place; ``None`` for a pipe."""
    if not raw.seekable():
        return None
    at = raw.tell()
    size_bytes = raw.seek(0, io.SEEK_END) - at
    raw.seek(at)
    return size_bytes


def _tell(raw: io.BufferedReader) -> int:
    try:
        return raw.tell()
    except OSError:
        return 0  # a pipe


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def read_ndjson(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield each line that is not blank, without its end.

    Raises:
        InvalidRequest: A line is too long, or the first one shows that this is no NDJSON; names file and line.
    """
    line_number = 0
    is_first = True
    while line := text.readline(MAX_LINE_BYTES + 1):
        line_number += 1
        _check_length(line, f"{name}: line {line_number}")
        line = (line.removeprefix(BYTE_ORDER_MARK) if line_number == 1 else line).strip()
        if not line:
            continue
        if is_first:
            _check_first(line, f"{name}: line {line_number}")
            is_first = False
        yield line


def read_json_array(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield each element of one JSON array, as it was written, on one line.

    Raises:
        InvalidRequest: Too large, or not one array; names file and element.
    """
    body = text.read(MAX_ARRAY_BYTES + 1)
    if len(body) > MAX_ARRAY_BYTES:
        raise InvalidRequest(
            f"{name}: a JSON array of more than {MAX_ARRAY_BYTES} bytes; write one object a line (NDJSON) instead"
        )
    number = 0
    try:
        array = body.removeprefix(BYTE_ORDER_MARK).decode()
        at = _skip_space(array, 0)
        if array[at : at + 1] != "[":
            raise InvalidRequest(f"{name}: not a JSON array; it begins with {array[at : at + 20]!r}")
        decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
        at = _skip_space(array, at + 1)
        while array[at : at + 1] != "]" or number:
            number += 1
            _, end = decode(array, at)
            # Line feeds stand only between the parts of an element: inside a text they are escaped.
            line = array[at:end].encode().translate(_LINE_ENDS)
            _check_length(line, f"{name}: element {number} of the array")
            yield line
            at = _skip_space(array, end)
            if array[at : at + 1] != ",":
                break
            at = _skip_space(array, at + 1)
        if array[at : at + 1] != "]" or _skip_space(array, at + 1) != len(array):
            raise InvalidRequest(f"{name}: not a JSON array: after element {number} comes {array[at : at + 20]!r}")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{name}: not a JSON array: {reason} (element {number})") from error


def read_csv(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield each record with a line feed at its end, the header first.

    The last one may have a quote that is never closed: the flush sets it aside.

    Raises:
        InvalidRequest: A record is too long; names file and line.
    """
    lines = read_lines(text, max_bytes=MAX_LINE_BYTES + 1)
    is_first = True
    for record in cut_records(lines, max_bytes=MAX_LINE_BYTES):
        found = record.text.removeprefix(BYTE_ORDER_MARK) if is_first else record.text
        _check_length(found, f"{name}: the record of line {record.line_number}")
        is_first = False
        yield found if found.endswith(b"\n") else found.removesuffix(b"\r") + b"\n"


def _check_length(line: bytes, where: str) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"{where} is longer than {MAX_LINE_BYTES} bytes")


def _check_first(line: bytes, where: str) -> None:
    if not line.startswith(b"{"):
        raise InvalidRequest(
            f"{where} is not JSON, or no object: it begins with {line[:20]!r}; each line of NDJSON is one object of "
            "column to value. If this is no JSON at all, say what it is (--input-format, data_format)"
        )
    if line == b"{":
        raise InvalidRequest(
            f"{where} is not JSON: an object over several lines; write one object a line, or an array: `jq -c .` makes "
            "a line of each object, `jq -c '.events[]'` of each one in a list called events"
        )
    if line.endswith(b"},"):
        raise InvalidRequest(
            f"{where} is not JSON: it ends with a comma; write one object a line without commas between, or an array"
        )


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _JSON_SPACE:
        at += 1
    return at


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def to_body(rows: Any, data_format: DataFormat | None) -> BatchBody:
    """Return the body of one batch; ``rows`` as :meth:`icedb_client.Client.enqueue` takes them.

    Raises:
        InvalidRequest: It is nothing that can be a batch, or too large for one.
    """
    if isinstance(rows, bytes | bytearray | memoryview):
        return wrap_bytes(bytes(rows), data_format)
    if isinstance(rows, Path):
        bodies = tuple(
            islice(split_file(rows, batch_rows=NO_BOUND, batch_bytes=MAX_BATCH_BYTES, data_format=data_format), 2)
        )
        if len(bodies) != 1:
            what = "is empty" if not bodies else f"is larger than {MAX_BATCH_BYTES} bytes: use enqueue_file"
            raise InvalidRequest(f"{rows}: {what}")
        return bodies[0]
    if data_format is not None:
        raise InvalidRequest(f"data_format {data_format!r} is for bytes and files, not for a {type(rows).__name__}")
    if is_arrow_data(rows):
        return encode_arrow(rows)
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise InvalidRequest(
            f"rows are an iterable of objects, Arrow data, a DataFrame, bytes or a Path, not a {type(rows).__name__}; "
            "see Client.enqueue"
        )
    return encode_rows(rows)


def format_of_key(key: str) -> str:
    """Return the staging format that a payload's key ends with; ``ndjson`` if it ends with none."""
    found = (name for name in sorted(STAGING_FORMATS, key=len, reverse=True) if key.endswith(f".{name}"))
    return next(found, "ndjson")


def preview_lines(body: bytes, staging_format: str, *, limit: int) -> tuple[str, ...]:
    """Return the first lines of a text body, or the first rows of a Parquet or Arrow one.

    What cannot be read is no error: that may be why the batch is where it is. A line then says so.

    Args:
        body: The payload.
        staging_format: One of the staging formats.
        limit: Most lines.
    """
    if not find_format(staging_format).is_text:
        try:
            return tuple(_shorten(row) for row in first_rows(body, staging_format, limit=limit))
        except InvalidRequest as error:
            return (f"({len(body)} bytes of {staging_format}: {error})",)
    try:
        start = decode_start(body, sniff_compression(body), PREVIEW_BYTES)
    except UndecodableError as error:
        start = f"({len(body)} bytes that cannot be decompressed: {error})".encode()
    text = start.decode(errors="replace")
    lines = text.splitlines()
    if len(start) == PREVIEW_BYTES and len(lines) > 1:
        lines.pop()  # cut off by us
    return tuple(_shorten(line) for line in lines[:limit])


def _shorten(line: str) -> str:
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return shown if len(shown) <= MAX_LINE_CHARACTERS else shown[:MAX_LINE_CHARACTERS] + " …"
