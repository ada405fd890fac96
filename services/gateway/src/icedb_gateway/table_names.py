"""Which tables there are, remembered for a while: listing them reads a configuration for each. From one event loop."""

import asyncio
from collections.abc import Sequence

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.warehouse import Warehouse
from icedb_service.reading.blocking_work import BlockingWork

MS_PER_S = 1000


class TableNames:
    """The names of the tables of a warehouse; callers share one look.

    Args:
        warehouse: Where they lie.
        work: Looks.
        clock: For ages.
        staleness_ms: How old the names may be.
        wait_ms: How long a caller waits.
    """

    def __init__(
        self, warehouse: Warehouse, *, work: BlockingWork, clock: Clock, staleness_ms: int, wait_ms: int
    ) -> None:
        self._warehouse = warehouse
        self._work = work
        self._clock = clock
        self._staleness_ms = staleness_ms
        self._wait_ms = wait_ms
        self._known: tuple[str, ...] | None = None
        self._known_ms = 0
        self._looking: asyncio.Task[tuple[str, ...]] | None = None

    async def names(self) -> Sequence[str]:
        """Return the names, ascending.

        Raises:
            Unavailable: The store did not answer in time.
        """
        is_young = self._clock.monotonic_ms() - self._known_ms <= self._staleness_ms > 0
        if self._known is not None and is_young:
            return self._known
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(self._end)
        try:
            return await asyncio.wait_for(asyncio.shield(self._looking), self._wait_ms / MS_PER_S)
        except TimeoutError:
            raise Unavailable(
                f"the tables could not be listed within {self._wait_ms} ms (ICEDB_GATEWAY_READ_TIMEOUT_MS): the "
                "object store is slow; try again, or list below one table"
            ) from None

    async def _look(self) -> tuple[str, ...]:
        started_ms = self._clock.monotonic_ms()
        names = await self._work.run_blocking("", self._warehouse.list_tables)
        self._known, self._known_ms = names, started_ms
        return names

    def _end(self, done: "asyncio.Task[tuple[str, ...]]") -> None:
        self._looking = None
        if not done.cancelled():
            done.exception()  # taken; whoever waits for it has it, too
