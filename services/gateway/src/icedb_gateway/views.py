"""Which snapshot a listing or a key speaks of, and how it is found again for the next page. Reads; never writes.

The rules of what a client may see:

* A listing shows the live files of one snapshot, and nothing else: no log, no staged batch, no orphan.
* All pages of a table show the same snapshot. The token names it; the replica that made the token has it in memory, and
  another one finds it as the state at its newest commit. Where neither does (the log files are past their grace period,
  or a commit landed late), the listing is refused, and never goes on with another snapshot: rows would be twice or not
  there at all.
* A key can be read for as long as some log file names it, live or tombstoned, since only what was live in some snapshot
  is named: who listed it before a merge reads on, for the data grace period at least, and longer while leases or tags
  hold it. When it goes is the janitor's business alone.
"""

from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache, TTLCache
from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound
from icedb_log.holds.tags import read_tagged
from icedb_log.log.fold import Snapshot
from icedb_log.model import FileMarker
from icedb_log.serving.table_cache import TableState
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

from icedb_gateway.errors import invalid_argument
from icedb_gateway.listing import SnapshotName, TableRef
from icedb_gateway.requests import GatewayParts

TAG_AGE_MS: Final = 10_000
"""How long a tag is believed to last without a look."""
MAX_TAGS: Final = 64


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a key means: its key in the store, and its marker; ``None``: it is tombstoned, its size unknown."""

    path: str
    marker: FileMarker | None


MAX_KEPT_FILES: Final = 2_000_000
"""Files named by snapshots that are kept for listings under way; snapshots of one table share most of their memory."""


def make_kept(max_files: int) -> LRUCache[SnapshotName, Snapshot]:
    """Return a cache of the snapshots that tokens name: the least recently used go when they name too many files.

    The newest is kept, however many it names.
    """
    most = max(1, max_files)
    return LRUCache(most, getsizeof=lambda snapshot: min(max(1, len(snapshot.live)), most))


class TableViews:
    """Finds snapshots and files. Use it from one event loop."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._reads = parts.reads
        self._staleness_ms = parts.settings.gateway_staleness_ms
        self._kept = make_kept(MAX_KEPT_FILES)
        self._tags: TTLCache[TableRef, Snapshot] = TTLCache(MAX_TAGS, TAG_AGE_MS, parts.clock.monotonic_ms)

    def data_prefix(self, ref: TableRef) -> str:
        """Return what the paths of a table's data files begin with."""
        return self._parts.warehouse.table(ref.table).paths.data_prefix

    async def snapshot(self, ref: TableRef) -> Snapshot:
        """Return the snapshot with which a listing begins.

        Raises:
            NotFound: No such table, or no such tag.
            InvalidRequest: A time in the future or below the horizon, or a tag that has ended.
            Unavailable: The store did not answer in time.
            HaltError: The log is damaged.
        """
        state = await self._reads.read(ref.table, max_staleness_ms=self._staleness_ms)
        if ref.tag is None:
            return await self._at(ref, state)
        try:
            return await self._tagged(ref)
        except NotFound as error:  # the table is there: an empty listing would hide a slip of the pen
            raise invalid_argument(str(error)) from error

    async def same_snapshot(self, ref: TableRef, name: SnapshotName) -> Snapshot:
        """Return the snapshot that a token names.

        Raises:
            S3Error: It cannot be had any more: the listing has to begin anew.
            IceDBError: As for :meth:`snapshot`.
        """
        kept = self._kept.get(name)
        if kept is not None:
            return kept
        try:
            for staleness_ms in (self._staleness_ms, 0):
                found = await self._look_for(ref, name, staleness_ms)
                if found is not None:
                    self._kept[name] = found
                    return found
        except NotFound:
            pass  # the table, or the tag, went in the middle: what is left of the listing must not look complete
        raise invalid_argument(
            f"The continuation token provided is of a state of {ref} that cannot be read any more: the listing took "
            "longer than the table's log files are kept, or a commit landed in it late. List again from the beginning.",
        )

    def keep(self, ref: TableRef, snapshot: Snapshot) -> SnapshotName:
        """Keep a snapshot for the next page, and return its name."""
        name = SnapshotName(str(ref), snapshot.snapshot_id, snapshot.last_commit_ms)
        self._kept[name] = snapshot
        return name

    async def find(self, ref: TableRef, rest: str, *, must_be_fresh: bool = False) -> FoundFile | None:
        """Return the file that a key means; ``None`` if it means none.

        Args:
            ref: The key's first component.
            rest: What follows it, without the slash.
            must_be_fresh: Read the log now. Raises as :meth:`snapshot`.
        """
        path = f"{self.data_prefix(ref)}{rest}"
        if ref.tag is not None:
            marker = (await self._tagged(ref)).live.find(path)
            return None if marker is None else FoundFile(path, marker)
        if not must_be_fresh:
            state = await self._reads.read(ref.table, max_staleness_ms=self._staleness_ms)
            found = await self._find_in(state, ref, path)
            if found is not None:
                return found
        # It may have been listed by another replica, that knew a newer state.
        state = await self._reads.read(ref.table, max_staleness_ms=0)
        return await self._find_in(state, ref, path)

    async def _find_in(self, state: TableState, ref: TableRef, path: str) -> FoundFile | None:
        if ref.as_of_ms is not None:
            try:
                marker = (await self._at(ref, state)).live.find(path)
            except BelowHorizon:
                pass  # listed while it could be: the file may be there all the same
            else:
                return None if marker is None else FoundFile(path, marker)
        marker = state.snapshot.live.find(path)
        if marker is not None:
            return FoundFile(path, marker)
        return FoundFile(path, None) if state.log.named(path).dead_in else None

    async def _look_for(self, ref: TableRef, name: SnapshotName, staleness_ms: int) -> Snapshot | None:
        if ref.tag is not None:
            found = await self._tagged(ref)
            return found if found.snapshot_id == name.snapshot_id else None
        state = await self._reads.read(ref.table, max_staleness_ms=staleness_ms)
        if ref.is_newest and state.snapshot.snapshot_id == name.snapshot_id:
            return state.snapshot
        as_of_ms = name.last_commit_ms if ref.as_of_ms is None else ref.as_of_ms
        try:
            found = await self._reads.work.run_compute(lambda: state.at(as_of_ms))
        except BelowHorizon:
            return None
        return found if found.snapshot_id == name.snapshot_id else None

    async def _at(self, ref: TableRef, state: TableState) -> Snapshot:
        as_of_ms = ref.as_of_ms
        if as_of_ms is None:
            return state.snapshot
        # By the store's clock, as far as is known: a gateway whose own is ahead would call a state final that is not.
        now_ms = state.view.store_now_ms + max(0, self._parts.clock.monotonic_ms() - state.started_ms)
        if as_of_ms > now_ms + MAX_STORE_GAP_MS:
            raise invalid_argument(f"{ref}: this time has not come yet; leave out what follows the @ for the newest")
        return await self._reads.work.run_compute(lambda: state.at(as_of_ms))

    async def _tagged(self, ref: TableRef) -> Snapshot:
        if (known := self._tags.get(ref)) is not None:
            return known
        table, tag = self._parts.warehouse.table(ref.table), ref.tag or ""
        try:
            _, snapshot = await self._reads.work.run_blocking(ref.table, lambda: read_tagged(table, tag))
        except (NotFound, InvalidRequest):
            self._tags.pop(ref, None)
            raise
        self._tags[ref] = snapshot
        return snapshot
