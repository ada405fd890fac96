"""What one merge run does: which groups in which lane, in which commits, and which log files it folds. Pure.

Puts together what others decide: :mod:`icedb_log.merge.merge_policy` the groups of a partition,
:mod:`icedb_log.merge.log_folding` which of them wait for their log files, and this module the lanes and their bounds.

* The **hot** lane runs often. All partitions, those with the newest data first; the smallest tier of a partition first.
* The **cold** lane runs rarely. Partitions that got no data file for ``cold_after_ms`` by the store's clock, those
  that have waited longest first; each is merged as far as it is worth it.

Before both come data files that have to be written anew for a reason of their own (:attr:`MergeIndex.first`), whatever
their size, alone if need be.

Each lane has bounds of its own, so that neither keeps the other waiting: what a hot run leaves in old partitions is
at the head of a cold run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths, is_partition_path
from icedb_log.log.live_files import ChosenFiles, LiveFiles
from icedb_log.log.markers import paused_gc
from icedb_log.log.state import LogState
from icedb_log.merge.log_folding import (
    FoldPlan,
    Wanted,
    find_reach,
    folded_along,
    listing_twice,
    log_fan_in,
    plan_fold,
    reach_of,
    tiers_of_logs,
)
from icedb_log.merge.merge_policy import Places, fewest_files, pack, plan_full, plan_settling, plan_tiers
from icedb_log.model import FileMarker, LogView
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

Lane = Literal["hot", "cold"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Bounds of one merge run, so that other tables get their turn, and of each of its commits.

    They give way to one thing: a commit that has to rewrite a large log file takes as much as makes that worth it.

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

CROWD_BYTES: Final = 64 * MIB
"""Input bytes from which a merge is worth a log file although it replaces few, and there are many."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a merge run is asked for.

    Attributes:
        lane: Which merges.
        full: Merge everything below the target size, whatever the lane, its tier and what it costs; log files that list
            a data file twice become one that does not.
        limits: Bounds of the run; those of the lane if not given.
    """

    lane: Lane = "hot"
    full: bool = False
    limits: MergeLimits | None = None


NEXT_RUN: Final = MergeOptions()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A partition in which something can be merged.

    Attributes:
        partition: Encoded partition path.
        newest_ms: When its newest data file was made.
        groups: Smallest first, with the tier of the largest log file that each involves.
    """

    partition: str
    newest_ms: int
    groups: tuple[tuple[MergeGroup, int], ...]


@dataclass(frozen=True, slots=True)
class ReadyMerges:
    """All that a lane would merge now, whatever one run takes.

    Attributes:
        groups: In the order in which they are taken. Of a million inputs no marker is made before somebody asks for it.
        waiting: Groups that wait until it pays to rewrite the log files that name their inputs.
        fold: What may be done to the log.
    """

    groups: tuple[MergeGroup, ...]
    waiting: tuple[MergeGroup, ...]
    fold: FoldPlan


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one merge run does.

    Attributes:
        commits: Groups of each commit. A run that only folds log files has none, and makes one commit.
        folded_log_keys: Log files that the first commit involves besides those that name an input (M1: "may involve
            more").
        has_more: Whether the limits left groups for another run.
        ready: What the run was taken from.
    """

    ready: ReadyMerges = field(compare=False)
    commits: tuple[tuple[MergeGroup, ...], ...] = ()
    folded_log_keys: tuple[str, ...] = ()
    has_more: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.commits and not self.folded_log_keys

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
        log: What is known of its log, from now on this index's own.
    """

    def __init__(self, paths: TablePaths, config: TableConfig, *, log: LogState | None = None) -> None:
        self.paths: Final = paths
        self.config: Final = config
        self.log: Final = log or LogState()
        self.now_ms = 0
        self.log_file_count = 0
        self.first: frozenset[str] = frozenset()
        """Paths of data files that are merged before all others, as far as they are live."""
        self._due: dict[str, _Candidate] = {}
        self._tiers: dict[str, int] = {}
        self._changed = {folder for folder, _ in self.log.folders()}

    def update(self, view: LogView) -> None:
        """Take in a later view of the table."""
        self.log.update(view)
        self.now_ms = view.store_now_ms
        self.log_file_count = len(view.files)
        self._tiers = tiers_of_logs(self.log, log_fan_in(self.config))
        self._changed |= self.log.take_changed()
        for folder in tuple(self._changed):
            files = self.log.folder(folder)
            found = self._candidate(folder, files, plan_tiers) if len(files) >= fewest_files(self.config) else None
            if found is None:
                self._due.pop(folder, None)
            else:
                self._due[folder] = found
            self._changed.discard(folder)  # only now: a damaged log must not make the index forget the others

    def find_ready(self, options: MergeOptions = NEXT_RUN) -> ReadyMerges:
        """Return what a lane would merge now; ``full`` takes everything, whatever the lane and the log."""
        newest_last = sorted(self._candidates(options), key=lambda found: (found.newest_ms, found.partition))
        candidates = newest_last if options.lane == "cold" and not options.full else newest_last[::-1]
        first = self._first_groups()
        places = {group.partition for group in first}
        groups = [
            each
            for found in candidates
            for each in found.groups
            if found.partition not in places or not self._has_first(each[0])
        ]
        fan_in = log_fan_in(self.config)
        fold = plan_fold(self.log.active_files(), _wanted(groups), fan_in=fan_in, now_ms=self.now_ms)
        return ReadyMerges(
            groups=(*first, *(group for group, reach in groups if options.full or reach <= fold.reach)),
            waiting=tuple(group for group, reach in groups if not options.full and reach > fold.reach),
            fold=fold,
        )

    def _has_first(self, group: MergeGroup) -> bool:
        return any(marker.path in self.first for marker in group.inputs)

    def _first_groups(self) -> list[MergeGroup]:
        """Return what is merged before all else, partition by partition."""
        found: dict[str, list[FileMarker]] = {}
        for path in sorted(self.first):
            marker = self.log.live_marker(path)
            if marker is not None and is_partition_path(partition := self.paths.partition_of(path)):
                found.setdefault(partition, []).append(marker)
        return [group for partition, markers in found.items() for group in pack(partition, markers, self.config)]

    def reach_of(self, groups: Iterable[MergeGroup]) -> int:
        """Return the tier of the largest log file that some groups involve."""
        return max((reach_of(group, self.log, self._tiers) for group in groups), default=0)

    def _candidates(self, options: MergeOptions) -> list[_Candidate]:
        if options.lane == "hot" and not options.full:
            return list(self._due.values())
        older_than_ms = None if options.full else self.now_ms - self.config.cold_after_ms
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
        reach = find_reach(files, self._tiers)
        groups = [
            (MergeGroup(partition, ChosenFiles(files, group, size_bytes=sum(sizes[at] for at in group))), reach(group))
            for group in planned
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
    taken = take_within(ready.groups, limits, ready.fold)
    reach = index.reach_of(taken)
    due_keys = ready.fold.due_keys if taken or full or lane == "hot" else ()  # the cold lane does not run to fold
    folded = set(due_keys)
    if reach == ready.fold.reach and ready.fold.takes_below:
        folded.update(folded_along(index.log.active_files(), reach=reach, fan_in=log_fan_in(index.config)))
    if full:
        folded |= listing_twice(index.log.active_files())
    if not full and _waits_in_the_crowd(index, taken, folded):
        return MergePlan(ready)
    return MergePlan(
        ready,
        commits=split_commits(taken, limits, ready.fold if reach else None),
        folded_log_keys=tuple(sorted(folded)),
        has_more=len(taken) < len(ready.groups),
    )


def take_within(groups: Sequence[MergeGroup], limits: MergeLimits, fold: FoldPlan) -> tuple[MergeGroup, ...]:
    """Return the first groups that fit into a run, at least one; more if the log files to be rewritten ask for it."""
    taken = 0
    files = size_bytes = 0
    for group in groups:
        pays = files >= fold.min_inputs or size_bytes >= fold.min_bytes
        is_full = (
            taken == limits.max_groups
            or files + len(group.inputs) > limits.max_files
            or size_bytes + group.size_bytes > limits.max_bytes
        )
        if taken and pays and is_full:
            break
        taken += 1
        files += len(group.inputs)
        size_bytes += group.size_bytes
    return tuple(groups[:taken])


def split_commits(
    groups: Sequence[MergeGroup], limits: MergeLimits, fold: FoldPlan | None
) -> tuple[tuple[MergeGroup, ...], ...]:
    """Cut a run's groups into commits, each large enough to pay for the log files that it rewrites."""
    commits: list[tuple[MergeGroup, ...]] = []
    current: list[MergeGroup] = []
    files = size_bytes = 0
    for group in groups:
        pays = fold is None or files >= fold.min_inputs or size_bytes >= fold.min_bytes
        if current and pays and size_bytes + group.size_bytes > limits.commit_bytes:
            commits.append(tuple(current))
            current, files, size_bytes = [], 0, 0
        current.append(group)
        files += len(group.inputs)
        size_bytes += group.size_bytes
    if current:
        commits.append(tuple(current))
    return tuple(commits)


def _wanted(groups: Iterable[tuple[MergeGroup, int]]) -> Wanted:
    inputs, size_bytes = Counter[int](), Counter[int]()
    for group, reach in groups:
        inputs[reach] += len(group.inputs)
        size_bytes[reach] += group.size_bytes
    return Wanted(inputs, size_bytes)


def _waits_in_the_crowd(index: MergeIndex, groups: Sequence[MergeGroup], folded: set[str]) -> bool:
    """Whether a commit would add a log file to a long log and take too few away.

    Dead log files stay for their grace period. At a high rate of appends a merge after each of them would double the
    length of the log; so while half as many of them as the slow bound are there, a commit has to replace as many log
    files as the fan-in, or move much data. They alone count: they go away, so that nothing waits for ever.
    """
    active = {file.key for file in index.log.active_files()}
    if index.log_file_count - len(active) < max(1, index.config.log_files_slow // 2):
        return False
    if sum(group.size_bytes for group in groups) >= CROWD_BYTES:
        return False
    involved = {key for group in groups for marker in group.inputs for key in index.log.logs_naming(marker.path)}
    return len((involved & active) | folded) < log_fan_in(index.config)
