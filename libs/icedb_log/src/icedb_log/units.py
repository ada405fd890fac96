"""Units of time and size: what names that end in ``_ms`` and ``_bytes`` are made of, and durations in words."""

import re
from typing import Final

from icedb_log.errors import InvalidRequest

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

_DURATION: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,3})?)\s*(?P<unit>ms|s|min|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_SHOWN: Final = 80


def parse_duration(text: str, *, option: str, floor_ms: int = 0) -> int:
    """Return milliseconds of ``30s``, ``1.5 h`` or the like. Raises InvalidRequest, also for less than ``floor_ms``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{option} {text[:_SHOWN]!r} is not a duration: write e.g. 500ms, 30s, 10m, 6h or 7d")
    duration_ms = round(float(match["number"]) * _UNITS_MS[match["unit"]])
    if duration_ms < floor_ms:
        raise InvalidRequest(
            f"{option} {text.strip()} is {duration_ms} ms, below the floor of {floor_ms} ms: give more"
        )
    return duration_ms
