"""Follows the log of a table: from a position to a later one, and the data files in between (rules L1 to L3).

Each append is delivered once, as it was appended, whatever was merged, removed or deleted since: the same plan as that
of a view's feed, with a checkpoint of the follower's own in the place of a commit. What tells a follower that no append
came and went between two of its looks is a lease that lasted all the time (J4), or that less than the log files' grace
period has passed (J1). Where neither is so, it says so (:class:`PositionLost`) and delivers nothing.

Order of a look: the lease; the log; the store's clock. Writes nothing but leases.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from icedb_log.clean.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.clock import Clock, format_ms
from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound, Overloaded
from icedb_log.feed.budget import NO_BUDGET, Budget, Spent
from icedb_log.feed.position import Piecewise, Position, Slice, slices_between
from icedb_log.keys import TablePaths, log_name, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold, read_horizon_ms
from icedb_log.log.reader import LogReader, naming_remedy
from icedb_log.model import FileMarker, ListedLogFile, LogHeads, LogView
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS

MAX_CACHED_COMMITS: Final = 256
_STORE_MARGIN_MS: Final = MAX_STORE_GAP_MS + SECOND_MS
"""Two answers of the store about one moment may lie so far apart, and it tells whole seconds."""


class PositionLost(InvalidRequest):
    """The log may have forgotten appends behind a position. What the caller does: begin anew, and say from where."""


class Follower:
    """Follows one table. Not thread-safe, but for :meth:`renew_leases`.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: For ids and back-off.
        lease_ms: How long each lease lasts; 0: takes none, and writes nothing at all.
        holder: Who follows, for people who look at leases.
        accepts_gaps: Go on where a position is lost, with what is there: rows may be missing.
        on_gap: Told of each position that is lost, in words.
        reader: A log reader of the table to reuse, with its caches.
    """

    def __init__(
        self,
        table: TableStore,
        *,
        clock: Clock,
        lease_ms: int,
        holder: str = "follower",
        accepts_gaps: bool = False,
        on_gap: Callable[[str], None] = lambda _: None,
        reader: LogReader | None = None,
    ) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = clock
        self._lease_ms = lease_ms
        self._holder = holder
        self._accepts_gaps = accepts_gaps
        self._on_gap = on_gap
        self._config = read_table_config(table)
        self._reader = reader or LogReader(table, clock=clock, max_refresh_ms=self._config.log_grace_ms // 2)
        self._leases: dict[str, Lease] = {}
        self._taken_ms: dict[str, int] = {}
        self._commits: dict[str, tuple[FileMarker, ...]] = {}
        self._states: dict[tuple[str, ...], tuple[FileMarker, ...]] = {}

    @property
    def config(self) -> TableConfig:
        """The table's configuration, as of the last look."""
        return self._config

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
        lease_id = self._take_lease()
        rebuilds = self._count_rebuilds()
        view = self._reader.read()
        appends = tuple(log_name(file.key) for file in view.files if _is_append(file))
        position = Position(self._config.incarnation, view.store_now_ms, appends, lease_id, rebuilds)
        if starts_with_all:
            names = _find_living(view)
            self._states[names] = _fold_some(view, names)
            return replace(position, open=Piecewise(names, is_state=True, done_count=0))
        if starting_ms is None:
            return position
        self._require_known(starting_ms, view)
        taken = tuple(name for name in appends if _time_of(self._paths, name) <= starting_ms)
        return replace(position, taken=taken)

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
        lease_id = self._find_young_lease() or self._take_lease()
        rebuilds = self._count_rebuilds()
        heads = self._reader.heads.read()
        self._require_unbroken(start, rebuilds)
        spent = Spent(budget)
        known = set(start.taken)
        taken: list[str] = []
        opened: Piecewise | None = None
        if start.open is not None:
            opened = self._advance(start.open, spent)
            if opened is None and not start.open.is_state:
                taken += start.open.logs
                known.update(start.open.logs)
        if opened is None:
            for name in _find_appends(heads):
                if name in known or (until is not None and name not in until):
                    continue
                if spent.is_over:
                    break
                opened = self._advance(Piecewise((name,), is_state=False, done_count=0), spent)
                if opened is not None:
                    break
                taken.append(name)
        if not spent.file_count and opened == start.open and not self._is_old(start, heads, until=until):
            return start
        present = {log_name(file.key) for file in heads.files}
        return Position(
            incarnation=self._config.incarnation,
            read_ms=heads.store_now_ms,
            taken=tuple(sorted({*(name for name in start.taken if name in present), *taken})),
            lease_id=lease_id,
            rebuilds=rebuilds,
            open=opened if opened is None or opened.done_count or opened.is_state else None,
        )

    def list_appends(self) -> frozenset[str]:
        """Return the names of the appends that the log has now. Raises HaltError, Unavailable."""
        return frozenset(_find_appends(self._reader.heads.read()))

    def files_between(self, start: Position, end: Position) -> tuple[FileMarker, ...]:
        """Return the data files to be delivered by going from one position to another; the same whenever it is asked.

        Raises:
            PositionLost: A log file in between is gone.
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
            release_lease(TableStore(self._store, self._paths), lease.lease_id)

    def renew_leases(self) -> None:
        """Renew what is held. One that has ended is forgotten: the next look finds out what that means."""
        for lease_id in list(self._leases):
            try:
                renewed = renew_lease(
                    TableStore(self._store, self._paths), lease_id, clock=self._clock, ttl_ms=self._lease_ms
                )
            except NotFound:
                self._leases.pop(lease_id, None)
                continue
            if lease_id in self._leases:  # it may have been settled meanwhile
                self._leases[lease_id] = renewed

    def _take_lease(self) -> str | None:
        if not self._lease_ms:
            return None
        # L2: before the log is listed: an append that is not seen then dies later than this, and is held.
        try:
            table = Table.open(TableStore(self._store, self._paths), clock=self._clock, reader=self._reader)
            lease = acquire_lease(table, ttl_ms=self._lease_ms, holder=self._holder)
        except (BelowHorizon, Overloaded):
            return None  # a committer's clock is ahead, or there are too many: the grace periods have to do for now
        self._leases[lease.lease_id] = lease
        self._taken_ms = {lease.lease_id: self._clock.monotonic_ms()}
        return lease.lease_id

    def _hold(self, start: Position) -> None:
        """Renew the lease of a position that came out of a checkpoint, if it still lasts."""
        if start.lease_id is None or not self._lease_ms or start.lease_id in self._leases:
            return
        try:
            self._leases[start.lease_id] = renew_lease(
                TableStore(self._store, self._paths), start.lease_id, clock=self._clock, ttl_ms=self._lease_ms
            )
        except NotFound:
            return

    def _find_young_lease(self) -> str | None:
        """Return the newest lease, if it does not hold much more than a new one would."""
        oldest_ms = self._clock.monotonic_ms() - self._config.log_grace_ms
        young = [
            lease for lease in tuple(self._leases.values()) if self._taken_ms.get(lease.lease_id, oldest_ms) > oldest_ms
        ]
        return max(young, key=lambda lease: lease.at_ms).lease_id if young else None

    def _require_unbroken(self, start: Position, rebuilds: int) -> None:
        """Raise PositionLost unless it is certain that no append came and went since a position was made (L2)."""
        problem = None
        # WARN: the clock is read after the log: what was still there when the log was read is what counts.
        now_ms = self._store.list_page(self._paths.config_key, limit=1).store_now_ms
        lease = self._leases.get(start.lease_id or "")
        is_leased = lease is not None and now_ms < lease.expires_ms
        if not is_leased and now_ms + _STORE_MARGIN_MS >= start.read_ms + self._config.log_grace_ms:
            problem = (
                f"it was made at {format_ms(start.read_ms)}, no lease has lasted since, and the log forgets appends "
                f"that were merged {self._config.log_grace_ms} ms ago"
            )
        elif rebuilds != start.rebuilds:
            problem = "the log was rebuilt since (icedb rebuild)"
        if problem is None:
            return
        message = (
            f"table {self._paths.name}: this position is lost: {problem}; rows may have come that it would miss. Begin "
            "anew from where you choose, or accept that"
        )
        if not self._accepts_gaps:
            raise PositionLost(message)
        self._on_gap(message)

    def _is_old(self, start: Position, heads: LogHeads, *, until: frozenset[str] | None) -> bool:
        """Whether a position should be renewed although there is nothing new: an idle table must not outlive it."""
        return until is None and heads.store_now_ms - start.read_ms >= self._config.log_grace_ms // 2

    def _refresh_config(self, start: Position) -> None:
        self._config = read_table_config(TableStore(self._store, self._paths))
        if self._config.incarnation != start.incarnation:
            raise PositionLost(
                f"table {self._paths.name}: it was dropped since this position was made, and a table of that name is "
                "another one: begin anew"
            )

    def _require_known(self, starting_ms: int, view: LogView) -> None:
        horizon_ms = read_horizon_ms(view)
        if starting_ms < horizon_ms:
            raise BelowHorizon(
                f"table {self._paths.name}: commits after {starting_ms} may be forgotten already; the oldest time to "
                f"begin from is {horizon_ms} ({format_ms(horizon_ms)}). Begin with all rows, or from there"
            )
        if starting_ms > view.store_now_ms + SECOND_MS:
            raise InvalidRequest(
                f"table {self._paths.name}: {starting_ms} lies in the future of the store, which says "
                f"{view.store_now_ms}; leave the time out to begin now"
            )

    def _count_rebuilds(self) -> int:
        return len(list_all(self._store, self._paths.rebuilds_prefix).objects)

    def _advance(self, piece: Piecewise, spent: Spent) -> Piecewise | None:
        """Deliver files of a piece within a budget; return what is left of it, ``None`` if nothing is."""
        files = self._files_of(Slice(piece.logs, piece.is_state))
        done = piece.done_count
        while done < len(files) and spent.take(files[done]):
            done += 1
        return None if done >= len(files) else replace(piece, done_count=done)

    def _files_of(self, part: Slice) -> tuple[FileMarker, ...]:
        if part.is_state:
            if part.logs not in self._states:
                self._states = {part.logs: self._read_state(part.logs)}
            return self._states[part.logs]
        (name,) = part.logs
        if name not in self._commits:
            while len(self._commits) >= MAX_CACHED_COMMITS:
                self._commits.pop(next(iter(self._commits)))
            self._commits[name] = self._read_commit(name)
        return self._commits[name]

    def _read_commit(self, name: str) -> tuple[FileMarker, ...]:
        key = f"{self._paths.log_prefix}{name}.jsonl"
        try:
            body = self._store.get(key).body
        except NotFound as error:
            raise self._lost(key) from error
        with naming_remedy(self._paths):
            log = decode_log_file(key, body)
        # As appended (V2): what was merged or removed since is in the store as long as this log file is (J2).
        return tuple(marker for marker in log.markers if marker.is_live)

    def _read_state(self, names: tuple[str, ...]) -> tuple[FileMarker, ...]:
        """Fold the log files of which a follower's first state was made: what came later does not count."""
        view = self._reader.read()
        missing = set(names) - {log_name(file.key) for file in view.files}
        if missing:
            raise self._lost(f"{self._paths.log_prefix}{min(missing)}.jsonl")
        return _fold_some(view, names)

    def _lost(self, key: str) -> PositionLost:
        return PositionLost(
            f"table {self._paths.name}: {key} is gone, which this position needs: no lease has lasted since it was "
            "made. Begin anew from where you choose"
        )


def _find_living(view: LogView) -> tuple[str, ...]:
    """Return the names of the log files that no other one has replaced: they say all that the whole log says (M1).

    One that is dead already may go at any time; these stay as long as a lease on this moment does.
    """
    dead = {tombstone.path for file in view.files for tombstone in file.log.log_tombstones}
    return tuple(log_name(file.key) for file in view.files if file.key not in dead and not file.log.is_seal)


def _fold_some(view: LogView, names: tuple[str, ...]) -> tuple[FileMarker, ...]:
    wanted = set(names)
    files = tuple(file for file in view.files if log_name(file.key) in wanted)
    return tuple(fold(LogView(view.table, files, view.store_now_ms)).live)


def _find_appends(heads: LogHeads) -> Iterator[str]:
    return (
        log_name(file.key) for file in heads.files if not file.log.is_seal and not parse_log_key(file.key).is_merged
    )


def _is_append(file: ListedLogFile) -> bool:
    return not file.log.is_seal and not parse_log_key(file.key).is_merged


def _time_of(paths: TablePaths, name: str) -> int:
    return parse_log_key(f"{paths.log_prefix}{name}.jsonl").time_ms
