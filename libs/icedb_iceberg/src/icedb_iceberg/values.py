"""Values in Iceberg's forms: partition values, and the binary form of single values that bounds have. Pure.

Source of the binary form: the specification of Iceberg, appendix D, "Binary single-value serialization".
"""

import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from icedb_log.table.file_domains import Domain
from icedb_log.table.transforms import canonical_text, read_time_span

if TYPE_CHECKING:
    from icedb_iceberg.table_form import SpecField

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - values of this project are naive UTC
_EPOCH_DAY: Final = _EPOCH.date()
_TICK: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)
_MONTHS: Final = 12
_LONGS: Final = range(-(2**63), 2**63)


def count_days(day: date) -> int:
    """Return days since 1970-01-01."""
    return (day - _EPOCH_DAY).days


def count_micros(moment: datetime) -> int:
    """Return microseconds since 1970-01-01T00:00Z of a naive UTC datetime."""
    return (moment - _EPOCH) // _TICK


_PACKERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "boolean": lambda value: b"\1" if value else b"\0",
    "int": struct.Struct("<i").pack,
    "long": struct.Struct("<q").pack,
    "double": struct.Struct("<d").pack,
    "date": lambda value: struct.pack("<i", value if isinstance(value, int) else count_days(value)),
    "timestamp": lambda value: struct.pack("<q", value if isinstance(value, int) else count_micros(value)),
    "string": str.encode,
}


_NUMBERS: Final[Mapping[str, Callable[[Any], int]]] = {"date": count_days, "timestamp": count_micros}


def _count_hours(moment: datetime) -> int:
    return (moment - _EPOCH) // _HOUR


_TIMES: Final[Mapping[str, Callable[[Any], int]]] = {
    "year": lambda day: int(day.year - _EPOCH.year),
    "month": lambda day: (day.year - _EPOCH.year) * _MONTHS + day.month - 1,
    "day": lambda day: count_days(day.date() if isinstance(day, datetime) else day),
    "hour": _count_hours,
}
"""Of days and moments."""


def pack_value(kind: str, value: Any) -> bytes:
    """Return the binary form of a value; of dates and timestamps also of their numbers."""
    return _PACKERS[kind](value)


def pack_bounds(kind: object, domain: Domain) -> tuple[bytes, bytes] | None:
    """Return lower and upper bound of a column in a file; ``None``: there are none that are certain.

    Texts were cut when the log got them, the upper one rounded up. Of a zero nobody knows the sign: Iceberg says that
    the negative one lies below.
    """
    if not isinstance(kind, str) or kind not in _PACKERS or domain.low is None or domain.high is None:
        return None
    low, high = domain.low, domain.high
    if kind == "double":
        low, high = low or -0.0, high or 0.0
    try:
        return pack_value(kind, low), pack_value(kind, high)
    except (struct.error, OverflowError, UnicodeEncodeError, TypeError):
        return None  # another writer's marker says something that is no value of the column


def transform_value(spec: "SpecField", value: Any) -> Any:
    """Return the partition value of a column's value, as manifests hold it.

    Args:
        spec: A field of a partition spec.
        value: Of Python's type for the column: str, int, bool, date or naive UTC datetime.
    """
    if spec.field.transform == "identity":
        return _NUMBERS[spec.source_type](value) if spec.source_type in _NUMBERS else value
    if spec.field.transform == "truncate":
        width = spec.field.width or 1
        return value[:width] if isinstance(value, str) else value - value % width
    return _TIMES[spec.field.transform](value)


def read_partition_value(spec: "SpecField", text: str) -> Any:
    """Return the partition value that a text of a path stands for.

    Args:
        spec: A field of a partition spec.
        text: Decoded, not that of null.

    Raises:
        ValueError: It stands for none: another writer's.
    """
    transform, kind, width = spec.field.transform, spec.source_type, spec.field.width
    if transform not in ("identity", "truncate"):
        span = read_time_span(transform, text)
        if span is None:
            raise ValueError(text)
        return transform_value(spec, span[0])
    value = _read_identity(kind, text)
    is_right = canonical_text(value) == text if transform == "identity" else transform_value(spec, value) == value
    if not is_right or (kind == "long" and value not in _LONGS):
        raise ValueError(text, width)
    return transform_value(spec, value)


def _read_identity(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean":
        return text == "true"
    if kind == "long":
        return int(text)
    if kind == "date":
        return date.fromisoformat(text)
    return datetime.fromisoformat(text.removesuffix("Z"))
