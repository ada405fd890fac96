"""The figures of all tables, read again and again while somebody looks: a page of a thousand tables waits for none.

Owns one thread that begins rounds, and a pool that reads. A table that cannot be read does not keep the others from
being shown, and shows why. One at which nothing happens is read less often. Nobody looks: nothing is read. Must never
write.
"""

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, NotFound, Unavailable, crashes_told
from icedb_log.intervals import Rests
from icedb_log.serving.status import Health, TableStatus, find_health
from icedb_log.serving.statuses import StatusReader, describe_rest
from icedb_log.serving.table_cache import TableState
from icedb_log.table.table_config import unite_columns
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_service.logs import get_logger

WATCHED_MS: Final = MINUTE_MS
"""Figures are read for so long after somebody has looked at them."""
MAX_REST_MS: Final = MINUTE_MS
"""How old the figures of a table at which nothing happens get at most, while somebody looks."""
NOT_YET: Final = Unavailable("its log is being read")


@dataclass(frozen=True)
class TableFigures:
    """What is known of a table.

    Attributes:
        name: Its name.
        status: Its figures, as they were read last; ``None``: they never were.
        error: Why they could not be read just now; ``None``: they were.
        columns: Its columns with their types, as they were read last.
    """

    name: str
    status: TableStatus | None = None
    error: IceDBError | None = NOT_YET
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Whether nobody has tried to read it yet."""
        return self.error is NOT_YET

    @cached_property
    def health(self) -> Health:
        """How it is, in a word."""
        if self.is_new:
            return Health("ok", "reading")
        found = self.error or self.status
        assert found is not None  # noqa: S101 - it was read, or there is an error
        return find_health(found)

    @cached_property
    def mark(self) -> str:
        """What differs when a page has something new to show: ages grow by themselves, and are no news."""
        status = self.status
        if status is None or self.error is not None:
            return make_mark(str(self.error))
        counts = (status.staged_batches, status.quarantined_batches, status.log_files, status.merge_lag_files)
        busy = tuple((worker.owner, worker.role) for worker in status.workers)
        return make_mark((status.snapshot_id, *counts, len(status.leases), status.published_ms, self.health, busy))


def make_mark(shown: object) -> str:
    """Return what tells one state of a page from another, for its stream."""
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()


class Figures:
    """The figures of all tables. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        statuses: Reads them.
        clock: For ages.
        interval_ms: How often a round begins while somebody looks.
        threads: How many tables are read at once.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        statuses: StatusReader,
        *,
        clock: Clock,
        interval_ms: int,
        threads: int,
    ) -> None:
        self._warehouse = warehouse
        self._statuses = statuses
        self._clock = clock
        self._interval_ms = interval_ms
        self._threads = threads
        self._known: dict[str, TableFigures] = {}
        self._rests = Rests(clock, max_rest_ms=MAX_REST_MS)
        self._looked_ms = self._round_ms = clock.monotonic_ms() - WATCHED_MS
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="icedb-console-figures", daemon=True)
        self.problem = ""
        """Why the tables could not be listed in the last round; empty: they were."""
        self.read_ms = 0
        """When the last round that has ended began, by this host's clock: all tables are known as of then; 0: none."""

    def start(self) -> None:
        """Begin, in a thread of its own: nothing is read before somebody looks."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no more rounds."""
        self._stopped.set()
        self._wanted.set()

    @property
    def is_behind(self) -> bool:
        """Whether what is known is of a time when somebody else looked, or nothing is known yet: a round is due."""
        return self._clock.monotonic_ms() - self._round_ms >= WATCHED_MS

    def look(self) -> Mapping[str, TableFigures]:
        """Return what is known of all tables, by name, and have it read on for a while. Never waits."""
        self._looked_ms = self._clock.monotonic_ms()
        self._wanted.set()
        with self._lock:
            return dict(self._known)

    def read_round(self) -> None:
        """Read all tables that do not rest. Never raises for a table; says so if they cannot be listed."""
        started_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        with self._lock:
            resting = {name for name in self._known if not self._rests.is_due(name)}
        try:
            names = self._warehouse.list_tables(known=resting)
        except IceDBError as error:
            self.problem = str(error)
            return
        with self._lock:
            gone = self._known.keys() - set(names)
            self._known = {name: self._known.get(name) or TableFigures(name) for name in names}
        self.problem = ""
        for name in gone:
            self._statuses.drop(name)
        with ThreadPoolExecutor(self._threads, "icedb-console-figures") as pool:
            list(pool.map(self._read_in_round, [name for name in names if name not in resting]))
        self.read_ms, self._round_ms = now_ms, started_ms

    def read_table(self, name: str, *, log: TableState | None = None) -> TableStatus:
        """Read one table now, and keep what it is; a table that is wrong in any way does not rest.

        Raises:
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Unavailable: The store did not answer.
        """
        rest, rest_ms = None, 0
        try:
            with crashes_told(f"table {name}: its figures"):
                state = self._statuses.read_log(name) if log is None else log
                status = self._statuses.read(name, log=state)
                columns = unite_columns(state.snapshot.schema, state.config)
            rest, rest_ms = describe_rest(status), status.rest_ms
        except NotFound:
            with self._lock:
                self._known.pop(name, None)
            raise
        except IceDBError as error:
            with self._lock:
                self._known[name] = replace(self._known.get(name) or TableFigures(name), error=error)
            raise
        finally:
            self._rests.note(name, rest, rest_ms=rest_ms)
        with self._lock:
            self._known[name] = TableFigures(name, status, None, columns)
        return status

    def _read_in_round(self, name: str) -> None:
        if self._stopped.is_set():
            return
        try:
            self.read_table(name)
        except IceDBError as error:  # one table that nobody thought of keeps no other from being shown
            get_logger().debug("table_not_read", table=name, error=type(error).__name__)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.wait()
            started_ms = self._clock.monotonic_ms()
            if started_ms - self._looked_ms >= WATCHED_MS:
                self._wanted.clear()
                continue
            try:
                self.read_round()
            except Exception:  # noqa: BLE001 - people see through it: it outlives what nobody thought of
                get_logger().exception("round_failed")
            elapsed_ms = self._clock.monotonic_ms() - started_ms
            self._stopped.wait(max(0, self._interval_ms - elapsed_ms) / SECOND_MS)
