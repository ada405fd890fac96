"""Watches how much each table has to slow its producers down: measures, paces commits, and tells the front ends.

Owns what this process knows about back-pressure, and when each table's next commit is due: the flush interval,
stretched by it. A process knows its own commits at once and those of other workers when it looks at the log, so that
two workers on one table keep about one pace; each measures the same log and says the same. A failure here never keeps
a flush from its work: without a measure it goes on at the pace it had.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import HaltError, IceDBError, NotFound
from icedb_log.ingest.pressure import (
    MAX_LOG_FILES,
    Pressure,
    measure_pressure,
    publish_halt,
    publish_pressure,
    read_pressure,
)
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.status import list_backlog
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders
from icedb_service.worker import WorkerContext

from icedb_ingest.settings import IngestSettings

LEAST_STRETCHED_MS = SECOND_MS
"""What the stretch works on when the flush interval is shorter: sixty times nothing would be nothing."""


@dataclass(frozen=True, slots=True)
class _Table:
    committed_ms: int | None = None
    interval_ms: int = 0


class Pacer:
    """Says how long a table has to wait for its next commit.

    Args:
        clock: Monotonic time.
        settings: The interval without pressure, and the longest.
    """

    def __init__(self, clock: Clock, *, settings: IngestSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._tables: dict[str, _Table] = {}

    def interval_ms(self, pressure: Pressure) -> int:
        """Return the least time between two commits under a pressure, milliseconds."""
        plain_ms = self._settings.flush_interval_ms
        stretched_ms = plain_ms + max(plain_ms, LEAST_STRETCHED_MS) * (pressure.stretch - 1)
        return int(min(stretched_ms, self._settings.flush_max_interval_ms))

    def record_commit(self, table: str, *, age_ms: int = 0) -> None:
        """Note that a commit landed ``age_ms`` ago, whoever made it; an older one than is known changes nothing."""
        known = self._table(table)
        committed_ms = self._clock.monotonic_ms() - age_ms
        if known.committed_ms is None or committed_ms > known.committed_ms:
            self._tables[table] = _Table(committed_ms, known.interval_ms)

    def record_pressure(self, table: str, pressure: Pressure) -> None:
        """Note how much the table has to slow down from now on."""
        self._tables[table] = _Table(self._table(table).committed_ms, self.interval_ms(pressure))

    def due_in_ms(self, table: str) -> int:
        """Return how long the table's next commit has to wait; 0 when it is due."""
        known = self._table(table)
        if known.committed_ms is None:
            return 0
        return max(0, known.committed_ms + known.interval_ms - self._clock.monotonic_ms())

    def _table(self, table: str) -> _Table:
        return self._tables.get(table) or _Table(interval_ms=self._settings.flush_interval_ms)


COST_SHARE: Final = 20
"""A measure that took so long is not done again before this many times as long: a big log is not read all day."""

BACKLOG_INTERVAL_MS: Final = 30 * SECOND_MS
"""How often the merge backlog of a table that is far from its bounds is counted: a listing shows the number of log
files, but the backlog takes the whole log."""

FOREIGN_WORDS_INTERVAL_MS: Final = 30 * SECOND_MS
"""How often a table without pressure is asked for what another worker, perhaps a dead one, said about it."""


_NO_PRESSURE: Final = Pressure()


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Data files that a merge would take, when they were counted, and how many this process committed since."""

    files: int
    counted_ms: int
    committed_files: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last measure of a table, and how many log files this process committed since."""

    measured_ms: int
    cost_ms: int = 0
    pressure: Pressure = _NO_PRESSURE
    log_files: int = 0
    commits: int = 0
    backlog: _Backlog | None = None


class PressureWatch:
    """Measures tables, at most so often, and publishes what it finds.

    Args:
        context: Warehouse and clock.
        readers: Of the service, so that each log file is fetched once.
        pacer: Is told of every measure, and of commits of others that it shows.
        interval_ms: Least time between two measures of a table.
    """

    def __init__(self, context: WorkerContext[Any], *, readers: LogReaders, pacer: Pacer, interval_ms: int) -> None:
        self._context = context
        self._readers = readers
        self._pacer = pacer
        self._interval_ms = interval_ms
        self._seen: dict[str, _Seen] = {}
        self._asked_ms: dict[str, int] = {}
        self._halted: set[str] = set()

    def pressure_of(self, table: str) -> Pressure:
        """Return the pressure as last measured; none if it never was."""
        seen = self._seen.get(table)
        return _NO_PRESSURE if seen is None else seen.pressure

    def count_log_files(self, table: str) -> int:
        """Return how many log files the table has: as last measured, and what this process committed since."""
        seen = self._seen.get(table)
        return 0 if seen is None else seen.log_files + seen.commits

    def is_log_full(self, table: str) -> bool:
        """Whether another commit would come too near to what the wire allows."""
        return self.count_log_files(table) >= MAX_LOG_FILES

    def record_commit(self, table: str, *, file_count: int) -> None:
        """Note a commit of this process, and how many data files it made live."""
        self._pacer.record_commit(table)
        seen = self._seen.get(table)
        if seen is not None:
            backlog = seen.backlog
            if backlog is not None:
                backlog = replace(backlog, committed_files=backlog.committed_files + file_count)
            self._seen[table] = replace(seen, commits=seen.commits + 1, backlog=backlog)

    def look(self, paths: TablePaths, *, max_age_ms: int | None = None) -> None:
        """Measure and publish, unless that was done just now. Never raises an error of ours.

        Args:
            paths: Keys of the table.
            max_age_ms: How old the last measure may be; the watch's own interval if not given.
        """
        seen = self._seen.get(paths.name)
        if seen is not None and not self._is_due(seen, self._interval_ms if max_age_ms is None else max_age_ms):
            return
        started_ms = self._context.clock.monotonic_ms()
        try:
            seen = self._measure(paths, seen.backlog if seen is not None else None)
            self._publish(paths, seen.pressure)
        except NotFound:
            self._seen.pop(paths.name, None)
            return
        except IceDBError as error:
            get_logger().warning(
                "pressure_not_told",
                measured_table=paths.name,
                error=str(error),
                mitigation="ingest keeps its pace; what front ends were told runs out by itself",
            )
            seen = seen or _Seen(0)
        self._report(paths.name, seen.pressure)
        now_ms = self._context.clock.monotonic_ms()
        self._seen[paths.name] = replace(seen, measured_ms=now_ms, cost_ms=now_ms - started_ms)

    def tell_halt(self, paths: TablePaths, error: HaltError) -> None:
        """Say that a flush of a table halted, and why. Never raises an error of ours."""
        self._halted.add(paths.name)
        try:
            publish_halt(TableStore(self._context.warehouse.store, paths), str(error), clock=self._context.clock)
        except IceDBError as failure:
            get_logger().warning(
                "halt_not_told", measured_table=paths.name, error=str(failure), mitigation="the next try says it"
            )

    def end_halt(self, paths: TablePaths) -> None:
        """Take back that a table is halted, if that was said: a flush ended well. Never raises an error of ours."""
        if paths.name not in self._halted:
            return
        try:
            self._publish(paths, self.pressure_of(paths.name), ends_halt=True)
        except IceDBError as failure:
            get_logger().warning(
                "halt_not_ended", measured_table=paths.name, error=str(failure), mitigation="the next flush ends it"
            )

    def _publish(self, paths: TablePaths, pressure: Pressure, *, ends_halt: bool = False) -> None:
        store, clock = self._context.warehouse.store, self._context.clock
        if publish_pressure(TableStore(store, paths), pressure, clock=clock, ends_halt=ends_halt):
            self._halted.add(paths.name)
        else:
            self._halted.discard(paths.name)

    def needs_look(self, paths: TablePaths) -> bool:
        """Whether a sweep should have the table measured although nothing is staged.

        It should while the last measure found pressure, after commits that no measure followed, and when another
        worker has said something. The last costs a small GET for each table, now and then.

        Raises:
            Unavailable: The store did not answer.
        """
        seen = self._seen.get(paths.name)
        if seen is not None and (seen.commits or seen.pressure.level != "none"):
            return self._is_due(seen, self._interval_ms)
        now_ms = self._context.clock.monotonic_ms()
        asked_ms = self._asked_ms.get(paths.name)
        if asked_ms is not None and now_ms - asked_ms < FOREIGN_WORDS_INTERVAL_MS:
            return False
        self._asked_ms[paths.name] = now_ms
        return read_pressure(TableStore(self._context.warehouse.store, paths)) is not None

    def _is_due(self, seen: _Seen, max_age_ms: int) -> bool:
        age_ms = self._context.clock.monotonic_ms() - seen.measured_ms
        return age_ms >= max(max_age_ms, COST_SHARE * seen.cost_ms)

    def _measure(self, paths: TablePaths, backlog: _Backlog | None) -> _Seen:
        store = self._context.warehouse.store
        config = read_table_config(TableStore(store, paths))
        listing = list_all(store, paths.log_prefix)
        if backlog is None or self._is_backlog_worth_a_count(backlog, config):
            view = self._readers.of_table(TableStore(store, paths)).read()
            found = list_backlog(view, paths=paths, config=config)
            backlog = _Backlog(len(found), self._context.clock.monotonic_ms())
        log_files = len(listing.objects)
        pressure = measure_pressure(log_files=log_files, backlog_files=backlog.files, config=config)
        appended = [info.modified_ms for info in listing.objects if not parse_log_key(info.key).is_merged]
        if appended:
            self._pacer.record_commit(paths.name, age_ms=max(0, listing.store_now_ms - max(appended)))
        self._pacer.record_pressure(paths.name, pressure)
        now_ms = self._context.clock.monotonic_ms()
        return _Seen(now_ms, pressure=pressure, log_files=log_files, backlog=backlog)

    def _is_backlog_worth_a_count(self, backlog: _Backlog, config: TableConfig) -> bool:
        age_ms = self._context.clock.monotonic_ms() - backlog.counted_ms
        return (
            2 * (backlog.files + backlog.committed_files) >= config.backlog_files_slow or age_ms >= BACKLOG_INTERVAL_MS
        )

    def _report(self, table: str, pressure: Pressure) -> None:
        before = self.pressure_of(table).level
        if before == pressure.level:
            return
        if pressure.level == "none":
            get_logger().info("pressure_ended", measured_table=table, before=before)
            return
        get_logger().warning(
            "pressure_changed",
            measured_table=table,
            level=pressure.level,
            before=before,
            reason=pressure.reason,
            mitigation="flushes come less often" + (", front ends refuse batches" if pressure.level == "stop" else ""),
        )
