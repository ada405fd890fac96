"""How a big flush is planned once its units have answered: which batches it takes, and who writes what. Pure.

Partitions are dealt out to tasks by size, the largest first to the task that has least. A partition of far more than
one file is cut between blobs, so that several tasks write it; everything else of a partition goes to one task, and
so into one file.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from icedb_log.jobs import StagedBatch

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.units.flush_types import Blob, PlannedBlob

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
class QueryPart:
    """What a query made of some of the rows of a job.

    Attributes:
        units: The result's rows.
    """

    units: tuple[UnitBlobs, ...]

    @property
    def partitions(self) -> set[str]:
        """Encoded paths of the partitions that the rows belong to."""
        return {unit.partitions[blob.partition] for unit in self.units for blob in unit.blobs}

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return sum(blob.row_count for unit in self.units for blob in unit.blobs)


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
