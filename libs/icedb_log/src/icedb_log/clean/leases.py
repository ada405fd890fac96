"""Leases: a reader's hold on a table since a point in time, and how one is taken, renewed and ended (rule J4).

``_icedb/leases/<id>.json`` is one object: ``{"at": <unix ms>, "ttl_ms": <ms>, "until": <unix ms>, "token": <id>,
"by": <who>}``. A lease runs from LastModified for its ``ttl_ms``, both by the store's clock, so no reader's or
janitor's clock matters. While it lasts, the janitor deletes nothing that was live at ``at``, or at any time since.
``until`` is there once it was renewed: when the state before would have ended. A renewal that landed later than that
makes nothing whole again: what was held may have been deleted in between.

Order of taking: the lease; the log; the proof. A holder that dies leaves a lease that runs out. Order of renewing: the
lease as it is; the write on that condition; the proof that it landed before the lease had ended. Used by the snapshot
service, and by clients that read the store themselves.
"""

import contextlib
import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from icedb_log.clean.guards import STORE_RESOLUTION_MS, Hold, find_data_deaths, find_log_deaths, may_be_going
from icedb_log.clock import Clock, format_ms
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from icedb_log.keys import TablePaths
from icedb_log.log.fold import read_horizon_ms
from icedb_log.model import LogView
from icedb_log.store.object_store import ObjectInfo, StoredObject, delete_or_raise, list_all
from icedb_log.store.records import KnownObjects, create_claim, replace_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS, MINUTE_MS, SECOND_MS

MIN_LEASE_TTL_MS: Final = SECOND_MS
"""Stores tell times in whole seconds: a shorter lease may be over when it is written."""
MAX_LEASE_TTL_MS: Final = DAY_MS
MAX_HOLDER_CHARS: Final = 200
MAX_LEASES: Final = 1000
"""Leases of one table that last at once. Janitors read each of them in every run."""

_LEASE_ID: Final = re.compile(r"[0-9a-f]{32}")
_RENEW_ATTEMPTS: Final = 5
_RETRY_AFTER_MS: Final = MINUTE_MS


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold on the table as it was at ``at_ms`` and at any time since.

    It ends at ``expires_ms`` by the store's clock unless it is renewed. ``holder``: who took it, for people, if known.
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

    @property
    def hold(self) -> Hold:
        """What it holds."""
        return Hold("lease", self.lease_id, self.held_until_ms, since_ms=self.held_from_ms, told=str(self))

    def __str__(self) -> str:
        return f"{self.lease_id} ({self.holder})" if self.holder else self.lease_id


class LeaseObject(BaseModel):
    """What a lease's object says; a fresh ``token`` makes sure that no content, hence no ETag, comes back."""

    at: int
    ttl_ms: int
    token: str = ""
    by: str = ""
    until: int | None = None

    def encode(self) -> bytes:
        """Return its bytes."""
        return self.model_dump_json(exclude_defaults=True).encode()


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease, its object, and when the state that the last renewal replaced would have ended, if it was renewed."""

    lease: Lease
    info: ObjectInfo
    until_ms: int | None = None

    @property
    def has_lapsed(self) -> bool:
        """Whether it was renewed after its end: what it holds now, it did not hold all the time."""
        return self.until_ms is not None and self.info.modified_ms >= self.until_ms


def decode_lease(stored: StoredObject) -> StoredLease:
    """Return what a lease's object says. Raises ValueError: it cannot be understood."""
    said = LeaseObject.model_validate_json(stored.body)
    lease = Lease(_id_of(stored.info.key), said.at, stored.info.modified_ms + said.ttl_ms, said.by)
    return StoredLease(lease, stored.info, said.until)


def _decode_or_all(stored: StoredObject) -> Lease:
    """Return a lease; one that cannot be understood holds everything for as long as a lease may last."""
    try:
        return decode_lease(stored).lease
    except ValueError:
        return Lease(_id_of(stored.info.key), 0, stored.info.modified_ms + MAX_LEASE_TTL_MS)


@dataclass(frozen=True, slots=True)
class ListedLeases:
    """The leases of a table that have not ended, by id, and the store's clock before they were listed."""

    leases: tuple[Lease, ...]
    store_now_ms: int


class LeaseReader:
    """Reads the leases of one table; keeps what it read. Thread-safe."""

    def __init__(self) -> None:
        self._known = KnownObjects(_decode_or_all)

    def read(self, table: TableStore, *, latest_ms: int | None = None) -> ListedLeases:
        """Return the leases that a janitor has to take for lasting.

        One that cannot be understood is among them (unknown means keep). Costs one listing, and one GET for each lease
        that is new or was renewed.

        It is ``latest_ms`` at most, whatever the store's clock says now (J1).

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(table.store, table.paths.leases_prefix)
        now_ms = listing.store_now_ms if latest_ms is None else min(listing.store_now_ms, latest_ms)
        # No lease lasts longer, and one that has ended is not renewed.
        least_ms = now_ms - MAX_LEASE_TTL_MS - MAX_STORE_GAP_MS
        found = self._known.read(table.store, [info for info in listing.objects if info.modified_ms > least_ms])
        return ListedLeases(tuple(lease for lease in found if lease.held_until_ms > now_ms), listing.store_now_ms)


def read_leases(table: TableStore) -> tuple[Lease, ...]:
    """Read the leases that a janitor has to take for lasting, as :meth:`LeaseReader.read` does."""
    return LeaseReader().read(table).leases


def acquire_lease(
    table: Table,
    *,
    ttl_ms: int,
    at_ms: int | None = None,
    holder: str = "",
    leases: LeaseReader | None = None,
    max_leases: int = MAX_LEASES,
) -> Lease:
    """Hold a table as it was at a time, and at any time since, until the lease ends. Not idempotent.

    What comes back holds for certain: every file that was live at ``at_ms`` or later is there until the lease ends. So
    the holder may read the state at ``at_ms``, the newest one, or any between. One that was taken and is not heard of,
    because the answer got lost, ends by itself.

    Args:
        table: The table. This host's clock decides nothing about times.
        ttl_ms: How long it lasts unless it is renewed, by the store's clock.
        at_ms: Which time, unix ms; ``None``: now.
        holder: Who takes it, for people.
        leases: A reader of the table's leases to reuse, with its cache.
        max_leases: How many may last at once.

    Raises:
        InvalidRequest: A bad duration or name, or a time in the future of the store.
        BelowHorizon: The time cannot be read any more, or some of its files may be gone; names the oldest that can.
        NotFound: The table was dropped meanwhile.
        Fenced: It is another one of that name meanwhile.
        Overloaded: Too many leases last already.
        HaltError: The log cannot be read.
        CommitConflict: Somebody ended the lease while it was taken.
        CommitOutcomeUnknown: No answer; take another one.
        Unavailable: The store did not answer, or it took longer than the lease lasts.
    """
    name = table.name
    _check_ttl(table.paths, ttl_ms)
    if len(holder) > MAX_HOLDER_CHARS or not (holder.isprintable() or not holder):
        raise InvalidRequest(f"table {name}: a holder has at most {MAX_HOLDER_CHARS} printable characters")
    listed = (leases or LeaseReader()).read(table)
    if len(listed.leases) >= max_leases:
        raise Overloaded(
            f"table {name}: {len(listed.leases)} leases last already, the most is {max_leases}; release those "
            "that are not needed any more, or wait until they end",
            retry_after_ms=_RETRY_AFTER_MS,
        )
    time_ms = listed.store_now_ms if at_ms is None else at_ms
    _require_past(table.paths, time_ms, now_ms=listed.store_now_ms)  # what is refused anyway leaves no trace
    lease_id = table.clock.new_id()
    said = LeaseObject(at=time_ms, ttl_ms=ttl_ms, token=table.clock.new_id(), by=holder)
    ended = "somebody ended the lease while it was taken; take another"
    info = create_claim(table.store, table.paths.lease_key(lease_id), said.encode(), ended=ended).info
    try:
        if at_ms is None and time_ms >= info.modified_ms + SECOND_MS:
            raise Unavailable(
                f"table {name}: the store said that it was {time_ms}, and wrote at {info.modified_ms}: the "
                "clocks of its servers are apart; try again"
            )
        _require_past(table.paths, time_ms, now_ms=info.modified_ms)
        # WARN: J4: after the lease is there. Before it: the log is read, a file dies and gets old, a janitor reads the
        # leases, the lease is written, and proven by a log that says that the file is there.
        view = table.read_log()
        require_same_table(table, table.config)  # T4: its grace periods are what makes the lease certain
        _require_certain(view, time_ms, config=table.config, written_ms=info.modified_ms)
        if view.store_now_ms >= info.modified_ms + ttl_ms:
            raise Unavailable(
                f"table {name}: the lease of {ttl_ms} ms ended while the log was read; ask for a longer one"
            )
    except IceDBError:
        _take_back(table, info.key)
        raise
    return Lease(lease_id, time_ms, info.modified_ms + ttl_ms, holder)


def renew_lease(table: TableStore, lease_id: str, *, clock: Clock, ttl_ms: int) -> Lease:
    """Let a lease last for ``ttl_ms`` from now on. Safe to repeat, also by several at once.

    From now on by the store's clock: it may end earlier than before. This host's clock decides nothing about times.

    Raises:
        InvalidRequest: A bad duration or id.
        NotFound: It has ended, so that what it held may be gone. What the caller does: take another one, read again.
        CommitConflict: Others renewed it at this very moment, again and again.
        CommitOutcomeUnknown: No answer; renew again.
        Unavailable: The store did not answer.
    """
    _check_ttl(table.paths, ttl_ms)
    for _ in range(_RENEW_ATTEMPTS):  # no back-off: each refusal means that another renewal went through
        found = _find(table, lease_id)
        lease = found.lease
        said = LeaseObject(at=lease.at_ms, ttl_ms=ttl_ms, token=clock.new_id(), by=lease.holder, until=lease.expires_ms)
        info = replace_claim(table.store, found.info.key, said.encode(), etag=found.info.etag)
        if info is None:
            continue  # somebody else renewed or ended it: what is there now tells
        if _came_too_late(lease, info):
            # WARN: J4: it ended before this landed, and a janitor may have looked in between.
            _take_back(table, info.key)
            raise _ended(table, lease_id)
        return Lease(lease_id, lease.at_ms, info.modified_ms + ttl_ms, lease.holder)
    raise CommitConflict(f"table {table.name}: lease {lease_id} changed under each of {_RENEW_ATTEMPTS} renewals")


def _came_too_late(lease: Lease, info: ObjectInfo) -> bool:
    """Whether a renewal landed when the lease had ended: what it held may be gone by then (J4)."""
    return info.modified_ms >= lease.expires_ms


def release_lease(table: TableStore, lease_id: str) -> None:
    """End a lease. Idempotent; ending one that has ended, or never was, is no error.

    Raises:
        InvalidRequest: That is no id of a lease.
        Unavailable: The store did not answer; it ends by itself.
    """
    delete_or_raise(table.store, [_key_of(table.paths, lease_id)])


def find_oldest_certain_ms(view: LogView, at_ms: int, *, config: TableConfig, written_ms: int) -> int | None:
    """Return the oldest time that a lease can hold for certain, if it cannot hold ``at_ms``; ``None``: it can. Pure.

    Args:
        view: The log, read after the lease was written.
        at_ms: The time to hold, not below the horizon.
        config: Grace periods.
        written_ms: LastModified of the lease.
    """
    held_from_ms = Lease("", at_ms, 0).held_from_ms
    grace_ms = min(config.log_grace_ms, config.data_grace_ms)
    if held_from_ms >= written_ms + MAX_STORE_GAP_MS - grace_ms + STORE_RESOLUTION_MS:
        return None  # what readers saw alive then died later than any janitor deletes
    kinds = ((find_log_deaths(view), config.log_grace_ms), (find_data_deaths(view), config.data_grace_ms))
    return max(
        (
            death.seen_dead_ms + MAX_STORE_GAP_MS
            for deaths, grace_ms in kinds
            for death in deaths.values()
            if death.seen_dead_ms > held_from_ms and may_be_going(death, written_ms=written_ms, grace_ms=grace_ms)
        ),
        default=None,
    )


def _require_certain(view: LogView, at_ms: int, *, config: TableConfig, written_ms: int) -> None:
    oldest_ms = read_horizon_ms(view)
    if at_ms >= oldest_ms:
        found_ms = find_oldest_certain_ms(view, at_ms, config=config, written_ms=written_ms)
        if found_ms is None:
            return
        oldest_ms = max(oldest_ms, found_ms)
    raise BelowHorizon(
        f"table {view.table}: time {at_ms} cannot be held: files of it are deleted, or may be at any moment, because "
        f"they died longer ago than the grace period (log files {config.log_grace_ms} ms, data files "
        f"{config.data_grace_ms} ms); the oldest time that can be held is {oldest_ms} ({format_ms(oldest_ms)})"
    )


def _require_past(paths: TablePaths, at_ms: int, *, now_ms: int) -> None:
    # Stores tell whole seconds: what they call now may be a moment ago. Guards count that in (Death.seen_dead_ms).
    if at_ms >= now_ms + SECOND_MS:
        raise InvalidRequest(
            f"table {paths.name}: time {at_ms} lies in the future of the store, which says {now_ms}; leave the time "
            "out to hold the table as it is now"
        )
    if at_ms < 0:
        raise InvalidRequest(f"table {paths.name}: {at_ms} is not a time: use unix milliseconds")


def _check_ttl(paths: TablePaths, ttl_ms: int) -> None:
    if not MIN_LEASE_TTL_MS <= ttl_ms <= MAX_LEASE_TTL_MS:
        raise InvalidRequest(
            f"table {paths.name}: a lease lasts {MIN_LEASE_TTL_MS} to {MAX_LEASE_TTL_MS} ms, not {ttl_ms}; renew it "
            "while it is needed"
        )


def _key_of(paths: TablePaths, lease_id: str) -> str:
    if not _LEASE_ID.fullmatch(lease_id):  # a key is made of it, and deleted
        raise InvalidRequest(
            f"table {paths.name}: {lease_id[:80]!r} is not the id of a lease: 32 hex digits, as it was returned"
        )
    return paths.lease_key(lease_id)


def _id_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")


def _find(table: TableStore, lease_id: str) -> StoredLease:
    """Return a lease that lasts. Raises NotFound: it has ended, or never was."""
    key = _key_of(table.paths, lease_id)
    # The time before the lease: the other way round, one that is renewed in between would look ended.
    now_ms = table.read_store_clock()
    try:
        found = decode_lease(table.store.get(key))
    except (NotFound, ValueError) as error:
        raise _ended(table, lease_id) from error
    # WARN: J4: a renewal whose answer got lost may have landed after the end; the lease looks alive since.
    if found.has_lapsed or found.lease.expires_ms <= now_ms:
        raise _ended(table, lease_id)
    return found


def _take_back(table: TableStore, key: str) -> None:
    """Delete a lease that holds nothing for certain, as far as the store answers; it ends by itself."""
    with contextlib.suppress(IceDBError):
        table.store.delete([key])


def _ended(table: TableStore, lease_id: str) -> NotFound:
    return NotFound(
        f"table {table.name}: lease {lease_id} has ended, was released, or never was: what it held may be deleted. "
        "Take another lease and read again, with what is there now; renew it well before it ends"
    )
