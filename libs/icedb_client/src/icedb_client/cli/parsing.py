"""What people type: durations, times, columns. Each refusal shows a value that would do."""

import re
from collections.abc import Iterable
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import SQL_TYPES
from icedb_log.table.time_columns import TIME_UNITS, parse_bound

from icedb_client.requests import to_ms

_DURATION: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,3})?)\s*(?P<unit>ms|s|min|m|h|d)")
_COLUMN: Final = re.compile(r"(?P<name>.+)[:=]\s*(?P<type>[A-Za-z0-9_]+)\s*(?:\(\s*(?P<unit>\w+)\s*\))?\s*", re.DOTALL)
_RANGE: Final = re.compile(
    r"(?P<name>.+?)[:=]\s*(?:(?P<low>[0-9TZ:.+-]+?)\s*\.\.\s*(?P<high>[0-9TZ:.+-]+)|off)\s*", re.DOTALL
)
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


def maybe_time(text: str | None, *, option: str) -> int | None:
    """Return unix milliseconds from ISO 8601 (UTC if it names no zone) or from digits. Raises InvalidRequest."""
    return None if text is None else to_ms(text, what=option)


def parse_columns(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """Return columns from texts ``name:TYPE`` or ``name=TYPE``. Raises InvalidRequest."""
    columns = {}
    for name, kind, unit in _read_columns(texts, option=option):
        if unit or kind.lower() in TIME_UNITS:
            raise InvalidRequest(f"{option} {name[:_SHOWN]!r}: write name:TYPE with one of {', '.join(SQL_TYPES)}")
        columns[name] = kind
    return columns


def parse_declared(texts: Iterable[str], *, option: str) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return columns as :func:`parse_columns`, and what those that are times count.

    ``ts:epoch_s`` is a BIGINT that counts seconds, ``ts:TIMESTAMP(epoch_s)`` a TIMESTAMP that takes such numbers.

    Raises:
        InvalidRequest: A text is not understood.
    """
    columns: dict[str, str] = {}
    times: dict[str, dict[str, Any]] = {}
    for name, kind, given in _read_columns(texts, option=option):
        is_number = kind.lower() in TIME_UNITS
        unit = kind.lower() if is_number else (given or "").lower() or None
        if (is_number and given) or (unit is not None and unit not in TIME_UNITS):
            raise InvalidRequest(
                f"{option} {name[:_SHOWN]!r}: write name:{'|'.join(TIME_UNITS)} for a time that is a BIGINT, or "
                f"name:TIMESTAMP({'|'.join(TIME_UNITS)})"
            )
        columns[name] = "BIGINT" if is_number else kind
        if columns[name] in ("BIGINT", "TIMESTAMP") or unit is not None:
            times[name] = {"unit": unit}
    return columns, times


def parse_ranges(texts: Iterable[str], *, option: str) -> dict[str, dict[str, int | None]]:
    """Return plausible ranges from texts ``name:FROM..TO`` or ``name:off``, by column. Raises InvalidRequest."""
    ranges: dict[str, dict[str, int | None]] = {}
    for text in texts:
        match = _RANGE.fullmatch(text)
        name = match["name"].strip() if match else ""
        try:
            if match is None or not name:
                raise ValueError("not understood")
            low, high = (None if match[end] is None else parse_bound(match[end]) for end in ("low", "high"))
        except ValueError as error:
            raise InvalidRequest(
                f"{option} {text[:_SHOWN]!r}: {error}; write e.g. ts:1990..2100, ts:2020-01-01..2030-06-30 (the end "
                "is not part of it) or ts:off"
            ) from error
        if name in ranges:
            raise InvalidRequest(f"{option} {name[:_SHOWN]!r} is given twice")
        ranges[name] = {"from_ms": low, "to_ms": high}
    return ranges


def _read_columns(texts: Iterable[str], *, option: str) -> list[tuple[str, str, str | None]]:
    found: dict[str, tuple[str, str, str | None]] = {}
    for text in texts:
        match = _COLUMN.fullmatch(text)
        name = match["name"].strip() if match else ""
        if match is None or not name:
            raise InvalidRequest(f"{option} {text[:_SHOWN]!r}: write name:TYPE with one of {', '.join(SQL_TYPES)}")
        if name in found:
            raise InvalidRequest(f"{option} {name[:_SHOWN]!r} is given twice")
        found[name] = (name, match["type"].upper(), match["unit"])
    return list(found.values())


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return names from texts that hold one or several, separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
