"""Read your own writes in one thread: reads a table's log until it names a batch.

What is looked at in which order, and why: :mod:`icedb_log.serving.batch_commits`.
"""

from collections.abc import Callable

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
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
from icedb_log.store.table_store import TableStore


def await_commit(
    table: TableStore,
    batch_id: str,
    *,
    read: Callable[[], TableState],
    clock: Clock,
    timeout_ms: int,
    setting: str,
) -> TableState:
    """Return a state whose log has a batch.

    Args:
        table: Its store and keys.
        batch_id: Id of the batch, well-formed.
        read: Reads the table's log now.
        clock: For the waiting.
        timeout_ms: How long at most.
        setting: What bounds that, for whoever waited in vain.

    Raises:
        InvalidRequest: The batch was refused: it is in quarantine.
        NotFound: Nobody knows the batch; or no such table.
        Unavailable: It is still staged after that time.
    """
    deadline_ms = clock.monotonic_ms() + timeout_ms
    pause_ms = FIRST_PAUSE_MS
    was_staged = False
    while True:
        found, state = _look_and_read(table, batch_id, read)
        if find_commit(state, batch_id) is not None:
            return state
        refuse_if_lost(state, batch_id, found, was_staged=was_staged)
        if not found.is_staged:
            return state  # committed, though the log has forgotten it already (a short log grace period)
        was_staged = True
        left_ms = deadline_ms - clock.monotonic_ms()
        if left_ms <= 0:
            raise Unavailable(describe_staged(table.name, batch_id, waited_ms=timeout_ms, setting=setting))
        clock.sleep_ms(min(pause_ms, left_ms))
        pause_ms = min(LONGEST_PAUSE_MS, 2 * pause_ms)


def _look_and_read(table: TableStore, batch_id: str, read: Callable[[], TableState]) -> tuple[Whereabouts, TableState]:
    """Return where a batch is, and the log, read after that: who committed it meanwhile is in it (R5)."""
    found = look_for_batch(table, batch_id)
    return found, read()
