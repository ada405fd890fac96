"""Statistics of columns for file markers: minimum, maximum and number of nulls, as JSON scalars.

They prune files, so a bound may be wide but never wrong: what is not certain is left out. Timestamps are ISO-8601
UTC text with microseconds and ``Z``, dates ISO text: both sort as text. Text is cut to 64 characters, the maximum
rounded up. NaN and infinity have no JSON form: such a column has no bounds.
"""

import math
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.model import ColumnStats

from icedb_parts.reading.transforms import canonical_text

MAX_STATS_CHARS: Final = 64
_SURROGATES: Final = range(0xD800, 0xE000)
_LAST_CODE_POINT: Final = 0x10FFFF


class StatsCollector:
    """Gathers the statistics of some columns over the chunks of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._bounds: dict[str, list[Any]] = {column: [] for column in columns}
        self._null_counts = dict.fromkeys(columns, 0)
        self._uncertain: set[str] = set()

    def add(self, chunk: pa.Table) -> None:
        """Take one chunk of rows into account."""
        for column, bounds in self._bounds.items():
            values = chunk.column(column)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            self._null_counts[column] += values.null_count
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
                self._uncertain.add(column)
                continue
            extremes = pc.min_max(values)
            if extremes["min"].is_valid:
                bounds += [extremes["min"].as_py(), extremes["max"].as_py()]

    def finish(self) -> dict[str, ColumnStats]:
        """Return the statistics of everything that was added."""
        return {
            column: (None, None, self._null_counts[column])
            if column in self._uncertain or not bounds
            else (*encode_bounds(min(bounds), max(bounds)), self._null_counts[column])
            for column, bounds in self._bounds.items()
        }


def encode_bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """Return the bounds of a column as JSON scalars, the upper one never below a value; both None if there are none."""
    if isinstance(low, str):
        upper = _round_up(high)
        return (None, None) if upper is None else (low[:MAX_STATS_CHARS], upper)
    if isinstance(low, date):  # a datetime is a date
        return canonical_text(low), canonical_text(high)
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        return None, None
    return low, high


def _round_up(text: str) -> str | None:
    """Return a text of at most 64 characters that does not sort before ``text``; None if there is none."""
    if len(text) <= MAX_STATS_CHARS:
        return text
    cut = text[:MAX_STATS_CHARS].rstrip(chr(_LAST_CODE_POINT))
    if not cut:
        return None
    following = ord(cut[-1]) + 1
    return cut[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
