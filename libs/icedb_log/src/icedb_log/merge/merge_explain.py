"""Why something is merged, or is not: what ``icedb merge TABLE --dry-run`` says. Pure, like the plan that it explains.

Asks the planner, never works anything out by itself: what it calls planned is what a run would do.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.jobs import MergeGroup
from icedb_log.log.live_files import LiveFiles
from icedb_log.merge.log_folding import log_fan_in, log_tier_of
from icedb_log.merge.merge_plan import COLD_AFTER_MS, LANES, Lane, MergeIndex, MergeOptions, plan_merge
from icedb_log.merge.merge_policy import MIN_FILES, by_tier, is_mature, plan_settling, tier_of
from icedb_log.model import ListedLogFile, LogView
from icedb_log.table.table_config import TableConfig

When = Literal["now", "next_run"]
"""``now``: in the next run of its lane; ``next_run``: in one after it, since that is full."""

Reason = Literal["merge", "mature", "one_file", "fan_in", "cold", "settled"]
"""Why a partition is as it is. ``merge``: something is to be merged; ``mature``: all files have the target size;
``one_file``: one smaller file; ``fan_in``: fewer files than the fan-in in each tier, and nothing to gain when it rests;
``cold``: the same, but merged further when it has got no file for an hour; ``settled``: it rests, and a merge
would rewrite a large file for little."""

_WHY: Final[Mapping[Reason, str]] = {
    "merge": "",
    "mature": "all files have the target size",
    "one_file": "one file only",
    "fan_in": "fewer than {fan_in} files in each tier",
    "cold": "fewer than {fan_in} files in each tier; merged further when it rests",
    "settled": "rests; a merge would rewrite a large file for little",
}
_WHEN: Final[Mapping[When, str]] = {
    "now": "now",
    "next_run": "next run: this one is full",
}


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
    """Log files of one tier, 0 for the smallest.

    Attributes:
        folded_count: How many of them the next hot run folds.
    """

    tier: int
    file_count: int
    size_bytes: int
    folded_count: int


@dataclass(frozen=True, slots=True)
class MergeExplanation:
    """What the merger would do with a table.

    Attributes:
        partitions: Those with the newest data first.
        log_tiers: The smallest first.
        log_file_count: Objects below ``_log``, dead ones too.
        log_fan_in: Log files of a tier that are folded at once.
        waits: Whether the next hot run waits until it can fold more log files.
    """

    partitions: tuple[ExplainedPartition, ...]
    log_tiers: tuple[ExplainedLogTier, ...]
    log_file_count: int
    log_fan_in: int
    waits: bool


def explain_merge(index: MergeIndex, view: LogView, *, full: bool = False) -> MergeExplanation:
    """Explain what each partition waits for.

    Args:
        index: Of the table; brought up to date.
        view: Its log.
        full: Explain a full merge instead of the lanes.
    """
    lanes: tuple[Lane, ...] = ("hot",) if full else LANES
    plans = {lane: plan_merge(index, view, MergeOptions(lane, full)) for lane in lanes}
    groups: dict[str, list[ExplainedGroup]] = defaultdict(list)
    for lane, plan in plans.items():
        ready, taken = plan.ready, len(plan.groups)  # a run takes the first that are ready
        whens: dict[When, Sequence[MergeGroup]] = {"now": ready[:taken], "next_run": ready[taken:]}
        for when, group in ((when, group) for when, some in whens.items() for group in some):
            groups[group.partition].append(_explain_group(group, lane, when, index.config))
    partitions = [
        _explain_partition(partition, files, tuple(groups.get(partition, ())), index)
        for folder, files in index.log.folders()
        for partition in [index.paths.partition_of(folder)]
    ]
    hot = plans["hot"]
    return MergeExplanation(
        partitions=tuple(sorted(partitions, key=lambda found: (found.newest_ms, found.partition), reverse=True)),
        log_tiers=_explain_log(index, hot.folded_log_keys),
        log_file_count=len(view.files),
        log_fan_in=log_fan_in(index.config),
        waits=hot.is_empty and bool(hot.ready),
    )


def say_when(when: When) -> str:
    """Return, for people, when a group is merged."""
    return _WHEN[when]


def say_why_not(reason: Reason, *, fan_in: int) -> str:
    """Return, for people, why nothing of a partition is merged; empty: something is."""
    return _WHY[reason].format(fan_in=fan_in)


def _explain_group(group: MergeGroup, lane: Lane, when: When, config: TableConfig) -> ExplainedGroup:
    inputs = tuple(group.inputs)
    largest = max(marker.size_bytes for marker in inputs)
    return ExplainedGroup(
        lane=lane,
        when=when,
        tier=tier_of(largest, config.merge_fan_in),
        file_count=len(inputs),
        size_bytes=group.size_bytes,
        paths=tuple(marker.path for marker in inputs),
    )


def _explain_partition(
    partition: str, files: LiveFiles, groups: tuple[ExplainedGroup, ...], index: MergeIndex
) -> ExplainedPartition:
    config, sizes = index.config, files.sizes()
    is_cold = files.newest_ms + COLD_AFTER_MS <= index.now_ms
    return ExplainedPartition(
        partition=partition,
        is_cold=is_cold,
        newest_ms=files.newest_ms,
        file_count=len(sizes),
        size_bytes=files.size_bytes,
        mature_count=sum(is_mature(size, config) for size in sizes),
        tiers={tier: len(found) for tier, found in sorted(by_tier(sizes, config).items())},
        reason="merge" if groups else _why_not(sizes, config, is_cold=is_cold),
        groups=groups,
    )


def _why_not(sizes: Sequence[int], config: TableConfig, *, is_cold: bool) -> Reason:
    small_count = sum(not is_mature(size, config) for size in sizes)
    if not small_count:
        return "mature"
    if small_count < MIN_FILES:
        return "one_file"
    if is_cold:
        return "settled"
    return "cold" if plan_settling(sizes, config) else "fan_in"


def _explain_log(index: MergeIndex, folded_log_keys: Collection[str]) -> tuple[ExplainedLogTier, ...]:
    tiers: dict[int, list[ListedLogFile]] = defaultdict(list)
    for file in index.log.active_files():
        tiers[log_tier_of(file.size_bytes, log_fan_in(index.config))].append(file)
    return tuple(
        ExplainedLogTier(
            tier=tier,
            file_count=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            folded_count=sum(file.key in folded_log_keys for file in files),
        )
        for tier, files in sorted(tiers.items())
    )
