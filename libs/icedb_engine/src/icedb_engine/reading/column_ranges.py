"""Of a large data file only what a reader asks for is fetched: columns of row groups, as a file of their own.

The bytes of pages are as they are, with their checksums; the footer is made anew. Taken apart is only what we wrote, of
columns that are stored as ours are, for then nothing has to be converted: any other file is fetched whole. A row group
is left out if no row of it can fulfil the condition, by what its footer proves exactly.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from icedb_log.model import FileMarker
from icedb_log.parquet.footer import TAIL_BYTES, read_origin
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TableConfig
from icedb_log.units import KIB

from icedb_engine.arrow_types import make_schema
from icedb_engine.reading.data_files import SMALL_FILE_BYTES, cut_footer, cut_range, read_end
from icedb_engine.work import DataFile
from icedb_engine.writing.encodings import encode_rows
from icedb_engine.writing.parquet_join import (
    MAGIC,
    CannotCopy,
    FooterJoiner,
    SourceChunk,
    SourceFile,
    parse_file,
    parse_source,
)
from icedb_engine.writing.row_groups import Piece, PieceMaker

GAP_BYTES: Final = 256 * KIB
"""So many bytes between two that are wanted are fetched with them: a request more takes longer."""
WORTH_SHARE: Final = 2
"""A file is taken apart if at most the whole / this has to be fetched."""


def fetch_columns(
    store: ObjectStore, file: DataFile, path: Path, columns: Mapping[str, str], *, where: str | None
) -> int | None:
    """Fetch columns of a data file into a file of their own.

    Args:
        store: Where it is.
        file: Which.
        path: Of the new file.
        columns: What is asked for, with the table's types; a column that the data file lacks the new one lacks, too.
        where: A condition over these: row groups without a row that fulfils it are left out. ``None``: none is.

    Returns:
        Rows of the data file by its footer; ``None``: nothing was made, for it is better fetched whole.

    Raises:
        NotFound: It is gone.
        Unavailable: The store did not answer.
    """
    if file.size_bytes <= SMALL_FILE_BYTES:
        return None
    source = _read_source(store, file)
    pieces = [] if source is None else _make_pieces(source, file, columns)
    if source is None or not pieces:
        return None
    may_match = _make_test(where, columns)
    groups = [source.groups[piece.group or 0] for piece in pieces if may_match(piece)]
    names = [name for name in columns if name in source.leaves]
    wanted = [[group.chunks[name] for name in names] for group in groups]
    ranges = [_join_ranges(chunks) for chunks in wanted]
    if WORTH_SHARE * sum(end - start for found in ranges for start, end in found) > file.size_bytes:
        return None
    nothing = encode_rows(make_schema({name: columns[name] for name in names}).empty_table())
    joiner = FooterJoiner()
    joiner.set_base(parse_file(nothing))
    with path.open("wb") as out:
        position = out.write(MAGIC)
        for group, chunks, found in zip(groups, wanted, ranges, strict=True):
            moved: dict[int, SourceChunk] = {}
            for start, end in found:
                inside = {place: chunk for place, chunk in enumerate(chunks) if start <= chunk.start < end}
                moved |= {place: chunk.move(chunk.start - start + position) for place, chunk in inside.items()}
                for first, last in cut_range(start, end):
                    position += out.write(store.get_range(file.path, start=first, length=last - first).body)
            joiner.add_group([moved[place] for place in range(len(chunks))], row_count=group.row_count)
        if groups:
            out.write(joiner.make_footer({}))
    if not groups:
        path.write_bytes(nothing)
    return sum(group.row_count for group in source.groups)


def _read_source(store: ObjectStore, file: DataFile) -> SourceFile | None:
    """Return what the footer of a file of ours says of its row groups."""
    end = read_end(store, file.path, size_bytes=file.size_bytes)
    if end is None:
        return None
    footer = cut_footer(memoryview(end))
    try:
        source = parse_source(footer, data_bytes=file.size_bytes - len(footer) - TAIL_BYTES)
    except (DamagedFile, CannotCopy):
        return None  # who reads the whole says what it means
    return None if read_origin(source.key_values).kind == "foreign" else source


def _make_pieces(source: SourceFile, file: DataFile, columns: Mapping[str, str]) -> list[Piece]:
    """Return the row groups with what is exactly known of the columns; nothing if they cannot be taken apart."""
    found = {name: leaf for name, leaf in source.leaves.items() if name in columns}
    odd = {name.lower() for name in source.leaves.keys() - found.keys()} & {name.lower() for name in columns}
    if not found or odd:
        return []
    known = {name: kind for name, kind in columns.items() if name in found}
    maker = PieceMaker(known, (), [name for name, kind in known.items() if kind != "DOUBLE"])
    only = SourceFile(found, source.groups, source.key_values, source.created_by, source.has_order)
    try:
        pieces = maker.make_pieces(0, FileMarker(file.path, file.size_bytes, 0), only)
    except DamagedFile:
        return []
    return [] if any(piece.group is None for piece in pieces) else pieces


def _make_test(where: str | None, columns: Mapping[str, str]) -> Callable[[Piece], bool]:
    """Return what tells whether a row group may have a row that fulfils a condition."""
    if where is None:
        return lambda _: True
    pruner = FilePruner(where, TableConfig.create(name="rows"), schema=columns)

    def may_match(piece: Piece) -> bool:
        if piece.facts is None:
            return True
        stats = {
            name: (*((None, None) if low is None else encode_bounds(low, high)), null_count)
            for name, (low, high, null_count) in piece.facts.stats.items()
        }
        return pruner.may_be_true(FileMarker("", piece.size_bytes, 0, row_count=piece.row_count, stats=stats))

    return may_match


def _join_ranges(chunks: Iterable[SourceChunk]) -> list[tuple[int, int]]:
    """Return where the bytes of some columns are, ascending, with what lies between those that are near each other."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted((chunk.start, chunk.end) for chunk in chunks):
        if ranges and start <= ranges[-1][1] + GAP_BYTES:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    return ranges
