"""How services read tables: log readers of workers, and reads that handlers on an event loop share.

A worker keeps one long-lived log reader for each table, so that a run fetches only what is new (R1).

On an event loop, work that blocks runs in a bounded number of threads, and is refused beyond that. Two pools, because a
store that hangs must not keep answers from being made of what is in memory: one for what waits for the object store,
one for what only computes. Each table has a share of the first. Nothing queues for a thread of the store's pool.

A caller that accepts the age of what is known has it without a thread. The others wait as coroutines: for each table
at most one read runs, and who needs one that begins later waits for the next; which of them will do, the table itself
says. So any number of callers, and a store that hangs, cost one thread for each table. Where callers come all the time,
the next read begins before the last one is too old for them: nobody waits for it (R4). Must never write.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from cachetools import LRUCache
from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import NotFound, Overloaded, Unavailable
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.serving.table_cache import CachedTable, Question, TableCache, TableState
from icedb_log.store.store_clock import SteadyTime
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS, TableConfig
from icedb_log.units import KIB, MIB, SECOND_MS
from icedb_log.warehouse import RecentTables, Warehouse

MAX_LOG_BYTES: Final = 128 * MIB
"""Of log files that are kept parsed, as they are stored; those of one table count for half of it at most."""
LEAST_BYTES: Final = 16 * KIB
"""What a table counts for at least: so 8,192 tables are kept at most."""
MAX_STEADY: Final = 10_000
"""Tables of which it is kept what was heard of the store's time: a few numbers each."""


@dataclass(frozen=True, slots=True)
class _Kept:
    max_refresh_ms: int
    reader: LogReader
    holds: HoldReader

    def weigh(self, max_bytes: int) -> int:
        """Return what it counts for."""
        return min(max(LEAST_BYTES, self.reader.kept_bytes), max(LEAST_BYTES, max_bytes // 2))


class LogReaders:
    """Keeps the readers of the tables that were used last. Thread-safe, as the readers are.

    Args:
        clock: Given to each reader.
        max_bytes: Of log files that are kept parsed.
        is_compact: As of :class:`~icedb_log.log.reader.LogReader`: for those who ask little of most data files.
    """

    def __init__(self, clock: Clock, *, max_bytes: int = MAX_LOG_BYTES, is_compact: bool = False) -> None:
        self._clock = clock
        self._is_compact = is_compact
        self._kept: LRUCache[str, _Kept] = LRUCache(max_bytes, getsizeof=lambda kept: kept.weigh(max_bytes))
        self._steady: LRUCache[str, SteadyTime] = LRUCache(MAX_STEADY)
        self._lock = threading.Lock()

    def open(self, table: TableStore, *, owner: str = "") -> Table:
        """Open a table with the reader that is kept of it.

        Raises:
            NotFound: No such table.
        """
        config = read_table_config(table)
        reader = self._reader_of(table, config)
        return Table.of(config, table, clock=self._clock, owner=owner, reader=reader)

    def of_table(self, table: TableStore) -> LogReader:
        """Return the table's reader, a new one if its log files' grace period has changed (R2).

        Raises:
            NotFound: No such table.
        """
        return self._reader_of(table, read_table_config(table))

    def _reader_of(self, table: TableStore, config: TableConfig) -> LogReader:
        max_refresh_ms = config.log_grace_ms // 2
        with self._lock:
            kept = self._kept.get(table.paths.prefix)
            if kept is None or kept.max_refresh_ms != max_refresh_ms:
                reader = LogReader(table, clock=self._clock, max_refresh_ms=max_refresh_ms, is_compact=self._is_compact)
                kept = _Kept(max_refresh_ms, reader, HoldReader())
            self._kept[table.paths.prefix] = kept  # again: its log has grown since
            return kept.reader

    def steady_of(self, paths: TablePaths) -> SteadyTime:
        """Return what was heard of the store's time in runs over the table."""
        with self._lock:
            return self._steady.setdefault(paths.prefix, SteadyTime(1))

    def holds_of(self, paths: TablePaths) -> HoldReader:
        """Return what is kept of the table's leases and tags with its reader."""
        with self._lock:
            kept = self._kept.get(paths.prefix)
            return HoldReader() if kept is None else kept.holds


T = TypeVar("T")

COMPUTE_THREADS: Final = 2
"""Folds and serialisations hold the interpreter's lock: more threads would only stand in each other's way."""
MAX_WAITING_COMPUTATIONS: Final = 200
"""Computations that wait for a thread; those above it are refused."""
RETRY_AFTER_MS: Final = 1000


class BlockingWork:
    """Runs functions that block. Use it from one event loop.

    Args:
        max_jobs: Most functions that may wait for the store at once, each in a thread; a quarter of them for one table.
        wait_ms: How long a caller waits for what they give, whatever its own deadline.
    """

    def __init__(self, *, max_jobs: int, wait_ms: int) -> None:
        self._max_jobs = max_jobs
        self._max_jobs_per_table = max(2, max_jobs // 4)
        self.wait_ms = wait_ms
        self._store_pool = ThreadPoolExecutor(max_jobs, "icedb-store")
        self._compute_pool = ThreadPoolExecutor(COMPUTE_THREADS, "icedb-compute")
        self._jobs: Counter[str] = Counter()
        self._job_count = 0
        self._computation_count = 0

    @property
    def job_count(self) -> int:
        """Functions that wait for the store now."""
        return self._job_count

    async def run_blocking(self, table: str, function: Callable[[], T]) -> T:
        """Run a function that reads or writes the object store. A caller that is cancelled leaves it running.

        Args:
            table: Whose share of threads it takes; empty for work that is no table's.
            function: Takes nothing.

        Raises:
            Overloaded: Too many run already; nothing was done.
        """
        if self._jobs[table] >= self._max_jobs_per_table or self._job_count >= self._max_jobs:
            whose = f"table {table}: {self._jobs[table]}" if self._jobs[table] else f"{self._job_count}"
            raise Overloaded(
                f"{whose} calls wait for the object store already; it is slow, or there are too many callers: "
                f"try again in {RETRY_AFTER_MS} ms, or accept an older state (max_staleness_ms)",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._jobs[table] += 1
        self._job_count += 1
        running = asyncio.get_running_loop().run_in_executor(self._store_pool, function)
        running.add_done_callback(lambda _: self._end(table))
        return await asyncio.shield(running)

    @asynccontextmanager
    async def in_time(self, problem: str, remedy: str) -> AsyncIterator[None]:
        """Bound how long a block waits. Raises Unavailable with both texts, and the limit between them."""
        try:
            async with asyncio.timeout(self.wait_ms / SECOND_MS):
                yield
        except TimeoutError:
            raise Unavailable(f"{problem} within {self.wait_ms} ms (ICEDB_READ_WAIT_MS){remedy}") from None

    async def run_compute(self, function: Callable[[], T]) -> T:
        """Run a function that only computes, and for longer than the event loop may stand still.

        Raises:
            Overloaded: Too many wait for a thread; nothing was done.
        """
        if self._computation_count >= MAX_WAITING_COMPUTATIONS:
            raise Overloaded(
                f"{self._computation_count} answers wait to be made: try again in {RETRY_AFTER_MS} ms",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._computation_count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compute_pool, function)
        finally:
            self._computation_count -= 1

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        self._store_pool.shutdown(wait=False, cancel_futures=True)
        self._compute_pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, table: str) -> None:
        self._job_count -= 1
        self._jobs[table] -= 1
        if not self._jobs[table]:
            del self._jobs[table]


class SharedWork(Generic[T]):
    """Work that several callers wait for: under each name at most one piece runs. Use it from one event loop.

    It outlives callers that are cancelled: others may wait for it. What it raises, whoever waits for it has.

    Args:
        on_error: Told of each piece that failed: its name, and what it raised.
    """

    def __init__(self, on_error: Callable[[str, BaseException], None] = lambda _name, _error: None) -> None:
        self._on_error = on_error
        self._running: dict[str, asyncio.Task[T]] = {}
        self._begun_ms: dict[str, int] = {}

    def find(self, name: str) -> "asyncio.Task[T] | None":
        """Return the piece that runs under a name. Wait for it shielded, or by ``asyncio.wait``."""
        return self._running.get(name)

    def start(self, name: str, work: Coroutine[Any, Any, T], *, begun_ms: int = 0) -> "asyncio.Task[T]":
        """Begin a piece; none runs under its name. ``begun_ms``: what :meth:`begun_ms` returns of it."""
        task = self._running[name] = asyncio.ensure_future(work)
        self._begun_ms[name] = begun_ms
        task.add_done_callback(lambda done: self._end(name, done))
        return task

    def begun_ms(self, name: str) -> int:
        """Return when the piece that runs began."""
        return self._begun_ms[name]

    def _end(self, name: str, done: "asyncio.Task[T]") -> None:
        del self._running[name], self._begun_ms[name]
        error = None if done.cancelled() else done.exception()  # taken: no loop complains that nobody waited
        if error is not None:
            self._on_error(name, error)


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
    """

    def __init__(self, warehouse: Warehouse, *, work: BlockingWork, clock: Clock, max_age_ms: int) -> None:
        self._warehouse = warehouse
        self._work = work
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._tables = RecentTables(clock, max_age_ms=0, seen_ms=CONFIG_CACHE_TTL_MS)
        self._last: _Look | None = None
        self._looking: SharedWork[_Look] = SharedWork()

    async def read(self) -> tuple[str, ...]:
        """Return the names of the tables that are there and not dropped, ascending.

        A table that was dropped is gone from it after ten seconds at the latest, a new one comes with the next look.
        One whose configuration does not answer is named, too: who asks for it is told why.

        Raises:
            Overloaded: Too many calls wait for the store.
            Unavailable: The store did not answer in time.
        """
        last = self._last
        if last is not None and self._clock.monotonic_ms() - last.started_ms <= self._max_age_ms > 0:
            return last.names
        remedy = ": the object store is slow; try again, or name one table"
        async with self._work.in_time("the tables were not listed", remedy):
            look = await asyncio.shield(self._looking.find("") or self._looking.start("", self._read_now()))
        return look.names

    async def _read_now(self) -> _Look:
        self._last = await self._work.run_blocking("", self._look)
        return self._last

    def _look(self) -> _Look:
        started_ms = self._clock.monotonic_ms()
        return _Look(self._tables.list(self._warehouse), started_ms)


READ_AHEAD_PARTS: Final = 2
"""A caller who gets what is older than this fraction of what he accepts lets the next read begin."""


class TableReads:
    """Reads tables for coroutines. Use it from one event loop."""

    def __init__(self, tables: TableCache, *, work: BlockingWork) -> None:
        self.tables: Final = tables
        self.work: Final = work
        self._reads: SharedWork[TableState] = SharedWork(self._forget_missing)

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
        question = cached.ask(max_staleness_ms)
        known = cached.answer(question)
        if known is not None:
            age_ms = question.arrived_ms - known.started_ms
            if age_ms > max_staleness_ms // READ_AHEAD_PARTS and self._reads.find(table) is None:
                self._start(table, cached)  # what becomes of it, whoever needs it will see
            return known
        remedy = "; the object store is slow: try again, or accept an older state"
        async with self.work.in_time(f"table {table}: no read of its log ended", remedy):
            return await self._wait(table, cached, question)

    async def _wait(self, table: str, cached: CachedTable, question: Question) -> TableState:
        """Wait for one read after the other until one will do; begin it if none runs."""
        while (known := cached.answer(question)) is None:
            running = self._reads.find(table)
            if running is None:
                return await asyncio.shield(self._start(table, cached))
            await asyncio.wait((running,))
        return known

    def _start(self, table: str, cached: CachedTable) -> asyncio.Task[TableState]:
        return self._reads.start(table, self.work.run_blocking(table, lambda: cached.read(max_staleness_ms=0)))

    def _forget_missing(self, table: str, error: BaseException) -> None:
        if isinstance(error, NotFound):
            self.tables.drop(table)
