"""Carries an erasure on: deletes the rows, writes down what has to be gone, and waits until it is (E2 to E5).

Order: the batches that were accepted before the request are committed; the rows are deleted from everything that is
live, in one commit under the fence of ``merge``; then, and never before, all data objects are listed, and those that
are not live are written down: each has to go, whatever is in it. From there on only the janitor deletes, in its own
time. The erasure is complete when a later listing has none of them, no log file names one that had been live (its
statistics are gone, too), and so it is with what nobody named in the first such listing.

A deletion is written down before it is committed, and its outcome is found out later: a crash behind a commit
would otherwise lose how many rows it removed (E3). Each step may be repeated, cut short anywhere, and run by any number
of workers at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from icedb_log.changes.row_changes import ChangeTooLarge, delete_rows
from icedb_log.clean.publication_ending import count_withdrawn, withdraw_publications
from icedb_log.commit.fence import acquire_fence
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_scope import count_staged_until, find_not_covered, read_objects
from icedb_log.errors import Fenced, IceDBError, InvalidRequest, NotFound, crashes_told
from icedb_log.holds.erasures import (
    DeletionRun,
    Erasure,
    NamedObjects,
    change_erasure,
    list_open_ids,
    read_erasure,
)
from icedb_log.holds.guards import STORE_RESOLUTION_MS
from icedb_log.jobs import MergedGroup, RowChanger
from icedb_log.keys import parse_log_key
from icedb_log.log.fold import named_paths, read_horizon_ms
from icedb_log.model import LogView
from icedb_log.store.table_store import TableStore

MAX_PROBES: Final = 16
"""Objects that nobody named are looked for one by one, so many of them, before all data objects are listed."""

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
    erasure, waits_for, count = _ErasureRun(table, changer).advance(before)
    return ErasureProgress(erasure, waits_for, count, has_changed=erasure != before)


@dataclass(frozen=True, slots=True)
class ErasuresResult:
    """How far the erasures of a table are after a run.

    Attributes:
        progress: Of each that this run has carried on.
        problems: Why it could not carry on others, each of which the next run tries again.
    """

    progress: tuple[ErasureProgress, ...]
    problems: tuple[IceDBError, ...]

    @property
    def is_idle(self) -> bool:
        """Whether no record was changed."""
        return not any(each.has_changed for each in self.progress)

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all erasures, also of those that it does not name."""
        return {
            "open": sum(not each.erasure.has_ended for each in self.progress),
            "ended": sum(each.erasure.has_ended for each in self.progress),
            "erasures": [
                {
                    "id": each.erasure.erasure_id,
                    "state": each.erasure.state,
                    "waits_for": each.waits_for,
                    "waiting": each.waiting_count,
                }
                for each in self.progress[:MAX_NAMED]
            ],
        }


def advance_erasures(
    table: TableStore,
    changer: RowChanger,
    open_table: Callable[[bool], AbstractContextManager[Table]],
    *,
    ended: set[str] | None = None,
    on_problem: Callable[[str, IceDBError], object] = lambda _erasure_id, _error: None,
    on_step: Callable[[Erasure, Erasure], object] = lambda _before, _after: None,
) -> ErasuresResult:
    """Carry all open erasures of a table on, as far as they go now. What stops one stops none of the others.

    Args:
        table: The table.
        changer: Counts and rewrites.
        open_table: Opens the table for one erasure; told whether that rewrites data files, as merges do, or only looks.
        ended: As of :func:`~icedb_log.holds.erasures.list_open_ids`.
        on_problem: Told of an erasure that could not be carried on.
        on_step: Told of the record before and after.

    Raises:
        Unavailable: The store did not list them.
    """
    progress: list[ErasureProgress] = []
    problems: list[IceDBError] = []
    for erasure_id in list_open_ids(table, ended=ended):
        try:
            with crashes_told(f"table {table.name}: erasure {erasure_id}"):
                before = _read_listed(table, erasure_id)
                with open_table(before.state == "requested") as opened:
                    progress.append(advance_erasure(opened, changer, erasure_id))
                on_step(before, progress[-1].erasure)
        except IceDBError as error:
            problems.append(error)
            on_problem(erasure_id, error)
    return ErasuresResult(tuple(progress), tuple(problems))


def _read_listed(table: TableStore, erasure_id: str) -> Erasure:
    try:
        return read_erasure(table, erasure_id)
    except NotFound:
        raise NotFound(f"table {table.name}: erasure {erasure_id} is gone from its record") from None


def preview_erasure(table: Table, changer: RowChanger, condition: str) -> dict[str, Any]:
    """Return what an erasure would remove now, as the result of a task. Raises as :func:`delete_rows`."""
    result = delete_rows(table, changer, condition, dry_run=True)
    return {
        "rows": result.rows_removed,
        "files": result.file_count,
        "bytes": result.input_bytes,
        "files_counted": result.scanned_count,
        "partitions": len(result.partitions),
    }


class _ErasureRun:
    """What a step of an erasure needs."""

    def __init__(self, table: Table, changer: RowChanger) -> None:
        self._table: Final = table
        self._changer: Final = changer

    def advance(self, erasure: Erasure) -> tuple[Erasure, WaitsFor, int]:
        table = self._table
        if erasure.state == "requested":
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
                erasure = self._note_objects(erasure)
        waiting_count = 0
        if erasure.state == "deleted":
            erasure, waiting_count = self._look(erasure)
        if erasure.has_ended:
            return erasure, "nothing", 0
        return erasure, "janitor", waiting_count

    def _change(self, erasure: Erasure, change: Callable[[Erasure], Erasure]) -> Erasure:
        return change_erasure(self._table, erasure.erasure_id, change)

    def _read_again(self, erasure: Erasure) -> Erasure:
        return self._change(erasure, lambda now: now)

    # Delete.

    def _delete(self, erasure: Erasure) -> Erasure:
        """Delete the rows from everything that is live (E3); refuse the erasure if that cannot be done."""
        erasure = self._settle_runs(erasure)
        # Also where one has landed: it finds no rows again, unless a rebuild of a lost log has brought them back.
        try:
            delete_rows(self._table, self._changer, erasure.condition, note=partial(self._note_run, erasure))
        except InvalidRequest as error:
            reason = str(error)
            erasure = self._settle_runs(self._read_again(erasure))
            # That it takes too long (W3) may be the worker's fault: it slept. All else says that it cannot be done.
            is_final = not isinstance(error, ChangeTooLarge) or len(erasure.runs) >= MAX_RUNS
            if not is_final or any(run.has_landed is None for run in erasure.runs):
                raise
            if any(run.has_landed for run in erasure.runs):
                return erasure
            refused = {"state": "refused", "refusal": reason, "completed_ms": self._table.read_store_clock()}
            return self._change(erasure, lambda now: _unless_changed(now, erasure, refused))
        return self._settle_runs(self._read_again(erasure))

    def _note_run(
        self,
        erasure: Erasure,
        commit_id: str,
        begun_ms: int,
        groups: Sequence[MergedGroup],
    ) -> None:
        """Write a run down before its commit. Raises Fenced if another worker has gone on, or ended it."""
        run = DeletionRun(
            commit_id=commit_id,
            begun_ms=begun_ms,
            row_count=sum(group.rows_removed or 0 for group in groups),
            file_count=sum(len(group.group.inputs) for group in groups),
        )
        now = self._change(erasure, lambda now: _with_run(now, run))
        if now.state != "requested":
            raise Fenced(
                f"table {self._table.name}: erasure {erasure.erasure_id} is {now.state} by another worker's doing"
            )

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

    # Wait.

    def _note_objects(self, erasure: Erasure) -> Erasure:
        """Write down every object that is not live: it has to go (E4).

        WARN: E4: after the deletion. Before it: a merge takes a file that is live to this look, and writes its rows
        elsewhere; the deletion finds only what the merge wrote, and the input, dead now, is not written down.
        """
        objects = read_objects(self._table)
        not_covered = find_not_covered(self._table, objects.listing)
        quarantined = erasure.not_covered.quarantine.plus(not_covered.quarantine)
        update = {
            "state": "deleted",
            "deleted_ms": objects.listing.store_now_ms,
            "dead": objects.dead(),
            "unnamed": objects.unnamed(),
            "not_covered": not_covered.model_copy(update={"quarantine": quarantined}),
        }
        return self._change(erasure, lambda now: now.model_copy(update=update) if now.state == "requested" else now)

    def _look(self, erasure: Erasure) -> tuple[Erasure, int]:
        """Look whether what has to be gone is gone; return the record and how many objects are not.

        WARN: E5: of the listing only what the record named before it is told to be gone: what another worker adds
        meanwhile may have been uploaded after this listing, which does not have it for that reason. So a record that
        has changed since it was read is not completed.
        """
        named = named_paths(self._table.read_log().files)
        still_named = _find_left(erasure, (), named)
        unnamed = [key for key in erasure.unnamed if key not in named]
        if still_named or self._is_there(unnamed[:MAX_PROBES]):
            return erasure, len(still_named) + len(unnamed)
        objects = read_objects(self._table)
        present, named, now_ms = objects.present, named_paths(objects.view.files), objects.listing.store_now_ms
        left = len(_find_left(erasure, present, named))
        if not left:
            left = count_withdrawn(self._table)  # E5: what was published holds bounds of what was erased
        if left:
            return erasure, left
        found = () if erasure.checked_ms is not None else objects.unnamed()
        if found:
            # E5: a run that lost its fence can upload for as long as it lives. Once: where rows come in all the time,
            # no listing is without a file that is about to be committed.
            update = {"unnamed": tuple(sorted({*erasure.unnamed, *found})), "checked_ms": now_ms}
            return self._change(erasure, lambda now: _unless_changed(now, erasure, update)), len(found)
        late = named.intersection(erasure.unnamed)
        update = {
            "state": "complete",
            "completed_ms": now_ms,
            "checked_ms": erasure.checked_ms or now_ms,
            "unnamed": tuple(key for key in erasure.unnamed if key not in late),
            "not_covered": erasure.not_covered.model_copy(update={"late": NamedObjects.of(late)}),
        }
        return self._change(erasure, lambda now: _unless_changed(now, erasure, update)), 0

    def _is_there(self, keys: Iterable[str]) -> bool:
        """Whether one of a few objects certainly exists: then there is no use in listing all of them."""
        store = self._table.store
        return any(info.key == key for key in keys for info in store.list_page(key, limit=1).objects)


# Changes of a record.


def _with_run(erasure: Erasure, run: DeletionRun) -> Erasure:
    """Return a record with a run in it, or as it is if another worker has gone on with the erasure meanwhile."""
    if erasure.state != "requested":
        return erasure
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


def _find_left(erasure: Erasure, present: Collection[str], named: Collection[str]) -> set[str]:
    """Return the objects of an erasure that are not gone (E5): there, or named by a log file with their statistics.

    What nobody named is over when it is committed as well.
    """
    dead = {key for key in erasure.dead if key in present or key in named}
    return dead | {key for key in erasure.unnamed if key in present and key not in named}


def _unless_changed(now: Erasure, seen: Erasure, update: Mapping[str, object]) -> Erasure:
    """Return a changed record, unless somebody has changed it since what it is to say was proved."""
    return now.model_copy(update=update) if now == seen else now
