"""The exporter of table figures: reads the log of every table on a beat, so that lag is there without any worker.

Owns one thread, which has some help in a round. A table that cannot be read does not keep the others from being shown;
one that is halted shows ``icedb_table_halted`` 1; one that is gone loses its series. Must never write.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import orjson
from icedb_log.errors import HaltError, IceDBError, NotFound, crashes_told
from icedb_log.intervals import Rests
from icedb_log.serving.status import TableStatus, status_to_json
from icedb_log.serving.statuses import StatusReader, describe_rest
from icedb_log.store.object_store import limit_reads, map_each
from icedb_log.units import SECOND_MS
from icedb_service.logs import get_logger

from icedb_snapshot.metrics import TableMetrics
from icedb_snapshot.requests import ServiceParts

READ_THREADS: Final = 4
"""Tables that are read at once: of a thousand on S3 a round takes half a minute; more would keep callers waiting."""

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Document:
    """The figures of a table for who asks for them.

    Attributes:
        body: A JSON object.
        source: The table that it is a view of; empty: it is none.
        read_ms: When it was read, monotonic.
    """

    body: bytes
    source: str
    read_ms: int

    def text(self, *, with_view: bool) -> str:
        """Return the object; without what a view has to do with its source, for who may not know of that one."""
        body = self.body if with_view else orjson.dumps({**orjson.loads(self.body), "view": None})
        return body.decode()


Outcome = Literal["shown", "halted", "failed"]
"""What became of a table in a round: its figures are fresh, it is halted, or it could not be read this time."""


class LagExporter:
    """Publishes the figures of every table.

    Args:
        parts: What handlers share, with its log readers, so that each log file is fetched once.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._statuses = StatusReader(parts.warehouse, parts.reads.tables, clock=parts.clock)
        self._metrics = parts.metrics
        self._figures = TableMetrics(parts.metrics.registry)
        settings = parts.settings
        self._figures.show_prices(settings.store_prices, budget=settings.table_cost_budget_dollars)
        self._rests = Rests(parts.clock)
        self._known: set[str] = set()
        self.documents: Final[dict[str, Document]] = {}
        """What was found of each table, by name; read by other threads."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="icedb-lag-exporter", daemon=True)

    def start(self) -> None:
        """Begin with a first round at once, in a thread of its own."""
        self._thread.start()

    def stop(self, *, timeout_ms: int) -> None:
        """End after the running round, waiting for it at most ``timeout_ms``; it need not have begun."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_ms / SECOND_MS)

    def export_once(self) -> Mapping[str, Outcome] | None:
        """Read every table and publish its figures. Never raises for a table or for the store.

        Returns:
            What became of each table; ``None``: they could not be listed.
        """
        started_ms = self._clock.monotonic_ms()
        try:
            names = self._parts.warehouse.list_tables(known=self._known)  # that one is dropped, its read tells
        except IceDBError as error:
            _log.warning(
                "tables_not_listed", error=type(error).__name__, reason=str(error), mitigation="the last figures stay"
            )
            self._metrics.observe_exporter_failure("list")
            return None
        threads = limit_reads(self._parts.warehouse.store, READ_THREADS)
        found = map_each(self._export_table, names, threads=threads, name="icedb-lag-exporter")
        outcomes = {name: outcome for name, outcome in zip(names, found, strict=True) if outcome is not None}
        for name in self._known - outcomes.keys():
            self._figures.drop(name)
            self._statuses.drop(name)
            self.documents.pop(name, None)
            _log.info("table_gone", table=name)
        self._known = set(outcomes)
        self._metrics.observe_exporter_round(
            table_count=len(outcomes),
            duration_ms=self._clock.monotonic_ms() - started_ms,
            success_ms=None if "failed" in outcomes.values() else self._clock.now_ms(),
        )
        return outcomes

    def _export_table(self, name: str) -> Outcome | None:
        """Publish the figures of a table; ``None``: it is gone. Those of a table that rests stay for a while."""
        if name in self._known and not self._rests.is_due(name):
            return "shown"
        rest, rest_ms = None, 0
        try:
            with crashes_told(f"table {name}: its figures"):
                status = self._statuses.read(name)
            rest, rest_ms = describe_rest(status), status.rest_ms
        except NotFound:
            return None
        except HaltError as error:
            self._keep(name, error)
            self._figures.show_halted(name)
            self._metrics.observe_exporter_failure("halted")
            _log.error("table_halted", table=name, error=type(error).__name__, reason=str(error))
            return "halted"
        except IceDBError as error:
            self._metrics.observe_exporter_failure("table")
            _log.warning(
                "table_not_read",
                table=name,
                error=type(error).__name__,
                reason=str(error),
                mitigation="the last figures stay",
            )
            return "failed"
        finally:
            self._rests.note(name, rest, rest_ms=rest_ms)
        self._keep(name, status)
        self._figures.show(name, status, now_ms=self._clock.now_ms())
        return "shown"

    def _keep(self, name: str, state: TableStatus | IceDBError) -> None:
        source = state.view.source if isinstance(state, TableStatus) and state.view is not None else ""
        self.documents[name] = Document(orjson.dumps(status_to_json(name, state)), source, self._clock.monotonic_ms())

    def _run(self) -> None:
        while not self._stopped.is_set():
            started_ms = self._clock.monotonic_ms()
            try:
                self.export_once()
            except Exception:  # noqa: BLE001 - operators see through it: it outlives what nobody thought of
                self._metrics.observe_exporter_failure("other")
                _log.exception("export_round_failed")
            elapsed_ms = self._clock.monotonic_ms() - started_ms
            self._stopped.wait(max(0, self._parts.settings.snapshot_lag_interval_ms - elapsed_ms) / SECOND_MS)
