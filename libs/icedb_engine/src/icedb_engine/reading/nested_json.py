"""Structs, maps and lists of Arrow as compact JSON text.

The native engine writes them, a column at a time. Some it cannot take: structs without fields, maps that have a key
twice, nested dictionaries, half floats, decimals of more than 38 digits. Of a column that it refuses it writes the
leaves, and the text is put together here, level by level; both ways give the same text. What neither way can write is
a batch that cannot be taken, and no flush that ends (I5).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import duckdb
import orjson
import pyarrow as pa
from icedb_log.errors import Unavailable
from icedb_log.texts import first_line

from icedb_engine.errors import BatchRejected
from icedb_engine.sql import open_closed

_MAX_DECIMAL_DIGITS: Final = 38
_LISTS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (pa.types.is_list, pa.types.is_large_list)

_Texts = list[str | None]


def write_json(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the JSON text of each value of a nested column; null where the value is.

    Raises:
        BatchRejected: It has none.
        Unavailable: Memory did not suffice.
    """
    try:
        # WARN: of a struct in a struct that is cut out of a larger array DuckDB 1.5 reads other rows' nulls.
        if not any(chunk.offset for chunk in values.chunks):
            return _write_by_engine(values)
    except (duckdb.Error, pa.ArrowException):
        # WARN: not by what the engine says: which types it cannot take differs between its releases.
        pass
    try:
        return pa.chunked_array([pa.array(_write(chunk), pa.string()) for chunk in values.chunks], pa.string())
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise Unavailable(f"memory did not suffice for the JSON text of column {name!r}") from error
    except Exception as error:
        raise BatchRejected(
            f"column {name!r} of the Arrow type {_show(values.type)} cannot be written as JSON "
            f"({type(error).__name__}: {first_line(error)}); cast the column to a plain type, or send JSON text"
        ) from error


def _write_by_engine(values: pa.ChunkedArray) -> pa.ChunkedArray:
    with open_closed() as connection:
        connection.register("nested", pa.table({"value": values}))
        found = connection.execute(
            'SELECT CASE WHEN "value" IS NOT NULL THEN CAST(to_json("value") AS VARCHAR) END AS text FROM nested'
        ).to_arrow_table()
    return found.column(0)


def _write(values: pa.Array) -> _Texts:
    """Return the text of each value; ``None``: it is null."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _write(values.storage)
    if pa.types.is_dictionary(kind):
        texts = _write(values.dictionary)
        return [None if place is None else texts[place] for place in values.indices.to_pylist()]
    if pa.types.is_struct(kind):
        found = _write_objects(values)
    elif pa.types.is_map(kind):
        found = _write_maps(values)
    elif any(is_type(kind) for is_type in _LISTS):
        found = _write_lists(_write(values.values), values.offsets.to_pylist())
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = values.values.slice(values.offset * size, len(values) * size)
        found = _write_lists(_write(items), [size * place for place in range(len(values) + 1)])
    else:
        return _write_leaves(values)
    return [text if is_valid else None for text, is_valid in zip(found, values.is_valid().to_pylist(), strict=True)]


def _write_objects(values: pa.StructArray) -> Iterator[str]:
    kind = values.type
    columns = [_write(values.field(place)) for place in range(kind.num_fields)]
    names = [orjson.dumps(kind.field(place).name).decode() for place in range(kind.num_fields)]
    for row in range(len(values)):
        pairs = (f"{name}:{column[row] or 'null'}" for name, column in zip(names, columns, strict=True))
        yield "{" + ",".join(pairs) + "}"


def _write_maps(values: pa.MapArray) -> Iterator[str]:
    items = _write(values.items)
    keys = [_as_name(text) for text in _write(values.keys)]
    offsets = values.offsets.to_pylist()
    for start, end in pairwise(offsets):
        # A key that is there twice is written twice, as JSON text keeps it: nothing is lost.
        yield "{" + ",".join(f"{keys[place]}:{items[place] or 'null'}" for place in range(start, end)) + "}"


def _write_lists(texts: _Texts, offsets: Sequence[int]) -> Iterator[str]:
    for start, end in pairwise(offsets):
        yield "[" + ",".join(text or "null" for text in texts[start:end]) + "]"


def _as_name(text: str | None) -> str:
    """Return a key of a map as the name of a field: what is not text is its own text in quotes."""
    text = text or "null"
    return text if text.startswith('"') else orjson.dumps(text).decode()


def _write_leaves(values: pa.Array) -> _Texts:
    kind = values.type
    if pa.types.is_float16(kind):
        values = values.cast(pa.float32())
    elif pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision <= _MAX_DECIMAL_DIGITS:
        # Digits, a point, an exponent: JSON writes numbers like this.
        digits: _Texts = values.cast(pa.string()).to_pylist()
        return digits
    texts: _Texts = _write_by_engine(pa.chunked_array([values])).to_pylist()
    return texts


def _show(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 200 else f"{text[:200]}…"  # noqa: PLR2004 - a struct may have thousands of fields
