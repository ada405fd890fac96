"""What tells the content of one batch from that of another: one SHA-256 of its decoded body, over all formats (I8).

Doors bind an id to it, a commit says it beside the id, and whoever is about to delete another copy of the id compares.
The compression is not part of it: a retry may be packed by another library. Neither is the format: the same bytes are
the same content. Nothing here parses a body, holds more of it than a piece, or decodes more than a bound.
"""

import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

if sys.version_info >= (3, 14):
    from compression import zstd as zstd  # noqa: PLC0414 - for those who compress and decompress bodies elsewhere
else:
    from backports import zstd as zstd  # noqa: PLC0414 - the same

MAX_DECODED_BYTES: Final = 512 * 1024 * 1024
"""What decodes to more, or to nothing, is told by its bytes as they came: no flush takes it."""
MAX_STREAMS: Final = 16_384
"""So many gzip members or zstd frames are decoded one after the other; a body of more is told by its bytes, too."""
DIGEST_CHARS: Final = 32
"""How much of the SHA-256, in hex, a log file says for each id."""

_PIECE_BYTES: Final = 64 * 1024
_STEP_BYTES: Final = 1024 * 1024
_GZIP_WINDOW: Final = (
    47  # zlib's number for "a header of gzip, or its own, the largest window", as the data path reads it
)


class UndecodableError(ValueError):
    """A body is no whole stream of its compression; or it has too many of them, or is too large."""


def hash_content(
    body: bytes,
    staging_format: str,
    *,
    max_bytes: int = MAX_DECODED_BYTES,
    check: Callable[[bytes], None] | None = None,
) -> str:
    """Return the SHA-256, in hex, of a body without its compression.

    Args:
        body: As it was sent or staged.
        staging_format: One of :data:`icedb_log.formats.STAGING_FORMATS`; Parquet and Arrow count as they are.
        max_bytes: A body that decodes to more counts as it is, and so does one that is damaged.
        check: Called with each piece of the decoded body; what it raises ends the look.
    """
    compression = staging_format.partition(".")[2]
    if not compression:
        if check is not None:
            check(body)
        return hashlib.sha256(body).hexdigest()
    digest = hashlib.sha256()
    left_bytes = max_bytes
    try:
        for part in decode_parts(body, compression, max_streams=MAX_STREAMS):
            left_bytes -= len(part)
            if left_bytes < 0:
                return hashlib.sha256(body).hexdigest()
            digest.update(part)
            if check is not None:
                check(part)
    except UndecodableError:
        return hashlib.sha256(body).hexdigest()
    return digest.hexdigest()


def is_same_content(known: str, sha256: str) -> bool:
    """Return whether a content is the one of which a log file says ``known``; empty: nobody can tell."""
    return bool(known) and known == sha256[:DIGEST_CHARS]


def decode_parts(body: bytes, compression: str, *, max_streams: int = sys.maxsize) -> Iterator[bytes]:
    """Yield what a body holds, a megabyte at a time at most: the one decoder of bodies, wherever one is looked at.

    A body may be several gzip members or zstd frames, one after the other, as bgzip, pigz and pzstd write them; frames
    that have to be skipped are, and so are zeros behind a gzip member, with which tapes and some programs fill up.

    Args:
        body: As it was sent or staged.
        compression: ``gz`` or ``zst``.
        max_streams: Most members or frames.

    Raises:
        UndecodableError: See there; the message says what is wrong.
    """
    try:
        yield from _decode_parts(body, compression, max_streams)
    except (zlib.error, zstd.ZstdError, EOFError, OSError) as error:
        raise UndecodableError(str(error)) from error


def decode_start(body: bytes, compression: str, max_bytes: int) -> bytes:
    """Return the first bytes of what a body holds, as far as it can be decoded.

    Raises:
        UndecodableError: Not one byte can.
    """
    start = b""
    try:
        for part in _decode_parts(body, compression, MAX_STREAMS, step_bytes=max_bytes) if compression else (body,):
            start += part[: max_bytes - len(start)]
            if len(start) == max_bytes:
                break
    except (UndecodableError, zlib.error, zstd.ZstdError, EOFError, OSError) as error:
        if not start:
            raise UndecodableError(str(error)) from error
    return start


def _decode_parts(body: bytes, compression: str, max_streams: int, *, step_bytes: int = _STEP_BYTES) -> Iterator[bytes]:
    stream: Any = None
    stream_count = 0
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = bytes(view[start : start + _PIECE_BYTES])
        # zlib hands back what it has not looked at; zstd says whether it has given all that it was fed.
        while piece or (stream is not None and not stream.eof and not getattr(stream, "needs_input", True)):
            if stream is None or stream.eof:
                if stream is not None and compression == "gz":
                    piece = piece.lstrip(b"\0")
                    if not piece:
                        break
                stream_count += 1
                if stream_count > max_streams:
                    raise UndecodableError(f"it has more than {max_streams} streams one after the other")
                stream = zlib.decompressobj(_GZIP_WINDOW) if compression == "gz" else zstd.ZstdDecompressor()
            if part := stream.decompress(piece, step_bytes):
                yield part
            piece = stream.unused_data if stream.eof else getattr(stream, "unconsumed_tail", b"")
    if stream is None or not stream.eof:
        raise UndecodableError("it ends in the middle")
