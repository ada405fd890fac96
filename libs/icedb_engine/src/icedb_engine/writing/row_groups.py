"""Which row groups a merge copies as bytes, and which it sorts together. Pure: footers in, runs out.

The unit is the row group. One that overlaps no other in the sort order is copied; those that overlap are sorted
together; small ones are put together with their neighbours, or files would stay chopped for ever. In a table without a
sort order nothing overlaps. A few late rows, which writers put into a row group of their own, would make all overlap
that they reach back over: where most can be copied but for these, they are sorted apart, into a file of their own.

Copied is only what is proven, and what is not proven is decoded: that columns are stored as ours are, that rows are
sorted (ours alone say so truly: whoever imports a file has checked nothing), between which tuples they lie, and all
that the log will say of them. What footer and log say of the same thing has to be the same.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final

from icedb_log.model import ColumnStats, FileMarker
from icedb_log.parquet.footer import read_origin
from icedb_log.parquet.schema import Leaf
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.decimals import find_decimal
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.units import MIB

from icedb_engine.writing.key_ranges import KeyRange
from icedb_engine.writing.parquet_join import ChunkBounds, SourceFile, SourceGroup
from icedb_engine.writing.sort_keys import (
    NAN,
    NULL,
    Key,
    Span,
    Tuples,
    as_value,
    decode_bound,
    decode_order,
    make_key,
    make_place,
    span_of_bounds,
    span_of_stats,
)

SMALL_SHARE: Final = 8
"""A row group of fewer than the configured rows / this is rewritten, together with its neighbours: each costs an engine
that reads from S3 a request for each column. Larger ones are copied, for that is several times cheaper."""
LARGE_BYTES: Final = 4 * MIB
"""One of so many bytes is large, whatever its rows."""
LATE_FILES: Final = 4
LATE_SHARE: Final = 8
"""Of so many files or more at most one in so many rows is sorted apart from the others, as late."""
RUN_BYTES: Final = 64 * MIB
"""Row groups that do not overlap are sorted together up to this size, for each sort has a cost of its own."""

DICTIONARIES_KEY: Final = "icedb.dictionaries"
EXACT: Final = "exact"
"""What a footer says if no dictionary of a row group holds a value that none of its rows has: after a deletion there
would be one of a row that has gone."""

_STORED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "BIGINT": (("INT64", ""), ("INT64", "INT")),
    "BOOLEAN": (("BOOLEAN", ""),),
    "DATE": (("INT32", "DATE"),),
    "DOUBLE": (("DOUBLE", ""),),
    "TIMESTAMP": (("INT64", "TIMESTAMP microseconds"),),
    "VARCHAR": (("BYTE_ARRAY", "STRING"),),
}
"""Physical and logical type in words of a column as we write it; of integers with their bits, too. Not of decimals."""
_OLD_WRITERS: Final = {"parquet-mr": (1, 10), "parquet-cpp": (5, 0), "parquet-cpp-arrow": (5, 0)}
"""Older ones have statistics in a wrong order, or pages that only readers who know them read rightly: decoded."""
_WRITER: Final = re.compile(r"(?P<name>[a-z-]+) version (?P<major>[0-9]{1,6})\.(?P<minor>[0-9]{1,6})")
_WIDENABLE: Final = {"BIGINT": (-EXACT_DOUBLE_MAX, EXACT_DOUBLE_MAX), "DATE": (-719_162, 2_932_896)}
"""Columns that may become wider, and between which bounds no value changes then (S2): days are those of the calendar,
0001-01-01 to 9999-12-31."""


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What the log and the new footer say of a row group that is copied.

    Nothing of it comes from the marker of its file, which speaks of all rows: those beside it may just be deleted.

    Attributes:
        stats: Column to lowest and highest value and number of nulls.
        inexact: Columns of which some value would change if they became wider (S2).
        tuples: First and last tuple of the outputs' sort columns; ``None``: not known exactly.
        has_exact_dictionaries: Whether the file says so (:data:`DICTIONARIES_KEY`).
    """

    stats: Mapping[str, tuple[Any, Any, int]]
    inexact: tuple[str, ...]
    tuples: Tuples | None
    has_exact_dictionaries: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of an input, or a whole input.

    Attributes:
        file: Place of the input in its group.
        group: Number of the row group; ``None``: the whole file.
        row_count: Rows.
        size_bytes: Bytes as stored.
        span: Where in the sort order its rows lie.
        facts: ``None``: it has to be decoded.
        kept: Which of its rows count; ``None``: all.
    """

    file: int
    group: int | None
    row_count: int
    size_bytes: int
    span: Span
    facts: CopyFacts | None = None
    kept: KeyRange | None = None

    def cut(self, kept: KeyRange) -> "Piece":
        """Return it with the rows of a range alone: one that has others, too, is decoded."""
        return self if kept.holds(self.span) else replace(self, facts=None, span=kept.clip(self.span), kept=kept)


@dataclass(frozen=True, slots=True)
class Run:
    """What is written before the next run begins: one piece that is copied, or pieces that are sorted together.

    Attributes:
        pieces: At least one.
        is_copied: Whether it is copied.
        is_late: Whether its rows go into a file of their own, for they lie between those of the runs before it.
    """

    pieces: tuple[Piece, ...]
    is_copied: bool
    is_late: bool = False

    @property
    def row_count(self) -> int:
        """Rows of all pieces."""
        return sum(piece.row_count for piece in self.pieces)

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size_bytes for piece in self.pieces)

    def plus(self, other: "Run") -> "Run":
        """Return a run that sorts both."""
        return Run(self.pieces + other.pieces, is_copied=False)


_IsSmall = Callable[[Run | Piece], bool]


def min_rows(row_group_rows: int) -> int:
    """Return below how many rows a row group of few bytes is small."""
    return row_group_rows // SMALL_SHARE


def plan_runs(pieces: Iterable[Piece], *, row_group_rows: int) -> tuple[Run, ...]:
    """Cut the pieces of a group into runs, in the order in which they are written.

    A row of a run never sorts after one of a later run, unless that is late; a piece that is copied has the only rows
    between two places, but for late ones.

    Args:
        pieces: All of them, once.
        row_group_rows: Rows of a row group by the table's configuration.
    """
    few_rows = min_rows(row_group_rows)

    def is_small(each: Run | Piece) -> bool:
        return each.row_count < few_rows and each.size_bytes < LARGE_BYTES

    ordered = sorted(
        (piece for piece in pieces if piece.row_count),
        key=lambda piece: (piece.span.low, piece.span.high, piece.facts is None or is_small(piece)),
    )
    runs = _plan(ordered, is_small)
    late = _find_late(ordered, is_small)
    if not late:
        return runs
    late_ids = set(map(id, late))
    without = _plan([piece for piece in ordered if id(piece) not in late_ids], is_small)
    copied_rows = _count_copied(without)
    if 2 * copied_rows < sum(piece.row_count for piece in ordered) or copied_rows < 2 * _count_copied(runs):
        return runs
    return (*without, Run(tuple(late), is_copied=False, is_late=True))


def _count_copied(runs: Iterable[Run]) -> int:
    return sum(run.row_count for run in runs if run.is_copied)


def _find_late(ordered: Sequence[Piece], is_small: _IsSmall) -> list[Piece]:
    """Return the small pieces, if one lies among those that could be copied without it; of many files, if they are few.

    A merge makes few files of many: it does not leave two of three, and what it has left becomes one the next time.
    """
    if len({piece.file for piece in ordered}) < LATE_FILES:
        return []
    spans = [piece.span for piece in ordered if piece.facts is not None and not is_small(piece)]
    lows = [span.low for span in spans]
    highs = list(accumulate((span.high for span in spans), max))

    def is_late(piece: Piece) -> bool:
        count = bisect_left(lows, piece.span.high)
        return count > 0 and highs[count - 1] > piece.span.low

    small = [piece for piece in ordered if is_small(piece)]
    is_few = LATE_SHARE * sum(piece.row_count for piece in small) <= sum(piece.row_count for piece in ordered)
    return small if is_few and any(map(is_late, small)) else []


def _plan(ordered: Iterable[Piece], is_small: _IsSmall) -> tuple[Run, ...]:
    overlapping: list[list[Piece]] = []
    high: Key = ()
    for piece in ordered:
        if not overlapping or piece.span.low >= high:
            overlapping.append([])
        overlapping[-1].append(piece)
        high = max(high, piece.span.high)
    runs = [
        Run(tuple(found), is_copied=len(found) == 1 and found[0].facts is not None and not is_small(found[0]))
        for found in overlapping
    ]
    return tuple(_absorb(_join(runs), is_small))


def _join(runs: Iterable[Run]) -> list[Run]:
    """Return the runs, those that are sorted together with the next one while they are not too large."""
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last is None or run.is_copied or last.is_copied or last.size_bytes + run.size_bytes > RUN_BYTES:
            joined.append(run)
        else:
            joined[-1] = last.plus(run)
    return joined


def _absorb(runs: list[Run], is_small: _IsSmall) -> list[Run]:
    """Return the runs, a small one that stands alone together with the smaller one of its neighbours."""
    done: list[Run] = []
    waiting = runs[::-1]
    while waiting:
        run = waiting.pop()
        before, after = done[-1] if done else None, waiting[-1] if waiting else None
        neighbours = [each for each in (before, after) if each is not None]
        if run.is_copied or not is_small(run) or not neighbours or not all(each.is_copied for each in neighbours):
            done.append(run)
        elif min(neighbours, key=lambda each: each.size_bytes) is before:
            done[-1] = done[-1].plus(run)
        else:
            waiting[-1] = run.plus(waiting[-1])
    return _join(done)


@dataclass(frozen=True, slots=True)
class PieceMaker:
    """Tells of the row groups of an input whether they can be copied.

    Attributes:
        columns: Columns of the outputs, with types.
        sort: Those by which the outputs are sorted.
        stats_columns: Those of which the log has statistics.
    """

    columns: Mapping[str, str]
    sort: Sequence[str]
    stats_columns: Sequence[str]
    _nothing: Span = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_nothing", Span.anywhere(len(self.sort)))

    def make_whole(self, file: int, marker: FileMarker, names: Collection[str] | None, *, row_count: int) -> Piece:
        """Return the piece of an input that is decoded as a whole; of its columns, if they are known."""
        span = self._nothing
        if self.sort:
            first = self.sort[0]
            lacks_first = names is not None and first not in names
            stats = (None, None, row_count) if lacks_first else marker.stats.get(first)
            span = span_of_stats(stats, self.columns[first], row_count, len(self.sort))
        return Piece(file, None, row_count, marker.size_bytes, span)

    def make_pieces(self, file: int, marker: FileMarker, source: SourceFile) -> list[Piece]:
        """Return the pieces of an input whose footer was parsed: its row groups, or the whole of it.

        Raises:
            DamagedFile: Its statistics cannot be read.
        """
        row_count = sum(group.row_count for group in source.groups)
        if not self._is_stored_alike(source.leaves) or _is_old(source.created_by) or not source.has_order:
            return [self.make_whole(file, marker, source.leaves, row_count=row_count)]
        sort = tuple(name for name in self.sort if name in source.leaves)
        is_ours = read_origin(source.key_values).kind != "foreign"
        tuples = decode_order(source.key_values, sort, self.columns, group_count=len(source.groups))
        is_exact = is_ours and source.key_values.get(DICTIONARIES_KEY) == EXACT
        pieces: list[Piece] = []
        for number, group in enumerate(source.groups):
            if not group.row_count:
                continue
            found = tuples[number] if is_ours else None
            known = None if found is None else (self._spread(found[0], sort), self._spread(found[1], sort))
            is_sorted = not sort or (is_ours and group.sorted_by == sort)
            piece = self._make_piece(file, number, group, marker, known, is_sorted=is_sorted)
            if is_exact and piece.facts is not None:
                piece = replace(piece, facts=replace(piece.facts, has_exact_dictionaries=True))
            pieces.append(piece)
        if not self._agrees(marker, pieces, row_count):
            return [replace(piece, facts=None, span=self._nothing) for piece in pieces]
        return pieces

    def _spread(self, values: Sequence[Any], sort: Sequence[str]) -> list[Any]:
        """Return a tuple of an input's sort columns as one of the outputs'."""
        found = dict(zip(sort, values, strict=True))
        return [found.get(name) for name in self.sort]

    def _is_stored_alike(self, leaves: Mapping[str, Leaf]) -> bool:
        """Return whether columns are as we write them, and whether all outputs' are such as we write."""
        return all(map(_find_stored, self.columns.values())) and all(
            (leaf.physical, leaf.kind, leaf.length) in _find_stored(self.columns.get(name, "")) and not leaf.is_required
            for name, leaf in leaves.items()
        )

    def _make_piece(
        self,
        file: int,
        number: int,
        group: SourceGroup,
        marker: FileMarker,
        tuples: Tuples | None,
        *,
        is_sorted: bool,
    ) -> Piece:
        span = self._find_span(group, tuples)
        if span is None:  # footers that contradict themselves prove nothing
            return Piece(file, number, group.row_count, group.size_bytes, self._nothing)
        facts = self._find_facts(group, marker, tuples) if is_sorted else None
        return Piece(file, number, group.row_count, group.size_bytes, span, facts)

    def _find_span(self, group: SourceGroup, tuples: Tuples | None) -> Span | None:
        """Return where the rows of a row group lie; ``None``: tuples and statistics say different things."""
        if not self.sort:
            return self._nothing
        first, rows, width = self.sort[0], group.row_count, len(self.sort)
        kind, chunk = self.columns[first], group.chunks.get(first)
        if tuples is None:
            return (
                Span.of_first(NULL, NULL, width)
                if chunk is None
                else span_of_bounds(chunk.read_bounds(), kind, rows, width)
            )
        low, high = map(make_key, tuples)
        if low > high or (chunk is not None and not _fits(chunk.read_bounds(), kind, rows, low[0], high[0])):
            return None
        return Span(low, high)

    def _find_facts(self, group: SourceGroup, marker: FileMarker, tuples: Tuples | None) -> CopyFacts | None:
        """Return what the log will say of a row group; ``None`` if that is not exactly known."""
        stats: dict[str, tuple[Any, Any, int]] = {}
        inexact: list[str] = []
        for name, kind in self.columns.items():
            chunk = group.chunks.get(name)
            is_wanted = name in self.stats_columns
            if chunk is None:
                stats[name] = (None, None, group.row_count)
            elif is_wanted or kind in _WIDENABLE:
                bounds = chunk.read_bounds()
                found = _read_exactly(bounds, kind, group.row_count)
                if found is None or (is_wanted and not _is_certain(bounds, kind, marker.stats.get(name))):
                    return None
                low, high = found
                if kind in _WIDENABLE and low is not None:
                    least, most = _WIDENABLE[kind]
                    inexact += [] if least <= low <= high <= most else [name]
                if is_wanted:
                    try:
                        stats[name] = (as_value(low, kind), as_value(high, kind), bounds.null_count or 0)
                    except OverflowError:
                        return None
        return CopyFacts(stats, tuple(inexact), tuples)

    def _agrees(self, marker: FileMarker, pieces: Sequence[Piece], row_count: int) -> bool:
        """Return whether the log says of the whole file what its footer says, as far as all row groups are known."""
        if marker.row_count is not None and marker.row_count != row_count:
            return True  # M: not ours to judge: parity of rows stops the commit
        found = [piece.facts.stats for piece in pieces if piece.facts is not None]
        if len(found) != len(pieces):
            return True
        for name in self.stats_columns:
            told = marker.stats.get(name)
            known = [each[name] for each in found if name in each]
            if told is None or len(known) != len(found):
                continue
            if told[2] is not None and told[2] != sum(nulls for _, _, nulls in known):
                return False
            bounded = [(low, high) for low, high, _ in known if low is not None]
            if told[0] is not None and bounded:
                low, high = min(low for low, _ in bounded), max(high for _, high in bounded)
                if encode_bounds(low, high) != (told[0], told[1]):
                    return False
        return True


def _find_stored(kind: str) -> tuple[tuple[str, str, int], ...]:
    """Return as what a column is stored where it is as we write it: physical type, logical one, bytes of a value."""
    digits = find_decimal(kind)
    if digits is None:
        return tuple((physical, logical, 0) for physical, logical in _STORED.get(kind, ()))
    bits = (10**digits.precision - 1).bit_length() + 1
    return ((digits.physical, kind, -(-bits // 8) if digits.physical == "FIXED_LEN_BYTE_ARRAY" else 0),)


def _read_exactly(bounds: ChunkBounds, kind: str, row_count: int) -> tuple[Any, Any] | None:
    """Return lowest and highest value of a column, as stored, both ``None`` if all are null; ``None`` if not said."""
    if bounds.null_count == row_count:
        return None, None
    low, high = decode_bound(bounds.low, kind), decode_bound(bounds.high, kind)
    return None if low is None or high is None or low > high else (low, high)


def _is_certain(bounds: ChunkBounds, kind: str, told: ColumnStats | None) -> bool:
    """Return whether nulls and bounds are exactly known. Of NaN only the log knows: it has no bounds then."""
    if bounds.null_count is None or (kind == "VARCHAR" and bounds.low is not None and not bounds.is_exact):
        return False
    return kind != "DOUBLE" or bounds.low is None or (told is not None and told[0] is not None)


def _fits(bounds: ChunkBounds, kind: str, row_count: int, low: tuple[Any, ...], high: tuple[Any, ...]) -> bool:
    """Return whether the first and last place of sorted rows are those that statistics have, if they have any."""
    if bounds.null_count == row_count:
        return low == high == NULL
    least, most = decode_bound(bounds.low, kind), decode_bound(bounds.high, kind)
    if bounds.null_count is None or least is None or most is None or (kind == "VARCHAR" and not bounds.is_exact):
        return True
    if bounds.null_count:
        return low == make_place(least) and high == NULL
    return low == make_place(least) and high in (make_place(most), *((NAN,) if kind == "DOUBLE" else ()))


def _is_old(created_by: str) -> bool:
    found = _WRITER.match(created_by)
    oldest = None if found is None else _OLD_WRITERS.get(found["name"])
    return found is not None and oldest is not None and (int(found["major"]), int(found["minor"])) < oldest
