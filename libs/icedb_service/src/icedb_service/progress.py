"""Whether a process goes on: its own loop comes round. What it needs and cannot reach is another matter (readiness).

A worker's loop turns in its parent, and ``/healthz`` is answered by the child that works. So when it last came round
stands in memory that both share; it says nothing of a server that is away: while the loop tries to reach Redis again,
it comes round with each try.
"""

import asyncio
import mmap
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

BEAT_S: Final = 1.0
LOOP_LIMIT_MS: Final = 60_000
"""How long a loop may stand still: a few calls of Redis one after the other, each of which is given up after 5 s."""
START_LIMIT_MS: Final = 300_000
"""How long it may take to come round for the first time: engines are opened meanwhile."""


class SharedCount:
    """A number that a parent and its children share, so that it outlives a child. Made before children are forked."""

    def __init__(self) -> None:
        self._count = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")

    @property
    def value(self) -> int:
        """The number."""
        return self._count[0]

    def add_one(self) -> None:
        """Add one; for one writer at a time."""
        self._count[0] += 1


class LoopProgress:
    """When a loop came round. Made before children are forked, which then see what their parent tells. Thread-safe.

    Args:
        what: The loop, in words.
        clock: The host's: its monotonic time is the same in all processes.
        limit_ms: How long it may stand still.
    """

    def __init__(self, what: str, *, clock: Clock, limit_ms: int = LOOP_LIMIT_MS) -> None:
        self._what = what
        self._clock = clock
        self._limit_ms = limit_ms
        self._due_ms = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        """When it has to have come round, monotonic; 0: never."""
        self._due_ms[0] = clock.monotonic_ms() + START_LIMIT_MS

    def tell(self) -> None:
        """Say that it has come round."""
        self._due_ms[0] = self._clock.monotonic_ms() + self._limit_ms

    def end(self) -> None:
        """Say that it comes round no more: the process is about to stop, which has a limit of its own."""
        self._due_ms[0] = 0

    def check(self) -> None:
        """Raise Unavailable if it stands still."""
        due_ms, now_ms = self._due_ms[0], self._clock.monotonic_ms()
        if 0 < due_ms < now_ms:
            raise Unavailable(f"{self._what} has not come round for {now_ms - due_ms + self._limit_ms} ms: restart it")

    async def tell_always(self) -> None:
        """Come round with this event loop, until cancelled."""
        while True:
            self.tell()
            await asyncio.sleep(BEAT_S)
