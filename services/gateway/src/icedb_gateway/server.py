"""A whole gateway: the S3 endpoint and the Iceberg catalog on one event loop, in a thread of its own.

Also the way to start one in a program. Each has a port and an ASGI application of its own, which leads from a request
to its answer, its metrics and its line in the log. Every answer of S3 has a request id; an error is S3's XML, or
nothing for a HEAD. Never logs a query: it may hold a signature. Stops in this order: not
ready any more, no new connections, running requests end.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from icedb_iceberg import publish_table
from icedb_log.clock import Clock
from icedb_log.serving.table_cache import TableCache
from icedb_log.warehouse import Warehouse
from icedb_service.endpoints import (
    FIRST_FAILURE,
    EndpointService,
    ObservedApp,
    log_request,
)
from icedb_service.http_server import HealthChecks
from icedb_service.logs import get_logger
from icedb_service.readers import BlockingWork, TableNames, TableReads
from starlette.types import ASGIApp, Receive, Scope, Send

from icedb_gateway.bodies import Bodies, ClientLeft
from icedb_gateway.errors import S3Error, to_s3_error
from icedb_gateway.iceberg_catalog import NOTES, IcebergCatalog, make_app
from icedb_gateway.list_objects import render_error
from icedb_gateway.metrics import GatewayMetrics, Operation, outcome_of_s3
from icedb_gateway.operations import XML, Answer, Operations
from icedb_gateway.published import Publish, PublishedTables, PublishLoop
from icedb_gateway.requests import Authentication, GatewayParts, S3Request, parse_request
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.vended_keys import VendedKeys

_HEADER_ENCODING: Final = "latin-1"


class _Reply:
    """One answer of S3 on its way. ``has_begun``: whether its headers were sent."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.send = send
        self.has_begun = False
        self._ids = {"x-amz-request-id": request_id, "x-amz-id-2": request_id}

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.has_begun = True
        encoded = [
            (name.lower().encode(_HEADER_ENCODING), value.encode(_HEADER_ENCODING))
            for name, value in {**headers, **self._ids}.items()
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})

    async def give(self, answer: Answer) -> None:
        """Send an answer that is no file."""
        await self.begin(answer.status, answer.headers)
        await self.send({"type": "http.response.body", "body": answer.body})


class S3App:
    """Answers requests to the S3 endpoint."""

    def __init__(self, parts: GatewayParts, bodies: Bodies) -> None:
        self._operations = Operations(parts, bodies)
        self._authentication = Authentication(parts)
        self._bodies = bodies
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what the log and the metrics say of it stands in its scope then."""
        if scope["type"] != "http":
            return
        notes = {"outcome": "abandoned", "operation": "other", "request": self._parts.clock.new_id()}
        scope[NOTES] = notes
        reply = _Reply(send, notes["request"])
        with suppress(ClientLeft):
            await self._answer(scope, receive, reply, notes)
            del notes["outcome"]

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply, notes: dict[str, Any]) -> None:
        request: S3Request | None = None
        try:
            request = parse_request(scope)
            notes["operation"] = _operation_of(request)
            sender = self._authentication.recognise(request, scope)
            notes["identity"] = sender.identity.name
            answer = await self._operations.run(request, sender)
            if answer.file is None:
                await reply.give(answer)
                return
            async with self._bodies.turn(self._parts.guard.holder(sender.identity)):
                opened = await self._operations.open(answer.file)
                await reply.begin(answer.status, answer.headers)
                await self._bodies.send(opened, reply.send, receive)
        except (ClientLeft, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the last stop: becomes an answer, or breaks the connection off
            await self._fail(error, scope, request, reply, notes)

    async def _fail(
        self, error: Exception, scope: Scope, request: S3Request | None, reply: _Reply, notes: dict[str, Any]
    ) -> None:
        known = to_s3_error(error)
        notes |= {"code": known.code, "reason": str(error)}
        if known.status >= FIRST_FAILURE and not isinstance(error, S3Error) and known.code == "InternalError":
            get_logger().exception("request_failed", request=notes["request"])
        if reply.has_begun:
            # Half a file was sent: only a broken connection says that the rest does not come.
            notes["status"] = known.status
            self._parts.metrics.broken_bodies.inc()
            return
        is_head = scope["method"] == "HEAD"
        resource = "" if request is None else request.resource
        body = render_error(known.code, str(known), resource=resource, request_id=notes["request"])
        headers = {"Content-Type": XML, "Content-Length": "0" if is_head else str(len(body)), **known.headers}
        if _waits_to_send(scope):
            headers["Connection"] = "close"
        await reply.give(Answer(known.status, headers, b"" if is_head else body))


class GatewayApp(ObservedApp):
    """Answers requests to one of the endpoints: its application, with metrics, log lines, and health beside it.

    ``event``: what a line of the log is called; ``other``: the operation of what the application says nothing of.
    """

    def __init__(
        self, app: ASGIApp, parts: GatewayParts, health: HealthChecks, *, event: str, other: Operation
    ) -> None:
        super().__init__(app, clock=parts.clock, health=health)
        self._logged = parts.settings.access_log
        self._metrics = parts.metrics
        self._event = event
        self._other = other

    def _end(self, scope: Scope, status: int, *, waited_ms: int, duration_ms: int) -> None:
        notes = {"operation": self._other, "identity": "", "code": "", **scope.get(NOTES, {})}
        status = notes.pop("status", status)
        told = notes.pop("outcome", "" if status else "abandoned")
        outcome = told or outcome_of_s3(status, notes["code"])
        self._metrics.count_request(notes["operation"], outcome, duration_ms=waited_ms)
        is_whole = outcome != "abandoned"
        which = self._logged
        log_request(
            self._event,
            scope,
            status,
            which=which,
            is_whole=is_whole,
            outcome=outcome,
            duration_ms=duration_ms,
            **notes,
        )


async def _end_task(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _waits_to_send(scope: Scope) -> bool:
    """Whether the client asked if its body is wanted: refused, it may send the next request in its place."""
    return any(name == b"expect" for name, _ in scope["headers"])


def _operation_of(request: S3Request) -> Operation:
    if request.method not in ("GET", "HEAD"):
        return "other"
    if not request.bucket and not request.key:
        return "list_buckets"
    if request.key:
        return "head" if request.method == "HEAD" else "get"
    is_about_bucket = request.method == "HEAD" or request.parameters.keys() & {"location", "versioning"}
    return "bucket" if is_about_bucket else "list"


class Gateway(EndpointService[GatewaySettings, GatewayMetrics]):
    """A gateway in this process. Start it, stop it.

    Args:
        warehouse: Where the tables lie.
        settings: Address and bounds.
        clock: Times and ids.
        metrics: What it counts.
        publish: Publishes a table for Iceberg's readers, in a thread.

    Attributes:
        port: Where S3 is served, once it is started.
        iceberg_port: Where the Iceberg catalog is.
    """

    what = "the gateway"
    endpoint = "s3"
    make_metrics = GatewayMetrics
    mitigation = "they only read"

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: GatewaySettings,
        clock: Clock,
        metrics: GatewayMetrics | None = None,
        publish: Publish = publish_table,
    ) -> None:
        self.iceberg_port = 0
        self._publish = publish
        super().__init__(warehouse, settings=settings, clock=clock, metrics=metrics)

    def addresses(self) -> dict[str, str]:
        """Return where it is served."""
        return {
            "s3": self.address_at(self.port),
            "iceberg": self.address_at(self.iceberg_port),
            "bucket": self._settings.gateway_bucket,
        }

    async def _open(self, stack: AsyncExitStack) -> None:
        settings, clock, metrics, health = self._settings, self._clock, self.metrics, self._health.checks()
        wait_ms = settings.read_wait_ms
        work = BlockingWork(max_jobs=settings.read_threads, wait_ms=wait_ms)
        stack.callback(work.close)
        tables = TableCache(
            self._warehouse,
            clock=clock,
            max_tables=settings.read_max_tables,
            wait_ms=wait_ms,
            on_refresh=metrics.observe_refresh,
        )
        stack.callback(tables.close)
        names = TableNames(self._warehouse, work=work, clock=clock, max_age_ms=10 * settings.gateway_staleness_ms)
        reads = TableReads(tables, work=work)
        secret = settings.gateway_iceberg_secret
        keys = VendedKeys(None if secret is None else secret.get_secret_value())
        parts = GatewayParts(self._warehouse, settings, metrics, clock, self._guard, reads, names, keys)
        bodies = Bodies(self._warehouse.store, settings=settings, metrics=metrics)
        stack.callback(bodies.close)
        app = GatewayApp(S3App(parts, bodies), parts, health, event="s3_request", other="other")
        server = await self._listen(app)
        stack.push_async_callback(server.stop)
        self.port = server.port
        published = PublishedTables(parts, self._publish)
        catalog = IcebergCatalog(parts, published, parts.keys, s3_port=self.port)
        app = GatewayApp(make_app(catalog), parts, health, event="iceberg_request", other="iceberg_other")
        server = await self._listen(app, "iceberg_port")
        stack.push_async_callback(server.stop)
        self.iceberg_port = server.port
        if settings.gateway_iceberg_publish_interval_ms:
            loop = asyncio.ensure_future(PublishLoop(parts, published).run())
            stack.push_async_callback(_end_task, loop)
