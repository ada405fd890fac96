"""The orphan sweep: data files that no log file names (rule J5).

Order: the record of earlier sweeps; a listing of the whole table; if something may go, the commits under way are
settled; what landed by the fences (F5); the log; the record, by compare-and-set; the deletion. A file that a commit
made live after the listing is named by the log that is read after it; a worker that wakes up cannot name what was
deleted, its commit was settled before. What may go was an orphan in an earlier sweep, too, a grace period ago, is not
too much of the table, and cannot be of a commit that was lost.

Only data files below ``_data/`` that end in ``.parquet`` are ever deleted here. What is of no known kind is reported
and kept, wherever it lies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from icedb_log.clean.audit import AuditLog, RunFacts
from icedb_log.clean.deletion import Deleted, Deleter, Doomed
from icedb_log.clean.leftovers import Leftovers, find_leftover_ages
from icedb_log.clean.orphan_plan import OrphanPlan, OrphanPolicy, WaitingOrphan, is_ripe, plan_orphans
from icedb_log.clean.orphan_record import OrphanRecord, read_orphan_record, write_orphan_record
from icedb_log.clean.pins import PinReader
from icedb_log.clean.table_walk import TableWalk, walk_table
from icedb_log.keys import ROLES
from icedb_log.log.fence import read_landed, settle_fence
from icedb_log.log.lost_commits import find_lost
from icedb_log.model import LogView
from icedb_log.repair.rebuild_record import read_held
from icedb_log.store.object_store import FailedDelete, ObjectInfo
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """What an orphan sweep did, or would do (``dry_run``).

    Attributes:
        is_dry_run: Whether nothing was touched.
        deleted: Orphans deleted.
        failed: Orphans that could not be deleted; the next sweep tries again.
        waiting: Unnamed data files that are kept for now, and why; at most 210,000 of them, the oldest first.
        orphan_count: Unnamed data files that are old enough, with those that were deleted.
        orphan_bytes: Their size.
        young_count: Unnamed data files that are not old enough; many of them are about to be committed.
        young_bytes: Their size.
        data_bytes: Size of all data files.
        share: Part of it that orphans are, 0 to 1.
        max_share: More than this is not deleted.
        held_count: Orphans that the share guard has refused to delete: somebody has to look whether the log is whole
            (``icedb fsck``), and to force the deletion if it is.
        held_bytes: Their size.
        future: Unnamed data files whose LastModified or name lies in the store's future; kept.
        unknown: Objects of no known kind anywhere in the table; kept. At most 1,000 of them.
        unknown_count: All of these.
        is_contended: Another sweep wrote the record meanwhile, or nobody knows: nothing was deleted, the next sweep
            goes on.
        has_more: There are more orphans than one sweep takes; the next sweeps take the others.
        record_problem: Why the record of earlier sweeps could not be used; empty if it could.
        lost: Commits that landed and whose log files are not there (F5), by name: nothing is deleted until a person has
            decided (``icedb rebuild``, or force).
        store_now_ms: The time that ages were measured against.
        leftovers: What else the walk found that may have ended, for ``sweep_leftovers``.
    """

    is_dry_run: bool
    deleted: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    waiting: tuple[WaitingOrphan, ...]
    orphan_count: int
    orphan_bytes: int
    young_count: int
    young_bytes: int
    data_bytes: int
    share: float
    max_share: float
    held_count: int
    held_bytes: int
    future: tuple[str, ...]
    unknown: tuple[str, ...]
    unknown_count: int
    is_contended: bool
    has_more: bool
    record_problem: str
    lost: tuple[str, ...]
    store_now_ms: int
    leftovers: Leftovers


@dataclass(frozen=True, slots=True)
class _Sweep:
    """What one sweep works with."""

    table: Table
    policy: OrphanPolicy
    audit: AuditLog | None

    def open_deleter(self, store_now_ms: int) -> Deleter:
        """Return what deletes for this sweep."""
        bounds = {
            "orphan_age_ms": self.policy.age_ms(self.table.config),
            "data_grace_ms": self.table.config.data_grace_ms,
        }
        audit = self.audit.begin(RunFacts("orphans", store_now_ms, bounds)) if self.audit else None
        return Deleter(self.table.store, audit=audit, check_alive=self.table.check_alive)


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
    store, paths, config = table.store, table.paths, table.config
    policy = policy or OrphanPolicy()
    age_ms = policy.age_ms(config)
    sweep = _Sweep(table, policy, audit)
    record = read_orphan_record(TableStore(store, paths))
    walk = walk_table(
        TableStore(store, paths),
        named=_named(table.read_log()),  # decides nothing: J5 asks the log again after the listing
        age_ms=age_ms,
        leftover_ages_ms=find_leftover_ages(config),
    )
    require_same_table(TableStore(store, paths), config)  # T4: after the listing
    ripe = any(is_ripe(i, record.sightings.get(i.key), config=config, now_ms=walk.store_now_ms) for i in walk.old)
    if ripe and not dry_run:
        # WARN: a worker that stalls between its last look at the time (W3) and its PUT would name what is deleted
        # here. Its intent is in the fence by then: its commit is settled, and only a log read after that counts.
        for role in ROLES:
            settle_fence(TableStore(store, paths), role)
    landed, view = _read_fences_and_log(table)  # J5: after the listing
    walk.keep_unnamed(
        _named(view) | read_held(TableStore(store, paths)) | _pinned(TableStore(store, paths), config)
    )  # B5, J7
    lost = record.with_lost(find_lost(landed, view), view)
    if lost != record.lost:
        require_same_table(TableStore(store, paths), config)  # T4: a purge empties the log
    if policy.is_forced:
        lost = {name: replace(each, is_given_up=True) for name, each in lost.items()}
    found = replace(record, lost=lost)
    plan = plan_orphans(
        walk,
        record.sightings,
        config=config,
        policy=policy,
        log_read_ms=view.store_now_ms,
        lost_ms=found.lost_ms,
    )
    is_written, deleted = True, Deleted(frozenset(), ())
    if dry_run:
        deleted = Deleted(frozenset(info.key for info in plan.doomed), ())
    elif plan.doomed or plan.sightings != record.sightings or lost or record.lost:
        is_written, deleted = _delete(sweep, plan, found, walk)
    return _result(plan, walk, policy, found, deleted, is_dry_run=dry_run, is_contended=not is_written)


def _read_fences_and_log(table: Table) -> tuple[tuple[str, ...], LogView]:
    """Return what landed by the fences, and the log, read after them: a commit lands before its fence says so (F5)."""
    landed = read_landed(table)
    return landed, table.read_log()


def _delete(sweep: _Sweep, plan: OrphanPlan, record: OrphanRecord, walk: TableWalk) -> tuple[bool, Deleted]:
    """Write the record, then delete; return whether the record is written, and what is gone."""
    nothing, table = Deleted(frozenset(), ()), sweep.table
    if plan.sightings or record.lost:
        # Before anything is written down by this clock, and before anything goes by it.
        check_store_clock(table.store, table.paths.clock_key, clock=table.clock)
    # WARN: before the deletion, and nothing is deleted without it: of two sweeps that run at once, one does it. Another
    # one may have found this object named meanwhile, and taken its sighting away.
    is_written = write_orphan_record(table, plan.sightings, replaces=record.etag, clock=table.clock, lost=record.lost)
    if not (is_written and plan.doomed):
        return is_written, nothing
    return True, sweep.open_deleter(walk.store_now_ms).delete(_doom(plan.doomed, sweep.policy))


def _doom(infos: Iterable[ObjectInfo], policy: OrphanPolicy) -> Iterable[Doomed]:
    passed = ("age", "sighting") if policy.is_without_share else ("age", "sighting", "share")
    why = "no log file names it, in two sweeps a grace period apart"
    return (Doomed(info.key, "orphan", why, passed, info.modified_ms, info.size_bytes) for info in infos)


def _named(view: LogView) -> set[str]:
    return {marker.path for file in view.files for marker in file.log.markers}


def _pinned(table: TableStore, config: TableConfig) -> set[str]:
    """Return what pins name: a log that was rebuilt may not name it any more."""
    pins = PinReader().read(table, data_grace_ms=config.data_grace_ms)
    return {path for pin in pins for path in pin.paths or ()}


def _result(
    plan: OrphanPlan,
    walk: TableWalk,
    policy: OrphanPolicy,
    record: OrphanRecord,
    deleted: Deleted,
    *,
    is_dry_run: bool,
    is_contended: bool,
) -> OrphanResult:
    return OrphanResult(
        is_dry_run=is_dry_run,
        deleted=tuple(sorted(deleted.keys)),
        failed=deleted.failed,
        waiting=plan.waiting,
        orphan_count=walk.old_tally.count,
        orphan_bytes=walk.old_tally.size_bytes,
        young_count=walk.young_tally.count,
        young_bytes=walk.young_tally.size_bytes,
        data_bytes=walk.data.size_bytes,
        share=plan.share,
        max_share=policy.max_share,
        held_count=len(plan.held),
        held_bytes=sum(info.size_bytes for info in plan.held),
        future=tuple(walk.future),
        unknown=tuple(walk.unknown),
        unknown_count=walk.unknown_count,
        is_contended=is_contended,
        has_more=walk.has_more,
        record_problem=record.problem,
        lost=record.open_lost,
        store_now_ms=walk.store_now_ms,
        leftovers=Leftovers(walk.store_now_ms, walk.leftovers, walk.late_staged_count, walk.oldest_staged_ms),
    )
