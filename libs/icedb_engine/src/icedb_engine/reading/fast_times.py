"""Text to moments and days without looking at each value on its own, where all values have one of a few shapes.

Gives exactly what the casts of :mod:`icedb_engine.reading.json_casts` give, or nothing: whoever calls this reads the
values the exact way if it declines. A shape is the first value's: its digits may be other digits, the
rest must be equal.
"""

import re
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.table.time_columns import MAX_TIME_MS, MIN_TIME_MS, TICK_US, TimeUnit

_MOMENT: Final = re.compile(rb"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?")
_DAY: Final = re.compile(rb"\d{4}-\d{2}-\d{2}")
_MAX_SHAPES: Final = 16
_ZERO, _NINE = ord("0"), ord("9")
_MICROS: Final = 1000
_UTC: Final = pa.timestamp("us", "UTC")
_LOCAL: Final = pa.timestamp("us")


def read_moments(texts: pa.StringArray) -> pa.Array | None:
    """Return ISO-8601 texts as ``timestamp[us]`` in UTC; None if some value needs the exact way."""
    lengths = pc.binary_length(texts)
    shapes = pc.drop_null(pc.unique(lengths)).to_pylist()
    if len(shapes) > _MAX_SHAPES:
        return None
    found = pa.nulls(len(texts), _LOCAL)
    for length in shapes:
        if len(shapes) == 1:
            return _read_shape(texts, length)
        chosen = pc.equal(lengths, length)
        values = _read_shape(texts.filter(chosen), length)
        if values is None:
            return None
        found = pc.replace_with_mask(found, pc.fill_null(chosen, False), values)
    return found


def read_days(texts: pa.StringArray) -> pa.Array | None:
    """Return texts such as ``2023-06-07`` as ``date32``; None if some value needs the exact way."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.date32())
    if _find_shape(texts, len(b"2023-06-07"), _DAY) is None:
        return None
    return _within(_cast(texts, pa.date32()), pa.timestamp("ms"))


def read_counts(numbers: pa.Int64Array, unit: TimeUnit) -> pa.Array | None:
    """Return counts of a unit as ``timestamp[us]``; None if one is outside the years 1 to 9999."""
    tick_us = TICK_US[unit]
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low * tick_us < MIN_TIME_MS * _MICROS or high * tick_us >= (MAX_TIME_MS + 1) * _MICROS):
        return None
    return pc.multiply(numbers, tick_us).cast(_LOCAL)


def _read_shape(texts: pa.StringArray, length: int) -> pa.Array | None:
    match = _find_shape(texts, length, _MOMENT)
    if match is None:
        return None
    if match["zone"] is None:
        return _within(_cast(texts, _LOCAL), _LOCAL)
    moments = _cast(texts, _UTC)
    return None if moments is None else _within(moments.cast(_LOCAL), _LOCAL)


def _find_shape(texts: pa.StringArray, length: int, allowed: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Return the match of the first value if all values that are not null have its length and shape, else None."""
    value_count = len(texts) - texts.null_count
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    start, end = int(bounds[0]), int(bounds[-1])
    if end - start != value_count * length or not value_count:
        return None
    rows = np.frombuffer(data, np.uint8, end - start, start).reshape(value_count, length)
    first = rows[0]
    match = allowed.fullmatch(first.tobytes())
    if match is None:
        return None
    for place in range(length):
        column = rows[:, place]
        if _ZERO <= first[place] <= _NINE:
            if int(column.min()) < _ZERO or int(column.max()) > _NINE:
                return None
        elif not (column == first[place]).all():
            return None
    return match


def _cast(texts: pa.StringArray, to: pa.DataType) -> pa.Array | None:
    try:
        return texts.cast(to)
    except pa.ArrowInvalid:
        return None


def _within(values: pa.Array | None, to: pa.DataType) -> pa.Array | None:
    """Return the values if they lie in the years 1 to 9999, else None."""
    if values is None:
        return None
    bounds = pc.min_max(values.cast(to).cast(pa.int64()))
    per_ms = _MICROS if to == _LOCAL else 1
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    is_within = low is None or (low >= MIN_TIME_MS * per_ms and high < (MAX_TIME_MS + 1) * per_ms)
    return values if is_within else None
