"""A service that answers callers: its endpoints on one event loop in a thread of its own, and how its process runs.

What such services share: settings → servers that are waited for → endpoints → health → metrics, and the way back, in
this order: not ready any more, no new connections, running requests end. :class:`LoopHealth` says if they can answer.
:class:`ObservedApp` answers probes, and sees what becomes of each HTTP request.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import orjson
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icedb_service.access.credentials import HELD
from icedb_service.access.guard import open_guard
from icedb_service.http_server import (
    HealthChecks,
    HttpServer,
    HttpServerOptions,
    MetricsServer,
    ServerThread,
    check_port_is_free,
    require_none,
    run_aside,
    shown_as_waiting,
    start_metrics_server,
)
from icedb_service.logs import get_logger
from icedb_service.main import (
    EXIT_FAILURE,
    find_hanging_threads,
    look_at_store,
    stop_on_signals,
    wait_for_servers,
    watch_clock,
)
from icedb_service.metrics import Endpoint, ProcessMetrics
from icedb_service.progress import LoopProgress
from icedb_service.settings import EndpointSettings, HttpServiceSettings, env_name
from icedb_service.tls import ssl_context
from icedb_service.tracing import flush_traces

STOP_MARGIN_S: Final = 15
WATCH_S: Final = 1.0
LOOK_EVERY_S: Final = 5.0
LOOK_LIMIT_S: Final = 10.0
"""A store that has not answered for so long is away; that look is waited for all the same before there is another."""
LONGEST_PAUSE_MS: Final = 30_000
"""A loop that has not come round for so long is stuck, and the process is not worth keeping."""
PROBES: Final = ("/healthz", "/readyz")
"""Asked every few seconds: neither counted nor logged."""
FIRST_ERROR: Final = 400
FIRST_FAILURE: Final = 500
MAX_PATH_CHARS: Final = 1024


class LoopHealth:
    """Looks, and answers health checks from what it saw: a check never waits for a store.

    Args:
        warehouse: Whose store is looked at.
        clock: For pauses.
        on_change: Told whether requests can be answered now.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, on_change: Callable[[bool], Awaitable[None]]) -> None:
        self._warehouse = warehouse
        self._on_change = on_change
        self._progress = LoopProgress("the event loop", clock=clock, limit_ms=LONGEST_PAUSE_MS)
        self._problem = "the store was not looked at yet"
        self._is_draining = False
        self._was_ready = False

    def checks(self) -> HealthChecks:
        """What ``/healthz`` and ``/readyz`` look at."""
        draining = "this process is about to stop"
        return HealthChecks(
            alive={"loop": self._progress.check},
            ready={
                "store": lambda: require_none(self._problem),
                "draining": lambda: require_none(draining if self._is_draining else ""),
            },
        )

    async def run(self) -> None:
        """Come round, and look, until cancelled: a store that hangs keeps no loop from coming round."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._progress.tell_always())
            group.create_task(self._look_always())

    async def drain(self) -> None:
        """Be ready no more; nor has the loop to come round: a stop has a limit of its own."""
        self._is_draining = True
        self._progress.end()
        await self._tell()

    async def _look_always(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        asked = asyncio.ensure_future(run_aside(lambda: look_at_store(self._warehouse)))
        answered, _ = await asyncio.wait((asked,), timeout=LOOK_LIMIT_S)
        if not answered:
            await self._show(f"the store has not answered for {LOOK_LIMIT_S:g} s")
        problem = ""
        try:
            await asked
        except IceDBError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - no more files or threads, say: that is over some time, this loop is not
            problem = f"the store could not be looked at ({type(error).__name__}: {error})"
        await self._show(problem)

    async def _show(self, problem: str) -> None:
        if bool(problem) != bool(self._problem):
            get_logger().info("store_seen", is_reachable=not problem, problem=problem)
        self._problem = problem
        await self._tell()

    async def _tell(self) -> None:
        is_ready = not self._problem and not self._is_draining
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            await self._on_change(is_ready)


class ObservedApp(ABC):
    """An ASGI application that answers requests by another one, and is told what became of each.

    Args:
        app: Answers all but probes.
        clock: For durations.
        health: What ``/healthz`` and ``/readyz`` look at; ``None``: the application answers them itself.
    """

    headers: ClassVar[Mapping[str, str]] = {}
    """What every answer says."""

    def __init__(self, app: ASGIApp, *, clock: Clock, health: HealthChecks | None = None) -> None:
        self._app = app
        self._clock = clock
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_probe = scope["type"] == "http" and scope["path"] in PROBES
        if is_probe and self._health is not None:
            await answer_probe(self._health, scope, send)
            return
        if is_probe or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_ms = self._clock.monotonic_ms()
        answered_ms, status = 0, 0

        async def watch(message: Message) -> None:
            nonlocal answered_ms, status
            if message["type"] == "http.response.start":
                answered_ms, status = self._clock.monotonic_ms(), message["status"]
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        held: dict[str, Callable[[], None]] = {}
        scope[HELD] = held
        try:
            await self._app(scope, receive, watch)
        finally:
            for release in held.values():
                release()
            ended_ms = self._clock.monotonic_ms()
            waited_ms = (answered_ms or ended_ms) - started_ms
            self._end(scope, status, waited_ms=waited_ms, duration_ms=ended_ms - started_ms)

    @abstractmethod
    def _end(self, scope: Scope, status: int, *, waited_ms: int, duration_ms: int) -> None:
        """Count and log a request: its status (0: it had no answer), the time to its first byte, and to its last."""


async def answer_probe(health: HealthChecks, scope: Scope, send: Send) -> None:
    """Answer ``/healthz`` or ``/readyz``: which checks fail, but not in whose words, which name hosts."""
    status, found = health.report(scope["path"], in_words=False)
    body = orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def log_request(event: str, scope: Scope, status: int, *, which: str, is_whole: bool = True, **fields: Any) -> None:
    """Write a request's line to the log.

    Args:
        event: What the line is called.
        scope: The request; its path is told, and never its query.
        status: Of its answer; 0: it had none.
        which: The setting of the access log: ``all``, ``errors`` or ``none``.
        is_whole: Whether the whole answer was sent.
        fields: What else is told.
    """
    if which == "none" or (which == "errors" and is_whole and 0 < status < FIRST_ERROR):
        return
    log = get_logger().info if 0 < status < FIRST_FAILURE else get_logger().warning
    client = scope.get("client")
    log(
        event,
        method=scope["method"],
        path=scope["path"][:MAX_PATH_CHARS],
        status=status,
        client=client[0] if client else None,
        **fields,
    )


S = TypeVar("S", bound=EndpointSettings)
M = TypeVar("M", bound=ProcessMetrics)


class EndpointService(ServerThread, ABC, Generic[S, M]):
    """A whole service: endpoints on an event loop in a thread of its own, and metrics and health. Start it, stop it.

    A kind of service says of itself what the class variables are for. Some settings are named after its component:
    ``<component>_host`` and ``…_port``.

    Attributes:
        port: Where it is served (HTTP), once it is started.
        metrics: What it counts.

    Raises:
        InvalidRequest: The access file or the certificate is wrong, or there is no access file and others reach the
            address.
    """

    what: ClassVar[str]
    """The service in words, for errors: "the front end"."""
    endpoint: ClassVar[Endpoint]
    """Which endpoint asks the guard first."""
    make_metrics: ClassVar[Callable[[], Any]]
    """Makes what it counts."""
    mitigation: ClassVar[str]
    """Why it does no harm if threads hang when its process ends."""
    only_reads: ClassVar[bool] = True
    """Whether the store need not take conditional writes."""
    waits: ClassVar[bool] = True
    """Whether it is not begun before the store answers."""

    def __init__(self, warehouse: Warehouse, *, settings: S, clock: Clock, metrics: M | None = None) -> None:
        self.port = 0
        self.metrics: M = metrics or type(self).make_metrics()
        self._warehouse = warehouse
        self._settings = settings
        self._clock = clock
        self._metrics_server: MetricsServer | None = None
        self._health = LoopHealth(warehouse, clock=clock, on_change=self._show_ready)
        stop_limit_s = self._settings.drain_ms / SECOND_MS + STOP_MARGIN_S
        super().__init__(self._serve, name=self.metrics.component, what=self.what, stop_limit_s=stop_limit_s)
        self._guard = open_guard(
            settings, clock=clock, metrics=self.metrics.access, endpoint=self.endpoint, hosts=(self.host,)
        )
        self._tls = ssl_context(settings, clock=clock)
        watch_clock(warehouse.store, self.metrics.clock, clock=clock)

    @property
    def host(self) -> str:
        """The address that it is served at, without a port."""
        return str(self._setting("host"))

    @property
    def is_enforced(self) -> bool:
        """Whether callers have to show who they are."""
        return self._guard.is_enforced

    def start(self) -> None:
        """Serve; returns when every endpoint listens.

        Raises:
            Unavailable: An address cannot be listened on.
        """
        try:
            check_port_is_free(self._settings.metrics_host, self._settings.metrics_port)
            super().start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop in order. May be called again."""
        super().stop()
        if self._metrics_server is not None:
            self._metrics_server.stop()
            self._metrics_server = None

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Let every endpoint listen. What the stack is given ends in its order."""

    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """Return where it is served, by the names that the log has for it."""

    def load_more(self) -> None:
        """Load what some requests need and a start need not wait for; it serves meanwhile."""

    def address_at(self, port: int) -> str:
        """Return the URL of one of its ports."""
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{port}"

    async def _show_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        """Say whether requests can be answered now, if something besides ``/readyz`` says it."""

    async def _listen(self, app: ASGIApp, port: str = "port") -> HttpServer:
        """Serve an application at the service's address; ``port``: the name of its setting, without the component."""
        http = cast("HttpServiceSettings", self._settings)  # as those have that serve HTTP
        host_setting, port_setting = (env_name(f"{self.metrics.component}_{each}") for each in ("host", port))
        options = HttpServerOptions(
            host=self.host,
            port=self._setting(port),
            address_settings=f"{host_setting} and {port_setting}",
            max_connections=http.http_max_connections,
            header_timeout_ms=http.http_header_timeout_ms,
            keep_alive_ms=http.http_keep_alive_ms,
            shutdown_ms=self._settings.drain_ms,
            tls=self._tls,
        )
        return await HttpServer.start(app, options)

    def _setting(self, name: str) -> Any:
        return getattr(self._settings, f"{self.metrics.component}_{name}")

    async def _serve(self) -> None:
        health = self._health
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._metrics_server = await asyncio.to_thread(
                start_metrics_server,
                self.metrics.registry,
                host=self._settings.metrics_host,
                port=self._settings.metrics_port,
                health=health.checks(),
                clock=self._clock,
            )
            beating = asyncio.create_task(health.run())
            try:
                self.show_started()
                await self.wait_for_stop()
            finally:
                beating.cancel()
                await health.drain()


def run_endpoints(kind: type[EndpointService[S, M]], settings: S, *, metrics: M | None = None, **parts: Any) -> int:
    """Serve until SIGTERM or SIGINT, or the service's end, and return the exit code. Redis need not be there.

    Args:
        kind: Of service; it is made when the store answers.
        settings: Its settings.
        metrics: What it counts, the requests of the start, too; its own by default.
        parts: What else it is made of.
    """
    clock, metrics = SystemClock(), metrics or kind.make_metrics()
    name = metrics.component
    metrics.dependencies.watch_store()
    if kind.waits:
        with shown_as_waiting(settings, clock=clock):
            wait_for_servers(settings, clock=clock, needs_redis=False, only_reads=kind.only_reads)
    stopping = stop_on_signals()
    service = kind(settings.store_settings.open(), settings=settings, clock=clock, metrics=metrics, **parts)
    service.start()
    get_logger().info(f"{name}_served", **service.addresses(), store=settings.store, is_open=not service.is_enforced)
    service.load_more()
    while not stopping.wait(WATCH_S) and service.is_alive():
        pass
    get_logger().info(f"{name}_stopping")
    service.stop()
    flush_traces()
    code = 0 if stopping.is_set() else EXIT_FAILURE
    hanging = find_hanging_threads()
    if hanging:
        # The interpreter would wait for them, and they for a store that does not answer.
        get_logger().warning("shutdown_forced", threads=hanging, mitigation=kind.mitigation)
        os._exit(code)
    get_logger().info(f"{name}_stopped")
    return code
