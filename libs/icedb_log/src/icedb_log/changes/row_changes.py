"""Changes of rows that somebody asked for: deletions by a condition, and rewrites by a query (M3, M4).

Both are one run under the fence of ``merge`` and one commit over all partitions: either everything that was asked
for has happened, or nothing. Live data files are never edited: those that change are exchanged for new ones, and
whatever else stands in the log files that name the inputs is carried. A run that dies leaves orphans only (J5).

A request that has an id is carried out once: its commit says so, and whoever asks again is told what it did (M7).

A deletion is counted three times: by file before anything is written, by the engine while it writes, and by the
rows that are left. Data files never change, so that what was counted before the fence was acquired still holds;
only files that came later are counted under it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

from icedb_log.changes.partition_removal import by_partition
from icedb_log.commit.exchange import ExchangeCommit
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, InvariantViolated
from icedb_log.jobs import CountJob, MergedGroup, MergeGroup, RowChange, RowChanger
from icedb_log.keys import TablePaths, parse_log_name
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.requests import ChangeRequestId, Outcomes
from icedb_log.merge.merge_policy import pack
from icedb_log.model import EMPTY, FileMarker, LogView
from icedb_log.table.partitions import PartitionMatcher, read_partition_values

_T = TypeVar("_T")

MAX_NAMED_PARTITIONS: Final = 1000
"""Paths of partitions that the details of a change name."""
MAX_FILES_PER_COUNT: Final = 512
"""Data files that are counted in one job; between two jobs a run looks whether it should stop."""

MAX_GROUPS_PER_JOB: Final = 64
"""Groups that are rewritten in one job; between two jobs a run looks whether it should stop. They are all committed
at once."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What a change of rows did, or would do. No key: nothing was committed.

    Attributes:
        committed_key: Log file of the commit; ``None`` if nothing was to be done, or for a dry run.
        commit_ms: Its time; 0 if there is none.
        file_count: Data files that died.
        output_count: Data files that were made; 0 for a dry run.
        rows_read: Rows in the dead ones, by the log where it says so.
        rows_removed: Rows that are gone; for a rewrite, rows read less rows written (below zero if the query makes
            more of them; 0 for a dry run, which runs no query).
        misfit_count: Values of the rows that a rewrite made which do not fit a promoted column, and are NULL there.
        scanned_count: Data files in which rows were counted; ``None`` for a rewrite.
        partitions: Encoded partition paths that changed, ascending.
        removed_paths: Data files that died, ascending.
        input_bytes: Bytes of the dead ones.
        output_bytes: Bytes of the new ones.
        partition_count: Partitions that changed.
        is_repeated: Whether an earlier run of the same request did it: paths and partitions are not known any more.
    """

    committed_key: str | None = None
    commit_ms: int = 0
    file_count: int = 0
    output_count: int = 0
    rows_read: int = 0
    rows_removed: int = 0
    misfit_count: int = 0
    scanned_count: int | None = None
    partitions: tuple[str, ...] = ()
    removed_paths: tuple[str, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    partition_count: int = 0
    is_repeated: bool = False

    @classmethod
    def of_earlier(cls, paths: TablePaths, outcome: Mapping[str, Any]) -> Self:
        """Return what the log says of a request that was carried out."""
        name = str(outcome["log"])
        return cls(
            committed_key=paths.named_log_key(name),
            commit_ms=parse_log_name(name).time_ms,
            **{field: outcome[wire] for field, wire in _REMEMBERED.items() if wire in outcome},
            is_repeated=True,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no file died, or would."""
        return not self.file_count

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all partitions, also of those that it does not name."""
        scanned = {} if self.scanned_count is None else {"files_scanned": self.scanned_count}
        return {
            "rows_removed": self.rows_removed,
            "rows_read": self.rows_read,
            "misfits": self.misfit_count,
            **scanned,
            "files_rewritten": self.file_count,
            "files_written": self.output_count,
            "partitions": self.partition_count,
            "bytes_in": self.input_bytes,
            "bytes_out": self.output_bytes,
            "committed_key": self.committed_key,
            "paths": list(self.partitions[:MAX_NAMED_PARTITIONS]),
            "repeated": self.is_repeated,
        }


_REMEMBERED: Final = {
    "rows_removed": "rows_removed",
    "rows_read": "rows_read",
    "scanned_count": "files_scanned",
    "file_count": "files_rewritten",
    "output_count": "files_written",
    "partition_count": "partitions",
    "input_bytes": "bytes_in",
    "output_bytes": "bytes_out",
}
"""What the log remembers of a request: fields of the result, and their names in the result of a task."""

NoteGroups = Callable[[str, int, Sequence[MergedGroup]], object]
"""Told, before anybody can commit it, of the commit id, when the first data file was begun (unix ms by this host's
clock), and all groups that are rewritten by now."""


def delete_rows(
    table: Table,
    changer: RowChanger,
    condition: str,
    *,
    dry_run: bool = False,
    note: NoteGroups | None = None,
    request: ChangeRequestId | None = None,
) -> ChangeResult:
    """Delete the rows for which a condition is true, in all partitions, in one commit.

    Rows that were committed before the run reads the log are meant; a batch that is flushed while it works stays.
    Only data files that hold such rows are rewritten, small ones of a partition together. One of which no row is
    left has no successor. Idempotent in effect: repeated, it finds no rows.

    Args:
        table: The table.
        changer: Counts and rewrites.
        condition: SQL over the table's columns; rows for which it is false or null stay.
        dry_run: Count only: no fence, nothing written.
        note: Called after each job that has rewritten files; what it raises ends the run, and nothing is changed.
        request: What tells the request from others: repeated within a day, it says what the first one did (M7).

    Raises:
        InvalidRequest: The condition does not fit the table, or the files cannot be rewritten in the time that a
            commit may take (W3; :class:`ChangeTooLarge`), or the id is too old, or another change's; nothing was
            changed.
        NotFound: A live data file is missing.
        Fenced: Another run took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person; also if the counts disagree, and then nothing was committed.
        Unavailable: A server did not answer.
    """
    run = _Run(table, changer, RowChange("delete", condition), note, request=request)
    log = table.read_log()
    if (earlier := run.find_earlier(log)) is not None:
        return earlier
    snapshot = fold(log)
    run.check(snapshot)
    hits = run.find_hits(snapshot)
    if dry_run or not hits:
        return run.describe(hits)
    with ExchangeCommit(table) as commit:
        if (earlier := run.find_earlier(commit.view)) is not None:
            return earlier
        run.check(commit.snapshot)
        merged: list[MergedGroup] = []
        for group in run.rewrite(commit, _pack_hits(table, run.find_hits(commit.snapshot))):
            _require_counted(table, group, counts=run.counts)
            merged.append(group)
        return run.land(commit, merged)


def rewrite_partitions(
    table: Table,
    changer: RowChanger,
    query: str,
    *,
    matches: PartitionMatcher,
    dry_run: bool = False,
    request: ChangeRequestId | None = None,
) -> ChangeResult:
    """Replace the rows of partitions by what a query makes of them, in one commit.

    The query sees all rows of one partition, and runs once for each. One that leaves no rows writes no file. Idempotent
    with a ``request``; without one the query runs on its own result if it is asked for again.

    Args:
        table: The table.
        changer: Runs the query.
        query: SQL over ``_rows``.
        matches: Which partitions.
        dry_run: Say which files would be rewritten: no fence, nothing written, the query is checked but does not run.
        request: As of :func:`delete_rows`.

    Raises:
        InvalidRequest: The query does not fit the table, or cannot be done in the time that a commit may take (W3), or
            the id is too old or another change's; nothing was changed.
        IceDBError: As :func:`delete_rows`.
    """
    run = _Run(table, changer, RowChange("rewrite", query), request=request)
    log = table.read_log()
    if (earlier := run.find_earlier(log)) is not None:
        return earlier
    snapshot = fold(log)
    run.check(snapshot)
    groups = _whole_partitions(table, snapshot, matches)
    if dry_run or not groups:
        return run.describe([marker for group in groups for marker in group.inputs])
    with ExchangeCommit(table) as commit:
        if (earlier := run.find_earlier(commit.view)) is not None:
            return earlier
        run.check(commit.snapshot)
        return run.land(commit, list(run.rewrite(commit, _whole_partitions(table, commit.snapshot, matches))))


class ChangeTooLarge(InvalidRequest):
    """A change takes longer than one commit may (W3). What the caller does: change less at a time."""


class _Run:
    """A change from its beginning to its end.

    Attributes:
        counts: Of a deletion: how many rows it removes of each data file, by path. Each is counted once: they never
            change. How a condition reads them does, when a column becomes wider: then all are counted again.
    """

    def __init__(
        self,
        table: Table,
        changer: RowChanger,
        change: RowChange,
        note: NoteGroups | None = None,
        *,
        request: ChangeRequestId | None = None,
    ) -> None:
        self.table: Final = table
        self.changer: Final = changer
        self.change: Final = change
        self.counts: Final[dict[str, int]] = {}
        self._note: Final = note
        self._request: Final = request
        self._checked_schema: Mapping[str, str] | None = None
        self._counted_schema: Mapping[str, str] = {}

    def find_earlier(self, log: LogView) -> ChangeResult | None:
        """Return what the request did before, if it did (M7).

        WARN: what counts is the log as it is read under the fence. Before it: this run looks, another run of the same
        request commits, and this one's query runs on the result.

        Raises:
            InvalidRequest: Nobody can tell any more, or its id is that of another change.
        """
        if self._request is None:
            return None
        outcome = self._request.find_outcome(log)
        if outcome is None:
            self._request.require_young(log)
            return None
        return ChangeResult.of_earlier(self.table.paths, outcome)

    def check(self, snapshot: Snapshot) -> None:
        """Let the engine check the change, once for each schema. Raises InvalidRequest."""
        if self._checked_schema != snapshot.schema:
            self.table.check_alive()
            self.changer.check_change(self.table.config, snapshot.schema, self.change)
            self._checked_schema = snapshot.schema

    def rewrite(self, commit: ExchangeCommit, groups: Sequence[MergeGroup]) -> Iterator[MergedGroup]:
        """Write the new data files of all groups, some at a time."""
        begun_ms, wall_ms = self.table.clock.monotonic_ms(), self.table.clock.now_ms()
        done: list[MergedGroup] = []
        for some in _batched(groups, MAX_GROUPS_PER_JOB):
            merged = commit.run(self.changer, some, change=self.change)
            done += merged
            if self._note is not None:
                self._note(commit.commit_id, wall_ms, done)
            yield from merged
            self._require_time(self.table.clock.monotonic_ms() - begun_ms, done=len(done), total=len(groups))

    def _require_time(self, elapsed_ms: int, *, done: int, total: int) -> None:
        """Stop as soon as the commit would come too late: it would be refused after the rest of the work (W3)."""
        limit_ms = self.table.config.orphan_age_ms // 2
        if elapsed_ms <= limit_ms:
            return
        raise ChangeTooLarge(
            f"table {self.table.name}: {done} of {total} groups of data files were rewritten in {elapsed_ms} ms; one "
            f"commit may take half the orphan age ({limit_ms} ms), so nothing was changed. Change fewer partitions at "
            "a time (a condition on the partition columns), or raise orphan_age_ms"
        )

    def find_hits(self, snapshot: Snapshot) -> list[FileMarker]:
        """Return the live data files that hold rows that a deletion removes, ascending by path."""
        table = self.table
        if any(snapshot.schema.get(column) != sql_type for column, sql_type in self._counted_schema.items()):
            self.counts.clear()
        self._counted_schema = snapshot.schema
        candidates = self.changer.select_files(table.paths, table.config, self.change, snapshot.live)
        unknown = [marker for marker in candidates if marker.path not in self.counts]
        for files in _batched(unknown, MAX_FILES_PER_COUNT):
            table.check_alive()
            job = CountJob(
                table.paths, table.config, snapshot.schema, self.change, tuple(files), check_alive=table.check_alive
            )
            counts = self.changer.count_rows(job)
            if len(counts) != len(files):
                raise InvariantViolated(
                    f"table {table.name}: rows were to be counted in {len(files)} data files, and {len(counts)} "
                    "counts came back; nothing was changed"
                )
            self.counts.update((marker.path, count) for marker, count in zip(files, counts, strict=True))
        return [marker for marker in snapshot.live if self.counts.get(marker.path, 0)]

    def describe(self, inputs: Sequence[FileMarker]) -> ChangeResult:
        """Say what becomes of some files, before that."""
        partitions = tuple(sorted({self.table.paths.partition_of(marker.path) for marker in inputs}))
        return ChangeResult(
            file_count=len(inputs),
            rows_read=sum(marker.row_count or 0 for marker in inputs),
            rows_removed=sum(self.counts.get(marker.path, 0) for marker in inputs),
            scanned_count=len(self.counts) if self.change.kind == "delete" else None,
            partitions=partitions,
            partition_count=len(partitions),
            removed_paths=tuple(sorted(marker.path for marker in inputs)),
            input_bytes=sum(marker.size_bytes for marker in inputs),
        )

    def land(self, commit: ExchangeCommit, merged: Sequence[MergedGroup]) -> ChangeResult:
        """Commit all groups at once."""
        found = self.describe([marker for group in merged for marker in group.group.inputs])
        if not merged:
            return found  # another run has removed what was there before the fence
        outputs = [marker for group in merged for marker in group.outputs]
        rows_read = sum(group.rows_read for group in merged)
        made = replace(
            found,
            output_count=len(outputs),
            rows_read=rows_read,
            rows_removed=rows_read - sum(marker.row_count or 0 for marker in outputs),
            misfit_count=sum(group.misfit_count for group in merged),
            output_bytes=sum(marker.size_bytes for marker in outputs),
        )
        committed = commit.land(merged, change=self.change.kind, requests=self._describe_outcome(made))
        return replace(made, committed_key=committed.key, commit_ms=committed.time_ms)

    def _describe_outcome(self, made: ChangeResult) -> Outcomes:
        """Return what the log is to remember (M7)."""
        if self._request is None:
            return EMPTY
        details = made.details()
        figures = {name: details[name] for name in _REMEMBERED.values() if name in details}
        return {self._request.request_id: {"of": self._request.digest, **figures}}


def _pack_hits(table: Table, hits: Iterable[FileMarker]) -> list[MergeGroup]:
    """Cut the files of each partition into groups of at most the target size; a larger file is one by itself."""
    return [
        group
        for partition, markers in by_partition(table.paths, hits).items()
        for group in pack(partition, sorted(markers, key=attrgetter("size_bytes", "path")), table.config)
    ]


def _whole_partitions(table: Table, snapshot: Snapshot, matches: PartitionMatcher) -> list[MergeGroup]:
    return [
        MergeGroup(partition, tuple(markers))
        for partition, markers in by_partition(table.paths, snapshot.live).items()
        if matches.matches(read_partition_values(partition))
    ]


def _require_counted(table: Table, merged: MergedGroup, *, counts: Mapping[str, int]) -> None:
    """What the engine removed is what had been counted, file by file, before anything was written (M3)."""
    counted = sum(counts[marker.path] for marker in merged.group.inputs)
    if merged.rows_removed != counted:
        raise InvariantViolated(
            f"table {table.name}: partition {merged.group.partition or '(none)'}: {counted} rows were counted that the "
            f"condition removes, and {merged.rows_removed} were removed; nothing was committed (a condition that "
            "depends on the time or on chance cannot be used)"
        )


def _batched(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
