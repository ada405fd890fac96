"""From a staged object to lines: decompression, encoding, splitting; nothing about JSON yet.

The rows never become Python objects: a batch is one buffer, and its lines are offsets into it. Every bound of
:class:`~icedb_parts.limits.FlushUnitLimits` about bytes is enforced here, before anything is parsed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from icedb_parts.errors import BatchRejected
from icedb_parts.limits import FlushUnitLimits

_CODECS: Final = {"ndjson.gz": "gzip", "ndjson.zst": "zstd"}
_BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 10
_IS_SPACE: Final = np.isin(np.arange(256), [9, 10, 13, 32])
_CHUNK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The lines of one batch that are not blank.

    Attributes:
        lines: The text of each, with its line ending.
        numbers: Line number of each in the decoded batch, from 1.
        decoded_bytes: Size after decompression.
    """

    lines: pa.StringArray
    numbers: pa.Int32Array
    decoded_bytes: int


def read_batch_lines(body: bytes, staging_format: str, limits: FlushUnitLimits) -> BatchLines:
    r"""Split a staged object into lines.

    A byte order mark is dropped, blank lines are ignored, both ``\n`` and ``\r\n`` end a line.

    Args:
        body: The staged bytes.
        staging_format: One of :data:`icedb_log.keys.STAGING_FORMATS`.
        limits: The bounds of a batch.

    Raises:
        BatchRejected: Not decompressible, not UTF-8, or above a bound.
    """
    decoded = _decompress(body, staging_format, limits.batch_decoded_bytes).removeprefix(_BOM)
    _check_utf8(decoded)
    offsets = _find_offsets(decoded)
    lengths = np.diff(offsets)
    if len(lengths) and int(lengths.max()) > limits.line_bytes:
        raise BatchRejected(
            f"line {int(lengths.argmax()) + 1} has {int(lengths.max())} bytes; the limit is {limits.line_bytes}: "
            "is it a JSON array? Send one event per line"
        )
    lines = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(decoded))
    numbers = pa.array(np.arange(1, len(lengths) + 1, dtype=np.int32))
    is_blank = _find_blank(decoded, offsets)
    if is_blank.any():
        kept = pa.array(~is_blank)
        lines, numbers = lines.filter(kept), numbers.filter(kept)
    return BatchLines(lines, numbers, len(decoded))


def _decompress(body: bytes, staging_format: str, limit_bytes: int) -> bytes:
    codec = _CODECS.get(staging_format)
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


def _check_utf8(decoded: bytes) -> None:
    try:
        decoded.decode()
    except UnicodeDecodeError as error:
        number = decoded.count(b"\n", 0, error.start) + 1
        raise BatchRejected(
            f"line {number} is not UTF-8: byte 0x{decoded[error.start]:02x} at offset {error.start}; "
            "encode the batch as UTF-8"
        ) from error


def _find_offsets(decoded: bytes) -> np.ndarray:
    """Return where each line begins, and the end; as the offsets buffer of a string array."""
    ends = np.flatnonzero(np.frombuffer(decoded, np.uint8) == _NEWLINE) + 1
    parts = [np.zeros(1, np.int64), ends]
    if decoded and not decoded.endswith(b"\n"):
        parts.append(np.array([len(decoded)]))
    return np.concatenate(parts).astype(np.int32)


def _find_blank(decoded: bytes, offsets: np.ndarray) -> np.ndarray:
    """Return which lines hold only white space. Looks at whole lines only if some line begins with it."""
    data = np.frombuffer(decoded, np.uint8)
    starts = offsets[:-1]
    begins_blank: np.ndarray = _IS_SPACE[data[starts]]
    if not begins_blank.any():
        return begins_blank
    visible: np.ndarray = np.add.reduceat(~_IS_SPACE[data], starts) == 0
    return visible
