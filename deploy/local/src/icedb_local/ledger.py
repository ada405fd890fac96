"""What producers know: which batches they sent, and which of them were acknowledged.

The truth that the demo compares with. Safe for use by many threads.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from icedb_local.generator import EventBatch, add_counts


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A ledger at one moment.

    Attributes:
        batch_count: Acknowledged batches.
        row_count: Rows in them.
        rows_per_day: ISO day to acknowledged rows.
        rows_per_batch: Number of each acknowledged batch to its rows.
    """

    batch_count: int = 0
    row_count: int = 0
    rows_per_day: Mapping[str, int] = field(default_factory=dict)
    rows_per_batch: Mapping[int, int] = field(default_factory=dict)


class Ledger:
    """The batches of one table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._acknowledged = LedgerState()

    def record_sent(self, batch: EventBatch) -> None:
        """Note a batch before its request goes out: from now on its rows may be seen."""
        with self._lock:
            self._sent[batch.number] = batch.row_count

    def record_acknowledged(self, batch: EventBatch) -> None:
        """Note a batch whose request was answered: from now on its rows may not be lost."""
        with self._lock:
            before = self._acknowledged
            self._acknowledged = LedgerState(
                batch_count=before.batch_count + 1,
                row_count=before.row_count + batch.row_count,
                rows_per_day=add_counts(before.rows_per_day, batch.rows_per_day),
                rows_per_batch={**before.rows_per_batch, batch.number: batch.row_count},
            )

    def read_sent(self) -> dict[int, int]:
        """Return number and rows of every batch that was sent, acknowledged or not."""
        with self._lock:
            return dict(self._sent)

    def read_acknowledged(self) -> LedgerState:
        """Return what is acknowledged now."""
        with self._lock:
            return self._acknowledged
