"""How fast deletes go: more at once while the store takes them, less as soon as it asks for patience.

Additive increase, multiplicative decrease, as networks do it: each answer lets a little more be in flight, each sign of
overload halves what is, and stops everything for a pause that doubles. All requests that were on their way when the
store first asked count as one sign. A pace belongs to a store and outlives its calls: the next one does not begin at
full speed into a store that has just asked for patience. S3 takes some thousands of deletes a second for one prefix,
and counts each key of a request.
"""

import threading
from typing import Final

from icedb_log.clock import Clock

MAX_IN_FLIGHT: Final = 8
"""Requests of one call that are on their way at once, at most."""

START_IN_FLIGHT: Final = 2
"""With how many a new store begins."""

FIRST_PAUSE_MS: Final = 200
"""The pause after the first sign of overload; it doubles with each further one, and halves with each answer."""

MAX_PAUSE_MS: Final = 20_000

_JITTER_DIGITS: Final = 4


class DeletePace:
    """What is known of how much a store takes. Safe for use by many threads."""

    def __init__(self, clock: Clock) -> None:
        """Begin carefully.

        Args:
            clock: Its monotonic time measures pauses; its ids make those of several processes unequal.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._limit = float(START_IN_FLIGHT)
        self._pause_ms = 0
        self._resumes_ms = 0
        self._generation = 0

    @property
    def limit(self) -> int:
        """How many requests of one call may be in flight now, 1 to ``MAX_IN_FLIGHT``."""
        return int(self._limit)

    @property
    def generation(self) -> int:
        """The number of signs of overload so far: what a request remembers of the moment when it was sent."""
        return self._generation

    def wait_ms(self) -> int:
        """Return how long nothing more may be sent; 0: at once."""
        return max(0, self._resumes_ms - self._clock.monotonic_ms())

    def note_answer(self, generation: int) -> None:
        """Take note that the store did what a request asked for.

        Args:
            generation: Of the moment when the request was sent. One from before the last sign of overload says nothing
                about the store as it is now.
        """
        with self._lock:
            if generation == self._generation:
                self._limit = min(self._limit + 1 / self._limit, float(MAX_IN_FLIGHT))
                self._pause_ms = self._pause_ms // 2 if self._pause_ms > FIRST_PAUSE_MS else 0

    def note_overload(self, generation: int) -> bool:
        """Take note that the store asked for patience, or did not answer. Arguments as for :meth:`note_answer`.

        Returns:
            Whether it is a new sign; not if the request was on its way already when the last one came.
        """
        with self._lock:
            if generation != self._generation:
                return False
            self._generation += 1
            self._limit = max(1.0, self._limit / 2)
            self._pause_ms = min(2 * self._pause_ms or FIRST_PAUSE_MS, MAX_PAUSE_MS)
            # Half of it up to all of it: workers that were refused together must not come back together.
            share = int(self._clock.new_id()[-_JITTER_DIGITS:], 16) / 16**_JITTER_DIGITS
            self._resumes_ms = self._clock.monotonic_ms() + int(self._pause_ms * (1 + share) / 2)
            return True
