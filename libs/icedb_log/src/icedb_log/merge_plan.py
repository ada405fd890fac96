"""What to merge, and what the log file of a merge says. Pure: no store, no clock.

Policy, size-tiered: in each partition the files below the target size are put in tiers by size, each tier
``fan_in`` times as large as the one below. A tier with at least ``fan_in`` files is merged, so the output of a
merge climbs at least one tier, unless the target size cut its group or the files are of the smallest tier. So a
row is rewritten about log_fan_in(target / smallest) times. A *full* merge puts all small files of a partition
together instead. Groups never cross partitions and never exceed the target size; files of the target size are
mature and left alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from icedb_log.fold import fold, newest_feed
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView, Snapshot
from icedb_log.table_config import MIB, TableConfig

SMALLEST_TIER_BYTES = 8 * 1024
"""Everything up to this size is one tier: below it, a file costs a request whatever its size.

Simulated with 3,000 appends of 2 kB and a fan-in of 8: each byte is rewritten 2.8 times and at most 25 files are
live; with 64 KiB 4.8 times and 21 files.
"""

MAX_FOLDED_LOG_BYTES = 1 * MIB
"""Log files up to this size are folded into the log file of the next merge, so that the log stays short."""


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Bounds of one merge run, so that it commits while its work is fresh.

    Attributes:
        max_groups: Groups in one commit.
        max_bytes: Input bytes of one commit; a single group may exceed it.
    """

    max_groups: int = 256
    max_bytes: int = 8 * 1024 * MIB


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one merge run does.

    Attributes:
        groups: Smallest first within a partition, newest partition first.
        folded_log_keys: Log files that the commit involves besides those that name an input (M1: "may involve more").
        has_more: Whether the limits left groups for another run.
    """

    groups: tuple[MergeGroup, ...]
    folded_log_keys: tuple[str, ...]
    has_more: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.groups and not self.folded_log_keys

    @property
    def inputs(self) -> tuple[FileMarker, ...]:
        """All data files to be merged."""
        return tuple(marker for group in self.groups for marker in group.inputs)


def plan_merge(
    view: LogView,
    *,
    paths: TablePaths,
    config: TableConfig,
    full: bool = False,
    limits: MergeLimits | None = None,
) -> MergePlan:
    """Plan one merge run of a table.

    Args:
        view: The log, read after the fence was acquired (F2).
        paths: Keys of the table.
        config: Target size and fan-in.
        full: Merge everything below the target size, whatever its tier.
        limits: Bounds of the run.
    """
    limits = limits or MergeLimits()
    snapshot = fold(view)
    groups: list[MergeGroup] = []
    for partition, markers in sorted(_by_partition(paths, snapshot).items(), reverse=True):
        groups.extend(_plan_partition(partition, markers, config=config, full=full))
    taken: list[MergeGroup] = []
    taken_bytes = 0
    for group in groups:
        if len(taken) == limits.max_groups or (taken and taken_bytes + group.size_bytes > limits.max_bytes):
            break
        taken.append(group)
        taken_bytes += group.size_bytes
    return MergePlan(
        groups=tuple(taken),
        folded_log_keys=_plan_log_fold(view, snapshot, fan_in=config.merge_fan_in, has_groups=bool(taken)),
        has_more=len(taken) < len(groups),
    )


def build_merge_log(
    view: LogView,
    *,
    merged: Sequence[MergedGroup],
    folded_log_keys: Iterable[str],
    commit_id: str,
    now_ms: int,
) -> LogFile:
    """Build the log file of a merge (M1): outputs, dead inputs, and everything else its log files say.

    Args:
        view: The log, as the merge was planned from.
        merged: What became of each group; no groups at all folds log files only.
        folded_log_keys: Further log files to involve.
        commit_id: Of this commit.
        now_ms: The committer's clock. The commit's time is later if that is needed to sort after its inputs (S1).
    """
    snapshot = fold(view)
    inputs = {marker.path: marker for group in merged for marker in group.group.inputs}
    folded = set(folded_log_keys)
    involved = [
        file
        for file in view.files
        if file.key not in snapshot.log_tombstoned_ms
        and not file.log.is_seal  # F4: a seal is never merged away, it has to outlive every request
        and (file.key in folded or any(marker.path in inputs for marker in file.log.markers))
    ]
    # S1: names and times are the same in our log files, but not necessarily in those of other writers.
    time_ms = max([now_ms, *(max(file.log.time_ms, parse_log_key(file.key).time_ms) + 1 for file in involved)])
    markers = [marker for group in merged for marker in group.outputs]
    markers += [replace(marker, tombstoned_ms=time_ms, landed_ms=None) for marker in inputs.values()]
    markers += _carried_markers(involved, snapshot, skipped=inputs.keys())
    extra = {name: value for file in involved for name, value in file.log.extra.items()}
    return LogFile(
        time_ms=time_ms,
        schema=snapshot.logged_schema,
        widened=_widened(snapshot),
        markers=tuple(markers),
        log_tombstones=_carried_log_tombstones(involved, time_ms),
        commit_id=commit_id,
        horizon_ms=snapshot.horizon_ms or None,
        feed=newest_feed(file.log.feed for file in involved),
        extra=extra,
    )


def _widened(snapshot: Snapshot) -> dict[str, str]:
    """Return the columns whose type is wider than the schema lines say (S2)."""
    return {column: wide for column, wide in snapshot.schema.items() if wide != snapshot.logged_schema[column]}


def _by_partition(paths: TablePaths, snapshot: Snapshot) -> dict[str, list[FileMarker]]:
    partitions: dict[str, list[FileMarker]] = defaultdict(list)
    for marker in snapshot.live:
        partitions[paths.partition_of(marker.path)].append(marker)
    return partitions


def _plan_partition(partition: str, markers: list[FileMarker], *, config: TableConfig, full: bool) -> list[MergeGroup]:
    small = sorted(
        (marker for marker in markers if marker.size_bytes < config.target_file_bytes),
        key=lambda marker: (marker.size_bytes, marker.path),
    )
    if full:
        return _pack(partition, small, config=config, min_files=2)
    tiers: dict[int, list[FileMarker]] = defaultdict(list)
    for marker in small:
        tiers[_tier(marker.size_bytes, config.merge_fan_in)].append(marker)
    groups: list[MergeGroup] = []
    for _, tier in sorted(tiers.items()):
        if len(tier) >= config.merge_fan_in:
            groups.extend(_pack(partition, tier, config=config, min_files=config.merge_fan_in))
    return groups


def _tier(size_bytes: int, fan_in: int) -> int:
    tier = 0
    while size_bytes > SMALLEST_TIER_BYTES:
        size_bytes //= fan_in
        tier += 1
    return tier


def _pack(partition: str, markers: list[FileMarker], *, config: TableConfig, min_files: int) -> list[MergeGroup]:
    """Cut files, smallest first, into groups of at most the target size, at least two files each."""
    groups: list[MergeGroup] = []
    current: list[FileMarker] = []
    current_bytes = 0
    for marker in markers:
        is_full = current_bytes + marker.size_bytes > config.target_file_bytes
        if current and (is_full or len(current) == config.max_files_per_group):
            groups.append(_group(partition, current))
            current, current_bytes = [], 0
        current.append(marker)
        current_bytes += marker.size_bytes
    # A rest that is smaller than the fan-in waits for more, unless it is all there is to group.
    if len(current) >= min_files or (groups and len(current) >= 2):  # noqa: PLR2004 - two files make a merge
        groups.append(_group(partition, current))
    return [group for group in groups if len(group.inputs) >= 2]  # noqa: PLR2004


def _group(partition: str, markers: list[FileMarker]) -> MergeGroup:
    return MergeGroup(partition, tuple(sorted(markers, key=lambda marker: marker.path)))


def _plan_log_fold(view: LogView, snapshot: Snapshot, *, fan_in: int, has_groups: bool) -> tuple[str, ...]:
    small = tuple(
        file.key
        for file in view.files
        if file.key not in snapshot.log_tombstoned_ms
        and not file.log.is_seal
        and file.size_bytes <= MAX_FOLDED_LOG_BYTES
    )
    return small if has_groups or len(small) >= fan_in else ()


def _carried_markers(
    involved: Iterable[ListedLogFile], snapshot: Snapshot, *, skipped: Iterable[str]
) -> list[FileMarker]:
    """Every marker of the involved log files, once each; a tombstone keeps the proof of when it landed (J1)."""
    skipped = set(skipped)
    live = {marker.path: marker for marker in snapshot.live}
    dead: dict[str, FileMarker] = {}
    for file in involved:
        for marker in file.log.markers:
            if marker.path in skipped or marker.path in live:
                continue
            known = dead.get(marker.path)
            if marker.tombstoned_ms is not None:
                marker = replace(marker, landed_ms=earliest_landing(marker.landed_ms, file.modified_ms))  # noqa: PLW2901
                if known is not None and known.tombstoned_ms is not None:
                    marker = replace(  # noqa: PLW2901
                        marker,
                        tombstoned_ms=min(known.tombstoned_ms, marker.tombstoned_ms or 0),
                        landed_ms=earliest_landing(known.landed_ms, marker.landed_ms or 0),
                    )
                dead[marker.path] = marker
            elif known is None:
                # Live here, dead in a log file that is not involved: carried as dead (S1).
                dead[marker.path] = replace(marker, tombstoned_ms=snapshot.tombstoned_ms[marker.path])
    named = {marker.path for file in involved for marker in file.log.markers}
    return [live[path] for path in sorted(named & live.keys() - skipped)] + [dead[path] for path in sorted(dead)]


def _carried_log_tombstones(involved: Iterable[ListedLogFile], time_ms: int) -> tuple[LogTombstone, ...]:
    carried: dict[str, LogTombstone] = {}
    for file in involved:
        for tombstone in file.log.log_tombstones:
            known = carried.get(tombstone.path, tombstone)
            carried[tombstone.path] = replace(
                tombstone,
                tombstoned_ms=min(known.tombstoned_ms, tombstone.tombstoned_ms),
                landed_ms=earliest_landing(known.landed_ms, earliest_landing(tombstone.landed_ms, file.modified_ms)),
            )
    for file in involved:
        carried.setdefault(file.key, LogTombstone(file.key, time_ms))
    return tuple(carried[path] for path in sorted(carried))


def earliest_landing(landed_ms: int | None, modified_ms: int) -> int:
    """Return the earlier of two proofs that a tombstone had landed, both by the store's clock (J1)."""
    return modified_ms if landed_ms is None else min(landed_ms, modified_ms)
