"""What keeps a dead object for now: its age, and everything else that a plan has to ask. Pure.

A dead object goes when no guard holds it. Each guard has a name, which is what ``icedb vacuum --dry-run``, the audit
and the metrics say (docs/guards.md):

| guard | holds | until |
| --- | --- | --- |
| ``grace`` | what died less than a grace period ago (J1) | the grace period is over |
| ``lease`` | what was live at a leased time (J4) | the lease ends |
| ``pin`` | a data file that a pin names (J7) | the pin has ended, and a grace period more |
| ``versions`` | what is part of one of the newest states (J8) | enough commits have landed |
| ``commit`` | a log file whose committer may still look at it (J9) | the committer has gone on, or is too late |
| ``refusal`` | a log file that refused a batch which is still staged (J2) | a flush has moved the batch |
| ``view`` | an append that a view has not taken (V4) | the view is fed |
| ``live`` | a dead log file that alone names a live data file: another writer's removal dropped it (J2) | a merge |

An object that several of them hold is told with the one that ends last.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from icedb_log.clean.leases import Lease
from icedb_log.keys import Role, parse_log_key
from icedb_log.model import LogView

Guard = Literal["grace", "lease", "pin", "versions", "commit", "refusal", "view", "live"]

LOG_GUARDS: Final[tuple[Guard, ...]] = ("grace", "lease", "versions", "commit", "refusal", "view", "live")
"""What a dead log file is asked about before it goes."""
DATA_GUARDS: Final[tuple[Guard, ...]] = ("grace", "lease", "versions", "pin")
"""What a dead data file is asked about before it goes."""

STORE_RESOLUTION_MS: Final = 1000
"""S3 tells LastModified in whole seconds, cut off: a tombstone may have landed this much later than it says."""

EVERY_STATE_MS: Final = -1
"""A time before all commits: whoever keeps the states since then keeps all."""

_NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Waiting:
    """A dead object that is kept for now.

    Attributes:
        path: Its key.
        guard: What keeps it.
        until_ms: When the guard ends, by the store's clock, as far as is known today; ``None``: when somebody acts.
        held_by: Who or what holds it: the id of a lease and who took it, the name of a pin or a view, the role and
            owner of a fence, how many versions are kept; empty for ``grace`` and ``refusal``.
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
class PinnedFiles:
    """The data files that a pin holds.

    Attributes:
        name: Name of the pin.
        paths: Their keys; ``None``: nobody can say which, so that it holds all.
        until_ms: Until when, by the store's clock; ``None``: until somebody ends the pin.
    """

    name: str
    paths: Collection[str] | None
    until_ms: int | None

    def holds(self, path: str) -> bool:
        """Whether a data file is one of them."""
        return self.paths is None or path in self.paths


@dataclass(frozen=True, slots=True)
class KeptVersions:
    """The newest states of a table that stay readable (J8).

    Attributes:
        count: How many.
        since_ms: The time of the oldest of them; :data:`EVERY_STATE_MS` while there are fewer commits than that.
    """

    count: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class OpenCommit:
    """A log file that a fence names: its committer may not know yet that it landed (J9).

    Attributes:
        path: Key of the log file.
        role: Of the fence.
        owner: Of the fence.
        until_ms: From then on nobody commits any more what was begun before (W3), by the store's clock.
    """

    path: str
    role: Role
    owner: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Holds:
    """Everything but age that keeps dead objects of a table, read *after* its log (J4, J7, J9, V4).

    Attributes:
        leases: Leases that have not expired.
        pins: Pins that hold data files.
        versions: The newest states that are kept; ``None``: the table keeps none beyond its grace periods.
        commits: Log files that fences name.
        wanted_logs: Log files that views of this table have still to take.
        landed: Names of log files of commits that landed, as fences say (F5). They hold nothing.
    """

    leases: tuple[Lease, ...] = ()
    pins: tuple[PinnedFiles, ...] = ()
    versions: KeptVersions | None = None
    commits: tuple[OpenCommit, ...] = ()
    wanted_logs: Collection[str] = frozenset()
    landed: tuple[str, ...] = ()
    _since_ms: int = field(init=False, default=_NEVER_MS)
    """The oldest time that a lease or a version asks for: what was dead by then needs no closer look."""

    def __post_init__(self) -> None:
        """Note the oldest time that is asked for."""
        times = [lease.held_from_ms for lease in self.leases]
        if self.versions is not None:
            times.append(self.versions.since_ms)
        object.__setattr__(self, "_since_ms", min(times, default=_NEVER_MS))

    def guard_log(self, path: str, death: Death, *, grace_ms: int, now_ms: int) -> Waiting | None:
        """Return what keeps a dead log file; ``None``: it may go."""
        expires_ms = death.died_ms + grace_ms
        if expires_ms > now_ms:
            return Waiting(path, "grace", expires_ms)
        guards = self._guards_of_times(path, death) if self._since_ms < death.seen_dead_ms else []
        for commit in self.commits:
            if commit.path == path:  # J9
                guards.append(Waiting(path, "commit", commit.until_ms, f"{commit.role} {commit.owner}"))
        if path in self.wanted_logs:
            guards.append(Waiting(path, "view", None))
        return _last(guards)

    def guard_data(self, path: str, death: Death, *, grace_ms: int, now_ms: int) -> Waiting | None:
        """Return what keeps a dead data file; ``None``: it may go, as far as the log files that name it allow (J2)."""
        expires_ms = death.died_ms + grace_ms
        if expires_ms > now_ms:
            return Waiting(path, "grace", expires_ms)
        guards = self._guards_of_times(path, death) if self._since_ms < death.seen_dead_ms else []
        for pin in self.pins:
            if pin.holds(path):  # J7
                guards.append(Waiting(path, "pin", pin.until_ms, pin.name))
        return _last(guards)

    def _guards_of_times(self, path: str, death: Death) -> list[Waiting]:
        guards = [
            Waiting(path, "lease", lease.held_until_ms, str(lease))
            for lease in self.leases
            if _was_seen_at(lease, death)
        ]
        # J8: by the times of commits alone: that is what time travel goes by (R3).
        if self.versions is not None and self.versions.since_ms < death.tombstoned_ms:
            guards.append(Waiting(path, "versions", None, f"the newest {self.versions.count}"))
        return guards


def _was_seen_at(lease: Lease, death: Death) -> bool:
    """Whether what died was live at a leased time, or for those who read then (J4)."""
    return lease.held_from_ms < death.seen_dead_ms


def _last(guards: list[Waiting]) -> Waiting | None:
    """Return the guard that ends last."""
    return max(guards, key=lambda guard: _NEVER_MS if guard.until_ms is None else guard.until_ms, default=None)


def find_kept_versions(view: LogView, count: int) -> KeptVersions | None:
    """Return since when states are kept, if the states after the newest ``count`` commits are (J8).

    Every log file counts that is no seal: appends and merges, live and dead. The newest of them are kept by what this
    returns, so that it never goes back.
    """
    if not count:
        return None
    times = sorted((parse_log_key(file.key).time_ms for file in view.files if not file.log.is_seal), reverse=True)
    return KeptVersions(count, times[count - 1] if len(times) >= count else EVERY_STATE_MS)


NO_HOLDS: Final = Holds()
