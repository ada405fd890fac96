"""Statistics of columns for file markers: minimum, maximum and number of nulls, as JSON scalars.

They prune files, so a bound may be wide but never wrong: what is not certain is left out. Their form is
:mod:`icedb_log.table.column_bounds`.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.model import ColumnStats
from icedb_log.table.column_bounds import encode_bounds

from icedb_engine.reading.types import EXACT_DOUBLE_MAX

_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAYS: Final = (date.min.toordinal() - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL)


class StatsCollector:
    """Gathers the statistics of some columns over the chunks of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._bounds: dict[str, list[Any]] = {column: [] for column in columns}
        self._null_counts = dict.fromkeys(columns, 0)
        self._uncertain: set[str] = set()
        self._inexact: set[str] = set()

    @property
    def inexact(self) -> tuple[str, ...]:
        """Columns of all that were added of which some value would change if the column became wider (S2)."""
        return tuple(sorted(self._inexact))

    def add(self, chunk: pa.Table) -> None:
        """Take one chunk of rows into account."""
        for field in chunk.schema:
            if field.name not in self._inexact and not _is_exact(chunk.column(field.name)):
                self._inexact.add(field.name)
        for column, bounds in self._bounds.items():
            values = chunk.column(column)
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


def _is_exact(values: pa.ChunkedArray) -> bool:
    """Return whether no value would change if a BIGINT became a DOUBLE, or a DATE a TIMESTAMP (S2)."""
    if pa.types.is_int64(values.type):
        low, high = -EXACT_DOUBLE_MAX, EXACT_DOUBLE_MAX
    elif pa.types.is_date32(values.type):
        values, (low, high) = values.cast(pa.int32()), _DAYS
    else:
        return True
    extremes = pc.min_max(values)
    return not extremes["min"].is_valid or low <= extremes["min"].as_py() <= extremes["max"].as_py() <= high
