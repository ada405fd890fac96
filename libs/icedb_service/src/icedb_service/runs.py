"""One run of a task: what an error means, what is counted, and what the caller gets to see.

The only place that maps :mod:`icedb_log.errors` to outcomes. Knows nothing of Celery, so that it is tested without.
A run never raises: its result is a plain JSON object, which the CLI prints.

| outcome | what happened | who goes on |
| --- | --- | --- |
| `done`, `idle` | work was done; there was none | |
| `busy` | another worker holds the lock | that worker |
| `lock_lost`, `fenced` | another worker took over; the job is dropped | that worker |
| `conflict` | another process changed the table each time, after a few tries at once | the next sweep |
| `outcome_unknown` | a write may or may not have landed | the next run settles it first (F1) |
| `unavailable` | Redis, the store or Spark did not answer | the next sweep, after a pause |
| `halted` | the table needs a person; the gauge is 1 until a run ends well | a person; sweeps look again, rarely |
| `not_found`, `refused` | the request is wrong, or its sender may not do this | the caller |
| `failed` | a bug: logged with its traceback, or where it was | a developer; sweeps try again, rarely |

After a failure a sweep waits, longer each time (:class:`Backoff`); what a user or producer asks for is done at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from icedb_log.clock import Clock
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    HaltError,
    IceDBError,
    InvalidRequest,
    JobCrashed,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from icedb_log.intervals import Backoff
from icedb_log.results import Work
from icedb_log.units import SECOND_MS
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from icedb_service.logs import get_logger
from icedb_service.metrics import Outcome, WorkerMetrics
from icedb_service.redis_clients import LockBusy, LockLost
from icedb_service.tracing import tracing

_BY_ERROR: Final[tuple[tuple[type[IceDBError], Outcome], ...]] = (
    # From the special to the general: the first that fits counts.
    (LockBusy, "busy"),
    (LockLost, "lock_lost"),
    (Fenced, "fenced"),
    (CommitConflict, "conflict"),
    (CommitOutcomeUnknown, "outcome_unknown"),
    (JobCrashed, "failed"),
    (Unavailable, "unavailable"),
    (HaltError, "halted"),
    (NotFound, "not_found"),
    (InvalidRequest, "refused"),
    (Unauthenticated, "refused"),
    (PermissionDenied, "refused"),
)
_PAUSING: Final[frozenset[Outcome]] = frozenset({"conflict", "outcome_unknown", "unavailable", "halted", "failed"})
_TOLD: Final = (
    "batches",
    "rows",
    "files",
    "written_bytes",
    "commits",
    "put_off",
    "deleted_data_files",
    "deleted_log_files",
)
"""Figures of a run's result that its span has, too."""
CONFLICT_ATTEMPTS: Final = 4
CONFLICT_PAUSE_MS: Final = 100


class TaskRunner:
    """Runs work and accounts for it."""

    def __init__(self, *, metrics: WorkerMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.backoff = Backoff(clock)
        self._running: dict[str, tuple[int, str]] = {}

    def run(
        self, work: Callable[[], Work], *, task: str, task_id: str, table: str | None, traceparent: object = None
    ) -> dict[str, Any]:
        """Do the work and return its result; never raises.

        A commit that was certainly refused is planned again a few times at once; everything else is left to the
        sweeps. The result has ``task``, ``task_id``, ``table``, ``outcome``, ``duration_ms``, for an error
        ``error`` with ``kind`` and ``message``, and the work's own details. ``traceparent`` is that of who asked.
        """
        traces = tracing()
        if traces is None or table is None:  # sweeps only look
            return self._run(work, task=task, task_id=task_id, table=table)
        with traces.run(task, clock=self._clock, woken_by=traceparent) as run:
            result = self._run(work, task=task, task_id=task_id, table=table)
            told = {name: result[name] for name in _TOLD if isinstance(result.get(name), int | str)}
            run.tell(result["outcome"], table=table, task_id=task_id, **told)
        return result

    def _run(self, work: Callable[[], Work], *, task: str, task_id: str, table: str | None) -> dict[str, Any]:
        started_ms = self._clock.monotonic_ms()
        with structlog.contextvars.bound_contextvars(task=task, task_id=task_id, table=table):
            self._running[task_id] = (started_ms, f"{task} of table {table}" if table else task)
            try:
                outcome, details = self._attempt(work)
            finally:
                self._running.pop(task_id, None)
            duration_ms = self._clock.monotonic_ms() - started_ms
            self._account(outcome, task=task, table=table, duration_ms=duration_ms)
            self._log(outcome, details, duration_ms=duration_ms, is_sweep=table is None)
        return {
            "task": task,
            "task_id": task_id,
            "table": table,
            "outcome": outcome,
            "duration_ms": duration_ms,
            **details,
        }

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return bool(self._running)

    def check_progress(self, limit_ms: int) -> None:
        """Raise Unavailable if a run takes longer than ``limit_ms``: it hangs, and its thread is lost."""
        now_ms = self._clock.monotonic_ms()
        # A copy, made at once: other threads begin and end runs meanwhile.
        for started_ms, what in tuple(self._running.values()):
            if now_ms - started_ms > limit_ms:
                raise Unavailable(
                    f"{what} has run for {now_ms - started_ms} ms, longer than {limit_ms}: it hangs, restart it"
                )

    def _attempt(self, work: Callable[[], Work]) -> tuple[Outcome, Mapping[str, Any]]:
        attempts = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, IceDBError) and outcome_of(error) == "conflict"),
            stop=stop_after_attempt(CONFLICT_ATTEMPTS),
            wait=wait_exponential(CONFLICT_PAUSE_MS / SECOND_MS),
            sleep=lambda pause_s: self._clock.sleep_ms(round(pause_s * SECOND_MS)),
            reraise=True,
        )
        try:
            done = attempts(work)
        except Exception as error:  # noqa: BLE001 - the last stop before the queue: counted, logged, reported
            outcome = outcome_of(error) if isinstance(error, IceDBError) else "failed"
            if not isinstance(error, IceDBError):
                get_logger().exception("task_crashed")
            return outcome, {"error": {"kind": type(error).__name__, "message": str(error)}}
        return ("idle" if done.is_idle else "done"), done.details

    def _account(self, outcome: Outcome, *, task: str, table: str | None, duration_ms: int) -> None:
        self._metrics.runs.labels(task, outcome).inc()
        self._metrics.run_duration.labels(task).observe(duration_ms / 1000)
        key = backoff_key(task, table)
        if outcome in _PAUSING:
            self.backoff.record_failure(key)
        if outcome in ("done", "idle"):
            self.backoff.record_success(key)
        if table is None:
            return
        if outcome == "halted":
            self._metrics.halted.labels(table).set(1)
        elif outcome in ("done", "idle"):
            self._metrics.halted.labels(table).set(0)

    def _log(self, outcome: Outcome, details: Mapping[str, Any], *, duration_ms: int, is_sweep: bool) -> None:
        logger = get_logger()
        if outcome in {"idle", "busy"} or (outcome == "done" and is_sweep):
            logger.debug("task_ended", outcome=outcome, duration_ms=duration_ms, **details)
        elif outcome == "done":
            logger.info("task_ended", outcome=outcome, duration_ms=duration_ms, **details)
        elif outcome == "halted":
            logger.error("table_halted", outcome=outcome, duration_ms=duration_ms, **details)
        else:
            logger.warning("task_stopped", outcome=outcome, duration_ms=duration_ms, **details)


def outcome_of(error: IceDBError) -> Outcome:
    """Return what an error makes of a run. An error of no known kind is a bug: ``failed``."""
    for kind, outcome in _BY_ERROR:
        if isinstance(error, kind):
            return outcome
    return "failed"


def backoff_key(task: str, table: str | None) -> str:
    """Return the key under which failures of a task on a table are remembered."""
    return f"{task}:{table or ''}"
