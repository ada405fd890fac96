"""From Arrow's types to the six SQL types: nothing is lost, or the batch is rejected with the column and the row.

Digits of a timestamp beyond microseconds are cut, as in JSON. Structs, maps and lists become compact JSON text.
"""

from collections.abc import Callable
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.table.time_columns import MAX_TIME_MS, MIN_TIME_MS

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batch_table import BatchTable
from icedb_engine.reading.column_forms import Form
from icedb_engine.sql import CLOSED, quote_name

_MICROS: Final = pa.timestamp("us")
_MIN_US, _MAX_US = MIN_TIME_MS * 1000, MAX_TIME_MS * 1000 + 999
_PER_US: Final = {"s": 1_000_000, "ms": 1000}
_NANOS: Final = 1000
_MAX_BIGINT: Final = 2**63 - 1


def convert_table(table: pa.Table, limits: FlushUnitLimits) -> BatchTable:
    """Return the rows with columns of the forms that the engine knows.

    Raises:
        BatchRejected: A column or a value that has no place in the six types.
    """
    arrays: dict[str, pa.ChunkedArray] = {}
    forms: dict[str, Form] = {}
    for name in table.column_names:
        arrays[name], forms[name] = _convert(name, table.column(name))
    converted = pa.table(arrays) if arrays else table
    size_bytes = converted.nbytes
    if size_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(
            f"{size_bytes} bytes in memory; the limit is {limits.batch_decoded_bytes}: send smaller batches"
        )
    numbers = pa.array(np.arange(1, table.num_rows + 1, dtype=np.int32))
    return BatchTable(converted, forms, numbers, size_bytes)


def measure(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch with its dictionaries spread out."""
    return sum(_measure_column(column) for column in batch.columns)


def _measure_column(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values = column.dictionary
    if pa.types.is_primitive(values.type):
        return int(len(column) * values.type.bit_width // 8)
    average = int(values.nbytes) // max(1, len(values))
    if not (
        pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type)
    ):
        return len(column) * max(average, int(values.nbytes))
    lengths = pc.binary_length(values).take(column.indices)
    return len(column) * 4 + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _convert(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    arrow_type = values.type
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _convert(name, pa.chunked_array([chunk.storage for chunk in values.chunks], arrow_type.storage_type))
    if pa.types.is_dictionary(arrow_type):
        return _convert(name, _cast(name, values, arrow_type.value_type))
    for is_type, convert in _CONVERSIONS:
        if is_type(arrow_type):
            return convert(name, values)
    raise BatchRejected(
        f"column {name!r} has the Arrow type {arrow_type}, which has no SQL type here: {_remedy(arrow_type)}"
    )


def _convert_null(_: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return values.cast(pa.string()), Form.VARCHAR


def _convert_boolean(_: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return values, Form.BOOLEAN


def _convert_integer(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    if pa.types.is_uint64(values.type):
        _require(
            name,
            values,
            pc.less_equal(values, pa.scalar(_MAX_BIGINT, pa.uint64())),
            "BIGINT ends at 2^63 - 1: send such numbers as strings",
        )
    return _cast(name, values, pa.int64()), Form.BIGINT


def _convert_float(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return _cast(name, values, pa.float64()), Form.DOUBLE


def _convert_decimal(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    if values.type.scale <= 0:
        return _cast(name, values, pa.int64()), Form.BIGINT
    doubles = values.cast(pa.float64())
    try:
        back = doubles.cast(values.type)
    except pa.ArrowInvalid:
        back = pa.chunked_array([pa.nulls(len(values), values.type)])
    remedy = "a DOUBLE would lose digits: send such numbers as strings"
    _require(name, values, pc.fill_null(pc.equal(back, values), False), remedy)
    return doubles, Form.DOUBLE


def _convert_text(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    return _cast(name, values, pa.string()), Form.VARCHAR


def _convert_date(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    days = _cast(name, values, pa.date32())
    moments = _cast(name, days, pa.timestamp("s")).cast(pa.int64())
    _require(
        name,
        values,
        _between(moments, MIN_TIME_MS // 1000, MAX_TIME_MS // 1000),
        "send dates of the years 1 to 9999",
    )
    return days, Form.DATE


def _convert_timestamp(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    unit = values.type.unit
    counts = values.cast(pa.int64())
    if unit == "ns":
        micros = _floor_divide(counts, _NANOS)
    else:
        per_us = _PER_US.get(unit, 1)
        _require(
            name,
            values,
            _between(counts, _MIN_US // per_us, _MAX_US // per_us),
            "send timestamps of the years 1 to 9999",
        )
        micros = pc.multiply(counts, per_us)
    return micros.cast(_MICROS), Form.TIMESTAMP


def _convert_nested(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Form]:
    bad = _find_untextual(values.type)
    if bad is not None:
        raise BatchRejected(f"column {name!r} has {bad} inside {values.type}, which has no JSON text: {_remedy(bad)}")
    with duckdb.connect(config={"threads": 1, **CLOSED}) as engine:
        connection: Any = engine
        connection.register("nested", pa.table({"value": values}))
        column = quote_name("value")
        found = connection.execute(
            f"SELECT CASE WHEN {column} IS NOT NULL THEN CAST(to_json({column}) AS VARCHAR) END AS text FROM nested"  # noqa: S608
        ).to_arrow_table()
    return found.column(0), Form.NESTED


_NESTED: Final = (
    pa.types.is_struct,
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_map,
)
_CONVERSIONS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[..., tuple[pa.ChunkedArray, Form]]], ...]] = (
    (pa.types.is_null, _convert_null),
    (pa.types.is_boolean, _convert_boolean),
    (pa.types.is_integer, _convert_integer),
    (pa.types.is_floating, _convert_float),
    (pa.types.is_decimal, _convert_decimal),
    (pa.types.is_string, _convert_text),
    (pa.types.is_large_string, _convert_text),
    (pa.types.is_string_view, _convert_text),
    (pa.types.is_date, _convert_date),
    (pa.types.is_timestamp, _convert_timestamp),
    *((is_type, _convert_nested) for is_type in _NESTED),
)


def _is_plain_nested(arrow_type: pa.DataType) -> bool:
    return any(is_type(arrow_type) for is_type in _NESTED)


def _find_untextual(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return a type inside a nested one that has no JSON text; None if there is none."""
    if not _is_plain_nested(arrow_type):
        is_known = any(is_type(arrow_type) for is_type, convert in _CONVERSIONS if convert is not _convert_nested)
        return None if is_known or pa.types.is_dictionary(arrow_type) else arrow_type
    if pa.types.is_map(arrow_type):
        inner = [arrow_type.key_type, arrow_type.item_type]
    elif pa.types.is_struct(arrow_type):
        inner = [arrow_type.field(place).type for place in range(arrow_type.num_fields)]
    else:
        inner = [arrow_type.value_type]
    return next((bad for each in inner if (bad := _find_untextual(each)) is not None), None)


def _cast(name: str, values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BatchRejected(
            f"column {name!r}: {str(error)[:200]}; send values that fit {to}, or send them as strings"
        ) from error


def _require(name: str, values: pa.ChunkedArray, is_good: pa.ChunkedArray, remedy: str) -> None:
    """Reject the batch if a value that is not null is not good."""
    bad = pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(is_good, True)))
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise BatchRejected(f"row {row + 1}: column {name!r} has {_show(values[row])}; {remedy}")


def _show(value: Any) -> str:
    try:
        return str(value)
    except (OverflowError, ValueError):  # no Python date of such a year
        return f"{value.value} ({value.type})"


def _between(numbers: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))


def _floor_divide(numbers: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    quotients = pc.divide(numbers, divisor)
    is_below = pc.less(pc.subtract(numbers, pc.multiply(quotients, divisor)), 0)
    return pc.if_else(is_below, pc.subtract(quotients, 1), quotients)


def _remedy(arrow_type: pa.DataType) -> str:
    if (
        pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    ):
        return "send text (UTF-8), or encode the bytes as base64"
    if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type):
        return "send a string, or an integer with the unit in the column's name"
    return "cast the column to a plain type"
