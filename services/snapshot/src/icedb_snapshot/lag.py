"""The exporter of table figures: reads the log of every table on a beat, so that lag is there without any worker.

Owns one thread. A table that cannot be read does not keep the others from being shown; one that is halted shows
``icedb_table_halted`` 1; one that is gone loses its series. Must never write.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from icedb_log.clean.leases import LeaseReader
from icedb_log.clock import Clock
from icedb_log.errors import HaltError, IceDBError, NotFound
from icedb_log.keys import TablePaths
from icedb_log.log.fold import Folded
from icedb_log.log.reader import LogReader
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.known_objects import FETCH_THREADS
from icedb_log.store.table_store import TableStore
from icedb_log.table.status import read_status
from icedb_log.table.table import Table
from icedb_log.warehouse import Warehouse
from icedb_service.logs import get_logger

from icedb_snapshot.metrics import ExporterMetrics, TableMetrics

_log = get_logger()


@dataclass(frozen=True, slots=True)
class ExportRound:
    """What one round over all tables found.

    Attributes:
        shown: Tables whose figures are fresh.
        halted: Tables that are halted.
        failed: Tables that could not be read this time.
        is_listed: Whether the tables could be listed at all.
    """

    shown: tuple[str, ...]
    halted: tuple[str, ...]
    failed: tuple[str, ...]
    is_listed: bool


class LagExporter:
    """Publishes the figures of every table.

    Args:
        warehouse: Where the tables lie.
        tables: Shares its log readers, so that each log file is fetched once.
        table_metrics: Where figures go.
        metrics: How the exporter itself is doing.
        clock: For times.
        interval_ms: Time between the starts of two rounds.
        on_reachable: Called after each round with whether the store answered.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        tables: TableCache,
        table_metrics: TableMetrics,
        metrics: ExporterMetrics,
        clock: Clock,
        interval_ms: int,
        on_reachable: Callable[[bool], None],
    ) -> None:
        self._warehouse = warehouse
        self._tables = tables
        self._table_metrics = table_metrics
        self._metrics = metrics
        self._clock = clock
        self._interval_ms = interval_ms
        self._on_reachable = on_reachable
        self._known: set[str] = set()
        self._leases: dict[str, LeaseReader] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="icedb-lag-exporter", daemon=True)

    def start(self) -> None:
        """Begin with a first round at once, in a thread of its own."""
        self._thread.start()

    def stop(self, *, timeout_ms: int) -> None:
        """End after the running round, waiting for it at most ``timeout_ms``."""
        self._stopped.set()
        self._thread.join(timeout_ms / 1000)

    def export_once(self) -> ExportRound:
        """Read every table and publish its figures. Never raises for a table or for the store."""
        started_ms = self._clock.monotonic_ms()
        try:
            names = self._warehouse.list_tables()
        except IceDBError as error:
            _log.warning(
                "tables_not_listed", error=type(error).__name__, reason=str(error), mitigation="the last figures stay"
            )
            self._metrics.observe_failure("list")
            return ExportRound((), (), (), is_listed=False)
        outcomes: dict[str, list[str]] = {"shown": [], "halted": [], "failed": [], "gone": []}
        for name in names:
            outcomes[self._export_table(name)].append(name)
        present = set(names) - set(outcomes["gone"])
        for name in self._known - present:
            self._table_metrics.drop(name)
            self._tables.drop(name)
            self._leases.pop(name, None)
            _log.info("table_gone", table=name)
        self._known = present
        self._metrics.observe_round(
            table_count=len(present),
            duration_ms=self._clock.monotonic_ms() - started_ms,
            success_ms=None if outcomes["failed"] else self._clock.now_ms(),
        )
        return ExportRound(
            tuple(outcomes["shown"]), tuple(outcomes["halted"]), tuple(outcomes["failed"]), is_listed=True
        )

    def _export_table(self, name: str) -> str:
        paths = self._warehouse.table(name).paths
        try:
            table = self._tables.table(name)
            state = table.read(max_staleness_ms=0)
            status = read_status(
                Table.open(
                    TableStore(self._warehouse.store, paths), clock=self._clock, reader=table.read_source().reader
                ),
                read_source=self._read_source,
                leases=self._leases.setdefault(name, LeaseReader(fetch_threads=FETCH_THREADS)),
                folded=Folded(state.view, state.snapshot),
            )
        except NotFound:
            return "gone"
        except HaltError as error:
            self._table_metrics.show_halted(name)
            self._metrics.observe_failure("halted")
            _log.error("table_halted", table=name, error=type(error).__name__, reason=str(error))
            return "halted"
        except IceDBError as error:
            self._metrics.observe_failure("table")
            _log.warning(
                "table_not_read",
                table=name,
                error=type(error).__name__,
                reason=str(error),
                mitigation="the last figures stay",
            )
            return "failed"
        self._table_metrics.show(name, status, now_ms=self._clock.now_ms())
        return "shown"

    def _read_source(self, paths: TablePaths) -> LogReader:
        return self._tables.table(paths.name).read_source().reader

    def _run(self) -> None:
        while not self._stopped.is_set():
            started_ms = self._clock.monotonic_ms()
            try:
                self._on_reachable(self.export_once().is_listed)
            except Exception:  # noqa: BLE001 - operators see through it: it outlives what nobody thought of
                self._metrics.observe_failure("other")
                _log.exception("export_round_failed")
            elapsed_ms = self._clock.monotonic_ms() - started_ms
            self._stopped.wait(max(0, self._interval_ms - elapsed_ms) / 1000)
