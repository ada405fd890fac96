"""Feed jobs: the rows of commits of a table go through a view's query, and its result is written.

Units take whole commits, oldest first, run the query over their rows and write what it gives
(:mod:`icedb_engine.units.query_unit`). The driver never sees a row.
"""

import structlog
from icedb_log.jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit

from icedb_engine.jobs.runner import Driver
from icedb_engine.reading.widening import unite_known
from icedb_engine.work import FeedUnit, UnitResult, pack
from icedb_engine.writing.part_files import require_parity

_log = structlog.get_logger(__name__)


class FeedDriver(Driver):
    """Runs feed jobs: a :class:`icedb_log.jobs.ViewFeeder`."""

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """See :class:`icedb_log.jobs.ViewFeeder`."""
        started_ms = self._clock.monotonic_ms()
        known = unite_known(job)
        parts = pack(job.commits, lambda commit: commit.size_bytes, max_bytes=self._limits.write_task_bytes)
        units = [
            FeedUnit.of(
                job,
                self._limits.engine,
                schema=known,
                source=job.source,
                source_schema=job.source_schema,
                commits=commits,
                max_columns=self._limits.batch.table_columns,
            )
            for commits in parts
        ]
        results = self._runner.checking(job.check_alive).run("feed", units)
        output = _unite(job, known, list(zip(parts, results, strict=True)))
        _log.info(
            "commits fed",
            table=job.paths.name,
            source=job.source.name,
            commits=len(output.taken),
            refused=len(output.refused),
            deferred=len(output.deferred),
            rows_read=output.rows_read,
            rows=output.row_count,
            misfits=output.misfit_count,
            files=len(output.files),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output


def _unite(
    job: FeedJob, known: dict[str, str], answered: list[tuple[tuple[SourceCommit, ...], UnitResult]]
) -> FeedOutput:
    made: list[UnitResult] = []
    partitions: set[str] = set()
    beyond: set[str] = set()
    for commits, result in answered:
        union = partitions.union(result.partitions)
        if partitions and len(union) > job.config.max_partitions_per_flush:
            beyond.update(commit.name for commit in commits)  # its files are orphans
            continue
        partitions = union
        made.append(result)
    files = tuple(marker for result in made for marker in result.files)
    row_count = sum(result.row_count for result in made)
    require_parity(job.paths, read_count=row_count, files=files)
    columns = {name: kind for result in made for name, kind in result.columns.items()}
    accepted = {name for result in made for name in result.accepted}
    refused = {name: reason for result in made for name, reason in result.rejected.items()}
    deferred = beyond.union(name for result in made for name in result.deferred)
    taken = tuple(commit for commit in job.commits if commit.name in accepted)
    return FeedOutput(
        files=files,
        schema={**known, **columns} if files else job.schema,
        taken=taken,
        refused=tuple(RefusedCommit(each, refused[each.name]) for each in job.commits if each.name in refused),
        deferred=tuple(commit for commit in job.commits if commit.name in deferred),
        row_count=row_count,
        # Each task compares what it reads of a file with what the file's log file says.
        rows_read=sum(marker.row_count or 0 for commit in taken for marker in commit.files),
        misfit_count=sum(result.misfit_count for result in made),
    )
