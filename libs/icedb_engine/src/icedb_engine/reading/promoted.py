"""Promoted columns: what DuckDB takes out of the JSON text of another column. Pure.

The text is the truth, and a promoted column a function of it: so whoever writes rows makes the column anew, from the
text that the row gets, and every reader finds the same in both. A VARCHAR is what ``json_extract_string`` gives; any
other type takes the JSON value by the rules of a declared column (:mod:`icedb_engine.reading.types`), and is NULL where
it does not fit: a *misfit*, which is counted, and refuses no row. Numbers with a fraction are doubles in DuckDB's JSON:
one with more than 15 digits is a misfit of a decimal, for its digits would be others than those of the text.

Of rows that are an Arrow table most values are read by a quicker reader (:mod:`icedb_engine.reading.read_paths`), which
finds the same or declines.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from icedb_log.table.decimals import find_decimal
from icedb_log.table.table_config import TableConfig
from icedb_log.table.time_columns import DEFAULT_UNIT, TimeColumn
from icedb_log.units import MIB

from icedb_engine.reading.batches import count_up
from icedb_engine.reading.read_paths import PathColumn, PathReader
from icedb_engine.reading.types import Form, Kind, cast_sql, find_taken, kinds_sql
from icedb_engine.sql import quote_text

MISFITS: Final = "misfits"
"""The column that says how many values of a row do not fit their columns, if there are some that may not."""
_RAW: Final = "raw_"
_TEXT_FORMS: Final = (Form.JSON, Form.CELL, Form.NESTED, Form.VARCHAR)
_EXACT_DIGITS: Final = 15
"""Of a decimal that a double keeps."""
_PLAIN_TIME: Final = TimeColumn()
_PIECE_ROWS: Final = 65_536
_PIECE_BYTES: Final = 4 * MIB
"""Of texts that are read at once, if they are of one size."""


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
        self._names = {column: name_column(column) for column in self.types}
        self._paths: dict[str, dict[str, PathColumn]] = {}
        for column, sql_type in self.types.items():
            source, *keys = config.promoted[column]
            unit = config.times.get(column, _PLAIN_TIME).unit or DEFAULT_UNIT
            self._paths.setdefault(source, {})[column] = PathColumn(tuple(keys), sql_type, unit)
        self._sources = {source: name_column(source) for source in self._paths}
        self._texts = {source: _object_sql(name, forms[source]) for source, name in self._sources.items()}

    def make(self, rows: pa.Table, open_engine: Callable[[], Any], *, thread_count: int = 1) -> pa.Table:
        """Return these columns of rows under their names in the engine, and the number of misfits if there may be.

        Args:
            rows: Have the texts, under their names in the engine.
            open_engine: Opens a connection of it, which is closed after use; by any thread.
            thread_count: How many pieces of the rows are worked on at once.
        """
        readers = [
            (name, PathReader({self._names[column]: path for column, path in self._paths[source].items()}, rows[name]))
            for source, name in self._sources.items()
        ]

        def make_piece(piece: pa.Table) -> pa.Table:
            found = {MISFITS: pa.repeat(pa.scalar(0, pa.int32()), piece.num_rows)} if self.has_misfits else {}
            for name, reader in readers:
                found |= reader.read(piece[name].combine_chunks()) or {}
            rest = [column for column, name in self._names.items() if name not in found]
            if rest:
                given = piece.append_column("place", count_up(piece.num_rows))
                with open_engine() as engine:
                    engine.register("piece", given)
                    made = engine.execute(self.select("piece", kept="place", columns=rest)).to_arrow_table()
                found |= {name: made[name] for name in made.sort_by("place").drop_columns("place").column_names}
            return pa.table({name: found[name] for name in (*self._names.values(), *found.keys() & {MISFITS})})

        pieces = list(_cut(rows.select(list(self._sources.values()))))
        if len(pieces) == 1:
            return make_piece(pieces[0])
        with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-promoted") as pool:
            return pa.concat_tables(pool.map(make_piece, pieces))

    def select(self, relation: str, *, kept: str = "*", columns: Collection[str] | None = None) -> str:
        """Return the SQL of a relation with these columns behind its own, and the number of misfits if there may be.

        Args:
            relation: Has the texts.
            kept: Which of its own columns stay.
            columns: Those of these columns that are wanted; all if not given.
        """
        types = {column: kind for column, kind in self.types.items() if columns is None or column in columns}
        if not types:
            return f"SELECT {kept} FROM {relation}"  # noqa: S608 - names are ours
        # In steps: each text is parsed once for all columns of text, and once for all others, of which a value is
        # looked at several times.
        parsed: dict[str, str] = {}
        raw: dict[str, str] = {}
        made: dict[str, str] = {}
        for place, (source, paths) in enumerate(self._paths.items()):
            for word, own in (
                ("json_extract_string", [each for each in paths if types.get(each) == "VARCHAR"]),
                ("json_extract", [each for each in paths if types.get(each, "VARCHAR") != "VARCHAR"]),
            ):
                if own:
                    found = f"{word}_{place}"
                    sql_paths = (_path_sql(paths[each].keys) for each in own)
                    parsed[found] = _extract_sql(word, self._texts[source], sql_paths)
                    made |= {column: f"{found}[{number}]" for number, column in enumerate(own, start=1)}
        for column, value in made.items():
            if types[column] != "VARCHAR":
                made[column] = name = f"{_RAW}{self._names[column]}"
                raw[name] = f"nullif(CAST({value} AS VARCHAR), 'null')"
        values = {self._names[column]: self._value_sql(column, value) for column, value in made.items()}
        query = f"SELECT {kept}{_list(parsed)} FROM {relation}"  # noqa: S608 - names are ours
        if raw:
            query = f"SELECT *{_list(raw)} FROM ({query})"  # noqa: S608
        query = f"SELECT *{_list(values)} FROM ({query})"  # noqa: S608
        lost = " + ".join(f"CAST({name} IS NOT NULL AND {name.removeprefix(_RAW)} IS NULL AS INT)" for name in raw)
        outputs = f", CAST({lost} AS INT) AS {MISFITS}" if lost else ""
        return f"SELECT * EXCLUDE ({', '.join((*parsed, *raw))}){outputs} FROM ({query})"  # noqa: S608

    def _value_sql(self, column: str, value: str) -> str:
        sql_type = self.types[column]
        if sql_type == "VARCHAR":
            return value
        kinds, is_exact = kinds_sql(value, Form.JSON), ""
        taken = find_taken(sql_type)
        if find_decimal(sql_type) is not None:
            digits = f"trim(replace(regexp_extract({value}, '[0-9.]+'), '.', ''), '0')"
            is_exact = f" AND ({kinds} <> {Kind.FRACTION:d} OR length({digits}) <= {_EXACT_DIGITS})"
        unit = next(paths[column].unit for paths in self._paths.values() if column in paths)
        cast = cast_sql(value, Form.JSON, sql_type, unit=unit)
        return f"CASE WHEN ({kinds}) & {taken:d} <> 0{is_exact} THEN {cast} END"


def _object_sql(column: str, form: str) -> str:
    """Return the SQL of a text that may be a JSON object, else NULL: to try each of other texts alone takes long."""
    text = cast_sql(column, form, "VARCHAR", unit=DEFAULT_UNIT)
    if form == Form.NESTED:
        return text
    return rf"CASE WHEN ascii(ltrim({text}, E' \t\r\n')) = {ord('{')} THEN {text} END"


def _extract_sql(word: str, text: str, paths: Iterable[str]) -> str:
    """Return the SQL of a list of values; NULL of a text that is no JSON object.

    Args:
        word: The function of DuckDB.
        text: SQL of the text.
        paths: SQL of the paths.
    """
    return f"TRY({word}({text}, [{', '.join(paths)}]))"


def _path_sql(keys: Iterable[str]) -> str:
    """Return the SQL of a path of DuckDB's JSON functions."""
    escaped = (key.replace("\\", "\\\\").replace('"', '\\"') for key in keys)
    return quote_text("$" + "".join(f'."{key}"' for key in escaped))


def _list(outputs: Mapping[str, str]) -> str:
    return "".join(f", {value} AS {name}" for name, value in outputs.items())


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in pieces, at least one."""
    row_count = min(_PIECE_ROWS, max(1, rows.num_rows * _PIECE_BYTES // max(1, rows.nbytes)))
    for start in range(0, max(1, rows.num_rows), row_count):
        yield rows.slice(start, row_count)
