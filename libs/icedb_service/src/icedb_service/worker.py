"""The main of every Celery worker service: one parent that talks to Redis, one child that works, or a few threads.

The engine (Spark session, store), Redis clients and the metrics server are made in the child: a fork with a live
JVM can hang. The child leads a process group of its own, so that a SIGTERM or Ctrl-C to the parent's group does not
take the JVM from under a running task; it dies with its parent. A child whose engine died counts that and is replaced:
a thread beside the tasks looks once a second, so that also an idle worker notices. Scale by replicas, not by more
children.

A service without an engine may work on several tables side by side, in threads of the one process that it then is: no
fork, one metrics server, one cache of logs. A thread cannot be killed, so its runs bound themselves, and one that does
not end makes ``/healthz`` fail (:meth:`icedb_service.runs.TaskRunner.check_progress`).

A sweep looks at every table and wakes the worker where something is to be done (I4). What wakes them in between may be
lost at any time; the sweep is what makes the to-do list in the store count.
"""

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, Final, Generic, Protocol, TypeVar

from celery import Celery, signals
from celery.bootsteps import StartStopStep
from celery.concurrency.thread import TaskPool
from celery.worker.state import active_requests
from icedb_log.clock import Clock, SystemClock
from icedb_log.commit.table import Acquired, Table, name_owner
from icedb_log.errors import HaltError, IceDBError, NotFound, Unavailable, crashes_told
from icedb_log.intervals import MAX_REST_MS, Rests
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.keys import TablePaths
from icedb_log.names import COMMAND_QUEUES, Queue
from icedb_log.results import Work
from icedb_log.units import SECOND_MS
from icedb_log.wake_keys import WorkerLook
from icedb_log.warehouse import RecentTables, Warehouse
from kombu.asynchronous.hub import Hub
from redis import Redis

from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import open_guard
from icedb_service.celery_app import make_app
from icedb_service.http_server import HealthChecks, check_port_is_free, shown_as_waiting, start_metrics_server
from icedb_service.logs import get_logger
from icedb_service.main import EXIT_FAILURE, look_at_store, wait_for_servers, wait_until_available, watch_clock
from icedb_service.message_guard import guard_queues, loop_turned, refuse_compression
from icedb_service.metrics import RedisUse, WorkerMetrics
from icedb_service.progress import BEAT_S, LoopProgress, SharedCount
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import TableLock, ask_redis, open_redis
from icedb_service.runs import TaskRunner, backoff_key
from icedb_service.settings import ServiceSettings
from icedb_service.tracing import flush_traces
from icedb_service.wakeup import SAID_EVERY_S, Wakeups

ENGINE_LOOK_S: Final = 1.0
"""Between two looks whether the engine has died."""
TABLES_AGE_MS: Final = 10 * SECOND_MS
"""How old the list of tables may be by which a sweep goes. A newer table is found by a later sweep, and wake-ups need
none."""
ALONE_MS: Final = 10 * SECOND_MS
"""How long looks are not shared after Redis has not answered."""
EX_RECYCLE: Final = 0x9B
"""Exit code that the pool takes for an orderly replacement of a child."""


class WakingThreadPool(TaskPool):  # type: ignore[misc]  # Celery has no types
    """Threads that wake the worker's loop when they have ended a task."""

    _hub: Hub | None = None

    def register_with_event_loop(self, loop: Hub) -> None:
        """Remember the loop; called each time that the worker connects."""
        self._hub = loop

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run a task in a thread."""
        result = super().on_apply(target, args, kwargs, callback, accept_callback, **options)
        # After the task's own callbacks, which free its place: the loop then asks for the next message.
        result.f.add_done_callback(self._wake_loop)
        return result

    def _wake_loop(self, _done: Future[Any]) -> None:
        if self._hub is not None:
            self._hub.call_soon(_look_again)  # type: ignore[no-untyped-call]


def _look_again() -> None:
    """Do nothing: that the loop turns is enough."""


class Engine(Protocol):
    """What a worker works with besides the store, e.g. a Spark session."""

    def is_alive(self) -> bool:
        """Whether it can still be used."""
        return True

    def has_died(self) -> bool:
        """Whether it can never be used again; waits for nothing."""
        return False

    def close(self) -> None:
        """Give back what it holds. Called once."""


class NoEngine(Engine):
    """For workers that need nothing but the store."""


E = TypeVar("E", bound=Engine)


class WorkerContext(Generic[E]):
    """What the tasks of a worker find in their process. Made in the parent, opened in the child.

    Attributes:
        readers: Of the logs of all tables.
        runner: Accounts for runs.
        owner: Who works, for fences and for people.
        access: Says whether the sender of a message may have it done.
        loop: Whether the loop that takes messages, in the parent, comes round.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        app: Celery,
        metrics: WorkerMetrics,
        open_engine: Callable[[], E],
        opens_late: bool = False,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.readers = LogReaders(clock, is_compact=metrics.component in ("janitor", "merge"))
        self.runner = TaskRunner(metrics=metrics, clock=clock)
        self.owner = name_owner(metrics.component)
        self.loop = LoopProgress("the loop that takes messages", clock=clock)
        self.access = TaskAccess(open_guard(settings, clock=clock, metrics=metrics.access, endpoint="task"))
        self._app = app
        self._open_engine = open_engine
        self._opens_late = opens_late
        self._engine_deaths = SharedCount()
        self._engine_problem = ""
        """Why the engine could not be opened when that was tried last."""
        self._loop_pid: int | None = None
        """In a child: of the process whose loop takes messages."""
        self._alone_until_ms = 0
        """Until when looks are not shared: Redis has not answered."""
        self._tables = RecentTables(clock, max_age_ms=TABLES_AGE_MS, others=lambda: self.wakeups)

    @cached_property
    def engine(self) -> E:
        """The engine; opened when it is not yet. Raises Unavailable when that fails; it is tried again then."""
        started_ms = self.clock.monotonic_ms()
        try:
            engine = self._open_engine()
        except Exception as error:
            self.metrics.engine_failures.labels("not_opened").inc()
            self._engine_problem = str(error)
            if isinstance(error, IceDBError):
                raise
            raise Unavailable(f"the engine cannot be started ({type(error).__name__}: {error})") from error
        self._engine_problem = ""
        self.metrics.engine_up.set(1)
        get_logger().info("engine_opened", duration_ms=self.clock.monotonic_ms() - started_ms)
        if self._loop_pid is not None:
            watch = partial(self._watch_engine, engine, threading.Event())
            threading.Thread(target=watch, name="watch the engine", daemon=True).start()
        return engine

    def _watch_engine(self, engine: E, never: threading.Event) -> None:
        """Wait until the engine has died, and end this child then; return when the engine is closed."""
        while not engine.has_died():
            never.wait(ENGINE_LOOK_S)
        if vars(self).get("engine") is not engine:
            return
        self.metrics.engine_up.set(0)
        self._engine_deaths.add_one()
        self.metrics.engine_failures.labels("died").inc()
        get_logger().error("engine_died", mitigation="this process is replaced; what ran on it is done again")
        # A run that is under way ends first: its caller has an error, not a lost worker. Those that begin see for
        # themselves that the engine is dead.
        while self.runner.is_running:
            never.wait(ENGINE_LOOK_S)
        never.wait(ENGINE_LOOK_S)  # the result of the last run is on its way to who asked
        os._exit(EX_RECYCLE)

    @cached_property
    def warehouse(self) -> Warehouse:
        """The warehouse, opened in this process."""
        warehouse = self.settings.store_settings.open()
        watch_clock(warehouse.store, self.metrics.clock, clock=self.clock)
        return warehouse

    @cached_property
    def wakeups(self) -> Wakeups:
        """Wake-ups, over this process's own connections."""
        redis = self._open_redis(self.settings.redis_url, "queue")
        return Wakeups(self._app, redis, settings=self.settings, counter=self.metrics.wakes)

    @cached_property
    def _masters(self) -> tuple[Redis, ...]:
        return tuple(self._open_redis(url, "locks") for url in self.settings.lock_master_urls)

    def _open_redis(self, url: str, use: RedisUse) -> Redis:
        count = self.metrics.dependencies.counter_of(use)
        return open_redis(url, timeout_ms=self.settings.redis_timeout_ms, on_failure=count)

    def open_here(self, *, loop_pid: int | None = None) -> None:
        """Open what tasks need, in the process that runs them, before they run: they may do so side by side."""
        self._loop_pid = loop_pid
        self.metrics.engine_failures.labels("died").inc(self._engine_deaths.value)
        self._serve_metrics()
        self.metrics.dependencies.watch_store()
        try:
            _ = self.warehouse, self.wakeups, self._masters, self._opens_late or self.engine
        except IceDBError as error:
            # Not fatal: a child that exits here would be forked again at once, for ever.
            get_logger().error("engine_not_opened", error=str(error), mitigation="tried again with the next task")

    def _serve_metrics(self) -> None:
        settings = self.settings
        try:
            start_metrics_server(
                self.metrics.registry,
                host=settings.metrics_host,
                port=settings.metrics_port,
                health=self.health(),
                clock=self.clock,
            )
        except Unavailable as error:
            get_logger().error("metrics_not_served", error=str(error), mitigation="the worker works without")

    def open(self, table: str, *, check_alive: CheckAlive = never_stop) -> Table:
        """Open a table for a run, with what this process knows of its log.

        Raises:
            NotFound: No such table.
        """
        place = self.warehouse.table(table)
        try:
            opened = self.readers.open(place, owner=self.owner)
        except NotFound:
            self._tables.forget(table)
            raise
        return opened.watched_by(
            check_alive,
            on_fence=lambda acquired: self._note_fence(table, acquired),
            on_commit=self.wakeups.announce_commit,
        )

    def make_rests(self, what: str, *, max_rest_ms: int = MAX_REST_MS) -> Rests:
        """Return what remembers the tables that rest; the workers that look for the same share their looks."""
        return Rests(
            self.clock,
            max_rest_ms=max_rest_ms,
            claim=lambda table, pause_ms: self._claim_look(f"{what}:{table}", pause_ms),
        )

    def _claim_look(self, what: str, pause_ms: int) -> bool:
        if self.clock.monotonic_ms() < self._alone_until_ms:
            return True
        is_claimed = self.wakeups.claim_look(what, pause_ms)
        if is_claimed is None:  # a sweep over a thousand tables must not wait for it a thousand times
            self._alone_until_ms = self.clock.monotonic_ms() + ALONE_MS
        return is_claimed is not False

    def list_tables(self) -> tuple[str, ...]:
        """List the tables, as :meth:`~icedb_log.warehouse.Warehouse.list_tables` did lately. Raises Unavailable."""
        return self._tables.list(self.warehouse)

    def _note_fence(self, table: str, acquired: Acquired) -> None:
        if acquired.previous_holder != "free":
            get_logger().info("fence_taken", table=table, **asdict(acquired))

    @contextmanager
    def open_locked(self, table: str) -> Iterator[Table]:
        """Hold the component's lock on a table, and yield the table, which is watched by it. Raises as both do."""
        with self.lock(table) as lock:
            yield self.open(table, check_alive=lock.check_alive)

    def lock(self, table: str) -> TableLock:
        """Return the lock of this component on a table, for a ``with`` block; see TableLock."""
        return TableLock(
            self._masters,
            f"{self.metrics.component}:{table}",
            ttl_ms=self.settings.lock_ttl_ms,
            clock=self.clock,
            count=lambda outcome: self.metrics.locks.labels(outcome).inc(),
        )

    def is_engine_alive(self) -> bool:
        """Whether the engine lives, or was never opened."""
        engine: E | None = vars(self).get("engine")
        is_alive = engine is None or engine.is_alive()
        if not is_alive:
            self.metrics.engine_up.set(0)
        return is_alive

    def health(self) -> HealthChecks:
        """What this process answers on ``/healthz`` and ``/readyz``."""
        return HealthChecks(
            alive={"engine": self._check_engine, "loop": self.loop.check, "runs": self._check_runs},
            ready={
                "engine": self._check_engine_open,
                "store": lambda: look_at_store(self.warehouse),
                "redis": lambda: ask_redis(self.settings),
            },
            loop_pid=self._loop_pid,
        )

    def close(self) -> None:
        """Close the engine, if it was opened."""
        flush_traces()
        engine: E | None = vars(self).pop("engine", None)
        if engine is not None:
            engine.close()

    def _check_engine(self) -> None:
        if not self.is_engine_alive():
            raise Unavailable("the engine of this process is dead; the next task replaces the process")

    def _check_engine_open(self) -> None:
        if self._engine_problem:
            raise Unavailable(f"the engine does not open, and is tried again with each task: {self._engine_problem}")
        if "engine" not in vars(self) and not self._opens_late:
            raise Unavailable("the engine is not open yet: it starts")
        self._check_engine()

    def _check_runs(self) -> None:
        self.runner.check_progress(self.settings.task_time_limit_ms + self.settings.shutdown_grace_ms)


@dataclass(frozen=True, slots=True)
class WorkerService(Generic[E]):
    """What makes one worker service different from another.

    Attributes:
        queue: Its queue, and its name.
        metrics: Its metrics.
        open_engine: Makes its engine, in the child.
        register_tasks: Defines its tasks.
        opens_late: Whether the engine is opened by the first task that needs it, not before the child takes tasks.
        threads: Tasks side by side, in threads of the one process; ``None``: one at a time, in a child that may be
            killed. Only for services without an engine.
    """

    queue: Queue
    metrics: WorkerMetrics
    open_engine: Callable[[], E]
    register_tasks: Callable[[Celery, WorkerContext[E]], None]
    opens_late: bool = False
    threads: int | None = None


def run_worker(service: WorkerService[E], settings: ServiceSettings) -> int:
    """Serve a queue until SIGTERM, and return the exit code.

    SIGTERM lets the running tasks finish, for at most ``shutdown_grace_ms``.

    Raises:
        Unavailable: The metrics port is taken.
        UnsupportedFormat: The store cannot be used.
        InvalidRequest: An address cannot be right, or the access file is wrong.
    """
    clock = SystemClock()
    check_port_is_free(settings.metrics_host, settings.metrics_port)
    with shown_as_waiting(settings, clock=clock):
        wait_for_servers(settings, clock=clock)
        refuse_compression()
        guard_queues()
        app = make_app(settings, service.queue)
        context = WorkerContext(
            settings,
            app=app,
            metrics=service.metrics,
            open_engine=service.open_engine,
            opens_late=service.opens_late,
            clock=clock,
        )
        service.register_tasks(app, context)
        _release_wakeups(service.queue, settings, app=app, clock=clock)
    _connect_signals(context)
    if service.threads is not None:
        context.open_here()
    app.steps["consumer"].add(_make_saying_step(service, settings, clock=clock))
    get_logger().info("worker_started", queue=service.queue, metrics_port=settings.metrics_port)
    pool = "prefork" if service.threads is None else WakingThreadPool
    limit_ms, mitigation = settings.shutdown_grace_ms, "what runs dies with this process; its work is done again"
    return serve_queue(
        app,
        service.queue,
        pool=pool,
        concurrency=service.threads or 1,
        loop=context.loop,
        on_stop=lambda: end_after(limit_ms, mitigation=mitigation),
    )


def serve_queue(
    app: Celery,
    queue: Queue,
    *,
    pool: str | type[WakingThreadPool],
    concurrency: int,
    loop: LoopProgress,
    on_stop: Callable[[], None],
) -> int:
    """Take messages of one queue until SIGTERM, of which ``on_stop`` is told first, and return the exit code.

    ``loop`` is told whenever the loop comes round.
    """
    signals.setup_logging.connect(_keep_our_logging)

    def begin_to_stop(**_ignored: object) -> None:
        loop.end()
        on_stop()

    signals.worker_shutting_down.connect(begin_to_stop, weak=False)
    loop_turned.connect(lambda **_: loop.tell(), weak=False)
    app.steps["consumer"].add(TurnStep)
    worker = app.Worker(
        hostname=f"{queue}-{os.getpid()}@{socket.gethostname()}",
        queues=[queue, *([COMMAND_QUEUES[queue]] if queue in COMMAND_QUEUES else [])],
        pool=pool,
        concurrency=concurrency,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        task_events=False,
    )
    worker.start()
    get_logger().info("worker_stopped", queue=queue)
    return int(worker.exitcode or 0)


def end_after(limit_ms: int, *, mitigation: str) -> None:
    """End this process when so much time has passed, whatever runs then."""

    def end() -> None:
        get_logger().error("shutdown_forced", after_ms=limit_ms, mitigation=mitigation)
        os._exit(EXIT_FAILURE)

    timer = threading.Timer(limit_ms / SECOND_MS, end)
    timer.daemon = True
    timer.start()


def _release_wakeups(queue: Queue, settings: ServiceSettings, *, app: Celery, clock: Clock) -> None:
    """Free what a killed predecessor held back. Over a connection of its own: the child's must not be shared."""
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    try:
        wakeups = Wakeups(app, redis, settings=settings)
        wait_until_available("redis", lambda: wakeups.release_queue(queue), clock=clock)
    finally:
        redis.close()


class TurnStep(StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Makes the parent say that its loop comes round, as long as it is connected."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, parent: Any) -> None:
        """Begin; called each time that the worker connects, which ends the timers of the last time."""
        loop_turned.send(sender=parent)
        parent.timer.call_repeatedly(BEAT_S, loop_turned.send, (parent,))


def _make_saying_step(service: WorkerService[Any], settings: ServiceSettings, *, clock: Clock) -> type[StartStopStep]:
    """Return what makes the parent say, while it listens to its queue, that it is here and what its tasks are."""
    release = version("icedb-service")

    class SayingStep(StartStopStep):  # type: ignore[misc]  # Celery has no types
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self._held = ExitStack()

        def start(self, parent: Any) -> None:
            redis = self._held.enter_context(open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms))
            wakeups = Wakeups(parent.app, redis, settings=settings)

            def say() -> None:
                host, pid, doing = socket.gethostname(), os.getpid(), _list_running()
                wakeups.say_at_work(WorkerLook(service.queue, host, pid, release, clock.now_ms(), doing))

            say()
            self._held.callback(parent.timer.call_repeatedly(SAID_EVERY_S, say).cancel)

        def stop(self, parent: Any) -> None:
            del parent
            self._held.close()

    return SayingStep


def _list_running() -> tuple[tuple[str, str], ...]:
    """Return the tasks that this worker's pool runs, each with its table, or nothing for one that has none."""
    try:
        running = tuple(active_requests)
    except RuntimeError:  # another thread has just taken one
        return ()
    return tuple((str(each.name), str(each.args[0]) if each.args else "") for each in running)


def _keep_our_logging(**_ignored: object) -> None:
    """Celery sets up no logs when somebody listens here."""


def _connect_signals(context: WorkerContext[Any]) -> None:
    def open_child(**_ignored: object) -> None:
        os.setpgid(0, 0)
        context.owner = name_owner(context.metrics.component)
        context.open_here(loop_pid=os.getppid())

    def tell_expired(request: Any = None, *, expired: bool = False, **_ignored: object) -> None:
        if expired:
            get_logger().warning(
                "message_expired",
                task=getattr(request, "name", None),
                mitigation="a sweep does the work; if this host's clock is ahead of the senders', set it (NTP)",
            )

    signals.worker_process_init.connect(open_child, weak=False)
    signals.worker_process_shutdown.connect(lambda **_: context.close(), weak=False)
    signals.task_revoked.connect(tell_expired, weak=False)


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
    counts = {"tables": 0, "woken": 0, "waiting": 0, "pausing": 0, "failed": 0}
    names = context.list_tables()
    context.metrics.forget_tables({*names, *also})
    for name in names:
        counts["tables"] += 1
        if not context.runner.backoff.is_due(backoff_key(task, name)):
            counts["pausing"] += 1
            continue
        try:
            with crashes_told(f"table {name}: the look for {task}"):
                is_idle = is_needed is not None and not is_needed(context.warehouse.table(name).paths)
            if is_idle:
                continue
        except NotFound:
            continue  # dropped since it was seen
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
