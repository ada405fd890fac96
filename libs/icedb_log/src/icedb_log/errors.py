"""The errors of IceDB, by what the caller has to do.

Every error that a public function of this project raises is one of these. A message names what went
wrong, where (table, key, column, value), and the remedy. The gRPC interceptor and the Celery task base
map the classes below to status codes and to retry or halt; nothing else may do so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SHOWN_CHARS: Final = 500


class IceDBError(Exception):
    """The base of all errors of this project. What the caller does: look at the subclass."""


class InvalidRequest(IceDBError):
    """The call itself is wrong. What the caller does: fix the call; the same call fails again."""


class BelowHorizon(InvalidRequest):
    """Time travel to a time whose log files are deleted (R3). What the caller does: ask for a newer time."""


class Unauthenticated(IceDBError):
    """No credentials, or wrong ones. What the caller does: present a valid token, certificate or key."""


class PermissionDenied(IceDBError):
    """These credentials do not allow this. What the caller does: ask whoever keeps the policy."""


class NotFound(IceDBError):
    """A named thing is not there. What the caller does: check the name, or create it."""


class TableNotFound(NotFound):
    """A table is not there, or its caller may not know that it is. What the caller does: check the name, or create it.

    Attributes:
        table: The name that was asked for.
    """

    def __init__(self, message: str, *, table: str = "") -> None:
        super().__init__(message)
        self.table = table


class Unavailable(IceDBError):
    """A server did not answer, or asked for patience. What the caller does: try again later.

    Attributes:
        retry_after_ms: When the server asked to be called again; ``None``: it did not say.
    """

    retry_after_ms: int | None = None


class Overloaded(Unavailable):
    """A table takes no batches just now (back-pressure). What the caller does: send again after ``retry_after_ms``."""

    retry_after_ms: int

    def __init__(self, message: str, *, retry_after_ms: int = 10_000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class JobCrashed(Unavailable):
    """A job failed in a way that nobody foresaw, or ended the process that did it: its content may be the cause.

    What the caller does: try less of the content, at last one item alone, and refuse that one (I5).
    """


class StoreRefused(Unavailable):
    """No permission, no space, no such bucket, a certificate that is not trusted; nothing was accepted.

    What the caller does: tell a person; waiting alone changes nothing.
    """


class CommitConflict(IceDBError):
    """Somebody else changed what this call was built on. What the caller does: read again, plan again."""


class PreconditionFailed(CommitConflict):
    """A conditional write or read met another state. What the caller does: read the object and decide (W2)."""


class CommitOutcomeUnknown(IceDBError):
    """A write may or may not have landed. What the caller does: read back; never delete outputs."""


class Fenced(IceDBError):
    """Another owner took the fence. What the caller does: stop and drop the job; the new owner goes on."""


class HaltError(IceDBError):
    """A table cannot be worked on safely. What the caller does: stop, set the halted gauge, call a person."""


class TableHalted(HaltError):
    """A worker halted on a table, which takes no batches until that is mended. What the caller does: call a person."""


class CorruptLog(HaltError):
    """A log file is malformed (S3). What the caller does: halt; a person inspects the named key and line."""


class SchemaConflict(HaltError):
    """One column has two types (S2). What the caller does: halt; a person decides which log file is wrong."""


class UnsupportedFormat(HaltError):
    """Written by a newer version, or a store that cannot keep our promises. What the caller does: upgrade."""


class InvariantViolated(HaltError):
    """A commit would break a rule of the protocol. What the caller does: nothing was written; report a bug."""


@contextmanager
def crashes_told(what: str) -> Iterator[None]:
    """Turn an error that is none of ours into JobCrashed, or into Unavailable if the machine is to blame.

    Args:
        what: What was at work, in words.
    """
    try:
        yield
    except IceDBError:
        raise
    except OSError as error:
        if error.errno is None:  # of a reader of bytes, not of the system
            raise JobCrashed(_describe(what, error)) from error
        raise Unavailable(f"{what}: the machine does not serve it: {error}"[:_SHOWN_CHARS]) from error
    except Exception as error:
        raise JobCrashed(_describe(what, error)) from error


def _describe(what: str, error: Exception) -> str:
    """Return what a crash was, in one line, and where: nobody has the traceback of another process."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    first = (str(error).strip().splitlines() or [""])[0][:_SHOWN_CHARS]
    where = "" if place is None else f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})"
    return f"{what}: {type(error).__name__}: {first}{where}"
