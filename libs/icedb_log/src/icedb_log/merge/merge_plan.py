"""What one merge run does: which groups in which lane, in which commits, and which log files it folds. Pure.

Puts together what others decide: :mod:`icedb_log.merge.merge_policy` the groups of a partition,
:mod:`icedb_log.merge.log_folding` which log files are folded beside them, and this module the lanes and their bounds.

* The **hot** lane runs often. All partitions, those with the newest data first; the smallest tier of a partition first.
* The **cold** lane runs rarely. Partitions that got no data file for an hour by the store's clock, those that have
  waited longest first; each is merged as far as it is worth it.

Before both come data files that have to be written anew, those of the newest partitions first, whatever their size,
alone if need be: those that lack promoted columns, which readers see when no file lacks them any more (S4), and those
that are older than a column's wider type (:attr:`MergeIndex.first_before_ms`), which engines of Iceberg cannot read.

Each lane has bounds of its own, so that neither keeps the other waiting: what a hot run leaves in old partitions is
at the head of a cold run.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from icedb_log.ingest.pressure import LOG_FILES
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths, is_partition_path
from icedb_log.log.fold import union_schema
from icedb_log.log.live_files import ChosenFiles, LiveFiles
from icedb_log.log.markers import paused_gc
from icedb_log.log.state import LogState
from icedb_log.merge.log_folding import listing_twice, log_fan_in, plan_fold
from icedb_log.merge.merge_policy import Places, cut_places, fewest_files, plan_full, plan_settling, plan_tiers
from icedb_log.model import FileMarker, LogView
from icedb_log.table.table_config import TableConfig
from icedb_log.units import HOUR_MS, MIB, MINUTE_MS

Lane = Literal["hot", "cold"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Bounds of one merge run, so that other tables get their turn, and of each of its commits.

    Attributes:
        max_groups: Groups of one run.
        max_files: Input files of one run; a single group may exceed it.
        max_bytes: Input bytes of one run; a single group may exceed it.
        commit_bytes: Input bytes from which a commit is made before the run goes on: what a crash loses.
    """

    max_groups: int = 1024
    max_files: int = 8192
    max_bytes: int = 2048 * MIB
    commit_bytes: int = 512 * MIB


HOT_LIMITS: Final = MergeLimits()
COLD_LIMITS: Final = MergeLimits(max_groups=4096, max_files=32_768, max_bytes=16 * 1024 * MIB, commit_bytes=1024 * MIB)

WORTH_BYTES: Final = 64 * MIB
"""Input bytes from which a merge is worth a log file, however few it folds."""

ALONE_BYTES: Final = 4 * MIB
"""A data file of so many bytes that only lacks promoted columns is written anew alone: all but its text is copied."""

COLD_AFTER_MS: Final = HOUR_MS
"""A partition that got no data file for so long is merged rarely, and then as far as possible."""

QUIET_MS: Final = MINUTE_MS
"""A table to which nothing was committed for so long has no log files to come that a merge could wait for."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a merge run is asked for.

    Attributes:
        lane: Which merges.
        full: Merge everything below the target size, whatever the lane, its tier and what it costs; log files that list
            a data file twice become one that does not.
        limits: Bounds of the run; those of the lane if not given.
        cold_after_ms: Age of its newest data file from which a partition is one of the cold lane.
    """

    lane: Lane = "hot"
    full: bool = False
    limits: MergeLimits | None = None
    cold_after_ms: int = COLD_AFTER_MS


NEXT_RUN: Final = MergeOptions()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A partition in which something can be merged.

    Attributes:
        partition: Encoded partition path.
        newest_ms: When its newest data file was made.
        groups: Smallest first. Markers of inputs are decoded on access.
    """

    partition: str
    newest_ms: int
    groups: tuple[MergeGroup, ...]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one merge run does.

    Attributes:
        commits: Groups of each commit. A run that only folds log files has none, and makes one commit.
        folded_log_keys: Log files that the first commit folds (M1).
        has_more: Whether the limits left groups for another run.
        ready: All that the lane would merge now, in its order: what the run was taken from.
        shows: Whether promoted columns are complete, and are to be seen by readers (S4).
    """

    ready: tuple[MergeGroup, ...] = field(compare=False)
    commits: tuple[tuple[MergeGroup, ...], ...] = ()
    folded_log_keys: tuple[str, ...] = ()
    has_more: bool = False
    shows: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.commits and not self.folded_log_keys and not self.shows

    @property
    def groups(self) -> tuple[MergeGroup, ...]:
        """The groups of all commits."""
        return tuple(group for commit in self.commits for group in commit)

    @property
    def inputs(self) -> tuple[FileMarker, ...]:
        """All data files to be merged."""
        return tuple(marker for group in self.groups for marker in group.inputs)


class MergeIndex:
    """A table's log as the planner sees it, kept up to date from one view to the next. Not thread-safe.

    Groups of the hot lane are worked out once, and again when a partition changes: a look at a large table in which
    little has happened costs little.

    Args:
        paths: Keys of the table.
        config: Its configuration; another one needs another index.
        log: A state of its log, owned by this index from now on.
    """

    def __init__(self, paths: TablePaths, config: TableConfig, *, log: LogState | None = None) -> None:
        self.paths: Final = paths
        self.config: Final = config
        self.log: Final = log or LogState()
        self.now_ms = 0
        self.log_file_count = 0
        self.newest_commit_ms = 0
        self.first_before_ms = 0
        """Data files that were made earlier are merged before all others; unix ms."""
        self.promoted_count: Final = config.count_promoted()
        """So are those that have fewer promoted paths (S4)."""
        self._due: dict[str, _Candidate] = {}
        self._changed = {folder for folder, _ in self.log.folders()}

    def update(self, view: LogView) -> None:
        """Take in a later view of the table."""
        self.log.update(view)
        self.now_ms = view.store_now_ms
        self.log_file_count = len(view.files)
        self.newest_commit_ms = max((file.log.time_ms for file in view.files if not file.log.is_seal), default=0)
        self._changed |= self.log.take_changed()
        for folder in tuple(self._changed):
            files = self.log.folder(folder)
            found = self._candidate(folder, files, plan_tiers) if len(files) >= fewest_files(self.config) else None
            if found is None:
                self._due.pop(folder, None)
            else:
                self._due[folder] = found
            self._changed.discard(folder)  # only now: a damaged log must not make the index forget the others

    def find_ready(self, options: MergeOptions = NEXT_RUN) -> tuple[MergeGroup, ...]:
        """Return all that a lane would merge now; ``full`` takes everything, whatever the lane and the log."""
        newest_last = sorted(self._candidates(options), key=lambda found: (found.newest_ms, found.partition))
        candidates = newest_last if options.lane == "cold" and not options.full else newest_last[::-1]
        first = self._first_groups()
        places = {group.partition for group in first}
        rest = (
            group
            for found in candidates
            for group in found.groups
            if found.partition not in places or not self._has_first(group)
        )
        return (*first, *rest)

    def find_waiting(self) -> tuple[MergeGroup, ...]:
        """Return what the hot lane would merge now for the sake of size."""
        return tuple(group for found in self._due.values() for group in found.groups)

    def has_filled(self) -> bool:
        """Whether promoted columns are complete that readers do not see yet (S4)."""
        view, config = self.log.view, self.config
        files = [file for file in view.files if not file.log.is_seal] if config.promoted else []
        if not files:
            return False  # the first commit shows them
        schema = union_schema(view.table, files).logged
        return bool(config.find_filled(schema, fewest=self.log.live.fewest_promoted()))

    def find_due_logs(self, groups: Iterable[MergeGroup]) -> frozenset[str]:
        """Return the log files that a commit of some groups folds (M1)."""
        inputs = (marker for group in groups for marker in group.inputs)
        return plan_fold(self.log, inputs, fan_in=log_fan_in(self.config), now_ms=self.now_ms)

    def lacks_paths(self, group: MergeGroup) -> bool:
        """Whether a data file of a group lacks promoted columns (S4)."""
        count = self.promoted_count
        return count > 0 and any(marker.promoted_count < count for marker in group.inputs)  # each is decoded

    def _has_first(self, group: MergeGroup) -> bool:
        return self.lacks_paths(group) or any(marker.created_ms < self.first_before_ms for marker in group.inputs)

    def _first_groups(self) -> list[MergeGroup]:
        """Return what is merged before all else, partition by partition, the newest first."""
        before_ms, count = self.first_before_ms, self.promoted_count
        is_filled = count == 0 or self.log.live.fewest_promoted() >= count  # asks each of a million markers
        if not before_ms and is_filled:
            return []
        found: list[tuple[int, list[MergeGroup]]] = []
        for folder, files in self.log.folders():
            partition = self.paths.partition_of(folder)
            chunks = files.chunks
            if not is_partition_path(partition) or all(
                chunk.oldest_ms >= before_ms and (is_filled or chunk.fewest_promoted >= count) for chunk in chunks
            ):
                continue
            sizes = files.sizes()
            created = [created_ms for chunk in chunks for created_ms in chunk.created()]
            lacks = [promoted < count for chunk in chunks for promoted in chunk.promoted_counts()]
            old = [at for at, made_ms in enumerate(created) if made_ms < before_ms or lacks[at]]
            alone = [at for at in old if created[at] >= before_ms and sizes[at] >= ALONE_BYTES]
            together = sorted(set(old).difference(alone))
            cut = [*([at] for at in alone), *cut_places(together, sizes, self.config)]
            groups = [
                MergeGroup(partition, ChosenFiles(files, places, size_bytes=sum(sizes[at] for at in places)))
                for places in cut
            ]
            found.append((files.newest_ms, groups))
        found.sort(key=lambda each: each[0], reverse=True)
        return [group for _, groups in found for group in groups]

    def _candidates(self, options: MergeOptions) -> list[_Candidate]:
        if options.lane == "hot" and not options.full:
            return list(self._due.values())
        older_than_ms = None if options.full else self.now_ms - options.cold_after_ms
        found = (
            self._candidate(folder, files, plan_full if options.full else plan_settling)
            for folder, files in self.log.folders()
            if older_than_ms is None or files.newest_ms <= older_than_ms
        )
        return [candidate for candidate in found if candidate is not None]

    def _candidate(
        self,
        folder: str,
        files: LiveFiles,
        plan: Callable[[Sequence[int], TableConfig], list[Places]],
    ) -> _Candidate | None:
        partition = self.paths.partition_of(folder)
        if not is_partition_path(partition):
            return None  # of another writer, with characters that no key of ours may hold: left as it is
        sizes = files.sizes()
        planned = plan(sizes, self.config)
        if not planned:
            return None
        groups = [
            MergeGroup(partition, ChosenFiles(files, places, size_bytes=sum(sizes[at] for at in places)))
            for places in planned
        ]
        return _Candidate(partition, files.newest_ms, tuple(groups))


def plan_merge(index: MergeIndex, view: LogView, options: MergeOptions = NEXT_RUN) -> MergePlan:
    """Plan one merge run of a table.

    Args:
        index: Of the table; brought up to date.
        view: Its log; what is committed is planned from one that was read after the fence was acquired (F2).
        options: What is asked for.
    """
    with paused_gc():  # a million markers are looked at, and none of them is in a cycle
        return _plan(index, view, options)


def _plan(index: MergeIndex, view: LogView, options: MergeOptions) -> MergePlan:
    index.update(view)
    full, lane = options.full, options.lane
    limits = options.limits or (COLD_LIMITS if full or lane == "cold" else HOT_LIMITS)
    ready = index.find_ready(options)
    commits = split_commits(take_within(ready, limits), limits)
    folded: frozenset[str] = frozenset()
    if commits or full or lane == "hot":  # the cold lane does not run to fold
        folded = index.find_due_logs(commits[0] if commits else ())
    if full:
        folded |= listing_twice(index.log.active_files())
    elif _waits_for_log_files(index, commits, folded, lane):
        return MergePlan(ready, shows=index.has_filled())
    return MergePlan(
        ready,
        commits=commits,
        folded_log_keys=tuple(sorted(folded)),
        has_more=sum(map(len, commits)) < len(ready),
        shows=not commits and index.has_filled(),
    )


def take_within(groups: Sequence[MergeGroup], limits: MergeLimits) -> tuple[MergeGroup, ...]:
    """Return the first groups that fit into a run, at least one."""
    taken = 0
    files = size_bytes = 0
    for group in groups:
        is_full = (
            taken == limits.max_groups
            or files + len(group.inputs) > limits.max_files
            or size_bytes + group.size_bytes > limits.max_bytes
        )
        if taken and is_full:
            break
        taken += 1
        files += len(group.inputs)
        size_bytes += group.size_bytes
    return tuple(groups[:taken])


def split_commits(groups: Sequence[MergeGroup], limits: MergeLimits) -> tuple[tuple[MergeGroup, ...], ...]:
    """Cut a run's groups into commits."""
    commits: list[tuple[MergeGroup, ...]] = []
    current: list[MergeGroup] = []
    size_bytes = 0
    for group in groups:
        if current and size_bytes + group.size_bytes > limits.commit_bytes:
            commits.append(tuple(current))
            current, size_bytes = [], 0
        current.append(group)
        size_bytes += group.size_bytes
    if current:
        commits.append(tuple(current))
    return tuple(commits)


def _waits_for_log_files(
    index: MergeIndex, commits: Sequence[Sequence[MergeGroup]], folded: Collection[str], lane: Lane
) -> bool:
    """Whether a commit would add a log file and take too few away: it waits for some that it can fold beside.

    A commit that folds as many log files as the fan-in, or moves much data, never waits. Others do in two cases:

    * ``_log`` is long: half as many dead log files as the slow bound are there. At a high rate of appends a merge after
      each of them would double its length. They alone count: they go away, so that nothing waits for ever.
    * It would leave large log files behind that name its inputs, in a table that gets appends: a merge after each of
      them would cost as many requests as the appends.
    """
    if len(folded) >= log_fan_in(index.config):
        return False
    if sum(group.size_bytes for groups in commits for group in groups) >= WORTH_BYTES:
        return False
    if any(index.lacks_paths(group) for groups in commits[:1] for group in groups):
        return False  # S4: no more of them come
    active = {file.key for file in index.log.active_files()}
    if index.log_file_count - len(active) >= LOG_FILES.slow // 2:
        return True
    if lane == "cold" or not 0 <= index.now_ms - index.newest_commit_ms < QUIET_MS:
        return False
    left = active.difference(folded)
    inputs = (marker for groups in commits[:1] for group in groups for marker in group.inputs)
    return any(not left.isdisjoint(index.log.logs_naming(marker.path)) for marker in inputs)
