"""One group of a merge, or a range of it: its data files become sorted data files of the same partition; rows counted.

Runs inside a task, or directly in a test: it needs a store, not Spark. Inputs are only read. Rows in and rows out
are counted independently (the inputs' footers, and what was written), so that the committer can compare them. So are
the values of a plain merge: by the footers of the inputs, as they came, and of what was written (M6).

A change besides, a deletion's condition or a query that makes the rows, is SQL of users: it sees them in a closed
process beside this one (:mod:`icedb_engine.sql.process`). A row of a query that belongs into another partition than
its group ends the unit: nothing is committed then.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, InvariantViolated, Unavailable
from icedb_log.jobs import MergedGroup, MergeGroup, RowChange
from icedb_log.keys import TablePaths
from icedb_log.merge.content_check import compare_contents
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import Footer
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.transforms import transform_sql
from icedb_log.units import MIB

from icedb_engine.arrow_types import align, fit, make_schema, number_columns
from icedb_engine.engine import CapturedRows, open_engine, open_scratch
from icedb_engine.limits import TRANSFER_COUNT, EngineLimits
from icedb_engine.reading.data_files import SMALL_FILE_BYTES, DataFiles
from icedb_engine.reading.filling import Filler
from icedb_engine.reading.promoted import MISFITS, Promoted
from icedb_engine.sql import quote_name, sort_sql
from icedb_engine.sql.checks import VIEWS, WORDS, check_row_condition, read_change
from icedb_engine.sql.columns import ROWS_VIEW
from icedb_engine.sql.process import QueryProblem, QueryTooLarge, SqlProcess
from icedb_engine.units.read_unit import CHUNK_BYTES, CHUNK_ROWS, closing_rows, read_files
from icedb_engine.work import DataFile, MergeRange, MergeUnit, ReadUnit
from icedb_engine.writing.key_ranges import KeyRange, decode_key
from icedb_engine.writing.part_files import CopiedGroup, FileKind, PartFileWriter, PartLayout, SortedRun
from icedb_engine.writing.row_groups import Piece, PieceMaker, Run, min_rows, plan_runs

FETCHED_SHARE: Final = 8
"""A group of small files of up to memory / this together is fetched into memory, every other one to disk."""
ENGINE_SHARE: Final = 2
SMALL_ENGINE_BYTES: Final = 256 * MIB
"""The native engine gets so large a part of a task's memory, or so much of it if that is more; row groups that are
encoded meanwhile and the interpreter take the rest."""
CHANGE_SHARE: Final = 3
"""With a change, what reads, and what sorts, gets so large a part of the memory each; the query gets the third."""
ROWS_PER_CHUNK: Final = 8192
"""Changed rows come in chunks of so many once they are sorted: they may be wide."""
_FOOTER_KINDS: Final[Mapping[str, FileKind]] = {"delete": "delete", "rewrite": "rewrite", "merge_query": "merge"}
_NO_COLUMN: Final = {"nothing": "BIGINT"}
"""Stands in for rows of which no column is asked for."""
_SHOWN_CHARS: Final = 80


def merge_unit(unit: MergeUnit, store: ObjectStore, *, clock: Clock) -> MergedGroup:
    """Merge a group's data files into sorted runs with those of the table's columns that one has, and upload them.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Raises:
        NotFound: An input is gone.
        SchemaConflict: A column of an input has another type than in the table's schema, or is not in it and has
            other values than the path.
        CorruptLog: An input cannot be read as Parquet, though the log names it.
        InvalidRequest: The change cannot be made of these rows, or makes one that belongs into another partition.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
        InvariantViolated: Not as many rows were written as a deletion leaves.
    """
    if unit.change is not None:
        with (
            _problems(unit.paths, WORDS[unit.change.kind]),
            open_scratch(unit.engine) as scratch,
            SqlProcess(unit.engine.for_sql(), scratch=scratch) as process,
        ):
            run = _ChangeRun(unit, unit.change, store, clock, scratch=scratch, process=process)
            return run.delete() if unit.change.kind == "delete" else run.query()
    size_bytes = _find_read(unit).size_bytes
    if size_bytes > unit.engine.scratch_bytes:
        raise Unavailable(
            f"table {unit.paths.name}: merging {unit.group.partition or 'the table'} needs {size_bytes} "
            f"bytes of scratch for its inputs; {unit.engine.scratch_bytes} are allowed: allow more, or lower "
            "target_file_mb"
        )
    with open_scratch(unit.engine) as scratch:
        return _merge(unit, store, clock, scratch)


def _merge(unit: MergeUnit, store: ObjectStore, clock: Clock, scratch: Path) -> MergedGroup:
    memory_bytes = unit.engine.memory_bytes
    engine_bytes = max(memory_bytes // ENGINE_SHARE, min(memory_bytes, SMALL_ENGINE_BYTES))
    done = _rewrite(unit, store, clock, scratch, limits=replace(unit.engine, memory_bytes=engine_bytes))
    if unit.range is not None:
        return done.as_group(unit)  # only all ranges together have what the inputs have
    before = [done.inputs.read_contents(place) for place in range(len(done.inputs.files))]
    after = [done.contents[each.path] for each in done.outputs]
    return replace(done.as_group(unit), contents=compare_contents(before, after, _all_columns(unit), made=done.made))


def _find_read(unit: MergeUnit) -> MergeGroup:
    """Return the inputs that are read: those of the group, or of the range."""
    group = unit.group
    if unit.range is None:
        return group
    return MergeGroup(group.partition, tuple(group.inputs[place] for place in unit.range.places))


def _all_columns(unit: MergeUnit) -> dict[str, str]:
    """Return the columns that data files may have, with types: those that readers see, and hidden ones (S4)."""
    return {**unit.schema, **unit.config.find_hidden(unit.schema)}


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """What became of a group's data files.

    Attributes:
        inputs: Those that were read.
        runs: In what parts they were written.
        outputs: The new ones.
        contents: What the footers of the new ones say, by path, as they are on disk; nothing of a deletion's.
        made: Promoted columns that an input lacked (S4).
        misfit_count: Values that do not fit one of these.
    """

    inputs: DataFiles
    runs: Sequence[Run]
    outputs: tuple[FileMarker, ...]
    contents: Mapping[str, Footer | None]
    made: Collection[str]
    misfit_count: int

    def as_group(self, unit: MergeUnit) -> MergedGroup:
        """Return it as the committer takes it."""
        return MergedGroup(
            unit.group,
            self.outputs,
            self.inputs.row_count,
            copied_bytes=sum(run.size_bytes for run in self.runs if run.is_copied),
            rows_decoded=sum(run.row_count for run in self.runs if not run.is_copied),
            misfit_count=self.misfit_count,
        )


def _rewrite(
    unit: MergeUnit,
    store: ObjectStore,
    clock: Clock,
    scratch: Path,
    *,
    limits: EngineLimits,
    kept: "_Kept | None" = None,
) -> _Rewritten:
    """Write the rows of a group's data files anew, sorted, and upload them.

    Args:
        unit: Which files.
        store: Where they are.
        clock: Gives the ids of the new ones.
        scratch: A folder.
        limits: Of the engine, where rows are sorted that do not fit into memory.
        kept: Which rows stay; all if not given.
    """
    memory_bytes, read = unit.engine.memory_bytes, _find_read(unit)
    is_small = read.size_bytes <= memory_bytes // FETCHED_SHARE
    is_small = is_small and all(marker.size_bytes <= SMALL_FILE_BYTES for marker in read.inputs)
    row_group_rows = unit.config.row_group_rows
    few_rows = min_rows(row_group_rows)
    schema, open_it = _all_columns(unit), partial(open_engine, limits, scratch)
    unit = replace(unit, schema=schema)
    inputs = DataFiles(replace(unit, group=read), scratch / "in", open_it)
    inputs.fetch(store, in_memory=is_small, few_rows=few_rows)
    found: Collection[str] = inputs.unite_columns()
    found = found if unit.range is None else unit.range.columns
    filler = Filler(unit.config, schema, read.inputs, found, open_it, thread_count=unit.engine.thread_count)
    columns = filler.columns
    writer = _make_writer(unit, columns, store, clock, scratch=scratch)
    maker = PieceMaker(columns, writer.layout.sort_columns, writer.layout.stats_columns)
    if unit.range is None:
        pieces = inputs.make_pieces(maker, few_rows=few_rows)
    else:
        pieces = cut_pieces(inputs.make_pieces(maker, few_rows=0), unit.range)
    if kept is not None:
        pieces = [kept.mark(piece, unit.group.inputs[piece.file]) for piece in pieces]
    runs = plan_runs(pieces, row_group_rows=row_group_rows)
    with (
        filler,
        ThreadPoolExecutor(TRANSFER_COUNT, thread_name_prefix="icedb-copy") as pool,
        closing(_write_runs(inputs, runs, filler, pool, kept=kept)) as parts,
    ):
        outputs = writer.write_partition(parts, contents_of=unit.schema if kept is None else None)
        return _Rewritten(inputs, runs, outputs, writer.contents, filler.made, filler.misfit_count)


def cut_pieces(pieces: Iterable[Piece], told: MergeRange) -> list[Piece]:
    """Return the pieces with rows of a range."""
    kept = KeyRange(told.by, decode_key(told.low), decode_key(told.high))
    return [piece.cut(kept) for piece in pieces if kept.touches(piece.span)]


def _write_runs(
    inputs: DataFiles,
    runs: Iterable[Run],
    filler: Filler,
    pool: ThreadPoolExecutor,
    *,
    kept: "_Kept | None",
) -> Generator[SortedRun | CopiedGroup, None, None]:
    for run in runs:
        if run.is_copied:
            if kept is None:
                inputs.read_contents(run.pieces[0].file)  # while those before it are copied
            yield inputs.copy(run.pieces[0], filler.columns, pool, filler=filler)
        else:
            columns = {name: kind for name, kind in filler.columns.items() if name not in filler.made}
            with inputs.part(run.pieces) as part, closing(part.read_sorted(columns)) as tables:
                rows: Iterable[pa.Table] = tables if kept is None else map(kept.keep, tables)
                rows = map(filler.fill, rows) if filler.made else rows
                yield SortedRun(run.row_count, rows, begins_file=run.is_late)


def _make_writer(
    unit: MergeUnit, columns: Mapping[str, str], store: ObjectStore, clock: Clock, *, scratch: Path
) -> PartFileWriter:
    kind = "merge" if unit.change is None else _FOOTER_KINDS[unit.change.kind]
    inputs = [marker.path for marker in unit.group.inputs]
    layout = PartLayout(unit, columns, (unit.group.partition,), kind, inputs)
    return PartFileWriter(layout, store, clock=clock, folder=scratch / "out")


def count_unit(unit: ReadUnit, store: ObjectStore) -> tuple[int, ...]:
    """Count the rows of each file for which the unit's condition is true. Raises as :func:`merge_unit`."""
    counts = [0] * len(unit.files)
    condition = unit.where or ""
    with _problems(unit.paths, WORDS["delete"]), SqlProcess(unit.engine.for_sql()) as process:
        named = check_row_condition(process, condition, unit.columns).named
        columns = {name: kind for name, kind in unit.columns.items() if name.lower() in named}
        read = replace(unit, columns=columns, where=None, engine=unit.engine.part(CHANGE_SHARE))
        with (
            closing_rows(read_files(read, store)) as chunks,
            process.masking(condition, columns or _NO_COLUMN, relation=ROWS_VIEW) as mask,
        ):
            for chunk in chunks:
                counts[chunk.column(0)[0].as_py()] += mask(_without_ordinal(chunk)).true_count
    return tuple(counts)


@contextmanager
def _problems(paths: TablePaths, what: str) -> Iterator[None]:
    try:
        yield
    except QueryProblem as problem:
        raise InvalidRequest(f"table {paths.name}: {what}: {problem}") from problem


class _Kept:
    """Which rows of some files stay: those for which a condition is false or NULL.

    Args:
        pruner: Of the condition.
        types: The columns that it names, with the table's types.
        mask: Tells of rows of these columns for which the condition is true.

    Attributes:
        removed_count: Rows that did not stay.
    """

    def __init__(
        self, pruner: FilePruner, types: Mapping[str, str], mask: Callable[[pa.RecordBatch], pa.BooleanArray]
    ) -> None:
        self.removed_count = 0
        self._pruner = pruner
        self._types = types
        self._schema = make_schema(types)
        self._mask = mask

    def mark(self, piece: Piece, marker: FileMarker) -> Piece:
        """Return a piece that is copied only if nothing of a row that goes can be in it.

        No row of it can be one, by what is known of it exactly, and no dictionary holds a value of one.
        """
        if piece.facts is None or not piece.facts.has_exact_dictionaries:
            return replace(piece, facts=None)
        stats = {
            name: (*((None, None) if low is None else encode_bounds(low, high)), null_count)
            for name, (low, high, null_count) in piece.facts.stats.items()
        }
        is_affected = self._pruner.may_be_true(replace(marker, row_count=piece.row_count, stats=stats))
        return replace(piece, facts=None) if is_affected else piece

    def keep(self, rows: pa.Table) -> pa.Table:
        """Return the rows that stay."""
        known = [name for name in self._types if name in rows.column_names]
        named = rows.select(known).cast(pa.schema([self._schema.field(name) for name in known]))
        most_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows.num_rows // max(1, named.nbytes)))
        batches = named.to_batches(most_rows) if known else [_without_columns(rows.num_rows)]
        masks = [self._mask(align(batch, self._schema) if self._types else batch) for batch in batches]
        gone = pa.chunked_array(masks, pa.bool_())
        removed_count = pc.sum(gone).as_py() or 0
        self.removed_count += removed_count
        return rows.filter(pc.invert(gone)) if removed_count else rows


class _ChangeRun:
    """One call of :func:`merge_unit` with a change. Rows that came, removed and written are counted apart."""

    def __init__(
        self,
        unit: MergeUnit,
        change: RowChange,
        store: ObjectStore,
        clock: Clock,
        *,
        scratch: Path,
        process: SqlProcess,
    ) -> None:
        self._unit = unit
        self._change = change
        self._store = store
        self._clock = clock
        self._scratch = scratch
        self._process = process
        self._limits: EngineLimits = unit.engine.part(CHANGE_SHARE)
        self._columns = read_change(process, unit.config, unit.schema, change)

    def delete(self) -> MergedGroup:
        """Write the rows for which the condition is false or NULL; row groups without any other as they are."""
        unit = self._unit
        types = {name: kind for name, kind in unit.schema.items() if name in {each.name for each in self._columns}}
        with self._process.masking(self._change.sql, types or _NO_COLUMN, relation=ROWS_VIEW) as mask:
            kept = _Kept(FilePruner(self._change.sql, unit.config, schema=unit.schema), types, mask)
            bounded = replace(unit, engine=self._limits)
            done = _rewrite(bounded, self._store, self._clock, self._scratch, limits=self._limits, kept=kept)
        written = sum(marker.row_count or 0 for marker in done.outputs)
        if written + kept.removed_count != done.inputs.row_count:
            raise InvariantViolated(
                f"table {unit.paths.name}: partition {unit.group.partition or '(none)'}: {done.inputs.row_count} rows "
                f"came, {kept.removed_count} were removed and {written} written; nothing was committed"
            )
        return replace(done.as_group(unit), rows_removed=kept.removed_count)

    def query(self) -> MergedGroup:
        """Write what the query makes of the rows; of half of the files at a time, and so on, where that suits it."""
        waiting = [self._unit.group.inputs]
        done: list[MergedGroup] = []
        while waiting:
            inputs = waiting.pop()
            try:
                done.append(self._query(inputs))
            except QueryTooLarge:
                if self._change.kind != "merge_query" or len(inputs) == 1:
                    raise
                half = len(inputs) // 2  # associative, hence right over any part of a group
                waiting += [inputs[half:], inputs[:half]]
        return MergedGroup(
            self._unit.group,
            tuple(marker for each in done for marker in each.outputs),
            sum(each.rows_read for each in done),
            None,
            rows_decoded=sum(each.rows_decoded for each in done),
            misfit_count=sum(each.misfit_count for each in done),
        )

    def _query(self, inputs: Sequence[FileMarker]) -> MergedGroup:
        unit, view = self._unit, VIEWS[self._change.kind]
        with closing_rows(self._read(inputs)) as chunks:
            row_count = self._process.load(view, unit.schema, map(_without_ordinal, chunks))
        order_of = {name: place for place, name in enumerate(unit.schema)}
        columns = sorted(self._columns, key=lambda column: order_of[column.name])
        made = self._process.select(self._change.sql, [column.expression for column in columns], relation=view)
        types = {column.name: column.sql_type for column in columns}
        outputs, misfit_count = self._write(made, types)
        group = MergeGroup(unit.group.partition, inputs)
        return MergedGroup(group, outputs, row_count, None, rows_decoded=row_count, misfit_count=misfit_count)

    def _read(self, inputs: Iterable[FileMarker]) -> Generator[pa.RecordBatch, None, None]:
        unit = self._unit
        files = tuple(map(DataFile.of, inputs))
        columns = _all_columns(unit)
        wanted = tuple(unit.schema) if len(columns) > len(unit.schema) else None  # S4: a query sees what readers see
        read = ReadUnit(
            paths=unit.paths, columns=columns, files=files, engine=self._limits, is_whole=True, wanted=wanted
        )
        return read_files(read, self._store)

    def _write(self, rows: Iterable[pa.RecordBatch], given: Mapping[str, str]) -> tuple[tuple[FileMarker, ...], int]:
        """Add promoted columns to rows, sort and upload them; see that they lie in the group's partition.

        Returns the data files, and how many values do not fit a promoted column.

        Args:
            rows: What the query gives.
            given: Its columns, with types.
        """
        _, schema = number_columns(given)
        columns = {**given, **self._unit.config.find_promoted(given)}
        names, _ = number_columns(columns)
        promoted = Promoted(self._unit.config, given, names.__getitem__)
        fields = [each for each in self._unit.config.partition if each.column in columns]
        outputs = [f"{column} AS {quote_name(name)}" for name, column in names.items()]
        outputs += [transform_sql(field, names[field.column], columns[field.column]) for field in fields]
        outputs += [MISFITS] if promoted.has_misfits else []
        order = ", ".join(sort_sql(names[name], columns[name]) for name in self._unit.config.sort if name in names)
        query = f"SELECT {', '.join(outputs)} FROM ({promoted.select('rows')}){order and ' ORDER BY '}{order}"  # noqa: S608
        captured, misfit_counts = CapturedRows(rows), list[int]()
        writer = _make_writer(self._unit, columns, self._store, self._clock, scratch=self._scratch)
        with open_engine(self._limits, self._scratch) as engine, captured.raising():
            engine.register("rows", pa.RecordBatchReader.from_batches(schema, (fit(each, schema) for each in captured)))
            engine.execute(query)
            chunks: Iterable[pa.RecordBatch] = engine.to_arrow_reader(ROWS_PER_CHUNK)
            if promoted.has_misfits:
                chunks = _note_last(chunks, misfit_counts)
            files = writer.write_partition(self._check_places(columns, fields, chunks))
            return files, sum(misfit_counts)

    def _check_places(
        self, columns: Mapping[str, str], fields: list[Any], chunks: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.Table]:
        """See that every row lies in its group's partition, and pass it on."""
        wanted = read_partition_values(self._unit.group.partition)
        for chunk in chunks:
            for place, field in enumerate(fields, start=len(columns)):
                # A path that names no value of the field (of other writers) is no promise that a row could break.
                value, found = wanted.get(field.name), chunk.column(place)
                if value is not None:
                    fits = pc.fill_null(pc.equal(found, pa.scalar(value, pa.string())), fill_value=False)
                    if not pc.all(fits, min_count=0).as_py():
                        row = pc.index(fits, value=False).as_py()
                        source = chunk.column(list(columns).index(field.column))
                        self._refuse_row(field, source[row].as_py(), found[row].as_py())
            yield pa.Table.from_batches([chunk]).select(list(range(len(columns))))

    def _refuse_row(self, field: Any, value: Any, found: Any) -> None:
        goes = f"it belongs into {field.name}={found!s:.{_SHOWN_CHARS}}"
        if value is None:
            goes = "NULL has no partition"
        raise InvalidRequest(
            f"table {self._unit.paths.name}: a row of partition {self._unit.group.partition} would have {field.column} "
            f"= {str(value)[:_SHOWN_CHARS]!r}, and {goes} (partition {field}): a query must leave each row in its "
            f"partition; keep {field.column!r} as it is, or leave such rows out. Nothing was changed"
        )


def _note_last(chunks: Iterable[pa.RecordBatch], sums: list[int]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and note the sum of their last column."""
    for chunk in chunks:
        sums.append(pc.sum(chunk.column(chunk.num_columns - 1), min_count=0).as_py())
        yield chunk


def _without_ordinal(chunk: pa.RecordBatch) -> pa.RecordBatch:
    return _without_columns(chunk.num_rows) if chunk.num_columns == 1 else chunk.remove_column(0)


def _without_columns(row_count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(row_count, pa.int64())], list(_NO_COLUMN))
