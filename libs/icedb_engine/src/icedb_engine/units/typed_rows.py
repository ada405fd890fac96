"""Typed rows on their way to data files: taken into the native engine, partitioned, and sorted.

For rows that come as columns already, from a query or from Spark. What a task imports of this is little: Python workers
that run one task each pay for it. Files of a write that comes with rows of its own lie under fresh names and are live
when somebody commits them (:mod:`icedb_log.ingest.append`); those of a task that runs twice, or of a write that fails,
are orphans (J5).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import MAX_KEY_BYTES, ObjectStore
from icedb_log.table.partitions import encode_partition_value
from icedb_log.table.table_config import TableConfig
from icedb_log.table.time_columns import show_time
from icedb_log.table.transforms import bad_time_sql, transform_sql

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import MAX_PARTITION_VALUE_BYTES, EngineLimits
from icedb_engine.sql import quote_name
from icedb_engine.units.flush_types import WriteUnit
from icedb_engine.writing.part_files import ORDINAL, PartFileWriter, make_flush_layout, require_parity

ROWS_PER_CHUNK: Final = 61_440
_FILE_NAME_BYTES: Final = 64
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class EncodeUnit:
    """What a task makes of a query's rows.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns of the rows, with types.
        engine: Bounds of the task.
        what: What the query is, for messages.
    """

    paths: TablePaths
    config: TableConfig
    columns: Mapping[str, str]
    engine: EngineLimits
    what: str = "insert_query"


class TypedRows:
    """The rows of a unit in the native engine, with their partitions.

    Attributes:
        row_count: How many.
        partitions: Encoded paths of the partitions they lie in, ascending; the place of each is its ordinal.
    """

    def __init__(self, unit: EncodeUnit, engine: Any) -> None:
        self._unit = unit
        self._engine = engine
        ((self.row_count,),) = engine.execute("SELECT count(*) FROM typed").fetchall()
        self.partitions = _make_partitions(unit, engine) if self.row_count else ()

    def stream_sorted(self) -> Any:
        """Return the rows, each with its ordinal first, by ordinal and the table's sort order, a chunk at a time."""
        return _stream_sorted(self._unit, self._engine, _make_names(self._unit))


@contextmanager
def open_typed_rows(unit: EncodeUnit, chunks: Iterable[pa.RecordBatch], scratch: Path) -> Iterator[TypedRows]:
    """Take rows into the native engine, which spills to scratch, and find out their partitions.

    Raises:
        InvalidRequest: A row has no partition value, or one that cannot be in a key.
        Unavailable: Memory and scratch did not suffice.
    """
    schema = pa.schema([(f"c{place}", ARROW_TYPES[kind]) for place, kind in enumerate(unit.columns.values())])
    names = _make_names(unit)
    partition = unit.config.partition
    values = [transform_sql(field, names[field.column], unit.columns[field.column]) for field in partition]
    with open_engine(unit.engine, scratch) as engine:
        engine.register("rows", pa.RecordBatchReader.from_batches(schema, (_plain(chunk, schema) for chunk in chunks)))
        outputs = "".join(f", {value} AS p{place}" for place, value in enumerate(values))
        engine.execute(f"CREATE TEMP TABLE typed AS SELECT *{outputs} FROM rows")  # noqa: S608 - names are ours
        _check_times(unit, engine, names)
        yield TypedRows(unit, engine)


def _check_times(unit: EncodeUnit, engine: Any, names: Mapping[str, str]) -> None:
    """Refuse rows with times that the table takes for a mistake."""
    for column, time in unit.config.times.items():
        condition = bad_time_sql(time, unit.columns[column]) if column in names else None
        if condition is None:
            continue
        name = names[column]
        found = engine.execute(f"SELECT {name} FROM typed WHERE {condition.format(name)} LIMIT 1").fetchone()  # noqa: S608
        if found is not None:
            text = show_time(found[0])
            wrong = time.describe_bad(column, text, sql_type=unit.columns[column], table=unit.paths.name)
            raise InvalidRequest(f"the {unit.what} gives {column} = {text}: {wrong}")


def _make_names(unit: EncodeUnit) -> dict[str, str]:
    return {name: f"c{place}" for place, name in enumerate(unit.columns)}


def _plain(chunk: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the types that data files have: Spark's timestamps carry a time zone, which is UTC."""
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(chunk.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _make_partitions(unit: EncodeUnit, engine: Any) -> tuple[str, ...]:
    """Number the partitions in the engine's table ``partitions``, and return their encoded paths, ascending."""
    partition = unit.config.partition
    fields = ", ".join(f"p{place}" for place in range(len(partition)))
    if not partition:
        engine.execute(f"CREATE TEMP TABLE partitions AS SELECT 0::INT AS {ORDINAL}")
        return ("",)
    engine.execute(
        f"CREATE TEMP TABLE partitions AS SELECT *, (row_number() OVER (ORDER BY {fields}) - 1)::INT AS {ORDINAL} "  # noqa: S608
        f"FROM (SELECT DISTINCT {fields} FROM typed)"
    )
    rows = engine.execute(f"SELECT {fields} FROM partitions ORDER BY {ORDINAL}").fetchall()  # noqa: S608
    room = MAX_KEY_BYTES - len(unit.paths.data_prefix) - _FILE_NAME_BYTES
    room -= sum(len(field.name) + 2 for field in partition)
    paths = []
    for row in rows:
        for field, value in zip(partition, row, strict=True):
            if value is None:
                raise InvalidRequest(
                    f"the {unit.what} gives a row in which column {field.column!r} is NULL, and partition {field} of "
                    f"table {unit.paths.name} needs it: leave such rows out with WHERE, or give them a value"
                )
        encoded = [encode_partition_value(value) for value in row]
        longest = max(range(len(encoded)), key=lambda place: len(encoded[place]))
        if len(encoded[longest]) > MAX_PARTITION_VALUE_BYTES or sum(map(len, encoded)) > room:
            raise InvalidRequest(
                f"partition {partition[longest]}: value {row[longest][:_SHOWN_CHARS]!r} of the {unit.what} has "
                f"{len(encoded[longest])} bytes in a key; the limit is {MAX_PARTITION_VALUE_BYTES} bytes a value and "
                f"{room} a key: use truncate[n] or bucket[n]"
            )
        paths.append("/".join(f"{field.name}={text}" for field, text in zip(partition, encoded, strict=True)))
    return tuple(paths)


def _stream_sorted(unit: EncodeUnit, engine: Any, names: Mapping[str, str]) -> Any:
    fields = ", ".join(f"p{place}" for place in range(len(unit.config.partition)))
    joined = f"JOIN partitions USING ({fields})" if fields else "CROSS JOIN partitions"
    outputs = "".join(f", {column} AS {quote_name(name)}" for name, column in names.items())
    order = "".join(f", typed.{names[name]} NULLS LAST" for name in unit.config.sort if name in names)
    engine.execute(f"SELECT {ORDINAL}{outputs} FROM typed {joined} ORDER BY {ORDINAL}{order}")  # noqa: S608
    return engine.to_arrow_reader(ROWS_PER_CHUNK)


def append_unit(
    unit: WriteUnit, chunks: Iterable[pa.RecordBatch], store: ObjectStore, *, clock: Clock
) -> tuple[FileMarker, ...]:
    """Sort rows and upload them; return the markers of the new data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do; all columns that partitions need are among its columns.
        chunks: The rows, with the columns of the unit in their order, of types that go into the unit's without loss.
        store: Where the files go.
        clock: Gives the ids of the files.

    Raises:
        InvalidRequest: A value does not go into its column, or a row has no partition value.
        Unavailable: The store did not answer; memory and scratch did not suffice.
    """
    encoded = EncodeUnit(unit.paths, unit.config, unit.columns, unit.engine, what="write")
    problems: list[InvalidRequest] = []
    fitting = _fit_all(unit, chunks, problems)
    with _raising(problems), open_scratch(unit.engine) as scratch, open_typed_rows(encoded, fitting, scratch) as rows:
        if not rows.row_count:
            return ()
        layout = make_flush_layout(unit, columns=unit.columns, partitions=rows.partitions)
        writer = PartFileWriter(store, layout, clock=clock, folder=scratch / "out", limits=unit.engine)
        files = writer.write_all(rows.stream_sorted())
        require_parity(unit.paths, read_count=rows.row_count, files=files)
        return files


@contextmanager
def _raising(problems: Sequence[InvalidRequest]) -> Iterator[None]:
    """Raise what was wrong with the rows itself, not what the native engine makes of it."""
    try:
        yield
    except duckdb.Error as error:
        if problems:
            raise problems[0] from error
        raise


def _fit_all(
    unit: WriteUnit, chunks: Iterable[pa.RecordBatch], problems: list[InvalidRequest]
) -> Iterator[pa.RecordBatch]:
    types = [ARROW_TYPES[kind] for kind in unit.columns.values()]
    names = [f"c{place}" for place in range(len(types))]
    for chunk in chunks:
        arrays = []
        for name, array, wanted in zip(unit.columns, chunk.columns, types, strict=True):
            try:
                arrays.append(array if array.type == wanted else array.cast(wanted))
            except pa.ArrowInvalid as error:
                problem = InvalidRequest(
                    f"table {unit.paths.name}: a value of column {name!r} does not go into {unit.columns[name]} "
                    f"without loss ({str(error)[:200]}): cast the column, or leave such rows out. Nothing was committed"
                )
                problems.append(problem)
                raise problem from error
        yield pa.RecordBatch.from_arrays(arrays, names=names)
