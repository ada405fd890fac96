"""What the service knows about each table: the last read of its log, shared by all callers.

Owns one :class:`~icedb_log.log.reader.LogReader` per table and decides when it reads again. Many callers of one
table share one read; a caller who asks for fresh data never gets a read that began before the call. A table
that cannot be read fails alone. Must never write.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.log.fold import Folded, fold
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView, Snapshot
from icedb_log.store.table_store import TableStore
from icedb_log.table.drop_mark import BELIEVED_MS
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse

CONFIG_MAX_AGE_MS: Final = BELIEVED_MS
"""How long a table's configuration is believed: policies may change, partitions and sort order may not."""

PAST_FOLDS: Final = 4
"""Times of travel whose files are kept for each table."""

FETCH_THREADS: Final = 64
"""Log files fetched at once, of all tables together: a cold start waits for answers no longer than it takes to ask, and
a store that is slow holds so many threads and no more."""

LOG_GRACE_PARTS_PER_REFRESH: Final = 2
"""R2: a refresh may take at most this fraction of the log files' grace period."""


class Signal(Protocol):
    """A lock that can be waited at, as :class:`threading.Condition` is."""

    def __enter__(self) -> bool:
        """Take it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Give it back."""
        ...

    def wait(self, timeout: float | None = None, /) -> bool:
        """Give it back until :meth:`notify_all` is called; ``False``: not within so many seconds."""
        ...

    def notify_all(self) -> None:
        """Wake up all who wait."""
        ...


class PastFolds:
    """The last folds of one table at times that were asked for. Thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Folded] = OrderedDict()
        self._lock = threading.Lock()

    def fold(self, newest: Folded, as_of_ms: int) -> Snapshot:
        """Return the fold at a time, made of an earlier one at that time if the log says nothing else since."""
        with self._lock:
            known = self._nearest(newest, as_of_ms)
        snapshot = fold(newest.view, as_of_ms=as_of_ms, known=known)
        with self._lock:
            self._known[as_of_ms] = Folded(newest.view, snapshot)
            self._known.move_to_end(as_of_ms)
            while len(self._known) > PAST_FOLDS:
                self._known.popitem(last=False)
        return snapshot

    def _nearest(self, newest: Folded, as_of_ms: int) -> Folded:
        """Return the fold with the least to be added to it: a log only grows, so it is one of no later time."""
        earlier = [time_ms for time_ms in self._known if time_ms <= as_of_ms]
        if not earlier or newest.snapshot.last_commit_ms <= as_of_ms:
            return self._known.get(as_of_ms, newest)
        return self._known[max(earlier)]


@dataclass(frozen=True, slots=True)
class TableState:
    """One read of a table.

    Attributes:
        config: The table's configuration.
        view: All its log files, their markers compact.
        snapshot: Their fold: the newest state, its live files compact.
        started_ms: Monotonic time at which the read began: every commit that landed before is in it.
        past: Earlier folds at times that were asked for.
    """

    config: TableConfig
    view: LogView
    snapshot: Snapshot
    started_ms: int
    past: PastFolds = field(default_factory=PastFolds, compare=False, repr=False)

    def at(self, as_of_ms: int | None) -> Snapshot:
        """Return the state at a time; ``None``: the newest. Computes, for a second where there are a million files.

        Raises:
            BelowHorizon: The time lies below the horizon (R3).
        """
        if as_of_ms is None:
            return self.snapshot
        return self.past.fold(Folded(self.view, self.snapshot), as_of_ms)


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table's configuration and the log reader that was set up for it."""

    config: TableConfig
    reader: LogReader
    read_ms: int


class CachedTable:
    """The shared state of one table. Thread-safe.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: For the age of a state.
        wait_ms: How long a caller waits for a read that another caller has begun.
        on_refresh: Called with the duration in milliseconds of each successful read.
        fetch_pool: ``FETCH_THREADS`` threads that log files are fetched by, shared with other tables.
        new_signal: Makes what its callers wait for each other at; not of threads where callers are none.
    """

    def __init__(
        self,
        table: TableStore,
        *,
        clock: Clock,
        wait_ms: int,
        on_refresh: Callable[[int], None],
        fetch_pool: Executor | None = None,
        new_signal: Callable[[], Signal] = threading.Condition,
    ) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = clock
        self._wait_ms = wait_ms
        self._on_refresh = on_refresh
        self._fetch_pool = fetch_pool
        self._changed = new_signal()
        self._begun = 0
        self._ended = 0
        self._state: TableState | None = None
        self._error: IceDBError | None = None
        self._is_reading = False
        self._past = PastFolds()
        self._source: TableSource | None = None
        self._source_lock = new_signal()

    def known_state(self, *, max_staleness_ms: int) -> TableState | None:
        """Return what is in memory if it is at most ``max_staleness_ms`` old and not 0; never waits."""
        state = self._state
        is_young = state is not None and self._clock.monotonic_ms() - state.started_ms <= max_staleness_ms > 0
        return state if is_young else None

    def read(self, *, max_staleness_ms: int) -> TableState:
        """Return a state that is at most ``max_staleness_ms`` old (R4).

        With 0 the read begins after this call: callers that arrive during a read share the next one.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer in time.
            HaltError: The log is damaged, or was written by a newer release.
        """
        with self._changed:
            arrived_ms = self._clock.monotonic_ms()
            needed = self._next_read()
            while True:
                state = self._state
                if state is not None and _is_fresh(state, arrived_ms, max_staleness_ms):
                    return state
                if self._ended >= needed:
                    return self._outcome()
                if not self._is_reading:
                    break
                if not self._changed.wait(self._wait_ms / 1000):
                    raise Unavailable(
                        f"table {self._paths.name}: no read of its log ended within {self._wait_ms} ms; "
                        "the object store is slow: try again"
                    )
            self._is_reading = True
            self._begun += 1
        return self._lead()

    def _next_read(self) -> int:
        """Return the number of the first read that begins after now: one under way may have begun too early (R4)."""
        return self._begun + 1

    def read_source(self) -> TableSource:
        """Return the configuration, at most ``CONFIG_MAX_AGE_MS`` old, and the log reader.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer.
            UnsupportedFormat: A configuration that this release does not understand.
        """
        with self._source_lock:
            now_ms = self._clock.monotonic_ms()
            known = self._source
            if known is not None and now_ms - known.read_ms <= CONFIG_MAX_AGE_MS:
                return known
            self._source = None
            config = read_table_config(TableStore(self._store, self._paths))
            if known is not None and known.config.log_grace_ms == config.log_grace_ms:
                reader = known.reader
            else:
                reader = LogReader(
                    TableStore(self._store, self._paths),
                    clock=self._clock,
                    max_refresh_ms=config.log_grace_ms // LOG_GRACE_PARTS_PER_REFRESH,
                    fetch_threads=FETCH_THREADS,
                    fetch_pool=self._fetch_pool,
                    is_compact=True,
                )
            self._source = TableSource(config, reader, now_ms)
            return self._source

    def _outcome(self) -> TableState:
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error
        if self._state is None:
            raise Unavailable(f"table {self._paths.name}: its log was never read; try again")
        return self._state

    def _lead(self) -> TableState:
        state: TableState | None = None
        error: IceDBError = Unavailable(f"table {self._paths.name}: reading its log was broken off; try again")
        try:
            state = self._read_now()
        except IceDBError as failure:
            error = failure
            raise
        finally:
            with self._changed:
                self._is_reading = False
                self._ended = self._begun
                self._error = None if state is not None else error
                # An unreachable store leaves what was read before, for as long as callers accept its age.
                # A halted or missing table must not look alive from memory.
                if state is not None or not isinstance(error, Unavailable):
                    self._state = state
                self._changed.notify_all()
        return state

    def _read_now(self) -> TableState:
        started_ms = self._clock.monotonic_ms()
        source = self.read_source()
        view = source.reader.read()
        if self._may_be_gone(source, view):
            # WARN: T4: after the log. The configuration is remembered for ten seconds, and this may sleep: meanwhile a
            # table can be dropped and purged (what is left of its log, maybe nothing, would be served), and created
            # anew with other partitions (filters would be matched by the old ones, and rows be missing).
            with self._source_lock:
                self._source = None
            before, source = source.config, self.read_source()
            if source.config.incarnation != before.incarnation:
                view = source.reader.read()
        last = self._state
        known = None if last is None else Folded(last.view, last.snapshot)
        snapshot = fold(view, known=known)
        if last is not None and _versions(last.view) - _versions(view):
            # Earlier folds would keep log files in memory that are gone; whoever still folds an older state has them.
            self._past = PastFolds()
        state = TableState(source.config, view, snapshot, started_ms, self._past)
        self._on_refresh(self._clock.monotonic_ms() - started_ms)
        return state

    def _may_be_gone(self, source: TableSource, view: LogView) -> bool:
        """Whether the table may have been purged before its log was read: then its configuration says so."""
        if self._clock.monotonic_ms() - source.read_ms > CONFIG_MAX_AGE_MS:
            return True
        if _is_left_by_purge(view):
            return True
        state = self._state
        return state is not None and bool({f.key for f in state.view.files} - {f.key for f in view.files})


def _is_fresh(state: TableState, arrived_ms: int, max_staleness_ms: int) -> bool:
    """Whether a state is young enough for who asks: its age counts from when its read began (R4)."""
    return arrived_ms - state.started_ms <= max_staleness_ms > 0


def _is_left_by_purge(view: LogView) -> bool:
    """Whether a log has nothing but seals, as a purge leaves it (T1)."""
    return all(file.log.is_seal for file in view.files)


def _versions(view: LogView) -> set[tuple[str, str]]:
    return {(file.key, file.etag) for file in view.files}


class TableCache:
    """All tables of a warehouse that somebody asked for, the least recently used ones dropped. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        clock: For ages.
        max_tables: How many tables are kept in memory.
        wait_ms: How long a caller waits for a read that another caller has begun.
        on_refresh: Called with the duration in milliseconds of each successful read.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        clock: Clock,
        max_tables: int,
        wait_ms: int,
        on_refresh: Callable[[int], None],
    ) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._max_tables = max_tables
        self._wait_ms = wait_ms
        self._on_refresh = on_refresh
        self._fetch_pool = ThreadPoolExecutor(FETCH_THREADS, "icedb-log-reader")
        self._tables: OrderedDict[str, CachedTable] = OrderedDict()
        self._lock = threading.Lock()

    def table(self, name: str) -> CachedTable:
        """Return the shared state of a table, which need not exist yet.

        Raises:
            InvalidRequest: Not a table name.
        """
        paths = self._warehouse.table(name).paths
        with self._lock:
            table = self._tables.get(name)
            if table is None:
                table = CachedTable(
                    TableStore(self._warehouse.store, paths),
                    clock=self._clock,
                    wait_ms=self._wait_ms,
                    on_refresh=self._on_refresh,
                    fetch_pool=self._fetch_pool,
                )
                self._tables[name] = table
            self._tables.move_to_end(name)
            while len(self._tables) > self._max_tables:
                self._tables.popitem(last=False)
            return table

    def drop(self, name: str) -> None:
        """Forget a table that is gone."""
        with self._lock:
            self._tables.pop(name, None)
