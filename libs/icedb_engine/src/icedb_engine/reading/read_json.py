"""JSON inside the native engine: the exact reader, which reads every value as text.

Two stages: *lines* (text) and *raw* (one column of JSON text for each top-level key). Each question is one query
over all batches; what is fetched is bounded by the number of batches and columns, never by the number of rows.
A batch that is one JSON document becomes lines, an element each. The whole document has to be in memory several times
over while it is taken apart: hence a bound of its own, and one document at a time.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.json_text import cut_array, scan_array

from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import BOM, Batch, Fault, check_utf8, count_up, join_chunks
from icedb_engine.reading.json_text import cut_objects
from icedb_engine.sql import among, open_closed, quote_text
from icedb_engine.unit_engine import UnitEngine

_OWN_FIELDS: Final = (("batch", pa.int32()), ("no", pa.int32()))
_LINES_SCHEMA: Final = pa.schema([*_OWN_FIELDS, ("line", pa.string())])
_SHOWN_CHARS: Final = 120
_CUT_ROWS: Final = 4096
"""Lines that are cut into values together."""


@dataclass(frozen=True, slots=True)
class Example:
    """One offending row: its number, and the text of its value."""

    row_number: int
    text: str


@dataclass(frozen=True, slots=True)
class BadRowQuery:
    """The bad rows of a batch, as a SQL condition that is run when their numbers or an example are needed.

    Attributes:
        engine: Where the relation is.
        relation: With the rows of all batches.
        batch: Number of the batch.
        condition: SQL over a row.
        shown: SQL of what is shown of a row.
    """

    engine: UnitEngine
    relation: str
    batch: int
    condition: str
    shown: str = "''"

    def find_numbers(self) -> list[int]:
        """Return the numbers of all of them."""
        query = f"SELECT no FROM {self.relation} WHERE batch = {self.batch} AND ({self.condition})"  # noqa: S608
        return [number for (number,) in self.engine.fetch(query)]

    def find_example(self, row: int | None = None) -> Example:
        """Return the first one, or that of a number."""
        where = self.condition if row is None else f"no = {row}"
        ((number, text),) = self.engine.fetch(
            f"SELECT no, CAST({self.shown} AS VARCHAR) FROM {self.relation} "  # noqa: S608
            f"WHERE batch = {self.batch} AND ({where}) ORDER BY no LIMIT 1"
        )
        return Example(number, text)


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The top-level keys of one batch.

    Attributes:
        names: Distinct, in the order of the first event; empty when there are more than were asked for.
        count: Number of distinct keys.
        has_duplicates: Whether some event has a key twice.
    """

    names: tuple[str, ...]
    count: int
    has_duplicates: bool


_MALFORMED: Final = r"NOT (json_valid(line) AND starts_with(ltrim(line, E' \t\r'), '{'))"
_TWICE: Final = "len(json_keys(line)) <> len(list_distinct(json_keys(line)))"


class RawEvents:
    """The lines of some batches. Lives until :meth:`drop`.

    Args:
        engine: Where they go.
        name: Of the relation; ``<name>_lines`` and ``<name>`` are ours.
        batches: Those of lines, by number in the unit.
    """

    def __init__(self, engine: UnitEngine, name: str, batches: Mapping[int, Batch]) -> None:
        self.name = name
        self._engine = engine
        self._lines = f"{name}_lines"
        self._batches = dict(batches)
        parts = [
            pa.record_batch(
                [pa.repeat(pa.scalar(number, pa.int32()), len(batch.rows)), batch.numbers, batch.rows],
                schema=_LINES_SCHEMA,
            )
            for number, batch in batches.items()
        ]
        self._engine.fill(self._lines, join_chunks(pa.Table.from_batches(parts, schema=_LINES_SCHEMA)))

    def drop(self) -> None:
        """Let go of everything."""
        self._engine.clear(self._lines)
        self._engine.clear_table(self.name)

    def find_malformed(self) -> list[int]:
        """Return the batches with a line that is not a JSON object."""
        return [batch for (batch,) in self._fetch(f"SELECT DISTINCT batch FROM {self._lines} WHERE {_MALFORMED}")]  # noqa: S608

    def malformed(self, batch: int) -> BadRowQuery:
        """Return the lines of a batch that are not JSON objects."""
        return BadRowQuery(self._engine, self._lines, batch, _MALFORMED)

    def having(self, batch: int, keys: Collection[str], *, or_twice: bool = False) -> BadRowQuery:
        """Return the lines of a batch that have one of some keys; if so, also those that have any key twice."""
        wanted = ", ".join(map(quote_text, keys))
        has_key = f"list_has_any(json_keys(line), CAST([{wanted}] AS VARCHAR[]))"
        return BadRowQuery(self._engine, self._lines, batch, f"{has_key} OR {_TWICE}" if or_twice else has_key)

    def explain_malformed(self, batch: int, number: int) -> str:
        """Return the engine's words about one line that is not a JSON object."""
        try:
            ((kind, first),) = self._fetch(
                "SELECT json_type(line), CASE WHEN json_type(line, '$[0]') = 'VARCHAR' THEN line->>'$[0]' END "
                f"{self._from_line(batch, number)}"
            )
        except (duckdb.Error, UnicodeDecodeError) as error:
            return _read_engine_words(error)
        # A door that sets an event aside writes its reason before it.
        return f"it is a JSON {str(kind).lower()}{f' of {first[:_SHOWN_CHARS]!r}, …' if first else ''}"

    def read_line_keys(self, batch: int, number: int) -> list[str]:
        """Return the top-level keys of one line, in order."""
        ((keys,),) = self._fetch(f"SELECT json_keys(line) {self._from_line(batch, number)}")
        return list(keys)

    def read_keys(self, batches: Collection[int], *, max_count: int) -> dict[int, BatchKeys]:
        """Return the top-level keys of some batches; of those with too many only the count."""
        rows = self._fetch(
            f"""
            WITH sets AS (
                SELECT batch, json_keys(line) AS keys, min(no) AS no
                FROM {self._lines} WHERE {among(batches)} GROUP BY ALL
            ), keys AS (
                SELECT DISTINCT batch, unnest(keys) AS key FROM sets
            ), batches AS (
                SELECT batch, arg_min(keys, no) AS first_keys, bool_or(len(keys) <> len(list_distinct(keys))) AS twice
                FROM sets GROUP BY batch
            )
            SELECT batch, any_value(first_keys[:{max_count}]), any_value(twice), count(key),
                CASE WHEN count(key) <= {max_count} THEN list(key) END
            FROM batches LEFT JOIN keys USING (batch) GROUP BY batch
            """  # noqa: S608 - numbers only
        )
        found = {}
        for batch, first_keys, has_duplicates, count, names in rows:
            place = {name: index for index, name in enumerate(first_keys)}
            ordered = sorted(names or (), key=lambda name: (place.get(name, len(place)), name))
            found[batch] = BatchKeys(tuple(name for name in ordered if name is not None), count, has_duplicates)
        return found

    def extract(
        self, batches: Collection[int], columns: Mapping[str, str], add: Callable[[str], str] | None = None
    ) -> None:
        """Make the raw stage: ``batch``, ``no`` and one column of JSON text for each key, by key.

        Args:
            batches: Whose lines.
            columns: Keys, with the names of their columns.
            add: Returns the SQL of a relation with more columns.
        """
        schema = pa.schema([*_OWN_FIELDS, *((column, pa.string()) for column in columns.values())])
        cut = self.name if add is None else f"{self.name}_cut"
        self._engine.load(cut, schema, self._cut(batches, tuple(columns), schema))
        if add is not None:
            self._engine.make_table(self.name, add(cut))
            self._engine.clear_table(cut)

    def _cut(self, batches: Collection[int], keys: Collection[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for number in batches:
            batch = self._batches[number]
            for start in range(0, batch.row_count, _CUT_ROWS):
                lines, numbers = (each.slice(start, _CUT_ROWS) for each in (batch.rows, batch.numbers))
                ids = pa.repeat(pa.scalar(number, pa.int32()), len(lines))
                yield pa.record_batch([ids, numbers, *cut_objects(lines, keys)], schema=schema)

    def _from_line(self, batch: int, number: int) -> str:
        return f"FROM {self._lines} WHERE batch = {batch} AND no = {number}"

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        return self._engine.fetch(query)


def _read_engine_words(error: Exception) -> str:
    """Return what the engine says about malformed JSON.

    It quotes the text around the place, and may cut it within a character: then its message is no UTF-8.
    """
    text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    return text.partition("\n")[0].rpartition("Error: ")[2][:200]


_BLANK: Final = b" \t\r\n"
_AT_BYTE: Final = re.compile(r"at byte (\d+)")
_ONE_AT_A_TIME: Final = Lock()


def read_json_document(decoded: bytes, limits: FlushUnitLimits) -> Batch:
    """Take a JSON array of objects, or one object, apart; elements that are too long are set aside.

    Raises:
        BatchRejected: Not one JSON document, or above a bound.
    """
    if len(decoded) > limits.document_bytes:
        raise BatchRejected(
            f"the JSON document has {len(decoded)} bytes; the limit is {limits.document_bytes}: "
            "send NDJSON, one event per line, or smaller batches"
        )
    decoded = decoded.removeprefix(BOM).strip(_BLANK)
    check_utf8(decoded)
    if decoded.startswith(b"["):
        elements = _split_array(decoded)
    else:
        elements = pa.array([decoded] if decoded else [], pa.binary()).cast(pa.string())
    batch = Batch(elements, count_up(len(elements), first=1), len(decoded), noun="element")
    lengths = pc.binary_length(elements)
    too_long = {
        index + 1: Fault(
            f"an element is longer than {limits.line_bytes} bytes",
            f"element {index + 1} has {lengths[index]} bytes; the limit is {limits.line_bytes}",
        )
        for index in pc.indices_nonzero(pc.greater(lengths, limits.line_bytes)).to_pylist()
    }
    return batch.split(too_long) if too_long else batch


def _split_array(decoded: bytes) -> pa.StringArray:
    with _ONE_AT_A_TIME:
        elements = cut_array(decoded)
        if elements is None:
            _check_document(decoded)
            elements = scan_array(decoded)
        return pa.array(elements, pa.binary()).cast(pa.string())


def _check_document(decoded: bytes) -> None:
    """Raise BatchRejected, with the engine's words, if it does not take a JSON document either."""
    with open_closed() as connection:
        connection.register("body", pa.table({"text": pa.array([decoded], pa.binary()).cast(pa.string())}))
        try:
            connection.execute("SELECT json_array_length(CAST(text AS JSON)) FROM body").fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            text = _read_engine_words(error).partition("  Input:")[0]
            place = _AT_BYTE.search(text)
            if place is not None:
                line_number = decoded.count(b"\n", 0, int(place[1])) + 1
                text = f"line {line_number}: {text}"
            raise BatchRejected(f"not one JSON document ({text}); send a whole JSON array") from error
