"""Whether a run that works may still commit: asked again and again while its job runs, so that a lost run ends early.

Each look is a write of the fence, which renews the run's claim (F6). Saves work only. What keeps a run that has lost
its fence from committing is the commit itself (F3).
"""

from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import CommitOutcomeUnknown
from icedb_log.jobs import CheckAlive
from icedb_log.log.fence import HeldFence

FENCE_LOOK_MS: Final = 5000
"""How often the fence is looked at, at most. Each look costs one request; a claim lasts longer."""


class FenceWatch:
    """A check of a run: the caller's own, each time, and now and then a look at the fence. For one thread at a time.

    Args:
        fence: The run's.
        check_alive: The caller's check.
        clock: Measures how long ago the last look was.

    Raises:
        Fenced: On a call: another run took over, or what ``check_alive`` raised.
    """

    def __init__(self, fence: HeldFence, *, check_alive: CheckAlive, clock: Clock) -> None:
        self._fence = fence
        self._check_alive = check_alive
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()

    def __call__(self) -> None:
        """Raise if the run should stop."""
        self._check_alive()
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < FENCE_LOOK_MS:
            return
        self._looked_ms = now_ms
        try:
            self._fence.confirm()
        except CommitOutcomeUnknown:
            return  # unknown: the work goes on, the commit will tell
