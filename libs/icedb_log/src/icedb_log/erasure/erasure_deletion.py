"""Writes the deletions of an erasure down before they are committed, and finds out later which of them landed (E3).

A crash behind a commit would otherwise lose how many rows it removed, and which files held them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from icedb_log.erasure.erasure_record import DeletedFile, DeletionRun, Erasure
from icedb_log.errors import Fenced, InvalidRequest
from icedb_log.jobs import CountJob, MergedGroup, MergeJob, RowChange, RowChanger
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.fold import read_horizon_ms
from icedb_log.model import FileMarker, LogView
from icedb_log.table.table_config import DIALECT, TableConfig

MAX_FILES_TO_REWRITE: Final = 20_000
"""Data files that one erasure may rewrite: all of them stand in its record, of which each step reads the whole. With so
many it has 6 MB and takes a second to parse."""

MAX_RUNS: Final = 5
"""So many deletions may fail before one that takes too long (W3) is not tried again."""


class RunRecorder:
    """A changer that hands what it deletes to a note before anybody can commit it.

    Args:
        changer: Does the work.
        note: Writes a run down; may be called again for a run, with more files. When it raises, nothing is committed.
    """

    def __init__(self, changer: RowChanger, note: Callable[[DeletionRun], object]) -> None:
        self._changer: Final = changer
        self._note: Final = note
        self._counts: Final[dict[str, int]] = {}
        self._run: DeletionRun | None = None
        self._refusal: InvalidRequest | None = None

    def is_refusal(self, error: InvalidRequest) -> bool:
        """Whether an error says that the condition cannot be used: it comes from the changer itself.

        Others, such as that it takes too long (W3), may be the worker's fault: it slept.
        """
        return error is self._refusal

    @contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except InvalidRequest as error:
            self._refusal = error
            raise

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check as the changer does."""
        with self._watch():
            self._changer.check_change(config, schema, change)

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Select as the changer does."""
        with self._watch():
            return self._changer.select_files(paths, config, change, files)

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count as the changer does, and keep the figures."""
        with self._watch():
            counts = self._changer.count_rows(job)
        self._counts.update((marker.path, count) for marker, count in zip(job.files, counts, strict=False))
        return counts

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Rewrite as the changer does, and write down what.

        Raises:
            InvalidRequest: More files than one erasure may rewrite.
            IceDBError: What the changer and the note raise.
        """
        known = self._run if self._run is not None and self._run.commit_id == job.commit_id else None
        inputs = [marker for group in job.groups for marker in group.inputs]
        with self._watch():
            if len(inputs) + (len(known.files) if known else 0) > MAX_FILES_TO_REWRITE:
                raise InvalidRequest(
                    f"table {job.paths.name}: more than {MAX_FILES_TO_REWRITE} data files hold such rows; erase in "
                    "several steps, each with a condition on the partition columns, or merge the table first"
                )
            merged = self._changer.merge_groups(job)
        files = tuple(
            DeletedFile(key=m.path, size_bytes=m.size_bytes, row_count=self._counts.get(m.path)) for m in inputs
        )
        self._run = DeletionRun(
            commit_id=job.commit_id,
            begun_ms=known.begun_ms if known else job.time_ms,
            row_count=(known.row_count if known else 0) + sum(group.rows_removed or 0 for group in merged),
            files=(known.files if known else ()) + files,
            dialect=DIALECT,
        )
        self._note(self._run)
        return merged


def with_run(erasure: Erasure, run: DeletionRun) -> Erasure:
    """Return a record with a run in it. Raises Fenced if another worker has gone on with the erasure meanwhile."""
    if erasure.state != "requested":
        raise Fenced(
            f"table {erasure.table}: erasure {erasure.erasure_id} is {erasure.state} by another worker's doing"
        )
    others = tuple(known for known in erasure.runs if known.commit_id != run.commit_id)
    return erasure.model_copy(update={"runs": (*others, run)})


def with_fates(erasure: Erasure, view: LogView, *, over: Collection[str] = ()) -> Erasure:
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
