"""The gRPC server: GetSnapshot, health and reflection.

Owns the wiring of one server and the handler of its one method. The handler reads; nothing here writes to the
store. Answers come as bytes (:mod:`icedb_snapshot.answers`), so the method is registered by hand.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from icedb_log.clock import Clock
from icedb_log.errors import NotFound, Unavailable
from icedb_log.log.fold import fold
from icedb_log.model import Snapshot
from icedb_log.serving.table_cache import TableCache, TableState
from icedb_log.tables.partition_filter import PartitionMatcher
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2

from icedb_snapshot.answers import AnswerCache
from icedb_snapshot.interceptor import ErrorInterceptor
from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.requests import SnapshotQuery, parse_request
from icedb_snapshot.settings import MIB, SnapshotSettings

SERVICE: Final = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name
MAX_REQUEST_BYTES: Final = 4 * MIB


class SnapshotHandler:
    """Answers GetSnapshot.

    Args:
        warehouse: Where the tables lie.
        settings: Limits and defaults.
        metrics: Where answers are counted.
        clock: For ages.
        tables: What is known about each table; shared with the exporter.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: SnapshotSettings,
        metrics: SnapshotMetrics,
        clock: Clock,
        tables: TableCache,
    ) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._tables = tables
        self._answers = AnswerCache(warehouse.store, max_tables=settings.snapshot_max_tables)

    def get_snapshot(self, request: snapshot_pb2.GetSnapshotRequest, _context: grpc.ServicerContext) -> bytes:
        """Return a serialized GetSnapshotResponse.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        query = parse_request(request, default_max_staleness_ms=self._settings.snapshot_max_staleness_ms)
        arrived_ms = self._clock.monotonic_ms()
        try:
            state = self._tables.table(query.table).read(max_staleness_ms=query.max_staleness_ms)
        except NotFound:
            self._tables.drop(query.table)
            raise
        matcher = PartitionMatcher(query.filters, state.config)
        snapshot = _at(state, query)
        body = self._answers.get(self._warehouse.table(query.table), snapshot).render(
            snapshot,
            matcher=matcher,
            staleness_ms=max(0, self._clock.monotonic_ms() - state.started_ms),
            max_message_bytes=self._settings.snapshot_max_message_bytes,
        )
        self._metrics.observe_answer(size_bytes=len(body), is_from_memory=state.started_ms < arrived_ms)
        return body


def _at(state: TableState, query: SnapshotQuery) -> Snapshot:
    if query.as_of_ms is None:
        return state.snapshot
    return fold(state.view, as_of_ms=query.as_of_ms)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server.

    Attributes:
        server: The gRPC server.
        health: Its health service.
        port: The port it listens on.
    """

    server: grpc.Server
    health: health.HealthServicer
    port: int

    def show_health(self, *, is_serving: bool) -> None:
        """Answer health checks, of the server as a whole and of the service, from now on."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if is_serving else status.NOT_SERVING
        for name in ("", SERVICE):
            self.health.set(name, value)

    def stop(self, *, grace_ms: int) -> None:
        """Refuse new calls, let running ones end for at most ``grace_ms``, then stop. May be called again."""
        self.health.enter_graceful_shutdown()
        self.server.stop(grace_ms / 1000).wait()


def start_server(
    handler: SnapshotHandler, *, settings: SnapshotSettings, metrics: SnapshotMetrics, clock: Clock
) -> RunningServer:
    """Start a server on ``settings.snapshot_address``.

    Raises:
        Unavailable: The address cannot be bound; the message names it and the setting.
    """
    server = grpc.server(
        ThreadPoolExecutor(settings.snapshot_threads, "icedb-snapshot"),
        interceptors=(ErrorInterceptor(metrics, clock=clock),),
        maximum_concurrent_rpcs=settings.snapshot_max_pending_calls,
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", settings.snapshot_max_message_bytes),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ),
    )
    get_snapshot = grpc.unary_unary_rpc_method_handler(
        handler.get_snapshot,
        request_deserializer=snapshot_pb2.GetSnapshotRequest.FromString,
        response_serializer=_as_they_are,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetSnapshot": get_snapshot}),))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = _bind(server, settings.snapshot_address)
    server.start()
    return RunningServer(server, servicer, port)


def _bind(server: grpc.Server, address: str) -> int:
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise _cannot_bind(address) from error
    if port == 0:
        raise _cannot_bind(address)
    return int(port)


def _cannot_bind(address: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: the port is taken, or the host is not of this machine; "
        "set ICEDB_SNAPSHOT_ADDRESS to a free one, e.g. 127.0.0.1:50052"
    )


def _as_they_are(body: bytes) -> bytes:
    return body
