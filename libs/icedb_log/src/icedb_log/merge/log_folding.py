"""Which log files a commit involves, and which merges wait for them. Pure: knows sizes, not contents.

A merge puts every log file that names one of its inputs to death, and carries all that they say, of live files and of
dead ones (M1). So a merge of two small files costs a megabyte of log if one of the two is named in a log file of a
megabyte; done each time, the log would be rewritten by every commit, and the bytes written would grow with the
square of the number of files. Two rules keep that down, both by *tiers* of log files, each a fan-in (that of the
table's merges, at most :data:`MAX_LOG_FAN_IN`) times as large as the one below:

* **Fold like with like.** A tier with as many log files as the fan-in is folded into one of the next tier. Merges do
  the same by themselves: data files of one tier are named in log files of about one tier. So what a log file says is
  written once for each tier, and small data files are named in small log files. Nothing else is taken along: that would
  carry the names of young data files into large log files, where the next merge of them is dear.
* **A large log file is rewritten when it pays.** A merge whose inputs are named in a log file of a tier waits until one
  of these holds: it is free (:data:`FREE_LOG_BYTES`); the tier is to be folded anyway; the inputs of all merges that
  wait are one in :data:`PAYS_FOR` of its markers; they move :data:`DATA_PER_LOG` times its bytes of data; the log file
  was not rewritten for :data:`LOG_REST_MS`; or the tiers below have grown to one :data:`PAYS_FOR` th of it, and go into
  it. So nothing waits for ever, and about one live file in ``PAYS_FOR`` waits at most.

Measured up to 1,000,000 data files: ``docs/internals/log-growth.md``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.jobs import MergeGroup
from icedb_log.log.live_files import LiveFiles
from icedb_log.log.markers import INDEX_BITS
from icedb_log.log.state import LogState
from icedb_log.model import FileMarker, ListedLogFile
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS, KIB

SMALLEST_LOG_BYTES: Final = 4 * KIB
"""Log files up to this size are one tier."""

FREE_LOG_BYTES: Final = 64 * KIB
"""A log file up to this size is rewritten for whatever comes: it costs no more than the request does."""

MAX_LOG_FAN_IN: Final = 8
"""Log files of one tier that are folded at once, at most; higher rewrites less and leaves more log files."""

PAYS_FOR: Final = 4
"""Bytes of a large log file that one byte of news pays for: of smaller log files that go into it, or of markers of
files that are merged. Higher merges earlier and writes more."""

DATA_PER_LOG: Final = 16
"""A merge that moves so many bytes of data for each byte of log may rewrite the log."""

LOG_REST_MS: Final = DAY_MS
"""A log file that was not rewritten for so long may be, whatever for: nothing waits for ever."""

MARKER_BYTES: Final = 256
"""About what one data file takes in a log file."""


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What a commit may do to the log.

    Attributes:
        reach: Highest tier of log files that may be rewritten now.
        due_keys: Log files that are to be folded, whatever is merged.
        takes_below: Whether a commit that reaches the highest tier takes the log files of the tiers below along: they
            are what pays for it.
        min_inputs: A commit that reaches the highest tier should merge at least so many data files, if there are, or
        min_bytes: so many bytes of them, so that it pays.
    """

    reach: int
    due_keys: tuple[str, ...]
    takes_below: bool
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


def tiers_of_logs(index: LogState, fan_in: int) -> dict[str, int]:
    """Return the tier of each log file that may be merged."""
    return {file.key: log_tier_of(file.size_bytes, fan_in) for file in index.active_files()}


def reach_of(group: MergeGroup, index: LogState, tiers: Mapping[str, int]) -> int:
    """Return the tier of the largest log file that a group involves."""
    largest, reach = max(tiers.values(), default=0), 0
    for marker in group.inputs:
        reach = max(reach, *(tiers.get(key, 0) for key in index.logs_naming(marker.path)), 0)
        if reach == largest:
            break
    return reach


def find_reach(files: LiveFiles, tiers: Mapping[str, int]) -> Callable[[Iterable[int]], int]:
    """Return what does the same for groups of one folder, told by where their files stand in it."""
    found = {tiers.get(markers.key, 0) for chunk in files.chunks for markers in chunk.sources.values()}
    if len(found) == 1:
        (everywhere,) = found
        return lambda _: everywhere
    reaches: list[int] = []
    for chunk in files.chunks:
        in_chunk = {number: tiers.get(markers.key, 0) for number, markers in chunk.sources.items()}
        if len(chunk.live) == len(chunk.entries):  # each is named once
            reaches += [in_chunk[location >> INDEX_BITS] for location in chunk.live]
            continue
        by_path: dict[str, int] = {}
        for path, location in chunk.said():
            by_path[path] = max(by_path.get(path, 0), in_chunk[location >> INDEX_BITS])
        reaches += [by_path[path] for path in chunk.paths()]
    return lambda places: max(reaches[at] for at in places)


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
    due: list[str] = []
    reach = largest = below_bytes = inputs = data_bytes = 0
    takes_below = False
    for tier in sorted(by_tier):
        inputs += wanted.input_count.get(tier, 0)
        data_bytes += wanted.size_bytes.get(tier, 0)
        tier_bytes = max(file.size_bytes for file in by_tier[tier])
        oldest_ms = min(file.log.time_ms for file in by_tier[tier])
        is_due = len(by_tier[tier]) >= fan_in
        if is_due:
            due += [file.key for file in by_tier[tier]]
        pays = (
            tier_bytes <= FREE_LOG_BYTES
            or is_due
            or PAYS_FOR * inputs * MARKER_BYTES >= tier_bytes
            or data_bytes >= DATA_PER_LOG * tier_bytes
            # Only for what waits for this tier: one that nothing asks for rests for ever, and would free all below it.
            or (tier in wanted.input_count and now_ms - oldest_ms >= LOG_REST_MS)
        )
        below_pays = PAYS_FOR * below_bytes >= tier_bytes
        if pays or below_pays:
            reach, largest, takes_below = tier, tier_bytes, not pays
        below_bytes += sum(file.size_bytes for file in by_tier[tier])
    is_free = largest <= FREE_LOG_BYTES
    return FoldPlan(
        reach=reach,
        due_keys=tuple(sorted(due)),
        takes_below=takes_below,
        min_inputs=0 if is_free else largest // (PAYS_FOR * MARKER_BYTES),
        min_bytes=0 if is_free else DATA_PER_LOG * largest,
    )


def folded_along(files: Iterable[ListedLogFile], *, reach: int, fan_in: int) -> tuple[str, ...]:
    """Return the log files of the tiers below, which go into a log file that they pay for."""
    return tuple(file.key for file in files if log_tier_of(file.size_bytes, fan_in) < reach)


def listing_twice(files: Iterable[ListedLogFile]) -> frozenset[str]:
    """Return the log files that list a data file once more, or together, where all say the same of it (S1).

    Folding them leaves one marker. Where they contradict each other nobody knows which is right: a fold would choose
    one without a word, so those stay as they are.
    """
    first: dict[str, tuple[FileMarker, str]] = {}
    found: set[str] = set()
    contradicting: set[str] = set()
    for file in files:
        for marker in file.log.markers:
            known = first.setdefault(marker.path, (marker, file.key))
            if known[0] is marker:
                continue
            other, other_key = known
            counts = {marker.row_count, other.row_count} - {None}
            is_same = marker.size_bytes == other.size_bytes and len(counts) <= 1
            (found if is_same else contradicting).update((file.key, other_key))
    return frozenset(found - contradicting)
