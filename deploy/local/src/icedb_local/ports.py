"""Loopback ports: free ones for servers that are started a moment later, and whether what listens there answers.

Another stack does not take a port in between (:class:`HeldPorts`). Somebody else may:
:class:`icedb_local.stack.LocalStack` sees it and chooses again. What asks a server asks once, within about two seconds,
and does not raise.
"""

import contextlib
import http
import http.client
import socket
from itertools import islice
from typing import Final

from icedb_log.errors import Unavailable

LOOPBACK = "127.0.0.1"
ASK_TIMEOUT_S: Final = 2.0
OTHER_PORTS: Final = range(20_000, 32_768)
"""After them those begin that systems give to outgoing connections, on Linux; they begin higher elsewhere."""


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
        for port in OTHER_PORTS:
            if self.take(port):
                return port
        raise _no_port()

    def draw(self) -> int:
        """Hold a port of those that :func:`find_free_ports` draws from.

        Raises:
            Unavailable: There is none.
        """
        while not self.take(port := find_free_ports(1)[0]):
            pass
        return port

    def release(self) -> None:
        """Let all of them go. Idempotent."""
        while self._holds:
            self._holds.pop().close()


def find_free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different loopback ports on which a server may listen now.

    No outgoing connection gets one of them before their server begins to listen. They lie one after the other from a
    place on that the system draws, so that who asks at the same time is unlikely to be given the same.

    Raises:
        Unavailable: There are not so many.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as drawn:
        drawn.bind((LOOPBACK, 0))
        place = drawn.getsockname()[1] % len(OTHER_PORTS)
    found = tuple(islice(filter(is_free, (*OTHER_PORTS[place:], *OTHER_PORTS[:place])), count))
    if len(found) < count:
        raise _no_port()
    return found


def _no_port() -> Unavailable:
    return Unavailable(f"no port from {OTHER_PORTS[0]} to {OTHER_PORTS[-1]} is free: stop what listens there")


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


def answers_ping(redis_url: str) -> bool:
    """Whether a Redis server answers PING."""
    import redis  # noqa: PLC0415 - it takes half a second to load, and meanwhile the servers start

    try:
        with redis.Redis.from_url(redis_url, socket_timeout=ASK_TIMEOUT_S, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def answers_http(port: int) -> bool:
    """Whether an HTTP server on a loopback port answers at all."""
    return _ask(port, "/") > 0


def answers_ok(port: int, path: str) -> bool:
    """Whether an HTTP server on a loopback port answers 200."""
    return _ask(port, path) == http.HTTPStatus.OK


def _ask(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_serving(address: str) -> bool:
    """Whether a gRPC server's health service says SERVING."""
    import grpc  # noqa: PLC0415 - as above
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service="")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=ASK_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
