"""Columns that are times: which unit their numbers count, and which times are plausible. Pure.

A ``TIMESTAMP`` column takes numbers as unix milliseconds, or in the unit that is declared for it. A ``BIGINT`` with a
unit is a time that is stored as the number it is. Either may have a plausible range: what lies outside is a bad row,
because seconds that are taken for milliseconds lie in January 1970, and nothing else would ever say so.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from icedb_log.errors import InvalidRequest

TimeUnit = Literal["epoch_s", "epoch_ms", "epoch_us"]
TIME_UNITS: Final[tuple[TimeUnit, ...]] = get_args(TimeUnit)
DEFAULT_UNIT: Final = "epoch_ms"
"""What a number in a ``TIMESTAMP`` column is if nothing is declared."""

TICK_US: Final[Mapping[str, int]] = {"epoch_s": 1_000_000, "epoch_ms": 1000, "epoch_us": 1}
"""Microseconds of one tick of each unit."""

MIN_TIME_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z: what has a four-digit year sorts as text and fits every reader."""
MAX_TIME_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""

PLAUSIBLE_FROM_MS: Final = 631_152_000_000
"""1990-01-01T00:00:00Z, where the plausible range of a new table begins if nothing else is said."""
PLAUSIBLE_TO_MS: Final = 4_102_444_800_000
"""2100-01-01T00:00:00Z, where it ends."""

RANGED_TYPES: Final = ("BIGINT", "DATE", "TIMESTAMP")

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - values of this project are naive UTC
TIME_WORDS: Final[Mapping[str, str]] = {
    "epoch_s": "seconds",
    "epoch_ms": "milliseconds",
    "epoch_us": "microseconds",
    "epoch_ns": "nanoseconds",
}
_WHOLE: Final = re.compile(r"-?[0-9]{1,40}")
_RANGE: Final = re.compile(
    r"(?P<name>.+?)[:=]\s*(?:(?P<low>[0-9TZ:.+-]+?)\s*\.\.\s*(?P<high>[0-9TZ:.+-]+)|off)\s*", re.DOTALL
)
_SHOWN: Final = 80
_MS: Final = timedelta(milliseconds=1)
_US_PER_MS: Final = 1000
_NS_PER_US: Final = 1000


class TimeColumn(BaseModel):
    """What a table says of the times in one column."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: TimeUnit | None = None
    """What its numbers count since 1970-01-01T00:00Z; ``None``: milliseconds, of a ``TIMESTAMP``."""
    from_ms: Annotated[int, Field(ge=MIN_TIME_MS, le=MAX_TIME_MS)] | None = None
    """The first plausible time, unix ms, whatever the unit; ``None``: every time of the years 1 to 9999 is."""
    to_ms: Annotated[int, Field(ge=MIN_TIME_MS, le=MAX_TIME_MS + 1)] | None = None
    """Before which plausible times lie, unix ms."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.from_ms is None) != (self.to_ms is None):
            raise ValueError("a plausible range has two ends: give from_ms and to_ms, or neither")
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise ValueError(f"from_ms < to_ms must hold, but {self.from_ms} >= {self.to_ms}")
        return self

    def find_bounds(self, sql_type: str) -> tuple[Any, Any] | None:
        """Return the first good value of a column, and the first that is too large; ``None`` if every one is good.

        Of a BIGINT they are numbers of its unit, of a TIMESTAMP naive UTC datetimes, of a DATE days. The second is
        ``None`` where Python's calendar has no such day.
        """
        if sql_type == "BIGINT":
            if self.unit is None:
                return None
            tick_us = TICK_US[self.unit]
            start_ms = MIN_TIME_MS if self.from_ms is None else self.from_ms
            end_ms = MAX_TIME_MS + 1 if self.to_ms is None else self.to_ms
            return -(-start_ms * _US_PER_MS // tick_us), -(-end_ms * _US_PER_MS // tick_us)
        if self.from_ms is None or self.to_ms is None:
            return None
        low = _EPOCH + self.from_ms * _MS
        high = None if self.to_ms > MAX_TIME_MS else _EPOCH + self.to_ms * _MS
        if sql_type != "DATE":
            return low, high
        is_whole_day = self.from_ms % 86_400_000 == 0
        first = low.date() if is_whole_day else low.date() + timedelta(days=1)
        if high is None:
            return first, None
        return first, high.date() if self.to_ms % 86_400_000 == 0 else high.date() + timedelta(days=1)

    def is_good(self, value: Any, sql_type: str) -> bool:
        """Return whether a value of the column, as Python has it, is a time that the column takes."""
        bounds = self.find_bounds(sql_type)
        if bounds is None:
            return True
        low, high = bounds
        return bool(low <= value and (high is None or value < high))

    def describe_range(self) -> str:
        """Return the range for people."""
        start_ms = MIN_TIME_MS if self.from_ms is None else self.from_ms
        end_ms = MAX_TIME_MS + 1 if self.to_ms is None else self.to_ms
        return f"{format_bound(start_ms)} to {format_bound(end_ms)}"

    def describe_bad(self, column: str, text: str, *, sql_type: str, table: str) -> str:
        """Return what is wrong with a value outside the range, which unit it seems to have, and what to do.

        Args:
            column: Name of the column.
            text: The value as it came: digits, or anything else that is a time.
            sql_type: Of the column.
            table: Name of the table.
        """
        found = f"column {column!r} takes times of {self.describe_range()}"
        widen = f"`icedb table alter {table} --plausible '{column}:FROM..TO'` sets another range"
        if not _WHOLE.fullmatch(text):
            return f"{found}: correct it; {widen}"
        unit = self.unit or DEFAULT_UNIT
        words, own = TIME_WORDS[unit], _to_moment(int(text), unit)
        told = f"{words} are {own}" if own else f"{words} make no time of the years 1 to 9999 of it"
        likely = self.find_likely(text)
        if likely is None:
            return f"{found}, and {told}: send {words}; {widen}"
        remedy = f"send {words}"
        if sql_type == "TIMESTAMP" and likely in TICK_US:
            remedy += f", or declare it: `icedb table alter {table} --column '{column}:TIMESTAMP({likely})'`"
        return f"{found}, and {told}; {self.describe_likely(text)}: {remedy}"

    def find_likely(self, text: str) -> str | None:
        """Return the unit, another than the column's, of which digits are a plausible time; ``None``: there is none."""
        if not _WHOLE.fullmatch(text):
            return None
        own = self.unit or DEFAULT_UNIT
        return next((unit for unit in TIME_WORDS if unit != own and self._is_likely(int(text), unit)), None)

    def describe_likely(self, text: str) -> str:
        """Return which unit digits seem to have; empty if none is likely."""
        likely = self.find_likely(text)
        return f"it looks like {TIME_WORDS[likely]} ({_to_moment(int(text), likely)})" if likely is not None else ""

    def _is_likely(self, number: int, unit: str) -> bool:
        start_ms = PLAUSIBLE_FROM_MS if self.from_ms is None else self.from_ms
        end_ms = PLAUSIBLE_TO_MS if self.to_ms is None else self.to_ms
        return start_ms * _US_PER_MS <= _to_us(number, unit) < end_ms * _US_PER_MS


def read_count(number: int, unit: TimeUnit) -> datetime | None:
    """Return the moment that a number stands for, as a naive UTC datetime; ``None`` outside the years 1 to 9999."""
    micros = number * TICK_US[unit]
    if not MIN_TIME_MS * _US_PER_MS <= micros < (MAX_TIME_MS + 1) * _US_PER_MS:
        return None
    return _EPOCH + timedelta(microseconds=micros)


def count_ticks(moment: datetime, unit: TimeUnit) -> int:
    """Return the number of the last tick of a unit at or before a moment, a naive UTC datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=TICK_US[unit])


def format_bound(time_ms: int) -> str:
    """Return an end of a range for people, and as ``--plausible`` takes it: a year, a day, or a moment."""
    if time_ms > MAX_TIME_MS:
        return "10000"
    moment = _EPOCH + time_ms * _MS
    if (moment.month, moment.day) == (1, 1) and time_ms % 86_400_000 == 0:
        return f"{moment.year:04d}"
    return moment.date().isoformat() if time_ms % 86_400_000 == 0 else f"{moment.isoformat(timespec='milliseconds')}Z"


def parse_bound(text: str) -> int:
    """Return unix milliseconds of a year, a day, or a moment of ISO-8601 text, UTC. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,5}", text):
        year = int(text)
        return MAX_TIME_MS + 1 if year == 10_000 else (datetime(year, 1, 1) - _EPOCH) // _MS  # noqa: DTZ001, PLR2004
    moment = datetime.fromisoformat(text)
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (aware.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MS


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


def show_time(value: Any) -> str:
    """Return a value of a time column as text that :meth:`TimeColumn.describe_bad` understands."""
    return value.isoformat() if isinstance(value, date) else str(value)


def _to_us(number: int, unit: str) -> int:
    return number // _NS_PER_US if unit == "epoch_ns" else number * TICK_US[unit]


def _to_moment(number: int, unit: str) -> str:
    moment = read_count(_to_us(number, unit), "epoch_us")
    return "" if moment is None else f"{moment.isoformat(timespec='seconds')}Z"
