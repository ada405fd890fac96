"""Steps of tests about leases: one that stands in the store, however it came there."""

from icedb_log.clock import Clock
from icedb_log.holds.stored_holds import encode_hold
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
    fields = {"state": "active", "at": at_ms, "ttl_ms": ttl_ms}
    table.store.put(table.paths.hold_key("lease", lease_id), encode_hold(fields))
    return lease_id


def delete_lease(table: TableStore, *, lease_id: str) -> None:
    """End a lease, whatever it is called."""
    delete_or_raise(table.store, [table.paths.hold_key("lease", lease_id)])
