"""One task of a flush with an ``insert_query``: the query's rows become sorted blobs, as parsed rows do elsewhere.

Runs inside a task, or directly in a test. Rows of a query belong to no batch any more: what is wrong with one is said
of all, and the driver finds the batch by running the query over fewer.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from icedb_engine.engine import open_scratch
from icedb_engine.units.flush_types import FlushUnitResult
from icedb_engine.units.parse_unit import FilledBlob, cut_blobs
from icedb_engine.units.typed_rows import EncodeUnit, open_typed_rows

__all__ = ["EncodeUnit", "encode_unit"]


def encode_unit(unit: EncodeUnit, chunks: Iterable[pa.RecordBatch]) -> Iterator[FilledBlob | FlushUnitResult]:
    """Partition and sort rows; yield their blobs, and last how many there are.

    Args:
        unit: What to do.
        chunks: The rows, with the columns of the unit in their order.

    Raises:
        InvalidRequest: A row has no partition value, or one that cannot be in a key.
        Unavailable: Memory and scratch did not suffice.
    """
    blobs = []
    with open_scratch(unit.engine) as scratch, open_typed_rows(unit, chunks, scratch) as rows:
        row_count, paths = rows.row_count, rows.partitions
        if row_count:
            for filled in cut_blobs(rows.stream_sorted()):
                blobs.append(filled.blob)
                yield filled
    yield FlushUnitResult(
        columns=tuple(unit.columns),
        new_kinds={},
        accepted=(),
        rejected=(),
        missing=(),
        deferred=(),
        left=(),
        row_count=row_count,
        partitions=paths,
        blobs=tuple(blobs),
    )
