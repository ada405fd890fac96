"""The gRPC server: methods of all handler classes, health and reflection, on one event loop in a thread of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from icedb_log.units import MIB, SECOND_MS
from icedb_proto import snapshot_pb2
from icedb_service.grpc_server import BoundedHealth, listen
from icedb_service.tls import server_credentials

from icedb_snapshot.event_loop import LoopThread
from icedb_snapshot.interceptor import ErrorInterceptor
from icedb_snapshot.parts import Calls, EndlessCalls, ServiceParts

SERVICE: Final = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name
MAX_REQUEST_BYTES: Final = 4 * MIB
CONNECTION_GRACE_MS: Final = 5 * 60 * 1000
"""How long calls of an old connection may go on."""
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server. Its methods are called from any thread but the loop's.

    Attributes:
        server: The gRPC server.
        health: Its health service.
        loop: Where both run.
        parts: What its handlers share.
        calls: Its methods.
        port: The port it listens on.
    """

    server: Any
    health: Any
    loop: LoopThread
    parts: ServiceParts
    calls: Sequence[Calls]
    port: int

    def show_health(self, *, is_serving: bool) -> None:
        """Answer health checks, of the server as a whole and of the service, from now on."""
        self.loop.run(_show_health(self.health, is_serving=is_serving))

    def stop(self, *, grace_ms: int) -> None:
        """Refuse new calls, let running ones end for at most ``grace_ms``, then stop."""
        self.loop.run(self.health.enter_graceful_shutdown())
        self.loop.run(_end_streams(self.calls))
        self.loop.run(self.server.stop(grace_ms / SECOND_MS))

    def close(self) -> None:
        """End the loop, once nobody shows health any more."""
        self.parts.reads.work.close()
        self.loop.close()


def start_server(parts: ServiceParts, calls: Sequence[Calls]) -> RunningServer:
    """Start a server on ``settings.snapshot_address``; health says NOT_SERVING until it is told otherwise.

    Args:
        parts: What handlers share.
        calls: The methods.

    Raises:
        Unavailable: The address cannot be bound; the message names it and the setting.
    """
    loop = LoopThread("icedb-snapshot-loop")
    try:
        return loop.run(_start(parts, calls, loop))
    except BaseException:
        loop.close()
        raise


async def _start(parts: ServiceParts, calls: Sequence[Calls], loop: LoopThread) -> RunningServer:
    settings = parts.settings
    server = grpc.aio.server(
        interceptors=(
            ErrorInterceptor(parts.metrics, clock=parts.clock, write_timeout_ms=settings.snapshot_write_timeout_ms),
        ),
        maximum_concurrent_rpcs=settings.snapshot_max_pending_calls,
        options=(
            ("grpc.so_reuseport", 0),
            # Whoever reads no stream must not keep its place for ever, and load spreads over new replicas.
            ("grpc.max_connection_age_ms", settings.snapshot_connection_age_ms),
            ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_MS),
            # Pages of a stream have up to 1 MiB, however small the answers of unary calls are to be.
            ("grpc.max_send_message_length", max(settings.snapshot_max_message_bytes, 2 * MIB)),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            # A watcher whose host is gone says nothing, and neither does its connection.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # Watchers look in the same way whether this server is there; by default gRPC hangs up on such pings.
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ),
    )
    methods = {name: handler for each in calls for name, handler in each.methods().items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    servicer = BoundedHealth(max_calls=settings.snapshot_max_pending_calls)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = listen(
        server,
        settings.snapshot_address,
        server_credentials(settings, clock=parts.clock),
        remedy="set ICEDB_SNAPSHOT_ADDRESS to a free one, e.g. 127.0.0.1:50052",
    )
    await _show_health(servicer, is_serving=False)
    await server.start()
    return RunningServer(server, servicer, loop, parts, calls, port)


async def _end_streams(calls: Sequence[Calls]) -> None:
    for each in calls:
        if isinstance(each, EndlessCalls):
            each.end()


async def _show_health(servicer: Any, *, is_serving: bool) -> None:
    status = health_pb2.HealthCheckResponse
    for name in ("", SERVICE):
        await servicer.set(name, status.SERVING if is_serving else status.NOT_SERVING)
