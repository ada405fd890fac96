"""The task that carries erasures on, from the deletion of rows to the proof that no object holds them."""

from typing import Any, Final, Protocol

from celery import Celery
from icedb_log.erasure.erasure_record import Erasure
from icedb_log.erasure.erasure_run import ErasureProgress, advance_erasure
from icedb_log.erasure.erasures import list_open_ids, read_erasure
from icedb_log.errors import IceDBError, NotFound
from icedb_log.jobs import CheckAlive, RowChanger, never_stop
from icedb_log.keys import TablePaths
from icedb_log.names import INGEST_FLUSH, MERGE_ERASE
from icedb_log.store.table_store import TableStore
from icedb_log.table.row_changes import delete_rows
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs_if
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext, sweep_tables

from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings

MAX_NAMED: Final = 100
"""Erasures that a result names; the counts are always of all."""


class ErasingEngine(Engine, Protocol):
    """An engine that counts and removes rows."""

    @property
    def changer(self) -> RowChanger:
        """Runs merge jobs that change rows."""
        ...


class ErasureSchedule:
    """When open erasures are looked for again. In memory: a worker that starts looks at once.

    Args:
        context: Of the worker.
        interval_ms: How long nothing is looked at after a look at all tables.
    """

    def __init__(self, context: WorkerContext[Any], *, interval_ms: int) -> None:
        self._context = context
        self._interval_ms = interval_ms
        self._looked_ms: int | None = None

    def sweep(self) -> int:
        """Wake the task for each table with open erasures, if it is time; return how many were woken.

        Costs what it costs to list the tables, and a listing of at most one key for each of them.

        Raises:
            Unavailable: The store or Redis did not answer; the next sweep looks again.
        """
        now_ms = self._context.clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:
            return 0
        work = sweep_tables(self._context, task=MERGE_ERASE, is_needed=self._has_open)
        self._looked_ms = now_ms
        return int(work.details["woken"])

    def _has_open(self, paths: TablePaths) -> bool:
        return bool(self._context.warehouse.store.list_page(paths.open_erasures_prefix, limit=1).objects)


class ErasureTasks:
    """The work of the task, in the process that runs it.

    Args:
        context: Warehouse, engine, locks, wake-ups.
        metrics: Of the service.
    """

    def __init__(self, context: WorkerContext[ErasingEngine], *, metrics: MergeMetrics) -> None:
        self._context = context
        self._metrics = metrics
        self._readers = LogReaders(context.clock)

    def erase(self, table: str, preview: str | None = None) -> Work:
        """Carry all open erasures of a table on, as far as they go now; or say what one would remove.

        Delivery: woken by the CLI, by the janitor and by the sweep, any number of times. A run that is lost or cut
        short is gone on with by the next; two at once come to the same end, and the lock saves the work.

        Args:
            table: Its name.
            preview: A condition: nothing is erased, the result says what would be deleted. Outcome ``refused`` with the
                reason if it does not fit the table.
        """
        paths = self._context.warehouse.table(table).paths
        if preview is not None:
            return self._preview(paths, preview)
        problems: list[IceDBError] = []
        progress: list[ErasureProgress] = []
        for erasure_id in list_open_ids(TableStore(self._context.warehouse.store, paths)):
            try:
                progress.append(self._advance(paths, erasure_id))
            except IceDBError as error:
                problems.append(error)
                if not isinstance(error, LockBusy):
                    get_logger().warning(
                        "erasure_not_advanced", erasure_id=erasure_id, error=type(error).__name__, mitigation="next run"
                    )
        if any(each.waits_for == "flush" for each in progress):
            self._context.wakeups.try_wake(INGEST_FLUSH, table)
        if problems:
            raise problems[0]
        return Work(is_idle=not any(each.has_changed for each in progress), details=_details(progress))

    def _advance(self, paths: TablePaths, erasure_id: str) -> ErasureProgress:
        store = self._context.warehouse.store
        try:
            before = read_erasure(TableStore(store, paths), erasure_id)
        except NotFound:
            raise NotFound(f"table {paths.name}: erasure {erasure_id} is gone from its record") from None
        if before.state == "requested":
            # The rewrite competes with merges; what follows only looks.
            with self._context.lock(paths.name) as lock:
                progress = self._step(paths, erasure_id, check_alive=lock.check_alive)
        else:
            progress = self._step(paths, erasure_id, check_alive=never_stop)
        self._account(before, progress)
        return progress

    def _step(self, paths: TablePaths, erasure_id: str, *, check_alive: CheckAlive) -> ErasureProgress:
        store = self._context.warehouse.store
        return advance_erasure(
            self._readers.open(TableStore(store, paths), owner=self._context.owner, check_alive=check_alive),
            self._context.engine.changer,
            erasure_id,
        )

    def _account(self, before: Erasure, progress: ErasureProgress) -> None:
        erasure = progress.erasure
        if erasure.state == before.state:
            return
        # Never the condition, nor keys: they may hold what was to be erased.
        get_logger().info(
            "erasure_advanced",
            erasure_id=erasure.erasure_id,
            state=erasure.state,
            rows=erasure.row_count,
            objects=len(erasure.targets),
        )
        if erasure.is_closed:
            self._metrics.erasures.labels(erasure.state).inc()

    def _preview(self, paths: TablePaths, condition: str) -> Work:
        store = self._context.warehouse.store
        result = delete_rows(
            self._readers.open(TableStore(store, paths), owner=self._context.owner),
            self._context.engine.changer,
            condition,
            dry_run=True,
        )
        return Work(
            is_idle=not result.rows_removed,
            details={
                "rows": result.rows_removed,
                "files": result.file_count,
                "bytes": result.input_bytes,
                "files_counted": result.scanned_count,
                "partitions": len(result.partitions),
            },
        )


def _details(progress: list[ErasureProgress]) -> dict[str, Any]:
    return {
        "open": sum(not each.erasure.is_closed for each in progress),
        "closed": sum(each.erasure.is_closed for each in progress),
        "erasures": [
            {
                "id": each.erasure.erasure_id,
                "state": each.erasure.state,
                "waits_for": each.waits_for,
                "waiting": each.waiting_count,
            }
            for each in progress[:MAX_NAMED]
        ],
    }


def register_erasure_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define these tasks on the service's application."""
    del settings
    tasks = ErasureTasks(context, metrics=metrics)
    # Without arguments it carries on what stands in the store, as the sweep does.
    define_task(app, context, TaskOptions(MERGE_ERASE, needs=needs_if(Verb.ERASE, "preview")), tasks.erase)
