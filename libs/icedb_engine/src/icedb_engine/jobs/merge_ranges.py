"""Groups of one partition as one merge, cut by ranges of the sort order instead of by files.

The planner cuts what is to be merged in a partition by files, into groups of the target size. Their outputs all lie
between the lowest and the highest key, so that a reader who looks for one key opens each of them. Here they become one
group, and each range of its rows a unit: outputs are of about the same size, and do not overlap.

Only footers are read here, by our own parser. Cut is what they prove: data files that we wrote, of columns as we write
them, of which each row group says between which tuples it lies. A row group that several ranges touch is decoded by
each of them; where that is more than :data:`READ_FACTOR` the groups stay as they were planned. Rows of one key are
never cut: where most have the same one, that range is larger than the others.

The units' results are checked as one merge: what the footers of all outputs say, as they are in the store, against
those of all inputs (M6).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Self

from icedb_log.errors import NotFound, Unavailable
from icedb_log.jobs import MergedGroup, MergeGroup, MergeJob
from icedb_log.merge.content_check import compare_contents
from icedb_log.merge.merge_policy import MAX_FILES
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import TAIL_BYTES, Footer, read_origin
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore, limit_reads

from icedb_engine.limits import TRANSFER_COUNT, EngineLimits
from icedb_engine.reading.data_files import cut_footer, read_end
from icedb_engine.work import MergeRange, MergeUnit
from icedb_engine.writing.key_ranges import KeyRange, cut_order, encode_key
from icedb_engine.writing.parquet_join import CannotCopy, SourceFile, parse_source
from icedb_engine.writing.part_files import PartLayout, read_contents
from icedb_engine.writing.row_groups import Piece, PieceMaker

READ_FACTOR: Final = 2
"""All ranges together read at most so many times the bytes of the inputs: of files with few row groups each range
decodes nearly all."""


@dataclass(frozen=True, slots=True)
class RangedMerge:
    """One merge whose ranges are units.

    Attributes:
        units: In the order of their ranges; each has the whole group.
        row_count: Rows of the inputs, by their footers.
        inputs: What their footers say.
        columns: Columns that data files may have, with types.
    """

    units: tuple[MergeUnit, ...]
    row_count: int
    inputs: Sequence[Footer | None]
    columns: Mapping[str, str]

    @classmethod
    def plan(cls, job: MergeJob, groups: Sequence[MergeGroup], store: ObjectStore, engine: EngineLimits) -> Self | None:
        """Plan the merge of some groups of one partition; ``None``: it is better done as they are.

        Raises:
            Unavailable: The store did not answer.
        """
        config = job.config
        markers = sorted((marker for group in groups for marker in group.inputs), key=lambda marker: marker.path)
        whole = MergeGroup(groups[0].partition, tuple(markers))
        columns = {**job.schema, **config.find_hidden(job.schema)}
        with ThreadPoolExecutor(limit_reads(store, TRANSFER_COUNT), thread_name_prefix="icedb-footers") as pool:
            found = list(pool.map(lambda marker: _read_source(store, marker, columns), markers))
        sources = [each[0] for each in found if each is not None]
        if len(sources) < len(found):
            return None
        unit = MergeUnit.of(job, engine, group=whole)
        names = tuple(name for name in columns if any(name in source.leaves for source in sources))
        layout = PartLayout(unit, names, (whole.partition,), "merge")
        maker = PieceMaker({name: columns[name] for name in names}, layout.sort_columns, layout.stats_columns)
        pieces = _make_pieces(maker, markers, sources)
        count = max(2, -(-whole.size_bytes // config.target_file_bytes))
        ranges = cut_order(maker.sort, [(piece.span, piece.size_bytes) for piece in pieces], count=count)
        touching = [[piece for piece in pieces if each.touches(piece.span)] for each in ranges]
        total_bytes = sum(piece.size_bytes for piece in pieces)
        read_bytes = sum(piece.size_bytes for touched in touching for piece in touched)
        if len(ranges) == 1 or read_bytes > READ_FACTOR * total_bytes:
            return None
        told = [_tell(each, touched, names) for each, touched in zip(ranges, touching, strict=True)]
        if any(sum(markers[place].size_bytes for place in each.places) > engine.scratch_bytes for each in told):
            return None
        units = [replace(unit, range=each) for each in told]
        row_count = sum(piece.row_count for piece in pieces)
        return cls(tuple(units), row_count, [each[1] for each in found if each is not None], columns)

    @property
    def partition(self) -> str:
        """Of all of its data files."""
        return self.units[0].group.partition

    def unite(self, results: Iterable[MergedGroup], store: ObjectStore) -> MergedGroup:
        """Return what became of the group, with what the footers of all outputs prove.

        Raises:
            Unavailable: The store did not answer, or has not what was written.
        """
        done = list(results)
        outputs = tuple(marker for each in done for marker in each.outputs)
        try:
            after = [_read_contents(_read_footer(store, marker), marker, self.columns) for marker in outputs]
        except (DamagedFile, NotFound) as error:
            name = self.units[0].paths.name
            raise Unavailable(f"table {name}: an output of a merge is not as it was written: {error}") from error
        return MergedGroup(
            self.units[0].group,
            outputs,
            self.row_count,
            contents=compare_contents(self.inputs, after, self.columns),
            copied_bytes=sum(each.copied_bytes for each in done),
            rows_decoded=sum(each.rows_decoded for each in done),
            misfit_count=sum(each.misfit_count for each in done),
        )


def are_worth_a_cut(job: MergeJob, groups: Sequence[MergeGroup]) -> bool:
    """Return whether some groups of one partition may be better merged as one, as far as the log tells."""
    config, markers = job.config, [marker for group in groups for marker in group.inputs]
    lacks_promoted = any(marker.promoted_count < config.count_promoted() for marker in markers)  # S4: each by itself
    is_large = sum(group.size_bytes for group in groups) >= config.target_file_bytes
    is_sorted = bool(config.sort) and not lacks_promoted
    return len(groups) > 1 and is_sorted and is_large and len(markers) <= MAX_FILES


def _read_source(
    store: ObjectStore, marker: FileMarker, columns: Collection[str]
) -> tuple[SourceFile, Footer | None] | None:
    """Return what a footer says of row groups, and of columns; ``None``: there is none that this can cut."""
    try:
        footer = _read_footer(store, marker)
        source = parse_source(footer, data_bytes=marker.size_bytes - len(footer) - TAIL_BYTES)
    except (DamagedFile, CannotCopy, NotFound):
        return None  # the task says what it means
    is_foreign = read_origin(source.key_values).kind == "foreign"
    return None if is_foreign else (source, _read_contents(footer, marker, columns))


def _read_footer(store: ObjectStore, marker: FileMarker) -> bytes:
    end = read_end(store, marker.path, size_bytes=marker.size_bytes)
    if end is None:
        raise DamagedFile("it has another size than the log says")
    return cut_footer(memoryview(end))


def _read_contents(footer: bytes, marker: FileMarker, columns: Collection[str]) -> Footer | None:
    return read_contents(footer, ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms), columns)


def _make_pieces(maker: PieceMaker, markers: Iterable[FileMarker], sources: Iterable[SourceFile]) -> list[Piece]:
    """Return the row groups of all files; nothing if one of them cannot be cut."""
    pieces: list[Piece] = []
    for place, (marker, source) in enumerate(zip(markers, sources, strict=True)):
        try:
            pieces += maker.make_pieces(place, marker, source)
        except DamagedFile:
            return []
    return [] if any(piece.group is None for piece in pieces) else pieces


def _tell(each: KeyRange, touched: Iterable[Piece], columns: tuple[str, ...]) -> MergeRange:
    places = tuple(sorted({piece.file for piece in touched}))
    return MergeRange(by=each.by, low=encode_key(each.low), high=encode_key(each.high), places=places, columns=columns)
