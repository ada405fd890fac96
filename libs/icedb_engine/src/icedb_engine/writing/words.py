"""Columns of text as dictionaries, on their way into a row group.

What is in a dictionary goes into every row group that is written with it, so a row group gets only the words that its
rows have. All row groups of a file have the same types.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def compact_dictionaries(rows: pa.Table) -> pa.Table:
    """Return the rows with each dictionary in one piece, without words that no row has."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(number, field, _compact(rows.column(number)))
    return rows


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the types of a schema: text becomes dictionaries, or dictionaries text."""
    for number, (field, wanted) in enumerate(zip(rows.schema, schema, strict=True)):
        if field.type != wanted.type:
            column = rows.column(number)
            column = column.dictionary_encode() if pa.types.is_dictionary(wanted.type) else column.cast(wanted.type)
            rows = rows.set_column(number, wanted, column)
    return rows


def _compact(column: pa.ChunkedArray) -> pa.Array:
    values: Any = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    indices = values.indices
    known = indices.drop_null() if indices.null_count else indices
    is_used = np.zeros(len(values.dictionary), dtype=bool)
    is_used[known.to_numpy()] = True
    if is_used.all():
        return values
    places = pa.array(np.cumsum(is_used, dtype=np.int32) - np.int32(1))
    words = values.dictionary.take(pa.array(np.flatnonzero(is_used)))
    return pa.DictionaryArray.from_arrays(places.take(indices), words)
