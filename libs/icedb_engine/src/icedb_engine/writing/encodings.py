"""How the column chunks of a row group are encoded: what every reader pays for, each time.

A dictionary makes a column of few values small, and every engine reads it at a fraction of the time; where most values
are distinct it costs time, and size as well. Numbers without one are differences, which are short where values are
close to each other; text without one has its lengths apart where they are all the same. Which column is which is told
by a sample of the row group: wrong guesses cost bytes, never values. So is the level of zstd: a higher one makes text
that people wrote smaller, and random digits larger. A column chunk is one page, unless it is large:
engines read each page anew, and group by a dictionary only what lies in one.

Measured, with what was left out: docs/decisions/0040-encodings-by-what-readers-get.md.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMPRESSION_LEVEL: Final = 1
TEXT_LEVEL: Final = 3
"""The level of text, mostly distinct, that it makes smaller: read as quickly, written in three quarters more time."""
_LEVEL_SHARE: Final = 0.97
_LEVEL_BYTES: Final = 64 * 1024
"""So much text has to become this much smaller: pages, which are larger, then become a tenth smaller or more."""
DISTINCT_SHARE: Final = 0.25
"""A column of which a larger share of the rows is distinct gets no dictionary."""
PAGE_BYTES: Final = 1024 * 1024
"""A page ends at this size, before compression."""
_SAMPLE_ROWS: Final = 2048
_DIFFERENCE_BITS: Final = 48
"""Numbers further apart than so many bits are not written as differences: that would save nothing."""
_LENGTHS_ROWS: Final = 16_384
"""Text of fewer rows has no lengths apart: Arrow does not read those as a dictionary, which its users ask for."""
_WHOLE_NUMBERS: Final = {pa.int64(): pa.int64(), pa.timestamp("us"): pa.int64(), pa.date32(): pa.int32()}
_SEED: Final = 0


def encode_rows(rows: pa.Table) -> pa.Buffer:
    """Encode rows as a Parquet file of one row group; of no rows, of none."""
    sample = _sample(rows)
    repeated = find_repeated(rows, sample=sample)
    encodings = _choose_plain(sample.drop_columns(repeated), row_count=rows.num_rows)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="zstd",
        compression_level=_choose_levels(rows, encodings),
        use_dictionary=repeated,
        column_encoding=encodings,
        data_page_size=PAGE_BYTES,
        max_rows_per_page=max(1, rows.num_rows),
        store_decimal_as_integer=True,
        store_schema=False,
        write_statistics=True,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(drop_unused(rows), row_group_size=max(1, rows.num_rows))
    return sink.getvalue()


def find_repeated(rows: pa.Table, *, max_share: float = DISTINCT_SHARE, sample: pa.Table | None = None) -> list[str]:
    """Return the columns of which about this share of the rows or less is distinct, as far as a sample tells.

    The sample is compared with what one of equally frequent values would have; nulls are no values. Nested columns are
    not compared; booleans need no dictionary, and what comes as a dictionary stays one.
    """
    sample = _sample(rows) if sample is None else sample
    scale = max_share * rows.num_rows / max(1, sample.num_rows)
    return [
        name
        for name, values in zip(sample.column_names, sample.columns, strict=True)
        if pa.types.is_dictionary(values.type)
        or (not (pa.types.is_boolean(values.type) or pa.types.is_nested(values.type)) and _repeats(values, scale))
    ]


def _repeats(values: pa.ChunkedArray, scale: float) -> bool:
    """Return whether a sample has no more different values than one of ``scale`` for each of its values would have."""
    count = len(values) - values.null_count
    most = max(1.0, scale * count)
    return bool(pc.count_distinct(values, mode="only_valid").as_py() <= most * -np.expm1(-count / most))


def drop_unused(rows: pa.Table) -> pa.Table:
    """Return rows, at least one, whose dictionaries hold no other values than theirs: a row group keeps all of them."""
    for place, values in enumerate(rows.columns):
        if not pa.types.is_dictionary(values.type):
            continue
        whole = pa.concat_arrays(values.unify_dictionaries().chunks)
        indices, known = whole.indices, len(whole.dictionary)
        used = np.flatnonzero(np.bincount(indices.drop_null().to_numpy(), minlength=known))
        if len(used) < known:
            places = np.zeros(known, np.int32)
            places[used] = np.arange(len(used), dtype=np.int32)
            told = pa.array(places).take(indices)
            whole = pa.DictionaryArray.from_arrays(told, whole.dictionary.take(pa.array(used)))
            rows = rows.set_column(place, rows.schema.field(place), whole)
    return rows


def _sample(rows: pa.Table) -> pa.Table:
    """Return some rows, the same ones for the same number: at random, for sorted values repeat at even distances."""
    if rows.num_rows <= _SAMPLE_ROWS:
        return rows
    places = np.random.default_rng(_SEED).integers(0, rows.num_rows, _SAMPLE_ROWS)
    return rows.take(pa.array(np.unique(places)))


def _choose_plain(sample: pa.Table, *, row_count: int) -> dict[str, str]:
    """Return the encodings of columns without a dictionary, where one is better than PLAIN for every engine."""
    return {
        name: encoding
        for name, values in zip(sample.column_names, sample.columns, strict=True)
        if (encoding := _find_encoding(values, row_count))
    }


def _choose_levels(rows: pa.Table, encodings: Collection[str]) -> dict[str, int] | int:
    """Return the level of zstd of each column; one for all of a small row group.

    Text of one length is mostly random digits, and what has an encoding of its own is not asked.
    """
    if rows.num_rows < _LENGTHS_ROWS:
        return COMPRESSION_LEVEL
    return {
        name: TEXT_LEVEL if name not in encodings and _is_worth_more(values) else COMPRESSION_LEVEL
        for name, values in zip(rows.column_names, rows.columns, strict=True)
    }


def _is_worth_more(values: pa.ChunkedArray) -> bool:
    """Return whether a column is text, mostly distinct, of which some in the middle tells that a higher level helps."""
    near = values.slice(len(values) // 2, _SAMPLE_ROWS)
    if not pa.types.is_string(values.type) or 2 * pc.count_distinct(near).as_py() < len(near):
        return False
    text = "".join(near.drop_null().to_pylist()).encode()[:_LEVEL_BYTES]
    few, more = (pa.Codec("zstd", level).compress(text).size for level in (COMPRESSION_LEVEL, TEXT_LEVEL))
    return bool(more <= _LEVEL_SHARE * few)


def _find_encoding(values: pa.ChunkedArray, row_count: int) -> str | None:
    if values.type in _WHOLE_NUMBERS:
        extremes: dict[str, Any] = pc.min_max(values.cast(_WHOLE_NUMBERS[values.type])).as_py()
        is_close = extremes["min"] is not None and (extremes["max"] - extremes["min"]) >> _DIFFERENCE_BITS == 0
        return "DELTA_BINARY_PACKED" if is_close else None
    if pa.types.is_string(values.type) and row_count >= _LENGTHS_ROWS:
        extremes = pc.min_max(pc.binary_length(values)).as_py()
        return "DELTA_LENGTH_BYTE_ARRAY" if extremes["min"] == extremes["max"] else None
    return None
