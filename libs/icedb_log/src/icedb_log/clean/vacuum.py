"""A vacuum: deletes what is tombstoned and past its grace period (rules J2, J4, J6, V4).

Order: the log, what holds, the plan, staging, the store's clock; then :mod:`icedb_log.clean.vacuum_run` deletes.
Nothing is listed below ``_data``: the log says what is dead.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from icedb_log.clean.audit import AuditLog, RunFacts, found_holds
from icedb_log.clean.deletion import CHUNK_KEYS, Deleter
from icedb_log.clean.guards import Guard, Holds, Waiting
from icedb_log.clean.holds import read_holds
from icedb_log.clean.leases import LeaseReader
from icedb_log.clean.orphan_record import note_lost
from icedb_log.clean.pins import PinReader
from icedb_log.clean.vacuum_plan import VacuumPlan, live_paths, plan_vacuum
from icedb_log.clean.vacuum_run import VacuumRun
from icedb_log.feed.views import find_wanted
from icedb_log.ingest.staging import find_staged
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.lost_commits import find_lost
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.store_clock import SteadyTime, check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What a vacuum did, or would do (``dry_run``). Every dead object is in exactly one of the tuples.

    Attributes:
        is_dry_run: Whether nothing was touched.
        deleted_logs: Log files deleted ("not found" counts, J6).
        deleted_data: Data files deleted.
        failed: Keys that could not be deleted, and why; the next run tries again.
        waiting: Dead objects that are kept for now, and which guard keeps them.
        stripped_count: Log files replaced by a shorter version.
        contended_count: Log files that changed under the strip; the next run does them.
        store_now_ms: The time that ages were measured against.
        deleted_copies: Staged copies of batches deleted.
        conflict_count: Those of them whose content is not certainly that of their batch; it is in quarantine now (I8).
        has_more: Whether there is more to delete now: the run was bounded. Failed deletes do not count.
        lost: Commits that landed and whose log files are not there (F5), by name; nothing was decided about them yet.
        held_back_ms: How far the store's clock has certainly run ahead of what has passed, not only by as much as the
            log took to be read; ages were measured without it.
    """

    is_dry_run: bool
    deleted_logs: tuple[str, ...]
    deleted_data: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    waiting: tuple[Waiting, ...]
    stripped_count: int
    contended_count: int
    store_now_ms: int
    deleted_copies: tuple[str, ...] = ()
    conflict_count: int = 0
    has_more: bool = False
    lost: tuple[str, ...] = ()
    held_back_ms: int = 0

    def count_waiting(self) -> dict[Guard, int]:
        """Return how many dead objects each guard keeps."""
        return dict(Counter(item.guard for item in self.waiting))


@dataclass(frozen=True, slots=True)
class VacuumCaches:
    """What a process keeps from one vacuum of a table to the next.

    Attributes:
        pins: Reads the table's pins.
        leases: Reads its leases.
        steady: What was heard of the store's time; ``None``: its word is taken.
        read_view: Returns a reader of a view of the table; ``None``: a fresh one each time.
    """

    pins: PinReader | None = None
    leases: LeaseReader | None = None
    steady: SteadyTime | None = None
    read_view: Callable[[TablePaths], LogReader] | None = None


@dataclass(frozen=True, slots=True)
class VacuumBounds:
    """Bounds of one vacuum.

    Attributes:
        max_objects: Begin nothing new after so many deleted data files; ``None``: all. The result says whether there
            is more to do.
        chunk_keys: Objects in a chunk, and data files between strips, at least; smaller only in tests.
    """

    max_objects: int | None = None
    chunk_keys: int = CHUNK_KEYS


def vacuum_table(
    table: Table,
    *,
    dry_run: bool = False,
    audit: AuditLog | None = None,
    caches: VacuumCaches | None = None,
    bounds: VacuumBounds | None = None,
) -> VacuumResult:
    """Delete the dead objects of a table whose time has come. Idempotent; a run that is killed has kept its progress.

    Args:
        table: The table. This host's clock decides nothing about ages (J1). Its ``check_alive`` is called before each
            chunk of deletes; raises to stop the run, e.g. when its lock is lost.
        dry_run: Touch nothing; the result says what would be deleted and what waits for which guard.
        audit: Where every delete is written down; ``None``: nowhere.
        caches: What earlier runs of this process have kept.
        bounds: Of this run.

    Raises:
        NotFound: The table is dropped meanwhile.
        HaltError: The table needs a person, or no age can be told by this store; nothing was deleted.
        Unavailable: The store did not answer, or its clock jumped or is far from this host's; nothing was deleted.
        IceDBError: What ``check_alive`` or the audit raised.
    """
    store, paths, clock, config = table.store, table.paths, table.clock, table.config
    caches, bounds = caches or VacuumCaches(), bounds or VacuumBounds()
    asked_ms = clock.monotonic_ms()
    view = table.read_log()
    heard_ms, took_ms = view.store_now_ms, clock.monotonic_ms() - asked_ms
    if caches.steady is not None:  # J1: a clock that jumps ahead makes nothing old
        window_ms = max(config.data_grace_ms, config.log_grace_ms)
        now_ms = caches.steady.hold_back(heard_ms, asked_ms=asked_ms, window_ms=window_ms)
        view = replace(view, store_now_ms=now_ms)
    require_same_table(TableStore(store, paths), config)  # T4: after the log
    # WARN: J4, J7, J9: after the log. The other way round: a lease is written while the janitor stalls between the two
    # reads, what it pins dies and gets old, and the plan knows the tombstones but not the lease.
    holds = read_holds(TableStore(store, paths), view=view, config=config, pins=caches.pins, leases=caches.leases)
    plan = plan_vacuum(view, config=config, holds=holds)
    if any(not parse_log_key(key).is_merged for key in plan.log_keys):
        # WARN: V4: after the log, for the same reason: a view is registered and a commit lands while the janitor stalls
        # between the two reads, is merged and gets old, and the plan knows the commit but not the view.
        wanted = find_wanted(store, view, paths, read_view=caches.read_view or table.reader.of_table)
        if not wanted.isdisjoint(plan.log_keys):
            plan = plan_vacuum(view, config=config, holds=replace(holds, wanted_logs=wanted))
    for path in plan.data_paths:
        if not path.startswith(paths.data_prefix):
            paths.partition_of(path)  # J6: raises: a damaged log must not make us delete another table's files
    # WARN: J2: staging is listed once, after the log was read. With G the grace period of log files and S = G/4, a log
    # file is expired when the store's clock has passed its tombstone by G, and no id in it lies more than S after
    # its commit. So whatever is staged after the log was read is staged later than its id's time plus G - S: too late
    # for rule I3, it is refused without a look at any log. All that could pass was staged before, and is listed here.
    decided = {i for ids in (*plan.batch_ids.values(), *plan.refused_ids.values()) for i in ids}
    staged = find_staged(TableStore(store, paths), decided)
    plan = _hold_refusals(plan, view, staged)
    if dry_run:
        return _dry_result(plan)
    if not plan.is_empty:
        check_store_clock(store, paths.clock_key, clock=clock)  # J1: before anything goes by its age
    # WARN: F5: before any log file goes. The horizon moves with it, and behind the horizon nobody can tell a commit
    # that was lost from one that was merged and deleted: the orphan sweep would take its files.
    lost: tuple[str, ...] = ()
    if find_lost(holds.landed, view):  # or it landed after the log was read, and the fence said so by then
        again = table.read_log()
        require_same_table(TableStore(store, paths), config)  # T4: a purge empties the log
        lost = note_lost(TableStore(store, paths), landed=holds.landed, view=again, clock=clock)
    run_audit = None if audit is None else audit.begin(_facts(plan, config, holds))
    deleter = Deleter(store, audit=run_audit, check_alive=table.check_alive, chunk_keys=bounds.chunk_keys)
    run = VacuumRun(table, view=view, plan=plan, deleter=deleter, part_files=bounds.chunk_keys)
    done = run.delete_all(staged, max_objects=bounds.max_objects)
    return VacuumResult(
        is_dry_run=False,
        deleted_logs=done.log_keys,
        deleted_data=done.data_paths,
        failed=done.failed,
        waiting=plan.waiting,
        stripped_count=done.stripped_count,
        contended_count=done.contended_count,
        store_now_ms=plan.store_now_ms,
        deleted_copies=done.copies,
        conflict_count=done.conflict_count,
        has_more=done.has_more,
        lost=lost,
        held_back_ms=max(0, heard_ms - plan.store_now_ms - took_ms),
    )


def _facts(plan: VacuumPlan, config: TableConfig, holds: Holds) -> RunFacts:
    policy = {
        "data_grace_ms": config.data_grace_ms,
        "log_grace_ms": config.log_grace_ms,
        "seal_age_ms": config.seal_age_ms,
        "keep_versions": config.keep_versions,
    }
    return RunFacts("vacuum", plan.store_now_ms, policy, found_holds(holds))


def _hold_refusals(plan: VacuumPlan, view: LogView, staged: Mapping[str, tuple[str, ...]]) -> VacuumPlan:
    """Keep the log files that refused a batch which is still staged: it is not in quarantine for certain (J2, I5).

    The next flush moves it there. Without the log file it would be new, and might be committed by then. What such a log
    file lists as live waits with it.
    """
    held = {key for key, refused in plan.refused_ids.items() if any(batch_id in staged for batch_id in refused)}
    if not held:
        return plan
    held_data = live_paths(file for file in view.files if file.key in held).intersection(plan.data_paths)
    waiting = tuple(Waiting(path, "refusal", None) for path in (*sorted(held), *sorted(held_data)))
    return replace(
        plan,
        log_keys=tuple(key for key in plan.log_keys if key not in held),
        batch_ids={key: ids for key, ids in plan.batch_ids.items() if key not in held},
        data_paths=tuple(path for path in plan.data_paths if path not in held_data),
        waiting=(*plan.waiting, *waiting),
    )


def _dry_result(plan: VacuumPlan) -> VacuumResult:
    return VacuumResult(
        is_dry_run=True,
        deleted_logs=plan.log_keys,
        deleted_data=plan.data_paths,
        failed=(),
        waiting=plan.waiting,
        stripped_count=0,
        contended_count=0,
        store_now_ms=plan.store_now_ms,
    )
