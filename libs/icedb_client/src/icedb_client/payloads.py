"""The first rows of a stored batch as text, for people. Never more of it than is shown."""

import zlib
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.ingest.formats import sniff_compression
from icedb_log.keys import STAGING_FORMATS

from icedb_client.arrow_bodies import first_rows
from icedb_client.batches import zstd

PREVIEW_BYTES: Final = 256 * 1024
MAX_LINE_CHARACTERS: Final = 500


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
    if staging_format in ("parquet", "arrow"):
        try:
            return tuple(_shorten(row) for row in first_rows(body, staging_format, limit=limit))
        except InvalidRequest as error:
            return (f"({len(body)} bytes of {staging_format}: {error})",)
    start = _decompress_start(body)
    text = start.decode(errors="replace")
    lines = text.splitlines()
    if len(start) == PREVIEW_BYTES and len(lines) > 1:
        lines.pop()  # cut off by us
    return tuple(_shorten(line) for line in lines[:limit])


def _decompress_start(body: bytes) -> bytes:
    compression = sniff_compression(body)
    try:
        if compression == "gz":
            return zlib.decompressobj(wbits=31).decompress(body, PREVIEW_BYTES)
        if compression == "zst":
            return zstd.ZstdDecompressor().decompress(body, PREVIEW_BYTES)
    except (zlib.error, zstd.ZstdError) as error:
        return f"({len(body)} bytes that cannot be decompressed: {error})".encode()
    return body[:PREVIEW_BYTES]


def _shorten(line: str) -> str:
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return shown if len(shown) <= MAX_LINE_CHARACTERS else shown[:MAX_LINE_CHARACTERS] + " …"
