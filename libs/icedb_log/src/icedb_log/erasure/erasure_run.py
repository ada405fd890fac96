"""Carries an erasure on: deletes the rows, finds what has to be gone, and waits until it is (E2 to E6).

Order: the batches that were accepted before the request are committed; the rows are deleted from everything that is
live, in one commit under the fence of ``merge``; then, and never before, the dead and the unnamed data objects are
looked through. From there on only the janitor deletes, in its own time. It is complete when every object is proved
absent, no log file names one (its statistics are gone, too), and a last look at all data objects finds nothing new.

A deletion is written down before it is committed, and what became of it is found out later: a crash behind a commit
would otherwise lose how many rows it removed, and which files held them (E3). Each step may be repeated, cut short
anywhere, and run by any number of workers at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from icedb_log.clean.guards import STORE_RESOLUTION_MS
from icedb_log.erasure.erasure_scan import (
    DataObjects,
    count_covered,
    count_staged_until,
    find_not_covered,
    read_objects,
)
from icedb_log.erasure.erasures import (
    DeletedFile,
    DeletionRun,
    Erasure,
    ErasureTarget,
    NamedObjects,
    change_erasure,
    close_erasure,
    find_closed,
    mark_gone,
    read_erasure,
    require_dialect,
)
from icedb_log.errors import Fenced, InvalidRequest, NotFound
from icedb_log.jobs import MergedGroup, RowChanger
from icedb_log.keys import parse_log_key
from icedb_log.log.fence import acquire_fence
from icedb_log.log.fold import named_paths, read_horizon_ms
from icedb_log.model import FileMarker, LogView
from icedb_log.publish.ending import count_withdrawn, withdraw_publications
from icedb_log.table.row_changes import ChangeResult, delete_rows
from icedb_log.table.table import Table
from icedb_log.table.table_config import DIALECT

MAX_PROBES: Final = 16
"""Targets that are looked for one by one before all data objects are listed."""

MAX_FILES_TO_REWRITE: Final = 20_000
"""Data files that one erasure may rewrite: all of them stand in its record, of which each step reads the whole. With so
many it has 6 MB and takes a second to parse."""

MAX_RUNS: Final = 5
"""So many deletions may fail before one that takes too long (W3) is not tried again."""

MAX_NAMED: Final = 100
"""Erasures that a description names."""

WaitsFor = Literal["nothing", "flush", "janitor"]


@dataclass(frozen=True, slots=True)
class ErasureProgress:
    """How far an erasure is.

    Attributes:
        erasure: Its record.
        waits_for: ``flush``: accepted batches have to be committed first; ``janitor``: objects, or what the log says
            of them, have to be deleted; ``nothing``: it has ended.
        waiting_count: Batches or objects.
        has_changed: Whether this run changed the record.
    """

    erasure: Erasure
    waits_for: WaitsFor
    waiting_count: int
    has_changed: bool


def advance_erasure(table: Table, changer: RowChanger, erasure_id: str) -> ErasureProgress:
    """Carry one erasure on as far as it goes now. Idempotent; any number of runs may overlap.

    This host's clock decides nothing about times in the record.

    Raises:
        NotFound: No such erasure, or a live data file is missing.
        InvalidRequest: The condition fits no more, although rows may have been deleted by it already.
        Fenced: Another run took over; it goes on.
        CommitConflict: Others kept changing something; run again.
        CommitOutcomeUnknown: The next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer.
    """
    before = read_erasure(table, erasure_id)
    try:
        erasure, waits_for, count = _ErasureRun(table, changer).advance(before)
    except NotFound:
        ended = read_erasure(table, erasure_id)
        if not ended.is_closed:
            raise
        erasure, waits_for, count = ended, "nothing", 0  # another worker has just closed it
    return ErasureProgress(erasure, waits_for, count, has_changed=erasure != before)


def describe_preview(result: ChangeResult) -> dict[str, Any]:
    """Return what an erasure would remove as the result of a task."""
    return {
        "rows": result.rows_removed,
        "files": result.file_count,
        "bytes": result.input_bytes,
        "files_counted": result.scanned_count,
        "partitions": len(result.partitions),
    }


def describe_progress(progress: Sequence[ErasureProgress]) -> dict[str, Any]:
    """Return how far erasures are as the result of a task; the counts are of all, also of what it does not name."""
    return {
        "open": sum(not each.erasure.is_closed for each in progress),
        "closed": sum(each.erasure.is_closed for each in progress),
        "erasures": [
            {
                "id": each.erasure.erasure_id,
                "state": each.erasure.state,
                "waits_for": each.waits_for,
                "waiting": each.waiting_count,
            }
            for each in progress[:MAX_NAMED]
        ],
    }


class _ErasureRun:
    """What a step of an erasure needs."""

    def __init__(self, table: Table, changer: RowChanger) -> None:
        self._table: Final = table
        self._changer: Final = changer

    def advance(self, erasure: Erasure) -> tuple[Erasure, WaitsFor, int]:
        table = self._table
        if erasure.state == "requested":
            ended = find_closed(table, erasure.erasure_id)
            if ended is not None:
                # W2: the request's own PUT landed once more, after all was over.
                return close_erasure(table, ended), "nothing", 0
            # E2: S3 tells LastModified in whole seconds, as it tells its clock: one more is waited for.
            staged_count = count_staged_until(table, erasure.requested_ms + STORE_RESOLUTION_MS)
            if staged_count:
                return erasure, "flush", staged_count
            erasure = self._delete(erasure)
            if erasure.state == "requested":
                # WARN: E5: after the deletion, before the record says that it is done. Before the deletion: a state
                # from before it is published, with the bounds of what is to be gone. Afterwards: a run that dies in
                # between leaves it to nobody.
                withdraw_publications(table, clock=table.clock)
                erasure = self._find_targets(erasure)
        waiting_count = 0
        if erasure.state == "deleted":
            erasure, waiting_count = self._look(erasure)
        if erasure.is_closed:
            return close_erasure(table, erasure), "nothing", 0
        return erasure, "janitor", waiting_count

    def _change(self, erasure: Erasure, change: Callable[[Erasure], Erasure]) -> Erasure:
        return change_erasure(self._table, erasure.erasure_id, change)

    def _read_again(self, erasure: Erasure) -> Erasure:
        return self._change(erasure, lambda now: now)

    # Delete.

    def _delete(self, erasure: Erasure) -> Erasure:
        """Delete the rows from everything that is live (E3); refuse the erasure if that cannot be done."""
        erasure = self._settle_runs(erasure)
        require_dialect(erasure)
        if any(run.has_landed and run.dialect == erasure.dialect for run in erasure.runs):
            return erasure
        try:
            delete_rows(self._table, self._changer, erasure.condition, note=partial(self._note_run, erasure))
        except InvalidRequest as error:
            reason = str(error)
            erasure = self._settle_runs(self._read_again(erasure))
            # That it takes too long (W3) may be the worker's fault: it slept. All else says that it cannot be done.
            is_final = not isinstance(error.__cause__, TimeoutError) or len(erasure.runs) >= MAX_RUNS
            if not is_final or any(run.has_landed is None for run in erasure.runs):
                raise
            if any(run.has_landed for run in erasure.runs):
                return erasure
            now_ms = self._table.read_store_clock()
            return self._change(erasure, lambda now: _refused(now, erasure, reason=reason, now_ms=now_ms))
        return self._settle_runs(self._read_again(erasure))

    def _note_run(
        self,
        erasure: Erasure,
        commit_id: str,
        begun_ms: int,
        groups: Sequence[MergedGroup],
        counts: Mapping[str, int],
    ) -> None:
        """Write a run down before its commit.

        Raises:
            InvalidRequest: More files than one erasure may rewrite.
            Fenced: Another worker has gone on, or ended it.
        """
        inputs = [marker for group in groups for marker in group.group.inputs]
        if len(inputs) > MAX_FILES_TO_REWRITE:
            raise InvalidRequest(
                f"table {self._table.name}: more than {MAX_FILES_TO_REWRITE} data files hold such rows; erase in "
                "several steps, each with a condition on the partition columns, or merge the table first"
            )
        run = DeletionRun(
            commit_id=commit_id,
            begun_ms=begun_ms,
            row_count=sum(group.rows_removed or 0 for group in groups),
            files=tuple(DeletedFile(key=m.path, size_bytes=m.size_bytes, row_count=counts.get(m.path)) for m in inputs),
            dialect=DIALECT,
        )
        try:
            self._change(erasure, lambda now: _with_run(now, run))
        except NotFound as error:  # to be told from a data file that is missing
            raise Fenced(
                f"table {self._table.name}: erasure {erasure.erasure_id} has ended by another worker's doing"
            ) from error

    def _settle_runs(self, erasure: Erasure) -> Erasure:
        """Find out which of the deletions in a record landed. None of them is under way behind this (F1)."""
        if all(run.has_landed is not None for run in erasure.runs):
            return erasure
        view = self._table.read_log()
        erasure = self._change(erasure, lambda now: _with_fates(now, view))
        open_ids = {run.commit_id for run in erasure.runs if run.has_landed is None}
        if not open_ids:
            return erasure
        acquire_fence(self._table, "merge").release()
        view = self._table.read_log()
        return self._change(erasure, lambda now: _with_fates(now, view, over=open_ids))

    # Find.

    def _find_targets(self, erasure: Erasure) -> Erasure:
        """Find every object that is not live and holds such rows.

        WARN: E4: after the deletion. Before it: a merge takes a file that is live to this look, which passes it over,
        and writes its rows elsewhere; the deletion finds only what the merge wrote, and the input, dead now, is missed.
        """
        objects = read_objects(self._table)
        due_ms = objects.due_ms(self._table.config)
        live = {marker.path for marker in objects.snapshot.live}
        rewritten = {
            file.key: file
            for run in erasure.runs
            if run.has_landed is not False
            for file in run.files
            if file.key not in live
        }
        targets = [
            ErasureTarget(
                key=file.key,
                size_bytes=file.size_bytes,
                row_count=file.row_count,
                reason="rewritten",
                due_ms=due_ms.get(file.key),
            )
            for file in rewritten.values()
        ]
        others = [marker for marker in (*objects.dead(), *objects.unnamed()) if marker.path not in rewritten]
        targets += self._find_covered(erasure, others, objects, due_ms=due_ms)
        not_covered = find_not_covered(self._table, objects.listing)
        quarantined = erasure.not_covered.quarantine.plus(not_covered.quarantine)
        update = {
            "state": "deleted",
            "deleted_ms": objects.listing.store_now_ms,
            "targets": tuple(sorted(targets, key=lambda target: target.key)),
            "not_covered": not_covered.model_copy(update={"quarantine": quarantined}),
        }
        return self._change(erasure, lambda now: now.model_copy(update=update) if now.state == "requested" else now)

    def _find_covered(
        self,
        erasure: Erasure,
        markers: Sequence[FileMarker],
        objects: DataObjects,
        *,
        due_ms: Mapping[str, int] | None = None,
    ) -> list[ErasureTarget]:
        """Return those of some data files that are not live which hold such rows, or may."""
        if not markers:
            return []
        require_dialect(erasure)
        found = count_covered(self._table, self._changer, erasure.condition, markers, objects)
        if not found:
            return []
        sizes, unnamed = objects.sizes(), {marker.path for marker in objects.unnamed()}
        due_ms = objects.due_ms(self._table.config) if due_ms is None else due_ms
        return [
            ErasureTarget(
                key=key,
                size_bytes=sizes.get(key),
                row_count=row_count,
                reason="orphan" if key in unnamed else "tombstoned",
                due_ms=due_ms.get(key),
            )
            for key, row_count in sorted(found.items())
        ]

    # Look.

    def _look(self, erasure: Erasure) -> tuple[Erasure, int]:
        """Look whether what has to be gone is gone; return the record and how many objects are not."""
        if any(target.reason == "orphan" for target in erasure.open_targets):
            named = named_paths(self._table.read_log().files)
            erasure = self._change(erasure, lambda now: _without_late(now, named))
        if self._is_there(erasure):
            return erasure, len(erasure.open_targets)
        # WARN: E5: of the listing that follows only these are told to be gone. What another worker adds to the record
        # meanwhile may have been uploaded after this listing, which does not have it for that reason.
        known = {target.key for target in erasure.targets}
        objects = read_objects(self._table)
        named, present = objects.named(), objects.sizes()
        now_ms = objects.listing.store_now_ms

        def change(now: Erasure) -> Erasure:
            now = _without_late(_found_again(now, present), named)
            return mark_gone(now, _find_gone(now, known, present), gone_ms=now_ms, known_by="absent")

        erasure = self._change(erasure, change)
        # E5: the janitor's word gives a time, this listing gives the proof.
        waiting = _find_open(erasure, _find_gone(erasure, known, present), named)
        count = len(waiting)
        if not waiting and erasure.state == "deleted":
            count = count_withdrawn(self._table)  # E5: what was published holds bounds of what was erased
        if count or erasure.state != "deleted":
            return erasure, count
        return self._look_at_all(erasure, objects)

    def _is_there(self, erasure: Erasure) -> bool:
        """Whether one of the first few targets certainly exists: then there is no use in listing all objects."""
        return any(
            any(info.key == target.key for info in self._table.store.list_page(target.key, limit=1).objects)
            for target in erasure.open_targets[:MAX_PROBES]
        )

    def _look_at_all(self, erasure: Erasure, objects: DataObjects) -> tuple[Erasure, int]:
        """Complete an erasure whose targets are gone, unless unnamed objects hold such rows (E6).

        A run that lost the fence may have uploaded such objects after the deletion. But so may a flush that is about to
        commit rows which came after the request: what one look finds counts only if it is not committed by the next.
        Otherwise a table that takes in such rows all the time would keep the erasure open for ever.
        """
        now_ms = objects.listing.store_now_ms
        if _found_nothing(erasure):
            checked_ms = erasure.checked_ms or now_ms
            return self._change(erasure, lambda now: _completed(now, erasure, now_ms, checked_ms)), 0
        found = self._find_covered(erasure, objects.unnamed(), objects)
        if not found:
            return self._change(erasure, lambda now: _completed(now, erasure, now_ms, now_ms)), 0
        update = {
            "targets": (*erasure.targets, *found),
            "suspects": tuple(target.key for target in found),
            "checked_ms": now_ms,
        }
        changed = self._change(erasure, lambda now: now.model_copy(update=update) if now == erasure else now)
        return changed, len(found)


# Changes of a record.


def _with_run(erasure: Erasure, run: DeletionRun) -> Erasure:
    """Return a record with a run in it. Raises Fenced if another worker has gone on with the erasure meanwhile."""
    if erasure.state != "requested":
        raise Fenced(
            f"table {erasure.table}: erasure {erasure.erasure_id} is {erasure.state} by another worker's doing"
        )
    others = tuple(known for known in erasure.runs if known.commit_id != run.commit_id)
    return erasure.model_copy(update={"runs": (*others, run)})


def _with_fates(erasure: Erasure, view: LogView, *, over: Collection[str] = ()) -> Erasure:
    """Return a record that says of its runs what the log tells.

    Args:
        erasure: The record.
        view: The log, read after whatever keeps runs from landing.
        over: Commit ids of the runs that have landed or never will (F1).
    """
    if erasure.state != "requested":
        return erasure
    runs = tuple(_with_fate(run, view, is_over=run.commit_id in over) for run in erasure.runs)
    return erasure.model_copy(update={"runs": runs})


def _with_fate(run: DeletionRun, view: LogView, *, is_over: bool) -> DeletionRun:
    if run.has_landed is not None:
        return run
    # A seal stands where a commit did not land, and is never merged away (F1, F4): a log tombstone means a landed one.
    named = [file.key for file in view.files if not file.log.is_seal]
    named += [tombstone.path for file in view.files for tombstone in file.log.log_tombstones]
    key = next((key for key in named if parse_log_key(key).commit_id == run.commit_id), None)
    if key is not None:
        return run.model_copy(update={"has_landed": True, "log_key": key})
    # R3: a log file that landed and was deleted since was tombstoned later than the run began.
    was_forgotten = read_horizon_ms(view) > run.begun_ms
    return run.model_copy(update={"has_landed": False}) if is_over and not was_forgotten else run


def _without_late(erasure: Erasure, named: Collection[str]) -> Erasure:
    """Return a record without the unnamed objects that were committed since: their rows came after the request."""
    late = {target.key for target in erasure.open_targets if target.reason == "orphan" and target.key in named}
    if erasure.is_closed or not late:
        return erasure
    known = erasure.not_covered.late
    names = NamedObjects(count=known.count + len(late), names=NamedObjects.of({*known.names, *late}).names)
    return erasure.model_copy(
        update={
            "targets": tuple(target for target in erasure.targets if target.key not in late),
            "not_covered": erasure.not_covered.model_copy(update={"late": names}),
        }
    )


def _found_again(erasure: Erasure, present: Collection[str]) -> Erasure:
    """Return a record in which nothing is gone that is there (E5)."""
    if erasure.is_closed or not any(target.gone_ms and target.key in present for target in erasure.targets):
        return erasure
    targets = tuple(
        target.model_copy(update={"gone_ms": None, "known_by": None}) if target.key in present else target
        for target in erasure.targets
    )
    return erasure.model_copy(update={"targets": targets})


def _refused(now: Erasure, seen: Erasure, *, reason: str, now_ms: int) -> Erasure:
    """Return a record that is refused, unless somebody has gone on with it since."""
    if now != seen:
        return now
    return now.model_copy(update={"state": "refused", "refusal": reason, "completed_ms": now_ms})


def _find_gone(erasure: Erasure, known: Collection[str], present: Mapping[str, object]) -> set[str]:
    """Return which targets a listing proves to be gone: of those that were known before it (E5)."""
    return {target.key for target in erasure.targets if target.key in known} - present.keys()


def _find_open(erasure: Erasure, gone: Collection[str], named: Collection[str]) -> set[str]:
    """Return which targets stay open: a log file that still names one may hold its statistics (E5)."""
    return {target.key for target in erasure.targets if target.key not in gone or target.key in named}


def _found_nothing(erasure: Erasure) -> bool:
    """Whether all that the last look found was committed since, so that it had found nothing (E6)."""
    return bool(erasure.suspects) and not {target.key for target in erasure.targets} & set(erasure.suspects)


def _completed(now: Erasure, seen: Erasure, now_ms: int, checked_ms: int) -> Erasure:
    """Return a record that is complete, unless it changed since what it says was proved."""
    if now != seen:
        return now
    return now.model_copy(update={"state": "complete", "completed_ms": now_ms, "checked_ms": checked_ms})
