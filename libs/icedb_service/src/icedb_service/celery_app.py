"""The Celery application: what a message is, how long it lives and who may take it.

Celery only wakes workers (I4). Hence: JSON with names and ids, early acknowledgement (a late one runs a long task
again and again while it still runs, and is redelivered only minutes after a crash), every message expires, and no
worker reserves more than it can do.
"""

import warnings
from typing import Any, Final

from celery import Celery
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from icedb_log.names import COMMAND_QUEUES, INGEST_SWEEP, JANITOR_SWEEP, MERGE_SWEEP, QUEUES, TASKS, Component
from kombu.entity import Queue as KombuQueue

from icedb_service.settings import ServiceSettings

BROKER_TIMEOUT_S: Final = 5
CHILD_START_LIMIT_S: Final = 300
"""How long a worker's child may take to open its engine before the pool gives it up."""
VISIBILITY_MARGIN_MS: Final = 60_000
RESULT_EXPIRY_S: Final = 3600
"""How long the result of a task is kept for its caller."""


def make_app(settings: ServiceSettings, component: Component | None = None) -> Celery:
    """Return an application for a worker, for beat, or for somebody who sends tasks."""
    # Celery warns root about pickle whatever is accepted; we accept JSON only.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # What a lost connection does to tasks with late acknowledgement; ours acknowledge early.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    app = Celery(f"icedb.{component or 'sender'}", set_as_current=False)
    app.conf.update(
        **_messages(settings),
        **_connections(settings),
        **_WORKER,
        beat_schedule=sweep_schedule(settings),
    )
    return app


def sweep_schedule(settings: ServiceSettings) -> dict[str, dict[str, Any]]:
    """Return when each sweep is due. Sweeps make good what wake-ups lose."""
    every_ms = {
        INGEST_SWEEP: settings.ingest_sweep_interval_ms,
        MERGE_SWEEP: settings.merge_sweep_interval_ms,
        JANITOR_SWEEP: settings.janitor_sweep_interval_ms,
    }
    return {task: {"task": task, "schedule": interval_ms / 1000} for task, interval_ms in every_ms.items()}


def _messages(settings: ServiceSettings) -> dict[str, Any]:
    return {
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "task_queues": [KombuQueue(name) for name in (*QUEUES, *COMMAND_QUEUES.values())],  # type: ignore[no-untyped-call]
        "task_create_missing_queues": False,
        "task_default_queue": QUEUES[0],
        "task_routes": {task: {"queue": queue} for task, queue in TASKS.items()},
        "task_ignore_result": False,
        "result_expires": RESULT_EXPIRY_S,
        "task_acks_late": False,
        "task_time_limit": settings.task_time_limit_ms // 1000,
        "task_store_errors_even_if_ignored": False,
        "enable_utc": True,
        "timezone": "UTC",
    }


def _connections(settings: ServiceSettings) -> dict[str, Any]:
    sockets = {
        "socket_timeout": BROKER_TIMEOUT_S,
        "socket_connect_timeout": BROKER_TIMEOUT_S,
        "socket_keepalive": True,
        "retry_on_timeout": True,
    }
    return {
        "broker_url": settings.redis_url,
        "result_backend": settings.redis_url,
        "broker_connection_timeout": BROKER_TIMEOUT_S,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            # A worker takes from its queues in turn: a command waits behind one wake-up.
            "queue_order_strategy": "round_robin",
            # A reserved message waits behind at most one running task; what comes back later has expired.
            "visibility_timeout": (settings.task_time_limit_ms + VISIBILITY_MARGIN_MS) // 1000,
            "health_check_interval": 25,
            **sockets,
        },
        "result_backend_transport_options": {"retry_policy": {"max_retries": 2, "interval_step": 0.2}},
        "redis_socket_timeout": BROKER_TIMEOUT_S,
        "redis_socket_connect_timeout": BROKER_TIMEOUT_S,
        "redis_socket_keepalive": True,
        "redis_retry_on_timeout": True,
    }


_WORKER: Final = {
    "worker_pool": "prefork",
    "worker_concurrency": 1,
    # One message at a time, counted by the requests in this process. Not by the transport: it counts what it has
    # delivered and not acknowledged, and Celery swallows an acknowledgement that fails because Redis went away.
    # With a limit of one such message the worker would never ask for another, nor see that its connection broke.
    "worker_prefetch_multiplier": 0,
    "worker_disable_prefetch": True,
    "worker_max_tasks_per_child": None,
    "worker_proc_alive_timeout": CHILD_START_LIMIT_S,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_consumer": "icedb_service.message_guard:GuardedConsumer",
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    "task_send_sent_event": False,
}
