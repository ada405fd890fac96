"""Jobs on Spark that change rows: a deletion's condition, and queries that make the rows of a group anew (M3).

Data files are read and written by our own tasks, never by Spark's; Spark SQL sees their rows in between. A condition is
about one row, so one Spark job deletes from all groups at once. A query sees the rows of one group, which wait on the
executors' disks meanwhile, so that they are counted before it runs and read once however often it names them. The
driver never sees a row.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import structlog
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.jobs import CountJob, MergedGroup, MergeGroup, MergeJob, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.stores import StoreSettings
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TableConfig
from icedb_log.units import GIB, MIB
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.query.change_query import (
    VIEWS,
    WORDS,
    check_row_change,
    find_used_columns,
    read_change_columns,
    require_known_types,
)
from icedb_engine.query.guarded_query import guard_condition, run_query
from icedb_engine.query.insert_query import QueryProblem, query_errors, rows_view
from icedb_engine.query.query_types import quote_spark, store_column
from icedb_engine.spark.change_tasks import GROUP_OUTPUTS, make_change_task
from icedb_engine.spark.file_rows import FileRows
from icedb_engine.spark.spark_merge import SparkGroupMerger
from icedb_engine.spark.spark_runner import ANSWER_SCHEMA, OK, SparkJobs, SparkRunner, report_again
from icedb_engine.spark.spark_watch import WatchRules
from icedb_engine.units.change_unit import ChangedGroup, ChangeUnit, GroupOutput, read_error_text
from icedb_engine.units.read_unit import NumberedFile
from icedb_engine.writing.part_files import FileKind

WRITE_TASK_BYTES: Final = 64 * MIB
"""Bytes of groups that are worth a write task of their own."""
MAX_TASK_BYTES: Final = 2 * GIB
"""A group above this size is written by several tasks, a range of its sort order each."""
MAX_WAITING_GROUPS: Final = 16
MAX_WAITING_BYTES: Final = 1 * GIB
"""Groups whose rows wait on the executors' disks at the same time: by number, and by size of their data files."""

_log: Final = structlog.get_logger(__name__)
_FOOTER_KINDS: Final[Mapping[str, FileKind]] = {"delete": "delete", "rewrite": "rewrite", "merge_query": "merge"}


class SparkRowChanger(SparkJobs):
    """A :class:`icedb_log.jobs.RowChanger` that runs on Spark, and the :class:`icedb_log.jobs.GroupMerger` beside it.

    Args:
        spark: The session.
        store: How tasks reach the store.
        clock: For durations in the log.
        limits: Bounds of tasks.
        rules: How jobs are watched.
        max_task_bytes: See :data:`MAX_TASK_BYTES`.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        clock: Clock,
        limits: JobLimits | None = None,
        rules: WatchRules | None = None,
        max_task_bytes: int = MAX_TASK_BYTES,
    ) -> None:
        super().__init__(spark, store, clock=clock, limits=limits, rules=rules)
        self._merger = SparkGroupMerger(spark, store, clock=clock, limits=limits, rules=rules)
        self._max_task_bytes = max_task_bytes

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check a change against a table; nothing is read or written.

        Raises:
            InvalidRequest: The SQL is wrong, reaches beyond its view, drops a partition or sort column, adds a column
                that the table does not have, or changes a type.
            Unavailable: Spark did not answer.
        """
        check_row_change(self._runner.spark, config, schema, change)

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return the files that can hold rows that a deletion removes, by partition values and statistics."""
        selected = FilePruner(change.sql, config).select(files)
        _log.debug("files selected", table=paths.name, files=len(files), selected=len(selected))
        return selected

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count the rows that a deletion would remove, for each file of a job in its order.

        Raises:
            NotFound: A file is gone.
            InvalidRequest: The condition cannot be evaluated on these rows, and why.
            HaltError: A file is damaged, or of another schema than the table.
            Unavailable: The store or Spark did not answer.
        """
        require_known_types(job.config, job.schema)
        columns = find_used_columns(job.change, job.schema)
        runner = self._runner.checking(job.check_alive)
        what = f"a count of rows in {len(job.files)} data files"
        files = [NumberedFile(number, marker.path, marker.row_count) for number, marker in enumerate(job.files)]
        sizes = [marker.size_bytes for marker in job.files]
        reader = FileRows(runner, job.paths, columns, is_whole=False, engine=self._limits.engine)
        with _change_errors(job.config, job.change), query_errors(what), runner.watch(what, is_users=True):
            rows = reader.read(files, sizes)
            gone = _is_gone(runner.spark, job.change).cast(spark_types.LongType())
            answers = (
                rows.select(reader.hidden.ordinal, reader.hidden.error, gone.alias(reader.hidden.gone))
                .groupBy(reader.hidden.ordinal)
                .agg(sf.sum(reader.hidden.gone).alias("gone"), sf.max(reader.hidden.error).alias("error"))
                .collect()
            )
        _raise_sent(answer["error"] for answer in answers)
        counts = {answer[reader.hidden.ordinal]: int(answer["gone"]) for answer in answers}
        return tuple(counts.get(number, 0) for number in range(len(job.files)))

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Merge every group of a job, and change its rows as the job says.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            InvalidRequest: A deletion or rewrite cannot be made of these rows, and why.
            SchemaConflict: The table's ``merge_query`` cannot be run on them: a person has to correct it.
            NotFound: An input is gone although it is live.
            HaltError: An input is damaged, or of another schema than the table.
            Unavailable: The store or Spark did not answer.
        """
        if job.change is None:
            return self._merger.merge_groups(job)
        started_ms = self._clock.monotonic_ms()
        run = _ChangeRun(
            job,
            job.change,
            self._runner.checking(job.check_alive),
            limits=self._limits,
            max_task_bytes=self._max_task_bytes,
        )
        with _change_errors(job.config, job.change):
            check_row_change(self._runner.spark, job.config, job.schema, job.change)
            merged = run.delete() if job.change.kind == "delete" else run.query()
        _log.info(
            "rows changed",
            table=job.paths.name,
            kind=job.change.kind,
            groups=len(merged),
            inputs=sum(len(group.group.inputs) for group in merged),
            outputs=sum(len(group.outputs) for group in merged),
            rows=sum(group.rows_read for group in merged),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return merged


class _ChangeRun:
    """One call of :meth:`SparkRowChanger.merge_groups` with a change."""

    def __init__(
        self, job: MergeJob, change: RowChange, runner: SparkRunner, *, limits: JobLimits, max_task_bytes: int
    ) -> None:
        self._job = job
        self._change = change
        self._runner = runner
        self._engine = limits.engine
        self._max_task_bytes = max_task_bytes
        self._groups = sorted(job.groups, key=lambda group: -group.size_bytes)
        self._reader = FileRows(runner, job.paths, job.schema, is_whole=True, engine=limits.engine)
        self._is_users = change.kind != "merge_query"

    def delete(self) -> tuple[MergedGroup, ...]:
        """Take the rows away for which the condition is true: one Spark job for all groups."""
        what = f"a deletion from {len(self._groups)} groups"
        hidden = self._reader.hidden
        task_count = min(len(self._groups), -(-self._size_bytes() // WRITE_TASK_BYTES))
        unit = self._make_unit(self._groups, dict(self._job.schema), task_count=task_count)
        with query_errors(what), self._runner.watch(what, is_users=True):
            rows = self._read(self._groups)
            marked = rows.select(
                hidden.ordinal,
                hidden.error,
                _is_gone(self._runner.spark, self._change).alias(hidden.gone),
                *(sf.col(quote_spark(name)).alias(f"c{place}") for place, name in enumerate(self._job.schema)),
            )
            dealt = marked.repartitionById(task_count, marked[hidden.ordinal] % task_count)
            outputs = self._write(dealt, unit)
        return tuple(
            MergedGroup(
                group,
                tuple(marker for output in outputs[number] for marker in output.files),
                sum(output.rows_read for output in outputs[number]),
                sum(output.rows_removed for output in outputs[number]),
            )
            for number, group in enumerate(self._groups)
        )

    def query(self) -> tuple[MergedGroup, ...]:
        """Replace the rows of each group by what the query makes of them."""
        merged: list[MergedGroup] = []
        for groups in _pack_groups(self._groups):
            with self._hold_rows(groups) as held:
                for group, (rows, row_count) in zip(groups, held, strict=True):
                    merged.append(MergedGroup(group, self._query_group(group, rows), row_count, None))
        return tuple(merged)

    @contextmanager
    def _hold_rows(self, groups: Sequence[MergeGroup]) -> Iterator[list[tuple[Any, int]]]:
        """Read the rows of groups to the executors' disks; yield each group's rows with their number."""
        frames = [self._read([group]).persist(StorageLevel.DISK_ONLY) for group in groups]
        try:
            what = f"a job that reads {sum(len(group.inputs) for group in groups)} data files"
            with self._runner.job(what):
                counted: Any = None
                for number, frame in enumerate(frames):
                    count = frame.agg(
                        sf.lit(number).alias("number"),
                        sf.count(sf.lit(1)).alias("rows"),
                        sf.max(self._reader.hidden.error).alias("error"),
                    )
                    counted = count if counted is None else counted.unionByName(count)
                answers = sorted(counted.collect(), key=lambda answer: int(answer["number"]))
            _raise_sent(answer["error"] for answer in answers)
            own = [quote_spark(name) for name in self._job.schema]
            yield [(frame.select(*own), int(answer["rows"])) for frame, answer in zip(frames, answers, strict=True)]
        finally:
            with suppress(PySparkException, Py4JError, OSError):  # a JVM that died has forgotten them
                for frame in frames:
                    frame.unpersist()

    def _query_group(self, group: MergeGroup, rows: Any) -> tuple[FileMarker, ...]:
        what = f"a {WORDS[self._change.kind]} over partition {group.partition or '(none)'}"
        spark: Any = self._runner.spark
        hidden = self._reader.hidden
        task_count = max(1, -(-group.size_bytes // self._max_task_bytes))
        with (
            rows_view(rows, name=VIEWS[self._change.kind]),
            query_errors(what),
            self._runner.watch(what, is_users=self._is_users),
        ):
            result = run_query(spark, self._change.sql, view=VIEWS[self._change.kind])
            found = read_change_columns(result, self._job.config, self._job.schema, self._change)
            order_of = {name: place for place, name in enumerate(self._job.schema)}
            columns = sorted(found, key=lambda column: order_of[column.name])
            stored = result.select(
                sf.lit(0).alias(hidden.ordinal),
                sf.lit(None).cast(spark_types.StringType()).alias(hidden.error),
                sf.lit(False).alias(hidden.gone),
                *(store_column(column, alias=f"c{place}") for place, column in enumerate(columns)),
            )
            places = {column.name: f"c{place}" for place, column in enumerate(columns)}
            order = [sf.col(places[name]).asc_nulls_last() for name in self._job.config.sort if name in places]
            is_ranged = task_count > 1 and order
            dealt = stored.repartitionByRange(task_count, *order) if is_ranged else stored.repartition(task_count)
            types = {column.name: column.sql_type for column in columns}
            outputs = self._write(dealt, self._make_unit([group], types, task_count=task_count))
        return tuple(marker for output in outputs[0] for marker in output.files)

    def _size_bytes(self) -> int:
        return max(1, sum(group.size_bytes for group in self._groups))

    def _read(self, groups: Sequence[MergeGroup]) -> Any:
        inputs = [(number, marker) for number, group in enumerate(groups) for marker in group.inputs]
        files = [NumberedFile(number, marker.path, marker.row_count) for number, marker in inputs]
        return self._reader.read(files, [marker.size_bytes for _, marker in inputs])

    def _make_unit(self, groups: Iterable[MergeGroup], columns: Mapping[str, str], *, task_count: int) -> ChangeUnit:
        return ChangeUnit(
            paths=self._job.paths,
            config=self._job.config,
            columns=dict(columns),
            groups=tuple(
                ChangedGroup(group.partition, tuple(marker.path for marker in group.inputs)) for group in groups
            ),
            kind=_FOOTER_KINDS[self._change.kind],
            checks_partition=self._change.kind != "delete",
            commit_id=self._job.commit_id,
            time_ms=self._job.time_ms,
            engine=share_threads(self._engine, task_count),
        )

    def _write(self, rows: Any, unit: ChangeUnit) -> Mapping[int, list[GroupOutput]]:
        answers = rows.mapInArrow(make_change_task(self._runner.store, unit), schema=ANSWER_SCHEMA).collect()
        report_again(answers)
        _raise_sent(answer["body"] for answer in answers if answer["outcome"] != OK)
        outputs: dict[int, list[GroupOutput]] = defaultdict(list)
        for answer in answers:
            for output in GROUP_OUTPUTS.validate_json(answer["body"]):
                outputs[output.ordinal].append(output)
        return outputs


def _is_gone(spark: SparkSession, change: RowChange) -> Any:
    """Return the column that says whether a row is removed: a condition that is NULL keeps it."""
    return sf.coalesce(sf.expr(guard_condition(spark, change.sql)), sf.lit(False))


def _raise_sent(texts: Iterable[str | None]) -> None:
    for text in texts:
        if text is not None:
            raise read_error_text(text)


@contextmanager
def _change_errors(config: TableConfig, change: RowChange) -> Iterator[None]:
    """Say whose SQL is to blame, and who can correct it: the caller, or for a ``merge_query`` the table's owner."""
    try:
        try:
            yield
        except QueryProblem as problem:
            raise InvalidRequest(f"table {config.name}: {WORDS[change.kind]}: {problem}") from problem
    except InvalidRequest as error:
        if change.kind != "merge_query":
            raise
        raise SchemaConflict(
            f"{error}; correct it with `icedb table alter {config.name} --merge-query …`: until then nothing of the "
            "table is merged"
        ) from error


def _pack_groups(groups: Sequence[MergeGroup]) -> Iterator[list[MergeGroup]]:
    part: list[MergeGroup] = []
    size_bytes = 0
    for group in groups:
        if part and (size_bytes + group.size_bytes > MAX_WAITING_BYTES or len(part) == MAX_WAITING_GROUPS):
            yield part
            part, size_bytes = [], 0
        part.append(group)
        size_bytes += group.size_bytes
    yield part
