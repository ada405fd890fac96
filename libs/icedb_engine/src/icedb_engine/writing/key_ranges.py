"""Ranges of a table's sort order, which cut one merge into tasks, and the rows of a range. Pure.

A range begins at a place, and ends below another one: whatever a row holds, exactly one of the ranges that places cut
the order into has it. So a place need not exist in any row: statistics that are only bounds, such as cut text, may be
one. Rows are compared as the engine sorts: text by its bytes, NaN above all numbers, both zeros as one, nulls last.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.table.decimals import DecimalType

from icedb_engine.writing.sort_keys import ABOVE, BELOW, NAN, NULL, Key, Span

_STORED: Final = {pa.timestamp("us"): pa.int64(), pa.date32(): pa.int32(), pa.bool_(): pa.int8()}
"""Types that are compared as the numbers they are stored as."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows from a place in the sort order on, and below another one.

    Attributes:
        by: The sort columns.
        low: Where it begins; ``None``: with the first row.
        high: Where the next one begins; ``None``: it ends with the last row.
    """

    by: tuple[str, ...]
    low: Key | None = None
    high: Key | None = None

    def touches(self, span: Span) -> bool:
        """Return whether rows within a span may be of the range."""
        return (self.low is None or span.high >= self.low) and (self.high is None or span.low < self.high)

    def holds(self, span: Span) -> bool:
        """Return whether all rows within a span are of the range."""
        return (self.low is None or span.low >= self.low) and (self.high is None or span.high < self.high)

    def clip(self, span: Span) -> Span:
        """Return the part of a span that the range touches."""
        low = span.low if self.low is None else max(span.low, self.low)
        return Span(low, span.high if self.high is None else min(span.high, self.high))

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the range, in their order; they have all of its columns."""
        is_in = np.ones(rows.num_rows, bool)
        if self.low is not None:
            is_in &= ~_find_below(rows, self.by, self.low)
        if self.high is not None:
            is_in &= _find_below(rows, self.by, self.high)
        count = int(is_in.sum())
        if count in (0, rows.num_rows):
            return rows.slice(0, count)
        return rows.filter(pa.array(is_in))


def cut_order(by: Sequence[str], sized: Sequence[tuple[Span, int]], *, count: int) -> list[KeyRange]:
    """Cut the sort order into ranges of about equal size, at most so many; fewer if single places hold much.

    A range begins where one of the spans does, so that no span is cut that overlaps no other. How much lies before a
    place is estimated: half of a span lies at its low end, half at its high end.

    Args:
        by: The sort columns.
        sized: Where rows lie, and how large they are.
        count: Ranges that are wanted.
    """
    if not sized or not by:
        return [KeyRange(tuple(by))]
    total = sum(size for _, size in sized)
    ends = sorted([*((span.low, size / 2) for span, size in sized), *((span.high, size / 2) for span, size in sized)])
    lows = sorted({span.low for span, _ in sized})
    before: list[float] = []
    at, mass = 0, 0.0
    for low in lows:
        while ends[at][0] < low:
            mass += ends[at][1]
            at += 1
        before.append(mass)
    cuts = {min(range(len(lows)), key=lambda each: abs(before[each] - total * n / count)) for n in range(1, count)}
    places: list[Key | None] = [None, *(lows[cut] for cut in sorted(cuts) if cut), None]
    return [KeyRange(tuple(by), low, high) for low, high in pairwise(places)]


def encode_key(key: Key | None) -> str | None:
    """Return a place as text; integers may have any number of digits."""
    told = None if key is None else [[_as_text(each) for each in place] for place in key]
    return None if told is None else json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def decode_key(text: str | None) -> Key | None:
    """Return the place of a text of :func:`encode_key`. Raises ValueError."""
    if text is None:
        return None
    return tuple(tuple(map(_from_text, place)) for place in json.loads(text))


def _as_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _from_text(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _find_below(rows: pa.RecordBatch, by: Sequence[str], key: Key) -> np.ndarray:
    """Return for each row whether it comes before a place."""
    below = np.zeros(rows.num_rows, bool)
    for name, place in reversed(list(zip(by, key, strict=True))):
        less, same = _compare(rows.column(name), place)
        below = less | (same & below)
    return below


def _compare(values: Any, place: tuple[Any, ...]) -> Iterator[np.ndarray]:
    """Yield for each value whether it is below a place, and whether it is there."""
    if pa.types.is_dictionary(values.type):
        at = values.indices.fill_null(len(values.dictionary)).to_numpy()
        for known, of_null in zip(_compare(values.dictionary, place), (place == ABOVE, place == NULL), strict=True):
            yield np.append(known, of_null)[at]
        return
    count, is_valid = len(values), values.is_valid().to_numpy(zero_copy_only=False)
    if place in (BELOW, ABOVE):
        yield np.full(count, place == ABOVE)
        yield np.zeros(count, bool)
    elif place == NULL:
        yield is_valid
        yield ~is_valid
    elif place == NAN:
        is_nan = pc.fill_null(pc.is_nan(values), fill_value=False).to_numpy(zero_copy_only=False)
        yield is_valid & ~is_nan
        yield is_nan
    else:
        numbers = values.cast(_STORED[values.type]) if values.type in _STORED else values
        bound = _make_scalar(place[1], numbers.type)
        for compare in (pc.less, pc.equal):
            yield pc.fill_null(compare(numbers, bound), fill_value=False).to_numpy(zero_copy_only=False)


def _make_scalar(value: Any, kind: Any) -> pa.Scalar:
    if isinstance(value, bytes):
        return pa.scalar(value.decode(), kind)
    if pa.types.is_decimal(kind):
        return pa.scalar(DecimalType(kind.precision, kind.scale).scale_down(value), kind)
    return pa.scalar(int(value) if pa.types.is_integer(kind) else value, kind)
