"""The fast reader of JSON lines: Arrow's JSON reader with an explicit schema, and nothing it might read differently.

It takes a batch only if the exact reader (:mod:`icedb_engine.reading.read_json`) would find the very same values, and
declines otherwise; it never rejects. What makes this safe:

- Arrow's reader refuses, like the exact one, keys that are not in the schema, a key twice, a value of another JSON
  type, an integer that does not fit 64 bits or has a fraction, bad escapes, and text after an object.
- Each line begins with ``{`` and ends with ``}``, and there are as many objects as lines: so one line is one object.
- Where Arrow is laxer, the batch is declined: an integer in a DOUBLE column that may have lost digits (any value
  from 2^53 on), NaN and infinity, and a new DOUBLE column in which only whole numbers came.
- Moments and days are read from text of known shapes; another shape is declined.
- Columns with objects or arrays, and decimals, are left out of Arrow's schema; their JSON text is cut from the lines,
  as in the exact way, and the engine compares all keys of the lines with the schema.

Moments and days are read without looking at each value on its own, where all values have one of a few shapes: exactly
what the casts of :mod:`icedb_engine.reading.types` give, or nothing. A shape is the first value's: its digits may be
other digits, the rest must be equal.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from icedb_log.table.decimals import find_decimal
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.table.time_columns import DEFAULT_UNIT, MAX_TIME_MS, MIN_TIME_MS, TICK_US, TimeUnit
from icedb_log.units import MIB

from icedb_engine.reading.batches import Batch
from icedb_engine.reading.json_text import cut_few
from icedb_engine.reading.types import INTEGERS, Form, Kind, infer_type

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


GROUP_BYTES: Final = 4 * MIB
"""Small batches are read together, up to so many bytes; a large one in pieces of so many, two lines at least."""
MAX_GROWTH: Final = 4
"""Columns may take so many times the bytes of the lines; many columns of which each line has few take more."""
CELL_BYTES: Final = 8
_OWN_COLUMNS: Final = ("", "")
"""The number of each row's batch, and the row's own: before the columns of the batches, which may have any name."""
_OPEN, _CLOSE, _OPEN_ARRAY, _NEWLINE, _RETURN = b"{}[\n\r"


@dataclass(frozen=True, slots=True)
class FastColumn:
    """How the fast reader takes a column.

    Attributes:
        form: What comes out; JSON for columns with objects or arrays, and for decimals; None for one that has nothing
            but nulls.
        from_text: Whether a TIMESTAMP is text in the lines, not numbers.
        unit: What a TIMESTAMP's numbers count.
        is_new: Whether the table does not have the column yet.
    """

    form: Form | None
    from_text: bool = False
    unit: TimeUnit = DEFAULT_UNIT
    is_new: bool = False

    @classmethod
    def known(cls, sql_type: str, kinds: Kind, unit: TimeUnit) -> "FastColumn":
        """Return how to read a column of the table that has such values in the sample."""
        if (sql_type == "VARCHAR" and kinds & Kind.NESTED) or find_decimal(sql_type) is not None:
            return cls(Form.JSON)  # Arrow takes more texts for decimals than we do
        if sql_type == "TIMESTAMP":
            return cls(Form.TIMESTAMP, from_text=not kinds & INTEGERS, unit=unit)
        return cls(Form(sql_type))

    @classmethod
    def new(cls, kinds: Kind) -> "FastColumn | None":
        """Return how to read a new column with such values in the sample; None if one type does not take them all."""
        if not kinds:
            return cls(None, is_new=True)
        sql_type = infer_type(kinds)
        if sql_type is None:
            return None
        return cls(Form.JSON if kinds & Kind.NESTED else Form(sql_type), is_new=True)

    @property
    def arrow_type(self) -> pa.DataType:
        """What Arrow's reader is asked for."""
        if self.form == Form.TIMESTAMP:
            return pa.string() if self.from_text else pa.int64()
        return _ARROW_TYPES[self.form]

    def settle(self, values: pa.ChunkedArray, counts: Sequence[int]) -> pa.ChunkedArray:
        """Return values in the column's form; raises Declined where Arrow may have read them otherwise.

        Args:
            values: What Arrow has read.
            counts: Rows of each batch.
        """
        if self.form == Form.TIMESTAMP:
            read = read_moments if self.from_text else partial(read_counts, unit=self.unit)
            return _map_chunks(values, read, pa.timestamp("us"))
        if self.form == Form.DATE:
            return _map_chunks(values, read_days, pa.date32())
        if self.form == Form.DOUBLE:
            if not pc.all(pc.less(pc.abs(values), float(EXACT_DOUBLE_MAX)), min_count=0).as_py():
                raise Declined
            if self.is_new:
                _check_fractions(values, counts)
        return values


_ARROW_TYPES: Final[Mapping[Form | None, pa.DataType]] = {
    None: pa.null(),
    Form.VARCHAR: pa.string(),
    Form.DATE: pa.string(),
    Form.BIGINT: pa.int64(),
    Form.DOUBLE: pa.float64(),
    Form.BOOLEAN: pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class FastRows:
    """What the fast reader made.

    Attributes:
        table: By position: the number of each row's batch, the row's own, then the columns that have a value; None if
            it took no batch.
        batches: The batches in it, all of their rows.
        forms: The form of each column that has a value, in the order of the table.
    """

    table: pa.Table | None
    batches: tuple[int, ...] = ()
    forms: Mapping[str, Form] = field(default_factory=dict)


def read_fast(
    engine: Any, batches: Mapping[int, Batch], columns: Mapping[str, FastColumn], *, thread_count: int
) -> FastRows:
    """Read what can be read fast.

    Args:
        engine: A connection of the native engine; used only if some column has the form JSON.
        batches: Those of lines, by number.
        columns: All columns that the batches may have.
        thread_count: How many groups of batches are read at once.
    """
    groups: list[dict[int, Batch]] = []
    size_bytes = GROUP_BYTES
    for number, batch in batches.items():
        if size_bytes + batch.decoded_bytes > GROUP_BYTES:
            groups.append({})
            size_bytes = 0
        groups[-1][number] = batch
        size_bytes += batch.decoded_bytes
    reader = _Reader(engine, columns, use_threads=thread_count > len(groups))
    with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-read") as pool:
        found = [each for group in pool.map(reader.read, groups) for each in group]
    if not found:
        return FastRows(None)
    table = pa.concat_tables([rows for _, rows in found])
    forms: dict[str, Form] = {}
    places = list(range(len(_OWN_COLUMNS)))
    for place, (name, column) in enumerate(columns.items(), len(_OWN_COLUMNS)):
        values = table.column(place)
        if column.form is not None and values.null_count < len(values):
            has_only_nested = column.form == Form.JSON and all(map(_is_nested, values.chunks))
            forms[name] = Form.NESTED if has_only_nested else column.form
            places.append(place)
    return FastRows(table.select(places), tuple(number for numbers, _ in found for number in numbers), forms)


class Declined(Exception):
    """These lines need the exact reader."""


class _Reader:
    def __init__(self, engine: Any, columns: Mapping[str, FastColumn], *, use_threads: bool) -> None:
        self._engine = engine
        self._columns = columns
        self._use_threads = use_threads
        self._nested = tuple(name for name, column in columns.items() if column.form == Form.JSON)
        self._parse_options = pj.ParseOptions(
            explicit_schema=pa.schema(
                [(name, column.arrow_type) for name, column in columns.items() if column.form != Form.JSON]
            ),
            unexpected_field_behavior="ignore" if self._nested else "error",
        )

    def read(self, group: Mapping[int, Batch]) -> list[tuple[tuple[int, ...], pa.Table]]:
        """Read some batches together; if that does not work, each on its own, without those that need more care."""
        try:
            return [(tuple(group), self._read_group(group))]
        except (Declined, pa.ArrowException):
            if len(group) == 1:
                return []
        return [found for number, lines in group.items() for found in self.read({number: lines})]

    def _read_group(self, group: Mapping[int, Batch]) -> pa.Table:
        counts = [batch.row_count for batch in group.values()]
        row_count = sum(counts)
        decoded_bytes = sum(batch.decoded_bytes for batch in group.values())
        if row_count * len(self._columns) * CELL_BYTES > MAX_GROWTH * max(GROUP_BYTES, decoded_bytes):
            raise Declined
        views = [_view(batch) for batch in group.values()]
        for bounds, view in views:
            _check_braces(bounds, view)
        data = pa.py_buffer(views[0][1]) if len(views) == 1 else b"\n".join(view for _, view in views)
        longest = max(int(np.diff(bounds).max()) for bounds, _ in views)
        rows = pj.read_json(
            pa.BufferReader(data),
            parse_options=self._parse_options,
            read_options=pj.ReadOptions(use_threads=self._use_threads, block_size=max(GROUP_BYTES, 2 * longest)),
        )
        if rows.num_rows != row_count:
            raise Declined
        arrays: list[pa.ChunkedArray | pa.Array] = [
            pa.concat_arrays([pa.repeat(pa.scalar(number, pa.int32()), len(group[number].rows)) for number in group]),
            pa.concat_arrays([batch.numbers for batch in group.values()]),
        ]
        nested = self._read_nested(group, data) if self._nested else {}
        for name, column in self._columns.items():
            is_nested = column.form == Form.JSON
            arrays.append(nested[name] if is_nested else column.settle(rows.column(name), counts))
        return pa.Table.from_arrays(arrays, [*_OWN_COLUMNS, *self._columns])

    def _read_nested(self, group: Mapping[int, Batch], data: Any) -> dict[str, pa.Array]:
        lines = pa.concat_arrays([batch.rows for batch in group.values()])
        self._check_keys(lines, f"group_{min(group)}")
        found = cut_few(data, self._nested)
        if found is None or len(found[0]) != len(lines):
            raise Declined
        return dict(zip(self._nested, found, strict=True))

    def _check_keys(self, lines: pa.StringArray, name: str) -> None:
        with self._engine.cursor() as cursor:
            cursor.register(name, pa.table({"line": lines}))
            ((is_twice, keys),) = cursor.execute(
                "SELECT bool_or(len(keys) <> len(list_distinct(keys))), list_distinct(flatten(list(keys))) "  # noqa: S608
                f"FROM (SELECT DISTINCT json_keys(line) AS keys FROM {name})"
            ).fetchall()
            cursor.unregister(name)
        if is_twice or not self._columns.keys() >= set(keys or ()):
            raise Declined


def _is_nested(texts: pa.StringArray) -> bool:
    """Return whether all JSON texts that are not null are objects or arrays."""
    _, offsets, data = texts.drop_null().buffers()
    starts = np.frombuffer(offsets, np.int32)[: len(texts) - texts.null_count]
    firsts = np.frombuffer(data, np.uint8)[starts] if len(starts) else np.empty(0, np.uint8)
    return bool(np.isin(firsts, (_OPEN, _OPEN_ARRAY)).all())


def _view(batch: Batch) -> tuple[np.ndarray, memoryview]:
    """Return offsets and bytes of a batch's lines; the first offset is zero."""
    _, offsets, data = batch.rows.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(batch.rows) + 1)
    return bounds, memoryview(data)[: int(bounds[-1])]


def _check_braces(bounds: np.ndarray, view: memoryview) -> None:
    data = np.frombuffer(view, np.uint8)
    last = bounds[1:] - 1
    last = last - (data[last] == _NEWLINE)
    last = last - (data[last] == _RETURN)
    if not ((data[bounds[:-1]] == _OPEN).all() and (data[last] == _CLOSE).all()):
        raise Declined


def _check_fractions(values: pa.ChunkedArray, counts: Sequence[int]) -> None:
    """Decline a batch whose values may all have been written as integers: its column would be a BIGINT."""
    start = 0
    for count in counts:
        own = values.slice(start, count)
        start += count
        if own.null_count < count and not pc.any(pc.not_equal(pc.trunc(own), own)).as_py():
            raise Declined


def _map_chunks(values: pa.ChunkedArray, read: Callable[[Any], pa.Array | None], to: pa.DataType) -> pa.ChunkedArray:
    found = [read(chunk) for chunk in values.chunks]
    if any(chunk is None for chunk in found):
        raise Declined
    return pa.chunked_array(found, to)
