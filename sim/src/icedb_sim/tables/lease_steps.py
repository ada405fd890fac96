"""Steps of tests about leases: one that stands in the store, however it came there."""

import orjson
from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore, delete_or_raise


def put_lease(
    store: ObjectStore,
    paths: TablePaths,
    *,
    at_ms: int,
    ttl_ms: int,
    clock: Clock,
    lease_id: str | None = None,
) -> str:
    """Write a lease over whatever is there, without any proof, and return its id. Nobody but a test does that."""
    lease_id = lease_id or clock.new_id()
    store.put(paths.lease_key(lease_id), orjson.dumps({"at": at_ms, "ttl_ms": ttl_ms}))
    return lease_id


def delete_lease(store: ObjectStore, paths: TablePaths, *, lease_id: str) -> None:
    """End a lease, whatever it is called."""
    delete_or_raise(store, [paths.lease_key(lease_id)])
