"""The staging gate for an event loop: bounded threads and waits, a byte budget, wake-ups that nobody waits for.

The budget bounds how many bytes of bodies this process holds, over all endpoints, and how many of one identity. Flushes
are woken from a thread of its own: no answer ever waits for Redis (I4).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.units import MIB, SECOND_MS
from icedb_service.access.guard import NOBODY, Holder, Places
from icedb_service.budget import RETRY_AFTER_MS, Budget
from icedb_service.logs import get_logger

from icedb_ingest.frontend.errors import Busy
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import Accepted, Offer, StagingGate


def make_budget(*, max_bytes: int, wait_ms: int, on_change: Callable[[int], object] = lambda _: None) -> Budget:
    """Return the budget of bodies of a process, in bytes."""

    def explain(held_bytes: int, size_bytes: int) -> Busy:
        return Busy(
            f"this front end holds {held_bytes} of {max_bytes} bytes and has no room for {size_bytes} more; "
            "send the batch again with the same id, or to another replica",
            retry_after_ms=RETRY_AFTER_MS,
        )

    places = Places("bytes of bodies", setting="ICEDB_FRONTEND_MEMORY_MB", size=max_bytes)
    return Budget(places, wait_ms=wait_ms, explain=explain, on_change=on_change)


T = TypeVar("T")
CLOSE_LIMIT_S: Final = 5
MEMORY_WAIT_MS: Final = 2 * SECOND_MS
"""How long a batch waits for room before it is refused."""


class AsyncGate:
    """What every endpoint of one process shares.

    Attributes:
        budget: The budget of bodies.
        is_draining: Set when the process is about to stop: streams end, probes fail.
    """

    def __init__(
        self, blocking: StagingGate, *, settings: FrontendSettings, metrics: FrontendMetrics, clock: Clock
    ) -> None:
        self.blocking = blocking
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.budget = make_budget(
            max_bytes=settings.frontend_memory_mb * MIB,
            wait_ms=MEMORY_WAIT_MS,
            on_change=metrics.held_bytes.set,
        )
        self.is_draining = asyncio.Event()
        self._threads = ThreadPoolExecutor(settings.frontend_store_threads, "store")
        self._ended: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        """Work that has ended, with who waits for it: threads fill it, the loop empties it."""
        self._ended_lock = threading.Lock()
        self._later: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def accept(self, offer: Offer, *, holder: Holder = NOBODY) -> Accepted:
        """Make a batch durable; see :meth:`StagingGate.accept`.

        Args:
            offer: The batch.
            holder: Who holds the room of its body.

        Raises:
            Unavailable: Also when the store did not confirm in time; the batch may be durable all the same.
        """
        begun, job = self.blocking.begin_quickly(offer), None
        if begun is None:
            job = self._threads.submit(self.blocking.begin, offer)
            begun = _chain(job)
        accepted = await self._await(job, begun, held_bytes=len(offer.body), holder=holder)
        if accepted.binding is not None:
            with suppress(RuntimeError):  # the gate is closed: the batch is durable, and saying so comes first
                remember = self.blocking.remember
                later = asyncio.get_running_loop().run_in_executor(self._threads, remember, accepted.binding)
                self._later.add(later)
                later.add_done_callback(self._later.discard)
        return accepted

    async def run(self, work: Callable[[], T], *, held_bytes: int = 0) -> T:
        """Run blocking work in a thread, and wait for at most the acknowledgement's time.

        A caller that goes away, or a wait that ends, leaves the work running if it has begun: a PUT that was sent
        cannot be taken back. Its body takes room until it ends. Work that has not begun is dropped.

        Args:
            work: What to do.
            held_bytes: What it keeps in memory.

        Raises:
            Unavailable: It did not end in time; besides what it raises itself.
        """
        job = self._threads.submit(work)
        return await self._await(job, job, held_bytes=held_bytes, holder=NOBODY)

    async def _await(self, job: Future[Any] | None, result: Future[T], *, held_bytes: int, holder: Holder) -> T:
        """Wait for what a job in a thread leads to. A batch that waits in a group has begun."""
        limit_s = self.settings.frontend_ack_timeout_ms / SECOND_MS
        waiter: asyncio.Future[T] = self._loop.create_future()
        result.add_done_callback(partial(self._tell_soon, waiter))
        try:
            async with asyncio.timeout(limit_s):
                return await waiter
        except TimeoutError:
            if result.done() and not result.cancelled():
                return result.result()
            self._leave(job, result, held_bytes, holder)
            raise Unavailable(
                f"the store did not confirm within {limit_s:g} s; send the batch again with the same id"
            ) from None
        except asyncio.CancelledError:
            self._leave(job, result, held_bytes, holder)
            raise

    def _tell_soon(self, waiter: asyncio.Future[T], result: Future[T]) -> None:
        """Have who waits for some work told of its end; from any thread. All batches of a group wake the loop once."""
        with self._ended_lock:
            is_first = not self._ended
            self._ended.append((waiter, result))
        if is_first:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tell_ended)

    def _tell_ended(self) -> None:
        with self._ended_lock:
            ended, self._ended = self._ended, deque()
        for waiter, result in ended:
            if waiter.done():
                continue  # nobody waits any more
            if result.cancelled():
                waiter.cancel()
            elif (error := result.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(result.result())

    def keep_soon(self, size_bytes: int, holder: Holder = NOBODY) -> None:
        """Take room for what threads hold besides bodies, or give it back if it is negative; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.budget.give, -size_bytes, holder)

    async def close(self) -> None:
        """Finish what runs, and end the threads."""
        if self._later:
            await asyncio.wait(self._later, timeout=CLOSE_LIMIT_S)
        self._threads.shutdown(wait=False)

    def _leave(self, job: Future[Any] | None, result: Future[T], held_bytes: int, holder: Holder) -> None:
        """Let work go on that nobody waits for, or drop it if it has not begun."""
        # WARN: the caller gives its room back now. A store that hangs would otherwise collect bodies without bound.
        if result.done() or (job is not None and job.cancel()):
            return
        self.budget.keep(held_bytes, holder)
        result.add_done_callback(lambda _: self.keep_soon(-held_bytes, holder))


def _chain(job: Future[Future[T]]) -> Future[T]:
    """Return the future of what a job's own future leads to."""
    ended: Future[T] = Future()

    def follow(job: Future[Future[T]]) -> None:
        if job.cancelled():
            ended.cancel()
        elif (error := job.exception()) is not None:
            ended.set_exception(error)
        else:
            job.result().add_done_callback(end)

    def end(result: Future[T]) -> None:
        error = result.exception()
        if error is None:
            ended.set_result(result.result())
        else:
            ended.set_exception(error)

    job.add_done_callback(follow)
    return ended


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
