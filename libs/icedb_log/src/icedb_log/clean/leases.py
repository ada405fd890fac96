"""Leases: a reader's hold on a table since a point in time (rule J4). What they are, and reading them.

``_icedb/leases/<id>.json`` is one object: ``{"at": <unix ms>, "ttl_ms": <ms>, "until": <unix ms>, "token": <id>,
"by": <who>}``. A lease runs from LastModified for its ``ttl_ms``, both by the store's clock, so no reader's or
janitor's clock matters. While it lasts, the janitor deletes nothing that was live at ``at``, or at any time since.

``until`` is there once it was renewed: when the state before would have ended. A renewal that landed later than that
makes nothing whole again: what was held may have been deleted in between (:attr:`StoredLease.has_lapsed`).
Taking, renewing and ending them: :mod:`icedb_log.clean.lease_holding`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import orjson

from icedb_log.errors import NotFound
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, list_all
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore

MIN_LEASE_TTL_MS: Final = 1000
"""Stores tell times in whole seconds: a shorter lease may be over when it is written."""
MAX_LEASE_TTL_MS: Final = 24 * 60 * 60 * 1000
MAX_HOLDER_CHARS: Final = 200
FETCH_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold on the table as it was at ``at_ms`` and at any time since.

    Attributes:
        lease_id: Its id.
        at_ms: The time, unix ms.
        expires_ms: When it ends unless it is renewed, by the store's clock.
        holder: Who took it, for people; empty: it does not say.
    """

    lease_id: str
    at_ms: int
    expires_ms: int
    holder: str = ""

    @property
    def held_from_ms(self) -> int:
        """Since when what died is held.

        WARN: not since its time. What its holder saw alive may be dated back: by a committer with a slow clock, and by
        a server of the store that lags behind the one that told the holder the time.
        """
        return self.at_ms - MAX_STORE_GAP_MS

    @property
    def held_until_ms(self) -> int:
        """From when on a janitor counts it as ended.

        WARN: not at once. Two servers of one store may differ: a janitor hears from one that the lease has ended, while
        another one takes its renewal and says that it came in time.
        """
        return self.expires_ms + MAX_STORE_GAP_MS

    def __str__(self) -> str:
        return f"{self.lease_id} ({self.holder})" if self.holder else self.lease_id


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease and how it is stored.

    Attributes:
        lease: What it says.
        info: Its object.
        until_ms: When the state that the last renewal replaced would have ended; ``None``: never renewed.
    """

    lease: Lease
    info: ObjectInfo
    until_ms: int | None = None

    @property
    def has_lapsed(self) -> bool:
        """Whether it was renewed after its end: what it holds now, it did not hold all the time."""
        return self.until_ms is not None and self.info.modified_ms >= self.until_ms


@dataclass(frozen=True, slots=True)
class ListedLeases:
    """The leases of a table that have not ended.

    Attributes:
        leases: In the order of their ids.
        store_now_ms: The store's clock before they were listed.
    """

    leases: tuple[Lease, ...]
    store_now_ms: int


class LeaseReader:
    """Reads the leases of one table; keeps what it read by key and version. Thread-safe.

    Args:
        fetch_threads: Leases fetched at once; 1 fetches one after another in the caller's thread.
    """

    def __init__(self, *, fetch_threads: int = 1) -> None:
        self._fetch_threads = fetch_threads
        self._cache: dict[str, tuple[ObjectInfo, Lease]] = {}

    def read(self, table: TableStore, *, latest_ms: int | None = None) -> ListedLeases:
        """Return the leases that a janitor has to take for lasting.

        One that cannot be understood holds everything for as long as a lease may last (unknown means keep). Costs one
        listing, and one GET for each lease that is new or was renewed.

        Args:
            table: Its store and keys.
            latest_ms: It is this late at most, whatever the store's clock says now (J1).

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(table.store, table.paths.leases_prefix)
        now_ms = listing.store_now_ms if latest_ms is None else min(listing.store_now_ms, latest_ms)
        # No lease lasts longer, and one that has ended is not renewed.
        least_ms = now_ms - MAX_LEASE_TTL_MS - MAX_STORE_GAP_MS
        infos = [info for info in listing.objects if info.modified_ms > least_ms]
        known = self._cache
        current = {info.key: known[info.key] for info in infos if info.key in known and known[info.key][0] == info}
        stale = [info for info in infos if info.key not in current]
        for info, lease in zip(stale, self._fetch(table.store, stale), strict=True):
            if lease is not None:
                # By what was listed: if it was renewed since, the next listing says so, and it is read again.
                current[info.key] = (info, lease)
        self._cache = current
        found = (current[info.key][1] for info in infos if info.key in current)
        leases = tuple(lease for lease in found if lease.held_until_ms > now_ms)
        return ListedLeases(leases, listing.store_now_ms)

    def _fetch(self, store: ObjectStore, infos: Sequence[ObjectInfo]) -> list[Lease | None]:
        if self._fetch_threads == 1 or len(infos) < 2:  # noqa: PLR2004 - one needs no pool
            return [_fetch_one(store, info) for info in infos]
        with ThreadPoolExecutor(min(self._fetch_threads, len(infos)), "icedb-leases") as pool:
            return list(pool.map(lambda info: _fetch_one(store, info), infos))


def read_leases(table: TableStore) -> tuple[Lease, ...]:
    """Read the leases that a janitor has to take for lasting, as :meth:`LeaseReader.read` does."""
    return LeaseReader().read(table).leases


def decode_lease(stored: StoredObject) -> StoredLease:
    """Return what a lease's object says. Raises ValueError: it cannot be understood."""
    value = orjson.loads(stored.body)
    try:
        at_ms, ttl_ms, until_ms = int(value["at"]), int(value["ttl_ms"]), value.get("until")
        holder = str(value.get("by", ""))
        until_ms = None if until_ms is None else int(until_ms)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{stored.info.key}: not a lease") from error
    lease = Lease(_id_of(stored.info.key), at_ms, stored.info.modified_ms + ttl_ms, holder)
    return StoredLease(lease, stored.info, until_ms)


def encode_lease(*, at_ms: int, ttl_ms: int, token: str, holder: str, until_ms: int | None) -> bytes:
    """Return the bytes of a lease's object; a fresh ``token`` makes sure that no content, hence no ETag, comes back."""
    fields: dict[str, Any] = {"at": at_ms, "ttl_ms": ttl_ms, "token": token}
    if holder:
        fields["by"] = holder
    if until_ms is not None:
        fields["until"] = until_ms
    return orjson.dumps(fields)


def _fetch_one(store: ObjectStore, info: ObjectInfo) -> Lease | None:
    try:
        # Time and content from one answer: the lease may have been renewed since the listing.
        return decode_lease(store.get(info.key)).lease
    except NotFound:
        return None  # ended meanwhile
    except ValueError:
        return Lease(_id_of(info.key), 0, info.modified_ms + MAX_LEASE_TTL_MS)


def _id_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")
