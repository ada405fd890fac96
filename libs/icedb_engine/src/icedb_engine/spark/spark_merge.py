"""Merge jobs on Spark: a task for each group of data files. The driver never sees a row."""

import structlog
from icedb_log.jobs import MergedGroup, MergeJob

from icedb_engine.limits import share_threads
from icedb_engine.spark.spark_runner import SparkJobs
from icedb_engine.units.merge_unit import MergeUnit
from icedb_engine.units.work_units import MERGE_RESULTS, encode

_log = structlog.get_logger(__name__)


class SparkGroupMerger(SparkJobs):
    """A :class:`icedb_log.jobs.GroupMerger` that runs on Spark."""

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Merge every group of a job, the largest first, each in a task of its own.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            NotFound: An input is gone although it is live.
            SchemaConflict: An input has a column of another type than the table.
            CorruptLog: An input is not readable as Parquet.
            Unavailable: The store or the engine did not answer.
        """
        started_ms = self._clock.monotonic_ms()
        groups = sorted(job.groups, key=lambda group: -group.size_bytes)
        engine = share_threads(self._limits.engine, len(groups))
        bodies = [
            encode(
                MergeUnit(
                    paths=job.paths,
                    config=job.config,
                    schema=dict(job.schema),
                    group=group,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    engine=engine,
                )
            )
            for group in groups
        ]
        results = [
            MERGE_RESULTS.validate_json(body) for body in self._runner.checking(job.check_alive).run("merge", bodies)
        ]
        _log.info(
            "groups merged",
            table=job.paths.name,
            groups=len(groups),
            inputs=sum(len(group.inputs) for group in groups),
            outputs=sum(len(result.outputs) for result in results),
            rows=sum(result.rows_read for result in results),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return tuple(results)
