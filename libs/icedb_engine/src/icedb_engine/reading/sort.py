"""Rows that are in memory, sorted: where each row belongs is found from the sort columns alone, then rows are taken.

A sort column becomes numbers in the order of its values, those of all sort columns one number a row; these are sorted,
and rows of equal keys stay in their order. The order is that of the native engine: text by its bytes, NaN above all
numbers, nulls last. Text that repeats itself stays a dictionary from the file that was read to the one that is written.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_DICTIONARY_VALUES: Final = 4096
"""A row group carries the whole dictionary of its rows: with more values text is better written as it is."""
_BITS: Final = 63
_NAN_BITS: Final = 0x7FF8_0000_0000_0000


def count_plain_bytes(values: pa.Array) -> int:
    """Return how large a column becomes that is not to stay a dictionary; 0: it stays as it is."""
    if not pa.types.is_dictionary(values.type) or len(values.dictionary) <= MAX_DICTIONARY_VALUES:
        return 0
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    text_bytes: int = pc.sum(lengths, min_count=0).as_py()
    return text_bytes + int(lengths.nbytes)


def find_order(keys: Sequence[pa.Array], row_count: int) -> np.ndarray:
    """Return the places of rows in the order of some columns, the first one first; stable."""
    codes, span = np.zeros(row_count, np.uint64), 1
    for key in keys:
        more, more_span = _find_codes(key)
        if span * more_span >> _BITS:
            codes, span = _number(codes)
            more, more_span = _number(more)
        codes *= np.uint64(more_span)
        codes += more
        span *= more_span
    return np.argsort(codes, kind="stable")  # this one merges what is sorted already: each file of ours


def take_sorted(columns: Sequence[pa.Array], schema: Any, order: np.ndarray, *, chunk_rows: int) -> Iterator[pa.Table]:
    """Yield the rows in an order, so many at a time."""
    for start in range(0, len(order), chunk_rows):
        places = pa.array(order[start : start + chunk_rows])
        yield pa.Table.from_arrays([values.take(places) for values in columns], schema=schema)


def _find_codes(values: pa.Array) -> tuple[np.ndarray, int]:
    """Return a number for each value, in the order of the values, and one that is above all of them."""
    nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        encoded = values if pa.types.is_dictionary(kind) else pc.dictionary_encode(values)
        known = pc.dictionary_encode(encoded.dictionary)  # a file's dictionary may have a value twice
        order = pc.array_sort_indices(known.dictionary).to_numpy()
        ranks, span = np.zeros(len(order) + 1, np.uint64), len(order)
        ranks[order] = np.arange(span, dtype=np.uint64)
        ranks = ranks[np.append(known.indices.to_numpy(), span)]
        codes = ranks[encoded.indices.fill_null(0).to_numpy()]
    elif pa.types.is_floating(kind):
        numbers = values.fill_null(0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
        bits = np.where(np.isnan(numbers), np.int64(_NAN_BITS), numbers.view(np.int64))
        codes, span = _number(np.where(bits < 0, bits ^ np.int64(2**_BITS - 1), bits))
    else:
        if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
            values = values.cast(pa.int32())
        numbers = values.cast(pa.int64()).fill_null(0).to_numpy()
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        span = high - low + 1
        # Differences of 64 bits fit without a sign, whatever overflows on the way.
        codes = numbers.view(np.uint64) - np.uint64(low % 2**64)
        if span >> (_BITS - 1):
            codes, span = _number(codes)
    if nulls is not None:
        codes[nulls] = span
    return codes, span + 1


def _number(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the same order in numbers without gaps, and one that is above all of them."""
    distinct, numbers = np.unique(codes, return_inverse=True)
    return numbers.astype(np.uint64), max(1, len(distinct))
