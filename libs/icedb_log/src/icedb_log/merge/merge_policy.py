"""Which data files of one partition are merged. Pure: files in, groups out; knows nothing of logs and lanes.

Files of at least the target size are *mature*: nothing touches them. The others are put in tiers by size, each tier
``fan_in`` times as large as the one below. Three ways to group them:

* **tiered** (:func:`plan_tiers`): a tier with at least ``fan_in`` files is merged, so that the output climbs a tier. A
  row is rewritten about log_fan_in(target / smallest) times, however many files come.
* **settling** (:func:`plan_settling`), for a partition that gets no files any more: all small files, whatever
  their tier. A file is left out only if it is more than twice as large as all smaller ones together: it would be
  rewritten for little, each time that a late file trickles in. What is left grows about threefold from file to file.
* **full** (:func:`plan_full`), on demand: everything below the target size, as far as it fits.

Groups never exceed the target size, nor ``max_files_per_group``, and have at least two files, but for those of
:func:`pack`, for files that are to be written anew.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from operator import attrgetter
from typing import Final

from icedb_log.jobs import MergeGroup
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

SMALLEST_TIER_BYTES: Final = 8 * 1024
"""Everything up to this size is one tier: below it, a file costs a request whatever its size.

Simulated with 3,000 appends of 2 kB and a fan-in of 8: each byte is rewritten 2.8 times and at most 25 files are
live; with 64 KiB 4.8 times and 21 files.
"""

MIN_GROWTH: Final = 1.5
"""A group that is smaller than its tier asks for (the target size cut it, or the partition settles) is merged only if
the output is so much larger than its largest input: nothing is rewritten again and again for a few bytes."""

MIN_FILES: Final = 2
_path_of: Final = attrgetter("path")
_size_of: Final = attrgetter("size_bytes")


def is_mature(marker: FileMarker, config: TableConfig) -> bool:
    """Whether a file is large enough to be left alone."""
    return marker.size_bytes >= config.target_file_bytes


def tier_of(size_bytes: int, fan_in: int) -> int:
    """Return the tier of a file, 0 for the smallest."""
    tier = 0
    while size_bytes > SMALLEST_TIER_BYTES:
        size_bytes //= fan_in
        tier += 1
    return tier


def by_tier(markers: Iterable[FileMarker], config: TableConfig) -> dict[int, list[FileMarker]]:
    """Return the files that are not mature by tier, the smallest tier and the smallest file first."""
    tiers: dict[int, list[FileMarker]] = {}
    small = _small_first(markers, config)
    begin = 0
    while begin < len(small):
        tier = tier_of(small[begin].size_bytes, config.merge_fan_in)
        end = bisect_right(small, tier, lo=begin, key=lambda each: tier_of(each.size_bytes, config.merge_fan_in))
        tiers[tier] = small[begin:end]
        begin = end
    return tiers


def fewest_files(config: TableConfig) -> int:
    """Return how many files a partition needs at least for :func:`plan_tiers` to group any of them."""
    return config.merge_fan_in


def plan_tiers(partition: str, markers: Iterable[FileMarker], config: TableConfig) -> tuple[MergeGroup, ...]:
    """Group the files of each tier that has at least ``fan_in`` of them, the smallest tier first."""
    groups: list[MergeGroup] = []
    for tier in by_tier(markers, config).values():
        if len(tier) >= config.merge_fan_in:
            *cut, rest = pack(partition, tier, config)
            groups.extend(group for group in cut if len(group.inputs) >= config.merge_fan_in or _grows(group))
            if len(rest.inputs) >= config.merge_fan_in:  # a rest that nothing cut waits for more
                groups.append(rest)
    return tuple(groups)


def plan_settling(partition: str, markers: Iterable[FileMarker], config: TableConfig) -> tuple[MergeGroup, ...]:
    """Group all small files of a partition that are worth it, smallest first."""
    chosen: list[FileMarker] = []
    pending: list[FileMarker] = []
    total = 0
    for marker in _small_first(markers, config):
        pending.append(marker)
        if marker.size_bytes <= 2 * total:
            chosen.extend(pending)
            pending.clear()
        total += marker.size_bytes
    packed = pack(partition, chosen, config)
    return tuple(group for group in packed if len(group.inputs) >= MIN_FILES and _grows(group))


def plan_full(partition: str, markers: Iterable[FileMarker], config: TableConfig) -> tuple[MergeGroup, ...]:
    """Group everything below the target size.

    A partition that is below the target size altogether ends as one file, after a second merge if it has more than
    ``max_files_per_group`` files, or few late rows: so a ``merge_query`` that combines rows has seen all of them
    together.
    """
    packed = pack(partition, _small_first(markers, config), config)
    return tuple(group for group in packed if len(group.inputs) >= MIN_FILES)


def _small_first(markers: Iterable[FileMarker], config: TableConfig) -> list[FileMarker]:
    small = sorted(markers, key=_path_of)  # mostly they are
    small.sort(key=_size_of)  # of one size: by path. Two sorts of one field are quicker than one of pairs
    return small[: bisect_left(small, config.target_file_bytes, key=_size_of)]


def _grows(group: MergeGroup) -> bool:
    """Whether a group makes something of a size that its largest input has not nearly got already."""
    largest = max(map(_size_of, group.inputs))
    return len(group.inputs) >= MIN_FILES and group.size_bytes >= MIN_GROWTH * largest


def pack(partition: str, markers: list[FileMarker], config: TableConfig) -> list[MergeGroup]:
    """Cut files, smallest first, into groups of at most the target size."""
    groups: list[MergeGroup] = []
    ends = list(accumulate(map(_size_of, markers), initial=0))
    begin = 0
    while begin < len(markers):
        fitting = bisect_right(ends, ends[begin] + config.target_file_bytes, lo=begin + 1) - 1
        end = min(max(fitting, begin + 1), begin + config.max_files_per_group)
        groups.append(_group(partition, markers[begin:end]))
        begin = end
    return groups


def _group(partition: str, markers: list[FileMarker]) -> MergeGroup:
    return MergeGroup(partition, tuple(sorted(markers, key=_path_of)))


def newest_ms(markers: Iterable[FileMarker]) -> int:
    """Return when the newest of some data files was made; 0 for none."""
    return max((marker.created_ms for marker in markers), default=0)
