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
from typing import Final

import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.table_config import TableConfig

from icedb_engine.arrow_types import align, make_schema
from icedb_engine.engine import CapturedRows, open_scratch
from icedb_engine.reading.unit import open_unit
from icedb_engine.sql.checks import VIEW_QUERY
from icedb_engine.sql.columns import INSERT_QUERY, ROWS_VIEW, OutputColumn, OutputRules
from icedb_engine.sql.process import QueryProblem, QueryTooSlow, SqlProcess
from icedb_engine.units.read_unit import closing_rows, read_files
from icedb_engine.units.typed_rows import open_typed_rows
from icedb_engine.work import DataFile, FeedUnit, FlushUnit, ReadUnit, Unit, UnitResult
from icedb_engine.writing.part_files import require_parity

ENGINE_SHARE: Final = 3
"""What reads, and what sorts, gets so large a part of a task's memory each; the query gets the third."""
MAX_QUERY_RUNS: Final = 64
"""Runs of a query in one unit while it looks for what it cannot take; the rest waits for the next commit."""


def insert_unit(unit: FlushUnit, store: ObjectStore, *, clock: Clock) -> UnitResult:
    """Read and check batches, run the table's query over their rows, and upload its result as sorted data files.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    config = _make_source_config(unit.config)
    # The query and what it gives take the rest of the memory.
    source = replace(unit, config=config, schema=dict(config.declared), engine=unit.engine.part(2))
    with (
        open_unit(source, store) as rows,
        _open_run(unit, INSERT_QUERY, store, clock, max_columns=unit.limits.table_columns) as run,
    ):
        columns = {**config.declared, **rows.columns}
        schema = make_schema(columns)

        def take(numbers: Sequence[int]) -> None:
            chunks = (align(chunk.remove_column(0), schema) for chunk in rows.stream_of(numbers))
            run.take(columns, chunks, is_single=len(numbers) == 1)

        parts = find_parts(rows.filled, INSERT_QUERY, take)
        rows.rejected.update(parts.refused)
        rows.deferred.update(parts.deferred)
        refused = tuple(unit.batches[number].batch_id for number in parts.refused)
        return replace(run.make_result(rows.make_result(store)), refused=refused)


def _make_source_config(config: TableConfig) -> TableConfig:
    """Return what batches must fit before the query: its source columns, no partition, no order.

    It keeps the query, which does nothing there: without one there are no source columns, and no configuration.
    Promoted columns come from what the query gives.
    """
    return config.model_copy(
        update={
            "declared": dict(config.source),
            "times": {name: t for name, t in config.times.items() if config.source.get(name) == config.declared[name]},
            "promoted": {},
            "partition": (),
            "sort": (),
            "evolution": "strict" if config.evolution == "strict" else "add_columns",
        }
    )


def feed_unit(unit: FeedUnit, store: ObjectStore, *, clock: Clock) -> UnitResult:
    """Run a view's query over the rows of commits, and upload its result as sorted data files.

    Not idempotent: as :func:`insert_unit`. A query that cannot even be bound refuses all commits.

    Raises:
        NotFound: A data file of a commit is gone.
        CorruptLog: A data file cannot be read, or holds other rows than its log file says.
        SchemaConflict: A data file has a column of another type.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    commits, columns = unit.commits, unit.source_schema

    def take(places: Sequence[int]) -> None:
        files = tuple(DataFile.of(marker) for place in places for marker in commits[place].files)
        read = ReadUnit(paths=unit.source, columns=columns, files=files, engine=unit.engine.part(ENGINE_SHARE))
        with closing_rows(read_files(read, store)) as chunks:
            run.take(columns, (chunk.remove_column(0) for chunk in chunks), is_single=len(places) == 1)

    with _open_run(unit, VIEW_QUERY, store, clock, max_columns=unit.max_columns) as run:
        try:
            run.read_columns(columns)
        except QueryProblem as problem:
            reason = f"{VIEW_QUERY}: {problem}"
            return UnitResult(rejected={commit.name: reason for commit in commits})
        parts = find_parts([place for place, commit in enumerate(commits) if commit.files], VIEW_QUERY, take)
        waiting = {*parts.refused, *parts.deferred}
        return run.make_result(
            UnitResult(
                accepted=tuple(commit.name for place, commit in enumerate(commits) if place not in waiting),
                rejected={commits[place].name: reason for place, reason in sorted(parts.refused.items())},
                deferred=tuple(commits[place].name for place in sorted(parts.deferred)),
            )
        )


class NoRoom(Exception):
    """The commit cannot take the partitions of a part."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What became of batches or commits, by place, while parts of them were tried; the others are taken.

    Attributes:
        refused: Those that the query cannot take, with the reason.
        deferred: Those that have to wait for another commit.
    """

    refused: dict[int, str] = field(default_factory=dict)
    deferred: list[int] = field(default_factory=list)


def find_parts(places: Sequence[int], what: str, take: Callable[[Sequence[int]], object]) -> Parts:
    """Try all places, or ever smaller parts of them, oldest first.

    Args:
        places: Batches or commits, with rows.
        what: The query's name.
        take: Runs it over some of them. Raises QueryProblem, and NoRoom.
    """
    stack = [tuple(places)] if places else []
    found = Parts()
    run_count = 0
    while stack:
        part = stack.pop()
        halves = [part[len(part) // 2 :], part[: len(part) // 2]]
        run_count += 1
        if run_count > MAX_QUERY_RUNS:
            found.deferred.extend(part)
            continue
        try:
            take(part)
        except QueryTooSlow as problem:
            # A worker waits for this: at most two queries run into their time limit in one unit. The oldest is
            # tried alone, all others wait for the next commit.
            found.deferred.extend(place for each in (*stack, part[1:]) for place in each)
            stack = [part[:1]] if len(part) > 1 else []
            if len(part) == 1:
                found.refused[part[0]] = f"{what}: {problem}"
        except QueryProblem as problem:
            if len(part) > 1:
                stack += halves
            else:
                found.refused[part[0]] = f"{what}: {problem}"
        except NoRoom:
            rest = halves[0] if len(part) > 1 else part
            found.deferred.extend(place for each in (*stack, rest) for place in each)
            stack = [halves[1]] if len(part) > 1 else []
    return found


class _QueryRun:
    """Runs the query of a table, which is the unit's, over parts of what a unit has, and writes what it gives."""

    def __init__(
        self, unit: Unit, rules: OutputRules, store: ObjectStore, clock: Clock, *, process: SqlProcess, scratch: Path
    ) -> None:
        self._unit = unit
        self._rules = rules
        self._query = str(getattr(unit.config, rules.what))
        self._store = store
        self._clock = clock
        self._process = process
        self._scratch = scratch
        self._columns: dict[str, str] = {}
        self._partitions: set[str] = set()
        self._files: list[FileMarker] = []
        self._row_count = 0
        self._misfit_count = 0

    def read_columns(self, schema: Mapping[str, str]) -> tuple[OutputColumn, ...]:
        """Return the columns that the query gives. Raises QueryProblem."""
        found = self._process.check(self._query, schema, relation=ROWS_VIEW, kind="query")
        try:
            # What it gave of other parts has its type by now.
            return replace(self._rules, known={**self._rules.known, **self._columns}).read(found.columns)
        except InvalidRequest as error:
            raise QueryProblem(str(error)) from error

    def take(self, schema: Mapping[str, str], rows: Iterable[pa.RecordBatch], *, is_single: bool) -> None:
        """Run the query over rows, and write what it gives.

        Raises:
            QueryProblem: It cannot be run on them.
            NoRoom: The commit has enough partitions; a single batch or commit goes alone if need be.
        """
        outputs = self.read_columns(schema)
        if not self._process.load(ROWS_VIEW, schema, rows):
            return
        columns = {column.name: column.sql_type for column in outputs}
        expressions = [column.expression for column in outputs]
        made = CapturedRows(self._process.select(self._query, expressions, relation=ROWS_VIEW))
        unit = replace(self._unit, schema=columns, engine=self._unit.engine.part(ENGINE_SHARE))
        try:
            with made.raising(), open_typed_rows(unit, made, self._scratch, what=self._rules.what) as typed:
                union = self._partitions.union(typed.partitions)
                goes_alone = is_single and not self._partitions
                if len(union) > unit.config.max_partitions_per_flush and not goes_alone:
                    raise NoRoom
                files = typed.write(self._store, clock=self._clock, folder=self._scratch / "out")
                self._columns.update(typed.columns)
                self._misfit_count += typed.misfit_count
        except InvalidRequest as error:
            raise QueryProblem(str(error)) from error
        require_parity(unit.paths, read_count=made.row_count, files=files)
        self._files += files
        self._partitions = union
        self._row_count += made.row_count

    def make_result(self, read: UnitResult) -> UnitResult:
        """Complete what became of batches or commits by what the query made of their rows."""
        return replace(
            read,
            files=tuple(self._files),
            columns=self._columns,
            row_count=self._row_count,
            misfit_count=self._misfit_count,
            partitions=tuple(sorted(self._partitions)),
        )


@contextmanager
def _open_run(unit: Unit, what: str, store: ObjectStore, clock: Clock, *, max_columns: int) -> Iterator[_QueryRun]:
    rules = OutputRules(unit.config, unit.schema, what, max_columns=max_columns)
    with open_scratch(unit.engine) as scratch, SqlProcess(unit.engine.for_sql(), scratch=scratch) as process:
        yield _QueryRun(unit, rules, store, clock, process=process, scratch=scratch)
