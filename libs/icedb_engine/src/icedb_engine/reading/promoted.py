"""Promoted columns: what DuckDB takes out of the JSON text of another column. Pure.

The text is the truth, and a promoted column a function of it: so whoever writes rows makes the column anew, from the
text that the row gets, and every reader finds the same in both. A VARCHAR is what ``json_extract_string`` gives; any
other type takes the JSON value by the rules of a declared column (:mod:`icedb_engine.reading.types`), and is NULL where
it does not fit: a *misfit*, which is counted, and refuses no row. Numbers with a fraction are doubles in DuckDB's JSON:
one with more than 15 digits is a misfit of a decimal, for its digits would be others than those of the text.

``json_transform`` parses each text once, for all paths that can be fields of one struct; others, one below another or
with keys that differ only in case, are extracted one by one. It gives the text that ``json_extract_string`` gives, but
for doubles that it writes with an exponent: what looks like one is extracted again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, cast

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.table.decimals import find_decimal
from icedb_log.table.table_config import TableConfig
from icedb_log.table.time_columns import DEFAULT_UNIT, TimeColumn, TimeUnit
from icedb_log.units import MIB

from icedb_engine.reading.batches import count_up
from icedb_engine.reading.read_fast import read_counts, read_days, read_moments
from icedb_engine.reading.types import Form, Kind, cast_sql, find_taken, kinds_sql
from icedb_engine.sql import quote_text

MISFITS: Final = "misfits"
"""The column that says how many values of a row do not fit their columns, if there are some that may not."""
_RAW: Final = "raw_"
_TEXT_FORMS: Final = (Form.JSON, Form.CELL, Form.NESTED, Form.VARCHAR)
_EXACT_DIGITS: Final = 15
"""Of a decimal that a double keeps."""
_PLAIN_TIME: Final = TimeColumn()
_TIMES: Final = ("TIMESTAMP", "DATE")
_WITH_EXPONENT: Final = r"-?[0-9](\.[0-9]+)?e[+-][0-9]+"
_EXPONENT_BYTES: Final = 24
"""A double as ``json_transform`` may write it, and how long it is at most."""
_MINUS, _POINT, _NINE, _E = b"-.9e"
_PIECE_ROWS: Final = 65_536
_PIECE_BYTES: Final = 16 * MIB
_MIN_PIECE_BYTES: Final = 4 * MIB
"""Of texts that are read at once, if they are of one size: a query takes some milliseconds to plan."""

_Fields = dict[str, "str | _Fields"]
"""Of a struct, by key: ``VARCHAR`` or ``JSON``, or more fields."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A promoted column.

    Attributes:
        source: The column of the text.
        keys: Its path in the text.
        sql_type: Its type.
        unit: What its numbers count, if it is a TIMESTAMP.
    """

    source: str
    keys: tuple[str, ...]
    sql_type: str
    unit: TimeUnit

    def add_to(self, fields: _Fields) -> bool:
        """Add the path to the fields of a struct; return whether they take it."""
        *parents, last = self.keys
        for key in parents:
            below = fields.setdefault(key, {}) if _takes(fields, key) else None
            if not isinstance(below, dict):
                return False
            fields = below
        if not _takes(fields, last) or isinstance(fields.get(last), dict):
            return False
        kind = "VARCHAR" if self.sql_type == "VARCHAR" else "JSON"
        fields[last] = kind if fields.get(last, kind) == kind else "JSON"
        return True

    def find_sql(self, place: int, fields: _Fields | None, *, is_exact: bool) -> str:
        """Return the SQL of the value: as text if this is a VARCHAR, else raw.

        Args:
            place: Of the text and the struct.
            fields: Of the struct; None if it has not this one.
            is_exact: Extract anew what ``json_transform`` may have written otherwise.
        """
        is_text, text, path = self.sql_type == "VARCHAR", f"text_{place}", _path_sql(self.keys)
        if fields is None:
            raw = f"nullif(CAST(TRY(json_extract({text}, {path})) AS VARCHAR), 'null')"
            return f"TRY(json_extract_string({text}, {path}))" if is_text else raw
        value, kind = f"struct_{place}", cast("Any", fields)
        for key in self.keys:
            value, kind = f"struct_extract({value}, {quote_text(key)})", kind[key]
        if kind == "JSON":
            raw = f"CAST({value} AS VARCHAR)"
            return cast_sql(raw, Form.JSON, "VARCHAR", unit=DEFAULT_UNIT) if is_text else raw
        if not is_exact:
            return value
        # One in the other: of conditions that are joined the engine evaluates each.
        may_differ = f"regexp_full_match({value}, '{_WITH_EXPONENT}')"
        may_differ = f"CASE WHEN ascii({value}) BETWEEN {_MINUS} AND {_NINE} THEN {may_differ} END"
        may_differ = f"CASE WHEN strlen({value}) <= {_EXPONENT_BYTES} THEN {may_differ} END"
        return f"CASE WHEN {may_differ} THEN json_extract_string({text}, {path}) ELSE {value} END"

    def cast_sql(self, raw: str) -> str:
        """Return the SQL of a raw value in the column's type; NULL where it does not fit."""
        kinds, is_exact = kinds_sql(raw, Form.JSON), ""
        if find_decimal(self.sql_type) is not None:
            digits = f"trim(replace(regexp_extract({raw}, '[0-9.]+'), '.', ''), '0')"
            is_exact = f" AND ({kinds} <> {Kind.FRACTION:d} OR length({digits}) <= {_EXACT_DIGITS})"
        cast = cast_sql(raw, Form.JSON, self.sql_type, unit=self.unit)
        return f"CASE WHEN ({kinds}) & {find_taken(self.sql_type):d} <> 0{is_exact} THEN {cast} END"


def _takes(fields: _Fields, key: str) -> bool:
    """Return whether a struct of DuckDB may have a field, whose name it compares without case."""
    return all(key == other or key.lower() != other.lower() for other in fields)


def _path_sql(keys: Iterable[str]) -> str:
    """Return the SQL of a path of DuckDB's JSON functions."""
    escaped = (key.replace("\\", "\\\\").replace('"', '\\"') for key in keys)
    return quote_text("$" + "".join(f'."{key}"' for key in escaped))


class Promoted:
    """The promoted columns of some rows, and the SQL that makes them.

    Args:
        config: Of the table.
        forms: The form of each column of the rows, by its name (:class:`~icedb_engine.reading.types.Form`).
        name_column: Returns the name of a column in the engine.

    Attributes:
        types: The columns, with types; empty if the rows have no text that one of them is taken from.
        has_misfits: Whether a value may not fit.
    """

    def __init__(self, config: TableConfig, forms: Mapping[str, str], name_column: Callable[[str], str]) -> None:
        self.types = config.find_promoted(name for name, form in forms.items() if form in _TEXT_FORMS)
        self.has_misfits = any(sql_type != "VARCHAR" for sql_type in self.types.values())
        self._columns: dict[str, _Column] = {}
        for column, sql_type in self.types.items():
            source, *keys = config.promoted[column]
            unit = config.times.get(column, _PLAIN_TIME).unit or DEFAULT_UNIT
            self._columns[name_column(column)] = _Column(source, tuple(keys), sql_type, unit)
        self._raw = [name for name, column in self._columns.items() if column.sql_type != "VARCHAR"]
        self._sources = {source: name_column(source) for source in (each.source for each in self._columns.values())}
        self._texts = {source: _object_sql(name, forms[source]) for source, name in self._sources.items()}

    def make(self, rows: pa.Table, open_engine: Callable[[], Any], *, thread_count: int = 1) -> pa.Table:
        """Return these columns of rows under their names in the engine, and the number of misfits if there may be.

        Args:
            rows: Have the texts, under their names in the engine.
            open_engine: Opens a connection of it, which is closed after use; by any thread.
            thread_count: How many pieces of the rows are worked on at once.
        """

        def make_piece(piece: pa.Table) -> pa.Table:
            with open_engine() as engine:
                return self._make_piece(piece, engine)

        pieces = list(_cut(rows.select(list(self._sources.values())), thread_count))
        if len(pieces) == 1:
            return make_piece(pieces[0])
        with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-promoted") as pool:
            return pa.concat_tables(pool.map(make_piece, pieces))

    def _make_piece(self, piece: pa.Table, engine: Any) -> pa.Table:
        """Return the columns of some rows; times are read as the fast reader of lines does, where it takes them."""
        times = [name for name in self._raw if self._columns[name].sql_type in _TIMES]
        others = [name for name in self._raw if name not in times]
        parts = [self._extract(piece, others, engine)]
        read = {name: _read_times(parts[0][_RAW + name], self._columns[name]) for name in times}
        slow = [name for name in times if read[name] is None]
        if slow:
            raws = parts[0].select([_RAW + name for name in slow])
            parts.append(_run(engine, self._cast_sql("piece", slow), raws))
        made = {name: part[name] for part in parts for name in part.column_names}
        made |= {name: values for name, values in read.items() if values is not None}
        if self.has_misfits:
            counts = (part[MISFITS] for part in parts if MISFITS in part.column_names)
            made[MISFITS] = reduce(pc.add, counts, pa.repeat(pa.scalar(0, pa.int32()), piece.num_rows))
        return pa.table({name: made[name] for name in (*self._columns, *made.keys() & {MISFITS})})

    def _extract(self, piece: pa.Table, others: Sequence[str], engine: Any) -> pa.Table:
        """Return the columns of text, some others, and the raw values of the rest."""

        def run(*, is_exact: bool) -> pa.Table:
            extracted = self._extract_sql("piece", kept="place", is_exact=is_exact)
            return _run(engine, self._cast_sql(f"({extracted})", others), piece)

        with suppress(duckdb.InvalidInputException):  # a text is no JSON
            found = run(is_exact=False)
            if not any(_may_have_exponents(found[name]) for name in self._columns if name not in self._raw):
                return found
        return run(is_exact=True)

    def select(self, relation: str, *, kept: str = "*") -> str:
        """Return the SQL of a relation with these columns behind its own, and the number of misfits if there may be.

        Args:
            relation: Has the texts.
            kept: Which of its own columns stay.
        """
        if not self._columns:
            return f"SELECT {kept} FROM {relation}"  # noqa: S608 - names are ours
        return self._cast_sql(f"({self._extract_sql(relation, kept=kept)})", self._raw)

    def _extract_sql(self, relation: str, *, kept: str, is_exact: bool = True) -> str:
        """Return the SQL of a relation with the columns of text, and the raw values of all others.

        Args:
            relation: Has the texts.
            kept: Which of its own columns stay.
            is_exact: As :meth:`_Column.find_sql`; and a text that is no JSON has no values, and is no error.
        """
        guard = "TRY" if is_exact else ""
        places = {source: place for place, source in enumerate(self._sources)}
        fields: dict[str, _Fields] = {source: {} for source in places}
        is_field = {name: column.add_to(fields[column.source]) for name, column in self._columns.items()}
        texts = {f"text_{place}": self._texts[source] for source, place in places.items()}
        structs = {
            f"struct_{place}": f"{guard}(json_transform(text_{place}, {quote_text(orjson.dumps(found).decode())}))"
            for place, found in enumerate(fields.values())
            if found
        }
        values = {
            f"{_RAW}{name}" if name in self._raw else name: column.find_sql(
                places[column.source], fields[column.source] if is_field[name] else None, is_exact=is_exact
            )
            for name, column in self._columns.items()
        }
        query = f"SELECT *{_list(structs)} FROM (SELECT {kept}{_list(texts)} FROM {relation})"  # noqa: S608
        return f"SELECT * EXCLUDE ({', '.join((*texts, *structs))}){_list(values)} FROM ({query})"  # noqa: S608

    def _cast_sql(self, relation: str, names: Sequence[str]) -> str:
        """Return the SQL of a relation with some columns in place of their raw values, and the number of misfits."""
        if not names:
            return f"FROM {relation}"
        raws = {name: f"{_RAW}{name}" for name in names}
        values = {name: self._columns[name].cast_sql(raw) for name, raw in raws.items()}
        query = f"SELECT *{_list(values)} FROM {relation}"  # noqa: S608
        lost = " + ".join(f"CAST({raw} IS NOT NULL AND {name} IS NULL AS INT)" for name, raw in raws.items())
        return f"SELECT * EXCLUDE ({', '.join(raws.values())}), CAST({lost} AS INT) AS {MISFITS} FROM ({query})"  # noqa: S608


def _object_sql(column: str, form: str) -> str:
    """Return the SQL of a text that may be a JSON object, else NULL: to try each of other texts alone takes long."""
    text = cast_sql(column, form, "VARCHAR", unit=DEFAULT_UNIT)
    if form == Form.NESTED:
        return text
    return rf"CASE WHEN ascii(ltrim({text}, E' \t\r\n')) = {ord('{')} THEN {text} END"


def _list(outputs: Mapping[str, str]) -> str:
    return "".join(f", {value} AS {name}" for name, value in outputs.items())


def _run(engine: Any, query: str, rows: pa.Table) -> pa.Table:
    """Return what a query over rows called ``piece`` gives, in their order."""
    engine.register("piece", rows.append_column("place", count_up(rows.num_rows)))
    made = engine.execute(query).to_arrow_table()
    if not np.array_equal(made["place"].to_numpy(), np.arange(rows.num_rows)):
        made = made.sort_by("place")
    return made.drop_columns("place")


def _may_have_exponents(values: pa.ChunkedArray) -> bool:
    """Return whether a text looks like a double with an exponent."""
    for chunk in values.chunks:
        _, offsets, data = chunk.buffers()
        if data is None:
            continue
        bounds, view = np.frombuffer(offsets, np.int32, len(chunk) + 1, chunk.offset * 4), np.frombuffer(data, np.uint8)
        sizes = np.diff(bounds)
        rows = np.flatnonzero((sizes >= len("1e+16")) & (sizes <= _EXPONENT_BYTES))
        starts = bounds[rows]
        seconds = view[starts + 1 + (view[starts] == _MINUS)]
        rows = rows[(view[starts] >= _MINUS) & (view[starts] <= _NINE) & ((seconds == _POINT) | (seconds == _E))]
        if len(rows) and pc.any(pc.match_substring_regex(chunk.take(pa.array(rows)), f"^{_WITH_EXPONENT}$")).as_py():
            return True
    return False


def _read_times(raws: pa.ChunkedArray, column: _Column) -> pa.ChunkedArray | None:
    """Return raw values as times; None if one of them needs the engine."""
    is_day = column.sql_type == "DATE"
    if raws.null_count == len(raws):
        return pa.chunked_array([pa.nulls(len(raws), pa.date32() if is_day else pa.timestamp("us"))])
    values = raws.combine_chunks()
    is_text = pc.starts_with(values, '"')
    found = None
    if pc.all(is_text).as_py():
        found = (read_days if is_day else read_moments)(pc.utf8_slice_codeunits(values, 1, -1))
    elif not is_day and not pc.any(is_text).as_py():
        with suppress(pa.ArrowInvalid):
            found = read_counts(values.cast(pa.int64()), column.unit)
    return None if found is None else pa.chunked_array([found])


def _cut(rows: pa.Table, count: int) -> Iterator[pa.Table]:
    """Yield rows in pieces, at least one; so many, or more, if there is enough for them."""
    size_bytes = min(_PIECE_BYTES, max(_MIN_PIECE_BYTES, -(-rows.nbytes // count)))
    row_count = min(_PIECE_ROWS, max(1, rows.num_rows * size_bytes // max(1, rows.nbytes)))
    for start in range(0, max(1, rows.num_rows), row_count):
        yield rows.slice(start, row_count)
