"""Which log files a commit involves, and which merges wait for them. Pure: knows sizes, not contents.

A merge puts every log file that names one of its inputs to death, and carries all that they say, of live files and of
dead ones (M1). So a merge of two small files costs a megabyte of log if one of the two is named in a log file of a
megabyte; done each time, the log would be rewritten by every commit, and the bytes written would grow with the
square of the number of files. Two rules keep that down, both by *tiers* of log files, each a fan-in (that of the
table's merges, at most :data:`MAX_LOG_FAN_IN`) times as large as the one below:

* **Fold like with like.** A tier with as many log files as the fan-in is folded, together with the tiers below it. A
  commit that involves a log file takes the tiers below along. So what a log file says moves up a tier each time that it
  is written again.
* **A large log file is rewritten when it pays.** A merge whose inputs are named in a log file of a tier waits until one
  of these holds: the tiers below hold one fan-in-th of it; the inputs of all merges that wait do so; the merges
  move :data:`DATA_PER_LOG` times its bytes of data; the tier is to be folded anyway; or it has rested for
  :data:`LOG_REST_MS`. The smallest tier is free. So at most about one file in ``fan_in`` waits.

Measured up to 1,000,000 data files: ``docs/log-growth.md``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.jobs import MergeGroup
from icedb_log.log_index import LogIndex
from icedb_log.model import ListedLogFile
from icedb_log.table_config import TableConfig

KIB: Final = 1024

SMALLEST_LOG_BYTES: Final = 64 * KIB
"""Log files up to this size are one tier: to rewrite them costs no more than the request does."""

MAX_LOG_FAN_IN: Final = 8
"""Log files of one tier that are folded at once, at most; higher rewrites less and leaves more log files."""

DATA_PER_LOG: Final = 16
"""A merge that moves so many bytes of data for each byte of log may rewrite the log."""

LOG_REST_MS: Final = 24 * 60 * 60 * 1000
"""A log file that was not rewritten for so long may be, whatever for: nothing waits for ever."""

MARKER_BYTES: Final = 256
"""About what one data file takes in a log file."""


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What a commit may do to the log.

    Attributes:
        reach: Highest tier of log files that may be rewritten now.
        due_keys: Log files that are to be folded, whatever is merged.
        min_inputs: A commit that reaches the highest tier should merge at least so many data files, if there are, or
        min_bytes: so many bytes of them, so that it pays.
    """

    reach: int
    due_keys: tuple[str, ...]
    min_inputs: int
    min_bytes: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What merges that wait would move, by the tier of the largest log file that names an input of theirs.

    Attributes:
        input_count: Data files, for each tier.
        size_bytes: Bytes of them, for each tier.
    """

    input_count: Mapping[int, int]
    size_bytes: Mapping[int, int]


def log_fan_in(config: TableConfig) -> int:
    """Return how many log files of a tier are folded at once."""
    return min(config.merge_fan_in, MAX_LOG_FAN_IN)


def log_tier_of(size_bytes: int, fan_in: int) -> int:
    """Return the tier of a log file, 0 for the smallest."""
    tier = 0
    while size_bytes > SMALLEST_LOG_BYTES:
        size_bytes //= fan_in
        tier += 1
    return tier


def tiers_of_logs(index: LogIndex, fan_in: int) -> dict[str, int]:
    """Return the tier of each log file that may be merged."""
    return {file.key: log_tier_of(file.size_bytes, fan_in) for file in index.active_files()}


def reach_of(group: MergeGroup, index: LogIndex, tiers: Mapping[str, int]) -> int:
    """Return the tier of the largest log file that a group involves."""
    return max(
        (tiers[key] for marker in group.inputs for key in index.logs_naming(marker.path) if key in tiers), default=0
    )


def plan_fold(files: Sequence[ListedLogFile], wanted: Wanted, *, fan_in: int, now_ms: int) -> FoldPlan:
    """Plan which log files are folded, and up to which size the merges that wait may rewrite log files now.

    Args:
        files: Log files that may be merged.
        wanted: What the merges that wait would move.
        fan_in: Log files of a tier that are folded at once.
        now_ms: The store's clock.
    """
    by_tier: dict[int, list[ListedLogFile]] = {}
    for file in files:
        by_tier.setdefault(log_tier_of(file.size_bytes, fan_in), []).append(file)
    reach, due_tier, largest = 0, -1, 0
    below_bytes = inputs = data_bytes = 0
    for tier in sorted(by_tier):
        inputs += wanted.input_count.get(tier, 0)
        data_bytes += wanted.size_bytes.get(tier, 0)
        tier_bytes = max(file.size_bytes for file in by_tier[tier])
        oldest_ms = min(file.log.time_ms for file in by_tier[tier])
        if len(by_tier[tier]) >= fan_in:
            due_tier = tier
        pays = (
            tier in (0, due_tier)
            or fan_in * max(below_bytes, inputs * MARKER_BYTES) >= tier_bytes
            or data_bytes >= DATA_PER_LOG * tier_bytes
            or now_ms - oldest_ms >= LOG_REST_MS
        )
        if pays:
            reach, largest = tier, tier_bytes
        below_bytes += sum(file.size_bytes for file in by_tier[tier])
    due = tuple(file.key for tier, tier_files in by_tier.items() if tier <= due_tier for file in tier_files)
    return FoldPlan(
        reach=reach,
        due_keys=tuple(sorted(due)),
        min_inputs=largest // (fan_in * MARKER_BYTES) if reach else 0,
        min_bytes=DATA_PER_LOG * largest if reach else 0,
    )


def folded_along(files: Iterable[ListedLogFile], *, reach: int, fan_in: int) -> tuple[str, ...]:
    """Return the log files that a commit takes along when it rewrites one of a tier: all of the tiers below."""
    return tuple(file.key for file in files if log_tier_of(file.size_bytes, fan_in) < reach)
