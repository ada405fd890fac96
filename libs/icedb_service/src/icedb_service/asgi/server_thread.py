"""The thread that runs a server's event loop: start, stop, crash. Signals and a program's own work stay out of it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from icedb_log.errors import IceDBError, Unavailable

from icedb_service.logs import get_logger

START_LIMIT_S: Final = 30


class ServerThread:
    """Runs one server on an event loop of its own. Started once.

    What it runs calls :meth:`show_started` when it serves, then awaits :meth:`wait_for_stop`, then gives back what it
    holds. If it raises before it serves, :meth:`start` raises that; if it does afterwards, it is logged, and
    :meth:`is_alive` says no.

    Args:
        serve: Makes what is run; called in the thread.
        name: Of the thread and of the log event ``<name>_crashed``.
        what: The server in words, for errors: "the front end".
        start_limit_s: How long :meth:`start` waits.
        stop_limit_s: How long :meth:`stop` waits.
    """

    def __init__(
        self,
        serve: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        what: str,
        stop_limit_s: float,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._serve = serve
        self._name = name
        self._what = what
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._stopping = asyncio.Event()
        self._has_served = False
        self._ready = threading.Event()
        """Set when it serves, or never will."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Return when it serves.

        Raises:
            IceDBError: What the server raised before it served, e.g. Unavailable: an address is taken.
            Unavailable: It did not serve in time.
            RuntimeError: Something else went wrong; the cause tells.
        """
        self._thread.start()
        is_in_time = self._ready.wait(self._start_limit_s)
        failure = self._failure
        if is_in_time and (self._has_served or failure is None):
            return
        self.stop()
        if not is_in_time:
            raise Unavailable(f"{self._what} did not start within {self._start_limit_s:g} s")
        if isinstance(failure, IceDBError):
            raise failure
        raise RuntimeError(f"{self._what} does not start") from failure

    def stop(self) -> None:
        """Let the server stop, and wait for it. May be called again, and before it was started."""
        with self._lock:
            self._is_stopping = True
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop has ended by itself
                    self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:
            self._thread.join(self._stop_limit_s)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def show_started(self) -> None:
        """Say that it serves. Called by what is run."""
        self._has_served = True
        self._ready.set()

    async def wait_for_stop(self) -> None:
        """Return when somebody calls :meth:`stop`. Called by what is run."""
        await self._stopping.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - the thread's last stop; start() raises it, or it is logged
            if self._has_served:
                get_logger().exception(f"{self._name}_crashed")
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._is_stopping:
                return  # before there was a loop to tell
        await self._serve()
