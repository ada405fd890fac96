"""Kinds of refusal that only the front end knows, and what every error becomes: in metrics and over HTTP.

Each kind is also one of :mod:`icedb_log.errors`.
"""

from dataclasses import dataclass
from typing import Final

from icedb_log.errors import (
    CommitOutcomeUnknown,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from icedb_service.access.guard import RateLimited


class Busy(Overloaded):
    """This process holds as much as it may. What the caller does: send again soon, or to another replica."""


class BatchTooLarge(InvalidRequest):
    """More bytes than one batch may have. What the caller does: cut it into several batches."""


class UnsupportedMedia(InvalidRequest):
    """A content type or encoding that is not taken. What the caller does: send another one."""


class KeyReused(InvalidRequest):
    """A batch id or key was used before with other content. What the caller does: use a fresh one."""


class KeyExpired(InvalidRequest):
    """A batch id or key is too old for a retry. What the caller does: look up its status, then use a fresh one."""


class TableExists(InvalidRequest):
    """Another table has this name. What the caller does: change that one, or take another name."""


class BodyTimeout(InvalidRequest):
    """The body did not come in time. What the caller does: send faster, or less at once."""


class NotAuthorized(InvalidRequest):
    """No valid signature or key. What the caller does: correct the secret."""


class ProducerLeft(IceDBError):
    """The connection ended in the middle of a body; nothing was accepted. What the caller does: nobody is there."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error means."""

    kind: type[BaseException]
    outcome: str
    status: int
    code: str
    title: str


MEANINGS: Final = (
    # From the special to the general: the first that fits counts.
    Meaning(BatchTooLarge, "too_large", 413, "batch-too-large", "The batch is too large"),
    Meaning(UnsupportedMedia, "unsupported", 415, "unsupported-media", "The content type or encoding is not taken"),
    Meaning(KeyReused, "conflict", 422, "key-reused", "The key was used for other content"),
    Meaning(KeyExpired, "conflict", 409, "key-expired", "The key is too old for a retry"),
    Meaning(TableExists, "conflict", 409, "table-exists", "Another table has this name"),
    Meaning(BodyTimeout, "timeout", 408, "body-timeout", "The body did not come in time"),
    Meaning(ProducerLeft, "abandoned", 499, "producer-left", "The connection ended"),
    Meaning(NotAuthorized, "unauthorized", 401, "not-authorized", "No valid signature or key"),
    Meaning(Unauthenticated, "unauthorized", 401, "unauthenticated", "No credentials, or wrong ones"),
    Meaning(PermissionDenied, "forbidden", 403, "permission-denied", "These credentials do not allow this"),
    Meaning(InvalidRequest, "invalid", 400, "invalid-request", "The request is wrong"),
    Meaning(NotFound, "not_found", 404, "not-found", "Not found"),
    Meaning(Busy, "busy", 503, "busy", "This front end is full"),
    Meaning(RateLimited, "rate_limited", 429, "rate-limited", "Too many calls"),
    Meaning(Overloaded, "overloaded", 429, "back-pressure", "The table takes no batches just now"),
    Meaning(Unavailable, "unavailable", 503, "unavailable", "The store does not answer"),
    Meaning(CommitOutcomeUnknown, "unavailable", 503, "unavailable", "The store does not answer"),
    Meaning(HaltError, "halted", 409, "table-halted", "The table is halted"),
    Meaning(Exception, "failed", 500, "failed", "The front end failed"),
    Meaning(BaseException, "abandoned", 500, "failed", "The call was cancelled"),
)


def meaning_of(error: BaseException) -> Meaning:
    """Return what an error means; ``abandoned`` for a cancelled call."""
    return next(each for each in MEANINGS if isinstance(error, each.kind))
