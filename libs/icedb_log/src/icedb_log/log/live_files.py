"""The live data files of a table in little memory, and their change from one read of the log to the next.

Files are held as locations of their markers (:mod:`icedb_log.log.compact_markers`), ascending by path, in chunks of one
partition each. A commit makes new chunks only where its files lie; all others, and whatever was made of them
(:attr:`LiveChunk.made`), go over to the next snapshot. So a refresh costs what has changed, not what is there.
"""

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, overload

from icedb_log.log.compact_markers import CompactMarkers, split_location
from icedb_log.model import FileMarker

CHUNK_FILES: Final = 256
"""Files of a chunk when it is made; it is made anew when it has twice as many."""
_DIGEST_BYTES: Final = 16
_DIGEST_SPACE: Final = 1 << (8 * _DIGEST_BYTES)

Sources = dict[int, CompactMarkers]
"""Markers by their number. Those that follow each other by changes share one, which only grows."""


def path_digest(path: bytes) -> int:
    """Return the share of a file in its snapshot's id; :func:`sum_digests` adds shares up, whatever their order."""
    return int.from_bytes(hashlib.blake2b(path, digest_size=_DIGEST_BYTES).digest())


def sum_digests(digests: Iterable[int]) -> int:
    """Return the sum of the shares of files."""
    return sum(digests) % _DIGEST_SPACE


@dataclass(frozen=True, slots=True, eq=False)
class LiveChunk:
    """Some live data files of one partition, ascending by path.

    Attributes:
        prefix: What their paths begin with, up to the last slash.
        locations: Where their markers are.
        sources: The markers.
        first: The first path.
        size_bytes: Their bytes.
        row_count: Their rows; ``None`` when some file does not say.
        digest: Sum of the shares in the snapshot's id.
        made: What readers made of this chunk and want to have again, by a name of theirs.
    """

    prefix: bytes
    locations: "array[int]"
    sources: Sources
    first: bytes
    size_bytes: int
    row_count: int | None
    digest: int
    made: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.locations)

    def path(self, index: int) -> bytes:
        """Return the path of a file."""
        number, at = split_location(self.locations[index])
        return self.sources[number].path(at)

    def marker(self, index: int) -> FileMarker:
        """Return the marker of a file, decoded now."""
        number, at = split_location(self.locations[index])
        return self.sources[number][at]

    def file_size_bytes(self, index: int) -> int:
        """Return the size of a file, without decoding its marker."""
        number, at = split_location(self.locations[index])
        return self.sources[number].sizes[at]

    def file_row_count(self, index: int) -> int | None:
        """Return the rows of a file, without decoding its marker; ``None`` if its writer did not say."""
        number, at = split_location(self.locations[index])
        return self.sources[number].row_count(at)

    def file_created_ms(self, index: int) -> int:
        """Return when a file was made, without decoding its marker."""
        number, at = split_location(self.locations[index])
        return self.sources[number].created[at]

    def paths(self) -> list[bytes]:
        """Return all paths."""
        return [self.path(index) for index in range(len(self.locations))]

    def is_same(self, other: "LiveChunk") -> bool:
        """Whether it says the same of the same files, wherever their markers are."""
        mine = (self.digest, len(self), self.size_bytes, self.row_count, self.first)
        return mine == (other.digest, len(other), other.size_bytes, other.row_count, other.first)


class LiveFiles(Sequence[FileMarker]):
    """All live data files of a table, ascending by path. Immutable.

    Args:
        chunks: Ascending by path.
        sources: The markers that their locations are in.
    """

    def __init__(self, chunks: Iterable[LiveChunk] = (), sources: "Sources | None" = None) -> None:
        self.chunks: Final = tuple(chunks)
        self.sources: Final[Sources] = {} if sources is None else sources

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(chunk) for chunk in self.chunks))

    @cached_property
    def _firsts(self) -> list[bytes]:
        return [chunk.first for chunk in self.chunks]

    @cached_property
    def digest(self) -> int:
        """Sum of the shares in the snapshot's id."""
        return sum_digests(chunk.digest for chunk in self.chunks)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @cached_property
    def row_count(self) -> int | None:
        """Rows of all files; ``None`` when some file does not say."""
        return sum_rows(chunk.row_count for chunk in self.chunks)

    @cached_property
    def partition_count(self) -> int:
        """Partitions that have a file."""
        return len({chunk.prefix for chunk in self.chunks})

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> FileMarker: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FileMarker, ...]: ...

    def __getitem__(self, index: int | slice) -> FileMarker | tuple[FileMarker, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        which = bisect_right(self._ends, at)
        chunk = self.chunks[which]
        return chunk.marker(at - (self._ends[which] - len(chunk)))

    def __iter__(self) -> Iterator[FileMarker]:
        return (chunk.marker(index) for chunk in self.chunks for index in range(len(chunk)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or (len(self) == len(other) and tuple(self) == tuple(other))

    __hash__ = None  # type: ignore[assignment]  # compared by content, as the tuple that it stands for

    def find(self, path: bytes) -> int | None:
        """Return the location of a file's marker; ``None`` if it is not live."""
        which = self._chunk_of(path)
        if which is None:
            return None
        chunk = self.chunks[which]
        at = bisect_left(range(len(chunk)), path, key=chunk.path)
        return chunk.locations[at] if at < len(chunk) and chunk.path(at) == path else None

    def change(
        self, added: Mapping[bytes, int], removed: Iterable[bytes], markers: Iterable[CompactMarkers]
    ) -> "LiveFiles":
        """Return the files after a change.

        Args:
            added: Location of each file that is live now; one that was live before gets this location.
            removed: Files that are live no more; those that were not are fine.
            markers: What the new locations are in.
        """
        self.sources.update((each.number, each) for each in markers)
        edits: dict[int, dict[bytes, int | None]] = {}
        for path, location in (*((path, None) for path in removed), *added.items()):
            edits.setdefault(self._chunk_of(path) or 0, {})[path] = location
        chunks = list(self.chunks) or [_EMPTY_CHUNK]
        for which in sorted(edits, reverse=True):
            chunk = chunks[which]
            files: dict[bytes, int | None] = dict(zip(chunk.paths(), chunk.locations, strict=True))
            files.update(edits[which])
            kept = sorted((path, location) for path, location in files.items() if location is not None)
            fresh = make_chunks(kept, self.sources)
            # A file beside a chunk, as of a new day, leaves the chunk as it is.
            chunks[which : which + 1] = [chunk if each.locations == chunk.locations else each for each in fresh]
        return LiveFiles((chunk for chunk in chunks if len(chunk)), self.sources)

    def _chunk_of(self, path: bytes) -> int | None:
        if not self.chunks:
            return None
        return max(0, bisect_right(self._firsts, path) - 1)


def make_chunks(files: Sequence[tuple[bytes, int]], sources: Sources) -> list[LiveChunk]:
    """Cut files into chunks.

    Args:
        files: Path and location, ascending by path, each path once.
        sources: All markers that locations are in.
    """
    chunks: list[LiveChunk] = []
    begin = 0
    while begin < len(files):
        prefix = files[begin][0][: files[begin][0].rfind(b"/") + 1]
        end = begin
        # One partition is mostly in one piece; where folders are nested in it, it is cut by them.
        while end < len(files) and files[end][0].startswith(prefix) and b"/" not in files[end][0][len(prefix) :]:
            end += 1
        pieces = max(1, round((end - begin) / CHUNK_FILES)) if end - begin > 2 * CHUNK_FILES else 1
        cuts = [begin + (end - begin) * piece // pieces for piece in range(pieces + 1)]
        chunks += [_make_chunk(prefix, files[low:high], sources) for low, high in pairwise(cuts)]
        begin = end
    return chunks


def find_all_live(markers: Sequence[CompactMarkers], dead: frozenset[bytes]) -> LiveFiles:
    """Return the live files of log files: listed without a tombstone in one, and with one in none (S1).

    Args:
        markers: Of the log files, ascending by their keys.
        dead: Paths that have a tombstone somewhere.
    """
    sources = {each.number: each for each in markers}
    found: list[tuple[bytes, int]] = []
    for each in markers:
        own_dead = each.dead
        for index in range(len(each)):
            if index not in own_dead and (path := each.path(index)) not in dead:
                found.append((path, each.location(index)))  # noqa: PERF401 - a million of them: no second name for each
    found.sort()
    return LiveFiles(make_chunks(_without_repeats(found, sources), sources), sources)


def reuse_chunks(fresh: LiveFiles, known: LiveFiles) -> LiveFiles:
    """Let chunks of a full fold have what was made of the same files before."""
    by_first = {chunk.first: chunk for chunk in known.chunks}
    for chunk in fresh.chunks:
        before = by_first.get(chunk.first)
        if before is not None and _is_shared(chunk, before):
            chunk.made.update(before.made)
    return fresh


def subtract_files(live: LiveFiles, other: LiveFiles) -> LiveFiles:
    """Return the files of ``live`` that ``other`` does not have. Chunks that both have are not looked into."""
    known = {chunk.first: chunk for chunk in other.chunks}
    ours = [chunk for chunk in live.chunks if not _is_shared(chunk, known.get(chunk.first))]
    firsts = {chunk.first: chunk for chunk in live.chunks}
    # A file of a shared chunk is in both, and in no other chunk of either.
    theirs = {path for c in other.chunks if not _is_shared(c, firsts.get(c.first)) for path in c.paths()}
    files = [
        (path, location)
        for chunk in ours
        for path, location in zip(chunk.paths(), chunk.locations, strict=True)
        if path not in theirs
    ]
    return LiveFiles(make_chunks(files, live.sources), live.sources)


def sum_rows(counts: Iterable[int | None]) -> int | None:
    """Return a sum of row counts; ``None`` when one of them is not known."""
    total = 0
    for rows in counts:
        if rows is None:
            return None
        total += rows
    return total


def _is_shared(chunk: LiveChunk, other: LiveChunk | None) -> bool:
    return other is not None and (other is chunk or other.is_same(chunk))


def _without_repeats(files: list[tuple[bytes, int]], sources: Sources) -> list[tuple[bytes, int]]:
    """Keep one marker of each file, the first that says how many rows it has; sorts nothing anew."""
    if all(one[0] != other[0] for one, other in pairwise(files)):
        return files
    order = {number: at for at, number in enumerate(sources)}
    best: dict[bytes, int] = {}
    for path, location in files:
        known = best.get(path)
        best[path] = location if known is None else min(known, location, key=lambda each: _rank(each, sources, order))
    return list(best.items())


def _rank(location: int, sources: Sources, order: Mapping[int, int]) -> tuple[bool, int]:
    number, at = split_location(location)
    return sources[number].row_count(at) is None, order[number]


def _make_chunk(prefix: bytes, files: Sequence[tuple[bytes, int]], sources: Sources) -> LiveChunk:
    size_bytes, row_count = 0, 0
    says_rows = True
    for _, location in files:
        number, at = split_location(location)
        source = sources[number]
        size_bytes += source.sizes[at]
        rows = source.row_count(at)
        says_rows = says_rows and rows is not None
        row_count += rows or 0
    return LiveChunk(
        prefix=prefix,
        locations=array("Q", (location for _, location in files)),
        sources=sources,
        first=files[0][0],
        size_bytes=size_bytes,
        row_count=row_count if says_rows else None,
        digest=sum_digests(path_digest(path) for path, _ in files),
    )


_EMPTY_CHUNK: Final = LiveChunk(b"", array("Q"), {}, b"", 0, 0, 0)
