"""A warehouse with real Parquet files and a real log, made without Spark or any worker."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
from icedb_log.clock import SystemClock
from icedb_log.log.codec import encode_log_file
from icedb_log.model import EMPTY, ColumnStats, FileMarker, LogFile, LogTombstone, Widening
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse

DEFAULT_SCHEMA: Final[Mapping[str, str]] = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit wrote: the log file's key, the data file's key, and the time of both."""

    log_key: str
    data_key: str
    time_ms: int


class ParquetWarehouse:
    """Creates tables and commits the rows of DuckDB queries to them.

    Args:
        warehouse: Where the tables lie.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.clock = SystemClock()

    def create(self, name: str, *partition: str, **fields: Any) -> TableConfig:
        """Create a table; partitions in their text form, e.g. ``d=day(ts)``."""
        spec = tuple(PartitionField.parse(text) for text in partition)
        config = TableConfig.create(name=name, partition=spec, **fields)
        create_table(self.warehouse.table(name), config)
        return config

    def commit(
        self,
        name: str,
        select: str,
        *,
        partition: str = "",
        schema: Mapping[str, str] = DEFAULT_SCHEMA,
        widened: Mapping[str, str] | None = None,
        time_ms: int | None = None,
        replaces: tuple[Commit, ...] = (),
        horizon_ms: int | None = None,
        batch_ids: tuple[str, ...] = (),
        stats: Mapping[str, ColumnStats] = EMPTY,
    ) -> Commit:
        """Write the rows of a query as one data file and commit it.

        Args:
            name: Name of the table.
            select: DuckDB query.
            partition: Encoded partition path.
            schema: The log file's schema line.
            widened: Columns of it that became wider, with the wider type.
            time_ms: Time of the commit; now by default.
            replaces: Earlier commits that this one tombstones, as a merge does.
            horizon_ms: Recorded horizon, as the janitor leaves it.
            batch_ids: Batches whose rows these are.
            stats: What the log says of columns of the data file.
        """
        store, paths = self.warehouse.store, self.warehouse.table(name).paths
        now_ms = time_ms if time_ms is not None else self.clock.now_ms()
        data_key = paths.data_key(partition=partition, file_id=self.clock.new_id())
        with tempfile.TemporaryDirectory() as folder, duckdb.connect() as con:
            file = Path(folder) / "rows.parquet"
            con.execute(f"COPY ({select}) TO '{file}' (FORMAT parquet)")
            found = con.execute("SELECT count(*) FROM read_parquet(?)", [str(file)]).fetchone()
            size_bytes = file.stat().st_size
            store.upload(data_key, file)
        markers = [FileMarker(data_key, size_bytes, now_ms, row_count=found[0] if found else None, stats=stats)]
        markers += [FileMarker(old.data_key, 1, old.time_ms, tombstoned_ms=now_ms) for old in replaces]
        commit_id = self.clock.new_id()
        log = LogFile(
            time_ms=now_ms,
            schema=schema,
            widened={column: Widening(wide, now_ms) for column, wide in (widened or {}).items()},
            markers=tuple(markers),
            log_tombstones=tuple(LogTombstone(old.log_key, now_ms) for old in replaces),
            commit_id=commit_id,
            horizon_ms=horizon_ms,
            batch_ids=batch_ids,
        )
        log_key = paths.log_key(time_ms=now_ms, commit_id=commit_id, is_merged=bool(replaces))
        store.put_if_absent(log_key, encode_log_file(log))
        return Commit(log_key, data_key, now_ms)

    def damage(self, name: str) -> str:
        """Put a malformed log file into a table's log and return its key."""
        key = self.warehouse.table(name).paths.log_key(time_ms=self.clock.now_ms(), commit_id="bad0", is_merged=False)
        self.warehouse.store.put_if_absent(key, b"not a log file")
        return key
