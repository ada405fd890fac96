"""Who is told of requests to a store that failed, also of those that were sent again and then went well.

A store that answers every tenth request with an error makes everything slower and nothing fail: retries hide it. So
each try that failed is reported here, in the process that sent it, and services count them.
"""

import threading
from collections.abc import Callable
from typing import Final, Literal, get_args

Operation = Literal["read", "list", "write", "delete"]
OPERATIONS: Final[tuple[str, ...]] = get_args(Operation)
"""read: also of metadata; write: also copies and parts of uploads."""

Reason = Literal["unreachable", "timeout", "broken", "throttled", "server_error"]
REASONS: Final[tuple[str, ...]] = get_args(Reason)
"""unreachable: no connection; broken: the connection ended before the whole answer; throttled: 429 or 503."""

Listener = Callable[[Operation, Reason], None]

_HTTP_THROTTLED: Final = (429, 503)
_HTTP_SERVER_ERROR: Final = 500
_listeners: list[Listener] = []
_lock = threading.Lock()


def listen_to_failures(listener: Listener) -> None:
    """Have a function called for each failed request of this process, from any thread; it must not raise."""
    with _lock:
        _listeners.append(listener)


def stop_listening(listener: Listener) -> None:
    """Undo :func:`listen_to_failures`. Idempotent."""
    with _lock:
        _listeners[:] = [other for other in _listeners if other != listener]


def report_failure(operation: Operation, reason: Reason) -> None:
    """Tell everybody of one failed request."""
    for listener in tuple(_listeners):
        listener(operation, reason)


def reason_of_status(status: int) -> Reason | None:
    """Return why an answer of this status is a failure of the store; ``None``: it is none (404 and 412 are answers)."""
    if status in _HTTP_THROTTLED:
        return "throttled"
    return "server_error" if status >= _HTTP_SERVER_ERROR else None
