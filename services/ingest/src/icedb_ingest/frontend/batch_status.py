"""What became of a batch: staged, committed, quarantined, or unknown. Reads the store; blocking."""

import threading
from dataclasses import dataclass
from typing import Literal

from icedb_log.clock import Clock, parse_uuid7_ms
from icedb_log.errors import NotFound
from icedb_log.ingest.quarantine import QuarantinedBatch, find_reason, list_conflicts
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore
from icedb_service.readers import LogReaders

State = Literal["staged", "committed", "quarantined"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """Where a batch is.

    Attributes:
        state: ``staged``: durable, waits for a flush; ``committed``: its rows are live; ``quarantined``: it was refused
            and waits for a person.
        reason: Why it, or some of its rows, were refused.
        quarantined_rows: Rows that wait in quarantine while the others are live.
        retried_as: Id of the batch that a retry from quarantine has made of it.
        conflicts: Other contents that were accepted under its id, and wait in quarantine (I8); ``None``: none.
    """

    state: State
    reason: str | None = None
    quarantined_rows: int | None = None
    retried_as: str | None = None
    conflicts: int | None = None


class BatchStatuses:
    """Looks batches up. Thread-safe.

    Args:
        store: The object store.
        clock: For the readers of logs.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock) -> None:
        self._store = store
        self._readers = LogReaders(clock)
        self._lock = threading.Lock()

    def look_up(self, paths: TablePaths, batch_id: str) -> BatchStatus:
        """Return where a batch is. Costs up to three listings, two GETs, and the heads of new log files.

        Raises:
            InvalidRequest: No batch has such an id.
            NotFound: No batch of this id is known any more, or none ever was.
            Unavailable: The store did not answer.
            HaltError: The log cannot be read.
        """
        parse_uuid7_ms(batch_id)
        # The order is the batch's own: it leaves staging after the log names it, so a log read later does (I2, I5).
        if self._store.list_page(f"{paths.staging_prefix}{batch_id}.", limit=1).objects:
            return BatchStatus("staged")
        with self._lock:
            reader = self._readers.of_table(self._store, paths)
        logs = [file.log for file in reader.heads.read().files]
        reason = find_reason(self._store, paths, batch_id)
        entry = reason.entry if reason is not None else None
        conflicts = len(list_conflicts(self._store, paths, batch_id)) or None
        if any(batch_id in log.batch_ids for log in logs):
            return _describe("committed", entry, conflicts)
        if entry is not None:
            # Bad rows are in quarantine before their batch is committed, and it left staging after that.
            return _describe("committed" if entry.kind == "rows" else "quarantined", entry, conflicts)
        if any(batch_id in log.refused_ids for log in logs):
            why = "it was refused, and is on its way to quarantine or was dropped there"
            return BatchStatus("quarantined", why, conflicts=conflicts)
        raise NotFound(
            f"table {paths.name}: no batch {batch_id} is staged, in quarantine or in the log. It was never accepted, "
            "or it was committed longer ago than log files are kept"
        )


def _describe(state: State, entry: QuarantinedBatch | None, conflicts: int | None) -> BatchStatus:
    if entry is None:
        return BatchStatus(state, conflicts=conflicts)
    return BatchStatus(state, entry.reason, entry.row_count, entry.retry_id, conflicts)
