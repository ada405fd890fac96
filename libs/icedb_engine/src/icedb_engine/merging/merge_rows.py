"""The rows of a group in sorted order, as a stream of tables, within a bound of memory.

Files are taken a *batch* at a time: as many runs (:mod:`icedb_engine.merging.merge_order`) as fit into memory together.
Text of few different values is read as a dictionary, so that it is neither decoded nor compared nor encoded again. A
batch that does not fit, or whose values have to be converted, is sorted by the native engine, which spills.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.merging.merge_inputs import MergeInput, unreadable
from icedb_engine.merging.merge_order import plan_runs
from icedb_engine.merging.sort_keys import find_order, is_ascending, make_key_words
from icedb_engine.writing.words import cast_rows

MAX_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Decoded rows of one batch at most, whatever the memory: Arrow counts the bytes of a column of text in 31 bits."""
MEMORY_SHARE: Final = 0.5
"""Share of a task's memory for decoded rows; the rest is for what is fetched, encoded, and the interpreter."""
KEY_BYTES: Final = 32
"""Memory of a row's key and place, at their peak."""
MAX_DISTINCT_SHARE: Final = 0.5
"""A column of text of which a larger share is distinct is not read as a dictionary."""
_WORDS: Final = pa.dictionary(pa.int32(), pa.string())

Batch = Sequence[MergeInput]
SortElsewhere = Callable[[Batch], Iterator[pa.Table]]
"""Sorts a batch that does not fit into memory."""


class WrongBounds(Exception):
    """The log's statistics of a file are not true: its rows must be sorted together with all others."""


class _TooLarge(Exception):
    """A batch takes more memory than was estimated."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """The rows of a group, and what they may take.

    Attributes:
        inputs: Its data files; none of their values has to be converted.
        columns: Column to SQL type of what is written.
        sort: Sort columns, all of them among the columns.
        memory_bytes: Of the task.
        thread_count: Files that are decoded at once.
        table_rows: Rows of each table that comes out.
    """

    inputs: Batch
    columns: Mapping[str, str]
    sort: Sequence[str]
    memory_bytes: int
    thread_count: int
    table_rows: int

    @property
    def budget_bytes(self) -> int:
        """Memory of a batch's rows and their keys."""
        return min(int(self.memory_bytes * MEMORY_SHARE), MAX_BATCH_BYTES)


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a sample tells of all rows.

    Attributes:
        words: Columns of text of few different values.
        row_bytes: Memory of a row and its key.
    """

    words: Sequence[str]
    row_bytes: float

    def estimate_bytes(self, batch: Batch) -> float:
        return sum(each.row_count for each in batch) * self.row_bytes


def read_sorted(source: RowSource, sort_elsewhere: SortElsewhere, *, trusts_bounds: bool) -> Iterator[pa.Table]:
    """Yield all rows of a group in order.

    Args:
        source: The rows.
        sort_elsewhere: For batches that do not fit into memory.
        trusts_bounds: Whether the log's statistics may decide which files are sorted together. The seams are checked.

    Raises:
        WrongBounds: Two batches overlap, against the log's statistics: begin again, without trust.
        CorruptLog: A file cannot be read.
    """
    probe = _probe(source)
    last: pa.Table | None = None
    for batch in _pack_batches(source, probe, trusts_bounds=trusts_bounds):
        for rows in _sort_batch(source, batch, probe, sort_elsewhere):
            if not rows.num_rows:
                continue
            if last is not None and not _is_in_order(last, _read_key(rows, 0, source.sort)):
                raise WrongBounds
            last = _read_key(rows, rows.num_rows - 1, source.sort)
            yield rows


def _probe(source: RowSource) -> _Probe:
    """Read the first row group of the file with most rows, all text as dictionaries."""
    largest = max(source.inputs, key=lambda each: each.row_count)
    if not largest.row_count:
        return _Probe((), 0)
    text = [name for name, kind in source.columns.items() if kind == "VARCHAR"]
    rows = _read_file(largest, text, is_sample=True)
    if not rows.num_rows:
        return _Probe((), 0)
    limit = MAX_DISTINCT_SHARE * rows.num_rows
    words = [
        name
        for name in text
        if name not in rows.column_names or sum(len(c.dictionary) for c in rows.column(name).chunks) <= limit
    ]
    return _Probe(words, rows.nbytes / rows.num_rows + KEY_BYTES)


def _pack_batches(source: RowSource, probe: _Probe, *, trusts_bounds: bool) -> Iterator[Batch]:
    """Yield batches that follow each other, of as many runs as fit into memory."""
    if trusts_bounds:
        runs: Iterable[Sequence[int]] = plan_runs([each.marker for each in source.inputs], source.sort)
    else:
        runs = [range(len(source.inputs))]
    batch: list[MergeInput] = []
    for run in runs:
        following = [source.inputs[number] for number in run]
        if batch and probe.estimate_bytes([*batch, *following]) > source.budget_bytes:
            yield batch
            batch = []
        batch += following
    yield batch


def _sort_batch(source: RowSource, batch: Batch, probe: _Probe, sort_elsewhere: SortElsewhere) -> Iterator[pa.Table]:
    if probe.estimate_bytes(batch) <= source.budget_bytes:
        try:
            rows = _read_batch(source, batch, probe.words)
        except _TooLarge:
            pass  # the sample was not like the rest
        else:
            yield from _sort_rows(rows, source)
            return
    schema = pa.schema((name, _arrow_type(source, name, probe.words)) for name in source.columns)
    for rows in sort_elsewhere(batch):
        yield cast_rows(rows, schema)  # the types of a batch in memory: both may go into one row group


def _sort_rows(rows: pa.Table, source: RowSource) -> Iterator[pa.Table]:
    order = find_order(rows, source.sort)
    for start in range(0, rows.num_rows, source.table_rows):
        end = start + source.table_rows
        yield rows.slice(start, source.table_rows) if order is None else rows.take(pa.array(order[start:end]))


def _read_batch(source: RowSource, batch: Batch, words: Sequence[str]) -> pa.Table:
    """Read files into one table of one chunk a column.

    Raises:
        _TooLarge: They take more memory than they may.
        CorruptLog: One cannot be read.
    """
    room_bytes = source.budget_bytes - KEY_BYTES * sum(each.row_count for each in batch)
    tables: list[pa.Table] = []
    with ThreadPoolExecutor(source.thread_count, thread_name_prefix="icedb-decode") as pool:
        futures = [pool.submit(_read_file, each, words) for each in batch]
        try:
            for future in futures:
                tables.append(future.result())
                room_bytes -= tables[-1].nbytes
                if room_bytes < 0:
                    raise _TooLarge
        finally:
            pool.shutdown(cancel_futures=True)
    counts = [table.num_rows for table in tables]
    pieces = [dict(zip(table.column_names, table.columns, strict=True)) for table in tables]
    futures.clear()
    tables.clear()
    columns: dict[str, pa.Array] = {}
    for name in source.columns:
        kind = _arrow_type(source, name, words)
        found = [piece.pop(name, None) for piece in pieces]  # let go before the next column is joined
        columns[name] = _join([_fit(each, count, kind) for each, count in zip(found, counts, strict=True)], kind)
    return pa.table(columns)


def _fit(column: pa.ChunkedArray | None, row_count: int, kind: pa.DataType) -> pa.ChunkedArray:
    if column is None:
        return pa.chunked_array([pa.nulls(row_count, kind)])
    return column if column.type == kind else column.cast(kind)


def _arrow_type(source: RowSource, name: str, words: Sequence[str]) -> pa.DataType:
    return _WORDS if name in words else ARROW_TYPES[source.columns[name]]


def _join(parts: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=kind)
    if pa.types.is_dictionary(kind):
        column = column.unify_dictionaries()
    return column.combine_chunks()


def _read_file(each: MergeInput, words: Sequence[str], *, is_sample: bool = False) -> pa.Table:
    try:
        with each.open(dictionary_columns=words) as file:
            return file.read_row_group(0, use_threads=False) if is_sample else file.read(use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(each.marker, error) from error


def _read_key(rows: pa.Table, number: int, sort: Sequence[str]) -> pa.Table:
    """Return the sort columns of one row, text as text."""
    key = rows.select(list(sort)).slice(number, 1)
    text = [pa.field(f.name, pa.string()) if pa.types.is_dictionary(f.type) else f for f in key.schema]
    return key.cast(pa.schema(text))


def _is_in_order(before: pa.Table, after: pa.Table) -> bool:
    keys = make_key_words(pa.concat_tables([before, after]), before.column_names)
    return not keys or is_ascending(keys)
