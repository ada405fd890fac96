"""Keeps what pages of tables show, so that none waits long: what was known is shown, and read anew behind it."""

import asyncio
from typing import Final

from cachetools import LRUCache
from icedb_log.clock import Clock
from icedb_log.errors import HaltError, NotFound, UnsupportedFormat
from icedb_log.units import SECOND_MS
from icedb_service.readers import BlockingWork

from icedb_console.table_facts import FactsReader, TableFacts

FRESH_MS: Final = 1000
"""What was read so lately is not read again."""
PATIENCE_MS: Final = 600
"""So long a page waits for what is being read; then it shows what was known, or that it is being read."""


class FactsKeeper:
    """Reads and keeps. Use it from one event loop.

    Args:
        reader: Reads, in a thread.
        work: Runs it.
        clock: For ages.
        max_tables: How many are kept.
    """

    def __init__(self, reader: FactsReader, *, work: BlockingWork, clock: Clock, max_tables: int) -> None:
        self._reader = reader
        self._work = work
        self._clock = clock
        self._kept: LRUCache[str, tuple[int, TableFacts]] = LRUCache(max_tables)
        self._running: dict[str, asyncio.Task[TableFacts]] = {}

    async def read(self, name: str) -> TableFacts | None:
        """Return what is known of a table; ``None``: it is being read for the first time, ask again.

        Raises:
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Overloaded: Too many reads wait for the store.
            Unavailable: The store did not answer.
        """
        kept = self._kept.get(name)
        if kept is not None and self._clock.monotonic_ms() - kept[0] <= FRESH_MS:
            return kept[1]
        running = self._running.get(name) or self._start(name)
        done, _ = await asyncio.wait((running,), timeout=PATIENCE_MS / SECOND_MS)
        if done:
            return running.result()
        return None if kept is None else kept[1]

    def _start(self, name: str) -> asyncio.Task[TableFacts]:
        # The task outlives callers that are cancelled: others may wait for it.
        task = self._running[name] = asyncio.ensure_future(self._read(name))
        task.add_done_callback(lambda done: self._end(name, done))
        return task

    async def _read(self, name: str) -> TableFacts:
        started_ms = self._clock.monotonic_ms()
        facts = await self._work.run_blocking(name, lambda: self._reader.read(name))
        self._kept[name] = (started_ms, facts)
        return facts

    def _end(self, name: str, done: asyncio.Task[TableFacts]) -> None:
        del self._running[name]
        error = None if done.cancelled() else done.exception()  # taken; whoever waits for it has it, too
        if isinstance(error, NotFound | HaltError | UnsupportedFormat):
            self._kept.pop(name, None)
