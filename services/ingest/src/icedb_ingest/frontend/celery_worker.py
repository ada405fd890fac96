"""The Celery worker of the queue ``enqueue``: ``python -m icedb_ingest.frontend.celery_worker``. Wiring only.

A process of its own beside the front end: only deployments with Celery producers need it, and a stuck queue must not
block the other endpoints. Light: threads instead of children, no engine.
"""

import threading
from functools import partial
from typing import Final

from celery import Celery
from icedb_log.clock import SystemClock
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.store_clock import AlignedClock
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import open_guard
from icedb_service.celery_app import make_app
from icedb_service.http_server import HealthChecks, check_port_is_free, shown_as_waiting, start_metrics_server
from icedb_service.logs import get_logger
from icedb_service.main import look_at_store, run_main, wait_for_servers, watch_clock
from icedb_service.message_guard import guard_queues, refuse_compression
from icedb_service.progress import LoopProgress
from icedb_service.redis_clients import open_redis, ping_redis
from icedb_service.wakeup import Wakeups
from icedb_service.worker import end_after, serve_queue

from icedb_ingest.frontend.async_gate import Waker
from icedb_ingest.frontend.enqueue_task import EnqueueWork, register_enqueue
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.server import make_gate
from icedb_ingest.frontend.settings import FrontendSettings

QUEUE: Final = "enqueue"
REDELIVERY_MS: Final = 2 * MINUTE_MS
"""When a message that a dead worker held is given to another one."""


def make_enqueue_app(settings: FrontendSettings) -> Celery:
    """Return the worker's application: messages are held until they are done, and given to another worker soon."""
    app = make_app(settings, QUEUE)
    app.conf.update(
        worker_pool="threads",
        worker_concurrency=settings.enqueue_threads,
        task_time_limit=None,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={
            **app.conf.broker_transport_options,
            "visibility_timeout": REDELIVERY_MS // SECOND_MS,
            # Books of its own: with shared ones this worker's short time-out would count for every other queue, too.
            "unacked_key": f"icedb:{QUEUE}:unacked",
            "unacked_index_key": f"icedb:{QUEUE}:unacked_index",
            "unacked_mutex_key": f"icedb:{QUEUE}:unacked_mutex",
        },
    )
    return app


def serve(settings: FrontendSettings) -> int:
    """Serve the queue until SIGTERM."""
    clock = SystemClock()
    check_port_is_free(settings.metrics_host, settings.metrics_port)
    metrics = FrontendMetrics()
    access = TaskAccess(open_guard(settings, clock=clock, metrics=metrics.access, endpoint="task"))
    metrics.dependencies.watch_store()  # before the first request: those of the start count, too
    with shown_as_waiting(settings, clock=clock):
        wait_for_servers(settings, clock=clock)
    loop = LoopProgress("the loop that takes messages", clock=clock)
    count = metrics.dependencies.counter_of("queue")
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms, on_failure=count)
    refuse_compression()
    guard_queues()
    app = make_enqueue_app(settings)
    wakeups = Wakeups(make_app(settings), redis, settings=settings, counter=metrics.wakes)
    waker = Waker(partial(wakeups.wake, INGEST_FLUSH))
    warehouse = settings.store_settings.open()
    watch_clock(warehouse.store, metrics.clock, clock=clock)

    aligned = AlignedClock(clock, warehouse.store, may_ask=True)  # I3: ids have the store's time
    gate = make_gate(warehouse, settings=settings, clock=aligned, on_staged=waker.ask, on_left=metrics.note_staged)

    stopping = threading.Event()
    work = EnqueueWork(
        gate,
        metrics=metrics,
        clock=clock,
        max_batch_bytes=settings.max_batch_bytes,
        is_stopping=stopping,
        access=access,
    )
    register_enqueue(app, work)
    checks = {"store": lambda: look_at_store(warehouse), "redis": lambda: ping_redis(redis, settings.redis_url)}
    start_metrics_server(
        metrics.registry,
        host=settings.metrics_host,
        port=settings.metrics_port,
        health=HealthChecks(alive={"loop": loop.check}, ready=checks),
        clock=clock,
    )
    waker.start()
    get_logger().info("worker_started", queue=QUEUE, metrics_port=settings.metrics_port)

    def begin_to_stop() -> None:
        stopping.set()
        end_after(settings.drain_ms, mitigation="unfinished messages come again")

    threads = settings.enqueue_threads
    code = serve_queue(app, QUEUE, pool="threads", concurrency=threads, loop=loop, on_stop=begin_to_stop)
    gate.close()
    waker.stop()
    return code


if __name__ == "__main__":
    run_main(FrontendSettings, QUEUE, serve)
