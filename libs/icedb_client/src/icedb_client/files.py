"""Files to the bodies of batches, without holding more than a batch of them.

Owns how a file's format is told (content before name) and how it is cut. A batch is a whole number of rows, and
CSV batches have the header of their file.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from icedb_log.errors import InvalidRequest
from icedb_log.ingest.formats import GZIP_MAGIC, ZSTD_MAGIC, DataFormat, sniff_format
from icedb_log.units import MIB

from icedb_client.arrow_bodies import count_rows, split_arrow_file, split_parquet
from icedb_client.batches import MAX_BATCH_BYTES, BatchBody, check_data_format, compress_body, zstd
from icedb_client.text_files import CsvRecords, read_json_array, read_ndjson

DEFAULT_BATCH_ROWS: Final = 50_000
DEFAULT_BATCH_BYTES: Final = 16 * MIB
SUFFIXES: Final[dict[str, DataFormat]] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
COMPRESSION_SUFFIXES: Final = (".gz", ".zst")
STDIN_NAME: Final = "standard input"

_BROKEN_FILE: Final = (OSError, EOFError, zstd.ZstdError, zlib.error)
_PEEK_BYTES: Final = 64


def format_of_name(name: str) -> DataFormat | None:
    """Return the format that a file's name shows, e.g. ``csv`` for ``a.csv.gz``; ``None`` if it shows none."""
    path = Path(name.lower())
    if path.suffix in COMPRESSION_SUFFIXES:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix)


def may_hold_rows(name: str) -> bool:
    """Return whether a file's name is one of data that can be read; what ends in ``.gz`` or ``.zst`` may be."""
    return format_of_name(name) is not None or name.lower().endswith(COMPRESSION_SUFFIXES)


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
            found = _choose_format(name, start, data_format)
            if found in ("parquet", "arrow"):
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
    if shown in ("parquet", "arrow"):
        return shown
    named = format_of_name(name)
    if named in ("parquet", "arrow"):
        raise InvalidRequest(f"{name}: not {named}, as its name says: its first bytes are {start[:8]!r}")
    return "csv" if named == "csv" else shown


def _split_text(
    raw: io.BufferedReader, text: io.BufferedReader, name: str, found: DataFormat, bounds: _Bounds
) -> Iterator[BatchBody]:
    if found == "csv":
        records = CsvRecords(text, name)
        yield from _pack_rows(raw, records, bounds, header=records.header, data_format="csv")
        return
    rows = read_json_array(text, name) if found == "json" else read_ndjson(text, name)
    yield from _pack_rows(raw, (row + b"\n" for row in rows), bounds, header=b"", data_format="ndjson")


def _pack_rows(
    raw: io.BufferedReader,
    rows: Iterable[bytes],
    bounds: _Bounds,
    *,
    header: bytes,
    data_format: Literal["ndjson", "csv"],
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
        # Both kinds of file have their directory at the end.
        body = raw.read(MAX_BATCH_BYTES + 1)
        if len(body) > MAX_BATCH_BYTES:
            raise InvalidRequest(f"{name}: a {found} file of more than {MAX_BATCH_BYTES} bytes cannot come from a pipe")
        raw, size_bytes = io.BufferedReader(io.BytesIO(body)), len(body)
    if size_bytes is not None and size_bytes <= bounds.batch_bytes and bounds.first_row == 1:
        body = raw.read()
        row_count = count_rows(body, found, name=name)
        yield BatchBody(body, "parquet" if found == "parquet" else "arrow", row_count, len(body), position=len(body))
        return
    limits = {"batch_rows": bounds.batch_rows, "batch_bytes": bounds.batch_bytes, "first_row": bounds.first_row}
    if found == "parquet":
        yield from split_parquet(raw, name=name, size_bytes=size_bytes or 0, **limits)
    else:
        yield from split_arrow_file(raw, name=name, is_stream=is_stream, **limits)


@contextmanager
def _open_source(source: Path | BinaryIO) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    raw: Any = source.open("rb") if isinstance(source, Path) else source
    try:
        buffered: io.BufferedReader = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw, MIB)
        start = buffered.peek(4)[:4]
        if start.startswith(GZIP_MAGIC):
            yield buffered, io.BufferedReader(gzip.GzipFile(fileobj=buffered), MIB)
        elif start == ZSTD_MAGIC:
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
