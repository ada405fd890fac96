"""Feed jobs on Spark: the rows of commits of a table go through a view's query, and its result is written.

Units take whole commits, oldest first, run the query over their rows and write what it gives
(:mod:`icedb_engine.units.query_unit`). The driver never sees a row.
"""

from collections.abc import Iterator

import structlog
from icedb_log.feed.feed_jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit
from icedb_log.jobs import FlushJob

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.reading.widening import unite_known
from icedb_engine.spark.spark_runner import SparkJobs, SparkRunner
from icedb_engine.sql.checks import VIEW_QUERY, require_dialect
from icedb_engine.units.query_unit import FeedUnit, QueryTarget, QueryUnitResult
from icedb_engine.units.work_units import QUERY_RESULTS, encode
from icedb_engine.writing.part_files import require_parity

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
            SchemaConflict: The configuration has a query of another dialect, or a data file another type.
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


class _FeedRun:
    """One call of :meth:`SparkViewFeeder.feed_rows`."""

    def __init__(self, job: FeedJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        written_as = FlushJob(
            paths=job.paths,
            config=job.config,
            schema=job.schema,
            batches=(),
            commit_id=job.commit_id,
            time_ms=job.time_ms,
        )
        self._known = unite_known(written_as)

    def run(self) -> FeedOutput:
        """Read, query and write."""
        require_dialect(self._job.config, VIEW_QUERY)
        units = list(self._split())
        results = [QUERY_RESULTS.validate_json(body) for body in self._runner.run("feed", self._encode(units))]
        return self._collect(units, results)

    def _split(self) -> Iterator[Commits]:
        """Yield commits whose data files are worth a task of their own together."""
        part: list[SourceCommit] = []
        size_bytes = 0
        for commit in self._job.commits:
            if part and size_bytes + commit.size_bytes > self._limits.write_task_bytes:
                yield tuple(part)
                part, size_bytes = [], 0
            part.append(commit)
            size_bytes += commit.size_bytes
        yield tuple(part)

    def _encode(self, units: list[Commits]) -> list[str]:
        job = self._job
        target = QueryTarget(
            paths=job.paths,
            config=job.config,
            known=self._known,
            max_columns=self._limits.batch.table_columns,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            engine=share_threads(self._limits.engine, len(units)),
        )
        return [encode(FeedUnit(job.source, dict(job.source_schema), commits, target)) for commits in units]

    def _collect(self, units: list[Commits], results: list[QueryUnitResult]) -> FeedOutput:
        taken: list[SourceCommit] = []
        refused: list[RefusedCommit] = []
        deferred: list[SourceCommit] = []
        made: list[QueryUnitResult] = []
        partitions: set[str] = set()
        for commits, result in zip(units, results, strict=True):
            union = partitions.union(result.partitions)
            if partitions and len(union) > self._job.config.max_partitions_per_flush:
                deferred += commits  # its files are orphans
                continue
            partitions = union
            made.append(result)
            taken += (commits[place] for place in result.taken)
            refused += (RefusedCommit(commits[place], reason) for place, reason in sorted(result.refused.items()))
            deferred += (commits[place] for place in result.deferred)
        files = tuple(marker for result in made for marker in result.files)
        row_count = sum(result.row_count for result in made)
        require_parity(self._job.paths, read_count=row_count, files=files)
        columns = {name: kind for result in made for name, kind in result.columns.items()}
        return FeedOutput(
            files=files,
            schema={**self._known, **columns} if files else self._job.schema,
            taken=tuple(taken),
            refused=tuple(refused),
            deferred=tuple(deferred),
            row_count=row_count,
            # Each task compares what it reads of a file with what the file's log file says.
            rows_read=sum(marker.row_count or 0 for commit in taken for marker in commit.files),
        )
