"""What the tasks of a flush do. They run inside Spark, or directly in a test: they need a store, not Spark.

A small flush is one unit: staged batches become sorted data files, one for each partition. In a big one some units
read batches and hand *blobs* on, sorted rows of one partition each and small enough to travel, and others make files
of them. The rows of an ``insert_query`` become blobs, too; they belong to no batch any more: what is wrong with one is
said of all, and the driver finds the batch by running the query over fewer.

A batch is either wholly in the files or not at all (I5): every check comes before the first row is written. The order
of the batches decides who wins a conflict, so the same unit always ends the same way.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.frame import ROWS_PER_CHUNK
from icedb_engine.reading.unit import open_unit
from icedb_engine.sql import quote_name
from icedb_engine.units.flush_types import Blob, FlushUnit, FlushUnitResult, PlannedBlob, WriteUnit
from icedb_engine.writing.part_files import ORDINAL, PartFileWriter, make_flush_layout, require_parity


def flush_unit(unit: FlushUnit, store: ObjectStore, *, clock: Clock) -> FlushUnitResult:
    """Read, check, sort and upload the events of some batches.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the batches are and the files go.
        clock: Gives the ids of the files.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with open_unit(unit, store) as rows:
        rows.defer_beyond(unit.config.max_partitions_per_flush)
        files: tuple[FileMarker, ...] = ()
        if rows.columns:
            layout = make_flush_layout(unit, columns=rows.columns, partitions=rows.partitions)
            writer = PartFileWriter(store, layout, clock=clock, folder=rows.scratch / "out", limits=unit.engine)
            files = writer.write_all(rows.stream_sorted())
        rows.upload_bad_rows(store)
        result = rows.make_result(files=files)
    require_parity(unit.paths, read_count=result.row_count, files=files)
    return result


BLOB_BYTES: Final = 8 * MIB
"""In memory, uncompressed: a blob ends above it. One chunk of the stream is the least that can be cut."""

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class FilledBlob:
    """A blob and its bytes."""

    blob: Blob
    body: bytes


def parse_unit(unit: FlushUnit, store: ObjectStore) -> Iterator[FilledBlob | FlushUnitResult]:
    """Read, check and sort the events of some batches; yield their blobs, and last what became of the batches.

    Args:
        unit: What to do.
        store: Where the batches are.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with open_unit(unit, store) as rows:
        blobs = []
        if rows.columns:
            touched = rows.read_batch_partitions()
            for filled in cut_blobs(rows.stream_sorted()):
                blobs.append(filled.blob)
                yield filled
        else:
            touched = {}
        rows.upload_bad_rows(store)
        yield rows.make_result(blobs=tuple(blobs), batch_partitions=touched)


def cut_blobs(chunks: Any) -> Iterator[FilledBlob]:
    """Cut a stream of record batches, whose first column is an ascending ordinal, into blobs of one ordinal each."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes, ordinal, number = 0, -1, 0
    for chunk in chunks:
        if not chunk.num_rows:
            continue
        ordinals = chunk.column(0).to_numpy()
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordinals)) + 1, [chunk.num_rows]))
        rows = chunk.remove_column(0)
        for start, end in pairwise(starts):
            if waiting and (int(ordinals[start]) != ordinal or waiting_bytes >= BLOB_BYTES):
                yield _fill_blob(number, ordinal, waiting)
                number, waiting, waiting_bytes = number + 1, [], 0
            ordinal = int(ordinals[start])
            waiting.append(rows.slice(int(start), int(end - start)))
            waiting_bytes += waiting[-1].nbytes
    if waiting:
        yield _fill_blob(number, ordinal, waiting)


def _fill_blob(number: int, ordinal: int, batches: list[pa.RecordBatch]) -> FilledBlob:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    row_count = sum(batch.num_rows for batch in batches)
    return FilledBlob(Blob(number, ordinal, row_count, len(body), zlib.crc32(body)), body)


class BlobFolder:
    """Blobs on local disk, as they come. A context manager: nothing stays."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._stack = ExitStack()
        self._checksums: dict[tuple[int, int], int] = {}
        self.path = Path()

    def __enter__(self) -> Self:
        self.path = self._stack.enter_context(open_scratch(self._limits))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

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


def write_unit(unit: WriteUnit, blobs: BlobFolder, store: ObjectStore, *, clock: Clock) -> tuple[FileMarker, ...]:
    """Sort and upload the rows of blobs that came from several units; return the markers of the new data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        blobs: Where the rows are.
        store: Where the files go.
        clock: Gives the ids of the files.

    Raises:
        Unavailable: A blob is not the planned one; the store did not answer; memory and scratch did not suffice.
    """
    blobs.require_all(unit.paths.name, unit.blobs)
    sort = [column for column in unit.config.sort if column in unit.columns]
    schema = pa.schema([(ORDINAL, pa.int32()), *((name, ARROW_TYPES[kind]) for name, kind in unit.columns.items())])
    chunks = (_align(chunk, blob.partition, schema) for blob in unit.blobs for chunk in blobs.read(blob))
    layout = make_flush_layout(unit, columns=unit.columns, partitions=unit.partitions)
    writer = PartFileWriter(store, layout, clock=clock, folder=blobs.path / "out", limits=unit.engine)
    with open_engine(unit.engine, blobs.path) as engine:
        engine.register("blobs", pa.RecordBatchReader.from_batches(schema, chunks))
        order = "".join(f", {quote_name(column)} NULLS LAST" for column in sort)
        engine.execute(f"SELECT * FROM blobs ORDER BY {ORDINAL}{order}")  # noqa: S608 - names are quoted
        files = writer.write_all(engine.to_arrow_reader(ROWS_PER_CHUNK))
    require_parity(unit.paths, read_count=sum(blob.row_count for blob in unit.blobs), files=files)
    return files


def _align(chunk: pa.RecordBatch, ordinal: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with their ordinal, and all columns of the files; NULL where the blob has no such column."""
    columns: Mapping[str, Any] = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    arrays = [pa.repeat(pa.scalar(ordinal, pa.int32()), chunk.num_rows)]
    arrays += [
        columns[field.name] if field.name in columns else pa.nulls(chunk.num_rows, field.type)
        for field in list(schema)[1:]
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
