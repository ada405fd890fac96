"""What planners ask of a log, kept up to date from one view of it to the next. Pure: no store, no clock.

A fold costs as much as the whole log. An index costs what the log files that came and went since the last view hold,
so that a worker can look at a table of 100,000 files every few seconds, and a simulation can run through 100,000
commits. It answers the same as :func:`icedb_log.log.fold.fold` (S1); a test compares the two over random histories.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Self

from icedb_log.model import FileMarker, ListedLogFile, LogView


class _Named:
    """One data file: what the log files say of it."""

    __slots__ = ("dead_in", "live_in", "log_keys", "marker")

    def __init__(self, marker: FileMarker) -> None:
        self.marker = marker
        self.live_in = 0
        self.dead_in = 0
        self.log_keys: list[str] = []

    @property
    def is_live(self) -> bool:
        """S1: a tombstone anywhere wins."""
        return self.live_in > 0 and not self.dead_in


class LogIndex:
    """The live data files of a table by folder, and which log files name them. Not thread-safe."""

    def __init__(self) -> None:
        self._files: dict[str, ListedLogFile] = {}
        self._named: dict[str, _Named] = {}
        self._killed: Counter[str] = Counter()
        self._folders: dict[str, dict[str, FileMarker]] = {}
        self._changed: set[str] = set()
        self._active: tuple[ListedLogFile, ...] | None = None

    @classmethod
    def of(cls, view: LogView) -> Self:
        """Return the index of one view."""
        index = cls()
        index.update(view)
        return index

    @property
    def files(self) -> Collection[ListedLogFile]:
        """All log files of the view that was taken in last."""
        return self._files.values()

    @property
    def folders(self) -> Mapping[str, Mapping[str, FileMarker]]:
        """Live data files by path, for each folder that has any: a partition is a folder."""
        return self._folders

    def update(self, view: LogView) -> None:
        """Take in a later view of the same table. Costs what the log files that came and went hold."""
        current = {file.key: file for file in view.files}
        came = [file for key, file in current.items() if not _is_same(self._files.get(key), file)]
        went = [file for key, file in self._files.items() if not _is_same(current.get(key), file)]
        for file in came:
            self._add(file)
        for file in went:
            self._remove(file)
        self._files, self._active = current, None

    def take_changed(self) -> set[str]:
        """Return the folders of which a live file, or a log file that names one, has changed; forget them."""
        changed, self._changed = self._changed, set()
        return changed

    def is_dead_log(self, key: str) -> bool:
        """Whether a log file is tombstoned."""
        return key in self._killed

    def active_files(self) -> tuple[ListedLogFile, ...]:
        """Return the log files that are not dead and may be merged (F4: a seal never is), ascending by key."""
        if self._active is None:
            files, killed = self._files.values(), self._killed
            self._active = tuple([file for file in files if not file.log.is_seal and file.key not in killed])
        return self._active

    def logs_naming(self, path: str) -> list[str]:
        """Return the keys of the log files, dead ones too, that name a data file."""
        named = self._named.get(path)
        return [] if named is None else named.log_keys

    def live_marker(self, path: str) -> FileMarker | None:
        """Return the marker of a live data file, ``None`` for any other."""
        named = self._named.get(path)
        return named.marker if named is not None and named.is_live else None

    def _add(self, file: ListedLogFile) -> None:
        for marker in file.log.markers:
            named = self._named.get(marker.path)
            if named is None:
                named = self._named[marker.path] = _Named(marker)
            named.log_keys.append(file.key)
            if marker.tombstoned_ms is not None:
                named.dead_in += 1
            else:
                # As the fold does: of two markers, the one that knows its rows.
                if not named.live_in or (named.marker.row_count is None and marker.row_count is not None):
                    named.marker = marker
                named.live_in += 1
            self._settle(marker.path, named)
        if file.log.log_tombstones:
            self._killed.update([tombstone.path for tombstone in file.log.log_tombstones])

    def _remove(self, file: ListedLogFile) -> None:
        for marker in file.log.markers:
            named = self._named[marker.path]
            named.log_keys.remove(file.key)
            if marker.tombstoned_ms is not None:
                named.dead_in -= 1
            else:
                named.live_in -= 1
            self._settle(marker.path, named)
            if not named.log_keys:
                del self._named[marker.path]
        for tombstone in file.log.log_tombstones:
            self._killed[tombstone.path] -= 1
            if not self._killed[tombstone.path]:
                del self._killed[tombstone.path]

    def _settle(self, path: str, named: _Named) -> None:
        folder = path.rpartition("/")[0]
        if named.is_live:
            self._folders.setdefault(folder, {})[path] = named.marker
            self._changed.add(folder)
            return
        files = self._folders.get(folder)
        if files is not None and files.pop(path, None) is not None:
            self._changed.add(folder)
            if not files:
                del self._folders[folder]


def newest_ms(markers: Iterable[FileMarker]) -> int:
    """Return when the newest of some data files was made; 0 for none."""
    return max((marker.created_ms for marker in markers), default=0)


def _is_same(one: ListedLogFile | None, other: ListedLogFile) -> bool:
    return one is not None and one.etag == other.etag
