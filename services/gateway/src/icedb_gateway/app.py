"""The ASGI application: from a request to its answer, its metrics and its line in the log.

Every answer has a request id. An error is S3's XML, or nothing for a HEAD. Never logs a query: it may hold a signature.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from icedb_log.clock import Clock
from icedb_service.http_server import HealthChecks
from icedb_service.logs import get_logger
from starlette.types import Message, Receive, Scope, Send

from icedb_gateway.authentication import Authentication
from icedb_gateway.bodies import Bodies, ClientLeft
from icedb_gateway.errors import S3Error, to_s3_error
from icedb_gateway.metrics import GatewayMetrics, Operation, outcome_of
from icedb_gateway.operations import XML, Answer, Operations
from icedb_gateway.requests import S3Request, parse_request
from icedb_gateway.settings import HEALTH_PATHS, GatewaySettings
from icedb_gateway.xml_bodies import render_error

FIRST_ERROR: Final = 400
FIRST_FAILURE: Final = 500
OK: Final = 200
NOT_READY: Final = 503
_HEADER_ENCODING: Final = "latin-1"


@dataclass(slots=True)
class _Exchange:
    """One request on its way to its answer."""

    scope: Scope
    receive: Receive
    send: Send
    request_id: str
    started_ms: int
    request: S3Request | None = None
    identity: str = ""
    operation: Operation = "other"
    status: int = 0
    code: str = ""
    answered_ms: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class S3App:
    """Answers requests.

    Args:
        operations: What can be asked for.
        authentication: Who asks.
        bodies: Sends files.
        health: What ``/healthz`` and ``/readyz`` look at.
        settings: Domain, and which requests are logged.
        metrics: What is counted.
        clock: For durations and ids.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        authentication: Authentication,
        bodies: Bodies,
        health: HealthChecks,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        clock: Clock,
    ) -> None:
        self._operations = operations
        self._authentication = authentication
        self._bodies = bodies
        self._health = health
        self._domain = settings.gateway_domain
        self._logged = settings.gateway_access_log
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["path"].removeprefix("/") in HEALTH_PATHS:
            await self._answer_probe(scope, send)
            return
        exchange = _Exchange(scope, receive, send, self._clock.new_id(), self._clock.monotonic_ms())
        outcome = "abandoned"
        try:
            await self._answer(exchange)
            outcome = outcome_of(exchange.status, exchange.code)
        except ClientLeft:
            pass
        finally:
            self._end(exchange, outcome)

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            request = parse_request(exchange.scope, domain=self._domain)
            exchange.request, exchange.operation = request, _operation_of(request)
            identity = self._authentication.recognise(request, exchange.scope)
            exchange.identity = identity.name
            answer = await self._operations.run(request, identity)
            if answer.file is None:
                await self._send_whole(exchange, answer)
            else:
                await self._send_file(exchange, answer)
        except (ClientLeft, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the last stop: becomes an answer, or breaks the connection off
            await self._fail(exchange, error)

    async def _send_file(self, exchange: _Exchange, answer: Answer) -> None:
        file = answer.file
        if file is None:
            raise AssertionError
        async with self._bodies.turn():
            opened = await self._operations.open(file)
            await self._start(exchange, answer.status, answer.headers)
            await self._bodies.send(opened, exchange.send, exchange.receive)

    async def _send_whole(self, exchange: _Exchange, answer: Answer) -> None:
        await self._start(exchange, answer.status, answer.headers)
        await exchange.send({"type": "http.response.body", "body": answer.body})

    async def _start(self, exchange: _Exchange, status: int, headers: Mapping[str, str]) -> None:
        exchange.status = status
        exchange.answered_ms = self._clock.monotonic_ms()
        every = {**headers, "x-amz-request-id": exchange.request_id, "x-amz-id-2": exchange.request_id}
        encoded = [
            (name.lower().encode(_HEADER_ENCODING), value.encode(_HEADER_ENCODING)) for name, value in every.items()
        ]
        message: Message = {"type": "http.response.start", "status": status, "headers": encoded}
        await exchange.send(message)

    async def _fail(self, exchange: _Exchange, error: Exception) -> None:
        known = to_s3_error(error)
        exchange.code = known.code
        exchange.notes["reason"] = str(error)
        if known.status >= FIRST_FAILURE and not isinstance(error, S3Error) and known.code == "InternalError":
            get_logger().exception("request_failed", request=exchange.request_id)
        if exchange.answered_ms is not None:
            # Half a file was sent: only a broken connection says that the rest does not come.
            exchange.status = known.status
            self._metrics.broken_bodies.inc()
            return
        is_head = exchange.scope["method"] == "HEAD"
        resource = "" if exchange.request is None else exchange.request.resource
        body = render_error(known.code, str(known), resource=resource, request_id=exchange.request_id)
        headers = {"Content-Type": XML, "Content-Length": "0" if is_head else str(len(body)), **known.headers}
        if _waits_to_send(exchange.scope):
            headers["Connection"] = "close"
        await self._send_whole(exchange, Answer(known.status, headers, b"" if is_head else body))

    async def _answer_probe(self, scope: Scope, send: Send) -> None:
        with_ready = scope["path"].endswith("readyz")
        # Which checks fail, but not in whose words: these name hosts. The metrics port has them.
        found = {name: text == "ok" for name, text in self._health.run(with_ready=with_ready).items()}
        is_well = all(found.values())
        shown = {name: "ok" if is_ok else "failing" for name, is_ok in found.items()}
        body = orjson.dumps(
            {"status": "ok" if is_well else "failing", "checks": shown}, option=orjson.OPT_APPEND_NEWLINE
        )
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        status = OK if is_well else NOT_READY
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _end(self, exchange: _Exchange, outcome: str) -> None:
        now_ms = self._clock.monotonic_ms()
        answered_ms = now_ms if exchange.answered_ms is None else exchange.answered_ms
        duration_ms = answered_ms - exchange.started_ms
        self._metrics.count_request(exchange.operation, outcome, duration_ms=duration_ms)
        is_fine = outcome in ("ok", "not_modified")
        if self._logged == "none" or (self._logged == "errors" and is_fine):
            return
        client = exchange.scope.get("client")
        log = get_logger().warning if outcome in ("failed", "unavailable", "slow_down") else get_logger().info
        log(
            "s3_request",
            request=exchange.request_id,
            method=exchange.scope["method"],
            path=exchange.scope["path"][:1024],
            operation=exchange.operation,
            identity=exchange.identity,
            status=exchange.status,
            outcome=outcome,
            code=exchange.code,
            duration_ms=now_ms - exchange.started_ms,
            client=client[0] if client else None,
            **exchange.notes,
        )


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
