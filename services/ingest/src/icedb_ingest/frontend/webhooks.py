"""Events as Segment's tracking API and its webhooks send them: made into rows, and staged many requests at once.

A row is the event as it came, digit for digit: `properties`, `context` and `traits` stay nested (the table has them as
JSON text; an `insert_query` flattens them). Added: `receivedAt`, and `timestamp` where the event has none. Taken away:
`writeKey`, which is a credential.

Such senders drop what is answered with 400. So an event that is none is accepted beside the others, in a batch of its
own, as a line that the flush puts into quarantine with the reason: only a commit refuses rows (I5).

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
from icedb_log.json_text import cut_array, cut_members, find_problem, is_balanced, join_members, scan_array
from icedb_log.units import MIB

from icedb_ingest.frontend.errors import BatchTooLarge, NotAuthorized
from icedb_ingest.frontend.staging_gate import Accepted, Offer

_KINDS: Final = ("track", "identify", "page", "screen", "group", "alias")
CALLS: Final[dict[str, str]] = {name: kind for kind in _KINDS for name in (kind, kind[0])}
"""Last part of a path of the tracking API to the event's type. One letter: as the browser SDK sends."""
BATCH: Final = "batch"
MAX_BATCH_EVENTS: Final = 10_000
_KEY: Final = "writeKey"
_TIME: Final = "timestamp"

Member = tuple[bytes, bytes]
"""Name and value of an event, as JSON."""


def _name(name: str) -> bytes:
    return b'"%b"' % name.encode()


_SHARED: Final = frozenset(map(_name, ("sentAt", "context", "integrations")))
_REPLACED: Final = frozenset(map(_name, (_KEY, "receivedAt")))
_USERS: Final = tuple(map(_name, ("userId", "anonymousId", "previousId")))


@dataclass(frozen=True, slots=True)
class Events:
    """What one request carries.

    Attributes:
        lines: Its events as rows.
        count: How many.
        odd_lines: Lines that the flush will put into quarantine.
        reasons: What is wrong with each of them.
    """

    lines: bytes
    count: int
    odd_lines: bytes = b""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request must show; with both set, either will do, and with none set, nothing."""

    secret: bytes | None = None
    write_key: bytes | None = None

    @property
    def are_set(self) -> bool:
        """Whether requests must show anything."""
        return self.secret is not None or self.write_key is not None

    def check(self, body: bytes, write_key: str, *, signature: str, authorization: str) -> None:
        """Return if the request shows one of them.

        Args:
            body: The body as it came.
            write_key: What the body says; empty: nothing.
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
            for key in _write_keys(write_key, authorization):
                if hmac.compare_digest(self.write_key, key):
                    return
        wanted = [
            *(["a valid X-Signature"] if self.secret is not None else []),
            *(["the write key (basic authentication, or writeKey in the body)"] if self.write_key is not None else []),
        ]
        raise NotAuthorized(f"this webhook wants {' or '.join(wanted)}; the request has none that fits")


@dataclass(frozen=True, slots=True)
class Payload:
    """A body, taken apart.

    Attributes:
        events: The text of each event.
        shared: Members that each event gets which has none of that name.
        write_key: The credential in it; empty: it has none.
        has_batch: Whether it has a list called ``batch``.
    """

    events: list[bytes]
    shared: list[Member]
    write_key: str
    has_batch: bool


def parse_payload(body: bytes) -> Payload:
    """Take a body apart: one event, a list of events, or ``{"batch": [...], "sentAt": ...}``.

    Raises:
        InvalidRequest: It is none of these.
    """
    text = body.strip()
    elements = cut_array(text)
    if elements is not None:
        return Payload(elements, [], "", has_batch=False)
    if not is_balanced(text):
        raise InvalidRequest("the body is not JSON: send one event as a JSON object, or an array of them")
    members = cut_members(text)
    if members is None:
        return Payload(scan_array(text), [], "", has_batch=False)
    named = dict(members)
    key = _read(named.get(_name(_KEY)))
    write_key = key if isinstance(key, str) else ""
    batch = named.get(_name(BATCH), b"")
    if not batch.startswith(b"["):
        return Payload([text], [], write_key, has_batch=False)
    events = cut_array(batch)
    shared = [member for member in members if member[0] in _SHARED]
    return Payload(scan_array(batch) if events is None else events, shared, write_key, has_batch=True)


def read_events(payload: Payload, *, call: str, received_at: str, max_bytes: int) -> Events:
    """Return the rows of a payload.

    Args:
        payload: See :func:`parse_payload`.
        call: Last part of the path: one of :data:`CALLS`, ``batch``, or empty when the events say what they are.
        received_at: Now, ISO 8601.
        max_bytes: Most bytes of the rows: each repeats what the batch shares.

    Raises:
        InvalidRequest: It has no event, or too many.
        BatchTooLarge: The rows have more bytes; no more than that is ever held.
    """
    if call == BATCH and not payload.has_batch:
        raise InvalidRequest('a batch is {"batch": [event, ...]}; this has no list called batch')
    events = payload.events
    if not events:
        raise InvalidRequest("the body has no event: send one JSON object, or an array of them")
    if len(events) > MAX_BATCH_EVENTS:
        raise InvalidRequest(f"{len(events)} events in one request; send at most {MAX_BATCH_EVENTS}")
    lines: list[bytes] = []
    odd_lines: list[bytes] = []
    reasons: list[str] = []
    size_bytes = 0
    for number, event in enumerate(events, start=1):
        line, problem = _make_row(event, shared=payload.shared, kind=CALLS.get(call), received_at=received_at)
        if problem:
            reasons.append(f"event {number} {problem}")
            odd_lines.append(_explain(line, reasons[-1]))
            line = odd_lines[-1]
        else:
            lines.append(line)
        size_bytes += len(line) + 1
        if size_bytes > max_bytes:
            raise BatchTooLarge(
                f"the first {number} of {len(events)} events are rows of more than {max_bytes} bytes, as each repeats "
                "the context that they share: send fewer at once"
            )
    return Events(_join_lines(lines), len(lines), _join_lines(odd_lines), tuple(reasons))


def _join_lines(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _make_row(event: bytes, *, shared: list[Member], kind: str | None, received_at: str) -> tuple[bytes, str]:
    """Return the line of an event, and what is wrong with it; nothing, if it is good."""
    members = cut_members(event)
    if members is None:
        return event, "is not a JSON object"
    names = {name for name, _ in members}
    row = [member for member in shared if member[0] not in names]
    row += [member for member in members if member[0] not in _REPLACED]
    if kind is not None and _name("type") not in names:
        row.append((_name("type"), orjson.dumps(kind)))
    row.append((_name("receivedAt"), orjson.dumps(received_at)))
    named = dict(row)
    if named.get(_name(_TIME), b"null") == b"null":
        row = [member for member in row if member[0] != _name(_TIME)]
        row.append((_name(_TIME), orjson.dumps(received_at)))
    line = join_members(row)
    problem = find_problem(line)
    return line, f"cannot be read as JSON ({problem})" if problem else _find_fault(named, members)


def _find_fault(named: Mapping[bytes, bytes], members: list[Member]) -> str:
    if len(dict(members)) < len(members):
        return "has a name twice; which value counts is not defined"
    if not isinstance(_read(named.get(_name("type"))), str):
        return "has no type (track, identify, page, screen, group or alias)"
    if not any(_read(named.get(name)) for name in _USERS):
        return "has neither userId nor anonymousId"
    return ""


def _explain(line: bytes, reason: str) -> bytes:
    """Return the line that the flush refuses with this reason; what is no JSON it refuses in its own words."""
    if b"\n" in line or b"\r" in line:  # in the middle of a text, where JSON has none
        return orjson.dumps([reason, line.decode(errors="replace")])
    return b"[%b,%b]" % (orjson.dumps(reason), line)


def _read(text: bytes | None) -> Any:
    """Return a value; None if it is none, or cannot be read."""
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _write_keys(write_key: str, authorization: str) -> list[bytes]:
    keys = []
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() == "basic":
        try:
            keys.append(base64.b64decode(token, validate=True).partition(b":")[0])
        except (binascii.Error, ValueError):
            keys.append(b"")
    if write_key:
        keys.append(write_key.encode())
    return keys


STAGED_AT_ONCE: Final = 4
"""Groups of one table on their way to the store."""
GROUP_LINGER_MS: Final = 20
"""How long events wait for others to become one batch with them; the batch waits for other batches after that."""
MAX_GROUP_ROWS: Final = 5000
MAX_GROUP_BYTES: Final = 4 * MIB
"""Of the events of one group; a single request may have more."""

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
    """

    def __init__(
        self,
        accept: Accept,
        *,
        clock: Clock,
        linger_ms: int,
        max_rows: int,
        max_bytes: int,
    ) -> None:
        self._accept = accept
        self._clock = clock
        self._linger_s = linger_ms / 1000
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._open: dict[tuple[str, bool], _Group] = {}
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of each table, while groups of it are on their way."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, table: str, lines: bytes, *, row_count: int, are_odd: bool = False) -> Accepted:
        """Add events and wait until they are durable; those that the flush will refuse are in batches of their own.

        Raises:
            IceDBError: The group was not accepted; the events may be durable all the same.
        """
        key = table, are_odd
        group = self._open.get(key)
        if group is not None and not self._has_room(group, row_count, len(lines)):
            del self._open[key]  # its task stages it as it is
            group = None
        if group is None:
            group = self._begin(key)
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

    def _begin(self, key: tuple[str, bool]) -> _Group:
        group = _Group(new_batch_id(self._clock), asyncio.get_running_loop().create_future())
        self._open[key] = group
        task = asyncio.create_task(self._stage(key, group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return group

    async def _stage(self, key: tuple[str, bool], group: _Group) -> None:
        table, are_odd = key
        places = self._places.setdefault(table, asyncio.Semaphore(STAGED_AT_ONCE))
        try:
            await asyncio.sleep(self._linger_s)
            async with places:
                if self._open.get(key) is group:
                    del self._open[key]
                offer = Offer(table, b"".join(group.parts), "ndjson", group.batch_id, is_odd=are_odd)
                accepted = await self._accept(offer)
        except BaseException as error:  # noqa: BLE001 - the requests that wait are told, whatever it is
            _tell(group.done, error)
        else:
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
