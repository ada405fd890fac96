"""The state of tables for handlers on the event loop: from memory at once, or by one read that all callers share (R4).

A caller that accepts the age of what is known has it without a thread. The others wait as coroutines: for each table
at most one read runs, and at most one more is promised, for those who need one that begins after their call. So any
number of callers, and a store that hangs, cost one thread for each table. Where callers come all the time, the next
read begins before the last one is too old for them: nobody waits for it.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import NotFound, Unavailable
from icedb_log.serving.table_cache import CachedTable, TableCache, TableState
from icedb_log.units import SECOND_MS

from icedb_service.reading.blocking_work import BlockingWork

READ_AHEAD_PARTS: Final = 2
"""A caller who gets what is older than this fraction of what he accepts lets the next read begin."""


@dataclass(slots=True)
class _Reads:
    """The read of one table that runs, when it began, and the one that is promised after it."""

    running: asyncio.Task[TableState]
    started_ms: int
    promised: asyncio.Task[TableState] | None = None


class TableReads:
    """Reads tables for coroutines. Use it from one event loop.

    Args:
        tables: What is known about each table.
        work: Runs the reads.
        clock: For ages.
        wait_ms: How long a caller waits for a read, whatever its own deadline.
        wait_setting: Name of the setting that says so, for the error.
    """

    def __init__(
        self, tables: TableCache, *, work: BlockingWork, clock: Clock, wait_ms: int, wait_setting: str
    ) -> None:
        self.tables: Final = tables
        self.work: Final = work
        self._clock = clock
        self._wait_ms = wait_ms
        self._wait_setting = wait_setting
        self._reads: dict[str, _Reads] = {}

    async def read(self, table: str, *, max_staleness_ms: int) -> TableState:
        """Return a state of a table that is at most ``max_staleness_ms`` old; 0: of a read that begins after the call.

        Raises:
            InvalidRequest: Not a table name.
            NotFound: No such table.
            Overloaded: Too many reads wait for the store.
            Unavailable: The store did not answer in time.
            HaltError: The log is damaged, or was written by a newer release.
        """
        cached = self.tables.table(table)
        known = cached.known_state(max_staleness_ms=max_staleness_ms)
        if known is not None:
            if table not in self._reads and self._clock.monotonic_ms() - known.started_ms > (
                max_staleness_ms // READ_AHEAD_PARTS
            ):
                self._find_read(table, cached, max_staleness_ms)  # what becomes of it, whoever needs it will see
            return known
        try:
            # The task outlives callers that are cancelled: others may wait for it.
            return await asyncio.wait_for(
                asyncio.shield(self._find_read(table, cached, max_staleness_ms)), self._wait_ms / SECOND_MS
            )
        except TimeoutError:
            raise Unavailable(
                f"table {table}: no read of its log ended within {self._wait_ms} ms ({self._wait_setting}); "
                "the object store is slow: try again, or accept an older state"
            ) from None

    def _find_read(self, table: str, cached: CachedTable, max_staleness_ms: int) -> asyncio.Task[TableState]:
        now_ms = self._clock.monotonic_ms()
        reads = self._reads.get(table)
        if reads is None:
            reads = _Reads(self._start(table, cached, after=None), now_ms)
            self._reads[table] = reads
            return reads.running
        if now_ms - reads.started_ms <= max_staleness_ms > 0:
            return reads.running
        if reads.promised is None:
            reads.promised = self._start(table, cached, after=reads.running)
        return reads.promised

    def _start(
        self, table: str, cached: CachedTable, *, after: asyncio.Task[TableState] | None
    ) -> asyncio.Task[TableState]:
        task = asyncio.ensure_future(self._read(table, cached, after=after))
        task.add_done_callback(lambda done: self._end(table, done))
        return task

    async def _read(self, table: str, cached: CachedTable, *, after: asyncio.Task[TableState] | None) -> TableState:
        if after is not None:
            await asyncio.wait((after,))
            self._reads[table] = _Reads(self._reads[table].promised or after, self._clock.monotonic_ms())
        try:
            return await self.work.run_blocking(table, lambda: cached.read(max_staleness_ms=0))
        except NotFound:
            self.tables.drop(table)
            raise

    def _end(self, table: str, done: asyncio.Task[TableState]) -> None:
        if not done.cancelled():
            done.exception()  # taken; whoever waits for it has it, too
        reads = self._reads.get(table)
        if reads is not None and reads.running is done and reads.promised is None:
            del self._reads[table]
