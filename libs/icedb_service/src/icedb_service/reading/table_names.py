"""The names of the tables that are there, for handlers on the event loop: one look at the warehouse for all callers.

A look lists the folders; the configuration of a name that was a table at the last look is read again only now and
then. So it costs one listing, whatever the number of tables and of callers. Must never write.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.serving.table_cache import CONFIG_MAX_AGE_MS
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import FEW_TABLES, READ_THREADS, Warehouse

from icedb_service.reading.blocking_work import BlockingWork


@dataclass(frozen=True, slots=True)
class _Look:
    names: tuple[str, ...]
    started_ms: int


class TableNames:
    """Knows which tables there are. Use it from one event loop.

    Args:
        warehouse: Where the tables lie.
        work: Runs the looks.
        clock: For ages.
        max_age_ms: How old the list of folders may be; 0: as of a look that ends after the call.
        wait_ms: How long a caller waits for a look.
        wait_setting: Name of the setting that says so, for the error.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        work: BlockingWork,
        clock: Clock,
        max_age_ms: int,
        wait_ms: int,
        wait_setting: str,
    ) -> None:
        self._warehouse = warehouse
        self._work = work
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._wait_ms = wait_ms
        self._wait_setting = wait_setting
        self._seen_ms: dict[str, int] = {}
        self._last: _Look | None = None
        self._looking: asyncio.Task[_Look] | None = None

    async def read(self) -> tuple[str, ...]:
        """Return the names of the tables that are there and not dropped, ascending.

        A table that was dropped is gone from it after ten seconds at the latest, a new one comes with the next look.

        Raises:
            Overloaded: Too many calls wait for the store.
            Unavailable: The store did not answer in time.
        """
        last = self._last
        if last is not None and self._clock.monotonic_ms() - last.started_ms <= self._max_age_ms > 0:
            return last.names
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._read_now())
            self._looking.add_done_callback(self._end)
        try:
            # The task outlives callers that are cancelled: others may wait for it.
            look = await asyncio.wait_for(asyncio.shield(self._looking), self._wait_ms / SECOND_MS)
        except TimeoutError:
            raise Unavailable(
                f"the tables were not listed within {self._wait_ms} ms ({self._wait_setting}): the object store is "
                "slow; try again, or name one table"
            ) from None
        return look.names

    async def _read_now(self) -> _Look:
        self._last = await self._work.run_blocking("", self._look)
        return self._last

    def _end(self, done: asyncio.Task[_Look]) -> None:
        self._looking = None
        if not done.cancelled():
            done.exception()  # taken; whoever waits for it has it, too

    def _look(self) -> _Look:
        started_ms = self._clock.monotonic_ms()
        names = self._warehouse.list_names()
        seen_ms = {name: self._seen_ms[name] for name in names if name in self._seen_ms}
        stale = [name for name in names if started_ms - seen_ms.get(name, -CONFIG_MAX_AGE_MS) >= CONFIG_MAX_AGE_MS]
        if len(stale) <= FEW_TABLES:
            found = [self._warehouse.has_table(name) for name in stale]
        else:
            with ThreadPoolExecutor(READ_THREADS, "icedb-table-names") as pool:
                found = list(pool.map(self._warehouse.has_table, stale))
        for name, is_there in zip(stale, found, strict=True):
            if is_there:
                seen_ms[name] = started_ms
            else:
                seen_ms.pop(name, None)
        self._seen_ms = seen_ms
        return _Look(tuple(name for name in names if name in seen_ms), started_ms)
