"""A sweep: look at every table and wake the worker where something is to be done (I4).

What wakes them in between may be lost at any time; the sweep is what makes the to-do list in the store count. One
table that cannot be looked at does not keep the others waiting.
"""

from collections.abc import Callable, Collection
from typing import Any

from icedb_log.errors import HaltError, IceDBError
from icedb_log.keys import TablePaths

from icedb_service.logs import get_logger
from icedb_service.runs import Work, backoff_key
from icedb_service.worker import WorkerContext


def sweep_tables(
    context: WorkerContext[Any],
    *,
    task: str,
    is_needed: Callable[[TablePaths], bool] | None = None,
    also: Collection[str] = (),
) -> Work:
    """Wake ``task`` for each table that needs it and is not pausing after a failure.

    Args:
        context: Of the worker.
        task: What to wake.
        is_needed: Whether a table has work; without it, all tables are woken.
        also: Other tables whose gauges are kept: being purged, for the janitor.

    Raises:
        Unavailable: The store or Redis did not answer.
    """
    warehouse = context.warehouse
    counts = {"tables": 0, "woken": 0, "waiting": 0, "pausing": 0, "failed": 0}
    names = warehouse.list_tables()
    context.metrics.forget_tables({*names, *also})
    for name in names:
        counts["tables"] += 1
        if not context.runner.backoff.is_due(backoff_key(task, name)):
            counts["pausing"] += 1
            continue
        try:
            if is_needed is not None and not is_needed(warehouse.table(name)):
                continue
        except IceDBError as error:
            counts["failed"] += 1
            if isinstance(error, HaltError):
                context.metrics.halted.labels(name).set(1)
            context.runner.backoff.record_failure(backoff_key(task, name))
            get_logger().warning(
                "table_not_swept", swept_table=name, error=str(error), mitigation="the other tables go on"
            )
            continue
        counts["woken" if context.wakeups.wake(task, name) else "waiting"] += 1
    return Work(is_idle=counts["woken"] == 0, details=counts)
