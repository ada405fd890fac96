"""Leases around reads: taken before, renewed in the background, released at the end (rule J4).

A lease that could not be renewed in time is lost, for good: the read that it protected fails. Nobody's wall clock
matters: the store counts a lease from when it was written, and its holder from before it asked.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, NotFound, Unavailable

from icedb_client.read_requests import AcquireLease, Answerer, LeaseInfo, ReleaseLease, RenewLease, TableRequest

if TYPE_CHECKING:
    from icedb_client.snapshots import Snapshot

DEFAULT_LEASE_MS: Final = 5 * 60 * 1000
RENEWALS_PER_LEASE: Final = 3
SLOW_BYTES_PER_S: Final = 8 * 1024 * 1024
"""A reader that is not slower than this needs no lease: one connection to an object store far away."""
SHORT_READ_MS: Final = 60_000
"""A read that is over sooner at that pace takes no lease, whatever the table's grace period."""


class ReadLease:
    """A lease of one read. Renews itself in a thread of its own once it is started. Thread-safe.

    Args:
        answerer: Where it was taken, and is renewed.
        info: The lease.
        ttl_ms: How long each renewal lasts.
        asked_ms: Monotonic time before it was asked for.
        clock: For its end.
    """

    def __init__(self, answerer: Answerer, info: LeaseInfo, *, ttl_ms: int, asked_ms: int, clock: Clock) -> None:
        self.info = info
        self._answerer = answerer
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._ends_ms = asked_ms + ttl_ms
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="icedb-read-lease", daemon=True)

    def start(self) -> None:
        """Begin to renew it."""
        self._thread.start()

    def check(self) -> None:
        """Raise Unavailable if the lease is lost: files of the snapshot may be gone."""
        if self._lost is None and self._clock.monotonic_ms() >= self._ends_ms:
            self._lost = "it could not be renewed in time"
        if self._lost is not None:
            raise Unavailable(
                f"table {self.info.table}: the lease {self.info.lease_id} that held the data files of this read was "
                f"lost ({self._lost}): some may be deleted by now. Take a new snapshot and read again"
            )

    def renew(self) -> None:
        """Renew it once. What cannot be renewed just now may be so later, as long as it lasts."""
        asked_ms = self._clock.monotonic_ms()
        try:
            info = self._answerer.ask(RenewLease(self.info.table, self.info.lease_id, self._ttl_ms))
        except NotFound as error:
            self._lost = str(error)
        except IceDBError:
            return  # check() tells when its time is over
        else:
            self.info, self._ends_ms = info, asked_ms + self._ttl_ms

    def close(self) -> None:
        """End it. May be called again; a lease that cannot be released ends by itself."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        try:
            self._answerer.ask(ReleaseLease(self.info.table, self.info.lease_id))
        except IceDBError:
            return

    def _renew_until_end(self) -> None:
        pause_s = self._ttl_ms / RENEWALS_PER_LEASE / 1000
        while not self._ended.wait(pause_s) and self._lost is None:
            self.renew()


def take_lease(
    answerer: Answerer, table: str, *, at_ms: int | None, ttl_ms: int = DEFAULT_LEASE_MS, clock: Clock | None = None
) -> ReadLease:
    """Take a lease and keep it until it is closed.

    Raises:
        InvalidRequest: The time cannot be held, or lies below the horizon.
        NotFound: No such table.
        Unavailable: No answer.
    """
    clock = clock or SystemClock()
    asked_ms = clock.monotonic_ms()
    lease = ReadLease(
        answerer,
        answerer.ask(AcquireLease(table, ttl_ms, at_ms)),
        ttl_ms=ttl_ms,
        asked_ms=asked_ms,
        clock=clock,
    )
    lease.start()
    return lease


@contextmanager
def hold_while_reading(snapshot: "Snapshot") -> Iterator[None]:
    """Hold a snapshot's files while they are read, if that may take longer than they stay by themselves.

    Raises:
        Unavailable: A lease was lost meanwhile.
    """
    hold = take_hold(snapshot)
    try:
        if hold is not None:
            hold.check()
        yield
        if hold is not None:
            hold.check()
    finally:
        release_hold(snapshot, hold)


def take_hold(snapshot: "Snapshot") -> ReadLease | None:
    """Return the lease of a read: the snapshot's own, a new one for a long read, or none."""
    if snapshot.hold is not None or snapshot.answerer is None or not may_take_long(snapshot):
        return snapshot.hold
    try:
        return _hold_newest(snapshot) if snapshot.as_of_ms is None else _hold_at(snapshot, snapshot.as_of_ms)
    except IceDBError:
        return None  # it is too late to hold that time, or not allowed: the read has the grace period, as any other


def _hold_newest(snapshot: "Snapshot") -> ReadLease:
    """Take a lease from now on: it holds the snapshot's files if the table is still the same after that."""
    lease = _hold_at(snapshot, None)
    try:
        if _is_still_newest(snapshot):
            return lease
    except IceDBError:
        lease.close()
        raise
    lease.close()
    # A commit came in between: the time of the one before is held, if nothing that was live then may be going.
    return _hold_at(snapshot, snapshot.last_commit_ms)


def _hold_at(snapshot: "Snapshot", at_ms: int | None) -> ReadLease:
    assert snapshot.answerer is not None  # noqa: S101 - whoever calls has looked
    return take_lease(snapshot.answerer, snapshot.table, at_ms=at_ms)


def _is_still_newest(snapshot: "Snapshot") -> bool:
    from icedb_client.snapshots import SnapshotRequest  # noqa: PLC0415 - snapshots know of leases

    assert snapshot.answerer is not None  # noqa: S101 - as above
    # Of the answer only the id counts, which is that of the whole table whatever files are asked for.
    now = snapshot.answerer.ask(SnapshotRequest(snapshot.table, where="FALSE", max_staleness_ms=0))
    return now.snapshot_id == snapshot.snapshot_id


def release_hold(snapshot: "Snapshot", hold: ReadLease | None) -> None:
    """End a lease that :func:`take_hold` took."""
    if hold is not None and hold is not snapshot.hold:
        hold.close()


def may_take_long(snapshot: "Snapshot") -> bool:
    """Whether a slow reader may need more than half of the time for which the files stay."""
    read_ms = snapshot.size_bytes * 1000 // SLOW_BYTES_PER_S
    if read_ms <= SHORT_READ_MS or snapshot.answerer is None:
        return False
    try:
        return 2 * read_ms > snapshot.answerer.ask(TableRequest(snapshot.table)).data_grace_ms
    except IceDBError:
        return True
