"""When a call is made again, and when a watch goes on elsewhere. The same rules for those that wait and that await."""

from typing import Any, Final

import grpc
from icedb_log.clock import Clock
from icedb_proto import snapshot_pb2 as pb
from tenacity import (
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from icedb_client.grpc_errors import is_passing, retry_after_ms

MAX_TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
_GROWING: Final = wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S) + wait_random(0, FIRST_PAUSE_S)


def retry_policy(timeout_s: float) -> dict[str, Any]:
    """Return how a call is retried, for tenacity: what may pass, a few times, as long as the time-out leaves room."""
    return {
        "retry": retry_if_exception(is_passing),
        "stop": stop_after_attempt(MAX_TRIES) | stop_before_delay(timeout_s),
        "wait": _pause_s,
        "reraise": True,
    }


def _pause_s(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asked for, else longer each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = retry_after_ms(error) if isinstance(error, grpc.RpcError) else None
    return _GROWING(state) if asked_ms is None else max(asked_ms / 1000, FIRST_PAUSE_S)


class WatchState:
    """What a watch has told already, and how long it has had no server.

    Args:
        patience_s: How long it may have none.
        clock: For that.
    """

    def __init__(self, patience_s: float, *, clock: Clock) -> None:
        self._patience_ms = patience_s * 1000
        self._clock = clock
        self._told: dict[str, tuple[str | None, str | None]] = {}
        self._pause_s = FIRST_PAUSE_S
        self._since_ms: int | None = None

    def is_news(self, event: pb.SnapshotEvent) -> bool:
        """Whether an event says something that was not told yet; another replica begins with what is known."""
        self._since_ms, self._pause_s = None, FIRST_PAUSE_S
        state = (
            event.snapshot_id if event.HasField("snapshot_id") else None,
            event.problem if event.HasField("problem") else None,
        )
        if event.table in self._told and self._told[event.table] == state:
            return False
        self._told[event.table] = state
        return True

    def pause_s(self, error: Any) -> float | None:
        """Return how long to wait before the next server is asked; ``None``: the watch has ended."""
        now_ms = self._clock.monotonic_ms()
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if not is_passing(error) or now_ms - self._since_ms > self._patience_ms:
            return None
        asked_ms = retry_after_ms(error)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s if asked_ms is None else asked_ms / 1000
