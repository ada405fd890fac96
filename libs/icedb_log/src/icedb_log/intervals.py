"""When something is due again: after an interval, a failure or a rest.

In memory: who starts looks at everything, and so does who has seen more keys than are remembered.
"""

from collections.abc import Callable
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.units import MINUTE_MS

FIRST_PAUSE_MS: Final = 1000
MAX_PAUSE_MS: Final = MINUTE_MS
MAX_REST_MS: Final = 20 * MINUTE_MS
"""How long a key at which nothing happens is left alone at most."""
TRIES_OF_A_PAUSE: Final = 10
"""A key that somebody else looks at is asked for again after this part of the pause: who looks may die of it."""
LOOKS_OF_A_REST: Final = 20
"""A key that has rested for a time is looked at again after this part of it."""
LEAST_SHARED_MS: Final = 10_000
"""Shorter pauses are not shared: a table at which something has just happened is looked at by each sweep."""
MAX_KEYS: Final = 100_000
"""Keys that are remembered, those of tables that are gone among them; then all are forgotten."""


class Backoff:
    """Remembers, for each key, how often it failed in a row and when it is worth another try.

    A sweep asks :meth:`is_due` before it wakes a table again. What a user or a producer asks for is done at once.
    """

    def __init__(self, clock: Clock, *, first_pause_ms: int = FIRST_PAUSE_MS, max_pause_ms: int = MAX_PAUSE_MS) -> None:
        self._clock = clock
        self._first_pause_ms = first_pause_ms
        self._max_pause_ms = max_pause_ms
        self._failures: dict[str, tuple[int, int]] = {}
        """How often in a row each key failed, and until when it pauses."""

    def record_failure(self, key: str) -> int:
        """Count a failure and return the pause that follows, milliseconds."""
        count = self._failures.get(key, (0, 0))[0] + 1
        pause_ms = min(self._first_pause_ms << min(count - 1, 32), self._max_pause_ms)
        _make_room(self._failures)
        self._failures[key] = (count, self._clock.monotonic_ms() + pause_ms)
        return pause_ms

    def record_success(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def is_due(self, key: str) -> bool:
        """Whether no pause is running for the key."""
        failure = self._failures.get(key)
        return failure is None or self._clock.monotonic_ms() >= failure[1]


class Intervals:
    """Remembers when each key was last dealt with, so that it is left alone for a while.

    In memory: a worker that starts looks at everything.
    """

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._noted_ms: dict[str, int] = {}

    def is_due(self, key: str) -> bool:
        """Whether a key was not dealt with for the interval."""
        noted_ms = self._noted_ms.get(key)
        return noted_ms is None or self._clock.monotonic_ms() - noted_ms >= self._interval_ms

    def note(self, key: str) -> None:
        """Leave a key alone from now on."""
        _make_room(self._noted_ms)
        self._noted_ms[key] = self._clock.monotonic_ms()

    def forget(self, key: str) -> None:
        """Let a key be due."""
        self._noted_ms.pop(key, None)

    def look(self, key: str, ask: Callable[[], bool]) -> bool:
        """Return what ``ask`` says of a key that is due, and leave it alone from then on; False for another."""
        if not self.is_due(key):
            return False
        now_ms = self._clock.monotonic_ms()
        answer = ask()
        _make_room(self._noted_ms)
        self._noted_ms[key] = now_ms
        return answer


class Rests:
    """Remembers since when nothing has happened at each key, so that it is looked at less and less often.

    A sweep makes good what wake-ups lose. It looks at a table that has rested for *t* again after *t* / 20, and at
    least every ``max_rest_ms``: what happens at a busy table is seen at once, and one at which nothing happens costs
    hardly a request.

    Args:
        clock: This host's.
        max_rest_ms: Longest pause.
        claim: Takes a key and a pause. Several who sweep share a look: one of them gets it, and none of them another
            until the pause is over.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_rest_ms: int = MAX_REST_MS,
        claim: Callable[[str, int], bool] = lambda _key, _pause_ms: True,
    ) -> None:
        self._clock = clock
        self._max_rest_ms = max_rest_ms
        self._claim = claim
        self._rests: dict[str, tuple[object, int, int]] = {}
        """The state of each key that rests, since when, and when it was looked at last."""

    def is_due(self, key: str) -> bool:
        """Whether a key is to be looked at now, by who asks."""
        rest = self._rests.get(key)
        if rest is None:
            return True
        state, since_ms, looked_ms = rest
        now_ms = self._clock.monotonic_ms()
        pause_ms = min((looked_ms - since_ms) // LOOKS_OF_A_REST, self._max_rest_ms)
        if now_ms - looked_ms < pause_ms:
            return False
        if pause_ms < LEAST_SHARED_MS or self._claim(key, pause_ms):
            return True
        self._rests[key] = state, since_ms, now_ms - pause_ms + pause_ms // TRIES_OF_A_PAUSE
        return False

    def note(self, key: str, state: object | None, *, rest_ms: int = 0) -> None:
        """Note what a look at a key has found; it rests as long as that is the same. ``None``: there is work.

        ``rest_ms``: how long a key that was not resting has done so by what is found there.
        """
        now_ms = self._clock.monotonic_ms()
        before, since_ms, _ = self._rests.get(key, (state, now_ms - rest_ms, 0))
        if state is None:
            self._rests.pop(key, None)
        else:
            _make_room(self._rests)
            self._rests[key] = state, since_ms if state == before else now_ms, now_ms


def _make_room(known: dict[str, Any]) -> None:
    # A plain dict, each step of which is one for all threads: a cache that reorders itself would break.
    if len(known) >= MAX_KEYS:
        known.clear()
