"""What people type: durations and lists of names. Each refusal shows a value that would do."""

import re
from collections.abc import Iterable
from typing import Final

from icedb_log.errors import InvalidRequest

_DURATION: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,3})?)\s*(?P<unit>ms|s|min|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHOWN: Final = 80


def parse_duration(text: str, *, option: str, floor_ms: int = 0) -> int:
    """Return milliseconds. Raises InvalidRequest, also for less than ``floor_ms``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{option} {text[:_SHOWN]!r} is not a duration: write e.g. 500ms, 30s, 10m, 6h or 7d")
    duration_ms = round(float(match["number"]) * _UNITS_MS[match["unit"]])
    if duration_ms < floor_ms:
        raise InvalidRequest(
            f"{option} {text.strip()} is {duration_ms} ms, below the floor of {floor_ms} ms: give more"
        )
    return duration_ms


def maybe_duration(text: str | None, *, option: str, floor_ms: int = 0) -> int | None:
    """Return as :func:`parse_duration`; ``None`` for an option that was not given."""
    return None if text is None else parse_duration(text, option=option, floor_ms=floor_ms)


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return names from texts that hold one or several, separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
