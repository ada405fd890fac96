"""The HTTP servers of services: uvicorn on event loops that are not its own, with bounds that it has not.

Every process serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread (:func:`start_metrics_server`).
``/healthz`` says whether this process should be kept (its loop comes round, its engine is alive); ``/readyz`` says
whether it can work: its engine is open, and everything it needs answers. An orchestrator restarts on the first and only
routes or alerts on the second: restarting a worker does not bring Redis back. One that waits for its servers at its
start is alive, and not ready (:func:`shown_as_waiting`).

Those that serve callers run an application of their own with :class:`HttpServer` on the loop of a
:class:`ServerThread`: signals and a program's own work stay out of it (:mod:`icedb_service.endpoints`).
"""

import asyncio
import json
import math
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypeVar

import uvicorn
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.units import SECOND_MS
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icedb_service.access.credentials import CERTIFICATE_NAMES, certificate_names
from icedb_service.logs import get_logger
from icedb_service.main import EXIT_FAILURE
from icedb_service.settings import ServiceSettings

T = TypeVar("T")
BACKLOG: Final = 2048
START_POLL_S: Final = 0.005
START_LIMIT_S: Final = 30
MAX_HEADER_BYTES: Final = 64 * 1024
"""What of a request may come before its headers are complete, and what may follow its body as trailers; besides what
one read of the connection brings, 256 KiB at most."""
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

STUCK_LOOK_EVERY_S: Final = 15.0
STUCK_LOOKS: Final = 4
"""After so many looks in a row that found something wrong a process ends; probes of deploy/kubernetes wait as long."""

BIND_ATTEMPTS: Final = 20
BIND_RETRY_MS: Final = 250
METRICS_TIMEOUT_MS: Final = 10_000
METRICS_CONNECTIONS: Final = 1000
METRICS_ADDRESS: Final = (
    "set ICEDB_METRICS_HOST and ICEDB_METRICS_PORT to an address of this host that is free, or the port to 0"
)

Check = Callable[[], object]
"""Returns if all is well, raises an IceDBError that says what is not."""


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """What is looked at, by name: checks of this process itself, and of what it needs.

    Attributes:
        alive: Whether this process is worth keeping.
        ready: Whether it can work now, besides.
        loop_pid: Of another process, whose loop it is that ``alive`` looks at under the name ``loop``.
    """

    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)
    loop_pid: int | None = None

    def run(self, *, with_ready: bool) -> dict[str, str]:
        """Return, for each check, ``ok`` or what is wrong."""
        checks = {**self.alive, **(self.ready if with_ready else {})}
        return {name: _run_check(check) for name, check in checks.items()}

    def report(self, path: str, *, in_words: bool) -> tuple[int, dict[str, Any]]:
        """Return the status and the body that answer ``/healthz`` or ``/readyz``.

        Args:
            path: Which of them.
            in_words: Whether to say what is wrong: that names hosts, and is for the metrics port.
        """
        found = self.run(with_ready=path.endswith("readyz"))
        is_well = all(text == "ok" for text in found.values())
        shown = {name: text if in_words or text == "ok" else "failing" for name, text in found.items()}
        return (200 if is_well else 503), {"status": "ok" if is_well else "failing", "checks": shown}


class StuckWatch:
    """Ends this process when it is not worth keeping, for Docker and systemd look whether a process is there, no more.

    Kubernetes would end it as late, by the same answers; whoever started it starts another one.
    """

    def __init__(self, health: HealthChecks, *, every_s: float = STUCK_LOOK_EVERY_S) -> None:
        self._health = health
        self._every_s = every_s
        self._stopping = threading.Event()
        threading.Thread(target=self._look, name="watch for a standstill", daemon=True).start()

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._stopping.set()

    def _look(self) -> None:
        bad_looks = 0
        while not self._stopping.wait(self._every_s):
            found = self._health.run(with_ready=False)
            problems = {name: words for name, words in found.items() if words != "ok"}
            bad_looks = bad_looks + 1 if problems else 0
            if bad_looks >= STUCK_LOOKS:
                mitigation = "it exits; its supervisor starts another one, which repeats its work"
                get_logger().error("process_stuck", problems=problems, mitigation=mitigation)
                if "loop" in problems and self._health.loop_pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(self._health.loop_pid, signal.SIGKILL)
                os._exit(EXIT_FAILURE)


@dataclass(frozen=True, slots=True)
class HttpServerOptions:
    """Where and how an HTTP server listens.

    Attributes:
        host: Address.
        port: Port; 0 takes a free one.
        address_settings: Names of the settings that say both, for the error of an address that is taken.
        max_connections: Connections at once; requests above it are refused (503).
        header_timeout_ms: How long a connection may take to send a request's headers.
        keep_alive_ms: How long an idle connection is kept.
        shutdown_ms: How long a stop waits for requests that are being answered.
        tls: The server's certificate and what it asks of clients; ``None``: plain text.
    """

    host: str
    port: int
    address_settings: str
    max_connections: int
    header_timeout_ms: int
    keep_alive_ms: int
    shutdown_ms: int
    tls: ssl.SSLContext | None = None


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """Closes connections that do not send a request's headers in time, or too many of them.

    The same deadline holds for a body that goes on after it was refused: it is read and thrown away, so that the
    producer sees the answer, but not for ever.
    """

    deadline_s: ClassVar[float] = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _is_body_open = False
    _is_in_headers = True
    _has_begun = False
    _header_bytes = 0
    _certificate_names: tuple[str, ...] = ()

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._certificate_names = certificate_names(transport.get_extra_info("peercert"))
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; what is read before headers are complete is kept, so it is bounded."""
        self._has_begun = False
        super().data_received(data)
        if self._is_in_headers and not self._has_begun:
            self._count_header(len(data))

    def on_message_begin(self) -> None:
        """Begin to wait for the headers of a further request."""
        self._arm()
        self._is_in_headers = self._has_begun = True
        self._header_bytes = 0
        super().on_message_begin()
        self.scope[CERTIFICATE_NAMES] = self._certificate_names  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which come after the body, are nobody's."""
        if self._is_body_open:
            self._count_header(len(name) + len(value))
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Leave the body to the deadline of whoever reads it."""
        self._disarm()
        self._is_in_headers, self._header_bytes = False, 0
        self._is_body_open = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Leave the rest to keep-alive."""
        self._is_body_open = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the end of a body that nobody reads any more."""
        super().on_response_complete()
        if self._is_body_open:
            self._arm()

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self._is_in_headers and (self.cycle is None or self.cycle.response_complete):
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _arm(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.deadline_s, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()


class HttpServer:
    """A started server. Use :meth:`start`."""

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self.port = int(listener.getsockname()[1])
        self._server = server
        self._serving = asyncio.create_task(server.serve(sockets=[listener]))

    @classmethod
    async def start(cls, app: ASGIApp, options: HttpServerOptions, listener: socket.socket | None = None) -> Self:
        """Listen, and return when requests are served. Call it in a thread that is not the main one.

        Raises:
            Unavailable: The address cannot be listened on.
        """
        tls = options.tls
        if listener is None:
            remedy = f"set {options.address_settings} to an address of this host that is free"
            listener = _listen(options.host, options.port, what="listen", remedy=remedy)
        bounds = {"deadline_s": options.header_timeout_ms / SECOND_MS}
        config = uvicorn.Config(
            app,
            http=type("BoundHeaderTimeoutProtocol", (HeaderTimeoutProtocol,), bounds),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=options.max_connections,
            timeout_keep_alive=math.ceil(options.keep_alive_ms / SECOND_MS),
            timeout_graceful_shutdown=math.ceil(options.shutdown_ms / SECOND_MS),
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        started = cls(uvicorn.Server(config), listener)
        while not started._server.started and not started._serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(START_POLL_S)
        return started

    async def stop(self) -> None:
        """Take no more connections, let running requests end, and stop."""
        self._server.should_exit = True
        await self._serving


class ServerThread:
    """Runs one server on an event loop of its own. Started once.

    What it runs calls :meth:`show_started` when it serves, then awaits :meth:`wait_for_stop`, then gives back what it
    holds. If it raises before it serves, :meth:`start` raises that; if it does afterwards, it is logged, and
    :meth:`is_alive` says no.

    Args:
        serve: Makes what is run; called in the thread.
        name: Of the thread and of the log event ``<name>_crashed``.
        what: The server in words, for errors: "the front end".
        start_limit_s: How long :meth:`start` waits.
        stop_limit_s: How long :meth:`stop` waits.
        is_daemon: Whether the process may end without it.
    """

    def __init__(
        self,
        serve: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        what: str,
        stop_limit_s: float,
        start_limit_s: float = START_LIMIT_S,
        is_daemon: bool = False,
    ) -> None:
        self._run_server = serve
        self._name = name
        self._what = what
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._started: Future[None] = Future()
        """Done when it serves, or never will."""
        self._stopping: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=is_daemon)

    def start(self) -> None:
        """Return when it serves.

        Raises:
            IceDBError: What the server raised before it served, e.g. Unavailable: an address is taken.
            Unavailable: It did not serve in time.
            RuntimeError: Something else went wrong; the cause tells.
        """
        self._thread.start()
        done, _ = wait((self._started,), self._start_limit_s)
        failure = self._started.exception() if done else None
        if done and failure is None:
            return
        self.stop()
        if not done:
            raise Unavailable(f"{self._what} did not start within {self._start_limit_s:g} s")
        if isinstance(failure, IceDBError):
            raise failure
        raise RuntimeError(f"{self._what} does not start") from failure

    def stop(self) -> None:
        """Let the server stop, and wait for it. May be called again, and before it was started."""
        with suppress(InvalidStateError):
            self._stopping.set_result(None)
        if self._thread.ident is not None:
            self._thread.join(self._stop_limit_s)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def show_started(self) -> None:
        """Say that it serves. Called by what is run."""
        self._started.set_result(None)

    async def wait_for_stop(self) -> None:
        """Return when somebody calls :meth:`stop`. Called by what is run."""
        await asyncio.shield(asyncio.wrap_future(self._stopping))

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - the thread's last stop; start() raises it, or it is logged
            if self._started.done():
                get_logger().exception(f"{self._name}_crashed")
            else:
                self._started.set_exception(error)
        else:
            with suppress(InvalidStateError):
                self._started.set_result(None)  # it was stopped before it served

    async def _main(self) -> None:
        if not self._stopping.done():
            await self._run_server()


def require_none(problem: str) -> None:
    """Raise Unavailable if there is a problem."""
    if problem:
        raise Unavailable(problem)


class MetricsServer(ServerThread):
    """Serves metrics and health until it is stopped, or the process ends. Made by :func:`start_metrics_server`."""

    def __init__(self, app: ASGIApp, options: HttpServerOptions, listener: socket.socket, health: HealthChecks) -> None:
        self._health = health
        self._watch: StuckWatch | None = None
        self.port = int(listener.getsockname()[1])

        async def serve() -> None:
            server = await HttpServer.start(app, options, listener)
            self.show_started()
            await self.wait_for_stop()
            await server.stop()

        super().__init__(
            serve, name="metrics", what="the server of metrics", stop_limit_s=START_LIMIT_S, is_daemon=True
        )

    def start(self) -> None:
        """Serve, and watch this process. Raises as the base class does."""
        super().start()
        if self._health.alive:
            self._watch = StuckWatch(self._health)

    def stop(self) -> None:
        """Stop, and watch this process no more."""
        if self._watch is not None:
            self._watch.stop()
        super().stop()


def start_metrics_server(
    registry: CollectorRegistry | None,
    *,
    host: str,
    port: int,
    health: HealthChecks | None = None,
    clock: Clock | None = None,
) -> MetricsServer | None:
    """Serve metrics, if there are any yet, and health in a daemon thread; port 0 serves nothing and returns ``None``.

    Ends this process when it is no longer worth keeping (:class:`StuckWatch`). Waits a few seconds for a port that a
    predecessor is about to leave.

    Raises:
        Unavailable: The address cannot be listened on.
    """
    if port == 0:
        return None
    clock = clock or SystemClock()
    attempts = Retrying(
        retry=retry_if_exception_type(Unavailable),
        stop=stop_after_attempt(BIND_ATTEMPTS),
        wait=wait_fixed(BIND_RETRY_MS / SECOND_MS),
        sleep=lambda pause_s: clock.sleep_ms(round(pause_s * SECOND_MS)),
        reraise=True,
    )
    listener = attempts(_listen, host, port, what="serve metrics", remedy=METRICS_ADDRESS)
    options = HttpServerOptions(
        host=host,
        port=port,
        address_settings="",
        max_connections=METRICS_CONNECTIONS,
        header_timeout_ms=METRICS_TIMEOUT_MS,
        keep_alive_ms=METRICS_TIMEOUT_MS,
        shutdown_ms=SECOND_MS,
    )
    health = health or HealthChecks()
    server = MetricsServer(_metrics_app(registry, health), options, listener, health)
    server.start()
    get_logger().info("metrics_served", host=host, port=port)
    return server


@contextmanager
def shown_as_waiting(settings: ServiceSettings, *, clock: Clock) -> Iterator[None]:
    """While the block waits for servers, answer ``/healthz`` well, and ``/readyz`` not; ``/metrics`` is not there yet.

    A process that is restarted because Redis or the store is away would not be there when they are back.

    Raises:
        Unavailable: On entry: the port is taken.
    """
    waiting = HealthChecks(ready={"start": lambda: require_none("it waits for Redis or the store: its log says which")})
    server = start_metrics_server(
        None, host=settings.metrics_host, port=settings.metrics_port, health=waiting, clock=clock
    )
    try:
        yield
    finally:
        if server is not None:
            server.stop()


def check_port_is_free(host: str, port: int) -> None:
    """Raise Unavailable if nobody could listen there. Port 0 is always fine."""
    if port:
        _listen(host, port, what="serve metrics", remedy=METRICS_ADDRESS).close()


def _listen(host: str, port: int, *, what: str, remedy: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is said; without it each answer on a kept connection takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot {what} on {host}:{port} ({error.strerror or error}); {remedy}") from error
    listener.setblocking(False)
    return listener


def _metrics_app(registry: CollectorRegistry | None, health: HealthChecks) -> Starlette:
    async def metrics(request: Request) -> Response:
        if registry is None:
            return PlainTextResponse("there are no metrics yet: this process waits for its servers\n", 503)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(await run_aside(lambda: encode(registry)), headers={"content-type": content_type})

    async def check(request: Request) -> Response:
        status, body = await run_aside(lambda: health.report(request.url.path, in_words=True))
        return Response(json.dumps(body), status, media_type="application/json")

    async def missing(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("try /metrics, /healthz or /readyz\n", 404)

    routes = [Route("/metrics", metrics), Route("/healthz", check), Route("/readyz", check)]
    return Starlette(routes=routes, exception_handlers={404: missing})


async def run_aside(work: Callable[[], T]) -> T:
    """Return what work gives that may block, or hang for ever: in a thread that no end of the process waits for."""
    job: Future[T] = Future()

    def run() -> None:
        if job.set_running_or_notify_cancel():
            try:
                job.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it has it
                job.set_exception(error)

    threading.Thread(target=run, name="metrics-check", daemon=True).start()
    return await asyncio.wrap_future(job)


def _run_check(check: Check) -> str:
    try:
        check()
    except IceDBError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - no more files or threads, say: an answer helps more than none
        return f"{type(error).__name__}: {error}"
    return "ok"
