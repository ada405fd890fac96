"""A vacuum: deletes what is tombstoned and past its grace period, in the one safe order (rules J2, J3, J4, J6, V4).

Order: the log, what holds, the plan, staging, the store's clock. Then staged copies of the batches that expired log
files made live, expired log files, and part by part: expired data files that no remaining log file lists as live, and
the strip of the log files that name them. Each step works only on what the step before has certainly done. A crash
anywhere leaves a table that the next run cleans; what was stripped by then is not looked at again. Any number of runs
may overlap. Nothing is listed below ``_data``: the log says what is dead.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from icedb_log.clean.deletion import (
    CHUNK_KEYS,
    AuditLog,
    DeleteCandidate,
    Deleted,
    Deleter,
    RunFacts,
    found_holds,
    group_failures,
    open_deleter,
)
from icedb_log.clean.holds import read_holds
from icedb_log.clean.publication_ending import retire_idle
from icedb_log.clean.vacuum_plan import (
    Portion,
    VacuumPlan,
    cut_parts,
    is_strip_due,
    live_paths,
    plan_vacuum,
    strip_log_file,
)
from icedb_log.clock import format_ms
from icedb_log.commit.invariants import require_same_live, require_strip
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, PreconditionFailed, Unavailable
from icedb_log.feed.views import find_wanted
from icedb_log.holds.guards import DATA_GUARDS, LOG_GUARDS, Death, Hold, Holds, Waiting
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.ingest.quarantine import resolve_duplicate
from icedb_log.ingest.staging import find_staged
from icedb_log.jobs import StagedBatch
from icedb_log.keys import TablePaths, log_name
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import find_lost
from icedb_log.log.markers import markers_of
from icedb_log.log.reader import LogReader
from icedb_log.model import ListedLogFile, LogView
from icedb_log.phases import phase, tell_progress
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.store_clock import SteadyTime, check_store_clock


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What a vacuum did, or would do (``dry_run``). Every dead object is in exactly one of the tuples.

    Attributes:
        is_dry_run: Whether nothing was touched.
        deleted_logs: Log files deleted ("not found" counts, J6).
        deleted_data: Data files deleted.
        failed: Keys that could not be deleted, and why; the next run tries again.
        waiting: Dead objects that are kept for now, and which guard keeps them.
        stripped_count: Log files replaced by a shorter version, each as often as it was.
        contended_count: Log files that changed under the strip; the next run does them.
        store_now_ms: The time that ages were measured against.
        deleted_copies: Staged copies of batches deleted.
        conflict_count: Those of them whose content is not certainly that of their batch; it is in quarantine now (I8).
        has_more: Whether there is more to delete now: the run was bounded. Failed deletes do not count.
        lost: Commits that landed and whose log files are not there (F5), by name.
        held_back_ms: How far the store's clock has certainly run ahead of what has passed, not only by as much as the
            log took to be read; ages were measured without it.
    """

    is_dry_run: bool
    deleted_logs: tuple[str, ...]
    deleted_data: tuple[str, ...]
    waiting: tuple[Waiting, ...]
    store_now_ms: int
    failed: tuple[FailedDelete, ...] = ()
    stripped_count: int = 0
    contended_count: int = 0
    deleted_copies: tuple[str, ...] = ()
    conflict_count: int = 0
    has_more: bool = False
    lost: tuple[str, ...] = ()
    held_back_ms: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing was deleted."""
        return not (self.deleted_logs or self.deleted_data or self.stripped_count)

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task."""
        return {
            "deleted_log_files": len(self.deleted_logs),
            "deleted_data_files": len(self.deleted_data),
            "failed": len(self.failed),
            "failures": [asdict(group) for group in group_failures(self.failed)],
            "waiting": len(self.waiting),
            "waiting_by_guard": dict(Counter(item.guard for item in self.waiting)),
            "stripped": self.stripped_count,
            "contended": self.contended_count,
            "has_more": self.has_more,
            "lost_commits": len(self.lost),
        }


@dataclass(frozen=True, slots=True)
class VacuumCaches:
    """What a process keeps from one vacuum of a table to the next.

    Attributes:
        holds: Reads the table's holds.
        steady: What was heard of the store's time; ``None``: its word is taken.
        read_view: Returns a reader of a view of the table; ``None``: a fresh one each time.
    """

    holds: HoldReader | None = None
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
    paths, clock, config = table.paths, table.clock, table.config
    caches, bounds = caches or VacuumCaches(), bounds or VacuumBounds()
    asked_ms = clock.monotonic_ms()
    with phase("read the log"):
        view = table.read_log()
    heard_ms, took_ms = view.store_now_ms, clock.monotonic_ms() - asked_ms
    if caches.steady is not None:  # J1: a clock that jumps ahead makes nothing old
        window_ms = max(config.data_grace_ms, config.log_grace_ms)
        now_ms = caches.steady.hold_back(heard_ms, asked_ms=asked_ms, window_ms=window_ms)
        view = replace(view, store_now_ms=now_ms)
    # WARN: J4, J9: after the log. The other way round: a lease is written while the janitor stalls between the
    # two reads, what it tags dies and gets old, and the plan knows the tombstones but not the lease.
    with phase("read what holds"):
        holds = read_holds(table, view=view, config=config, reader=caches.holds)
    with phase("plan"):
        plan = plan_vacuum(view, config=config, holds=holds)
    if plan.log_keys:
        # WARN: V4: after the log, for the same reason: a view is registered and a commit lands while the janitor stalls
        # between the two reads, is merged and gets old, and the plan knows the commit but not the view.
        wanted = find_wanted(table, view, read_view=caches.read_view or table.reader.of_table)
        if not wanted.isdisjoint(plan.log_keys):
            holds = holds.plus(Hold("view", files=wanted))
            plan = plan_vacuum(view, config=config, holds=holds)
    for path in plan.data_paths:
        if not path.startswith(paths.data_prefix):
            paths.partition_of(path)  # J6: raises: a damaged log must not make us delete another table's files
    # WARN: J2: staging is listed once, after the log was read. With G the grace period of log files and S = G/4, a log
    # file is expired when the store's clock has passed its tombstone by G, and no id in it lies more than S after
    # its commit. So whatever is staged after the log was read is staged later than its id's time plus G - S: too late
    # for rule I3, it is refused without a look at any log. All that could pass was staged before, and is listed here.
    decided = {i for ids in (*plan.batch_ids.values(), *plan.refused_ids.values()) for i in ids}
    staged = find_staged(table, decided)
    plan = _hold_decisions(plan, view, staged)
    lost = _find_lost(table, holds, view)
    if lost:
        plan = _hold_all(plan)
    planned = VacuumResult(True, plan.log_keys, plan.data_paths, plan.waiting, plan.store_now_ms, lost=lost)
    if dry_run or lost:
        return replace(planned, is_dry_run=dry_run)
    if not plan.is_empty:
        check_store_clock(table.store, paths.clock_key, clock=clock)  # J1: before anything goes by its age
    if any(waiting.guard == "publication" and waiting.until_ms is None for waiting in plan.waiting):
        # P5: nobody may ask for it any more. It holds for a grace period from then on.
        grace_ms = config.data_grace_ms
        retire_idle(table, clock=clock, data_grace_ms=grace_ms, is_holding=True, latest_ms=plan.store_now_ms)
    fields = ("data_grace_ms", "log_grace_ms", "seal_age_ms")
    policy = {name: getattr(config, name) for name in fields}
    facts = RunFacts("vacuum", plan.store_now_ms, policy, found_holds(holds))
    deleter = open_deleter(table, audit, facts, chunk_keys=bounds.chunk_keys)
    run = VacuumRun(table, view, plan, deleter=deleter, bounds=bounds)
    held_back_ms = max(0, heard_ms - plan.store_now_ms - took_ms)
    with phase("delete", log_files=len(plan.log_keys), data_files=len(plan.data_paths)):
        return run.delete_all(staged, replace(planned, is_dry_run=False, held_back_ms=held_back_ms))


def _hold_decisions(plan: VacuumPlan, view: LogView, staged: Mapping[str, tuple[StagedBatch, ...]]) -> VacuumPlan:
    """Keep the log files that have decided a batch which the next flush has to clear from staging (J2).

    Of a refused one that is staged nobody knows whether it is in quarantine (I5); one in a group goes with the others
    in it, whatever becomes of these. Without the log file it would be new, and might be committed by then. What such a
    log file lists as live waits with it.
    """
    grouped = {batch_id for batch_id, copies in staged.items() if any(copy.is_grouped for copy in copies)}
    held = {key for key, refused in plan.refused_ids.items() if not staged.keys().isdisjoint(refused)}
    held |= {key for key, batch_ids in plan.batch_ids.items() if not grouped.isdisjoint(batch_ids)}
    if not held:
        return plan
    held_data = live_paths((file for file in view.files if file.key in held), set(plan.data_paths))
    waiting = tuple(Waiting(path, "staged", None) for path in (*sorted(held), *sorted(held_data)))
    return replace(
        plan,
        log_keys=tuple(key for key in plan.log_keys if key not in held),
        batch_ids={key: ids for key, ids in plan.batch_ids.items() if key not in held},
        data_paths=tuple(path for path in plan.data_paths if path not in held_data),
        waiting=(*plan.waiting, *waiting),
    )


def _find_lost(table: Table, holds: Holds, view: LogView) -> tuple[str, ...]:
    if not find_lost(holds.landed, view):
        return ()
    return find_lost(holds.landed, table.read_log())  # it may have landed after the log was read


def _hold_all(plan: VacuumPlan) -> VacuumPlan:
    """Keep everything while a commit is lost (J2, F5)."""
    # WARN: who brings its log file back from a version of the bucket brings back what that lists as live. A merge may
    # have killed that before: once its tombstone is stripped, the rows would be there twice. No log file goes, either:
    # the horizon moves with it, and behind the horizon nobody can tell a lost commit from one that was deleted.
    waiting = tuple(Waiting(path, "lost", None) for path in (*plan.log_keys, *plan.data_paths))
    return replace(plan, log_keys=(), batch_ids={}, refused_ids={}, data_paths=(), waiting=(*plan.waiting, *waiting))


class VacuumRun:
    """Carries one plan out. For one thread, once.

    Args:
        view: The log that the plan was made from.
        plan: What may be deleted.
        deleter: Deletes, and writes down what.
        bounds: How much at once, and at most.
    """

    def __init__(
        self, table: Table, view: LogView, plan: VacuumPlan, *, deleter: Deleter, bounds: VacuumBounds
    ) -> None:
        self._table = table
        self._view = view
        self._plan = plan
        self._deleter = deleter
        self._bounds = bounds
        self._log_sizes = {file.key: file.size_bytes for file in view.files}
        self._failed: list[FailedDelete] = []
        self._conflicts: set[str] = set()
        self._gone_logs: set[str] = set()
        self._gone_data: set[str] = set()
        self._stripped_count = 0
        self._contended: set[str] = set()
        self._contents = {
            i: known for f in view.files if f.key in plan.batch_ids for i, known in f.log.contents.items()
        }
        self._handled_count = 0
        self._live: set[str] = set()
        self._remaining: dict[str, ListedLogFile] = {}
        self._current: dict[str, ListedLogFile] = {}

    def delete_all(self, staged: Mapping[str, tuple[StagedBatch, ...]], planned: VacuumResult) -> VacuumResult:
        """Delete what the plan says, in its order, and return the result with what has been done.

        Args:
            staged: Copies of batches that are staged, by id, listed after the log was read (J2).
            planned: The result as it was planned.

        Raises:
            InvariantViolated: The plan, or a strip, would change what is live: nothing of it was done.
            IceDBError: What the deleter was told to raise.
        """
        require_same_live(self._table.paths, self._view, self._without(set(self._plan.log_keys)))
        copies = {
            copy.key: (copy, key)
            for key, batch_ids in self._plan.batch_ids.items()
            for batch_id in batch_ids
            for copy in staged.get(batch_id, ())
        }
        gone_copies = self._delete_copies(copies)
        self._delete_log_files(stuck={copy.batch_id for copy, _ in copies.values() if copy.key not in gone_copies})
        has_more = self._delete_data_files()
        return replace(
            planned,
            deleted_copies=tuple(sorted(gone_copies)),
            deleted_logs=tuple(key for key in self._plan.log_keys if key in self._gone_logs),
            deleted_data=tuple(sorted(self._gone_data)),
            failed=tuple(self._failed),
            stripped_count=self._stripped_count,
            contended_count=len(self._contended),
            has_more=has_more,
            conflict_count=len(gone_copies & self._conflicts),
        )

    def _delete_copies(self, copies: Mapping[str, tuple[StagedBatch, str]]) -> set[str]:
        """Delete the staged copies of the batches that expired log files made live; return those that are gone."""
        # WARN: I8: not by the id alone. What a producer staged under it since may be other content, and nowhere else.
        deletable = [key for key, (copy, _) in copies.items() if self._may_delete_copy(copy)]
        return self._note(self._deleter.delete(self._copy_candidate(copy, copies[copy][1]) for copy in deletable))

    def _may_delete_copy(self, copy: StagedBatch) -> bool:
        """Return whether a staged copy may go: it is what was committed, or other content and in quarantine now."""
        known = self._contents.get(copy.batch_id, "")
        try:
            outcome = resolve_duplicate(self._table, copy, known=known, clock=self._table.clock)
        except (Unavailable, CommitOutcomeUnknown) as error:
            self._failed.append(FailedDelete(copy.key, str(error)))
            return False
        if outcome == "conflict":
            self._conflicts.add(copy.key)
        return outcome != "left"

    def _copy_candidate(self, copy: str, log_key: str) -> DeleteCandidate:
        why = f"its batch was committed by {log_name(log_key)}, which goes as well"
        if copy in self._conflicts:
            why += "; it is not certainly the same content, and is in quarantine as an entry of its own"
        return DeleteCandidate(copy, "staged_batch", why, LOG_GUARDS)

    def _delete_log_files(self, *, stuck: set[str]) -> None:
        # WARN: a log file is what keeps a retried batch from being committed again (I3). Its staged objects go first:
        # a copy that a producer staged again and that no flush has seen yet would otherwise be new to the log.
        kept = {key for key, batch_ids in self._plan.batch_ids.items() if not stuck.isdisjoint(batch_ids)}
        self._gone_logs = self._note(
            self._deleter.delete(self._log_candidate(key) for key in self._plan.log_keys if key not in kept)
        )
        # Log files that an earlier run deleted without getting to the strip.
        present = {file.key for file in self._view.files}
        self._gone_logs |= {t.path for f in self._view.files for t in f.log.log_tombstones if t.path not in present}

    def _delete_data_files(self) -> bool:
        """Delete data files part by part, and strip after each part; return whether some are left."""
        remaining = self._without(self._gone_logs)
        require_same_live(self._table.paths, self._view, remaining)
        # All that a strip may forget is a tombstone of one of them.
        said = (markers_of(file.key, file.log.markers) for file in remaining)
        self._live = live_paths(remaining, {path for markers in said for path in markers.dead_paths()})
        dead = {tombstone.path for file in self._view.files for tombstone in file.log.log_tombstones}
        self._remaining = {file.key: file for file in remaining if file.key not in dead}
        max_objects, part_files = self._bounds.max_objects, self._bounds.chunk_keys
        if max_objects is not None:
            part_files = max(1, min(part_files, max_objects))
        done_count = 0
        for part in cut_parts(tuple(self._remaining.values()), self._find_deletable(), part_files=part_files):
            # A log file's portions follow each other: what was decoded of those before is needed no more.
            keys = {portion.log_key for portion in part}
            self._current = {key: file for key, file in self._current.items() if key in keys}
            portions = [portion for portion in part if portion.log_key not in self._contended]
            candidates = [marker for portion in portions for marker in portion.markers]
            if candidates and max_objects is not None and done_count >= max_objects:
                return True
            try:
                for done in self._deleter.delete_chunks(self._data_candidates(portions)):
                    self._gone_data |= self._note(done)
            except IceDBError:
                # Stopped between two chunks, by whoever waits or for want of time. A part may take longer than a run
                # may: unless what is gone of it is stripped now, no run ever gets further.
                self._strip_part(portions)
                raise
            self._strip_part(portions)
            # WARN: without those whose log file could not be stripped. They stand in the log as before, and would fill
            # each run to its bound, at once again and for ever, with deletes of what is gone; the others never go.
            kept = (portion for portion in portions if portion.log_key not in self._contended)
            done_count += sum(marker.path in self._gone_data for portion in kept for marker in portion.markers)
        return False

    def _find_deletable(self) -> set[str]:
        """Return the expired data files that no log file lists as live: one that stayed still does (J2)."""
        return set(self._plan.data_paths) - self._live

    def _strip_part(self, portions: Iterable[Portion]) -> None:
        # WARN: only after the deletes, and only of what is certainly gone: a marker that is stripped before its data
        # file is deleted leaves an orphan behind when the run dies in between, or when the delete fails.
        for portion in portions:
            self._strip(portion.log_key)

    def _strip(self, key: str) -> None:
        file = self._current.get(key) or self._remaining[key]
        if not is_strip_due(file, self._view, gone_logs=self._gone_logs, gone_data=self._gone_data):
            return
        # Whole, with statistics: what stays is written again.
        file = replace(file, log=replace(file.log, markers=tuple(file.log.markers)))
        log = strip_log_file(file, self._view, gone_logs=self._gone_logs, gone_data=self._gone_data)
        if log is None:
            return
        require_strip(self._table.paths, file, log, live=self._live)
        body = encode_log_file(log)
        try:
            etag = self._table.store.put_if_match(file.key, body, etag=file.etag)  # J3
        except (PreconditionFailed, CommitOutcomeUnknown):
            self._contended.add(key)  # another janitor is at it, or nobody knows: the next run reads it again
            return
        self._stripped_count += 1
        # modified_ms stays the older one: that is the proof of landing of what the strip before has carried (J1).
        self._current[key] = replace(file, etag=etag, size_bytes=len(body), log=log)

    def _without(self, keys: set[str]) -> tuple[ListedLogFile, ...]:
        return tuple(file for file in self._view.files if file.key not in keys)

    def _note(self, done: Deleted) -> set[str]:
        self._failed.extend(done.failed)
        self._handled_count += len(done.keys) + len(done.failed)
        planned_count = len(self._plan.log_keys) + len(self._plan.data_paths)
        tell_progress("deleting", self._handled_count, max(planned_count, self._handled_count))
        return set(done.keys)

    def _log_candidate(self, key: str) -> DeleteCandidate:
        death, size_bytes = self._plan.died.get(key), self._log_sizes[key]
        if death is None:
            return DeleteCandidate(key, "log_file", "a seal whose age has passed", ("seal_age",), size_bytes=size_bytes)
        killer = log_name(self._plan.merged_into[key])
        why = f"merged away at {format_ms(death.tombstoned_ms)} by {killer}, landed by {format_ms(death.landed_ms)}"
        return DeleteCandidate(key, "log_file", why, LOG_GUARDS, died_ms=death.died_ms, size_bytes=size_bytes)

    def _data_candidates(self, portions: Iterable[Portion]) -> Iterator[DeleteCandidate]:
        reasons: dict[Death, str] = {}
        for marker in (marker for portion in portions for marker in portion.markers):
            death = self._plan.died[marker.path]
            why = reasons.get(death)
            if why is None:
                tombstoned, landed = format_ms(death.tombstoned_ms), format_ms(death.landed_ms)
                why = reasons[death] = f"tombstoned at {tombstoned}, landed by {landed}"
            yield DeleteCandidate(
                marker.path, "data_file", why, DATA_GUARDS, died_ms=death.died_ms, size_bytes=marker.size_bytes
            )
