"""Leases: a reader's pin on a point in time (rule J4).

``_icedb/leases/<id>.json`` holds ``{"at": <unix ms>, "ttl_ms": <ms>}``. A lease runs from LastModified for its
``ttl_ms``, both by the store's clock, so no reader's or janitor's clock matters. The janitor deletes nothing
that was live at ``at`` while the lease lasts.
"""

from dataclasses import dataclass

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.keys import TablePaths
from icedb_log.storage.object_store import ObjectStore, delete_or_raise, list_all

MAX_LEASE_TTL_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Lease:
    """A pin on the table as of ``at_ms``.

    Attributes:
        lease_id: Its id.
        at_ms: The pinned time, unix ms.
        expires_ms: When it ends unless it is renewed, by the store's clock.
    """

    lease_id: str
    at_ms: int
    expires_ms: int


def put_lease(
    store: ObjectStore,
    paths: TablePaths,
    *,
    at_ms: int,
    ttl_ms: int,
    clock: Clock,
    lease_id: str | None = None,
) -> str:
    """Write or renew a lease and return its id. Idempotent for the same id.

    A lease protects what is still there: write it first, then read the snapshot at ``at_ms`` and see that the
    read is not refused (R3). It holds for certain only if ``at_ms`` is younger than the grace period of log files
    at the lease's LastModified: a janitor that read the leases just before and then stalled knows nothing of it,
    but can delete only what had died a grace period earlier. Renew it only before it ends; later take a new one: the
    janitor deletes one that ended long ago, and may be slow to do so.

    Raises:
        InvalidRequest: ``ttl_ms`` is out of range.
    """
    if not 0 < ttl_ms <= MAX_LEASE_TTL_MS:
        raise InvalidRequest(f"table {paths.name}: a lease lasts 1 to {MAX_LEASE_TTL_MS} ms, not {ttl_ms}; renew it")
    lease_id = lease_id or clock.new_id()
    store.put(paths.lease_key(lease_id), orjson.dumps({"at": at_ms, "ttl_ms": ttl_ms}))
    return lease_id


def delete_lease(store: ObjectStore, paths: TablePaths, *, lease_id: str) -> None:
    """End a lease. Idempotent."""
    delete_or_raise(store, [paths.lease_key(lease_id)])


def read_leases(store: ObjectStore, paths: TablePaths) -> tuple[Lease, ...]:
    """Read the leases that have not expired.

    One that cannot be understood pins everything for as long as a lease may last (unknown means keep).
    """
    listing = list_all(store, paths.leases_prefix)
    leases: list[Lease] = []
    for info in listing.objects:
        if info.modified_ms + MAX_LEASE_TTL_MS <= listing.store_now_ms:
            continue  # no lease lasts longer, and one that has ended is not renewed
        lease_id = info.key.rpartition("/")[2].removesuffix(".json")
        try:
            stored = store.get(info.key)
            value = orjson.loads(stored.body)
            # Both from one answer: the lease may have been renewed since the listing.
            lease = Lease(lease_id, int(value["at"]), stored.info.modified_ms + int(value["ttl_ms"]))
        except NotFound:
            continue
        except (ValueError, KeyError, TypeError):
            lease = Lease(lease_id, 0, info.modified_ms + MAX_LEASE_TTL_MS)  # no lease lasts longer
        if lease.expires_ms > listing.store_now_ms:
            leases.append(lease)
    return tuple(leases)
