"""Stops Spark jobs whose run should stop: lock or fence is lost, or they take too long; and tasks that do not heed it.

What runs inside a watch is a job group. A thread beside it looks once a second, and cancels the group: again and again
until the watch ends, because one watch may start several Spark jobs, one after the other.

Some loops of Spark's engine never look whether they are interrupted, and would hold a core for ever. On a cluster,
Spark's task reaper ends their executor (the options below). On one machine tasks and driver share the JVM, which Spark
does not end: so this module does, and the worker's next task finds the engine dead and replaces it.

It also ends a JVM that has no executor left: the master of a cluster that was restarted without what it knew lets all
executors be killed, and never gives this application another one. Its driver waits, and hears of nothing; a fresh
application is served.

And it ends a JVM that answers nothing: a call of PySpark waits for an answer without any limit, and a JVM that hangs
(stopped, out of memory, a disk that is gone) would hold the worker until Celery's own limit, an hour. A job may take
long, but the JVM answers beside it.
"""

import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

import structlog
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.phases import current_follower
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

_log = structlog.get_logger(__name__)

STUCK_WAIT_MS: Final = 10_000
"""How long interrupted tasks may take to end. Those that only wait for Python are gone within about two seconds."""
_POLL_MS: Final = 100
_REPLACED: Final = "the JVM is ended, this process is replaced"

REAPER_OPTIONS: Final = {"spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "60s"}
"""What makes a cluster replace an executor in which an interrupted task runs on."""
ELSEWHERE_OPTIONS: Final = {
    "spark.excludeOnFailure.taskAndStage.enabled": "true",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "1",
    "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": "10s",
}
"""What makes a cluster try a task that died on another machine: one whose disk is full would take it again and again.
Where there is no other one, the job fails, and is run again by who asked for it."""


def end_if_stuck(context: SparkContext, group: str, *, clock: Clock, wait_ms: int = STUCK_WAIT_MS) -> bool:
    """Wait for the tasks of a job group that was cancelled to end, and end the JVM if they do not.

    Returns whether it was ended. Does nothing on a cluster.
    """
    if not str(context.master).startswith("local"):
        return False
    deadline_ms = clock.monotonic_ms() + wait_ms
    try:
        while (stuck_count := count_tasks(context, group).running) and clock.monotonic_ms() < deadline_ms:
            clock.sleep_ms(_POLL_MS)
    except (PySparkException, Py4JError, OSError):
        return False  # gone already
    if not stuck_count:
        return False
    _log.error("spark tasks stuck", tasks=stuck_count, wait_ms=wait_ms, mitigation=_REPLACED)
    return _end_jvm()


def _end_jvm() -> bool:
    process = _find_jvm()
    if process is None:
        return False
    with suppress(OSError):
        process.kill()
    process.wait()
    return True


def count_executors(context: Any) -> int:
    """Return how many executors this application has now; those that are lost count until Spark notices."""
    known: int = context._jsc.sc().getExecutorMemoryStatus().size()  # noqa: SLF001 - PySpark has no word for it
    return known - 1  # the driver is one of them


class TaskCounts(NamedTuple):
    """Tasks of a job group: how many it has in the stages that Spark knows of, how many ended well, and run now."""

    total: int
    done: int
    running: int


def count_tasks(context: SparkContext, group: str) -> TaskCounts:
    """Return the counts of a job group's tasks.

    Spark's status tracker goes by events, which come soon after: as often as there are any, for the session says so
    (``spark.ui.liveUpdate.period``; by default what a task did right after another one shows seconds later).
    """
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return TaskCounts(
        total=sum(stage.numTasks for stage in known),
        done=sum(stage.numCompletedTasks for stage in known),
        running=sum(stage.numActiveTasks for stage in known),
    )


CHECK_INTERVAL_S: Final = 1.0
DEFAULT_JOB_LIMIT_MS: Final = 50 * 60 * 1000

NO_EXECUTOR_LIMIT_MS: Final = 120_000
"""How long a job on a cluster may wait without any executor: as long as the first one of a session may."""

InterruptReason = Literal["time_limit", "stopped", "no_executors"]
"""``time_limit``: the job took too long; ``stopped``: its run should stop (a lost lock, a lost fence);
``no_executors``: a cluster gave none."""

_GROUP_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
"""What ``setJobGroup`` sets for this thread; PySpark has no word that takes it back."""
_numbers: Final = itertools.count(1)


def ignore_interrupt(_reason: InterruptReason) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class WatchRules:
    """How jobs are watched.

    Attributes:
        job_limit_ms: How long one job may take; must be below the time limit of the task that waits for it.
        interval_s: Between two looks.
        on_interrupt: Told about each job that was interrupted, once, from the watching thread.
        stuck_wait_ms: How long its tasks may take to end before :mod:`icedb_engine.spark.spark_watch` acts.
        no_executor_limit_ms: How long it may wait on a cluster without any executor before the JVM is ended.
    """

    job_limit_ms: int = DEFAULT_JOB_LIMIT_MS
    interval_s: float = CHECK_INTERVAL_S
    on_interrupt: Callable[[InterruptReason], None] = ignore_interrupt
    stuck_wait_ms: int = STUCK_WAIT_MS
    no_executor_limit_ms: int = NO_EXECUTOR_LIMIT_MS


class JobWatch:
    """Watches what a ``with`` block does on a session, in this thread. Not reusable.

    At its end raises what the watch found, whatever the block raised: that is only its consequence.

    Args:
        spark: The session.
        what: The job, in words.
        rules: Limits.
        check_alive: Raises if the run should stop; called from another thread. Must not wait for long.
        is_users: A query that somebody asked for and waits for: at the limit its caller is to blame, who would
            otherwise see it run again for ever.
        doing: What who follows the work is told, beside how many tasks are done; empty: nothing.
        clock: Measures the time.

    Raises:
        IceDBError: On exit: what ``check_alive`` raised.
        InvalidRequest: On exit: the time limit, for a user's query.
        Unavailable: On exit: the time limit, or a cluster gave no executor; the JVM is ended then.
    """

    def __init__(
        self,
        spark: Any,
        what: str,
        *,
        rules: WatchRules,
        check_alive: Callable[[], None] | None = None,
        is_users: bool = False,
        doing: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._context: Any = spark.sparkContext
        self._what = what
        self._rules = rules
        self._check_alive = check_alive
        self._is_users = is_users
        self._doing = doing
        self._follower = current_follower()
        self._clock = clock or SystemClock()
        self._group = f"icedb-{os.getpid()}-{next(_numbers)}"
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._started_ms = 0
        self._served_ms = 0
        self._is_forsaken = False
        self._thread = threading.Thread(target=self._look_until_end, name=f"watch {self._group}", daemon=True)

    def __enter__(self) -> None:
        # A task that waits for something is woken when the group is cancelled.
        self._context.setJobGroup(self._group, self._what, interruptOnCancel=True)
        self._started_ms = self._clock.monotonic_ms()
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None and not isinstance(error, Exception):
            self._interrupt()  # this process is asked to end: its job must not outlive it on a cluster
        with suppress(PySparkException, Py4JError, OSError):  # a JVM that died has forgotten it
            for name in _GROUP_PROPERTIES:
                self._context.setLocalProperty(name, None)
        if self._failure is not None:
            if self._is_forsaken:
                _end_jvm()
            else:
                end_if_stuck(self._context, self._group, clock=self._clock, wait_ms=self._rules.stuck_wait_ms)
            raise self._failure from error

    def _look_until_end(self) -> None:
        while not self._ended.wait(self._rules.interval_s):
            if self._failure is None:
                self._look(self._clock.monotonic_ms() - self._started_ms)
            if self._failure is not None:
                self._interrupt()

    def _look(self, duration_ms: int) -> None:
        if duration_ms >= self._rules.job_limit_ms:
            self._fail("time_limit", self._explain_limit())
            return
        try:
            if self._check_alive is not None:
                self._check_alive()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run cannot vouch for itself any more
            self._fail("stopped", error)
            return
        if not str(self._context.master).startswith("local"):
            self._look_for_executors(duration_ms)
        self._tell()

    def _look_for_executors(self, duration_ms: int) -> None:
        with suppress(PySparkException, Py4JError, OSError):
            if count_executors(self._context):
                self._served_ms = duration_ms
        waited_ms = duration_ms - self._served_ms
        if waited_ms >= self._rules.no_executor_limit_ms:
            self._is_forsaken = True
            self._fail(
                "no_executors",
                Unavailable(
                    f"{self._what} has had no executor for {waited_ms} ms: look whether the cluster has free cores and "
                    f"memory, and whether its master has forgotten this application (docs/spark.md); {_REPLACED}"
                ),
            )

    def _tell(self) -> None:
        if not self._doing or self._follower is None:
            return
        with suppress(PySparkException, Py4JError, OSError):
            counts = count_tasks(self._context, self._group)
            if counts.total:
                self._follower(self._doing, counts.done, counts.total)

    def _fail(self, reason: InterruptReason, failure: Exception) -> None:
        self._failure = failure
        self._rules.on_interrupt(reason)
        _log.warning(
            "spark job interrupted",
            job=self._what,
            reason=reason,
            error=str(failure),
            mitigation="nothing of it is committed; what it wrote are orphans",
        )

    def _explain_limit(self) -> IceDBError:
        limit = f"{self._what} was stopped after {self._rules.job_limit_ms} ms (ICEDB_SPARK_JOB_LIMIT_MS)"
        if self._is_users:
            return InvalidRequest(f"{limit}: make the query cheaper or let it see fewer rows, or raise the limit")
        return Unavailable(
            f"{limit}: look at the table's queries and the size of its jobs, give Spark more cores, or raise the limit"
        )

    def _interrupt(self) -> None:
        with suppress(PySparkException, Py4JError, OSError):  # gone, and the job with it; or tried again
            self._context.cancelJobGroup(self._group)


LOOK_EVERY_S: Final = 15.0
ANSWER_LIMIT_S: Final = 60.0
"""How long one round trip may take before the JVM is ended: far more than any pause of its garbage collector."""


def answers_within(ask: Callable[[], bool], limit_s: float) -> bool:
    """Whether ``ask`` says yes in time. One that hangs is left to itself, in a thread that holds up no end."""
    said: list[bool] = []
    asking = threading.Thread(target=lambda: said.append(ask()), name="ask the JVM", daemon=True)
    asking.start()
    asking.join(limit_s)
    return said == [True]


class HangWatch:
    """Looks every few seconds whether this process's JVM answers, until it is closed or the JVM is gone.

    Args:
        ask: Makes one round trip, and says whether it was answered; returns soon if the JVM is dead.
        every_s: Between two looks.
        limit_s: How long a round trip may take.
    """

    def __init__(
        self, ask: Callable[[], bool], *, every_s: float = LOOK_EVERY_S, limit_s: float = ANSWER_LIMIT_S
    ) -> None:
        self._ask = ask
        self._every_s = every_s
        self._limit_s = limit_s
        self._closing = threading.Event()
        self._process = _find_jvm()
        if self._process is not None:
            threading.Thread(target=self._look, name="watch the JVM", daemon=True).start()

    def has_ended(self) -> bool:
        """Whether the JVM's process is gone; waits for nothing."""
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        """Look no more. The JVM may be gone by now."""
        self._closing.set()

    def _look(self) -> None:
        while not self._closing.wait(self._every_s) and self._process.poll() is None:
            if answers_within(self._answered, self._limit_s) or self._closing.is_set():
                continue
            _log.error(
                "jvm hangs",
                limit_s=self._limit_s,
                mitigation="the JVM is ended; its job fails and is done again, this process is replaced",
            )
            with suppress(OSError):
                self._process.kill()
            return

    def _answered(self) -> bool:
        self._ask()
        return True  # be it that it is dead: that is seen elsewhere, and nothing has to be ended


def _find_jvm() -> Any:
    """Return the process of this one's JVM; ``None``: it has none."""
    return getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no public word for it
