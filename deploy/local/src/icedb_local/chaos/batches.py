"""The rows that producers send: each says which batch it belongs to and which row of it it is. Pure.

So a reader can tell of every batch whether it is there whole, in part, twice or changed, by its number alone.
"""

import datetime as dt
import functools
import json
from dataclasses import dataclass
from typing import Final

FIRST_DAY: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
DAY_COUNT: Final = 4
MAX_ROWS: Final = 60
_PRIME: Final = 7919
_MODULUS: Final = 100_003


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What there is of one batch, as one query finds it.

    Attributes:
        rows: Rows.
        distinct_rows: Different row numbers.
        last_row: Highest row number.
        checksum: Sum of the rows' values.
    """

    rows: int
    distinct_rows: int
    last_row: int
    checksum: int


CONTENT_COLUMNS: Final = 'count(*), count(DISTINCT "row"), max("row"), sum("value")::BIGINT'
"""What to select, grouped by ``batch``, to get the fields of :class:`BatchContent`."""


@functools.lru_cache(maxsize=100_000)
def expected_content(seed: int, number: int, max_rows: int = MAX_ROWS) -> BatchContent:
    """Return what a reader finds of a batch that is there."""
    count = _row_count(seed, number, max_rows)
    return BatchContent(count, count, count - 1, sum(_value(seed, number, row) for row in range(count)))


def encode_batch(seed: int, number: int, max_rows: int = MAX_ROWS) -> bytes:
    """Return the rows of a batch as NDJSON; the same bytes each time."""
    lines = [
        json.dumps(
            {
                "ts": (FIRST_DAY + dt.timedelta(days=(number + row) % DAY_COUNT, seconds=row)).isoformat(),
                "batch": number,
                "row": row,
                "value": _value(seed, number, row),
                "note": f"batch {number}, row {row}",
            }
        )
        for row in range(_row_count(seed, number, max_rows))
    ]
    return ("\n".join(lines) + "\n").encode()


def _row_count(seed: int, number: int, max_rows: int) -> int:
    return 1 + (seed * 31 + number * _PRIME) % max_rows


def _value(seed: int, number: int, row: int) -> int:
    return (seed + number * _PRIME + row * 31 + 1) % _MODULUS
