"""The events of one unit inside the native engine, and every question that is asked about them.

Batches come to it in *sections*: what one reader made of some batches, with the form of each column. The exact reader
of JSON lines makes a section of raw JSON text, the fast one and the typed formats sections of typed columns. The
*typed* stage is the union of all sections, cast to the table's types, with partition values. Each question is one
query over all batches; what is fetched is bounded by the number of batches, columns and partitions, never by the
number of rows. Columns are addressed as ``c0``, ``c1``, … so that no user's name ever meets a name of ours.

Lines are read by the fast reader where it takes them (:mod:`icedb_engine.reading.read_fast`), by the exact one
otherwise. What columns the fast reader expects is taken from the table's schema and from a sample: the first lines of
some batches, read by the exact reader. Whoever checks the batches may send some of them to the exact reader afterwards:
it alone says why a batch is bad.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.table.column_names import ColumnNames
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.table.table_config import PartitionField
from icedb_log.table.time_columns import DEFAULT_UNIT, TimeColumn, TimeUnit
from icedb_log.table.transforms import transform_sql
from icedb_log.units import GIB, MIB

from icedb_engine.arrow_types import make_schema
from icedb_engine.reading.batches import Batch, count_up, join_chunks
from icedb_engine.reading.promoted import MISFITS, Promoted
from icedb_engine.reading.read_fast import CELL_BYTES, MAX_GROWTH, FastColumn, read_fast
from icedb_engine.reading.read_json import BadRowQuery, BatchKeys, RawEvents
from icedb_engine.reading.sort import MAX_DICTIONARY_VALUES, sort_rows
from icedb_engine.reading.types import (
    Form,
    Kind,
    can_fail,
    cast_sql,
    evidence_sql,
    find_digits,
    find_plain_kind,
    is_cast,
    kinds_sql,
)
from icedb_engine.sql import among, quote_name, quote_text, sort_sql
from icedb_engine.unit_engine import UnitEngine
from icedb_engine.work import FlushUnit
from icedb_engine.writing.part_files import ORDINAL

ROWS_PER_CHUNK: Final = 61_440
CHUNK_BYTES: Final = 32 * MIB
"""Of rows that are sorted in memory; a single row may be larger."""
MAX_SORTED_BYTES: Final = GIB
"""Of a table that is sorted in memory, however much of that there is: a column of text in one piece ends at 2 GiB."""
SORTED_ROW_BYTES: Final = 40
"""Of such a table, for each row besides: its ordinal and place as the engine tells them, code, place in the order."""
SAMPLED_VALUES: Final = 4096
FEW_VALUES: Final = 256
"""Text of which so many values in a row have no more different ones becomes a dictionary: to take and encode numbers
costs a third."""
_PLAIN_TIME: Final = TimeColumn()


@dataclass(frozen=True, slots=True)
class Section:
    """What one reader made of some batches.

    Attributes:
        relation: Its name in the engine; columns ``batch``, ``no``, and one for each of ``forms``.
        batches: Numbers of the batches in it.
        forms: The form of each column of a batch, by its name.
        rows: The Arrow table that the relation is, if it is one; then its column ``place`` says where a row is in it.
    """

    relation: str
    batches: tuple[int, ...]
    forms: Mapping[str, str]
    rows: pa.Table | None = None

    @property
    def is_raw(self) -> bool:
        """Whether it is of use only until its typed rows are there."""
        return self.rows is None


@dataclass(frozen=True, slots=True)
class ColumnEvidence:
    """What the values of one column of one batch are."""

    kinds: Kind
    value_count: int


class EventFrame:
    """The events of one unit. Lives as long as the unit has the engine.

    Args:
        engine: Where they are.
        batches: Those that have rows, by their place in the unit; how they become sections is :class:`UnitSections`.
        times: Of columns that are times: what their numbers count.
        partition: Of the table.
        sorted_bytes: Size of rows in memory up to which they are sorted there, which takes as much again; larger ones
            are sorted by the engine, which spills.
    """

    def __init__(
        self,
        engine: UnitEngine,
        batches: Mapping[int, Batch],
        times: Mapping[str, TimeColumn] | None = None,
        partition: Sequence[PartitionField] = (),
        *,
        sorted_bytes: int = 0,
    ) -> None:
        self.engine = engine
        self.batches = dict(batches)
        self._times = dict(times or {})
        self._partition = partition
        self._sorted_bytes = min(sorted_bytes, MAX_SORTED_BYTES)
        self._values = ", ".join(f"p{index}" for index in range(len(partition)))
        self._sections: list[Section] = []
        self._section_of: dict[int, Section] = {}
        self._columns: dict[str, str] = {}
        self.types: Mapping[str, str] = {}
        """The columns of the typed stage, with types."""

    @property
    def thread_count(self) -> int:
        """How many threads the engine has: others that work beside it are as many."""
        ((thread_count,),) = self._fetch("SELECT current_setting('threads')")
        return int(thread_count)

    def name_column(self, name: str) -> str:
        """Return the name in the engine of a column of the batches."""
        return self._columns.setdefault(name, f"c{len(self._columns)}")

    def unit_of(self, name: str) -> TimeUnit:
        """Return what the numbers of a column count, if it is a TIMESTAMP."""
        return self._times.get(name, _PLAIN_TIME).unit or DEFAULT_UNIT

    def add(self, section: Section) -> None:
        """Take a section, whose relation is there already, with columns named by :meth:`name_column`."""
        self._sections.append(section)
        self._section_of.update(dict.fromkeys(section.batches, section))

    def clear(self) -> None:
        """Forget the sections, not their relations."""
        self._sections, self._section_of, self.types = [], {}, {}

    def read_evidence(self) -> dict[int, dict[str, ColumnEvidence]]:
        """Return the kinds of values of each batch and column; columns without a value are left out.

        Batches of a section of which the same is found share one answer: there may be thousands.
        """
        evidence: dict[int, dict[str, ColumnEvidence]] = {}
        for section in self._sections:
            names = list(section.forms)
            outputs = "".join(
                f", {evidence_sql(self._columns[name], section.forms[name])}, count({self._columns[name]})"
                if kind is None
                else f", {kind:d}, count(*)"
                for name, kind in self._find_plain_kinds(section).items()
            )
            shared: dict[tuple[int | None, ...], dict[str, ColumnEvidence]] = {}
            for batch, *found in self._fetch(
                f"SELECT batch{outputs} FROM {section.relation} "  # noqa: S608 - names are ours
                f"WHERE {among(section.batches)} GROUP BY batch"
            ):
                numbers = tuple(found)
                if numbers not in shared:
                    pairs = zip(names, numbers[::2], numbers[1::2], strict=True)
                    shared[numbers] = {
                        name: ColumnEvidence(Kind(kind) | find_digits(section.forms[name]), count)
                        for name, kind, count in pairs
                        if count
                    }
                evidence[batch] = shared[numbers]
        return evidence

    def _find_plain_kinds(self, section: Section) -> dict[str, Kind | None]:
        """Return the kind of all values of each column that has one in each row; None: not as simple as that."""
        table = section.rows
        if table is None:
            return dict.fromkeys(section.forms)
        return {name: _find_plain_kind(table.column(self._columns[name]), form) for name, form in section.forms.items()}

    def form_of(self, batch: int, column: str) -> str | None:
        """Return the form in which a batch has a column; None if it has none."""
        return self._section_of[batch].forms.get(column)

    def find_first_kind(self, batch: int, column: str) -> Kind:
        """Return the kind of the first value of a batch's column."""
        sql = kinds_sql(self._columns[column], self._section_of[batch].forms[column])
        return Kind(int(self._bad_rows(batch, f"{self._columns[column]} IS NOT NULL", sql).find_example().text))

    def of_kinds(self, batch: int, column: str, kinds: Kind) -> BadRowQuery:
        """Return the rows of a batch whose value in a column is of one of the kinds."""
        sql = self._columns[column]
        found = kinds_sql(sql, self._section_of[batch].forms[column])
        return self._bad_rows(batch, f"({found}) & {int(kinds)} <> 0", sql)

    def missing(self, batch: int, column: str) -> BadRowQuery:
        """Return the rows of a batch without a value in a column."""
        has_column = column in self._section_of[batch].forms
        return self._bad_rows(batch, f"{self._columns[column]} IS NULL" if has_column else "true")

    def failed_cast(self, batch: int, column: str) -> BadRowQuery:
        """Return the rows of a batch whose value in a column did not survive the cast."""
        sql = self._columns[column]
        cast = self._cast_sql(self._section_of[batch], column)
        return self._bad_rows(batch, f"{sql} IS NOT NULL AND ({cast}) IS NULL", sql)

    def bad_times(self, batch: int, column: str, condition: str) -> BadRowQuery:
        """Return the rows of a batch for whose typed value a condition holds; shown is the value as it came."""
        sql = self._columns[column]
        found = f"SELECT no FROM typed WHERE batch = {batch} AND {condition.format(sql)}"  # noqa: S608
        return self._bad_rows(batch, f"no IN ({found})", sql)

    def in_partition(self, batch: int, values: Sequence[str]) -> BadRowQuery:
        """Return the rows of a batch in one partition."""
        condition = " AND ".join(f"p{index} = {quote_text(value)}" for index, value in enumerate(values))
        return BadRowQuery(self.engine, "typed", batch, condition)

    def cast(self, types: Mapping[str, str]) -> None:
        """Make the typed stage: the columns of ``types``, and as ``p0``, ``p1``, … the partition values."""
        self.types = dict(types)
        parts = []
        for section in self._sections:
            casts = "".join(f", {self._cast_sql(section, name)} AS {self._columns[name]}" for name in types)
            values = "".join(f", {self._value_sql(field)} AS p{index}" for index, field in enumerate(self._partition))
            query = (
                f"SELECT *{values} FROM (SELECT batch, no, {'0 AS place' if section.is_raw else 'place'}{casts} "  # noqa: S608 - names are ours
                f"FROM {section.relation} WHERE {among(section.batches)})"
            )
            if section.is_raw or self._has_casts(section):
                relation = f"typed_{section.relation}"
                self.engine.make_table(relation, query)
                query = f"FROM {relation}"
            parts.append(f"({query})")
        self.engine.make_view("typed", " UNION ALL ".join(parts))
        if self._partition:
            self.engine.make_table(
                "touched",
                f"SELECT batch, {self._values}, count(*) AS row_count FROM typed GROUP BY ALL",  # noqa: S608
            )

    def _cast_sql(self, section: Section, name: str) -> str:
        sql_type = self.types[name]
        if name not in section.forms:
            return f"CAST(NULL AS {sql_type})"
        return cast_sql(self._columns[name], section.forms[name], sql_type, unit=self.unit_of(name))

    def _value_sql(self, field: PartitionField) -> str:
        if field.column not in self.types:
            return "CAST(NULL AS VARCHAR)"
        return transform_sql(field, self._columns[field.column], self.types[field.column])

    def find_fallible(self) -> tuple[str, ...]:
        """Return the typed columns of which some value may not have survived its cast."""
        return tuple(
            name
            for name, sql_type in self.types.items()
            if any(name in section.forms and can_fail(section.forms[name], sql_type) for section in self._sections)
        )

    def count(self, conditions: Mapping[str, str]) -> dict[int, dict[str, int]]:
        """Return for each batch and column how many typed values a condition on the column holds for.

        Args:
            conditions: SQL by column, in which ``{}`` stands for the typed value.
        """
        outputs = "".join(
            f", count(*) FILTER (WHERE {condition.format(self._columns[name])})"
            for name, condition in conditions.items()
        )
        rows = self._fetch(f"SELECT batch{outputs} FROM typed GROUP BY batch")  # noqa: S608
        return {batch: dict(zip(conditions, counts, strict=True)) for batch, *counts in rows}

    def count_missing(self) -> dict[int, list[int]]:
        """Return for each batch how many rows lack each partition value."""
        outputs = "".join(
            f", coalesce(sum(row_count) FILTER (WHERE p{index} IS NULL), 0)" for index in range(len(self._partition))
        )
        rows = self._fetch(f"SELECT batch{outputs} FROM touched GROUP BY batch")  # noqa: S608
        return {batch: counts for batch, *counts in rows}

    def read_batch_partitions(
        self, batches: Collection[int], *, min_bytes: int = 0
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return each batch with each of its partitions whose values have so many bytes together at least."""
        if not self._partition:
            return [(batch, ()) for batch in batches]
        total = " + ".join(f"strlen(p{index})" for index in range(len(self._partition)))
        long = f" AND {total} >= {min_bytes}" if min_bytes else ""
        rows = self._fetch(
            f"SELECT batch, {self._values} FROM touched WHERE {among(batches)}{long} ORDER BY ALL"  # noqa: S608
        )
        return [(batch, tuple(texts)) for batch, *texts in rows]

    def read_partitions(self, batches: Collection[int]) -> list[tuple[str, ...]]:
        """Return the distinct partitions of some batches, ascending."""
        if not self._partition:
            return [()]
        query = f"SELECT DISTINCT {self._values} FROM touched WHERE {among(batches)} ORDER BY ALL"  # noqa: S608
        return [tuple(row) for row in self._fetch(query)]

    def stream_sorted(
        self,
        batches: Collection[int],
        *,
        columns: Mapping[str, str],
        sort: Sequence[str],
        partitions: Sequence[tuple[str, ...]],
        repeats: bool = False,
    ) -> Any:
        """Return the typed rows of some batches as a stream of record batches. Ends every other stage.

        Args:
            batches: Whose rows.
            columns: What follows the ordinal of the partition, with types; NULL where this frame has no such column.
            sort: Sorted by partition, then by these, nulls last.
            partitions: What :meth:`read_partitions` returned for the same batches.
            repeats: Whether text of few values may come as dictionaries.
        """
        values = {
            f"p{index}": pa.array([each[index] for each in partitions], pa.string())
            for index in range(len(self._partition))
        }
        for section in self._sections:
            if section.is_raw:
                self.engine.clear_table(section.relation)
                self.engine.clear(f"{section.relation}_lines")
        self.batches.clear()
        keys = pa.table({**values, ORDINAL: pa.array(range(len(partitions)), pa.int32())})
        self.engine.fill("partitions", keys)
        joined = f"JOIN partitions USING ({self._values})" if len(partitions) > 1 else "CROSS JOIN partitions"
        rows = f"FROM typed {joined} WHERE {among(batches)}"
        table = self._find_typed_rows(batches, columns)
        if table is not None:  # the rows themselves would be copied into the engine, and out again
            found = self.engine.stream(f"SELECT {ORDINAL}, place {rows}", rows_per_chunk=ROWS_PER_CHUNK)
            return _sort_taken(table, found.read_all(), sort, repeats=repeats, thread_count=self.thread_count)
        outputs = "".join(
            f", {self._columns[name] if name in self.types else f'CAST(NULL AS {sql_type})'} AS {quote_name(name)}"
            for name, sql_type in columns.items()
        )
        order = "".join(f", {sort_sql(self._columns[name], self.types[name])}" for name in sort if name in self.types)
        return self.engine.stream(
            f"SELECT {ORDINAL}{outputs} {rows} ORDER BY {ORDINAL}{order}",
            rows_per_chunk=ROWS_PER_CHUNK,
        )

    def _find_typed_rows(self, batches: Collection[int], columns: Mapping[str, str]) -> pa.Table | None:
        """Return some columns of the Arrow table that has the typed rows of these batches as they are, if one has."""
        first, *others = (each for each in self._sections if not set(batches).isdisjoint(each.batches))
        if others or first.rows is None or self._has_casts(first):
            return None
        if not columns.keys() <= first.forms.keys() & self.types.keys():
            return None
        rows = first.rows.select([self._columns[name] for name in columns]).rename_columns(list(columns))
        size_bytes = rows.nbytes + rows.num_rows * SORTED_ROW_BYTES
        fits = size_bytes <= self._sorted_bytes
        return rows if fits and rows.schema.types == make_schema(columns).types else None

    def _has_casts(self, section: Section) -> bool:
        return any(is_cast(form, self.types.get(name)) for name, form in section.forms.items())

    def _bad_rows(self, batch: int, condition: str, shown: str = "''") -> BadRowQuery:
        return BadRowQuery(self.engine, self._section_of[batch].relation, batch, condition, shown)

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        return self.engine.fetch(query)


def _find_plain_kind(values: pa.ChunkedArray, form: str) -> Kind | None:
    """Return the kind of all values of a column, if each row has one, and it is seen without looking at each."""
    if values.null_count:
        return None
    if form != Form.BIGINT:
        return find_plain_kind(form)
    found = pc.min_max(values)
    low, high = found["min"].as_py(), found["max"].as_py()
    return Kind.INTEGER if low is not None and -EXACT_DOUBLE_MAX <= low <= high <= EXACT_DOUBLE_MAX else None


def _sort_taken(
    table: pa.Table, found: pa.Table, sort: Sequence[str], *, repeats: bool, thread_count: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table that have an ordinal, each after it, sorted by it and by some columns.

    Args:
        table: The rows.
        found: The ordinal of each row that is wanted, and its place in the table, in any order.
        sort: The columns.
        repeats: Whether text of few values is to become a dictionary.
        thread_count: How many columns are put together at once.
    """
    ordinals = np.full(table.num_rows, -1, np.int32)
    ordinals[found.column("place").to_numpy()] = found.column(ORDINAL).to_numpy()
    if found.num_rows < table.num_rows:
        is_wanted = ordinals >= 0
        table, ordinals = table.filter(pa.array(is_wanted)), ordinals[is_wanted]
    with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-sort") as pool:
        columns = list(pool.map(_join_repeated if repeats else _join, table.columns))
    rows = pa.table([pa.array(ordinals), *columns], [ORDINAL, *table.column_names])
    fitting = CHUNK_BYTES * rows.num_rows // max(1, rows.nbytes)
    for part in sort_rows(rows, [ORDINAL, *sort], chunk_rows=max(1, min(ROWS_PER_CHUNK, fitting))):
        yield from part.combine_chunks().to_batches()


def _join(values: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece: of many, Arrow would join them for each part that is taken."""
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)


def _join_repeated(values: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, text of few values as a dictionary."""
    sample = values.slice(0, SAMPLED_VALUES)
    may_repeat = pa.types.is_string(values.type) and len(sample) == SAMPLED_VALUES
    if may_repeat and pc.count_distinct(sample, mode="all").as_py() <= FEW_VALUES:
        encoded = _join(pc.dictionary_encode(values).unify_dictionaries())
        if len(encoded.dictionary) <= MAX_DICTIONARY_VALUES:
            return encoded
    return _join(values)


SAMPLE_LINES: Final = 4096
"""Lines of all batches that are sampled; for a unit with no more lines the fast reader does not pay."""
_MIN_SAMPLE: Final = 2
_MAX_SAMPLE: Final = 64
_SAMPLED_BATCHES: Final = 128
"""At most; of more, some that lie evenly among them. Others that have keys of their own are read exactly."""


class UnitSections:
    """The readers of one unit: they give the frame its sections.

    Attributes:
        fast: Batches that the fast reader took, and no check has rejected.
        fast_names: All columns that they may have which the table does not have.
        fast_columns: The columns that have a value in them, and those that are promoted from them.
        lines: What the exact reader holds.
        misfits: How many values of each batch do not fit a promoted column; 0 where it is not said.
    """

    def __init__(self, unit: FlushUnit, frame: EventFrame) -> None:
        self.fast: set[int] = set()
        self.fast_names: tuple[str, ...] = ()
        self.fast_columns: Mapping[str, str] = {}
        self.lines: RawEvents | None = None
        self.misfits: dict[int, int] = {}
        self._frame = frame
        self._unit = unit
        self._fast_rows: pa.Table | None = None

    def read_fast(self) -> None:
        """Let the fast reader take what it can; once, before anything else."""
        frame = self._frame
        lines = {number: batch for number, batch in frame.batches.items() if batch.forms is None and batch.row_count}
        if sum(batch.row_count for batch in lines.values()) <= SAMPLE_LINES:
            return
        columns = self._plan(lines)
        if not any(column.form is not None for column in columns.values()):
            return
        rows = read_fast(frame.engine.connection, lines, columns, thread_count=frame.thread_count)
        if rows.table is None:
            return
        self.fast = set(rows.batches)
        self.fast_names = tuple(name for name in columns if name not in self._unit.schema)
        table = rows.table.rename_columns(self._name_columns(rows.forms))
        self._fast_rows, self.fast_columns = self._hold("fast", table, rows.forms)

    def slow_down(self, batches: Collection[int]) -> None:
        """Send some batches, of those that are fast, to the exact reader."""
        self.fast -= set(batches)
        if not self.fast:
            self.fast_names = ()

    def open_lines(self, batches: Sequence[int]) -> None:
        """Hand the lines of those batches that are not fast to the exact reader."""
        if self.lines is not None:
            self.lines.drop()
        found = {number: self._frame.batches[number] for number in batches if number not in self.fast}
        lines = {number: batch for number, batch in found.items() if batch.forms is None}
        self.lines = RawEvents(self._frame.engine, "raw", lines) if lines else None

    def read_keys(self, batches: Sequence[int]) -> dict[int, BatchKeys]:
        """Return the keys of batches that are not fast."""
        keys: dict[int, BatchKeys] = {}
        lines = []
        for number in batches:
            forms = self._frame.batches[number].forms
            if forms is None:
                lines.append(number)
            else:
                keys[number] = BatchKeys(tuple(forms), len(forms), False)
        if self.lines is not None and lines:
            keys |= self.lines.read_keys(lines, max_count=self._unit.limits.batch_columns)
        return keys

    def fill_frame(self, batches: Sequence[int], keys: Mapping[int, BatchKeys]) -> None:
        """Give the frame the sections of these batches.

        Args:
            batches: Those that are still accepted.
            keys: Their keys, but for those of the fast ones.
        """
        frame = self._frame
        frame.clear()
        fast = tuple(number for number in batches if number in self.fast)
        if fast:
            frame.add(Section("fast", fast, self.fast_columns, self._fast_rows))
        by_forms: dict[tuple[tuple[str, str], ...], list[int]] = {}
        lines = []
        for number in batches:
            forms = frame.batches[number].forms
            if forms is not None:
                by_forms.setdefault(tuple(forms.items()), []).append(number)
            elif number not in self.fast:
                lines.append(number)
        for place, (pairs, numbers) in enumerate(by_forms.items()):
            self._add_tables(f"tables{place}", dict(pairs), numbers)
        if lines and self.lines is not None:
            forms = dict.fromkeys((name for number in lines for name in keys[number].names), Form.JSON)
            promoted = self._find_promoted(forms)
            add = promoted.select if promoted.types else None
            self.lines.extract(lines, {name: frame.name_column(name) for name in forms}, add)
            if promoted.has_misfits:
                found = frame.engine.fetch(f"SELECT batch, sum({MISFITS}) FROM raw GROUP BY batch")  # noqa: S608
                self.misfits.update((batch, int(count)) for batch, count in found)
            frame.add(Section("raw", tuple(lines), {**forms, **promoted.types}))

    def _add_tables(self, relation: str, forms: Mapping[str, str], numbers: Sequence[int]) -> None:
        names = self._name_columns(forms)
        parts = []
        for number in numbers:
            batch = self._frame.batches[number]
            ids = pa.repeat(pa.scalar(number, pa.int32()), batch.row_count)
            parts.append(pa.table([ids, batch.numbers, *batch.rows.columns], names=names))
        rows, all_forms = self._hold(relation, join_chunks(pa.concat_tables(parts)), forms)
        self._frame.add(Section(relation, tuple(numbers), all_forms, rows))

    def _hold(self, relation: str, rows: pa.Table, forms: Mapping[str, str]) -> tuple[pa.Table, dict[str, str]]:
        """Hand rows to the engine; return them and their forms with the promoted columns."""
        engine = self._frame.engine
        rows = rows.append_column("place", count_up(rows.num_rows))
        promoted = self._find_promoted(forms)
        if promoted.types:
            found = promoted.make(rows, engine.connection.cursor, thread_count=self._frame.thread_count)
            if promoted.has_misfits:
                self._note_misfits(rows.column("batch"), found.column(MISFITS))
            for name in map(self._frame.name_column, promoted.types):
                rows = rows.append_column(name, found.column(name))
        engine.hold(relation, rows)
        return rows, {**forms, **promoted.types}

    def _find_promoted(self, forms: Mapping[str, str]) -> Promoted:
        return Promoted(self._unit.config, forms, self._frame.name_column)

    def _note_misfits(self, batches: pa.ChunkedArray, counts: pa.ChunkedArray) -> None:
        self.misfits.update(dict.fromkeys(pc.unique(batches).to_pylist(), 0))
        found = pa.table({"batch": batches, "count": counts}).filter(pc.greater(counts, 0)).group_by("batch")
        for row in found.aggregate([("count", "sum")]).to_pylist():
            self.misfits[row["batch"]] = row["count_sum"]

    def _name_columns(self, forms: Mapping[str, str]) -> list[str]:
        return ["batch", "no", *map(self._frame.name_column, forms)]

    def _plan(self, lines: Mapping[int, Batch]) -> dict[str, FastColumn]:
        """Return the columns that the fast reader should expect; empty if the unit is not for it."""
        schema, config, limits = self._unit.schema, self._unit.config, self._unit.limits
        seen = self._read_sample(lines)
        row_count = sum(batch.row_count for batch in lines.values())
        bytes_per_row = sum(batch.decoded_bytes for batch in lines.values()) / row_count
        has_room = len(schema) * CELL_BYTES < MAX_GROWTH * bytes_per_row / 2 and len(schema) < limits.batch_columns
        columns = {
            name: FastColumn.known(sql_type, seen.get(name, Kind(0)), self._frame.unit_of(name))
            for name, sql_type in schema.items()
            if (has_room or name in seen) and name not in config.promoted
        }
        names = ColumnNames(config, schema)
        for name, kinds in seen.items():
            is_usable = name not in names and names.find_problem(name) is None and config.evolution != "strict"
            column = FastColumn.new(kinds) if is_usable else None
            if column is not None:
                columns[name] = column
                names.add(name)
        if len(columns) > limits.batch_columns or len(names) > limits.table_columns:
            return {}
        return columns

    def _read_sample(self, lines: Mapping[int, Batch]) -> dict[str, Kind]:
        """Return the usable keys of the first lines of batches, in order, with the kinds of their values."""
        step = -(-len(lines) // _SAMPLED_BATCHES)
        lines = dict(islice(lines.items(), 0, None, step))
        count = min(max(SAMPLE_LINES // len(lines), _MIN_SAMPLE), _MAX_SAMPLE)
        max_count = self._unit.limits.batch_columns
        sample = RawEvents(self._frame.engine, "sample", {number: batch.head(count) for number, batch in lines.items()})
        try:
            malformed = sample.find_malformed()
            found = sample.read_keys([number for number in lines if number not in malformed], max_count=max_count)
            keys = {
                number: own for number in lines if (own := found.get(number)) and not own.has_duplicates
                and own.count <= max_count
            }  # fmt: skip
            known = ColumnNames(self._unit.config, self._unit.schema)
            names = dict.fromkeys(name for own in keys.values() for name in own.names if not known.find_problem(name))
            names = {name: None for name in names if known.add(name) == name}
            frame = EventFrame(self._frame.engine, {})
            sample.extract(tuple(keys), {name: frame.name_column(name) for name in names})
            frame.add(Section(sample.name, tuple(keys), dict.fromkeys(names, Form.JSON)))
            seen = dict.fromkeys(names, Kind(0))
            for evidence in frame.read_evidence().values():
                for name, values in evidence.items():
                    seen[name] |= values.kinds
            return seen
        finally:
            sample.drop()
