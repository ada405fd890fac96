"""Wakes workers and asks them to run a task. Redis holds nothing that cannot be lost (I4).

Keeps the services' contract for wake-ups: the Redis key ``icedb:wake:<task>:<table>`` is set with NX before the
message is sent and deleted by the worker when the task begins, so that a thousand batches do not become a thousand
messages. Must never keep a batch from being accepted: a wake-up that fails is left to the workers' sweep.
"""

import contextlib
import logging
from typing import Any, Final

from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeoutError
from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from kombu.exceptions import KombuError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from icedb_client.settings import SECOND_MS, ClientSettings, redact_url

INGEST_FLUSH: Final = "icedb.ingest.flush"
MERGE_MERGE: Final = "icedb.merge.merge"
JANITOR_VACUUM: Final = "icedb.janitor.vacuum"
QUEUES: Final = {INGEST_FLUSH: "ingest", MERGE_MERGE: "merge", JANITOR_VACUUM: "janitor"}

PAUSE_AFTER_FAILURE_MS: Final = 5 * SECOND_MS
"""After Redis did not answer, wake-ups are not tried for this long: producers must not wait for it each time."""
BROKER_TIMEOUT_S: Final = 5

_log = logging.getLogger(__name__)
_DOWN: Final = (RedisError, KombuError, OSError)


class TaskTimeout(Unavailable):
    """No worker gave a result in time. What the caller does: look whether one runs; the task may still be done."""


class WakeupSender:
    """Sends wake-ups and tasks. Connects on first use. Thread-safe.

    Args:
        settings: Addresses and limits.
        clock: For the pause after a failure.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        timeout_s = settings.redis_timeout_ms / SECOND_MS
        self._redis = Redis.from_url(
            settings.redis_url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
        )
        self._app = _make_app(settings)
        self._silent_until_ms: int | None = None
        self._has_warned = False

    def wake(self, task: str, table: str) -> bool:
        """Wake the worker of a task for a table. Returns whether a wake-up is on its way; warns once if not."""
        now_ms = self._clock.monotonic_ms()
        if self._silent_until_ms is not None and now_ms < self._silent_until_ms:
            return False
        try:
            key = f"icedb:wake:{task}:{table}"
            if self._redis.set(key, "1", nx=True, px=self._settings.message_expiry_ms):
                self._app.send_task(
                    task,
                    args=[table],
                    queue=QUEUES[task],
                    expires=self._settings.message_expiry_ms / SECOND_MS,
                    ignore_result=True,
                    retry=False,
                )
        except _DOWN as error:
            self._silent_until_ms = now_ms + PAUSE_AFTER_FAILURE_MS
            if not self._has_warned:
                self._has_warned = True
                _log.warning("%s; batches stay accepted, the periodic sweep takes them", self._describe(error))
            return False
        self._silent_until_ms = None
        return True

    def run(self, task: str, table: str, *, arguments: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Ask a worker to run a task and wait for its result.

        Raises:
            Unavailable: Redis does not answer.
            TaskTimeout: No worker gave a result in time.
        """
        handle = self._send(task, table, arguments=arguments, ignore_result=False)
        try:
            result = handle.get(timeout=timeout_ms / SECOND_MS, interval=0.1)
        except CeleryTimeoutError as error:
            raise TaskTimeout(
                f"table {table}: no worker finished {task} within {timeout_ms / SECOND_MS:g} s; "
                f"is a worker running on the queue {QUEUES[task]!r}? If so it may still be done"
            ) from error
        except _DOWN as error:
            raise Unavailable(self._describe(error)) from error
        with contextlib.suppress(*_DOWN):
            handle.forget()  # or it expires by itself
        return dict(result)

    def send(self, task: str, table: str, *, arguments: dict[str, Any]) -> str:
        """Ask a worker to run a task and do not wait. Returns the task's id.

        Raises:
            Unavailable: Redis does not answer.
        """
        return str(self._send(task, table, arguments=arguments, ignore_result=True).id)

    def _send(self, task: str, table: str, *, arguments: dict[str, Any], ignore_result: bool) -> Any:
        try:
            self._redis.ping()
            return self._app.send_task(
                task,
                args=[table],
                kwargs=arguments,
                queue=QUEUES[task],
                expires=self._settings.message_expiry_ms / SECOND_MS,
                ignore_result=ignore_result,
                retry=False,
            )
        except _DOWN as error:
            raise Unavailable(self._describe(error)) from error

    def _describe(self, error: Exception) -> str:
        return (
            f"Redis at {redact_url(self._settings.redis_url)} does not answer ({type(error).__name__}); "
            "start it, or set ICEDB_REDIS_URL"
        )


def _make_app(settings: ClientSettings) -> Celery:
    app = Celery("icedb.client", set_as_current=False)
    app.conf.update(
        broker_url=settings.redis_url,
        result_backend=settings.redis_url,
        accept_content=["json"],
        result_accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        broker_connection_timeout=BROKER_TIMEOUT_S,
        broker_transport_options={
            "socket_timeout": BROKER_TIMEOUT_S,
            "socket_connect_timeout": BROKER_TIMEOUT_S,
        },
        result_backend_transport_options={"retry_policy": {"max_retries": 1, "interval_step": 0.2}},
        redis_socket_timeout=BROKER_TIMEOUT_S,
        redis_socket_connect_timeout=BROKER_TIMEOUT_S,
        enable_utc=True,
    )
    return app
