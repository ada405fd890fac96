"""Which staging format a body is in, and the few looks at it that are cheap and save a trip to quarantine.

Pure. Nothing here parses a body: the first bytes decide whether it can be what it says it is.
"""

import zlib
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.formats import (
    BYTE_ORDER_MARK,
    FORMATS,
    Compression,
    DataFormat,
    StagingFormat,
    find_format,
    sniff_compression,
)
from icedb_log.ingest.content import zstd

from icedb_ingest.frontend.errors import BatchTooLarge, UnsupportedMedia

MEDIA_TYPES: Final = {media_type: record.name for record in FORMATS.values() for media_type in record.media_types}
ENCODINGS: Final[dict[str, Compression]] = {"": "", "identity": "", "gzip": "gz", "x-gzip": "gz", "zstd": "zst"}
HEAD_BYTES: Final = 1024
"""How much of a body is looked at for its first character."""
_GZIP_WINDOW: Final = 31  # zlib's number for "a gzip header, the largest window"
_BROKEN: Final = (zlib.error, zstd.ZstdError, EOFError, OSError)


def parse_content_type(value: str) -> DataFormat:
    """Return what a ``Content-Type`` header says.

    Raises:
        UnsupportedMedia: It says nothing that is taken; the message lists what is.
    """
    media_type = value.partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise UnsupportedMedia(
            f"Content-Type {media_type[:80]!r} is not taken: use one of "
            f"{', '.join(name for name in MEDIA_TYPES)} (curl: -H 'Content-Type: application/x-ndjson')"
        )
    return MEDIA_TYPES[media_type]


def parse_content_encoding(value: str) -> Compression:
    """Return what a ``Content-Encoding`` header says.

    Raises:
        UnsupportedMedia: An encoding, or a chain of encodings, that is not taken.
    """
    encoding = value.strip().lower()
    if encoding not in ENCODINGS:
        raise UnsupportedMedia(f"Content-Encoding {encoding[:80]!r} is not taken: use gzip, zstd or none")
    return ENCODINGS[encoding]


def check_body(body: bytes, staging_format: StagingFormat) -> None:
    """Look at a body's first bytes.

    Raises:
        InvalidRequest: It is empty, or certainly not what it is said to be.
    """
    if not body:
        raise InvalidRequest("the batch is empty: send at least one row")
    found = find_format(staging_format)
    text = _read_text(body, staging_format.partition(".")[2]) if found.is_text else body
    problem = found.find_problem(text) if text else ""
    if problem:
        raise InvalidRequest(problem)


def decompress(body: bytes, compression: Compression, *, max_bytes: int) -> bytes:
    """Return a body without its compression.

    Raises:
        InvalidRequest: It is damaged.
        BatchTooLarge: It becomes larger than ``max_bytes``; no more than that is ever held.
    """
    if not compression:
        return body
    parts: list[bytes] = []
    size_bytes = 0
    rest = body
    try:
        while rest:
            stream = _open(compression)
            part = stream.decompress(rest, max_bytes + 1 - size_bytes)
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise BatchTooLarge(f"the batch is larger than {max_bytes} bytes after decompression: cut it")
            if not stream.eof:
                raise InvalidRequest(f"the body ends in the middle of its {_NAMES[compression]} stream")
            parts.append(part)
            rest = stream.unused_data
    except _BROKEN as error:
        raise InvalidRequest(f"the body is not a {_NAMES[compression]} stream: {error}") from error
    return b"".join(parts)


_NAMES: Final = {"gz": "gzip", "zst": "zstd"}


def _open(compression: str) -> Any:
    return zlib.decompressobj(_GZIP_WINDOW) if compression == "gz" else zstd.ZstdDecompressor()


def _read_head(body: bytes, compression: str) -> tuple[bytes, bool]:
    """Return what a text begins with, and whether that is all of it."""
    if not compression:
        return body[:HEAD_BYTES], len(body) <= HEAD_BYTES
    if sniff_compression(body) != compression:
        raise InvalidRequest(f"the body does not begin as a {_NAMES[compression]} stream does")
    stream = _open(compression)
    packed = body[: 64 * HEAD_BYTES]
    try:
        text = bytes(stream.decompress(packed, HEAD_BYTES))
    except _BROKEN as error:
        raise InvalidRequest(f"the body is not a {_NAMES[compression]} stream: {error}") from error
    return text, stream.eof and not stream.unused_data and len(packed) == len(body) and len(text) < HEAD_BYTES


def _read_text(body: bytes, compression: str) -> bytes:
    """Return the first characters of a text that are not blank; none after a very long blank start."""
    head, is_whole = _read_head(body, compression)
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not text and is_whole:
        raise InvalidRequest("the batch is empty: send at least one row")
    return text  # without any the worker looks further
