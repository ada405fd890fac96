"""Threads that enqueue batches, and a gate that holds them still for an exact count."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from icedb_local.demo_plan import DemoTable
from icedb_local.generator import EventBatch
from icedb_local.ledger import Ledger

Enqueue = Callable[[str, bytes], object]


class Producers:
    """Enqueues batches from several threads; use as a context manager.

    Args:
        batches: What to enqueue, in order.
        tables: Where to.
        ledgers: One for each table.
        enqueue: Sends one batch to a table; returns when it is acknowledged.
        thread_count: How many batches are on their way at once.
        pauses_after: Numbers of taken batches after which the threads wait at the gate until :meth:`go_on`.
    """

    def __init__(
        self,
        batches: Iterator[EventBatch],
        *,
        tables: Sequence[DemoTable],
        ledgers: Mapping[str, Ledger],
        enqueue: Enqueue,
        thread_count: int,
        pauses_after: Sequence[int] = (),
    ) -> None:
        self._batches = batches
        self._tables = tables
        self._ledgers = ledgers
        self._enqueue = enqueue
        self._pauses_after = sorted(pauses_after)
        self._condition = threading.Condition()
        self._taken_count = 0
        self._busy_count = 0
        self._is_exhausted = False
        self._is_cancelled = False
        self._error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"producer-{number}", daemon=True) for number in range(thread_count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._is_cancelled = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def is_finished(self) -> bool:
        """Whether every batch was enqueued and acknowledged. Raises what a producer raised."""
        with self._condition:
            self._raise_error()
            return self._is_exhausted and not self._busy_count

    @property
    def is_paused(self) -> bool:
        """Whether all threads stand at the gate, nothing on its way. Raises what a producer raised."""
        with self._condition:
            self._raise_error()
            return self._is_at_gate() and not self._busy_count

    def go_on(self) -> None:
        """Open the gate."""
        with self._condition:
            self._pauses_after.pop(0)
            self._condition.notify_all()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            try:
                self._send(batch)
            except Exception as error:  # noqa: BLE001 - shown to the main thread, which raises it
                with self._condition:
                    self._error = self._error or error
                    self._is_cancelled = True
            finally:
                with self._condition:
                    self._busy_count -= 1
                    self._condition.notify_all()

    def _take(self) -> EventBatch | None:
        with self._condition:
            while self._is_at_gate() and not self._is_cancelled:
                self._condition.wait()
            if self._is_cancelled or self._is_exhausted:
                return None
            try:
                batch = next(self._batches, None)
            except Exception as error:  # noqa: BLE001 - as above
                self._error, batch = error, None
            if batch is None:
                self._is_exhausted = True
                self._condition.notify_all()
                return None
            self._taken_count += 1
            self._busy_count += 1
            return batch

    def _send(self, batch: EventBatch) -> None:
        for table in self._tables:
            if table.takes(batch.number):
                ledger = self._ledgers[table.name]
                ledger.record_sent(batch)
                self._enqueue(table.name, batch.body)
                ledger.record_acknowledged(batch)

    def _is_at_gate(self) -> bool:
        return bool(self._pauses_after) and self._taken_count >= self._pauses_after[0] and not self._is_exhausted

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
