"""Jobs on Spark that change rows: a deletion's condition, and queries that make the rows of a group anew (M3).

Each group is a unit of its own, and all groups of a job run in one Spark job, as those of a plain merge do. SQL of
users runs in the units, in DuckDB; Spark only deals them out. The driver never sees a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.jobs import CountJob, MergedGroup, MergeJob, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.stores import StoreSettings
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB
from pyspark.sql import SparkSession

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.spark.spark_merge import SparkGroupMerger
from icedb_engine.spark.spark_runner import SparkJobs
from icedb_engine.spark.spark_watch import WatchRules
from icedb_engine.sql.checks import check_row_change, require_dialect, require_known_types
from icedb_engine.units.change_unit import ChangeUnit, CountUnit
from icedb_engine.units.read_unit import NumberedFile
from icedb_engine.units.work_units import CHANGE_RESULTS, COUNT_RESULTS, encode

COUNT_TASK_BYTES: Final = 64 * MIB
"""Bytes of data files in which rows are counted that are worth a task of their own."""
COUNT_TASK_FILES: Final = 256
SCRATCH_FACTOR: Final = 4
"""So many times the size of its data files a group needs of scratch, about: decoded, as a relation, and sorted."""

_log: Final = structlog.get_logger(__name__)


class SparkRowChanger(SparkJobs):
    """A :class:`icedb_log.jobs.RowChanger` that runs on Spark, and the :class:`icedb_log.jobs.GroupMerger` beside it.

    Args:
        spark: The session.
        store: How tasks reach the store.
        clock: For durations in the log.
        limits: Bounds of tasks.
        rules: How jobs are watched.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        clock: Clock,
        limits: JobLimits | None = None,
        rules: WatchRules | None = None,
    ) -> None:
        super().__init__(spark, store, clock=clock, limits=limits, rules=rules)
        self._merger = SparkGroupMerger(spark, store, clock=clock, limits=limits, rules=rules)

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check a change against a table; nothing is read or written.

        Raises:
            InvalidRequest: The SQL is wrong, reaches beyond its view, drops a partition or sort column, adds a column
                that the table does not have, or changes a type.
            Unavailable: No process for it can be started.
        """
        check_row_change(config, schema, change)

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
        parts = list(_pack_files(job.files))
        engine = share_threads(self._limits.engine, len(parts))
        bodies = [encode(CountUnit(job.paths, dict(job.schema), part, job.change.sql, engine)) for part in parts]
        runner = self._runner.checking(job.check_alive)
        results = [COUNT_RESULTS.validate_json(body) for body in runner.run("count", bodies, is_users=True)]
        counts = {ordinal: count for result in results for ordinal, count in result.counts.items()}
        return tuple(counts[number] for number in range(len(job.files)))

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
        with _change_errors(job.config, job.change):
            merged = self._change_groups(job, job.change)
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

    def _change_groups(self, job: MergeJob, change: RowChange) -> tuple[MergedGroup, ...]:
        require_known_types(job.config, job.schema)
        groups = sorted(job.groups, key=lambda group: -group.size_bytes)
        scratch_bytes, needed_bytes = self._limits.engine.scratch_bytes, SCRATCH_FACTOR * groups[0].size_bytes
        if change.kind == "rewrite" and needed_bytes > scratch_bytes:
            raise InvalidRequest(
                f"table {job.paths.name}: rewriting {groups[0].partition or 'the table'} takes about {needed_bytes} "
                f"bytes of scratch, and a task has {scratch_bytes}: give tasks more. Nothing was changed"
            )
        engine = share_threads(self._limits.engine, len(groups))
        bodies = [
            encode(
                ChangeUnit(
                    paths=job.paths,
                    config=job.config,
                    schema=dict(job.schema),
                    group=group,
                    change=change,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    engine=engine,
                )
            )
            for group in groups
        ]
        runner = self._runner.checking(job.check_alive)
        answers = runner.run("change", bodies, is_users=change.kind != "merge_query")
        results = [CHANGE_RESULTS.validate_json(body) for body in answers]
        return tuple(
            MergedGroup(group, result.outputs, result.rows_read, result.rows_removed)
            for group, result in zip(groups, results, strict=True)
        )


def _pack_files(files: Sequence[FileMarker]) -> Iterator[tuple[NumberedFile, ...]]:
    part: list[NumberedFile] = []
    size_bytes = 0
    for number, marker in enumerate(files):
        if part and (size_bytes + marker.size_bytes > COUNT_TASK_BYTES or len(part) == COUNT_TASK_FILES):
            yield tuple(part)
            part, size_bytes = [], 0
        part.append(NumberedFile(number, marker.path, marker.row_count))
        size_bytes += marker.size_bytes
    yield tuple(part)


@contextmanager
def _change_errors(config: TableConfig, change: RowChange) -> Iterator[None]:
    """Say who can correct SQL that does not fit: the caller, or for a ``merge_query`` the table's owner."""
    if change.kind != "merge_query":
        yield
        return
    require_dialect(config, "merge_query")
    try:
        yield
    except InvalidRequest as error:
        raise SchemaConflict(
            f"{error}; correct it with `icedb table alter {config.name} --merge-query …`: until then nothing of the "
            "table is merged"
        ) from error
