"""A whole console: its pages on an event loop of their own thread, and the figures behind them. Start it, stop it.

Stops in this order: not ready any more, streams end, queries are killed, running requests end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unauthenticated
from icedb_log.serving.statuses import StatusReader
from icedb_log.serving.table_cache import TableCache
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_service.access.guard import AccessGuard
from icedb_service.endpoints import FIRST_FAILURE, EndpointService, ObservedApp, log_request
from icedb_service.http_server import HealthChecks
from icedb_service.logs import get_logger
from icedb_service.readers import BlockingWork, TableNames
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from icedb_console import query_api
from icedb_console.actions import Actions
from icedb_console.figures import Figures
from icedb_console.metrics import ConsoleMetrics
from icedb_console.pages import NOTES, SEE_OTHER, PageParts, Pages, title_of
from icedb_console.queries import Queries
from icedb_console.rendering import HEADERS, Renderer, answer_static
from icedb_console.sessions import Sessions
from icedb_console.settings import ConsoleSettings
from icedb_console.table_facts import FactsReader

NAMES_AGE_MS: Final = 5 * SECOND_MS

Handler = Callable[[Request], Awaitable[Response]]


class ConsoleApp(ObservedApp):
    """Answers requests: the pages, with headers, metrics, log lines, and health beside them."""

    headers = HEADERS

    def __init__(self, parts: PageParts, health: HealthChecks) -> None:
        super().__init__(_make_app(Pages(parts), parts), clock=parts.clock, health=health)
        self._parts = parts

    def _end(self, scope: Scope, status: int, *, waited_ms: int, duration_ms: int) -> None:
        del duration_ms  # a page that is kept up to date is a request that goes on
        notes: dict[str, Any] = scope.get(NOTES, {"page": "other"})
        self._parts.metrics.count_request(notes["page"], status or FIRST_FAILURE)
        which = self._parts.settings.access_log
        log_request("console_request", scope, status, which=which, duration_ms=waited_ms, **notes)


def _make_app(pages: Pages, parts: PageParts) -> Starlette:
    def route(path: str, handler: Handler, *methods: str) -> Route:
        show = show_problem if path == query_api.PATH else show_error

        async def answer(request: Request) -> Response:
            try:
                parts.sessions.check_host(request)
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - what nobody thought of is a page, too
                return await show(request, error)

        return Route(path, answer, methods=list(methods or ("GET",)))

    async def static(request: Request) -> Response:
        return answer_static(request, str(request.path_params["name"]))

    async def icon(request: Request) -> Response:
        return answer_static(request, "icon.svg")

    async def show_error(request: Request, error: Exception) -> Response:
        if isinstance(error, Unauthenticated) and request.method == "GET" and request.url.path != "/live":
            return RedirectResponse("/sign-in", SEE_OTHER)
        error = _explain(request, error)
        return parts.renderer.answer(
            request,
            "error.html",
            code=query_api.status_of(error),
            identity=None,
            is_enforced=parts.sessions.guard.is_enforced,
            title=title_of(error),
            message=str(error),
        )

    async def show_problem(request: Request, error: Exception) -> Response:
        return query_api.answer_problem(_explain(request, error))

    table = "/tables/{table:str}"
    routes = [
        route("/", pages.overview),
        route("/workers", pages.workers),
        route("/query", pages.query, "GET", "POST"),
        route(query_api.PATH, pages.run_query, "POST"),
        route("/live", pages.live),
        route("/sign-in", pages.sign_in, "GET", "POST"),
        route("/sign-out", pages.sign_out, "POST"),
        route(table, pages.table),
        route(f"{table}/columns", pages.columns),
        route(f"{table}/quarantine/{{batch:str}}", pages.quarantined),
        route(f"{table}/do/{{action:str}}", pages.action, "GET", "POST"),
        route("/static/{name:str}", static),
        route("/favicon.ico", icon),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: show_error})


def _explain(request: Request, error: Exception) -> IceDBError:
    """Return an error in words that anybody may read; one that nobody thought of goes to the log."""
    if isinstance(error, HTTPException):
        return NotFound("there is no such page") if error.status_code != 405 else InvalidRequest(error.detail)  # noqa: PLR2004
    if isinstance(error, IceDBError):
        return error
    get_logger().exception("request_failed", path=request.url.path[:1024], exc_info=error)
    return IceDBError("something went wrong here; the log says what")


class Console(EndpointService[ConsoleSettings, ConsoleMetrics]):
    """A console in this process. Start it, stop it."""

    what = "the console"
    endpoint = "http"
    make_metrics = ConsoleMetrics
    mitigation = "they only read, or have been asked twice"

    def addresses(self) -> dict[str, str]:
        """Return where it is served."""
        return {"address": self.address_at(self.port)}

    async def _open(self, stack: AsyncExitStack) -> None:
        parts = open_parts(
            self._warehouse,
            settings=self._settings,
            clock=self._clock,
            guard=self._guard,
            metrics=self.metrics,
            stack=stack,
        )
        parts.figures.start()
        server = await self._listen(ConsoleApp(parts, self._health.checks()))
        stack.push_async_callback(server.stop)
        stack.callback(parts.closing.set)
        self.port = server.port


def open_parts(
    warehouse: Warehouse,
    *,
    settings: ConsoleSettings,
    clock: Clock,
    guard: AccessGuard,
    metrics: ConsoleMetrics,
    stack: AsyncExitStack,
) -> PageParts:
    """Return what pages share, on the running event loop; the stack ends it. Nothing is started yet."""
    wait_ms, threads = settings.read_wait_ms, settings.read_threads
    work = BlockingWork(max_jobs=threads, wait_ms=wait_ms)
    stack.callback(work.close)
    most = settings.read_max_tables
    tables = TableCache(warehouse, clock=clock, max_tables=most, wait_ms=wait_ms, on_refresh=lambda _ms: None)
    stack.callback(tables.close)
    statuses = StatusReader(warehouse, tables, clock=clock)
    figures = Figures(
        warehouse,
        statuses,
        clock=clock,
        interval_ms=settings.console_refresh_ms,
        threads=max(1, threads // 2),
    )
    stack.callback(figures.stop)
    queries = Queries(settings, metrics=metrics, clock=clock)
    stack.callback(queries.close)
    return PageParts(
        warehouse,
        settings,
        clock,
        metrics,
        Sessions(guard, settings),
        Renderer(clock),
        figures,
        FactsReader(statuses, figures, work=work, clock=clock, max_tables=most),
        TableNames(warehouse, work=work, clock=clock, max_age_ms=NAMES_AGE_MS),
        work,
        queries,
        Actions(warehouse, settings=settings, clock=clock, on_redis_failure=metrics.dependencies.counter_of("queue")),
        asyncio.Event(),
    )
