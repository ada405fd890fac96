"""Runs the gRPC door: an asyncio server with health and reflection."""

from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from icedb_log.clock import Clock
from icedb_log.units import KIB, SECOND_MS
from icedb_proto import ingest_pb2
from icedb_service.grpc_server import BoundedHealth, listen, tolerant
from icedb_service.tls import server_credentials

from icedb_ingest.frontend.grpc_door import GrpcDoor
from icedb_ingest.frontend.settings import FrontendSettings

SERVICE: Final = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].full_name
ENVELOPE_BYTES: Final = 64 * KIB
"""Room in a message besides the data."""
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
CLIENT_PING_INTERVAL_MS: Final = 10_000


class GrpcServer:
    """A started server. Use :meth:`start`.

    Attributes:
        port: The port it listens on.
    """

    def __init__(self, server: Any, servicer: Any, port: int) -> None:
        self.port = port
        self._server = server
        self._health = servicer

    @classmethod
    async def start(cls, door: GrpcDoor, settings: FrontendSettings, *, clock: Clock) -> Self:
        """Listen and serve; health says NOT_SERVING until :meth:`show_health` says otherwise.

        Raises:
            Unavailable: The address cannot be listened on.
        """
        server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.frontend_max_calls,
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_batch_bytes + ENVELOPE_BYTES),
                # A sender that vanished without a word must not keep its stream's place for ever.
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_INTERVAL_MS),
            ),
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(door)),))
        servicer = BoundedHealth(max_calls=settings.frontend_max_calls)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        host = f"[{settings.frontend_host}]" if ":" in settings.frontend_host else settings.frontend_host
        started = cls(
            server,
            servicer,
            listen(
                server,
                f"{host}:{settings.frontend_grpc_port}",
                server_credentials(settings, clock=clock),
                remedy="set ICEDB_FRONTEND_HOST and ICEDB_FRONTEND_GRPC_PORT to an address of this host that is free",
            ),
        )
        await started.show_health(is_serving=False)
        await server.start()
        return started

    async def show_health(self, *, is_serving: bool) -> None:
        """Answer health checks, of the server as a whole and of the service, from now on."""
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def stop(self, *, grace_ms: int) -> None:
        """Refuse new calls, let running ones end for at most ``grace_ms``, then stop."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_ms / SECOND_MS)


def _handlers(door: GrpcDoor) -> dict[str, Any]:
    codec = {
        "request_deserializer": tolerant(ingest_pb2.AppendRequest.FromString),
        "response_serializer": ingest_pb2.AppendResponse.SerializeToString,
    }
    return {
        "Append": grpc.unary_unary_rpc_method_handler(door.append, **codec),
        "AppendStream": grpc.stream_stream_rpc_method_handler(door.append_stream, **codec),
    }
