"""Wakes the flush of tables that got a batch, from a thread of its own: no answer ever waits for Redis (I4)."""

import threading
from collections.abc import Callable
from typing import Final

from icedb_log.errors import Unavailable
from icedb_log.units import SECOND_MS
from icedb_service.logs import get_logger

PAUSE_MS: Final = 20
"""Between rounds: a thousand batches a second are fifty wake-ups."""
PAUSE_AFTER_FAILURE_MS: Final = 2000
STOP_LIMIT_S: Final = 2.0


class Waker:
    """Remembers which tables got a batch, and wakes each, soon, once.

    A table that is asked for while its wake-up is being sent is woken again: its batch may have come too late for it.

    Args:
        wake: Sends one wake-up; raises Unavailable when Redis does not answer.
    """

    def __init__(self, wake: Callable[[str], object]) -> None:
        self._wake = wake
        self._tables: set[str] = set()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self, table: str) -> None:
        """Have a table woken soon; returns at once."""
        with self._changed:
            self._tables.add(table)
            self._changed.notify()

    def stop(self) -> None:
        """Send what is waiting, if Redis answers, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        is_silent = False
        while True:
            with self._changed:
                while not self._tables and not self._is_stopping:
                    self._changed.wait()
                if not self._tables:
                    return
                tables, self._tables = sorted(self._tables), set()
                is_last = self._is_stopping
            is_silent = self._send(tables, was_silent=is_silent)
            if is_last:
                return
            self._pause(PAUSE_AFTER_FAILURE_MS if is_silent else PAUSE_MS)

    def _pause(self, duration_ms: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, duration_ms / SECOND_MS)

    def _send(self, tables: list[str], *, was_silent: bool) -> bool:
        for table in tables:
            try:
                self._wake(table)
            except Unavailable as error:
                if not was_silent:
                    get_logger().warning("wake_failed", error=str(error), mitigation="left to the sweep")
                return True
        return False
