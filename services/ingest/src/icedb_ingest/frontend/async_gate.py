"""The staging gate for an event loop: bounded threads and waits, a byte budget, wake-ups that nobody waits for.

The budget bounds how many bytes of bodies this process holds, over all endpoints, first come, first served. Flushes are
woken from a thread of its own: no answer ever waits for Redis (I4).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeVar

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.units import MIB, SECOND_MS
from icedb_service.logs import get_logger

from icedb_ingest.frontend.errors import Busy
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import Accepted, Offer, StagingGate

RETRY_AFTER_MS: Final = 1000


class ByteBudget:
    """A budget of bytes."""

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
    """Room for one body; may grow while it is held."""

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self.body = b""
        self._budget = budget
        self._size_bytes = size_bytes

    async def __aenter__(self) -> Self:
        await self._budget.take(self._size_bytes)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._budget.give(self._size_bytes)

    def grow_to(self, size_bytes: int) -> None:
        """Make sure that so many bytes have room. Raises Busy."""
        if size_bytes > self._size_bytes:
            self._budget.take_now(size_bytes - self._size_bytes)
            self._size_bytes = size_bytes


T = TypeVar("T")
CLOSE_LIMIT_S: Final = 5


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
        self.budget = ByteBudget(
            max_bytes=settings.frontend_memory_mb * MIB,
            wait_ms=settings.frontend_memory_wait_ms,
            on_change=metrics.held_bytes.set,
        )
        self.is_draining = asyncio.Event()
        self._threads = ThreadPoolExecutor(settings.frontend_store_threads, "store")
        self._ended: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        """Work that has ended, with who waits for it: threads fill it, the loop empties it."""
        self._ended_lock = threading.Lock()
        self._later: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def accept(self, offer: Offer) -> Accepted:
        """Make a batch durable; see :meth:`StagingGate.accept`.

        Raises:
            Unavailable: Also when the store did not confirm in time; the batch may be durable all the same.
        """
        begun, job = self.blocking.begin_quickly(offer), None
        if begun is None:
            job = self._threads.submit(self.blocking.begin, offer)
            begun = _chain(job)
        accepted = await self._await(job, begun, held_bytes=len(offer.body))
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
        return await self._await(job, job, held_bytes=held_bytes)

    async def _await(self, job: Future[Any] | None, result: Future[T], *, held_bytes: int) -> T:
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
            self._leave(job, result, held_bytes)
            raise Unavailable(
                f"the store did not confirm within {limit_s:g} s; send the batch again with the same id"
            ) from None
        except asyncio.CancelledError:
            self._leave(job, result, held_bytes)
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

    def keep_soon(self, size_bytes: int) -> None:
        """Take room for what threads hold besides bodies, or give it back if it is negative; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.budget.give, -size_bytes)

    async def close(self) -> None:
        """Finish what runs, and end the threads."""
        if self._later:
            await asyncio.wait(self._later, timeout=CLOSE_LIMIT_S)
        self._threads.shutdown(wait=False)

    def _leave(self, job: Future[Any] | None, result: Future[T], held_bytes: int) -> None:
        """Let work go on that nobody waits for, or drop it if it has not begun."""
        # WARN: the caller gives its room back now. A store that hangs would otherwise collect bodies without bound.
        if result.done() or (job is not None and job.cancel()):
            return
        self.budget.keep(held_bytes)
        result.add_done_callback(lambda _: self.keep_soon(-held_bytes))


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
