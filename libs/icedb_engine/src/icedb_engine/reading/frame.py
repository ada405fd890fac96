"""The events of one unit inside the native engine, and every question that is asked about them.

Batches come to it in *sections*: what one reader made of some batches, with the form of each column. The exact reader
of JSON lines makes a section of raw JSON text, the fast one and the typed formats sections of typed columns. The
*typed* stage is the union of all sections, cast to the table's types, with partition values. Each question is one
query over all batches; what is fetched is bounded by the number of batches, columns and partitions, never by the
number of rows. Columns are addressed as ``c0``, ``c1``, … so that no user's name ever meets a name of ours.

Lines are read by the fast reader where it takes them (:mod:`icedb_engine.reading.read_fast`), by the exact one
otherwise. What columns the fast reader expects is taken from the table's schema and from a sample: the first lines of
each batch, read by the exact reader. Whoever checks the batches may send some of them to the exact reader afterwards:
it alone says why a batch is bad.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from icedb_log.table.table_config import PartitionField, TableConfig, check_column_name
from icedb_log.table.time_columns import DEFAULT_UNIT, TimeColumn, TimeUnit
from icedb_log.table.transforms import transform_sql

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import BatchContent, BatchLines, BatchTable
from icedb_engine.reading.read_fast import CELL_BYTES, FIRST_COLUMN, MAX_GROWTH, FastColumn, read_fast
from icedb_engine.reading.read_json import BatchKeys, RawEvents
from icedb_engine.reading.types import (
    INTEGERS,
    Form,
    Kind,
    can_fail,
    cast_form_sql,
    evidence_sql,
    infer_type,
    is_cast,
    kinds_sql,
)
from icedb_engine.sql import among, quote_name, quote_text
from icedb_engine.writing.part_files import ORDINAL

ROWS_PER_CHUNK: Final = 61_440
_PLAIN_TIME: Final = TimeColumn()


@dataclass(frozen=True, slots=True)
class Section:
    """What one reader made of some batches.

    Attributes:
        relation: Its name in the engine; columns ``batch``, ``no``, and one for each of ``forms``.
        batches: Numbers of the batches in it.
        forms: The form of each column of a batch, by its name.
        is_raw: Whether it is of use only until its typed rows are there.
    """

    relation: str
    batches: tuple[int, ...]
    forms: Mapping[str, Form]
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class ColumnEvidence:
    """What the values of one column of one batch are."""

    kinds: Kind
    value_count: int


@dataclass(frozen=True, slots=True)
class ExampleValue:
    """One offending value: the number of its row and its text."""

    row_number: int
    text: str


class EventFrame:
    """The events of one unit. Lives as long as the engine's connection.

    Args:
        engine: The connection.
        batches: Content of each batch that has rows, by its place in the unit; how it becomes sections is
            :class:`UnitSections`.
        times: Of columns that are times: what their numbers count.
    """

    def __init__(
        self, engine: Any, batches: Mapping[int, BatchContent], times: Mapping[str, TimeColumn] | None = None
    ) -> None:
        self.engine = engine
        self.batches = dict(batches)
        self._times = dict(times or {})
        self._sections: list[Section] = []
        self._columns: dict[str, str] = {}
        self._types: dict[str, str] = {}

    def name_column(self, name: str) -> str:
        """Return the name in the engine of a column of the batches."""
        return self._columns.setdefault(name, f"c{len(self._columns)}")

    @property
    def types(self) -> Mapping[str, str]:
        """The columns of the typed stage, with types."""
        return self._types

    def unit_of(self, name: str) -> TimeUnit:
        """Return what the numbers of a column count, if it is a TIMESTAMP."""
        return self._times.get(name, _PLAIN_TIME).unit or DEFAULT_UNIT

    def add(self, section: Section) -> None:
        """Take a section, whose relation is there already, with columns named by :meth:`name_column`."""
        self._sections.append(section)

    def clear(self) -> None:
        """Forget the sections, not their relations."""
        self._sections, self._types = [], {}

    def read_evidence(self) -> dict[int, dict[str, ColumnEvidence]]:
        """Return the kinds of values of each batch and column; columns without a value are left out."""
        evidence: dict[int, dict[str, ColumnEvidence]] = {}
        for section in self._sections:
            names = list(section.forms)
            outputs = "".join(
                f", {evidence_sql(self._columns[name], section.forms[name])}, count({self._columns[name]})"
                for name in names
            )
            for batch, *numbers in self._fetch(
                f"SELECT batch{outputs} FROM {section.relation} "  # noqa: S608 - names are ours
                f"WHERE {among(section.batches)} GROUP BY batch"
            ):
                pairs = zip(names, numbers[::2], numbers[1::2], strict=True)
                evidence[batch] = {name: ColumnEvidence(Kind(kinds), count) for name, kinds, count in pairs if count}
        return evidence

    def form_of(self, batch: int, column: str) -> Form | None:
        """Return the form in which a batch has a column; None if it has none."""
        return self._section_of(batch).forms.get(column)

    def find_kind(self, batch: int, column: str, kinds: Kind, *, row: int | None = None) -> ExampleValue:
        """Return the first value of a batch's column that is of one of the kinds, or that of a row."""
        section, sql = self._section_of(batch), self._columns[column]
        condition = f"({kinds_sql(sql, section.forms[column])}) & {int(kinds)} <> 0"
        return self._example(section, batch, sql, condition, row)

    def cast(self, types: Mapping[str, str], partition: Sequence[PartitionField]) -> None:
        """Make the typed stage: the columns of ``types``, and as ``p0``, ``p1``, … the partition values."""
        self._types = dict(types)
        parts = []
        for section in self._sections:
            casts = "".join(f", {self._cast_sql(section, name)} AS {self._columns[name]}" for name in types)
            values = "".join(f", {self._partition_sql(field)} AS p{index}" for index, field in enumerate(partition))
            query = (
                f"SELECT *{values} FROM (SELECT batch, no{casts} "  # noqa: S608 - names are ours
                f"FROM {section.relation} WHERE {among(section.batches)})"
            )
            if section.is_raw or any(is_cast(form, types.get(name)) for name, form in section.forms.items()):
                relation = f"typed_{section.relation}"
                self.engine.execute(f"CREATE OR REPLACE TEMP TABLE {relation} AS {query}")
                query = f"FROM {relation}"
            parts.append(f"({query})")
        self.engine.execute(f"CREATE OR REPLACE TEMP VIEW typed AS {' UNION ALL '.join(parts)}")
        if partition:
            fields = "".join(f", p{index}" for index in range(len(partition)))
            self.engine.execute(
                f"CREATE OR REPLACE TEMP TABLE touched AS SELECT batch{fields}, count(*) AS row_count "  # noqa: S608
                "FROM typed GROUP BY ALL"
            )

    def _cast_sql(self, section: Section, name: str) -> str:
        if name not in section.forms:
            return f"CAST(NULL AS {self._types[name]})"
        return self._cast_form_sql(section, name)

    def _cast_form_sql(self, section: Section, name: str) -> str:
        return cast_form_sql(self._columns[name], section.forms[name], self._types[name], unit=self.unit_of(name))

    def _partition_sql(self, field: PartitionField) -> str:
        if field.column not in self._types:
            return "CAST(NULL AS VARCHAR)"
        return transform_sql(field, self._columns[field.column], self._types[field.column])

    def find_fallible(self) -> tuple[str, ...]:
        """Return the typed columns of which some value may not have survived its cast."""
        return tuple(
            name
            for name, sql_type in self._types.items()
            if any(name in section.forms and can_fail(section.forms[name], sql_type) for section in self._sections)
        )

    def count_cast(self, columns: Sequence[str]) -> dict[int, dict[str, int]]:
        """Return how many values of each batch and column survived the cast."""
        outputs = "".join(f", count({self._columns[name]})" for name in columns)
        rows = self._fetch(f"SELECT batch{outputs} FROM typed GROUP BY batch")  # noqa: S608
        return {batch: dict(zip(columns, counts, strict=True)) for batch, *counts in rows}

    def count_bad(self, conditions: Mapping[str, str]) -> dict[int, dict[str, int]]:
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

    def find_bad(self, batch: int, column: str, condition: str, *, row: int | None = None) -> ExampleValue:
        """Return the first value, as it came, for whose typed value a condition holds, or that of a row."""
        sql = self._columns[column]
        first = f"SELECT min(no) FROM typed WHERE batch = {batch} AND {condition.format(sql)}"  # noqa: S608
        return self._example(self._section_of(batch), batch, sql, f"no = ({first})", row)

    def read_bad_rows(self, batch: int, column: str, condition: str) -> list[int]:
        """Return the rows of a batch for whose typed value in a column a condition holds."""
        found = condition.format(self._columns[column])
        return [number for (number,) in self._fetch(f"SELECT no FROM typed WHERE batch = {batch} AND {found}")]  # noqa: S608

    def find_failed_cast(self, batch: int, column: str, *, row: int | None = None) -> ExampleValue:
        """Return the first value of a batch's column that did not survive the cast, or that of a row."""
        section = self._section_of(batch)
        return self._example(section, batch, self._columns[column], self._failed_sql(section, column), row)

    def find_missing(self, batch: int, column: str) -> int:
        """Return the first row of a batch without a value in a column."""
        section = self._section_of(batch)
        condition = f"{self._columns[column]} IS NULL" if column in section.forms else "true"
        return self._example(section, batch, "''", condition).row_number

    def count_missing(self, partition: Sequence[PartitionField]) -> dict[int, list[int]]:
        """Return for each batch how many rows lack each partition value."""
        outputs = "".join(
            f", coalesce(sum(row_count) FILTER (WHERE p{index} IS NULL), 0)" for index in range(len(partition))
        )
        rows = self._fetch(f"SELECT batch{outputs} FROM touched GROUP BY batch")  # noqa: S608
        return {batch: counts for batch, *counts in rows}

    def read_batch_partitions(
        self, batches: Collection[int], partition_count: int
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return each batch with each of its partitions."""
        if not partition_count:
            return [(batch, ()) for batch in batches]
        values = ", ".join(f"p{index}" for index in range(partition_count))
        rows = self._fetch(f"SELECT batch, {values} FROM touched WHERE {among(batches)}")  # noqa: S608
        return [(batch, tuple(texts)) for batch, *texts in rows]

    def read_long_partitions(
        self, batches: Collection[int], partition_count: int, *, min_bytes: int
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return each batch with each of its partitions whose values have at least ``min_bytes`` bytes."""
        values = ", ".join(f"p{index}" for index in range(partition_count))
        total = " + ".join(f"strlen(p{index})" for index in range(partition_count))
        rows = self._fetch(
            f"SELECT batch, {values} FROM touched "  # noqa: S608
            f"WHERE {among(batches)} AND {total} >= {min_bytes} ORDER BY ALL"
        )
        return [(batch, tuple(texts)) for batch, *texts in rows]

    def read_partitions(self, batches: Collection[int], partition_count: int) -> list[tuple[str, ...]]:
        """Return the distinct partitions of some batches, ascending."""
        if not partition_count:
            return [()]
        values = ", ".join(f"p{index}" for index in range(partition_count))
        rows = self._fetch(
            f"SELECT DISTINCT {values} FROM touched WHERE {among(batches)} ORDER BY ALL"  # noqa: S608
        )
        return [tuple(row) for row in rows]

    def stream_sorted(
        self,
        batches: Collection[int],
        *,
        columns: Mapping[str, str],
        sort: Sequence[str],
        partitions: Sequence[tuple[str, ...]],
    ) -> Any:
        """Return the typed rows of some batches as a stream of record batches. Ends every other stage.

        Args:
            batches: Whose rows.
            columns: What follows the ordinal of the partition, with types; NULL where this frame has no such column.
            sort: Sorted by partition, then by these, nulls last.
            partitions: What :meth:`read_partitions` returned for the same batches.
        """
        fields = [f"p{index}" for index in range(len(partitions[0]))]
        keys = pa.table(
            {
                **{
                    field: pa.array([values[index] for values in partitions], pa.string())
                    for index, field in enumerate(fields)
                },
                ORDINAL: pa.array(range(len(partitions)), pa.int32()),
            }
        )
        for section in self._sections:
            if section.is_raw:
                self.engine.execute(f"DROP TABLE IF EXISTS {section.relation}")
                self.engine.unregister(f"{section.relation}_lines")
        self.batches.clear()
        self.engine.register("partitions", keys)
        joined = f"JOIN partitions USING ({', '.join(fields)})" if fields else "CROSS JOIN partitions"
        outputs = "".join(
            f", {self._columns[name] if name in self._types else f'CAST(NULL AS {sql_type})'} AS {quote_name(name)}"
            for name, sql_type in columns.items()
        )
        order = "".join(f", {self._columns[name]} NULLS LAST" for name in sort if name in self._types)
        self.engine.execute(
            f"SELECT {ORDINAL}{outputs} FROM typed {joined} WHERE {among(batches)} "  # noqa: S608 - names are quoted
            f"ORDER BY {ORDINAL}{order}"
        )
        return self.engine.to_arrow_reader(ROWS_PER_CHUNK)

    def find_first_kind(self, batch: int, column: str) -> Kind:
        """Return the kind of the first value of a batch's column."""
        section, sql = self._section_of(batch), self._columns[column]
        ((kind,),) = self._fetch(
            f"SELECT {kinds_sql(sql, section.forms[column])} FROM {section.relation} "  # noqa: S608
            f"WHERE batch = {batch} AND {sql} IS NOT NULL ORDER BY no LIMIT 1"
        )
        return Kind(kind)

    def read_kind_rows(self, batch: int, column: str, kinds: Kind) -> list[int]:
        """Return the rows of a batch whose value in a column is of one of the kinds."""
        section = self._section_of(batch)
        return self._rows(
            section, batch, f"({kinds_sql(self._columns[column], section.forms[column])}) & {int(kinds)} <> 0"
        )

    def read_failed_rows(self, batch: int, column: str) -> list[int]:
        """Return the rows of a batch whose value in a column did not survive the cast."""
        section = self._section_of(batch)
        return self._rows(section, batch, self._failed_sql(section, column))

    def read_missing_rows(self, batch: int, column: str) -> list[int]:
        """Return the rows of a batch without a value in a column."""
        section = self._section_of(batch)
        condition = f"{self._columns[column]} IS NULL" if column in section.forms else "true"
        return self._rows(section, batch, condition)

    def read_partition_rows(self, batch: int, values: Sequence[str]) -> list[int]:
        """Return the rows of a batch in one partition."""
        condition = " AND ".join(f"p{index} = {quote_text(value)}" for index, value in enumerate(values))
        return [number for (number,) in self._fetch(f"SELECT no FROM typed WHERE batch = {batch} AND {condition}")]  # noqa: S608

    def _rows(self, section: Section, batch: int, condition: str) -> list[int]:
        rows = self._fetch(f"SELECT no FROM {section.relation} WHERE batch = {batch} AND ({condition})")  # noqa: S608
        return [number for (number,) in rows]

    def _section_of(self, batch: int) -> Section:
        return next(section for section in self._sections if batch in section.batches)

    def _failed_sql(self, section: Section, column: str) -> str:
        sql = self._columns[column]
        return f"{sql} IS NOT NULL AND ({self._cast_form_sql(section, column)}) IS NULL"

    def _example(
        self, section: Section, batch: int, shown: str, condition: str, row: int | None = None
    ) -> ExampleValue:
        where = condition if row is None else f"no = {row}"
        ((number, text),) = self._fetch(
            f"SELECT no, CAST({shown} AS VARCHAR) FROM {section.relation} "  # noqa: S608
            f"WHERE batch = {batch} AND ({where}) ORDER BY no LIMIT 1"
        )
        return ExampleValue(number, text)

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.engine.execute(query).fetchall()
        return rows


SAMPLE_LINES: Final = 4096
"""Lines of all batches together that are looked at first; a unit that has no more is not worth the fast reader."""
_MIN_SAMPLE: Final = 2
_MAX_SAMPLE: Final = 64


class UnitSections:
    """The readers of one unit.

    Attributes:
        fast: Batches that the fast reader took, and nobody has objected to.
        fast_names: All columns that they may have which the table does not have.
    """

    def __init__(
        self, frame: EventFrame, config: TableConfig, schema: Mapping[str, str], limits: FlushUnitLimits
    ) -> None:
        self.fast: set[int] = set()
        self.fast_names: tuple[str, ...] = ()
        self._frame = frame
        self._config = config
        self._schema = schema
        self._limits = limits
        self._fast_forms: dict[str, Form] = {}
        self._raw: RawEvents | None = None

    def read_fast(self) -> None:
        """Let the fast reader take what it can; once, before anything else."""
        lines = {
            number: batch
            for number, batch in self._frame.batches.items()
            if isinstance(batch, BatchLines) and batch.row_count
        }
        if sum(batch.row_count for batch in lines.values()) <= SAMPLE_LINES:
            return
        columns = self._plan(lines)
        if not any(column.form is not None for column in columns.values()):
            return
        ((thread_count,),) = self._frame.engine.execute("SELECT current_setting('threads')").fetchall()
        rows = read_fast(self._frame.engine, lines, columns, thread_count=thread_count)
        if rows.table is None:
            return
        self.fast = set(rows.batches)
        self.fast_names = tuple(name for name in columns if name not in self._schema)
        self._fast_forms = dict(rows.forms)
        places = {name: place for place, name in enumerate(columns, FIRST_COLUMN)}
        table = rows.table.select([*range(FIRST_COLUMN), *(places[name] for name in self._fast_forms)])
        names = ["batch", "no", *map(self._frame.name_column, self._fast_forms)]
        self._frame.engine.register("fast", table.rename_columns(names))

    @property
    def fast_columns(self) -> Collection[str]:
        """The columns of batches that the fast reader took."""
        return self._fast_forms

    def slow_down(self, batches: Collection[int]) -> None:
        """Send some batches, of those that are fast, to the exact reader."""
        self.fast -= set(batches)
        if not self.fast:
            self.fast_names = ()

    def open_lines(self, batches: Sequence[int]) -> RawEvents | None:
        """Hand the lines of those batches that are not fast to the exact reader; None if there are none."""
        self.close_lines()
        lines = {
            number: content
            for number in batches
            if number not in self.fast and isinstance(content := self._frame.batches[number], BatchLines)
        }
        self._raw = RawEvents(self._frame.engine, "raw", lines) if lines else None
        return self._raw

    def close_lines(self) -> None:
        """Let go of what the exact reader holds."""
        if self._raw is not None:
            self._raw.drop()
            self._raw = None

    def read_table_keys(self, batches: Sequence[int]) -> dict[int, BatchKeys]:
        """Return the columns of those batches that are tables."""
        tables = {
            number: content for number in batches if isinstance(content := self._frame.batches[number], BatchTable)
        }
        return {number: BatchKeys(tuple(batch.forms), len(batch.forms), False) for number, batch in tables.items()}

    def fill_frame(self, batches: Sequence[int], keys: Sequence[str]) -> None:
        """Give the frame the sections of these batches.

        Args:
            batches: Those that are still accepted.
            keys: All keys of those of them that the exact reader has.
        """
        frame = self._frame
        frame.clear()
        fast = tuple(number for number in batches if number in self.fast)
        if fast:
            frame.add(Section("fast", fast, self._fast_forms))
        tables = {number: table for number in batches if isinstance(table := frame.batches[number], BatchTable)}
        by_forms: dict[tuple[tuple[str, Form], ...], list[int]] = {}
        for number, table in tables.items():
            by_forms.setdefault(tuple(table.forms.items()), []).append(number)
        for place, (forms, numbers) in enumerate(by_forms.items()):
            self._add_tables(f"tables{place}", dict(forms), {number: tables[number] for number in numbers})
        lines = tuple(number for number in batches if number not in self.fast and number not in tables)
        if lines and self._raw is not None:
            self._raw.extract(lines, {key: frame.name_column(key) for key in keys})
            frame.add(Section("raw", lines, dict.fromkeys(keys, Form.JSON), is_raw=True))

    def _add_tables(self, relation: str, forms: Mapping[str, Form], tables: Mapping[int, BatchTable]) -> None:
        names = ["batch", "no", *map(self._frame.name_column, forms)]
        parts = []
        for number, content in tables.items():
            ids = pa.repeat(pa.scalar(number, pa.int32()), content.row_count)
            parts.append(pa.table([ids, content.numbers, *content.table.columns], names=names))
        self._frame.engine.register(relation, pa.concat_tables(parts))
        self._frame.add(Section(relation, tuple(tables), forms))

    def _plan(self, lines: Mapping[int, BatchLines]) -> dict[str, FastColumn]:
        """Return the columns that the fast reader should expect; empty if the unit is not for it."""
        names, evidence = self._read_sample(lines)
        seen = dict.fromkeys(names, Kind(0))
        for found in evidence.values():
            for name, values in found.items():
                seen[name] |= values.kinds
        bytes_per_row = sum(batch.decoded_bytes for batch in lines.values()) / sum(map(_count_rows, lines.values()))
        has_room = len(self._schema) * CELL_BYTES < MAX_GROWTH * bytes_per_row / 2
        known = self._schema if has_room and len(self._schema) < self._limits.batch_columns else {}
        columns = {
            name: _plan_known(self._schema[name], seen.get(name, Kind(0)), self._frame.unit_of(name))
            for name in self._schema
            if name in known or name in seen
        }
        spelling = {name.lower() for name in self._schema}
        reserved = {field.name.lower() for field in self._config.partition if field.name != field.column}
        for name, kinds in seen.items():
            is_usable = _is_column_name(name) and name.lower() not in spelling | reserved
            if name in self._schema or not is_usable or self._config.evolution == "strict":
                continue
            column = _plan_new(kinds)
            if column is not None:
                columns[name] = column
                spelling.add(name.lower())
        if len(columns) > self._limits.batch_columns or len(spelling) > self._limits.table_columns:
            return {}
        return columns

    def _read_sample(self, lines: Mapping[int, BatchLines]) -> tuple[list[str], dict[int, dict[str, ColumnEvidence]]]:
        """Return the usable keys of the first lines of each batch, in order, and the kinds of their values."""
        count = min(max(SAMPLE_LINES // len(lines), _MIN_SAMPLE), _MAX_SAMPLE)
        sample = RawEvents(self._frame.engine, "sample", {number: batch.head(count) for number, batch in lines.items()})
        try:
            malformed = sample.find_malformed()
            batches = [number for number in lines if number not in malformed]
            found = sample.read_keys(batches, max_count=self._limits.batch_columns)
            keys = {
                number: found[number]
                for number in batches
                if not found[number].has_duplicates and found[number].count <= self._limits.batch_columns
            }
            spelling = {name.lower(): name for name in self._schema}
            found_names = dict.fromkeys(name for own in keys.values() for name in own.names if _is_column_name(name))
            names = [name for name in found_names if spelling.setdefault(name.lower(), name) == name]
            frame = EventFrame(self._frame.engine, {})
            sample.extract(tuple(keys), {name: frame.name_column(name) for name in names})
            frame.add(Section(sample.name, tuple(keys), dict.fromkeys(names, Form.JSON)))
            return names, frame.read_evidence()
        finally:
            sample.drop()


def _count_rows(batch: BatchLines) -> int:
    return batch.row_count


def _plan_known(sql_type: str, kinds: Kind, unit: TimeUnit) -> FastColumn:
    if sql_type == "VARCHAR" and kinds & Kind.NESTED:
        return FastColumn(Form.JSON)
    if sql_type == "TIMESTAMP":
        return FastColumn(Form.TIMESTAMP, from_text=not kinds & INTEGERS, unit=unit)
    return FastColumn(Form(sql_type))


def _plan_new(kinds: Kind) -> FastColumn | None:
    """Return how to read a new column with such values in the sample; None if one type does not take them all."""
    if not kinds:
        return FastColumn(None, is_new=True)
    sql_type = infer_type(kinds)
    if sql_type is None:
        return None
    return FastColumn(Form.JSON if kinds & Kind.NESTED else Form(sql_type), is_new=True)


def _is_column_name(name: str) -> bool:
    try:
        check_column_name(name)
    except ValueError:
        return False
    return True
