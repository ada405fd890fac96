"""What travels between the driver and the tasks of a flush, and how the driver plans it. Pure.

A unit reads some staged batches and either writes files at once or hands sorted blobs on, which other tasks make files
of (:mod:`icedb_engine.units.flush_unit`). :mod:`icedb_engine.units.work_units` turns units and results into text and
back.

Once the units have answered, it is planned which batches the commit takes, and who writes what. Partitions are dealt
out to tasks by size, the largest first to the task that has least. A partition of far more than one file is cut
between blobs, so that several tasks write it; everything else of a partition goes to one task, and so into one file.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final

from icedb_log.jobs import BadRows, RejectedBatch, SizeClass, StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

from icedb_engine.limits import EngineLimits, FlushUnitLimits


@dataclass(frozen=True, slots=True)
class FlushUnit:
    """Some batches of a flush job, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Columns whose type is fixed: the log's schema, declared columns, and what other units found.
        batches: Oldest first.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        limits: Bounds of a batch.
        engine: Bounds of the task.
        refused_widenings: Columns that cannot become wider, with the reason.
        sizes: Which of the batches are taken; ``None``: all.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    batches: tuple[StagedBatch, ...]
    commit_id: str
    time_ms: int
    limits: FlushUnitLimits
    engine: EngineLimits
    refused_widenings: Mapping[str, str] = field(default_factory=dict)
    sizes: SizeClass | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """Some rows of one partition, sorted, as an Arrow IPC stream that a unit handed on.

    Attributes:
        number: Ascending within the unit.
        partition: Place of the partition in the unit's ``partitions``.
        row_count: Rows in it; at least one.
        size_bytes: Size as it travels (compressed).
        checksum: CRC-32: a unit that Spark ran again may have cut its blobs in other places.
    """

    number: int
    partition: int
    row_count: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class FlushUnitResult:
    """What a unit made. Every batch is in exactly one of accepted, rejected, missing, deferred, left and left_out.

    Attributes:
        columns: Columns of the rows.
        new_kinds: Columns that are not in the unit's schema, with the kinds of values in accepted batches.
        accepted: Ids of batches whose rows are all in ``files`` or ``blobs``.
        rejected: Batches of which nothing is in them.
        missing: Ids of batches whose staged object is gone.
        deferred: Ids of batches that must wait for another commit: this one has enough partitions.
        left: Ids of batches that were not looked at, because the unit had enough to read.
        row_count: Rows of accepted batches.
        partitions: Encoded paths of the partitions of accepted batches.
        files: Markers of the new data files, if the unit wrote them.
        blobs: The rows, if the unit handed them on.
        bad_rows: Rows of accepted batches that are in none of them; uploaded.
        wishes: Columns that would have to be wider, with the wider type; then the unit did nothing, and all batches
            are left.
        long_columns: Known columns of which an accepted batch has integers beyond 2^53.
        left_out: Ids of batches that are not of the unit's size class.
        contents: SHA-256 of the decoded body of each accepted batch, by its id (I8).
        batch_partitions: If it did: places in ``partitions`` of each accepted batch with rows, by batch id.
    """

    columns: tuple[str, ...]
    new_kinds: Mapping[str, int]
    accepted: tuple[str, ...]
    rejected: tuple[RejectedBatch, ...]
    missing: tuple[str, ...]
    deferred: tuple[str, ...]
    left: tuple[str, ...]
    row_count: int
    partitions: tuple[str, ...] = ()
    files: tuple[FileMarker, ...] = ()
    blobs: tuple[Blob, ...] = ()
    batch_partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bad_rows: tuple[BadRows, ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
    long_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob that a write task must find among its rows.

    Attributes:
        unit: Number of the unit that made it, within the flush.
        number: Its number within the unit.
        partition: Place of the partition in the write unit's ``partitions``.
        row_count: Rows in it.
        checksum: CRC-32 of it.
    """

    unit: int
    number: int
    partition: int
    row_count: int
    checksum: int


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Rows that become data files in one task: of a flush, read by other units, or a task's own.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns that the data files get, with types.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
        partitions: Encoded paths; of a task's own rows they are found out there.
        blobs: What the rows are in, ascending by partition; none if they are the task's own.
    """

    paths: TablePaths
    config: TableConfig
    columns: Mapping[str, str]
    commit_id: str
    time_ms: int
    engine: EngineLimits
    partitions: tuple[str, ...] = ()
    blobs: tuple[PlannedBlob, ...] = ()


_AS_DECODED: Final = ("ndjson", "json", "csv", "arrow")
"""Formats whose staged size is about the size after decoding."""


def estimate_bytes(batch: StagedBatch, limits: FlushUnitLimits) -> int:
    """Return about how large a batch is once it is decoded; at least one byte."""
    return batch.size_bytes * (1 if batch.format in _AS_DECODED else limits.compression_ratio) + 1


def count_prefix(touched: Sequence[Collection[Hashable]], max_partitions: int) -> int:
    """Return how many of the first batches lie in at most ``max_partitions`` together; at least one.

    Args:
        touched: Partitions of each batch, in the order in which they were staged.
        max_partitions: Bound of one commit.
    """
    union: set[Hashable] = set()
    for count, partitions in enumerate(touched):
        union.update(partitions)
        if len(union) > max_partitions and count:
            return count
    return len(touched)


@dataclass(frozen=True, slots=True)
class UnitBlobs:
    """The blobs of one unit that belong to the commit.

    Attributes:
        unit: Number of the unit within the flush.
        partitions: Encoded paths of its partitions.
        blobs: What it handed on.
    """

    unit: int
    partitions: Sequence[str]
    blobs: Sequence[Blob]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one task writes.

    Attributes:
        partitions: Encoded paths, ascending.
        blobs: What their rows are in, ascending by partition.
        size_bytes: Of the blobs.
    """

    partitions: tuple[str, ...]
    blobs: tuple[PlannedBlob, ...]
    size_bytes: int


def plan_writes(units: Iterable[UnitBlobs], *, task_bytes: int, piece_bytes: int) -> tuple[WritePlan, ...]:
    """Deal the blobs of a flush out to tasks.

    Args:
        units: All blobs of the commit.
        task_bytes: Size that is worth a task of its own.
        piece_bytes: A partition above this is cut.
    """
    pieces = _cut_pieces(_sort_by_partition(units), piece_bytes)
    total_bytes = sum(piece.size_bytes for piece in pieces)
    task_count = min(len(pieces), max(1, -(-total_bytes // task_bytes)))
    if not pieces:
        return ()
    load = [(0, task) for task in range(task_count)]
    heapify(load)
    tasks: list[list[_Piece]] = [[] for _ in range(task_count)]
    for piece in sorted(pieces, key=lambda piece: -piece.size_bytes):
        size_bytes, task = load[0]
        heapreplace(load, (size_bytes + piece.size_bytes, task))
        tasks[task].append(piece)
    return tuple(_make_plan(task) for task in tasks)


@dataclass(frozen=True, slots=True)
class _Piece:
    partition: str
    blobs: list[tuple[int, Blob]]

    @property
    def size_bytes(self) -> int:
        return sum(blob.size_bytes for _, blob in self.blobs)


def _sort_by_partition(units: Iterable[UnitBlobs]) -> Mapping[str, list[tuple[int, Blob]]]:
    found: dict[str, list[tuple[int, Blob]]] = {}
    for unit in units:
        for blob in unit.blobs:
            found.setdefault(unit.partitions[blob.partition], []).append((unit.unit, blob))
    return found


def _cut_pieces(by_partition: Mapping[str, list[tuple[int, Blob]]], piece_bytes: int) -> list[_Piece]:
    pieces = []
    for partition, blobs in by_partition.items():
        total_bytes = sum(blob.size_bytes for _, blob in blobs)
        piece_count = max(1, total_bytes // piece_bytes)
        before = 0
        cut: list[list[tuple[int, Blob]]] = [[] for _ in range(piece_count)]
        for unit, blob in blobs:
            cut[(before + blob.size_bytes // 2) * piece_count // total_bytes].append((unit, blob))
            before += blob.size_bytes
        pieces += [_Piece(partition, piece) for piece in cut if piece]
    return pieces


def _make_plan(pieces: Sequence[_Piece]) -> WritePlan:
    ordered = sorted(pieces, key=lambda piece: piece.partition)
    return WritePlan(
        partitions=tuple(piece.partition for piece in ordered),
        blobs=tuple(
            PlannedBlob(unit, blob.number, place, blob.row_count, blob.checksum)
            for place, piece in enumerate(ordered)
            for unit, blob in piece.blobs
        ),
        size_bytes=sum(piece.size_bytes for piece in pieces),
    )
