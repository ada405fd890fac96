"""Wakes workers and asks them to run a task. Redis holds nothing that cannot be lost (I4).

Keeps the contract of :mod:`icedb_log.wake_keys`. Must never keep a batch from being accepted: a wake-up that fails is
left to the workers' sweep.

Redis' client and Celery are loaded where somebody listens at the address of Redis, and not before: they take a third of
the time of an ``icedb ingest`` whose batches nobody can be woken for.
"""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.hosts import redact_url
from icedb_log.names import COMMAND_QUEUES, PROGRESS_HEADER, QUEUES, TASKS, WORKERS_KEY, progress_key
from icedb_log.phases import current_follower
from icedb_log.units import SECOND_MS
from icedb_log.wake_keys import WakeKeys, WorkerLook, decode_workers

from icedb_client.settings import BearerToken, ClientSettings, require_private_redis

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

REDIS_PORT: Final = 6379
PAUSE_AFTER_FAILURE_MS: Final = 5 * SECOND_MS
"""After Redis did not answer, wake-ups are not tried for this long: producers must not wait for it each time."""
BROKER_TIMEOUT_S: Final = 5
RESULT_POLL_MS: Final = 100
_RESULT_KEY_PREFIX: Final = "celery-task-meta-"
"""Where Celery's Redis backend keeps the result of a task."""

WAKING: Final = "workers are woken through Redis and Celery:"

_log = logging.getLogger(__name__)


class TaskTimeout(Unavailable):
    """No worker gave a result in time. What the caller does: look whether one runs; the task may still be done."""


class WakeupSender:
    """Sends wake-ups and tasks. Connects on first use. Thread-safe."""

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._token = BearerToken(settings)
        self._silent_until_ms: int | None = None
        self._has_warned = False
        self._keys = WakeKeys(settings.message_expiry_ms)

    def close(self) -> None:
        """Close connections. May be called again; a closed sender connects anew when it is used."""
        for name in ("_redis", "_patient_redis", "_app"):
            if name in vars(self):
                getattr(self, name).close()

    @cached_property
    def _redis(self) -> "Redis":
        return _open_redis(self._settings.redis_url, timeout_ms=self._settings.redis_timeout_ms)

    @cached_property
    def _patient_redis(self) -> "Redis":
        """For commands: who waits a minute for a worker does not mind that Redis takes a second."""
        timeout_ms = max(self._settings.redis_timeout_ms, BROKER_TIMEOUT_S * SECOND_MS)
        return _open_redis(self._settings.redis_url, timeout_ms=timeout_ms)

    @cached_property
    def _app(self) -> "Celery":
        return _make_app(self._settings)

    def wake(self, task: str, table: str) -> bool:
        """Wake the worker of a task for a table. Returns whether a wake-up is on its way; warns once if not."""
        now_ms = self._clock.monotonic_ms()
        if self._silent_until_ms is not None and now_ms < self._silent_until_ms:
            return False
        try:
            self._require_listener()
        except OSError as error:
            return self._fall_silent(self._describe(error))
        if missing := find_missing():
            return self._fall_silent(f"{WAKING} {missing}")
        try:
            self._keys.send(self._redis, self._app.send_task, task=task, table=table)
        except _down() as error:
            return self._fall_silent(self._describe(error))
        self._silent_until_ms = None
        return True

    def run(self, task: str, table: str, *, arguments: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Ask a worker to run a task and wait for its result; who follows this thread's work is told how far it is.

        Raises:
            Unavailable: Redis does not answer.
            InvalidRequest: The token would go over the network in plain text, or a package is missing.
            TaskTimeout: No worker gave a result in time.
        """
        follower = current_follower()
        task_id = self._send(task, table, arguments=arguments, ignore_result=False, is_followed=follower is not None)
        # Polled, not subscribed to: Celery's consumer of results cannot stand losing Redis.
        key = _RESULT_KEY_PREFIX + task_id
        keys = [key] if follower is None else [key, progress_key(task_id)]
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        try:
            while (found := self._patient_redis.mget(keys))[0] is None:
                if follower is not None and found[1] is not None:
                    follower(*orjson.loads(found[1]))
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise TaskTimeout(
                        f"table {table}: no worker finished {task} within {timeout_ms / SECOND_MS:g} s; "
                        f"is a worker running on the queue {TASKS[task]!r}? If so it may still be done"
                    )
                self._clock.sleep_ms(RESULT_POLL_MS)
            self._patient_redis.delete(*keys)
        except _down() as error:
            raise Unavailable(self._describe(error)) from error
        return _read_result(task, orjson.loads(found[0]))

    def send(self, task: str, table: str, *, arguments: dict[str, Any]) -> str:
        """Ask a worker to run a task and do not wait. Returns the task's id.

        Raises:
            Unavailable: Redis does not answer.
            InvalidRequest: The token would go over the network in plain text, or a package is missing.
        """
        return self._send(task, table, arguments=arguments, ignore_result=True)

    def _require_listener(self) -> None:
        """Look whether anybody listens at the address, before that is asked with all that has to be loaded for it.

        Raises:
            OSError: Nobody does.
        """
        if "_redis" not in vars(self):
            parts = urlsplit(self._settings.redis_url)
            address = parts.hostname or "", parts.port or REDIS_PORT
            socket.create_connection(address, timeout=self._settings.redis_timeout_ms / SECOND_MS).close()

    def _fall_silent(self, why: str) -> bool:
        """Return that nobody was woken, nor will be for a while; warn of it once."""
        self._silent_until_ms = self._clock.monotonic_ms() + PAUSE_AFTER_FAILURE_MS
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s; batches stay accepted: a sweep of a worker takes them, or `icedb work --once`", why)
        return False

    def _send(
        self, task: str, table: str, *, arguments: dict[str, Any], ignore_result: bool, is_followed: bool = False
    ) -> str:
        if missing := find_missing():
            raise InvalidRequest(f"{WAKING} {missing}; `--local` does it in this process")
        headers = self._headers() | ({PROGRESS_HEADER: "1"} if is_followed else {})
        try:
            self._patient_redis.ping()
            sent = self._app.send_task(
                task,
                args=[table],
                kwargs=arguments,
                queue=COMMAND_QUEUES.get(TASKS[task], TASKS[task]),
                expires=self._keys.message_expiry_s,
                ignore_result=ignore_result,
                retry=False,
                headers=headers,
            )
        except _down() as error:
            raise Unavailable(self._describe(error)) from error
        return str(sent.id)

    def _headers(self) -> dict[str, str]:
        """Return who asks, for workers that want to know. Wake-ups go without: they say nothing that matters."""
        authorization = self._token.authorization()
        if authorization is None:
            return {}
        require_private_redis(self._settings)
        return {"authorization": authorization}

    def _describe(self, error: Exception) -> str:
        return (
            f"Redis at {redact_url(self._settings.redis_url)} does not answer ({type(error).__name__}); "
            "start it, or set ICEDB_REDIS_URL"
        )


@cache
def find_missing() -> str:
    """Return which packages that wake workers are not installed, and what to do; empty if all are."""
    names = [name for name in ("celery", "redis") if find_spec(name) is None]
    return f"{' and '.join(names)} not installed here: install icedb-client[stack]" if names else ""


def _open_redis(url: str, *, timeout_ms: int) -> "Redis":
    """Return a client that answers soon or fails; it connects on first use."""
    from redis import Redis  # noqa: PLC0415 - see above
    from redis.backoff import NoBackoff  # noqa: PLC0415 - see above
    from redis.retry import Retry  # noqa: PLC0415 - see above

    timeout_s = timeout_ms / SECOND_MS
    return Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1))


def _down() -> tuple[type[Exception], ...]:
    """Return the errors that say that Redis does not answer. For where it was asked: its client is loaded by then."""
    from kombu.exceptions import KombuError  # noqa: PLC0415 - see above
    from redis.exceptions import RedisError  # noqa: PLC0415 - see above

    return RedisError, KombuError, OSError


def _read_result(task: str, stored: dict[str, Any]) -> dict[str, Any]:
    """Return what the task returned; what Celery itself reports becomes an outcome of the same form."""
    result = stored.get("result")
    if stored.get("status") == "SUCCESS" and isinstance(result, dict):
        return result
    problem = result if isinstance(result, dict) else {}
    message = problem.get("exc_message", "no result")
    text = ", ".join(map(str, message)) if isinstance(message, list) else str(message)
    return {
        "task": task,
        "outcome": "failed",
        "error": {"kind": str(problem.get("exc_type", stored.get("status"))), "message": text},
    }


def _make_app(settings: ClientSettings) -> "Celery":
    from celery import Celery  # noqa: PLC0415 - see above

    app = Celery("icedb.client", set_as_current=False)
    app.conf.update(
        broker_url=settings.redis_url,
        task_serializer="json",
        broker_connection_timeout=BROKER_TIMEOUT_S,
        broker_transport_options={
            "socket_timeout": BROKER_TIMEOUT_S,
            "socket_connect_timeout": BROKER_TIMEOUT_S,
        },
        enable_utc=True,
    )
    return app


@dataclass(frozen=True, slots=True)
class RedisLook:
    """One look at a server.

    Attributes:
        version: Its release.
        run_id: What tells one running server from another.
        is_master: Whether it takes writes.
        may_evict: Whether it throws keys away when its memory is full.
        waiting: How many messages wait in each queue.
        workers: What workers have said of themselves, within ``WORKER_KEPT_MS``.
    """

    version: str
    run_id: str
    is_master: bool
    may_evict: bool
    waiting: Mapping[str, int]
    workers: tuple[WorkerLook, ...] = ()


def look_at_redis(url: str, *, timeout_ms: int) -> RedisLook:
    """Ask a server about itself. Nothing is written.

    Args:
        url: Its address.
        timeout_ms: Longest wait to connect, and for each answer.

    Raises:
        Unavailable: It does not answer, or refuses, or a package is missing; names its address without a password.
    """
    if missing := find_missing():
        raise Unavailable(f"Redis at {redact_url(url)} cannot be asked: {missing}")
    from redis.exceptions import RedisError  # noqa: PLC0415 - see above

    try:
        with _open_redis(url, timeout_ms=timeout_ms) as client:
            info = client.info()
            waiting: dict[str, int] = {queue: client.llen(queue) for queue in (*QUEUES, *COMMAND_QUEUES.values())}
            workers = decode_workers(client.hgetall(WORKERS_KEY))
    except (RedisError, OSError, ValueError) as error:
        raise Unavailable(f"Redis at {redact_url(url)} does not answer ({type(error).__name__}: {error})") from error
    return RedisLook(
        version=str(info.get("redis_version", "of unknown release")),
        run_id=str(info.get("run_id", "")),
        is_master=info.get("role", "master") == "master",
        may_evict=bool(info.get("maxmemory")) and info.get("maxmemory_policy") != "noeviction",
        waiting=waiting,
        workers=workers,
    )
