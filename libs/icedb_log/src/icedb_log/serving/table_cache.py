"""What the service knows about each table: the last read of its log, shared by all callers.

Owns one :class:`~icedb_log.log.reader.LogReader` per table and decides when it reads again. Many callers of one
table share one read; a caller who asks for fresh data never gets a read that began before the call. A table
that cannot be read fails alone. Must never write.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from cachetools import Cache, LRUCache

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.reader import FETCH_THREADS, LogReader
from icedb_log.log.state import LogState
from icedb_log.model import LogView
from icedb_log.serving.changes import ChangeHistory
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS, TableConfig
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse

PAST_STATES: Final = 4
"""Times of travel whose files are kept for each table."""


class PastStates:
    """The last states of one table at times that were asked for. Thread-safe."""

    def __init__(self) -> None:
        self._known: LRUCache[int, LogState] = LRUCache(PAST_STATES)
        self._lock = threading.Lock()

    def fold(self, newest: LogState, as_of_ms: int) -> Snapshot:
        """Return the fold at a time, made of what is known of that time, or of the newest state."""
        with self._lock:
            state = self._known.get(as_of_ms, newest).copy()
        snapshot = fold(newest.view, as_of_ms=as_of_ms, state=state)
        with self._lock:
            self._known[as_of_ms] = state
        return snapshot


@dataclass(frozen=True, slots=True)
class TableState:
    """One read of a table.

    Attributes:
        config: The table's configuration.
        log: All its log files, and what they say together. Taken over by the next read as a copy.
        snapshot: Their fold: the newest state.
        started_ms: Monotonic time at which the read began: every commit that landed before is in it.
        past: States at times that were asked for.
        history: What came and went since earlier reads.
    """

    config: TableConfig
    log: LogState
    snapshot: Snapshot
    started_ms: int
    past: PastStates = field(default_factory=PastStates, compare=False, repr=False)
    history: ChangeHistory = field(default_factory=ChangeHistory, compare=False, repr=False)

    @property
    def view(self) -> LogView:
        """All log files."""
        return self.log.view

    def at(self, as_of_ms: int | None) -> Snapshot:
        """Return the state at a time; ``None``: the newest. Computes, for a second where there are a million files.

        Raises:
            BelowHorizon: The time lies below the horizon (R3).
        """
        return self.snapshot if as_of_ms is None else self.past.fold(self.log, as_of_ms)


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table's configuration and the log reader that was set up for it."""

    config: TableConfig
    reader: LogReader
    read_ms: int


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller wants.

    Attributes:
        max_staleness_ms: How old a state may be.
        arrived_ms: When the caller came, by the monotonic clock.
        needed: Number of the first read that began after that.
    """

    max_staleness_ms: int
    arrived_ms: int
    needed: int


class CachedTable:
    """The shared state of one table. Thread-safe.

    Args:
        table: Its store and keys.
        clock: For the age of a state.
        wait_ms: How long a caller waits for a read that another caller has begun.
        on_refresh: Called with the duration in milliseconds of each successful read.
        fetch_pool: ``FETCH_THREADS`` threads that log files are fetched by, shared with other tables.
        new_lock: Makes what its callers wait for each other at; not of threads where callers are none.
    """

    def __init__(
        self,
        table: TableStore,
        *,
        clock: Clock,
        wait_ms: int,
        on_refresh: Callable[[int], None],
        fetch_pool: Executor,
        new_lock: Callable[[], threading.Lock] = threading.Lock,
    ) -> None:
        self._table = table
        self._clock = clock
        self._wait_ms = wait_ms
        self._on_refresh = on_refresh
        self._fetch_pool = fetch_pool
        self._reading = new_lock()
        self._begun = 0
        self._ended: tuple[int, TableState | IceDBError] | None = None
        self._state: TableState | None = None
        self._past = PastStates()
        self._source: TableSource | None = None
        self._source_lock = new_lock()

    @property
    def paths(self) -> TablePaths:
        """Keys of the table."""
        return self._table.paths

    def ask(self, max_staleness_ms: int) -> Question:
        """Take note of who comes now."""
        return Question(max_staleness_ms, self._clock.monotonic_ms(), self._next_read())

    def answer(self, question: Question) -> TableState | None:
        """Return what is known if that will do; ``None``: the log has to be read. Never waits.

        Raises:
            IceDBError: What the read that would have done has raised.
        """
        state = self._state
        if state is not None and _is_fresh(state, question.arrived_ms, question.max_staleness_ms):
            return state
        if self._ended is None or self._ended[0] < question.needed:
            return None
        outcome = self._ended[1]
        if isinstance(outcome, IceDBError):
            raise type(outcome)(str(outcome)) from outcome
        return outcome

    def read(self, *, max_staleness_ms: int) -> TableState:
        """Return a state that is at most ``max_staleness_ms`` old (R4). Raises as :meth:`read_for`.

        With 0 the read begins after this call: callers that arrive during a read share the next one.
        """
        return self.read_for(self.ask(max_staleness_ms))

    def read_for(self, question: Question) -> TableState:
        """Return a state that will do, read now if need be.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer in time.
            HaltError: The log is damaged, or was written by a newer release.
        """
        known = self.answer(question)
        if known is not None:
            return known
        ended = self._ended
        while not self._reading.acquire(timeout=self._wait_ms / SECOND_MS):
            known = self.answer(question)
            if known is not None:
                return known
            if self._ended is not ended:  # the limit is one for each read, and the next one may do
                ended = self._ended
                continue
            raise Unavailable(
                f"table {self._table.name}: no read of its log ended within {self._wait_ms} ms; "
                "the object store is slow: try again"
            )
        try:
            return self.answer(question) or self._lead()
        finally:
            self._reading.release()

    def _next_read(self) -> int:
        """Return the number of the first read that begins after now: one under way may have begun too early (R4)."""
        return self._begun + 1

    def read_source(self) -> TableSource:
        """Return the configuration, at most ``CONFIG_CACHE_TTL_MS`` old, and the log reader.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer.
            UnsupportedFormat: A configuration that this release does not understand.
        """
        with self._source_lock:
            now_ms = self._clock.monotonic_ms()
            known = self._source
            if known is not None and now_ms - known.read_ms <= CONFIG_CACHE_TTL_MS:
                return known
            self._source = None
            config = read_table_config(self._table)
            if known is not None and known.config.log_grace_ms == config.log_grace_ms:
                reader = known.reader
            else:
                reader = LogReader(
                    self._table,
                    clock=self._clock,
                    max_refresh_ms=config.log_grace_ms // 2,  # R2
                    fetch=self._fetch_pool,
                    is_compact=True,
                )
            self._source = TableSource(config, reader, now_ms)
            return self._source

    def _lead(self) -> TableState:
        """Read now, and leave what came of it for all who wait."""
        self._begun += 1
        outcome: TableState | IceDBError = Unavailable(
            f"table {self._table.name}: reading its log was broken off; try again"
        )
        try:
            outcome = self._read_now()
        except IceDBError as error:
            outcome = error
            raise
        finally:
            # An unreachable store leaves what was read before, for as long as callers accept its age.
            # A halted or missing table must not look alive from memory.
            if not isinstance(outcome, Unavailable):
                self._state = None if isinstance(outcome, IceDBError) else outcome
            self._ended = self._begun, outcome
        return outcome

    def _read_now(self) -> TableState:
        started_ms = self._clock.monotonic_ms()
        source = self.read_source()
        view = source.reader.read()
        if self._may_be_gone(source, view):
            # WARN: T1: after the log. The configuration is remembered for ten seconds, and this may sleep: meanwhile a
            # table can be dropped and purged: what is left of its log, maybe nothing, would be served.
            with self._source_lock:
                self._source = None
            source = self.read_source()
        last = self._state
        log = LogState() if last is None else last.log.copy()
        snapshot = fold(view, state=log)
        log.take_changed()  # for planners alone; else each state would carry on what all before it have noted
        if last is not None and _versions(last.view) - _versions(view):
            # Earlier states would keep log files in memory that are gone; whoever still looks at one has them.
            self._past = PastStates()
        history = ChangeHistory() if last is None else last.history
        if last is not None:
            history.note(last.snapshot, snapshot)
        state = TableState(source.config, log, snapshot, started_ms, self._past, history)
        self._on_refresh(self._clock.monotonic_ms() - started_ms)
        return state

    def _may_be_gone(self, source: TableSource, view: LogView) -> bool:
        """Whether the table may have been purged before its log was read: then its configuration says so."""
        if self._clock.monotonic_ms() - source.read_ms > CONFIG_CACHE_TTL_MS or _is_left_by_purge(view):
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
        self._wait_ms = wait_ms
        self._on_refresh = on_refresh
        self._fetch_pool = ThreadPoolExecutor(FETCH_THREADS, "icedb-log-reader")
        self._tables: LRUCache[str, CachedTable] = LRUCache(max_tables)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Read nothing more: threads that wait for the next read would hold the end of the process up."""
        self._fetch_pool.shutdown(wait=False, cancel_futures=True)

    def table(self, name: str) -> CachedTable:
        """Return the shared state of a table, which need not exist yet.

        Raises:
            InvalidRequest: Not a table name.
        """
        place = self._warehouse.table(name)
        with self._lock:
            table = self._tables.get(name)
            if table is None or table.paths != place.paths:  # another one of this name (T4)
                table = self._tables[name] = self._make(place)
            return table

    def borrow(self, name: str) -> CachedTable:
        """Return the same, for who looks at all tables in turn: it pushes no other one out, and counts as no use.

        Else, of more tables than are kept, none would be known when somebody asks for it. Raises as :meth:`table`.
        """
        place = self._warehouse.table(name)
        with self._lock:
            is_kept = name in self._tables
            table = Cache.__getitem__(self._tables, name) if is_kept else None
            if table is None or table.paths != place.paths:
                table = self._make(place)
                if is_kept or self._tables.currsize < self._tables.maxsize:
                    self._tables[name] = table
            return table

    def _make(self, place: TableStore) -> CachedTable:
        return CachedTable(
            place,
            clock=self._clock,
            wait_ms=self._wait_ms,
            on_refresh=self._on_refresh,
            fetch_pool=self._fetch_pool,
        )

    def drop(self, name: str) -> None:
        """Forget a table that is gone."""
        with self._lock:
            self._tables.pop(name, None)
