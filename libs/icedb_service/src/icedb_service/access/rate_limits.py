"""Rate limits: a token bucket for each identity, in memory. Each process counts for itself."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Overloaded
from icedb_log.units import SECOND_MS

MAX_BUCKETS: Final = 10_000


class RateLimited(Overloaded):
    """A caller calls more often than it may. What the caller does: wait for ``retry_after_ms``, and call less often."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often somebody may call.

    Attributes:
        calls_per_s: In the long run.
        burst: At once.
    """

    calls_per_s: float
    burst: int


@dataclass(slots=True)
class _Bucket:
    calls: float
    filled_ms: int


class RateLimits:
    """Counts calls. Thread-safe. Of more than ``MAX_BUCKETS`` callers, who called longest ago is forgotten.

    Args:
        clock: Measures time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, rate: Rate) -> int:
        """Count a call. Returns 0 if it may go on, else how long to wait, milliseconds; then it is not counted."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            bucket = self._buckets.setdefault(name, _Bucket(rate.burst, now_ms))
            self._buckets.move_to_end(name)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
            gained = (now_ms - bucket.filled_ms) * rate.calls_per_s / SECOND_MS
            bucket.calls = min(float(rate.burst), bucket.calls + gained)
            bucket.filled_ms = now_ms
            if bucket.calls >= 1:
                bucket.calls -= 1
                return 0
            return int((1 - bucket.calls) * SECOND_MS / rate.calls_per_s) + 1
