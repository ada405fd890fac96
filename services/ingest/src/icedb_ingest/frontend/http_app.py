"""The HTTP door: batches, their status, webhooks, health. Documented in ``docs/ingest.md``.

Owns the mapping between HTTP and :class:`~icedb_ingest.frontend.desk.Offer`; what is accepted is the desk's business.
"""

import string
from datetime import UTC, datetime
from functools import partial
from typing import Final

import orjson
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.errors import IceDBError, InvalidRequest, Overloaded, TableHalted
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import HttpAccess
from icedb_service.http_server import HealthChecks
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icedb_ingest.frontend.access_log import AccessLog, note
from icedb_ingest.frontend.batch_status import BatchStatuses
from icedb_ingest.frontend.counter import Counter
from icedb_ingest.frontend.desk import Accepted, Offer
from icedb_ingest.frontend.formats import (
    Compression,
    decompress,
    join_format,
    parse_content_encoding,
    parse_content_type,
)
from icedb_ingest.frontend.groups import EventGroups
from icedb_ingest.frontend.http_bodies import HeldBody, declared_bytes, held_body
from icedb_ingest.frontend.problems import problem_response
from icedb_ingest.frontend.segment import BATCH, CALLS, Credentials, Events, parse_payload, read_events

MAX_KEY_CHARS: Final = 255
CHECK_FIRST_BYTES: Final = 64 * 1024
"""A body of this size or more is not read before its table is known to take batches, nor parsed on the event loop."""
RETRY_HALTED_MS: Final = 60_000
"""When webhooks should send again what a halted table did not take."""
_PRINTABLE: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")


class HttpDoor:
    """The handlers.

    Args:
        counter: Accepts batches.
        groups: Collects webhook events.
        statuses: Looks batches up.
        credentials: What webhooks must show.
        health: What ``/healthz`` and ``/readyz`` look at.
        access: Says who may send what.
    """

    def __init__(
        self,
        counter: Counter,
        *,
        groups: EventGroups,
        statuses: BatchStatuses,
        credentials: Credentials,
        health: HealthChecks,
        access: HttpAccess,
    ) -> None:
        self._counter = counter
        self._groups = groups
        self._statuses = statuses
        self._credentials = credentials
        self._health = health
        self._access = access
        self._webhooks = HttpAccess(access.guard.at("webhook"))

    async def post_batch(self, request: Request) -> Response:
        """Accept the body as one batch."""
        table = request.path_params["table"]
        settings = self._counter.settings
        with self._counter.metrics.offered("http"):
            self._access.require(request.scope, Verb.APPEND, table)
            container = parse_content_type(request.headers.get("content-type", ""))
            compression = parse_content_encoding(request.headers.get("content-encoding", ""))
            batch_id, key = parse_key(request.headers.get("idempotency-key"))
            if key is None and batch_id is None:
                batch_id = new_batch_id(self._counter.clock)
            note(request, table=table, batch=batch_id)
            size_bytes = declared_bytes(request, max_bytes=settings.max_batch_bytes)
            if size_bytes is None or size_bytes >= CHECK_FIRST_BYTES:
                await self._counter.run(lambda: self._counter.desk.check_table(table))
            async with held_body(
                request,
                memory=self._counter.memory,
                max_bytes=settings.max_batch_bytes,
                timeout_ms=settings.frontend_body_timeout_ms,
            ) as held:
                started_ms = self._counter.clock.monotonic_ms()
                if compression and container in ("parquet", "arrow"):
                    await self._unpack(held, compression)
                    compression = ""
                offer = Offer(table, held.body, join_format(container, compression), batch_id, key)
                accepted = await self._counter.accept(offer)
            self._counter.metrics.observe_ack(
                "http", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=self._counter.clock
            )
        note(request, batch=accepted.batch_id)
        return _accepted_response(accepted)

    async def get_batch(self, request: Request) -> Response:
        """Say what became of a batch."""
        table, batch_id = request.path_params["table"], request.path_params["batch_id"]
        self._access.require(request.scope, Verb.APPEND, table)
        paths = self._counter.desk.paths(table)
        status = await self._counter.run(lambda: self._statuses.look_up(paths, batch_id))
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
        counter = self._counter
        with counter.metrics.offered("webhook"):
            note(request, table=table)
            compression = parse_content_encoding(request.headers.get("content-encoding", ""))
            is_signed = self._check_webhook(request, table)
            counter.desk.paths(table)
            async with held_body(
                request,
                memory=counter.memory,
                max_bytes=counter.settings.max_batch_bytes,
                timeout_ms=counter.settings.frontend_body_timeout_ms,
            ) as held:
                started_ms = counter.clock.monotonic_ms()
                signed = held.body
                if compression:
                    await self._unpack(held, compression)
                read = partial(self._read_events, request.headers if is_signed else None, signed, held.body, call)
                events = await counter.run(read) if len(held.body) >= CHECK_FIRST_BYTES else read()
                if is_signed:
                    self._webhooks.guard.require(self._webhooks.guard.segment(), Verb.APPEND, table)
                try:
                    accepted = await self._groups.add(table, events.lines, row_count=events.count)
                except TableHalted as error:  # such senders keep nothing after a 409, and send again after a 429
                    raise Overloaded(str(error), retry_after_ms=RETRY_HALTED_MS) from error
            counter.metrics.events.inc(events.count)
            counter.metrics.observe_ack(
                "webhook", started_ms=started_ms, size_bytes=len(events.lines), clock=counter.clock
            )
        note(request, batch=accepted.batch_id)
        return _json({"success": True, "batch_id": accepted.batch_id})

    async def get_health(self, request: Request) -> Response:
        """Answer ``/healthz`` and ``/readyz``."""
        with_ready = request.url.path == "/readyz"
        # Which checks fail, but not in whose words: these name hosts. The metrics port has them.
        found = {name: text == "ok" for name, text in self._health.run(with_ready=with_ready).items()}
        is_well = all(found.values())
        shown = {name: "ok" if is_ok else "failing" for name, is_ok in found.items()}
        return _json({"status": "ok" if is_well else "failing", "checks": shown}, 200 if is_well else 503)

    def _check_webhook(self, request: Request, table: str) -> bool:
        """Check who sends events, and return whether that is still to be seen from the signature or the write key.

        Segment cannot send bearer tokens, and others may: a bearer token says who sends, and then nothing else counts.
        """
        has_token = request.headers.get("authorization", "").lower().startswith("bearer ")
        if self._webhooks.guard.is_enforced and (has_token or not self._credentials.are_set):
            self._webhooks.require(request.scope, Verb.APPEND, table)
            return False
        return True

    def _read_events(self, headers: Headers | None, signed: bytes, body: bytes, call: str) -> Events:
        payload = parse_payload(body)
        if headers is not None:
            self._credentials.check(
                signed,
                payload,
                signature=headers.get("x-signature", ""),
                authorization=headers.get("authorization", ""),
            )
        now = datetime.fromtimestamp(self._counter.clock.now_ms() / 1000, UTC)
        received_at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        max_bytes = self._counter.settings.max_batch_bytes
        return read_events(payload, call=call, received_at=received_at, max_bytes=max_bytes)

    async def _unpack(self, held: HeldBody, compression: Compression) -> None:
        """Replace a body by its content. While that is being made, it has room for the largest there may be."""
        max_bytes = self._counter.settings.max_batch_bytes
        packed = held.body
        async with self._counter.memory.hold(max_bytes):
            held.body = await self._counter.run(lambda: decompress(packed, compression, max_bytes=max_bytes))
        held.hold.grow_to(len(packed) + len(held.body))


def make_app(door: HttpDoor, *, access_log: str, cors_origins: tuple[str, ...]) -> Starlette:
    """Return the application."""
    events = "/v1/tables/{table}/segment"
    routes = [
        Route("/v1/tables/{table}/batches", door.post_batch, methods=["POST"]),
        Route("/v1/tables/{table}/batches/{batch_id}", door.get_batch, methods=["GET"]),
        Route(events, door.post_events, methods=["POST"]),
        Route(f"{events}/v1/{{call}}", door.post_events, methods=["POST"]),
        Route("/healthz", door.get_health, methods=["GET"]),
        Route("/readyz", door.get_health, methods=["GET"]),
    ]
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


async def _answer_error(request: Request, error: Exception) -> Response:
    batch_id = request.scope.get("icedb", {}).get("batch")
    note(request, error=type(error).__name__, reason=str(error))
    return problem_response(error, members={"batch_id": batch_id} if batch_id else None)


def _accepted_response(accepted: Accepted) -> Response:
    status_url = f"/v1/tables/{accepted.table}/batches/{accepted.batch_id}"
    body = {"batch_id": accepted.batch_id, "table": accepted.table, "status": "staged", "status_url": status_url}
    return _json(body, 202, {"Location": status_url})


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), status, headers, "application/json")
