"""Read your own writes: waits until the batch that a caller has enqueued is in the log that is read.

What is looked at in which order, and why: :mod:`icedb_log.serving.batch_commits`.
"""

import asyncio

from icedb_log.errors import Overloaded, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.serving.batch_commits import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    Whereabouts,
    describe_staged,
    find_commit,
    look_for_batch,
    refuse_if_lost,
)
from icedb_log.serving.table_cache import TableState
from icedb_log.units import SECOND_MS

from icedb_snapshot.parts import ServiceParts


class CommitWaits:
    """Waits for batches.

    Args:
        parts: What handlers share.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    async def read(self, paths: TablePaths, batch_id: str, *, max_staleness_ms: int) -> TableState:
        """Return a state whose log has a batch. Waits as long as its caller does, and at most the setting says.

        Args:
            paths: Keys of the table.
            batch_id: Id of the batch, well-formed.
            max_staleness_ms: Of the state; one that is older but has the batch is fine.

        Raises:
            InvalidRequest: The batch was refused: it is in quarantine, and nothing will commit it as it is.
            NotFound: Nobody knows the batch; or no such table.
            Unavailable: It is still staged after the longest wait.
        """
        reads = self._parts.reads
        state = await reads.read(paths.name, max_staleness_ms=max_staleness_ms)
        if find_commit(state, batch_id) is not None:
            return state
        clock, wait_ms = self._parts.clock, self._parts.settings.snapshot_commit_wait_ms
        deadline_ms = clock.monotonic_ms() + wait_ms
        pause_ms = FIRST_PAUSE_MS
        was_staged = False
        while True:
            found = await self._look(paths, batch_id)
            # Read after the look (I2, I5). Shared with all who wait for the same table.
            state = await reads.read(paths.name, max_staleness_ms=0)
            if find_commit(state, batch_id) is not None:
                return state
            refuse_if_lost(state, batch_id, found, was_staged=was_staged)
            if not found.is_staged:
                return state  # committed, though the log has forgotten it already (a short log grace period)
            was_staged = True
            left_ms = deadline_ms - clock.monotonic_ms()
            if left_ms <= 0:
                raise Unavailable(
                    describe_staged(paths.name, batch_id, waited_ms=wait_ms, setting="ICEDB_SNAPSHOT_COMMIT_WAIT_MS")
                )
            await asyncio.sleep(min(pause_ms, left_ms) / SECOND_MS)
            pause_ms = min(LONGEST_PAUSE_MS, 2 * pause_ms)

    async def _look(self, paths: TablePaths, batch_id: str) -> Whereabouts:
        store = self._parts.warehouse.store
        try:
            return await self._parts.reads.work.run_blocking(paths.name, lambda: look_for_batch(store, paths, batch_id))
        except Overloaded:  # many wait for this table: the log alone tells when it is there
            return Whereabouts(is_staged=True)
