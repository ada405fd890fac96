"""The data path of feeds on a store in memory: a view's query is a Python function of rows.

Implements :class:`~icedb_log.jobs.ViewFeeder` with the same promises as the real one: fresh names, refused
commits with a reason, counts, and no look at a log.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from icedb_log.clock import Clock
from icedb_log.jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partitions import encode_partition_value

from icedb_sim.tables.row_files import Row, read_rows, write_partitions

Query = Callable[[list[dict[str, Any]]], Sequence[Row]]
"""Makes a view's rows of its source's; a ``ValueError`` says that it cannot."""


def copy_rows(rows: list[dict[str, Any]]) -> Sequence[Row]:
    """Take rows as they are, but none with a field ``poison``."""
    if any("poison" in row for row in rows):
        raise ValueError("a row is poisoned")
    return rows


@dataclass(frozen=True, slots=True)
class RowFileFeeder:
    """Writes what a query makes of some commits into one data file for each partition."""

    store: ObjectStore
    clock: Clock
    query: Query = copy_rows
    has_footers: bool = False

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Run a feed job. Raises NotFound (a data file of a commit is gone)."""
        taken: list[SourceCommit] = []
        refused: list[RefusedCommit] = []
        rows: dict[str, list[Row]] = defaultdict(list)
        rows_read = 0
        stack: list[tuple[SourceCommit, ...]] = [job.commits]
        while stack:
            commits = stack.pop()
            read = [row for commit in commits for marker in commit.files for row in read_rows(self.store, marker.path)]
            try:
                made = self.query(read)
            except ValueError as error:
                if len(commits) == 1:
                    refused.append(RefusedCommit(commits[0], str(error)))
                else:
                    stack += [commits[len(commits) // 2 :], commits[: len(commits) // 2]]
                continue
            taken += commits
            rows_read += len(read)
            for row in made:
                rows[_partition_of(job, row)].append(row)
        files = write_partitions(self.store, job, rows, clock=self.clock, has_footers=self.has_footers)
        types = {
            column: {int: "BIGINT", str: "VARCHAR", float: "DOUBLE"}[type(value)]
            for part in rows.values()
            for row in part
            for column, value in row.items()
        }
        return FeedOutput(
            files=files,
            schema={**job.schema, **types},
            taken=tuple(taken),
            refused=tuple(refused),
            deferred=(),
            row_count=sum(len(part) for part in rows.values()),
            rows_read=rows_read,
        )


def _partition_of(job: FeedJob, row: Row) -> str:
    return "/".join(f"{each.name}={encode_partition_value(str(row[each.column]))}" for each in job.config.partition)
