"""One write task of a big flush: blobs of some partitions, from several units, become sorted data files.

Runs inside a task, or directly in a test. The blobs wait on disk until all have come; then every one that was planned
must be there, unchanged: a unit that Spark had to run again might have made others.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.store.object_store import ObjectStore

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.frame import ROWS_PER_CHUNK
from icedb_engine.sql import quote_name
from icedb_engine.units.flush_types import PlannedBlob, WriteUnit, WriteUnitResult
from icedb_engine.writing.part_files import ORDINAL, PartFileWriter
from icedb_engine.writing.part_layout import make_flush_layout, require_parity


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


def write_unit(unit: WriteUnit, blobs: BlobFolder, store: ObjectStore, *, clock: Clock) -> WriteUnitResult:
    """Sort and upload the rows of blobs that came from several units.

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
    row_count = sum(blob.row_count for blob in unit.blobs)
    require_parity(unit.paths, read_count=row_count, files=files)
    return WriteUnitResult(files, row_count)


def _align(chunk: pa.RecordBatch, ordinal: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with their ordinal, and all columns of the files; NULL where the blob has no such column."""
    columns: Mapping[str, Any] = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    arrays = [pa.repeat(pa.scalar(ordinal, pa.int32()), chunk.num_rows)]
    arrays += [
        columns[field.name] if field.name in columns else pa.nulls(chunk.num_rows, field.type)
        for field in list(schema)[1:]
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
