"""A gateway in this process, on a free loopback port; tables whose log is written by hand; and plain requests."""

import http.client
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from icedb_gateway.published import Publish
from icedb_gateway.server import Gateway
from icedb_gateway.settings import GatewaySettings
from icedb_iceberg import publish_table
from icedb_log.clock import Clock, SystemClock
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse

LOOPBACK: Final = "127.0.0.1"
LIMIT_S: Final = 240
BUCKET: Final = "icedb"
SCHEMA: Final = {"ts": "TIMESTAMP", "id": "BIGINT"}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


@dataclass(slots=True)
class HandTable:
    """A table without workers: its log files are written by hand.

    Attributes:
        warehouse: Where it lies.
        name: Its name.
        clock: For times and ids.
        logs: Keys of its log files, oldest first.
    """

    warehouse: Warehouse
    name: str
    clock: Clock = field(default_factory=SystemClock)
    logs: list[str] = field(default_factory=list)

    def create(self, *partition: str, **fields: Any) -> "HandTable":
        """Create the table."""
        spec = tuple(PartitionField.parse(text) for text in partition)
        config = TableConfig.create(name=self.name, partition=spec, **fields)
        create_table(self.warehouse.table(self.name), config)
        return self

    def write(self, partition: str, body: bytes) -> str:
        """Write a data file that no log file names; return its path."""
        path = self.warehouse.table(self.name).paths.data_key(partition=partition, file_id=self.clock.new_id())
        self.warehouse.store.put(path, body)
        return path

    def commit(
        self,
        added: Iterable[str] = (),
        removed: Iterable[str] = (),
        *,
        dead_logs: Iterable[str] = (),
        size_bytes: int | None = None,
        time_ms: int | None = None,
    ) -> int:
        """Write one log file; return its time.

        Args:
            added: Paths of files that are live now.
            removed: Paths of files that are dead now.
            dead_logs: Log files that this one replaces.
            size_bytes: Of each added file; asked of the store by default.
            time_ms: When; later than the last one by default.
        """
        store = self.warehouse.store
        now_ms = time_ms or self.clock.now_ms()
        markers = [
            FileMarker(path, store.head(path).size_bytes if size_bytes is None else size_bytes, now_ms)
            for path in added
        ]
        markers += [FileMarker(path, 1, now_ms, tombstoned_ms=now_ms) for path in removed]
        commit_id = self.clock.new_id()
        replaced = tuple(LogTombstone(path=path, tombstoned_ms=now_ms) for path in dead_logs)
        log = LogFile(
            time_ms=now_ms, schema=SCHEMA, markers=tuple(markers), log_tombstones=replaced, commit_id=commit_id
        )
        key = self.warehouse.table(self.name).paths.log_key(
            time_ms=now_ms, commit_id=commit_id, is_merged=bool(replaced or any(m.tombstoned_ms for m in markers))
        )
        store.put_if_absent(key, encode_log_file(log))
        self.logs.append(key)
        return now_ms


@dataclass(slots=True)
class GatewayRig:
    """A running gateway, and its warehouse."""

    gateway: Gateway
    warehouse: Warehouse

    @property
    def url(self) -> str:
        """Where S3 is."""
        return f"http://{LOOPBACK}:{self.gateway.port}"

    def call(self, method: str, target: str, **headers: str) -> Answer:
        """Send one request without a signature; ``_`` in header names stands for ``-``."""
        connection = http.client.HTTPConnection(LOOPBACK, self.gateway.port, timeout=LIMIT_S)
        try:
            connection.request(method, target, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def table(self, name: str) -> HandTable:
        """Return a table of the warehouse, that need not be there yet."""
        return HandTable(self.warehouse, name)

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it has none."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


def start_gateway(
    warehouse: Warehouse, *, clock: Clock | None = None, publish: Publish = publish_table, **fields: Any
) -> GatewayRig:
    """Start a gateway; end it with ``rig.gateway.stop()``.

    Args:
        warehouse: What it shows.
        clock: The host's by default.
        publish: Publishes tables for the Iceberg catalog.
        fields: Settings other than the defaults.
    """
    values: dict[str, Any] = {
        "store": "file:///not-used",
        "gateway_port": 0,
        "gateway_iceberg_port": 0,
        "access_log": "none",
        **fields,
    }
    settings = GatewaySettings(**values)
    gateway = Gateway(warehouse, settings=settings, clock=clock or SystemClock(), publish=publish)
    gateway.start()
    return GatewayRig(gateway, warehouse)
