"""A whole gateway: the S3 endpoint on one event loop in a thread of its own. Also the way to start one in a program.

Stops in this order: not ready any more, no new connections, running requests end.
"""

import asyncio
from typing import Final

from icedb_log.clock import Clock
from icedb_log.serving.table_cache import TableCache
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_service.access.guard import AccessGuard, open_guard
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
from icedb_service.readers import BlockingWork, TableNames, TableReads
from icedb_service.tls import ssl_context

from icedb_gateway.app import S3App
from icedb_gateway.authentication import Authentication
from icedb_gateway.bodies import Bodies, BodyLimits
from icedb_gateway.list_objects import Lister
from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.operations import Operations
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.views import TableViews

STOP_MARGIN_S: Final = 15
READ_TIMEOUT_SETTING: Final = "ICEDB_GATEWAY_READ_TIMEOUT_MS"


class Gateway:
    """A gateway in this process. Start it, stop it.

    Args:
        warehouse: Where the tables lie.
        settings: Address and bounds.
        clock: Times and ids.
        guard: Who may do what; as the settings say by default.
        metrics: What it counts.

    Attributes:
        port: Where S3 is served, once it is started.

    Raises:
        InvalidRequest: The access file or the certificate is wrong, or there is no access file and others reach the
            address.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: GatewaySettings,
        clock: Clock,
        guard: AccessGuard | None = None,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self.port = 0
        self.metrics = metrics or GatewayMetrics()
        self._warehouse = warehouse
        self._settings = settings
        self._clock = clock
        self._guard = guard or open_guard(
            settings, clock=clock, metrics=self.metrics.access, endpoint="s3", hosts=(settings.gateway_host,)
        )
        self._tls = ssl_context(settings, clock=clock)
        watch_clock(warehouse.store, self.metrics.clock, clock=clock, settings=settings)
        self._metrics_server: MetricsServer | None = None
        stop_limit_s = settings.gateway_shutdown_ms / SECOND_MS + STOP_MARGIN_S
        self._thread = ServerThread(self._serve, name="gateway", what="the gateway", stop_limit_s=stop_limit_s)

    @property
    def is_enforced(self) -> bool:
        """Whether callers have to show who they are."""
        return self._guard.is_enforced

    def start(self) -> None:
        """Serve; returns when the endpoint listens.

        Raises:
            Unavailable: An address cannot be listened on.
        """
        check_port_is_free(self._settings.metrics_host, self._settings.metrics_port)
        try:
            self._thread.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop serving. May be called again."""
        self._thread.stop()
        if self._metrics_server is not None:
            self._metrics_server.stop()
            self._metrics_server = None

    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    async def _serve(self) -> None:
        settings = self._settings

        async def show(is_ready: bool) -> None:  # noqa: FBT001 - a callback with one meaning
            self.metrics.store_up.set(1 if is_ready else 0)

        health = LoopHealth(self._warehouse, clock=self._clock, on_change=show)
        work = BlockingWork(max_jobs=settings.gateway_store_threads, max_jobs_per_table=settings.gateway_table_threads)
        bodies = self._make_bodies()
        server: HttpServer | None = None
        beating: asyncio.Task[None] | None = None
        try:
            server = await HttpServer.start(self._make_app(work, bodies, health), self._http_options())
            self.port = server.port
            self._metrics_server = await asyncio.to_thread(self._serve_metrics, health)
            beating = asyncio.create_task(health.run())
            self._thread.show_started()
            await self._thread.wait_for_stop()
        finally:
            if beating is not None:
                beating.cancel()
                await health.drain()
            if server is not None:
                await server.stop()
            work.close()
            bodies.close()

    def _make_app(self, work: BlockingWork, bodies: Bodies, health: LoopHealth) -> S3App:
        settings, clock, metrics = self._settings, self._clock, self.metrics
        wait_ms = settings.gateway_read_timeout_ms
        tables = TableCache(
            self._warehouse,
            clock=clock,
            max_tables=settings.gateway_max_tables,
            wait_ms=wait_ms,
            on_refresh=metrics.observe_refresh,
        )
        views = TableViews(
            self._warehouse,
            reads=TableReads(tables, work=work, clock=clock, wait_ms=wait_ms, wait_setting=READ_TIMEOUT_SETTING),
            clock=clock,
            staleness_ms=settings.gateway_staleness_ms,
            kept_files=settings.gateway_kept_files,
            on_lost=metrics.lost_listings.inc,
        )
        names = TableNames(
            self._warehouse,
            work=work,
            clock=clock,
            max_age_ms=settings.gateway_tables_staleness_ms,
            wait_ms=wait_ms,
            wait_setting=READ_TIMEOUT_SETTING,
        )
        lister = Lister(views, names=names, guard=self._guard, bucket=settings.gateway_bucket, metrics=metrics)
        operations = Operations(
            views, lister=lister, bodies=bodies, guard=self._guard, settings=settings, metrics=metrics
        )
        return S3App(
            operations,
            authentication=Authentication(self._guard, clock=clock, metrics=metrics),
            bodies=bodies,
            health=health.checks(),
            settings=settings,
            metrics=metrics,
            clock=clock,
        )

    def _make_bodies(self) -> Bodies:
        settings = self._settings
        limits = BodyLimits(
            part_bytes=settings.part_bytes,
            max_bodies=settings.gateway_max_bodies,
            wait_ms=settings.gateway_body_wait_ms,
            fetch_timeout_ms=settings.gateway_read_timeout_ms,
            send_timeout_ms=settings.gateway_send_timeout_ms,
            threads=settings.gateway_store_threads,
        )
        return Bodies(self._warehouse.store, limits=limits, metrics=self.metrics)

    def _http_options(self) -> HttpServerOptions:
        settings = self._settings
        return HttpServerOptions(
            host=settings.gateway_host,
            port=settings.gateway_port,
            address_settings="ICEDB_GATEWAY_HOST and ICEDB_GATEWAY_PORT",
            max_connections=settings.gateway_max_connections,
            header_timeout_ms=settings.gateway_header_timeout_ms,
            keep_alive_ms=settings.gateway_keep_alive_ms,
            shutdown_ms=settings.gateway_shutdown_ms,
            tls=self._tls,
        )

    def _serve_metrics(self, health: LoopHealth) -> MetricsServer | None:
        return start_metrics_server(
            self.metrics.registry,
            host=self._settings.metrics_host,
            port=self._settings.metrics_port,
            health=health.checks(),
            clock=self._clock,
        )
