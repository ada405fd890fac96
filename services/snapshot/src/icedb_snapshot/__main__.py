"""Run the snapshot service: ``python -m icedb_snapshot``. Wiring only."""

import signal
import sys
import threading
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable, UnsupportedFormat
from icedb_log.serving.table_cache import TableCache
from icedb_log.warehouse import Warehouse
from icedb_service.access.credentials import GrpcAccess
from icedb_service.access.guard import open_guard
from icedb_service.http_server import HealthChecks, check_port_is_free, start_metrics_server
from icedb_service.logs import configure_logging, get_logger
from icedb_service.main import EXIT_FAILURE, EXIT_USAGE, watch_clock
from icedb_service.readers import BlockingWork, TableNames, TableReads
from icedb_service.settings import load_settings

from icedb_snapshot.lag import LagExporter
from icedb_snapshot.metrics import ExporterMetrics, SnapshotMetrics, TableMetrics
from icedb_snapshot.server import ServiceParts, SnapshotServer
from icedb_snapshot.settings import SnapshotSettings
from icedb_snapshot.snapshot_calls import SnapshotCalls
from icedb_snapshot.table_calls import ChangeCalls, LeaseCalls, TableCalls
from icedb_snapshot.watches import WatchCalls

EXPORTER_STOP_MS: Final = 5_000
READ_TIMEOUT_SETTING: Final = "ICEDB_SNAPSHOT_READ_TIMEOUT_MS"


@dataclass(frozen=True, slots=True)
class SnapshotService:
    """Everything that runs."""

    server: SnapshotServer
    exporter: LagExporter
    settings: SnapshotSettings

    def stop(self) -> None:
        """Stop in order: no new calls, running calls end, the exporter ends."""
        self.server.stop(grace_ms=self.settings.snapshot_shutdown_ms)
        self.exporter.stop(timeout_ms=EXPORTER_STOP_MS)
        self.server.close()


def start_service(warehouse: Warehouse, *, settings: SnapshotSettings, clock: Clock) -> SnapshotService:
    """Start the gRPC server, the exporter and the metrics server.

    Raises:
        Unavailable: An address cannot be listened on.
        InvalidRequest: The access file or the files of TLS are wrong; or there is none, and others reach the port.
    """
    check_port_is_free(settings.metrics_host, settings.metrics_port)
    metrics = SnapshotMetrics()
    registry = metrics.registry
    metrics.dependencies.watch_store()
    host = settings.snapshot_address.rpartition(":")[0]
    guard = open_guard(settings, clock=clock, metrics=metrics.access, hosts=(host,))
    watch_clock(warehouse.store, metrics.clock, clock=clock, settings=settings)
    tables = TableCache(
        warehouse,
        clock=clock,
        max_tables=settings.snapshot_max_tables,
        wait_ms=settings.snapshot_read_timeout_ms,
        on_refresh=metrics.observe_refresh,
    )
    work = BlockingWork(max_jobs=settings.snapshot_threads, max_jobs_per_table=settings.snapshot_table_threads)
    parts = ServiceParts(
        warehouse,
        settings,
        metrics,
        clock,
        TableReads(
            tables,
            work=work,
            clock=clock,
            wait_ms=settings.snapshot_read_timeout_ms,
            wait_setting=READ_TIMEOUT_SETTING,
        ),
        GrpcAccess(guard),
    )
    names = TableNames(
        warehouse,
        work=work,
        clock=clock,
        max_age_ms=settings.snapshot_max_staleness_ms,
        wait_ms=settings.snapshot_read_timeout_ms,
        wait_setting=READ_TIMEOUT_SETTING,
    )
    watch = WatchCalls(parts, names)
    calls = (SnapshotCalls(parts), watch, ChangeCalls(parts), TableCalls(parts, names), LeaseCalls(parts))
    server = SnapshotServer(parts, calls)
    server.start()
    reachable = threading.Event()

    def show_reachable(is_reachable: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        (reachable.set if is_reachable else reachable.clear)()
        server.show_health(is_serving=is_reachable)

    def check_store() -> None:
        if not reachable.is_set():
            raise Unavailable(f"the store {settings.store} did not answer the last time (ICEDB_STORE)")

    exporter = LagExporter(
        warehouse,
        tables=tables,
        table_metrics=TableMetrics(registry),
        metrics=ExporterMetrics(registry),
        clock=clock,
        interval_ms=settings.snapshot_lag_interval_ms,
        on_reachable=show_reachable,
    )
    exporter.start()
    start_metrics_server(
        registry,
        host=settings.metrics_host,
        port=settings.metrics_port,
        health=HealthChecks(ready={"store": check_store}),
        clock=clock,
    )
    get_logger().info("snapshot_served", address=f"{host}:{server.port}", store=settings.store)
    return SnapshotService(server, exporter, settings)


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        settings = load_settings(SnapshotSettings)
        configure_logging(settings, component="snapshot")
        service = start_service(settings.store_settings.open(), settings=settings, clock=SystemClock())
    except IceDBError as error:
        sys.stderr.write(f"icedb-snapshot: {error}\n")
        return EXIT_USAGE if isinstance(error, InvalidRequest | UnsupportedFormat) else EXIT_FAILURE
    stopped.wait()
    get_logger().info("snapshot_stopping")
    service.stop()
    get_logger().info("snapshot_stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
