"""Steps of tests about leases: one that stands in the store, however it came there."""

import orjson
from icedb_log.clock import Clock
from icedb_log.store.object_store import delete_or_raise
from icedb_log.store.table_store import TableStore


def put_lease(
    table: TableStore,
    *,
    at_ms: int,
    ttl_ms: int,
    clock: Clock,
    lease_id: str | None = None,
) -> str:
    """Write a lease over whatever is there, without any proof, and return its id. Nobody but a test does that."""
    lease_id = lease_id or clock.new_id()
    table.store.put(table.paths.lease_key(lease_id), orjson.dumps({"at": at_ms, "ttl_ms": ttl_ms}))
    return lease_id


def delete_lease(table: TableStore, *, lease_id: str) -> None:
    """End a lease, whatever it is called."""
    delete_or_raise(table.store, [table.paths.lease_key(lease_id)])
