"""Which staging format a body is in, and the few looks at it that are cheap and save a trip to quarantine.

Pure. Nothing here parses a body: the first bytes decide whether it can be what it says it is.
"""

from collections.abc import Iterator
from typing import Final

from icedb_log.content import UndecodableError, decode_parts, decode_start
from icedb_log.errors import InvalidRequest
from icedb_log.formats import (
    BYTE_ORDER_MARK,
    FORMATS,
    Compression,
    DataFormat,
    StagingFormat,
    describe_unread,
    find_format,
    sniff_compression,
)

from icedb_ingest.frontend.errors import BatchTooLarge, UnsupportedMedia

MEDIA_TYPES: Final = {media_type: record.name for record in FORMATS.values() for media_type in record.media_types}
ENCODINGS: Final[dict[str, Compression]] = {"": "", "identity": "", "gzip": "gz", "x-gzip": "gz", "zstd": "zst"}
HEAD_BYTES: Final = 1024
"""How much of a body is looked at for its first character."""


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
    if unread := describe_unread(body):
        raise InvalidRequest(f"the body {unread}")
    found = find_format(staging_format)
    text = _read_text(body, staging_format.partition(".")[2]) if found.is_text else body
    problem = found.find_problem(text) if text else ""
    if problem:
        raise InvalidRequest(problem)


def measure(body: bytes, compression: Compression, *, max_bytes: int) -> int:
    """Return how many bytes a body has without its compression; a piece of them is held at a time.

    Raises:
        InvalidRequest: It is damaged.
        BatchTooLarge: They are more than ``max_bytes``.
    """
    return sum(map(len, _decode(body, compression, max_bytes)))


def decompress(body: bytes, compression: Compression, *, max_bytes: int) -> bytes:
    """Return a body without its compression. Raises as :func:`measure`; no more than ``max_bytes`` is ever held."""
    return b"".join(_decode(body, compression, max_bytes)) if compression else body


def _decode(body: bytes, compression: str, max_bytes: int) -> Iterator[bytes]:
    size_bytes = 0
    try:
        for part in decode_parts(body, compression):
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise BatchTooLarge(f"the batch is larger than {max_bytes} bytes after decompression: cut it")
            yield part
    except UndecodableError as error:
        raise InvalidRequest(f"the body is not a whole {_NAMES[compression]} stream: {error}") from error


_NAMES: Final = {"gz": "gzip", "zst": "zstd"}


def _read_head(body: bytes, compression: str) -> bytes:
    """Return what a text begins with."""
    if not compression:
        return body[:HEAD_BYTES]
    if sniff_compression(body) != compression:
        raise InvalidRequest(f"the body does not begin as a {_NAMES[compression]} stream does")
    try:
        return decode_start(body, compression, HEAD_BYTES)
    except UndecodableError as error:
        raise InvalidRequest(f"the body is not a {_NAMES[compression]} stream: {error}") from error


def _read_text(body: bytes, compression: str) -> bytes:
    """Return the first characters of a text that are not blank; none after a very long blank start."""
    head = _read_head(body, compression)
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not text and len(head) < HEAD_BYTES:
        raise InvalidRequest("the batch is empty: send at least one row")
    return text  # without any the worker looks further
