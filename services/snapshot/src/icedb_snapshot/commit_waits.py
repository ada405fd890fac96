"""Read your own writes: waits until the batch that a caller has enqueued is in the log that is read.

A batch leaves staging after the log names it (I2, I5). So a log that is read after a look into staging has it, if it is
not there; unless the log files of that time are deleted, which is when nobody can tell any more.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import format_ms, parse_uuid7_ms
from icedb_log.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from icedb_log.ingest.quarantine import find_reason
from icedb_log.keys import TablePaths
from icedb_log.model import LogFile
from icedb_log.serving.table_cache import TableState

from icedb_snapshot.parts import ServiceParts

FIRST_PAUSE_MS: Final = 50
LONGEST_PAUSE_MS: Final = 1000
MS_PER_S: Final = 1000


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """What the store says of a batch besides the log.

    Attributes:
        is_staged: Whether it waits for a flush.
        reason: Why it is in quarantine.
    """

    is_staged: bool
    reason: str | None


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
        clock = self._parts.clock
        deadline_ms = clock.monotonic_ms() + self._parts.settings.snapshot_commit_wait_ms
        pause_ms = FIRST_PAUSE_MS
        was_staged = False
        while True:
            found = await self._look(paths, batch_id)
            # Read after the look: see above. Shared with all who wait for the same table.
            state = await reads.read(paths.name, max_staleness_ms=0)
            if find_commit(state, batch_id) is not None:
                return state
            refuse_if_refused(state, batch_id, found.reason)
            if not found.is_staged:
                if was_staged:
                    return state  # committed, though the log has forgotten it already (a short log grace period)
                raise NotFound(_unknown(state, batch_id))
            was_staged = True
            left_ms = deadline_ms - clock.monotonic_ms()
            if left_ms <= 0:
                raise Unavailable(
                    f"table {paths.name}: batch {batch_id} is accepted and still staged after "
                    f"{self._parts.settings.snapshot_commit_wait_ms} ms (ICEDB_SNAPSHOT_COMMIT_WAIT_MS): ingest has "
                    "not flushed it; try again"
                )
            await asyncio.sleep(min(pause_ms, left_ms) / MS_PER_S)
            pause_ms = min(LONGEST_PAUSE_MS, 2 * pause_ms)

    async def _look(self, paths: TablePaths, batch_id: str) -> _Whereabouts:
        store = self._parts.warehouse.store

        def look() -> _Whereabouts:
            page = store.list_page(f"{paths.staging_prefix}{batch_id}.", limit=1)
            entry = None if page.objects else find_reason(store, paths, batch_id)
            is_refused = entry is not None and entry.entry.kind == "batch"
            return _Whereabouts(bool(page.objects), entry.entry.reason if entry is not None and is_refused else None)

        try:
            return await self._parts.reads.work.run_blocking(paths.name, look)
        except Overloaded:  # many wait for this table: the log alone tells when it is there
            return _Whereabouts(is_staged=True, reason=None)


def find_commit(state: TableState, batch_id: str) -> LogFile | None:
    """Return the log file that names a batch; ``None`` if none does."""
    return next((file.log for file in reversed(state.view.files) if batch_id in file.log.batch_ids), None)


def refuse_if_refused(state: TableState, batch_id: str, reason: str | None) -> None:
    """Raise InvalidRequest if a commit has refused a batch (I5)."""
    table = state.config.name
    if reason is None and not any(batch_id in file.log.refused_ids for file in state.view.files):
        return
    why = f": {reason}" if reason else ""
    raise InvalidRequest(
        f"table {table}: batch {batch_id} was refused and is in quarantine{why}. Its rows are in no snapshot; see "
        f"`icedb quarantine list {table}`"
    )


def _unknown(state: TableState, batch_id: str) -> str:
    return (
        f"table {state.config.name}: batch {batch_id} of {format_ms(parse_uuid7_ms(batch_id))} is not staged, not in "
        "quarantine and not in the log: it was never accepted for this table, or was committed longer ago than log "
        f"files are kept ({state.config.log_grace_ms} ms), and then every snapshot has it: leave min_commit out"
    )
