"""Which batches the next commit of a table takes: how many, and of which size (I6).

Which partitions a batch has is known only when it is parsed; what is deferred then is parsed again. So a table whose
batches spread over more partitions than one commit takes is offered about twice what the last commit took, until
nothing is deferred any more. What is remembered saves work only: a process that forgets it looks at a batch again.

Whether anything is staged costs a listing, and a flush lists staging anyway. So a table whose last commit had several
batches is taken to have more by now: a flush that finds none has taken the fence for nothing, once, and looks first the
next time.
"""

from collections import Counter
from dataclasses import replace
from typing import Final, Literal

from cachetools import LRUCache, TTLCache
from icedb_log.clock import Clock
from icedb_log.ingest.flush import FlushLimits, FlushResult
from icedb_log.ingest.staging import StagedListing, list_staged
from icedb_log.jobs import SizeClass
from icedb_log.store.table_store import TableStore
from icedb_log.units import SECOND_MS

Takes = Literal["small", "large"]

MAX_LOOKS: Final = 32
"""Batches that one flush of a large one looks at: each costs a job, and the table's lock is held meanwhile."""
MAX_REMEMBERED: Final = 100_000
"""Ids that are remembered for a table, the newest ones."""
STREAM_BATCHES: Final = 2
"""A commit of so many batches, or more, is one of a stream of them."""
STREAM_AGE_MS: Final = 10 * SECOND_MS
"""How long after such a commit more are expected."""
_MAX_TABLES: Final = 10_000


class FlushChoice:
    """Remembers the tables of which batches were deferred, and ids of batches that a flush of one size does not take.

    Args:
        limits: Most batches, and staged bytes, in one commit of any table.
        small: Which batches are small.
        clock: Measures ages.
    """

    def __init__(self, limits: FlushLimits, *, small: SizeClass, clock: Clock) -> None:
        self._limits = limits
        self._small = small
        self._streams: TTLCache[str, bool] = TTLCache(_MAX_TABLES, STREAM_AGE_MS, clock.monotonic_ms)
        self._lowered: LRUCache[str, int] = LRUCache(_MAX_TABLES)
        self._others: LRUCache[tuple[Takes, str], frozenset[str]] = LRUCache(_MAX_TABLES)

    def limits(self, table: str, takes: Takes) -> FlushLimits:
        """Return the bounds of the table's next commit of batches of one size."""
        max_batches = self._lowered.get(table, self._limits.max_batches)
        return replace(
            self._limits,
            max_batches=min(max_batches, MAX_LOOKS) if takes == "large" else max_batches,
            sizes=replace(self._small, takes=takes),
            skip=self._others.get((takes, table), frozenset()),
        )

    def record(self, table: str, takes: Takes, result: FlushResult) -> None:
        """Learn from a commit: what it left out, and to offer less after a deferral, twice as much after none."""
        if result.left_out:
            known = self._others.get((takes, table), frozenset()).union(result.left_out)
            self._others[takes, table] = frozenset(sorted(known)[-MAX_REMEMBERED:])
        if takes == "large":
            return
        if result.batch_count >= STREAM_BATCHES:
            self._streams[table] = True
        else:
            self._streams.pop(table, None)
        most = self._limits.max_batches
        if result.deferred_count:
            taken = result.batch_count + len(result.rejected)
            self._lowered[table] = max(1, min(2 * taken, most))
        elif result.committed_key and table in self._lowered:
            raised = 2 * self._lowered.pop(table)
            if raised < most:
                self._lowered[table] = raised

    def is_streaming(self, table: str) -> bool:
        """Whether small batches are likely to be staged, so that nobody has to look before a flush does.

        Never while ids are remembered of the table: only a look tells which of these batches have gone.
        """
        return table in self._streams and not any((takes, table) in self._others for takes in ("small", "large"))

    def forget_stream(self, table: str) -> None:
        """Expect nothing of a table any more: a flush of it failed."""
        self._streams.pop(table, None)

    def has_work(self, table: TableStore, takes: Takes) -> bool:
        """Whether batches are staged that a flush of one size has to look at. Forgets those that are gone. One LIST."""
        listing = list_staged(table)
        self._forget(table.name, listing)
        skip = self._others.get((takes, table.name), frozenset())
        sizes = replace(self._small, takes=takes)
        if any(
            batch.batch_id not in skip and (takes == "small" or sizes.may_be_large(batch)) for batch in listing.batches
        ):
            return True
        return listing.has_more and bool(list_staged(table, limit=1, skip=skip).batches)

    def has_large(self, table: str) -> bool:
        """Whether batches are known to be large, and were still staged at the last look."""
        return bool(self._others.get(("small", table)))

    def _forget(self, table: str, listing: StagedListing) -> None:
        """Forget ids that are not staged any more, and those of which one copy would hide another one (I8).

        Copies of one id can be of both sizes. Remembered by one of them, the other one would be left to a flush that
        leaves it here, too: it would never be decided.
        """
        copies = Counter(batch.batch_id for batch in listing.batches)
        several = {batch_id for batch_id, count in copies.items() if count > 1}
        small = {batch.batch_id for batch in listing.batches if not self._small.may_be_large(batch)}
        for takes in ("small", "large"):
            known = self._others.pop((takes, table), frozenset()) - several
            if takes == "small":
                known -= small  # the large copy is gone
            if not listing.has_more:
                known &= copies.keys()
            if known:
                self._others[takes, table] = known
