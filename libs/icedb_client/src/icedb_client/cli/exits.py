"""What each exit code means, and which error gives which. Scripts rely on these: never renumber."""

from typing import Final

from icedb_log.errors import (
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

OK: Final = 0
FAILED: Final = 1
INVALID: Final = 2
NOT_FOUND: Final = 3
UNAVAILABLE: Final = 4
HALTED: Final = 5
TIMED_OUT: Final = 6
DENIED: Final = 7
INTERRUPTED: Final = 130


class TimedOut(IceDBError):
    """What was waited for did not come in time. What the caller does: look, and wait again."""


_CODES: Final[tuple[tuple[type[IceDBError], int], ...]] = (
    (TimedOut, TIMED_OUT),
    (InvalidRequest, INVALID),
    (NotFound, NOT_FOUND),
    (Unavailable, UNAVAILABLE),
    (HaltError, HALTED),
    (Unauthenticated, DENIED),
    (PermissionDenied, DENIED),
)

_BY_OUTCOME: Final[dict[str, int]] = {
    "done": OK,
    "idle": OK,
    "halted": HALTED,
    "not_found": NOT_FOUND,
    "refused": INVALID,
    "unavailable": UNAVAILABLE,
}


def exit_code(error: IceDBError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def outcome_exit_code(outcome: str) -> int:
    """Return the exit code of what a worker says became of a task."""
    return _BY_OUTCOME.get(outcome, FAILED)
