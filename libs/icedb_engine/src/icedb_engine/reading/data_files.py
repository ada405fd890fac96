"""Data files read back: fetched, their columns compared with the table's, and their rows as one sorted stream.

Of a file whose row groups may be copied only the footer is fetched at first, and later what is sorted of it: the file,
or a file made of some of its row groups. What is copied goes through memory, a few pieces at a time.

Arrow decodes them, which checks the checksum of each page, and they are sorted in memory (:mod:`.sort`). Rows that are
too large for that are sorted by the native engine within its memory, and it spills; it reads files that are not small
itself, without looking at checksums: so that is done before. So it is where values become those of another type.
Nothing depends on files being sorted. Only a footer's schema, row count and sizes of row groups are read by
Arrow, never what it says of single columns: Arrow ends the process on some damaged column metadata.

A column of a data file that the table does not have may repeat a value of the path: writers of other releases do that.
It says nothing new and is left out when rows are written anew. Anything else is data: it must never vanish silently.
"""

import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.address_space import says_out_of_memory
from icedb_log.errors import CorruptLog, InvariantViolated, NotFound, SchemaConflict
from icedb_log.keys import TablePaths
from icedb_log.log.widening import is_widening
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import TAIL_BYTES, Footer, read_origin
from icedb_log.parquet.pages import check_file_sums
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore, limit_reads
from icedb_log.table.partitions import decode_partition_value
from icedb_log.units import MIB

from icedb_engine.arrow_types import align, encode_texts, make_schema, name_arrow_type
from icedb_engine.engine import CapturedRows
from icedb_engine.limits import TRANSFER_COUNT
from icedb_engine.reading.filling import Filler
from icedb_engine.reading.sort import count_plain_bytes, sort_rows
from icedb_engine.sql import quote_name, quote_text, sort_sql
from icedb_engine.work import MergeUnit
from icedb_engine.writing.encodings import find_repeated
from icedb_engine.writing.key_ranges import KeyRange
from icedb_engine.writing.parquet_join import MAGIC, CannotCopy, FooterJoiner, SourceChunk, SourceFile, parse_source
from icedb_engine.writing.part_files import CopiedGroup, read_contents
from icedb_engine.writing.row_groups import Piece, PieceMaker

SMALL_FILE_BYTES: Final = 1 * MIB
"""Files up to this size are decoded by Arrow: to open one costs the native engine more than to read it."""
CHUNK_BYTES: Final = 64 * MIB
"""What a chunk of sorted rows aims at in memory, if rows are wide."""
FOOTER_BYTES: Final = 64 * 1024
"""So much is read of the end of a file at first: nearly always the whole footer."""
_PIECE_BYTES: Final = 8 * MIB
_PIECES_AHEAD: Final = 4
"""What is copied is read in pieces, so many ahead of what is written."""
_MIN_CHUNK_ROWS: Final = 2048
_DECODED_ROWS: Final = 65_536
DECODED_SHARE: Final = 3
MAX_DECODED_BYTES: Final = 1024 * MIB
"""Rows of up to memory / this, and so much, are sorted in memory; of more the native engine spills what it must."""
_FILES_AT_ONCE: Final = 32
"""A thread decodes so many one after the other: to hand over each by itself costs a fifth of a small one."""
_REPEATING_ROWS: Final = 16_384
_REPEATED_SHARE: Final = 1 / 32
"""Text of which no larger share of a sample is distinct stays a dictionary, if files are of so many rows."""
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class InputFile:
    """One data file whose rows are written anew.

    Attributes:
        marker: What the log says of it.
        source: Its content, or the file that holds it; ``None``: only the footer was fetched.
        metadata: Its footer.
        types: Column to SQL type; ``None`` if some column is of a type that only the native engine can name.
        end: Its footer as bytes, with all that follows; empty: it is read from the content.
        kept: Which of its rows count, as far as it is decoded; ``None``: all.
    """

    marker: FileMarker
    source: Path | pa.Buffer | None
    metadata: Any
    types: Mapping[str, str] | None
    end: bytes = b""
    kept: KeyRange | None = None

    @classmethod
    def open(cls, marker: FileMarker, source: Path | pa.Buffer | None, *, end: bytes = b"") -> Self:
        """Read the footer of a file. Raises CorruptLog."""
        try:
            content = _reader(pa.py_buffer(MAGIC + end) if source is None else source)
            with pq.ParquetFile(content) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (OSError, ValueError, pa.ArrowException) as error:
            raise unreadable(marker, error) from error
        names: list[Any] = list(map(name_arrow_type, schema.types))
        types = None if None in names else dict(zip(schema.names, names, strict=True))
        return cls(marker, source, metadata, types, end)

    @property
    def row_count(self) -> int:
        """Rows, by its footer."""
        return int(self.metadata.num_rows)

    def parse(self) -> SourceFile:
        """Read what its footer says of its row groups. Raises DamagedFile, CannotCopy."""
        footer = self.read_footer()
        source = parse_source(footer, data_bytes=self._size_bytes() - len(footer) - TAIL_BYTES)
        if len(source.groups) != self.metadata.num_row_groups:
            raise DamagedFile("its footer has another number of row groups for others")
        return source

    @property
    def decoded_bytes(self) -> int:
        """Size of its pages without compression, by its footer."""
        return sum(int(self.metadata.row_group(n).total_byte_size) for n in range(self.metadata.num_row_groups))

    def has_types(self, columns: Mapping[str, str]) -> bool:
        """Whether every column that is written has its type: no value has to be converted."""
        return self.types is not None and all(columns.get(name, kind) == kind for name, kind in self.types.items())

    def decode(self, columns: Mapping[str, str], *, repeated: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield its rows that count, with these columns; NULL where it does not have one. Raises CorruptLog.

        Args:
            columns: With their types, which must be those in the file; those of :attr:`kept` are among them.
            repeated: Text columns that come as dictionaries.
        """
        schema = make_schema(columns, repeated=repeated)
        names = [name for name in columns if name in (self.types or ())] or None
        if names == list(self.types or ()):
            names = None  # all of them: they are not looked up one by one
        wanted = [name for name in repeated if name in (self.types or ())]
        as_dictionaries = [name for name in wanted if not self._has_differences(name)]
        encoded_later = set(wanted) - set(as_dictionaries)
        try:
            # Damage that was taken for good would be written anew with checksums that are right.
            with pq.ParquetFile(
                _reader(self._content()),
                metadata=self.metadata,
                read_dictionary=as_dictionaries,
                page_checksum_verification=True,
            ) as file:
                for read in file.iter_batches(_DECODED_ROWS, columns=names, use_threads=False):
                    rows = encode_texts(read, encoded_later)
                    rows = rows if rows.schema.equals(schema) else align(rows, schema)
                    yield rows if self.kept is None else self.kept.select(rows)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise unreadable(self.marker, error) from error

    def _has_differences(self, name: str) -> bool:
        """Whether some of a text column is encoded as differences, of which Arrow makes no dictionary."""
        place = self.metadata.schema.names.index(name)
        groups = (self.metadata.row_group(number) for number in range(self.metadata.num_row_groups))
        return any(each.startswith("DELTA") for group in groups for each in group.column(place).encodings)

    def read_footer(self) -> bytes:
        """Return the bytes of its footer, without its length and the magic bytes."""
        source = self.end if self.source is None else self.source
        if not isinstance(source, Path):
            return cut_footer(memoryview(source))
        with source.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return cut_footer(content)

    def make_file(self, folder: Path) -> Path:
        """Return a file with its content. Idempotent."""
        content = self._content()
        if isinstance(content, Path):
            return content
        path = folder / f"content-{Path(self.marker.path).name}"  # those that are downloaded are named by number
        if not path.exists():
            path.write_bytes(content)
        return path

    def _size_bytes(self) -> int:
        if isinstance(self.source, Path):
            return self.source.stat().st_size
        return self.marker.size_bytes if self.source is None else len(self.source)

    def _content(self) -> Path | pa.Buffer:
        if self.source is None:
            raise InvariantViolated(f"data file {self.marker.path} was not fetched")
        return self.source


def _reader(source: Path | pa.Buffer) -> Any:
    return str(source) if isinstance(source, Path) else pa.BufferReader(source)


def cut_range(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a range of bytes in pieces that are read one by one."""
    for place in range(start, end, _PIECE_BYTES):
        yield place, min(end, place + _PIECE_BYTES)


def find_ranges(chunks: Mapping[str, SourceChunk], names: Iterable[str]) -> list[tuple[int, int]]:
    """Return where the bytes of some columns are, in their order: those that follow each other as one range."""
    ranges: list[tuple[int, int]] = []
    is_next = False
    for name in names:
        chunk = chunks.get(name)
        if chunk is not None and is_next and ranges[-1][1] == chunk.start:
            ranges[-1] = (ranges[-1][0], chunk.end)
        elif chunk is not None:
            ranges.append((chunk.start, chunk.end))
        is_next = chunk is not None
    return ranges


def read_end(store: ObjectStore, path: str, *, size_bytes: int) -> bytes | None:
    """Read a data file from its footer on, or all of a small one; ``None``: it has another size. Raises NotFound."""
    length = min(size_bytes, FOOTER_BYTES)
    found = store.get_range(path, start=size_bytes - length, length=length)
    if found.info.size_bytes != size_bytes:
        return None
    end = found.body
    needed = TAIL_BYTES + int.from_bytes(end[-TAIL_BYTES:][:4], "little")
    if length < needed <= size_bytes:
        end = store.get_range(path, start=size_bytes - needed, length=needed).body
    return end if len(end) == size_bytes else end[-needed:]


def cut_footer(content: memoryview | mmap) -> bytes:
    """Return the bytes of the footer that a file, or the end of one, has."""
    end = len(content) - TAIL_BYTES
    return bytes(content[end - int.from_bytes(content[end : end + 4], "little") : end])


class DataFiles:
    """The data files of one group, whose rows are written anew.

    Args:
        unit: What becomes of them.
        folder: For their content; made here.
        open_engine: Opens the engine, which may read below the folder.

    Attributes:
        files: Those that were fetched.
    """

    def __init__(self, unit: MergeUnit, folder: Path, open_engine: Callable[[], AbstractContextManager[Any]]) -> None:
        self.files: list[InputFile] = []
        self._unit = unit
        self._folder = folder
        self._open_engine = open_engine
        self._store: Any = None
        self._sources: dict[int, SourceFile] = {}
        self._contents: dict[int, Footer | None] = {}
        self._part_numbers = count()
        folder.mkdir()

    @property
    def row_count(self) -> int:
        """Rows of all, by their footers."""
        return sum(each.row_count for each in self.files)

    def fetch(self, store: ObjectStore, *, in_memory: bool, few_rows: int = 0) -> None:
        """Fetch the files and read their footers.

        Args:
            store: Where they are.
            in_memory: Whether their content is to be in memory, not on disk.
            few_rows: Of files of so many rows or more, and of those whose rows the log does not tell, only the footer
                is fetched, unless they go to memory; 0: of none.

        Raises:
            NotFound: One is gone.
            CorruptLog: One is not readable as Parquet, though the log names it.
            Unavailable: The store did not answer.
        """
        self._store = store

        def fetch(numbered: tuple[int, FileMarker]) -> InputFile:
            number, marker = numbered
            with self._explaining(marker):
                if in_memory:
                    return InputFile.open(marker, pa.py_buffer(store.get(marker.path).body))
                if few_rows and (marker.row_count is None or marker.row_count >= few_rows):
                    found = self._fetch_footer(store, marker)
                    if found is not None:
                        return found
                file = self._folder / f"{number:06d}.parquet"
                store.download(marker.path, file)
                return InputFile.open(marker, file)

        inputs = enumerate(self._unit.group.inputs)
        is_alone = limit_reads(store, TRANSFER_COUNT) == 1
        if is_alone and (in_memory or few_rows):  # to hand over each costs more
            self.files = list(map(fetch, inputs))
            return
        with self._downloads() as pool:
            self.files = list(pool.map(fetch, inputs))

    def _fetch_footer(self, store: ObjectStore, marker: FileMarker) -> InputFile | None:
        """Return a file with its footer alone, or with its content if that came, too; ``None``: it has another size."""
        end = read_end(store, marker.path, size_bytes=marker.size_bytes)
        if end is None:
            return None
        if len(end) == marker.size_bytes:
            return InputFile.open(marker, pa.py_buffer(end))
        return InputFile.open(marker, None, end=end)

    def _downloads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(TRANSFER_COUNT, thread_name_prefix="icedb-download")

    @contextmanager
    def _explaining(self, marker: FileMarker) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise NotFound(
                f"table {self._unit.paths.name}: data file {marker.path} is live but gone from the store: "
                "read the log again; if it is still named there, restore the object"
            ) from error

    def _fetch_whole(self, place: int) -> InputFile:
        """Return a file with its content. Idempotent."""
        each = self.files[place]
        if each.source is None:
            file = self._folder / f"{place:06d}.parquet"
            with self._explaining(each.marker):
                self._store.download(each.marker.path, file)
            each = self.files[place] = InputFile.open(each.marker, file)
        return each

    def read_contents(self, place: int) -> Footer | None:
        """Return the facts in a file's footer about the table's columns; ``None`` if it has none. Idempotent."""
        if place not in self._contents:
            each = self.files[place]
            info = ObjectInfo(each.marker.path, "", each.marker.size_bytes, each.marker.created_ms)
            self._contents[place] = read_contents(each.read_footer(), info, self._unit.schema)
        return self._contents[place]

    def make_pieces(self, maker: PieceMaker, *, few_rows: int) -> list[Piece]:
        """Return the row groups of all files, or whole files where they can be decoded only."""
        pieces: list[Piece] = []
        for place, each in enumerate(self.files):
            if each.row_count >= few_rows:
                # A footer that this cannot read is one for those who decode the file.
                with suppress(DamagedFile, CannotCopy):
                    self._sources[place] = each.parse()
                    pieces += maker.make_pieces(place, each.marker, self._sources[place])
                    continue
            pieces.append(maker.make_whole(place, each.marker, each.types, row_count=each.row_count))
        return pieces

    @contextmanager
    def part(self, pieces: Iterable[Piece]) -> Iterator["DataFiles"]:
        """Give some row groups and files as files of their own, whose content is fetched.

        Raises:
            NotFound, CorruptLog, Unavailable: As :meth:`fetch`.
        """
        groups: dict[int, list[int]] = {}
        kept: dict[int, KeyRange] = {}
        for piece in pieces:
            if piece.kept is not None:
                kept[piece.file] = piece.kept  # of each row group of that file: of the others it has all rows
            known = self._sources.get(piece.file)
            numbers = range(len(known.groups)) if known is not None and piece.group is None else (piece.group or 0,)
            groups.setdefault(piece.file, []).extend(numbers)
        number = next(self._part_numbers)
        part = DataFiles(self._unit, self._folder / f"part{number}", self._open_engine)
        if all(isinstance(self.files[place].source, pa.Buffer) for place in groups):  # to hand over each costs more
            part.files = [self._fetch_part(part._folder, *told) for told in groups.items()]
        else:
            with self._downloads() as pool:
                part.files = list(pool.map(lambda told: self._fetch_part(part._folder, *told), groups.items()))
        part.files = [replace(each, kept=kept.get(place)) for place, each in zip(groups, part.files, strict=True)]
        try:
            yield part
        finally:
            shutil.rmtree(part._folder, ignore_errors=True)

    def _fetch_part(self, folder: Path, place: int, numbers: list[int]) -> InputFile:
        each, known = self.files[place], self._sources.get(place)
        if known is None or len(numbers) == len(known.groups):
            if each.source is not None:
                return each
            file = folder / f"{place:06d}.parquet"
            with self._explaining(each.marker):
                self._store.download(each.marker.path, file)
            return InputFile.open(each.marker, file)
        file, joiner = folder / f"{place:06d}.parquet", FooterJoiner()
        joiner.set_base(known)
        with file.open("wb") as out:
            position = out.write(MAGIC)
            for number in sorted(numbers):
                group, chunks = known.groups[number], []
                for start, end in find_ranges(group.chunks, group.chunks):
                    for body in self._read_pieces(each, [(start, end)]):
                        out.write(body)
                for chunk in group.chunks.values():
                    chunks.append(chunk.move(position))
                    position += chunk.stored_bytes
                joiner.add_group(chunks, row_count=group.row_count)
            out.write(joiner.make_footer({}))
        return InputFile.open(each.marker, file)

    def copy(
        self,
        piece: Piece,
        columns: Mapping[str, str],
        pool: ThreadPoolExecutor,
        *,
        filler: Filler | None = None,
    ) -> CopiedGroup:
        """Return a row group that is taken over as bytes; reading begins at once.

        Args:
            piece: A row group, with what is known of it.
            columns: Columns of the outputs, with types.
            pool: Reads ahead.
            filler: Makes the columns that the row group lacks (S4); ``None``: they are NULL.
        """
        each, source = self.files[piece.file], self._sources[piece.file]
        group = source.groups[piece.group or 0]
        if piece.facts is None:
            raise InvariantViolated(f"data file {each.marker.path}: row group {piece.group} is not to be copied")
        lacking = () if filler is None else filler.find_lacking(each.marker)
        chunks = {name: chunk for name, chunk in group.chunks.items() if name not in lacking}
        ranges = find_ranges(chunks, columns)
        # What we write has no bounds where there is NaN (S2); of others nobody knows.
        is_believed = read_origin(source.key_values).kind != "foreign"

        def make(body: memoryview, moved: Mapping[str, SourceChunk]) -> pa.Table:
            try:
                return filler.make(lacking, body, moved, row_count=group.row_count)  # type: ignore[union-attr]
            except (OSError, ValueError, pa.ArrowException) as error:
                raise unreadable(each.marker, error) from error

        def check(body: mmap, moved: Mapping[str, SourceChunk]) -> None:
            for name, chunk in moved.items():
                try:
                    chunk.check(body)
                except DamagedFile as error:
                    raise unreadable(each.marker, DamagedFile(f"column {name!r}: {error}")) from error

        return CopiedGroup(
            columns=columns,
            chunks={
                name: each if is_believed or columns.get(name) != "DOUBLE" else each.without_bounds()
                for name, each in chunks.items()
            },
            row_count=group.row_count,
            facts=piece.facts,
            ranges=ranges,
            bodies=self._read_ahead(each, ranges, pool),
            check=check,
            make=make if lacking else None,
        )

    def _read_ahead(
        self, each: InputFile, ranges: Sequence[tuple[int, int]], pool: ThreadPoolExecutor
    ) -> Iterator[Iterator[bytes]]:
        """Begin to read some ranges, unless the store is best read by one thread; return the pieces of each."""
        if limit_reads(self._store, TRANSFER_COUNT) == 1:  # to hand over each costs more
            return (self._read_pieces(each, [told]) for told in ranges)
        cut = [list(cut_range(start, end)) for start, end in ranges]
        todo = chain.from_iterable(cut)
        waiting = deque(pool.submit(self._read, each, *piece) for piece in islice(todo, _PIECES_AHEAD))

        def read(count: int) -> Iterator[bytes]:
            for _ in range(count):
                body = waiting.popleft().result()
                waiting.extend(pool.submit(self._read, each, *piece) for piece in islice(todo, 1))
                yield body

        return (read(len(pieces)) for pieces in cut)

    def _read_pieces(self, each: InputFile, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        for start, end in ranges:
            for piece in cut_range(start, end):
                yield self._read(each, *piece)

    def _read(self, each: InputFile, start: int, end: int) -> bytes:
        """Return bytes of a file. Raises NotFound, CorruptLog, Unavailable."""
        if isinstance(each.source, Path):
            with each.source.open("rb") as file:
                body = os.pread(file.fileno(), end - start, start)
        elif each.source is not None:
            body = bytes(memoryview(each.source)[start:end])
        else:
            with self._explaining(each.marker):
                body = self._store.get_range(each.marker.path, start=start, length=end - start).body
        if len(body) != end - start:
            raise unreadable(each.marker, DamagedFile(f"it ends before byte {end}, which its footer names"))
        return body

    def unite_columns(self) -> dict[str, str]:
        """Return those columns of the schema that a file has, with the types to be written, in the schema's order.

        A narrower type of a file becomes the table's: of an imported file, or from before the column became wider (S2).
        What files have besides is not written: it must not say anything that the path does not.

        Raises:
            SchemaConflict: A column has two types or two spellings, or is data and not in the schema; names the file.
        """
        paths, schema = self._unit.paths, self._unit.schema
        found: set[str] = set()
        others: list[tuple[InputFile, str, str]] = []
        spelling = {name.lower(): name for name in schema}
        for place, each in enumerate(self.files):
            types = each.types
            if types is None:
                each = self._fetch_whole(place)  # noqa: PLW2901 - the same with its content
                with self._open_engine() as engine:
                    types = describe_columns(engine, each.make_file(self._folder))
            for name, sql_type in types.items():
                known_name = spelling.get(name.lower())
                if known_name is None:
                    others.append((self._fetch_whole(place), name, sql_type))
                elif known_name != name or not is_read_as(sql_type, schema[name]):
                    raise SchemaConflict(
                        f"table {paths.name}: column {name!r} is {sql_type} in data file {each.marker.path}, "
                        f"but the table has {known_name!r} as {schema[known_name]}: "
                        "rewrite that file with the table's type"
                    )
                else:
                    found.add(name)
        if others:
            with self._open_engine() as engine:
                for each, column, sql_type in others:
                    file = each.make_file(self._folder)
                    require_path_values(engine, file, column, sql_type, paths=paths, data_key=each.marker.path)
        return {name: sql_type for name, sql_type in schema.items() if name in found}

    def read_sorted(self, columns: Mapping[str, str]) -> Generator[pa.Table, None, None]:
        """Yield the rows with these columns and types, sorted as the table is, nulls last.

        Raises:
            CorruptLog: A file cannot be read, has pages that differ from their checksums, or a value cannot be
                converted.
            Unavailable: Memory and scratch did not suffice.
        """
        if not self.row_count:
            return
        table = self._decode_all(columns)
        if table is None:
            yield from self._sort_outside(columns)
            return
        sort = [name for name in self._unit.config.sort if name in columns]
        tables = sort_rows(table, sort, chunk_rows=self._count_chunk_rows(table.nbytes))
        del table
        yield from tables

    def _count_chunk_rows(self, size_bytes: int) -> int:
        fitting = CHUNK_BYTES * self.row_count // max(1, size_bytes)
        return max(_MIN_CHUNK_ROWS, min(self._unit.config.row_group_rows, fitting))

    def _decode_all(self, columns: Mapping[str, str]) -> pa.Table | None:
        """Return the rows of all files; ``None``: too large, or of other types."""
        bound = min(self._unit.engine.memory_bytes // DECODED_SHARE, MAX_DECODED_BYTES)
        if sum(each.decoded_bytes for each in self.files if each.kept is None) > bound:
            return None  # of a range's files only what is kept counts, which is known when it is decoded
        if not all(each.has_types(columns) for each in self.files):
            return None
        decoded_bytes, lock = 0, Lock()
        repeated = self._find_repeated(columns)

        def decode(files: Sequence[InputFile]) -> list[pa.RecordBatch]:
            nonlocal decoded_bytes
            batches = []
            for rows in chain.from_iterable(each.decode(columns, repeated=repeated) for each in files):
                with lock:
                    decoded_bytes += rows.nbytes
                if decoded_bytes > bound:  # dictionaries make files small
                    break
                batches.append(rows)
            return batches

        thread_count = self._unit.engine.thread_count
        step = max(1, min(_FILES_AT_ONCE, len(self.files) // thread_count))
        with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-decode") as pool:
            parts = pool.map(decode, (self.files[start : start + step] for start in range(0, len(self.files), step)))
            batches = list(chain.from_iterable(parts))
        if decoded_bytes > bound:
            return None
        table = pa.Table.from_batches(batches, make_schema(columns, repeated=repeated)).unify_dictionaries()
        plain_bytes = [count_plain_bytes(values) for values in table.columns]
        if decoded_bytes + sum(plain_bytes) > bound:  # many files of few texts each are many texts together
            return None
        for place, name in enumerate(table.column_names):
            if plain_bytes[place]:
                plain = [chunk.dictionary_decode() for chunk in table.column(place).chunks]
                table = table.set_column(place, name, pa.chunked_array(plain))
        return table

    def _find_repeated(self, columns: Mapping[str, str]) -> list[str]:
        """Return the text columns of few different values, by some rows of the largest file; none of small files."""
        largest = max(self.files, key=lambda each: each.row_count)
        texts = {name: kind for name, kind in (largest.types or {}).items() if kind == "VARCHAR" and name in columns}
        if not texts or largest.row_count < _REPEATING_ROWS:
            return []
        rows = next(replace(largest, kept=None).decode(texts))
        return find_repeated(pa.Table.from_batches([rows]), max_share=_REPEATED_SHARE)

    def _sort_outside(self, columns: Mapping[str, str]) -> Iterator[pa.Table]:
        """Have the native engine sort, within its memory; it spills."""
        chunk_rows = self._count_chunk_rows(sum(each.decoded_bytes for each in self.files))
        order = ", ".join(
            sort_sql(quote_name(name), columns[name]) for name in self._unit.config.sort if name in columns
        )
        decoded = CapturedRows(rows for each in self.files for rows in each.decode(columns))
        with self._open_engine() as engine, decoded.raising():
            try:
                is_small = all(
                    each.marker.size_bytes <= SMALL_FILE_BYTES and each.has_types(columns) for each in self.files
                )
                if is_small or any(each.kept is not None for each in self.files):
                    engine.register("rows", pa.RecordBatchReader.from_batches(make_schema(columns), decoded))
                    rows = "* FROM rows"
                else:
                    rows = self._scan(columns)
                engine.execute(f"SELECT {rows}{order and ' ORDER BY '}{order}")
                for chunk in engine.to_arrow_reader(chunk_rows):
                    yield pa.Table.from_batches([chunk])
            except (duckdb.OutOfMemoryException, duckdb.IOException):
                raise
            except (duckdb.Error, OSError, ValueError, pa.ArrowException) as error:
                raise self._explain(error) from error

    def _scan(self, columns: Mapping[str, str]) -> str:
        """Return what the engine selects, and from where, once the pages are what their checksums say."""
        paths = [each.make_file(self._folder) for each in self.files]
        for each, path in zip(self.files, paths, strict=True):
            try:
                check_file_sums(path)
            except DamagedFile as error:
                raise unreadable(each.marker, error) from error
        known = {name for each in self.files for name in each.metadata.schema.to_arrow_schema().names}
        values = (
            f"CAST({quote_name(name) if name in known else 'NULL'} AS {kind}) AS {quote_name(name)}"
            for name, kind in columns.items()
        )
        return f"{', '.join(values)} FROM {scan_files(paths)}"

    def _explain(self, error: Exception) -> Exception:
        message = str(error).partition("\n")[0]
        # Once rows are being fetched, what DuckDB says of its own memory and scratch comes as Arrow's OSError.
        if says_out_of_memory(message) or (isinstance(error, OSError) and "IO Error" in message):
            return duckdb.OutOfMemoryException(message)
        for each in self.files:
            message = message.replace(str(each.make_file(self._folder)), each.marker.path)
        return CorruptLog(
            f"table {self._unit.paths.name}: a data file, one of {len(self.files)} from {self.files[0].marker.path} "
            f"on, cannot be merged ({message[:_SHOWN_CHARS]}): find it and restore the object"
        )


def unreadable(marker: FileMarker, error: Exception) -> CorruptLog:
    """Return what a data file that cannot be read means."""
    return CorruptLog(
        f"data file {marker.path} is not readable as Parquet ({str(error)[:_SHOWN_CHARS]}): restore the object"
    )


def describe_columns(engine: Any, file: Path) -> dict[str, str]:
    """Return column to SQL type of a data file, as the engine reads it."""
    rows = engine.execute(f"DESCRIBE SELECT * FROM {scan_files([file])}").fetchall()  # noqa: S608 - quoted
    return {name: sql_type for name, sql_type, *_ in rows}


NARROW_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER"), "BIGINT"),
    "FLOAT": "DOUBLE",
}
"""DuckDB's name of a narrower type that an imported file may have, to the table's type."""


def is_read_as(found_type: str, table_type: str) -> bool:
    """Return whether values of a file's type become those of the table's without loss."""
    read_type = NARROW_TYPES.get(found_type, found_type)
    return table_type in (found_type, read_type) or is_widening(read_type, table_type)


def scan_files(files: Sequence[Path]) -> str:
    """Return the SQL of the rows of some files, their columns united by name."""
    names = ", ".join(quote_text(str(file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def require_path_values(
    engine: Any, file: Path, column: str, sql_type: str, *, paths: TablePaths, data_key: str
) -> None:
    """See that a column holds nothing but NULL and the value that the file's path has for it.

    Args:
        engine: DuckDB, which may read the file.
        file: The file's content.
        column: A column that the table does not have.
        sql_type: Its type in the file: engines that read a path guess one, ``0123`` becomes a number.
        paths: Keys of the table.
        data_key: Key of the data file.

    Raises:
        SchemaConflict: It holds something else; names the file and the column.
    """
    name = quote_name(column)
    is_odd = f"{name} IS NOT NULL"
    for text in _path_texts(paths, data_key, column):
        value = quote_text(text)
        is_odd += f" AND CAST({name} AS VARCHAR) <> {value}"
        is_odd += f" AND {name} IS DISTINCT FROM TRY_CAST({value} AS {sql_type})"
    try:
        found = engine.execute(f"SELECT 1 FROM {scan_files([file])} WHERE {is_odd} LIMIT 1").fetchone()  # noqa: S608
    except (duckdb.ConversionException, duckdb.BinderException):
        found = (1,)  # no value of the path is like these
    if found is not None:
        raise SchemaConflict(
            f"table {paths.name}: column {column!r} is {sql_type} in data file {data_key}, but the table has no such "
            "column, and its values are not those of the file's path: send one batch with that column, which adds it "
            "to the table, or rewrite that file with the table's columns"
        )


def _path_texts(paths: TablePaths, data_key: str, column: str) -> set[str]:
    """Return the value that the path has for a column, as it stands there and decoded; nothing if it has none."""
    texts: set[str] = set()
    for folder in paths.partition_of(data_key).split("/"):
        name, separator, encoded = folder.partition("=")
        if separator and name.lower() == column.lower():
            texts |= {encoded, decode_partition_value(encoded)}
    return texts
