"""What a vacuum does with its plan, in the one safe order (rules J2, J3, J6).

Order: staged copies of the batches that expired log files made live, expired log files, then part by part: expired
data files that no remaining log file lists as live, and the strip of the log files that name them. Each step works only
on what the step before has certainly done. A crash anywhere leaves a table that the next run cleans; what was stripped
by then is not looked at again. Any number of runs may overlap.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from icedb_log.clean.deletion import Deleted, Deleter, Doomed
from icedb_log.clean.guards import DATA_GUARDS, LOG_GUARDS, Death
from icedb_log.clean.vacuum_plan import Portion, VacuumPlan, cut_parts, live_paths, strip_log_file
from icedb_log.clock import format_ms
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, PreconditionFailed, Unavailable
from icedb_log.ingest.refusals import settle_copy
from icedb_log.keys import log_name
from icedb_log.log.codec import encode_log_file
from icedb_log.log.invariants import require_same_live, require_strip
from icedb_log.model import ListedLogFile, LogView
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table


@dataclass(frozen=True, slots=True)
class DoneVacuum:
    """What a run has done.

    Attributes:
        copies: Staged copies that are gone.
        conflict_count: Those of them that are in quarantine now (I8).
        log_keys: Log files that are gone.
        data_paths: Data files that are gone.
        failed: What could not be deleted, and why.
        stripped_count: Log files replaced by a shorter version, each as often as it was.
        contended_count: Log files that changed under the strip.
        has_more: Whether the run was bounded before it came to the end of its plan.
    """

    copies: tuple[str, ...]
    log_keys: tuple[str, ...]
    data_paths: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    stripped_count: int
    contended_count: int
    has_more: bool
    conflict_count: int = 0


class VacuumRun:
    """Carries one plan out. For one thread, once.

    Args:
        table: The table.
        view: The log that the plan was made from.
        plan: What may be deleted.
        deleter: Deletes, and writes down what.
        part_files: Data files that are deleted between strips, at least.
    """

    def __init__(
        self,
        table: Table,
        *,
        view: LogView,
        plan: VacuumPlan,
        deleter: Deleter,
        part_files: int,
    ) -> None:
        self._clock = table.clock
        self._store = table.store
        self._paths = table.paths
        self._view = view
        self._plan = plan
        self._deleter = deleter
        self._part_files = part_files
        self._log_sizes = {file.key: file.size_bytes for file in view.files}
        self._failed: list[FailedDelete] = []
        self._gone_copies: set[str] = set()
        self._conflicts: set[str] = set()
        self._gone_logs: set[str] = set()
        self._gone_data: set[str] = set()
        self._stripped_count = 0
        self._contended: set[str] = set()
        self._contents = {
            i: known for f in view.files if f.key in plan.batch_ids for i, known in f.log.contents.items()
        }
        self._live: set[str] = set()
        self._current: dict[str, ListedLogFile] = {}

    def delete_all(self, staged: Mapping[str, tuple[str, ...]], *, max_objects: int | None = None) -> DoneVacuum:
        """Delete what the plan says, in its order.

        Args:
            staged: Copies of batches that are staged, by id, listed after the log was read (J2).
            max_objects: Begin no further part after so many deleted data files.

        Raises:
            InvariantViolated: The plan, or a strip, would change what is live: nothing of it was done.
            IceDBError: What the deleter was told to raise.
        """
        require_same_live(self._paths, self._view, self._without(set(self._plan.log_keys)))
        self._delete_log_files(stuck=self._delete_copies(staged))
        has_more = self._delete_data_files(max_objects)
        return DoneVacuum(
            copies=tuple(sorted(self._gone_copies)),
            log_keys=tuple(key for key in self._plan.log_keys if key in self._gone_logs),
            data_paths=tuple(sorted(self._gone_data)),
            failed=tuple(self._failed),
            stripped_count=self._stripped_count,
            contended_count=len(self._contended),
            has_more=has_more,
            conflict_count=len(self._gone_copies & self._conflicts),
        )

    def _delete_copies(self, staged: Mapping[str, tuple[str, ...]]) -> set[str]:
        """Delete the staged copies of the batches that expired log files made live; return the ids of those left."""
        copies = {
            copy: (batch_id, key)
            for key, batch_ids in self._plan.batch_ids.items()
            for batch_id in batch_ids
            for copy in staged.get(batch_id, ())
        }
        # WARN: I8: not by the id alone. What a producer staged under it since may be other content, and nowhere else.
        settled = [copy for copy, (batch_id, _) in copies.items() if self._settle(copy, batch_id)]
        self._gone_copies = self._delete(self._doom_copy(copy, copies[copy][1]) for copy in settled)
        return {batch_id for copy, (batch_id, _) in copies.items() if copy not in self._gone_copies}

    def _settle(self, copy: str, batch_id: str) -> bool:
        """Return whether a staged copy may go: it is what was committed, or other content and in quarantine now."""
        known = self._contents.get(batch_id, "")
        try:
            settled = settle_copy(TableStore(self._store, self._paths), copy, known=known, clock=self._clock)
        except (Unavailable, CommitOutcomeUnknown) as error:
            self._failed.append(FailedDelete(copy, str(error)))
            return False
        if settled == "conflict":
            self._conflicts.add(copy)
        return settled != "left"

    def _doom_copy(self, copy: str, log_key: str) -> Doomed:
        why = f"its batch was committed by {log_name(log_key)}, which goes as well"
        if copy in self._conflicts:
            why += "; it is not certainly the same content, and is in quarantine as an entry of its own"
        return Doomed(copy, "staged_batch", why, LOG_GUARDS)

    def _delete_log_files(self, *, stuck: set[str]) -> None:
        # WARN: a log file is what keeps a retried batch from being committed again (I3). Its staged objects go first:
        # a copy that a producer staged again and that no flush has seen yet would otherwise be new to the log.
        kept = {key for key, batch_ids in self._plan.batch_ids.items() if not stuck.isdisjoint(batch_ids)}
        self._gone_logs = self._delete(self._doom_log(key) for key in self._plan.log_keys if key not in kept)
        # Log files that an earlier run deleted without getting to the strip.
        present = {file.key for file in self._view.files}
        self._gone_logs |= {t.path for f in self._view.files for t in f.log.log_tombstones if t.path not in present}

    def _delete_data_files(self, max_objects: int | None) -> bool:
        """Delete data files part by part, and strip after each part; return whether some are left."""
        remaining = self._without(self._gone_logs)
        require_same_live(self._paths, self._view, remaining)
        self._live = live_paths(remaining)
        dead = {tombstone.path for file in self._view.files for tombstone in file.log.log_tombstones}
        self._current = {file.key: file for file in remaining if file.key not in dead}
        part_files = self._part_files if max_objects is None else max(1, min(self._part_files, max_objects))
        done_count = 0
        for part in cut_parts(tuple(self._current.values()), self._find_deletable(), part_files=part_files):
            portions = [portion for portion in part if portion.log_key not in self._contended]
            doomed = [marker for portion in portions for marker in portion.markers]
            if doomed and max_objects is not None and done_count >= max_objects:
                return True
            try:
                for done in self._deleter.delete_chunks(self._doom_data(portions)):
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
        file = self._current[key]
        log = strip_log_file(file, self._view, gone_logs=self._gone_logs, gone_data=self._gone_data)
        if log is None:
            return
        require_strip(self._paths, file, log, live=self._live)
        body = encode_log_file(log)
        try:
            etag = self._store.put_if_match(file.key, body, etag=file.etag)  # J3
        except (PreconditionFailed, CommitOutcomeUnknown):
            self._contended.add(key)  # another janitor is at it, or nobody knows: the next run reads it again
            return
        self._stripped_count += 1
        # modified_ms stays the older one: that is the proof of landing of what the strip before has carried (J1).
        self._current[key] = replace(file, etag=etag, size_bytes=len(body), log=log)

    def _without(self, keys: set[str]) -> tuple[ListedLogFile, ...]:
        return tuple(file for file in self._view.files if file.key not in keys)

    def _delete(self, doomed: Iterable[Doomed]) -> set[str]:
        return self._note(self._deleter.delete(doomed))

    def _note(self, done: Deleted) -> set[str]:
        self._failed.extend(done.failed)
        return set(done.keys)

    def _doom_log(self, key: str) -> Doomed:
        death = self._plan.died.get(key)
        if death is None:
            return Doomed(
                key, "log_file", "a seal whose age has passed", ("seal_age",), size_bytes=self._log_sizes[key]
            )
        killer = log_name(self._plan.merged_into[key])
        why = f"merged away at {format_ms(death.tombstoned_ms)} by {killer}, landed by {format_ms(death.landed_ms)}"
        return Doomed(key, "log_file", why, LOG_GUARDS, died_ms=death.died_ms, size_bytes=self._log_sizes[key])

    def _doom_data(self, portions: Iterable[Portion]) -> Iterator[Doomed]:
        reasons: dict[Death, str] = {}
        for marker in (marker for portion in portions for marker in portion.markers):
            death = self._plan.died[marker.path]
            why = reasons.get(death)
            if why is None:
                tombstoned, landed = format_ms(death.tombstoned_ms), format_ms(death.landed_ms)
                why = reasons[death] = f"tombstoned at {tombstoned}, landed by {landed}"
            yield Doomed(
                marker.path, "data_file", why, DATA_GUARDS, died_ms=death.died_ms, size_bytes=marker.size_bytes
            )
