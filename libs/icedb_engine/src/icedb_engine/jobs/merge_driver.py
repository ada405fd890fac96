"""Merge jobs, and those that change rows: a deletion's condition, and queries that make them anew (M3).

Each group is a unit of its own, or several of one partition are cut by ranges of the sort order
(:mod:`icedb_engine.jobs.merge_ranges`). SQL of users runs in the units, in DuckDB. The driver never sees a row, except
of a merge so small that no other process is worth it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import structlog
from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.jobs import CountJob, MergedGroup, MergeGroup, MergeJob, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

from icedb_engine.jobs.merge_ranges import RangedMerge, are_worth_a_cut
from icedb_engine.jobs.runner import Driver, UnitRunner
from icedb_engine.reading.text_sample import sample_texts
from icedb_engine.sql.checks import check_row_change, require_known_types
from icedb_engine.work import DataFile, MergeUnit, ReadUnit, pack

DIRECT_FILES: Final = 64
DIRECT_BYTES: Final = MIB // 4
"""Up to so many data files of so many bytes together are merged in this process: a job takes longer."""
COUNT_TASK_BYTES: Final = 64 * MIB
"""Bytes of data files in which rows are counted that are worth a task of their own."""
COUNT_TASK_FILES: Final = 256
SCRATCH_FACTOR: Final = 4
"""So many times the size of its data files a group needs of scratch, about: decoded, as a relation, and sorted."""

_log: Final = structlog.get_logger(__name__)


class MergeDriver(Driver):
    """Runs merge jobs, and those that change rows: all that :mod:`icedb_log.jobs` asks of a merger."""

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """See :class:`icedb_log.jobs.GroupMerger`. The largest groups come first."""
        started_ms = self._clock.monotonic_ms()
        groups = sorted(job.groups, key=lambda group: -group.size_bytes)
        runner = self._runner.checking(job.check_alive)
        about: dict[str, Any] = {}
        if job.change is None:
            ranged = [] if _are_small(groups) else self._cut(job, groups)
            about = {"ranges": sum(len(each.units) for each in ranged)} if ranged else {}
            merged = self._merge(job, groups, ranged, runner)
        else:
            about = {"kind": job.change.kind}
            units = [MergeUnit.of(job, self._limits.engine, group=group, change=job.change) for group in groups]
            with _change_errors(job.config, job.change):
                self._require_possible(job, job.change, groups[0])
                merged = runner.run("change", units, is_users=job.change.kind != "merge_query")
        _log.info(
            "rows changed" if job.change else "groups merged",
            table=job.paths.name,
            **about,
            groups=len(groups),
            inputs=sum(len(group.inputs) for group in groups),
            outputs=sum(len(group.outputs) for group in merged),
            rows=sum(group.rows_read for group in merged),
            rows_decoded=sum(group.rows_decoded for group in merged),
            bytes_copied=sum(group.copied_bytes for group in merged),
            misfits=sum(group.misfit_count for group in merged),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return tuple(merged)

    def _cut(self, job: MergeJob, groups: Sequence[MergeGroup]) -> list[RangedMerge]:
        """Return the partitions whose groups are merged as one, by ranges of the sort order."""
        by_partition: dict[str, list[MergeGroup]] = {}
        for group in groups:
            by_partition.setdefault(group.partition, []).append(group)
        worth = [found for found in by_partition.values() if are_worth_a_cut(job, found)]
        store, engine = self._runner.open_store() if worth else None, self._limits.engine
        planned = [RangedMerge.plan(job, found, store, engine) for found in worth if store is not None]
        return [each for each in planned if each is not None]

    def _merge(
        self, job: MergeJob, groups: Sequence[MergeGroup], ranged: Sequence[RangedMerge], runner: UnitRunner
    ) -> list[MergedGroup]:
        """Run all units as one job; those of a range are told as one group."""
        cut = {each.partition for each in ranged}
        others = [group for group in groups if group.partition not in cut]
        units = [unit for each in ranged for unit in each.units]
        units += [MergeUnit.of(job, self._limits.engine, group=group) for group in others]
        done = runner.run("merge", units, is_small=_are_small(groups))
        merged, first = [], 0
        for each in ranged:
            merged.append(each.unite(done[first : first + len(each.units)], self._runner.open_store()))
            first += len(each.units)
        return [*merged, *done[first:]]

    def _require_possible(self, job: MergeJob, change: RowChange, largest: MergeGroup) -> None:
        require_known_types(job.config, job.schema)
        scratch_bytes, needed_bytes = self._limits.engine.scratch_bytes, SCRATCH_FACTOR * largest.size_bytes
        if change.kind == "rewrite" and needed_bytes > scratch_bytes:
            raise InvalidRequest(
                f"table {job.paths.name}: rewriting {largest.partition or 'the table'} takes about {needed_bytes} "
                f"bytes of scratch, and a task has {scratch_bytes}: give tasks more. Nothing was changed"
            )

    def sample_texts(self, table: TableStore, files: Sequence[FileMarker], column: str) -> Sequence[str | None]:
        """See :class:`icedb_log.jobs.TextSampler`."""
        return sample_texts(table.store, files, column)

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check a change against a table; nothing is read or written. As :func:`check_row_change`."""
        check_row_change(config, schema, change)

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return the files that can hold rows that a deletion removes, by partition values and statistics."""
        selected = FilePruner(change.sql, config).select(files)
        _log.debug("files selected", table=paths.name, files=len(files), selected=len(selected))
        return selected

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """See :class:`icedb_log.jobs.RowChanger`."""
        require_known_types(job.config, job.schema)
        files = [DataFile.of(marker) for marker in job.files]
        parts = pack(files, lambda file: file.size_bytes, max_bytes=COUNT_TASK_BYTES, max_count=COUNT_TASK_FILES)
        units = [
            ReadUnit(paths=job.paths, columns=job.schema, files=part, engine=self._limits.engine, where=job.change.sql)
            for part in parts
        ]
        results = self._runner.checking(job.check_alive).run("count", units, is_users=True)
        return tuple(count for counts in results for count in counts)


def _are_small(groups: Sequence[MergeGroup]) -> bool:
    file_count = sum(len(group.inputs) for group in groups)
    return file_count <= DIRECT_FILES and sum(group.size_bytes for group in groups) <= DIRECT_BYTES


@contextmanager
def _change_errors(config: TableConfig, change: RowChange) -> Iterator[None]:
    """Name who can correct wrong SQL: the caller, or for a ``merge_query`` the table's owner."""
    if change.kind != "merge_query":
        yield
        return
    try:
        yield
    except InvalidRequest as error:
        raise SchemaConflict(
            f"{error}; correct it with `icedb table alter {config.name} --merge-query …`: until then nothing of the "
            "table is merged"
        ) from error
