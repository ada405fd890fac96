"""Writes data files in one way for all operations: layout, encoding, statistics, footer, upload.

A stream carries an ordinal in its first column, ascending: rows of one ordinal belong to one partition. Files are
encoded side by side, a row group at a time (:mod:`icedb_engine.writing.parquet_join`); a bounded number of row groups
waits for that, and a bounded number of files for its upload, so neither memory nor disk grows with the number of
partitions. Within a file rows keep the order of the stream.

Statistics prune files, so a bound may be wide but never wrong: what is not certain is left out. Their form is
:mod:`icedb_log.table.column_bounds`. How columns are encoded: :mod:`icedb_engine.writing.encodings`.
"""

import contextlib
import functools
import json
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from io import BufferedWriter
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.clock import Clock
from icedb_log.errors import InvariantViolated
from icedb_log.keys import TablePaths
from icedb_log.model import ColumnStats, FileMarker
from icedb_log.parquet.footer import TAIL_BYTES, Footer, parse_footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX

from icedb_engine.arrow_types import make_schema
from icedb_engine.limits import TRANSFER_COUNT
from icedb_engine.work import Unit
from icedb_engine.writing.encodings import encode_rows
from icedb_engine.writing.parquet_join import MAGIC, MAX_GROUPS, FooterJoiner, SourceChunk, parse_file
from icedb_engine.writing.row_groups import DICTIONARIES_KEY, EXACT, CopyFacts, min_rows
from icedb_engine.writing.sort_keys import Key, Tuples, encode_order, make_key, read_tuples

FILE_FORMAT: Final = "1"
FileKind = Literal["flush", "merge", "delete", "rewrite"]
"""Which job wrote a data file; a ``merge_query`` runs in merges."""
SPLIT_FACTOR: Final = 2
"""A data file ends when it has this many times the target size: with its row group, and the next run begins."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """How the data files of a unit look.

    Attributes:
        unit: Who writes them.
        columns: Their columns.
        partitions: Encoded partition path of each ordinal.
        kind: Which job it is.
        inputs: Keys of the data files that were read; a flush reads none.
    """

    unit: Unit
    columns: Collection[str]
    partitions: Sequence[str]
    kind: FileKind = "flush"
    inputs: Sequence[str] = ()

    @property
    def sort_columns(self) -> list[str]:
        """Rows are sorted by these, nulls last."""
        return [column for column in self.unit.config.sort if column in self.columns]

    @property
    def stats_columns(self) -> list[str]:
        """Columns whose statistics go into the markers."""
        sources = [field.column for field in self.unit.config.partition if field.column in self.columns]
        return list(dict.fromkeys([*sources, *self.sort_columns]))

    def make_footer(self, ordinal: int) -> dict[str, str]:
        """Return the key-value metadata of a data file's Parquet footer."""
        footer = {
            "icedb.format": FILE_FORMAT,
            "icedb.table": self.unit.paths.name,
            "icedb.partition": self.partitions[ordinal],
            "icedb.commit": self.unit.commit_id,
            "icedb.kind": self.kind,
        }
        if self.kind != "flush":
            footer["icedb.inputs"] = json.dumps(list(self.inputs))
        return footer


def read_contents(footer: bytes, info: ObjectInfo, columns: Collection[str]) -> Footer | None:
    """Return the facts in a footer about some columns; ``None`` if it has none."""
    try:
        return parse_footer(footer, info, bounds_of=columns)
    except DamagedFile:
        return None


def require_parity(paths: TablePaths, *, read_count: int, files: Sequence[FileMarker]) -> None:
    """Raise InvariantViolated unless the files have as many rows as were read."""
    written_count = sum(marker.row_count or 0 for marker in files)
    if written_count != read_count:
        raise InvariantViolated(f"table {paths.name}: a flush read {read_count} rows and wrote {written_count}")


_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAYS: Final = (date.min.toordinal() - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL)


class StatsCollector:
    """Gathers the statistics of some columns over the chunks of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._bounds: dict[str, list[Any]] = {column: [] for column in columns}
        self._null_counts = dict.fromkeys(columns, 0)
        self._uncertain: set[str] = set()
        self._inexact: set[str] = set()

    @property
    def inexact(self) -> tuple[str, ...]:
        """Columns of all that were added of which some value would change if the column became wider (S2)."""
        return tuple(sorted(self._inexact))

    def add(self, chunk: pa.Table) -> None:
        """Take one chunk of rows into account."""
        self.note_inexact(chunk)
        for column, bounds in self._bounds.items():
            values = chunk.column(column)
            self._null_counts[column] += values.null_count
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
                self._uncertain.add(column)
                continue
            extremes = pc.min_max(_as_text(values))
            if extremes["min"].is_valid:
                try:
                    bounds += [extremes["min"].as_py(), extremes["max"].as_py()]
                except (OverflowError, ValueError):  # of an imported file: a time outside the years 1 to 9999
                    self._uncertain.add(column)

    def note_inexact(self, chunk: pa.Table) -> None:
        """Take into account of which columns some value would change if the column became wider (S2)."""
        for field in chunk.schema:
            if field.name not in self._inexact and not _is_exact(chunk.column(field.name)):
                self._inexact.add(field.name)

    def add_known(self, facts: CopyFacts) -> None:
        """Take rows into account that are not decoded."""
        self._inexact.update(facts.inexact)
        for column, bounds in self._bounds.items():
            low, high, null_count = facts.stats[column]
            self._null_counts[column] += null_count
            if low is not None:
                bounds += [low, high]

    def finish(self) -> dict[str, ColumnStats]:
        """Return the statistics of everything that was added."""
        return {
            column: (None, None, self._null_counts[column])
            if column in self._uncertain or not bounds
            else (*encode_bounds(min(bounds), max(bounds)), self._null_counts[column])
            for column, bounds in self._bounds.items()
        }


def _find_nan(rows: pa.Table) -> list[str]:
    """Return the columns that have NaN: engines sort it above every number, and no bound of Arrow's says so."""
    floats = (name for name, kind in zip(rows.column_names, rows.schema.types, strict=True) if kind == pa.float64())
    return [name for name in floats if pc.any(pc.is_nan(rows.column(name))).as_py()]


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the different values of a column that came as a dictionary, and others as they are."""
    if not pa.types.is_dictionary(values.type):
        return values
    return pc.unique(values.unify_dictionaries()).dictionary_decode()


def _is_exact(values: pa.ChunkedArray) -> bool:
    """Return whether no value would change if a BIGINT became a DOUBLE, or a DATE a TIMESTAMP (S2)."""
    if pa.types.is_int64(values.type):
        low, high = -EXACT_DOUBLE_MAX, EXACT_DOUBLE_MAX
    elif pa.types.is_date32(values.type):
        values, (low, high) = values.cast(pa.int32()), _DAYS
    else:
        return True
    extremes = pc.min_max(values)
    return not extremes["min"].is_valid or low <= extremes["min"].as_py() <= extremes["max"].as_py() <= high


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A row group of a data file that is taken over as bytes.

    Attributes:
        columns: Columns of the file that is written, with types: those that the row group lacks are null in it.
        chunks: Its columns, in the order of the data file.
        row_count: Its rows.
        facts: What is known of them.
        ranges: Where the bytes are that are read: chunks that follow each other together, in the order of ``columns``.
        bodies: The bytes of each range, in pieces. Once.
        check: Sees that chunks are, where they lie now in a file, what they were; raises what it means if not.
        make: Makes some of the columns that the row group lacks, of others where they lie now in a file (S4).
    """

    columns: Mapping[str, str]
    chunks: Mapping[str, SourceChunk]
    row_count: int
    facts: CopyFacts
    ranges: Sequence[tuple[int, int]]
    bodies: Iterator[Iterator[bytes]]
    check: Callable[[mmap, Mapping[str, SourceChunk]], None]
    make: Callable[[memoryview, Mapping[str, SourceChunk]], pa.Table] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that are copied."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Rows that come sorted: how many, and themselves; and whether they go into another file than those before."""

    row_count: int
    tables: Iterable[pa.Table]
    begins_file: bool = False


class PartEncoder:
    """Writes one Parquet file. Row groups may be encoded side by side; appending them follows one after the other.

    Attributes:
        path: The file.
        row_count: Rows appended so far.
        size_bytes: Bytes written so far.
        stats: Statistics of the rows.
    """

    def __init__(self, path: Path, layout: PartLayout) -> None:
        self.path = path
        self.row_count = 0
        self.size_bytes = 0
        self.stats = StatsCollector(layout.stats_columns)
        self._sort = layout.sort_columns
        self._few_rows = min_rows(layout.unit.config.row_group_rows)
        self._order: list[Tuples | None] = []
        self._last_key: Key | None = None
        self._has_exact_dictionaries = True
        self._joiner = FooterJoiner(self._sort)
        self._sink: BufferedWriter | None = None

    def write_group(self, rows: pa.Table) -> None:
        """Encode and append rows as one row group, or as two if they begin with late ones."""
        for part in self.cut_late(rows) if self._sink is None else (rows,):
            self.append_group(part, encode_rows(part))

    def cut_late(self, rows: pa.Table) -> Sequence[pa.Table]:
        """Return the rows of a file's first row group in parts that are to be row groups: a few late ones apart.

        Rows are sorted, so late ones come first, and lie thinner by far along the first sort column. As one row group
        with the others they would make it overlap all that they reach back over; merges copy what overlaps nobody.
        """
        count = find_late(rows.column(self._sort[0])) if self._sort else 0
        is_worth_it = count > 0 and rows.num_rows - count >= self._few_rows
        return (rows.slice(0, count), rows.slice(count)) if is_worth_it else (rows,)

    def append_group(self, rows: pa.Table, encoded: pa.Buffer) -> None:
        """Append a row group after those before it."""
        sink = self._open()
        self.stats.add(rows)
        body = self._joiner.add(encoded, place=self.size_bytes, unbounded=_find_nan(rows))
        self._note_order(read_tuples(rows, self._sort))
        self.row_count += rows.num_rows
        self.size_bytes += sink.write(body)

    def copy_group(self, group: CopiedGroup) -> Mapping[str, SourceChunk]:
        """Append a row group of another file as it is; return where its columns lie now, for :meth:`check_group`.

        Raises:
            CorruptLog, NotFound, Unavailable: Its bytes cannot be read.
        """
        sink = self._open()
        if not self._joiner.has_base:
            self._joiner.set_base(parse_file(encode_rows(make_schema(group.columns).empty_table())))
        starts = {start for start, _ in group.ranges}
        moved: dict[str, SourceChunk] = {}
        for name in group.columns:
            chunk = group.chunks.get(name)
            if chunk is None:
                continue
            moved[name] = chunk.move(self.size_bytes)
            if chunk.start in starts:
                for piece in next(group.bodies):
                    sink.write(piece)
            self.size_bytes += chunk.stored_bytes
        sink.flush()
        made = self._make_columns(group, moved)
        lacking = {name: kind for name, kind in group.columns.items() if name not in moved and name not in made}
        nulls, null_bytes = _encode_nulls(lacking, group.row_count) if lacking else ({}, memoryview(b""))
        for chunks, body in ((nulls, null_bytes), (made.chunks, made.body)):
            for name, chunk in chunks.items():
                moved[name] = chunk.move(self.size_bytes)
                self.size_bytes += sink.write(body[chunk.start : chunk.end])
        sink.flush()
        self._joiner.add_group([moved[name] for name in group.columns], row_count=group.row_count)
        self._note_order(group.facts.tuples)
        self._has_exact_dictionaries &= group.facts.has_exact_dictionaries
        self.stats.add_known(group.facts)
        self.row_count += group.row_count
        return {name: moved[name] for name in group.chunks}

    def _make_columns(self, group: CopiedGroup, moved: Mapping[str, SourceChunk]) -> "_Encoded":
        """Return columns that a row group lacks, and that are made of those that were just copied (S4)."""
        if group.make is None:
            return _Encoded({}, memoryview(b""))
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as body:
            rows = group.make(memoryview(body), moved)
        self.stats.note_inexact(rows)
        return _Encoded.of(rows)

    def check_group(self, group: CopiedGroup, moved: Mapping[str, SourceChunk]) -> None:
        """Compare the bytes of a row group that was copied with their checksums, where they lie now.

        Others may be appended meanwhile.

        Raises:
            CorruptLog: They are not those of the pages of which the footer of the other file speaks.
        """
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as body:
            group.check(body, moved)

    def _open(self) -> BufferedWriter:
        if self._sink is None:
            self._sink = self.path.open("wb")
            self.size_bytes += self._sink.write(MAGIC)
        return self._sink

    def _note_order(self, tuples: Tuples | None) -> None:
        """Take the first and last tuple of a row group into the footer, if it is where it belongs."""
        if tuples is not None:
            low, high = map(make_key, tuples)
            if high < low or (self._last_key is not None and low < self._last_key):
                raise InvariantViolated(f"{self.path}: rows that are not in the table's order")
            self._last_key = high
        self._order.append(tuples)

    def close(self, footer: dict[str, str]) -> None:
        """Write the footer."""
        if self._sink is None:
            raise InvariantViolated(f"{self.path}: a data file without rows")
        exact = {DICTIONARIES_KEY: EXACT} if self._has_exact_dictionaries else {}
        self.size_bytes += self._sink.write(
            self._joiner.make_footer({**footer, **exact, **encode_order(self._sort, self._order)})
        )
        self._sink.close()

    def read_footer(self) -> bytes:
        """Return the footer of the closed file as it is on disk, without its length and the magic bytes."""
        with self.path.open("rb") as file:
            file.seek(-TAIL_BYTES, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-TAIL_BYTES - length, os.SEEK_END)
            return file.read(length)

    def abandon(self) -> None:
        """Let go of the file without finishing it. Idempotent, and harmless after :meth:`close`."""
        if self._sink is not None:
            with contextlib.suppress(OSError):  # what is buffered may not fit on the disk
                self._sink.close()


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Columns of a row group as a Parquet file has them, by name, and the bytes of that."""

    chunks: Mapping[str, SourceChunk]
    body: memoryview

    def __contains__(self, name: str) -> bool:
        return name in self.chunks

    @classmethod
    def of(cls, rows: pa.Table) -> "_Encoded":
        """Encode columns."""
        body, unbounded = memoryview(encode_rows(rows)), _find_nan(rows)
        chunks = parse_file(body).groups[0].chunks
        return cls({name: each.without_bounds() if name in unbounded else each for name, each in chunks.items()}, body)


@functools.lru_cache(maxsize=4)
def _encode_null_columns(columns: tuple[tuple[str, str], ...], row_count: int) -> tuple[dict[str, SourceChunk], Any]:
    schema = make_schema(dict(columns))
    body = encode_rows(pa.table([pa.nulls(row_count, each.type) for each in schema], schema=schema))
    return dict(parse_file(body).groups[0].chunks), body


def _encode_nulls(columns: Mapping[str, str], row_count: int) -> tuple[dict[str, SourceChunk], memoryview]:
    """Return columns of nothing but NULL as a file has them, and the bytes of that."""
    chunks, body = _encode_null_columns(tuple(columns.items()), row_count)
    return chunks, memoryview(body)


LATE_SHARES: Final = (1 / 64, 1 / 32, 1 / 16)
LATE_MIN_ROWS: Final = 4096
THINNER: Final = 8
"""Of so many rows or more the first few, the least of these shares that does, are late if they lie so much thinner
along the sort column than the others. Twice as many are taken: where others begin is not known exactly."""
_NUMBERS: Final = {
    pa.int64(): pa.int64(),
    pa.float64(): pa.float64(),
    pa.timestamp("us"): pa.int64(),
    pa.date32(): pa.int32(),
}
"""Types of columns along which rows may lie thin, and the numbers that they are."""


def find_late(values: pa.ChunkedArray) -> int:
    """Return how many of sorted values are taken for late ones; 0: none, or these are no numbers or times."""
    count = len(values)
    if count < LATE_MIN_ROWS or values.type not in _NUMBERS or not values[count - 1].is_valid:
        return 0
    places = [int(count * share) for share in LATE_SHARES]
    found = values.take(pa.array([0, *places, count - 1])).cast(_NUMBERS[values.type])
    first, *cuts, last = found.cast(pa.float64(), safe=False).to_pylist()
    if not math.isfinite(last - first):
        return 0
    for place, value in zip(places, cuts, strict=True):
        if (count - place) * (value - first) >= THINNER * place * (last - value) and value > first:
            return 2 * place
    return 0


ORDINAL: Final = "__ordinal"
"""Name of the stream's first column."""
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group ends early above this size in memory: rows may be wide."""

_Piece = TypeVar("_Piece")


def cut_by_ordinal(chunk: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each ordinal of a stream's chunk, without it."""
    if not chunk.num_rows:
        return
    ordinals = chunk.column(0).to_numpy()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ordinals)) + 1, [chunk.num_rows]))
    rows = chunk.remove_column(0)
    for start, end in pairwise(starts):
        yield int(ordinals[start]), rows.slice(int(start), int(end - start))


class PartFileWriter:
    """Writes one sorted stream as data files and uploads them under fresh names (W1).

    Args:
        layout: How they look; its unit bounds how many row groups are encoded, and how many files uploaded, at once.
        store: Where they go.
        clock: Gives their ids.
        folder: Where they lie until they are uploaded.

    Attributes:
        layout: How they look.
        contents: What :func:`read_contents` says of each file that :meth:`write_partition` uploaded, by its key.
    """

    def __init__(self, layout: PartLayout, store: ObjectStore, *, clock: Clock, folder: Path) -> None:
        self._store = store
        self.layout = layout
        self._clock = clock
        self._folder = folder
        self._limits = layout.unit.engine
        self._split_bytes = SPLIT_FACTOR * layout.unit.config.target_file_bytes
        self._encoders = ThreadPoolExecutor(self._limits.thread_count, thread_name_prefix="icedb-encode")
        self._uploads = ThreadPoolExecutor(TRANSFER_COUNT, thread_name_prefix="icedb-upload")
        self._encoding: deque[Future[None]] = deque()
        self._closing: deque[Future[Future[FileMarker]]] = deque()
        self._markers: list[FileMarker] = []
        self._file: _OpenFile | None = None
        self._opened: list[_OpenFile] = []
        self._group_rows = layout.unit.config.row_group_rows
        self._ordinal = -1
        self.contents: dict[str, Footer | None] = {}
        self._contents_of: Collection[str] | None = None

    def write_all(self, chunks: Iterable[pa.RecordBatch]) -> tuple[FileMarker, ...]:
        """Write every row of the stream; return the markers of the uploaded files, in order. Once.

        Not idempotent: each call makes new files. After an error uploaded files are orphans (J5).

        Raises:
            Unavailable: The store did not take a file.
        """
        return self._write(chunks, self._write_chunk)

    def write_partition(
        self, pieces: Iterable[pa.Table | SortedRun | CopiedGroup], *, contents_of: Collection[str] | None = None
    ) -> tuple[FileMarker, ...]:
        """Write the rows of the only partition, which come without an ordinal. As :meth:`write_all`.

        Args:
            pieces: The rows.
            contents_of: Columns whose :attr:`contents` are wanted, as they are on disk; ``None``: nothing is.
        """
        self._contents_of = contents_of
        return self._write(pieces, self._write_piece)

    def _write_piece(self, piece: pa.Table | SortedRun | CopiedGroup) -> None:
        if isinstance(piece, CopiedGroup):
            self._copy_group(piece)
        elif isinstance(piece, SortedRun):
            self._write_run(piece)
        else:
            self._write_rows(0, piece)

    def _write_run(self, run: SortedRun) -> None:
        """Write sorted rows, in row groups of about one size if the last one would be small."""
        if run.begins_file:
            self._close_file()
        most = self.layout.unit.config.row_group_rows
        row_count = run.row_count + (0 if self._file is None else self._file.waiting_rows)
        if row_count > most and 0 < row_count % most < min_rows(most):
            self._set_group_rows(-(-row_count // -(-row_count // most)))
        for rows in run.tables:
            self._write_rows(0, rows)
        self._set_group_rows(most)

    def _set_group_rows(self, row_count: int) -> None:
        self._group_rows = row_count
        if self._file is not None:
            self._file.row_group_rows = row_count

    def _copy_group(self, group: CopiedGroup) -> None:
        """Have a row group copied after what waits, and end the file if that makes it large enough."""
        self._ordinal = 0
        file = self._open_file()
        if file.waiting_rows:
            self._encoding.append(file.encode_group(self._encoders))
        self._encoding.append(file.copy_group(group, self._encoders))
        self._end_large_file(file)

    def _open_file(self) -> "_OpenFile":
        if self._file is None:
            path = self._folder / f"{self._clock.new_id()}.parquet"
            self._file = _OpenFile(PartEncoder(path, self.layout), self._group_rows)
            self._opened.append(self._file)
        return self._file

    def _write(self, pieces: Iterable[_Piece], write: Callable[[_Piece], None]) -> tuple[FileMarker, ...]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for piece in pieces:
                write(piece)
            self._close_file()
            self._settle(0)
        finally:
            self._encoders.shutdown(cancel_futures=True)
            self._uploads.shutdown(cancel_futures=True)
            for file in self._opened:
                file.encoder.abandon()
        return tuple(self._markers)

    def _write_chunk(self, chunk: pa.RecordBatch) -> None:
        for ordinal, rows in cut_by_ordinal(chunk):
            self._write_rows(ordinal, pa.Table.from_batches([rows]))

    def _write_rows(self, ordinal: int, rows: pa.Table) -> None:
        if ordinal != self._ordinal:
            self._close_file()
            self._ordinal = ordinal
        while rows.num_rows:
            file = self._open_file()
            rows = rows.slice(file.add(rows))
            if file.is_group_full:
                self._encoding.append(file.encode_group(self._encoders))
                self._end_large_file(file)

    def _end_large_file(self, file: "_OpenFile") -> None:
        # No file is larger than its rows in memory: only then is it worth to wait for its size.
        is_large = file.memory_bytes >= self._split_bytes and file.read_size_bytes() >= self._split_bytes
        if is_large or file.group_count >= MAX_GROUPS - 1:  # a copy may end a group that waits, and is one itself
            self._close_file()
        self._hold_back()

    def _hold_back(self) -> None:
        """Wait until no more row groups are in memory than are being encoded, and one."""
        while len(self._encoding) > self._limits.thread_count:
            self._encoding.popleft().result()

    def _close_file(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        partition, footer = self.layout.partitions[self._ordinal], self.layout.make_footer(self._ordinal)
        last_group = file.encode_group(self._encoders)

        def close() -> Future[FileMarker]:
            for queued in (last_group, *file.checks):
                queued.result()  # it was queued before this, so it has begun at least: no deadlock
            file.encoder.close(footer)
            key = self.layout.unit.paths.data_key(partition=partition, file_id=file.encoder.path.stem)
            written = file.encoder.read_footer() if self._contents_of is not None else b""
            uploading = self._uploads.submit(self._upload, key, file.encoder)
            if self._contents_of is not None:  # while the disk or the network takes the file
                info = ObjectInfo(key, "", file.encoder.size_bytes, self.layout.unit.time_ms)
                self.contents[key] = read_contents(written, info, self._contents_of)
            return uploading

        self._encoding.append(last_group)
        self._closing.append(self._encoders.submit(close))
        self._hold_back()
        self._settle(2 * TRANSFER_COUNT)

    def _settle(self, waiting_count: int) -> None:
        """Wait for the oldest uploads until at most ``waiting_count`` are left."""
        while len(self._closing) > waiting_count:
            self._markers.append(self._closing.popleft().result().result())

    def _upload(self, key: str, file: PartEncoder) -> FileMarker:
        size_bytes = file.path.stat().st_size
        self._store.upload(key, file.path, may_move=True)
        file.path.unlink(missing_ok=True)
        return FileMarker(
            path=key,
            size_bytes=size_bytes,
            created_ms=self.layout.unit.time_ms,
            row_count=file.row_count,
            stats=file.stats.finish(),
            inexact=file.stats.inexact,
            promoted_count=len(self.layout.unit.config.promoted),  # S4: of the rows of all jobs they are made
        )


class _OpenFile:
    """One data file: the rows of its next row group, and its encoder, which takes one row group after the other.

    Attributes:
        encoder: Writes it.
        row_group_rows: Rows of its next row group.
        memory_bytes: Bytes of all its row groups, in memory or as they are copied.
        group_count: Row groups so far.
        waiting_rows: Rows of the next one that have come.
        checks: Of row groups that were copied: until all are done the file is not whole.
    """

    def __init__(self, encoder: PartEncoder, row_group_rows: int) -> None:
        self.encoder = encoder
        self.row_group_rows = row_group_rows
        self.memory_bytes = 0
        self.group_count = 0
        self.waiting_rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._has_encoded = False
        self._before: Future[Any] | None = None
        self.checks: list[Future[None]] = []

    @property
    def is_group_full(self) -> bool:
        """Whether the row group takes no more rows."""
        return self.waiting_rows >= self.row_group_rows or self._waiting_bytes >= ROW_GROUP_BYTES

    def add(self, rows: pa.Table) -> int:
        """Take rows up to the end of the row group; return how many."""
        taken = rows.slice(0, max(0, self.row_group_rows - self.waiting_rows))  # a run may make groups smaller
        self._waiting.append(taken)
        self.waiting_rows += taken.num_rows
        self._waiting_bytes += taken.nbytes
        return int(taken.num_rows)

    def encode_group(self, pool: ThreadPoolExecutor) -> Future[None]:
        """Have what waits encoded, after the row group before it."""
        waiting, before, is_first = self._waiting, self._before, not self._has_encoded

        def encode() -> None:
            rows = [_join_tables(waiting)] if waiting else []
            parts = self.encoder.cut_late(rows[0]) if is_first and rows else rows
            encoded = [encode_rows(part) for part in parts]
            if before is not None:
                before.result()  # it was queued earlier, so it has begun at least: no deadlock
            for part, body in zip(parts, encoded, strict=True):
                self.encoder.append_group(part, body)

        self.memory_bytes += self._waiting_bytes
        self.group_count += (1 + is_first) * bool(waiting)  # late rows are a row group of their own
        self._has_encoded = self._has_encoded or bool(waiting)
        self._waiting, self.waiting_rows, self._waiting_bytes = [], 0, 0
        self._before = encoding = pool.submit(encode)
        return encoding

    def copy_group(self, group: CopiedGroup, pool: ThreadPoolExecutor) -> Future[None]:
        """Have a row group copied, after the one before it, and checked, beside the one after it."""
        before = self._before

        def copy() -> Mapping[str, SourceChunk]:
            if before is not None:
                before.result()  # as above
            return self.encoder.copy_group(group)

        self.memory_bytes += group.size_bytes
        self.group_count += 1
        self._before = copied = pool.submit(copy)
        self.checks.append(pool.submit(lambda: self.encoder.check_group(group, copied.result())))  # as above
        return self.checks[-1]

    def read_size_bytes(self) -> int:
        """Wait for the encoder; return the bytes written so far."""
        if self._before is not None:
            self._before.result()
        return self.encoder.size_bytes


def _join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of the same columns as one, with one dictionary for text that came as dictionaries."""
    schema = tables[0].schema
    if any(table.schema != schema for table in tables):
        fields = zip(schema.names, schema.types, strict=True)
        plain = [(name, kind.value_type if pa.types.is_dictionary(kind) else kind) for name, kind in fields]
        tables = [table.cast(pa.schema(plain)) for table in tables]
    return pa.concat_tables(tables).unify_dictionaries()
