"""How large the messages of an Arrow IPC stream become, read from their metadata, before anything is decompressed.

The buffers of a message may be compressed, each with its own codec call; a few hundred bytes can become gigabytes. The
format ("Serialization and Interprocess Communication" at arrow.apache.org/docs/format/Columnar.html) puts the size of
each buffer before its bytes. Only the few fields that say where the buffers are get read from the flatbuffer here.
"""

import struct
from typing import Final

from icedb_engine.errors import BatchRejected

_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_BUFFER_BYTES: Final = 16
_PREFIX_BYTES: Final = 8


def count_decoded_bytes(metadata: bytes, body: bytes | memoryview) -> int:
    """Return how many bytes the buffers of one message take in memory.

    Args:
        metadata: The message's flatbuffer.
        body: Its body.

    Raises:
        BatchRejected: The metadata is damaged.
    """
    try:
        return _count(metadata, memoryview(body))
    except (struct.error, IndexError) as error:
        raise BatchRejected(
            "not an Arrow stream: the metadata of a message is damaged; send the batch again"
        ) from error


def _count(metadata: bytes, body: memoryview) -> int:
    message = _follow(metadata, 0)
    kind_at = _find_field(metadata, message, _MESSAGE_KIND)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = _follow(metadata, _find_field(metadata, message, _MESSAGE_HEADER))
    if kind == _DICTIONARY_BATCH:
        batch = _follow(metadata, _find_field(metadata, batch, _DICTIONARY_DATA))
    if not _find_field(metadata, batch, _BATCH_COMPRESSION):
        return len(body)
    buffers = _follow(metadata, _find_field(metadata, batch, _BATCH_BUFFERS))
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for offset, length in struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + count * _BUFFER_BYTES]):
        if length < _PREFIX_BYTES:
            continue
        (size_bytes,) = struct.unpack_from("<q", body, offset)
        total += size_bytes if size_bytes >= 0 else length
    return total


def _follow(data: bytes, at: int) -> int:
    """Return where the flatbuffer's offset at a place leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _find_field(data: bytes, table: int, number: int) -> int:
    """Return the place of a table's field; zero if the table does not have it."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size_bytes = int(struct.unpack_from("<H", data, vtable)[0])
    entry = 4 + 2 * number
    if vtable < 0 or entry + 2 > size_bytes:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + entry)[0])
    return table + offset if offset else 0
