"""How many bytes of bodies this process holds: a bound over all doors, first come, first served. For one event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from icedb_ingest.frontend.errors import Busy

RETRY_AFTER_MS: Final = 1000


class Memory:
    """A budget of bytes.

    Args:
        max_bytes: The bound.
        wait_ms: How long somebody waits for room.
        on_change: Called with the bytes held now.
    """

    def __init__(self, *, max_bytes: int, wait_ms: int, on_change: Callable[[int], object] = lambda _: None) -> None:
        self.max_bytes = max_bytes
        self._wait_s = wait_ms / 1000
        self._on_change = on_change
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def hold(self, size_bytes: int) -> "Hold":
        """Return room for a body, for an ``async with`` block that waits for it."""
        return Hold(self, size_bytes)

    async def take(self, size_bytes: int) -> None:
        """Take room, waiting for it in turn. Raises Busy."""
        if not self._waiting and self._fits(size_bytes):
            self._change(size_bytes)
            return
        room = asyncio.get_running_loop().create_future()
        entry = (size_bytes, room)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._wait_s):
                await room
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif room.done() and not room.cancelled():
                self.give(size_bytes)  # it was given in the very moment
            self._serve()
            if isinstance(error, TimeoutError):
                raise self._busy(size_bytes) from None
            raise

    def take_now(self, size_bytes: int) -> None:
        """Take more room without waiting, for a body that is partly here: those who wait could wait for each other.

        Raises:
            Busy: There is none.
        """
        if not self._fits(size_bytes):
            raise self._busy(size_bytes)
        self._change(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Take room for what is here already and cannot go yet, whether there is room or not; others wait for it."""
        self._change(size_bytes)

    def give(self, size_bytes: int) -> None:
        """Give room back."""
        self._change(-size_bytes)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, room = self._waiting.popleft()
            if not room.done():
                self._change(size_bytes)
                room.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes + size_bytes <= self.max_bytes

    def _change(self, by_bytes: int) -> None:
        self._held_bytes += by_bytes
        self._on_change(self._held_bytes)

    def _busy(self, size_bytes: int) -> Busy:
        return Busy(
            f"this front end holds {self._held_bytes} of {self.max_bytes} bytes and has no room for {size_bytes} more; "
            "send the batch again with the same id, or to another replica",
            retry_after_ms=RETRY_AFTER_MS,
        )


class Hold:
    """Room for one body; may grow while it is held.

    Args:
        memory: The budget.
        size_bytes: Room to begin with.
    """

    def __init__(self, memory: Memory, size_bytes: int) -> None:
        self._memory = memory
        self._size_bytes = size_bytes

    async def __aenter__(self) -> Self:
        await self._memory.take(self._size_bytes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._memory.give(self._size_bytes)

    def grow_to(self, size_bytes: int) -> None:
        """Make sure that so many bytes have room. Raises Busy."""
        if size_bytes > self._size_bytes:
            self._memory.take_now(size_bytes - self._size_bytes)
            self._size_bytes = size_bytes
