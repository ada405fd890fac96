"""Which reader takes which batch of a unit, and the sections that they make for the frame.

Lines are read by the fast reader where it takes them (:mod:`icedb_engine.reading.fast_lines`), by the exact one
otherwise. What columns the fast reader expects is taken from the table's schema and from a sample: the first lines of
each batch, read by the exact reader. Whoever checks the batches may send some of them to the exact reader afterwards:
it alone says why a batch is bad.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa
from icedb_log.table.table_config import TableConfig, check_column_name
from icedb_log.table.time_columns import TimeUnit

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batch_table import BatchTable
from icedb_engine.reading.column_forms import Form
from icedb_engine.reading.event_frame import ColumnEvidence, EventFrame, Section
from icedb_engine.reading.fast_lines import CELL_BYTES, FIRST_COLUMN, MAX_GROWTH, FastColumn, read_fast
from icedb_engine.reading.json_types import INTEGERS, Kind, infer_type
from icedb_engine.reading.raw_events import BatchKeys, RawEvents
from icedb_engine.reading.staged_lines import BatchLines

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
