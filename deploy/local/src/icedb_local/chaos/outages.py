"""How long somebody went without success, and how long it took to get better after a fault. Safe for many threads."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from icedb_local.chaos.batches import BatchEntry


class Outages:
    """Successes and failures of one reader or producer.

    Args:
        name: Of whom.
        now_ms: When it began, monotonic.
    """

    def __init__(self, name: str, *, now_ms: int) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._last_success_ms = now_ms
        self._longest_ms = 0
        self.success_count = 0
        self.failures: Counter[str] = Counter()

    def record_success(self, *, now_ms: int) -> None:
        """Note that it went well."""
        with self._lock:
            self._longest_ms = max(self._longest_ms, now_ms - self._last_success_ms)
            self._last_success_ms = now_ms
            self.success_count += 1

    def record_failure(self, reason: str) -> None:
        """Note that it did not, and why, in a word."""
        with self._lock:
            self.failures[reason] += 1

    @property
    def longest_ms(self) -> int:
        """The longest time from one success to the next."""
        with self._lock:
            return self._longest_ms

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "who": self.name,
            "successes": self.success_count,
            "failures": sum(self.failures.values()),
            "longest_ms": self.longest_ms,
            "reasons": dict(self.failures.most_common(5)),
        }


def find_recovery_ms(end_ms: int, entries: Sequence[BatchEntry], first_seen_ms: Mapping[int, int]) -> int | None:
    """Return how long after the end of a fault the first batch was seen by a reader that was sent after that end.

    Args:
        end_ms: When the fault ended.
        entries: Batches.
        first_seen_ms: When each was seen first.
    """
    seen = [
        first_seen_ms[entry.number] for entry in entries if entry.sent_ms >= end_ms and entry.number in first_seen_ms
    ]
    return min(seen) - end_ms if seen else None
