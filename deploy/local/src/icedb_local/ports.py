"""Free loopback ports for servers that are started a moment later."""

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def find_free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different loopback ports that nobody listens on now.

    All are held open until the last is found, so they differ from each other. Another process may still take
    one before its server starts; the server then fails to start, and says so in its log.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind((LOOPBACK, 0))
            ports.append(probe.getsockname()[1])
        return tuple(ports)


def is_listening(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
