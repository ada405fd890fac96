"""The commit by which a column becomes wider because no value changes (rule S2): under both fences.

What proves it holds for the log that the flush has read. Flushes and appends cannot add to that log, since the flush
holds their fence; a rewrite, or a merge by a query, can, and may write larger integers. So the fence of merges is taken
as well, what came meanwhile is looked at, and both fences announce the commit: whoever acquires one of them settles it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.errors import CommitConflict, IceDBError
from icedb_log.keys import TablePaths
from icedb_log.log.fence import Committed, HeldFence, acquire_fence
from icedb_log.log.fold import union_schema
from icedb_log.log.reader import LogReader
from icedb_log.model import LogFile, LogHeads
from icedb_log.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class WideningCommit:
    """What the commit of a flush needs besides its fence.

    Attributes:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock.
        owner: Who runs this, for the fence of merges.
        incarnation: That of the table's configuration (T4).
        reader: Reads the log.
        view: The log that the flush goes by.
    """

    store: ObjectStore
    paths: TablePaths
    clock: Clock
    owner: str
    incarnation: str
    reader: LogReader
    view: LogHeads

    def commit(
        self, fence: HeldFence, log: LogFile, *, columns: Collection[str], last_check: Callable[[], None]
    ) -> Committed:
        """Commit a log file by which columns become wider. Takes the fence from a merge that is at work.

        Args:
            fence: That of ``ingest``.
            log: Of the commit.
            columns: Which become wider because it is proven that no value changes.
            last_check: As of :meth:`HeldFence.commit`.

        Raises:
            CommitConflict: What was proven may hold no more; nothing was written to the log, run again.
            Fenced: Another owner took one of the fences; run again.
            CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
            Unavailable: The store did not answer.
        """
        merging = acquire_fence(
            self.store, self.paths, "merge", owner=self.owner, clock=self.clock, incarnation=self.incarnation
        )
        # WARN: S2: after the fence was acquired (F2). Before it: a rewrite commits integers beyond 2^53 between this
        # look and the commit, and they are rounded.
        try:
            self._require_proven(columns)
        except IceDBError:
            merging.release()
            raise
        committed = fence.commit(log, last_check=last_check, beside=merging)
        merging.release()
        return committed

    def _require_proven(self, columns: Collection[str]) -> None:
        heads = self.reader.heads.read().files
        known = {file.key for file in self.view.files}
        # A commit of an older release says nothing of its values.
        is_silent = any(file.log.inexact is None and not file.log.is_seal for file in heads if file.key not in known)
        inexact = union_schema(self.paths.name, heads).inexact
        for column in sorted(columns):
            if is_silent or inexact.get(column):
                raise CommitConflict(
                    f"table {self.paths.name}: column {column!r} was about to become wider, and a merge has committed "
                    "since it was proven that no value changes by that: run again"
                )
