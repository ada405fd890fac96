"""Leases of reads: a lease keeps a snapshot's files while a slow reader is at them.

It is taken, renewed, checked, released.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, NotFound, Unavailable

from icedb_client.requests import Answerer, Hold, LeaseInfo, SnapshotFiles, SnapshotRequest

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
            info = self._answerer.renew_lease(self.info.table, self.info.lease_id, ttl_ms=self._ttl_ms)
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
            self._answerer.release_lease(self.info.table, self.info.lease_id)
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
    info = answerer.acquire_lease(table, ttl_ms=ttl_ms, at_ms=at_ms)
    lease = ReadLease(answerer, info, ttl_ms=ttl_ms, asked_ms=asked_ms, clock=clock)
    lease.start()
    return lease


@contextmanager
def hold_while_reading(snapshot: SnapshotFiles) -> Iterator[None]:
    """Hold a snapshot's files while they are read, if that may take longer than they stay by themselves.

    Raises:
        Unavailable: A lease was lost meanwhile.
    """
    with take_hold(snapshot) as hold:
        if hold is not None:
            hold.check()
        yield
        if hold is not None:
            hold.check()


@contextmanager
def take_hold(snapshot: SnapshotFiles) -> Iterator[Hold | None]:
    """Yield the lease of a read: the snapshot's own, one for the length of a long read, or none."""
    hold = snapshot.hold
    if hold is None and snapshot.answerer is not None and may_take_long(snapshot):
        # It may be too late to hold that time, or not allowed: the read has the grace period then, as any other.
        with suppress(IceDBError):
            hold = _take_new(snapshot.answerer, snapshot)
    try:
        yield hold
    finally:
        if hold is not None and hold is not snapshot.hold:
            hold.close()


def _take_new(answerer: Answerer, snapshot: SnapshotFiles) -> ReadLease:
    """Take a lease at the time of a snapshot; from now on, if the table is still the same after that."""
    lease = take_lease(answerer, snapshot.table, at_ms=snapshot.as_of_ms)
    if snapshot.as_of_ms is not None:
        return lease
    try:
        # Of the answer only the id counts, which is that of the whole table whatever files are asked for.
        now = answerer.snapshot(SnapshotRequest(snapshot.table, where="FALSE", max_staleness_ms=0))
    except IceDBError:
        lease.close()
        raise
    if now.snapshot_id == snapshot.snapshot_id:
        return lease
    lease.close()
    # A commit came in between: the time of the one before is held, if nothing that was live then may be going.
    return take_lease(answerer, snapshot.table, at_ms=snapshot.last_commit_ms)


def may_take_long(snapshot: SnapshotFiles) -> bool:
    """Whether a slow reader may need more than half of the time for which the files stay."""
    read_ms = snapshot.size_bytes * 1000 // SLOW_BYTES_PER_S
    if read_ms <= SHORT_READ_MS or snapshot.answerer is None:
        return False
    try:
        return 2 * read_ms > snapshot.answerer.table(snapshot.table).data_grace_ms
    except IceDBError:
        return True
