"""A whole front end: every endpoint, on one event loop in a thread of its own. Also the way to start one in a program.

Stops in this order: not ready any more, no new requests and streams, running ones end, groups of events are staged,
wake-ups are sent. What was acknowledged is durable at every moment of it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from icedb_log.clock import Clock
from icedb_log.ingest.pressure import PressureGate
from icedb_log.store.store_clock import AlignedClock
from icedb_log.table.stored_config import TableConfigs
from icedb_log.units import KIB, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_service.access.credentials import GrpcAccess, HttpAccess
from icedb_service.access.guard import open_guard
from icedb_service.http_server import (
    HttpServer,
    HttpServerOptions,
    LoopHealth,
    MetricsServer,
    ServerThread,
    check_port_is_free,
    start_metrics_server,
)
from icedb_service.main import watch_clock
from icedb_service.tls import ssl_context
from pydantic import SecretStr
from starlette.applications import Starlette

from icedb_ingest.frontend.async_gate import AsyncGate, Waker
from icedb_ingest.frontend.grpc_endpoint import GrpcEndpoint, GrpcServer
from icedb_ingest.frontend.http_endpoint import HttpEndpoint, make_app
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import MISSING_AGE_MS, BatchBounds, BatchStatuses, StagingGate
from icedb_ingest.frontend.webhooks import Credentials, EventGroups

STOP_MARGIN_S: Final = 15


def make_gate(
    warehouse: Warehouse, *, settings: FrontendSettings, clock: Clock, on_staged: Callable[[str], None]
) -> StagingGate:
    """Return a staging gate that asks the store about tables and pressure."""
    return StagingGate(
        warehouse,
        clock=clock,
        pressure=PressureGate(warehouse.store, clock=clock),
        tables=TableConfigs(
            warehouse.store,
            clock=clock,
            max_age_ms=settings.frontend_table_cache_ms,
            missing_age_ms=MISSING_AGE_MS,
        ),
        on_staged=on_staged,
        bounds=BatchBounds(settings.batch_max_decoded_bytes, settings.batch_max_rows),
    )


class Frontend:
    """A front end in this process. Start it, stop it.

    Args:
        warehouse: Where the tables lie.
        settings: Addresses and bounds.
        clock: Times and ids.
        wake: Wakes the flush of a table; raises Unavailable when it cannot.
        metrics: What it counts.

    Raises:
        InvalidRequest: The access file is wrong; or there is none, and others reach these endpoints.

    Attributes:
        http_port: Where HTTP is served, once it is started.
        grpc_port: Where gRPC is served, once it is started.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: FrontendSettings,
        clock: Clock,
        wake: Callable[[str], object],
        metrics: FrontendMetrics | None = None,
    ) -> None:
        self.http_port = 0
        self.grpc_port = 0
        self.metrics = metrics or FrontendMetrics()
        self._warehouse = warehouse
        self._settings = settings
        self._clock = AlignedClock(clock, warehouse.store, may_ask=False)  # I3: ids have the store's time
        self._guard = open_guard(settings, clock=clock, metrics=self.metrics.access, hosts=(settings.frontend_host,))
        watch_clock(warehouse.store, self.metrics.clock, clock=clock, settings=settings)
        self._waker = Waker(wake)
        self._gate = make_gate(warehouse, settings=settings, clock=self._clock, on_staged=self._waker.ask)
        self._metrics_server: MetricsServer | None = None
        stop_limit_s = settings.frontend_shutdown_ms / SECOND_MS + STOP_MARGIN_S
        self._thread = ServerThread(self._serve, name="frontend", what="the front end", stop_limit_s=stop_limit_s)

    def start(self) -> None:
        """Serve; returns when every endpoint listens.

        Raises:
            Unavailable: An address cannot be listened on.
        """
        check_port_is_free(self._settings.metrics_host, self._settings.metrics_port)
        self._waker.start()
        try:
            self._thread.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop in order. May be called again."""
        self._thread.stop()
        self._waker.stop()
        if self._metrics_server is not None:
            self._metrics_server.stop()
            self._metrics_server = None

    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    async def _serve(self) -> None:
        settings, clock = self._settings, self._clock
        gate = AsyncGate(self._gate, settings=settings, metrics=self.metrics, clock=clock)
        groups = EventGroups(
            gate.accept,
            clock=clock,
            linger_ms=settings.frontend_linger_ms,
            max_rows=settings.frontend_group_rows,
            max_bytes=settings.frontend_group_kb * KIB,
            on_group=self.metrics.groups.inc,
        )
        grpc_server: GrpcServer | None = None
        http_server: HttpServer | None = None

        async def show(is_ready: bool) -> None:  # noqa: FBT001 - a callback with one meaning
            self.metrics.store_up.set(1 if is_ready else 0)
            if grpc_server is not None:
                await grpc_server.show_health(is_serving=is_ready)

        health = LoopHealth(self._warehouse, clock=clock, on_change=show)
        beating: asyncio.Task[None] | None = None
        try:
            grpc_server = await GrpcServer.start(GrpcEndpoint(gate, GrpcAccess(self._guard)), settings, clock=clock)
            http_server = await HttpServer.start(self._make_app(gate, groups, health), _http_options(settings, clock))
            self.grpc_port, self.http_port = grpc_server.port, http_server.port
            self._metrics_server = await asyncio.to_thread(self._serve_metrics, health)
            beating = asyncio.create_task(health.run())
            self._thread.show_started()
            await self._thread.wait_for_stop()
        finally:
            if beating is not None:
                beating.cancel()
                await health.drain()
            gate.is_draining.set()
            await asyncio.gather(
                *([http_server.stop()] if http_server is not None else []),
                *([grpc_server.stop(grace_ms=settings.frontend_shutdown_ms)] if grpc_server is not None else []),
            )
            await groups.finish()
            await gate.close()

    def _make_app(self, gate: AsyncGate, groups: EventGroups, health: LoopHealth) -> Starlette:
        settings = self._settings
        endpoint = HttpEndpoint(
            gate,
            groups=groups,
            statuses=BatchStatuses(self._warehouse.store, clock=self._clock),
            credentials=Credentials(
                secret=_reveal(settings.frontend_segment_secret),
                write_key=_reveal(settings.frontend_segment_write_key),
            ),
            health=health.checks(),
            access=HttpAccess(self._guard.at("http")),
        )
        return make_app(endpoint, access_log=settings.frontend_access_log, cors_origins=settings.frontend_cors_origins)

    def _serve_metrics(self, health: LoopHealth) -> MetricsServer | None:
        return start_metrics_server(
            self.metrics.registry,
            host=self._settings.metrics_host,
            port=self._settings.metrics_port,
            health=health.checks(),
            clock=self._clock,
        )


def _http_options(settings: FrontendSettings, clock: Clock) -> HttpServerOptions:
    return HttpServerOptions(
        host=settings.frontend_host,
        port=settings.frontend_http_port,
        address_settings="ICEDB_FRONTEND_HOST and ICEDB_FRONTEND_HTTP_PORT",
        max_connections=settings.frontend_max_connections,
        header_timeout_ms=settings.frontend_header_timeout_ms,
        keep_alive_ms=settings.frontend_keep_alive_ms,
        shutdown_ms=settings.frontend_shutdown_ms,
        tls=ssl_context(settings, clock=clock),
    )


def _reveal(secret: SecretStr | None) -> bytes | None:
    return secret.get_secret_value().encode() if secret is not None else None
