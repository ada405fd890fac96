"""Whether the outputs of a merge hold what its inputs hold, by the footers of both (rule M6). Pure.

Two questions for each column: do as many rows have no value, and are the lowest and the highest value the same? A
footer that does not say, cut text, and values that are no numbers prove nothing. That is counted, and never an error:
other writers need not say anything of their columns.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from icedb_log.jobs import ContentCheck
from icedb_log.parquet.footer import ColumnBounds, Footer
from icedb_log.table.decimals import find_decimal

_NO_VALUE: Final = (None, None)
"""Bounds of a column without any value."""


def compare_contents(
    inputs: Sequence[Footer | None],
    outputs: Sequence[Footer | None],
    columns: Mapping[str, str],
    *,
    made: Collection[str] = (),
) -> ContentCheck:
    """Compare what footers say of the values before and after a merge.

    A column that a file lacks is null in all of its rows. Outputs have no columns but these (M1).

    Args:
        inputs: Footers of the inputs, with the bounds of all columns; ``None``: it cannot be told what one says.
        outputs: The same of the outputs.
        columns: Column to SQL type as the outputs have to have it.
        made: Those of them that an input lacked, and that were made (S4): nothing can be compared.
    """
    equal_count = unproven_count = 0
    differences: list[str] = []
    for name, sql_type in columns.items():
        if name in made:
            continue
        nulls = _count_nulls(inputs, name), _count_nulls(outputs, name)
        bounds = _find_bounds(inputs, name, sql_type), _find_bounds(outputs, name, sql_type)
        if None in nulls:
            unproven_count += 1
        elif nulls[0] == nulls[1]:
            equal_count += 1
        else:
            differences.append(f"column {name!r} has {nulls[0]} nulls in the inputs and {nulls[1]} in the outputs")
        if bounds[0] is None or bounds[1] is None:
            unproven_count += 1
        elif bounds[0] == bounds[1]:
            equal_count += 1
        else:
            # Without the values: they are somebody's data, and this goes to logs.
            differences.append(f"column {name!r} has another lowest or highest value in the outputs than in the inputs")
    others = _find_unknown(outputs, columns)
    if others:
        differences.append(f"column {others[0]!r} is in the outputs, and the table has no such column")
    return ContentCheck(equal_count, unproven_count, tuple(differences))


def _find_unknown(outputs: Iterable[Footer | None], columns: Mapping[str, str]) -> list[str]:
    """Return the columns of outputs that the table has not, ascending (M1)."""
    written = {name for file in outputs if file for name in (*file.columns, *file.odd_columns)}
    return sorted(written - columns.keys())


def _count_nulls(files: Iterable[Footer | None], name: str) -> int | None:
    """Return how many rows of some files have no value in a column; ``None`` if they do not say."""
    total = 0
    for file in files:
        found = _bounds_of(file, name)
        if found is None or found.null_count is None:
            return None
        total += found.null_count
    return total


def _find_bounds(files: Iterable[Footer | None], name: str, sql_type: str) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of some files as values of a type; ``None`` if they do not say."""
    lows: list[Any] = []
    highs: list[Any] = []
    for file in files:
        found = _bounds_of(file, name)
        if file is None or found is None:
            return None
        if found.null_count == file.row_count:
            continue
        if not found.is_exact:
            return None
        kind = file.columns[name]
        low, high = _as_written(found.low, kind, sql_type), _as_written(found.high, kind, sql_type)
        if low is None or high is None:
            return None
        lows.append(low)
        highs.append(high)
    return (min(lows), max(highs)) if lows else _NO_VALUE


def _bounds_of(file: Footer | None, name: str) -> ColumnBounds | None:
    if file is None or name in file.odd_columns:
        return None
    if name not in file.columns:
        return ColumnBounds(None, None, file.row_count, is_exact=False)
    return file.bounds.get(name)


def _as_written(value: Any, found: str, written: str) -> Any:
    """Return a bound of a column as a value of the type that is written; ``None`` if it has no such value (S2)."""
    if found == written:
        digits = find_decimal(found)
        return value if digits is None or value is None else digits.read(value)
    if (found, written) == ("BIGINT", "DOUBLE"):
        return float(value)
    if (found, written) == ("DATE", "TIMESTAMP"):
        return f"{value}T00:00:00.000000Z"
    return None
