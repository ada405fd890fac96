"""One unit of a big flush: some staged batches become sorted blobs, which other tasks make files of.

Runs inside a task, or directly in a test. A blob holds rows of one partition and is small enough to travel; the
result, which comes last, says what must be in each.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

from icedb_engine.reading.unit import open_unit
from icedb_engine.units.flush_types import Blob, FlushUnit, FlushUnitResult

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
