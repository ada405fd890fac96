"""Carries an erasure on: deletes the rows, finds what has to be gone, and waits until it is (E2 to E6).

Order: the batches that were accepted before the request are committed; the rows are deleted from everything that is
live, in one commit under the fence of ``merge``; then, and never before, the dead and the unnamed data objects are
looked through. From there on only the janitor deletes, in its own time. It is complete when every object is proved
absent, no log file names one (its statistics are gone, too), and a last look at all data objects finds nothing new.

Each step may be repeated, cut short anywhere, and run by any number of workers at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.clean.guards import STORE_RESOLUTION_MS
from icedb_log.erasure.erasure_deletion import MAX_RUNS, RunRecorder, with_fates, with_run
from icedb_log.erasure.erasure_record import DeletionRun, Erasure, ErasureTarget, NamedObjects, mark_gone
from icedb_log.erasure.erasure_scan import (
    DataObjects,
    count_covered,
    count_staged_until,
    find_not_covered,
    read_objects,
)
from icedb_log.erasure.erasures import change_erasure, close_erasure, find_closed, read_erasure, require_dialect
from icedb_log.errors import Fenced, InvalidRequest, NotFound
from icedb_log.jobs import RowChanger
from icedb_log.log.fence import acquire_fence
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore
from icedb_log.table.row_changes import delete_rows
from icedb_log.table.table import Table

MAX_PROBES: Final = 16
"""Targets that are looked for one by one before all data objects are listed."""

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

    Args:
        table: The table. This host's clock decides nothing about times in the record.
        changer: Counts and rewrites.
        erasure_id: Of the record.

    Raises:
        NotFound: No such erasure, or a live data file is missing.
        InvalidRequest: The condition fits no more, although rows may have been deleted by it already.
        Fenced: Another run took over; it goes on.
        CommitConflict: Others kept changing something; run again.
        CommitOutcomeUnknown: The next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer.
    """
    store, paths = table.store, table.paths
    before = read_erasure(TableStore(store, paths), erasure_id)
    run = _ErasureRun(table, changer)
    try:
        erasure, waits_for, count = run.advance(before)
    except NotFound:
        ended = read_erasure(TableStore(store, paths), erasure_id)
        if not ended.is_closed:
            raise
        erasure, waits_for, count = ended, "nothing", 0  # another worker has just closed it
    return ErasureProgress(erasure, waits_for, count, has_changed=erasure != before)


class _ErasureRun:
    """What a step of an erasure needs."""

    def __init__(self, table: Table, changer: RowChanger) -> None:
        self._table: Final = table
        self._store: Final = table.store
        self._paths: Final = table.paths
        self._config: Final = table.config
        self._reader: Final = table.reader
        self._changer: Final = changer

    def advance(self, erasure: Erasure) -> tuple[Erasure, WaitsFor, int]:
        if erasure.state == "requested":
            ended = find_closed(TableStore(self._store, self._paths), erasure.erasure_id)
            if ended is not None:
                # W2: the request's own PUT landed once more, after all was over.
                return close_erasure(TableStore(self._store, self._paths), ended), "nothing", 0
            # E2: S3 tells LastModified in whole seconds, as it tells its clock: one more is waited for.
            until_ms = erasure.requested_ms + STORE_RESOLUTION_MS
            staged_count = count_staged_until(TableStore(self._store, self._paths), until_ms)
            if staged_count:
                return erasure, "flush", staged_count
            erasure = self._delete(erasure)
            if erasure.state == "requested":
                erasure = self._find_targets(erasure)
        waiting_count = 0
        if erasure.state == "deleted":
            erasure, waiting_count = self._look(erasure)
        if erasure.is_closed:
            return close_erasure(TableStore(self._store, self._paths), erasure), "nothing", 0
        return erasure, "janitor", waiting_count

    def _change(self, erasure: Erasure, change: Callable[[Erasure], Erasure]) -> Erasure:
        return change_erasure(TableStore(self._store, self._paths), erasure.erasure_id, change)

    # ── delete ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _delete(self, erasure: Erasure) -> Erasure:
        """Delete the rows from everything that is live (E3); refuse the erasure if that cannot be done."""
        erasure = self._settle_runs(erasure)
        require_dialect(erasure)
        if any(run.has_landed and run.dialect == erasure.dialect for run in erasure.runs):
            return erasure
        recorder = RunRecorder(self._changer, lambda run: self._note_run(erasure, run))
        try:
            delete_rows(self._table, recorder, erasure.condition)
        except InvalidRequest as error:
            reason = str(error)
            erasure = self._settle_runs(self._change(erasure, lambda now: now))
            is_final = recorder.is_refusal(error) or len(erasure.runs) >= MAX_RUNS
            if not is_final or any(run.has_landed is None for run in erasure.runs):
                raise
            if any(run.has_landed for run in erasure.runs):
                return erasure
            now_ms = self._store.list_page(self._paths.open_erasures_prefix, limit=1).store_now_ms
            return self._change(erasure, lambda now: _refused(now, erasure, reason=reason, now_ms=now_ms))
        return self._settle_runs(self._change(erasure, lambda now: now))

    def _note_run(self, erasure: Erasure, run: DeletionRun) -> None:
        """Write a run down before its commit. Raises Fenced if another worker has gone on, or ended it."""
        try:
            self._change(erasure, lambda now: with_run(now, run))
        except NotFound as error:  # to be told from a data file that is missing
            raise Fenced(
                f"table {self._paths.name}: erasure {erasure.erasure_id} has ended by another worker's doing"
            ) from error

    def _settle_runs(self, erasure: Erasure) -> Erasure:
        """Find out which of the deletions in a record landed. None of them is under way behind this (F1)."""
        if all(run.has_landed is not None for run in erasure.runs):
            return erasure
        view = self._reader.read()
        erasure = self._change(erasure, lambda now: with_fates(now, view))
        open_ids = {run.commit_id for run in erasure.runs if run.has_landed is None}
        if not open_ids:
            return erasure
        acquire_fence(self._table, "merge").release()
        view = self._reader.read()
        return self._change(erasure, lambda now: with_fates(now, view, over=open_ids))

    # ── find ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _find_targets(self, erasure: Erasure) -> Erasure:
        """Find every object that is not live and holds such rows.

        WARN: E4: after the deletion. Before it: a merge takes a file that is live to this look, which passes it over,
        and writes its rows elsewhere; the deletion finds only what the merge wrote, and the input, dead now, is missed.
        """
        objects = read_objects(TableStore(self._store, self._paths), reader=self._reader)
        live = {marker.path for marker in objects.snapshot.live}
        sizes, due_ms = objects.sizes(), objects.due_ms(self._config)
        rewritten = {
            file.key: file
            for run in erasure.runs
            if run.has_landed is not False
            for file in run.files
            if file.key not in live
        }
        unnamed = objects.unnamed()
        unnamed_keys = {marker.path for marker in unnamed}
        others = [marker for marker in (*objects.dead(), *unnamed) if marker.path not in rewritten]
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
        targets += [
            ErasureTarget(
                key=key,
                size_bytes=sizes.get(key),
                row_count=row_count,
                reason="orphan" if key in unnamed_keys else "tombstoned",
                due_ms=due_ms.get(key),
            )
            for key, row_count in self._count(erasure, others, objects).items()
        ]
        not_covered = find_not_covered(
            TableStore(self._store, self._paths), config=self._config, listing=objects.listing
        )
        quarantined = erasure.not_covered.quarantine.plus(not_covered.quarantine)
        update = {
            "state": "deleted",
            "deleted_ms": objects.listing.store_now_ms,
            "targets": tuple(sorted(targets, key=lambda target: target.key)),
            "not_covered": not_covered.model_copy(update={"quarantine": quarantined}),
        }
        return self._change(erasure, lambda now: now.model_copy(update=update) if now.state == "requested" else now)

    def _count(self, erasure: Erasure, markers: Sequence[FileMarker], objects: DataObjects) -> Mapping[str, int | None]:
        if markers:
            require_dialect(erasure)
        return count_covered(
            self._paths,
            markers,
            present=objects.sizes(),
            changer=self._changer,
            condition=erasure.condition,
            config=self._config,
            schema=objects.snapshot.schema,
            check_alive=self._table.check_alive,
        )

    # ── look ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, erasure: Erasure) -> tuple[Erasure, int]:
        """Look whether what has to be gone is gone; return the record and how many objects are not."""
        if any(target.reason == "orphan" for target in erasure.open_targets):
            named = {marker.path for file in self._reader.read().files for marker in file.log.markers}
            erasure = self._change(erasure, lambda now: _without_late(now, named))
        if self._is_there(erasure):
            return erasure, len(erasure.open_targets)
        # WARN: E5: of the listing that follows only these are told to be gone. What another worker adds to the record
        # meanwhile may have been uploaded after this listing, which does not have it for that reason.
        known = {target.key for target in erasure.targets}
        objects = read_objects(TableStore(self._store, self._paths), reader=self._reader)
        named, present = objects.named(), objects.sizes()
        now_ms = objects.listing.store_now_ms

        def change(now: Erasure) -> Erasure:
            now = _without_late(_found_again(now, present), named)
            return mark_gone(now, _find_gone(now, known, present), gone_ms=now_ms, known_by="absent")

        erasure = self._change(erasure, change)
        # E5: the janitor's word gives a time, this listing gives the proof.
        waiting = _find_open(erasure, _find_gone(erasure, known, present), named)
        if waiting or erasure.state != "deleted":
            return erasure, len(waiting)
        return self._look_at_all(erasure, objects)

    def _is_there(self, erasure: Erasure) -> bool:
        """Whether one of the first few targets certainly exists: then there is no use in listing all objects."""
        return any(
            any(info.key == target.key for info in self._store.list_page(target.key, limit=1).objects)
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
        suspects = self._count(erasure, objects.unnamed(), objects)
        if not suspects:
            return self._change(erasure, lambda now: _completed(now, erasure, now_ms, now_ms)), 0
        sizes, due_ms = objects.sizes(), objects.due_ms(self._config)
        found = tuple(
            ErasureTarget(key=key, size_bytes=sizes.get(key), row_count=count, reason="orphan", due_ms=due_ms.get(key))
            for key, count in sorted(suspects.items())
        )

        def change(now: Erasure) -> Erasure:
            if now != erasure:
                return now
            return now.model_copy(
                update={
                    "targets": (*now.targets, *found),
                    "suspects": tuple(target.key for target in found),
                    "checked_ms": now_ms,
                }
            )

        return self._change(erasure, change), len(found)


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
