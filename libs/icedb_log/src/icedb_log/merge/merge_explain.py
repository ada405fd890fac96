"""Why something is merged, or is not: what ``icedb merge TABLE --explain`` says. Pure, like the plan that it explains.

Asks the planner, never works anything out by itself: what it calls planned is what a run would do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.merge.log_folding import log_fan_in, log_tier_of
from icedb_log.merge.merge_plan import LANES, Lane, MergeIndex, ReadyMerges, plan_merge
from icedb_log.merge.merge_policy import MIN_FILES, by_tier, is_mature, newest_ms, plan_settling, tier_of
from icedb_log.model import FileMarker, LogView
from icedb_log.table.table_config import TableConfig

When = Literal["now", "next_run", "log"]
"""``now``: in the next run of its lane; ``next_run``: in one after it, since that is full; ``log``: when it pays to
rewrite the log files that name its inputs."""

Reason = Literal["merge", "mature", "one_file", "fan_in", "cold", "settled"]
"""Why a partition is as it is. ``merge``: something is to be merged; ``mature``: all files have the target size;
``one_file``: one smaller file; ``fan_in``: fewer files than the fan-in in each tier, and nothing to gain when it rests;
``cold``: the same, but merged further when it has got no file for ``cold_after_ms``; ``settled``: it rests, and a merge
would rewrite a large file for little."""

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class ExplainedGroup:
    """Files that are merged into one.

    Attributes:
        lane: Which lane does it.
        when: See :data:`When`.
        tier: Of its largest file.
        file_count: Its files.
        size_bytes: Bytes of them.
        paths: Keys of them, ascending.
    """

    lane: Lane
    when: When
    tier: int
    file_count: int
    size_bytes: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedPartition:
    """What becomes of one partition.

    Attributes:
        partition: Encoded partition path.
        is_cold: Whether it has got no file for so long that the cold lane takes it.
        newest_ms: When its newest data file was made.
        file_count: Live data files.
        size_bytes: Bytes of them.
        mature_count: Those of the target size.
        tiers: Files of each tier below, the smallest tier first.
        reason: See :data:`Reason`.
        groups: What is merged; of a partition that rests both lanes' groups, which may share files: the first to come
            takes them.
    """

    partition: str
    is_cold: bool
    newest_ms: int
    file_count: int
    size_bytes: int
    mature_count: int
    tiers: Mapping[int, int]
    reason: Reason
    groups: tuple[ExplainedGroup, ...]


@dataclass(frozen=True, slots=True)
class ExplainedLogTier:
    """Log files of one tier that a commit may involve.

    Attributes:
        tier: 0 for the smallest.
        file_count: Its log files.
        size_bytes: Bytes of them.
        is_folded: Whether the next hot run folds them.
        may_be_rewritten: Whether merges of files named in them may go on now.
    """

    tier: int
    file_count: int
    size_bytes: int
    is_folded: bool
    may_be_rewritten: bool


@dataclass(frozen=True, slots=True)
class MergeExplanation:
    """What the merger would do with a table.

    Attributes:
        partitions: Those with the newest data first.
        log_tiers: The smallest first.
        log_file_count: Objects below ``_log``, dead ones too.
        log_fan_in: Log files of a tier that are folded at once.
        is_crowded: Whether the next hot run waits until it can replace more log files, since ``_log`` is long.
    """

    partitions: tuple[ExplainedPartition, ...]
    log_tiers: tuple[ExplainedLogTier, ...]
    log_file_count: int
    log_fan_in: int
    is_crowded: bool


def explain_merge(view: LogView, *, paths: TablePaths, config: TableConfig, full: bool = False) -> MergeExplanation:
    """Explain what each partition waits for.

    Args:
        view: The log.
        paths: Keys of the table.
        config: Of the table.
        full: Explain a full merge instead of the lanes.
    """
    index = MergeIndex(paths, config)
    index.update(view)
    groups: dict[str, list[ExplainedGroup]] = {}
    lanes: tuple[Lane, ...] = ("hot",) if full else LANES
    hot: ReadyMerges | None = None
    is_crowded = False
    for lane in lanes:
        ready = index.find_ready(lane=lane, full=full)
        plan = plan_merge(view, paths=paths, config=config, lane=lane, full=full, index=index)
        if lane == "hot":
            hot = ready
            is_crowded = plan.is_empty and bool(ready.groups)
        now = {_key_of(group) for group in plan.groups}
        for group in ready.groups:
            when: When = "now" if _key_of(group) in now else "next_run"
            groups.setdefault(group.partition, []).append(_explain_group(group, lane, when, config))
        for group in ready.waiting:
            groups.setdefault(group.partition, []).append(_explain_group(group, lane, "log", config))
    partitions = [
        _explain_partition(paths.partition_of(f"{folder}/"), files.values(), groups, index)
        for folder, files in index.log.folders.items()
    ]
    return MergeExplanation(
        partitions=tuple(sorted(partitions, key=lambda found: (found.newest_ms, found.partition), reverse=True)),
        log_tiers=_explain_log(index, hot),
        log_file_count=len(view.files),
        log_fan_in=log_fan_in(config),
        is_crowded=is_crowded,
    )


def _key_of(group: MergeGroup) -> tuple[str, str, int]:
    return group.partition, group.inputs[0].path, len(group.inputs)


def _explain_group(group: MergeGroup, lane: Lane, when: When, config: TableConfig) -> ExplainedGroup:
    largest = max(marker.size_bytes for marker in group.inputs)
    return ExplainedGroup(
        lane=lane,
        when=when,
        tier=tier_of(largest, config.merge_fan_in),
        file_count=len(group.inputs),
        size_bytes=group.size_bytes,
        paths=tuple(marker.path for marker in group.inputs),
    )


def _explain_partition(
    partition: str, files: Iterable[FileMarker], groups: Mapping[str, list[ExplainedGroup]], index: MergeIndex
) -> ExplainedPartition:
    config = index.config
    files = tuple(files)
    newest = newest_ms(files)
    is_cold = newest + config.cold_after_ms <= index.now_ms
    mine = tuple(groups.get(partition, ()))
    return ExplainedPartition(
        partition=partition,
        is_cold=is_cold,
        newest_ms=newest,
        file_count=len(files),
        size_bytes=sum(marker.size_bytes for marker in files),
        mature_count=sum(1 for marker in files if is_mature(marker, config)),
        tiers={tier: len(markers) for tier, markers in sorted(by_tier(files, config).items())},
        reason="merge" if mine else _why_not(partition, files, config, is_cold=is_cold),
        groups=mine,
    )


def _why_not(partition: str, files: tuple[FileMarker, ...], config: TableConfig, *, is_cold: bool) -> Reason:
    small = [marker for marker in files if not is_mature(marker, config)]
    if not small:
        return "mature"
    if len(small) < MIN_FILES:
        return "one_file"
    if is_cold:
        return "settled"
    return "cold" if plan_settling(partition, small, config) else "fan_in"


def _explain_log(index: MergeIndex, hot: ReadyMerges | None) -> tuple[ExplainedLogTier, ...]:
    fan_in = log_fan_in(index.config)
    tiers: dict[int, list[int]] = {}
    due: set[int] = set()
    due_keys = set(hot.fold.due_keys) if hot else set()
    for file in index.log.active_files():
        tier = log_tier_of(file.size_bytes, fan_in)
        tiers.setdefault(tier, []).append(file.size_bytes)
        if file.key in due_keys:
            due.add(tier)
    reach = hot.fold.reach if hot else 0
    return tuple(
        ExplainedLogTier(tier, len(sizes), sum(sizes), is_folded=tier in due, may_be_rewritten=tier <= reach)
        for tier, sizes in sorted(tiers.items())
    )
