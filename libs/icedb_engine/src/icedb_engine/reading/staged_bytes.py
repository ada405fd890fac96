"""From a staged object to its plain bytes: decompression, within a bound, and encoding; nothing about formats."""

import io
from typing import Final

import pyarrow as pa

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits

_CODECS: Final = {"gz": "gzip", "zst": "zstd"}
_CHUNK_BYTES: Final = 4 * 1024 * 1024
BOM: Final = b"\xef\xbb\xbf"


def split_format(staging_format: str) -> tuple[str, str | None]:
    """Return the plain format and the codec of one of :data:`icedb_log.keys.STAGING_FORMATS`."""
    plain, _, suffix = staging_format.partition(".")
    return plain, _CODECS.get(suffix)


def decompress(body: bytes, codec: str | None, limits: FlushUnitLimits, *, has_lines: bool = False) -> bytes:
    """Return the decompressed bytes, and stop soon after there are too many.

    They are counted while they come, a piece at a time: nothing that a stream says of its own size is believed.

    Args:
        body: The staged bytes.
        codec: ``gzip``, ``zstd`` or None.
        limits: Among them the guard against decompression bombs.
        has_lines: Each line is a row.

    Raises:
        BatchRejected: Not a whole stream.
        BatchTooLarge: Above a bound.
    """
    if codec is None:
        _check_size(len(body), body.count(b"\n") if has_lines else 0, limits)
        return body
    decoded = io.BytesIO()  # it grows in place, and gives its bytes away without a copy
    line_count = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                decoded.write(chunk)
                line_count += chunk.count(b"\n") if has_lines else 0
                _check_size(decoded.tell(), line_count, limits)
    except OSError as error:
        raise BatchRejected(f"not a complete {codec} stream: {error}; compress the batch again") from error
    return decoded.getvalue()


def check_row_count(row_count: int, limits: FlushUnitLimits) -> None:
    """Raise BatchTooLarge if a batch has too many rows."""
    if row_count > limits.batch_rows:
        raise BatchTooLarge(f"more than {limits.batch_rows} rows; send smaller batches")


def _check_size(decoded_bytes: int, row_count: int, limits: FlushUnitLimits) -> None:
    if decoded_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(f"more than {limits.batch_decoded_bytes} bytes after decompression; send smaller batches")
    check_row_count(row_count, limits)


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
