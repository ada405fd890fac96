"""Tasks that do not heed an interrupt: some loops of Spark's engine never look, and would hold a core for ever.

On a cluster, Spark's task reaper ends their executor (the options below). On one machine tasks and driver share the
JVM, which Spark does not end: so this module does, and the worker's next task finds the engine dead and replaces it.
"""

import contextlib
from typing import Any, Final

import structlog
from icedb_log.clock import Clock
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

STUCK_WAIT_MS: Final = 10_000
"""How long interrupted tasks may take to end. Those that only wait for Python are gone within about two seconds."""
_POLL_MS: Final = 100

REAPER_OPTIONS: Final = {"spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "60s"}
"""What makes a cluster replace an executor in which an interrupted task runs on."""

_log = structlog.get_logger(__name__)


def end_if_stuck(spark: Any, *, clock: Clock, wait_ms: int = STUCK_WAIT_MS) -> bool:
    """Wait for interrupted tasks to end, and end the JVM if they do not; return whether it was ended.

    Does nothing on a cluster and on Spark Connect.
    """
    context = getattr(spark, "_sc", None)
    if context is None or not str(context.master).startswith("local"):
        return False
    deadline_ms = clock.monotonic_ms() + wait_ms
    try:
        while (stuck_count := count_stuck(context)) and clock.monotonic_ms() < deadline_ms:
            clock.sleep_ms(_POLL_MS)
    except (PySparkException, Py4JError, OSError):
        return False  # gone already
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no public word for its JVM
    if not stuck_count or process is None:
        return False
    _log.error(
        "spark tasks stuck",
        tasks=stuck_count,
        wait_ms=wait_ms,
        mitigation="the JVM is ended, this process is replaced with the next task",
    )
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    return True


def count_stuck(context: Any) -> int:
    """Return how many tasks run of stages that are over: interrupted, and still at it.

    Asks the scheduler, which forgets a task when it has ended. Not Spark's status tracker: what it says is written at
    most every 100 ms (``spark.ui.liveUpdate.period``), so that of a task which began right after something else it
    tells nothing for seconds.
    """
    managers = context._jsc.sc().taskScheduler().taskIdToTaskSetManager().elements()  # noqa: SLF001 - no public word
    count = 0
    while managers.hasMoreElements():
        count += bool(managers.nextElement().isZombie())
    return count
