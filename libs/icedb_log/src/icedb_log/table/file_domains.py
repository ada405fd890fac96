"""What a file marker says about the values of a column: between which bounds they lie, and whether NULL is among them.

Two sources: the statistics in the marker, and the partition that the file lies in. Both only ever exclude values that
are certainly not there; what is not understood, or could be read in two ways, excludes nothing. Pure.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from icedb_log.model import ColumnStats, FileMarker
from icedb_log.table.column_bounds import find_text_after
from icedb_log.table.decimals import find_decimal, is_decimal_text
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.time_columns import count_ticks
from icedb_log.table.transforms import read_time_span

EXACT_DOUBLE_MAX: Final = 2**53
"""Every integer up to here has an exact DOUBLE."""
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a column can have in a file.

    Attributes:
        sql_type: The column's type; ``None``: not known, and then the bounds are not known either.
        low: No value sorts before it; ``None``: not known. A value of Python's type for ``sql_type``.
        high: No value sorts after it; ``None``: not known.
        has_values: Whether a value that is not NULL can be there.
        has_nulls: Whether NULL can be there.
        buckets: Number of buckets and the one bucket of all values, as text, of each ``bucket`` partition.
    """

    sql_type: str | None = None
    low: Any = None
    high: Any = None
    has_values: bool = True
    has_nulls: bool = True
    buckets: tuple[tuple[int, str], ...] = ()


UNKNOWN: Final = Domain()


class DomainReader:
    """Reads domains of one table's files.

    Args:
        config: The table's configuration.
        schema: Types of columns as the log has them, if they are at hand; else the statistics tell, where they can.
    """

    def __init__(self, config: TableConfig, schema: Mapping[str, str] | None = None) -> None:
        types = {**config.declared, **(schema or {})}
        self._types = {column.lower(): sql_type for column, sql_type in types.items()}
        self._fields: dict[str, list[PartitionField]] = {}
        for field in config.partition:
            self._fields.setdefault(field.column.lower(), []).append(field)

    def read(self, marker: FileMarker, column: str) -> Domain:
        """Return the domain of a column, named without regard to case, in a file."""
        name = column.lower()
        stats = next((known for key, known in marker.stats.items() if key.lower() == name), None)
        sql_type = self._types.get(name) or _guess_type(stats)
        domain = _read_stats(stats, sql_type, marker.row_count)
        if sql_type is None or not domain.has_values:
            return domain
        values = read_partition_values(_partition_of(marker.path)) if name in self._fields else {}
        for field in self._fields.get(name, ()):
            text = values.get(field.name)
            if text is not None:
                domain = _narrow(domain, field, text)
        is_contradiction = domain.low is not None and domain.high is not None and domain.low > domain.high
        # Path and statistics that contradict each other prove nothing.
        return replace(UNKNOWN, sql_type=sql_type) if is_contradiction else domain


def parse_date(text: str) -> date | None:
    """Return the day of a text ``2023-06-07``; None if it is none."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _partition_of(path: str) -> str:
    _, _, inner = path.rpartition("/_data/")
    return inner.rpartition("/")[0]


def _guess_type(stats: ColumnStats | None) -> str | None:
    """Return the type that only these statistics can be of; None if there are several."""
    low = stats[0] if stats is not None else None
    if isinstance(low, bool):
        return "BOOLEAN"
    if isinstance(low, float):
        return "DOUBLE"
    if isinstance(low, int):
        # Up to 2^53 it makes no difference whether it is one of a DOUBLE.
        return "BIGINT" if _is_exact(low) and _is_exact(stats[1] if stats is not None else None) else None
    if isinstance(low, str):
        is_other = _DATE.fullmatch(low) or _TIMESTAMP.fullmatch(low) or is_decimal_text(low)
        return None if is_other else "VARCHAR"
    return None


def _is_exact(value: Any) -> bool:
    return isinstance(value, int) and -EXACT_DOUBLE_MAX <= value <= EXACT_DOUBLE_MAX


def _read_stats(stats: ColumnStats | None, sql_type: str | None, row_count: int | None) -> Domain:
    if stats is None:
        return replace(UNKNOWN, sql_type=sql_type)
    low, high, null_count = stats
    has_values = low is not None or row_count is None or null_count < row_count
    domain = Domain(sql_type=sql_type, has_values=has_values, has_nulls=null_count > 0)
    lower, upper = _read_bound(low, sql_type), _read_bound(high, sql_type)
    return domain if lower is None or upper is None else replace(domain, low=lower, high=upper)


def _read_bound(value: Any, sql_type: str | None) -> Any:
    """Return a bound as a value of the column's type; None if it is not one."""
    if isinstance(value, bool):
        return value if sql_type == "BOOLEAN" else None
    if isinstance(value, int | float):
        is_fit = sql_type == "DOUBLE" or (sql_type == "BIGINT" and isinstance(value, int))
        return (float(value) if sql_type == "DOUBLE" else value) if is_fit else None
    if not isinstance(value, str) or sql_type == "VARCHAR":
        return value if isinstance(value, str) else None
    digits = find_decimal(sql_type)
    if digits is not None:
        return digits.read(value)
    readers: Mapping[str | None, Callable[[str], Any]] = {"DATE": parse_date, "TIMESTAMP": _parse_timestamp}
    return readers[sql_type](value) if sql_type in readers else None


def _parse_timestamp(text: str) -> datetime | None:
    if not _TIMESTAMP.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return None


def _narrow(domain: Domain, field: PartitionField, text: str) -> Domain:
    if field.transform == "bucket":
        is_bucket = bool(_INTEGER.fullmatch(text)) and field.width is not None
        return replace(domain, buckets=(*domain.buckets, (field.width or 1, text))) if is_bucket else domain
    bounds = _find_bounds(field, text, domain.sql_type or "")
    if bounds is None:
        return domain
    low, high = bounds
    return replace(
        domain,
        low=low if domain.low is None else max(domain.low, low),
        high=high if domain.high is None else min(domain.high, high),
    )


@lru_cache(maxsize=4096)
def _find_bounds(field: PartitionField, text: str, sql_type: str) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a partition; None if its text is not understood."""
    if field.transform in TIME_TRANSFORMS:
        return _find_time_bounds(field, text, sql_type)
    if field.transform == "truncate":
        return _find_truncate_bounds(text, sql_type, field.width or 1)
    value = _read_identity(text, sql_type)
    return None if value is None else (value, value)


def _read_identity(text: str, sql_type: str) -> Any:
    if sql_type == "BIGINT":
        return int(text) if _INTEGER.fullmatch(text) else None
    if sql_type == "BOOLEAN":
        return {"true": True, "false": False}.get(text)
    return None if sql_type == "DOUBLE" else _read_bound(text, sql_type)


def _find_truncate_bounds(text: str, sql_type: str, width: int) -> tuple[Any, Any] | None:
    if sql_type == "BIGINT" and _INTEGER.fullmatch(text):
        return int(text), int(text) + width - 1
    if sql_type != "VARCHAR" or len(text) > width:
        return None
    if len(text) < width:
        return text, text
    following = find_text_after(text)
    return None if following is None else (text, following)


def _find_time_bounds(field: PartitionField, text: str, sql_type: str) -> tuple[Any, Any] | None:
    span = read_time_span(field.transform, text)
    if span is None:
        return None
    start, last = span[0], span[0] + (span[1] - _TICK)
    if sql_type == "TIMESTAMP":
        return start, last
    if sql_type == "BIGINT" and field.unit is not None:
        return count_ticks(start, field.unit), count_ticks(last, field.unit)
    return (start.date(), last.date()) if sql_type == "DATE" else None


def may_hold(domain: Domain, values: Sequence[Any], buckets: Mapping[int, frozenset[str]]) -> bool:
    """Tell whether one of some values can be in a domain.

    Args:
        domain: Of a column with a known type.
        values: Of that type, ascending.
        buckets: For each number of buckets in the domain, the buckets of the values.
    """
    if not domain.has_values or not values:
        return False
    if any(bucket not in buckets[width] for width, bucket in domain.buckets if width in buckets):
        return False
    if domain.low is None or domain.high is None:
        return True
    first = bisect_left(values, domain.low)
    return first < len(values) and bool(values[first] <= domain.high)
