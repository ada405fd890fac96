"""What keeps a dead object for now: its age, and the holds on its table. Pure.

A dead object goes when no guard holds it. Each guard has a name, which is what ``icedb vacuum --dry-run``, the audit
and the metrics say (docs/guards.md):

| guard | holds | until |
| --- | --- | --- |
| ``grace`` | what died less than a grace period ago (J1) | the grace period is over |
| ``lease`` | what was live at a leased time (J4) | the lease ends |
| ``tag`` | a data file that a tag names (J4) | the tag has ended, and a grace period more |
| ``publication`` | a data file that engines may have been shown (J4) | it has left, and a grace period more |
| ``commit`` | a log file whose committer may still look at it (J9) | the committer has gone on, or is too late |
| ``staged`` | a log file that names a batch which is still staged (J2) | a flush has cleared the batch |
| ``view`` | an append that a view has not taken (V4) | the view is fed |
| ``live`` | a dead log file that alone names a live data file: another writer's removal dropped it (J2) | a merge |

Leases, tags, publications, commits under way and views are one thing here, a :class:`Hold`; they differ in
how they are made and ended. Of several holds on one object the one that ends last is reported. :meth:`Hold.keeps` alone
says what a hold keeps: for a vacuum, and for the proof of a hold before its holder relies on it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.log.markers import Tombstone, markers_of
from icedb_log.model import FileMarker, LogTombstone, LogView
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

Guard = Literal["grace", "lease", "tag", "publication", "commit", "staged", "view", "live", "lost"]
HoldKind = Literal["lease", "tag", "publication", "commit", "view", "erasure"]
"""``erasure`` keeps no object: it keeps a table from being dropped, as a view does (T2)."""

LOG_GUARDS: Final[tuple[Guard, ...]] = ("grace", "lease", "commit", "staged", "view", "live", "lost")
"""What a dead log file is asked about before it goes."""
DATA_GUARDS: Final[tuple[Guard, ...]] = ("grace", "lease", "tag", "publication", "lost")
"""What a dead data file is asked about before it goes."""

STORE_RESOLUTION_MS: Final = 1000
"""S3 tells LastModified in whole seconds, cut off: a tombstone may have landed this much later than it says."""

EVERY_STATE_MS: Final = -1
"""A time before all commits: a hold since then keeps every state."""

_NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Waiting:
    """A dead object that is kept for now.

    Attributes:
        path: Its key.
        guard: What keeps it.
        until_ms: When the guard ends, by the store's clock, as far as is known today; ``None``: it has no end of its
            own.
        held_by: Who or what holds it: the id of a lease and who took it, the name of a tag or a view, the role and
            owner of a fence; empty for ``grace`` and ``refusal``.
    """

    path: str
    guard: Guard
    until_ms: int | None
    held_by: str = ""


@dataclass(slots=True)
class Kept:
    """What one holder of one guard keeps.

    Attributes:
        guard: What keeps it.
        held_by: Who or what holds it, as of :class:`Waiting`.
        count: How many dead objects.
        first_ms: When the first of them is released, as far as is known; ``None``: unknown for all.
        last_ms: When the last of them is released.
        is_open: Whether some of them are kept by a hold without an end of its own.
    """

    guard: Guard
    held_by: str = ""
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    is_open: bool = False

    def add(self, item: Waiting) -> None:
        """Count one more dead object."""
        self.count += 1
        if item.until_ms is None:
            self.is_open = True
            return
        self.first_ms = item.until_ms if self.first_ms is None else min(self.first_ms, item.until_ms)
        self.last_ms = item.until_ms if self.last_ms is None else max(self.last_ms, item.until_ms)


def group_waiting(waiting: Iterable[Waiting]) -> tuple[Kept, ...]:
    """Return what waits by guard and holder, those that hold most of each guard first."""
    kept: dict[tuple[Guard, str], Kept] = {}
    for item in waiting:
        kept.setdefault((item.guard, item.held_by), Kept(item.guard, item.held_by)).add(item)
    return tuple(sorted(kept.values(), key=lambda each: (each.guard, -each.count, each.held_by)))


@dataclass(frozen=True, slots=True)
class Death:
    """When an object died: the time that its committer gave the tombstone, and the store's proof of landing (J1)."""

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


def find_deaths(
    told: Iterable[tuple[Iterable[FileMarker | LogTombstone | Tombstone], int]],
) -> dict[str, Death]:
    """Return when each tombstoned object died: the earliest time and the earliest proof that any log file gives (J1).

    Args:
        told: What each log file says, and its LastModified.
    """
    deaths: dict[str, Death] = {}
    shared: dict[tuple[int, int], Death] = {}  # whatever one commit has killed died together
    for tombstones, modified_ms in told:
        for tombstone in tombstones:
            tombstoned_ms = tombstone.tombstoned_ms
            if tombstoned_ms is None:
                continue
            landed_ms = tombstone.landed_ms
            if landed_ms is None or landed_ms > modified_ms:
                landed_ms = modified_ms
            known = deaths.get(tombstone.path)
            if known is not None:
                tombstoned_ms = min(tombstoned_ms, known.tombstoned_ms)
                landed_ms = min(landed_ms, known.landed_ms)
            death = shared.get((tombstoned_ms, landed_ms))
            if death is None:
                death = shared[tombstoned_ms, landed_ms] = Death(tombstoned_ms, landed_ms)
            deaths[tombstone.path] = death
    return deaths


def find_log_deaths(view: LogView) -> dict[str, Death]:
    """Return when each dead log file died."""
    return find_deaths((file.log.log_tombstones, file.modified_ms) for file in view.files)


def find_data_deaths(view: LogView) -> dict[str, Death]:
    """Return when each dead data file died."""
    return find_deaths((markers_of(f.key, f.log.markers).tombstones(), f.modified_ms) for f in view.files)


def may_be_going(death: Death, *, written_ms: int, grace_ms: int) -> bool:
    """Whether a janitor that does not know a hold may be about to delete what it is to keep, or has (J4).

    It read what holds before this one was written, and the store's clock before that. So it deletes only what had died
    a grace period before, or as much later as two answers of the store about one moment may lie apart.

    Args:
        death: Of the object.
        written_ms: LastModified of the hold.
        grace_ms: Of objects of this kind.
    """
    return death.died_ms < written_ms + MAX_STORE_GAP_MS - grace_ms


def find_certain_ms(*, written_ms: int, grace_ms: int) -> int:
    """Return the time since when nothing has died that :func:`may_be_going`."""
    return written_ms + MAX_STORE_GAP_MS + STORE_RESOLUTION_MS - grace_ms


@dataclass(frozen=True, slots=True)
class Hold:
    """What a holder needs of a table: its states since a time, or certain objects.

    Attributes:
        kind: Who.
        name: Id of the lease or the erasure, name of the tag or the view, key of the log file under
            way. Never anything personal.
        until_ms: Until when, by the store's clock, as far as is known today; ``None``: it has no end of its own.
        since_ms: What died later is held; ``None``: this goes by ``files``.
        files: Keys.
        told: What messages show instead of the name.
    """

    kind: HoldKind
    name: str = ""
    until_ms: int | None = None
    since_ms: int | None = None
    files: Collection[str] = frozenset()
    told: str | None = None

    @property
    def held_by(self) -> str:
        """Who or what it is, for people."""
        return self.name if self.told is None else self.told

    def keeps(self, path: str, death: Death) -> bool:
        """Whether it needs an object that died: by its key, or because it was live at a held time or since."""
        if self.since_ms is None:
            return path in self.files
        return self.since_ms < death.seen_dead_ms  # J4


@dataclass(frozen=True, slots=True)
class Holds:
    """Everything but age that keeps dead objects of a table, read *after* its log (J4, J9, V4).

    Attributes:
        found: What holds.
        landed: Names of log files of commits that landed, as fences say (F5). They hold nothing.
    """

    found: tuple[Hold, ...] = ()
    landed: tuple[str, ...] = ()

    def of(self, *kinds: HoldKind) -> tuple[Hold, ...]:
        """Return those of some kinds."""
        return tuple(hold for hold in self.found if hold.kind in kinds)

    def plus(self, hold: Hold) -> "Holds":
        """Return these and one more."""
        return Holds((*self.found, hold), self.landed)

    def guard_logs(self, deaths: Iterable[tuple[str, Death]], *, grace_ms: int, now_ms: int) -> dict[str, Waiting]:
        """Return what keeps dead log files, of those that are kept."""
        return self._guard(deaths, LOG_GUARDS, grace_ms=grace_ms, now_ms=now_ms)

    def guard_data(self, deaths: Iterable[tuple[str, Death]], *, grace_ms: int, now_ms: int) -> dict[str, Waiting]:
        """Return what keeps dead data files, of those that are kept, as far as log files that name them allow (J2)."""
        return self._guard(deaths, DATA_GUARDS, grace_ms=grace_ms, now_ms=now_ms)

    def _guard(
        self, deaths: Iterable[tuple[str, Death]], guards: Collection[Guard], *, grace_ms: int, now_ms: int
    ) -> dict[str, Waiting]:
        kept: dict[str, Waiting] = {}
        by_time = tuple(hold for hold in self.found if hold.kind in guards and hold.since_ms is not None)
        named = tuple(hold for hold in self.found if hold.kind in guards and hold.since_ms is None)
        # What was dead by the oldest time that a lease asks for needs no closer look.
        oldest_ms = min((hold.since_ms or 0 for hold in by_time), default=_NEVER_MS)
        for path, death in deaths:
            expires_ms = death.died_ms + grace_ms
            if expires_ms > now_ms:  # J1
                kept[path] = Waiting(path, "grace", expires_ms)
                continue
            timed = by_time if oldest_ms < death.seen_dead_ms else ()
            holds = [hold for hold in (*timed, *named) if hold.keeps(path, death)] if timed or named else ()
            last = max(holds, key=lambda hold: _NEVER_MS if hold.until_ms is None else hold.until_ms, default=None)
            if last is not None and last.kind != "erasure":
                kept[path] = Waiting(path, last.kind, last.until_ms, last.held_by)
        return kept


NO_HOLDS: Final = Holds()
