"""One table of a :class:`~icedb.lake.Lake`: append, read, merge, change, clean, publish."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icedb_client.requests import Parameters, Partitions, Time
from icedb_client.snapshots import Snapshot
from icedb_log.changes.frequent_paths import promote_by_sample
from icedb_log.changes.row_changes import ChangeResult
from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.clean.sweep import SweepResult, sweep_table
from icedb_log.errors import (
    InvalidRequest,
)
from icedb_log.feed.feeds import FeedResult, feed_view
from icedb_log.feed.views import open_source
from icedb_log.merge.merge import MergeResult, MergeWatch, merge_table
from icedb_log.merge.merge_plan import MergeLimits, MergeOptions
from icedb_log.operations import ChangeRequest
from icedb_log.units import SECOND_MS

from icedb.appender import Appender
from icedb.table_writer import TableWriter

if TYPE_CHECKING:
    from icedb_client.describe import TableDescription
    from icedb_client.duck import QueryResult


class LakeTable(TableWriter):
    """A table in this process. Thread-safe; made by :meth:`icedb.lake.Lake.table`."""

    def appender(self, *, commit_every_ms: int = SECOND_MS) -> Appender:
        """Return what many small appends go through, in a ``with`` block; see :class:`icedb.Appender`.

        Args:
            commit_every_ms: Least time between two commits.
        """
        return Appender(self, commit_every_ms=commit_every_ms)

    def query(
        self,
        sql: str,
        *,
        parameters: Parameters | None = None,
        as_of: Time | None = None,
        tag: str | None = None,
    ) -> "QueryResult":
        """Run one reading statement; the table stands under its name. See :meth:`icedb_client.Client.query`."""
        return self.lake.client.query(sql, parameters=parameters, as_of=as_of, tag=tag)

    def describe(self, *, files: int = 100) -> "TableDescription":
        """Return what is in each column; see :meth:`icedb_client.snapshots.Snapshot.describe`."""
        return self.lake.client.snapshot(self.name, bounds=True).describe(files=files)

    def snapshot(
        self,
        *,
        where: str | None = None,
        partitions: Partitions = None,
        as_of: Time | None = None,
        tag: str | None = None,
    ) -> Snapshot:
        """Return the live data files and every way to read them; see :meth:`icedb_client.Client.snapshot`."""
        return self.lake.client.snapshot(self.name, where=where, partitions=partitions, as_of=as_of, tag=tag)

    def feed(self) -> FeedResult:
        """Let a view take what was committed to its source, in one commit. Raises as :func:`feed_view`."""
        with self.flushing:
            view = self.open()
            return feed_view(view, open_source(view), self.lake.engine.feeder)

    def merge(
        self,
        *,
        full: bool = False,
        cold: bool = False,
        limits: MergeLimits | None = None,
        watch: MergeWatch | None = None,
    ) -> MergeResult:
        """Merge small data files and log files, as far as it is worth it now. Idempotent in effect.

        Args:
            full: Everything below the target size, whatever it costs.
            cold: Partitions that have got no data for a while.
            limits: Bounds of each run; those of the lane if not given.
            watch: Who looks on; it may end the work between two commits.

        Raises:
            Unavailable: The store did not answer, or others kept taking the fence.
            CommitConflict: Others merged the same; what was committed by then stays.
            CommitOutcomeUnknown: The next run settles it.
            HaltError: The table needs a person.
        """
        watch = watch or MergeWatch()
        options = MergeOptions(lane="cold" if cold else "hot", full=full, limits=limits)
        total = MergeResult()
        with self.merging:
            while watch.has_time():
                table, merger = self.open(), self.lake.engine.merger
                if not total.commit_count:
                    table = promote_by_sample(table, merger)
                done = merge_table(table, merger, options=options, watch=watch)
                total = total.plus(done)
                if done.committed_key is None:
                    break
        return total

    def sweep_orphans(self, policy: OrphanPolicy | None = None) -> SweepResult:
        """Delete data files that no log file names, and leftovers, whose time has come. Raises as :meth:`vacuum`."""
        return sweep_table(self.open(), policy=policy, audit=self.audit)

    def delete(self, where: str, *, dry_run: bool = False, request_id: str | None = None) -> ChangeResult:
        """Delete the rows for which a condition is true, in one commit; where it is NULL they stay.

        Args:
            where: SQL.
            dry_run: Say what would be touched.
            request_id: A UUIDv7: called again with it within a day, it returns what the first call did.

        Raises:
            InvalidRequest: The condition does not fit.
            IceDBError: As :meth:`merge`.
        """
        request = ChangeRequest("delete", where, is_dry_run=dry_run, request_id=request_id)
        with self.merging:
            return request.run(self.open(), self.lake.engine.changer)

    def rewrite(
        self, query: str, *, partitions: Sequence[str] = (), dry_run: bool = False, request_id: str | None = None
    ) -> ChangeResult:
        """Replace the rows of partitions by what a query over ``_rows`` makes of them, in one commit.

        Args:
            query: SQL.
            partitions: Filters such as ``"d=2026-01-02"``, all of which must hold; none: every partition.
            dry_run: Say what would be touched.
            request_id: As of :meth:`delete`: so a call that got no answer is repeated without running the query on its
                own result.

        Raises:
            InvalidRequest: The query or a filter does not fit.
            IceDBError: As :meth:`merge`.
        """
        request = ChangeRequest("rewrite", query, tuple(partitions), dry_run, request_id)
        with self.merging:
            return request.run(self.open(), self.lake.engine.changer)

    def publish(self) -> str:
        """Publish the table for engines that speak Iceberg; return the URI of the metadata that they begin with.

        Idempotent: nothing is written while nothing has changed. The files that it names stay for the data grace period
        after the next call that finds something new.

        Raises:
            InvalidRequest: The package ``icedb[iceberg]`` is not installed, or the table cannot be published as it is.
            Unavailable: The store did not answer.
            HaltError: The table needs a person.
        """
        try:
            from icedb_iceberg import metadata_uri, publish_table  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InvalidRequest("Iceberg needs the package icedb-iceberg: pip install 'icedb[iceberg]'") from error
        table = self.open()
        return metadata_uri(table, publish_table(table))
