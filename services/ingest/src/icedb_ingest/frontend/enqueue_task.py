"""The Celery task ``icedb.ingest.enqueue``: stages the batch that its message carries.

Delivery, unlike that of all other tasks: at least once. The message is the only copy of the batch until it is staged,
so it is acknowledged late, and goes back to the queue when its worker dies. That is harmless, because the batch id is
bound to the batch (:mod:`icedb_log.ingest.idempotency`): delivered twice, it counts once, also hours later. When the
store does not answer or the table is under back-pressure, the message waits and is tried again, for ever; it ends as
failed only if it is wrong.
"""

import threading
from typing import Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Reject
from icedb_log.clock import Clock
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, Overloaded, TableHalted, Unavailable
from icedb_log.names import INGEST_ENQUEUE
from icedb_log.units import SECOND_MS
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import Need, TaskAccess
from icedb_service.logs import get_logger

from icedb_ingest.frontend.desk import Accepted, Desk
from icedb_ingest.frontend.enqueue_message import EnqueueMessage, read_message
from icedb_ingest.frontend.metrics import FrontendMetrics

FIRST_PAUSE_MS: Final = 500
MAX_PAUSE_MS: Final = 5_000
PATIENCE_MS: Final = 20_000
"""How long a message may hold its worker's thread; then it goes to the end of the queue, and others get a turn. It
does not wait in the worker's memory meanwhile: a store that is down for hours must not fill that."""
_PASSING: Final = (Unavailable, CommitOutcomeUnknown, TableHalted)
"""What a message waits for: of a halted table, too, since it may be the only copy."""


class EnqueueWork:
    """What the task does, without Celery.

    Args:
        desk: Accepts batches.
        metrics: Where batches are counted.
        clock: For durations.
        max_batch_bytes: Largest batch.
        is_stopping: Set when the worker is told to stop.
        access: Says who may send what.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        metrics: FrontendMetrics,
        clock: Clock,
        max_batch_bytes: int,
        is_stopping: threading.Event,
        access: TaskAccess,
    ) -> None:
        self._desk = desk
        self._metrics = metrics
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._is_stopping = is_stopping
        self._access = access

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Any = None) -> dict[str, Any]:
        """Stage the batch of a message, with a few tries.

        Args:
            args: Of the message.
            kwargs: Of the message.
            request: Celery's; its headers say who sends it.

        Raises:
            Unavailable: Not now; the message has to come again.
            CommitOutcomeUnknown: The same.
            IceDBError: The message is wrong; it will never be taken.
        """
        message = read_message(args, kwargs)
        deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        pause_ms = FIRST_PAUSE_MS
        while True:
            try:
                accepted = self._try_once(message, request)
            except _PASSING as error:
                wait_ms = max(pause_ms, error.retry_after_ms) if isinstance(error, Overloaded) else pause_ms
                if self._clock.monotonic_ms() + wait_ms > deadline_ms or self._is_stopping.wait(wait_ms / SECOND_MS):
                    raise
                pause_ms = min(2 * pause_ms, MAX_PAUSE_MS)
            else:
                return {
                    "outcome": "accepted",
                    "table": accepted.table,
                    "batch_id": message.batch_id,
                    "staged_as": accepted.batch_id,
                    "staged_bytes": accepted.size_bytes,
                }

    def _try_once(self, message: EnqueueMessage, request: Any) -> Accepted:
        with self._metrics.offered("celery"):
            self._access.require(request, (Need(Verb.APPEND, message.table),))
            started_ms = self._clock.monotonic_ms()
            accepted = self._desk.accept(message.to_offer(max_bytes=self._max_batch_bytes))
            if accepted.binding is not None:
                self._desk.remember(accepted.binding)
        self._metrics.observe_ack("celery", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=self._clock)
        return accepted


def register_enqueue(app: Celery, work: EnqueueWork) -> Task:
    """Define the task on the worker's application."""

    def enqueue(self: Task, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        batch_id = kwargs.get("batch_id")
        try:
            return work.run(args, kwargs, self.request)
        except _PASSING as error:
            get_logger().warning(
                "enqueue_put_off", batch=batch_id, error=str(error), mitigation="to the end of the queue"
            )
            _put_off(self, error)
        except IceDBError as error:
            get_logger().warning("enqueue_failed", batch=batch_id, error=str(error), mitigation="the result says so")
            raise

    enqueue.__doc__ = __doc__
    task: Task = app.task(
        enqueue,
        bind=True,
        name=INGEST_ENQUEUE,
        acks_late=True,
        reject_on_worker_lost=True,
        max_retries=None,
        throws=(IceDBError,),
    )
    return task


def _put_off(task: Task, error: IceDBError) -> NoReturn:
    """Send the message again, to the end of its queue; if that fails, give this one back. Always raises."""
    try:
        raise task.retry(exc=error, countdown=0)
    except Reject as rejection:
        # Celery would drop a message that it cannot send again; this one is the only copy.
        raise Reject(rejection.reason, requeue=True) from error
