"""Bounds of columns as file markers have them: JSON scalars that prune files.

A bound may be wide but never wrong: what is not certain is left out. Timestamps are ISO-8601 UTC text with
microseconds and ``Z``, dates ISO text: both sort as text. Decimals are exact text with all digits of their scale, which
only their type sorts. Text is cut to 64 characters, the maximum rounded up. NaN
and infinity have no JSON form: such a column has no bounds. Pure.
"""

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from icedb_log.table.decimals import show_decimal

Scalar = str | int | float | bool | None

MAX_BOUND_CHARS: Final = 64
_SURROGATES: Final = range(0xD800, 0xE000)
_LAST_CODE_POINT: Final = 0x10FFFF


def encode_bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """Return the bounds of a column as JSON scalars, the upper one never below a value; both None if there are none."""
    if isinstance(low, date):  # a datetime is a date
        return encode_time(low), encode_time(high)
    if isinstance(low, Decimal):
        return show_decimal(low), show_decimal(high)
    return cut_bounds(low, high)


def cut_bounds(low: Scalar, high: Scalar) -> tuple[Any, Any]:
    """Return bounds that are JSON scalars already, text cut to 64 characters; both None if there are none."""
    if isinstance(low, str) and isinstance(high, str):
        upper = high if len(high) <= MAX_BOUND_CHARS else find_text_after(high[:MAX_BOUND_CHARS])
        return (None, None) if upper is None else (low[:MAX_BOUND_CHARS], upper)
    if isinstance(low, float) or isinstance(high, float):
        is_finite = low is not None and high is not None and math.isfinite(low) and math.isfinite(high)  # type: ignore[arg-type]
        return (low, high) if is_finite else (None, None)
    return (None, None) if low is None or high is None else (low, high)


def encode_time(value: date) -> str:
    """Return the text of a date, or of a naive UTC datetime."""
    return f"{value.isoformat(timespec='microseconds')}Z" if isinstance(value, datetime) else value.isoformat()


def find_text_after(prefix: str) -> str | None:
    """Return the least text that sorts after all that begin with ``prefix``, no longer; None if there is none."""
    cut = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not cut:
        return None
    following = ord(cut[-1]) + 1
    return cut[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
