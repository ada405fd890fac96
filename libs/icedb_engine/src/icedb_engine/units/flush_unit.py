"""What the tasks of a flush do. They run inside Spark, or directly in a test: they need a store, not Spark.

A small flush is one unit: staged batches become sorted data files, one for each partition. In a big one some units
read batches and hand *blobs* on (:mod:`icedb_engine.units.blobs`), and others make files of them. With an
``insert_query`` the rows pass through that on their way (:mod:`icedb_engine.units.query_unit`).

A batch is either wholly in the files or not at all (I5): every check comes before the first row is written. The order
of the batches decides who wins a conflict, so the same unit always ends the same way.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.model import FileMarker
from icedb_log.phases import phase, recording
from icedb_log.store.object_store import ObjectStore

from icedb_engine.arrow_types import align, make_schema
from icedb_engine.engine import open_engine
from icedb_engine.reading.frame import ROWS_PER_CHUNK
from icedb_engine.reading.unit import open_unit
from icedb_engine.sql import quote_name, sort_sql
from icedb_engine.units.blobs import BlobFolder, FilledBlob, cut_blobs
from icedb_engine.work import FlushUnit, UnitResult, WriteUnit
from icedb_engine.writing.part_files import ORDINAL, PartFileWriter, PartLayout, require_parity


def flush_unit(unit: FlushUnit, store: ObjectStore, *, clock: Clock) -> UnitResult:
    """Read, check, sort and upload the events of some batches.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with recording(clock) as recorder, ExitStack() as stack:
        with phase("decode", batches=len(unit.batches)):
            rows = stack.enter_context(open_unit(unit, store))
            rows.defer_beyond(unit.config.max_partitions_per_flush)
        files: tuple[FileMarker, ...] = ()
        if rows.columns:
            layout = PartLayout(unit, rows.columns, rows.partitions)
            writer = PartFileWriter(layout, store, clock=clock, folder=rows.scratch / "out")
            with phase("sort"):
                stream = rows.stream_sorted(repeats=True)
                first = next(stream, None)
            with phase("write and upload"):
                files = writer.write_all(stream if first is None else chain((first,), stream))
        with phase("set bad rows aside"):
            made = rows.make_result(store)
    result = replace(made, files=files, phases=tuple(recorder.phases))
    require_parity(unit.paths, read_count=result.row_count, files=files)
    return result


def parse_unit(unit: FlushUnit, store: ObjectStore) -> Iterator[FilledBlob | UnitResult]:
    """Read, check and sort the events of some batches; yield their blobs, and last what became of the batches.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with open_unit(unit, store) as rows:
        blobs = []
        touched = rows.read_batch_partitions()
        for filled in cut_blobs(rows.stream_sorted()) if rows.columns else ():
            blobs.append(filled.blob)
            yield filled
        yield replace(rows.make_result(store), blobs=tuple(blobs), batch_partitions=touched)


def write_unit(unit: WriteUnit, blobs: BlobFolder, store: ObjectStore, *, clock: Clock) -> tuple[FileMarker, ...]:
    """Sort and upload the rows of blobs that came from several units; return the markers of the new data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Raises:
        Unavailable: A blob is not the planned one; the store did not answer; memory and scratch did not suffice.
    """
    blobs.require_all(unit.paths.name, unit.blobs)
    columns = make_schema(unit.schema)
    schema = pa.schema([pa.field(ORDINAL, pa.int32()), *columns])
    layout = PartLayout(unit, unit.schema, unit.partitions)
    writer = PartFileWriter(layout, store, clock=clock, folder=blobs.path / "out")

    def read() -> Iterator[pa.RecordBatch]:
        for blob in unit.blobs:
            for rows in blobs.read(blob):
                ordinals = pa.repeat(pa.scalar(blob.partition, pa.int32()), rows.num_rows)
                yield pa.RecordBatch.from_arrays([ordinals, *align(rows, columns).columns], schema=schema)

    with open_engine(unit.engine, blobs.path) as engine:
        engine.register("blobs", pa.RecordBatchReader.from_batches(schema, read()))
        order = "".join(f", {sort_sql(quote_name(column), unit.schema[column])}" for column in layout.sort_columns)
        engine.execute(f"SELECT * FROM blobs ORDER BY {ORDINAL}{order}")  # noqa: S608 - names are quoted
        files = writer.write_all(engine.to_arrow_reader(ROWS_PER_CHUNK))
    require_parity(unit.paths, read_count=sum(blob.row_count for blob in unit.blobs), files=files)
    return files
