"""What a feed asks of the data path: jobs, their results, and the protocol that runs them.

Owns no logic. :mod:`icedb_log.feed.feeds` decides which commits a view takes and commits what became of them;
:mod:`icedb_engine` (PySpark) and the simulation implement :class:`ViewFeeder`. It only ever adds data files under fresh
names: it never deletes, and never touches a log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from icedb_log.errors import InvariantViolated
from icedb_log.jobs import CheckAlive, Target, never_stop
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """An append to the source of a view.

    Attributes:
        name: Of its log file, see :func:`icedb_log.keys.log_name`.
        time_ms: Commit time.
        files: Data files that it made live, whatever was merged or removed since.
    """

    name: str
    time_ms: int
    files: tuple[FileMarker, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its data files."""
        return sum(marker.size_bytes for marker in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedJob(Target):
    """Run a view's query over the rows of some commits.

    The table is the view; the schema is as its log has it, declared columns are not necessarily in it yet.

    Attributes:
        source: Keys of the source.
        source_schema: Column to SQL type of the source, logged and declared: the columns of the query's rows.
        commits: Oldest first; at least one, and at least one has data files.
        check_alive: Asked while the job works; what it raises stops the job.
    """

    source: TablePaths
    source_schema: Mapping[str, str]
    commits: tuple[SourceCommit, ...]
    check_alive: CheckAlive = never_stop


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """A commit of the source over whose rows the query cannot be run, and why, in words for a person (V5)."""

    commit: SourceCommit
    reason: str


@dataclass(frozen=True, slots=True)
class FeedOutput:
    """What a feed job made. Every commit of the job is in exactly one of taken, refused and deferred.

    Attributes:
        files: New data files of the view, with row counts and statistics; none if the query gave no row.
        schema: Union of the job's schema and the columns of the query's result.
        taken: Commits whose rows the query has seen.
        refused: Commits of which nothing is in ``files``.
        deferred: Commits that wait for the next feed; never all of them.
        row_count: Rows in ``files``.
        rows_read: Rows of the taken commits.
    """

    files: tuple[FileMarker, ...]
    schema: Mapping[str, str]
    taken: tuple[SourceCommit, ...]
    refused: tuple[RefusedCommit, ...]
    deferred: tuple[SourceCommit, ...]
    row_count: int
    rows_read: int


class ViewFeeder(Protocol):
    """Runs feed jobs."""

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Run a view's query over the rows of a job's commits, and upload what it gives.

        Not idempotent: each call makes new files. If the query fails on the rows, it runs over fewer commits, until
        the one that it cannot take stands alone and is refused with the reason.

        Raises:
            NotFound: A data file of a commit is gone although its log file is there: the source is damaged.
            SchemaConflict: The configuration has a query that cannot be run at all.
            Unavailable: The store or the engine did not answer.
        """
        ...


def require_commits_accounted(job: FeedJob, output: FeedOutput) -> None:
    """Each commit of a job is taken or refused once, or deferred; and a job defers never all of them (V1, V5)."""
    table = job.paths.name
    refused = tuple(each.commit for each in output.refused)
    answered = sorted(commit.name for commit in (*output.taken, *refused, *output.deferred))
    if answered != sorted(commit.name for commit in job.commits):
        raise InvariantViolated(f"table {table}: the feed job did not decide each of its commits once (V1)")
    if len(output.deferred) == len(job.commits):
        raise InvariantViolated(f"table {table}: the feed job deferred all of its commits: it would never end (V5)")
    if output.files and not output.taken:
        raise InvariantViolated(f"table {table}: the feed job took no commit, yet wrote data files (V1)")
    if output.row_count != sum(marker.row_count or 0 for marker in output.files):
        raise InvariantViolated(f"table {table}: the feed job says {output.row_count} rows, its files differ (V1)")
    announced = [marker.row_count for commit in output.taken for marker in commit.files]
    if None not in announced and output.rows_read != sum(count or 0 for count in announced):
        raise InvariantViolated(
            f"table {table}: the commits hold {sum(count or 0 for count in announced)} rows by the log of "
            f"{job.source.name}, {output.rows_read} were read; nothing was committed (V1)"
        )
