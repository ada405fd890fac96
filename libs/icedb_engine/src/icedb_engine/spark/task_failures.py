"""Requests to the store that failed inside Spark's tasks, on their way to the process that counts them.

Tasks run in processes that nobody asks for metrics. What failed in one of them goes with the next answer of that
process, and the driver reports it again, as if it had failed there. What a process had noted is lost when it is killed,
or when its task was interrupted: the run's outcome tells of that.
"""

import functools
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import orjson
from icedb_log.store.request_failures import (
    OPERATIONS,
    REASONS,
    Operation,
    Reason,
    listen_to_failures,
    report_failure,
)

FAILURES: Final = "failures"
"""The column in which they travel."""


class FailureTally:
    """What failed in this process since it was taken last. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, operation: Operation, reason: Reason) -> None:
        """Note one failed request."""
        with self._lock:
            self._counts[operation, reason] += 1

    def take(self) -> str | None:
        """Return what was noted, as text, and forget it; ``None``: nothing."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        rows = [[operation, reason, count] for (operation, reason), count in counts.items()]
        return orjson.dumps(rows).decode() if rows else None


@functools.cache
def watch_failures() -> FailureTally:
    """Return the tally of this process, which notes what fails from the first call on. For tasks, not for drivers."""
    tally = FailureTally()
    listen_to_failures(tally.add)
    return tally


def report_again(answers: Sequence[Any]) -> None:
    """Report in this process what failed in the tasks that sent some answers; called once for each answer.

    Args:
        answers: Rows of Spark; those without the column come from tasks in this process, which has reported it.
    """
    for answer in answers:
        text = answer[FAILURES] if FAILURES in answer else None  # noqa: SIM401 - rows of Spark have no get
        for operation, reason, count in orjson.loads(text) if text else ():
            if operation in OPERATIONS and reason in REASONS:
                for _ in range(count):
                    report_failure(operation, reason)
