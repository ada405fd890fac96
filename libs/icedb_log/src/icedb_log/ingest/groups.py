"""Groups: many staged batches in one object, so that one PUT makes all of them durable (I1). Owns the layout.

::

    bodies                one after the other, as they were sent
    index                 JSON: [[id, format, length, SHA-256 of the decoded body], ...], ascending by id
    length of the index   4 bytes, little-endian
    magic                 8 bytes

The key is ``<lowest id>.<digest>.group``. The digest is that of the index, which has the digests of the bodies: so what
a key stands for never changes, an index may be kept for as long as anybody likes, and a PUT that is refused because the
object is there has succeeded. Where a body begins follows from the lengths before it. Nothing here decodes a body.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import orjson
from cachetools import LRUCache

from icedb_log.batch_ids import parse_batch_id_ms
from icedb_log.errors import InvalidRequest
from icedb_log.formats import STAGING_FORMATS, StagingFormat
from icedb_log.jobs import StagedBatch
from icedb_log.keys import TablePaths, parse_group_key
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.units import KIB, MIB

MAX_GROUP_BATCHES: Final = 1000
MAX_GROUP_BYTES: Final = 8 * MIB
"""Bodies of one group; a single batch never exceeds :data:`MAX_GROUPED_BYTES`."""
MAX_GROUPED_BYTES: Final = MIB
"""A body of so many bytes, or more, is staged alone: one PUT for it costs next to nothing."""

_MAGIC: Final = b"IceDBgr1"
_FOOTER_BYTES: Final = 4 + len(_MAGIC)
_TAIL_BYTES: Final = 160 * KIB
"""Read at once from the end: the index of a thousand batches is in it."""
_MAX_INDEX_BYTES: Final = 4 * MIB
_DIGEST_CHARS: Final = 32
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_KEPT_BATCHES: Final = 100_000


class UnreadableGroupError(ValueError):
    """An object is named as a group and is none, or not a whole one. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """A batch that is about to be staged.

    Attributes:
        batch_id: A UUIDv7 chosen by its producer.
        format: One of :data:`icedb_log.formats.STAGING_FORMATS`.
        body: As it was sent.
        sha256: Of the decoded body, in hex (:func:`icedb_log.content.hash_content`).
    """

    batch_id: str
    format: StagingFormat
    body: bytes
    sha256: str

    @property
    def may_be_grouped(self) -> bool:
        """Whether it may share an object with others."""
        return 0 < len(self.body) < MAX_GROUPED_BYTES


def encode_group(paths: TablePaths, batches: Sequence[OfferedBatch]) -> tuple[str, bytes]:
    """Return the key and the bytes of a group. Pure: the same batches in any order make the same object.

    Raises:
        InvalidRequest: No batches, one that has to be alone, too many of them, or an id twice.
    """
    ordered = sorted(batches, key=lambda batch: batch.batch_id)
    ids = {batch.batch_id for batch in ordered}
    if not 0 < len(ids) == len(ordered) <= MAX_GROUP_BATCHES or not all(batch.may_be_grouped for batch in ordered):
        raise InvalidRequest(
            f"a group holds 1 to {MAX_GROUP_BATCHES} batches, each id once, each of 1 to {MAX_GROUPED_BYTES - 1} bytes"
        )
    index = _encode_index([(each.batch_id, each.format, len(each.body), each.sha256) for each in ordered])
    key = paths.group_key(first_id=ordered[0].batch_id, digest=_hash_index(index))
    return key, b"".join((*(each.body for each in ordered), index, len(index).to_bytes(4, "little"), _MAGIC))


def name_group_of_one(paths: TablePaths, *, batch_id: str, staging_format: str, size_bytes: int, sha256: str) -> str:
    """Return the key of a group that holds one batch, without its body. Pure."""
    index = _encode_index([(batch_id, staging_format, size_bytes, sha256)])
    return paths.group_key(first_id=batch_id, digest=_hash_index(index))


def _encode_index(entries: Sequence[tuple[str, str, int, str]]) -> bytes:
    return orjson.dumps(entries)


def read_group(store: ObjectStore, info: ObjectInfo) -> tuple[StagedBatch, ...]:
    """Return the batches of a group, ascending by id. One ranged GET of the object's end; none if it was read before.

    Raises:
        UnreadableGroupError: It is no whole group.
        NotFound: It is gone: each of its batches is decided, or was staged alone.
        Unavailable: The store did not answer.
    """
    with _lock:
        known = _known.get(info.key)
    if known is None:
        known = _decode_index(info, _read_index(store, info))
        with _lock:
            _known[info.key] = known
    if known[0].staged_ms != info.modified_ms:  # it was put once more, after it had gone
        known = tuple(replace(batch, staged_ms=info.modified_ms) for batch in known)
    return known


def forget_groups() -> None:
    """Forget every index, as a process does that begins."""
    with _lock:
        _known.clear()


_known: LRUCache[str, tuple[StagedBatch, ...]] = LRUCache(_MAX_KEPT_BATCHES, getsizeof=len)
_lock: Final = Lock()


def _hash_index(index: bytes) -> str:
    return hashlib.sha256(index).hexdigest()[:_DIGEST_CHARS]


def _read_index(store: ObjectStore, info: ObjectInfo) -> bytes:
    """Return the bytes of an index, which are those that the key names."""
    size_bytes = info.size_bytes
    if size_bytes <= _FOOTER_BYTES:
        raise UnreadableGroupError(f"{info.key} has {size_bytes} bytes: it ends before its index")
    start = max(0, size_bytes - _TAIL_BYTES)
    tail = store.get_range(info.key, start=start, length=size_bytes - start).body
    if not tail.endswith(_MAGIC):
        raise UnreadableGroupError(f"{info.key} does not end as a group does: it is damaged, or not whole")
    index_bytes = int.from_bytes(tail[-_FOOTER_BYTES : -len(_MAGIC)], "little")
    if index_bytes > min(size_bytes - _FOOTER_BYTES, _MAX_INDEX_BYTES):
        raise UnreadableGroupError(f"{info.key} says that its index has {index_bytes} bytes: it is damaged")
    end = size_bytes - _FOOTER_BYTES
    if index_bytes + _FOOTER_BYTES <= len(tail):
        index = tail[-_FOOTER_BYTES - index_bytes : -_FOOTER_BYTES]
    else:
        index = store.get_range(info.key, start=end - index_bytes, length=index_bytes).body
    name = parse_group_key(info.key)
    if name is None or _hash_index(index) != name.digest:
        raise UnreadableGroupError(f"{info.key} has another index than its name says: it is damaged")
    return index


def _decode_index(info: ObjectInfo, index: bytes) -> tuple[StagedBatch, ...]:
    batches: list[StagedBatch] = []
    try:
        said = orjson.loads(index)
        offset_bytes, last_id = 0, ""
        for batch_id, staging_format, size_bytes, sha256 in said:
            parse_batch_id_ms(batch_id)
            is_sound = (
                batch_id > last_id
                and staging_format in STAGING_FORMATS
                and type(size_bytes) is int
                and size_bytes > 0
                and _SHA256.fullmatch(sha256)
            )
            if not is_sound:
                raise UnreadableGroupError(f"{info.key}: its index is none at batch {batch_id[:80]!r}")
            batches.append(
                StagedBatch(info.key, batch_id, staging_format, size_bytes, info.modified_ms, offset_bytes, sha256)
            )
            offset_bytes, last_id = offset_bytes + size_bytes, batch_id
    except UnreadableGroupError:
        raise
    except (ValueError, TypeError, AttributeError, InvalidRequest) as error:
        raise UnreadableGroupError(f"{info.key}: its index is none ({type(error).__name__})") from error
    name = parse_group_key(info.key)
    if not batches or name is None or batches[0].batch_id != name.first_id:
        raise UnreadableGroupError(f"{info.key}: its index does not begin with the batch that its name says")
    if offset_bytes + len(index) + _FOOTER_BYTES != info.size_bytes:
        raise UnreadableGroupError(
            f"{info.key} has {info.size_bytes} bytes, and should have {offset_bytes + len(index) + _FOOTER_BYTES}"
        )
    return tuple(batches)
