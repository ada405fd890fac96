"""The HTTP endpoint: batches, their status, webhooks, tables, health. Documented in ``docs/ingest.md``.

Owns the mapping between HTTP and :class:`~icedb_ingest.frontend.staging_gate.Offer`; what is accepted is the gate's
business. Bodies are bounded in bytes, in time, and in what all of them hold together. Errors become problem details
(RFC 9457) with a status, and when to try again. Each request is one structured event in the log.
"""

import asyncio
import math
import string
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import orjson
from icedb_log.clock import SystemClock, format_ms, new_batch_id, parse_uuid7_ms
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    Overloaded,
    TableHalted,
    Unauthenticated,
    Unavailable,
)
from icedb_log.formats import FORMATS, Compression, join_format
from icedb_log.units import MIB, SECOND_MS
from icedb_service.access.access_file import Identity, Verb
from icedb_service.access.credentials import HttpAccess
from icedb_service.access.guard import Holder
from icedb_service.budget import Hold
from icedb_service.endpoints import ObservedApp, log_request
from icedb_service.http_server import HealthChecks
from icedb_service.tracing import HEADER
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from icedb_ingest.frontend.async_gate import AsyncGate
from icedb_ingest.frontend.errors import (
    BatchTooLarge,
    BodyTimeout,
    Meaning,
    NotAuthorized,
    ProducerLeft,
    UnsupportedMedia,
    meaning_of,
)
from icedb_ingest.frontend.formats import decompress, measure, parse_content_encoding, parse_content_type
from icedb_ingest.frontend.openapi import describe
from icedb_ingest.frontend.staging_gate import Accepted, BatchStatuses, Offer
from icedb_ingest.frontend.tables import (
    TableChange,
    TableCreation,
    Tables,
    parse_change,
    parse_creation,
    removes_rows,
)
from icedb_ingest.frontend.webhooks import BATCH, CALLS, Credentials, EventGroups, Events, parse_payload, read_events

_NOTES: Final = "icedb"


class AccessLog(ObservedApp):
    """Logs requests when they end."""

    def __init__(self, app: ASGIApp, *, which: str) -> None:
        super().__init__(app, clock=SystemClock())
        self._which = which

    def _end(self, scope: Scope, status: int, *, waited_ms: int, duration_ms: int) -> None:
        del waited_ms
        notes = scope.get(_NOTES, {})
        log_request("http_request", scope, status, which=self._which, duration_ms=duration_ms, **notes)


def note(request: Request, **fields: Any) -> None:
    """Add fields to a request's event, and to its problem if it ends in one."""
    request.scope.setdefault(_NOTES, {}).update({name: value for name, value in fields.items() if value is not None})


MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:icedb:problem:"
RETRY_UNAVAILABLE_MS: Final = 1000


_HIDDEN_DETAILS: Final = {
    "failed": "the log of the front end has the reason",
    "unavailable": "the store did not confirm the batch; send it again with the same id or key, after a pause",
}
"""What is said instead of an error's own words, which name hosts and keys: senders may be anybody."""


_KNOWN_PATHS: Final = (
    "nothing is here for this path and method: send batches by POST to /v1/tables/{table}/batches, ask for one by GET "
    "of …/batches/{batch_id}; /openapi.json has all there is"
)


def problem_response(error: Exception, *, members: Mapping[str, Any] | None = None) -> Response:
    """Return the answer to a request that ended with an error.

    Args:
        error: What happened; one that is none of ours is answered without its text.
        members: More members of the problem, e.g. ``batch_id``.
    """
    more, headers = dict(members or {}), dict[str, str]()
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        kind = Meaning(HTTPException, "failed", error.status_code, phrase.lower().replace(" ", "-"), phrase)
        detail = _KNOWN_PATHS if error.detail == phrase else error.detail
        headers.update(error.headers or {})
    else:
        kind = meaning_of(error)
        detail = _HIDDEN_DETAILS.get(kind.code, str(error))
    if isinstance(error, Overloaded | Unavailable | CommitOutcomeUnknown):
        retry_after_ms = error.retry_after_ms if isinstance(error, Overloaded) else RETRY_UNAVAILABLE_MS
        more["retry_after_ms"] = retry_after_ms
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_ms / 1000)))
    if isinstance(error, NotAuthorized | Unauthenticated):
        scheme = "Basic" if isinstance(error, NotAuthorized) else "Bearer"
        headers["WWW-Authenticate"] = f'{scheme} realm="icedb"'
    body = {"type": URN + kind.code, "title": kind.title, "status": kind.status, "detail": detail, **more}
    return Response(orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE), kind.status, headers, MEDIA_TYPE)


STEP_BYTES: Final = MIB
"""By how much the room of a body of unknown length grows."""


def declared_bytes(request: Request, *, max_bytes: int) -> int | None:
    """Return the length that a request declares; ``None`` for a chunked body. Raises BatchTooLarge."""
    text = request.headers.get("content-length", "")
    if not text.isdigit():
        return None
    size_bytes = int(text)
    if size_bytes > max_bytes:
        raise _too_large(max_bytes)
    return size_bytes


@asynccontextmanager
async def held_body(request: Request, gate: AsyncGate, holder: Holder) -> AsyncIterator[Hold]:
    """Yield the room of a request's body, with all of it; it is given back at the end of the block.

    Args:
        request: The request.
        gate: Whose room it takes.
        holder: Who sends it.

    Raises:
        BatchTooLarge: More than the settings allow.
        BodyTimeout: It took longer than they allow.
        Busy: No room for it.
        RateLimited: Its sender holds its share.
        ProducerLeft: The connection ended first.
    """
    max_bytes, timeout_ms = gate.settings.max_batch_bytes, gate.settings.frontend_body_timeout_ms
    size_bytes = declared_bytes(request, max_bytes=max_bytes)
    room_bytes = size_bytes if size_bytes is not None else min(STEP_BYTES, max_bytes)
    async with gate.budget.hold(room_bytes, holder) as hold:
        chunks: list[bytes] = []
        read_bytes = 0
        try:
            async with asyncio.timeout(timeout_ms / SECOND_MS):
                async for chunk in request.stream():
                    read_bytes += len(chunk)
                    if read_bytes > max_bytes:
                        raise _too_large(max_bytes)
                    if read_bytes > room_bytes:
                        room_bytes = min(room_bytes + max(STEP_BYTES, len(chunk)), max_bytes)
                        hold.grow_to(room_bytes)
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyTimeout(
                f"the body did not come within {timeout_ms} ms ({read_bytes} bytes did); send it compressed, or in "
                "smaller batches"
            ) from None
        except ClientDisconnect as error:
            raise ProducerLeft(f"the connection ended after {read_bytes} bytes of the body") from error
        hold.body = b"".join(chunks)
        chunks.clear()
        yield hold


def _too_large(max_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"the body is larger than {max_bytes} bytes: cut it into several batches")


MAX_KEY_CHARS: Final = 255
CHECK_FIRST_BYTES: Final = 64 * 1024
"""A body of this size or more is not read before its table is known to take batches, nor parsed on the event loop."""
MAX_REASONS: Final = 10
"""Of events that are set aside, in the answer; all of them are in quarantine."""
RETRY_HALTED_MS: Final = 60_000
"""When senders that keep nothing after a 409 should send again what a halted table did not take."""
_PRINTABLE: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")


@contextmanager
def halts_put_off() -> Iterator[None]:
    """Answer a halted table with 429: webhooks and log shippers keep nothing after a 409, and repeat after a 429."""
    try:
        yield
    except TableHalted as error:
        raise Overloaded(str(error), retry_after_ms=RETRY_HALTED_MS) from error


class HttpEndpoint:
    """The handlers."""

    def __init__(
        self,
        gate: AsyncGate,
        *,
        groups: EventGroups,
        statuses: BatchStatuses,
        tables: Tables,
        credentials: Credentials,
        health: HealthChecks,
        access: HttpAccess,
    ) -> None:
        self._gate = gate
        self._groups = groups
        self._statuses = statuses
        self._tables = tables
        self._credentials = credentials
        self._health = health
        self._access = access
        self._webhooks = access.at("webhook")

    async def post_batch(self, request: Request) -> Response:
        """Accept the body as one batch."""
        table = request.path_params["table"]
        with self._gate.metrics.offered("http"):
            holder = self._access.guard.holder(self._access.require(request.scope, Verb.APPEND, table))
            container = parse_content_type(request.headers.get("content-type", ""))
            compression = parse_content_encoding(request.headers.get("content-encoding", ""))
            batch_id, key = parse_key(request.headers.get("idempotency-key"))
            is_keyed_by_content = asks_for_content_key(request, has_key=bool(batch_id or key))
            if key is None and batch_id is None and not is_keyed_by_content:
                batch_id = new_batch_id(self._gate.clock)
            note(request, table=table, batch=batch_id)
            size_bytes = declared_bytes(request, max_bytes=self._gate.settings.max_batch_bytes)
            with halts_put_off() if is_keyed_by_content else nullcontext():
                if size_bytes is None or size_bytes >= CHECK_FIRST_BYTES:
                    await self._gate.run(lambda: self._gate.blocking.acceptance.check(table))
                async with held_body(request, self._gate, holder) as held:
                    started_ms = self._gate.clock.monotonic_ms()
                    if compression and not FORMATS[container].is_text:
                        await self._unpack(held, compression)
                        compression = ""
                    offer = Offer(
                        table,
                        held.body,
                        join_format(container, compression),
                        batch_id,
                        key,
                        is_keyed_by_content,
                        endpoint="http",
                        traceparent=request.headers.get(HEADER),
                    )
                    accepted = await self._gate.accept(offer, holder=holder)
            self._gate.metrics.observe_ack(
                "http", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=self._gate.clock
            )
        note(request, batch=accepted.batch_id, **({"trace_id": accepted.trace_id} if accepted.trace_id else {}))
        return _accepted_response(accepted)

    async def get_terms(self, request: Request) -> Response:
        """Say whether a table takes batches, and what their senders must know of it."""
        table = request.path_params["table"]
        self._access.require(request.scope, Verb.APPEND, table)
        acceptance = self._gate.blocking.acceptance
        config = await self._gate.run(lambda: acceptance.check(table))
        warning = acceptance.pressure.find_failure(acceptance.warehouse.table(table).paths)
        body = {"table": table, "retry_window_ms": config.retry_window_ms, "now_ms": self._gate.clock.now_ms()}
        return _json(body | ({"warning": warning} if warning else {}))

    async def get_batch(self, request: Request) -> Response:
        """Return the status of a batch."""
        table, batch_id = request.path_params["table"], request.path_params["batch_id"]
        self._access.require(request.scope, Verb.APPEND, table)
        place = self._gate.blocking.acceptance.warehouse.table(table)
        status = await self._gate.run(lambda: self._statuses.look_up(place, batch_id))
        body = {"batch_id": batch_id, "table": table, "status": status.state}
        details = {
            "reason": status.reason,
            "quarantined_rows": status.quarantined_rows,
            "retried_as": status.retried_as,
            "conflicts": status.conflicts,
        }
        return _json(body | {name: value for name, value in details.items() if value is not None})

    async def post_events(self, request: Request) -> Response:
        """Accept events of Segment's tracking API or of its webhooks, in one batch with those of other requests."""
        table, call = request.path_params["table"], request.path_params.get("call", "")
        if call and call != BATCH and call not in CALLS:
            raise HTTPException(404, f"unknown call {call[:80]!r}: use {BATCH}, {', '.join(CALLS)}")
        gate = self._gate
        with gate.metrics.offered("webhook"):
            note(request, table=table)
            compression = parse_content_encoding(request.headers.get("content-encoding", ""))
            sender, is_signed = self._check_webhook(request, table)
            gate.blocking.acceptance.warehouse.table(table)
            async with held_body(request, gate, self._webhooks.guard.holder(sender)) as held:
                started_ms = gate.clock.monotonic_ms()
                signed = held.body
                if compression:
                    await self._unpack(held, compression)
                read = partial(self._read_events, request.headers if is_signed else None, signed, held.body, call)
                events = await gate.run(read) if len(held.body) >= CHECK_FIRST_BYTES else read()
                if is_signed:
                    self._webhooks.guard.require(sender, Verb.APPEND, table)
                with halts_put_off():
                    # First what is odd: if the rows are not accepted, the sender sends all of it again.
                    for lines, row_count, are_odd in (
                        (events.odd_lines, len(events.reasons), True),
                        (events.lines, events.count, False),
                    ):
                        if row_count:
                            accepted = await self._groups.add(table, lines, row_count=row_count, are_odd=are_odd)
            size_bytes = len(events.lines) + len(events.odd_lines)
            gate.metrics.observe_ack("webhook", started_ms=started_ms, size_bytes=size_bytes, clock=gate.clock)
        odd = {"set_aside": len(events.reasons), "reasons": events.reasons[:MAX_REASONS]} if events.reasons else {}
        note(request, batch=accepted.batch_id, **odd)
        return _json({"success": True, "batch_id": accepted.batch_id, **odd})

    async def list_tables(self, request: Request) -> Response:
        """Name the tables that the caller may know of."""
        identity = self._access.identify(request.scope)
        names = await self._gate.run(self._tables.list_names)
        return _json({"tables": [name for name in names if self._access.guard.can_see(identity, name)]})

    async def get_table(self, request: Request) -> Response:
        """Describe a table."""
        table = request.path_params["table"]
        self._access.require(request.scope, Verb.READ, table)
        return _json(await self._gate.run(lambda: self._tables.describe(table)))

    async def put_table(self, request: Request) -> Response:
        """Create a table, unless it is there already."""
        table = request.path_params["table"]
        creation = parse_creation(await self._read_document(request, table))
        self._require_erase(request, table, creation)
        described, is_new = await self._gate.run(lambda: self._tables.create(table, creation))
        return _json(described, 201 if is_new else 200)

    async def patch_table(self, request: Request) -> Response:
        """Change a table."""
        table = request.path_params["table"]
        change = parse_change(await self._read_document(request, table))
        self._require_erase(request, table, change)
        return _json(await self._gate.run(lambda: self._tables.change(table, change)))

    async def _read_document(self, request: Request, table: str) -> bytes:
        """Return the body of a request that creates or changes a table, once its sender is known to be allowed to."""
        holder = self._access.guard.holder(self._access.require(request.scope, Verb.MAINTAIN, table))
        note(request, table=table)
        if parse_content_type(request.headers.get("content-type", "")) != "json":
            raise UnsupportedMedia("Content-Type: a table is described in application/json")
        if parse_content_encoding(request.headers.get("content-encoding", "")):
            raise UnsupportedMedia("Content-Encoding: send the document as it is")
        async with held_body(request, self._gate, holder) as held:
            return held.body

    def _require_erase(self, request: Request, table: str, asked: TableCreation | TableChange) -> None:
        if removes_rows(asked):
            self._access.require(request.scope, Verb.ERASE, table)

    async def get_health(self, request: Request) -> Response:
        """Answer ``/healthz`` and ``/readyz``."""
        # Which checks fail, but not in whose words: these name hosts. The metrics port has them.
        status, body = self._health.report(request.url.path, in_words=False)
        return _json(body, status)

    def _check_webhook(self, request: Request, table: str) -> tuple[Identity, bool]:
        """Return who sends events, and whether that is still to be seen from the signature or the write key.

        Segment cannot send bearer tokens, and others may: a bearer token says who sends, and then nothing else counts.
        """
        has_token = request.headers.get("authorization", "").lower().startswith("bearer ")
        if self._webhooks.guard.is_enforced and (has_token or not self._credentials.are_set):
            return self._webhooks.require(request.scope, Verb.APPEND, table), False
        sender = self._webhooks.guard.segment()
        self._webhooks.hold(request.scope, sender)
        return sender, True

    def _read_events(self, headers: Headers | None, signed: bytes, body: bytes, call: str) -> Events:
        payload = parse_payload(body)
        if headers is not None:
            self._credentials.check(
                signed,
                payload.write_key,
                signature=headers.get("x-signature", ""),
                authorization=headers.get("authorization", ""),
            )
        received_at = format_ms(self._gate.clock.now_ms())
        max_bytes = self._gate.settings.max_batch_bytes
        return read_events(payload, call=call, received_at=received_at, max_bytes=max_bytes)

    async def _unpack(self, held: Hold, compression: Compression) -> None:
        """Replace a body by its content. Raises Busy: it has no room beside the body."""
        max_bytes, packed = self._gate.settings.max_batch_bytes, held.body
        # WARN: nobody waits for room while holding some. If each of several bodies waited for the room of its content,
        # all of them would, for what the others hold.
        size_bytes = await self._gate.run(lambda: measure(packed, compression, max_bytes=max_bytes))
        held.grow_to(len(packed) + size_bytes)
        held.body = await self._gate.run(lambda: decompress(packed, compression, max_bytes=size_bytes))


def make_app(endpoint: HttpEndpoint, *, access_log: str, cors_origins: tuple[str, ...]) -> Starlette:
    """Return the application."""
    events = "/v1/tables/{table}/segment"

    async def call_batches(request: Request) -> Response:
        return await (endpoint.post_batch if request.method == "POST" else endpoint.get_terms)(request)

    async def call_table(request: Request) -> Response:
        calls = {"PUT": endpoint.put_table, "PATCH": endpoint.patch_table}
        return await calls.get(request.method, endpoint.get_table)(request)

    async def get_contract(_request: Request) -> Response:
        return Response(contract, media_type="application/json")

    routes = [
        Route("/v1/tables", endpoint.list_tables, methods=["GET"]),
        Route("/v1/tables/{table}", call_table, methods=["GET", "PUT", "PATCH"]),
        Route("/v1/tables/{table}/batches", call_batches, methods=["GET", "POST"]),
        Route("/v1/tables/{table}/batches/{batch_id}", endpoint.get_batch, methods=["GET"]),
        Route(events, endpoint.post_events, methods=["POST"]),
        Route(f"{events}/v1/{{call}}", endpoint.post_events, methods=["POST"]),
        Route("/healthz", endpoint.get_health, methods=["GET"]),
        Route("/readyz", endpoint.get_health, methods=["GET"]),
        Route("/openapi.json", get_contract, methods=["GET"]),
    ]
    contract = orjson.dumps(describe(routes))
    middleware = [Middleware(AccessLog, which=access_log)]
    if cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(cors_origins),
                allow_methods=["POST"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
            )
        )
    handlers = {IceDBError: _answer_error, HTTPException: _answer_error, Exception: _answer_error}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def parse_key(value: str | None) -> tuple[str | None, str | None]:
    """Return the batch id, or the key of the producer's own, that an ``Idempotency-Key`` header says.

    A UUIDv7 is the batch's id itself. Quotes around a key, as the draft of the header has them, do not count.

    Raises:
        InvalidRequest: It is empty, too long, or has other than printable ASCII characters.
    """
    if value is None:
        return None, None
    key = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    if not 1 <= len(key) <= MAX_KEY_CHARS or not _PRINTABLE.issuperset(key):
        raise InvalidRequest(f"Idempotency-Key: use 1 to {MAX_KEY_CHARS} printable ASCII characters, or a UUIDv7")
    try:
        parse_uuid7_ms(key)
    except InvalidRequest:
        return None, key
    return key, None


def asks_for_content_key(request: Request, *, has_key: bool) -> bool:
    """Whether a batch's content is its key (``?key=content``). Raises InvalidRequest."""
    asked = request.query_params.getlist("key")
    if asked and (asked != ["content"] or has_key):
        raise InvalidRequest(
            "?key= takes only `content`, without an Idempotency-Key beside it; put a key of your own there"
        )
    return bool(asked)


async def _answer_error(request: Request, error: Exception) -> Response:
    batch_id = request.scope.get("icedb", {}).get("batch")
    note(request, error=type(error).__name__, reason=str(error))
    return problem_response(error, members={"batch_id": batch_id} if batch_id else None)


def _accepted_response(accepted: Accepted) -> Response:
    status_url = f"/v1/tables/{accepted.table}/batches/{accepted.batch_id}"
    body = {"batch_id": accepted.batch_id, "table": accepted.table, "status": "staged", "status_url": status_url}
    more = {"repeated": accepted.is_repeated, "warning": accepted.warning}
    return _json(body | {name: value for name, value in more.items() if value}, 202, {"Location": status_url})


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), status, headers, "application/json")
