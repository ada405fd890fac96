"""The warehouse as the demo sees it: tables, batches, snapshots, merges, objects.

Everything goes the way a user's program goes, through :class:`icedb_client.Client`; rows are counted by DuckDB, in
the files that ``GetSnapshot`` returns. Only :meth:`Lake.list_objects` looks into the store itself, because what it
checks is what is left there.
"""

import os
import threading
from typing import Any, Final, Self

import duckdb
from icedb_client import Client, ClientSettings, Snapshot
from icedb_client.duck import open_duckdb
from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.names import MERGE_MERGE
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse

from icedb_local.demo_plan import GRACE_MS, TARGET_FILE_BYTES, DemoTable
from icedb_local.stack_layout import StackLayout

MERGE_TIMEOUT_MS: Final = 300_000


class Lake:
    """One client of a running stack; use as a context manager. Safe for use by many threads.

    Opening one for an S3 stack puts the stack's credentials into this process's environment, where boto3 and the
    client look for them.
    """

    def __init__(self, layout: StackLayout, *, clock: Clock) -> None:
        env = layout.client_env()
        os.environ.update({name: value for name, value in env.items() if name.startswith("AWS_")})
        settings = ClientSettings(
            store=env["ICEDB_STORE"],
            s3_endpoint=env.get("ICEDB_S3_ENDPOINT"),
            s3_region=env.get("ICEDB_S3_REGION"),
            snapshot_address=layout.snapshot_address,
            redis_url=layout.redis_url,
        )
        self.client = Client(settings=settings, clock=clock)
        self._duck = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def warehouse(self) -> Warehouse:
        """The open warehouse."""
        return self.client.warehouse

    def create_table(self, table: DemoTable, *, merge_fan_in: int = 4, grace_ms: int = GRACE_MS) -> None:
        """Create a table. Its policies are small and short, so that everything happens while one looks on."""
        config = TableConfig.create(
            name=table.name,
            partition=tuple(PartitionField.parse(text) for text in table.partition),
            sort=table.sort,
            target_file_bytes=TARGET_FILE_BYTES,
            merge_fan_in=merge_fan_in,
            data_grace_ms=grace_ms,
            log_grace_ms=grace_ms,
        )
        create_table(TableStore(self.warehouse.store, self.warehouse.table(table.name).paths), config)

    def read_snapshot(self, table: str) -> Snapshot:
        """Ask for the newest state: every commit that landed before this call is in it."""
        return self.client.snapshot(table, max_staleness_ms=0)

    def count_rows(self, snapshot: Snapshot, *, by: tuple[str, ...] = ()) -> dict[tuple[Any, ...], int]:
        """Let DuckDB count the rows in the files of a snapshot.

        Args:
            snapshot: From :meth:`read_snapshot`, younger than the grace period.
            by: Columns to count by, also names of partitions, which come from the files' paths.

        Raises:
            Unavailable: A file could not be read.
        """
        if not snapshot.files:
            return {}
        connection = getattr(self._duck, "connection", None)
        if connection is None:
            connection = self._duck.connection = open_duckdb()
            connection.execute("SET threads = 1")
            snapshot.duckdb(connection)  # on S3 this brings the credentials
        columns = "".join(f'"{column}", ' for column in by)
        query = (
            f"SELECT {columns}count(*) FROM read_parquet($uris, union_by_name = true,"
            " hive_partitioning = true, hive_types_autocast = false) GROUP BY ALL"
        )
        try:
            rows = connection.execute(query, {"uris": [file.uri for file in snapshot.files]}).fetchall()
        except duckdb.Error as error:
            raise Unavailable(
                f"{snapshot.table}: DuckDB cannot read snapshot {snapshot.snapshot_id}: {error}"
            ) from error
        return {tuple(row[:-1]): int(row[-1]) for row in rows}

    def merge_fully(self, table: str) -> dict[str, Any]:
        """Ask a merger to merge all that is worth it, and wait until it has.

        Returns:
            The task's result, with its ``outcome``.
        """
        arguments = {"full": True}
        return self.client.workers.run(MERGE_MERGE, table, arguments=arguments, timeout_ms=MERGE_TIMEOUT_MS)

    def list_objects(self, prefix: str) -> tuple[ObjectInfo, ...]:
        """List what the store holds below a prefix."""
        return list_all(self.warehouse.store, prefix).objects
