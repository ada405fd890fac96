"""Threads that enqueue batches, so many at a time as are wanted before an exact count, and what they know of them.

Which batches were sent, and which of them were acknowledged, is the truth that the demo compares with.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from icedb_local.demo_plan import DemoTable
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


Enqueue = Callable[[str, bytes], object]


class Producers:
    """Enqueues batches from several threads; use as a context manager.

    Args:
        batches: What to enqueue, in order.
        tables: Where to.
        ledgers: One for each table.
        enqueue: Sends one batch to a table; returns when it is acknowledged.
        thread_count: How many batches are on their way at once.
    """

    def __init__(
        self,
        batches: Iterator[EventBatch],
        *,
        tables: Sequence[DemoTable],
        ledgers: Mapping[str, Ledger],
        enqueue: Enqueue,
        thread_count: int,
    ) -> None:
        self._batches = batches
        self._tables = tables
        self._ledgers = ledgers
        self._enqueue = enqueue
        self._thread_count = thread_count
        self._pool = ThreadPoolExecutor(thread_count, "producer")
        self._lock = threading.Lock()
        self._is_over = False
        self._sending: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._pool.shutdown()

    def send(self, count: int | None = None) -> None:
        """Begin with the next batches, all that are left without a count; those before are done."""
        part = islice(self._batches, count)
        self._sending = [self._pool.submit(self._run, part) for _ in range(self._thread_count)]

    @property
    def is_done(self) -> bool:
        """Whether every batch of those was acknowledged. Raises what a producer raised."""
        done = [each for each in self._sending if each.done()]
        for each in done:
            each.result()
        return len(done) == len(self._sending)

    def _run(self, part: Iterator[EventBatch]) -> None:
        while not self._is_over:
            with self._lock:
                batch = next(part, None)
            if batch is None:
                return
            for table in self._tables:
                if table.takes(batch.number):
                    ledger = self._ledgers[table.name]
                    ledger.record_sent(batch)
                    self._enqueue(table.name, batch.body)
                    ledger.record_acknowledged(batch)
