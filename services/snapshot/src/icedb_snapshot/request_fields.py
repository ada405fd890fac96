"""Fields that several requests have, from the wire to checked values."""

import re
from fnmatch import translate
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS

MAX_STALENESS_MS: Final = 24 * 60 * 60 * 1000
MAX_GLOB_CHARS: Final = 1024


def read_max_staleness_ms(request: Any, *, default_ms: int) -> int:
    """Return how old the knowledge behind an answer may be. Raises InvalidRequest."""
    if not request.HasField("max_staleness_ms"):
        return default_ms
    value_ms = int(request.max_staleness_ms)
    if not 0 <= value_ms <= MAX_STALENESS_MS:
        raise InvalidRequest(f"max_staleness_ms {value_ms} is not allowed: use 0 (read now) to {MAX_STALENESS_MS}")
    return value_ms


def check_time_ms(name: str, value_ms: int) -> int:
    """Return a time if it is one, else raise InvalidRequest."""
    if not 0 <= value_ms <= MAX_MS:
        raise InvalidRequest(f"{name} {value_ms} is not a time: use unix milliseconds, 0 to {MAX_MS}")
    return value_ms


def read_glob(text: str) -> re.Pattern[str]:
    """Return what a glob means: ``*`` any characters, ``?`` one, ``[a-z]``, ``[!a-z]``. Raises InvalidRequest."""
    if not text or len(text) > MAX_GLOB_CHARS:
        raise InvalidRequest(f"glob of {len(text)} characters: use 1 to {MAX_GLOB_CHARS}; leave it out for all")
    return re.compile(translate(text))
