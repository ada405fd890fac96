"""What keeps a dead object for now: its age, and everything else that a plan has to ask (rules J1, J4, V4). Pure.

A dead object goes when no guard holds it. Each guard has a name, which is what ``icedb vacuum --dry-run``, the audit
and the metrics say:

| guard | holds | until |
| --- | --- | --- |
| ``grace`` | what died less than a grace period ago (J1) | the grace period is over |
| ``lease`` | what was live at a leased time (J4) | the lease ends |
| ``refusal`` | a log file that refused a batch which is still staged (J2) | a flush has moved the batch |
| ``view`` | an append that a view has not taken (V4) | the view is fed |
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.cleaning.leases import Lease

Guard = Literal["grace", "lease", "refusal", "view"]

STORE_RESOLUTION_MS: Final = 1000
"""S3 tells LastModified in whole seconds, cut off: a tombstone may have landed this much later than it says."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A dead object that is kept for now.

    Attributes:
        path: Its key.
        guard: What keeps it.
        until_ms: When the guard ends, by the store's clock, as far as is known today; ``None``: when somebody acts.
        held_by: Who or what holds it: the id of a lease, the name of a view; empty for ``grace``.
    """

    path: str
    guard: Guard
    until_ms: int | None
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class Death:
    """When an object died.

    Attributes:
        tombstoned_ms: The time that its committer gave the tombstone.
        landed_ms: The store's proof of when the tombstone had landed (J1).
    """

    tombstoned_ms: int
    landed_ms: int

    @property
    def died_ms(self) -> int:
        """From when on its age counts: the later of both, because a committer can stall before its PUT (J1)."""
        return max(self.tombstoned_ms, self.landed_ms)

    @property
    def seen_dead_ms(self) -> int:
        """Readers may have seen it live until then: a slow clock dates a tombstone back (J4)."""
        return max(self.tombstoned_ms, self.landed_ms + STORE_RESOLUTION_MS)


@dataclass(frozen=True, slots=True)
class Holds:
    """Everything but age that keeps dead objects of a table, read *after* its log (J4, V4).

    Attributes:
        leases: Leases that have not expired.
        wanted_logs: Log files that views of this table have still to take.
    """

    leases: tuple[Lease, ...] = ()
    wanted_logs: Collection[str] = frozenset()

    def guard_log(self, path: str, death: Death, *, grace_ms: int, now_ms: int) -> Waiting | None:
        """Return what keeps a dead log file; ``None``: it may go."""
        guard = self._guard(path, death, grace_ms=grace_ms, now_ms=now_ms)
        if guard is None and path in self.wanted_logs:
            guard = Waiting(path, "view", None)
        return guard

    def guard_data(self, path: str, death: Death, *, grace_ms: int, now_ms: int) -> Waiting | None:
        """Return what keeps a dead data file; ``None``: it may go, as far as the log files that name it allow (J2)."""
        return self._guard(path, death, grace_ms=grace_ms, now_ms=now_ms)

    def _guard(self, path: str, death: Death, *, grace_ms: int, now_ms: int) -> Waiting | None:
        expires_ms = death.died_ms + grace_ms
        if expires_ms > now_ms:
            return Waiting(path, "grace", expires_ms)
        # J4: it was live at the leased time, or for those who read then.
        pinned = [lease for lease in self.leases if lease.at_ms < death.seen_dead_ms]
        if pinned:
            last = max(pinned, key=lambda lease: lease.expires_ms)
            return Waiting(path, "lease", last.expires_ms, last.lease_id)
        return None


NO_HOLDS: Final = Holds()
