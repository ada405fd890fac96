"""The orphan sweep: data files that no log file names (rule J5).

Order: the record of earlier sweeps; a listing of the whole table; if something may go, the commits under way are
settled; what landed by the fences (F5); the log; the record, by compare-and-set; the deletion. A file that a commit
made live after the listing is named by the log that is read after it; a worker that wakes up cannot name what was
deleted, its commit was settled before. What may go was an orphan in an earlier sweep, too, a grace period ago, is not
too much of the table, and cannot be of a commit that was lost.

| guard | keeps | until |
| --- | --- | --- |
| ``age`` | what is younger than the orphan age, by LastModified or by its name | it is old enough |
| ``sighting`` | what was not an orphan a grace period ago, as far as a sweep has written down | it was |
| ``share`` | everything, while too much of the table is unnamed; what was too much once, for good | a person looks |
| ``lost`` | what there was when a commit was found lost: a log file names files of any age (F5) | a person decides |

Only data files below ``_data/`` that end in ``.parquet`` are ever deleted here. What is of no known kind is reported
and kept, wherever it lies.

The record (``_icedb/orphans.json``): an entry is a fact, at ``first_seen_ms`` by the store's clock a log did not name
this object, with this ETag, and it was old enough; no sweep has found otherwise since, or the entry would be gone. The
record is never deleted, and no two states of it are equal (each has a token of its own), so that a write which lands
late finds another ETag. One that cannot be understood counts as empty: orphans then wait once more (unknown means
keep). A lost commit is written down as soon as a sweep or a vacuum finds it: what proves it (F5) does not last, because
the horizon goes on. It stays until its log file is back, a rebuild has made the log anew, or a person forces the
deletion.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, Field

from icedb_log.clean.deletion import AuditLog, Deleted, Doomed, RunFacts, open_deleter
from icedb_log.clean.leftovers import LeftoverResult, find_leftover_ages
from icedb_log.clean.pins import PinReader
from icedb_log.clean.table_walk import TableWalk, Tally, born_ms, walk_table
from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import ROLES, file_time_ms, parse_log_name
from icedb_log.log.fence import read_landed, settle_fence
from icedb_log.log.fold import drop_known, find_lost
from icedb_log.log.markers import markers_of
from icedb_log.model import LogView
from icedb_log.repair.rebuild_record import read_held
from icedb_log.store.object_store import FailedDelete, ObjectInfo
from icedb_log.store.records import replace_record
from icedb_log.store.store_clock import MAX_STORE_GAP_MS, check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.texts import first_message

RECORD_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Sighting:
    """That an object was an orphan.

    Attributes:
        etag: Of the object.
        first_seen_ms: The store's clock when the log was listed that did not name it.
        is_held: The share guard has refused to delete it; from then on only force does.
    """

    etag: str
    first_seen_ms: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class LostCommit:
    """That a commit was lost (F5).

    Attributes:
        found_ms: The store's clock when it was found.
        is_given_up: A person has forced the deletion of orphans since: it holds nothing any more, and is remembered
            for as long as it would be found again.
    """

    found_ms: int
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class OrphanRecord:
    """The record as it was read: sightings by key, lost commits by the name of their log file.

    Without an ``etag`` there is none yet; ``problem`` is why what is there cannot be understood, empty if it can.
    """

    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    etag: str | None = None
    problem: str = ""
    lost: Mapping[str, LostCommit] = field(default_factory=dict)

    @property
    def open_lost(self) -> tuple[str, ...]:
        """Lost commits of which nobody has decided anything, ascending."""
        return tuple(sorted(name for name, each in self.lost.items() if not each.is_given_up))

    @property
    def lost_ms(self) -> int:
        """The store's clock when the last of them was found; 0 if there is none."""
        return max((each.found_ms for each in self.lost.values() if not each.is_given_up), default=0)

    def with_lost(self, found: Collection[str], view: LogView) -> dict[str, LostCommit]:
        """Return the lost commits as of a log: those that were known and have not come back, and those found now.

        ``found`` is what :func:`~icedb_log.log.fold.find_lost` says of that log.
        """
        missing = drop_known(self.lost, view)
        lost = {name: self.lost[name] for name in missing if name in found or not self.lost[name].is_given_up}
        return {name: LostCommit(view.store_now_ms) for name in found} | lost


_Time = Annotated[int, Field(strict=True)]


class _Stored(BaseModel):
    """The record on the wire: names of data files, and of log files, with the fields of what is said of them."""

    v: Literal[1]
    token: str = ""
    seen: dict[str, tuple[str, _Time, bool]]
    lost: dict[str, tuple[_Time, bool]] = {}


def read_orphan_record(table: TableStore) -> OrphanRecord:
    """Read what earlier sweeps saw.

    Raises:
        Unavailable: The store did not answer.
    """
    try:
        stored = table.store.get(table.paths.orphan_record_key)
    except NotFound:
        return OrphanRecord()
    try:
        said = _Stored.model_validate_json(stored.body)
        lost = {name: LostCommit(*each) for name, each in said.lost.items() if parse_log_name(name)}
    except (CorruptLog, ValueError) as error:
        why = first_message(error) if isinstance(error, ValueError) else error
        problem = f"{table.paths.orphan_record_key} is no record of orphans ({why}); it is begun anew"
        return OrphanRecord(etag=stored.info.etag, problem=problem)
    sightings = {f"{table.paths.data_prefix}{name}": Sighting(*each) for name, each in said.seen.items()}
    return OrphanRecord(sightings, stored.info.etag, lost=lost)


def note_lost(table: TableStore, *, landed: Iterable[str], view: LogView, clock: Clock) -> tuple[str, ...]:
    """Write down which commits are lost, before the horizon hides it (F5); return those of which nobody has decided.

    Costs nothing while none is.

    ``landed`` is what the fences said before the log was read.

    Raises:
        Unavailable: The store did not answer, or a sweep has just written the record: run again.
    """
    found = find_lost(landed, view)
    if not found:
        return ()
    record = read_orphan_record(table)
    lost = record.with_lost(found, view)
    if lost != record.lost and not write_orphan_record(
        table, record.sightings, replaces=record.etag, clock=clock, lost=lost
    ):
        raise Unavailable(
            f"table {table.name}: {len(found)} commits are lost (the first is {found[0]}), and somebody else wrote "
            f"{table.paths.orphan_record_key} just now; nothing was deleted, the next run writes it down"
        )
    return replace(record, lost=lost).open_lost


def write_orphan_record(
    table: TableStore,
    sightings: Mapping[str, Sighting],
    *,
    replaces: str | None,
    clock: Clock,
    lost: Mapping[str, LostCommit],
) -> bool:
    """Replace the record that was read, if nobody else has; return whether it is written for certain.

    Not repeated: a sweep that is refused, or gets no answer, changes nothing and leaves the work to the next one.

    ``replaces`` is the ETag of the record that was read; ``None`` if there was none.

    Raises:
        Unavailable: The store did not answer.
    """
    seen = {
        key.removeprefix(table.paths.data_prefix): (each.etag, each.first_seen_ms, int(each.is_held))
        for key, each in sightings.items()
    }
    fields: dict[str, Any] = {"v": RECORD_VERSION, "token": clock.new_id(), "seen": seen}
    if lost:
        fields["lost"] = {name: (each.found_ms, int(each.is_given_up)) for name, each in lost.items()}
    body = orjson.dumps(fields)
    key = table.paths.orphan_record_key
    if replace_record(table.store, key, body, etag=replaces):
        return True
    try:
        return table.store.get(key).body == body  # W2: perhaps refused by its own first try; only reading tells
    except NotFound:
        return False


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

    Its guard ends at ``until_ms`` by the store's clock, if the next sweeps find the same; ``None``: when a person acts,
    or the share gets smaller.
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
    held: Tally
    share: float


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """What an orphan sweep did, or would do (``dry_run``).

    Attributes:
        is_dry_run: Whether nothing was touched.
        walk: What lies below the table's prefix; of data files, those that nothing names.
        deleted: Orphans deleted.
        failed: Orphans that could not be deleted; the next sweep tries again.
        waiting: Unnamed data files that are kept for now, and why; at most 210,000 of them, the oldest first.
        share: Part of the bytes of all data files that orphans are, 0 to 1.
        max_share: More than this is not deleted.
        held: Orphans that the share guard has refused to delete: somebody has to look whether the log is whole
            (``icedb fsck``), and to force the deletion if it is.
        is_contended: Another sweep wrote the record meanwhile, or nobody knows: nothing was deleted, the next sweep
            goes on.
        record_problem: Why the record of earlier sweeps could not be used; empty if it could.
        lost: Commits that landed and whose log files are not there (F5), by name: nothing is deleted until a person has
            decided (``icedb rebuild``, or force).
    """

    is_dry_run: bool
    walk: TableWalk
    deleted: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    waiting: tuple[WaitingOrphan, ...]
    share: float
    max_share: float
    held: Tally
    is_contended: bool
    record_problem: str
    lost: tuple[str, ...]


def sweep_orphans(
    table: Table, *, dry_run: bool = False, policy: OrphanPolicy | None = None, audit: AuditLog | None = None
) -> OrphanResult:
    """Delete the data files that no log file names and that two sweeps, a grace period apart, found so. Idempotent.

    Args:
        table: The table. This host's clock decides nothing about ages. Its ``check_alive`` is called before each chunk
            is deleted; raises to stop the run.
        dry_run: Touch nothing; the result says what would be deleted, and what waits for which guard.
        policy: Age and share; by default the table's age and a quarter.
        audit: Where it is written down what is deleted, and why.

    Raises:
        InvalidRequest: The policy asks for an age below the table's, or for a share that is none.
        NotFound: The table is dropped meanwhile.
        HaltError: The log cannot be read, or no age can be told by this store; nothing was deleted.
        Unavailable: The store did not answer, or its clock jumped.
        CommitOutcomeUnknown: The same, about a commit under way; nothing was deleted.
    """
    config = table.config
    policy = policy or OrphanPolicy()
    age_ms = policy.age_ms(config)
    record = read_orphan_record(table)
    walk = walk_table(
        table,
        named=_named(table.read_log()),  # decides nothing: J5 asks the log again after the listing
        age_ms=age_ms,
        leftover_ages_ms=find_leftover_ages(config),
    )
    require_same_table(table, config)  # T4: after the listing
    ripe = any(is_ripe(i, record.sightings.get(i.key), config=config, now_ms=walk.store_now_ms) for i in walk.old)
    if ripe and not dry_run:
        # WARN: a worker that stalls between its last look at the time (W3) and its PUT would name what is deleted
        # here. Its intent is in the fence by then: its commit is settled, and only a log read after that counts.
        for role in ROLES:
            settle_fence(table, role)
    landed, view = _read_fences_and_log(table)  # J5: after the listing
    walk.keep_unnamed(_named(view) | read_held(table) | _pinned(table))  # B5, J7
    lost = record.with_lost(find_lost(landed, view), view)
    if lost != record.lost:
        require_same_table(table, config)  # T4: a purge empties the log
    if policy.is_forced:
        lost = {name: replace(each, is_given_up=True) for name, each in lost.items()}
    found = replace(record, lost=lost)
    plan = plan_orphans(
        walk, record.sightings, config=config, policy=policy, log_read_ms=view.store_now_ms, lost_ms=found.lost_ms
    )
    is_written, deleted = True, Deleted()
    if dry_run:
        deleted = Deleted(frozenset(info.key for info in plan.doomed))
    elif plan.doomed or plan.sightings != record.sightings or lost or record.lost:
        is_written = _write_down(table, plan, found)
        if is_written and plan.doomed:
            deleted = _delete(table, plan, policy, audit, store_now_ms=walk.store_now_ms)
    return OrphanResult(
        is_dry_run=dry_run,
        walk=walk,
        deleted=tuple(sorted(deleted.keys)),
        failed=deleted.failed,
        waiting=plan.waiting,
        share=plan.share,
        max_share=policy.max_share,
        held=plan.held,
        is_contended=not is_written,
        record_problem=record.problem,
        lost=found.open_lost,
    )


def describe_sweep(result: OrphanResult, leftovers: LeftoverResult) -> dict[str, Any]:
    """Return what a sweep did as the result of a task."""
    walk = result.walk
    return {
        "deleted_orphans": len(result.deleted),
        "failed_orphans": len(result.failed),
        "waiting_orphans": walk.old_tally.count - len(result.deleted) - len(result.failed),
        "held_orphans": result.held.count,
        "lost_commits": len(result.lost),
        "young_orphans": walk.young_tally.count,
        "orphan_share": round(result.share, 4),
        "contended": result.is_contended,
        "unknown_objects": walk.unknown_count,
        "deleted_leftovers": sum(leftovers.deleted.values()),
        "failed_leftovers": len(leftovers.failed),
    }


def _read_fences_and_log(table: Table) -> tuple[tuple[str, ...], LogView]:
    """Return what landed by the fences, and the log, read after them: a commit lands before its fence says so (F5)."""
    landed = read_landed(table)
    return landed, table.read_log()


def _write_down(table: Table, plan: OrphanPlan, record: OrphanRecord) -> bool:
    """Write the record; return whether it is written.

    WARN: before the deletion, and nothing is deleted without it: of two sweeps that run at once, one does it. Another
    one may have found this object named meanwhile, and taken its sighting away.
    """
    if plan.sightings or record.lost:
        # Before anything is written down by this clock, and before anything goes by it.
        check_store_clock(table.store, table.paths.clock_key, clock=table.clock)
    return write_orphan_record(table, plan.sightings, replaces=record.etag, clock=table.clock, lost=record.lost)


def _delete(
    table: Table, plan: OrphanPlan, policy: OrphanPolicy, audit: AuditLog | None, *, store_now_ms: int
) -> Deleted:
    bounds = {"orphan_age_ms": policy.age_ms(table.config), "data_grace_ms": table.config.data_grace_ms}
    passed = ("age", "sighting") if policy.is_without_share else ("age", "sighting", "share")
    why = "no log file names it, in two sweeps a grace period apart"
    return open_deleter(table, audit, RunFacts("orphans", store_now_ms, bounds)).delete(
        Doomed(info.key, "orphan", why, passed, info.modified_ms, info.size_bytes) for info in plan.doomed
    )


def _named(view: LogView) -> set[str]:
    return {path for file in view.files for path in markers_of(file.key, file.log.markers).paths()}


def _pinned(table: Table) -> set[str]:
    """Return what pins name: a log that was rebuilt may not name it any more."""
    pins = PinReader().read(table, data_grace_ms=table.config.data_grace_ms)
    return {path for pin in pins for path in pin.files or ()}


# The plan: pure.


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

    The walk is left with what is unnamed, by a log that was read after it: at ``log_read_ms`` by the store's clock,
    from which on a new orphan counts as seen. ``lost_ms`` is the store's clock when the last of the commits was found
    lost of which nobody has decided anything (F5); 0: there is none.
    """
    now_ms = walk.store_now_ms
    sightings: dict[str, Sighting] = {}
    for info in walk.old:
        known = seen.get(info.key)
        still_counts = known is not None and _still_counts(info, known, config=config, now_ms=now_ms)
        sightings[info.key] = known if known and still_counts else Sighting(info.etag, log_read_ms)
    share = _share(walk.old_tally.size_bytes, walk)
    # WARN: young ones count, too. The log is lost when most files are young: a few are old, and few bytes. They would
    # be deleted, part by part, as they get old. A large merge looks the same; it is committed soon.
    is_unclear = _share(walk.old_tally.size_bytes + walk.young_tally.size_bytes, walk) > policy.max_share
    if share > policy.max_share and not policy.is_without_share:
        # WARN: remembered, for good. Otherwise the table whose log is gone grows by new commits, unnoticed, until what
        # it had before is a small share of it.
        sightings = {key: replace(each, is_held=True) for key, each in sightings.items()}
    doomed: list[ObjectInfo] = []
    waiting: list[WaitingOrphan] = []
    held = Tally()
    for info in walk.old:
        sighting, until_ms = sightings[info.key], None
        guard: OrphanGuard | None = None
        if sighting.is_held and not policy.is_without_share:
            held.add(info)
            guard = "share"
        elif not is_ripe(info, seen.get(info.key), config=config, now_ms=now_ms):
            guard, until_ms = "sighting", sighting.first_seen_ms + config.data_grace_ms
        elif _may_be_lost(info, lost_ms) and not policy.is_forced:
            guard = "lost"
        elif is_unclear and not policy.is_without_share:
            guard = "share"
        if guard is None:
            doomed.append(info)
        else:
            waiting.append(WaitingOrphan(info.key, guard, until_ms, info.size_bytes))
    age_ms = policy.age_ms(config)
    waiting += (WaitingOrphan(info.key, "age", born_ms(info) + age_ms, info.size_bytes) for info in walk.young)
    return OrphanPlan(tuple(doomed), tuple(waiting), sightings, held, share)


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
