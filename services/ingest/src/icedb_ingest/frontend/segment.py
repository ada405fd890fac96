"""Events as Segment's tracking API and its webhooks send them, made into rows. Pure.

A row is the event as it came: `properties`, `context` and `traits` stay nested (the table has them as JSON text; an
`insert_query` flattens them). Added: `receivedAt`, and `timestamp` where the event has none. Taken away: `writeKey`,
which is a credential.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_log.errors import InvalidRequest

from icedb_ingest.frontend.errors import BatchTooLarge, NotAuthorized

CALLS: Final[dict[str, str]] = {
    "track": "track",
    "t": "track",
    "identify": "identify",
    "i": "identify",
    "page": "page",
    "p": "page",
    "screen": "screen",
    "s": "screen",
    "group": "group",
    "g": "group",
    "alias": "alias",
    "a": "alias",
}
"""Last part of a path of the tracking API to the event's type. One letter: as the browser SDK sends."""
BATCH: Final = "batch"
MAX_BATCH_EVENTS: Final = 10_000
_KEY: Final = "writeKey"


@dataclass(frozen=True, slots=True)
class Events:
    """What one request carries.

    Attributes:
        lines: NDJSON, each line ended.
        count: How many events.
    """

    lines: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request must show; with both set, either will do, and with none set, nothing.

    Attributes:
        secret: Key of the signature.
        write_key: Of the SDKs.
    """

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
