"""Which orphans may go now, and what keeps the others (rule J5). Pure.

| guard | keeps | until |
| --- | --- | --- |
| ``age`` | what is younger than the orphan age, by LastModified or by its name | it is old enough |
| ``sighting`` | what was not an orphan a grace period ago, as far as a sweep has written down | it was |
| ``share`` | everything, while too much of the table is unnamed; what was too much once, for good | a person looks |
| ``lost`` | what there was when a commit was found lost: a log file names files of any age (F5) | a person decides |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.clean.orphan_record import Sighting
from icedb_log.clean.table_walk import TableWalk, born_ms
from icedb_log.errors import InvalidRequest
from icedb_log.keys import file_time_ms
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.table_config import TableConfig

OrphanGuard = Literal["age", "sighting", "share", "lost"]

DEFAULT_MAX_SHARE: Final = 0.25
"""So much of the bytes of a table may be orphans before a person has to look: its log may be what is missing."""


@dataclass(frozen=True, slots=True)
class OrphanPolicy:
    """What one sweep is told.

    Attributes:
        older_than_ms: The age from which on an unnamed data file is an orphan; ``None``: the table's ``orphan_age_ms``.
            Never lower than that: W3 is built on it.
        max_share: Part of the bytes of all data files that may be orphans, 0 to 1. 1: the share is not looked at.
        is_forced: Delete whatever the share is, also what was refused before, and what may be of a lost commit.
            Nothing else is overruled.
    """

    older_than_ms: int | None = None
    max_share: float = DEFAULT_MAX_SHARE
    is_forced: bool = False

    def age_ms(self, config: TableConfig) -> int:
        """Return the age that counts.

        Raises:
            InvalidRequest: An age below the table's, or a share that is none.
        """
        if not 0 <= self.max_share <= 1:
            raise InvalidRequest(f"table {config.name}: a share lies between 0 and 1, {self.max_share:g} does not")
        if self.older_than_ms is None:
            return config.orphan_age_ms
        if self.older_than_ms < config.orphan_age_ms:
            raise InvalidRequest(
                f"table {config.name}: data files that are {self.older_than_ms} ms old may still be committed, its "
                f"orphan age is {config.orphan_age_ms} ms: give that or more (`icedb table show {config.name}`)"
            )
        return self.older_than_ms

    @property
    def is_without_share(self) -> bool:
        """Whether the share is not looked at."""
        return self.is_forced or self.max_share >= 1


@dataclass(frozen=True, slots=True)
class WaitingOrphan:
    """An unnamed data file that is kept for now.

    Attributes:
        key: Its key.
        guard: What keeps it.
        until_ms: When the guard ends, by the store's clock, if the next sweeps find the same; ``None``: when a person
            acts, or the share gets smaller.
        size_bytes: Its size.
    """

    key: str
    guard: OrphanGuard
    until_ms: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """What may go, and what the record says from now on.

    Attributes:
        doomed: Orphans that may go now.
        waiting: The others, and young ones as far as the walk holds them.
        sightings: What the record says from now on, by key.
        held: Of what is old, what the share guard keeps until somebody forces it.
        share: Part of the bytes of all data files that are old and unnamed, 0 to 1.
    """

    doomed: tuple[ObjectInfo, ...]
    waiting: tuple[WaitingOrphan, ...]
    sightings: Mapping[str, Sighting]
    held: tuple[ObjectInfo, ...]
    share: float


def is_ripe(info: ObjectInfo, sighting: Sighting | None, *, config: TableConfig, now_ms: int) -> bool:
    """Return whether an old unnamed data file was one a grace period ago already."""
    return (
        sighting is not None
        and _still_counts(info, sighting, config=config, now_ms=now_ms)
        and sighting.first_seen_ms + config.data_grace_ms <= now_ms
    )


def plan_orphans(
    walk: TableWalk,
    seen: Mapping[str, Sighting],
    *,
    config: TableConfig,
    policy: OrphanPolicy,
    log_read_ms: int,
    lost_ms: int = 0,
) -> OrphanPlan:
    """Plan one sweep.

    Args:
        walk: What lies there and is unnamed, by a log that was read after it.
        seen: What earlier sweeps saw.
        config: Grace period and orphan age.
        policy: Of this sweep.
        log_read_ms: The store's clock when that log was listed: from then on a new orphan counts as seen.
        lost_ms: The store's clock when the last of the commits was found lost of which nobody has decided anything
            (F5); 0: there is none.
    """
    sightings = {info.key: _sight(info, seen.get(info.key), config, walk, log_read_ms) for info in walk.old}
    share = _share(walk.old_tally.size_bytes, walk)
    is_too_much = share > policy.max_share and not policy.is_without_share
    # WARN: young ones count, too. The log is lost when most files are young: a few are old, and few bytes. They would
    # be deleted, part by part, as they get old. A large merge looks the same; it is committed soon.
    is_unclear = _share(walk.old_tally.size_bytes + walk.young_tally.size_bytes, walk) > policy.max_share
    if is_too_much:
        # WARN: remembered, for good. Otherwise the table whose log is gone grows by new commits, unnoticed, until what
        # it had before is a small share of it.
        sightings = {key: Sighting(each.etag, each.first_seen_ms, is_held=True) for key, each in sightings.items()}
    doomed: list[ObjectInfo] = []
    waiting: list[WaitingOrphan] = []
    held: list[ObjectInfo] = []
    for info in walk.old:
        sighting = sightings[info.key]
        if sighting.is_held and not policy.is_without_share:
            held.append(info)
            waiting.append(WaitingOrphan(info.key, "share", None, info.size_bytes))
        elif not is_ripe(info, seen.get(info.key), config=config, now_ms=walk.store_now_ms):
            until_ms = sighting.first_seen_ms + config.data_grace_ms
            waiting.append(WaitingOrphan(info.key, "sighting", until_ms, info.size_bytes))
        elif _may_be_lost(info, lost_ms) and not policy.is_forced:
            waiting.append(WaitingOrphan(info.key, "lost", None, info.size_bytes))
        elif is_unclear and not policy.is_without_share:
            waiting.append(WaitingOrphan(info.key, "share", None, info.size_bytes))
        else:
            doomed.append(info)
    age_ms = policy.age_ms(config)
    waiting += (WaitingOrphan(info.key, "age", born_ms(info) + age_ms, info.size_bytes) for info in walk.young)
    return OrphanPlan(tuple(doomed), tuple(waiting), sightings, tuple(held), share)


def _sight(
    info: ObjectInfo, known: Sighting | None, config: TableConfig, walk: TableWalk, log_read_ms: int
) -> Sighting:
    if known is not None and _still_counts(info, known, config=config, now_ms=walk.store_now_ms):
        return known
    return Sighting(info.etag, log_read_ms)


def _may_be_lost(info: ObjectInfo, lost_ms: int) -> bool:
    """Return whether an unnamed data file may be of a commit that was found lost at that time (F5).

    WARN: however old it is. The log file of a merge that was lost carried what older commits had made live.
    """
    first_ms = min(info.modified_ms, file_time_ms(info.key) or info.modified_ms)
    return lost_ms > 0 and first_ms <= lost_ms + MAX_STORE_GAP_MS


def _still_counts(info: ObjectInfo, sighting: Sighting, *, config: TableConfig, now_ms: int) -> bool:
    """Return whether what was seen is this very object, and was old enough by what is known of it today.

    A key never comes back, but an object can: out of a backup, as the record can. Its LastModified says so then. And a
    time in the store's future was not told by the clock that goes now.
    """
    return sighting.etag == info.etag and born_ms(info) + config.orphan_age_ms <= sighting.first_seen_ms <= now_ms


def _share(size_bytes: int, walk: TableWalk) -> float:
    if walk.data.size_bytes <= 0:
        return 1.0 if walk.old_tally.count else 0.0
    return size_bytes / walk.data.size_bytes
