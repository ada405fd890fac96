"""The tasks of the janitor: which table is cleaned when. What may go, is ``vacuum``'s business."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from celery import Celery
from icedb_log.cleaning.orphans import sweep_orphans
from icedb_log.cleaning.vacuum import vacuum_table
from icedb_log.erasure.erasures import note_deletions
from icedb_log.errors import IceDBError
from icedb_log.ingest.idempotency import sweep_keys
from icedb_log.keys import TablePaths
from icedb_service.logs import get_logger
from icedb_service.names import JANITOR_PURGE, JANITOR_SWEEP, JANITOR_VACUUM, MERGE_ERASE
from icedb_service.readers import LogReaders
from icedb_service.runs import Work
from icedb_service.sweeps import sweep_tables
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import WorkerContext

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.purges import JanitorPurges
from icedb_janitor.settings import JanitorSettings


class JanitorTasks:
    """The work of the tasks, in the process that runs them.

    Args:
        context: Warehouse, locks, wake-ups.
        settings: Of the service.
        metrics: Of the service.
    """

    def __init__(self, context: WorkerContext[Any], *, settings: JanitorSettings, metrics: JanitorMetrics) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._readers = LogReaders(context.clock)
        self._orphans_swept_ms: dict[str, int] = {}
        self.purges = JanitorPurges(context, settings=settings, metrics=metrics)

    def vacuum(self, table: str) -> Work:
        """Delete a table's dead objects whose time has come; now and then, its orphans, too.

        Delivery: woken by the sweep and by the CLI, any number of times. A run that is lost or cut short is gone
        on with by the next; two at once delete the same objects, which is harmless, and the lock saves the work.
        """
        store = self._context.warehouse.store
        paths = self._context.warehouse.table(table)
        with self._context.lock(table):
            reader = self._readers.of_table(store, paths)
            read_view = partial(self._readers.of_table, store)
            result = vacuum_table(store, paths, clock=self._context.clock, reader=reader, read_view=read_view)
            self._metrics.record_vacuum(paths, result)
            details: dict[str, Any] = {
                "deleted_log_files": len(result.deleted_logs),
                "deleted_data_files": len(result.deleted_data),
                "failed": len(result.failed),
                "waiting": len(result.waiting),
                "stripped": result.stripped_count,
                "contended": result.contended_count,
            }
            if result.failed:
                first = result.failed[0]
                get_logger().warning(
                    "deletes_failed",
                    count=len(result.failed),
                    key=first.key,
                    reason=first.reason,
                    mitigation="next run",
                )
            self._note_deletions(paths, result.deleted_data)
            details |= self._sweep_orphans(paths)
        did = result.deleted_logs or result.deleted_data or result.stripped_count or details.get("deleted_orphans")
        return Work(is_idle=not did, details=details)

    def sweep(self) -> Work:
        """Wake the vacuum of every table, and the purge of dropped ones whose time has come.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        swept = sweep_tables(self._context, task=JANITOR_VACUUM)
        woken_purges = self.purges.wake_due()
        return Work(is_idle=swept.is_idle and not woken_purges, details={**swept.details, "woken_purges": woken_purges})

    def _sweep_orphans(self, paths: TablePaths) -> dict[str, int]:
        now_ms = self._context.clock.monotonic_ms()
        swept_ms = self._orphans_swept_ms.get(paths.name)
        if swept_ms is not None and now_ms - swept_ms < self._settings.orphan_sweep_interval_ms:
            return {}
        result = sweep_orphans(self._context.warehouse.store, paths, clock=self._context.clock)
        key_count, failed_keys = sweep_keys(self._context.warehouse.store, paths)
        self._orphans_swept_ms[paths.name] = now_ms
        self._note_deletions(paths, result.deleted)
        self._metrics.record_orphans(paths, result)
        self._metrics.record_keys(deleted_count=key_count, failed_count=len(failed_keys))
        if result.unknown:
            get_logger().warning(
                "unknown_objects_kept",
                count=len(result.unknown),
                key=result.unknown[0],
                mitigation="kept; look at them",
            )
        return {
            "deleted_orphans": len(result.deleted),
            "failed_orphans": len(result.failed),
            "young_orphans": result.young_count,
            "forgotten_keys": key_count,
        }

    def _note_deletions(self, paths: TablePaths, keys: Sequence[str]) -> None:
        """Tell open erasures what was deleted, and wake who carries them on. Never fails: who looks sees it, too."""
        try:
            noted_count = note_deletions(self._context.warehouse.store, paths, keys)
        except IceDBError as error:
            get_logger().warning(
                "deletions_not_noted", error=type(error).__name__, mitigation="open erasures look for themselves"
            )
            return
        if noted_count:
            self._context.wakeups.try_wake(MERGE_ERASE, paths.name)


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: JanitorSettings, metrics: JanitorMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = JanitorTasks(context, settings=settings, metrics=metrics)
    define_task(app, context, TaskOptions(JANITOR_VACUUM), tasks.vacuum)
    define_task(app, context, TaskOptions(JANITOR_PURGE), tasks.purges.purge)
    define_task(app, context, TaskOptions(JANITOR_SWEEP), tasks.sweep)
