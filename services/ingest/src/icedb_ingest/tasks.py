"""The tasks of the ingest service: which table is flushed when, and the check of queries for the command line.

How a table is flushed, is :mod:`icedb_log.ingest.flush`'s business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache
from celery import Celery
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.feed.views import read_source_schema
from icedb_log.ingest.flush import FlushLimits, FlushResult, FlushRun, flush_table
from icedb_log.jobs import SizeClass
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
from icedb_log.operations import parse_config
from icedb_log.results import Work
from icedb_log.store.table_store import TableStore
from icedb_log.units import MIB, MINUTE_MS, SECOND_MS
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import Need, needs
from icedb_service.logs import get_logger
from icedb_service.tasks import define_task
from icedb_service.tracing import current_run
from icedb_service.worker import WorkerContext, sweep_tables

from icedb_ingest.feeds import MAX_ROUNDS, FeedTasks
from icedb_ingest.flush_choice import FlushChoice, Takes
from icedb_ingest.imports import ImportTasks
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.pressure_watch import MAX_TABLES, PressureWatch
from icedb_ingest.settings import IngestSettings

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine

LARGE_ROWS: Final = 1_000_000
"""A batch of more rows is large, however small its text is."""
MAX_STAGED_REST_MS: Final = 5 * MINUTE_MS
"""How long a batch waits at most at a table that has rested for long, if its wake-up was lost or never sent."""
MAX_PRESSURE_AGE_MS: Final = 30 * SECOND_MS
"""How old a measure may be when a flush begins: other workers commit and merge, too."""


@dataclass(slots=True)
class _Run:
    """What one run of a task did.

    Attributes:
        results: Of its commits, and of flushes that found nothing to commit.
        put_off: Why it leaves batches staged, in words.
        has_more: Whether it leaves any.
    """

    results: list[FlushResult] = field(default_factory=list)
    put_off: str | None = None
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
        context: "WorkerContext[JobEngine]",
        *,
        settings: IngestSettings,
        metrics: IngestMetrics,
        serves_large: bool = False,
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._serves_large = serves_large
        self._choice = FlushChoice(
            FlushLimits(max_batches=settings.flush_max_batches),
            small=SizeClass("small", settings.flush_large_mb * MIB, LARGE_ROWS),
            clock=context.clock,
        )
        self._watch = PressureWatch(context, settings=settings)
        self._rests = context.make_rests(INGEST_FLUSH, max_rest_ms=MAX_STAGED_REST_MS)
        self._commits_since_wake: LRUCache[str, int] = LRUCache(MAX_TABLES)
        self.feeds: Final = FeedTasks(
            context, settings=settings, metrics=metrics, watch=self._watch, wake_merge=self._wake_merge
        )

    def flush(self, table: str) -> Work:
        """Commit what is staged for a table, many batches in one log file, and measure its back-pressure.

        Large batches are left to the queue ``ingest-large`` and its worker is woken. If nobody serves it, they are
        committed here, one alone, when the others are (I6).

        Delivery: woken by producers and by the sweep, any number of times. A run that is lost leaves the batches
        staged for the next one; two at once exclude each other by the lock, and if that fails by the fence. A run
        that comes before the table's next commit is due leaves the batches to the sweep.
        """
        self._rests.note(table, None)  # a run that fails, or is put off, is made good by the next sweep
        place = self._context.warehouse.table(table)
        run = _Run()
        if not self._watch.is_turn(table):  # told by each batch, before anything is asked of the store
            if not self._watch.is_calm(table):
                self._watch.look(place.paths)
            run.put_off, run.has_more = self._put_off(place.paths), True
            return self._end_run(place, run, task=INGEST_FLUSH)
        is_staged = self._choice.is_streaming(table) or self._choice.has_work(place, "small")
        self._watch.look(place.paths, max_age_ms=MAX_PRESSURE_AGE_MS if is_staged else None)
        if is_staged:
            self._flush_rounds(place.paths, run, "small", max_rounds=MAX_ROUNDS)
        has_large = self._choice.has_large(table)
        if has_large and run.put_off is None and not self._wake_large(table):
            self._flush_rounds(place.paths, run, "large", max_rounds=1)
        if not is_staged and not has_large:
            self._watch.end_trouble(place.paths)  # what halted its flushes was taken out of staging
        return self._end_run(place, run, task=INGEST_FLUSH)

    def flush_large(self, table: str) -> Work:
        """Commit the large batches that are staged for a table, one alone in each log file (I6).

        Delivery: woken by a flush that found one, and by the sweep. A run that is lost leaves the batches staged. It
        holds the lock of the table, so that the table's other batches wait; those of other tables do not.
        """
        place = self._context.warehouse.table(table)
        run = _Run()
        if self._choice.has_work(place, "large"):
            self._watch.look(place.paths, max_age_ms=MAX_PRESSURE_AGE_MS)
            self._flush_rounds(place.paths, run, "large", max_rounds=1)
            self._context.wakeups.try_wake(INGEST_FLUSH, table)  # what had to wait for the lock
        return self._end_run(place, run, task=INGEST_LARGE_FLUSH)

    def sweep(self) -> Work:
        """Find tables with staged batches whose turn it is, tables under pressure, and views with commits to take.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        return sweep_tables(self._context, task=INGEST_FLUSH, is_needed=self._needs_flush)

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
        parsed = parse_config(table, config)
        from icedb_engine.sql.checks import check_queries  # noqa: PLC0415 - the parent needs none of it

        def read_source(name: str) -> Mapping[str, str]:
            return read_source_schema(Table.open(self._context.warehouse.table(name), clock=self._context.clock))

        found = check_queries(parsed, schema or {}, read_source=read_source)
        return Work(is_idle=False, details={"schema": dict(found)})

    def _flush_rounds(self, paths: TablePaths, run: _Run, takes: Takes, *, max_rounds: int) -> None:
        has_more = True
        for _ in range(max_rounds):
            run.put_off = self._put_off(paths)
            if run.put_off is not None:
                break
            try:
                result = self._flush_once(paths, takes)
            except Exception as error:
                self._choice.forget_stream(paths.name)
                self._watch.tell_trouble(paths, error)
                raise
            if result.committed_key:
                self._watch.end_trouble(paths)
            run.results.append(result)
            has_more = result.has_more
            self._watch.look(paths)
            if not has_more:
                break
        run.has_more |= has_more

    def _put_off(self, paths: TablePaths) -> str | None:
        """Wait until the table's next commit is due, so that many batches become one log file.

        Returns:
            Why the batches are left to a later run; ``None`` when it is their turn.
        """
        table = paths.name
        if self._watch.is_log_full(table):
            self._watch.look(paths)
        if self._watch.is_log_full(table):
            self._metrics.put_off.labels("log_full").inc()
            return (
                f"the log has {self._watch.count_log_files(table)} files and takes no more than {MAX_LOG_FILES}: "
                "merges and vacuum have to bring it down first"
            )
        due_in_ms = self._watch.wait_for_turn(table)
        if not due_in_ms:
            return None
        self._metrics.put_off.labels("interval").inc()
        reason = self._watch.pressure_of(table).reason
        return f"the next commit is due in {due_in_ms} ms" + (f": {reason}" if reason else "")

    def _flush_once(self, paths: TablePaths, takes: Takes) -> FlushResult:
        table, clock = paths.name, self._context.clock
        started_ms = clock.monotonic_ms()
        trace = current_run()
        begun = None if trace is None else trace.begin_flush()
        with self._context.open_locked(table) as opened:
            limits = self._choice.limits(table, takes)
            result = flush_table(opened, self._context.engine.writer, limits=limits, is_staged=True)
        if trace is not None and begun is not None and result.committed_ids:
            named = result.committed_ids[: trace.max_batches]
            figures = {"icedb.table": table, "icedb.commit": result.committed_key, "icedb.batches": result.batch_count}
            trace.note_flush(begun, named, figures)
        self._metrics.record(result, duration_ms=clock.monotonic_ms() - started_ms)
        self._choice.record(table, takes, result)
        if takes == "small":
            self._metrics.large.labels("left").inc(len(result.left_out))
        else:
            outcome = "flushed" if self._serves_large else "flushed_here"
            self._metrics.large.labels(outcome).inc(result.batch_count + len(result.rejected))
        if result.committed_key:
            self._watch.record_commit(
                table,
                result.committed_key,
                begun_ms=started_ms,
                file_count=result.file_count,
                log_files=result.log_file_count,
            )
        if result.bad_row_count:
            get_logger().warning(
                "rows_quarantined",
                row_count=result.bad_row_count,
                mitigation="the other rows of their batches are live",
            )
        if result.crashes:
            get_logger().error(
                "flush_jobs_crashed",
                crashes=len(result.crashes),
                first=result.crashes[0],
                mitigation="fewer batches are tried, and one that crashes alone goes to quarantine",
            )
        for refusal in result.rejected:
            get_logger().warning(
                "batch_quarantined",
                batch=refusal.batch.batch_id,
                reason=refusal.reason,
                mitigation="the other batches of the flush are committed",
            )
        return result

    def _end_run(self, place: TableStore, run: _Run, *, task: str) -> Work:
        table, done = place.name, FlushRun(run.results)
        if run.has_more and run.put_off is None:
            self._context.wakeups.try_wake(task, table)
        self._wake_merge(table, done.commit_count)
        if done.commit_count:
            self.feeds.wake_views(place)
        pressure = self._watch.pressure_of(table).level
        return Work.of(done, rounds=len(run.results), has_more=run.has_more, put_off=run.put_off, pressure=pressure)

    def _needs_flush(self, paths: TablePaths) -> bool:
        self.feeds.sweep_table(paths)
        if not self._rests.is_due(paths.name):
            return False
        is_needed = self._has_work(paths)
        self._rests.note(paths.name, None if is_needed or self._choice.has_large(paths.name) else "nothing is staged")
        return is_needed

    def _has_work(self, paths: TablePaths) -> bool:
        table = paths.name
        if not self._watch.is_log_full(table) and self._watch.is_turn(table):
            if self._choice.is_streaming(table) or self._choice.has_work(self._context.warehouse.table(table), "small"):
                return True
            if self._choice.has_large(table) and not self._wake_large(table):
                return True
        return self._watch.needs_look(paths)

    def _wake_large(self, table: str) -> bool:
        """Wake the worker of large batches; return whether there is one."""
        if not self._context.wakeups.is_served(TASKS[INGEST_LARGE_FLUSH], now_ms=self._context.clock.now_ms()):
            return False
        self._context.wakeups.try_wake(INGEST_LARGE_FLUSH, table)
        return True

    def _wake_merge(self, table: str, commits: int) -> None:
        commits += self._commits_since_wake.pop(table, 0)
        is_pressed = self._watch.pressure_of(table).level != "none"
        wanted = 1 if is_pressed else self._settings.merge_wake_commits
        if commits and not (commits >= wanted and self._context.wakeups.try_wake(MERGE_MERGE, table)):
            self._commits_since_wake[table] = commits


def needs_of_check(arguments: Mapping[str, Any]) -> Sequence[Need]:
    """Return what a check asks for: its table's upkeep and, for a view, to see the columns of its source."""
    config = arguments.get("config")
    source = config.get("view_of") if isinstance(config, dict) else None
    wanted = [Need(Verb.MAINTAIN, str(arguments.get("table")))]
    return [*wanted, Need(Verb.READ, str(source))] if source else wanted


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: IngestSettings, metrics: IngestMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = IngestTasks(context, settings=settings, metrics=metrics)
    imports = ImportTasks(context, settings=settings, metrics=metrics, wake_views=tasks.feeds.wake_views)
    define = partial(define_task, app, context)
    define(INGEST_FLUSH, tasks.flush)
    define(INGEST_SWEEP, tasks.sweep, needs_engine=False)
    define(INGEST_FEED, tasks.feeds.feed)
    define(INGEST_IMPORT, imports.import_files, needs=needs(Verb.APPEND))
    define(INGEST_CHECK_QUERY, tasks.check_query, needs=needs_of_check)


def register_large_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: IngestSettings, metrics: IngestMetrics
) -> None:
    """Define the tasks of the queue ``ingest-large`` on its application."""
    tasks = IngestTasks(context, settings=settings, metrics=metrics, serves_large=True)
    define_task(app, context, INGEST_LARGE_FLUSH, tasks.flush_large)
