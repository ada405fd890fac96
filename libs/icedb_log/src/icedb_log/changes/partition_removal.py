"""Removal of whole partitions: an exchange of live data files for nothing, in the log alone (M3).

No data file is read or written. One commit, under the fence of ``merge``, tombstones every data file of the chosen
partitions; all other markers of the log files that name these are carried. The rows come back neither by a later merge
(M4) nor by a vacuum, which deletes the data files when their grace period is over (J1).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.commit.exchange import ExchangeCommit
from icedb_log.commit.table import Table
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveChunk, LiveFiles, sum_rows
from icedb_log.merge.small_files import measure_small
from icedb_log.model import FileMarker, LogView
from icedb_log.table.table_config import TableConfig

MAX_NAMED_PARTITIONS: Final = 20
"""Paths of partitions that the details of a removal name: the log has them, too."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition with at least one live data file.

    Attributes:
        path: Encoded partition path; empty for a table without partitions.
        file_count: Live data files.
        row_count: Rows in them; ``None`` when some file does not say.
        size_bytes: Bytes of them.
        newest_ms: When the youngest of them was made, by its committer's clock; a merge makes new ones.
        oldest_ms: When the oldest of them was made.
        small_count: Those of them that are below the target size.
    """

    path: str
    file_count: int
    row_count: int | None
    size_bytes: int
    newest_ms: int
    oldest_ms: int
    small_count: int = 0


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """What a removal did, or would do. No key: nothing was committed.

    Attributes:
        committed_key: Log file of the commit; ``None`` if nothing was chosen, or for a dry run.
        commit_ms: Its time; 0 if there is none.
        partitions: What was removed, ascending by path.
        removed_paths: Data files that died, ascending.
    """

    committed_key: str | None = None
    commit_ms: int = 0
    partitions: tuple[PartitionInfo, ...] = ()
    removed_paths: tuple[str, ...] = ()

    @property
    def row_count(self) -> int | None:
        """Rows that are gone; ``None`` when some data file does not say."""
        return sum_rows(info.row_count for info in self.partitions)

    @property
    def is_idle(self) -> bool:
        """Whether no partition was to go."""
        return not self.partitions

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all partitions, also of those that it does not name."""
        return {
            "partitions": len(self.partitions),
            "files": len(self.removed_paths),
            "rows": self.row_count,
            "bytes": self.size_bytes,
            "committed_key": self.committed_key,
            "paths": [info.path for info in self.partitions[:MAX_NAMED_PARTITIONS]],
        }

    @property
    def size_bytes(self) -> int:
        """Bytes of the data files that died."""
        return sum(info.size_bytes for info in self.partitions)


ChoosePartitions = Callable[[LogView, tuple[PartitionInfo, ...]], Collection[str]]
"""Returns the paths of the partitions to be removed. Called before the fence is acquired, so that a choice that is
wrong or empty costs nothing, and again with what was read under it (F2): the second answer counts."""


def list_partitions(live: LiveFiles, *, paths: TablePaths, config: TableConfig) -> tuple[PartitionInfo, ...]:
    """Return all partitions with live data files, ascending by path. Pure.

    Sums are made for each chunk of live files once, and go over to the next state with it: no marker is decoded.
    """
    partitions: dict[str, list[LiveChunk]] = defaultdict(list)
    for chunk in live.chunks:
        partitions[paths.partition_of(chunk.prefix)].append(chunk)
    return tuple(
        PartitionInfo(
            path=path,
            file_count=sum(map(len, chunks)),
            row_count=sum_rows(chunk.row_count for chunk in chunks),
            size_bytes=sum(chunk.size_bytes for chunk in chunks),
            newest_ms=max(chunk.newest_ms for chunk in chunks),
            oldest_ms=min(chunk.oldest_ms for chunk in chunks),
            small_count=sum(measure_small(chunk, config).file_count for chunk in chunks),
        )
        for path, chunks in sorted(partitions.items())
    )


def remove_partitions(table: Table, choose: ChoosePartitions, *, dry_run: bool = False) -> RemovalResult:
    """Remove partitions in one commit.

    What is flushed into a partition while the run works stays. Idempotent in effect: repeated, it finds nothing.

    Args:
        table: The table.
        choose: Which partitions; may raise.
        dry_run: Say what would be removed: no fence, nothing written.

    Raises:
        Fenced: Another run took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: The store did not answer.
        IceDBError: What ``choose`` raises.
    """
    planned = _plan(table, table.read_log(), choose)
    if dry_run or not planned:
        return _result(planned)
    with ExchangeCommit(table) as commit:
        chosen = _plan(table, commit.view, choose)
        if not chosen:
            return RemovalResult()
        committed = commit.land([_remove(info.path, markers) for info, markers in chosen], change="removal")
    return _result(chosen, committed_key=committed.key, commit_ms=committed.time_ms)


_Chosen = list[tuple[PartitionInfo, list[FileMarker]]]


def _plan(table: Table, view: LogView, choose: ChoosePartitions) -> _Chosen:
    """Return the partitions that are chosen, ascending by path, with their data files."""
    live = fold(view).live
    infos = list_partitions(live, paths=table.paths, config=table.config)
    wanted = set(choose(view, infos))
    markers = by_partition(table.paths, live)
    return [(info, markers[info.path]) for info in infos if info.path in wanted]


def by_partition(paths: TablePaths, markers: Iterable[FileMarker]) -> dict[str, list[FileMarker]]:
    """Return data files by their partition path, ascending by path. Pure."""
    partitions: dict[str, list[FileMarker]] = defaultdict(list)
    for marker in markers:
        partitions[paths.partition_of(marker.path)].append(marker)
    return dict(sorted(partitions.items()))


def _remove(path: str, markers: list[FileMarker]) -> MergedGroup:
    """Return the group of a removal: nobody has read its rows, the log's own counts stand for them (M3)."""
    rows = sum(marker.row_count or 0 for marker in markers)
    return MergedGroup(MergeGroup(path, tuple(markers)), outputs=(), rows_read=rows, rows_removed=None)


def _result(removed: _Chosen, *, committed_key: str | None = None, commit_ms: int = 0) -> RemovalResult:
    return RemovalResult(
        committed_key=committed_key,
        commit_ms=commit_ms,
        partitions=tuple(info for info, _ in removed),
        removed_paths=tuple(sorted(marker.path for _, markers in removed for marker in markers)),
    )
