"""The data files of a table in little memory, and which of them are live (rule S1). Immutable.

Files are held as locations of their markers (:mod:`icedb_log.log.markers`), ascending by path, in chunks of one
partition each. A commit makes new chunks only where its files lie (:mod:`icedb_log.log.state`); all others, and
whatever was made of them (:attr:`LiveChunk.made`), go over to the next snapshot.
"""

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, islice, pairwise, repeat
from operator import attrgetter, eq, itemgetter
from typing import Any, Final, TypeVar

from icedb_log.log.markers import INDEX_BITS, INDEX_MASK, Entry, Markers, MarkerSequence
from icedb_log.model import FileMarker
from icedb_log.table.promoted_paths import MAX_PROMOTED

CHUNK_FILES: Final = 256
"""Markers of a chunk when it is made; it is cut when it has twice as many."""
_DIGEST: Final = "digest"
_DIGEST_BYTES: Final = 16
_DIGEST_SPACE: Final = 1 << (8 * _DIGEST_BYTES)

_Made = TypeVar("_Made")


def is_live(live_count: int, dead_count: int) -> bool:
    """Whether a data file is live that is listed so often as live, and so often as dead (S1: a tombstone wins)."""
    return live_count > 0 and not dead_count


@dataclass(slots=True)
class Named:
    """What log files say of one data file.

    Attributes:
        live_in: How often they list it as live, and
        dead_in: as dead.
        held_live: The same of those log files alone that are not dead themselves.
        held_dead: The same.
    """

    live_in: int = 0
    dead_in: int = 0
    held_live: int = 0
    held_dead: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it is live (S1)."""
        return is_live(self.live_in, self.dead_in)

    @property
    def is_inconsistent(self) -> bool:
        """Whether the log files that are not dead say something else than all together."""
        return is_live(self.held_live, self.held_dead) != self.is_live


class LiveChunk:
    """Some data files of one partition, ascending by path. What was not asked for yet is worked out then.

    Args:
        prefix: What their paths begin with, up to the last slash.
        entries: All that log files say of them, ascending by path.
        sources: The markers that these are in, by number.
        dead_logs: Numbers of the markers of log files that are dead themselves.

    Attributes:
        entries: Locations of all markers, of the dead and of those that say the same once more, too.
        live: Location of one marker of each live file.
        first: Path of the first entry.
        inconsistent: Paths of the files that would be live, or dead, otherwise if the dead log files were deleted.
        stale: Locations of the markers, in log files that are not dead, that list a dead file as live.
        made: What readers made of this chunk and want to have again, by a name of theirs.
    """

    __slots__ = (
        "_by_path",
        "dead_logs",
        "entries",
        "first",
        "inconsistent",
        "live",
        "made",
        "prefix",
        "sources",
        "stale",
    )

    def __init__(
        self, prefix: str, entries: Sequence[Entry], sources: Mapping[int, Markers], dead_logs: AbstractSet[int]
    ) -> None:
        self.prefix: Final = prefix
        # A string of its own: one of those that are sorted would keep the memory of all of them from being given back.
        self.first: Final = prefix + entries[0][0][len(prefix) :]
        self.entries: Final = array("Q", map(itemgetter(1), entries))
        numbers = {min(self.entries) >> INDEX_BITS, max(self.entries) >> INDEX_BITS}  # mostly one
        if len(numbers) > 1:
            numbers = {location >> INDEX_BITS for location in self.entries}
        self.sources: Final = {number: sources[number] for number in numbers}
        self.dead_logs: Final = frozenset(dead_logs & numbers)
        self.made: dict[str, Any] = {}
        self._by_path: dict[str, list[int]] | None = None
        self.live, self.inconsistent, self.stale = self._judge(entries)

    def _judge(self, entries: Sequence[Entry]) -> tuple["array[int]", Sequence[str], Sequence[int]]:
        """Return where the markers of live files are, which files are inconsistent, and which markers are stale."""
        dead = {number: source.dead for number, source in self.sources.items()}
        paths = list(map(itemgetter(0), entries))
        is_single = not any(map(eq, paths, islice(paths, 1, None)))
        if is_single and not self.dead_logs:  # mostly: nothing twice, and nothing inconsistent
            if not any(dead.values()):
                return self.entries, (), ()
            # S1, as is_live() has it of what is said once: live if that is no tombstone. There may be a million.
            return array("Q", [at for at in self.entries if at & INDEX_MASK not in dead[at >> INDEX_BITS]]), (), ()
        live = array("Q")
        inconsistent: list[str] = []
        stale: list[int] = []
        at, count = 0, len(entries)
        while at < count:
            path, location = entries[at]
            begin, at = at, at + 1
            while at < count and entries[at][0] == path:
                at += 1
            if at == begin + 1:  # said once: judged at once, as there may be a million of them
                if is_live(1, location & INDEX_MASK in dead[location >> INDEX_BITS]):
                    live.append(location)
                    if location >> INDEX_BITS in self.dead_logs:
                        inconsistent.append(path)
                continue
            locations = [each for _, each in entries[begin:at]]
            named = self.count(locations)
            if named.is_live:
                live.append(max(locations, key=self._rank))
            else:
                stale += filter(self._is_held_live, locations)
            if named.is_inconsistent:
                inconsistent.append(path)
        return live, inconsistent, stale

    def _is_held_live(self, location: int) -> bool:
        """Whether a marker lists a file as live, in a log file that is not dead."""
        number = location >> INDEX_BITS
        return location & INDEX_MASK not in self.sources[number].dead and number not in self.dead_logs

    def count(self, locations: Iterable[int]) -> Named:
        """Return what is said of a file that is named at some locations, and nowhere else."""
        named = Named()
        for location in locations:
            number = location >> INDEX_BITS
            is_held = number not in self.dead_logs
            if location & INDEX_MASK in self.sources[number].dead:
                named.dead_in += 1
                named.held_dead += is_held
            else:
                named.live_in += 1
                named.held_live += is_held
        return named

    def _rank(self, location: int) -> tuple[bool, str, int]:
        """Of two markers the one with a row count, else the newest: a rebuild may have corrected it."""
        source, at = self.sources[location >> INDEX_BITS], location & INDEX_MASK
        return source.row_count(at) is not None, source.key, at

    def __len__(self) -> int:
        return len(self.live)

    def at(self, index: int) -> tuple[Markers, int]:
        """Return where the marker of a live file is: in which markers, and its index there."""
        location = self.live[index]
        return self.sources[location >> INDEX_BITS], location & INDEX_MASK

    def path(self, index: int) -> str:
        """Return the path of a live file."""
        markers, at = self.at(index)
        return markers.path(at)

    def marker(self, index: int) -> FileMarker:
        """Return the marker of a live file, decoded now if it is held as a line."""
        markers, at = self.at(index)
        return markers.marker(at)

    def size_of(self, index: int) -> int:
        """Return the size of a live file, bytes."""
        markers, at = self.at(index)
        return markers.size_bytes(at)

    def rows_of(self, index: int) -> int | None:
        """Return the rows of a live file; ``None`` if its writer did not say."""
        markers, at = self.at(index)
        return markers.row_count(at)

    def created_ms(self, index: int) -> int:
        """Return when a live file was made."""
        markers, at = self.at(index)
        return markers.created_ms(at)

    def paths(self) -> list[str]:
        """Return the paths of the live files."""
        return self._ask_all(lambda markers: markers.path)

    def sizes(self) -> list[int]:
        """Return the sizes of the live files, bytes."""
        return self._ask_all(lambda markers: markers.size_bytes)

    def row_counts(self) -> list[int | None]:
        """Return the rows of the live files; ``None`` where the writer did not say."""
        return self._ask_all(lambda markers: markers.row_count)

    def created(self) -> list[int]:
        """Return when the live files were made, unix ms."""
        return self._ask_all(lambda markers: markers.created_ms)

    def promoted_counts(self) -> list[int]:
        """Return how many promoted paths each of the live files has the columns of (S4)."""
        return self._ask_all(lambda markers: markers.promoted_count)

    def _ask_all(self, question: Callable[[Markers], Callable[[int], _Made]]) -> list[_Made]:
        ask = {number: question(markers) for number, markers in self.sources.items()}
        return [ask[each >> INDEX_BITS](each & INDEX_MASK) for each in self.live]

    def said(self) -> list[Entry]:
        """Return path and location of all markers, of the dead, too."""
        sources = self.sources
        return [(sources[each >> INDEX_BITS].path(each & INDEX_MASK), each) for each in self.entries]

    def named_in(self, numbers: AbstractSet[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield each file that one of some markers names, the dead too, with the locations of all that name it."""
        if numbers & self.sources.keys():
            for path, locations in _group(self.said()):
                if any(each >> INDEX_BITS in numbers for each in locations):
                    yield path, locations

    def find(self, path: str) -> int | None:
        """Return the index of a live file; ``None``: it is none."""
        at = bisect_left(range(len(self)), path, key=self.path)
        return at if at < len(self) and self.path(at) == path else None

    def locations(self, path: str) -> Sequence[int]:
        """Return the locations of all markers of a file. The first question costs as much as the chunk."""
        if self._by_path is None:
            self._by_path = dict(_group(self.said()))
        return self._by_path.get(path, ())

    def only(self, indexes: Iterable[int]) -> "LiveChunk":
        """Return a chunk of some of the live files."""
        return LiveChunk(self.prefix, [(self.path(at), self.live[at]) for at in indexes], self.sources, frozenset())

    def named(self, path: str) -> Named:
        """Return what log files say of a file."""
        return self.count(self.locations(path))

    def live_marker(self, path: str) -> FileMarker | None:
        """Return the marker of a live file; ``None``: it is none."""
        return self.live_marker_of(self.locations(path))

    def live_marker_of(self, locations: Sequence[int]) -> FileMarker | None:
        """Return the same, of a file that is named at some locations, and nowhere else."""
        if not self.count(locations).is_live:
            return None
        best = max(locations, key=self._rank) if len(locations) > 1 else locations[0]
        return self.sources[best >> INDEX_BITS].marker(best & INDEX_MASK)

    @property
    def size_bytes(self) -> int:
        """Bytes of the live files."""
        return self.once("size", lambda: sum(self.sizes()))

    @property
    def row_count(self) -> int | None:
        """Rows of the live files; ``None`` when some file does not say."""
        return self.once("rows", lambda: sum_rows(self.row_counts()))

    @property
    def rows_said(self) -> int | list[int | None]:
        """Rows of the live files; of each alone when some file does not say: another log file may say it later."""
        rows = self.row_count
        return self.row_counts() if rows is None else rows

    @property
    def newest_ms(self) -> int:
        """When the newest of the live files was made; 0: there is none."""
        return self.once("newest", lambda: max(self.created(), default=0))

    @property
    def oldest_ms(self) -> int:
        """When the oldest of the live files was made; 0: there is none."""
        return self.once("oldest", lambda: min(self.created(), default=0))

    @property
    def fewest_promoted(self) -> int:
        """The least of :meth:`promoted_counts`; of no files as many as there may be."""
        return self.once("promoted", lambda: min(self.promoted_counts(), default=MAX_PROMOTED))

    @property
    def digest(self) -> int:
        """Sum of the shares in the snapshot's id."""
        return self.once(_DIGEST, lambda: sum_digests(map(path_digest, self.paths())))

    def derive_digest(self, known: "LiveChunk") -> None:
        """Work the digest out from that of a chunk of mostly the same markers: shares are made where they differ."""
        if _DIGEST in known.made:
            mine, theirs = set(self.live), set(known.live)
            came = (path_digest(self.path(at)) for at, each in enumerate(self.live) if each not in theirs)
            went = (path_digest(known.path(at)) for at, each in enumerate(known.live) if each not in mine)
            self.made[_DIGEST] = (known.digest + sum(came) - sum(went)) % _DIGEST_SPACE

    def once(self, name: str, work: Callable[[], _Made]) -> _Made:
        """Return what was made of this chunk under a name, made now if nothing was."""
        if name not in self.made:
            self.made[name] = work()
        made: _Made = self.made[name]
        return made

    def is_same(self, other: "LiveChunk") -> bool:
        """Whether it says the same of the same live files, wherever their markers are."""
        return (
            len(self) == len(other)
            and (self.size_bytes, self.rows_said) == (other.size_bytes, other.rows_said)
            and self.digest == other.digest
        )


class LiveFiles(MarkerSequence):
    """All live data files of a table, ascending by path. Immutable.

    Args:
        chunks: Ascending by path, each with a live file.
    """

    def __init__(self, chunks: Iterable[LiveChunk] = ()) -> None:
        self.chunks: Final = tuple(chunks)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.chunks)))

    @cached_property
    def _firsts(self) -> list[str]:
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
    def newest_ms(self) -> int:
        """When the newest file was made; 0: there is none."""
        return max((chunk.newest_ms for chunk in self.chunks), default=0)

    def fewest_promoted(self, without: Collection[str] = ()) -> int:
        """Return how many promoted paths each file has the columns of (S4), but for some files."""
        counts = [MAX_PROMOTED]
        for chunk in sorted(self.chunks, key=attrgetter("fewest_promoted")):
            if chunk.fewest_promoted >= min(counts):
                break
            if without:
                told = zip(chunk.paths(), chunk.promoted_counts(), strict=True)
                counts += [count for path, count in told if path not in without]
            else:
                counts.append(chunk.fewest_promoted)
        return min(counts)

    @cached_property
    def partition_count(self) -> int:
        """Partitions that have a file."""
        return len({chunk.prefix for chunk in self.chunks})

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def marker(self, index: int) -> FileMarker:
        """Return the marker of a file, decoded now if it is held as a line."""
        which = bisect_right(self._ends, index)
        chunk = self.chunks[which]
        return chunk.marker(index - (self._ends[which] - len(chunk)))

    def __iter__(self) -> Iterator[FileMarker]:
        return (chunk.marker(index) for chunk in self.chunks for index in range(len(chunk)))

    def paths(self) -> list[str]:
        """Return all paths."""
        return [path for chunk in self.chunks for path in chunk.paths()]

    def locate(self, path: str) -> tuple[LiveChunk, int] | None:
        """Return the chunk of a file and its index there; ``None`` if it is not live."""
        chunk = self.chunks[max(0, bisect_right(self._firsts, path) - 1)] if self.chunks else None
        index = None if chunk is None else chunk.find(path)
        return None if chunk is None or index is None else (chunk, index)

    def find(self, path: str) -> FileMarker | None:
        """Return the marker of a file; ``None`` if it is not live."""
        found = self.locate(path)
        return None if found is None else found[0].marker(found[1])

    def sizes(self) -> list[int]:
        """Return all sizes, bytes, in the order of their paths."""
        return [size for chunk in self.chunks for size in chunk.sizes()]

    def minus(self, other: "LiveFiles") -> "LiveFiles":
        """Return the files that another snapshot does not have. Chunks that both have are not looked into."""
        # A file of a shared chunk is in both, and in no other chunk of either.
        ours, theirs = _unshared(self, other), _unshared(other, self)
        # Mostly the same marker names a file in both; a path is asked for only where markers differ.
        known, mine = ({each for chunk in chunks for each in chunk.live} for chunks in (theirs, ours))
        again = {chunk.path(at) for chunk in theirs for at, each in enumerate(chunk.live) if each not in mine}
        parts = (
            (chunk, [at for at, each in enumerate(chunk.live) if each not in known and chunk.path(at) not in again])
            for chunk in ours
        )
        return LiveFiles(chunk.only(indexes) for chunk, indexes in parts if indexes)


class ChosenFiles(MarkerSequence):
    """Some of the data files of a folder; none of their markers is made before somebody asks for it. Immutable.

    Args:
        files: All of them.
        places: Where those that are chosen stand among them, ascending.
        size_bytes: What these have together.
    """

    __slots__ = ("_files", "_places", "size_bytes")

    def __init__(self, files: LiveFiles, places: Iterable[int], *, size_bytes: int) -> None:
        self._files = files
        self._places = array("Q", places)
        self.size_bytes: Final = size_bytes

    def __len__(self) -> int:
        return len(self._places)

    def marker(self, index: int) -> FileMarker:
        """See :class:`MarkerSequence`."""
        return self._files.marker(self._places[index])


def sort_entries(entries: list[Entry]) -> list[Entry]:
    """Sort what log files say of data files by path, in place."""
    entries.sort(key=itemgetter(0))
    return entries


def cut_chunks(
    entries: Sequence[Entry], sources: Mapping[int, Markers], dead_logs: AbstractSet[int] = frozenset()
) -> list[LiveChunk]:
    """Cut what log files say of data files into chunks. Arguments as of :class:`LiveChunk`."""
    chunks: list[LiveChunk] = []
    begin = 0
    while begin < len(entries):
        slash = entries[begin][0].rfind("/")
        prefix = entries[begin][0][: slash + 1]
        end = bisect_left(entries, end_of_folder(prefix), lo=begin, key=itemgetter(0)) if prefix else len(entries)
        # One partition is mostly in one piece; where folders are nested in it, it is cut by them.
        if max(map(str.find, map(itemgetter(0), entries[begin:end]), repeat("/"), repeat(slash + 1))) >= 0:
            end = next(at for at in range(begin, end) if entries[at][0].rfind("/") != slash)
        pieces = max(1, round((end - begin) / CHUNK_FILES)) if end - begin > 2 * CHUNK_FILES else 1
        cuts = [begin]
        for piece in range(1, pieces + 1):
            cut = begin + (end - begin) * piece // pieces
            while cut < end and entries[cut][0] == entries[cut - 1][0]:  # all of one file are in one chunk
                cut += 1
            cuts.append(max(cut, cuts[-1]))
        chunks += [
            LiveChunk(prefix, entries[low:high], sources, dead_logs) for low, high in pairwise(cuts) if low < high
        ]
        begin = end
    return chunks


def end_of_folder(prefix: str) -> str:
    """Return the least text behind all that begins with a folder's name and its slash."""
    return f"{prefix[:-1]}{chr(ord('/') + 1)}"


def path_digest(path: str) -> int:
    """Return the share of a file in its snapshot's id; :func:`sum_digests` adds shares up, whatever their order."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=_DIGEST_BYTES).digest())


def sum_digests(digests: Iterable[int]) -> int:
    """Return the sum of the shares of files."""
    return sum(digests) % _DIGEST_SPACE


def sum_rows(counts: Iterable[int | None]) -> int | None:
    """Return the sum of row counts; ``None`` if one of them is unknown."""
    total = 0
    for rows in counts:
        if rows is None:
            return None
        total += rows
    return total


def _group(entries: Iterable[Entry]) -> Iterator[tuple[str, list[int]]]:
    """Yield each path with the locations of its markers."""
    for path, found in groupby(entries, key=itemgetter(0)):
        yield path, [location for _, location in found]


def _unshared(files: LiveFiles, other: LiveFiles) -> list[LiveChunk]:
    """Return the chunks that another snapshot does not have as they are."""
    known = {chunk.first: chunk for chunk in other.chunks}
    found = ((chunk, known.get(chunk.first)) for chunk in files.chunks)
    return [chunk for chunk, same in found if same is None or not (same is chunk or same.is_same(chunk))]
