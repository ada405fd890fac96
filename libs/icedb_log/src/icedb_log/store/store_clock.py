"""The store's time: whether ages can be told by it, how late it is at most, and how this host's clock stands to it.

An age is the store's "now" minus an object's LastModified (J1, J5). That is only true if both come from one clock,
which goes forward as time does: a gateway that keeps the times of the files below it makes new objects look old, and a
``Date`` that jumps makes everything look old at once. Three answers to that, and one for hosts:

* :func:`check_store_clock` asks before a run deletes by age: one object is written and looked at. It cannot see a clock
  that was wrong when older objects were written and is right now: grace periods have to be longer than such an error.
* :class:`SteadyTime` never lets more time pass between two answers than this host's monotonic clock measures.
* :class:`ClockWatch` compares this host's wall clock with the store's, for metrics; it decides nothing.
* :class:`AlignedClock` gives ids the store's time on a host whose wall clock is wrong (I3).
"""

import threading
import weakref
from collections.abc import Callable
from typing import Final, Protocol, cast, runtime_checkable

from icedb_log.clock import Clock, format_ms, with_time
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.store.object_store import ObjectStore

MAX_STORE_GAP_MS: Final = 10_000
"""How far the store's answers about one moment may lie apart: several servers answer, each in whole seconds."""

MAX_HOST_GAP_MS: Final = 15 * 60 * 1000
"""How far the clocks of store and host may lie apart. S3 itself refuses requests of a host that is further off."""

SKEW_WARN_MS: Final = 30_000
"""From how far on a host's clock and the store's are apart people are told. Nothing is lost or deleted early."""

SKEW_LIMIT_MS: Final = 5 * 60 * 1000
"""A service whose host's clock is further off waits before it begins to work."""

JUMP_MS: Final = 500
"""A step of the wall clock against the monotonic one is a jump from here on: a leap second, too, unless smeared."""

WINDOW_MS: Final = 30_000
"""The least difference of so long a time counts: an answer that took long makes this host look ahead."""

PAUSE_MS: Final = 100
"""Both clocks of this host are read one after the other; with more in between they are not compared."""


def check_has_come(table: str, name: str, time_ms: int, *, store_now_ms: int) -> None:
    """Return if a time that is asked for has come, as far as servers of one store can tell.

    Args:
        table: Whose state is asked for.
        name: What the caller calls the time.
        time_ms: The time, unix ms.
        store_now_ms: The store's clock.

    Raises:
        InvalidRequest: It lies in the future.
    """
    if time_ms > store_now_ms + MAX_STORE_GAP_MS:
        raise InvalidRequest(
            f"table {table}: {name} {time_ms} lies in the future: the store's clock says {store_now_ms} "
            f"({format_ms(store_now_ms)}); ask for a time that has come, or leave it out for the newest state"
        )


def check_store_clock(store: ObjectStore, key: str, *, clock: Clock) -> int:
    """Check that the store tells the time of what is written just now. Costs two listings of one key and one write.

    The host's clock decides about no age. But of two clocks that disagree one is wrong, and nobody knows which: then
    nothing may be deleted (unknown means keep).

    Args:
        store: The object store.
        key: A scratch object, e.g. :attr:`icedb_log.keys.TablePaths.clock_key`. It is overwritten and stays.
        clock: Of this host.

    Returns:
        The store's clock, unix ms, at the second listing.

    Raises:
        UnsupportedFormat: LastModified is not the time of the write, or a listing lacks what was just written: no age
            of this store means anything.
        Unavailable: The store's clock jumped meanwhile, or is far from the host's; or the store did not answer.

    Idempotency: may be repeated, and run many times at once with one key.
    """
    began_ms = clock.monotonic_ms()
    earlier_ms = store.list_page(key, limit=1).store_now_ms
    heard_ms = clock.monotonic_ms()
    etag = store.put(key, clock.new_id().encode())
    asked_ms, host_ms = clock.monotonic_ms(), clock.now_ms()
    page = store.list_page(key, limit=1)
    found = [info.modified_ms for info in page.objects if info.key == key]
    least_ms, most_ms = asked_ms - heard_ms, clock.monotonic_ms() - began_ms
    passed_ms = page.store_now_ms - earlier_ms
    if not found:
        # WARN: whoever clears scratch objects away deletes this one, too.
        _require_there(store, key, etag)
        raise UnsupportedFormat(
            f"{key}: was written just now, and a listing does not show it: listings of this store are not consistent; "
            "use a store that lists what was written, and let no cache answer for it"
        )
    if not least_ms - MAX_STORE_GAP_MS <= passed_ms <= most_ms + MAX_STORE_GAP_MS:
        raise Unavailable(
            f"{key}: the store's clock moved by {passed_ms} ms while {most_ms} ms passed: nothing is deleted by age "
            "until it goes steadily; check the clocks of the store's servers (NTP)"
        )
    if not host_ms - MAX_HOST_GAP_MS <= page.store_now_ms <= clock.now_ms() + MAX_HOST_GAP_MS:
        raise Unavailable(
            f"{key}: the store's clock says {page.store_now_ms}, this host's {clock.now_ms()} (unix ms), more than "
            f"{MAX_HOST_GAP_MS // 60_000} minutes apart: nothing is deleted by age until both agree; set the one that "
            "is wrong (NTP)"
        )
    if not earlier_ms - MAX_STORE_GAP_MS <= found[0] <= page.store_now_ms + MAX_STORE_GAP_MS:
        raise UnsupportedFormat(
            f"{key}: was written between {earlier_ms} and {page.store_now_ms} by the store's clock, and its "
            f"LastModified says {found[0]} (unix ms): this store does not keep the time of a write, so no age can be "
            "told; use a store whose LastModified is its own time of the last write"
        )
    return page.store_now_ms


def _require_there(store: ObjectStore, key: str, etag: str) -> None:
    """Raise Unavailable if somebody has removed what was written: then its absence says nothing about listings.

    Another run may have put one there since: what each writes is its own.
    """
    try:
        is_mine = store.head(key).etag == etag
    except NotFound:
        is_mine = False
    if not is_mine:
        raise Unavailable(
            f"{key}: removed by another process just now: nothing is deleted by age; the next run continues"
        )


class _RecentLeast:
    """The least value of the last while: of one window at least, of two at most."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        self._least: int | None = None
        self._before: int | None = None

    def add(self, value: int, *, at_ms: int, window_ms: int) -> int:
        """Take in a value; return the least."""
        if self._begun_ms is None or at_ms - self._begun_ms >= window_ms:
            is_old = self._begun_ms is None or at_ms - self._begun_ms >= 2 * window_ms
            self._before = None if is_old else self._least
            self._begun_ms, self._least = at_ms, None
        self._least = value if self._least is None else min(self._least, value)
        return self._least if self._before is None else min(self._least, self._before)


class SteadyTime:
    """What one process has heard of a store's time: it knows how late it is at most (J1). Thread-safe.

    A store's clock that jumps ahead makes everything old at once; one that was behind and is set right makes old what
    was written meanwhile. Between two answers of the store, though, no more time can have passed than this host's
    monotonic clock says, which nobody sets. So the earliest time that any answer of the last while allows for is the
    one to measure ages by. It errs to the late side only: a host that sleeps, or a store's clock that goes backwards,
    delays deletions. After a jump ahead by ``j`` it is behind by ``j`` for one window, at most two, and then takes the
    store's word again: whatever was written before the jump is older than a window by then, without the jump.

    Args:
        window_ms: How long an answer counts, at least; not below the ages that are judged by it.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._lock = threading.Lock()
        self._offset_ms = _RecentLeast()

    def hold_back(self, store_now_ms: int, *, asked_ms: int, window_ms: int | None = None) -> int:
        """Return the store's time when it was asked, or less if its answers do not agree with each other.

        Args:
            store_now_ms: What it answered, unix ms.
            asked_ms: This host's monotonic clock before it was asked.
            window_ms: Another window from now on.
        """
        with self._lock:
            self._window_ms = window_ms or self._window_ms
            # WARN: by the time of the question. The answer was made later, so that no more time can have passed
            # since than this host measures; by the time of the answer, a slow listing would hide a jump.
            offset_ms = store_now_ms - asked_ms
            return asked_ms + self._offset_ms.add(offset_ms, at_ms=asked_ms, window_ms=self._window_ms)


@runtime_checkable
class TellsTime(Protocol):
    """A store, or what speaks for one, that says what time its answers tell.

    Attributes:
        time_listeners: Each is called with the store's clock, unix ms, by any thread, whenever an answer shows it. None
            may raise.
    """

    time_listeners: list[Callable[[int], None]]


class ClockWatch:
    """Compares clocks: every answer of a store says what time it is there, and nobody sets the monotonic one.

    Thread-safe. A clock that is slewed or smeared runs a little faster or slower, and does not jump.

    Args:
        clock: This host's.
        on_skew: Called with how far this host is ahead of the store, ms; negative: behind.
        on_jump: Called with how far the wall clock was set ahead, ms; negative: back.
    """

    def __init__(self, clock: Clock, *, on_skew: Callable[[int], None], on_jump: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_skew = on_skew
        self._on_jump = on_jump
        self._lock = threading.Lock()
        self._looked: tuple[int, int] | None = None
        self._skew_ms = _RecentLeast()

    def hear(self, store_now_ms: int) -> None:
        """Take in what time it is at the store."""
        before_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.now_ms()
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - before_ms > PAUSE_MS:
            return  # a pause in between would look like a jump
        with self._lock:
            jumped_ms = self._compare(wall_ms, monotonic_ms)
            if jumped_ms:
                self._skew_ms = _RecentLeast()
            # The least difference counts: an answer was made before it was heard.
            skew_ms = self._skew_ms.add(wall_ms - store_now_ms, at_ms=monotonic_ms, window_ms=WINDOW_MS)
        if jumped_ms:
            self._on_jump(jumped_ms)
        self._on_skew(skew_ms)

    @staticmethod
    def is_jump(step_ms: int) -> bool:
        """Whether a step of the wall clock against the monotonic one is one."""
        return abs(step_ms) >= JUMP_MS

    def _compare(self, wall_ms: int, monotonic_ms: int) -> int:
        """Return by how much the wall clock was set since the last look; 0: it was not."""
        known, self._looked = self._looked, (wall_ms, monotonic_ms)
        jumped_ms = 0 if known is None else (wall_ms - known[0]) - (monotonic_ms - known[1])
        return jumped_ms if self.is_jump(jumped_ms) else 0


class AlignedClock:
    """The store's wall time as far as its answers tell, else this host's; all else is this host's. Thread-safe.

    For whoever makes batch ids (I3): a batch is judged by the time in its id and the store's clock, so that made by a
    host that is minutes ahead it is refused as one from the future, and by one that is behind as one that comes too
    late. Ages and orders do not depend on it.

    Args:
        clock: This host's.
        store: Whose time it is, or what else hears the store's time.
        may_ask: Whether the store is asked, by one listing of one key, when no answer was heard yet, or none since this
            host's wall clock was set. Not on an event loop, which would wait for it; who looks at the store every few
            seconds anyway needs it not. Only an object store can be asked.
    """

    def __init__(self, clock: Clock, store: ObjectStore | TellsTime, *, may_ask: bool) -> None:
        self._clock = clock
        self._store = store
        self._skew_ms: int | None = None
        self._heard: tuple[int, int] = (0, 0)
        self._watch = ClockWatch(clock, on_skew=self._note, on_jump=lambda _: None)
        self._may_ask = may_ask and isinstance(store, TellsTime)
        if isinstance(store, TellsTime):
            hear = weakref.WeakMethod(self._watch.hear)

            def listen(store_ms: int) -> None:
                if (tell := hear()) is not None:
                    tell(store_ms)

            store.time_listeners.append(listen)
            # The store may outlive many of these.
            weakref.finalize(self._watch, store.time_listeners.remove, listen).atexit = False

    def now_ms(self) -> int:
        """Return the store's time."""
        if self._may_ask and (self._skew_ms is None or self._was_set()):
            self._ask()
        return self._clock.now_ms() - (self._skew_ms or 0)

    def monotonic_ms(self) -> int:
        """Return this host's monotonic time."""
        return self._clock.monotonic_ms()

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep on this host's clock."""
        self._clock.sleep_ms(duration_ms)

    def new_id(self) -> str:
        """Return a fresh id with the store's time."""
        return with_time(self._clock.new_id(), self.now_ms())

    def _note(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self._heard = (self._clock.now_ms(), self._clock.monotonic_ms())

    def _was_set(self) -> bool:
        wall_ms, monotonic_ms = self._heard
        return ClockWatch.is_jump((self._clock.now_ms() - wall_ms) - (self._clock.monotonic_ms() - monotonic_ms))

    def _ask(self) -> None:
        try:
            cast("ObjectStore", self._store).list_page("", limit=1)
        except IceDBError:
            return  # then as it was: whoever stages the batch next hears of it
