"""What producers know of each batch: sent, acknowledged, or unknown. The truth that readers are compared with.

A batch is *sent* from before its first request on: its rows may be seen. It is *acknowledged* once a door has said so:
its rows may not be lost. It is *unknown* when the producer has stopped asking without an answer: its rows may be there
whole or not at all, for good. Safe for many threads.
"""

import threading
from dataclasses import dataclass, replace
from typing import Final, Literal

State = Literal["sent", "acknowledged", "unknown"]
STATES: Final[tuple[State, ...]] = ("acknowledged", "unknown", "sent")


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch.

    Attributes:
        number: Of the batch, in all tables.
        table: Where it goes.
        door: Through which.
        batch_id: Its id; every try has the same.
        sent_ms: When the first try began, monotonic.
        state: What the producer knows.
        settled_ms: When the state became what it is, monotonic.
        tries: Requests so far.
        last_error: Of the last try that failed.
    """

    number: int
    table: str
    door: str
    batch_id: str
    sent_ms: int
    state: State = "sent"
    settled_ms: int | None = None
    tries: int = 0
    last_error: str = ""


class BatchLedger:
    """All batches of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, BatchEntry] = {}

    def record_sent(self, *, table: str, door: str, batch_id: str, now_ms: int) -> BatchEntry:
        """Note a batch before its first request; returns its entry with its number."""
        with self._lock:
            entry = BatchEntry(len(self._entries), table, door, batch_id, now_ms)
            self._entries[entry.number] = entry
            return entry

    def record_try(self, number: int, *, error: str = "") -> None:
        """Note a request, and why it failed if it did."""
        with self._lock:
            entry = self._entries[number]
            self._entries[number] = replace(entry, tries=entry.tries + 1, last_error=error or entry.last_error)

    def record_settled(self, number: int, state: State, *, now_ms: int) -> None:
        """Note what became of a batch."""
        with self._lock:
            self._entries[number] = replace(self._entries[number], state=state, settled_ms=now_ms)

    def entry(self, number: int) -> BatchEntry | None:
        """Return a batch."""
        with self._lock:
            return self._entries.get(number)

    def entries(self, table: str | None = None) -> dict[int, BatchEntry]:
        """Return all batches, or those of one table, by number."""
        with self._lock:
            return {number: entry for number, entry in self._entries.items() if table is None or entry.table == table}
