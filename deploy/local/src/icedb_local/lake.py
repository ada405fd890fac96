"""The warehouse as the demo sees it: tables, batches, snapshots, merges, objects.

Everything goes the way a user's program would go; rows are counted by DuckDB, in the files that ``GetSnapshot``
returns. Only :meth:`Lake.list_objects` looks into the store itself, because what it checks is what is left there.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final, Self

import duckdb
import grpc
from icedb_log.clock import Clock, new_batch_id
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.object_store import ObjectInfo, list_all
from icedb_log.staging import stage_batch
from icedb_log.table_config import PartitionField, TableConfig, create_table
from icedb_proto import snapshot_pb2, snapshot_pb2_grpc
from icedb_service.celery_app import make_app
from icedb_service.names import INGEST_FLUSH, MERGE_MERGE
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups

from icedb_local import duck
from icedb_local.demo_plan import DemoPolicies, DemoTable
from icedb_local.stack_layout import StackLayout

RPC_TIMEOUT_S: Final = 30
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MERGE_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A live data file of a snapshot."""

    uri: str
    path: str
    partition: str
    row_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """An answer of ``GetSnapshot``."""

    table: str
    snapshot_id: str
    row_count: int
    files: tuple[LakeFile, ...]


class Lake:
    """One client of a running stack; use as a context manager. Safe for use by many threads.

    Args:
        layout: The stack.
        clock: For ids and waiting.
    """

    def __init__(self, layout: StackLayout, *, clock: Clock) -> None:
        self.layout = layout
        self.warehouse = layout.store_settings.open()
        self._clock = clock
        self._channel = grpc.insecure_channel(
            layout.snapshot_address, options=[("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        )
        self._stub = snapshot_pb2_grpc.SnapshotServiceStub(self._channel)
        settings = ServiceSettings(store=layout.store_settings.url, redis_url=layout.redis_url)
        self._app = make_app(settings)
        redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
        self._wakeups = Wakeups(self._app, redis, settings=settings)
        self._duck = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._app.close()

    def paths(self, table: str) -> TablePaths:
        """Return the keys of a table."""
        return self.warehouse.table(table)

    def create_table(self, table: DemoTable, policies: DemoPolicies) -> TableConfig:
        """Create a table."""
        config = TableConfig.create(
            name=table.name,
            partition=tuple(PartitionField.parse(text) for text in table.partition),
            sort=table.sort,
            target_file_bytes=policies.target_file_bytes,
            merge_fan_in=policies.merge_fan_in,
            data_grace_ms=policies.grace_ms,
            log_grace_ms=policies.grace_ms,
        )
        create_table(self.warehouse.store, self.paths(table.name), config)
        return config

    def enqueue(self, table: str, body: bytes) -> str:
        """Send a batch; when this returns, it is acknowledged. Returns its id."""
        batch_id = new_batch_id(self._clock)
        stage_batch(self.warehouse.store, self.paths(table), body=body, staging_format="ndjson", batch_id=batch_id)
        self._wakeups.try_wake(INGEST_FLUSH, table)
        return batch_id

    def read_snapshot(self, table: str) -> LakeSnapshot:
        """Ask for the newest state: every commit that landed before this call is in it."""
        request = snapshot_pb2.GetSnapshotRequest(table=table, max_staleness_ms=0)
        try:
            answer = self._stub.GetSnapshot(request, timeout=RPC_TIMEOUT_S)
        except grpc.RpcError as error:
            raise Unavailable(f"GetSnapshot of {table}: {error.code().name}: {error.details()}") from error
        paths = self.paths(table)
        files = tuple(
            LakeFile(file.uri, file.path, paths.partition_of(file.path), file.row_count, file.size_bytes)
            for file in answer.files
        )
        return LakeSnapshot(table, answer.snapshot_id, answer.row_count, files)

    def count_rows(self, snapshot: LakeSnapshot, *, by: tuple[str, ...] = ()) -> dict[tuple[Any, ...], int]:
        """Let DuckDB count the rows in the files of a snapshot, by the values of some columns."""
        connection = getattr(self._duck, "connection", None)
        if connection is None:
            connection = self._duck.connection = duck.connect(self.layout.store_settings)
        try:
            return duck.count_rows(connection, [file.uri for file in snapshot.files], by=by)
        except duckdb.Error as error:
            raise IceDBError(
                f"{snapshot.table}: DuckDB cannot read snapshot {snapshot.snapshot_id}: {error}"
            ) from error

    def merge_fully(self, table: str) -> dict[str, Any]:
        """Ask a merger to merge all that is worth it, and wait until it has. Returns the task's result."""
        answer = self._app.send_task(MERGE_MERGE, args=[table], kwargs={"full": True}, queue="merge")
        result: dict[str, Any] = answer.get(timeout=MERGE_TIMEOUT_S)
        return result

    def list_objects(self, prefix: str) -> tuple[ObjectInfo, ...]:
        """List what the store holds below a prefix."""
        return list_all(self.warehouse.store, prefix).objects
