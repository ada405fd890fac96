"""Leases: a reader's hold on a table since a point in time, and how one is taken, renewed and ended (rule J4).

A lease is a hold without a list (:mod:`icedb_log.holds.stored_holds`): while it lasts, the janitor deletes nothing that
was live at its time, or at any time since. It is active from its first write on; its holder relies on it once it is
proven. Used by the snapshot service, and by clients that read the store themselves.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, IceDBError, InvalidRequest, NotFound, Overloaded, Unavailable
from icedb_log.holds.stored_holds import (
    MAX_LEASE_TTL_MS,
    HoldReader,
    StoredHold,
    decode_hold,
    encode_hold,
    put_hold,
    replace_hold,
    require_certain,
)
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import delete_or_raise
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import MINUTE_MS, SECOND_MS

MIN_LEASE_TTL_MS: Final = SECOND_MS
"""Stores tell times in whole seconds: a shorter lease may be over when it is written."""
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

    def __str__(self) -> str:
        return f"{self.lease_id} ({self.holder})" if self.holder else self.lease_id


def _lease_of(hold: StoredHold) -> Lease:
    return Lease(hold.hold_id, hold.at_ms, hold.ends_ms or 0, hold.holder)


def read_leases(table: TableStore, *, reader: HoldReader | None = None) -> tuple[Lease, ...]:
    """Return the leases that a janitor has to take for lasting, by id; also those that cannot be understood.

    Costs one listing, and one GET for each that ``reader``, one of this table, does not know. Raises Unavailable.
    """
    listed = (reader or HoldReader()).read(table, owner="lease")
    return tuple(_lease_of(hold) for hold in listed.lasting(data_grace_ms=0))


def acquire_lease(
    table: Table,
    *,
    ttl_ms: int,
    at_ms: int | None = None,
    holder: str = "",
    reader: HoldReader | None = None,
    max_leases: int = MAX_LEASES,
    check_share: Callable[[int], object] = lambda _: None,
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
        reader: A reader of the table's holds to reuse, with its cache.
        max_leases: How many may last at once.
        check_share: Told how many of them the holder has; raises if it may have no more.

    Raises:
        InvalidRequest: A bad duration or name, or a time in the future of the store.
        BelowHorizon: The time cannot be read any more, or some of its files may be gone; names the oldest that can.
        NotFound: The table was dropped meanwhile.
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
    listed = (reader or HoldReader()).read(table, owner="lease")
    lasting = listed.lasting(data_grace_ms=0)
    count = len(lasting)
    if count >= max_leases:
        raise Overloaded(
            f"table {name}: {count} leases last already, the most is {max_leases}; release those "
            "that are not needed any more, or wait until they end",
            retry_after_ms=_RETRY_AFTER_MS,
        )
    check_share(sum(1 for each in lasting if each.holder == holder))
    time_ms = listed.store_now_ms if at_ms is None else at_ms
    _require_past(table.paths, time_ms, now_ms=listed.store_now_ms)  # what is refused anyway leaves no trace
    key = table.paths.hold_key("lease", table.clock.new_id())
    fields = {"state": "active", "at": time_ms, "ttl_ms": ttl_ms, "token": table.clock.new_id(), "by": holder}
    hold = put_hold(table.store, key, encode_hold(fields))
    try:
        if at_ms is None and time_ms >= hold.modified_ms + SECOND_MS:
            raise Unavailable(
                f"table {name}: the store said that it was {time_ms}, and wrote at {hold.modified_ms}: the "
                "clocks of its servers are apart; try again"
            )
        _require_past(table.paths, time_ms, now_ms=hold.modified_ms)
        view = table.read_log()
        read_table_config(table)  # T3: in a purged table nothing can be held
        kept = hold.keeps(data_grace_ms=0)
        require_certain(view, kept, at_ms=time_ms, config=table.config, written_ms=hold.modified_ms)
        if view.store_now_ms >= hold.modified_ms + ttl_ms:
            raise Unavailable(
                f"table {name}: the lease of {ttl_ms} ms ended while the log was read; ask for a longer one"
            )
    except IceDBError:
        _take_back(table, key)
        raise
    return _lease_of(hold)


def renew_lease(table: TableStore, lease_id: str, *, clock: Clock, ttl_ms: int) -> Lease:
    """Let a lease last for ``ttl_ms`` from now on, at least. Safe to repeat, also by several at once.

    By the store's clock; never shorter than it lasts already, also if no answer comes: to end it, release it.
    This host's clock decides nothing about times.

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
        fields = {"state": "active", "at": found.at_ms, "ttl_ms": ttl_ms, "token": clock.new_id(), "by": found.holder}
        renewed = replace_hold(table.store, found, encode_hold(fields | {"until": found.ends_ms}))
        if renewed is None:
            continue  # another process renewed or ended it: what is there now tells
        if renewed.is_late:
            # WARN: J4: it ended before this landed, and a janitor may have looked in between.
            _take_back(table, renewed.key)
            raise _ended(table, lease_id)
        return _lease_of(renewed)
    raise CommitConflict(f"table {table.name}: lease {lease_id} changed under each of {_RENEW_ATTEMPTS} renewals")


def release_lease(table: TableStore, lease_id: str) -> None:
    """End a lease. Idempotent; ending one that has ended, or never was, is no error.

    Raises:
        InvalidRequest: That is no id of a lease.
        Unavailable: The store did not answer; it ends by itself.
    """
    delete_or_raise(table.store, [_key_of(table.paths, lease_id)])


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
    return paths.hold_key("lease", lease_id)


def _find(table: TableStore, lease_id: str) -> StoredHold:
    """Return a lease that lasts. Raises NotFound: it has ended, or never was."""
    key = _key_of(table.paths, lease_id)
    # The time before the lease: the other way round, one that is renewed in between would look ended.
    now_ms = table.read_store_clock()
    try:
        found = decode_hold(table.store.get(key))
    except NotFound as error:
        raise _ended(table, lease_id) from error
    # WARN: J4: not a late one. A renewal whose answer got lost may have landed after the end; it looks alive since.
    if found.status(now_ms) != "active":
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
