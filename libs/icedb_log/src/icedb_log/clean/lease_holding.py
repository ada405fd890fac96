"""How a lease is taken so that it holds for certain, renewed only while it lasts, and ended (rule J4).

Order of taking: the lease; the log; the proof. A holder that dies leaves a lease that runs out. Order of renewing: the
lease as it is; the write on that condition; the proof that it landed before the lease had ended. Neither a reader's nor
a janitor's clock decides anything. Used by the snapshot service, and by clients that read the store themselves.
"""

import re
from collections.abc import Iterable
from typing import Final

from icedb_log.clean.guards import STORE_RESOLUTION_MS, Death
from icedb_log.clean.leases import (
    MAX_HOLDER_CHARS,
    MAX_LEASE_TTL_MS,
    MIN_LEASE_TTL_MS,
    Lease,
    LeaseReader,
    StoredLease,
    decode_lease,
    encode_lease,
)
from icedb_log.clean.vacuum_plan import find_deaths
from icedb_log.clock import Clock, format_ms
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.keys import TablePaths
from icedb_log.log.fold import read_horizon_ms
from icedb_log.model import LogView
from icedb_log.store.object_store import ObjectInfo, ObjectStore, delete_or_raise
from icedb_log.store.records import create_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS

MAX_LEASES: Final = 1000
"""Leases of one table that last at once. Janitors read each of them in every run."""

_LEASE_ID: Final = re.compile(r"[0-9a-f]{32}")
_RENEW_ATTEMPTS: Final = 5
_RETRY_AFTER_MS: Final = 60_000


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
    store, paths, clock, config = table.store, table.paths, table.clock, table.config
    _check_ttl(paths, ttl_ms)
    if len(holder) > MAX_HOLDER_CHARS or not (holder.isprintable() or not holder):
        raise InvalidRequest(f"table {paths.name}: a holder has at most {MAX_HOLDER_CHARS} printable characters")
    listed = (leases or LeaseReader()).read(TableStore(store, paths))
    if len(listed.leases) >= max_leases:
        raise Overloaded(
            f"table {paths.name}: {len(listed.leases)} leases last already, the most is {max_leases}; release those "
            "that are not needed any more, or wait until they end",
            retry_after_ms=_RETRY_AFTER_MS,
        )
    time_ms = listed.store_now_ms if at_ms is None else at_ms
    _require_past(paths, time_ms, now_ms=listed.store_now_ms)  # what is refused anyway leaves no trace
    lease_id = clock.new_id()
    body = encode_lease(at_ms=time_ms, ttl_ms=ttl_ms, token=clock.new_id(), holder=holder, until_ms=None)
    ended = "somebody ended the lease while it was taken; take another"
    info = create_claim(store, paths.lease_key(lease_id), body, ended=ended).info
    try:
        if at_ms is None and time_ms >= info.modified_ms + SECOND_MS:
            raise Unavailable(
                f"table {paths.name}: the store said that it was {time_ms}, and wrote at {info.modified_ms}: the "
                "clocks of its servers are apart; try again"
            )
        _require_past(paths, time_ms, now_ms=info.modified_ms)
        # WARN: J4: after the lease is there. Before it: the log is read, a file dies and gets old, a janitor reads the
        # leases, the lease is written, and proven by a log that says that the file is there.
        view = table.read_log()
        require_same_table(TableStore(store, paths), config)  # T4: its grace periods are what makes the lease certain
        _require_certain(paths, view, time_ms, config=config, written_ms=info.modified_ms)
        if view.store_now_ms >= info.modified_ms + ttl_ms:
            raise Unavailable(
                f"table {paths.name}: the lease of {ttl_ms} ms ended while the log was read; ask for a longer one"
            )
    except IceDBError:
        _take_back(store, info.key)
        raise
    return Lease(lease_id, time_ms, info.modified_ms + ttl_ms, holder)


def renew_lease(table: TableStore, lease_id: str, *, clock: Clock, ttl_ms: int) -> Lease:
    """Let a lease last for ``ttl_ms`` from now on. Safe to repeat, also by several at once.

    Args:
        table: Its store and keys.
        lease_id: As :func:`acquire_lease` returned it.
        clock: For ids; decides nothing about times.
        ttl_ms: How long, by the store's clock; it may end earlier than before.

    Raises:
        InvalidRequest: A bad duration or id.
        NotFound: It has ended, so that what it held may be gone. What the caller does: take another one, read again.
        CommitConflict: Others renewed it at this very moment, again and again.
        CommitOutcomeUnknown: No answer; renew again.
        Unavailable: The store did not answer.
    """
    _check_ttl(table.paths, ttl_ms)
    key = _key_of(table.paths, lease_id)
    for _ in range(_RENEW_ATTEMPTS):  # no back-off: each refusal means that another renewal went through
        found = _find(table, lease_id)
        body = encode_lease(
            at_ms=found.lease.at_ms,
            ttl_ms=ttl_ms,
            token=clock.new_id(),
            holder=found.lease.holder,
            until_ms=found.lease.expires_ms,
        )
        info = _replace(table.store, key, body, etag=found.info.etag)
        if info is None:
            continue  # somebody else renewed or ended it: what is there now tells
        if _came_too_late(found.lease, info):
            # WARN: J4: it ended before this landed, and a janitor may have looked in between.
            _take_back(table.store, key)
            raise _ended(table.paths, lease_id)
        return Lease(lease_id, found.lease.at_ms, info.modified_ms + ttl_ms, found.lease.holder)
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

    A janitor that does not know the lease read the leases before it was there, and the store's clock before that. So it
    deletes only what had died a grace period before the lease was written, or as much later as two answers of the store
    about one moment may lie apart.

    Args:
        view: The log, read after the lease was written.
        at_ms: The time to hold, not below the horizon.
        config: Grace periods.
        written_ms: LastModified of the lease.
    """
    latest_ms = written_ms + MAX_STORE_GAP_MS
    held_from_ms = Lease("", at_ms, 0).held_from_ms
    if held_from_ms >= latest_ms - min(config.log_grace_ms, config.data_grace_ms) + STORE_RESOLUTION_MS:
        return None  # what readers saw alive then died later than any of them deletes
    logs = find_deaths((file.log.log_tombstones, file.modified_ms) for file in view.files)
    data = find_deaths((file.log.markers, file.modified_ms) for file in view.files)
    doubtful = [
        *_died_before(logs.values(), held_from_ms, latest_ms - config.log_grace_ms),
        *_died_before(data.values(), held_from_ms, latest_ms - config.data_grace_ms),
    ]
    return max((death.seen_dead_ms + MAX_STORE_GAP_MS for death in doubtful), default=None)


def _died_before(deaths: Iterable[Death], held_from_ms: int, certain_ms: int) -> list[Death]:
    """Return which objects that a lease is to hold a janitor may be about to delete: told as guards tell it (J4)."""
    return [death for death in deaths if death.seen_dead_ms > held_from_ms and death.died_ms < certain_ms]


def _require_certain(paths: TablePaths, view: LogView, at_ms: int, *, config: TableConfig, written_ms: int) -> None:
    oldest_ms = read_horizon_ms(view)
    if at_ms >= oldest_ms:
        found_ms = find_oldest_certain_ms(view, at_ms, config=config, written_ms=written_ms)
        if found_ms is None:
            return
        oldest_ms = max(oldest_ms, found_ms)
    raise BelowHorizon(
        f"table {paths.name}: time {at_ms} cannot be held: files of it are deleted, or may be at any moment, because "
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


def _find(table: TableStore, lease_id: str) -> StoredLease:
    """Return a lease that lasts. Raises NotFound: it has ended, or never was."""
    key = _key_of(table.paths, lease_id)
    # The time before the lease: the other way round, one that is renewed in between would look ended.
    now_ms = table.store.list_page(key, limit=1).store_now_ms
    try:
        found = decode_lease(table.store.get(key))
    except (NotFound, ValueError) as error:
        raise _ended(table.paths, lease_id) from error
    # WARN: J4: a renewal whose answer got lost may have landed after the end; the lease looks alive since.
    if found.has_lapsed or found.lease.expires_ms <= now_ms:
        raise _ended(table.paths, lease_id)
    return found


def _replace(store: ObjectStore, key: str, body: bytes, *, etag: str) -> ObjectInfo | None:
    """Write a lease over the state with ``etag``; ``None`` if another state is there. Bodies never repeat."""
    unknown: CommitOutcomeUnknown | None = None
    try:
        store.put_if_match(key, body, etag=etag)
    except PreconditionFailed:
        pass  # W2: an earlier try of this very request may have landed; only reading tells
    except CommitOutcomeUnknown as error:
        unknown = error
    try:
        found = store.get(key)
    except NotFound:
        return None
    if found.body == body:
        return found.info
    if unknown is not None and found.info.etag == etag:
        raise unknown
    return None


def _take_back(store: ObjectStore, key: str) -> None:
    """Delete a lease that holds nothing for certain, as far as the store answers; it ends by itself."""
    try:
        store.delete([key])
    except IceDBError:
        return


def _ended(paths: TablePaths, lease_id: str) -> NotFound:
    return NotFound(
        f"table {paths.name}: lease {lease_id} has ended, was released, or never was: what it held may be deleted. "
        "Take another lease and read again, with what is there now; renew it well before it ends"
    )
