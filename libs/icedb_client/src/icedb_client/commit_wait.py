"""Read your own writes without a service: reads a table's log until it names a batch.

A batch leaves staging after the log names it (I2, I5). So a log that is read after a look into staging has it, if it is
not there; unless the log files of that time are deleted.
"""

from collections.abc import Callable
from typing import Final

from icedb_log.clock import Clock, format_ms, parse_uuid7_ms
from icedb_log.errors import InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.quarantine import find_reason
from icedb_log.keys import TablePaths
from icedb_log.model import LogFile
from icedb_log.serving.table_cache import TableState
from icedb_log.storage.object_store import ObjectStore

FIRST_PAUSE_MS: Final = 50
LONGEST_PAUSE_MS: Final = 1000


def await_commit(
    store: ObjectStore,
    paths: TablePaths,
    batch_id: str,
    *,
    read: Callable[[], TableState],
    clock: Clock,
    timeout_ms: int,
) -> TableState:
    """Return a state whose log has a batch.

    Args:
        store: The object store.
        paths: Keys of the table.
        batch_id: Id of the batch.
        read: Reads the table's log now.
        clock: For the waiting.
        timeout_ms: How long at most.

    Raises:
        InvalidRequest: Not the id of a batch, or the batch was refused: it is in quarantine.
        NotFound: Nobody knows the batch; or no such table.
        Unavailable: It is still staged after that time.
    """
    parse_uuid7_ms(batch_id)
    deadline_ms = clock.monotonic_ms() + timeout_ms
    pause_ms = FIRST_PAUSE_MS
    was_staged = False
    while True:
        is_staged = bool(store.list_page(f"{paths.staging_prefix}{batch_id}.", limit=1).objects)
        state = read()
        if find_commit(state, batch_id) is not None:
            return state
        if not is_staged:
            _refuse_if_refused(store, paths, state, batch_id)
            if was_staged:
                return state  # committed, though the log has forgotten it already
            raise NotFound(
                f"table {paths.name}: batch {batch_id} of {format_ms(parse_uuid7_ms(batch_id))} is not staged, not in "
                "quarantine and not in the log: it was never accepted for this table, or was committed longer ago "
                f"than log files are kept ({state.config.log_grace_ms} ms), and then every snapshot has it: leave "
                "min_commit out"
            )
        was_staged = True
        left_ms = deadline_ms - clock.monotonic_ms()
        if left_ms <= 0:
            raise Unavailable(
                f"table {paths.name}: batch {batch_id} is accepted and still staged after {timeout_ms} ms "
                "(ICEDB_SNAPSHOT_TIMEOUT_MS): ingest has not flushed it; try again"
            )
        clock.sleep_ms(min(pause_ms, left_ms))
        pause_ms = min(LONGEST_PAUSE_MS, 2 * pause_ms)


def find_commit(state: TableState, batch_id: str) -> LogFile | None:
    """Return the log file that names a batch; ``None`` if none does."""
    return next((file.log for file in reversed(state.view.files) if batch_id in file.log.batch_ids), None)


def _refuse_if_refused(store: ObjectStore, paths: TablePaths, state: TableState, batch_id: str) -> None:
    found = find_reason(store, paths, batch_id)
    is_refused = any(batch_id in file.log.refused_ids for file in state.view.files)
    if is_refused or (found is not None and found.entry.kind == "batch"):
        why = "" if found is None else f": {found.entry.reason}"
        raise InvalidRequest(
            f"table {paths.name}: batch {batch_id} was refused and is in quarantine{why}. Its rows are in no snapshot; "
            f"see `icedb quarantine list {paths.name}`"
        )
