"""Blobs: sorted rows of one partition each, small enough to travel from the tasks that read to those that write.

Once the units of a big flush have answered, it is planned who writes what. Partitions are dealt out to tasks by size,
the largest first to the task that has least. A partition of far more than one file is cut between blobs, so that
several tasks write it; everything else of a partition goes to one task, and so into one file.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from icedb_log.errors import Unavailable
from icedb_log.units import MIB

from icedb_engine.work import Blob, PlannedBlob, UnitResult
from icedb_engine.writing.part_files import cut_by_ordinal

BLOB_BYTES: Final = 8 * MIB
"""In memory, uncompressed: a blob ends above it. One chunk of the stream is the least that can be cut."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class FilledBlob:
    """A blob and its bytes."""

    blob: Blob
    body: bytes


def cut_blobs(chunks: Any) -> Iterator[FilledBlob]:
    """Cut a stream of record batches, whose first column is an ascending ordinal, into blobs of one ordinal each."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes, last, number = 0, -1, 0
    for chunk in chunks:
        for ordinal, rows in cut_by_ordinal(chunk):
            if waiting and (ordinal != last or waiting_bytes >= BLOB_BYTES):
                yield _fill_blob(number, last, waiting)
                number, waiting, waiting_bytes = number + 1, [], 0
            last = ordinal
            waiting.append(rows)
            waiting_bytes += rows.nbytes
    if waiting:
        yield _fill_blob(number, last, waiting)


def _fill_blob(number: int, ordinal: int, batches: list[pa.RecordBatch]) -> FilledBlob:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    row_count = sum(batch.num_rows for batch in batches)
    return FilledBlob(Blob(number, ordinal, row_count, len(body), zlib.crc32(body)), body)


class BlobFolder:
    """Blobs in a folder on local disk, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksums: dict[tuple[int, int], int] = {}

    def add(self, unit: int, number: int, body: Any) -> None:
        """Keep one blob."""
        self._checksums[unit, number] = zlib.crc32(body)
        self._find(unit, number).write_bytes(body)

    def require_all(self, table: str, blobs: tuple[PlannedBlob, ...]) -> None:
        """Raise Unavailable unless exactly these blobs are here, unchanged."""
        planned = {(blob.unit, blob.number): blob.checksum for blob in blobs}
        if planned != self._checksums:
            raise Unavailable(
                f"table {table}: a write task of a flush got {len(self._checksums)} blobs that are not the "
                f"{len(planned)} that were planned; Spark lost some and made others: the flush runs again"
            )

    def read(self, blob: PlannedBlob) -> Iterator[pa.RecordBatch]:
        """Read the rows of a blob."""
        with pa.memory_map(str(self._find(blob.unit, blob.number))) as source:
            yield from pa.ipc.open_stream(source)

    def _find(self, unit: int, number: int) -> Path:
        return self.path / f"{unit}-{number}.arrow"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one task writes.

    Attributes:
        partitions: Encoded paths, ascending.
        blobs: What their rows are in, ascending by partition.
    """

    partitions: tuple[str, ...]
    blobs: tuple[PlannedBlob, ...]


_Piece = tuple[str, list[tuple[int, Blob]]]
"""A partition, or a part of one: its path, and its blobs with the units that made them."""


def plan_writes(
    results: Iterable[tuple[int, UnitResult]], *, task_bytes: int, piece_bytes: int
) -> tuple[WritePlan, ...]:
    """Deal the blobs of a flush out to tasks.

    Args:
        results: Each unit that belongs to the commit, by its number within the flush.
        task_bytes: Size that is worth a task of its own.
        piece_bytes: A partition above this is cut.
    """
    found: dict[str, list[tuple[int, Blob]]] = {}
    for unit, result in results:
        for blob in result.blobs:
            found.setdefault(result.partitions[blob.partition], []).append((unit, blob))
    pieces = [(path, piece) for path, blobs in found.items() for piece in _cut(blobs, piece_bytes)]
    if not pieces:
        return ()
    task_count = min(len(pieces), max(1, -(-sum(map(_size, pieces)) // task_bytes)))
    load = [(0, task) for task in range(task_count)]
    heapify(load)
    tasks: list[list[_Piece]] = [[] for _ in range(task_count)]
    for each in sorted(pieces, key=_size, reverse=True):
        size_bytes, task = load[0]
        heapreplace(load, (size_bytes + _size(each), task))
        tasks[task].append(each)
    return tuple(_make_plan(task) for task in tasks)


def _size(piece: _Piece) -> int:
    return sum(blob.size_bytes for _, blob in piece[1])


def _cut(blobs: list[tuple[int, Blob]], piece_bytes: int) -> list[list[tuple[int, Blob]]]:
    total_bytes = sum(blob.size_bytes for _, blob in blobs)
    piece_count = max(1, total_bytes // piece_bytes)
    pieces: list[list[tuple[int, Blob]]] = [[] for _ in range(piece_count)]
    before = 0
    for unit, blob in blobs:
        pieces[(before + blob.size_bytes // 2) * piece_count // total_bytes].append((unit, blob))
        before += blob.size_bytes
    return [piece for piece in pieces if piece]


def _make_plan(pieces: Sequence[_Piece]) -> WritePlan:
    ordered = sorted(pieces, key=lambda piece: piece[0])
    return WritePlan(
        tuple(path for path, _ in ordered),
        tuple(
            PlannedBlob(unit, blob.number, place, blob.row_count, blob.checksum)
            for place, (_, blobs) in enumerate(ordered)
            for unit, blob in blobs
        ),
    )
