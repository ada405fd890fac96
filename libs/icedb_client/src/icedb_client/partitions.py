"""Partition filters as callers write them."""

from collections.abc import Mapping, Sequence

from icedb_log.errors import InvalidRequest
from icedb_log.table.partition_filter import PartitionFilter

Partitions = Mapping[str, object] | Sequence[PartitionFilter] | None
"""Which partitions: ``{"d": "2026-01-31"}``, ``{"d": ["2026-01-30", "2026-01-31"], "country": None}``, or filters."""


def to_filters(partitions: Partitions) -> tuple[PartitionFilter, ...]:
    """Turn what users write into filters.

    Args:
        partitions: A mapping of field to value, to several values, or to ``None`` (null); or filters.

    Raises:
        InvalidRequest: Another kind of value.
    """
    if partitions is None:
        return ()
    if not isinstance(partitions, Mapping):
        return tuple(partitions)
    filters: list[PartitionFilter] = []
    for name, wanted in partitions.items():
        if wanted is None:
            filters.append(PartitionFilter(name, is_null=True))
        elif isinstance(wanted, list | tuple | set | frozenset):
            filters.append(PartitionFilter.equals(name, *(_as_text(name, value) for value in wanted)))
        else:
            filters.append(PartitionFilter.equals(name, _as_text(name, wanted)))
    return tuple(filters)


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int) or hasattr(value, "isoformat"):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    raise InvalidRequest(
        f"partition {name}: {value!r} is a {type(value).__name__}; give text, a number, a date, a list of them or None"
    )
