"""The tasks of the ingest service: which table is flushed when, and the check of queries for the command line.

How a table is flushed, is :mod:`icedb_log.ingest.flush`'s business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from celery import Celery
from icedb_log.errors import HaltError, InvalidRequest
from icedb_log.feed.feed_state import read_source_schema
from icedb_log.ingest.flush import FlushResult, flush_table
from icedb_log.ingest.pressure import MAX_LOG_FILES
from icedb_log.jobs import BatchWriter
from icedb_log.keys import TablePaths
from icedb_log.names import (
    INGEST_CHECK_QUERY,
    INGEST_FEED,
    INGEST_FLUSH,
    INGEST_IMPORT,
    INGEST_LARGE_FLUSH,
    INGEST_SWEEP,
    MERGE_MERGE,
    TASKS,
)
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB, SECOND_MS
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import Need, needs
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext, sweep_tables
from pydantic import ValidationError

from icedb_ingest.feeds import FeedTasks, FeedTools
from icedb_ingest.flush_choice import BatchLimits, SizedBatches, Takes
from icedb_ingest.imports import ImportTasks
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.pressure_watch import Pacer, PressureWatch
from icedb_ingest.settings import IngestSettings


class CheckingEngine(Engine, Protocol):
    """An engine that knows what a query gives."""

    def check_insert_query(self, config: TableConfig) -> Mapping[str, str]:
        """Return the columns of the result, with types."""
        ...

    def check_view_query(self, config: TableConfig, source_schema: Mapping[str, str]) -> Mapping[str, str]:
        """Return the columns of the result over rows of the source, with types."""
        ...

    def check_merge_query(self, config: TableConfig, schema: Mapping[str, str]) -> None:
        """Check a table's ``merge_query`` against the columns that its log has."""
        ...


class QueryTasks:
    """The work of the task, in the process that runs it.

    Args:
        context: Holds the engine.
    """

    def __init__(self, context: WorkerContext[CheckingEngine]) -> None:
        self._context = context

    def check_query(self, table: str, config: dict[str, Any], schema: dict[str, str] | None = None) -> Work:
        """Check a table's queries, and say which columns its ``insert_query`` or ``view_query`` gives; no write.

        Delivery: sent by the CLI, which waits for the result; a lost or repeated one changes nothing.

        Args:
            table: Its name; it need not exist.
            config: The whole configuration that it will have.
            schema: Columns that its log has already, with types.

        Returns:
            ``schema``: column to SQL type, to be declared; empty with a ``merge_query`` only. Outcome ``refused`` with
            the reason if a query is wrong.
        """
        try:
            parsed = TableConfig.model_validate(config)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise InvalidRequest(f"table {table}: configuration: {problem['loc']}: {problem['msg']}") from error
        found: Mapping[str, str] = {}
        if parsed.merge_query is None or parsed.insert_query is not None or parsed.view_of is not None:
            found = self._check(parsed)
        if parsed.merge_query is not None:
            declared = parsed.model_copy(update={"declared": {**found, **parsed.declared}})
            self._context.engine.check_merge_query(declared, schema or {})
        return Work(is_idle=False, details={"schema": dict(found)})

    def _check(self, config: TableConfig) -> Mapping[str, str]:
        if config.view_of is None:
            return self._context.engine.check_insert_query(config)
        warehouse = self._context.warehouse
        source = Table.open(warehouse.table(config.view_of), clock=self._context.clock)
        source_schema = read_source_schema(source)
        return self._context.engine.check_view_query(config, source_schema)


def needs_of_check(arguments: Mapping[str, Any]) -> Sequence[Need]:
    """Return what a check asks for: its table's upkeep and, for a view, to see the columns of its source."""
    config = arguments.get("config")
    source = config.get("view_of") if isinstance(config, dict) else None
    wanted = [Need(Verb.MAINTAIN, str(arguments.get("table")))]
    return [*wanted, Need(Verb.READ, str(source))] if source else wanted


MAX_REASONS: Final = 20
"""Reasons of rejected batches in a task's result; all of them lie in quarantine."""

MAX_SLEEP_MS: Final = SECOND_MS
"""A commit that is due within this is waited for; a later one is left to the sweep, so that other tables have their
turn. It is not worth a delayed message: the sweep looks every few seconds, and cannot be lost."""

MAX_PRESSURE_AGE_MS: Final = 30 * SECOND_MS
"""How old a measure may be when a flush begins: other workers commit and merge, too."""


class WritingEngine(Engine, Protocol):
    """An engine that writes batches."""

    @property
    def writer(self) -> BatchWriter:
        """Runs flush jobs."""
        ...


@dataclass(slots=True)
class _Totals:
    rounds: int = 0
    commits: int = 0
    batches: int = 0
    rows: int = 0
    files: int = 0
    written_bytes: int = 0
    duplicates: int = 0
    deferred: int = 0
    bad_rows: int = 0

    def add(self, result: FlushResult) -> None:
        self.rounds += 1
        self.commits += 1 if result.committed_key else 0
        self.batches += result.batch_count
        self.rows += result.row_count
        self.files += result.file_count
        self.written_bytes += result.size_bytes
        self.duplicates += result.duplicate_count
        self.deferred += result.deferred_count
        self.bad_rows += result.bad_row_count

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _PutOff:
    """Why a run leaves batches staged: one of ``PUT_OFF_REASONS``, and in words."""

    kind: str
    reason: str


@dataclass(slots=True)
class _Run:
    """What one run of a task did."""

    totals: _Totals = field(default_factory=_Totals)
    rejected: list[dict[str, str]] = field(default_factory=list)
    put_off: _PutOff | None = None
    has_more: bool = False


class IngestTasks:
    """The work of the tasks, in the process that runs them.

    Args:
        context: Warehouse, engine, locks, wake-ups.
        settings: Of the service.
        metrics: Of the service.
        serves_large: Whether this is the worker of the queue ``ingest-large``.
    """

    def __init__(
        self,
        context: WorkerContext[WritingEngine],
        *,
        settings: IngestSettings,
        metrics: IngestMetrics,
        serves_large: bool = False,
    ) -> None:
        self._serves_large = serves_large
        self._sizes = SizedBatches(decoded_bytes=settings.flush_large_mb * MIB, row_count=settings.flush_large_rows)
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._readers = LogReaders(context.clock)
        self._limits = BatchLimits(max_batches=settings.flush_max_batches, max_bytes=settings.flush_max_mb * MIB)
        self._pacer = Pacer(context.clock, settings=settings)
        self._watch = PressureWatch(
            context, readers=self._readers, pacer=self._pacer, interval_ms=settings.pressure_interval_ms
        )
        self._commits_since_wake: dict[str, int] = {}
        tools = FeedTools(self._readers, self._pacer, self._watch, self._wake_merge)
        self.feeds: Final = FeedTasks(context, settings=settings, metrics=metrics, tools=tools)

    def flush(self, table: str) -> Work:
        """Commit what is staged for a table, many batches in one log file, and measure its back-pressure.

        Large batches are left to the queue ``ingest-large`` and its worker is woken. If nobody serves it, they are
        committed here, one alone, when the others are (I6).

        Delivery: woken by producers and by the sweep, any number of times. A run that is lost leaves the batches
        staged for the next one; two at once exclude each other by the lock, and if that fails by the fence. A run
        that comes before the table's next commit is due leaves the batches to the sweep.
        """
        paths = self._context.warehouse.table(table).paths
        run = _Run()
        is_staged = self._sizes.has_work(TableStore(self._context.warehouse.store, paths), "small")
        self._watch.look(paths, max_age_ms=MAX_PRESSURE_AGE_MS if is_staged else None)
        if is_staged:
            self._flush_rounds(paths, run, "small", max_rounds=self._settings.flush_max_rounds)
        has_large = self._sizes.has_large(table)
        if has_large and run.put_off is None and not self._wake_large(table):
            self._flush_rounds(paths, run, "large", max_rounds=1)
        if not is_staged and not has_large:
            self._watch.end_halt(paths)  # what halted its flushes was taken out of staging
        return self._end_run(paths, run, task=INGEST_FLUSH)

    def flush_large(self, table: str) -> Work:
        """Commit the large batches that are staged for a table, one alone in each log file (I6).

        Delivery: woken by a flush that found one, and by the sweep. A run that is lost leaves the batches staged. It
        holds the lock of the table, so that the table's other batches wait; those of other tables do not.
        """
        paths = self._context.warehouse.table(table).paths
        run = _Run()
        if self._sizes.has_work(TableStore(self._context.warehouse.store, paths), "large"):
            self._watch.look(paths, max_age_ms=MAX_PRESSURE_AGE_MS)
            self._flush_rounds(paths, run, "large", max_rounds=1)
            self._context.wakeups.try_wake(INGEST_FLUSH, table)  # what had to wait for the lock
        return self._end_run(paths, run, task=INGEST_LARGE_FLUSH)

    def _flush_rounds(self, paths: TablePaths, run: "_Run", takes: Takes, *, max_rounds: int) -> None:
        has_more, rounds = True, 0
        while has_more and rounds < max_rounds:
            run.put_off = self._wait_for_turn(paths)
            if run.put_off is not None:
                self._metrics.put_off.labels(run.put_off.kind).inc()
                break
            try:
                result = self._flush_once(paths, takes)
            except HaltError as error:
                self._watch.tell_halt(paths, error)
                raise
            if result.committed_key:
                self._watch.end_halt(paths)
            run.totals.add(result)
            run.rejected.extend({"batch": each.batch.batch_id, "reason": each.reason} for each in result.rejected)
            has_more = result.has_more
            rounds += 1
            self._watch.look(paths)
        run.has_more |= has_more

    def _end_run(self, paths: TablePaths, run: "_Run", *, task: str) -> Work:
        table, totals = paths.name, run.totals
        if run.has_more and run.put_off is None:
            self._context.wakeups.try_wake(task, table)
        self._wake_merge(table, totals.commits)
        if totals.commits:
            self.feeds.wake_views(paths)
        is_idle = totals.commits == 0 and not run.rejected and totals.duplicates == 0
        details = {
            **totals.to_json(),
            "rejected": len(run.rejected),
            "reasons": run.rejected[:MAX_REASONS],
            "has_more": run.has_more,
            "put_off": None if run.put_off is None else run.put_off.reason,
            "pressure": self._watch.pressure_of(table).level,
        }
        return Work(is_idle=is_idle, details=details)

    def _wake_large(self, table: str) -> bool:
        """Wake the worker of large batches; return whether there is one."""
        if not self._context.wakeups.is_served(TASKS[INGEST_LARGE_FLUSH]):
            return False
        self._context.wakeups.try_wake(INGEST_LARGE_FLUSH, table)
        return True

    def sweep(self) -> Work:
        """Find tables with staged batches whose turn it is, tables under pressure, and views with commits to take.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        return sweep_tables(self._context, task=INGEST_FLUSH, is_needed=self._needs_flush)

    def _needs_flush(self, paths: TablePaths) -> bool:
        self.feeds.sweep_table(paths)
        is_turn = not self._watch.is_log_full(paths.name) and self._pacer.due_in_ms(paths.name) <= MAX_SLEEP_MS
        if is_turn and self._sizes.has_work(TableStore(self._context.warehouse.store, paths), "small"):
            return True
        if is_turn and self._sizes.has_large(paths.name) and not self._wake_large(paths.name):
            return True
        return self._watch.needs_look(paths)

    def _flush_once(self, paths: TablePaths, takes: Takes) -> FlushResult:
        store = self._context.warehouse.store
        started_ms = self._context.clock.monotonic_ms()
        with self._context.lock(paths.name) as lock:
            result = flush_table(
                self._readers.open(TableStore(store, paths), owner=self._context.owner, check_alive=lock.check_alive),
                self._context.engine.writer,
                limits=self._sizes.limit(paths.name, takes, self._limits.of_table(paths.name)),
            )
        self._metrics.record(result, duration_ms=self._context.clock.monotonic_ms() - started_ms)
        self._record_sizes(paths.name, takes, result)
        if result.committed_key:
            self._watch.record_commit(paths.name, file_count=result.file_count)
        if result.bad_row_count:
            get_logger().warning(
                "rows_quarantined",
                row_count=result.bad_row_count,
                mitigation="the other rows of their batches are live",
            )
        for refusal in result.rejected:
            get_logger().warning(
                "batch_quarantined",
                batch=refusal.batch.batch_id,
                reason=refusal.reason,
                mitigation="the other batches of the flush are committed",
            )
        return result

    def _record_sizes(self, table: str, takes: Takes, result: FlushResult) -> None:
        self._sizes.record(table, takes, result)
        if takes == "small":
            self._limits.record(table, result)
            self._metrics.large.labels("left").inc(len(result.left_out))
            return
        outcome = "flushed" if self._serves_large else "flushed_here"
        self._metrics.large.labels(outcome).inc(result.batch_count + len(result.rejected))

    def _wait_for_turn(self, paths: TablePaths) -> _PutOff | None:
        """Wait until the table's next commit is due, so that many batches become one log file.

        Returns:
            Why the batches are left to a later run; ``None`` when it is their turn.
        """
        if self._watch.is_log_full(paths.name):
            self._watch.look(paths)
        if self._watch.is_log_full(paths.name):
            return _PutOff(
                "log_full",
                f"the log has {self._watch.count_log_files(paths.name)} files and takes no more than {MAX_LOG_FILES}: "
                "merges and vacuum have to bring it down first",
            )
        due_in_ms = self._pacer.due_in_ms(paths.name)
        if due_in_ms > MAX_SLEEP_MS:
            reason = self._watch.pressure_of(paths.name).reason
            text = f"the next commit is due in {due_in_ms} ms"
            return _PutOff("interval", f"{text}: {reason}" if reason else text)
        if due_in_ms:
            self._context.clock.sleep_ms(due_in_ms)
        return None

    def _wake_merge(self, table: str, commits: int) -> None:
        waiting = self._commits_since_wake.get(table, 0) + commits
        is_pressed = self._watch.pressure_of(table).level != "none"
        wanted = 1 if is_pressed else self._settings.merge_wake_commits
        if waiting >= wanted and self._context.wakeups.try_wake(MERGE_MERGE, table):
            waiting = 0
        self._commits_since_wake[table] = waiting


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: IngestSettings, metrics: IngestMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = IngestTasks(context, settings=settings, metrics=metrics)
    define_task(app, context, TaskOptions(INGEST_FLUSH), tasks.flush)
    define_task(app, context, TaskOptions(INGEST_SWEEP, needs_engine=False), tasks.sweep)
    define_task(app, context, TaskOptions(INGEST_FEED), tasks.feeds.feed)
    imports = ImportTasks(context, settings=settings, metrics=metrics, wake_views=tasks.feeds.wake_views)
    define_task(app, context, TaskOptions(INGEST_IMPORT, needs=needs(Verb.APPEND)), imports.import_files)
    define_task(app, context, TaskOptions(INGEST_CHECK_QUERY, needs=needs_of_check), QueryTasks(context).check_query)


def register_large_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: IngestSettings, metrics: IngestMetrics
) -> None:
    """Define the tasks of the queue ``ingest-large`` on its application."""
    tasks = IngestTasks(context, settings=settings, metrics=metrics, serves_large=True)
    define_task(app, context, TaskOptions(INGEST_LARGE_FLUSH), tasks.flush_large)
