"""Follows the log of a table: from a position to a later one, and the data files in between (rules L1 to L3).

Each append is delivered once, as it was appended, whatever was merged, removed or deleted since: the same plan as that
of a view's feed, with a checkpoint of the follower's own in the place of a commit. What tells a follower that no append
came and went between two of its looks is a lease that lasted all the time (J4), or that less than the log files' grace
period has passed (J1). Where neither is so, it says so (:class:`PositionLost`) and delivers nothing.

Order of a look: the lease; the log; the store's clock. Writes nothing but leases.

A position is as old as the oldest append that it leaves behind: from then on a lease has to hold. So a follower that
stays behind holds a few, and gives them back one by one as it comes on: the log forgets behind it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from cachetools import FIFOCache

from icedb_log.clock import format_ms
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound, Overloaded
from icedb_log.feed.position import (
    NO_BUDGET,
    Budget,
    Position,
    Slice,
    Spent,
    advance,
    find_appends,
    find_living,
    find_missing,
    fold_some,
    slices_between,
)
from icedb_log.feed.views import read_append
from icedb_log.holds.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.keys import log_name, parse_log_key, parse_log_name
from icedb_log.log.fold import find_rebuilt, read_horizon_ms
from icedb_log.model import FileMarker, LogHeads, LogView
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.stored_config import find_newest, require_there
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS

MAX_CACHED_COMMITS: Final = 256
MAX_LEASES_HELD: Final = 4
"""The log forgets behind a follower in so many steps; each lease costs its renewals, and a read by each janitor."""
_STORE_MARGIN_MS: Final = MAX_STORE_GAP_MS + SECOND_MS
"""Two answers of the store about one moment may lie so far apart, and it tells whole seconds."""


class PositionLost(InvalidRequest):
    """The log may have forgotten appends behind a position. What the caller does: begin anew, and say from where."""


class Follower:
    """Follows one table. Not thread-safe, but for :meth:`renew_leases`.

    Args:
        table: The table; its owner stands in the leases, for people who look at them.
        lease_ms: How long each lease lasts; 0: takes none, and writes nothing at all.
        on_gap: Go on where a position is lost, with what is there: rows may be missing. Told of each, in words.
            ``None``: that is an error.
    """

    def __init__(self, table: Table, *, lease_ms: int, on_gap: Callable[[str], None] | None = None) -> None:
        self._table = table
        self._lease_ms = lease_ms
        self._on_gap = on_gap
        self._leases: dict[str, Lease] = {}
        self._newest: tuple[str, int] = "", 0
        self._commits: FIFOCache[str, tuple[FileMarker, ...]] = FIFOCache(MAX_CACHED_COMMITS)
        self._states: dict[tuple[str, ...], tuple[FileMarker, ...]] = {}

    @property
    def config(self) -> TableConfig:
        """The table's configuration, as of the last look."""
        return self._table.config

    def begin(self, *, starting_ms: int | None = None, starts_with_all: bool = False) -> Position:
        """Return the position of a follower that begins now.

        Args:
            starting_ms: Deliver what was committed after this time, as far as the log still has it, unix ms.
            starts_with_all: Deliver all rows that are there now, then what is committed.

        Raises:
            BelowHorizon: ``starting_ms`` lies before what the log remembers.
            InvalidRequest: ``starting_ms`` lies in the future.
            HaltError: The log cannot be read.
            Unavailable: The store did not answer.
        """
        self._take_lease(at_ms=starting_ms)
        view = self._table.read_log()
        taken = tuple(find_appends(view.files))
        if starting_ms is not None and not starts_with_all:
            self._require_known(starting_ms, view)
            taken = tuple(name for name in taken if parse_log_name(name).time_ms <= starting_ms)
        since_ms = _find_since(view, taken)
        lease_id = self._find_lease(since_ms)
        position = Position(self._table.paths.number, since_ms, taken, lease_id, find_rebuilt(view.files))
        if not starts_with_all:
            return position
        names = find_living(view.files)
        self._states[names] = fold_some(view, names)
        return replace(position, open=Slice(names, is_state=True))

    def look(self, start: Position, *, budget: Budget = NO_BUDGET, until: frozenset[str] | None = None) -> Position:
        """Return the position up to which rows can be delivered now; ``start`` itself if there is nothing new.

        Args:
            start: Where the follower is.
            budget: How much is to be delivered at once.
            until: Names of appends beyond which nothing is to be delivered; ``None``: all that are there.

        Raises:
            PositionLost: The log may have forgotten appends behind ``start``.
            HaltError: The log cannot be read.
            Unavailable: The store did not answer.
        """
        self._refresh_config(start)
        self._hold(start)
        self._take_young_lease()
        heads = self._table.read_heads()
        rebuilt = find_rebuilt(heads.files)
        self._require_unbroken(start, rebuilt)
        spent = Spent(budget)
        taken: list[str] = []
        left = start.open and self._deliver(start.open, spent)
        if start.open is not None and left is None and not start.open.is_state:
            taken += start.open.logs
        if left is None:
            for name in find_appends(heads.files, taken={*start.taken, *taken}):
                if until is not None and name not in until:
                    continue
                if spent.is_over:
                    break
                left = self._deliver(Slice((name,)), spent)
                if left is not None:
                    break
                taken.append(name)
        # Renewed although there is nothing new: an idle table must not outlive it.
        is_old = until is None and heads.store_now_ms - start.read_ms >= self.config.log_grace_ms // 2
        if not spent.file_count and left == start.open and not is_old:
            return start
        # WARN: L2: what a budget leaves may have been merged before this look, and before its lease: it goes while both
        # say that nothing can have gone. So it is the oldest of it that tells the age of the position.
        since_ms = start.read_ms
        if left is None or not left.is_state:
            since_ms = max(since_ms, _find_since(heads, {*start.taken, *taken}))
        return Position(
            number=self._table.paths.number,
            read_ms=since_ms,
            taken=advance(start.taken, heads.files, decided=taken),
            lease_id=self._find_lease(since_ms),
            rebuilt=rebuilt,
            open=left if left is None or left.first or left.is_state else None,
        )

    def list_appends(self) -> frozenset[str]:
        """Return the names of the appends that the log has now. Raises HaltError, Unavailable."""
        return frozenset(find_appends(self._table.read_heads().files))

    def files_between(self, start: Position, end: Position) -> tuple[FileMarker, ...]:
        """Return the data files to be delivered by going from one position to another; the same whenever it is asked.

        Raises:
            PositionLost: A log file in between is gone, and gaps are not accepted, or it is one of the first state.
            HaltError: A log file cannot be read.
            Unavailable: The store did not answer.
        """
        self._hold(start)
        return tuple(
            marker for each in slices_between(start, end) for marker in self._files_of(each)[each.first : each.last]
        )

    def settle(self, position: Position) -> None:
        """Take note that all up to a position is delivered for good: leases older than its own are not needed any more.

        Raises:
            Unavailable: The store did not answer; they end by themselves.
        """
        kept = self._leases.get(position.lease_id or "")
        if kept is None:
            return
        # Not newer ones: a position behind this one may have been planned already.
        for lease in [each for each in tuple(self._leases.values()) if each.at_ms < kept.at_ms]:
            self._leases.pop(lease.lease_id, None)
            release_lease(self._table, lease.lease_id)

    def renew_leases(self) -> None:
        """Renew what is held. One that has ended is forgotten: the next look finds out what that means."""
        for lease_id in list(self._leases):
            try:
                renewed = self._renew(lease_id)
            except NotFound:
                self._leases.pop(lease_id, None)
                continue
            if lease_id in self._leases:  # it may have been settled meanwhile
                self._leases[lease_id] = renewed

    def _renew(self, lease_id: str) -> Lease:
        return renew_lease(self._table, lease_id, clock=self._table.clock, ttl_ms=self._lease_ms)

    def _take_lease(self, *, at_ms: int | None = None) -> None:
        if not self._lease_ms:
            return
        # L2: before the log is listed: an append that is not seen then dies later than this, and is held.
        try:
            lease = acquire_lease(
                self._table, ttl_ms=self._lease_ms, at_ms=at_ms, holder=self._table.owner or "follower"
            )
        except (BelowHorizon, Overloaded):
            return  # a committer's clock is ahead, or there are too many: the grace periods have to do for now
        self._leases[lease.lease_id] = lease
        self._newest = lease.lease_id, self._table.clock.monotonic_ms()

    def _take_young_lease(self) -> None:
        """Take a lease, unless there is one that holds not much more than it would, or as many as may be."""
        lease_id, taken_ms = self._newest
        is_young = self._table.clock.monotonic_ms() - taken_ms < self.config.log_grace_ms
        if not (lease_id in self._leases and is_young) and len(self._leases) < MAX_LEASES_HELD:
            self._take_lease()

    def _find_lease(self, since_ms: int) -> str | None:
        """Return the youngest lease that holds whatever was alive at a time, or came later."""
        holding = [lease for lease in tuple(self._leases.values()) if lease.at_ms <= since_ms]
        return max(holding, key=lambda lease: lease.at_ms).lease_id if holding else None

    def _hold(self, start: Position) -> None:
        """Renew the lease of a position that came out of a checkpoint, if it still lasts."""
        if start.lease_id is None or not self._lease_ms or start.lease_id in self._leases:
            return
        try:
            self._leases[start.lease_id] = self._renew(start.lease_id)
        except NotFound:
            return

    def _require_unbroken(self, start: Position, rebuilt: str | None) -> None:
        """Raise PositionLost unless it is certain that no append came and went since a position was made (L2)."""
        # WARN: the clock is read after the log: what was still there when the log was read is what counts.
        now_ms = self._table.read_store_clock()
        log_grace_ms = self.config.log_grace_ms
        lease = self._leases.get(start.lease_id or "")
        is_leased = lease is not None and now_ms < lease.expires_ms
        if not is_leased and now_ms + _STORE_MARGIN_MS >= start.read_ms + log_grace_ms:
            problem = (
                f"it was made at {format_ms(start.read_ms)}, no lease has lasted since, and the log forgets appends "
                f"that were merged {log_grace_ms} ms ago"
            )
        elif rebuilt != start.rebuilt:
            problem = "the log was made anew since (icedb rebuild, or a backup that was brought back)"
        else:
            return
        message = (
            f"table {self._table.name}: this position is lost: {problem}; rows may have come that it would miss. Begin "
            "anew from where you choose, or accept that"
        )
        if self._on_gap is None:
            raise PositionLost(message)
        self._on_gap(message)

    def _refresh_config(self, start: Position) -> None:
        newest = find_newest(self._table)
        if not self._table.paths.number == start.number == newest.place.paths.number:
            raise PositionLost(
                f"table {self._table.name}: it was dropped since this position was made, and a table of that name is "
                "another one: begin anew"
            )
        self._table = replace(self._table, config=require_there(newest))

    def _require_known(self, starting_ms: int, view: LogView) -> None:
        horizon_ms = read_horizon_ms(view)
        if starting_ms < horizon_ms:
            raise BelowHorizon(
                f"table {view.table}: commits after {starting_ms} may be forgotten already; the oldest time to "
                f"begin from is {horizon_ms} ({format_ms(horizon_ms)}). Begin with all rows, or from there"
            )
        if starting_ms > view.store_now_ms + SECOND_MS:
            raise InvalidRequest(
                f"table {view.table}: {starting_ms} lies in the future of the store, which says "
                f"{view.store_now_ms}; leave the time out to begin now"
            )

    def _deliver(self, piece: Slice, spent: Spent) -> Slice | None:
        """Deliver files of a piece within a budget; return what is left of it, ``None`` if nothing is."""
        files = self._files_of(piece)
        done = piece.first
        while done < len(files) and spent.take(files[done]):
            done += 1
        return None if done >= len(files) else replace(piece, first=done)

    def _files_of(self, part: Slice) -> tuple[FileMarker, ...]:
        """Return the files of a slice, and those before and behind it."""
        if part.is_state:
            if part.logs not in self._states:
                self._states = {part.logs: self._read_state(part.logs)}
            return self._states[part.logs]
        (name,) = part.logs
        if name not in self._commits:
            try:
                self._commits[name] = read_append(self._table, self._table.paths.named_log_key(name)).files
            except NotFound as error:
                # L2: nobody can tell any more what it appended. Of a first state (L3) most is still there: begin anew.
                if self._on_gap is None:
                    raise self._lost(name) from error
                self._on_gap(str(self._lost(name)))
                self._commits[name] = ()
        return self._commits[name]

    def _read_state(self, names: tuple[str, ...]) -> tuple[FileMarker, ...]:
        """Fold the log files of which a follower's first state was made: what came later does not count."""
        view = self._table.read_log()
        missing = find_missing(view, names)
        if missing:
            raise self._lost(min(missing))
        return fold_some(view, names)

    def _lost(self, name: str) -> PositionLost:
        table = self._table
        return PositionLost(
            f"table {table.name}: {table.paths.named_log_key(name)} is gone, which this position needs: no lease has "
            "lasted since it was made. Begin anew from where you choose, or accept that"
        )


def _find_since(log: LogHeads, taken: Collection[str]) -> int:
    """Return when the oldest append landed that a position leaves, of those that it sees and those that come."""
    left = set(find_appends(log.files, taken=taken))
    files = (file for file in log.files if log_name(file.key) in left)
    # A log file that was copied (a backup) is older than the store says: its name tells.
    return min([log.store_now_ms, *(min(file.modified_ms, parse_log_key(file.key).time_ms) for file in files)])
