"""A vacuum: deletes what is tombstoned and past its grace period, in the one safe order (rules J2, J3, J6).

Order: staged copies of the batches that expired log files made live, expired log files, expired data files that no
remaining log file lists as live, then the strip. Each step works only on what the step before has certainly done. A
crash anywhere leaves a table that the next run cleans. Any number of runs may overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from icedb_log.cleaning.audit import AuditLog, RunFacts, found_holds
from icedb_log.cleaning.deletion import CHUNK_KEYS, Deleter, Doomed, Kind
from icedb_log.cleaning.guards import Holds, Waiting
from icedb_log.cleaning.holds import read_holds
from icedb_log.cleaning.vacuum_plan import VacuumPlan, live_paths, plan_vacuum, strip_log_file
from icedb_log.clock import Clock
from icedb_log.errors import CommitOutcomeUnknown, PreconditionFailed
from icedb_log.ingest.staging import find_staged
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.codec import encode_log_file
from icedb_log.log.invariants import require_same_live
from icedb_log.log.reader import LogReader
from icedb_log.model import ListedLogFile, LogView
from icedb_log.storage.object_store import FailedDelete, ObjectStore
from icedb_log.tables.table_config import TableConfig, read_table_config
from icedb_log.views.views import find_wanted


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
        has_more: Whether there is more to delete now: the run was bounded. Failed deletes do not count.
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
    has_more: bool = False


def vacuum_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    dry_run: bool = False,
    reader: LogReader | None = None,
    read_view: Callable[[TablePaths], LogReader] | None = None,
    audit: AuditLog | None = None,
    check_alive: Callable[[], None] | None = None,
    max_objects: int | None = None,
    chunk_keys: int = CHUNK_KEYS,
) -> VacuumResult:
    """Delete the dead objects of a table whose time has come. Idempotent; a run that is killed has kept its progress.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock; decides nothing about ages (J1).
        dry_run: Touch nothing; the result says what would be deleted and what waits for which guard.
        reader: A reader to reuse, with its cache.
        read_view: Returns a reader of a view of this table, to be reused.
        audit: Where every delete is written down; ``None``: nowhere.
        check_alive: Called before each chunk of deletes; raises to stop the run, e.g. when its lock is lost.
        max_objects: Begin nothing new after so many deleted data files; ``None``: all. The result says whether
            there is more to do.
        chunk_keys: Objects in a chunk; smaller only in tests.

    Raises:
        NotFound: No such table.
        HaltError: The table needs a person; nothing was deleted.
        Unavailable: The store did not answer.
        IceDBError: What ``check_alive`` or the audit raised.
    """
    config = read_table_config(store, paths)
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    view = reader.read()
    # WARN: J4, J7, J9: after the log. The other way round: a lease is written while the janitor stalls between the two
    # reads, what it pins dies and gets old, and the plan knows the tombstones but not the lease.
    holds = read_holds(store, paths, view=view, config=config)
    plan = plan_vacuum(view, config=config, holds=holds)
    if any(not parse_log_key(key).is_merged for key in plan.log_keys):
        # WARN: V4: after the log, for the same reason: a view is registered and a commit lands while the janitor stalls
        # between the two reads, is merged and gets old, and the plan knows the commit but not the view.
        wanted = find_wanted(store, view, paths, read_view=read_view or reader.of_table)
        plan = plan_vacuum(view, config=config, holds=replace(holds, wanted_logs=wanted))
    for path in plan.data_paths:
        paths.partition_of(path)  # J6: a damaged log must not make us delete another table's files
    # WARN: J2: staging is listed once, after the log was read. With G the grace period of log files and S = G/4, a log
    # file is expired when the store's clock has passed its tombstone by G, and no id in it lies more than S after
    # its commit. So whatever is staged after the log was read is staged later than its id's time plus G - S: too late
    # for rule I3, it is refused without a look at any log. All that could pass was staged before, and is listed here.
    decided = {*plan.batch_ids, *(i for refused in plan.refused_ids.values() for i in refused)}
    staged = find_staged(store, paths, decided)
    plan = _hold_refusals(plan, staged)
    if dry_run:
        return _dry_result(plan)
    del max_objects
    failed: list[FailedDelete] = []
    run_audit = None if audit is None else audit.begin(_facts(plan, config, holds))
    deleter = Deleter(store, audit=run_audit, check_alive=check_alive, chunk_keys=chunk_keys)
    copies = [key for batch_id in plan.batch_ids for key in staged.get(batch_id, ())]
    gone_logs = _delete_log_files(deleter, plan, copies, failed)
    gone_logs |= _already_gone(view)
    remaining = tuple(file for file in view.files if file.key not in gone_logs)
    # J2: a log file that could not be deleted still says "live".
    deletable = sorted(set(plan.data_paths) - live_paths(remaining))
    gone_data = _delete(deleter, deletable, failed, "data_file")
    stripped, contended = _strip(store, paths, view=view, remaining=remaining, gone=(gone_logs, gone_data))
    return VacuumResult(
        is_dry_run=False,
        deleted_logs=tuple(key for key in plan.log_keys if key in gone_logs),
        deleted_data=tuple(sorted(gone_data)),
        failed=tuple(failed),
        waiting=plan.waiting,
        stripped_count=stripped,
        contended_count=contended,
        store_now_ms=plan.store_now_ms,
    )


def _facts(plan: VacuumPlan, config: TableConfig, holds: Holds) -> RunFacts:
    policy = {
        "data_grace_ms": config.data_grace_ms,
        "log_grace_ms": config.log_grace_ms,
        "seal_age_ms": config.seal_age_ms,
        "keep_versions": config.keep_versions,
    }
    return RunFacts("vacuum", plan.store_now_ms, policy, found_holds(holds))


def _hold_refusals(plan: VacuumPlan, staged: Mapping[str, tuple[str, ...]]) -> VacuumPlan:
    """Keep the log files that refused a batch which is still staged: it is not in quarantine for certain (J2, I5).

    The next flush moves it there. Without the log file it would be new, and might be committed by then.
    """
    held = {key for key, refused in plan.refused_ids.items() if any(batch_id in staged for batch_id in refused)}
    if not held:
        return plan
    waiting = tuple(Waiting(key, "refusal", None) for key in sorted(held))
    return replace(
        plan, log_keys=tuple(key for key in plan.log_keys if key not in held), waiting=(*plan.waiting, *waiting)
    )


def _delete_log_files(
    deleter: Deleter, plan: VacuumPlan, copies: Sequence[str], failed: list[FailedDelete]
) -> set[str]:
    # WARN: a log file is what keeps a retried batch from being committed again (I3). Its staged objects go first:
    # a copy that a producer staged again and that no flush has seen yet would otherwise be new to the log.
    before = len(failed)
    _delete(deleter, copies, failed, "staged_batch")
    if len(failed) > before:
        return set()
    return _delete(deleter, plan.log_keys, failed, "log_file")


def _already_gone(view: LogView) -> set[str]:
    """Log files that an earlier run deleted without getting to the strip."""
    present = {file.key for file in view.files}
    return {t.path for file in view.files for t in file.log.log_tombstones if t.path not in present}


def _strip(
    store: ObjectStore,
    paths: TablePaths,
    *,
    view: LogView,
    remaining: tuple[ListedLogFile, ...],
    gone: tuple[set[str], set[str]],
) -> tuple[int, int]:
    gone_logs, gone_data = gone
    after: list[ListedLogFile] = []
    changed: list[tuple[ListedLogFile, bytes]] = []
    dead = {tombstone.path for file in view.files for tombstone in file.log.log_tombstones}
    for file in remaining:
        log = None if file.key in dead else strip_log_file(file, view, gone_logs=gone_logs, gone_data=gone_data)
        if log is None:
            after.append(file)
        else:
            changed.append((file, encode_log_file(log)))
            after.append(ListedLogFile(file.key, file.etag, file.modified_ms, file.size_bytes, log))
    require_same_live(paths, view, after)
    contended = 0
    for file, body in changed:
        try:
            store.put_if_match(file.key, body, etag=file.etag)  # J3
        except (PreconditionFailed, CommitOutcomeUnknown):
            contended += 1
    return len(changed) - contended, contended


def _delete(deleter: Deleter, keys: Sequence[str], failed: list[FailedDelete], kind: Kind) -> set[str]:
    done = deleter.delete(Doomed(key, kind, "tombstoned") for key in keys)
    failed.extend(done.failed)
    return set(done.keys)


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
