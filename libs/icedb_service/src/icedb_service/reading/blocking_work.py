"""Work that blocks, for handlers on the event loop: in a bounded number of threads, and refused beyond that.

Two pools, because a store that hangs must not keep answers from being made of what is in memory: one for what waits
for the object store, one for what only computes. Each table has a share of the first, so that one that hangs leaves
threads to the others. Nothing queues for a thread of the store's pool: what finds none is refused at once with the
time after which to try again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from icedb_log.errors import Overloaded

T = TypeVar("T")

COMPUTE_THREADS: Final = 2
"""Folds and serialisations hold the interpreter's lock: more threads would only stand in each other's way."""
MAX_WAITING_COMPUTATIONS: Final = 200
"""Computations that wait for a thread; those above it are refused."""
RETRY_AFTER_MS: Final = 1000


class BlockingWork:
    """Runs functions that block. Use it from one event loop.

    Args:
        max_jobs: Most functions that may wait for the store at once, each in a thread.
        max_jobs_per_table: Most of them for one table.
    """

    def __init__(self, *, max_jobs: int, max_jobs_per_table: int) -> None:
        self._max_jobs = max_jobs
        self._max_jobs_per_table = max_jobs_per_table
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
