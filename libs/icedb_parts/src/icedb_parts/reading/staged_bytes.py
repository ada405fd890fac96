"""From a staged object to its plain bytes: decompression, within a bound, and encoding; nothing about formats."""

from typing import Final

import pyarrow as pa

from icedb_parts.errors import BatchRejected

_CODECS: Final = {"gz": "gzip", "zst": "zstd"}
_CHUNK_BYTES: Final = 4 * 1024 * 1024
BOM: Final = b"\xef\xbb\xbf"


def split_format(staging_format: str) -> tuple[str, str | None]:
    """Return the plain format and the codec of one of :data:`icedb_log.keys.STAGING_FORMATS`."""
    plain, _, suffix = staging_format.partition(".")
    return plain, _CODECS.get(suffix)


def decompress(body: bytes, codec: str | None, limit_bytes: int) -> bytes:
    """Return the decompressed bytes, and stop soon after there are too many.

    Args:
        body: The staged bytes.
        codec: ``gzip``, ``zstd`` or None.
        limit_bytes: The guard against decompression bombs.

    Raises:
        BatchRejected: Not a whole stream, or above the limit.
    """
    if codec is None:
        decoded = body
    else:
        chunks, decoded_bytes = [], 0
        try:
            with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
                while decoded_bytes <= limit_bytes and (chunk := stream.read(_CHUNK_BYTES)):
                    chunks.append(chunk)
                    decoded_bytes += len(chunk)
        except OSError as error:
            raise BatchRejected(f"not a complete {codec} stream: {error}; compress the batch again") from error
        decoded = b"".join(chunks)
    if len(decoded) > limit_bytes:
        raise BatchRejected(f"more than {limit_bytes} bytes after decompression; send smaller batches")
    return decoded


def is_utf8(data: bytes) -> bool:
    """Return whether these bytes are UTF-8, without making text of them."""
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, _offsets(len(data)), pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_utf8(data: bytes) -> None:
    """Raise BatchRejected with line and offset if these bytes are not UTF-8."""
    if is_utf8(data):
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BatchRejected(
            f"line {number} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "encode the batch as UTF-8"
        ) from error


def _offsets(size_bytes: int) -> pa.Buffer:
    return pa.py_buffer((0).to_bytes(8, "little") + size_bytes.to_bytes(8, "little"))
