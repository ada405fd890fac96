"""The counter in front of the desk: lets an event loop use it, with bounded threads and a bounded wait."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.units import MIB, SECOND_MS

from icedb_ingest.frontend.desk import Accepted, Desk, Offer
from icedb_ingest.frontend.memory import Memory
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings

T = TypeVar("T")
CLOSE_LIMIT_S: Final = 5


class Counter:
    """What every door of one process shares.

    Args:
        desk: Accepts batches.
        settings: Bounds.
        metrics: Where acknowledgements are counted.
        clock: For durations.

    Attributes:
        memory: The budget of bodies.
        is_draining: Set when the process is about to stop: streams end, probes fail.
    """

    def __init__(self, desk: Desk, *, settings: FrontendSettings, metrics: FrontendMetrics, clock: Clock) -> None:
        self.desk = desk
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.memory = Memory(
            max_bytes=settings.frontend_memory_mb * MIB,
            wait_ms=settings.frontend_memory_wait_ms,
            on_change=metrics.held_bytes.set,
        )
        self.is_draining = asyncio.Event()
        self._threads = ThreadPoolExecutor(settings.frontend_store_threads, "store")
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, offer: Offer) -> Accepted:
        """Make a batch durable; see :meth:`Desk.accept`.

        Raises:
            Unavailable: Also when the store did not confirm in time; the batch may be durable all the same.
        """
        accepted = await self.run(lambda: self.desk.accept(offer), held_bytes=len(offer.body))
        if accepted.binding is not None:
            binding = accepted.binding
            self._later(lambda: self.desk.remember(binding))
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
        limit_s = self.settings.frontend_ack_timeout_ms / SECOND_MS
        job = self._threads.submit(work)
        running = asyncio.wrap_future(job)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(running)
        except TimeoutError:
            self._leave(job, running, held_bytes)
            raise Unavailable(
                f"the store did not confirm within {limit_s:g} s; send the batch again with the same id"
            ) from None
        except asyncio.CancelledError:
            self._leave(job, running, held_bytes)
            raise

    async def close(self) -> None:
        """Finish what runs, and end the threads."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_LIMIT_S)
        self._threads.shutdown(wait=False)

    def _leave(self, job: Future[T], running: asyncio.Future[T], held_bytes: int) -> None:
        """Let work go on that nobody waits for, or drop it if it has not begun."""
        # WARN: the caller gives its room back now. A store that hangs would otherwise collect bodies without bound.
        if job.done() or job.cancel():
            running.add_done_callback(_forget)
            return
        self.memory.keep(held_bytes)

        def end(ended: asyncio.Future[T]) -> None:
            _forget(ended)
            self.memory.give(held_bytes)

        running.add_done_callback(end)

    def _later(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            await asyncio.get_running_loop().run_in_executor(self._threads, work)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _forget(running: asyncio.Future[T]) -> None:
    """Take the result of work that nobody waits for, so that no loop complains about it."""
    if not running.cancelled():
        running.exception()
