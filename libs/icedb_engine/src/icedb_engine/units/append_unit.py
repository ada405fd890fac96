"""One task of a write that comes with rows of its own: typed rows become sorted data files of the table.

Runs inside a task, or directly in a test. The files lie under fresh names and are live when somebody commits them
(:mod:`icedb_log.ingest.append`); those of a task that runs twice, or of a write that fails, are orphans (J5).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.table_config import TableConfig

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.units.flush_types import WriteUnit
from icedb_engine.units.typed_rows import EncodeUnit, open_typed_rows
from icedb_engine.writing.part_files import PartFileWriter
from icedb_engine.writing.part_layout import make_flush_layout, require_parity


@dataclass(frozen=True, slots=True)
class AppendUnit:
    """What a task makes of its rows.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns of the rows, with the types that the table stores; all that partitions need are among them.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    columns: Mapping[str, str]
    commit_id: str
    time_ms: int
    engine: EngineLimits


def append_unit(
    unit: AppendUnit, chunks: Iterable[pa.RecordBatch], store: ObjectStore, *, clock: Clock
) -> tuple[FileMarker, ...]:
    """Sort rows and upload them; return the markers of the new data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        chunks: The rows, with the columns of the unit in their order, of types that go into the unit's without loss.
        store: Where the files go.
        clock: Gives the ids of the files.

    Raises:
        InvalidRequest: A value does not go into its column, or a row has no partition value.
        Unavailable: The store did not answer; memory and scratch did not suffice.
    """
    encoded = EncodeUnit(unit.paths, unit.config, unit.columns, unit.engine, what="write")
    problems: list[InvalidRequest] = []
    fitting = _fit_all(unit, chunks, problems)
    with _raising(problems), open_scratch(unit.engine) as scratch, open_typed_rows(encoded, fitting, scratch) as rows:
        if not rows.row_count:
            return ()
        written = WriteUnit(
            paths=unit.paths,
            config=unit.config,
            columns=unit.columns,
            partitions=rows.partitions,
            blobs=(),
            commit_id=unit.commit_id,
            time_ms=unit.time_ms,
            engine=unit.engine,
        )
        layout = make_flush_layout(written, columns=unit.columns, partitions=rows.partitions)
        writer = PartFileWriter(store, layout, clock=clock, folder=scratch / "out", limits=unit.engine)
        files = writer.write_all(rows.stream_sorted())
        require_parity(unit.paths, read_count=rows.row_count, files=files)
        return files


@contextmanager
def _raising(problems: Sequence[InvalidRequest]) -> Iterator[None]:
    """Raise what was wrong with the rows itself, not what the native engine makes of it."""
    try:
        yield
    except duckdb.Error as error:
        if problems:
            raise problems[0] from error
        raise


def _fit_all(
    unit: AppendUnit, chunks: Iterable[pa.RecordBatch], problems: list[InvalidRequest]
) -> Iterator[pa.RecordBatch]:
    types = [ARROW_TYPES[kind] for kind in unit.columns.values()]
    names = [f"c{place}" for place in range(len(types))]
    for chunk in chunks:
        arrays = []
        for name, array, wanted in zip(unit.columns, chunk.columns, types, strict=True):
            try:
                arrays.append(array if array.type == wanted else array.cast(wanted))
            except pa.ArrowInvalid as error:
                problem = InvalidRequest(
                    f"table {unit.paths.name}: a value of column {name!r} does not go into {unit.columns[name]} "
                    f"without loss ({str(error)[:200]}): cast the column, or leave such rows out. Nothing was committed"
                )
                problems.append(problem)
                raise problem from error
        yield pa.RecordBatch.from_arrays(arrays, names=names)
