"""In which order the data files of a group are read, and which of them must be sorted together. Pure.

Rows are ordered by the table's sort columns, nulls last. What the log's statistics say of a file are bounds that may
be wide but never wrong, so a file whose highest value lies below another one's lowest can be written before it, whole,
whatever is between: *runs* are files that overlap, directly or through others, and follow each other. A tie at a bound
is an overlap. Leading sort columns with one value in the whole group order nothing and are passed over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.model import FileMarker
from icedb_log.table.column_bounds import MAX_BOUND_CHARS

_UNKNOWN_LOW: Final = (0, 0)
_NULL: Final = (2, 0)
"""Above every value: nulls come last."""


@dataclass(frozen=True, slots=True)
class _Span:
    low: tuple[int, Any]
    high: tuple[int, Any]
    number: int


def plan_runs(markers: Sequence[FileMarker], sort: Sequence[str]) -> list[list[int]]:
    """Return the files' numbers as runs: each row of a run belongs before each row of the next one.

    Within a run the files are ascending by their lowest value.

    Args:
        markers: The files, with the statistics of the log.
        sort: The table's sort columns; without any, the order of rows means nothing and every file is a run.
    """
    if not sort:
        return [[number] for number in range(len(markers))]
    column = next((name for name in sort if not _is_constant(markers, name)), None)
    if column is None:
        return [[number] for number in range(len(markers))]
    spans = [_span(marker, column, number) for number, marker in enumerate(markers)]
    try:
        spans.sort(key=lambda span: (span.low, span.number))
    except TypeError:  # bounds of two types, from different writers: they prove nothing
        return [list(range(len(markers)))]
    runs: list[list[int]] = []
    highest = _UNKNOWN_LOW
    for span in spans:
        if runs and span.low <= highest:
            runs[-1].append(span.number)
        else:
            runs.append([span.number])
        highest = max(highest, span.high)
    return runs


def _is_constant(markers: Sequence[FileMarker], column: str) -> bool:
    """Return whether all rows of all files certainly have the same value."""
    values: set[tuple[type, Any]] = set()
    for marker in markers:
        low, high, null_count = marker.stats.get(column, (None, None, 0))
        if low is None or low != high or null_count:
            return False
        if isinstance(low, str) and len(low) >= MAX_BOUND_CHARS:  # may be cut
            return False
        values.add((type(low), low))
    return len(values) == 1


def _span(marker: FileMarker, column: str, number: int) -> _Span:
    stats = marker.stats.get(column)
    if stats is None:
        return _Span(_UNKNOWN_LOW, _NULL, number)
    low, high, null_count = stats
    if low is None or high is None:
        is_all_null = null_count > 0 and null_count == marker.row_count
        return _Span(_NULL if is_all_null else _UNKNOWN_LOW, _NULL, number)
    return _Span((1, low), _NULL if null_count else (1, high), number)
