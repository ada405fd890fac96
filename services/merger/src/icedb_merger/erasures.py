"""The task that carries erasures on, from the deletion of rows to the proof that no object holds them."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from icedb_log.erasure.erasure_run import ErasureProgress, advance_erasure, describe_preview, describe_progress
from icedb_log.erasure.erasures import Erasure, list_open_ids, read_erasure
from icedb_log.errors import IceDBError, NotFound
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.table_store import TableStore
from icedb_log.table.row_changes import delete_rows
from icedb_service.logs import get_logger
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.worker import WorkerContext

from icedb_merger.metrics import MergeMetrics

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine


class ErasureTasks:
    """The work of the task, in the process that runs it."""

    def __init__(self, context: "WorkerContext[JobEngine]", *, metrics: MergeMetrics) -> None:
        self._context = context
        self._metrics = metrics

    def erase(self, table: str, preview: str | None = None) -> Work:
        """Carry all open erasures of a table on, as far as they go now; or say what one would remove.

        Delivery: woken by the CLI, by the janitor and by the sweep, any number of times. A run that is lost or cut
        short is gone on with by the next; two at once come to the same end, and the lock saves the work.

        Args:
            table: Its name.
            preview: A condition: nothing is erased, the result says what would be deleted. Outcome ``refused`` with the
                reason if it does not fit the table.
        """
        if preview is not None:
            return self._preview(table, preview)
        place = self._context.warehouse.table(table)
        problems: list[IceDBError] = []
        progress: list[ErasureProgress] = []
        for erasure_id in list_open_ids(place):
            try:
                progress.append(self._advance(place, erasure_id))
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
        return Work(is_idle=not any(each.has_changed for each in progress), details=describe_progress(progress))

    def _advance(self, place: TableStore, erasure_id: str) -> ErasureProgress:
        try:
            before = read_erasure(place, erasure_id)
        except NotFound:
            raise NotFound(f"table {place.name}: erasure {erasure_id} is gone from its record") from None
        context = self._context
        # The rewrite competes with merges; what follows only looks.
        is_rewrite = before.state == "requested"
        with context.open_locked(place.name) if is_rewrite else nullcontext(context.open(place.name)) as opened:
            progress = advance_erasure(opened, context.engine.changer, erasure_id)
        self._account(before, progress.erasure)
        return progress

    def _account(self, before: Erasure, erasure: Erasure) -> None:
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

    def _preview(self, table: str, condition: str) -> Work:
        result = delete_rows(self._context.open(table), self._context.engine.changer, condition, dry_run=True)
        return Work(
            is_idle=not result.rows_removed,
            details=describe_preview(result),
        )
