"""Values below paths of JSON objects by Arrow's JSON reader, where it finds what DuckDB takes out of the same text.

DuckDB says what a promoted column is (:mod:`icedb_engine.reading.promoted`); this is a quicker way to the same values,
or to none. A sample tells which paths have values of one kind that their columns take. Arrow's reader refuses all
others, a key twice, and text that is no JSON object: then it declines all texts that it was given, as it does for a
``-0`` that is a DOUBLE. What keeps a value
in its row: each text begins with ``{`` and ends with ``}``, between two stands a line end, which no JSON string may
have, and there are as many objects as texts. So one text is one object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from icedb_log.table.time_columns import TimeUnit

from icedb_engine.reading.read_fast import Declined, FastColumn
from icedb_engine.reading.types import Form, Kind, find_taken

SAMPLED_TEXTS: Final = 64
_OPEN, _CLOSE = b"{}"
_MAY_OPEN: Final = tuple(b' \t\r\n"')
"""First bytes of texts that may be objects although they begin with another one: the last is of a JSON string."""
_KINDS: Final[Mapping[type, Kind]] = {
    str: Kind.STRING, bool: Kind.BOOLEAN, int: Kind.INTEGER, float: Kind.FRACTION, type(None): Kind(0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PathColumn:
    """A column that is taken out of a text.

    Attributes:
        keys: Its path in the text.
        sql_type: Its type.
        unit: What its numbers count, if it is a TIMESTAMP.
    """

    keys: tuple[str, ...]
    sql_type: str
    unit: TimeUnit


class PathReader:
    """Reads some columns out of texts. Threads may share one.

    Args:
        columns: By name.
        texts: Those that are to be read: some of them are looked at.

    Attributes:
        columns: Names of those that it reads; empty: it reads none.
    """

    def __init__(self, columns: Mapping[str, PathColumn], texts: pa.ChunkedArray) -> None:
        seen = _read_kinds(columns, texts)
        self._found: dict[str, FastColumn] = {}
        self._places: dict[str, list[int]] = {}
        root = _Fields()
        for name, column in columns.items():
            fast = FastColumn.known(column.sql_type, seen[name], column.unit)
            if fast.form != Form.JSON and not seen[name] & ~find_taken(column.sql_type):
                places = root.add(column.keys, fast.arrow_type)
                if places is not None:
                    self._found[name], self._places[name] = fast, places
        self.columns = tuple(self._found)
        self._options = pj.ParseOptions(explicit_schema=pa.schema(root.to_fields()), unexpected_field_behavior="ignore")

    def read(self, texts: pa.StringArray) -> dict[str, pa.ChunkedArray] | None:
        """Return the columns of texts, each a value for each text; None if one of them needs DuckDB."""
        objects = _find_objects(texts)
        if objects is None:
            return None
        data = pc.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), "\n")[0].as_buffer()
        try:
            rows = pj.read_json(
                pa.BufferReader(data),
                parse_options=self._options,
                read_options=pj.ReadOptions(use_threads=False, block_size=max(1, data.size)),
            )
            if rows.num_rows != len(texts):
                return None
            values = {name: column.settle(_walk(rows, self._places[name]), ()) for name, column in self._found.items()}
        except (Declined, pa.ArrowException):
            return None
        return None if any(map(_has_negative_zero, values.values())) else values


class _Fields:
    """Fields of Arrow's JSON reader, by key: a type, or more fields."""

    def __init__(self) -> None:
        self._below: dict[str, _Fields | pa.DataType] = {}

    def add(self, keys: Sequence[str], arrow_type: pa.DataType) -> list[int] | None:
        """Add a path; return the places that lead to it. None: another path ends here, or goes on below this one."""
        key, *rest = keys
        place = list(self._below).index(key) if key in self._below else len(self._below)
        if not rest:
            return [place] if self._below.setdefault(key, arrow_type) == arrow_type else None
        below = self._below.setdefault(key, _Fields())
        found = below.add(rest, arrow_type) if isinstance(below, _Fields) else None
        return None if found is None else [place, *found]

    def to_fields(self) -> list[pa.Field]:
        return [
            pa.field(key, pa.struct(below.to_fields()) if isinstance(below, _Fields) else below)
            for key, below in self._below.items()
        ]


def _has_negative_zero(values: pa.ChunkedArray) -> bool:
    """Return whether a DOUBLE is -0.0: of the integer ``-0`` DuckDB makes 0.0, of ``-0.0`` it does not."""
    if not pa.types.is_floating(values.type):
        return False
    zeros = values.filter(pc.equal(values, 0.0)).to_numpy()
    return bool(np.signbit(zeros).any())


def _walk(rows: pa.Table, places: Sequence[int]) -> pa.ChunkedArray:
    first, *below = places
    return pc.struct_field(rows.column(first), below) if below else rows.column(first)


def _find_objects(texts: pa.StringArray) -> pa.StringArray | None:
    """Return texts with ``{}`` in the place of those that are no objects; None if one may be an object all the same."""
    if not len(texts):
        return None
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    starts, ends = bounds[:-1], bounds[1:]
    has_text = starts < ends
    if data is None or not has_text.any():
        return None
    view = np.frombuffer(data, np.uint8)
    firsts = view[np.where(has_text, starts, starts[has_text][0])]
    is_object = has_text & (firsts == _OPEN)
    if texts.null_count:
        is_object &= texts.is_valid().to_numpy(zero_copy_only=False)
    if not is_object.all():
        if np.isin(firsts[has_text], _MAY_OPEN).any():
            return None
        texts = pc.if_else(pa.array(is_object), texts, "{}")
    return texts if (view[ends[is_object] - 1] == _CLOSE).all() else None


def _read_kinds(columns: Mapping[str, PathColumn], texts: pa.ChunkedArray) -> dict[str, Kind]:
    """Return the kinds of the values of columns in some of the texts."""
    step = -(-len(texts) // SAMPLED_TEXTS) or 1
    seen = dict.fromkeys(columns, Kind(0))
    for text in texts.take(pa.array(range(0, len(texts), step))).to_pylist():
        try:
            found = orjson.loads(text or "{}")
        except orjson.JSONDecodeError:
            continue
        for name, column in columns.items():
            value: Any = found
            for key in column.keys:
                value = value.get(key) if isinstance(value, dict) else None
            seen[name] |= _KINDS.get(type(value), Kind.NESTED)
    return seen
