"""What the log says, kept up to date from one view of it to the next (S1). Pure: no store, no clock.

The one form of a table's log in memory: planners, the checks of a commit, status and the snapshot service ask it, and
:func:`icedb_log.log.fold.fold` is a state that is asked once. It holds no object for a data file, only locations of
markers, ascending by path, in chunks of one partition. An update costs what the log files that came and went hold, so
that a worker can look at a table of 100,000 files every few seconds, a service at one of a million.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final, Self

from icedb_log.log.live_files import LiveChunk, LiveFiles, Named, cut_chunks, end_of_folder, sort_entries
from icedb_log.log.markers import INDEX_BITS, INDEX_MASK, Entry, Markers, markers_of, paused_gc
from icedb_log.model import FileMarker, ListedLogFile, LogView

FEW_MARKERS: Final = 1000
SHARE_OF_MANY: Final = 8
"""More changed markers than an eighth of all are sorted anew with all others: that is cheaper."""


class LogState:
    """What the log files of a table say together. Not thread-safe; what it has returned stays as it is.

    Attributes:
        view: The log as it was taken in last.
    """

    def __init__(self) -> None:
        self.view = LogView("", (), 0)
        self._files: dict[str, ListedLogFile] = {}
        self._markers: dict[str, Markers] = {}
        self._killed: Counter[str] = Counter()
        self._dead_logs: set[int] = set()
        self._chunks: list[LiveChunk] = []
        self._firsts: list[str] = []
        self._changed: set[str] = set()
        self._inconsistent: set[str] = set()
        self._live: LiveFiles | None = LiveFiles()
        self._active: tuple[ListedLogFile, ...] | None = None

    @classmethod
    def of(cls, view: LogView) -> Self:
        """Return the state of one view."""
        state = cls()
        state.update(view)
        return state

    def copy(self) -> Self:
        """Return an independent copy of the state. Costs a step for each chunk."""
        other = type(self)()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict | list | set) else value)
        return other

    @property
    def files(self) -> Collection[ListedLogFile]:
        """All log files of the view that was taken in last."""
        return self._files.values()

    @property
    def live(self) -> LiveFiles:
        """All live data files."""
        if self._live is None:
            self._live = LiveFiles(chunk for chunk in self._chunks if chunk.live)
        return self._live

    @property
    def inconsistent(self) -> Collection[str]:
        """Data files that are live by all log files and not by those that are not dead, or the other way round.

        To delete the dead log files would change what is live: there should be none.
        """
        return self._inconsistent

    @property
    def tombstoned_ms(self) -> Mapping[str, int]:
        """Path of each dead data file that is still named, to the earliest tombstone time."""
        return Tombstones(tuple(self._markers.values()))

    def update(self, view: LogView) -> None:
        """Take in a later view of the same table, or an earlier one. Costs what the log files that differ hold."""
        self.view = view
        current = {file.key: file for file in view.files}
        came = [file for key, file in current.items() if not _is_same(self._files.get(key), file)]
        went = self._gone(current)
        if not came and not went:
            return
        self._files, self._active, self._live = current, None, None
        touched = [self._markers.pop(file.key) for file in went]
        gone = {markers.number for markers in touched}
        new = {file.key: markers_of(file.key, file.log.markers) for file in came}
        self._markers.update(new)
        for file in came:
            self._killed.update([tombstone.path for tombstone in file.log.log_tombstones])
        for file in went:
            for tombstone in file.log.log_tombstones:
                self._killed[tombstone.path] -= 1
                if not self._killed[tombstone.path]:
                    del self._killed[tombstone.path]
        self._dead_logs -= gone
        for key in {t.path for file in (*came, *went) for t in file.log.log_tombstones} | new.keys():
            markers = self._markers.get(key)
            if markers is not None and (key in self._killed) != (markers.number in self._dead_logs):
                self._dead_logs ^= {markers.number}
                if key not in new:
                    touched.append(markers)
        with paused_gc():
            self._rebuild(tuple(new.values()), touched, gone)

    def _gone(self, current: Mapping[str, ListedLogFile]) -> list[ListedLogFile]:
        """Return the log files that are not there any more, or not as they were."""
        return [file for key, file in self._files.items() if not _is_same(current.get(key), file)]

    def _rebuild(self, new: Sequence[Markers], touched: Sequence[Markers], gone: AbstractSet[int]) -> None:
        """Make the chunks anew in which something has changed.

        Args:
            new: Markers that came.
            touched: Markers of which the files are to be judged again, or are gone.
            gone: Numbers of those that are gone.
        """
        sources = {markers.number: markers for markers in self._markers.values()}
        changed_count, all_count = (sum(map(len, each)) for each in ((*new, *touched), sources.values()))
        if not self._chunks or changed_count > max(FEW_MARKERS, all_count // SHARE_OF_MANY):
            entries = sort_entries([entry for markers in sources.values() for entry in markers.entries()])
            self._put(0, len(self._chunks), cut_chunks(entries, sources, self._dead_logs))
            return
        edits: dict[int, list[Entry]] = {}
        for markers in new:
            for entry in markers.entries():
                edits.setdefault(self._chunk_of(entry[0]), []).append(entry)
        for markers in touched:
            for path in markers.paths():
                edits.setdefault(self._chunk_of(path), [])
        for which in sorted(edits, reverse=True):
            kept = [entry for entry in self._chunks[which].said() if entry[1] >> INDEX_BITS not in gone]
            self._put(which, which + 1, cut_chunks(sort_entries([*kept, *edits[which]]), sources, self._dead_logs))

    def _put(self, begin: int, end: int, fresh: Iterable[LiveChunk]) -> None:
        """Let some chunks take the place of others; those that say the same keep what was made of them."""
        before = self._chunks[begin:end]
        known = {chunk.first: chunk for chunk in before}
        after = [_take_over(known.get(chunk.first), chunk) for chunk in fresh]
        same = set(map(id, before)) & set(map(id, after))
        for chunk in before:
            if chunk.inconsistent:
                self._inconsistent.difference_update(chunk.inconsistent)
        for chunk in after:
            if chunk.inconsistent:
                self._inconsistent.update(chunk.inconsistent)
        self._changed.update(chunk.prefix for chunk in (*before, *after) if id(chunk) not in same)
        self._chunks[begin:end] = after
        self._firsts[begin:end] = [chunk.first for chunk in after]

    def _chunk_of(self, path: str) -> int:
        return max(0, bisect_right(self._firsts, path) - 1)

    def take_changed(self) -> set[str]:
        """Return the folders, with their last slash, in which something has changed; forget them."""
        changed, self._changed = self._changed, set()
        return changed

    def folders(self) -> Iterator[tuple[str, LiveFiles]]:
        """Yield each folder that has a live file, with its last slash: a partition is a folder."""
        chunks: dict[str, list[LiveChunk]] = {}
        for chunk in self._chunks:
            if chunk.live:
                chunks.setdefault(chunk.prefix, []).append(chunk)
        return ((prefix, LiveFiles(found)) for prefix, found in chunks.items())

    def folder(self, prefix: str) -> LiveFiles:
        """Return the live files of a folder, not of those in it."""
        end = bisect_left(self._firsts, end_of_folder(prefix)) if prefix else len(self._firsts)
        found = self._chunks[self._chunk_of(prefix) : end]
        return LiveFiles(chunk for chunk in found if chunk.live and chunk.prefix == prefix)

    def is_dead_log(self, key: str) -> bool:
        """Whether a log file is tombstoned."""
        return key in self._killed

    def held_log(self, key: str) -> ListedLogFile | None:
        """Return a log file that is there and not dead."""
        return None if key in self._killed else self._files.get(key)

    def active_files(self) -> tuple[ListedLogFile, ...]:
        """Return the log files that are not dead and may be merged (F4: a seal never is), ascending by key."""
        if self._active is None:
            files, killed = self._files.values(), self._killed
            self._active = tuple([file for file in files if not file.log.is_seal and file.key not in killed])
        return self._active

    def logs_naming(self, path: str) -> list[str]:
        """Return the keys of the log files, dead ones too, that name a data file; once for each time."""
        chunk = self._holding(path)
        return [] if chunk is None else [chunk.sources[each >> INDEX_BITS].key for each in chunk.locations(path)]

    def stale_markers(self) -> Iterator[tuple[str, int]]:
        """Yield for each marker that lists a dead data file as live, in a log file that is not dead: key, and bytes.

        The key is that of the log file; while it is there the data file is not deleted (J2).
        """
        for chunk in self._chunks:
            for location in chunk.stale:
                markers = chunk.sources[location >> INDEX_BITS]
                yield markers.key, markers.size_bytes(location & INDEX_MASK)

    def markers_in(self, key: str) -> Markers:
        """Return what a log file that is there says of data files."""
        return self._markers[key]

    def named_in(self, numbers: AbstractSet[int]) -> Iterator[tuple[LiveChunk, str, list[int]]]:
        """Yield, ascending by path, each data file that one of some markers names, its chunk, and all locations."""
        return ((chunk, *found) for chunk in self._chunks for found in chunk.named_in(numbers))

    def named(self, path: str) -> Named:
        """Return what is said of a data file: zeros if no log file names it."""
        chunk = self._holding(path)
        return Named() if chunk is None else chunk.named(path)

    def live_marker(self, path: str) -> FileMarker | None:
        """Return the marker of a live data file, ``None`` for any other."""
        chunk = self._holding(path)
        return None if chunk is None else chunk.live_marker(path)

    def _holding(self, path: str) -> LiveChunk | None:
        """Return the chunk that a data file is in if it is named."""
        return self._chunks[self._chunk_of(path)] if self._chunks else None


class Tombstones(Mapping[str, int]):
    """Dead data files with the earliest tombstone time of each; gathered on first access."""

    def __init__(self, markers: Sequence[Markers]) -> None:
        self._markers = markers

    @cached_property
    def _earliest(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for markers in self._markers:
            for index, time_ms in markers.dead.items():
                path = markers.path(index)
                if time_ms <= found.get(path, time_ms):
                    found[path] = time_ms
        return found

    def __getitem__(self, path: str) -> int:
        return self._earliest[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._earliest)

    def __len__(self) -> int:
        return len(self._earliest)


def _is_same(one: ListedLogFile | None, other: ListedLogFile) -> bool:
    return one is not None and one.etag == other.etag


def _take_over(known: LiveChunk | None, fresh: LiveChunk) -> LiveChunk:
    """Return a chunk with what was made of the same files before."""
    if known is None:
        return fresh
    if known.entries == fresh.entries and known.dead_logs == fresh.dead_logs:
        return known
    fresh.derive_digest(known)
    if known.made and known.is_same(fresh):
        fresh.made.update(known.made)
    return fresh
