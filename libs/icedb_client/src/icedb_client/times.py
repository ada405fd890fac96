"""Times as callers write them, and as everything below has them: unix milliseconds."""

from datetime import UTC, date, datetime, time
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS

Time = datetime | date | str | int
"""A datetime, a date (its first moment), ISO 8601 text, or unix milliseconds. What names no zone is UTC."""

_SHOWN: Final = 80


def to_ms(value: Time, *, what: str) -> int:
    """Return unix milliseconds.

    Args:
        value: A time as callers write it. Text of digits is unix milliseconds, too.
        what: Name of the argument, for the message.

    Raises:
        InvalidRequest: Not a time, or one before 1970 or after what the log can tell.
    """
    text = value.strip() if isinstance(value, str) else ""
    if text.isdecimal() and text.isascii():
        value = int(text[: len(str(MAX_MS)) + 1])
    time_ms = _read_text(text) if isinstance(value, str) else _read_value(value)
    if time_ms is None or time_ms < 0:
        raise InvalidRequest(
            f"{what} {str(value)[:_SHOWN]!r} is not a time: write e.g. 2026-01-02T03:04:05Z, 2026-01-02, a datetime, "
            f"or unix milliseconds, 0 to {MAX_MS}"
        )
    return time_ms


def _read_value(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value <= MAX_MS else None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    if not isinstance(value, datetime):
        return None
    try:
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    except OverflowError:
        return None


def _read_text(text: str) -> int | None:
    try:
        return _read_value(datetime.fromisoformat(text))
    except ValueError:
        return None
