"""Which data files of one partition are merged. Pure: sizes in, groups out; knows nothing of logs and lanes.

Files of at least the target size are *mature*: nothing touches them. The others are put in tiers by size, each tier
``fan_in`` times as large as the one below. Three ways to group them:

* **tiered** (:func:`plan_tiers`): a tier with at least ``fan_in`` files is merged, so that the output climbs a tier. A
  row is rewritten about log_fan_in(target / smallest) times, however many files come.
* **settling** (:func:`plan_settling`), for a partition that gets no files any more: all small files, whatever
  their tier. A file is left out only if it is more than twice as large as all smaller ones together: it would be
  rewritten for little, each time that a late file trickles in. What is left grows about threefold from file to file.
* **full** (:func:`plan_full`), on demand: everything below the target size, as far as it fits.

The files of a partition are told by their sizes alone, in the order of their paths, and groups by where their files
stand in it, ascending: of a million small files no more than that is looked at.

Groups never exceed the target size, nor :data:`MAX_FILES`, and have at least two files, but for those of
:func:`pack` and :func:`cut_places`, for files that are to be written anew.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
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
MAX_FILES: Final = 512
"""Of one group: a task opens each of them."""
_path_of: Final = attrgetter("path")

Places = Sequence[int]
"""Where the files of a group stand among those of their partition, ascending."""


def is_mature(size_bytes: int, config: TableConfig) -> bool:
    """Whether a file is large enough to be left alone."""
    return size_bytes >= config.target_file_bytes


def tier_of(size_bytes: int, fan_in: int) -> int:
    """Return the tier of a file, 0 for the smallest."""
    tier = 0
    while size_bytes > SMALLEST_TIER_BYTES:
        size_bytes //= fan_in
        tier += 1
    return tier


def by_tier(sizes: Sequence[int], config: TableConfig) -> dict[int, list[int]]:
    """Return the files that are not mature by tier, the smallest tier and the smallest file first."""
    tiers: dict[int, list[int]] = {}
    small = _small_first(sizes, config)
    begin = 0
    while begin < len(small):
        tier = tier_of(sizes[small[begin]], config.merge_fan_in)
        end = bisect_right(small, tier, lo=begin, key=lambda at: tier_of(sizes[at], config.merge_fan_in))
        tiers[tier] = small[begin:end]
        begin = end
    return tiers


def fewest_files(config: TableConfig) -> int:
    """Return how many files a partition needs at least for :func:`plan_tiers` to group any of them."""
    return config.merge_fan_in


def plan_tiers(sizes: Sequence[int], config: TableConfig) -> list[Places]:
    """Group the files of each tier that has at least ``fan_in`` of them, the smallest tier first."""
    groups: list[Places] = []
    for tier in by_tier(sizes, config).values():
        if len(tier) >= config.merge_fan_in:
            *cut, rest = cut_places(tier, sizes, config)
            groups.extend(group for group in cut if len(group) >= config.merge_fan_in or _grows(group, sizes))
            if len(rest) >= config.merge_fan_in:  # a rest that nothing cut waits for more
                groups.append(rest)
    return groups


def plan_settling(sizes: Sequence[int], config: TableConfig) -> list[Places]:
    """Group all small files of a partition that are worth it, smallest first."""
    chosen: list[int] = []
    pending: list[int] = []
    total = 0
    for at in _small_first(sizes, config):
        pending.append(at)
        if sizes[at] <= 2 * total:
            chosen.extend(pending)
            pending.clear()
        total += sizes[at]
    return [group for group in cut_places(chosen, sizes, config) if _grows(group, sizes)]


def plan_full(sizes: Sequence[int], config: TableConfig) -> list[Places]:
    """Group everything below the target size.

    A partition that is below the target size altogether ends as one file, after a second merge if it has more than
    :data:`MAX_FILES` files, or few late rows: so a ``merge_query`` that combines rows has seen all of them
    together.
    """
    return [group for group in cut_places(_small_first(sizes, config), sizes, config) if len(group) >= MIN_FILES]


def _small_first(sizes: Sequence[int], config: TableConfig) -> list[int]:
    order = sorted(range(len(sizes)), key=sizes.__getitem__)  # of one size: by path, as they stand
    return order[: bisect_left(order, config.target_file_bytes, key=sizes.__getitem__)]


def _grows(group: Places, sizes: Sequence[int]) -> bool:
    """Whether a group makes something of a size that its largest input has not nearly got already."""
    chosen = [sizes[at] for at in group]
    return len(chosen) >= MIN_FILES and sum(chosen) >= MIN_GROWTH * max(chosen)


def cut_places(order: Sequence[int], sizes: Sequence[int], config: TableConfig) -> Iterator[Places]:
    """Cut some files of a partition, by their places in an order, into groups of at most the target size."""
    return (sorted(order[cut]) for cut in _cuts([sizes[at] for at in order], config))


def _cuts(sizes: Sequence[int], config: TableConfig) -> Iterator[slice]:
    """Yield where files are cut into groups of at most the target size; a larger one is a group by itself."""
    ends = list(accumulate(sizes, initial=0))
    begin = 0
    while begin < len(sizes):
        fitting = bisect_right(ends, ends[begin] + config.target_file_bytes, lo=begin + 1) - 1
        end = min(max(fitting, begin + 1), begin + MAX_FILES)
        yield slice(begin, end)
        begin = end


def pack(partition: str, markers: Sequence[FileMarker], config: TableConfig) -> list[MergeGroup]:
    """Cut files, as they stand, into groups of at most the target size."""
    cuts = _cuts([marker.size_bytes for marker in markers], config)
    return [MergeGroup(partition, tuple(sorted(markers[cut], key=_path_of))) for cut in cuts]
