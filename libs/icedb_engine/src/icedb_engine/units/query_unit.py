"""Units that run a stored query: staged batches through an ``insert_query``, or commits of a source into a view.

Runs inside a task, or directly in a test: it needs a store, not Spark. The query sees the rows of all batches or
commits of the unit at once, as ``_rows``, in a closed process (:mod:`icedb_engine.sql.process`). If it fails on them it
runs over half of them, and so on, until the one that it cannot take stands alone and is refused: it never holds up the
others. A query may drop rows and make rows, so rows in and rows out differ; what is accounted for is that every row of
an accepted batch reached the query, and that every row of its result is in a file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.feed.feed_jobs import SourceCommit
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.table_config import TableConfig

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.unit import UnitRows, open_unit
from icedb_engine.sql.checks import VIEW_QUERY
from icedb_engine.sql.columns import INSERT_QUERY, ROWS_VIEW, read_output_columns
from icedb_engine.sql.process import QueryProblem, QueryTooSlow, SqlLimits, SqlProcess
from icedb_engine.units.change_unit import ENGINE_SHARE, CapturedRows
from icedb_engine.units.flush_types import FlushUnit, FlushUnitResult, WriteUnit
from icedb_engine.units.read_unit import NumberedFile, ReadFilesUnit, closing_rows, read_files
from icedb_engine.units.typed_rows import EncodeUnit, open_typed_rows
from icedb_engine.writing.part_files import PartFileWriter, make_flush_layout, require_parity

MAX_QUERY_RUNS: Final = 64
"""Runs of a query in one unit while it looks for what it cannot take; the rest waits for the next commit."""


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """The table that gets what a query gives.

    Attributes:
        paths: Its keys.
        config: Its configuration.
        known: Its columns whose type is fixed.
        max_columns: Most columns that it may have.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    known: Mapping[str, str]
    max_columns: int
    commit_id: str
    time_ms: int
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class InsertUnit:
    """Some batches of a flush of a table with an ``insert_query``, for one task.

    Attributes:
        flush: What the batches are read as: the table's source columns, without partitions and order.
        target: The table.
    """

    flush: FlushUnit
    target: QueryTarget


@dataclass(frozen=True, slots=True)
class FeedUnit:
    """Some commits of the source of a view, for one task.

    Attributes:
        source: Keys of the source.
        source_schema: Columns of its rows, with types.
        commits: Oldest first.
        target: The view.
    """

    source: TablePaths
    source_schema: Mapping[str, str]
    commits: tuple[SourceCommit, ...]
    target: QueryTarget


@dataclass(frozen=True, slots=True)
class QueryUnitResult:
    """What a query made of the rows of a unit.

    Attributes:
        files: Markers of the new data files.
        columns: Columns of the result, with the types that the table stores.
        row_count: Rows of the result.
        partitions: Encoded paths of the partitions that they lie in.
        taken: Places of the batches or commits, within the unit, that are in the files.
        refused: Places of those that the query cannot take, with the reason.
        deferred: Places of those that have to wait for another commit.
        read: What became of the batches of a flush, but for the files.
    """

    files: tuple[FileMarker, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    row_count: int = 0
    partitions: tuple[str, ...] = ()
    taken: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    deferred: tuple[int, ...] = ()
    read: FlushUnitResult | None = None


def insert_unit(unit: InsertUnit, store: ObjectStore, *, clock: Clock) -> QueryUnitResult:
    """Read and check batches, run the table's query over their rows, and upload its result as sorted data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the batches are and the files go.
        clock: Gives the ids of the files.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with open_unit(unit.flush, store) as rows, _open_run(unit.target, store, clock, INSERT_QUERY) as run:
        schema = {**unit.flush.config.declared, **rows.columns}
        made = run.take(rows.filled, schema, lambda numbers: _align(rows, schema, numbers))
        rows.refuse(made.refused)
        rows.defer(made.deferred)
        rows.upload_bad_rows(store)
        return replace(made, read=rows.make_result())


def feed_unit(unit: FeedUnit, store: ObjectStore, *, clock: Clock) -> QueryUnitResult:
    """Run a view's query over the rows of commits, and upload its result as sorted data files.

    Not idempotent: as :func:`insert_unit`. A query that cannot even be bound refuses all commits.

    Raises:
        NotFound: A data file of a commit is gone.
        CorruptLog: A data file cannot be read, or holds other rows than its log file says.
        SchemaConflict: A data file has a column of another type.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    commits = unit.commits

    def read(places: Sequence[int]) -> Iterator[pa.RecordBatch]:
        markers = [marker for place in places for marker in commits[place].files]
        files = tuple(NumberedFile(number, marker.path, marker.row_count) for number, marker in enumerate(markers))
        engine = replace(unit.target.engine, memory_bytes=unit.target.engine.memory_bytes // ENGINE_SHARE)
        with closing_rows(
            read_files(ReadFilesUnit(unit.source, unit.source_schema, False, files, engine), store)
        ) as chunks:
            for chunk in chunks:
                yield chunk.remove_column(0)

    with _open_run(unit.target, store, clock, VIEW_QUERY) as run:
        try:
            run.read_columns(unit.source_schema)
        except QueryProblem as problem:
            return QueryUnitResult(refused=dict.fromkeys(range(len(commits)), f"{VIEW_QUERY}: {problem}"))
        filled = [place for place, commit in enumerate(commits) if commit.files]
        made = run.take(filled, unit.source_schema, read)
    empty = [place for place, commit in enumerate(commits) if not commit.files]
    return replace(made, taken=tuple(sorted([*made.taken, *empty])))


def _align(rows: UnitRows, schema: Mapping[str, str], numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some batches with all columns of ``_rows``; NULL where no batch has such a column."""
    fields = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in schema.items()])
    for chunk in rows.stream_of(numbers):
        found = dict(zip(rows.columns, chunk.columns[1:], strict=True))
        arrays = [found.get(each.name) for each in fields]
        filled = [
            pa.nulls(chunk.num_rows, each.type) if array is None else array
            for array, each in zip(arrays, fields, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(filled, schema=fields)


class _NoRoomError(Exception):
    """The commit cannot take the partitions of a part."""


class _QueryRun:
    """Runs one query over parts of what a unit has.

    Args:
        target: The table.
        store: Where the files go.
        clock: Gives their ids.
        what: The query's name.
        process: Runs it.
        scratch: Folder of the unit.
    """

    def __init__(
        self, target: QueryTarget, store: ObjectStore, clock: Clock, *, what: str, process: SqlProcess, scratch: Path
    ) -> None:
        self._target = target
        self._store = store
        self._clock = clock
        self._what = what
        self._query = str(getattr(target.config, what))
        self._process = process
        self._scratch = scratch
        self._types = dict(target.known)
        self._partitions: set[str] = set()
        self._files: list[FileMarker] = []
        self._columns: dict[str, str] = {}
        self._row_count = 0

    def take(
        self,
        places: Sequence[int],
        schema: Mapping[str, str],
        read: Callable[[Sequence[int]], Iterable[pa.RecordBatch]],
    ) -> QueryUnitResult:
        """Run the query over all places, or over ever smaller parts of them, oldest first.

        Args:
            places: Batches or commits, with rows.
            schema: Columns of their rows, with types.
            read: Gives the rows of some of them.
        """
        stack = [tuple(places)] if places else []
        taken: list[int] = []
        refused: dict[int, str] = {}
        deferred: list[int] = []
        run_count = 0
        while stack:
            part = stack.pop()
            halves = [part[len(part) // 2 :], part[: len(part) // 2]]
            run_count += 1
            if run_count > MAX_QUERY_RUNS:
                deferred += part
                continue
            try:
                self._run(schema, read(part), is_single=len(part) == 1)
                taken += part
            except QueryTooSlow as problem:
                # A worker waits for this: at most two queries run into their time limit in one unit. The oldest is
                # tried alone, all others wait for the next commit.
                later = [place for each in (*stack, part[1:]) for place in each]
                deferred += later
                stack = [part[:1]] if len(part) > 1 else []
                if len(part) == 1:
                    refused[part[0]] = f"{self._what}: {problem}"
            except QueryProblem as problem:
                if len(part) > 1:
                    stack += halves
                else:
                    refused[part[0]] = f"{self._what}: {problem}"
            except _NoRoomError:
                deferred += [place for later in (*stack, halves[0] if len(part) > 1 else part) for place in later]
                stack = [halves[1]] if len(part) > 1 else []
        return QueryUnitResult(
            files=tuple(self._files),
            columns=self._columns,
            row_count=self._row_count,
            partitions=tuple(sorted(self._partitions)),
            taken=tuple(sorted(taken)),
            refused=refused,
            deferred=tuple(sorted(deferred)),
        )

    def read_columns(self, schema: Mapping[str, str]) -> Any:
        """Return the columns that the query gives. Raises QueryProblem."""
        found = self._process.check(self._query, schema, relation=ROWS_VIEW, kind="query")
        try:
            return read_output_columns(
                found.columns,
                self._target.config,
                known=self._types,
                max_columns=self._target.max_columns,
                widens=True,
                what=self._what,
            )
        except InvalidRequest as error:
            raise QueryProblem(str(error)) from error

    def _run(self, schema: Mapping[str, str], rows: Iterable[pa.RecordBatch], *, is_single: bool) -> None:
        """Run the query over rows, and write what it gives.

        Raises:
            QueryProblem: It cannot be run on them.
            _NoRoomError: The commit has enough partitions; a single batch or commit goes alone if need be.
        """
        target = self._target
        outputs = self.read_columns(schema)
        if not self._process.load(ROWS_VIEW, schema, rows):
            return
        columns = {column.name: column.sql_type for column in outputs}
        made = self._process.select(self._query, [column.expression for column in outputs], relation=ROWS_VIEW)
        captured = CapturedRows(made)
        engine = replace(target.engine, memory_bytes=target.engine.memory_bytes // ENGINE_SHARE)
        encoded = EncodeUnit(target.paths, target.config, columns, engine, what=self._what)
        try:
            with captured.raising(), open_typed_rows(encoded, captured, self._scratch) as typed:
                union = self._partitions.union(typed.partitions)
                if len(union) > target.config.max_partitions_per_flush and not (is_single and not self._partitions):
                    raise _NoRoomError
                files = self._write(columns, typed) if typed.row_count else ()
        except InvalidRequest as error:
            raise QueryProblem(str(error)) from error
        require_parity(target.paths, read_count=captured.row_count, files=files)
        self._files += files
        self._partitions = union
        self._row_count += captured.row_count
        self._types.update(columns)
        self._columns.update(columns)

    def _write(self, columns: Mapping[str, str], typed: Any) -> tuple[FileMarker, ...]:
        target = self._target
        written = WriteUnit(
            paths=target.paths,
            config=target.config,
            columns=columns,
            partitions=typed.partitions,
            blobs=(),
            commit_id=target.commit_id,
            time_ms=target.time_ms,
            engine=target.engine,
        )
        layout = make_flush_layout(written, columns=columns, partitions=typed.partitions)
        folder = self._scratch / "out"
        writer = PartFileWriter(self._store, layout, clock=self._clock, folder=folder, limits=target.engine)
        return writer.write_all(typed.stream_sorted())


@contextmanager
def _open_run(target: QueryTarget, store: ObjectStore, clock: Clock, what: str) -> Iterator[_QueryRun]:
    with (
        open_scratch(target.engine) as scratch,
        SqlProcess(SqlLimits.of(target.engine), scratch=scratch) as process,
    ):
        yield _QueryRun(target, store, clock, what=what, process=process, scratch=scratch)
