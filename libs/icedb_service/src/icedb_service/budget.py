"""Room that the callers of a process share on its event loop: bytes of bodies, files that are being sent.

First come, first served. No identity of the policy takes more than half of it, as of other pools
(:class:`~icedb_service.access.guard.Places`), unless for one thing alone; whoever waits for the end of what it holds
itself keeps nobody else waiting. For one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from icedb_log.errors import Overloaded

from icedb_service.access.guard import NOBODY, Holder, Places

RETRY_AFTER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Waiting:
    size: int
    holder: Holder
    room: asyncio.Future[None]


class Budget:
    """Room of one kind.

    Args:
        places: The room, and who holds how much of it.
        wait_ms: How long somebody waits for it.
        explain: Says, from how much is held and asked for, that there is no room.
        on_change: Told how much is held.
    """

    def __init__(
        self,
        places: Places,
        *,
        wait_ms: int,
        explain: Callable[[int, int], Overloaded],
        on_change: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._places = places
        self._wait_s = wait_ms / 1000
        self._explain = explain
        self._on_change = on_change
        self._held = 0
        self._waiting: deque[_Waiting] = deque()

    def hold(self, size: int = 1, holder: Holder = NOBODY) -> "Hold":
        """Return room, for an ``async with`` block that waits for it."""
        return Hold(self, size, holder)

    async def take(self, size: int = 1, holder: Holder = NOBODY) -> None:
        """Take room, waiting for it in turn.

        Raises:
            RateLimited: The caller holds its share.
            Overloaded: There is no room.
        """
        if not self._waiting and self._fits(size) and self._places.fits(holder.name, size):
            self._change(size, holder)
            return
        entry = _Waiting(size, holder, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._serve()
        try:
            async with asyncio.timeout(self._wait_s):
                await entry.room
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif entry.room.done() and not entry.room.cancelled():
                self._change(-size, holder)  # it was given in the very moment
            self._serve()
            if isinstance(error, TimeoutError):
                raise self._refusal(size, holder) from None
            raise

    def take_now(self, size: int, holder: Holder = NOBODY, *, beside: int = 0) -> None:
        """Take more room without waiting, for what is partly here: those who wait could wait for each other.

        Args:
            size: How much more.
            holder: Who takes it.
            beside: What is held for the same thing already.

        Raises:
            RateLimited: The caller holds its share.
            Overloaded: There is no room.
        """
        if not (self._fits(size) and self._places.fits(holder.name, size, beside=beside)):
            raise self._refusal(size, holder, beside=beside)
        self._change(size, holder)

    def keep(self, size: int, holder: Holder = NOBODY) -> None:
        """Take room for what is here already and cannot go yet, whether there is room or not; others wait for it."""
        self._change(size, holder)

    def give(self, size: int = 1, holder: Holder = NOBODY) -> None:
        """Give room back."""
        self._change(-size, holder)
        self._serve()

    def _serve(self) -> None:
        for entry in tuple(self._waiting):
            if not self._places.fits(entry.holder.name, entry.size):
                continue  # it waits for itself
            if not self._fits(entry.size):
                return
            self._waiting.remove(entry)
            if not entry.room.done():
                self._change(entry.size, entry.holder)
                entry.room.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._held + size <= self._places.size

    def _change(self, by: int, holder: Holder) -> None:
        self._held += by
        self._places.add(holder.name, by)
        self._on_change(self._held)

    def _refusal(self, size: int, holder: Holder, *, beside: int = 0) -> Overloaded:
        if self._places.fits(holder.name, size, beside=beside):
            return self._explain(self._held, size)
        return holder.refusal(self._places, retry_after_ms=RETRY_AFTER_MS)


class Hold:
    """Room for one thing; may grow while it is held.

    Attributes:
        body: What it is for, if that is bytes.
    """

    def __init__(self, budget: Budget, size: int, holder: Holder) -> None:
        self.body = b""
        self._budget = budget
        self._size = size
        self._holder = holder

    async def __aenter__(self) -> Self:
        await self._budget.take(self._size, self._holder)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._budget.give(self._size, self._holder)

    def grow_to(self, size: int) -> None:
        """Make sure that so much has room. Raises RateLimited, Overloaded."""
        if size > self._size:
            self._budget.take_now(size - self._size, self._holder, beside=self._size)
            self._size = size
