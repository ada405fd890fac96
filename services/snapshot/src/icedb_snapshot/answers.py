"""Snapshots as bytes of the wire, built once per version and joined for each call.

Owns how a snapshot becomes a ``GetSnapshotResponse``. Repeated fields of a serialized protocol buffer may be
concatenated, so each data file is serialized once in its life: an answer is a short head followed by the
bytes of the partitions that the filters leave. Must never leave out a file because its partition cannot be
told.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker, Snapshot
from icedb_log.storage.object_store import ObjectStore
from icedb_log.tables.partition_filter import PartitionMatcher, read_partition_values
from icedb_proto import snapshot_pb2

VERSIONS_PER_TABLE: Final = 4
"""Snapshots whose bytes are kept for each table: the newest, and a few that time travel asks for."""


class AnswerTooLarge(InvalidRequest):
    """The answer does not fit the largest message. What the caller does: narrow it with partition filters."""


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The live data files of one partition, ready for the wire.

    Attributes:
        values: Decoded partition values by field name, ``None`` for null; empty without partitions.
        wire: The files as serialized ``files`` entries of a response.
        file_count: Number of files.
        size_bytes: Their bytes.
        row_count: Their rows; ``None`` when some file does not say.
    """

    values: Mapping[str, str | None]
    wire: bytes
    file_count: int
    size_bytes: int
    row_count: int | None


@dataclass(frozen=True)
class Answer:
    """One version of a table, ready for the wire.

    Attributes:
        snapshot_id: Which version.
        partitions: In the order of their files' paths.
        schema_wire: The columns as serialized ``schema`` entries of a response.
        wire_by_path: Each file's entry with the marker it was made of, to be used again by the next version.
    """

    snapshot_id: str
    partitions: tuple[PartitionFiles, ...]
    schema_wire: bytes
    wire_by_path: Mapping[str, tuple[int | None, bytes]]

    @cached_property
    def all_files_wire(self) -> bytes:
        """All files as serialized entries."""
        return b"".join(partition.wire for partition in self.partitions)

    @cached_property
    def file_count(self) -> int:
        """Live data files of the whole table."""
        return sum(partition.file_count for partition in self.partitions)

    def render(
        self, snapshot: Snapshot, *, matcher: PartitionMatcher, staleness_ms: int, max_message_bytes: int
    ) -> bytes:
        """Return the serialized response for one call.

        Args:
            snapshot: The snapshot that this answer was built from, or one with the same id.
            matcher: Which partitions the caller wants.
            staleness_ms: Age of the read behind it.
            max_message_bytes: Largest response.

        Raises:
            AnswerTooLarge: Names the size, the limit and the remedy.
        """
        if matcher.keeps_all:
            kept: tuple[PartitionFiles, ...] = self.partitions
            files = self.all_files_wire
        else:
            kept = tuple(partition for partition in self.partitions if matcher.matches(partition.values))
            files = b"".join(partition.wire for partition in kept)
        head = snapshot_pb2.GetSnapshotResponse(
            table=snapshot.table,
            snapshot_id=snapshot.snapshot_id,
            file_count=sum(partition.file_count for partition in kept),
            size_bytes=sum(partition.size_bytes for partition in kept),
            row_count=_sum_rows(partition.row_count for partition in kept),
            total_file_count=self.file_count,
            as_of_ms=snapshot.as_of_ms,
            is_stable=snapshot.is_stable,
            last_commit_ms=snapshot.last_commit_ms or None,
            horizon_ms=snapshot.horizon_ms or None,
            staleness_ms=staleness_ms,
        ).SerializeToString()
        size_bytes = len(head) + len(self.schema_wire) + len(files)
        if size_bytes > max_message_bytes:
            raise AnswerTooLarge(
                f"table {snapshot.table}: the answer names {sum(p.file_count for p in kept)} data files in "
                f"{size_bytes} bytes, more than the limit of {max_message_bytes} bytes "
                "(ICEDB_SNAPSHOT_MAX_MESSAGE_BYTES); narrow it with partition filters, or merge the table"
            )
        return b"".join((head, self.schema_wire, files))


class AnswerCache:
    """The last answers of each table. Thread-safe.

    Args:
        store: Names the URI of each file.
        max_tables: How many tables are kept in memory.
    """

    def __init__(self, store: ObjectStore, *, max_tables: int) -> None:
        self._store = store
        self._max_tables = max_tables
        self._tables: OrderedDict[str, OrderedDict[str, Answer]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, paths: TablePaths, snapshot: Snapshot) -> Answer:
        """Return the answer for a snapshot, from memory or built now.

        Raises:
            CorruptLog: A data file lies outside the table.
        """
        with self._lock:
            versions = self._tables.setdefault(snapshot.table, OrderedDict())
            self._tables.move_to_end(snapshot.table)
            while len(self._tables) > self._max_tables:
                self._tables.popitem(last=False)
            known = versions.get(snapshot.snapshot_id)
            if known is not None:
                versions.move_to_end(snapshot.snapshot_id)
                return known
            previous = next(reversed(versions.values()), None)
        answer = build_answer(self._store, paths, snapshot, previous=previous)
        with self._lock:
            versions[snapshot.snapshot_id] = answer
            while len(versions) > VERSIONS_PER_TABLE:
                versions.popitem(last=False)
        return answer


def build_answer(
    store: ObjectStore, paths: TablePaths, snapshot: Snapshot, *, previous: Answer | None = None
) -> Answer:
    """Serialize a snapshot's files, taking those that ``previous`` has already from there.

    Raises:
        CorruptLog: A data file lies outside the table.
    """
    known = previous.wire_by_path if previous is not None else {}
    wire_by_path: dict[str, tuple[int | None, bytes]] = {}
    partitions: list[PartitionFiles] = []
    # Paths ascend, and files of one partition share a prefix: each partition comes in one piece.
    for partition, markers in groupby(snapshot.live, key=lambda marker: paths.partition_of(marker.path)):
        values = read_partition_values(partition)
        group = tuple(markers)
        for marker in group:
            entry = known.get(marker.path)
            if entry is None or entry[0] != marker.row_count:
                entry = (marker.row_count, _serialize_file(store, marker, values))
            wire_by_path[marker.path] = entry
        partitions.append(
            PartitionFiles(
                values=values,
                wire=b"".join(wire_by_path[marker.path][1] for marker in group),
                file_count=len(group),
                size_bytes=sum(marker.size_bytes for marker in group),
                row_count=_sum_rows(marker.row_count for marker in group),
            )
        )
    columns = [snapshot_pb2.Column(name=name, type=sql_type) for name, sql_type in snapshot.schema.items()]
    schema_wire = snapshot_pb2.GetSnapshotResponse(schema=columns).SerializeToString()
    return Answer(snapshot.snapshot_id, tuple(partitions), schema_wire, wire_by_path)


def _serialize_file(store: ObjectStore, marker: FileMarker, values: Mapping[str, str | None]) -> bytes:
    file = snapshot_pb2.DataFile(
        path=marker.path,
        uri=store.uri(marker.path),
        size_bytes=marker.size_bytes,
        row_count=marker.row_count,
        partition_values=[snapshot_pb2.PartitionValue(name=name, value=value) for name, value in values.items()],
        created_ms=marker.created_ms,
    )
    return bytes(snapshot_pb2.GetSnapshotResponse(files=[file]).SerializeToString())


def _sum_rows(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
