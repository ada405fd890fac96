"""Typed rows on their way to data files: taken into the native engine, partitioned, and sorted.

For rows that come as columns already, from a query or from Spark. What a task imports of this is little: Python workers
that run one task each pay for it. Files of a write that comes with rows of its own lie under fresh names and are live
when somebody commits them (:mod:`icedb_log.ingest.append`); those of a task that runs twice, or of a write that fails,
are orphans (J5).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.model import FileMarker
from icedb_log.store.object_store import MAX_KEY_BYTES, ObjectStore
from icedb_log.table.partitions import encode_partition_value
from icedb_log.table.time_columns import show_time
from icedb_log.table.transforms import bad_time_sql, transform_sql

from icedb_engine.arrow_types import convert, fit, number_columns
from icedb_engine.engine import CapturedRows, open_engine, open_scratch
from icedb_engine.limits import MAX_PARTITION_VALUE_BYTES
from icedb_engine.reading.promoted import MISFITS, Promoted
from icedb_engine.sql import quote_name, sort_sql
from icedb_engine.work import Unit, WriteUnit
from icedb_engine.writing.part_files import ORDINAL, PartFileWriter, PartLayout, require_parity

ROWS_PER_CHUNK: Final = 61_440
_FILE_NAME_BYTES: Final = 64
_SHOWN_CHARS: Final = 80


class TypedRows:
    """The rows of a unit in the native engine, with their partitions. Made by :func:`open_typed_rows`.

    Attributes:
        columns: Their columns, with types; the promoted ones last.
        row_count: How many.
        misfit_count: Values that do not fit a promoted column.
        partitions: Encoded paths of the partitions they lie in, ascending; the place of each is its ordinal.
    """

    def __init__(self, unit: Unit, engine: Any, what: str, *, has_misfits: bool) -> None:
        self.columns = unit.schema
        self._unit = unit
        self._engine = engine
        self._what = what
        self._names, _ = number_columns(unit.schema)
        self._fields = ", ".join(f"p{place}" for place in range(len(unit.config.partition)))
        self._check_times()
        misfits = f"sum({MISFITS})" if has_misfits else "0"
        counts = f"SELECT count(*), CAST(coalesce({misfits}, 0) AS BIGINT) FROM typed"  # noqa: S608 - names are ours
        ((self.row_count, self.misfit_count),) = engine.execute(counts).fetchall()
        self.partitions = self._make_partitions() if self.row_count else ()

    def write(self, store: ObjectStore, *, clock: Clock, folder: Path) -> tuple[FileMarker, ...]:
        """Upload the rows as data files, sorted; none if there are no rows."""
        if not self.row_count:
            return ()
        layout = PartLayout(self._unit, self._unit.schema, self.partitions)
        joined = f"JOIN partitions USING ({self._fields})" if self._fields else "CROSS JOIN partitions"
        outputs = "".join(f", {column} AS {quote_name(name)}" for name, column in self._names.items())
        order = "".join(
            f", {sort_sql(f'typed.{self._names[name]}', self._unit.schema[name])}" for name in layout.sort_columns
        )
        self._engine.execute(f"SELECT {ORDINAL}{outputs} FROM typed {joined} ORDER BY {ORDINAL}{order}")  # noqa: S608
        rows = self._engine.to_arrow_reader(ROWS_PER_CHUNK)
        return PartFileWriter(layout, store, clock=clock, folder=folder).write_all(rows)

    def _check_times(self) -> None:
        """Refuse rows with times that the table takes for a mistake."""
        types, config = self._unit.schema, self._unit.config
        for column, time in config.times.items():
            condition = bad_time_sql(time, types[column]) if column in types else None
            if condition is None:
                continue
            name = self._names[column]
            found = self._engine.execute(f"SELECT {name} FROM typed WHERE {condition.format(name)} LIMIT 1").fetchone()  # noqa: S608
            if found is not None:
                text = show_time(found[0])
                wrong = time.describe_bad(column, text, sql_type=types[column], table=config.name)
                raise InvalidRequest(f"the {self._what} gives {column} = {text}: {wrong}")

    def _make_partitions(self) -> tuple[str, ...]:
        """Number the partitions in the engine's table ``partitions``, and return their encoded paths, ascending."""
        partition, paths = self._unit.config.partition, self._unit.paths
        if not partition:
            self._engine.execute(f"CREATE TEMP TABLE partitions AS SELECT 0::INT AS {ORDINAL}")
            return ("",)
        self._engine.execute(
            f"CREATE TEMP TABLE partitions AS "  # noqa: S608 - names are ours
            f"SELECT *, (row_number() OVER (ORDER BY {self._fields}) - 1)::INT AS {ORDINAL} "
            f"FROM (SELECT DISTINCT {self._fields} FROM typed)"
        )
        rows = self._engine.execute(f"SELECT {self._fields} FROM partitions ORDER BY {ORDINAL}").fetchall()  # noqa: S608
        room = MAX_KEY_BYTES - len(paths.data_prefix) - _FILE_NAME_BYTES
        room -= sum(len(field.name) + 2 for field in partition)
        found = []
        for row in rows:
            for field, value in zip(partition, row, strict=True):
                if value is None:
                    raise InvalidRequest(
                        f"the {self._what} gives a row in which column {field.column!r} is NULL, and partition {field} "
                        f"of table {paths.name} needs it: leave such rows out with WHERE, or give them a value"
                    )
            encoded = [encode_partition_value(value) for value in row]
            longest = max(range(len(encoded)), key=lambda place: len(encoded[place]))
            if len(encoded[longest]) > MAX_PARTITION_VALUE_BYTES or sum(map(len, encoded)) > room:
                raise InvalidRequest(
                    f"partition {partition[longest]}: value {row[longest][:_SHOWN_CHARS]!r} of the {self._what} has "
                    f"{len(encoded[longest])} bytes in a key; the limit is {MAX_PARTITION_VALUE_BYTES} bytes a value "
                    f"and {room} a key: use truncate[n] or bucket[n]"
                )
            found.append("/".join(f"{field.name}={text}" for field, text in zip(partition, encoded, strict=True)))
        return tuple(found)


@contextmanager
def open_typed_rows(
    unit: Unit, chunks: Iterable[pa.RecordBatch], scratch: Path, *, what: str = "insert_query"
) -> Iterator[TypedRows]:
    """Take rows into the native engine, which spills to scratch, add promoted columns, and find out their partitions.

    Args:
        unit: Its schema has the columns of the rows, in their order.
        chunks: The rows.
        scratch: A folder.
        what: What gives them, for messages.

    Raises:
        InvalidRequest: A row has no partition value, or one that cannot be in a key.
        Unavailable: Memory and scratch did not suffice.
    """
    _, schema = number_columns(unit.schema)
    types = {**unit.schema, **unit.config.find_promoted(unit.schema)}
    names, _ = number_columns(types)
    promoted = Promoted(unit.config, unit.schema, names.__getitem__)
    values = [transform_sql(each, names[each.column], types[each.column]) for each in unit.config.partition]
    with open_engine(unit.engine, scratch) as engine:
        engine.register("rows", pa.RecordBatchReader.from_batches(schema, (fit(chunk, schema) for chunk in chunks)))
        outputs = "".join(f", {value} AS p{place}" for place, value in enumerate(values))
        query = f"SELECT *{outputs} FROM ({promoted.select('rows')})"  # noqa: S608 - names are ours
        engine.execute(f"CREATE TEMP TABLE typed AS {query}")
        yield TypedRows(replace(unit, schema=types), engine, what, has_misfits=promoted.has_misfits)


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """What a write made of rows.

    Attributes:
        files: The new data files.
        misfit_count: Values that do not fit a promoted column, and are NULL there.
    """

    files: tuple[FileMarker, ...]
    misfit_count: int


def append_unit(unit: WriteUnit, chunks: Iterable[pa.RecordBatch], store: ObjectStore, *, clock: Clock) -> AppendedRows:
    """Sort rows and upload them.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do; all columns that partitions need are in its schema.
        chunks: The rows, with the columns of the schema in their order, of types that go into its types without loss.
        store: Where the files go.
        clock: Gives the ids of the files.

    Raises:
        InvalidRequest: A value does not go into its column, or a row has no partition value.
        Unavailable: The store did not answer; memory and scratch did not suffice.
    """
    rows = CapturedRows(_fit_all(unit, chunks))
    with (
        rows.raising(),
        open_scratch(unit.engine) as scratch,
        open_typed_rows(unit, rows, scratch, what="write") as typed,
    ):
        files = typed.write(store, clock=clock, folder=scratch / "out")
        require_parity(unit.paths, read_count=typed.row_count, files=files)
        return AppendedRows(files, typed.misfit_count)


def _fit_all(unit: WriteUnit, chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _, schema = number_columns(unit.schema)
    for chunk in chunks:
        arrays = []
        for name, array, wanted in zip(unit.schema, chunk.columns, schema, strict=True):
            try:
                arrays.append(convert(array, wanted.type))
            except pa.ArrowInvalid as error:
                raise InvalidRequest(
                    f"table {unit.paths.name}: a value of column {name!r} does not go into {unit.schema[name]} "
                    f"without loss ({str(error)[:200]}): cast the column, or leave such rows out. Nothing was committed"
                ) from error
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
