"""The data path without Spark: flush, merge, change, import and feed with real Parquet files, in the test's process.

Units of work, their plans and their checks are those of the services; only what Spark does besides is left out:
tasks run one after the other, and the SQL of a deletion or a rewrite is evaluated by the native engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import duckdb
import pyarrow as pa
from icedb_engine.imports.import_unit import ImportUnit, import_unit
from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_flush import SparkBatchWriter
from icedb_engine.spark.spark_merge import SparkGroupMerger
from icedb_engine.spark.spark_runner import SparkRunner, UnitKind
from icedb_engine.units.change_unit import ChangedGroup, ChangeUnit, write_change
from icedb_engine.units.flush_unit import flush_unit
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.units.read_unit import NumberedFile, ReadFilesUnit, read_files
from icedb_engine.units.work_units import FLUSH_UNITS, MERGE_UNITS, encode
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.feed.feed_jobs import FeedJob, FeedOutput
from icedb_log.ingest.import_jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput
from icedb_log.jobs import CheckAlive, CountJob, MergedGroup, MergeGroup, MergeJob, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.stores import StoreSettings
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB
from icedb_log.warehouse import Warehouse

LIMITS = JobLimits(engine=EngineLimits(memory_bytes=256 * MIB, thread_count=1))


@dataclass(frozen=True, slots=True)
class _OpenSettings(StoreSettings):
    """Settings of a store that is open already."""

    url: str = "file:///unused"
    store: Any = field(default=None, repr=False)

    def open(self) -> Warehouse:
        return Warehouse(self.store)


class NativeRunner(SparkRunner):
    """Runs units here, one after the other."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(cast(Any, None), _OpenSettings(store=store))
        self._objects = store
        self._clock = clock

    def checking(self, check_alive: CheckAlive | None) -> "NativeRunner":
        """Return itself: nothing runs beside it that could be stopped."""
        del check_alive
        return self

    def run(self, kind: UnitKind, bodies: Sequence[str]) -> list[str]:
        """Run units and return their results in the same order. Raises what a unit raises."""
        if kind == "flush":
            return [
                encode(flush_unit(FLUSH_UNITS.validate_json(body), self._objects, clock=self._clock)) for body in bodies
            ]
        return [
            encode(merge_unit(MERGE_UNITS.validate_json(body), self._objects, clock=self._clock)) for body in bodies
        ]


class NativeWriter(SparkBatchWriter):
    """A :class:`icedb_log.jobs.BatchWriter`; for small flushes without an ``insert_query``."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._runner = NativeRunner(store, clock)
        self._clock = clock
        self._limits = LIMITS


class NativeFeeder:
    """A :class:`icedb_log.feed.feed_jobs.ViewFeeder`; for views that take all rows as they are."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Copy the rows of a job's commits: one group for each partition, written as a change without a removal."""
        markers = [marker for commit in job.commits for marker in commit.files]
        folders = sorted({job.source.partition_of(marker.path) for marker in markers})
        files = tuple(
            NumberedFile(folders.index(job.source.partition_of(marker.path)), marker.path, marker.row_count)
            for marker in markers
        )
        read = ReadFilesUnit(job.source, job.source_schema, is_whole=True, files=files, engine=LIMITS.engine)
        write = ChangeUnit(
            paths=job.paths,
            config=job.config,
            columns=job.source_schema,
            groups=tuple(ChangedGroup(folder, ()) for folder in folders),
            kind="flush",
            checks_partition=False,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            engine=LIMITS.engine,
        )
        outputs = write_change(write, _marked(read, "false", self._store), self._store, clock=self._clock)
        made = tuple(marker for output in outputs for marker in output.files)
        row_count = sum(output.rows_read for output in outputs)
        schema = {**job.schema, **job.source_schema}
        return FeedOutput(made, schema, job.commits, (), (), row_count=row_count, rows_read=row_count)


class NativeMerger(SparkGroupMerger):
    """A :class:`icedb_log.jobs.GroupMerger`."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._runner = NativeRunner(store, clock)
        self._clock = clock
        self._limits = LIMITS


class NativeChanger(NativeMerger):
    """A :class:`icedb_log.jobs.RowChanger`, for SQL that Spark and DuckDB read alike."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._store = store

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Take any deletion, and any query that keeps to the table's columns and types.

        Raises:
            InvalidRequest: A merge query: only Spark runs it.
        """
        del schema
        if change.kind == "merge_query":
            raise InvalidRequest(
                f"table {config.name}: this changer runs deletions and rewrites, no merge query; use one on Spark"
            )

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return the files that can hold rows that a deletion removes."""
        del paths
        return FilePruner(change.sql, config).select(files)

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count the rows that a deletion would remove, for each file of a job."""
        files = tuple(NumberedFile(number, each.path, each.row_count) for number, each in enumerate(job.files))
        unit = ReadFilesUnit(job.paths, job.schema, is_whole=False, files=files, engine=LIMITS.engine)
        counts = [0] * len(files)
        for chunk in _marked(unit, job.change.sql, self._store):
            for ordinal, is_gone in zip(chunk.column(0).to_pylist(), chunk.column(2).to_pylist(), strict=True):
                counts[ordinal] += is_gone
        return tuple(counts)

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Merge every group of a job, without the rows that its deletion removes, or as its query makes them."""
        if job.change is None:
            return super().merge_groups(job)
        self.check_change(job.config, job.schema, job.change)
        if job.change.kind == "rewrite":
            return tuple(self._query_group(job, group, job.change.sql) for group in job.groups)
        files = tuple(
            NumberedFile(number, marker.path, marker.row_count)
            for number, group in enumerate(job.groups)
            for marker in group.inputs
        )
        read = ReadFilesUnit(job.paths, job.schema, is_whole=True, files=files, engine=LIMITS.engine)
        write = ChangeUnit(
            paths=job.paths,
            config=job.config,
            columns=job.schema,
            groups=tuple(ChangedGroup(each.partition, tuple(m.path for m in each.inputs)) for each in job.groups),
            kind="delete",
            checks_partition=False,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            engine=LIMITS.engine,
        )
        rows = _marked(read, job.change.sql, self._store)
        written = write_change(write, rows, self._store, clock=self._clock)
        outputs = {output.ordinal: output for output in written}
        return tuple(
            MergedGroup(group, outputs[number].files, outputs[number].rows_read, outputs[number].rows_removed)
            for number, group in enumerate(job.groups)
        )

    def _query_group(self, job: MergeJob, group: MergeGroup, query: str) -> MergedGroup:
        files = tuple(NumberedFile(0, marker.path, marker.row_count) for marker in group.inputs)
        read = ReadFilesUnit(job.paths, job.schema, is_whole=True, files=files, engine=LIMITS.engine)
        rows = pa.Table.from_batches(list(read_files(read, self._store))).rename_columns(["ordinal", *job.schema])
        with duckdb.connect() as engine:
            engine.execute("SET TimeZone = 'UTC'")
            made = engine.register("_rows", rows.drop(["ordinal"])).execute(query).to_arrow_table().combine_chunks()
        write = ChangeUnit(
            paths=job.paths,
            config=job.config,
            columns={name: job.schema[name] for name in made.column_names},
            groups=(ChangedGroup(group.partition, tuple(marker.path for marker in group.inputs)),),
            kind="rewrite",
            checks_partition=True,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            engine=LIMITS.engine,
        )
        written = write_change(write, _unmarked(made), self._store, clock=self._clock)
        return MergedGroup(group, tuple(each for output in written for each in output.files), rows.num_rows, None)


class NativeImporter:
    """A :class:`icedb_log.ingest.import_jobs.FileImporter`; sources lie in the store of the table."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read the footers of a job's files."""
        done = import_unit(
            ImportUnit(job, (), LIMITS.engine), self._store, open_source=lambda _: self._store, clock=self._clock
        )
        return InspectOutput(done.inspected, done.refused)

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key."""
        job = InspectJob(paths, TableConfig(name=paths.name), ())
        done = import_unit(
            ImportUnit(job, files, LIMITS.engine), self._store, open_source=lambda _: self._store, clock=self._clock
        )
        return CopyOutput(done.placed, done.refused)


def _unmarked(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield rows of one group as a write task wants them: none of them is removed."""
    names = ["o", "e", "g", *(f"c{number}" for number in range(rows.num_columns))]
    for chunk in rows.to_batches():
        marks = [pa.repeat(pa.scalar(value, kind), chunk.num_rows) for value, kind in _KEPT]
        yield pa.RecordBatch.from_arrays([*marks, *chunk.columns], names)


_KEPT = ((0, pa.int32()), (None, pa.string()), (False, pa.bool_()))
"""Ordinal, error and mark of a row that stays."""


def _marked(unit: ReadFilesUnit, condition: str, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """Yield rows as a write task wants them: ordinal, error, whether the condition removes them, then the columns."""
    sql = f"SELECT coalesce(({condition}), false) AS gone FROM rows"
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for chunk in read_files(unit, store):
            named = pa.Table.from_batches([chunk]).rename_columns(["ordinal", *unit.columns]).drop(["ordinal"])
            gone = engine.register("rows", named).execute(sql).to_arrow_table().column(0).combine_chunks()
            arrays = [chunk.column(0), pa.nulls(chunk.num_rows, pa.string()), gone, *chunk.columns[1:]]
            yield pa.RecordBatch.from_arrays(arrays, ["o", "e", "g", *(f"c{n}" for n in range(len(unit.columns)))])
