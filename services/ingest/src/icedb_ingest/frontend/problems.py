"""Errors as HTTP answers: problem details (RFC 9457), the status, and when to try again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson
from icedb_log.errors import (
    CommitOutcomeUnknown,
    HaltError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from icedb_service.access.guard import RateLimited
from starlette.exceptions import HTTPException
from starlette.responses import Response

from icedb_ingest.frontend.errors import (
    BatchTooLarge,
    BodyTimeout,
    Busy,
    KeyExpired,
    KeyReused,
    NotAuthorized,
    ProducerLeft,
    UnsupportedMedia,
)

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:icedb:problem:"
CLIENT_CLOSED_REQUEST: Final = 499
RETRY_UNAVAILABLE_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Kind:
    status: int
    code: str
    title: str


_KINDS: Final[tuple[tuple[type[Exception], _Kind], ...]] = (
    # From the special to the general: the first that fits counts.
    (BatchTooLarge, _Kind(413, "batch-too-large", "The batch is too large")),
    (UnsupportedMedia, _Kind(415, "unsupported-media", "The content type or encoding is not taken")),
    (KeyReused, _Kind(422, "key-reused", "The key was used for other content")),
    (KeyExpired, _Kind(409, "key-expired", "The key is too old for a retry")),
    (BodyTimeout, _Kind(408, "body-timeout", "The body did not come in time")),
    (NotAuthorized, _Kind(401, "not-authorized", "No valid signature or key")),
    (Unauthenticated, _Kind(401, "unauthenticated", "No credentials, or wrong ones")),
    (PermissionDenied, _Kind(403, "permission-denied", "These credentials do not allow this")),
    (ProducerLeft, _Kind(CLIENT_CLOSED_REQUEST, "producer-left", "The connection ended")),
    (InvalidRequest, _Kind(400, "invalid-request", "The request is wrong")),
    (NotFound, _Kind(404, "not-found", "Not found")),
    (Busy, _Kind(503, "busy", "This front end is full")),
    (RateLimited, _Kind(429, "rate-limited", "Too many calls")),
    (Overloaded, _Kind(429, "back-pressure", "The table takes no batches just now")),
    (Unavailable, _Kind(503, "unavailable", "The store does not answer")),
    (CommitOutcomeUnknown, _Kind(503, "unavailable", "The store does not answer")),
    (HaltError, _Kind(409, "table-halted", "The table is halted")),
)
_FAILED: Final = _Kind(500, "failed", "The front end failed")
_HIDDEN: Final = {
    "failed": "the log of the front end has the reason",
    "unavailable": "the store did not confirm the batch; send it again with the same id or key, after a pause",
}
"""What is said instead of an error's own words, which name hosts and keys: senders may be anybody."""


def problem_response(error: Exception, *, members: Mapping[str, Any] | None = None) -> Response:
    """Return the answer to a request that ended with an error.

    Args:
        error: What happened; one that is none of ours is answered without its text.
        members: More members of the problem, e.g. ``batch_id``.
    """
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        kind = _Kind(error.status_code, phrase.lower().replace(" ", "-"), phrase)
        return _respond(kind, error.detail, members or {}, dict(error.headers or {}))
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), _FAILED)
    more = dict(members or {})
    headers: dict[str, str] = {}
    retry_after_ms = _retry_after_ms(error)
    if retry_after_ms is not None:
        more["retry_after_ms"] = retry_after_ms
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_ms / 1000)))
    if isinstance(error, NotAuthorized):
        headers["WWW-Authenticate"] = 'Basic realm="icedb"'
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="icedb"'
    return _respond(kind, _HIDDEN.get(kind.code, str(error)), more, headers)


def _retry_after_ms(error: Exception) -> int | None:
    if isinstance(error, Overloaded):
        return error.retry_after_ms
    return RETRY_UNAVAILABLE_MS if isinstance(error, Unavailable | CommitOutcomeUnknown) else None


def _respond(kind: _Kind, detail: str, members: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    body = {"type": URN + kind.code, "title": kind.title, "status": kind.status, "detail": detail, **members}
    return Response(orjson.dumps(body), kind.status, headers, MEDIA_TYPE)
