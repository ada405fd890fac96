"""Events as Segment's tracking API and its webhooks send them: made into rows, and staged many requests at once.

A row is the event as it came: `properties`, `context` and `traits` stay nested (the table has them as JSON text; an
`insert_query` flattens them). Added: `receivedAt`, and `timestamp` where the event has none. Taken away: `writeKey`,
which is a credential.

Every request is answered only after the PUT of its group (I1), so a group is accepted whole or not at all. A group
stays open while it lingers and while the table's earlier groups are being staged; hence a slow store makes larger
groups, not more of them. For one event loop.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson
from icedb_log.clock import Clock, new_batch_id
from icedb_log.errors import InvalidRequest

from icedb_ingest.frontend.errors import BatchTooLarge, NotAuthorized
from icedb_ingest.frontend.staging_gate import Accepted, Offer

_KINDS: Final = ("track", "identify", "page", "screen", "group", "alias")
CALLS: Final[dict[str, str]] = {name: kind for kind in _KINDS for name in (kind, kind[0])}
"""Last part of a path of the tracking API to the event's type. One letter: as the browser SDK sends."""
BATCH: Final = "batch"
MAX_BATCH_EVENTS: Final = 10_000
_KEY: Final = "writeKey"


@dataclass(frozen=True, slots=True)
class Events:
    """What one request carries."""

    lines: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request must show; with both set, either will do, and with none set, nothing."""

    secret: bytes | None = None
    write_key: bytes | None = None

    @property
    def are_set(self) -> bool:
        """Whether requests must show anything."""
        return self.secret is not None or self.write_key is not None

    def check(self, body: bytes, payload: object, *, signature: str, authorization: str) -> None:
        """Return if the request shows one of them.

        Args:
            body: The body as it came.
            payload: The body, parsed.
            signature: Header ``X-Signature``: HMAC-SHA1 of the body in hex.
            authorization: Header ``Authorization``.

        Raises:
            NotAuthorized: It does not. Comparisons take the same time wherever they differ.
        """
        if not self.are_set:
            return
        shown = signature.strip().lower().encode()
        if self.secret is not None and shown:
            expected = hmac.new(self.secret, body, hashlib.sha1).hexdigest().encode()
            if hmac.compare_digest(expected, shown):
                return
        if self.write_key is not None:
            for key in _write_keys(payload, authorization):
                if hmac.compare_digest(self.write_key, key):
                    return
        wanted = [
            *(["a valid X-Signature"] if self.secret is not None else []),
            *(["the write key (basic authentication, or writeKey in the body)"] if self.write_key is not None else []),
        ]
        raise NotAuthorized(f"this webhook wants {' or '.join(wanted)}; the request has none that fits")


def parse_payload(body: bytes) -> Any:
    """Return a body as JSON.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error


def read_events(payload: object, *, call: str, received_at: str, max_bytes: int) -> Events:
    """Return the rows of a payload.

    Args:
        payload: One event, a list of events, or ``{"batch": [...], "sentAt": ...}``.
        call: Last part of the path: one of :data:`CALLS`, ``batch``, or empty when the events say what they are.
        received_at: Now, ISO 8601.
        max_bytes: Most bytes of the rows: each repeats what the batch shares.

    Raises:
        InvalidRequest: It is none of these, or has no event; the message names the first bad one.
        BatchTooLarge: The rows have more bytes; no more than that is ever held.
    """
    shared: dict[str, Any] = {}
    events: object = payload
    if isinstance(payload, dict) and isinstance(payload.get(BATCH), list):
        events = payload[BATCH]
        shared = {name: payload[name] for name in ("sentAt", "context", "integrations") if name in payload}
    elif call == BATCH:
        raise InvalidRequest('a batch is {"batch": [event, ...]}; this has no list called batch')
    elif isinstance(payload, dict):
        events = [payload]
    if not isinstance(events, list) or not events:
        raise InvalidRequest("the body has no event: send one JSON object, or an array of them")
    if len(events) > MAX_BATCH_EVENTS:
        raise InvalidRequest(f"{len(events)} events in one request; send at most {MAX_BATCH_EVENTS}")
    lines: list[bytes] = []
    size_bytes = 0
    for number, event in enumerate(events, start=1):
        row = _make_row(event, number, shared=shared, kind=CALLS.get(call), received_at=received_at)
        lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        size_bytes += len(lines[-1])
        if size_bytes > max_bytes:
            raise BatchTooLarge(
                f"the first {number} of {len(events)} events are rows of more than {max_bytes} bytes, as each repeats "
                "the context that they share: send fewer at once"
            )
    return Events(b"".join(lines), len(lines))


def _make_row(
    event: object, number: int, *, shared: Mapping[str, Any], kind: str | None, received_at: str
) -> dict[str, Any]:
    if not isinstance(event, dict):
        raise InvalidRequest(f"event {number} is not a JSON object")
    row = {**shared, **event, "receivedAt": received_at}
    row.pop(_KEY, None)
    if kind is not None:
        row.setdefault("type", kind)
    if not isinstance(row.get("type"), str):
        raise InvalidRequest(f"event {number} has no type (track, identify, page, screen, group or alias)")
    if not (row.get("userId") or row.get("anonymousId") or row.get("previousId")):
        raise InvalidRequest(f"event {number} has neither userId nor anonymousId")
    if row.get("timestamp") is None:
        row["timestamp"] = received_at
    return row


def _write_keys(payload: object, authorization: str) -> list[bytes]:
    keys = []
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() == "basic":
        try:
            keys.append(base64.b64decode(token, validate=True).partition(b":")[0])
        except (binascii.Error, ValueError):
            keys.append(b"")
    if isinstance(payload, dict) and isinstance(payload.get(_KEY), str):
        keys.append(payload[_KEY].encode())
    return keys


STAGED_AT_ONCE: Final = 4
"""Groups of one table on their way to the store."""

Accept = Callable[[Offer], Awaitable[Accepted]]


@dataclass(slots=True)
class _Group:
    batch_id: str
    done: asyncio.Future[Accepted]
    parts: list[bytes] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0


class EventGroups:
    """Collects events by table.

    Args:
        accept: Makes a batch durable.
        clock: Makes batch ids.
        linger_ms: How long a group waits for more.
        max_rows: Events of one group at most.
        max_bytes: Bytes of one group at most; one request alone may exceed both.
        on_group: Called for each group that was accepted.
    """

    def __init__(
        self,
        accept: Accept,
        *,
        clock: Clock,
        linger_ms: int,
        max_rows: int,
        max_bytes: int,
        on_group: Callable[[], object] = lambda: None,
    ) -> None:
        self._accept = accept
        self._clock = clock
        self._linger_s = linger_ms / 1000
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._on_group = on_group
        self._open: dict[str, _Group] = {}
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of each table, while groups of it are on their way."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, table: str, lines: bytes, *, row_count: int) -> Accepted:
        """Add events and wait until they are durable.

        Raises:
            IceDBError: The group was not accepted; the events may be durable all the same.
        """
        group = self._open.get(table)
        if group is not None and not self._has_room(group, row_count, len(lines)):
            del self._open[table]  # its task stages it as it is
            group = None
        if group is None:
            group = self._begin(table)
        group.parts.append(lines)
        group.row_count += row_count
        group.size_bytes += len(lines)
        return await asyncio.shield(group.done)

    async def finish(self) -> None:
        """Wait until every group is staged or refused."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _has_room(self, group: _Group, row_count: int, size_bytes: int) -> bool:
        return group.row_count + row_count <= self._max_rows and group.size_bytes + size_bytes <= self._max_bytes

    def _begin(self, table: str) -> _Group:
        group = _Group(new_batch_id(self._clock), asyncio.get_running_loop().create_future())
        self._open[table] = group
        task = asyncio.create_task(self._stage(table, group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return group

    async def _stage(self, table: str, group: _Group) -> None:
        places = self._places.setdefault(table, asyncio.Semaphore(STAGED_AT_ONCE))
        try:
            await asyncio.sleep(self._linger_s)
            async with places:
                if self._open.get(table) is group:
                    del self._open[table]
                offer = Offer(table, b"".join(group.parts), "ndjson", group.batch_id)
                accepted = await self._accept(offer)
        except BaseException as error:  # noqa: BLE001 - the requests that wait are told, whatever it is
            _tell(group.done, error)
        else:
            self._on_group()
            if not group.done.done():
                group.done.set_result(accepted)


def _tell(done: asyncio.Future[Accepted], error: BaseException) -> None:
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(error)
        done.exception()  # those who wait have it; if nobody does, no loop shall complain
