"""A front end in this process, on free loopback ports, over a directory; and what tests ask it with."""

import http.client
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from icedb_ingest.frontend.server import Frontend
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_log.ingest.staging import list_all_staged, read_staged
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse

LOOPBACK: Final = "127.0.0.1"
NDJSON: Final = "application/x-ndjson"
TABLE: Final = "events"
LIMIT_S: Final = 240
CLOCK: Final = SystemClock()

Body = bytes | Iterable[bytes] | None


class GatedStore(LocalObjectStore):
    """A directory whose PUTs to staging wait while ``gate`` is clear.

    Attributes:
        gate: Set: PUTs go through.
        arrived: Released for each PUT that came.
        put_count: How many came.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.put_count = 0

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Wait for the gate, then write."""
        if "/_icedb/staging/" in key:
            self.put_count += 1
            self.arrived.release()
            if not self.gate.wait(LIMIT_S):
                raise Unavailable("the gate of the test stayed shut")
        return super().put_if_absent(key, body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass(slots=True)
class FrontendRig:
    """A running front end, its store, and the tables that it woke."""

    frontend: Frontend
    store: GatedStore
    warehouse: Warehouse
    woken: list[str] = field(default_factory=list)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the HTTP endpoint."""
        return http.client.HTTPConnection(LOOPBACK, self.frontend.port, timeout=LIMIT_S)

    def call(self, method: str, path: str, body: Body = None, **headers: str) -> Answer:
        """Send one request on a connection of its own; ``_`` in header names stands for ``-``."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def post(self, body: Body, *, table: str = TABLE, content_type: str = NDJSON, **headers: str) -> Answer:
        """Post a batch."""
        return self.call("POST", f"/v1/tables/{table}/batches", body, Content_Type=content_type, **headers)

    def segment(self, payload: Any, path: str = "", **headers: str) -> Answer:
        """Post events as Segment does."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        where = f"/v1/tables/{TABLE}/segment{path}"
        return self.call("POST", where, body, Content_Type="application/json", **headers)

    def staged(self) -> dict[str, bytes]:
        """Return what is staged: id and format of each batch, to its body."""
        batches = list_all_staged(self.warehouse.table(TABLE)).batches
        return {f"{batch.batch_id}.{batch.format}": read_staged(self.store, batch) for batch in batches}

    def clear(self) -> None:
        """Remove what is staged, and count from 0."""
        prefix = self.warehouse.table(TABLE).paths.staging_prefix
        self.store.delete([info.key for info in list_all(self.store, prefix).objects])
        self.store.put_count = 0

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it has none."""
        return self.frontend.metrics.registry.get_sample_value(name, labels) or 0.0


def start_rig(folder: Path, **fields: Any) -> FrontendRig:
    """Start a front end with a table ``events``; end it with ``rig.frontend.stop()``.

    Args:
        folder: Of the store; made.
        fields: Settings other than the defaults; ports are free ones.
    """
    folder.mkdir()
    store = GatedStore(folder)
    warehouse = Warehouse(store)
    config = TableConfig.create(name=TABLE, on_bad_rows="quarantine_batch")
    create_table(TableStore(store, warehouse.table(TABLE).paths), config)
    values = {"frontend_http_port": 0, "frontend_grpc_port": 0, "access_log": "none", **fields}
    settings = FrontendSettings(store=f"file://{folder}", **values)
    woken: list[str] = []
    frontend = Frontend(warehouse, settings=settings, clock=CLOCK, wake=woken.append)
    frontend.start()
    return FrontendRig(frontend, store, warehouse, woken)
