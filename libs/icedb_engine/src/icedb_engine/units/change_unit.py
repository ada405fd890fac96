"""Units that change rows by a deletion's condition, or by a query that makes the rows of a group; and the count before.

Runs inside a task, or directly in a test: it needs a store, not Spark. Data files are read and written by this process;
SQL of users sees their rows in a closed process beside it (:mod:`icedb_engine.sql.process`). Rows that came, rows
removed and rows written are counted apart from each other. A row of a query that belongs into another partition than
its group ends the unit: nothing is committed then.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, InvariantViolated
from icedb_log.jobs import MergeGroup, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import TableConfig
from icedb_log.table.transforms import transform_sql

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.sql import quote_name
from icedb_engine.sql.checks import VIEWS, WORDS, check_row_condition, read_change
from icedb_engine.sql.columns import ROWS_VIEW, OutputColumn
from icedb_engine.sql.process import QueryProblem, QueryTooLarge, SqlLimits, SqlProcess
from icedb_engine.units.read_unit import NumberedFile, ReadFilesUnit, closing_rows, read_files
from icedb_engine.writing.part_files import SPLIT_FACTOR, FileKind, PartFileWriter, PartLayout, make_footer

ROWS_PER_CHUNK: Final = 8192
"""Sorted rows come in chunks of so many: rows may be wide."""
ENGINE_SHARE: Final = 3
"""What reads, and what sorts, gets so large a part of a task's memory each; the query gets the third."""
_FOOTER_KINDS: Final[Mapping[str, FileKind]] = {"delete": "delete", "rewrite": "rewrite", "merge_query": "merge"}
_NO_COLUMN: Final = {"nothing": "BIGINT"}
"""Stands in for rows of which no column is asked for."""
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class ChangeUnit:
    """One group whose rows change, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Column to SQL type of the whole table.
        group: The inputs.
        change: What becomes of their rows.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    group: MergeGroup
    change: RowChange
    commit_id: str
    time_ms: int
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class ChangeUnitResult:
    """What a unit made.

    Attributes:
        outputs: Markers of the new data files.
        rows_read: Rows of the inputs.
        rows_removed: Those that a deletion took away; ``None``: a query made the rows of the outputs.
    """

    outputs: tuple[FileMarker, ...]
    rows_read: int
    rows_removed: int | None


@dataclass(frozen=True, slots=True)
class CountUnit:
    """Some data files in which the rows are counted that a condition is true for; attributes as of ChangeUnit."""

    paths: TablePaths
    schema: Mapping[str, str]
    files: tuple[NumberedFile, ...]
    condition: str
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class CountUnitResult:
    """The number of such rows in each file, by the file's ordinal."""

    counts: Mapping[int, int]


def change_unit(unit: ChangeUnit, store: ObjectStore, *, clock: Clock) -> ChangeUnitResult:
    """Change the rows of a group's data files, and upload what they become as sorted data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the inputs are and the outputs go.
        clock: Gives the ids of the files.

    Raises:
        InvalidRequest: The SQL cannot be run on these rows, or makes one that belongs into another partition.
        NotFound: An input is gone.
        SchemaConflict: A column of an input has another type than in the table, or is not in the table.
        CorruptLog: An input cannot be read.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
        InvariantViolated: Not as many rows were written as should have been.
    """
    with (
        _problems(unit.paths, WORDS[unit.change.kind]),
        open_scratch(unit.engine) as scratch,
        SqlProcess(SqlLimits.of(unit.engine), scratch=scratch) as process,
    ):
        run = _ChangeRun(unit, store, clock, scratch, process)
        return run.delete() if unit.change.kind == "delete" else run.query()


def count_unit(unit: CountUnit, store: ObjectStore) -> CountUnitResult:
    """Count the rows for which a condition is true. Nothing is written. Raises: as :func:`change_unit`."""
    counts = {file.ordinal: 0 for file in unit.files}
    with _problems(unit.paths, WORDS["delete"]), SqlProcess(SqlLimits.of(unit.engine)) as process:
        named = check_row_condition(process, unit.condition, unit.schema).named
        columns = {name: kind for name, kind in unit.schema.items() if name.lower() in named}
        read = ReadFilesUnit(unit.paths, columns, is_whole=False, files=unit.files, engine=_share(unit.engine))
        with (
            closing_rows(read_files(read, store)) as chunks,
            process.masking(unit.condition, columns or _NO_COLUMN, relation=ROWS_VIEW) as mask,
        ):
            for chunk in chunks:
                counts[chunk.column(0)[0].as_py()] += mask(_without_ordinal(chunk)).true_count
    return CountUnitResult(counts)


class CapturedRows:
    """Rows that the native engine takes from a stream: what making them raises is kept, for the engine words it anew.

    Args:
        batches: The rows.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: Exception | None = None
        self.row_count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.row_count += batch.num_rows
                yield batch
        except Exception as error:
            self._error = error
            raise

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise what making the rows raised, whatever the engine made of it."""
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise


class _ChangeRun:
    """One call of :func:`change_unit`."""

    def __init__(self, unit: ChangeUnit, store: ObjectStore, clock: Clock, scratch: Path, process: SqlProcess) -> None:
        self._unit = unit
        self._store = store
        self._clock = clock
        self._scratch = scratch
        self._process = process
        self._columns = read_change(process, unit.config, unit.schema, unit.change)
        self._removed_count = 0

    def delete(self) -> ChangeUnitResult:
        """Write the rows for which the condition is false or NULL."""
        unit = self._unit
        with closing_rows(self._read(unit.group.inputs)) as chunks:
            source = CapturedRows(chunks)
            outputs = self._write(CapturedRows(self._keep(source)), unit.schema, checks_partition=False)
        written = sum(marker.row_count or 0 for marker in outputs)
        if written + self._removed_count != source.row_count:
            raise InvariantViolated(
                f"table {unit.paths.name}: partition {unit.group.partition or '(none)'}: {source.row_count} rows came, "
                f"{self._removed_count} were removed and {written} written; nothing was committed"
            )
        return ChangeUnitResult(outputs, source.row_count, self._removed_count)

    def query(self) -> ChangeUnitResult:
        """Write what the query makes of the rows; of half of the files at a time, and so on, where that suits it."""
        waiting = [self._unit.group.inputs]
        outputs: list[FileMarker] = []
        row_count = 0
        while waiting:
            inputs = waiting.pop()
            try:
                made, read_count = self._query(inputs)
            except QueryTooLarge:
                if self._unit.change.kind != "merge_query" or len(inputs) == 1:
                    raise
                half = len(inputs) // 2  # associative, hence right over any part of a group
                waiting += [inputs[half:], inputs[:half]]
                continue
            outputs += made
            row_count += read_count
        return ChangeUnitResult(tuple(outputs), row_count, None)

    def _query(self, inputs: tuple[FileMarker, ...]) -> tuple[tuple[FileMarker, ...], int]:
        unit, view = self._unit, VIEWS[self._unit.change.kind]
        with closing_rows(self._read(inputs)) as chunks:
            row_count = self._process.load(view, unit.schema, map(_without_ordinal, chunks))
        order_of = {name: place for place, name in enumerate(unit.schema)}
        columns: list[OutputColumn] = sorted(self._columns, key=lambda column: order_of[column.name])
        made = self._process.select(unit.change.sql, [column.expression for column in columns], relation=view)
        types = {column.name: column.sql_type for column in columns}
        return self._write(CapturedRows(made), types, checks_partition=True), row_count

    def _read(self, inputs: Iterable[FileMarker]) -> Generator[pa.RecordBatch, None, None]:
        unit = self._unit
        files = tuple(NumberedFile(number, marker.path, marker.row_count) for number, marker in enumerate(inputs))
        return read_files(ReadFilesUnit(unit.paths, unit.schema, True, files, _share(unit.engine)), self._store)

    def _keep(self, chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = [(place, column) for place, column in enumerate(self._unit.schema) if self._is_named(column)]
        types = {column: self._unit.schema[column] for _, column in named} or _NO_COLUMN
        with self._process.masking(self._unit.change.sql, types, relation=ROWS_VIEW) as mask:
            for chunk in chunks:
                rows = chunk.remove_column(0)
                gone = mask(
                    rows.select([place for place, _ in named]) if named else _without_ordinal(chunk.select([0]))
                )
                self._removed_count += gone.true_count
                yield rows.filter(pc.invert(gone)) if gone.true_count else rows

    def _is_named(self, column: str) -> bool:
        return any(each.name == column for each in self._columns)

    def _write(
        self, rows: CapturedRows, columns: Mapping[str, str], *, checks_partition: bool
    ) -> tuple[FileMarker, ...]:
        unit = self._unit
        fields = [each for each in unit.config.partition if checks_partition and each.column in columns]
        schema = pa.schema([(f"c{place}", ARROW_TYPES[kind]) for place, kind in enumerate(columns.values())])
        writer = PartFileWriter(
            self._store,
            _make_layout(unit, columns),
            clock=self._clock,
            folder=self._scratch / "out",
            limits=unit.engine,
        )
        with open_engine(_share(unit.engine), self._scratch) as engine, rows.raising():
            engine.register("rows", pa.RecordBatchReader.from_batches(schema, (_fit(each, schema) for each in rows)))
            engine.execute(_make_sql(unit, columns, fields))
            chunks = engine.to_arrow_reader(ROWS_PER_CHUNK)
            return writer.write_partition(_check_places(unit, columns, fields, chunks))


@contextmanager
def _problems(paths: TablePaths, what: str) -> Iterator[None]:
    try:
        yield
    except QueryProblem as problem:
        raise InvalidRequest(f"table {paths.name}: {what}: {problem}") from problem


def _share(engine: EngineLimits) -> EngineLimits:
    return replace(engine, memory_bytes=engine.memory_bytes // ENGINE_SHARE)


def _without_ordinal(chunk: pa.RecordBatch) -> pa.RecordBatch:
    if chunk.num_columns == 1:
        return pa.RecordBatch.from_arrays([pa.nulls(chunk.num_rows, pa.int64())], list(_NO_COLUMN))
    return chunk.remove_column(0)


def _fit(batch: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _make_sql(unit: ChangeUnit, columns: Mapping[str, str], fields: Iterable[Any]) -> str:
    names = {name: f"c{place}" for place, name in enumerate(columns)}
    outputs = [f"{column} AS {quote_name(name)}" for name, column in names.items()]
    outputs += [transform_sql(field, names[field.column], columns[field.column]) for field in fields]
    order = [f"{names[name]} NULLS LAST" for name in unit.config.sort if name in names]
    ordered = f" ORDER BY {', '.join(order)}" if order else ""
    return f"SELECT {', '.join(outputs)} FROM rows{ordered}"  # noqa: S608 - names are quoted


def _check_places(
    unit: ChangeUnit, columns: Mapping[str, str], fields: list[Any], chunks: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    """See that every row lies in its group's partition, and pass it on."""
    wanted = read_partition_values(unit.group.partition)
    for chunk in chunks:
        for place, field in enumerate(fields, start=len(columns)):
            # A path that names no value of the field (of other writers) is no promise that a row could break.
            value, found = wanted.get(field.name), chunk.column(place)
            if value is not None:
                fits = pc.fill_null(pc.equal(found, pa.scalar(value, pa.string())), fill_value=False)
                if not pc.all(fits, min_count=0).as_py():
                    row = pc.index(fits, value=False).as_py()
                    _refuse_row(unit, field, chunk.column(list(columns).index(field.column))[row].as_py(), found[row])
        yield pa.Table.from_batches([chunk]).select(list(range(len(columns))))


def _refuse_row(unit: ChangeUnit, field: Any, value: Any, found: Any) -> None:
    goes = (
        "NULL has no partition" if value is None else f"it belongs into {field.name}={found.as_py()!s:.{_SHOWN_CHARS}}"
    )
    raise InvalidRequest(
        f"table {unit.paths.name}: a row of partition {unit.group.partition} would have {field.column} = "
        f"{str(value)[:_SHOWN_CHARS]!r}, and {goes} (partition {field}): a query must leave each row in its partition; "
        f"keep {field.column!r} as it is, or leave such rows out. Nothing was changed"
    )


def _make_layout(unit: ChangeUnit, columns: Mapping[str, str]) -> PartLayout:
    sort = [column for column in unit.config.sort if column in columns]
    sources = [field.column for field in unit.config.partition if field.column in columns]

    def footer(_ordinal: int) -> dict[str, str]:
        return make_footer(
            table=unit.paths.name,
            partition=unit.group.partition,
            commit_id=unit.commit_id,
            kind=_FOOTER_KINDS[unit.change.kind],
            inputs=[marker.path for marker in unit.group.inputs],
        )

    return PartLayout(
        paths=unit.paths,
        partitions=(unit.group.partition,),
        footer=footer,
        sort_columns=sort,
        stats_columns=tuple(dict.fromkeys([*sources, *sort])),
        row_group_rows=unit.config.row_group_rows,
        split_bytes=SPLIT_FACTOR * unit.config.target_file_bytes,
        created_ms=unit.time_ms,
    )
