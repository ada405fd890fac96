"""Snapshots as bytes of the wire, built once per version and joined for each call.

Owns how a snapshot becomes a ``GetSnapshotResponse``. Repeated fields of a serialized protocol buffer may be
concatenated, so each data file is serialized once in its life: a chunk of live files keeps the bytes of its files for
as long as it lives, an answer is a head and the bytes of the chunks that a query wants. Must never leave out a file
because its partition cannot be told.
"""

import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from cachetools import LRUCache
from icedb_log.errors import InvalidRequest
from icedb_log.log.live_files import LiveChunk, LiveFiles, sum_rows
from icedb_log.model import FileMarker, Snapshot
from icedb_log.serving.selection import ChunkSelection
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import read_partition_values
from icedb_proto import snapshot_pb2

PAGE_BYTES: Final = 1024 * 1024
"""Largest page of a stream. One file's entry takes at most some kilobytes."""
_WIRE: Final = "wire"


class AnswerTooLarge(InvalidRequest):
    """The answer does not fit one message. What the caller does: call StreamSnapshot, or narrow it with filters."""


@dataclass(frozen=True, slots=True)
class ChunkWire:
    """The files of one chunk, ready for the wire.

    Attributes:
        wire: As serialized ``files`` entries of a response.
        ends: Where the entry of each file ends.
    """

    wire: bytes
    ends: "array[int]"

    def entry(self, index: int) -> bytes:
        """Return the entry of one file."""
        return self.wire[self.ends[index - 1] if index else 0 : self.ends[index]]


@dataclass(frozen=True)
class Answer:
    """What one query wants of one version of a table, ready for the wire.

    Attributes:
        table: Name of the table.
        head_wire: Everything but the files and the age of the knowledge, as serialized fields of a response.
        pieces: The files as serialized ``files`` entries, ascending by path.
        file_count: Number of files.
        files_bytes: Bytes of the pieces.
        joined: All pieces in one, where they may be one message; the pieces are views of it then.
    """

    table: str
    head_wire: bytes
    pieces: Sequence[bytes | memoryview]
    file_count: int
    files_bytes: int
    joined: bytes | None = field(default=None, repr=False)

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory; entries that chunks hold as well count, because it may outlive the chunks."""
        return len(self.head_wire) + self.files_bytes

    def render(self, *, staleness_ms: int, max_message_bytes: int) -> bytes:
        """Return the serialized response for one call.

        Args:
            staleness_ms: Age of the read behind it.
            max_message_bytes: Largest response.

        Raises:
            AnswerTooLarge: Names the size, the limit and the remedy.
        """
        head = self._head(staleness_ms)
        size_bytes = len(head) + self.files_bytes
        if size_bytes > max_message_bytes:
            raise AnswerTooLarge(
                f"table {self.table}: the answer names {self.file_count} data files in {size_bytes} bytes, more "
                f"than one message may have, {max_message_bytes} bytes (ICEDB_SNAPSHOT_MAX_MESSAGE_BYTES): call "
                "StreamSnapshot, which answers in pages, or narrow it with partition filters or where"
            )
        return head + (b"".join(self.pieces) if self.joined is None else self.joined)

    def pages(self, *, staleness_ms: int, page_bytes: int = PAGE_BYTES) -> Iterator[bytes]:
        """Yield serialized responses: the first with everything but the rest of the files, made one after another."""
        page: list[bytes | memoryview] = [self._head(staleness_ms)]
        size_bytes = len(page[0])
        for piece in self.pieces:
            for part in (piece,) if size_bytes + len(piece) <= page_bytes else split_entries(piece):
                if size_bytes + len(part) > page_bytes:
                    yield b"".join(page)
                    page, size_bytes = [], 0
                page.append(part)
                size_bytes += len(part)
        yield b"".join(page)

    def _head(self, staleness_ms: int) -> bytes:
        age = snapshot_pb2.GetSnapshotResponse(staleness_ms=staleness_ms)
        return self.head_wire + bytes(age.SerializeToString())


AnswerKey = tuple[object, ...]
"""What an answer follows from: table, snapshot and conditions."""


class AnswerCache:
    """The last answers, bounded by number and bytes. Thread-safe.

    Args:
        max_answers: How many are kept.
        max_bytes: How many bytes they may hold together; one alone at most half of it.
    """

    def __init__(self, *, max_answers: int, max_bytes: int) -> None:
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        self._answers: LRUCache[AnswerKey, Answer] = LRUCache(max_bytes, getsizeof=lambda answer: answer.held_bytes)
        self._lock = threading.Lock()

    def get(self, key: AnswerKey) -> Answer | None:
        """Return an answer; ``None`` if it has to be built."""
        with self._lock:
            return self._answers.get(key)

    def keep(self, key: AnswerKey, answer: Answer) -> None:
        """Keep an answer, and let the least recently used go. One that would push out most others is not kept."""
        if 2 * answer.held_bytes > self._max_bytes:
            return
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > self._max_answers:
                self._answers.popitem()


def build_answer(
    table: TableStore,
    snapshot: Snapshot,
    selections: Sequence[ChunkSelection],
    *,
    max_joined: int,
    presign_ms: int | None = None,
) -> Answer:
    """Serialize what a query wants, taking chunks that were serialized before as they are.

    Args:
        table: Its store and keys.
        snapshot: The version; its live files are compact.
        selections: What is wanted of it.
        max_joined: Most bytes that are joined for the unary call.
        presign_ms: Give each file a URL that lasts so long.

    Raises:
        CorruptLog: A data file lies outside the table.
        InvalidRequest: The store has no such URLs.
    """
    pieces: list[bytes | memoryview] = []
    for selection in selections:
        wire = serialize_chunk(table, selection.chunk)
        if presign_ms is not None:
            pieces.append(_presign(table.store, selection, wire, presign_ms))
        elif selection.indexes is None:
            pieces.append(wire.wire)
        else:
            pieces.append(b"".join(wire.entry(index) for index in selection.indexes))
    files_bytes = sum(map(len, pieces))
    joined = None
    if files_bytes <= max_joined:
        joined = b"".join(pieces)
        view, ends = memoryview(joined), [0, *accumulate(map(len, pieces))]
        pieces = [view[start:end] for start, end in pairwise(ends)]
    return Answer(
        table=snapshot.table,
        head_wire=_serialize_head(snapshot, selections),
        pieces=pieces,
        file_count=sum(selection.file_count for selection in selections),
        files_bytes=files_bytes,
        joined=joined,
    )


def _serialize_head(snapshot: Snapshot, selections: Sequence[ChunkSelection]) -> bytes:
    head = snapshot_pb2.GetSnapshotResponse(
        table=snapshot.table,
        snapshot_id=snapshot.snapshot_id,
        schema=[
            snapshot_pb2.Column(name=name, type=sql_type, narrow_type=snapshot.narrow_types.get(name))
            for name, sql_type in snapshot.schema.items()
        ],
        file_count=sum(selection.file_count for selection in selections),
        size_bytes=sum(selection.size_bytes for selection in selections),
        row_count=sum_rows(selection.row_count for selection in selections),
        total_file_count=len(snapshot.live),
        as_of_ms=snapshot.as_of_ms,
        is_stable=snapshot.is_stable,
        last_commit_ms=snapshot.last_commit_ms or None,
        horizon_ms=snapshot.horizon_ms or None,
    )
    return bytes(head.SerializeToString())


def all_files(live: Sequence[FileMarker]) -> LiveFiles:
    """Return the live files of a snapshot that was read compactly."""
    if isinstance(live, LiveFiles):
        return live
    if live:
        raise TypeError("the snapshot was not read compactly")
    return LiveFiles()


def serialize_chunk(table: TableStore, chunk: LiveChunk) -> ChunkWire:
    """Return the bytes of a chunk's files, made at the first call. Raises CorruptLog for a file outside the table."""
    known: ChunkWire | None = chunk.made.get(_WIRE)
    if known is not None:
        return known
    values = read_partition_values(table.paths.partition_of(chunk.first.decode()))
    shared = serialize_values(values)
    entries = [_serialize_file(table.store, chunk, index, shared) for index in range(len(chunk))]
    wire = ChunkWire(b"".join(entries), array("I", accumulate(map(len, entries))))
    chunk.made[_WIRE] = wire
    return wire


def _presign(store: ObjectStore, selection: ChunkSelection, wire: ChunkWire, presign_ms: int) -> bytes:
    entries: list[bytes] = []
    for index in selection.indexes if selection.indexes is not None else range(len(selection.chunk)):
        url = store.presign(selection.chunk.path(index).decode(), expires_ms=presign_ms)
        signed = snapshot_pb2.DataFile(presigned_url=url).SerializeToString()
        entries.append(_entry(_body(wire.entry(index)) + signed))
    return b"".join(entries)


def serialize_values(values: Mapping[str, str | None]) -> bytes:
    """Return partition values as serialized entries of a DataFile."""
    entries = [snapshot_pb2.PartitionValue(name=name, value=value) for name, value in values.items()]
    return bytes(snapshot_pb2.DataFile(partition_values=entries).SerializeToString())


def split_entries(piece: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Yield the serialized ``files`` entries that are joined in a piece: a tag of one byte, a length, and the file."""
    start = 0
    while start < len(piece):
        _, end = _find_body(piece, start)
        yield piece[start:end]
        start = end


def _find_body(piece: bytes | memoryview, start: int) -> tuple[int, int]:
    """Return where the body of the entry at ``start`` begins and ends."""
    length, shift, at = 0, 0, start + 1
    while True:
        byte = piece[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return at, at + length


def _body(entry: bytes) -> bytes:
    return entry[_find_body(entry, 0)[0] :]


def _entry(body: bytes) -> bytes:
    length = bytearray()
    value = len(body)
    while value > 0x7F:  # noqa: PLR2004 - seven bits in each byte of a varint
        length.append(value & 0x7F | 0x80)
        value >>= 7
    length.append(value)
    return _FILES_TAG + bytes(length) + body


def _serialize_file(store: ObjectStore, chunk: LiveChunk, index: int, shared: bytes) -> bytes:
    path = chunk.path(index).decode()
    file = snapshot_pb2.DataFile(
        path=path,
        uri=store.uri(path),
        size_bytes=chunk.file_size_bytes(index),
        row_count=chunk.file_row_count(index),
        created_ms=chunk.file_created_ms(index),
    )
    return _entry(file.SerializeToString() + shared)


_FILES_TAG: Final = bytes(((snapshot_pb2.GetSnapshotResponse.FILES_FIELD_NUMBER << 3) | 2,))
