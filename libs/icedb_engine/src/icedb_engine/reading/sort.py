"""Rows that are in memory, sorted: where each row belongs is found from the sort columns alone, then rows are taken.

A sort column becomes numbers in the order of its values, those of all sort columns one number a row, its code; rows of
equal codes stay in their order. The order is that of the native engine: text by its bytes, NaN above all numbers, nulls
last. Rows of sorted files come in long runs of ascending codes: the range of all codes is cut so that each part has
about as many rows as are wanted, a part of each run goes into each, and only those few are sorted and taken at a time.
What does not come in runs is sorted as a whole. Text that repeats itself stays a dictionary from the file that was read
to the one that is written.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_DICTIONARY_VALUES: Final = 4096
"""A row group carries the whole dictionary of its rows: with more values text is better written as it is."""
RUN_ROWS: Final = 8192
"""Rows whose runs are shorter than this on average are sorted as a whole: to cut many runs costs more."""
SAMPLES: Final = 512
"""Rows of each part that are sampled to find where it begins."""
_BITS: Final = 63
_NAN_BITS: Final = 0x7FF8_0000_0000_0000


def count_plain_bytes(values: pa.ChunkedArray) -> int:
    """Return how large a column becomes that is not to stay a dictionary; 0: it stays as it is.

    Chunks of a dictionary have the same one.
    """
    chunks = values.chunks
    if not pa.types.is_dictionary(values.type) or not chunks or len(chunks[0].dictionary) <= MAX_DICTIONARY_VALUES:
        return 0
    lengths = pc.binary_length(chunks[0].dictionary)
    found = [lengths.take(chunk.indices) for chunk in chunks]
    return sum(pc.sum(each, min_count=0).as_py() + int(each.nbytes) for each in found)


def sort_rows(table: pa.Table, by: Sequence[str], *, chunk_rows: int) -> Iterator[pa.Table]:
    """Yield rows in the order of some columns, the first one first; stable.

    Args:
        table: The rows; chunks of a dictionary have the same one.
        by: The columns; none: rows keep their order.
        chunk_rows: How many come at a time, about.
    """
    pieces = [piece for piece in table.to_batches() if piece.num_rows]
    if not pieces:
        return
    codes = _join_codes([pa.concat_arrays(table.column(name).chunks) for name in by], table.num_rows)
    piece_starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    begins_run = np.append(True, codes[1:] < codes[:-1])
    begins_run[piece_starts[:-1]] = True
    starts = np.append(np.flatnonzero(begins_run), table.num_rows)
    if RUN_ROWS * (len(starts) - len(piece_starts)) > table.num_rows or RUN_ROWS * len(pieces) > table.num_rows:
        whole, order = table.combine_chunks(), np.argsort(codes, kind="stable")
        del table, pieces  # or their rows would be in memory twice to the end
        for start in range(0, len(order), chunk_rows):
            yield whole.take(pa.array(order[start : start + chunk_rows]))
        return
    owners = np.searchsorted(piece_starts, starts[:-1], side="right") - 1
    runs = [pieces[owner].slice(start - piece_starts[owner]) for owner, start in zip(owners, starts, strict=False)]
    for lows, highs in pairwise(_cut_runs(codes, starts, chunk_rows)):
        parts = [place for place, (low, high) in enumerate(zip(lows, highs, strict=True)) if low < high]
        rows = pa.Table.from_batches([runs[place].slice(lows[place], highs[place] - lows[place]) for place in parts])
        if len(parts) > 1:
            found = [codes[starts[place] + lows[place] : starts[place] + highs[place]] for place in parts]
            # The stable one merges runs.
            rows = rows.combine_chunks().take(pa.array(np.argsort(np.concatenate(found), kind="stable")))
        yield rows


def _cut_runs(codes: np.ndarray, starts: np.ndarray, part_rows: int) -> np.ndarray:
    """Return where the parts begin in each run, a row for each part, and one for the end of the last.

    Each part begins with a row of which is known what comes before it: rows of lower codes, and of the same code those
    of earlier runs, and of its own.

    Args:
        codes: Of all rows.
        starts: Where the runs begin, and where the last one ends.
        part_rows: How many rows a part is to have, about.
    """
    step = max(1, part_rows // SAMPLES)
    sampled = np.arange(0, len(codes), step)
    sampled = sampled[np.argsort(codes[sampled], kind="stable")]
    cuts = sampled[part_rows // step :: part_rows // step]
    owners, values = np.searchsorted(starts, cuts, side="right") - 1, codes[cuts]
    places = np.zeros((len(cuts) + 2, len(starts) - 1), np.int64)
    places[-1] = np.diff(starts)
    for run, (start, end) in enumerate(pairwise(starts)):
        equal_come_before = np.searchsorted(codes[start:end], values, side="right")
        equal_come_after = np.searchsorted(codes[start:end], values, side="left")
        others = np.where(owners > run, equal_come_before, equal_come_after)
        places[1:-1, run] = np.where(owners == run, cuts - start, others)
    return places


def _join_codes(keys: Sequence[pa.Array], row_count: int) -> np.ndarray:
    """Return a number for each row, in the order of some columns, the first one first."""
    codes, span = np.zeros(row_count, np.uint64), 1
    for key in keys:
        more, more_span = _find_codes(key)
        if span * more_span >> _BITS:
            codes, span = _number(codes)
            more, more_span = _number(more)
        codes *= np.uint64(more_span)
        codes += more
        span *= more_span
    return codes


def _find_codes(values: pa.Array) -> tuple[np.ndarray, int]:
    """Return a number for each value, in the order of the values, and one that is above all of them."""
    nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind) or pa.types.is_decimal(kind):
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
