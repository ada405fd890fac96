"""Feed jobs on Spark: the rows of commits of a table go through a view's query, and its result is written.

The query sees the rows of all commits of the feed at once, as the view ``_rows``. If it fails on them, it runs over
half of the commits, and so on, until the one that it cannot take stands alone and is refused. A query that Spark cannot
even analyse would fail on each of them: all are refused at once. The driver never sees a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.feed.feed_jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit
from icedb_log.jobs import FlushJob
from icedb_log.model import FileMarker

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.query.guarded_query import run_query
from icedb_engine.query.insert_query import QueryProblem, make_spark_schema, query_errors, rows_view
from icedb_engine.query.query_tasks import make_encode_task
from icedb_engine.query.query_types import ROWS_VIEW, OutputColumn, read_output_columns, store_column
from icedb_engine.query.user_sql import check_user_sql
from icedb_engine.query.view_query import VIEW_QUERY
from icedb_engine.reading.widening import unite_known
from icedb_engine.spark.spark_blobs import BLOB_SCHEMA, SparkBlobs, write_blobs
from icedb_engine.spark.spark_files import file_errors, open_data_files
from icedb_engine.spark.spark_runner import SparkJobs, SparkRunner
from icedb_engine.units.flush_types import QueryPart, UnitBlobs
from icedb_engine.units.flush_unit import EncodeUnit
from icedb_engine.units.work_units import FLUSH_RESULTS
from icedb_engine.writing.part_files import require_parity

MAX_QUERY_RUNS: Final = 64
"""Runs of a query in one feed while it looks for commits that it cannot take; the rest waits for the next feed."""

Commits = tuple[SourceCommit, ...]

_log = structlog.get_logger(__name__)


class SparkViewFeeder(SparkJobs):
    """A :class:`icedb_log.feed.feed_jobs.ViewFeeder` that runs on Spark."""

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Run a view's query over the rows of a job's commits, and upload what it gives.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            NotFound: A data file of a commit is gone.
            CorruptLog: A data file cannot be read, or holds other rows than its log file says.
            SchemaConflict: The configuration has a query that cannot be run at all, or a data file another type.
            Unavailable: The store or the engine did not answer, or took too long.
        """
        started_ms = self._clock.monotonic_ms()
        run = _FeedRun(job, self._runner.checking(job.check_alive), self._limits)
        output = run.run()
        _log.info(
            "commits fed",
            table=job.paths.name,
            source=job.source.name,
            commits=len(output.taken),
            refused=len(output.refused),
            deferred=len(output.deferred),
            rows_read=output.rows_read,
            rows=output.row_count,
            files=len(output.files),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output


@dataclass(frozen=True, slots=True)
class _Part(QueryPart):
    """Some commits over which the query ran, and the result's rows."""

    commits: Commits


class _FeedRun:
    """One call of :meth:`SparkViewFeeder.feed_rows`."""

    def __init__(self, job: FeedJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._query = job.config.view_query or ""
        self._written_as = FlushJob(
            paths=job.paths,
            config=job.config,
            schema=job.schema,
            batches=(),
            commit_id=job.commit_id,
            time_ms=job.time_ms,
        )
        self._known = unite_known(self._written_as)
        self._what = f"the {VIEW_QUERY} of table {job.paths.name}"
        self._parts: list[_Part] = []
        self._refused: list[RefusedCommit] = []
        self._deferred: list[SourceCommit] = []
        self._run_count = 0

    def run(self) -> FeedOutput:
        """Read, query and write."""
        try:
            check_user_sql(self._query, view=ROWS_VIEW, what=VIEW_QUERY)
        except InvalidRequest as error:
            raise SchemaConflict(f"{error}: correct {self._job.paths.config_key}") from error
        try:
            outputs = self._analyse()
        except QueryProblem as problem:
            self._refuse(self._job.commits, problem)
            return self._collect((), {})
        columns = {column.name: column.sql_type for column in outputs}
        with SparkBlobs(self._runner) as blobs:
            self._take(blobs, outputs)
            files = write_blobs(
                self._written_as,
                [unit for part in self._parts for unit in part.units],
                blobs,
                columns=columns,
                limits=self._limits,
            )
        return self._collect(files, columns)

    def _analyse(self) -> tuple[OutputColumn, ...]:
        """Return the columns of the query's result, asked of Spark with no row. Raises QueryProblem, Unavailable."""
        spark: Any = self._runner.spark
        rows = spark.createDataFrame([], schema=make_spark_schema(self._job.source_schema))
        with rows_view(rows), query_errors(self._what), self._runner.watch(self._what):
            result = run_query(spark, self._query, view=ROWS_VIEW)
            try:
                return read_output_columns(
                    result.schema,
                    self._job.config,
                    known=self._known,
                    max_columns=self._limits.batch.table_columns,
                    widens=True,
                    what=VIEW_QUERY,
                )
            except InvalidRequest as error:
                raise QueryProblem(str(error)) from error

    def _take(self, blobs: SparkBlobs, outputs: tuple[OutputColumn, ...]) -> None:
        """Run the query over all commits, or over ever smaller parts of them, oldest first."""
        stack = [self._job.commits]
        while stack:
            commits = stack.pop()
            if self._run_count == MAX_QUERY_RUNS:
                self._deferred += commits
                continue
            halves = [commits[len(commits) // 2 :], commits[: len(commits) // 2]]
            try:
                part = self._run_query(commits, blobs, outputs)
            except QueryProblem as problem:
                if len(commits) > 1:
                    stack += halves
                else:
                    self._refuse(commits, problem)
                continue
            if self._has_room(part):
                self._parts.append(part)
            elif len(commits) > 1:
                self._deferred += [commit for later in (halves[0], *stack) for commit in later]
                stack = [halves[1]]
            else:
                self._deferred += [commit for later in (commits, *stack) for commit in later]
                stack = []

    def _has_room(self, part: _Part) -> bool:
        """Whether the commit can take a part's partitions, too; a single commit goes alone if need be."""
        taken = {partition for each in self._parts for partition in each.partitions}
        if len(taken | part.partitions) <= self._job.config.max_partitions_per_flush or not part.partitions:
            return True
        return not taken and len(part.commits) == 1

    def _refuse(self, commits: Commits, problem: QueryProblem) -> None:
        self._refused += [RefusedCommit(commit, f"{VIEW_QUERY}: {problem}") for commit in commits]

    def _run_query(self, commits: Commits, blobs: SparkBlobs, outputs: tuple[OutputColumn, ...]) -> _Part:
        """Run the query over the rows of some commits.

        Raises:
            QueryProblem: It cannot be run on them.
            IceDBError: A data file cannot be read; the store or Spark did not answer.
        """
        files = [marker for commit in commits for marker in commit.files]
        if not files:
            return _Part((), commits)
        self._run_count += 1
        spark: Any = self._runner.spark
        first = blobs.unit_count
        rows = open_data_files(
            self._runner,
            self._job.source,
            files,
            self._job.source_schema,
            engine=self._limits.engine,
            task_bytes=self._limits.write_task_bytes,
        )
        columns = {column.name: column.sql_type for column in outputs}
        engine = share_threads(self._limits.engine, len(files))
        unit = EncodeUnit(self._job.paths, self._job.config, columns, engine, what=VIEW_QUERY)
        with rows_view(rows), query_errors(self._what), self._runner.watch(self._what), file_errors():
            try:
                stored = run_query(spark, self._query, view=ROWS_VIEW).select(
                    *(store_column(column) for column in outputs)
                )
                bodies = blobs.keep_any(stored.mapInArrow(make_encode_task(unit, first=first), schema=BLOB_SCHEMA))
            except InvalidRequest as error:
                raise QueryProblem(str(error)) from error
        results = {number: FLUSH_RESULTS.validate_json(body) for number, body in bodies.items()}
        return _Part(tuple(UnitBlobs(number, each.partitions, each.blobs) for number, each in results.items()), commits)

    def _collect(self, files: tuple[FileMarker, ...], columns: Mapping[str, str]) -> FeedOutput:
        row_count = sum(part.row_count for part in self._parts)
        require_parity(self._job.paths, read_count=row_count, files=files)
        taken = tuple(commit for part in self._parts for commit in part.commits)
        return FeedOutput(
            files=tuple(files),
            schema={**self._known, **columns} if files else self._job.schema,
            taken=taken,
            refused=tuple(self._refused),
            deferred=tuple(self._deferred),
            row_count=row_count,
            # Each task compares what it reads of a file with what the file's log file says.
            rows_read=sum(marker.row_count or 0 for commit in taken for marker in commit.files),
        )
