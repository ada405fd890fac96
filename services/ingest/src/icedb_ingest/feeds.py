"""The tasks that feed views: which view is fed when. How, is :mod:`icedb_log.feed.feeds`' business.

A view is woken by each commit to its source that this service makes, flushes and imports alike, and found by the sweep:
what was committed stands in the source's log, and no wake-up is needed for it to be fed in the end.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cachetools import TTLCache
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, IceDBError, NotFound, crashes_told
from icedb_log.feed.feeds import FeedResult, FeedRun, feed_view
from icedb_log.feed.views import is_feed_needed, list_view_names, read_registration, source_of
from icedb_log.intervals import Intervals
from icedb_log.keys import TablePaths
from icedb_log.names import INGEST_FEED
from icedb_log.results import Work
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_service.logs import get_logger
from icedb_service.runs import backoff_key
from icedb_service.worker import WorkerContext

from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.pressure_watch import PressureWatch
from icedb_ingest.settings import IngestSettings

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine

MAX_ROUNDS: Final = 20
"""Commits of one table in a row before another table gets its turn."""

VIEW_NAMES_AGE_MS: Final = 30 * SECOND_MS
"""How long a process remembers which views a table has; a new one is found by the sweep before that."""

TABLE_KIND_AGE_MS: Final = 15 * MINUTE_MS
"""How long a process remembers that a table is no view: it can only become one by being removed by hand."""

MAX_VIEW_REST_MS: Final = 5 * MINUTE_MS
"""How long commits wait at most for a view that has rested for long, if its wake-up was lost."""

_MAX_TABLES: Final = 10_000


class FeedTasks:
    """The work of the task, in the process that runs it."""

    def __init__(
        self,
        context: "WorkerContext[JobEngine]",
        *,
        settings: IngestSettings,
        metrics: IngestMetrics,
        watch: PressureWatch,
        wake_merge: Callable[[str, int], None],
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._watch = watch
        self._wake_merge = wake_merge
        self._views: TTLCache[str, tuple[str, ...]] = TTLCache(
            _MAX_TABLES, VIEW_NAMES_AGE_MS, context.clock.monotonic_ms
        )
        self._no_views = Intervals(context.clock, TABLE_KIND_AGE_MS)
        self._rests = context.make_rests(INGEST_FEED, max_rest_ms=MAX_VIEW_REST_MS)

    def feed(self, table: str) -> Work:
        """Let a view take what was committed to its source, many commits in one, and then a step of its backfill.

        Delivery: woken after commits to the source and by the sweep, any number of times. A run that is lost leaves
        the commits to the next one; two at once exclude each other by the lock, and if that fails by the fence.

        Args:
            table: The view.
        """
        self._rests.note(table, None)  # a run that fails, or is put off, is made good by the next sweep
        place = self._context.warehouse.table(table)
        results: list[FeedResult] = []
        is_put_off = False
        while len(results) < MAX_ROUNDS:
            is_put_off = bool(self._watch.wait_for_turn(table))
            if is_put_off:
                break  # the sweep takes it up
            results.append(self._feed_once(place.paths))
            if results[-1].committed_key is None or not results[-1].waiting_count:
                break
        run = FeedRun(results)
        if run.commit_count:
            self._wake_merge(table, run.commit_count)
            self.wake_views(place)
            if results[-1].has_more and not is_put_off:
                self._context.wakeups.try_wake(INGEST_FEED, table)
        return Work.of(run, put_off=is_put_off)

    def wake_views(self, table: TableStore) -> None:
        """Wake the feeds of a table's views. Best effort: what is lost, the sweep finds."""
        names = self._views.get(table.name)
        if names is None:
            try:
                names = self._views[table.name] = list_view_names(table)
            except IceDBError as error:
                get_logger().warning("views_not_woken", error=str(error), mitigation="the sweep wakes them")
                return
        for name in names:
            self._context.wakeups.try_wake(INGEST_FEED, name)

    def sweep_table(self, paths: TablePaths) -> None:
        """Wake the feed of a table if it is a view with something to take. Raises nothing of ours."""
        key = backoff_key(INGEST_FEED, paths.name)
        backoff = self._context.runner.backoff
        if not (self._no_views.is_due(paths.name) and backoff.is_due(key) and self._watch.is_turn(paths.name)):
            return
        if not self._rests.is_due(paths.name):
            return
        try:
            with crashes_told(f"view {paths.name}: the look for {INGEST_FEED}"):
                is_needed = self._needs_feed(paths)
            self._rests.note(paths.name, None if is_needed else "nothing is to be taken")
            if is_needed:
                self._context.wakeups.wake(INGEST_FEED, paths.name)
        except IceDBError as error:
            if isinstance(error, HaltError):
                self._context.metrics.halted.labels(paths.name).set(1)
            backoff.record_failure(key)
            get_logger().warning(
                "view_not_swept", swept_table=paths.name, error=str(error), mitigation="looked at again after a pause"
            )

    def _needs_feed(self, paths: TablePaths) -> bool:
        try:
            view = self._context.open(paths.name)
        except NotFound:
            return False  # dropped since it was listed
        if view.config.view_of is None:
            self._no_views.note(paths.name)
            return False
        registration = read_registration(source_of(view, view.config), paths.name)
        if registration is not None and registration.state == "detached":
            return False  # its source may be dropped
        return is_feed_needed(view, self._source_of(view))

    def _source_of(self, view: Table) -> Table:
        return self._context.open(source_of(view, view.config).name)

    def _feed_once(self, paths: TablePaths) -> FeedResult:
        started_ms = self._context.clock.monotonic_ms()
        with self._context.open_locked(paths.name) as view:
            result = feed_view(view, self._source_of(view), self._context.engine.feeder)
        self._metrics.record_feed(result, duration_ms=self._context.clock.monotonic_ms() - started_ms)
        if result.committed_key:
            self._watch.record_commit(
                paths.name, result.committed_key, begun_ms=started_ms, file_count=result.file_count
            )
        self._watch.look(paths)
        for refusal in result.refused:
            get_logger().warning(
                "commit_refused_by_view",
                commit=refusal.commit.name,
                reason=refusal.reason,
                mitigation="its rows stay in the source, and out of the view; the other commits are fed",
            )
        return result
