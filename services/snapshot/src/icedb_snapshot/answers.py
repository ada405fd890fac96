"""Snapshots as bytes of the wire, built once per version and joined for each call.

Owns how a snapshot becomes a ``GetSnapshotResponse``. Repeated fields of a serialized protocol buffer may be
concatenated, so each data file is serialized once in its life: a chunk of live files keeps the bytes of its files for
as long as it lives, an answer is a head and the bytes of the chunks that a query wants. Must never leave out a file
because its partition cannot be told.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from cachetools import LRUCache
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import Snapshot
from icedb_log.log.live_files import LiveChunk, sum_rows
from icedb_log.serving.arrow_files import FileColumns, group_chunks
from icedb_log.serving.changes import PathChanges
from icedb_log.serving.selection import ChunkSelection
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import read_partition_values
from icedb_proto import snapshot_pb2 as pb

PAGE_BYTES: Final = 1024 * 1024
"""Largest page of a stream. One file's entry takes at most some kilobytes."""
_WIRE: Final = "wire"


class AnswerTooLarge(InvalidRequest):
    """The answer does not fit one message. What the caller does: call StreamSnapshot, or narrow it with filters."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Some files as serialized ``files`` entries of a response, one after the other, and where each of them ends."""

    wire: bytes | memoryview
    ends: "array[int]"

    @classmethod
    def join(cls, entries: Sequence[bytes | memoryview]) -> "Entries":
        """Return entries as one."""
        return cls(b"".join(entries), array("I", accumulate(map(len, entries))))

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return map(self.entry, range(len(self.ends)))

    def entry(self, index: int) -> bytes | memoryview:
        """Return the entry of one file."""
        return self.wire[self.ends[index - 1] if index else 0 : self.ends[index]]


@dataclass(frozen=True)
class Answer:
    """What one query wants of one version of a table, ready for the wire.

    Attributes:
        table: Name of the table.
        head_wire: Everything but the files and the age of the knowledge, as serialized fields of a response.
        pieces: The files, ascending by path.
        file_count: Number of files.
        files_bytes: Bytes of the pieces.
    """

    table: str
    head_wire: bytes
    pieces: Sequence[Entries]
    file_count: int
    files_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory; entries that chunks hold as well count, because it may outlive the chunks."""
        return len(self.head_wire) + self.files_bytes

    def render(self, *, staleness_ms: int, max_message_bytes: int) -> bytes:
        """Return the serialized response for one call. Raises AnswerTooLarge: size, limit and remedy."""
        head = self._head(staleness_ms)
        size_bytes = len(head) + self.files_bytes
        if size_bytes > max_message_bytes:
            raise AnswerTooLarge(
                f"table {self.table}: the answer names {self.file_count} data files in {size_bytes} bytes, more "
                f"than one message may have, {max_message_bytes} bytes (ICEDB_SNAPSHOT_MAX_MESSAGE_BYTES): call "
                "StreamSnapshot, which answers in pages, or narrow it with partition filters or where"
            )
        return b"".join((head, *[piece.wire for piece in self.pieces]))

    def pages(self, *, staleness_ms: int, page_bytes: int = PAGE_BYTES) -> Iterator[bytes]:
        """Yield serialized responses: the first with everything but the rest of the files, made one after another."""
        page: list[bytes | memoryview] = [self._head(staleness_ms)]
        size_bytes = len(page[0])
        for piece in self.pieces:
            for part in (piece.wire,) if size_bytes + len(piece.wire) <= page_bytes else piece:
                if size_bytes + len(part) > page_bytes:
                    yield b"".join(page)
                    page, size_bytes = [], 0
                page.append(part)
                size_bytes += len(part)
        yield b"".join(page)

    def _head(self, staleness_ms: int) -> bytes:
        return self.head_wire + bytes(pb.GetSnapshotResponse(staleness_ms=staleness_ms).SerializeToString())


AnswerKey = tuple[object, ...]
"""What an answer follows from: table, snapshot and conditions."""


class AnswerCache(LRUCache[AnswerKey, Answer]):
    """The last answers, bounded by number and bytes. Use it from one event loop.

    Args:
        max_answers: How many are kept.
        max_bytes: How many bytes they may hold together; one alone at most half of it.
    """

    def __init__(self, *, max_answers: int, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=lambda answer: answer.held_bytes)
        self._max_answers = max_answers

    def keep(self, key: AnswerKey, answer: Answer) -> None:
        """Keep an answer, and let the least recently used go. One that would push out most others is not kept."""
        if 2 * answer.held_bytes > self.maxsize:
            return
        self[key] = answer
        while len(self) > self._max_answers:
            self.popitem()


def build_answer(
    table: TableStore,
    snapshot: Snapshot,
    selections: Sequence[ChunkSelection],
    *,
    presign_ms: int | None = None,
    columns: FileColumns | None = None,
    changes: PathChanges | None = None,
) -> Answer:
    """Serialize what a query wants, taking chunks that were serialized before as they are.

    Args:
        table: Its store and keys.
        snapshot: The version.
        selections: What is wanted of it.
        presign_ms: Give each file a URL that lasts so long.
        columns: Name the files in record batches that have these; ``None``: each by a message.
        changes: What came and went, if the caller has the rest: then ``selections`` are what came.

    Raises:
        CorruptLog: A data file lies outside the table.
        InvalidRequest: The store has no such URLs.
    """
    pieces: list[Entries] = []
    for selection in selections if columns is None else ():
        piece = serialize_chunk(table, selection.chunk)
        if selection.indexes is not None:
            piece = Entries.join([piece.entry(index) for index in selection.indexes])
        if presign_ms is not None:
            piece = Entries.join(_presign(table.store, piece, presign_ms))
        pieces.append(piece)
    if columns is not None:
        parts = group_chunks(selection.files for selection in selections)
        pieces = [_wrap(columns.encode_schema()), *(columns.once(part, _wrap) for part in parts)]
    files_bytes = sum(len(piece.wire) for piece in pieces)
    live = snapshot.live
    file_count = sum(selection.file_count for selection in selections) if changes is None else len(live)
    size_bytes = sum(selection.size_bytes for selection in selections) if changes is None else live.size_bytes
    row_count = sum_rows(selection.row_count for selection in selections) if changes is None else live.row_count
    head = pb.GetSnapshotResponse(
        table=snapshot.table,
        snapshot_id=snapshot.snapshot_id,
        schema=describe_columns(snapshot, snapshot.schema),
        file_count=file_count,
        size_bytes=size_bytes,
        row_count=row_count,
        total_file_count=len(snapshot.live),
        as_of_ms=snapshot.as_of_ms,
        is_stable=snapshot.is_stable,
        last_commit_ms=snapshot.last_commit_ms or None,
        horizon_ms=snapshot.horizon_ms or None,
        uri_prefix=None if columns is None else table.store.uri("x").removesuffix("x"),
        since_snapshot_id=None if changes is None else changes.before_id,
        removed_paths=() if changes is None else sorted(changes.went),
    )
    return Answer(snapshot.table, head.SerializeToString(), pieces, file_count, files_bytes)


def _wrap(batch: bytes) -> Entries:
    return Entries.join([pb.GetSnapshotResponse(file_batches=(batch,)).SerializeToString()])


def describe_columns(snapshot: Snapshot, columns: Mapping[str, str]) -> list[pb.Column]:
    """Return columns of a snapshot as the wire has them: their types, and what they were before they became wider."""
    narrow_types = snapshot.narrow_types
    return [pb.Column(name=name, type=kind, narrow_type=narrow_types.get(name)) for name, kind in columns.items()]


def describe_values(table: TableStore, path: str) -> list[pb.PartitionValue]:
    """Return the partition values of a data file as the wire has them. Raises CorruptLog: it is outside the table."""
    values = read_partition_values(table.paths.partition_of(path))
    return [pb.PartitionValue(name=name, value=value) for name, value in values.items()]


def serialize_chunk(table: TableStore, chunk: LiveChunk) -> Entries:
    """Return the bytes of a chunk's files, made at the first call. Raises CorruptLog for a file outside the table."""
    return chunk.once(_WIRE, lambda: _serialize(table, chunk))


def _serialize(table: TableStore, chunk: LiveChunk) -> Entries:
    # One message for all of them: to make one for each takes twice as long.
    response = pb.GetSnapshotResponse(files=(pb.DataFile(partition_values=describe_values(table, chunk.first)),))
    file, entries = response.files[0], []
    uri, rows = table.store.uri, zip(chunk.paths(), chunk.sizes(), chunk.created(), chunk.row_counts(), strict=True)
    for path, size_bytes, created_ms, row_count in rows:
        file.path, file.uri, file.size_bytes, file.created_ms = path, uri(path), size_bytes, created_ms
        if row_count is None:
            file.ClearField("row_count")
        else:
            file.row_count = row_count
        entries.append(response.SerializeToString())
    return Entries.join(entries)


def _presign(store: ObjectStore, entries: Iterable[bytes | memoryview], presign_ms: int) -> list[bytes]:
    signed: list[bytes] = []
    for entry in entries:
        response = pb.GetSnapshotResponse.FromString(bytes(entry))
        file = response.files[0]
        file.presigned_url = store.presign(file.path, expires_ms=presign_ms)
        signed.append(response.SerializeToString())
    return signed
