"""Which log files a commit of the merger folds into its own (M1). Pure: knows sizes and counts, not contents.

A merge says what it changed and nothing more, so it never has to rewrite a log file, whatever its inputs are named in.
Log files are folded beside that, for two reasons:

* **There are many of one size.** They are in *tiers* by size, each a fan-in (that of the table's merges, at most
  :data:`MAX_LOG_FAN_IN`) times as large as the one below. A tier with as many log files as the fan-in becomes one log
  file of the next tier: what a log file says is written once for each tier, and ``_log`` stays short.
* **It lists dead data files as live**, which keeps these from being deleted (J2). A small log file
  (:data:`FREE_LOG_BYTES`) is folded by the commit that makes it so. A large one is when it pays: when such files are
  one in :data:`PAYS_FOR` of those that it names, when they are :data:`DATA_PER_LOG` times its bytes, or when it was not
  rewritten for :data:`LOG_REST_MS`. So no dead data file waits for ever.

Measured up to 1,000,000 data files: ``docs/internals/log-growth.md``.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

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
"""A large log file is rewritten when one in so many of the data files that it names can be deleted by that."""

DATA_PER_LOG: Final = 16
"""Or when it keeps so many bytes of data from being deleted for each byte of its own."""

LOG_REST_MS: Final = DAY_MS
"""Or when it was not rewritten for so long: nothing waits for ever."""

MARKER_BYTES: Final = 256
"""About what one data file takes in a log file."""


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


def plan_fold(log: LogState, inputs: Iterable[FileMarker], *, fan_in: int, now_ms: int) -> frozenset[str]:
    """Return the log files that a commit folds.

    Args:
        log: The log.
        inputs: Live data files that the commit puts to death.
        fan_in: Log files of a tier that are folded at once.
        now_ms: The store's clock.
    """
    active = {file.key: file for file in log.active_files()}
    tiers: dict[int, list[str]] = {}
    for key, file in active.items():
        tiers.setdefault(log_tier_of(file.size_bytes, fan_in), []).append(key)
    due = {key for keys in tiers.values() if len(keys) >= fan_in for key in keys}
    counts, sizes = Counter[str](), Counter[str]()
    dying = ((key, marker.size_bytes) for marker in inputs for key in log.logs_naming(marker.path))
    for key, size_bytes in (*log.stale_markers(), *dying):
        counts[key] += 1
        sizes[key] += size_bytes
    due.update(key for key, count in counts.items() if key in active and _pays(active[key], count, sizes[key], now_ms))
    return frozenset(due)


def _pays(file: ListedLogFile, stale_count: int, stale_bytes: int, now_ms: int) -> bool:
    """Whether it pays to rewrite a log file that lists so many dead data files as live."""
    return (
        file.size_bytes <= FREE_LOG_BYTES
        or stale_count * MARKER_BYTES * PAYS_FOR >= file.size_bytes
        or stale_bytes >= DATA_PER_LOG * file.size_bytes
        or now_ms - file.log.time_ms >= LOG_REST_MS
    )


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
