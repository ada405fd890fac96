"""Watches how much each table has to slow its producers down: measures, paces commits, and tells the front ends.

Owns what this process knows about back-pressure, and when each table's next commit is due: the flush interval,
stretched by it. Workers tell each other through Redis when a table's next commit is due, and find what they were not
told when they look at the log, so that two on one table keep one pace; each measures the same log and says the same. A
flush lists the log anyway and says how many files there are: as long as these are few, the log is hardly ever listed
for a measure. A failure here never keeps a flush from its work: without a measure it goes on at the pace it had.
"""

from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.errors import IceDBError, NotFound
from icedb_log.ingest.pressure import (
    BACKLOG_FILES,
    LOG_FILES,
    Pressure,
    find_trouble,
    is_failure,
    measure_pressure,
    publish_pressure,
    publish_trouble,
    read_pressure,
)
from icedb_log.intervals import Intervals
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.state import LogState
from icedb_log.serving.status import list_backlog
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import SECOND_MS
from icedb_service.logs import get_logger
from icedb_service.redis_clients import LockBusy
from icedb_service.worker import WorkerContext

from icedb_ingest.settings import IngestSettings

LEAST_STRETCHED_MS: Final = SECOND_MS
"""What the stretch works on when the flush interval is shorter: sixty times nothing would be nothing."""

MAX_SLEEP_MS: Final = SECOND_MS
"""A commit that is due within this is waited for; a later one is left to the sweep, so that other tables have their
turn. It is not worth a delayed message: the sweep looks every few seconds, and cannot be lost."""

COST_SHARE: Final = 20
"""A measure that took so long is not done again before this many times as long: a big log is not read all day."""

NEAR_INTERVAL_MS: Final = 3 * SECOND_MS
"""How often a table near its bounds is measured at most: each measure lists its log."""

CALM_INTERVAL_MS: Final = 30 * SECOND_MS
"""How often a table far from its bounds is measured, and its merge backlog counted. A flush says how many log
files there are, but the backlog takes the whole log."""

FOREIGN_WORDS_INTERVAL_MS: Final = 30 * SECOND_MS
"""How often a table without pressure is asked for what another worker, perhaps a dead one, said about it."""

MAX_TABLES: Final = 10_000
"""Tables that something is known of; a worker that just starts knows nothing of any."""

_NO_PRESSURE: Final = Pressure()


@dataclass(slots=True)
class _Known:
    """What this process knows of a table. Times are monotonic.

    Attributes:
        interval_ms: Least time from one commit to the next, as the pressure wants it.
        last_ms: From when that counts: the flush of this process's last commit began, or another process's landed.
        last_key: Log file of this process's last commit.
        measured_ms: When it was measured last.
        cost_ms: How long that took.
        pressure: What was found.
        log_files: How many there were, then or at the last commit of this process.
        backlog_files: Data files that a merge would take.
        counted_ms: When they were counted.
        committed_files: Data files that this process has made live since.
        is_in_trouble: Whether flushes of it are said to halt or to fail.
        failures: How many have failed in a row.
    """

    interval_ms: int
    last_ms: int | None = None
    last_key: str = ""
    measured_ms: int | None = None
    cost_ms: int = 0
    pressure: Pressure = _NO_PRESSURE
    log_files: int = 0
    backlog_files: int = 0
    counted_ms: int | None = None
    committed_files: int = 0
    is_in_trouble: bool = False
    failures: int = 0

    @property
    def is_calm(self) -> bool:
        """Whether it had no pressure, and can hardly have some by now."""
        is_low = self.log_files < LOG_FILES.slow and not self.is_backlog_near
        return self.counted_ms is not None and self.pressure.level == "none" and is_low

    @property
    def is_backlog_near(self) -> bool:
        """Whether the merge backlog may be at half of what slows flushes down."""
        return 2 * (self.backlog_files + self.committed_files) >= BACKLOG_FILES.slow


class PressureWatch:
    """Measures tables, at most so often, publishes what it finds, and says when a table's next commit is due."""

    def __init__(self, context: WorkerContext[Any], *, settings: IngestSettings) -> None:
        self._context = context
        self._settings = settings
        self._tables: LRUCache[str, _Known] = LRUCache(MAX_TABLES)
        self._foreign_words = Intervals(context.clock, FOREIGN_WORDS_INTERVAL_MS)

    def interval_ms(self, pressure: Pressure) -> int:
        """Return the least time between two commits under a pressure, milliseconds."""
        plain_ms = self._settings.flush_interval_ms
        stretched_ms = plain_ms + max(plain_ms, LEAST_STRETCHED_MS) * (pressure.stretch - 1)
        return int(min(stretched_ms, self._settings.flush_max_interval_ms))

    def due_in_ms(self, table: str) -> int:
        """Return how long the table's next commit has to wait; 0 when it is due."""
        known = self._known(table)
        if known.last_ms is None:
            return 0
        return max(0, known.last_ms + known.interval_ms - self._context.clock.monotonic_ms())

    def is_turn(self, table: str) -> bool:
        """Whether the table's next commit is due soon enough to be waited for."""
        return self.due_in_ms(table) <= MAX_SLEEP_MS

    def wait_for_turn(self, table: str) -> int:
        """Wait until a commit is due, if that is soon. Returns 0, or how long it is put off, milliseconds."""
        # Not longer than an interval: the other one may have known of a pressure that is over.
        others_ms = min(self._context.wakeups.turn_in_ms(table), self._known(table).interval_ms)
        due_in_ms = max(self.due_in_ms(table), others_ms)
        if due_in_ms > MAX_SLEEP_MS:
            return due_in_ms
        if due_in_ms:
            self._context.clock.sleep_ms(due_in_ms)
        return 0

    def pressure_of(self, table: str) -> Pressure:
        """Return the pressure as last measured; none if it never was."""
        return self._known(table).pressure

    def is_calm(self, table: str) -> bool:
        """Whether the table had no pressure when it was measured, and can hardly have some by now."""
        return self._known(table).is_calm

    def count_log_files(self, table: str) -> int:
        """Return how many log files the table has: as last measured, or at the last commit of this process."""
        return self._known(table).log_files

    def is_log_full(self, table: str) -> bool:
        """Whether another commit would come too near to what the wire allows."""
        return self.count_log_files(table) >= MAX_LOG_FILES

    def record_commit(self, table: str, key: str, *, begun_ms: int, file_count: int, log_files: int = 0) -> None:
        """Note a commit of this process.

        Args:
            table: The table.
            key: Its log file.
            begun_ms: When the run began that made it, by the monotonic clock: from there the next one is due an
                interval later, however long the run took.
            file_count: Data files that it made live.
            log_files: How many log files the run has seen, its own among them; 0: it did not count them.
        """
        self._tables[table] = known = self._known(table)
        known.last_ms, known.last_key = begun_ms, key
        if (due_in_ms := self.due_in_ms(table)) > 0:
            self._context.wakeups.note_turn(table, next_in_ms=due_in_ms)
        if known.measured_ms is not None:
            known.log_files = log_files or known.log_files + 1
            known.committed_files += file_count

    def look(self, paths: TablePaths, *, max_age_ms: int | None = None) -> None:
        """Measure and publish, unless that was done just now. Never raises an error of ours.

        Args:
            paths: Keys of the table.
            max_age_ms: How old the last measure may be; if not given :data:`NEAR_INTERVAL_MS`, and of a table that
                is far from its bounds :data:`CALM_INTERVAL_MS`.
        """
        known = self._known(paths.name)
        if known.measured_ms is not None and not self._is_due(known, max_age_ms):
            return
        started_ms = self._context.clock.monotonic_ms()
        before = known.pressure
        try:
            self._measure(paths, known)
            self._publish(paths, known)
        except NotFound:
            self._tables.pop(paths.name, None)
            return
        except IceDBError as error:
            get_logger().warning(
                "pressure_not_told",
                measured_table=paths.name,
                error=str(error),
                mitigation="ingest keeps its pace; what front ends were told runs out by itself",
            )
        if known.pressure.level != before.level:
            _report(paths.name, before, known.pressure)
        known.measured_ms = self._context.clock.monotonic_ms()
        known.cost_ms = known.measured_ms - started_ms
        self._tables[paths.name] = known

    def tell_trouble(self, paths: TablePaths, error: Exception) -> None:
        """Say that flushes of a table halt or fail, and why, once it is worth it. Never raises an error of ours."""
        if isinstance(error, LockBusy) or not is_failure(error):
            return
        self._tables[paths.name] = known = self._known(paths.name)
        known.failures += 1
        trouble = find_trouble(error, failure_count=known.failures)
        if trouble is None:
            return
        known.is_in_trouble = True
        try:
            publish_trouble(self._context.warehouse.table(paths.name), trouble, str(error), clock=self._context.clock)
        except IceDBError as failure:
            get_logger().warning(
                "trouble_not_told", measured_table=paths.name, error=str(failure), mitigation="the next try says it"
            )

    def end_trouble(self, paths: TablePaths) -> None:
        """Take back what was said of a table's flushes: one ended well. Never raises an error of ours."""
        known = self._known(paths.name)
        known.failures = 0
        if not known.is_in_trouble:
            return
        try:
            self._publish(paths, known, ends_trouble=True)
        except IceDBError as failure:
            get_logger().warning(
                "trouble_not_ended", measured_table=paths.name, error=str(failure), mitigation="the next flush ends it"
            )

    def needs_look(self, paths: TablePaths) -> bool:
        """Whether a sweep should have the table measured although nothing is staged.

        It should while the last measure found pressure, after commits that may have brought it, and when another
        worker has said something. The last costs a small GET for each table, now and then.

        Raises:
            Unavailable: The store did not answer.
        """
        known = self._known(paths.name)
        if known.counted_ms is not None and not known.is_calm:
            return self._is_due(known)
        if not self._foreign_words.is_due(paths.name):
            return False
        self._foreign_words.note(paths.name)
        return read_pressure(self._context.warehouse.table(paths.name)) is not None

    def _known(self, table: str) -> _Known:
        return self._tables.get(table) or _Known(self._settings.flush_interval_ms)

    def _is_due(self, known: _Known, max_age_ms: int | None = None) -> bool:
        age_ms = self._context.clock.monotonic_ms() - (known.measured_ms or 0)
        interval_ms = CALM_INTERVAL_MS if known.is_calm else NEAR_INTERVAL_MS
        longest_ms = interval_ms if max_age_ms is None else max_age_ms
        return age_ms >= max(longest_ms, COST_SHARE * known.cost_ms)

    def _publish(self, paths: TablePaths, known: _Known, *, ends_trouble: bool = False) -> None:
        table = self._context.warehouse.table(paths.name)
        known.is_in_trouble = publish_pressure(
            table, known.pressure, clock=self._context.clock, ends_trouble=ends_trouble
        )

    def _measure(self, paths: TablePaths, known: _Known) -> None:
        table, clock = self._context.warehouse.table(paths.name), self._context.clock
        config = read_table_config(table)
        listing = list_all(table.store, paths.log_prefix)
        if self._is_backlog_worth_a_count(known):
            log = LogState.of(self._context.readers.of_table(table).read())
            known.backlog_files = len(list_backlog(log, paths=paths, config=config))
            known.counted_ms, known.committed_files = clock.monotonic_ms(), 0
        known.log_files = len(listing.objects)
        known.pressure = measure_pressure(log_files=known.log_files, backlog_files=known.backlog_files)
        known.interval_ms = self.interval_ms(known.pressure)
        others = [
            info.modified_ms
            for info in listing.objects
            if info.key != known.last_key and not parse_log_key(info.key).is_merged
        ]
        if others:  # an older one than is known changes nothing
            landed_ms = clock.monotonic_ms() - max(0, listing.store_now_ms - max(others))
            known.last_ms = max(landed_ms, known.last_ms or landed_ms)

    def _is_backlog_worth_a_count(self, known: _Known) -> bool:
        return (
            known.counted_ms is None
            or known.is_backlog_near
            or self._context.clock.monotonic_ms() - known.counted_ms >= CALM_INTERVAL_MS
        )


def _report(table: str, before: Pressure, now: Pressure) -> None:
    if now.level == "none":
        get_logger().info("pressure_ended", measured_table=table, before=before.level)
        return
    get_logger().warning(
        "pressure_changed",
        measured_table=table,
        level=now.level,
        before=before.level,
        reason=now.reason,
        mitigation="flushes come less often" + (", front ends refuse batches" if now.level == "stop" else ""),
    )
