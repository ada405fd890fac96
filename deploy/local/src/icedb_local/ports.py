"""Free loopback ports for servers that are started a moment later.

Another stack does not take one in between (:class:`HeldPorts`). Somebody else may:
:class:`icedb_local.stack.LocalStack` sees it and chooses again.
"""

import contextlib
import socket
from typing import Final

from icedb_log.errors import Unavailable

LOOPBACK = "127.0.0.1"
FIRST_OTHER_PORT: Final = 20_000
END_OF_OTHER_PORTS: Final = 32_768
"""Where the ports begin that systems give to outgoing connections, on Linux; they begin higher elsewhere."""


class HeldPorts(contextlib.AbstractContextManager["HeldPorts"]):
    """Loopback ports that one stack has for itself, from the choice until it lets them go or this process ends.

    Whoever holds a port has bound the UDP port of the same number, on which nothing of a stack listens: the system
    gives it to one process, whoever asks, and takes it back when that dies. Not thread-safe.
    """

    def __init__(self) -> None:
        self._holds: list[socket.socket] = []

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, port: int) -> bool:
        """Hold a port; return whether it is ours now: no other stack holds it, and a server may listen there."""
        hold = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            hold.bind((LOOPBACK, port))
        except OSError:
            hold.close()
            return False
        if not is_free(port):
            hold.close()
            return False
        self._holds.append(hold)
        return True

    def take_other(self) -> int:
        """Hold the first port that can be had, beginning at 20,000: most often the same as the last time.

        Raises:
            Unavailable: There is none.
        """
        for port in range(FIRST_OTHER_PORT, END_OF_OTHER_PORTS):
            if self.take(port):
                return port
        raise Unavailable(
            f"no port from {FIRST_OTHER_PORT} to {END_OF_OTHER_PORTS - 1} is free: stop what listens there"
        )

    def release(self) -> None:
        """Let all of them go. Idempotent."""
        while self._holds:
            self._holds.pop().close()


def find_free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different loopback ports that nobody listens on now; somebody else may take them at any time.

    All are held open until the last is found, so they differ from each other.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def is_free(port: int) -> bool:
    """Whether a server may listen on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError:
            return False
    return not is_listening(port)  # some systems let a server listen here beside one that listens on every address


def is_listening(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
