"""A host's clock with the store's wall time, for whoever makes batch ids (I3).

A batch is judged by the time in its id and the store's clock: made by a host that is minutes ahead, it is refused as
one from the future; by one that is behind, as one that comes too late. Every answer of the store says what time it is
there, so that an id can be right on a host that is not. Ages and orders do not depend on it.
"""

from typing import Final

from icedb_log.clock import Clock, make_uuid7_hex
from icedb_log.errors import IceDBError
from icedb_log.store.clock_watch import ClockWatch, TellsTime
from icedb_log.store.object_store import ObjectStore

_TIME_HEX: Final = 12
"""Hex digits of the time in an id."""


class AlignedClock:
    """The store's wall time as far as its answers tell, else this host's; all else is this host's. Thread-safe.

    Args:
        clock: This host's.
        store: Whose time it is.
        may_ask: Whether the store is asked, by one listing of one key, when no answer was heard yet, or none since this
            host's wall clock was set. Not on an event loop, which would wait for it; who looks at the store every few
            seconds anyway needs it not.
    """

    def __init__(self, clock: Clock, store: ObjectStore, *, may_ask: bool) -> None:
        self._clock = clock
        self._store = store
        self._skew_ms: int | None = None
        self._heard: tuple[int, int] = (0, 0)
        self._watch = ClockWatch(clock, on_skew=self._note, on_jump=lambda _: None)
        self._may_ask = may_ask and isinstance(store, TellsTime)
        if isinstance(store, TellsTime):
            store.time_listeners.append(self._watch.hear)

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
        random_bits = int(self._clock.new_id()[_TIME_HEX:], 16)
        return make_uuid7_hex(self.now_ms(), _random_part(random_bits))

    def _note(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self._heard = (self._clock.now_ms(), self._clock.monotonic_ms())

    def _was_set(self) -> bool:
        wall_ms, monotonic_ms = self._heard
        return ClockWatch.is_jump((self._clock.now_ms() - wall_ms) - (self._clock.monotonic_ms() - monotonic_ms))

    def _ask(self) -> None:
        try:
            self._store.list_page("", limit=1)
        except IceDBError:
            return  # then as it was: whoever stages the batch next hears of it


def _random_part(low_bits: int) -> int:
    """Return the 74 random bits of a UUIDv7 whose lowest 80 bits these are: without version and variant."""
    rand_a = (low_bits >> 64) & 0xFFF
    rand_b = low_bits & ((1 << 62) - 1)
    return rand_a << 62 | rand_b
