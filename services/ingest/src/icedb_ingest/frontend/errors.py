"""Kinds of refusal that only the front end knows. Each is also a kind of :mod:`icedb_log.errors`."""

from icedb_log.errors import IceDBError, InvalidRequest, Overloaded


class Busy(Overloaded):
    """This process holds as much as it may. What the caller does: send again soon, or to another replica."""


class BatchTooLarge(InvalidRequest):
    """More bytes than one batch may have. What the caller does: cut it into several batches."""


class UnsupportedMedia(InvalidRequest):
    """A content type or encoding that is not taken. What the caller does: send another one."""


class KeyReused(InvalidRequest):
    """A batch id or key was used before with other content. What the caller does: use a fresh one."""


class KeyExpired(InvalidRequest):
    """A batch id or key is too old for a retry. What the caller does: see what became of it, then use a fresh one."""


class BodyTimeout(InvalidRequest):
    """The body did not come in time. What the caller does: send faster, or less at once."""


class NotAuthorized(InvalidRequest):
    """No valid signature or key. What the caller does: correct the secret."""


class ProducerLeft(IceDBError):
    """The connection ended in the middle of a body; nothing was accepted. What the caller does: nobody is there."""
