"""Whether an HTTP door lives and can answer: the pulse of its event loop, and a look at the store now and then."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.warehouse import Warehouse

from icedb_service.http_server import HealthChecks
from icedb_service.logs import get_logger

BEAT_S: Final = 1.0
LOOK_EVERY_BEATS: Final = 5
LONGEST_PAUSE_MS: Final = 30_000
"""A loop that has not come round for so long is stuck, and the process is not worth keeping."""


class Pulse:
    """Looks, and answers health checks from what it saw: a check never waits for a store.

    Args:
        warehouse: Whose store is looked at.
        clock: For the pulse.
        on_change: Called when the door begins or ceases to be ready.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, on_change: Callable[[bool], Awaitable[None]]) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._on_change = on_change
        self._beat_ms = clock.monotonic_ms()
        self._problem = "the store was not looked at yet"
        self._is_draining = False
        self._was_ready = False

    def checks(self) -> HealthChecks:
        """What ``/healthz`` and ``/readyz`` look at."""
        return HealthChecks(
            alive={"loop": self._check_loop}, ready={"store": self._check_store, "draining": self._check_draining}
        )

    async def run(self) -> None:
        """Beat until cancelled."""
        beats = 0
        while True:
            self._beat_ms = self._clock.monotonic_ms()
            if beats % LOOK_EVERY_BEATS == 0:
                await self._look()
            beats += 1
            await asyncio.sleep(BEAT_S)

    async def drain(self) -> None:
        """Be ready no more."""
        self._is_draining = True
        await self._tell()

    async def _look(self) -> None:
        root = self._warehouse.root
        problem = ""
        try:
            await asyncio.to_thread(self._warehouse.store.list_page, f"{root}/" if root else "", limit=1)
        except IceDBError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - no more files or threads, say: that is over some time, the pulse is not
            problem = f"the store could not be looked at ({type(error).__name__}: {error})"
        if bool(problem) != bool(self._problem):
            get_logger().info("store_seen", is_reachable=not problem, problem=problem)
        self._problem = problem
        await self._tell()

    async def _tell(self) -> None:
        is_ready = not self._problem and not self._is_draining
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            await self._on_change(is_ready)

    def _check_loop(self) -> None:
        silent_ms = self._clock.monotonic_ms() - self._beat_ms
        if silent_ms > LONGEST_PAUSE_MS:
            raise Unavailable(f"the event loop has not come round for {silent_ms} ms")

    def _check_store(self) -> None:
        if self._problem:
            raise Unavailable(self._problem)

    def _check_draining(self) -> None:
        if self._is_draining:
            raise Unavailable("this process is about to stop")
