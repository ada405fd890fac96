"""One unit of a flush, all the way: some staged batches become sorted data files, one for each partition.

Runs inside a task, or directly in a test: it needs a store, not Spark. A batch is either wholly in the files or
not at all (I5): every check comes before the first row is written. The order of the batches decides who wins a
conflict, so the same unit always ends the same way.
"""

from icedb_log.clock import Clock
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore

from icedb_engine.reading.unit import open_unit
from icedb_engine.units.flush_types import FlushUnit, FlushUnitResult
from icedb_engine.writing.part_files import PartFileWriter
from icedb_engine.writing.part_layout import make_flush_layout, require_parity


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
