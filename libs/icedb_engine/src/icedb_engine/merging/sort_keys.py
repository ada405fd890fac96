"""The order of rows by some columns, nulls last, as numbers: one or a few 64-bit words a row, compared by NumPy.

Same order as the flush's (``ORDER BY a NULLS LAST, …`` in the native engine): text by its UTF-8 bytes, false before
true, NaN above all numbers and equal to itself, -0.0 equal to 0.0. Rows of equal keys keep their order. Inputs are
sorted mostly, so that the sort finds their runs and only merges them.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WORD_BITS: Final = 64
_SIGN: Final = np.uint64(1 << 63)


def find_order(rows: pa.Table, sort: Sequence[str]) -> Any:
    """Return the numbers of the rows in sorted order, or ``None`` if they are sorted already.

    Args:
        rows: A table of which each sort column is one chunk.
        sort: The columns.
    """
    words = make_key_words(rows, sort)
    if not words or is_ascending(words):
        return None
    order = np.argsort(words[-1], kind="stable")
    for word in reversed(words[:-1]):
        order = order[np.argsort(word[order], kind="stable")]
    return order


def is_ascending(words: Sequence[Any]) -> bool:
    """Return whether no row has a smaller key than the row before it."""
    is_above = np.zeros(max(0, len(words[0]) - 1), dtype=bool)
    for word in words:
        before, after = word[:-1], word[1:]
        if np.any((after < before) & ~is_above):
            return False
        is_above |= after > before
    return True


def make_key_words(rows: pa.Table, sort: Sequence[str]) -> list[Any]:
    """Return the keys of rows: words that compare like the rows, the first one first."""
    words: list[Any] = []
    used_bits = _WORD_BITS
    for column in sort:
        codes, bits = _codes(rows.column(column).combine_chunks())
        if used_bits + bits > _WORD_BITS:
            words.append(codes)
            used_bits = bits
        elif bits:
            words[-1] = (words[-1] << np.uint64(bits)) | codes
            used_bits += bits
    return words


def _codes(values: pa.Array) -> tuple[Any, int]:
    """Return numbers from 0 on that compare like the values, and how many bits they need."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = values.dictionary_encode()
        kind = values.type
    if pa.types.is_dictionary(kind):
        return _word_codes(values)
    valid = None if values.null_count == 0 else values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        codes = _float_codes(pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False))
    elif pa.types.is_boolean(kind):
        codes = pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        codes = _integer_codes(values)
    return _shift_to_zero(codes, valid)


def _word_codes(values: pa.DictionaryArray) -> tuple[Any, int]:
    words = values.dictionary
    ranks = np.empty(len(words) + 1, dtype=np.uint64)
    ranks[pc.sort_indices(words).to_numpy()] = np.arange(len(words), dtype=np.uint64)
    ranks[len(words)] = len(words)  # null
    indices = values.indices
    if indices.null_count:
        indices = indices.fill_null(len(words))
    return ranks[indices.to_numpy()], len(words).bit_length()


def _integer_codes(values: pa.Array) -> Any:
    width = pa.int32() if values.type.bit_width == 32 else pa.int64()  # noqa: PLR2004 - dates
    numbers = values.view(width).cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(0)
    return numbers.to_numpy().view(np.uint64) ^ _SIGN


def _float_codes(values: Any) -> Any:
    numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    numbers[np.isnan(numbers)] = np.nan  # one NaN of all
    bits = numbers.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _shift_to_zero(codes: Any, valid: Any) -> tuple[Any, int]:
    known = codes if valid is None else codes[valid]
    if not len(known):
        return np.zeros(len(codes), dtype=np.uint64), 0
    low, high = int(known.min()), int(known.max())
    span = high - low
    if valid is None:
        return codes - np.uint64(low), span.bit_length()
    if span + 1 < 1 << _WORD_BITS:
        return np.where(valid, codes - np.uint64(low), np.uint64(span + 1)), (span + 1).bit_length()
    # All 64 bits are taken by the values: rank them, which leaves room for null.
    distinct, ranks = np.unique(codes, return_inverse=True)
    return np.where(valid, ranks.astype(np.uint64), np.uint64(len(distinct))), len(distinct).bit_length()
