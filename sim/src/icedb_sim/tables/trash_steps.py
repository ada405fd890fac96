"""The steps of a dropped table's life on a :class:`~icedb_sim.tables.small_table.SmallTable`, and what stays of it."""

from typing import Any, Final

from icedb_log.clean.drop import DropRequest, drop_table
from icedb_log.clean.purge import purge_table
from icedb_log.clean.purge_run import PurgeLimits, PurgeResult
from icedb_log.ingest.idempotency import bind_key
from icedb_log.table.drop_mark import Dropped
from icedb_log.table.stored_config import create_table, load_any_config
from icedb_log.table.table_config import TableConfig

from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import DEFAULTS, SmallTable

KEEP_MS: Final = 600_000
SEAL_MS: Final[int] = DEFAULTS["seal_age_ms"]
KEPT: Final = ["fence/ingest.json", "fence/merge.json", "purge.json", "table.json"]
"""What a purge leaves, below ``_icedb/``."""


def make_full() -> SmallTable:
    """Return a table with something of every kind, and a neighbour whose name begins as its does."""
    table = SmallTable()
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    table.merge()
    table.append(4)
    table.stage([{"id": 5, "p": "a"}])
    store, paths = table.store, table.paths
    bind_key(store, paths, key="order 1", content_sha256="00", clock=table.clock)
    put_lease(store, paths, at_ms=0, ttl_ms=1, clock=table.clock, lease_id="old")
    for key in (
        paths.pressure_key,
        paths.quarantine_key("0198.json"),
        paths.import_key("i1"),
        paths.refused_key("r1"),
        paths.clock_key,
        f"{paths.data_prefix}p=a/by-hand.parquet",
        f"{paths.data_prefix}notes.txt",
        f"{paths.prefix}/_icedb/unknown/kind",
        f"{paths.prefix}/elsewhere.txt",
    ):
        store.put(key, b"x")
    store.put("wh/t2/_icedb/table.json", b"a neighbour")
    table.clock.advance(10)
    return table


def drop(table: SmallTable, *, force: bool = False) -> None:
    """Drop it, for ten minutes or for good."""
    request = DropRequest(keep_ms=KEEP_MS, is_forced=force)
    drop_table(table.store, table.paths, clock=table.clock, request=request)
    table.clock.advance(1)


def purge(table: SmallTable, **options: Any) -> PurgeResult:
    """Purge it once, in small chunks."""
    options = {"limits": PurgeLimits(chunk_keys=3, page_keys=2), **options}
    result = purge_table(table.store, table.paths, clock=table.clock, owner="janitor", **options)
    table.clock.advance(1)
    return result


def create_again(table: SmallTable, **fields: Any) -> None:
    """Create another one of its name, when it is free."""
    table.clock.advance(table.config.log_grace_ms)
    config = TableConfig.create(name=table.paths.name, **{**DEFAULTS, **fields})
    create_table(table.store, table.paths, config)
    table.clock.advance(1)


def mark_of(table: SmallTable) -> Dropped | None:
    """Return the mark in its ``table.json``."""
    return load_any_config(table.store, table.paths)[0].dropped


def rest_of(table: SmallTable) -> list[str]:
    """List what lies below its prefix; below ``_icedb/`` without that."""
    own = f"{table.paths.prefix}/"
    return [key.removeprefix(f"{own}_icedb/") for key in table.keys(own)]
